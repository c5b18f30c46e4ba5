//! The trait of a context's device: the calls for this library, beside those for programs.

use crate::c_result::refuse;
use gdrcore_core::device::{Device, Leaks, MrAttr, MrReg};
use gdrcore_core::mem::Memory;
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::Result;
use gdrcore_net::inject::FaultyDevice;
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_net::soft::SoftDevice;
use gdrcore_strict::device::StrictDevice;
use gdrcore_verbs::VerbsDevice;

/// The device for what undoes a call: no rule fails it, and none counts it.
pub(crate) fn undoing(device: &dyn ContextDevice) -> &dyn Device {
    device.behind_faults().unwrap_or(device)
}

/// A device that a context owns.
pub(crate) trait ContextDevice: Device {
    /// Registers a kind of memory, which outlives the device, under a number from 1 on.
    fn memory_add(&self, _provider: u32, _memory: &'static dyn Memory) -> Result<()> {
        Err(refuse!(Unsupported, "this device has one kind of memory, the host's"))
    }
    /// The device of a router.
    fn remote(&self) -> Option<&RemoteDevice> {
        None
    }
    /// A region that [`ContextDevice::remote`] has registered by a descriptor.
    fn note_region(&self, _reg: &MrReg, _made: &(Handle, MrAttr)) {}
    /// The device whose calls a rule may fail, behind those rules.
    fn behind_faults(&self) -> Option<&dyn Device> {
        None
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

impl ContextDevice for FaultyDevice {
    fn memory_add(&self, provider: u32, memory: &'static dyn Memory) -> Result<()> {
        SoftDevice::memory_add(self.device(), provider, memory)
    }

    fn behind_faults(&self) -> Option<&dyn Device> {
        Some(self.device())
    }

    unsafe fn close(&self) -> Leaks {
        // SAFETY: as for the device itself.
        let leaks = unsafe { SoftDevice::close(self.device()) };
        let place: *const FaultyDevice = self;
        // SAFETY: `open_soft` leaked a box, which nobody uses any more, as the caller promises.
        drop(unsafe { Box::from_raw(place.cast_mut()) });
        leaks
    }
}

impl ContextDevice for StrictDevice<dyn ContextDevice> {
    fn memory_add(&self, provider: u32, memory: &'static dyn Memory) -> Result<()> {
        self.device().memory_add(provider, memory)
    }

    fn remote(&self) -> Option<&RemoteDevice> {
        self.device().remote()
    }

    fn note_region(&self, reg: &MrReg, made: &(Handle, MrAttr)) {
        StrictDevice::note_region(self, reg, made);
    }

    fn behind_faults(&self) -> Option<&dyn Device> {
        Some(self.undoing())
    }

    unsafe fn close(&self) -> Leaks {
        self.closing();
        // SAFETY: as for the device itself.
        let leaks = unsafe { self.device().close() };
        let place: *const StrictDevice<dyn ContextDevice> = self;
        // SAFETY: `watched` leaked a box, which nobody uses any more, as the caller promises.
        drop(unsafe { Box::from_raw(place.cast_mut()) });
        leaks
    }
}

impl ContextDevice for RemoteDevice {
    fn remote(&self) -> Option<&RemoteDevice> {
        Some(self)
    }

    unsafe fn close(&self) -> Leaks {
        let leaks = self.leaks().unwrap_or_default();
        let place: *const RemoteDevice = self;
        // SAFETY: `open_routed` leaked a box, which nobody uses any more, as the caller promises.
        drop(unsafe { Box::from_raw(place.cast_mut()) });
        leaks
    }
}

impl ContextDevice for VerbsDevice {
    unsafe fn close(&self) -> Leaks {
        // SAFETY: the trait's contract is that of VerbsDevice's own close.
        unsafe { VerbsDevice::close(self) }
    }
}
