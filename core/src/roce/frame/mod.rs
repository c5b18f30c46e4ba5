//! How single requests and messages travel, by framing: packets, records of a link, or no frame at
//! all within the engine.
//!
//! The rules are those of [`super::rules`], without what a single request cannot have; here is what
//! is written and read.

mod local;
pub mod packet;
pub mod record;
