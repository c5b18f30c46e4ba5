//! A thread that spins gives its core to other threads, of which one may be its peer.
//!
//! The thread yields. On a quiet machine a yield takes less than a microsecond. On a busy machine a
//! yield puts the thread behind all threads that compute, for milliseconds each time, and its peer
//! does the same. A sleep keeps the thread's claim to the core, and the peer runs meanwhile. So
//! after a yield that took long, the thread sleeps briefly instead, for a while.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use crate::clock::now_ns;
use crate::soft::SoftEngine;

/// Consecutive empty polls after which a spinning program yields: some 20 µs with a socket, 2 µs
/// with links.
pub(in crate::soft) const IDLE_POLLS: u32 = 64;

/// Empty polls after which the program yields once if some peers are processes of this host, which
/// may wait for this core: some 0.7 µs. An answer from another core takes half of that. The program
/// does not yield more often: a thread that yields may get little time on a busy machine.
const IDLE_POLLS_LOCAL: u32 = 32;

/// Empty polls after which the program yields, again and again, if it reaches all peers over a
/// router: some 0.5 µs. The router's worker has to run before anything can come, and where cores
/// are few it waits for this one.
const IDLE_POLLS_RELAYED: u32 = 4;

/// Time of a yield from which on other threads compute on this core. A peer that works for its turn
/// and yields takes less.
const AWAY_NS: u64 = 1_000_000;
/// Sleeps before a yield is tried again: some 20 ms.
const SLEEPS: u32 = 256;
/// The length of a sleep, to which the system adds its timer slack of 50 us.
const SLEEP: Duration = Duration::from_micros(20);

#[derive(Default)]
pub(in crate::soft) struct Aside {
    /// Sleeps left; 0: the thread yields.
    sleeps: AtomicU32,
}

impl Aside {
    /// Gives the core away.
    #[cold]
    #[inline(never)]
    pub(in crate::soft) fn stand(&self) {
        self.stand_with(now_ns, std::thread::yield_now, || std::thread::sleep(SLEEP));
    }

    #[inline(always)]
    fn stand_with(&self, now: impl Fn() -> u64, yields: impl FnOnce(), sleep: impl FnOnce()) {
        let sleeps = self.sleeps.load(Ordering::Relaxed);
        if sleeps > 0 {
            self.sleeps.store(sleeps - 1, Ordering::Relaxed);
            return sleep();
        }
        let before = now();
        yields();
        if now() - before > AWAY_NS {
            self.sleeps.store(SLEEPS, Ordering::Relaxed);
        }
    }
}

/// Data: polls that find nothing.
impl SoftEngine {
    /// Notes a poll of the program. After work, the program drives the engine again. After many
    /// polls in vain it yields now and then: it may spin on the very core that its peer needs.
    #[inline(always)]
    pub(in crate::soft) fn note_poll(&self, worked: bool) {
        if worked {
            self.polls.idle.store(0, Ordering::Relaxed);
            if self.helper_on.load(Ordering::Relaxed) {
                self.helper.sticky.store(false, Ordering::Relaxed);
            }
            return;
        }
        self.note_vain_poll();
    }

    /// [`SoftEngine::note_poll`] in vain.
    #[inline(always)]
    pub(in crate::soft) fn note_vain_poll(&self) {
        let idle = self.polls.idle.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.idle.store(idle, Ordering::Relaxed);
        if idle.is_multiple_of(IDLE_POLLS)
            || idle == IDLE_POLLS_LOCAL && self.has_local_peers.load(Ordering::Relaxed)
        {
            self.polls.aside.stand();
        } else if idle.is_multiple_of(IDLE_POLLS_RELAYED) && self.is_relayed.load(Ordering::Relaxed)
        {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn beside_threads_that_compute_it_sleeps_for_a_while_and_tries_again() {
        let (aside, now) = (Aside::default(), Cell::new(0));
        let (yields, sleeps) = (Cell::new(0), Cell::new(0));
        let stand = |yield_ns: u64| {
            let yielded = || {
                yields.set(yields.get() + 1);
                now.set(now.get() + yield_ns);
            };
            aside.stand_with(|| now.get(), yielded, || sleeps.set(sleeps.get() + 1));
        };
        // On a quiet machine it yields each time.
        (0..1000).for_each(|_| stand(AWAY_NS));
        assert_eq!((yields.get(), sleeps.get()), (1000, 0));
        for round in 1..=2 {
            stand(AWAY_NS + 1);
            (0..SLEEPS).for_each(|_| stand(0));
            assert_eq!((yields.get(), sleeps.get()), (1000 + round, round * SLEEPS));
        }
        stand(0);
        assert_eq!(yields.get(), 1003, "it tries again");
    }
}
