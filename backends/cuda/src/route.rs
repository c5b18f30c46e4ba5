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
use gdrcore_core::{numbered, Error, Result};
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
    Reason: &'static CStr {
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
pub struct Record {
    /// The chosen route.
    pub route: Route,
    /// Why not a dma-buf.
    pub no_dma_buf: Reason,
    /// Why not nvidia-peermem.
    pub no_peermem: Reason,
    /// The driver's number, or a negative errno of the NIC, of the last refusal; 0 if there was
    /// none.
    pub code: i32,
}

impl Record {
    /// That of a device that is software, where only copies are possible.
    pub const fn staged() -> Record {
        Record {
            route: Route::Staged,
            no_dma_buf: Reason::SoftDevice,
            no_peermem: Reason::SoftDevice,
            code: 0,
        }
    }
}

/// The registrations that a NIC offers, one function for each route. Each returns the registration
/// that it made, or the error.
pub trait Ways {
    /// The result of a registration.
    type Made;
    /// A dma-buf: descriptor, which stays the caller's, and offset.
    fn dma_buf(&mut self, fd: i32, offset: u64) -> Result<Self::Made>;
    /// The GPU's address as it is.
    fn address(&mut self) -> Result<Self::Made>;
}

/// Whether the kernel lets NICs pin GPU addresses: `nvidia_peermem`, or the older `nv_peer_mem`.
pub fn has_peermem(sysfs: &Path) -> bool {
    ["nvidia_peermem", "nv_peer_mem"].iter().any(|m| sysfs.join("module").join(m).is_dir())
}

/// Registers over the first route that works. `own`: the program's dma-buf and offset, which is
/// then the only one tried. Descriptors made here are closed before this returns: a registration
/// that took one holds its own reference.
///
/// # Errors
/// The error of the last route; an error that no other route could avoid (no memory, stale handles)
/// at once.
pub fn register<W: Ways>(
    span: &Span,
    own: Option<(i32, u64)>,
    sysfs: &Path,
    ways: &mut W,
) -> Result<(W::Made, Record)> {
    let mut record = Record::default();
    // No words: the record has the reasons.
    let mut last = Error::Unsupported;
    let exported = match own {
        Some((fd, offset)) => Ok((None, fd, offset)),
        // SAFETY: just exported, and nobody else's.
        None => span
            .dma_buf()
            .map(|(fd, offset)| (Some(unsafe { OwnedFd::from_raw_fd(fd) }), fd, offset)),
    };
    match exported {
        Ok((_keep, fd, offset)) => match ways.dma_buf(fd, offset) {
            Ok(made) => {
                record.route = Route::Dmabuf;
                return Ok((made, record));
            }
            Err(e @ (Error::NoMemory | Error::StaleHandle)) => return Err(e),
            Err(e) if own.is_some() => return Err(e),
            Err(e) => (record.no_dma_buf, record.code, last) = (Reason::NotTaken, -e.errno(), e),
        },
        Err(Failure { code, .. }) => (record.no_dma_buf, record.code) = (Reason::NotExported, code),
    }
    if !has_peermem(sysfs) {
        return Err(last);
    }
    record.route = Route::Peermem;
    Ok((ways.address()?, record))
}
