//! A thread that sleeps until it is woken. Signal handlers and holders of the engine's lock may
//! wake it.
//!
//! It runs once more at the end of the process. The thread that calls `exit` cannot do that work:
//! it may be in a signal handler that interrupted the program anywhere, with any lock held. If this
//! thread waits for such a lock, the process ends after a delay.

use crate::verb_result::last_error;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use core::time::Duration;
use gdrcore_core::{Error, Result};
use gdrcore_net::threads::{no_thread, thread, HelperSignals};

/// Time that the end of a process waits for the last run.
const EXIT_MS: u32 = 200;

/// A thread of the process. A child of fork begins without it.
pub struct Worker {
    /// The descriptor on which the thread sleeps, or −1.
    fd: AtomicI32,
    /// The process that has the thread, or 0.
    owner: AtomicI32,
    last: AtomicBool,
}

impl Worker {
    /// Without a thread.
    pub const fn new() -> Self {
        Worker { fd: AtomicI32::new(-1), owner: AtomicI32::new(0), last: AtomicBool::new(false) }
    }

    /// Whether this process has started it.
    pub fn is_started(&self) -> bool {
        self.owner.load(Ordering::Acquire) == pid()
    }

    /// Starts the thread; one caller at a time. The argument of `work`: whether this is the last
    /// run.
    ///
    /// # Errors
    /// The system's: no descriptor, no thread.
    pub fn start(&'static self, name: &str, work: impl Fn(bool) + Send + 'static) -> Result<()> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(last_error());
        }
        let masked = HelperSignals::take();
        let started = thread(name, 256 << 10).spawn(move || self.run(fd, work));
        drop(masked);
        if let Err(e) = started {
            // SAFETY: ours, and nobody else knows it.
            unsafe { libc::close(fd) };
            return Err(no_thread(e));
        }
        self.fd.store(fd, Ordering::Release);
        self.owner.store(pid(), Ordering::Release);
        Ok(())
    }

    fn run(&self, fd: c_int, work: impl Fn(bool)) {
        loop {
            let mut n = 0u64;
            // SAFETY: room for eight bytes.
            if unsafe { libc::read(fd, (&raw mut n).cast(), 8) } < 0
                && last_error() != Error::Os(libc::EINTR)
            {
                return;
            }
            let last = self.last.load(Ordering::Acquire);
            work(last);
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

    /// For `atexit`: starts the last run and waits for its end, for a bounded time.
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
    use std::time::Instant;

    #[test]
    fn it_works_when_woken_and_once_more_at_the_end() {
        static WORKER: Worker = Worker::new();
        static TURNS: AtomicU32 = AtomicU32::new(0);
        static LAST: AtomicU32 = AtomicU32::new(0);
        WORKER.wake();
        WORKER.finish();
        assert!(!WORKER.is_started());
        WORKER
            .start("test", |last| {
                TURNS.fetch_add(1, Ordering::SeqCst);
                LAST.fetch_add(last.into(), Ordering::SeqCst);
            })
            .unwrap();
        assert!(WORKER.is_started());
        WORKER.wake();
        let turns = |n| wait_for(60, "a turn", || TURNS.load(Ordering::SeqCst) >= n);
        turns(1);
        WORKER.finish();
        // It waits for the last run, but not for ever: on a busy machine that may come later.
        turns(2);
        assert_eq!((TURNS.load(Ordering::SeqCst), LAST.load(Ordering::SeqCst)), (2, 1));
    }

    #[test]
    fn the_end_does_not_wait_for_ever() {
        static WORKER: Worker = Worker::new();
        WORKER.start("test", |_| std::thread::sleep(Duration::from_secs(3600))).unwrap();
        let began = Instant::now();
        WORKER.finish();
        assert!(began.elapsed() < limit(60));
    }
}
