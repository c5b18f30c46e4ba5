//! Remote mode: the verbs of a tenant are executed by its router, on a device of the router's own.
//!
//! * [`call`]: control calls and their answers, as words. Both ends import it.
//! * [`queue`]: send queues, receive queues and completion queues in shared memory, and the page of
//!   doorbells.
//! * [`table`]: handles of a session's objects.
//! * [`pages`]: memory of a file that the router maps: its end of [`adopt`].
//! * [`adopt`]: moves private pages of the program into a file, under the same addresses;
//!   `moving`: which pages move now; `inherit`: what a forked child has of them.
//! * [`client`]: the tenant's device.
//!
//! The router's end is `gdrcore_router::remote`. Control calls may allocate; posts and polls do
//! not, and make no system call while the router is awake.

pub mod adopt;
pub mod call;
pub mod client;
mod inherit;
pub(crate) mod moving;
pub mod pages;
pub mod queue;
pub mod table;

/// Most objects of a session, by kind. The doorbell of a queue follows from its object's index.
pub mod limits {
    /// Queue pairs, each with two doorbells.
    pub const QP: u32 = 1024;
    /// SRQs.
    pub const SRQ: u32 = 256;
    /// Completion queues.
    pub const CQ: u32 = 1024;
    /// Memory regions; pieces of them in all; memory windows.
    pub const MR: u32 = 2048;
    /// Ids of the connection manager.
    pub const ID: u32 = 256;
    /// Any other kind.
    pub const OTHER: u32 = 1024;
}
