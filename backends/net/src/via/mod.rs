//! A device over a router: a tenant, which may have no address and no network at all, gets queue
//! pair numbers, a virtual address and ways to other tenants, of its host by links, from
//! `gdrcore-routerd` (docs/internals/ROUTER.md).
//!
//! * [`proto`]: the messages, as bytes. Both ends import it.
//! * [`wire`]: one message with its descriptors over a socket; both ends again.
//! * [`find`]: the choice of the router. `connect`: the way to its socket.
//! * [`client`]: the tenant's half of the protocol, without a system call.
//! * [`session`]: the tenant's connection.
//! * [`resume`]: reconnects to a router that was restarted; `absence`: the state for that.
//!
//! A session carries control messages alone. Data goes over links ([`crate::shm`]) and, without a
//! link, over two rings to and from the router ([`crate::shm::relay`]).

mod absence;
pub mod client;
mod connect;
pub mod find;
pub mod proto;
pub mod resume;
pub mod session;
pub mod wire;
