//! The lock of an engine, and the turns of the threads that share it.
//!
//! The lock alone is correct. But a thread that takes it right after another one moves some ten
//! cache lines to its core, which costs more than the operation itself: two threads that alternate
//! by operation do less than half of what one does alone. So the thread that ran the engine last,
//! the **runner**, keeps it for a turn of some microseconds, and other threads wait for the end of
//! the turn.
//!
//! Turns are advice. A thread that has waited long enough takes the lock anyway, so no thread waits
//! for one that has stopped. The words of turns are relaxed: a thread that reads an old value waits
//! a little too long or not at all.
//!
//! A **token** identifies a thread: an address that no other thread has, with its two lowest bits
//! clear.
//!
//! The thread that waits watches the clock, not the runner: an operation of the runner reads one
//! word, and no clock.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU32, AtomicUsize, Ordering};

/// Nobody's token.
const NOBODY: usize = 0;
/// Bit of [`Line::runner`]: the turn was handed over, and its new owner has not begun it.
const HANDED_OVER: usize = 1;
/// Bit of [`TurnLock::wanted`]: a thread asks the runner for a full round.
const ROUND: usize = 1;
/// Bit of [`TurnLock::wanted`]: the turn is over for the thread that waits.
const DUE: usize = 2;
/// Bit of [`Line::word`]: the lock is held. The others count releases.
const HELD: u32 = 1;

/// Token of the thread that waits for its turn, out of [`TurnLock::wanted`].
#[inline(always)]
fn waiter(wanted: usize) -> usize {
    wanted & !(ROUND | DUE)
}

/// The line that each holder of the lock writes.
struct Line {
    word: AtomicU32,
    /// Full rounds of the engine.
    rounds: AtomicU32,
    /// Token of the thread whose turn it is.
    runner: AtomicUsize,
}

/// The lock of an engine.
pub struct TurnLock {
    line: CachePadded<Line>,
    /// Token of the thread that waits for its turn, [`DUE`] and [`ROUND`]. On a line of its own:
    /// the runner reads it for each operation, and the waiting thread spins on it.
    wanted: CachePadded<AtomicUsize>,
}

impl Default for TurnLock {
    fn default() -> Self {
        TurnLock {
            line: CachePadded::new(Line {
                word: AtomicU32::new(0),
                rounds: AtomicU32::new(0),
                runner: AtomicUsize::new(NOBODY),
            }),
            wanted: CachePadded::new(AtomicUsize::new(NOBODY)),
        }
    }
}

impl TurnLock {
    /// Takes the lock if it is free.
    #[inline(always)]
    pub fn try_lock(&self) -> bool {
        let word = &self.line.word;
        word.load(Ordering::Relaxed) & HELD == 0
            && word.fetch_or(HELD, Ordering::Acquire) & HELD == 0
    }

    /// Takes the lock if it is free, for a thread that failed to and has left a mark for the
    /// holder. False: the holder sees the mark, if it reads the marks after [`TurnLock::unlock`].
    ///
    /// Why: this thread writes the mark before its read-modify-write of the word. The holder
    /// unlocks by a read-modify-write, and reads the marks after it. One of the two comes first. If
    /// it is this thread's, the holder's reads what it wrote, so the holder sees the mark.
    /// Otherwise this thread finds the lock free.
    #[inline]
    pub fn try_lock_marked(&self) -> bool {
        self.line.word.fetch_or(HELD, Ordering::AcqRel) & HELD == 0
    }

    /// Releases the lock. Only its holder.
    #[inline(always)]
    pub fn unlock(&self) {
        // A read-modify-write where a store would do for a lock: see `try_lock_marked`. The carry
        // out of HELD counts the release.
        self.line.word.fetch_add(HELD, Ordering::AcqRel);
    }

    /// Counts the releases of the lock; the lowest bit is set while it is held.
    #[inline]
    pub fn epoch(&self) -> u32 {
        self.line.word.load(Ordering::Relaxed)
    }

    /// Number of full rounds so far.
    #[inline]
    pub fn rounds(&self) -> u32 {
        self.line.rounds.load(Ordering::Relaxed)
    }

    /// Notes a full round. Only the lock's holder.
    #[inline(always)]
    pub fn note_round(&self) {
        let rounds = &self.line.rounds;
        rounds.store(rounds.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether it is this thread's turn, and it has begun.
    #[inline(always)]
    pub fn is_turn_of(&self, token: usize) -> bool {
        self.line.runner.load(Ordering::Relaxed) == token
    }

    /// Whether it is another thread's turn.
    #[inline]
    pub fn is_others_turn(&self, token: usize) -> bool {
        let runner = self.line.runner.load(Ordering::Relaxed);
        runner & !HANDED_OVER != token && runner != NOBODY
    }

    /// Whether a turn was handed over that has not begun.
    #[inline]
    pub fn is_handed_over(&self) -> bool {
        self.line.runner.load(Ordering::Relaxed) & HANDED_OVER != 0
    }

    /// Begins the turn of a thread.
    pub fn begin_turn(&self, token: usize) {
        self.line.runner.store(token, Ordering::Relaxed);
    }

    /// Whether a thread waits for its turn, or for a round.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) != NOBODY
    }

    /// Whether the runner is to end its turn, or to run a round: a thread has asked for a round, or
    /// has waited for a turn's time, or waits at all and the runner's operation was in vain. One
    /// load of a line that is seldom written.
    #[inline(always)]
    pub fn must_yield(&self, vain: bool) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        wanted & (ROUND | DUE) != 0 || vain && wanted != NOBODY
    }

    /// Whether the thread that waits has waited for a turn's time.
    pub fn is_due(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) & DUE != 0
    }

    /// Ends this thread's turn, and hands it over to the thread that waits, if any.
    pub fn hand_over(&self) {
        let wanted = self.wanted.load(Ordering::Relaxed);
        let next = waiter(wanted);
        if next != NOBODY {
            self.line.runner.store(next | HANDED_OVER, Ordering::Relaxed);
            // If that thread has given up meanwhile, and another one has come, the latter goes on
            // waiting for its own time.
            self.change_wanted(wanted, wanted & ROUND);
        }
    }

    /// Begins to wait for the turn. False: another thread waits for it already.
    #[inline]
    pub fn try_want(&self, token: usize) -> bool {
        let wanted = self.wanted.load(Ordering::Relaxed);
        waiter(wanted) == NOBODY && self.change_wanted(wanted, wanted | token)
    }

    /// Whether this thread still waits: it has asked, and the turn was not handed over.
    #[inline]
    pub fn waits(&self, token: usize) -> bool {
        waiter(self.wanted.load(Ordering::Relaxed)) == token
    }

    /// Tells the runner that its turn is over for this thread, if it still waits.
    pub fn call_due(&self, token: usize) {
        self.change_own(token, |wanted| wanted | DUE);
    }

    /// Waits no longer.
    pub fn withdraw(&self, token: usize) {
        self.change_own(token, |wanted| wanted & ROUND);
    }

    /// Asks the runner for a full round.
    pub fn want_round(&self) {
        self.wanted.fetch_or(ROUND, Ordering::Relaxed);
    }

    /// Whether a full round was asked for since the last call.
    pub fn take_round(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) & ROUND != 0
            && self.wanted.fetch_and(!ROUND, Ordering::Relaxed) & ROUND != 0
    }

    /// Changes the word, if this thread waits.
    fn change_own(&self, token: usize, to: impl Fn(usize) -> usize) {
        loop {
            let wanted = self.wanted.load(Ordering::Relaxed);
            if waiter(wanted) != token || self.change_wanted(wanted, to(wanted)) {
                return;
            }
        }
    }

    fn change_wanted(&self, from: usize, to: usize) -> bool {
        self.wanted.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_holder_at_a_time_and_each_release_counts() {
        let lock = TurnLock::default();
        let free = lock.epoch();
        assert!(lock.try_lock());
        let held = lock.epoch();
        assert!(!lock.try_lock() && !lock.try_lock_marked() && held != free);
        lock.unlock();
        assert!(![free, held].contains(&lock.epoch()));
        assert!(lock.try_lock_marked() && !lock.try_lock());
        lock.unlock();
        // The lock works on when the count has wrapped.
        lock.line.word.store(u32::MAX, Ordering::Relaxed);
        assert!(!lock.try_lock());
        lock.unlock();
        assert!(lock.epoch() == 0 && lock.try_lock());
    }

    #[test]
    fn a_turn_goes_to_the_thread_that_waits() {
        let (lock, [a, b, c]) = (TurnLock::default(), [4, 8, 12]);
        assert!(!lock.is_others_turn(a) && !lock.is_wanted());
        lock.begin_turn(a);
        assert!(!lock.is_others_turn(a) && lock.is_others_turn(b));
        lock.hand_over();
        assert!(!lock.is_others_turn(a), "no thread waits for it");
        assert!(lock.try_want(b) && !lock.try_want(c) && lock.is_wanted());
        assert!(lock.waits(b) && !lock.waits(c));
        assert!(!lock.is_due() && !lock.must_yield(false) && lock.must_yield(true));
        lock.call_due(c);
        assert!(!lock.is_due(), "another thread's word");
        lock.call_due(b);
        assert!(lock.is_due() && lock.must_yield(false) && lock.waits(b));
        assert!(!lock.try_want(c), "b waits");
        lock.hand_over();
        assert!(lock.is_others_turn(a) && !lock.is_others_turn(b) && lock.is_handed_over());
        assert!(!lock.waits(b) && !lock.is_wanted());
        lock.begin_turn(b);
        assert!(!lock.is_handed_over() && lock.is_others_turn(a) && !lock.is_others_turn(b));
        assert!(!lock.is_due() && !lock.must_yield(true), "a new turn");
        lock.call_due(b);
        assert!(!lock.is_wanted(), "b waits no longer");
    }

    #[test]
    fn a_thread_that_gives_up_is_not_waited_for() {
        let (lock, [a, b, c]) = (TurnLock::default(), [4, 8, 12]);
        lock.begin_turn(a);
        assert!(lock.try_want(b));
        lock.withdraw(c);
        assert!(lock.waits(b), "another thread's word");
        lock.call_due(b);
        lock.withdraw(b);
        assert!(!lock.is_wanted() && !lock.is_due());
        lock.hand_over();
        assert!(!lock.is_others_turn(a) && lock.try_want(c));
    }

    #[test]
    fn a_round_is_asked_for_beside_a_turn() {
        let (lock, [a, b]) = (TurnLock::default(), [4, 8]);
        lock.begin_turn(a);
        assert!(!lock.take_round());
        lock.want_round();
        lock.want_round();
        assert!(lock.is_wanted() && lock.must_yield(false) && !lock.waits(b));
        lock.hand_over();
        assert!(!lock.is_others_turn(a), "no thread waits for it");
        assert!(lock.try_want(b) && lock.waits(b));
        lock.hand_over();
        assert!(lock.is_others_turn(a) && lock.is_wanted());
        assert!(lock.take_round() && !lock.take_round() && !lock.is_wanted());
        lock.want_round();
        assert!(lock.try_want(a));
        lock.withdraw(a);
        assert!(!lock.waits(a) && lock.take_round());
    }
}
