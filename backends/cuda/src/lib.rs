//! GPU memory: NVIDIA's driver API, opened at run time, so that one binary runs with and without a
//! GPU.
//!
//! * [`api`]: `libcuda.so.1`, its functions and numbers. If an older driver lacks a function, only
//!   calls of that function fail, never the load.
//! * [`device`]: GPUs by ordinal and by PCI address, and their primary contexts.
//! * [`memory`]: allocation, export and import, copies.
//! * [`span`]: the driver's facts about an address: its GPU, its allocation, and whether the
//!   allocation is still the same.
//! * [`route`]: the route of a NIC to GPU memory (dma-buf, nvidia-peermem, or staging), and why the
//!   others were not taken.
//! * [`staging`]: the soft device's route, a [`gdrcore_core::mem::Memory`] over pinned host memory
//!   and asynchronous copies.
//! * [`topology`]: the distance of NICs and GPUs, from sysfs. Needs no driver.
//!
//! Contexts are the devices' primary contexts, retained at first use and kept as long as the
//! process lives. So programs that use CUDA's runtime share their contexts with this library. Every
//! call makes its context current and restores the previous one. The driver does not survive a
//! fork: the child gets errors from every call here.

pub mod api;
mod codes;
pub mod device;
mod failure;
pub mod memory;
pub mod route;
pub mod span;
pub mod staging;
pub mod topology;
mod view;

pub use failure::Failure;
