//! Numbers of the CUDA driver: results, attributes, flags. Facts of `cuda.h`, CUDA 12.4.
#![allow(missing_docs)]

use core::ffi::{c_int, c_uint};

/// Name of the library, used in a [`Failure`](crate::failure::Failure) in place of a call's name.
pub const LIBRARY: &str = "libcuda.so.1";

pub const SUCCESS: c_int = 0;
pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const NO_DEVICE: c_int = 100;
pub const INVALID_DEVICE: c_int = 101;
pub const INVALID_CONTEXT: c_int = 201;
pub const INVALID_HANDLE: c_int = 400;
pub const NOT_READY: c_int = 600;
pub const NOT_PERMITTED: c_int = 800;
pub const NOT_SUPPORTED: c_int = 801;

pub const DEVICE_VMM: c_int = 102;
pub const DEVICE_POSIX_HANDLES: c_int = 103;
pub const DEVICE_GPU_DIRECT_VMM: c_int = 110;
pub const DEVICE_GPU_DIRECT: c_int = 116;
pub const DEVICE_DMA_BUF: c_int = 124;

pub const POINTER_MEMORY_TYPE: c_int = 2;
pub const POINTER_SYNC_MEMOPS: c_int = 6;
pub const POINTER_BUFFER_ID: c_int = 7;
pub const POINTER_DEVICE_ORDINAL: c_int = 9;
pub const POINTER_RANGE_START: c_int = 11;
pub const POINTER_RANGE_SIZE: c_int = 12;
pub const MEMORYTYPE_DEVICE: c_uint = 2;

pub const MEM_ALLOCATION_PINNED: c_int = 1;
pub const MEM_LOCATION_DEVICE: c_int = 1;
pub const MEM_HANDLE_POSIX_FD: c_int = 1;
pub const MEM_ACCESS_READWRITE: c_int = 3;
pub const MEM_RANGE_DMA_BUF_FD: c_int = 1;
pub const IPC_LAZY_PEER_ACCESS: c_uint = 1;
pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const EVENT_DISABLE_TIMING: c_uint = 2;
pub const HOSTALLOC_PORTABLE: c_uint = 1;
