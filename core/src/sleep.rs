//! The word by which a sleeper announces itself to producers: a Dekker pair that loses no wake-up.
//!
//! A wake-up costs a system call, so only an announced sleeper gets one. Two threads each write one
//! word and read the other's, and at least one must see the other's write:
//!
//! ```text
//! sleeper                                producer
//! [`Asleep::announce`]: word = asleep    the work is published (ring cursor, flag)
//!        fence SeqCst  <---- pair ---->  fence SeqCst
//! looks for work again; none: sleeps     [`Asleep::must_wake`]: word is asleep: wakes it
//! ```
//!
//! With either fence weaker, both reads may come before both writes: the sleeper misses the work,
//! the producer the sleeper, and the message waits for the next timer. Release and acquire are no
//! substitute, as they let a later load pass an earlier store. `tests/loom_sleep.rs` runs every
//! interleaving.

use crate::sync::{fence, AtomicU32, Ordering};

/// Level of a sleeper that only urgent work wakes; also the urgency that wakes every sleeper.
pub const URGENT: u32 = 1;
/// Level of a sleeper that any work wakes; also the urgency of work that is not urgent.
pub const ANY: u32 = 2;

const AWAKE: u32 = 0;

/// The word in which a sleeper announces itself. May lie in memory that is shared with another
/// process: a peer that writes nonsense there causes or prevents wake-ups of its own making only.
///
/// # Layout
/// A u32; 0 (and so zeroed memory) is awake.
///
/// # Thread-safety
/// Any number of sleepers and producers. Where several sleep on one word they are woken together.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Asleep(AtomicU32);

impl Asleep {
    /// Awake.
    pub fn new() -> Self {
        Self::default()
    }

    /// Announces a sleep that work of this level ([`URGENT`] or [`ANY`]) ends; an earlier
    /// announcement of [`ANY`] stays. The caller must look for work once more after this, and only
    /// sleep if there is none.
    /// Cost: an atomic read-modify-write and a fence.
    #[inline]
    pub fn announce(&self, level: u32) {
        self.0.fetch_max(level, Ordering::Relaxed);
        // The sleeper's fence: our word is written before we look for work. Pairs with the
        // producer's.
        fence(Ordering::SeqCst);
    }

    /// Awake again without a wake-up, although one may be on its way.
    #[inline]
    pub fn withdraw(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// To be called after something was published: whether the caller must wake a sleeper. True for
    /// one of several producers, and the word is [`AWAKE`](Self::withdraw) again. `urgency`:
    /// [`URGENT`] or [`ANY`].
    /// Cost: a fence and a load of a line that only a sleeper writes; a swap where somebody sleeps.
    #[inline]
    #[must_use = "nobody else will wake the sleeper"]
    pub fn must_wake(&self, urgency: u32) -> bool {
        // The producer's fence: what we have published is written before we look at the word. Pairs
        // with the sleeper's.
        fence(Ordering::SeqCst);
        self.is_asleep(urgency) && self.0.swap(AWAKE, Ordering::Relaxed) >= urgency
    }

    /// Whether a sleep was announced that `urgency` ends. Without the fence of
    /// [`Asleep::must_wake`]: for callers that are ordered with the sleeper by other means, such as
    /// a lock.
    #[inline]
    pub fn is_asleep(&self, urgency: u32) -> bool {
        self.0.load(Ordering::Relaxed) >= urgency
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_producer_wakes_and_the_rest_need_not() {
        let word = Asleep::new();
        assert!(!word.must_wake(ANY) && !word.must_wake(URGENT));
        word.announce(ANY);
        assert!(word.is_asleep(ANY) && word.is_asleep(URGENT));
        assert!(word.must_wake(ANY));
        assert!(!word.must_wake(URGENT));
        word.announce(ANY);
        word.withdraw();
        assert!(!word.must_wake(URGENT));
    }

    #[test]
    fn what_is_not_urgent_lets_a_deep_sleeper_sleep() {
        let word = Asleep::new();
        word.announce(URGENT);
        assert!(!word.must_wake(ANY));
        assert!(word.must_wake(URGENT));
        word.announce(ANY);
        word.announce(URGENT);
        assert!(word.must_wake(ANY), "the lighter sleep stays");
    }

    #[test]
    fn nonsense_in_the_word_is_one_wake_up() {
        let word = Asleep(AtomicU32::new(u32::MAX));
        assert!(word.must_wake(ANY));
        assert!(!word.must_wake(URGENT));
    }
}
