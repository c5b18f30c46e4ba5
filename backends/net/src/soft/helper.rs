//! The helper thread: runs the engine while the program does not.
//!
//! It sleeps on the sockets, a timer and an event. While the program polls (within the last
//! [`TAKE_OVER_NS`]) it takes its hands off the sockets and only looks at the clock, so that never two
//! threads spin for one message, and rarer the longer the program polls; once the polls stop it runs the engine until
//! nothing is left to do. A program that polls memory and only now and then a CQ would make it hesitate for ever: when it found
//! work twice in a row between polls it stays in charge, until a poll finds work itself.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use super::progress::Round;
use super::SoftDevice;
use crate::clock::now_ns;
use crate::wait::Waiter;
use gdrcore_core::engine::Guard;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::sleep;

/// Without a poll for this long, the helper takes over.
const TAKE_OVER_NS: u64 = 100_000;
/// Each look costs the program some 16 µs of a core that both share. While it polls on they become rarer, down to this.
const LOOK_MAX_NS: u64 = 800_000;
/// Takings-over that found work, after which polls that find none no longer count.
const STICKY: u32 = 2;
/// After work it looks for more this long before it sleeps.
const LINGER_NS: u64 = 20_000;

/// The helper of a device.
pub(super) struct Slot {
    thread: Mutex<Option<JoinHandle<()>>>,
    stop: AtomicBool,
    /// It stays in charge although the program polls.
    pub(super) sticky: AtomicBool,
    /// It sleeps on everything there is, at most until then; `AWAKE`: it does not. Written under the engine's lock, but for its
    /// own waking.
    asleep_until: AtomicU64,
    /// What it sleeps on.
    waiter: Waiter,
}

/// [`Slot::asleep_until`] of a helper that runs, or looks at the clock because the program polls.
const AWAKE: u64 = 0;

/// Why the helper does not sleep.
enum Awake {
    /// There is work that could not be done in one round.
    Work,
    /// Something came meanwhile.
    Input,
}

impl Slot {
    pub(super) fn new() -> Result<Self> {
        Ok(Slot {
            thread: Mutex::new(None),
            stop: AtomicBool::new(false),
            sticky: AtomicBool::new(false),
            asleep_until: AtomicU64::new(AWAKE),
            waiter: Waiter::new()?,
        })
    }

    /// Makes it look again at once.
    pub(super) fn wake(&self) {
        self.waiter.notify();
    }
}

/// While it lives, threads that this one makes begin with the signal mask of a helper: the program's signals are for
/// the program's threads, but faults must get through whatever the program blocks, as vanished memory is one.
pub struct OwnSignals {
    before: libc::sigset_t,
}

impl OwnSignals {
    /// Takes the mask; dropping it puts the former one back.
    pub fn take() -> Self {
        // SAFETY: zeroes are valid for both sets, which live through the calls; the calls do not fail for them.
        unsafe {
            let mut mask: libc::sigset_t = core::mem::zeroed();
            let mut before: libc::sigset_t = core::mem::zeroed();
            libc::sigfillset(&mut mask);
            for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS] {
                libc::sigdelset(&mut mask, fault);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &mask, &mut before);
            OwnSignals { before }
        }
    }
}

impl Drop for OwnSignals {
    fn drop(&mut self) {
        // SAFETY: a whole set that this thread had before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut()) };
    }
}

impl SoftDevice {
    /// Starts the helper. Starting it twice is no error.
    ///
    /// # Errors
    /// [`Error::Os`]: no thread could be made.
    pub(super) fn helper_start(&self) -> Result<()> {
        let mut slot = self.helper.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_some() {
            return Ok(());
        }
        self.helper.stop.store(false, Ordering::Release);
        let device: *const SoftDevice = self;
        // SAFETY: the device stays where it is until `close`, which joins the thread first.
        let device: &'static SoftDevice = unsafe { &*device };
        let masked = OwnSignals::take();
        let thread = std::thread::Builder::new()
            .name("gdrc-helper".into())
            .stack_size(256 << 10)
            .spawn(move || device.helper_main())
            .map_err(|e| Error::Os(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        drop(masked);
        *slot = Some(thread);
        self.helper_on.store(true, Ordering::SeqCst);
        // From here on only events make the program's descriptor readable.
        self.waiter.attach_io(false)
    }

    /// Stops the helper and waits for its end. Stopping none is no error.
    pub(super) fn helper_stop(&self) {
        let mut slot = self.helper.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(thread) = slot.take() else { return };
        self.helper.stop.store(true, Ordering::Release);
        self.helper.wake();
        let _ = thread.join();
        self.helper_on.store(false, Ordering::SeqCst);
        let _ = self.waiter.attach_io(true);
    }

    /// The last looks of the helper before it sleeps on everything; returns when it must wake.
    fn fall_asleep(&self) -> Result<Option<u64>, Awake> {
        let mut held = self.lock_held();
        let blocked = held.port().is_blocked();
        if held.guard.has_work() && !blocked {
            return Err(Awake::Work);
        }
        if self.announce(&mut held) {
            return Err(Awake::Input);
        }
        let next = held.next_timeout(now_ns());
        // From here on a round of the program wakes it, if it must know.
        self.helper.asleep_until.store(next.unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        drop(held);
        // Who found the lock taken and left a mark is served first.
        if self.engine.shared().active.any() {
            self.helper.asleep_until.store(AWAKE, Ordering::Relaxed);
            return Err(Awake::Input);
        }
        Ok(next)
    }

    /// Whether somebody sleeps on the sockets, or did when last heard of. Under the lock, under which a sleep is announced.
    pub(super) fn may_sleep(&self) -> bool {
        self.sleeping.is_asleep(sleep::ANY) || self.helper.asleep_until.load(Ordering::Relaxed) != AWAKE
    }

    /// At the end of a round, under the lock: a helper that sleeps must know when there is something to do earlier than it
    /// will wake, and that the program drives the engine, since a bell or a packet that the program took woke nobody else.
    #[inline]
    pub(super) fn tell_helper(&self, g: &mut Guard<'_>, now: u64, round: Round) {
        let until = self.helper.asleep_until.load(Ordering::Relaxed);
        if until == AWAKE {
            return;
        }
        if round == Round::Full || g.next_timeout(now).is_some_and(|at| at < until) {
            self.helper.asleep_until.store(AWAKE, Ordering::Relaxed);
            self.helper.wake();
        }
    }

    fn helper_main(&self) {
        let w = &self.helper.waiter;
        let mut watching = false;
        let mut found = 0;
        let mut worked = 0;
        let mut look = TAKE_OVER_NS;
        while !self.helper.stop.load(Ordering::Acquire) {
            let now = now_ns();
            let last = self.last_poll_ns.load(Ordering::Relaxed);
            let polled = now.saturating_sub(last) < TAKE_OVER_NS;
            if polled && !self.helper.sticky.load(Ordering::Relaxed) {
                if watching {
                    let _ = w.attach(self.waiter.io_fd(), false);
                    watching = false;
                }
                w.set_timer(Some(last + look));
                look = (2 * look).min(LOOK_MAX_NS);
                w.sleep(-1);
                w.drain();
                continue;
            }
            look = TAKE_OVER_NS;
            if !watching {
                let _ = w.attach(self.waiter.io_fd(), true);
                watching = true;
            }
            if self.run_at(Round::Full, Some(now)) > 0 {
                found += 1;
                worked = now;
                if found >= STICKY {
                    self.helper.sticky.store(true, Ordering::Relaxed);
                }
                continue;
            }
            found = 0;
            if now.saturating_sub(worked) < LINGER_NS {
                // Between two bursts of a stream: to sleep and be woken costs both sides more than to look again.
                std::thread::yield_now();
                continue;
            }
            let next = match self.fall_asleep() {
                Ok(next) => next,
                Err(Awake::Work) => {
                    std::thread::yield_now();
                    continue;
                }
                Err(Awake::Input) => continue,
            };
            w.set_timer(next);
            w.sleep(-1);
            self.helper.asleep_until.store(AWAKE, Ordering::Relaxed);
            w.drain();
        }
        if watching {
            let _ = w.attach(self.waiter.io_fd(), false);
        }
    }
}
