//! A thread that sleeps until it is woken, a descriptor is readable or a time has come. Signal
//! handlers and holders of the engine's lock may wake it.
//!
//! The thread runs once more at the end of the process. The thread that calls `exit` cannot do that
//! work: it may be in a signal handler that interrupted the program at any place, with any lock
//! held. If the last run waits for such a lock, the process ends after a delay.

use crate::verb_result::last_error;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use core::time::Duration;
use gdrcore_core::{Error, Result};
use gdrcore_net::reason;
use gdrcore_net::threads::{no_thread, thread, HelperSignals};
use std::os::fd::RawFd;
use std::time::Instant;

/// Time for which the end of a process waits for the last run.
const EXIT_MS: u32 = 200;
/// The pause after a system call that was refused.
const AGAIN: Duration = Duration::from_millis(100);

/// Why the work runs.
pub struct Wakeup<'a> {
    /// The run is the last one.
    pub last: bool,
    /// The descriptors of the last [`Sleep`]; `revents` tells their events.
    pub ready: &'a [libc::pollfd],
}

/// The events that end the sleep after a run, in addition to [`HelperThread::wake`].
#[derive(Default)]
pub struct Sleep {
    /// Descriptors that become readable.
    pub readable: Vec<RawFd>,
    /// A time.
    pub until: Option<Instant>,
}

/// A thread of the process. A child of fork starts without it.
pub struct HelperThread {
    /// The descriptor on which the thread sleeps, or −1.
    fd: AtomicI32,
    /// The process that has the thread, or 0.
    owner: AtomicI32,
    last: AtomicBool,
}

impl HelperThread {
    /// Without a thread.
    pub const fn new() -> Self {
        HelperThread {
            fd: AtomicI32::new(-1),
            owner: AtomicI32::new(0),
            last: AtomicBool::new(false),
        }
    }

    /// Whether this process has started the thread.
    pub fn is_started(&self) -> bool {
        self.owner.load(Ordering::Acquire) == pid()
    }

    /// Starts the thread, unless this process has it.
    ///
    /// # Errors
    /// The system's: no descriptor, no thread.
    pub fn start(
        &'static self,
        name: &str,
        work: impl FnMut(&Wakeup<'_>) -> Sleep + Send + 'static,
    ) -> Result<()> {
        let (own, before) = (pid(), self.owner.load(Ordering::Acquire));
        let is_ours =
            || self.owner.compare_exchange(before, own, Ordering::AcqRel, Ordering::Relaxed);
        if before == own || is_ours().is_err() {
            return Ok(());
        }
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        // Set before the thread runs, so that no wake-up from now on is lost.
        self.fd.store(fd, Ordering::Release);
        let started = if fd < 0 {
            Err(last_error())
        } else {
            let masked = HelperSignals::take();
            let started = thread(name, 256 << 10).spawn(move || self.run(fd, work));
            drop(masked);
            started.map(drop).map_err(no_thread)
        };
        started.inspect_err(|_| {
            self.fd.store(-1, Ordering::Release);
            self.owner.store(0, Ordering::Release);
            // SAFETY: ours, if it is one, and nobody else knows it any more.
            unsafe { libc::close(fd) };
        })
    }

    fn run(&self, wake: c_int, mut work: impl FnMut(&Wakeup<'_>) -> Sleep) {
        reason::install();
        let mut sleep = Sleep::default();
        loop {
            let fds = [wake].into_iter().chain(sleep.readable.iter().copied());
            let mut all: Vec<_> =
                fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
            let wait = sleep.until.map_or(-1, |at| {
                let left = at.saturating_duration_since(Instant::now()).as_millis();
                left.min(1 << 30) as c_int + 1
            });
            // SAFETY: the entries live through the call.
            let ready = unsafe { libc::poll(all.as_mut_ptr(), all.len() as libc::nfds_t, wait) };
            if all[0].revents & libc::POLLNVAL != 0 {
                // The program has closed all its descriptors, this one too.
                return;
            }
            if ready < 0 {
                if last_error() != Error::Os(libc::EINTR) {
                    // The limit of descriptors is lower by now.
                    std::thread::sleep(AGAIN);
                }
                continue;
            }
            let mut n = 0u64;
            // SAFETY: room for eight bytes.
            unsafe { libc::read(wake, (&raw mut n).cast(), 8) };
            let last = self.last.load(Ordering::Acquire);
            sleep = work(&Wakeup { last, ready: &all[1..] });
            if last {
                return self.last.store(false, Ordering::Release);
            }
        }
    }

    /// Wakes it. Safe in a signal handler. Cost: a system call.
    pub fn wake(&self) {
        let fd = self.fd.load(Ordering::Acquire);
        if fd >= 0 {
            // SAFETY: no pointers. It fails only for a counter of 2^64 − 2, which is readable
            // anyway.
            unsafe { libc::eventfd_write(fd, 1) };
        }
    }

    /// For `atexit`: starts the last run, and waits a limited time for its end.
    pub fn finish(&self) {
        if !self.is_started() {
            return;
        }
        self.last.store(true, Ordering::Release);
        self.wake();
        for _ in 0..10 * EXIT_MS {
            if !self.last.load(Ordering::Acquire) {
                return;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

fn pid() -> libc::pid_t {
    // SAFETY: takes nothing, never fails.
    unsafe { libc::getpid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;
    use gdrcore_testkit::patience::{limit, wait_for};
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn it_works_when_woken_and_once_more_at_the_end() {
        static WORKER: HelperThread = HelperThread::new();
        static RUNS: AtomicU32 = AtomicU32::new(0);
        static LAST: AtomicU32 = AtomicU32::new(0);
        WORKER.wake();
        WORKER.finish();
        assert!(!WORKER.is_started());
        WORKER
            .start("test", |why| {
                RUNS.fetch_add(1, Ordering::SeqCst);
                LAST.fetch_add(why.last.into(), Ordering::SeqCst);
                Sleep::default()
            })
            .unwrap();
        assert!(WORKER.is_started());
        WORKER.wake();
        let runs = |n| wait_for(60, "a run", || RUNS.load(Ordering::SeqCst) >= n);
        runs(1);
        WORKER.finish();
        // The wait for the last run is limited, and on a busy machine the run may come later.
        runs(2);
        assert_eq!((RUNS.load(Ordering::SeqCst), LAST.load(Ordering::SeqCst)), (2, 1));
    }

    #[test]
    fn descriptors_and_a_time_end_a_sleep() {
        static WORKER: HelperThread = HelperThread::new();
        static READY: AtomicU32 = AtomicU32::new(0);
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let (ours, theirs) = UnixStream::pair().unwrap();
        WORKER
            .start("test", move |why| {
                let ready = why.ready.iter().any(|p| p.revents & libc::POLLIN != 0);
                READY.fetch_add(ready.into(), Ordering::SeqCst);
                RUNS.fetch_add(1, Ordering::SeqCst);
                if ready {
                    // No byte is left to read; a time remains to wake for.
                    (&theirs).read_exact(&mut [0]).unwrap();
                    return Sleep { until: Some(Instant::now()), ..Sleep::default() };
                }
                Sleep { readable: vec![theirs.as_raw_fd()], until: None }
            })
            .unwrap();
        WORKER.wake();
        wait_for(60, "the first run", || RUNS.load(Ordering::SeqCst) == 1);
        (&ours).write_all(b"x").unwrap();
        wait_for(60, "a run for the descriptor, and one for the time", || {
            RUNS.load(Ordering::SeqCst) == 3
        });
        assert_eq!(READY.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn the_end_does_not_wait_for_ever() {
        static WORKER: HelperThread = HelperThread::new();
        WORKER
            .start("test", |_| {
                std::thread::sleep(Duration::from_secs(3600));
                Sleep::default()
            })
            .unwrap();
        let began = Instant::now();
        WORKER.finish();
        assert!(began.elapsed() < limit(60));
    }
}
