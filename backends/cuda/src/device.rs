//! GPUs, and their primary contexts.

use core::ffi::{c_char, CStr};
use core::marker::PhantomData;
use std::sync::OnceLock;

use crate::api::{self, check, Api, Object};
use crate::failure::Failure;

/// Most GPUs that one process uses.
pub const DEVICES_MAX: usize = 64;

/// A GPU whose primary context is retained.
pub struct Device {
    /// The driver.
    pub api: &'static Api,
    /// The driver's ordinal; `CUDA_VISIBLE_DEVICES` renumbers.
    pub ordinal: u32,
    /// The driver's handle.
    pub handle: i32,
    context: Object,
}

// SAFETY: contexts may be made current by any thread; the handle is a number.
unsafe impl Sync for Device {}
// SAFETY: as above.
unsafe impl Send for Device {}

static DEVICES: [OnceLock<Device>; DEVICES_MAX] = [const { OnceLock::new() }; DEVICES_MAX];

/// A PCI address, as `lspci` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Bdf {
    /// Domain, 0 on most machines.
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device.
    pub device: u8,
    /// Function.
    pub function: u8,
}

impl Bdf {
    /// Reads `b7:00.0` or `0000:b7:00.0`; hexadecimal digits in either case.
    pub fn parse(text: &str) -> Option<Bdf> {
        let hex = |digits: &str, most: usize| {
            let plain = !digits.is_empty()
                && digits.len() <= most
                && digits.bytes().all(|b| b.is_ascii_hexdigit());
            plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
        };
        let (rest, function) = text.rsplit_once('.')?;
        let (rest, device) = rest.rsplit_once(':')?;
        let (domain, bus) = rest.rsplit_once(':').unwrap_or(("0", rest));
        let bdf = Bdf {
            domain: hex(domain, 8)?,
            bus: hex(bus, 2)? as u8,
            device: hex(device, 2)? as u8,
            function: hex(function, 1)? as u8,
        };
        (bdf.device < 32 && bdf.function < 8).then_some(bdf)
    }
}

impl core::fmt::Display for Bdf {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// Makes a context current in this thread; dropping it restores the previous one.
pub(crate) struct Current<'d> {
    device: &'d Device,
    /// The stack of contexts is the thread's own.
    _thread: PhantomData<*mut ()>,
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = core::ptr::null_mut();
        // SAFETY: pushed by this thread; a writable place.
        unsafe { (self.device.api.context_pop)(&mut popped) };
    }
}

impl Device {
    /// The number of GPUs.
    ///
    /// # Errors
    /// No driver.
    pub fn count() -> Result<u32, Failure> {
        let api = api::driver()?;
        let mut n = 0;
        // SAFETY: a writable place.
        check(api::device_count::NAME, unsafe { (api.device_count)(&mut n) })?;
        Ok(u32::try_from(n).unwrap_or(0))
    }

    /// The GPU with this ordinal.
    ///
    /// # Errors
    /// No driver, no such GPU, or no context on it.
    pub fn get(ordinal: u32) -> Result<&'static Device, Failure> {
        let api = api::driver()?;
        let slot = DEVICES
            .get(ordinal as usize)
            .ok_or(Failure::new(api::device_get::NAME, api::INVALID_DEVICE))?;
        if let Some(device) = slot.get() {
            return Ok(device);
        }
        let handle = handle(api, ordinal)?;
        let mut context = core::ptr::null_mut();
        // SAFETY: a writable place. A second thread here retains it twice, which does no harm: it
        // is never released.
        check(api::context_retain::NAME, unsafe { (api.context_retain)(&mut context, handle) })?;
        Ok(slot.get_or_init(|| Device { api, ordinal, handle, context }))
    }

    /// Finds the GPU of a name: empty (the first GPU), an ordinal, or a PCI address with or without
    /// domain.
    ///
    /// # Errors
    /// As [`Device::get`]; `INVALID_DEVICE`: no GPU has that name; `INVALID_VALUE`: the name has no
    /// valid form.
    pub fn find(name: &str) -> Result<&'static Device, Failure> {
        if name.is_empty() {
            return Device::get(0);
        }
        if name.bytes().all(|b| b.is_ascii_digit()) {
            let ordinal = name
                .parse()
                .map_err(|_| Failure::new(api::device_get::NAME, api::INVALID_DEVICE))?;
            return Device::get(ordinal);
        }
        let api = api::driver()?;
        let wanted =
            Bdf::parse(name).ok_or(Failure::new(api::device_bdf::NAME, api::INVALID_VALUE))?;
        for ordinal in 0..Device::count()? {
            if bdf(api, handle(api, ordinal)?) == Some(wanted) {
                return Device::get(ordinal);
            }
        }
        Err(Failure::new(api::device_get::NAME, api::INVALID_DEVICE))
    }

    /// The GPU's PCI address.
    pub fn bdf(&self) -> Option<Bdf> {
        bdf(self.api, self.handle)
    }

    /// The driver's name of the GPU.
    pub fn name(&self) -> String {
        let mut text = [0 as c_char; 128];
        // SAFETY: writable for the length given.
        let rc = unsafe {
            (self.api.device_name)(text.as_mut_ptr(), text.len() as i32 - 1, self.handle)
        };
        if rc != api::SUCCESS {
            return String::new();
        }
        // SAFETY: the last byte was not given away and is 0.
        unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned()
    }

    /// The GPU's memory in bytes; 0 if the driver does not report it.
    pub fn bytes(&self) -> u64 {
        let mut bytes = 0;
        // SAFETY: a writable place.
        let rc = unsafe { (self.api.device_memory)(&mut bytes, self.handle) };
        if rc == api::SUCCESS {
            bytes as u64
        } else {
            0
        }
    }

    /// Whether the GPU has a feature ([`api::DEVICE_DMA_BUF`] and others). A feature that the
    /// driver does not know is absent.
    pub fn has(&self, attribute: i32) -> bool {
        let mut value = 0;
        // SAFETY: a writable place.
        let rc = unsafe { (self.api.device_attribute)(&mut value, attribute, self.handle) };
        rc == api::SUCCESS && value != 0
    }

    /// Makes the GPU's context current.
    pub(crate) fn enter(&self) -> Result<Current<'_>, Failure> {
        // SAFETY: the primary context, retained for ever.
        check(api::context_push::NAME, unsafe { (self.api.context_push)(self.context) })?;
        Ok(Current { device: self, _thread: PhantomData })
    }
}

fn handle(api: &Api, ordinal: u32) -> Result<i32, Failure> {
    let mut handle = 0;
    let ordinal = i32::try_from(ordinal)
        .map_err(|_| Failure::new(api::device_get::NAME, api::INVALID_DEVICE))?;
    // SAFETY: a writable place.
    check(api::device_get::NAME, unsafe { (api.device_get)(&mut handle, ordinal) })?;
    Ok(handle)
}

fn bdf(api: &Api, handle: i32) -> Option<Bdf> {
    let mut text = [0 as c_char; 32];
    // SAFETY: writable for the length given.
    let rc = unsafe { (api.device_bdf)(text.as_mut_ptr(), text.len() as i32 - 1, handle) };
    if rc != api::SUCCESS {
        return None;
    }
    // SAFETY: the last byte was not given away and is 0.
    Bdf::parse(unsafe { CStr::from_ptr(text.as_ptr()) }.to_str().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_with_and_without_domain() {
        let at = Bdf { domain: 0, bus: 0xb7, device: 0, function: 0 };
        for text in ["b7:00.0", "B7:00.0", "0000:b7:00.0", "00000000:B7:00.0"] {
            assert_eq!(Bdf::parse(text), Some(at), "{text}");
        }
        assert_eq!(
            Bdf::parse("0001:3b:1f.7").map(|b| b.to_string()).as_deref(),
            Some("0001:3b:1f.7")
        );
        for text in [
            "",
            ".",
            ":.",
            "b7",
            "b7:00",
            "b7:00.8",
            "b7:20.0",
            "1b7:00.0",
            "+7:00.0",
            "b7:00.0 ",
            "0:0:0:0.0",
        ] {
            assert_eq!(Bdf::parse(text), None, "{text}");
        }
        assert_eq!(at.to_string(), "0000:b7:00.0");
    }
}
