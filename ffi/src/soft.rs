//! The soft device as a context owns it.

use crate::context::Owned;
use gdrcore_core::device::Leaks;
use gdrcore_core::mem::Memory;
use gdrcore_core::Result;

pub(crate) use gdrcore_net::soft::{soft_flags, PathChoice, PinnedCq, PinnedQp, SoftConfig, SoftDevice};

impl Owned for SoftDevice {
    fn memory_add(&self, provider: u32, memory: &'static dyn Memory) -> Result<()> {
        SoftDevice::memory_add(self, provider, memory)
    }

    unsafe fn close(&self) -> Leaks {
        // SAFETY: the trait's contract is that of SoftDevice's own close.
        unsafe { SoftDevice::close(self) }
    }
}
