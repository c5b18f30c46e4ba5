//! Turns of the threads that share a device ([`gdrcore_core::turns`]): how long they are, how long
//! a thread waits for one, and when a poll that finds nothing leaves the engine to the thread that
//! works.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::clock::now_ns;
use crate::soft::rounds::rest::Rest;
use crate::soft::threads::aside::Aside;
use crate::soft::SoftEngine;
use crate::thread_token::token;
use gdrcore_core::turns::TurnLock;
use gdrcore_core::verbs::shared::{CqShared, VainPolls};

/// A turn ends when another thread has waited for this time. The change costs about a microsecond,
/// an eighth of a turn: ten cache lines move to the other core.
const TURN_NS: u64 = 8_000;
/// Longest wait of a thread for its turn; then it takes the lock without a turn.
const WAIT_NS: u64 = 2 * TURN_NS;
/// After this time a waiting thread checks whether the runner still works.
const CHECK_RUNNER_NS: u64 = 1_000;
/// A turn that was handed over begins within this time, or goes back. A cache line takes a quarter
/// of a microsecond between cores that share no cache, and five of them move one after another
/// before the new runner's first word is seen.
const BEGIN_NS: u64 = 4_000;

/// Interval at which a poll that stands back checks the runner: initial and maximum. Each check
/// takes the lock's cache line from the runner.
const STAND_BACK_NS: (u64, u64) = (256, 2_000);
/// After this time without a full round, polls that stand back ask the runner for one.
const ASK_FOR_ROUND_NS: u64 = 6_000;
/// After this time without that round, these polls run one themselves.
const OWN_ROUND_NS: u64 = 4_000;

/// Fields that polls write, on cache lines of their own: posts read the device's other fields.
#[repr(align(128))]
#[derive(Default)]
pub(in crate::soft) struct PollNotes {
    /// Polls in a row that found nothing.
    pub(in crate::soft) idle: AtomicU32,
    /// When a thread of the program last ran the engine; the helper leaves it alone for a while.
    pub(in crate::soft) last_poll_ns: AtomicU64,
    /// Decides how a spinning thread gives its core away.
    pub(in crate::soft) aside: Aside,
    /// When the engine was last found at rest.
    pub(in crate::soft) rest: Rest,
}

/// Waits for less than a microsecond.
fn pause() {
    for _ in 0..8 {
        core::hint::spin_loop();
    }
}

/// Spins until `done`, at most until `end_ns`. Returns whether `done` was met.
fn spin_until(end_ns: u64, done: impl Fn() -> bool) -> bool {
    loop {
        if done() {
            return true;
        }
        if now_ns() >= end_ns {
            return false;
        }
        pause();
    }
}

/// Waits for the turn of a thread at a lock.
///
/// Bounded by [`WAIT_NS`]; by [`BEGIN_NS`] or [`CHECK_RUNNER_NS`] if nobody else waits and the
/// runner does not work.
#[cold]
fn await_turn(turns: &TurnLock, token: usize) {
    let began = now_ns();
    let end = began + WAIT_NS;
    if turns.is_handed_over() && !spin_until(began + BEGIN_NS, || !turns.is_handed_over()) {
        // The thread to which the turn was handed over has gone.
        return;
    }
    let epoch = turns.epoch();
    if !spin_until(end, || turns.try_want(token)) {
        return;
    }
    let asked = now_ns();
    let gone = || !turns.waits(token);
    if spin_until(end.min(asked + CHECK_RUNNER_NS), gone) {
        return;
    }
    if turns.epoch() != epoch {
        if spin_until(end.min(asked + TURN_NS), gone) {
            return;
        }
        turns.call_due(token);
        if spin_until(end, gone) {
            return;
        }
    }
    turns.withdraw(token);
}

/// Action of a poll that finds nothing in another thread's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum OnEmptyPoll {
    /// Leaves the engine to that thread.
    StandBack,
    /// Asks that thread, which works but runs no full rounds, for one.
    Ask,
    /// Runs a round itself: that thread was asked, and has not run one.
    Round,
    /// Takes the turn: that thread does not work.
    Turn,
}

/// Decides the action of a poll in vain. Cost of standing back: a read of the clock, and at
/// intervals the lock's cache line.
fn choose_action(turns: &TurnLock, vain: &VainPolls, now: u64) -> OnEmptyPoll {
    if now < vain.look_at_ns.load(Ordering::Relaxed) {
        return OnEmptyPoll::StandBack;
    }
    let (epoch, rounds) = (turns.epoch(), turns.rounds());
    let works = vain.epoch.swap(epoch, Ordering::Relaxed) != epoch;
    let serves = vain.rounds.swap(rounds, Ordering::Relaxed) != rounds;
    let (least, most) = STAND_BACK_NS;
    if !works {
        vain.wait_ns.store(least, Ordering::Relaxed);
        return OnEmptyPoll::Turn;
    }
    let wait = vain.wait_ns.load(Ordering::Relaxed).clamp(least, most);
    vain.look_at_ns.store(now + wait, Ordering::Relaxed);
    vain.wait_ns.store(2 * wait, Ordering::Relaxed);
    let round_at = &vain.round_at_ns;
    if serves {
        vain.asked.store(false, Ordering::Relaxed);
        round_at.store(now + ASK_FOR_ROUND_NS, Ordering::Relaxed);
        return OnEmptyPoll::StandBack;
    }
    if now < round_at.load(Ordering::Relaxed) {
        return OnEmptyPoll::StandBack;
    }
    let asked = vain.asked.fetch_xor(true, Ordering::Relaxed);
    round_at.store(now + if asked { ASK_FOR_ROUND_NS } else { OWN_ROUND_NS }, Ordering::Relaxed);
    match asked {
        true => OnEmptyPoll::Round,
        false => OnEmptyPoll::Ask,
    }
}

/// Data: turns at the engine.
impl SoftEngine {
    /// Before an operation takes the lock: begins this thread's turn, after a wait if another
    /// thread has the turn. Returns this thread's token, for [`SoftEngine::after_turn`].
    #[inline(always)]
    pub(in crate::soft) fn before_turn(&self) -> usize {
        let token = token();
        if !self.engine.turns().is_turn_of(token) {
            self.take_turn(token);
        }
        token
    }

    #[cold]
    fn take_turn(&self, token: usize) {
        let turns = self.engine.turns();
        if turns.is_others_turn(token) {
            await_turn(turns, token);
        }
        turns.begin_turn(token);
    }

    /// After an operation, with the lock free. `vain`: it found nothing to do.
    #[inline(always)]
    pub(in crate::soft) fn after_turn(&self, token: usize, vain: bool) {
        if self.engine.turns().must_yield(vain) {
            self.end_turn(token, vain);
        }
    }

    #[cold]
    fn end_turn(&self, token: usize, vain: bool) {
        let turns = self.engine.turns();
        if turns.is_others_turn(token) {
            return;
        }
        if turns.take_round() {
            self.program_round();
        }
        if vain || turns.is_due() {
            turns.hand_over();
        }
    }

    /// Whether this thread must run a round for a poll of a CQ that finds nothing. Takes the turn
    /// if no other thread works. False: this thread has run a round, or leaves that to the other
    /// thread.
    #[inline(always)]
    pub(in crate::soft) fn turn_for_poll(&self, token: usize, cq: &CqShared) -> bool {
        self.engine.turns().is_turn_of(token) || self.poll_out_of_turn(token, cq)
    }

    #[cold]
    fn poll_out_of_turn(&self, token: usize, cq: &CqShared) -> bool {
        let turns = self.engine.turns();
        let way = match turns.is_others_turn(token) {
            true => choose_action(turns, &cq.beside.vain, now_ns()),
            false => OnEmptyPoll::Turn,
        };
        match way {
            OnEmptyPoll::Turn => {
                turns.begin_turn(token);
                return true;
            }
            OnEmptyPoll::StandBack => pause(),
            OnEmptyPoll::Ask => turns.want_round(),
            OnEmptyPoll::Round => {
                self.program_round();
                // The next check shows the work of the other thread alone.
                cq.beside.vain.epoch.store(turns.epoch(), Ordering::Relaxed);
                cq.beside.vain.rounds.store(turns.rounds(), Ordering::Relaxed);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operate(turns: &TurnLock, full: bool) {
        assert!(turns.try_lock());
        if full {
            turns.note_round();
        }
        turns.unlock();
    }

    #[test]
    fn polls_in_vain_stand_back_while_the_runner_works_and_serves() {
        let (turns, vain) = (TurnLock::default(), VainPolls::default());
        let mut now = 1_000_000;
        operate(&turns, true);
        assert_eq!(choose_action(&turns, &vain, now), OnEmptyPoll::StandBack);
        // Not looked at before its time.
        assert_eq!(choose_action(&turns, &vain, now + STAND_BACK_NS.0 - 1), OnEmptyPoll::StandBack);
        let mut looks = 0;
        for _ in 0..1000 {
            now += 100;
            operate(&turns, true);
            let before = vain.epoch.load(Ordering::Relaxed);
            assert_eq!(choose_action(&turns, &vain, now), OnEmptyPoll::StandBack);
            looks += u32::from(vain.epoch.load(Ordering::Relaxed) != before);
        }
        assert!((45..60).contains(&looks), "{looks} looks in 100 us, 2 us apart");
    }

    #[test]
    fn a_runner_that_stops_loses_its_turn_to_a_poll() {
        let (turns, vain) = (TurnLock::default(), VainPolls::default());
        operate(&turns, true);
        assert_eq!(choose_action(&turns, &vain, 0), OnEmptyPoll::StandBack);
        assert_eq!(choose_action(&turns, &vain, STAND_BACK_NS.0), OnEmptyPoll::Turn);
    }

    /// Polls for a millisecond beside a runner that works and, if it `answers`, runs a full round
    /// when asked. Returns the rounds that the polls asked for, and those that they ran.
    fn beside_posts(answers: bool) -> [u32; 2] {
        let (turns, vain) = (TurnLock::default(), VainPolls::default());
        let (mut counts, mut last) = ([0; 2], 0);
        for now in (0..1_000_000).step_by(50) {
            operate(&turns, answers && turns.take_round());
            let kind = match choose_action(&turns, &vain, now) {
                OnEmptyPoll::StandBack => continue,
                OnEmptyPoll::Ask => 0,
                OnEmptyPoll::Round => 1,
                OnEmptyPoll::Turn => panic!("at {now}: the runner works"),
            };
            let due = ASK_FOR_ROUND_NS + OWN_ROUND_NS + 2 * STAND_BACK_NS.1;
            assert!(counts == [0; 2] || now - last <= due, "{} ns without a round", now - last);
            (last, counts[kind]) = (now, counts[kind] + 1);
            if kind == 0 {
                turns.want_round();
            }
        }
        counts
    }

    #[test]
    fn beside_a_runner_without_full_rounds_polls_ask_for_them() {
        let [asked, run] = beside_posts(true);
        assert!((100..=170).contains(&asked) && run == 0, "{asked} {run}");
    }

    #[test]
    fn polls_run_the_rounds_that_the_runner_does_not() {
        let [asked, run] = beside_posts(false);
        assert!((60..=100).contains(&run) && asked.abs_diff(run) <= 1, "{asked} {run}");
    }

    #[test]
    fn a_thread_waits_for_a_turn_no_longer_than_it_must() {
        let turns = TurnLock::default();
        // A runner that does not work.
        assert!(turns.try_lock());
        turns.begin_turn(8);
        turns.unlock();
        await_turn(&turns, 4);
        assert!(!turns.is_wanted());
        // A turn that was handed over and is not begun.
        assert!(turns.try_want(12));
        turns.hand_over();
        await_turn(&turns, 4);
        assert!(!turns.is_wanted() && turns.is_others_turn(4));
        // A runner that works, and never hands over.
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if turns.try_lock() {
                        turns.unlock();
                    }
                }
            });
            turns.begin_turn(8);
            await_turn(&turns, 4);
            assert!(!turns.is_wanted());
            // A runner that hands over.
            let asks = scope.spawn(|| await_turn(&turns, 4));
            while !asks.is_finished() {
                turns.hand_over();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(!turns.is_wanted());
    }

    #[test]
    fn a_runner_hands_over_when_the_waiting_thread_says_that_its_time_has_come() {
        let turns = TurnLock::default();
        let stop = std::sync::atomic::AtomicBool::new(false);
        let end = now_ns() + 20_000_000_000;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if turns.try_lock() {
                        turns.unlock();
                    }
                    if turns.is_due() {
                        turns.hand_over();
                    }
                }
            });
            // A thread that does not run in its time gives up, and asks again.
            let mut handed_over = false;
            while !handed_over && now_ns() < end {
                turns.begin_turn(8);
                await_turn(&turns, 4);
                handed_over = !turns.is_others_turn(4);
            }
            stop.store(true, Ordering::Relaxed);
            assert!(handed_over);
        });
        assert!(!turns.is_wanted());
    }
}
