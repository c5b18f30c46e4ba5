//! Remote mode: executes the verbs of tenants on a device of the router's own.
//!
//! * [`session`]: a session's objects, its control calls (`calls`), its connection manager (`cm`).
//!   What a session made is destroyed with it, in the order that the device asks for.
//! * [`posts`]: a work request is copied, judged, and posted to the device.
//! * [`server`]: all sessions of a device, in rounds; `pace`: when a round runs the device.
//! * `gpu`: memory of GPUs, by descriptor.
//! * `guard`: whom a tenant may reach; `shares`: how much it may send.
//! * [`shared_device`]: the device, which gets more memory when its tables are full.
//!
//! A tenant names its objects by handles of its session's tables; regions, windows and keys are
//! checked by the device, for which a session's protection domains are its own. So no key and no
//! range of another session is ever valid, whatever a work request says. One thread serves a
//! device: it never waits for a tenant.

mod calls;
mod cm;
mod gpu;
mod guard;
mod pace;
pub mod posts;
pub mod server;
pub mod session;
pub mod shared_device;
mod shares;

#[cfg(test)]
mod tests;
