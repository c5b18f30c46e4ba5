//! `libibverbs.so.1` over the soft device: programs that were compiled against rdma-core run on it
//! unmodified.
//!
//! A thin shim. Each verb converts its arguments to those of [`gdrcore_core::device::Device`] and
//! back; no transport logic is here. Low to high:
//!
//! * `abi`: the structs of `<infiniband/verbs.h>`. `event_acks`: acknowledgement of events.
//!   `verb_result`, `env`: errno, the environment. `worker`: a thread that
//!   others wake. `event_queue`: events with a descriptor. `null_memory`: the memory of null
//!   regions. `object_numbers`: handles as programs see them. `stats_printer`: prints counters.
//! * `hca_kinds`: one row for each kind of device. `adapter`: an entry of the list of devices, one
//!   per address. `hca`: an open device, shared by all contexts of the process on its address; it
//!   delivers the device's events. `open_devices`: all entries, and the open devices.
//!   `open_context`: the context of `ibv_open_device`.
//! * `*_verbs`: the verbs, a file for each object, with the object's struct. `send_batch`: the
//!   requests that `ibv_wr_` calls build. `failed_requests`: prints why requests failed.
//! * `ops_table`: the operations of a context, through which the inline verbs call those files.
//!   `open_verbs`: open and close.
//! * `ucma_table`: the kernel's end of librdmacm. `uverbs_commands`: the kernel's end of commands
//!   that programs write themselves. `sysfs`: files of devices that programs read. `umad`: the
//!   kernel's end of libibumad.
//! * `layer`: sees every call of the program, if the environment requests it. `call_faults`: makes
//!   calls fail by rules. `trace`: prints them. `strict`: tells
//!   `gdrcore_strict` of them, which reports what the program may not do.
//!   `peek`: structs that they read where the program's pointers lead.
//! * `mlx5`: the calls of mlx5dv that our `libmlx5.so.1` passes on.
//! * Independent of a device: `gids`, `string_verbs`, `rate_verbs`, `kern_verbs`, `fork_verbs`.
//!
//! The table `symbols/ibverbs.txt` has the exported names and their versions. `build.rs` makes the
//! jumps of it.
//!
//! # Thread-safety
//! As libibverbs promises: any thread may call anything. The device refuses a second thread on one
//! queue with `EBUSY`; here that thread waits its turn.
#![allow(non_camel_case_types)]
// Tests are built without the generated jumps, which call the verbs.
#![cfg_attr(test, allow(dead_code))]

/// The handlers of fork for a lock of this process: `hold` before it, and `release` after it in
/// parent and child.
macro_rules! fork_handlers {
    ($lock:ident) => {
        extern "C" fn hold() {
            $lock.hold();
        }

        extern "C" fn release() {
            $lock.release();
        }
    };
}

mod abi;
mod adapter;
mod ah_verbs;
mod buf_verbs;
mod call_faults;
mod channel_verbs;
mod cq_ex_verbs;
mod cq_verbs;
mod dm_verbs;
mod dmah_verbs;
mod env;
mod event_acks;
mod event_queue;
mod event_verbs;
mod failed_requests;
mod fork_verbs;
mod gids;
mod hca;
mod hca_kinds;
mod kern_verbs;
mod layer;
mod list_verbs;
mod mcast_verbs;
mod mlx5;
mod mr_verbs;
mod null_memory;
mod object_numbers;
mod open_context;
mod open_devices;
mod open_qp_verbs;
mod open_verbs;
mod ops_table;
mod pd_verbs;
mod peek;
mod post_verbs;
mod qp_ex_verbs;
mod qp_verbs;
mod query_verbs;
mod rate_verbs;
mod send_batch;
mod srq_verbs;
mod stats_printer;
mod strict;
mod string_verbs;
mod symbols;
mod sysfs;
mod trace;
mod ucma_table;
mod umad;
mod uverbs_commands;
mod verb_result;
mod weak;
mod worker;
mod xrcd_verbs;

/// Marks this libibverbs as gdrcore's own, so that the verbs device does not use it as a NIC's
/// library. The value is the version of this mark.
#[cfg_attr(not(test), no_mangle)]
#[allow(non_upper_case_globals)]
pub static gdrcore_dropin_version: u32 = 1;
