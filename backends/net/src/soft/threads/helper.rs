//! The helper thread: runs the engine while the program does not.
//!
//! The helper sleeps on the sockets, a timer and an event. While the program polls (within the last
//! [`TAKE_OVER_NS`]), it leaves the sockets to the program and only reads the clock, less often the
//! longer the program polls. So two threads never spin for one message. Once the polls stop, it
//! runs the engine until no work is left. A program that polls memory, and only now and then a CQ,
//! would delay the helper again and again. So a helper that has found work twice in a row between
//! polls keeps the engine until a poll finds work itself.
//!
//! A thread of the program that sleeps on a completion channel does the same where there is no
//! helper ([`super::channels`]).

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::clock::now_ns;
use crate::soft::rounds::limits::Round;
use crate::soft::threads::linger::Linger;
use crate::soft::SoftEngine;
use crate::threads::{no_thread, thread, HelperSignals};
use crate::wait::Waiter;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::sleep;
use std::os::fd::RawFd;

/// Time without a poll after which the helper takes over.
const TAKE_OVER_NS: u64 = 100_000;
/// While the program polls, each look of the helper costs the program some 16 µs if both share a
/// core. So the interval of looks doubles up to the first of these values. Then it grows with the
/// time for which the program has polled ([`LOOK_PART`]), up to the second.
const LOOK_MAX_NS: [u64; 2] = [800_000, 12_800_000];
/// The interval of looks is the time for which the program has polled divided by this.
const LOOK_PART: u64 = 16;
/// After this many take-overs that found work, polls that find none no longer count.
const STICKY: u32 = 2;
/// Time that the helper looks for more work before it sleeps.
const LINGER_NS: u64 = 20_000;
/// Longest sleep of the helper, for as long a time after work.
const NAP_NS: u64 = 10_000_000;
/// Attempts at the lock before the helper sleeps: some microseconds.
const LOCK_TRIES: u32 = 256;
/// Time until the helper's next attempt at a lock whose holder does not run.
const LOCKED_NS: u64 = 20_000;

pub(in crate::soft) struct Helper {
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: AtomicBool,
    /// Keeps the engine although the program polls.
    pub(in crate::soft) sticky: AtomicBool,
    /// Latest end of the helper's sleep on everything; `AWAKE`: it does not sleep. Written under
    /// the engine's lock, except when the helper wakes by itself.
    asleep_until: AtomicU64,
    /// The helper must be woken, but only after the engine's lock is free: otherwise it would take
    /// this core from the lock's holder.
    wake_due: AtomicBool,
    /// The epoll sets that it sleeps on.
    waiter: Waiter,
}

/// [`Helper::asleep_until`] of a helper that runs, or that reads the clock because the program
/// polls.
const AWAKE: u64 = 0;

/// Why the helper does not sleep.
enum Awake {
    /// More work is left than one round does.
    Work,
    /// Input came meanwhile.
    Input,
    /// The lock's holder does not run.
    Locked,
}

impl Helper {
    pub(in crate::soft) fn new() -> Result<Self> {
        Ok(Helper {
            thread: Mutex::new(None),
            stop: AtomicBool::new(false),
            sticky: AtomicBool::new(false),
            asleep_until: AtomicU64::new(AWAKE),
            wake_due: AtomicBool::new(false),
            waiter: Waiter::new()?,
        })
    }

    /// Interrupts its sleep.
    pub(in crate::soft) fn wake(&self) {
        self.waiter.notify();
    }
}

/// The interval of looks that follows `look`, once the program has polled for `polled`.
fn next_look(look: u64, polled: u64) -> u64 {
    let [first, second] = LOOK_MAX_NS;
    (2 * look).min(first.max(polled / LOOK_PART)).min(second)
}

/// Waiting: the helper thread, and threads that run the engine in its place.
impl SoftEngine {
    /// Starts the helper. Starting it twice is no error.
    ///
    /// # Errors
    /// [`Error::Os`]: no thread could be made.
    pub(in crate::soft) fn helper_start(&self) -> Result<()> {
        let mut slot = self.helper.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_some() {
            return Ok(());
        }
        self.helper.stop.store(false, Ordering::Release);
        self.channels.driver.take_for_helper(|| self.helper.wake());
        let device: *const SoftEngine = self;
        // SAFETY: the device stays where it is until `close`, which joins the thread first.
        let device: &'static SoftEngine = unsafe { &*device };
        let masked = HelperSignals::take();
        let thread =
            thread("gdrc-helper", 256 << 10).spawn(move || device.helper_main()).map_err(no_thread);
        drop(masked);
        *slot = Some(thread.inspect_err(|_| self.channels.driver.release())?);
        self.helper_on.store(true, Ordering::SeqCst);
        // From now on only events make the program's descriptor readable.
        self.waiter.attach_io(false)
    }

    /// Stops the helper and waits for its end. Without a helper it does nothing.
    pub(in crate::soft) fn helper_stop(&self) {
        let mut slot = self.helper.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = slot.take() else { return };
        self.helper.stop.store(true, Ordering::Release);
        self.helper.wake();
        let _ = thread.join();
        self.helper_on.store(false, Ordering::SeqCst);
        let _ = self.waiter.attach_io(true);
        self.channels.driver.release();
    }

    /// The last checks before the helper sleeps on everything. Returns the time at which it must
    /// wake, `at_most` or earlier.
    fn fall_asleep(&self, at_most: u64) -> Result<u64, Awake> {
        let Some(mut held) = self.lock_within(LOCK_TRIES) else { return Err(Awake::Locked) };
        let blocked = held.port().is_blocked();
        if held.has_work() && !blocked {
            return Err(Awake::Work);
        }
        if self.announce(&mut held) {
            return Err(Awake::Input);
        }
        let next = held.next_timeout(now_ns()).map_or(at_most, |at| at.clamp(1, at_most));
        // From now on a round of the program wakes it if it must act.
        self.helper.asleep_until.store(next, Ordering::Relaxed);
        drop(held);
        // A post that found the lock taken left a mark, which is served first.
        if self.engine.shared().active.any() {
            self.helper.asleep_until.store(AWAKE, Ordering::Relaxed);
            return Err(Awake::Input);
        }
        Ok(next)
    }

    /// Whether a thread sleeps on the sockets, or may sleep. Called under the lock, under which a
    /// sleep is announced.
    pub(in crate::soft) fn may_sleep(&self) -> bool {
        self.sleeping.is_asleep(sleep::ANY)
            || self.helper.asleep_until.load(Ordering::Relaxed) != AWAKE
    }

    /// Whether there is no sleeping helper that a round would have to wake.
    #[inline(always)]
    pub(in crate::soft) fn is_helper_awake(&self) -> bool {
        self.helper.asleep_until.load(Ordering::Relaxed) == AWAKE
    }

    /// At the end of a round, under the lock: marks a sleeping helper to be woken, if something is
    /// due before it wakes, or if the program drives the engine now. (Input that the program took
    /// woke only the program.) Without a helper a thread of the program that sleeps is woken by its
    /// timer.
    #[inline]
    pub(in crate::soft) fn notify_helper(&self, g: &mut EngineGuard<'_>, now: u64, round: Round) {
        let until = self.helper.asleep_until.load(Ordering::Relaxed);
        if until == AWAKE {
            if self.sleeping.is_asleep(sleep::ANY) {
                self.wake_sleeper_by_timer(g, now);
            }
            return;
        }
        if round == Round::Full || g.next_timeout(now).is_some_and(|at| at < until) {
            self.helper.asleep_until.store(AWAKE, Ordering::Relaxed);
            self.helper.wake_due.store(true, Ordering::Relaxed);
        }
    }

    /// A thread that sleeps on the device, or the helper, wakes at a time or earlier. Called under
    /// the lock.
    #[cold]
    pub(in crate::soft) fn wake_by(&self, at: u64) {
        if self.helper.asleep_until.load(Ordering::Relaxed) > at {
            self.helper.asleep_until.store(AWAKE, Ordering::Relaxed);
            self.helper.wake_due.store(true, Ordering::Relaxed);
        } else if self.sleeping.is_asleep(sleep::ANY) && !self.helper_on.load(Ordering::Relaxed) {
            self.waiter.set_timer_by(at);
        }
    }

    /// After a round, while another thread of the program sleeps on the device: makes the sleeper
    /// wake for what is due before its own timer, because nobody else may run it. With a helper,
    /// the helper does.
    #[cold]
    fn wake_sleeper_by_timer(&self, g: &mut EngineGuard<'_>, now: u64) {
        if !self.helper_on.load(Ordering::Relaxed) {
            self.waiter.set_timer_by(g.next_timeout(now).unwrap_or(u64::MAX));
        }
    }

    /// Once the lock is free: wakes the helper if it is marked.
    #[inline]
    pub(in crate::soft) fn wake_helper_if_due(&self) {
        if self.helper.wake_due.load(Ordering::Relaxed)
            && self.helper.wake_due.swap(false, Ordering::Relaxed)
        {
            self.helper.wake();
        }
    }

    fn helper_main(&self) {
        let _ = self.drive(true, u64::MAX, &|| self.helper.stop.load(Ordering::Acquire));
    }

    /// A thread of the program is about to [drive](SoftEngine::drive) until a descriptor is
    /// readable, as a helper would.
    ///
    /// # Errors
    /// [`Error::Os`], [`Error::NoMemory`]: the descriptor cannot be watched.
    pub(in crate::soft) fn start_driving(&self, until: RawFd) -> Result<()> {
        if let Err(e) = self.helper.waiter.attach(until, true) {
            self.channels.driver.release();
            return Err(e);
        }
        // The program sleeps: there is no wait for more polls.
        self.polls.last_poll_ns.store(0, Ordering::Relaxed);
        self.helper_on.store(true, Ordering::SeqCst);
        let _ = self.waiter.attach_io(false);
        Ok(())
    }

    /// The thread has stopped driving. A thread that fell asleep on the program's descriptor
    /// meanwhile relied on this one, so its sleep is announced here.
    pub(in crate::soft) fn stop_driving(&self, until: RawFd) {
        let _ = self.helper.waiter.attach(until, false);
        self.helper_on.store(false, Ordering::SeqCst);
        let _ = self.waiter.attach_io(true);
        let mut held = self.lock_control();
        self.helper.asleep_until.store(AWAKE, Ordering::Relaxed);
        if self.sleeping.is_asleep(sleep::ANY) {
            if self.announce(&mut held) {
                self.waiter.notify();
            }
            self.waiter.set_timer_by(held.next_timeout(now_ns()).unwrap_or(u64::MAX));
        }
    }

    /// Runs the engine while the program does not, and sleeps in between, until `over` or `end`.
    /// `own`: on the helper's own thread, whose scheduling it may change.
    ///
    /// # Errors
    /// `Os(EINTR)`: a signal interrupted the sleep of a thread of the program.
    pub(in crate::soft) fn drive(
        &self,
        own: bool,
        end: u64,
        over: &dyn Fn() -> bool,
    ) -> Result<()> {
        let w = &self.helper.waiter;
        let (mut watching, mut look, mut since) = (false, TAKE_OVER_NS, now_ns());
        let (mut found, mut worked, mut taken) = (0, 0, 0);
        let (mut linger, mut gave) = (Linger::new(), 0);
        let mut outcome = Ok(());
        while !over() {
            let now = now_ns();
            if now >= end {
                break;
            }
            let last = self.polls.last_poll_ns.load(Ordering::Relaxed);
            let polled = now.saturating_sub(last) < TAKE_OVER_NS;
            if polled && !self.helper.sticky.load(Ordering::Relaxed) {
                if watching {
                    let _ = w.attach(self.waiter.io_fd(), false);
                    watching = false;
                    // A program that was only without a CPU for a moment goes on as before.
                    since = (since + LOOK_PART * (now - taken)).min(now);
                    // The helper received nothing since it took over, or the polls have found work.
                    if worked < taken || found >= STICKY {
                        found = 0;
                    }
                }
                w.set_timer(Some((last + look).min(end)));
                look = next_look(look, now - since);
                if !w.sleep_and_drain() && !own {
                    outcome = Err(Error::Os(libc::EINTR));
                    break;
                }
                continue;
            }
            look = TAKE_OVER_NS;
            if !watching {
                let _ = w.attach(self.waiter.io_fd(), true);
                (watching, taken) = (true, now);
            }
            if self.try_round(Some(now)) > 0 {
                linger.note_work(now.saturating_sub(gave));
                found += 1;
                (worked, gave) = (now, now);
                if found >= STICKY {
                    self.helper.sticky.store(true, Ordering::Relaxed);
                }
                continue;
            }
            let rested = now.saturating_sub(worked);
            if own && rested < LINGER_NS && linger.try_lingering() {
                gave = now;
                std::thread::yield_now();
                continue;
            }
            if own {
                linger.note_vain();
            }
            // While work comes it wakes at intervals, so that rounds need not wake it for the usual
            // timers.
            match self.fall_asleep(if rested < NAP_NS { end.min(now + NAP_NS) } else { end }) {
                Ok(next) => w.set_timer_by(next),
                Err(Awake::Work) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(Awake::Input) => continue,
                Err(Awake::Locked) => w.set_timer(Some(now_ns() + LOCKED_NS)),
            }
            let woken = w.sleep_and_drain();
            self.helper.asleep_until.store(AWAKE, Ordering::Relaxed);
            if !woken && !own {
                outcome = Err(Error::Os(libc::EINTR));
                break;
            }
        }
        if watching {
            let _ = w.attach(self.waiter.io_fd(), false);
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_soon_after_polling_began_and_seldom_after_it_went_on() {
        let (mut look, mut polled, mut looks) = (TAKE_OVER_NS, 0, 0);
        while polled < 1_000_000_000 {
            polled += look;
            looks += 1;
            look = next_look(look, polled);
            assert!(look <= LOOK_MAX_NS[0].max(polled / LOOK_PART), "{look} after {polled}");
        }
        assert_eq!(look, LOOK_MAX_NS[1]);
        assert!((100..150).contains(&looks), "{looks} looks in a second");
    }
}
