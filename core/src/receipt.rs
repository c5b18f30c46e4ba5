//! Receipts: the record of what the reader of a ring of frames has accepted. The writer of the ring
//! finds it after the reader's end.
//!
//! An ACK may wait for a packet to leave with. If the reader's process is killed meanwhile, nobody
//! sends it, although the message was delivered. So the reader leaves, for each message, the words
//! of the ACK in memory that both share. The writer reads them only after the reader has ended:
//! until then the lines belong to the reader's core, and a receipt costs a store.

use crate::sync::{AtomicU64, Ordering};
use crate::wire::Psn;

/// Places for receipts of one ring; a power of two.
pub const RECEIPTS: usize = 256;

/// The receipts of a ring, in memory that is shared with another process, which may write anything:
/// a receipt means no more than an ACK that came over the ring would.
///
/// # Layout
/// A word for each place: the QPN of the responder, and above it the PSN. Zeroed memory has none.
///
/// # Thread-safety
/// One process leaves receipts, one reads them.
#[derive(Debug)]
#[repr(transparent)]
pub struct Receipts([AtomicU64; RECEIPTS]);

impl Receipts {
    #[inline(always)]
    fn place(&self, qpn: u32) -> &AtomicU64 {
        &self.0[qpn as usize % RECEIPTS]
    }

    /// Leaves the receipt of a QP: all up to `psn` was accepted. Returns the QPN of another QP
    /// whose receipt it has replaced, or 0: the ACK of that QP must not wait any longer. The memory
    /// is shared, so the QPN may be any number.
    #[inline(always)]
    #[must_use]
    pub fn leave(&self, qpn: u32, psn: Psn) -> u32 {
        self.leave_word(u64::from(psn.get()) << 32 | u64::from(qpn))
    }

    /// [`Receipts::leave`] of the words of QPN and PSN as the head of a record has them.
    #[inline(always)]
    #[must_use]
    pub(crate) fn leave_word(&self, word: u64) -> u32 {
        let place = self.place(word as u32);
        let former = place.load(Ordering::Relaxed);
        // Release: what was accepted is in the program's memory, and its completion in the queue.
        place.store(word, Ordering::Release);
        if (former ^ word) as u32 == 0 {
            0
        } else {
            former as u32
        }
    }

    /// The receipt of a QP.
    pub fn find(&self, qpn: u32) -> Option<Psn> {
        let word = self.place(qpn).load(Ordering::Acquire);
        (word as u32 == qpn).then(|| Psn::new((word >> 32) as u32))
    }

    /// Removes the receipt of a QP: a connection begins, whose PSNs may be those of the last one.
    pub fn forget(&self, qpn: u32) {
        if self.find(qpn).is_some() {
            self.place(qpn).store(0, Ordering::Relaxed);
        }
    }

    /// Where the word of a QP lies, in bytes from the first.
    pub fn offset_of(qpn: u32) -> usize {
        qpn as usize % RECEIPTS * size_of::<AtomicU64>()
    }

    /// Those of another place.
    pub fn of_words(words: [u64; RECEIPTS]) -> Receipts {
        Receipts(words.map(AtomicU64::new))
    }

    /// Their words.
    pub fn words(&self) -> [u64; RECEIPTS] {
        core::array::from_fn(|i| self.0[i].load(Ordering::Acquire))
    }

    /// Takes over the receipts of a place that was lost.
    pub fn copy(&self, from: &Receipts) {
        for (to, word) in self.0.iter().zip(from.words()) {
            to.store(word, Ordering::Relaxed);
        }
    }

    /// Removes the receipts for which `keep` is false.
    pub fn retain(&self, mut keep: impl FnMut(u32, Psn) -> bool) {
        for place in &self.0 {
            let word = place.load(Ordering::Relaxed);
            if word != 0 && !keep(word as u32, Psn::new((word >> 32) as u32)) {
                place.store(0, Ordering::Relaxed);
            }
        }
    }
}

impl Default for Receipts {
    fn default() -> Self {
        Receipts(core::array::from_fn(|_| AtomicU64::new(0)))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_the_receipt_of_one_queue_pair() {
        let receipts = Receipts::default();
        assert_eq!(receipts.find(17), None);
        assert_eq!([5, 6].map(|psn| receipts.leave(17, Psn::new(psn))), [0, 0]);
        assert_eq!(receipts.find(17), Some(Psn::new(6)));
        let other = 17 + RECEIPTS as u32;
        receipts.forget(other);
        assert_eq!((receipts.find(other), receipts.find(17)), (None, Some(Psn::new(6))));
        assert_eq!(receipts.leave(other, Psn::new(0)), 17, "the former one's ACK is due");
        assert_eq!((receipts.find(other), receipts.find(17)), (Some(Psn::new(0)), None));
        receipts.forget(other);
        assert_eq!(receipts.find(other), None);
        assert_eq!(receipts.leave(17, Psn::new(7)), 0, "the place was empty");
    }
}
