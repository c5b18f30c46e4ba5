//! Rules of the transport, each written once.
//!
//! The state machines and the fast paths look up a queue pair, its peer and its CQs, and pass them
//! to these functions; nothing here looks up anything by an index but a CQ
//! and, by its number, an XRC SRQ.

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
