//! GPU memory of tenants: the router opens an allocation that a tenant has exported by descriptor,
//! and copies to and from it as the soft device copies to and from a program's own
//! ([`gdrcore_cuda::staging`]).
//!
//! The reference is the router's own: what a tenant frees stays until its region ends. Its calls of
//! the driver take the time that the driver needs, in the thread that serves the device.

use gdrcore_core::device::MrReg;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::Memory;
use gdrcore_core::refuse;
use gdrcore_cuda::device::{Bdf, Device};
use gdrcore_cuda::memory::{self, Shared};
use gdrcore_cuda::span::Span;
use gdrcore_cuda::staging::Staging;
use gdrcore_cuda::Failure;
use gdrcore_net::remote::call::{GpuMemory, Region};
use gdrcore_net::rights::Foreign;
use std::os::fd::{AsFd, AsRawFd};

/// The number of this kind of memory on the device.
pub(super) const PROVIDER: u32 = 1;

fn explain(f: Failure) -> Error {
    gdrcore_net::reason::set(f.error(), format_args!("the router's GPU: {f}"));
    f.error()
}

/// The GPUs whose memory tenants of a device register.
pub(super) struct Gpus {
    all: Vec<(Bdf, &'static Device)>,
    staging: &'static Staging,
}

impl Gpus {
    /// Opens GPUs, by PCI address. `None`: there is no name. Makes their contexts, which stay for
    /// the life of the process.
    ///
    /// # Errors
    /// There is no driver, or no such GPU; no memory can be pinned.
    pub(super) fn open(names: &[String]) -> Result<Option<Gpus>> {
        let mut all = Vec::new();
        for name in names {
            let bdf = Bdf::parse(name)
                .ok_or_else(|| refuse!(Invalid, "gpu '{name}': no PCI address, as lspci has it"))?;
            all.push((bdf, Device::find(name).map_err(explain)?));
        }
        let Some(&(_, first)) = all.first() else { return Ok(None) };
        // It stays as the contexts do.
        let staging: &'static Staging = Box::leak(Box::new(Staging::new(first).map_err(explain)?));
        // Streams have threads in the driver, and descriptors: all are there before the router
        // confines itself.
        all.iter().try_for_each(|(_, gpu)| staging.prepare(gpu)).map_err(explain)?;
        Ok(Some(Gpus { all, staging }))
    }

    /// The memory for the device.
    pub(super) fn memory(&self) -> &'static dyn Memory {
        self.staging
    }

    /// Opens the memory of a region, and fills in its request to the device.
    ///
    /// # Errors
    /// The descriptor is of no GPU memory, or of less; it is of another GPU; those of the driver.
    pub(super) fn import(
        &self,
        region: &Region,
        of: &GpuMemory,
        fd: &Foreign,
    ) -> Result<(GpuRegion, MrReg)> {
        let name = core::ffi::CStr::from_bytes_until_nul(&of.bdf).ok();
        let wanted = name.and_then(|name| Bdf::parse(name.to_str().ok()?));
        let gpu = self.all.iter().find(|(bdf, _)| Some(*bdf) == wanted);
        let &(_, gpu) =
            gpu.ok_or_else(|| refuse!(NoDevice, "the policy names no such GPU of the router"))?;
        if !fd.answers_at_once() {
            return Err(refuse!(Access, "the descriptor is of no GPU memory"));
        }
        let (fd, size) = (fd.as_fd().as_raw_fd(), of.size);
        let shared = Shared::Descriptor { fd, offset: of.offset, size };
        let at = memory::import(gpu, shared, region.length).map_err(explain)?;
        // Given back from here on by its drop.
        let mut opened = GpuRegion { at, length: region.length, staged: None };
        let span = Span::look_up(at, region.length).map_err(explain)?;
        if span.device.ordinal != gpu.ordinal {
            return Err(refuse!(Invalid, "the memory is of another GPU than was said"));
        }
        let cookie = self.staging.register(&span).map_err(explain)?;
        opened.staged = Some((self.staging, cookie));
        let Region { length, iova, access, .. } = *region;
        Ok((opened, MrReg { pd: 0, addr: at, length, iova, access, provider: PROVIDER, cookie }))
    }
}

/// The GPU memory of a region, as the router has it open. Dropped after the region: waits for
/// copies under way.
pub(super) struct GpuRegion {
    at: u64,
    length: u64,
    staged: Option<(&'static Staging, u64)>,
}

impl GpuRegion {
    /// Its bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.length
    }
}

impl Drop for GpuRegion {
    fn drop(&mut self) {
        if let Some((staging, cookie)) = self.staged.take() {
            staging.release(cookie);
        }
        let _ = memory::free(self.at);
    }
}
