//! The kinds of devices that an entry of the list can have: their names, and the functions that
//! open them.
//!
//! A new kind is one row of [`KINDS`].

use crate::env;
use gdrcore_core::cm::general::Datagram;
use gdrcore_core::cm::mad::MAD_LEN;
use gdrcore_core::device::{CmDevice, Device, Leaks};
use gdrcore_core::mem::Memory;
use gdrcore_core::verbs::types::AhAttr;
use gdrcore_core::{Config, Result};
use gdrcore_net::map::Map;
use gdrcore_net::soft::{soft_flags, EngineCount, EngineSet, EventSink, SoftConfig, SoftDevice};

/// An open device: verbs, connections, and the calls for this library.
pub trait HcaDevice: Device + CmDevice {
    /// Registers a kind of memory under a number from 1 on. It outlives the device.
    ///
    /// # Errors
    /// Those of the device.
    fn memory_add(&self, provider: u32, memory: &'static dyn Memory) -> Result<()>;

    /// Delivers later events to `sink`, in the round of the engine that raised them.
    fn deliver_to(&'static self, sink: &'static dyn EventSink);

    /// Sends a datagram of another management class than communication management, from QP1 to QP1.
    ///
    /// # Errors
    /// Those of the device.
    fn send_general(&self, to: &AhAttr, mad: &[u8; MAD_LEN]) -> Result<()>;

    /// The next datagram of another class that has arrived.
    ///
    /// # Errors
    /// Those of the device.
    fn take_general(&self) -> Result<Option<Datagram>>;

    /// Stops everything and releases system resources.
    ///
    /// # Safety
    /// No thread uses the device any more. Its memory stays until this has returned.
    unsafe fn close(&self) -> Leaks;
}

macro_rules! hca_devices {
    ($($device:ty),*) => {$(
        impl HcaDevice for $device {
            fn memory_add(&self, provider: u32, memory: &'static dyn Memory) -> Result<()> {
                <$device>::memory_add(self, provider, memory)
            }

            fn deliver_to(&'static self, sink: &'static dyn EventSink) {
                <$device>::deliver_to(self, sink);
            }

            fn send_general(&self, to: &AhAttr, mad: &[u8; MAD_LEN]) -> Result<()> {
                <$device>::send_general(self, to, mad)
            }

            fn take_general(&self) -> Result<Option<Datagram>> {
                <$device>::take_general(self)
            }

            unsafe fn close(&self) -> Leaks {
                // SAFETY: the trait's contract is that of the device's own close.
                unsafe { <$device>::close(self) }
            }
        }
    )*};
}
hca_devices!(SoftDevice, EngineSet);

/// An open device and its memory.
pub struct OpenedDevice {
    pub device: &'static dyn HcaDevice,
    pub map: Map,
}

/// A kind of device.
pub struct DeviceKind {
    /// The beginning of its names, before a colon and the endpoint.
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

/// Over a router each engine is a session, of which a tenant has a number: the other processes of
/// the tenant may need them.
fn open_routed(name: &str, core: &Config) -> Result<OpenedDevice> {
    open_engines(name, core, env::engines().unwrap_or(1))
}

fn open_engines(name: &str, core: &Config, engines: u32) -> Result<OpenedDevice> {
    let pcap = env::pcap();
    let (path, flags) = env::path(pcap.is_some());
    // Other devices and processes of the program may write the same capture.
    let flags = flags | soft_flags::KEEP_CAPTURE;
    let config = SoftConfig { core: *core, flags, path, pcap: pcap.as_deref() };
    if engines > 1 {
        // The others are made for threads that need them.
        let engines = EngineCount::up_to(engines);
        let map = Map::new(EngineSet::memsize(name, &config, engines)?)?;
        // SAFETY: the map is fresh, page-aligned, and kept until the device is closed.
        let device = unsafe { EngineSet::init(map.as_ptr(), map.len(), name, &config, engines)? };
        return Ok(OpenedDevice { device, map });
    }
    let map = Map::new(SoftDevice::memsize(name, &config)?)?;
    // SAFETY: as above.
    let device = unsafe { SoftDevice::init(map.as_ptr(), map.len(), name, &config)? };
    Ok(OpenedDevice { device, map })
}
