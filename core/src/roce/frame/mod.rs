//! How single requests and messages travel, by framing: packets, records of a link, or no frame at
//! all within the engine.
//!
//! The rules are those of [`super::rules`]; these files write and read the frames.

mod local;
pub mod middle;
pub mod packet;
pub mod record;
