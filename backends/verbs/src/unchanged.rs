//! A filter that compares bits to find requests which a provider takes unchanged.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// Recognises a request that a QP's provider takes unchanged, in as few comparisons as possible.
pub struct Unchanged {
    /// Bits that `opcode << 32 | num_sge` of such a request does not have.
    pub(crate) unusual: AtomicU64,
    /// The least `sg_list` of such a request, less one: 0 (not null), or the highest address if no
    /// request of this QP is plain.
    pub(crate) nowhere: AtomicU64,
}

impl Default for Unchanged {
    /// For no QP yet: nothing is plain.
    fn default() -> Unchanged {
        Unchanged { unusual: AtomicU64::new(u64::MAX), nowhere: AtomicU64::new(u64::MAX) }
    }
}

impl Unchanged {
    /// Sets the filter of a QP. Its provider takes requests of these `opcodes` (as bits) unchanged,
    /// with up to `sge_max` entries.
    ///
    /// The filter compares only bits. It passes opcodes below 2^k, with the largest k for which all
    /// of them are plain, and numbers of entries that need no more bits than `sge_max`. Every
    /// provider refuses a number that is still too large.
    pub fn prepare(&self, opcodes: u32, sge_max: u32) {
        let low = opcodes.trailing_ones().checked_ilog2();
        let usual = (1u64 << low.unwrap_or(0)) - 1;
        self.unusual.store(!(usual << 32 | bits_up_to(sge_max)), Relaxed);
        self.nowhere.store(if low.is_some() { 0 } else { u64::MAX }, Relaxed);
    }

    /// The bits; `None` if no request of this QP is plain.
    pub fn bits(&self) -> Option<u64> {
        (self.nowhere.load(Relaxed) == 0).then(|| self.unusual.load(Relaxed))
    }
}

/// Bits that numbers up to `most` have.
pub(crate) fn bits_up_to(most: u32) -> u64 {
    u64::from(u32::MAX.checked_shr(most.leading_zeros()).unwrap_or(0))
}
