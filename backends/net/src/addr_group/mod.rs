//! Any number of processes on one address and UDP port.
//!
//! Each device owns [blocks](gdrcore_core::config::QPN_UNIT) of the 24 bits of QPNs. It holds the
//! lock of the directory that is named after the block ([`crate::local`]), so no crash leaves a
//! claim behind. All devices bind their UDP sockets to the same port (SO_REUSEPORT), and a
//! [program](mod@steer) that the kernel runs for each packet picks the socket by DestQP.
//!
//! The program names a socket by its index in a list of the kernel. No process can read the list. A
//! new socket comes last, and when a socket closes, the last one takes its place. So each device
//! learns its own index from packets that it sends to itself, one for each possible index, and the
//! devices exchange a [table](mod@table) of indexes. The table only improves speed. A device that
//! receives a packet of another's block forwards it by a [message](mod@group_msg) to the name of
//! the block. So packets arrive although a table is old, the kernel refuses the program, or GRO
//! puts segments of several devices into one packet.
//!
//! No single process has to live for this to work, and no process has to announce its end.

mod forward_queue;
pub mod group_msg;
mod member;
pub mod numbers;
pub mod steer;
pub mod table;

pub(crate) use group_msg::status_request;
pub use group_msg::Packets;
pub(crate) use member::request_renewal;
pub use member::{
    Claim, ClaimBounds, ForEngine, GroupCounters, Member, Owner, WantedBlocks, SERVICES,
};
