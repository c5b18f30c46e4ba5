//! Chooses the route from a device to GPU memory: the first one that works, and why not those
//! before it.
//!
//! The order is that of cost. A **dma-buf** is a reference to the memory itself, so a NIC that has
//! one needs nothing else, and memory that is freed under it stays until the registration ends; the
//! program may pass one of its own. **nvidia-peermem** is a kernel module that lets a NIC's driver
//! pin a GPU's addresses as if they were the host's. **Staging** copies through pinned host memory,
//! which the soft device does and a NIC cannot.

use crate::failure::Failure;
use crate::span::Span;
use core::ffi::CStr;
use gdrcore_core::{numbered, reason, Error, Result};
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::Path;

numbered! {
    /// The route by which a device reaches a region (gdrc_mr_attr.route).
    Route: &'static CStr {
        /// By address.
        #[default]
        Host = 0, c"host memory";
        /// The NIC holds a dma-buf of the memory.
        Dmabuf = 1, c"dma-buf";
        /// The NIC has the GPU's addresses, through nvidia_peermem.
        Peermem = 2, c"nvidia_peermem";
        /// Copies through pinned host memory.
        Staged = 3, c"staged through pinned host memory";
    }
}

numbered! {
    /// Why a route was not taken (gdrc_mr_attr.no_dmabuf, no_peermem).
    SkipReason: &'static CStr {
        /// It was taken, or one before it.
        #[default]
        None = 0, c"taken, or not needed";
        /// The device is software.
        SoftDevice = 1, c"the device is software and has no DMA engine";
        /// The driver, or the GPU, exports no dma-buf.
        NotExported = 2, c"the CUDA driver exports no dma-buf of this memory";
        /// The NIC, its driver or the kernel supports no dma-buf.
        NotTaken = 3, c"the NIC, its driver or the kernel takes no dma-buf";
        /// The kernel module nvidia_peermem is not loaded.
        NoPeermem = 4, c"the kernel module nvidia_peermem is not loaded";
        /// The NIC's driver refused the GPU's address.
        Refused = 5, c"the NIC's driver refused the GPU's address";
    }
}

/// The result of the choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteChoice {
    /// The chosen route.
    pub route: Route,
    /// Why not a dma-buf.
    pub no_dma_buf: SkipReason,
    /// Why not nvidia-peermem.
    pub no_peermem: SkipReason,
    /// The driver's number, or a negative errno of the NIC, of the last refusal; 0 if there was
    /// none.
    pub code: i32,
}

impl RouteChoice {
    /// The record of a soft device, which can only copy.
    pub const fn staged() -> RouteChoice {
        RouteChoice {
            route: Route::Staged,
            no_dma_buf: SkipReason::SoftDevice,
            no_peermem: SkipReason::SoftDevice,
            code: 0,
        }
    }
}

/// Whether the kernel lets NICs pin GPU addresses: `nvidia_peermem`, or the older `nv_peer_mem`.
pub fn has_peermem(sysfs: &Path) -> bool {
    ["nvidia_peermem", "nv_peer_mem"].iter().any(|m| sysfs.join("module").join(m).is_dir())
}

/// Registers over the first route that works.
///
/// - `own`: the program's dma-buf and the offset in it; no other is tried then.
/// - `by_dma_buf` registers a descriptor, which stays the caller's, from an offset on.
/// - `by_address` registers the GPU's address, if the host has nvidia_peermem ([`has_peermem`]).
///
/// Descriptors made here are closed before this returns: a registration that took one holds its own
/// reference.
///
/// # Errors
/// The error of the last route; an error that no other route could avoid (no memory, stale handles)
/// at once.
pub fn register<T>(
    span: &Span,
    own: Option<(i32, u64)>,
    has_peermem: impl FnOnce() -> bool,
    by_dma_buf: impl FnOnce(i32, u64) -> Result<T>,
    by_address: impl FnOnce() -> Result<T>,
) -> Result<(T, RouteChoice)> {
    let mut record = RouteChoice::default();
    // No words: the last route has them.
    let mut last = Error::Unsupported;
    let exported = match own {
        Some((fd, offset)) => Ok((None, fd, offset)),
        // SAFETY: just exported, and nobody else's.
        None => span
            .dma_buf()
            .map(|(fd, offset)| (Some(unsafe { OwnedFd::from_raw_fd(fd) }), fd, offset)),
    };
    match exported {
        Ok((_keep, fd, offset)) => match by_dma_buf(fd, offset) {
            Ok(made) => {
                record.route = Route::Dmabuf;
                return Ok((made, record));
            }
            Err(e @ (Error::NoMemory | Error::StaleHandle)) => return Err(e),
            Err(e) if own.is_some() => return Err(e),
            Err(e) => {
                (record.no_dma_buf, record.code, last) = (SkipReason::NotTaken, -e.errno(), e)
            }
        },
        Err(Failure { code, .. }) => {
            (record.no_dma_buf, record.code) = (SkipReason::NotExported, code)
        }
    }
    if !has_peermem() {
        // A NIC that was asked has said why.
        if record.no_dma_buf == SkipReason::NotTaken {
            return Err(last);
        }
        // Both are words of C, which are ASCII.
        let [dma_buf, peermem] = [record.no_dma_buf, SkipReason::NoPeermem]
            .map(|why| why.text().to_str().unwrap_or_default());
        let code = record.code;
        return Err(reason::refused(
            last,
            format_args!("GPU memory on a NIC: {dma_buf} ({code}); {peermem}"),
        ));
    }
    record.route = Route::Peermem;
    Ok((by_address()?, record))
}
