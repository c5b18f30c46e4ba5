//! The soft device as a context owns it.

use crate::context::Owned;
use gdrcore_core::device::Leaks;

pub(crate) use gdrcore_net::soft::{soft_flags, PathChoice, SoftConfig, SoftDevice};

impl Owned for SoftDevice {
    unsafe fn close(&self) -> Leaks {
        // SAFETY: the trait's contract is that of SoftDevice's own close.
        unsafe { SoftDevice::close(self) }
    }
}
