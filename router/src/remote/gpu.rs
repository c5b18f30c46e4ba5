//! GPU memory of tenants: the router opens an allocation that a tenant has exported by descriptor.
//! A soft device copies to and from it as to and from a program's own ([`gdrcore_cuda::staging`]);
//! a NIC reaches it by a route of its own ([`gdrcore_cuda::route`]).
//!
//! The reference is the router's own: what a tenant frees stays until its region ends. Its calls of
//! the driver take the time that the driver needs, in the thread that serves the device.

use gdrcore_core::device::{Device as _, MrAttr, MrReg};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::Memory;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::Handle;
use gdrcore_cuda::device::{Bdf, Device};
use gdrcore_cuda::memory::{self, Shared};
use gdrcore_cuda::route::{self, RouteChoice};
use gdrcore_cuda::span::Span;
use gdrcore_cuda::staging::Staging;
use gdrcore_cuda::Failure;
use gdrcore_net::remote::call::{GpuMemory, NewRegion};
use gdrcore_net::rights::Foreign;
use gdrcore_verbs::VerbsDevice;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

/// The number of this kind of memory on the device.
pub(super) const PROVIDER: u32 = 1;

fn explain(f: Failure) -> Error {
    gdrcore_net::reason::set(f.error(), format_args!("the router's GPU: {f}"));
    f.error()
}

/// The GPUs whose memory tenants of a device register.
pub(super) struct Gpus {
    all: Vec<(Bdf, &'static Device)>,
    /// Of a soft device.
    staging: Option<&'static Staging>,
    /// The host has nvidia_peermem. Asked before the router confines itself.
    has_peermem: bool,
}

impl Gpus {
    /// Opens GPUs, by PCI address. `None`: there is no name. Makes their contexts, which stay for
    /// the life of the process. `stages`: for a soft device.
    ///
    /// # Errors
    /// There is no driver, or no such GPU; no memory can be pinned.
    pub(super) fn open(names: &[String], stages: bool) -> Result<Option<Gpus>> {
        let mut all = Vec::new();
        for name in names {
            let bdf = Bdf::parse(name)
                .ok_or_else(|| refuse!(Invalid, "gpu '{name}': no PCI address, as lspci has it"))?;
            all.push((bdf, Device::find(name).map_err(explain)?));
        }
        let Some(&(_, first)) = all.first() else { return Ok(None) };
        let has_peermem = route::has_peermem(Path::new("/sys"));
        if !stages {
            return Ok(Some(Gpus { all, staging: None, has_peermem }));
        }
        // It stays as the contexts do.
        let staging: &'static Staging = Box::leak(Box::new(Staging::new(first).map_err(explain)?));
        // Streams have threads in the driver, and descriptors: all are there before the router
        // confines itself.
        all.iter().try_for_each(|(_, gpu)| staging.prepare(gpu)).map_err(explain)?;
        Ok(Some(Gpus { all, staging: Some(staging), has_peermem }))
    }

    /// The memory for a soft device.
    pub(super) fn memory(&self) -> Option<&'static dyn Memory> {
        self.staging.map(|staging| staging as &dyn Memory)
    }

    /// Opens the memory of a region of a domain of the device, and finds where it lies.
    ///
    /// # Errors
    /// The descriptor is of no GPU memory, or of less; it is of another GPU; those of the driver.
    pub(super) fn import(
        &self,
        (pd, region): (Handle, &NewRegion),
        of: &GpuMemory,
        fd: &Foreign,
    ) -> Result<(GpuRegion, Span)> {
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
        let NewRegion { length, iova, access, .. } = *region;
        let reg = MrReg { pd, addr: at, length, iova, access, provider: 0, cookie: 0 };
        let mut opened = GpuRegion { reg, staging: None };
        let span = Span::look_up(at, region.length).map_err(explain)?;
        if span.device.ordinal != gpu.ordinal {
            return Err(refuse!(Invalid, "the memory is of another GPU than was said"));
        }
        if let Some(staging) = self.staging {
            let cookie = staging.register(&span).map_err(explain)?;
            opened.reg = MrReg { provider: PROVIDER, cookie, ..reg };
            opened.staging = Some(staging);
        }
        Ok((opened, span))
    }

    /// Registers a region with a NIC.
    ///
    /// # Errors
    /// The NIC has no route to it; those of the NIC.
    pub(super) fn register_on(
        &self,
        nic: &VerbsDevice,
        reg: &MrReg,
        span: &Span,
    ) -> Result<((Handle, MrAttr), RouteChoice)> {
        let by_dma_buf =
            |fd, offset| nic.mr_reg_dmabuf(&MrReg { addr: offset, provider: PROVIDER, ..*reg }, fd);
        route::register(span, None, || self.has_peermem, by_dma_buf, || nic.mr_reg(reg))
    }
}

/// The GPU memory of a region, as the router has it open. Dropped after the region: waits for
/// copies under way.
pub(super) struct GpuRegion {
    /// Its request to the device.
    reg: MrReg,
    /// Of a soft device.
    staging: Option<&'static Staging>,
}

impl GpuRegion {
    /// Its bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.reg.length
    }

    /// Its request to the device.
    pub(super) fn request(&self) -> &MrReg {
        &self.reg
    }
}

impl Drop for GpuRegion {
    fn drop(&mut self) {
        if let Some(staging) = self.staging {
            staging.release(self.reg.cookie);
        }
        let _ = memory::free(self.reg.addr);
    }
}
