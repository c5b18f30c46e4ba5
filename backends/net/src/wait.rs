//! Descriptors to sleep on.
//!
//! A [`Waiter`] has two epoll sets. The inner one (io) holds the sockets. The outer one (user) is
//! what a program polls. It holds a timer, an event and, while no other thread drives the sockets,
//! the io set. A helper thread has a waiter of its own and attaches the same io set to it. Packets
//! wake the waiter that has attached the set, and no other.

use crate::clock::{end_of, ms_until, now_ns};
use crate::sys::{check, errno, eventfd, lower, raise, Fd};
use gdrcore_core::error::Result;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU64, Ordering};

/// Readable when a socket is (while attached), when the timer expires, or after [`Waiter::notify`].
/// Any thread.
#[derive(Debug)]
pub struct Waiter {
    user: Fd,
    io: Fd,
    event: Fd,
    timer: Fd,
    /// The last setting of the timer; saves the system call when nothing changes.
    timer_ns: AtomicU64,
}

/// Result of a look before a sleep ([`Waiter::sleep_until`]).
pub struct PreSleepCheck {
    /// The awaited event has come.
    pub found: bool,
    /// There is work, so the thread must not sleep yet.
    pub work: bool,
}

/// The timer is off.
const OFF: u64 = u64::MAX;

impl Waiter {
    /// A waiter with nothing attached and its timer off.
    ///
    /// # Errors
    /// `Os(EMFILE)` or `NoMemory`.
    pub fn new() -> Result<Waiter> {
        // SAFETY: the calls take no pointers.
        let user = Fd::from_call(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: as above.
        let io = Fd::from_call(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        let event = eventfd(0)?;
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: as above.
        let timer = Fd::from_call(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        let w = Waiter { user, io, event, timer, timer_ns: AtomicU64::new(OFF) };
        control(w.user.raw(), libc::EPOLL_CTL_ADD, w.event.raw(), libc::EPOLLIN)?;
        control(w.user.raw(), libc::EPOLL_CTL_ADD, w.timer.raw(), libc::EPOLLIN)?;
        Ok(w)
    }

    /// The descriptor for the program's own poll loop: readable means "call progress".
    #[inline]
    pub fn user_fd(&self) -> RawFd {
        self.user.raw()
    }

    /// The set of sockets; itself pollable.
    #[inline]
    pub fn io_fd(&self) -> RawFd {
        self.io.raw()
    }

    /// Adds a socket to the io set.
    ///
    /// # Errors
    /// `Os(EEXIST)` if it is there already.
    pub fn add_socket(&self, fd: RawFd) -> Result<()> {
        control(self.io.raw(), libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN)
    }

    /// Removes a socket from the io set.
    ///
    /// # Errors
    /// `Os(ENOENT)` if it is not there.
    pub fn remove_socket(&self, fd: RawFd) -> Result<()> {
        control(self.io.raw(), libc::EPOLL_CTL_DEL, fd, 0)
    }

    /// Sets whether to wake also when the socket can be written (after a full send buffer).
    ///
    /// # Errors
    /// `Os(ENOENT)` if the socket is not in the io set.
    pub fn want_write(&self, fd: RawFd, on: bool) -> Result<()> {
        let events = if on { libc::EPOLLIN | libc::EPOLLOUT } else { libc::EPOLLIN };
        control(self.io.raw(), libc::EPOLL_CTL_MOD, fd, events)
    }

    /// Adds the io set to the user descriptor (`true`), or removes it. Repeating it is no error.
    ///
    /// # Errors
    /// `NoMemory`, or `Os(ENOSPC)` at the user's limit of watches.
    pub fn attach_io(&self, on: bool) -> Result<()> {
        self.attach(self.io.raw(), on)
    }

    /// As [`Waiter::attach_io`], for the io set of another waiter (or any descriptor).
    ///
    /// # Errors
    /// As [`Waiter::attach_io`].
    pub fn attach(&self, fd: RawFd, on: bool) -> Result<()> {
        let op = if on { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_DEL };
        match control(self.user.raw(), op, fd, libc::EPOLLIN) {
            Err(_) if matches!(errno(), libc::EEXIST | libc::ENOENT) => Ok(()),
            other => other,
        }
    }

    /// Wakes at `deadline_ns` of CLOCK_MONOTONIC, at once if that is past; `None` switches the
    /// timer off. One thread at a time (the one that holds the engine). Cost: one system call, none
    /// if nothing changes.
    pub fn set_timer(&self, deadline_ns: Option<u64>) {
        let at = deadline_ns.map_or(OFF, |t| t.clamp(1, OFF - 1));
        if self.timer_ns.swap(at, Ordering::AcqRel) == at {
            return;
        }
        let ns = if at == OFF { 0 } else { at };
        let value = libc::timespec {
            tv_sec: (ns / 1_000_000_000) as _,
            tv_nsec: (ns % 1_000_000_000) as _,
        };
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let spec = libc::itimerspec { it_interval: zero, it_value: value };
        // SAFETY: `spec` lives through the call; a null old value is allowed. The call fails only
        // for bad arguments.
        unsafe {
            libc::timerfd_settime(
                self.timer.raw(),
                libc::TFD_TIMER_ABSTIME,
                &spec,
                core::ptr::null_mut(),
            )
        };
    }

    /// Wakes at `deadline_ns` or earlier; `u64::MAX`: never. An earlier timer stays.
    pub fn set_timer_by(&self, deadline_ns: u64) {
        if self.timer_ns.load(Ordering::Acquire) > deadline_ns {
            self.set_timer(Some(deadline_ns));
        }
    }

    /// Makes the user descriptor readable until [`Waiter::drain`]. Async-signal-safe. Cost: one
    /// system call.
    pub fn notify(&self) {
        raise(self.event.raw());
    }

    /// Resets the event and the expired timer. Packets stay until they are received.
    pub fn drain(&self) {
        lower(self.event.raw());
        self.drain_timer();
    }

    fn drain_timer(&self) {
        let mut n = 0u64;
        // SAFETY: room for eight bytes; the descriptor is non-blocking.
        let rc = unsafe { libc::read(self.timer.raw(), (&raw mut n).cast(), 8) };
        if rc == 8 {
            // An expired timer is off: the same deadline set again must reach the kernel again.
            self.timer_ns.store(OFF, Ordering::Release);
        }
    }

    /// Sleeps until the user descriptor is readable, and resets the cause, as [`Waiter::drain`]
    /// does. Returns false after a signal.
    pub fn sleep_and_drain(&self) -> bool {
        let mut ready = [0; 8];
        let n = wait_for(self.user.raw(), &mut ready, -1);
        for fd in &ready[..n] {
            if *fd == self.event.raw() {
                lower(self.event.raw());
            } else if *fd == self.timer.raw() {
                self.drain_timer();
            }
        }
        n > 0
    }

    /// Sleeps until the user descriptor is readable, at most `timeout_ms` (negative: no limit).
    /// Returns false after the timeout or a signal.
    pub fn sleep(&self, timeout_ms: i32) -> bool {
        self.sleep_or_signal(timeout_ms) == Ok(true)
    }

    /// Sleeps until `look` finds the awaited event, at most `timeout_ms` (negative: no limit).
    /// `look` runs at once, and after each sleep; it returns whether it has found the event, and
    /// whether there is work, for which it is called again without a sleep. Returns false after the
    /// timeout.
    ///
    /// # Errors
    /// Those of `look`; `Os(EINTR)`: a signal came.
    pub fn sleep_until(
        &self,
        timeout_ms: i32,
        mut look: impl FnMut() -> Result<PreSleepCheck>,
    ) -> Result<bool> {
        let end = end_of(timeout_ms);
        loop {
            let PreSleepCheck { found, work } = look()?;
            if found {
                return Ok(true);
            }
            let now = now_ns();
            if now >= end {
                return Ok(false);
            }
            if !work {
                self.sleep_or_signal(ms_until(end, now))?;
            }
        }
    }

    /// As [`Waiter::sleep`], but a signal is an error.
    ///
    /// # Errors
    /// `Os(EINTR)`: a signal came.
    pub fn sleep_or_signal(&self, timeout_ms: i32) -> Result<bool> {
        let mut ev = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        check(unsafe { libc::epoll_wait(self.user.raw(), &mut ev, 1, timeout_ms) }).map(|n| n > 0)
    }
}

/// Adds a descriptor to an epoll set: readable means ready.
///
/// # Errors
/// As `epoll_ctl`.
pub(crate) fn watch(set: RawFd, fd: RawFd) -> Result<()> {
    control(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN)
}

/// Removes a descriptor from an epoll set.
pub(crate) fn unwatch(set: RawFd, fd: RawFd) {
    let _ = control(set, libc::EPOLL_CTL_DEL, fd, 0);
}

/// The descriptors of an epoll set that are ready now, as many as `ready` has room for. Cost: one
/// system call.
pub(crate) fn poll_set(set: RawFd, ready: &mut [RawFd; 8]) -> usize {
    wait_for(set, ready, 0)
}

/// As [`poll_set`], but waits until one is ready, or for `timeout_ms`.
fn wait_for(set: RawFd, ready: &mut [RawFd; 8], timeout_ms: i32) -> usize {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
    // SAFETY: room for eight events.
    let n = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 8, timeout_ms) };
    let n = usize::try_from(n).unwrap_or(0);
    for (fd, event) in ready.iter_mut().zip(&events[..n]) {
        *fd = event.u64 as RawFd;
    }
    n
}

fn control(set: RawFd, op: i32, fd: RawFd, events: i32) -> Result<()> {
    let mut ev = libc::epoll_event { events: events as u32, u64: fd as u64 };
    // SAFETY: `ev` lives through the call.
    check(unsafe { libc::epoll_ctl(set, op, fd, &mut ev) }).map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_testkit::patience::limit_ms;
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;
    use std::sync::Arc;

    #[test]
    fn an_event_wakes_until_drained() {
        let w = Waiter::new().unwrap();
        assert!(!w.sleep(0));
        w.notify();
        w.notify();
        assert!(w.sleep(0) && w.sleep(0));
        w.drain();
        assert!(!w.sleep(0));
    }

    #[test]
    fn another_thread_wakes_a_sleeper() {
        let w = Arc::new(Waiter::new().unwrap());
        let w2 = w.clone();
        let t = std::thread::spawn(move || w2.sleep(limit_ms(60)));
        std::thread::sleep(std::time::Duration::from_millis(20));
        w.notify();
        assert!(t.join().unwrap());
    }

    #[test]
    fn the_timer_wakes_at_its_time_and_again_when_set_again() {
        let w = Waiter::new().unwrap();
        let at = now_ns() + 20_000_000;
        w.set_timer(Some(at));
        w.set_timer(Some(at));
        assert!(!w.sleep(0) || now_ns() >= at);
        assert!(w.sleep(limit_ms(60)));
        assert!(now_ns() >= at);
        w.drain();
        assert!(!w.sleep(0));
        w.set_timer(Some(at));
        assert!(w.sleep(limit_ms(60)), "a deadline in the past wakes at once");
        w.drain();
        w.set_timer(Some(now_ns() + 5_000_000));
        w.set_timer(None);
        assert!(!w.sleep(30));
        w.set_timer(Some(u64::MAX));
        w.set_timer(Some(0));
        assert!(w.sleep(limit_ms(60)));
    }

    #[test]
    fn packets_wake_the_waiter_that_attached_the_sockets() {
        let user = Waiter::new().unwrap();
        let helper = Waiter::new().unwrap();
        let sock = UdpSocket::bind("127.0.0.1:0").unwrap();
        user.add_socket(sock.as_raw_fd()).unwrap();
        user.attach_io(true).unwrap();
        user.attach_io(true).unwrap();
        sock.send_to(b"x", sock.local_addr().unwrap()).unwrap();
        assert!(user.sleep(limit_ms(60)));
        user.drain();
        assert!(user.sleep(0), "a packet stays until received");
        // The helper takes over.
        user.attach_io(false).unwrap();
        user.attach_io(false).unwrap();
        helper.attach(user.io_fd(), true).unwrap();
        assert!(!user.sleep(0));
        assert!(helper.sleep(limit_ms(60)));
        let mut b = [0; 8];
        sock.recv(&mut b).unwrap();
        assert!(!helper.sleep(0));
        // An empty send buffer is writable.
        user.want_write(sock.as_raw_fd(), true).unwrap();
        assert!(helper.sleep(limit_ms(60)));
        user.want_write(sock.as_raw_fd(), false).unwrap();
        assert!(!helper.sleep(0));
        user.remove_socket(sock.as_raw_fd()).unwrap();
        assert!(user.remove_socket(sock.as_raw_fd()).is_err());
    }
}
