//! The progress of a QP's reset.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// Bits of [`Drain`].
pub(crate) const SEND_POSTED: u32 = 1;
pub(crate) const RECV_POSTED: u32 = 2;
pub(crate) const SEND_SEEN: u32 = 4;
pub(crate) const RECV_SEEN: u32 = 8;

/// The progress of a reset; 0 while there is none.
#[derive(Default)]
pub struct Drain(AtomicU32);

impl Drain {
    /// Forgets a reset that a modify to RESET has overtaken.
    pub fn clear(&self) {
        self.0.store(0, Release);
    }

    pub(crate) fn has(&self, bits: u32) -> bool {
        self.0.load(Acquire) & bits == bits
    }

    pub(crate) fn add(&self, bits: u32) {
        self.0.fetch_or(bits, AcqRel);
    }

    pub(crate) fn remove(&self, bits: u32) {
        self.0.fetch_and(!bits, AcqRel);
    }
}
