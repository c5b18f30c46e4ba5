//! Ports of the soft device, and what it needs of the operating system.
//!
//! * [`addr`]: device names and endpoints.
//! * [`udp`]: bursts over an unprivileged UDP socket.
//! * [`pcap`]: a tee that writes what a port carries as frames.
//! * [`wait`], [`clock`], [`map`], [`fork`], [`fault`]: descriptors to sleep on, time and
//!   randomness, memory, the fork check, faults on memory that vanished.
//!
//! * [`reason`]: why a thread's last call was refused, in words.
//! * [`addr_group`]: many processes on one address; `local`: the names under which processes of one host
//!   find each other.
//! * [`soft`]: the soft device: engine, port, progress.
//! * [`via`]: a device by way of a router: the protocol and the tenant's end of it.
//!
//! Nothing here allocates; what needs memory takes it from the caller at creation.

pub mod addr;
pub mod addr_group;
pub mod clock;
pub mod fault;
pub mod fork;
mod local;
pub mod map;
pub mod pcap;
pub mod port;
pub mod proc_net;
pub mod reason;
mod rights;
pub mod shm;
pub mod soft;
mod sys;
pub mod udp;
pub mod via;
pub mod wait;

/// Bytes of a burst or frame, sent or received, that takes so long to handle that the other end
/// should not wait for what follows it: microseconds, much more than it saves to handle several at
/// once.
const LONG: usize = 16 << 10;
