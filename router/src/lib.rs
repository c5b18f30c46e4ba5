//! The router: how containers, which have no RDMA NIC, no device node and perhaps no network, reach
//! each other through the soft device (docs/ROUTER.md).
//!
//! * [`policy`]: who there may be, and who may talk to whom; the TOML file.
//! * [`identity`]: what the kernel says of a process, and which tenant that makes it.
//! * [`broker`]: sessions, addresses, queue pair numbers, links. A state machine: messages in,
//!   actions out, no system call.
//! * [`daemon`]: sockets, processes, the admin socket. Everything that knows Linux.
//!
//! So far the router is a broker: it has no part in the data. Two tenants that policy allows to
//! talk get either end of a socket each, and over it a ring of their own.

pub mod broker;
pub mod daemon;
pub mod identity;
pub mod policy;
