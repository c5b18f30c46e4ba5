//! The shm port: bursts to and from other processes of this host, through memory.
//!
//! A link goes one way: whoever wants to send makes a [`segment`], which holds one [`ring`], and
//! hands it to the receiver through the receiver's socket (`door`). So two processes that talk
//! share two segments, each written by one side; nobody waits for a handshake, because a sender may
//! fill its ring before the other has looked.
//!
//! The socket over which a segment came stays open, for three uses: the kernel tells on it that the
//! other process is gone; a byte on it wakes a receiver that declared itself asleep; a byte back
//! wakes a sender that waits for room. A socket of our own can be written without ever blocking,
//! which is not so for a descriptor that a peer made (an eventfd of his may be full on purpose), so
//! there are no eventfds.
//!
//! Beside data and bells the socket carries [`loan`]s: regions of which the program shares the
//! memory are mapped by those who write to them, and where both ends want it others are written by
//! their addresses (`reach`).
//!
//! Trust: both ends belong to one user, or the other to the router, as the kernel says
//! (SO_PEERCRED). Nevertheless neither end believes an index or a length that the other wrote, and
//! a peer that breaks its ring loses its link, nothing else.

pub mod door;
pub mod loan;
pub mod messages;
mod port;
mod reach;
pub mod relay;
pub mod ring;
pub mod segment;

pub(crate) use port::Peer;
pub use port::{ShmCounters, ShmPort, LINKS};
