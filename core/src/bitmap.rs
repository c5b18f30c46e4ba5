//! Two-level bitmaps: which of thousands of objects have something to do, without looking at each.
//!
//! A summary word has one bit per leaf word, a leaf word one bit per object: 4096 objects are one summary
//! word and 64 leaves.

use crate::arena::{RawSlice, Walk};
use crate::error::Result;
use crate::sync::{AtomicU64, Ordering};

/// Bits in a word.
const WORD: usize = 64;

/// The bits of a word, lowest first.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        if word == 0 {
            return None;
        }
        let i = word.trailing_zeros() as usize;
        word &= word - 1;
        Some(i)
    })
}

/// A bitmap that any thread sets and one drains.
///
/// Invariant: a bit that is set in a leaf has its summary bit set, or its setter is about to set it, or a
/// drain that has cleared the summary is about to take the leaf. So no bit is lost.
pub struct AtomicBitmap {
    leaves: RawSlice<AtomicU64>,
    summary: RawSlice<AtomicU64>,
}

impl AtomicBitmap {
    /// `bits` bits, all clear; empty in a size query.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`] where it does not fit.
    pub fn carve(walk: &mut Walk, bits: usize) -> Result<Self> {
        let leaves = bits.div_ceil(WORD);
        Ok(AtomicBitmap {
            leaves: walk.slice_with(leaves, |_| AtomicU64::new(0))?,
            summary: walk.slice_with(leaves.div_ceil(WORD), |_| AtomicU64::new(0))?,
        })
    }

    /// Sets bit `i`. Any thread, wait-free. Panics out of range.
    ///
    /// What this thread wrote before is seen by whoever drains the bit.
    #[inline]
    pub fn set(&self, i: usize) {
        let leaf = i / WORD;
        // AcqRel. Release: a drain that takes the bit sees our writes. Acquire: if a drain's swap of this
        // leaf came first, we also see the summary that it cleared before, and set it again below.
        self.leaves[leaf].fetch_or(1 << (i % WORD), Ordering::AcqRel);
        let summary = &self.summary[leaf / WORD];
        let bit = 1 << (leaf % WORD);
        // Still set: the drain that will clear it swaps the leaf after that, and so after our fetch_or.
        if summary.load(Ordering::Relaxed) & bit == 0 {
            summary.fetch_or(bit, Ordering::Release);
        }
    }

    /// Whether a bit is set: one load per 4096 bits. Before sleeping on "no", fence between arming the wake-up and this.
    #[inline]
    pub fn any(&self) -> bool {
        self.summary.iter().any(|s| s.load(Ordering::Acquire) != 0)
    }

    /// Takes one bit, if any is set.
    pub fn take_one(&self) -> Option<usize> {
        for (s, summary) in self.summary.iter().enumerate() {
            while let Some(l) = bits(summary.load(Ordering::Acquire)).next() {
                let leaf = s * WORD + l;
                // Summary before leaf, as in `drain`; set again below while the leaf has more.
                summary.fetch_and(!(1 << l), Ordering::AcqRel);
                let word = self.leaves[leaf].load(Ordering::Acquire);
                let Some(b) = bits(word).next() else { continue };
                let before = self.leaves[leaf].fetch_and(!(1 << b), Ordering::AcqRel);
                if before & !(1 << b) != 0 {
                    summary.fetch_or(1 << l, Ordering::AcqRel);
                }
                return Some(leaf * WORD + b);
            }
        }
        None
    }

    /// Clears all bits that are set and calls `f` for each, lowest first. One thread at a time.
    ///
    /// Bits that are set meanwhile, by `f` too, may wait for the next drain: the work is bounded.
    #[inline]
    pub fn drain(&self, mut f: impl FnMut(usize)) {
        for (s, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // Summary before leaf, see `set`.
            for l in bits(summary.swap(0, Ordering::AcqRel)) {
                let leaf = s * WORD + l;
                for b in bits(self.leaves[leaf].swap(0, Ordering::AcqRel)) {
                    f(leaf * WORD + b);
                }
            }
        }
    }
}

/// A plain bitmap of one owner, with a cursor-friendly search.
pub struct Bitmap {
    leaves: RawSlice<u64>,
    summary: RawSlice<u64>,
}

impl Bitmap {
    /// `bits` bits, all clear; empty in a size query.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`] where it does not fit.
    pub fn carve(walk: &mut Walk, bits: usize) -> Result<Self> {
        let leaves = bits.div_ceil(WORD);
        Ok(Bitmap { leaves: walk.slice(leaves, 0)?, summary: walk.slice(leaves.div_ceil(WORD), 0)? })
    }

    /// Sets bit `i`. Panics out of range, as all of these do.
    #[inline]
    pub fn set(&mut self, i: usize) {
        let leaf = i / WORD;
        self.leaves[leaf] |= 1 << (i % WORD);
        self.summary[leaf / WORD] |= 1 << (leaf % WORD);
    }

    /// Clears bit `i`.
    #[inline]
    pub fn clear(&mut self, i: usize) {
        let leaf = i / WORD;
        self.leaves[leaf] &= !(1 << (i % WORD));
        if self.leaves[leaf] == 0 {
            self.summary[leaf / WORD] &= !(1 << (leaf % WORD));
        }
    }

    /// Whether bit `i` is set.
    #[inline]
    pub fn get(&self, i: usize) -> bool {
        self.leaves[i / WORD] >> (i % WORD) & 1 == 1
    }

    /// Whether no bit is set: one load per 4096 bits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.summary.iter().all(|&s| s == 0)
    }

    /// The first set bit at or after `start`, else the first of all; `None` only where no bit is set.
    #[inline]
    pub fn next_from(&self, start: usize) -> Option<usize> {
        self.search(start).or_else(|| self.search(0))
    }

    /// The first set bit at or after `start`, without wrapping.
    fn search(&self, start: usize) -> Option<usize> {
        let leaf = start / WORD;
        let rest = self.leaves.get(leaf)? & (u64::MAX << (start % WORD));
        if rest != 0 {
            return Some(leaf * WORD + rest.trailing_zeros() as usize);
        }
        let from = leaf + 1;
        let mut mask = u64::MAX << (from % WORD);
        for (s, &word) in self.summary.iter().enumerate().skip(from / WORD) {
            let word = word & mask;
            mask = u64::MAX;
            if word != 0 {
                let leaf = s * WORD + word.trailing_zeros() as usize;
                return Some(leaf * WORD + self.leaves[leaf].trailing_zeros() as usize);
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
