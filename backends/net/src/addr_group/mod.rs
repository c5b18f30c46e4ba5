//! Any number of processes on one address and UDP port.
//!
//! Each device owns [blocks](gdrcore_core::config::QPN_UNIT) of the 24 bits of QPNs: it holds the
//! lock of the directory that is named after the block ([`crate::local`]), so no crash leaves a
//! claim behind. All of them bind their UDP socket to the same port (SO_REUSEPORT), and a
//! [program](mod@steer) that the kernel runs for each packet picks the socket by DestQP.
//!
//! The program speaks of sockets by their index in a list of the kernel's that nobody can read: a
//! new socket comes last, and when one closes the last one takes its place. So everybody finds out
//! his own index, by sending himself one packet for each that there may be, and a
//! [table](mod@table) of all that know theirs goes round. That is only for speed. What makes
//! packets arrive is that whoever gets one of a block that is not his passes it on, by
//! [mail](mod@group_msg) to the name of the block: while a table is old, where the kernel refuses the
//! program, and for the segments of others that GRO puts into one packet.
//!
//! There is no process that must live for this to work, and none that must be told when one dies.

mod forward_queue;
pub mod group_msg;
mod member;
pub mod numbers;
pub mod steer;
pub mod table;

pub use group_msg::Packets;
pub(crate) use member::request_renewal;
pub use member::{Claim, ForEngine, GroupCounters, Member, Owner, WantedBlocks, SERVICES};
