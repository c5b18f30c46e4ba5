//! Harnesses and tools that the integration tests share.

pub mod cm;
pub mod containers;
pub mod crowd;
pub mod cuda;
pub mod debian_root;
pub mod dropin;
pub mod etcd;
pub mod far_end;
pub mod feed;
pub mod forge;
pub mod huge_pages;
pub mod lab;
pub mod launched;
pub mod library;
pub mod map;
pub mod process;
pub mod rdmacm;
pub mod remote;
pub mod results;
pub mod router;
pub mod router_round;
pub mod rxe;
pub mod sniffed;
pub mod soft;
pub mod source;
pub mod strict;
pub mod suite;
pub mod supervisor;
pub mod tools;
pub mod traffic;
pub mod two_hosts;
pub mod workers;

pub use gdrcore_testkit::{cpu, ends, linger, or_skip, patience, place, rng, skip};
