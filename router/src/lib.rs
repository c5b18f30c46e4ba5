//! The router: how containers, which have no RDMA NIC, no device node and perhaps no network, reach
//! each other through the soft device (docs/ROUTER.md).
//!
//! * [`policy`]: who there may be, and who may talk to whom; the TOML file.
//! * [`identity`]: what the kernel says of a process, and which tenant that makes it.
//! * [`broker`]: sessions, addresses, queue pair numbers, links. A state machine: messages in,
//!   actions out, no system call.
//! * [`relay`]: which packet that a session puts into its ring goes to whom. No system call either.
//! * [`firewall`]: the rule that lets nobody else of a host send as its router.
//! * [`nic`]: RoCE devices of the host that would take the router's packets.
//! * [`daemon`]: sockets, processes, the admin socket. Everything that knows Linux.
//!
//! Two tenants that policy allows to talk get either end of a socket each, and over it a ring of
//! their own, in which the router has no further part. Datagrams and messages of the connection
//! manager, and where it is told so everything, go by rings to and from the router.

pub mod broker;
pub mod daemon;
pub mod firewall;
pub mod identity;
pub mod nic;
pub mod policy;
pub mod rate;
pub mod relay;
