//! The soft device as a context sees it.

use crate::context::Owned;
use core::ffi::CStr;
use gdrcore_core::{Config, Error, Result};

pub(crate) const NO_GSO: u32 = 1;
pub(crate) const HELPER: u32 = 2;

#[allow(dead_code)]
pub(crate) struct SoftConfig<'a> {
    pub(crate) core: Config,
    pub(crate) flags: u32,
    pub(crate) pcap: Option<&'a CStr>,
}

pub(crate) fn memsize(name: &str, _cfg: &SoftConfig<'_>) -> Result<usize> {
    if name != "loopback" && name.strip_prefix("soft:").is_none_or(str::is_empty) {
        return Err(Error::Invalid);
    }
    Ok(1 << 20)
}

/// # Safety
/// As in gdrc_context_init.
pub(crate) unsafe fn init(_: *mut u8, _: usize, _: &str, _: &SoftConfig<'_>) -> Result<&'static dyn Owned> {
    Err(Error::NoDevice)
}
