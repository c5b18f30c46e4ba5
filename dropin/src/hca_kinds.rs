//! The kinds of devices in the list: their names, and the functions that open them.
//!
//! A new kind is one row of [`KINDS`].

use crate::{env, null_memory, weak};
use gdrcore_calls::options::{Setting, ENGINES, FAULTS, KEEPALIVE, PCAP, QPS, STRICT};
use gdrcore_core::config::LoweredLimits;
use gdrcore_core::device::Device;
use gdrcore_core::inject::Faults;
use gdrcore_core::{refuse, Config, Error, Result};
use gdrcore_net::inject::check_log;
use gdrcore_net::map::Map;
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_net::soft::{soft_flags, EngineCount, EventSink, SoftConfig, SoftDevice};

/// An open device and its memory.
pub struct OpenedDevice {
    pub place: HcaDevice,
    pub maps: Vec<Map>,
}

/// Where a device is.
#[derive(Clone, Copy)]
pub enum HcaDevice {
    /// In this process.
    Here(&'static SoftDevice),
    /// In a router.
    Router(&'static RemoteDevice),
}

impl HcaDevice {
    /// The device.
    pub fn device(&self) -> &'static dyn Device {
        match *self {
            HcaDevice::Here(device) => device,
            HcaDevice::Router(device) => device,
        }
    }

    /// The device, if it is in this process.
    pub fn soft(&self) -> Option<&'static SoftDevice> {
        match *self {
            HcaDevice::Here(device) => Some(device),
            HcaDevice::Router(_) => None,
        }
    }

    /// The device, if it is a router's.
    pub fn router(&self) -> Option<&'static RemoteDevice> {
        match *self {
            HcaDevice::Here(_) => None,
            HcaDevice::Router(device) => Some(device),
        }
    }

    /// Gives a new device its memory of null regions, and its events their way. Those of a router's
    /// device wait to be taken.
    ///
    /// # Errors
    /// Those of the device.
    pub fn start(&self, sink: &'static dyn EventSink) -> Result<()> {
        let HcaDevice::Here(device) = *self else { return Ok(()) };
        device.deliver_to(sink);
        device.memory_add(null_memory::PROVIDER, &null_memory::Null)?;
        // The helper thread runs the engine for programs that poll memory or sleep.
        device.helper(true)
    }

    /// Whether the connection manager of a router's device has events to take.
    ///
    /// # Errors
    /// As [`RemoteDevice::hears_cm`].
    pub fn hears_cm(&self) -> Result<bool> {
        match *self {
            HcaDevice::Here(_) => Ok(false),
            HcaDevice::Router(device) => device.hears_cm(),
        }
    }

    /// Closes the device.
    ///
    /// # Safety
    /// No thread uses the device any more.
    pub unsafe fn close(&self) {
        match *self {
            HcaDevice::Here(device) => {
                // SAFETY: the caller's promise.
                unsafe { device.close() };
            }
            HcaDevice::Router(device) => {
                // SAFETY: made by Box::leak in `open_routed`, and the caller's promise.
                drop(unsafe { Box::from_raw((&raw const *device).cast_mut()) });
            }
        }
    }
}

/// A device whose kind posts and polls know, or `dyn Device`, which is any.
pub trait Called: Device + 'static {
    /// The device as one of this kind.
    ///
    /// # Safety
    /// It is of this kind.
    unsafe fn cast(device: &'static dyn Device) -> &'static Self;
}

impl Called for SoftDevice {
    #[inline(always)]
    unsafe fn cast(device: &'static dyn Device) -> &'static SoftDevice {
        // SAFETY: the caller's promise.
        unsafe { &*(&raw const *device).cast::<SoftDevice>() }
    }
}

impl Called for dyn Device {
    unsafe fn cast(device: &'static dyn Device) -> &'static dyn Device {
        device
    }
}

/// A kind of device.
pub struct DeviceKind {
    /// The start of its device names, before the colon and the endpoint.
    word: &'static str,
    /// Opens a device by its name.
    ///
    /// # Errors
    /// Those of the device; the system's.
    pub open: fn(&str, &Config) -> Result<OpenedDevice>,
}

/// All kinds: a device of an address of this machine, and one through a router.
pub static KINDS: &[DeviceKind] = &[
    DeviceKind { word: "soft", open: open_soft },
    DeviceKind { word: "router", open: open_routed },
];

impl DeviceKind {
    /// The name of the device at an endpoint, or behind a router's socket.
    pub fn device_name(&self, at: &dyn core::fmt::Display) -> String {
        format!("{}:{at}", self.word)
    }
}

fn open_soft(name: &str, core: &Config) -> Result<OpenedDevice> {
    open_engines(name, core, env::engines().unwrap_or_else(env::engines_by_default))
}

/// Behind a router each engine is a session. A tenant has a limited number of sessions, which its
/// other processes may need. The policy may say that the device is the router's.
fn open_routed(name: &str, core: &Config) -> Result<OpenedDevice> {
    match open_engines(name, core, env::engines().unwrap_or(1)) {
        Err(Error::Os(libc::EREMOTE)) => {}
        done => return done,
    }
    if let Some(Setting { variable, .. }) = of_own_device(core) {
        return Err(refuse!(
            Unsupported,
            "{variable}: of a device in this process, and the policy has one of the router's"
        ));
    }
    let device = RemoteDevice::open(name)?;
    Ok(OpenedDevice { place: HcaDevice::Router(Box::leak(Box::new(device))), maps: Vec::new() })
}

/// A setting of the program that only a device in this process follows.
fn of_own_device(core: &Config) -> Option<&'static Setting> {
    let rules = env::faults().and_then(|rules| env::fault_spec(&rules).read().ok());
    let is_of_device = |rules: Faults| {
        rules.hits_packets()
            || rules.shortens_polls()
            || rules.weakens_memory()
            || rules.sets_keys()
            || rules.limits() != LoweredLimits::NONE
    };
    let settings = [
        (&PCAP, env::pcap().is_some()),
        (&FAULTS, rules.is_some_and(is_of_device)),
        (&ENGINES, env::engines().is_some_and(|n| n != 1)),
        (&KEEPALIVE, core.keepalive_ns != 0),
        (&QPS, core.qpn_count != 0),
    ];
    settings.into_iter().find_map(|(setting, is_set)| is_set.then_some(setting))
}

fn open_engines(name: &str, core: &Config, engines: u32) -> Result<OpenedDevice> {
    let (pcap, rules) = (env::pcap(), env::faults());
    let (mut core, mut faults) = (*core, rules.as_deref().map(env::fault_spec));
    if let Some(spec) = &faults {
        // Wrong rules refuse the device, whatever they are of.
        let read = spec.read()?;
        check_log()?;
        core.limits = read.limits();
        core.seed = weak::keys(name).unwrap_or(core.seed);
        faults = faults.filter(|_| read.hits_packets());
    }
    // A program that is checked meets the errors of a NIC.
    core.limits.cq_overrun |= env::unprivileged(&STRICT).is_some();
    let (path, flags) = match faults {
        Some(_) => env::path_of_faults(),
        None => env::path(pcap.is_some()),
    };
    // Other devices and processes of the program may write the same capture.
    let flags = flags | soft_flags::KEEP_CAPTURE;
    // Engines after the first are made for threads that need them.
    let is_one = faults.is_some() || core.limits != LoweredLimits::NONE;
    let engines = if is_one { EngineCount::ONE } else { EngineCount::up_to(engines) };
    let (pcap, faults) = (pcap.as_deref(), faults.as_ref());
    let config = SoftConfig { core, flags, path, pcap, faults, engines };
    let map = Map::new(SoftDevice::memsize(name, &config)?)?;
    // SAFETY: the map is fresh, page-aligned, and kept until the device is closed.
    let device = unsafe { SoftDevice::init(map.as_ptr(), map.len(), name, &config)? };
    weak::note_device();
    Ok(OpenedDevice { place: HcaDevice::Here(device), maps: vec![map] })
}
