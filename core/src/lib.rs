//! The gdrcore engine: RoCEv2 transport and verbs objects. No std, no alloc, no OS.
//!
//! Layer by layer, low to high; each imports only those above it in this list:
//!
//! 1. [`error`], [`reason`], [`config`], [`counters`], [`numbers`]: plain data, and why a call was
//!    refused.
//! 2. The plain data of [`verbs`] and [`cm`], and [`device`], the trait of soft devices and NICs.
//! 3. `arena`, `random`, `pool`, `ring`, `sleep`, `turns`, `lease`, `frame_len`, `bitmap`, `wheel`,
//!    `bucket`, `dcqcn`: memory, threads and time, fixed at init.
//! 4. [`wire`]: bytes of RoCEv2 packets and their ICRC. Knows nothing of QPs. [`receipt`]: ACKs
//!    that outlive their sender. [`inject`]: which packets and calls a list of faults hits.
//! 5. `mem`: memory regions, windows, keys, and how bytes get in and out of them.
//! 6. The objects of [`verbs`].
//! 7. `roce`: requester, completer, responder.
//! 8. [`cm`]: the connection manager, messages and connections without QPs.
//! 9. `engine`: the state machine of a soft device.

#![no_std]
#![deny(unsafe_code)]

#[cfg(test)]
extern crate std;

#[allow(unsafe_code)] // deals out raw memory
pub mod arena;
pub mod bitmap;
pub mod bucket;
pub mod cm;
pub mod config;
pub mod counters;
pub mod dcqcn;
#[allow(unsafe_code)] // declares unsafe methods, has no unsafe block
pub mod device;
#[allow(unsafe_code)] // the lock
pub mod engine;
pub mod error;
pub mod frame_len;
pub mod inject;
pub mod lease;
#[allow(unsafe_code)] // copies between packets and the program's memory (mem/host)
pub mod mem;
pub mod numbers;
pub mod pool;
pub mod random;
pub mod reason;
pub mod receipt;
#[allow(unsafe_code)] // slots in raw memory, shared by two threads
pub mod ring;
pub mod roce;
pub mod sleep;
mod sync;
#[cfg(test)]
mod testing;
pub mod turns;
pub mod verbs;
pub mod wheel;
pub mod wire;

pub use config::Config;
pub use error::{Error, Result};
