//! The router: connects containers through the soft device (docs/internals/ROUTER.md). They need
//! no RDMA NIC, no device node and no network.
//!
//! * [`policy`]: tenants, their limits, and which may talk to which; the TOML file.
//! * [`identity`]: the kernel's facts about a process, and the tenant that follows.
//! * [`broker`]: sessions, addresses, queue pair numbers, links. A state machine: messages in,
//!   actions out, no system call.
//! * [`relay`]: the destination and the turn of each packet in a session's ring. No system call
//!   either.
//! * [`remote`]: executes the verbs of tenants on a device of the router's own.
//! * [`firewall`]: the rule by which only the router sends packets as the router.
//! * [`nic`]: RoCE devices of the host that would take the router's packets.
//! * [`daemon`]: sockets, processes, the admin socket. Everything that depends on Linux.
//!
//! Each of two sessions that policy allows to talk gets one end of a socket, and over it a direct
//! ring without the router. Datagrams, messages of the connection manager, and traffic that the
//! policy names, go by rings to and from the router.

pub mod broker;
pub mod daemon;
pub mod firewall;
pub mod identity;
pub mod nic;
pub mod policy;
pub mod rate;
pub mod relay;
pub mod remote;
