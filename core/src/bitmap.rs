//! Bitmaps that find the few active ones among thousands of objects.
//!
//! A summary lies above the leaf words, one bit per object. So "none is active" is one load however
//! many objects there are, and finding an active one costs the same beside 4096 idle ones as beside
//! none.

use core::fmt;

use crossbeam_utils::CachePadded;

use crate::arena::{RawSlice, Walk};
use crate::error::Result;
use crate::sync::{AtomicU64, AtomicUsize, Ordering};

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
/// A bit of the summary stands for a group of leaves: bit i for all leaves whose number modulo 64
/// is i. So up to 4096 objects in use it stands for one leaf, whatever the bitmap could hold.
///
/// Invariant: if a bit of a leaf is set, then its summary bit is set, or the setter that found the
/// leaf bit clear is about to set it, or a drain that has cleared it is about to read the leaf. So
/// no bit is lost.
pub struct AtomicBitmap {
    leaves: RawSlice<AtomicU64>,
    top: CachePadded<Top>,
}

/// What lies above the leaves; on a line of its own, as setters write it.
struct Top {
    summary: AtomicU64,
    /// Leaves below this have been used: those above need no look.
    used: AtomicUsize,
}

impl AtomicBitmap {
    /// `bits` bits, all clear; empty in a size query.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`] where it does not fit.
    pub fn carve(walk: &mut Walk, bits: usize) -> Result<Self> {
        let leaves = walk.slice_with(bits.div_ceil(WORD), |_| AtomicU64::new(0))?;
        let top = Top { summary: AtomicU64::new(0), used: AtomicUsize::new(0) };
        Ok(AtomicBitmap { leaves, top: CachePadded::new(top) })
    }

    /// Sets bit `i`. Any thread, wait-free. Panics out of range.
    ///
    /// The thread that drains the bit sees what this thread wrote before.
    #[inline]
    pub fn set(&self, i: usize) {
        let leaf = i / WORD;
        if leaf >= self.top.used.load(Ordering::Relaxed) {
            // Before the summary is set, which publishes it.
            self.top.used.fetch_max(leaf + 1, Ordering::Relaxed);
        }
        let bit = 1 << (i % WORD);
        // Release: a drain that takes the bit sees our writes, even if an earlier setter set the
        // bit.
        if self.leaves[leaf].fetch_or(bit, Ordering::Release) & bit == 0 {
            // Without a load first, which might see a bit that a drain is clearing: either that
            // drain sees our leaf, or the bit stays set for the next one.
            self.top.summary.fetch_or(1 << (leaf % WORD), Ordering::Release);
        }
    }

    /// Whether a bit is set: one load. A thread that sleeps on "no" needs a fence between arming
    /// its wake-up and this.
    #[inline]
    pub fn any(&self) -> bool {
        self.top.summary.load(Ordering::Acquire) != 0
    }

    /// The leaves of a summary bit that may have bits. To be called after that bit was cleared.
    #[inline]
    fn group(&self, bit: usize) -> impl Iterator<Item = usize> {
        (bit..self.top.used.load(Ordering::Relaxed)).step_by(WORD)
    }

    /// Clears bit `i`, by the thread that takes bits. [`AtomicBitmap::any`] may still say that one
    /// is set. Panics out of range.
    pub fn clear(&self, i: usize) {
        self.leaves[i / WORD].fetch_and(!(1 << (i % WORD)), Ordering::Acquire);
    }

    /// Takes one bit, if any is set. One thread at a time, and not during a drain.
    pub fn take_one(&self) -> Option<usize> {
        while let Some(g) = bits(self.top.summary.load(Ordering::Acquire)).next() {
            // Summary before leaf, as in `drain`; set again below while the group has more.
            self.top.summary.fetch_and(!(1 << g), Ordering::Acquire);
            let mut found = None;
            let mut more = false;
            for leaf in self.group(g) {
                let Some(b) = bits(self.leaves[leaf].load(Ordering::Relaxed)).next() else {
                    continue;
                };
                if found.is_some() {
                    more = true;
                    break;
                }
                let bit = 1 << b;
                more |= self.leaves[leaf].fetch_and(!bit, Ordering::Acquire) & !bit != 0;
                found = Some(leaf * WORD + b);
            }
            if more {
                self.top.summary.fetch_or(1 << g, Ordering::Release);
            }
            if found.is_some() {
                return found;
            }
        }
        None
    }

    /// Clears all bits that are set and calls `f` for each; up to 4096 objects lowest first. One
    /// thread at a time.
    ///
    /// Bits that are set meanwhile, by `f` too, may wait for the next drain: the work is bounded.
    #[inline]
    pub fn drain(&self, mut f: impl FnMut(usize)) {
        if self.top.summary.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Summary before leaf, see `set`.
        for g in bits(self.top.summary.swap(0, Ordering::Acquire)) {
            for leaf in self.group(g) {
                if self.leaves[leaf].load(Ordering::Relaxed) == 0 {
                    continue;
                }
                for b in bits(self.leaves[leaf].swap(0, Ordering::Acquire)) {
                    f(leaf * WORD + b);
                }
            }
        }
    }
}

/// A plain bitmap of one owner, with a cursor-friendly search.
///
/// Three levels: a bit of `top` stands for a summary word, a bit of that for a leaf.
pub struct Bitmap {
    leaves: RawSlice<u64>,
    summary: RawSlice<u64>,
    top: u64,
}

/// Bits of the largest [`Bitmap`].
const BITS_MAX: usize = WORD * WORD * WORD;

impl Bitmap {
    /// `bits` bits, all clear; empty in a size query.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`] where it does not fit, [`crate::Error::Invalid`] for more than
    /// 2^18 bits.
    pub fn carve(walk: &mut Walk, bits: usize) -> Result<Self> {
        if bits > BITS_MAX {
            return Err(crate::reason::refuse!(Invalid, "{bits} bits: at most {BITS_MAX}"));
        }
        let leaves = bits.div_ceil(WORD);
        Ok(Bitmap {
            leaves: walk.slice(leaves, 0)?,
            summary: walk.slice(leaves.div_ceil(WORD), 0)?,
            top: 0,
        })
    }

    /// Sets bit `i`. Panics out of range, as all of these do.
    #[inline]
    pub fn set(&mut self, i: usize) {
        let (leaf, word) = (i / WORD, i / WORD / WORD);
        self.leaves[leaf] |= 1 << (i % WORD);
        self.summary[word] |= 1 << (leaf % WORD);
        self.top |= 1 << word;
    }

    /// Clears bit `i`.
    #[inline]
    pub fn clear(&mut self, i: usize) {
        let (leaf, word) = (i / WORD, i / WORD / WORD);
        self.leaves[leaf] &= !(1 << (i % WORD));
        if self.leaves[leaf] == 0 {
            self.summary[word] &= !(1 << (leaf % WORD));
            if self.summary[word] == 0 {
                self.top &= !(1 << word);
            }
        }
    }

    /// Whether bit `i` is set.
    #[inline]
    pub fn get(&self, i: usize) -> bool {
        self.leaves[i / WORD] >> (i % WORD) & 1 == 1
    }

    /// Whether no bit is set: one load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.top == 0
    }

    /// Whether each of these is empty: a load each, and one comparison.
    #[inline(always)]
    pub fn are_empty<const N: usize>(maps: [&Bitmap; N]) -> bool {
        maps.iter().fold(0, |all, map| all | map.top) == 0
    }

    /// The bits that are set, lowest first.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let mut at = 0;
        core::iter::from_fn(move || {
            let i = self.at_or_after(at)?;
            at = i + 1;
            Some(i)
        })
    }

    /// The first element at or after an index.
    #[inline]
    pub fn at_or_after(&self, start: usize) -> Option<usize> {
        self.next_from(start).filter(|&i| i >= start)
    }

    /// The first set bit at or after `start`, else the first of all; `None` only where no bit is
    /// set.
    #[inline]
    pub fn next_from(&self, start: usize) -> Option<usize> {
        // The usual answers, inline: the next bit is in the same word, or there is none at all.
        let rest =
            self.leaves.get(start / WORD).map_or(0, |leaf| leaf & (u64::MAX << (start % WORD)));
        if rest != 0 {
            return Some((start & !(WORD - 1)) + rest.trailing_zeros() as usize);
        }
        if self.top == 0 {
            return None;
        }
        let found = if start == 0 { None } else { self.search(start) };
        Some(found.unwrap_or_else(|| self.first(self.top.trailing_zeros() as usize)))
    }

    /// The first set bit below a summary word that has one.
    #[inline]
    fn first(&self, word: usize) -> usize {
        let leaf = word * WORD + self.summary[word].trailing_zeros() as usize;
        leaf * WORD + self.leaves[leaf].trailing_zeros() as usize
    }

    /// The first set bit at or after `start`, without wrapping.
    #[inline(never)]
    fn search(&self, start: usize) -> Option<usize> {
        let (leaf, word) = (start / WORD, start / WORD / WORD);
        if let Some(bit) = from(*self.leaves.get(leaf)?, start % WORD) {
            return Some(leaf * WORD + bit);
        }
        match from(self.summary[word], leaf % WORD + 1) {
            Some(next) => {
                let leaf = word * WORD + next;
                Some(leaf * WORD + self.leaves[leaf].trailing_zeros() as usize)
            }
            None => Some(self.first(from(self.top, word + 1)?)),
        }
    }
}

/// A bitmap that mostly has one bit set, which it keeps in a word.
pub struct Few {
    /// That bit plus 1; 0: none.
    one: usize,
    others: Bitmap,
}

impl Few {
    /// Takes over an empty bitmap, or one with bits.
    pub fn new(bits: Bitmap) -> Few {
        Few { one: 0, others: bits }
    }

    /// Sets bit `i`. Panics out of range, as all of these may.
    #[inline(always)]
    pub fn set(&mut self, i: usize) {
        if self.one == 0 && self.others.is_empty() {
            self.one = i + 1;
        } else if self.one != i + 1 {
            self.others.set(i);
        }
    }

    /// Clears bit `i`.
    #[inline(always)]
    pub fn clear(&mut self, i: usize) {
        if self.one == i + 1 {
            self.one = 0;
        } else if !self.others.is_empty() {
            self.others.clear(i);
        }
    }

    /// Whether bit `i` is set.
    #[inline]
    pub fn get(&self, i: usize) -> bool {
        self.one == i + 1 || self.others.get(i)
    }

    /// Whether no bit is set.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.one == 0 && self.others.is_empty()
    }

    /// A bit that is set, if there is any.
    #[inline]
    pub fn any(&self) -> Option<usize> {
        self.one.checked_sub(1).or_else(|| self.others.next_from(0))
    }
}

/// The bits that are set, lowest first, wherever they are kept.
impl fmt::Debug for Few {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut set = f.debug_set();
        let mut one = self.one.checked_sub(1);
        for i in self.others.iter() {
            if let Some(bit) = one.filter(|&bit| bit <= i) {
                one = None;
                if bit != i {
                    set.entry(&bit);
                }
            }
            set.entry(&i);
        }
        set.entries(one).finish()
    }
}

/// The first set bit of a word at or after `start`, which may be its end.
#[inline]
fn from(word: u64, start: usize) -> Option<usize> {
    let rest = word & u64::MAX.checked_shl(start as u32).unwrap_or(0);
    (rest != 0).then_some(rest.trailing_zeros() as usize)
}

#[cfg(all(test, not(loom)))]
mod tests;
