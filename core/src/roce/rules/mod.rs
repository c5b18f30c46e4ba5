//! Rules of the transport, each written once.
//!
//! The state machines and the fast paths look up a queue pair and its peer, and pass them to these
//! functions. The functions look up only CQs, by index, and SRQs of XRC, by number.

pub(super) mod accept;
pub(crate) mod ack;
pub(super) mod complete;
pub(super) mod cq;
mod read;
pub(super) mod receive;
pub(super) mod recv;
pub(crate) mod send;
pub(super) mod sge;
mod single;
mod xrc;
