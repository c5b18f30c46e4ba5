//! What the tests of every crate share: time limits, addresses that no other test process uses, CPU
//! time, forks, slow closes, random numbers, memory; and two connected ends over any device.
//!
//! By itself it depends on no crate of this repository, so `core` may use it in its unit tests.
//! Features add what needs one: `packet` and `device` (core), and `soft` (the soft device).

#[cfg(feature = "device")]
pub mod connection;
pub mod cpu;
pub mod descriptors;
#[cfg(feature = "device")]
pub mod ends;
#[cfg(feature = "device")]
pub mod engine;
#[cfg(feature = "packet")]
pub mod engine_qps;
#[cfg(feature = "packet")]
pub mod icrc;
pub mod linger;
pub mod memory;
#[cfg(feature = "packet")]
pub mod packet;
pub mod patience;
#[cfg(feature = "packet")]
pub mod pcap;
pub mod place;
#[cfg(feature = "packet")]
pub mod requests;
pub mod rng;
pub mod skip;
#[cfg(feature = "soft")]
pub mod soft;
#[cfg(feature = "packet")]
pub mod weak;
