//! `libibverbs.so.1` over the soft device: programs that were compiled against rdma-core run on it unmodified.
//!
//! A thin shim. Each verb turns its arguments into those of [`gdrcore_core::device::Device`] and back; no transport
//! logic lives here. Low to high:
//!
//! * `abi`: the structs of `<infiniband/verbs.h>`; `result`, `lock`, `env`: errno, locks, the environment.
//!   `worker`: a thread to wake. `stats`: counters for who asks.
//! * `adapter`: the list of devices, one per address. `hca`: an open soft device, shared by all contexts of the
//!   process on its address, and the place where its events are handed out.
//! * `queue`: events on a descriptor. `context`: what `ibv_open_device` gives.
//! * Objects: `pd`, `mr` (windows too), `dm`, `null`, `ah`, `channel`, `cq`, `cq_ex`, `srq`, `qp`, `qp_ex`, `post`.
//! * `ucma`: the kernel's end of librdmacm. `uverbs`: that of commands which programs write by themselves. `sysfs`: files of devices that programs look at.
//! * What needs no device: `gids`, `strings`, `rates`, `kern`, `fork`.
//!
//! The names that programs bind to, with their versions, are the table `symbols/*.txt`; `build.rs` makes the jumps of it.
//!
//! # Thread-safety
//! As libibverbs promises: any thread may call anything. The device refuses a second thread on one queue with
//! `EBUSY`; here that thread waits its turn.
#![allow(non_camel_case_types)]
// Tests leave the generated jumps out, which are what calls the verbs.
#![cfg_attr(test, allow(dead_code))]

mod abi;
mod adapter;
mod ah;
mod channel;
mod context;
mod cq;
mod cq_ex;
mod dm;
mod env;
mod fork;
mod gids;
mod hca;
mod kern;
mod lock;
mod mr;
mod null;
mod pd;
mod post;
mod qp;
mod qp_ex;
mod query;
mod queue;
mod rates;
mod result;
mod srq;
mod stats;
mod strings;
mod symbols;
mod sysfs;
mod ucma;
mod uverbs;
mod worker;
