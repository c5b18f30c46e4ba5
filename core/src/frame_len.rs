//! The length word of a frame in a ring of frames that has no head index: a frame is there when its
//! length is not zero.
//!
//! The remains of an earlier lap must never be taken for a length. So before the writer publishes a
//! frame, it writes zero where the next frame's length will be. A reader that has seen the length
//! of a frame then sees that zero behind it, or the next length. `tests/loom_shared.rs` runs every
//! interleaving.

use crate::sync::{AtomicU32, Ordering};

/// A length in memory that is shared with another process, which may write anything: the reader
/// checks it.
///
/// # Layout
/// A u32; zeroed memory is "nothing yet".
///
/// # Thread-safety
/// One writer, one reader.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Length(AtomicU32);

impl Length {
    /// No frame is here yet.
    #[inline(always)]
    pub fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Hands a frame of `len` bytes, not 0, to the reader. `behind`: the length of the next one;
    /// `cleared`: the writer has cleared it already, though it may have written over it since.
    #[inline(always)]
    pub fn publish(&self, len: u32, behind: &Length, cleared: bool) {
        if !cleared || !behind.looks_empty() {
            behind.clear();
        }
        // Release: the frame's bytes, and the zero behind it, are there before its length.
        self.0.store(len, Ordering::Release);
    }

    /// Whether no frame is here. Relaxed: says nothing about other memory.
    #[inline(always)]
    pub fn looks_empty(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// The length, and with it the frame's bytes; 0: there is none yet.
    #[inline(always)]
    pub fn read(&self) -> u32 {
        // Pairs with the release in `publish`.
        self.0.load(Ordering::Acquire)
    }

    /// For tests: writes what an earlier lap, or a dishonest writer, may have left.
    pub fn scribble(&self, value: u32) {
        self.0.store(value, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_cleared_length_that_was_written_over_is_cleared_again() {
        let (here, behind) = (Length::default(), Length::default());
        behind.clear();
        behind.scribble(99);
        here.publish(5, &behind, true);
        assert_eq!((here.read(), behind.read(), behind.looks_empty()), (5, 0, true));
    }
}
