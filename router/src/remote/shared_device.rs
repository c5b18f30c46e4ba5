//! The device that a router opens for its tenants: a soft one, or a NIC.

use super::gpu::{Gpus, PROVIDER};
use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::device::{Device, Leaks, MrAttr, MrReg};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::reason;
use gdrcore_core::verbs::types::{access, Handle};
use gdrcore_cuda::route::RouteChoice;
use gdrcore_cuda::span::Span;
use gdrcore_net::map::Map;
use gdrcore_net::remote::call::GpuRoute;
use gdrcore_net::remote::limits;
use gdrcore_net::soft::{SoftConfig, SoftDevice};
use gdrcore_verbs::name::PREFIX;
use gdrcore_verbs::{Text, VerbsDevice};
use std::os::fd::BorrowedFd;

/// The first growth of the device's memory; each is twice the one before.
const GROWTH: usize = 8 << 20;
/// Most memory that it gets in all.
const MOST: usize = 1 << 30;

/// Limits of a request, and ways with peers, as those of the drop-in's own device: its tenants may
/// be programs for NICs, which tell nobody that a peer's process has ended, and never wait for a
/// CPU. Ids are those of several tenants.
const CONFIG: Config = Config {
    max_sge: 32,
    max_inline: 1024,
    max_rd_atomic: 32,
    flags: config_flags::SILENT_LOSS | config_flags::LONG_TIMEOUTS,
    max_cm_ids: 2048,
    ..Config::DEFAULT
};

/// Sessions whose objects a NIC's tables hold, if each has as many as it may: the tables cannot
/// grow.
const SESSIONS: u32 = 8;

/// The same for a NIC.
const NIC_CONFIG: Config = Config {
    max_pd: SESSIONS * limits::OTHER,
    max_mr: SESSIONS * limits::MR,
    max_cq: SESSIONS * limits::CQ,
    max_qp: SESSIONS * limits::QP,
    max_srq: SESSIONS * limits::SRQ,
    max_ah: SESSIONS * limits::OTHER,
    ..CONFIG
};

/// Bytes of registered memory of a session, at most.
const MEMORY: u64 = 1 << 40;
/// The same on a NIC, which pins them: they count for the router's RLIMIT_MEMLOCK.
const PINNED: u64 = 1 << 30;

/// Its kind.
enum Backend {
    Soft {
        device: &'static SoftDevice,
        /// Bytes by which it grows next. Each growth is twice the one before, so all earlier ones
        /// together are `next_growth - GROWTH`.
        next_growth: usize,
    },
    Nic(&'static VerbsDevice),
}

/// A device and its memory; closed when dropped.
pub struct SharedDevice {
    backend: Backend,
    maps: Vec<Map>,
    gpus: Option<Gpus>,
}

impl SharedDevice {
    /// Opens a device by its name: `verbs:` names a NIC, for which the module and libibverbs are
    /// loaded; any other a soft device.
    ///
    /// # Errors
    /// As [`SoftDevice::init`] or [`VerbsDevice::init`].
    pub fn open(name: &str) -> Result<SharedDevice> {
        let (backend, map) =
            if name.starts_with(PREFIX) { open_nic(name)? } else { open_soft(name)? };
        Ok(SharedDevice { backend, maps: vec![map], gpus: None })
    }

    /// Opens GPUs, whose memory tenants register from then on. Once.
    ///
    /// # Errors
    /// As [`Gpus::open`].
    pub fn open_gpus(&mut self, names: &[String]) -> Result<()> {
        self.gpus = Gpus::open(names, !self.is_nic())?;
        match (self.gpus.as_ref().and_then(Gpus::memory), &self.backend) {
            (Some(memory), Backend::Soft { device, .. }) => device.memory_add(PROVIDER, memory),
            _ => Ok(()),
        }
    }

    /// The GPUs.
    pub(super) fn gpus(&self) -> Option<&Gpus> {
        self.gpus.as_ref()
    }

    /// The device.
    pub fn device(&self) -> &'static dyn Device {
        match self.backend {
            Backend::Soft { device, .. } => device,
            Backend::Nic(device) => device,
        }
    }

    /// Its GID, by which its peers know all tenants of it.
    pub fn gid(&self) -> [u8; 16] {
        self.device().facts().map(|attr| attr.gid).unwrap_or_default()
    }

    /// Whether it is a NIC. That works by itself, and each look at its events is a system call; a
    /// soft device works in rounds, and looks at its events for nothing.
    pub fn is_nic(&self) -> bool {
        self.nic().is_some()
    }

    /// The NIC, if it is one.
    pub(super) fn nic(&self) -> Option<&'static VerbsDevice> {
        match self.backend {
            Backend::Nic(device) => Some(device),
            Backend::Soft { .. } => None,
        }
    }

    /// The access flags of a region besides those of the tenant. A soft device must not populate
    /// pages: the kernel would charge them to the router. A NIC pins the pages in any case.
    pub fn access(&self) -> u32 {
        match self.backend {
            Backend::Soft { .. } => access::ON_DEMAND,
            Backend::Nic(_) => 0,
        }
    }

    /// Most bytes of the regions of a session, where policy says none.
    pub fn memory(&self) -> u64 {
        match self.backend {
            Backend::Soft { .. } => MEMORY,
            Backend::Nic(_) => PINNED,
        }
    }

    /// Arms a CQ for its next solicited completion alone, whatever it was armed for. A NIC's CQ
    /// that was armed for any stays so, and its event may come early, as on the NIC itself.
    ///
    /// # Errors
    /// As [`Device::cq_arm`].
    pub fn arm_solicited(&self, cq: Handle) -> Result<()> {
        if let Backend::Soft { device, .. } = self.backend {
            device.cq_disarm(cq)?;
        }
        self.device().cq_arm(cq, true)
    }

    /// Whether the device's connection manager may have events. Costs less than an attempt to take
    /// one. For a NIC always true: its descriptor says when to look.
    pub fn has_cm_events(&self) -> bool {
        match self.backend {
            Backend::Soft { device, .. } => device.has_cm_events(),
            Backend::Nic(_) => true,
        }
    }

    /// Readable when the device has work.
    ///
    /// # Errors
    /// As [`Device::fd`].
    pub fn fd(&self) -> Result<BorrowedFd<'_>> {
        // SAFETY: the device's descriptor is open until `close`, in the drop of `self`.
        self.device().fd().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
    }

    /// Makes an object; while a soft device has no room for it, gives the device more memory.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn make<T>(&mut self, make: impl Fn(&dyn Device) -> Result<T>) -> Result<T> {
        loop {
            let made = make(self.device());
            let Backend::Soft { device, next_growth } = &mut self.backend else { return made };
            match made {
                Err(Error::NoMemory) if 2 * *next_growth - GROWTH <= MOST => {}
                done => return done,
            }
            let map = Map::new(*next_growth)?;
            // SAFETY: a fresh map, which `maps` keeps until the device is closed.
            unsafe { device.arena_add(map.as_ptr(), map.len())? };
            *next_growth *= 2;
            self.maps.push(map);
        }
    }

    /// How often it was given memory.
    #[cfg(test)]
    pub(super) fn growths(&self) -> usize {
        self.maps.len()
    }

    /// Registers GPU memory that [`Gpus::import`] has opened, by the first route that works.
    ///
    /// # Errors
    /// Those of the device; or the NIC has no route to it.
    pub(super) fn register_gpu(
        &mut self,
        reg: &MrReg,
        span: &Span,
    ) -> Result<((Handle, MrAttr), GpuRoute)> {
        let (made, record) = match (self.nic(), self.gpus()) {
            (Some(nic), Some(gpus)) => gpus.register_on(nic, reg, span)?,
            _ => (self.make(|d| d.mr_reg(reg))?, RouteChoice::staged()),
        };
        let RouteChoice { route, no_dma_buf, no_peermem, code } = record;
        let [no_dma_buf, no_peermem] = [no_dma_buf, no_peermem].map(|why| why as u32);
        Ok((made, GpuRoute { route: route as u32, no_dma_buf, no_peermem, code }))
    }

    /// Objects that are on the device.
    ///
    /// # Errors
    /// As [`Device::leaks`].
    pub fn leaks(&self) -> Result<Leaks> {
        self.device().leaks()
    }
}

fn open_soft(name: &str) -> Result<(Backend, Map)> {
    let config = SoftConfig { core: CONFIG, ..SoftConfig::default() };
    let map = Map::new(SoftDevice::memsize(name, &config)?)?;
    // SAFETY: fresh memory, aligned to a page, which `maps` keeps until after `close`.
    let device = unsafe { SoftDevice::init(map.as_ptr(), map.len(), name, &config)? };
    Ok((Backend::Soft { device, next_growth: GROWTH }, map))
}

fn open_nic(name: &str) -> Result<(Backend, Map)> {
    let map = Map::new(VerbsDevice::memsize(name, &NIC_CONFIG)?)?;
    let mut why = Text::new();
    // SAFETY: as for a soft device.
    let device = unsafe { VerbsDevice::init(map.as_ptr(), map.len(), name, &NIC_CONFIG, &mut why) };
    let device = device.map_err(|e| match why.as_str() {
        "" => e,
        words => reason::refused(e, format_args!("{words}")),
    })?;
    // Its files are open before the router confines itself. A host without it has its reason for
    // tenants that ask.
    let _ = device.cm();
    Ok((Backend::Nic(device), map))
}

impl Drop for SharedDevice {
    fn drop(&mut self) {
        // SAFETY: `device` gave the reference to nobody who outlives this: sessions are the
        // server's, and are gone.
        unsafe {
            match self.backend {
                Backend::Soft { device, .. } => _ = device.close(),
                Backend::Nic(device) => _ = device.close(),
            }
        };
    }
}
