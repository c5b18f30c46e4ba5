//! Verbs objects: their data, states and tables.

pub mod association;
pub mod cause;
pub mod connection;
pub mod holds;
pub mod kind;
pub mod objects;
pub mod opcode;
pub mod port_events;
#[allow(unsafe_code)] // follows the lists of C callers
pub mod post;
pub mod req;
pub mod resp;
pub mod shared;
pub mod transition;
pub mod types;
pub mod wqe;

/// Where the index of an object is asked for: none.
pub const NONE: u32 = u32::MAX;
