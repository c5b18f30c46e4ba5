//! The trait of a context's device: the calls for this library, beside those for programs.

use crate::c_result::refuse;
use gdrcore_core::device::{Device, Leaks};
use gdrcore_core::mem::Memory;
use gdrcore_core::Result;
use gdrcore_net::soft::SoftDevice;
use gdrcore_verbs::VerbsDevice;

/// A device that a context owns.
pub(crate) trait ContextDevice: Device {
    /// Registers a kind of memory, which outlives the device, under a number from 1 on.
    fn memory_add(&self, _provider: u32, _memory: &'static dyn Memory) -> Result<()> {
        Err(refuse!(Unsupported, "this device has one kind of memory, the host's"))
    }
    /// Stops everything and gives system resources back; the device's memory is free afterwards.
    /// # Safety
    /// Nobody uses the device any more.
    unsafe fn close(&self) -> Leaks;
}

impl ContextDevice for SoftDevice {
    fn memory_add(&self, provider: u32, memory: &'static dyn Memory) -> Result<()> {
        SoftDevice::memory_add(self, provider, memory)
    }

    unsafe fn close(&self) -> Leaks {
        // SAFETY: the trait's contract is that of SoftDevice's own close.
        unsafe { SoftDevice::close(self) }
    }
}

impl ContextDevice for VerbsDevice {
    unsafe fn close(&self) -> Leaks {
        // SAFETY: the trait's contract is that of VerbsDevice's own close.
        unsafe { VerbsDevice::close(self) }
    }
}
