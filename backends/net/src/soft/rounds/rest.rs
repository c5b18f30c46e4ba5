//! Polls of an engine that is at rest: nothing comes from outside of it, nothing waits, and no
//! timer runs. Until a thread takes the lock or leaves a mark, a round would find nothing, so a
//! poll reads two words in its place.

use core::sync::atomic::{AtomicU32, Ordering};

use crate::soft::lock::EngineLock;
use crate::soft::threads::aside::IDLE_POLLS;
use crate::soft::{PortState, SoftEngine};
use gdrcore_core::turns::TurnLock;

/// When the engine was last found at rest.
///
/// Relaxed: the word is compared with the lock's word, which changes whenever a thread takes the
/// lock. A poll that reads an old word is like a poll that came earlier.
pub(in crate::soft) struct Rest {
    /// The epoch of the lock after the release that followed ([`TurnLock::epoch`]), which is even.
    /// Odd: the engine was not found at rest.
    epoch: AtomicU32,
}

impl Default for Rest {
    fn default() -> Rest {
        Rest { epoch: AtomicU32::new(1) }
    }
}

impl Rest {
    /// Notes that the lock's holder has found the engine at rest, and releases the lock next.
    fn begin(&self, turns: &TurnLock) {
        self.epoch.store(turns.epoch().wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether no thread has taken the lock since, and none waits for a turn or for a round. An
    /// outdated note is removed, because the lock's word has the same value again after 2^31
    /// releases.
    #[inline(always)]
    fn is_valid(&self, turns: &TurnLock) -> bool {
        let noted = self.epoch.load(Ordering::Relaxed);
        if noted & 1 != 0 {
            return false;
        }
        if noted != turns.epoch() {
            // A newer note of another thread may go, too: that costs a round.
            self.epoch.store(1, Ordering::Relaxed);
            return false;
        }
        !turns.is_wanted()
    }
}

impl PortState {
    /// Whether nothing can come from outside: there is no socket, no link and no router.
    #[inline(always)]
    fn has_no_input(&self) -> bool {
        self.net.is_none() && self.shm.is_none() && self.router.relay.is_none()
    }
}

/// Data: polls that find nothing.
impl SoftEngine {
    /// Notes whether the engine is at rest, after a round in vain and just before the release of
    /// the lock.
    #[inline(always)]
    pub(in crate::soft) fn note_rest(&self, held: &mut EngineLock<'_>) {
        if held.port().has_no_input() {
            self.note_rest_within(held);
        }
    }

    #[inline(never)]
    fn note_rest_within(&self, held: &mut EngineLock<'_>) {
        let (g, port) = held.parts();
        let now = port.schedule.now();
        let quiet = self.is_quiet(g, port, now);
        if quiet && held.next_timeout(now).is_none() {
            self.polls.rest.begin(self.engine.turns());
        }
    }

    /// Whether a poll of an empty CQ needs no round, because the engine is at rest. Notes the poll.
    /// One of [`IDLE_POLLS`] such polls runs a round all the same, and gives the core away. A
    /// helper that starts ends the rest by its rounds, and learns of polls from then on.
    #[inline(always)]
    pub(in crate::soft) fn skip_round_at_rest(&self) -> bool {
        if !self.polls.rest.is_valid(self.engine.turns()) || self.engine.shared().active.any() {
            return false;
        }
        let idle = self.polls.idle.load(Ordering::Relaxed).wrapping_add(1);
        if idle.is_multiple_of(IDLE_POLLS) {
            return false;
        }
        self.polls.idle.store(idle, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{DeviceName, Endpoint};
    use crate::soft::test_engine::TestEngine;
    use gdrcore_core::verbs::types::{Handle, Wc};
    use gdrcore_testkit::place::loopback;

    /// Full rounds that so many polls in vain run.
    fn rounds(dev: &SoftEngine, cq: Handle, polls: u32) -> u32 {
        let before = dev.engine.turns().rounds();
        for _ in 0..polls {
            assert_eq!(dev.quick_poll_cq(cq, &mut [Wc::default()]), Ok(0));
        }
        dev.engine.turns().rounds().wrapping_sub(before)
    }

    #[test]
    fn polls_of_an_engine_at_rest_run_a_round_now_and_then() {
        let dev = TestEngine::open(&DeviceName::Loopback);
        let cq = dev.cq();
        rounds(&dev, cq, 2 * IDLE_POLLS);
        assert_eq!(rounds(&dev, cq, 10 * IDLE_POLLS), 10);
    }

    #[test]
    fn a_thread_that_has_the_lock_or_leaves_a_mark_or_waits_ends_the_rest() {
        let dev = TestEngine::open(&DeviceName::Loopback);
        let cq = dev.cq();
        let turns = dev.engine.turns();
        type Call = fn(&SoftEngine);
        let calls: [(&str, Call); 4] = [
            ("the lock", |dev| drop(dev.try_lock())),
            ("a control call", |dev| _ = dev.counters()),
            ("a mark", |dev| dev.engine.shared().active.set(0)),
            ("a wish", |dev| dev.engine.turns().want_round()),
        ];
        for (what, call) in calls {
            rounds(&dev, cq, 2 * IDLE_POLLS);
            dev.polls.idle.store(0, Ordering::Relaxed);
            assert_eq!(rounds(&dev, cq, 2), 0, "it is at rest");
            call(&dev);
            assert!(rounds(&dev, cq, 2) > 0, "{what}");
            assert!(!dev.engine.shared().active.any() && !turns.is_wanted(), "{what}");
        }
    }

    #[test]
    fn an_engine_with_work_or_a_timer_or_a_socket_is_not_at_rest() {
        type Change = fn(&mut EngineLock<'_>);
        let changes: [(&str, Change); 2] = [
            ("work", |held| held.port().blocked = true),
            ("a timer", |held| held.transport.common.wheel.arm(0, u64::MAX / 2)),
        ];
        for (what, change) in changes {
            let dev = TestEngine::open(&DeviceName::Loopback);
            let cq = dev.cq();
            change(&mut dev.lock_control());
            assert_eq!(rounds(&dev, cq, 100), 100, "{what}");
        }
        let dev = TestEngine::open(&DeviceName::Soft(Endpoint::v4(loopback(8, 12), 4791)));
        assert_eq!(rounds(&dev, dev.cq(), 100), 100, "a socket");
    }
}
