//! Rules of the transport, each written once.
//!
//! The state machines and the fast paths look up a queue pair and its peer, and pass them to these
//! functions, which look up nothing by an index but CQs and an SRQ.

pub(super) mod accept;
pub(crate) mod ack;
pub(super) mod complete;
pub(super) mod cq;
pub(super) mod receive;
pub(super) mod recv;
pub(crate) mod send;
pub(super) mod sge;
mod single;
