//! Polls that find completions. They run no round of the engine, which would cost more than a short
//! operation; but now and then such a poll reads the clock, and runs a round if there was none for
//! a while.
//!
//! Without that, a program whose own posts complete at once would never read packets of its peers,
//! since its polls always find completions. And the helper, which notices a program by its rounds,
//! would take over the engine again and again.

use core::sync::atomic::Ordering;

use crate::clock::now_ns;
use crate::soft::SoftEngine;
use gdrcore_core::engine::Engine;
use gdrcore_core::turns::TurnLock;
use gdrcore_core::verbs::shared::{CqShared, FoundPolls};
use gdrcore_core::verbs::types::Wc;

/// Most polls between two looks at the clock.
const EVERY: u32 = 256;
/// Shortest and longest time between two looks. If more than [`EVERY`] polls come in the shortest
/// time, a look comes earlier.
const CLOCK_GAP_NS: [u64; 2] = [25_000, 50_000];
/// A program that polls so often between two looks drives the engine. The helper leaves it alone
/// until the next look.
const BUSY: u32 = 8;
/// Time without a full round after which a poll runs one. A round costs as much as twenty short
/// operations.
const STARVED_NS: u64 = 200_000;

/// Result of a look at the clock.
#[derive(PartialEq, Eq, Debug)]
struct ClockReading {
    /// The program drives the engine.
    busy: bool,
    /// Nobody has run a full round for [`STARVED_NS`].
    starves: bool,
}

/// Looks at the clock for polls of a CQ. The rarer the polls, the fewer of them pass until the next
/// look.
fn read_clock(turns: &TurnLock, found: &FoundPolls, now: u64) -> ClockReading {
    let every = found.every.load(Ordering::Relaxed).clamp(1, EVERY);
    let took = now.saturating_sub(found.looked_ns.load(Ordering::Relaxed));
    found.looked_ns.store(now, Ordering::Relaxed);
    let next = match took {
        _ if took < CLOCK_GAP_NS[0] => (2 * every).min(EVERY),
        _ if took > CLOCK_GAP_NS[1] => (u64::from(every) * CLOCK_GAP_NS[0] / took).max(1) as u32,
        _ => every,
    };
    found.every.store(next, Ordering::Relaxed);
    found.left.store(next, Ordering::Relaxed);
    let rounds = turns.rounds();
    let served = found.rounds.load(Ordering::Relaxed) != rounds;
    let starves = !served && now >= found.round_at_ns.load(Ordering::Relaxed);
    if served || starves {
        found.rounds.store(rounds, Ordering::Relaxed);
        found.round_at_ns.store(now + STARVED_NS, Ordering::Relaxed);
    }
    ClockReading { busy: every >= BUSY && took < 2 * CLOCK_GAP_NS[1], starves }
}

/// Data: polls that find completions.
impl SoftEngine {
    /// Takes completions of a CQ that has some.
    #[inline(never)]
    pub(in crate::soft) fn take_completions_of(&self, cq: &CqShared, wc: &mut [Wc]) -> Option<u32> {
        let left = &cq.beside.found.left;
        match left.load(Ordering::Relaxed) {
            0 => self.look_and_take(cq, wc),
            polls => {
                left.store(polls - 1, Ordering::Relaxed);
                Engine::take_waiting(cq, wc)
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn look_and_take(&self, cq: &CqShared, wc: &mut [Wc]) -> Option<u32> {
        let now = now_ns();
        let look = read_clock(self.engine.turns(), &cq.beside.found, now);
        let helped = self.helper_on.load(Ordering::Relaxed);
        if helped && look.busy {
            self.polls.last_poll_ns.store(now, Ordering::Relaxed);
            self.helper.sticky.store(false, Ordering::Relaxed);
        }
        // A program that is not busy leaves its rounds to the helper.
        if look.starves && (look.busy || !helped) {
            self.try_round(Some(now));
        }
        Engine::take_completions(cq, wc)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::DeviceName;
    use crate::soft::test_engine::TestEngine;
    use gdrcore_core::verbs::types::Handle;
    use gdrcore_testkit::patience::deadline;
    use std::time::{Duration, Instant};

    /// Looks of polls every `poll_ns`, beginning at one second and lasting `for_ns`, with a full
    /// round every `round_ns`.
    fn looks(poll_ns: u64, for_ns: u64, round_ns: u64) -> Vec<(u64, ClockReading)> {
        let (turns, found) = (TurnLock::default(), FoundPolls::default());
        let (mut now, mut round_at, mut seen) = (1_000_000_000, 1_000_000_000, Vec::new());
        let end = now + for_ns;
        while now < end {
            if now >= round_at {
                assert!(turns.try_lock());
                turns.note_round();
                turns.unlock();
                round_at += round_ns;
            }
            let left = found.left.load(Ordering::Relaxed);
            match left.checked_sub(1) {
                Some(rest) => found.left.store(rest, Ordering::Relaxed),
                None => seen.push((now, read_clock(&turns, &found, now))),
            }
            now += poll_ns;
        }
        seen
    }

    const LONG: u64 = 100_000_000;

    #[test]
    fn polls_look_at_the_clock_seldom_and_before_the_helper_loses_its_patience() {
        for poll_ns in [50, 200, 1_700, 3_000] {
            let seen = looks(poll_ns, LONG, u64::MAX / 2);
            let late = &seen[10..];
            assert!(late.iter().all(|(_, look)| look.busy), "{poll_ns}: {late:?}");
            let gaps = late.windows(2).map(|w| w[1].0 - w[0].0);
            assert!(gaps.clone().all(|gap| gap < 2 * CLOCK_GAP_NS[1]), "{poll_ns}");
            let least = CLOCK_GAP_NS[0].min(u64::from(EVERY) * poll_ns);
            assert!(gaps.clone().all(|gap| gap >= least / 2), "{poll_ns}");
        }
    }

    #[test]
    fn a_program_that_polls_now_and_then_is_not_busy() {
        for poll_ns in [20_000, 60_000, 1_000_000] {
            let seen = looks(poll_ns, LONG, u64::MAX / 2);
            assert!(seen[10..].iter().all(|(_, look)| !look.busy), "{poll_ns}");
            // The program looks at the clock for each poll, or for every second.
            assert!(seen.len() as u64 >= LONG / poll_ns / 3, "{poll_ns}: {}", seen.len());
        }
    }

    #[test]
    fn polls_that_become_rare_look_at_the_clock_soon() {
        let (turns, found) = (TurnLock::default(), FoundPolls::default());
        found.every.store(EVERY, Ordering::Relaxed);
        found.looked_ns.store(1, Ordering::Relaxed);
        // Each poll took a millisecond.
        assert!(!read_clock(&turns, &found, 1 + 1_000_000 * u64::from(EVERY)).busy);
        assert_eq!(found.left.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_engine_without_rounds_starves_and_one_with_rounds_does_not() {
        let served = looks(1_000_000, LONG, STARVED_NS / 2);
        assert!(served[10..].iter().all(|(_, look)| !look.starves), "looks are further apart");
        for poll_ns in [50, 3_000, 60_000] {
            let seen = looks(poll_ns, LONG, u64::MAX / 2);
            let starved: Vec<u64> =
                seen[10..].iter().filter(|(_, look)| look.starves).map(|(now, _)| *now).collect();
            let gaps = || starved.windows(2).map(|w| w[1] - w[0]);
            assert!(gaps().all(|gap| (STARVED_NS..2 * STARVED_NS).contains(&gap)), "{poll_ns}");
            assert!(starved.len() as u64 >= LONG / STARVED_NS / 2, "{poll_ns}: {}", starved.len());
            let served = looks(poll_ns, LONG, STARVED_NS / 2);
            assert!(served[10..].iter().all(|(_, look)| !look.starves), "{poll_ns}");
        }
    }

    fn poll_until(dev: &SoftEngine, cq: Handle, between: Duration, mut done: impl FnMut() -> bool) {
        let (_, shared) = dev.engine.cq(cq).unwrap();
        let end = deadline(60);
        while !done() {
            assert!(Instant::now() < end, "never");
            assert_eq!(dev.take_completions_of(shared, &mut []), Some(0));
            if !between.is_zero() {
                std::thread::sleep(between);
            }
        }
    }

    #[test]
    fn polls_run_the_rounds_that_nobody_runs() {
        let dev = TestEngine::open(&DeviceName::Loopback);
        let cq = dev.cq();
        for between in [Duration::ZERO, Duration::from_millis(1)] {
            let before = dev.engine.turns().rounds();
            poll_until(&dev, cq, between, || dev.engine.turns().rounds() != before);
        }
    }

    #[test]
    fn a_helper_leaves_the_engine_to_busy_polls_alone() {
        let dev = TestEngine::open(&DeviceName::Loopback);
        let cq = dev.cq();
        dev.helper_on.store(true, Ordering::Relaxed);
        dev.helper.sticky.store(true, Ordering::Relaxed);
        let before = dev.engine.turns().rounds();
        let mut polls = 0;
        poll_until(&dev, cq, Duration::from_millis(1), || {
            polls += 1;
            polls > 50
        });
        // A round would keep the helper from its work.
        assert_eq!(dev.engine.turns().rounds(), before);
        assert_eq!(dev.polls.last_poll_ns.load(Ordering::Relaxed), 0);
        assert!(dev.helper.sticky.load(Ordering::Relaxed));
        let began = now_ns();
        poll_until(&dev, cq, Duration::ZERO, || {
            dev.polls.last_poll_ns.load(Ordering::Relaxed) > began
                && !dev.helper.sticky.load(Ordering::Relaxed)
                && dev.engine.turns().rounds() != before
        });
        dev.helper_on.store(false, Ordering::Relaxed);
    }
}
