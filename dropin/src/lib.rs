//! `libibverbs.so.1` over the soft device: programs that were compiled against rdma-core run on it
//! unmodified.
//!
//! A thin shim. Each verb turns its arguments into those of [`gdrcore_core::device::Device`] and
//! back; no transport logic lives here. Low to high:
//!
//! * `abi`: the structs of `<infiniband/verbs.h>`. `event_acks`: which object an event is about,
//!   and who waits until it is acknowledged. `verb_result`, `thread_lock`, `env`: errno, locks, the
//!   environment. `worker`: a thread to wake.
//!   `event_queue`: events on a descriptor. `null_memory`: the memory of null regions.
//!   `stats_printer`: prints counters.
//! * `hca_kinds`: one row for each kind of device. `adapter`: an entry of the list of devices,
//!   one per address. `hca`: an open device, shared by all contexts of the process on its address;
//!   it hands out the device's events.
//!   `open_devices`: which entries there are, and which are open. `open_context`: what
//!   `ibv_open_device` gives.
//! * `*_verbs`: the verbs, a file for each object, and what their objects are. `send_batch`: the
//!   requests that `ibv_wr_` calls build.
//! * `ops_table`: the operations of a context, by which the inline verbs find those files.
//!   `open_verbs`: open and close.
//! * `ucma_table`: the kernel's end of librdmacm. `uverbs_commands`: that of commands which
//!   programs write by themselves.
//!   `sysfs`: files of devices that programs look at.
//! * What needs no device: `gids`, `string_verbs`, `rate_verbs`, `kern_verbs`, `fork_verbs`.
//!
//! The names that programs bind to, with their versions, are the table `symbols/*.txt`; `build.rs`
//! makes the jumps of it.
//!
//! # Thread-safety
//! As libibverbs promises: any thread may call anything. The device refuses a second thread on one
//! queue with `EBUSY`; here that thread waits its turn.
#![allow(non_camel_case_types)]
// Tests leave the generated jumps out, which are what calls the verbs.
#![cfg_attr(test, allow(dead_code))]

mod abi;
mod adapter;
mod ah_verbs;
mod channel_verbs;
mod cq_ex_verbs;
mod cq_verbs;
mod dm_verbs;
mod env;
mod event_acks;
mod event_queue;
mod event_verbs;
mod fork_verbs;
mod gids;
mod hca;
mod hca_kinds;
mod kern_verbs;
mod list_verbs;
mod mcast_verbs;
mod mr_verbs;
mod null_memory;
mod open_context;
mod open_devices;
mod open_verbs;
mod ops_table;
mod pd_verbs;
mod post_verbs;
mod qp_ex_verbs;
mod qp_verbs;
mod query_verbs;
mod rate_verbs;
mod send_batch;
mod srq_verbs;
mod stats_printer;
mod string_verbs;
mod symbols;
mod sysfs;
mod thread_lock;
mod ucma_table;
mod uverbs_commands;
mod verb_result;
mod worker;
