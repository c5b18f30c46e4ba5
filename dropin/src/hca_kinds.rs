//! The kinds of devices in the list: their names, and the functions that open them.
//!
//! A new kind is one row of [`KINDS`].

use crate::env;
use gdrcore_core::config::LoweredLimits;
use gdrcore_core::{Config, Result};
use gdrcore_net::inject::check_log;
use gdrcore_net::map::Map;
use gdrcore_net::soft::{soft_flags, EngineCount, SoftConfig, SoftDevice};

/// An open device and its memory.
pub struct OpenedDevice {
    pub device: &'static SoftDevice,
    pub map: Map,
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
/// other processes may need.
fn open_routed(name: &str, core: &Config) -> Result<OpenedDevice> {
    open_engines(name, core, env::engines().unwrap_or(1))
}

fn open_engines(name: &str, core: &Config, engines: u32) -> Result<OpenedDevice> {
    let (pcap, rules) = (env::pcap(), env::faults());
    let (mut core, mut faults) = (*core, rules.as_deref().map(env::fault_spec));
    if let Some(spec) = &faults {
        // Wrong rules refuse the device, whatever they are of.
        let read = spec.read()?;
        check_log()?;
        core.limits = read.limits();
        faults = faults.filter(|_| read.hits_packets());
    }
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
    Ok(OpenedDevice { device, map })
}
