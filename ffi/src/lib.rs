//! `libgdrcore.so`: the C ABI.
//!
//! No transport logic is here. A C call checks its pointers (`ptr`), looks its context up
//! (`context_slots`), and calls [`gdrcore_core::device::Device`] once. `include/gdrcore.h` is
//! generated from these files and core's (`make header`), so the doc comments are for C
//! programmers; docs/using/ABI.md has the conventions that all calls share.
//!
//! The files, low to high:
//!
//! * `c_consts`, `c_types` and the files that it names, `c_cm_types`: constants and structs of the
//!   header that core does not define.
//! * `c_result`, `ptr`: results of calls, and access through the caller's pointers.
//! * `context_device`, `context_slots`: the trait of a context's device, and the table of contexts.
//! * `error_detail`, `open_error`, `string_calls`: reasons of failed calls.
//! * `open_config`, `context_kinds`: the configuration of an open; one row for each kind of device.
//! * `*_calls`: the calls, a file for each object. `fast_table`, `fast_ops`: the fast handles of a
//!   process, and the functions behind them. `gpu_regions`, `gpu_error`: regions of GPU memory.
//! * `lifecycle`: open and close, which release what the files below keep for a context.

// docs/using/ABI.md has the contract of all pointers; the functions' own text adds to it.
#![allow(clippy::missing_safety_doc)]
#![allow(non_camel_case_types)]

mod ah_calls;
mod c_cm_types;
mod c_consts;
mod c_device_types;
mod c_fast_types;
mod c_handles;
mod c_qp_types;
mod c_result;
mod c_types;
mod channel_calls;
mod cm_calls;
mod connect_calls;
mod context_device;
mod context_kinds;
mod context_slots;
mod cq_calls;
mod data_calls;
mod endpoint_calls;
mod error_detail;
mod fast_calls;
mod fast_ops;
mod fast_table;
mod gpu_calls;
mod gpu_error;
mod gpu_regions;
mod lifecycle;
mod mr_calls;
mod open_config;
mod open_error;
mod pd_calls;
mod ptr;
mod qp_calls;
mod srq_calls;
mod stats_calls;
mod string_calls;
#[cfg(test)]
mod tests;
mod topology_calls;
mod xrc_calls;

pub use ah_calls::*;
pub use c_cm_types::*;
pub use c_consts::*;
pub use c_types::*;
pub use channel_calls::*;
pub use cm_calls::*;
pub use connect_calls::*;
pub use cq_calls::*;
pub use data_calls::*;
pub use endpoint_calls::*;
pub use error_detail::*;
pub use fast_calls::*;
pub use gpu_calls::*;
pub use lifecycle::*;
pub use mr_calls::*;
pub use open_config::*;
pub use pd_calls::*;
pub use qp_calls::*;
pub use srq_calls::*;
pub use stats_calls::*;
pub use string_calls::*;
pub use topology_calls::*;
pub use xrc_calls::*;

/// What `--strict` says at the end of the process.
#[cfg(not(test))]
#[used]
#[link_section = ".fini_array"]
static AT_END: extern "C" fn() = gdrcore_strict::process::at_end;
