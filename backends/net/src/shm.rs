//! The shm port: bursts to and from other processes of this host, through memory.
//!
//! A link has one direction. The sender makes a [`segment`], which holds one [`ring`], and passes
//! it to the receiver over the receiver's socket ([`listener`]). Two processes that exchange
//! messages share two segments, each written by one side. There is no handshake: a sender may fill
//! its ring before the receiver has mapped it.
//!
//! The socket over which a segment came stays open, for three uses. The kernel closes it when the
//! other process ends. A byte on it wakes a receiver that has announced that it sleeps. A byte back
//! wakes a sender that waits for room. A write to such a socket never blocks. An eventfd that the
//! peer made could block, because the peer may fill it on purpose, so none is used.
//!
//! The socket also carries requests for memory and [`grant`]s. A region whose memory the program
//! shares is mapped by the peer that writes it. If both ends enable it, other regions are written
//! by their addresses (`cma`).
//!
//! Trust: both ends belong to one user, or the other end is the router's, by SO_PEERCRED. Neither
//! end relies on an index or a length that the other wrote. A peer that breaks its ring loses its
//! link, nothing else.

mod cma;
pub mod grant;
pub mod listener;
pub mod messages;
mod port;
pub mod relay;
pub mod ring;
pub mod segment;

pub(crate) use port::Peer;
pub use port::{Records, Sender, ShmBounds, ShmCounters, ShmPort, LINKS};
