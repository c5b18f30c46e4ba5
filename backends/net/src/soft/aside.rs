//! A thread that spins gives its core to who waits for it: maybe to its peer.
//!
//! It yields. On a quiet machine that takes less than a microsecond. On a busy one a thread that
//! yields goes behind all that compute, for milliseconds each time, and its peer does the same. A
//! thread that sleeps instead keeps its claim to the core, and the peer is served meanwhile. So
//! after a yield that took long it sleeps for a moment each time, for a while.

use core::sync::atomic::{AtomicU32, Ordering};
use core::time::Duration;

use crate::clock::now_ns;

/// If a yield takes longer, others compute on this core. A peer that works for its turn and yields
/// takes less.
const AWAY_NS: u64 = 1_000_000;
/// Sleeps before a yield is tried again: some 20 ms.
const SLEEPS: u32 = 256;
/// The length of one, to which the system adds its timer slack of 50 us.
const SLEEP: Duration = Duration::from_micros(20);

/// How a thread stands aside.
#[derive(Default)]
pub(super) struct Aside {
    /// Sleeps left; 0: it yields.
    sleeps: AtomicU32,
}

impl Aside {
    /// Gives the core away.
    #[cold]
    #[inline(never)]
    pub(super) fn stand(&self) {
        let sleeps = self.sleeps.load(Ordering::Relaxed);
        if sleeps > 0 {
            self.sleeps.store(sleeps - 1, Ordering::Relaxed);
            return std::thread::sleep(SLEEP);
        }
        let before = now_ns();
        std::thread::yield_now();
        if now_ns() - before > AWAY_NS {
            self.sleeps.store(SLEEPS, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicBool;
    use gdrcore_testkit::patience::deadline;
    use std::time::Instant;

    /// Stands aside until it sleeps the next time, or yields.
    fn until(aside: &Aside, sleeps: bool) {
        let end = deadline(10);
        while (aside.sleeps.load(Ordering::Relaxed) > 0) != sleeps {
            assert!(Instant::now() < end, "never: {sleeps}");
            aside.stand();
        }
    }

    #[test]
    fn beside_threads_that_compute_it_sleeps_for_a_while_and_tries_again() {
        let (aside, over) = (Aside::default(), AtomicBool::new(false));
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        std::thread::scope(|s| {
            for _ in 0..2 * cores {
                s.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        core::hint::spin_loop();
                    }
                });
            }
            let turns = std::panic::catch_unwind(core::panic::AssertUnwindSafe(|| {
                for _ in 0..2 {
                    until(&aside, true);
                    assert!(aside.sleeps.load(Ordering::Relaxed) == SLEEPS);
                    until(&aside, false);
                }
            }));
            over.store(true, Ordering::Relaxed);
            turns.unwrap_or_else(|e| std::panic::resume_unwind(e));
        });
    }
}
