//! `libgdrcore.so`: the C ABI.
//!
//! Nothing here knows transport: a C call is its pointers checked ([`ptr`]), its context looked up ([`context`]), and one
//! call of [`gdrcore_core::device::Device`]. `include/gdrcore.h` is generated from these files (`make header`),
//! so the doc comments speak to C programmers; docs/using/ABI.md has the conventions they share.

// The contract of every pointer is in docs/using/ABI.md once, and in the functions' own text where they add to it.
#![allow(clippy::missing_safety_doc)]
#![allow(non_camel_case_types)]

pub mod channel;
pub mod cm;
pub mod connect;
pub mod consts;
pub mod context;
pub mod cuda;
pub mod data;
pub mod detail;
pub mod endpoint;
#[cfg(test)]
mod fake;
mod layout;
pub mod objects;
pub mod open_error;
pub mod pinned;
mod ptr;
pub mod qp;
mod soft;
pub mod stats;
pub mod strings;
#[cfg(test)]
mod tests;
pub mod topology;
pub mod types;
mod verbs;
