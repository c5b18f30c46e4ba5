//! A soft device in memory of its own.

use crate::memory::Buffer;
use gdrcore_core::device::Device;
use gdrcore_core::Result;
use gdrcore_net::soft::{EngineCount, SoftConfig, SoftDevice};

/// A soft device; closed when dropped.
pub struct Soft {
    dev: &'static SoftDevice,
    _memory: Buffer,
}

impl Soft {
    /// Opens a device by name.
    ///
    /// # Errors
    /// As [`SoftDevice::init`].
    pub fn open(name: &str, config: &SoftConfig) -> Result<Soft> {
        let bytes = SoftDevice::memsize(name, config)?;
        let memory = Buffer::new(bytes);
        // SAFETY: the memory is fresh, page-aligned, and lives in `_memory` until after `close`.
        let dev = unsafe { SoftDevice::init(memory.as_ptr(), bytes, name, config)? };
        Ok(Soft { dev, _memory: memory })
    }

    /// Opens a device of so many engines.
    ///
    /// # Errors
    /// As [`SoftDevice::init`].
    pub fn open_with(name: &str, config: &SoftConfig, engines: EngineCount) -> Result<Soft> {
        Soft::open(name, &SoftConfig { engines, ..*config })
    }

    /// Opens a device with the default configuration.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub fn new(name: &str) -> Soft {
        Soft::open(name, &SoftConfig::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// The device.
    pub fn dev(&self) -> &dyn Device {
        self.dev
    }

    /// The device, with its own type.
    pub fn soft(&self) -> &'static SoftDevice {
        self.dev
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        // SAFETY: every reference that `dev` gave out ended with the borrow of self.
        unsafe { self.dev.close() };
    }
}
