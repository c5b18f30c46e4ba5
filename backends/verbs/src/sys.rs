//! System calls: an epoll set, an eventfd, the clock.

use gdrcore_core::error::{Error, Result};
use std::os::fd::RawFd;

/// The error of the last failed call of this thread.
fn last_error() -> Error {
    // SAFETY: the thread's own errno.
    Error::from_errno(unsafe { *libc::__errno_location() })
}

fn check(rc: i32) -> Result<i32> {
    if rc < 0 {
        Err(last_error())
    } else {
        Ok(rc)
    }
}

/// A descriptor that is closed when dropped.
pub struct Fd(RawFd);

impl Fd {
    /// The number.
    pub fn raw(&self) -> RawFd {
        self.0
    }

    /// An epoll set.
    pub fn epoll() -> Result<Fd> {
        // SAFETY: no pointers.
        check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).map(Fd)
    }

    /// An eventfd, non-blocking.
    pub fn event() -> Result<Fd> {
        // SAFETY: no pointers.
        check(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).map(Fd)
    }

    /// Opens a file for reading.
    pub fn file(path: &core::ffi::CStr) -> Result<Fd> {
        // SAFETY: a terminated path.
        check(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) }).map(Fd)
    }

    /// Reads at most `to` bytes.
    pub fn read(&self, to: &mut [u8]) -> Result<usize> {
        // SAFETY: `to` is writable for its length.
        let n = unsafe { libc::read(self.0, to.as_mut_ptr().cast(), to.len()) };
        usize::try_from(n).map_err(|_| last_error())
    }

    /// Adds a descriptor to an epoll set; readable means ready.
    pub fn watch(&self, fd: RawFd) -> Result<()> {
        let mut ev = libc::epoll_event { events: libc::EPOLLIN as u32, u64: fd as u64 };
        // SAFETY: `ev` lives through the call.
        check(unsafe { libc::epoll_ctl(self.0, libc::EPOLL_CTL_ADD, fd, &mut ev) }).map(drop)
    }

    /// Sleeps on an epoll set, at most `timeout_ms` (negative: for ever). Returns true if one of
    /// its descriptors is readable.
    ///
    /// # Errors
    /// `Os(EINTR)`: a signal came.
    pub fn sleep(&self, timeout_ms: i32) -> Result<bool> {
        let mut ev = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        check(unsafe { libc::epoll_wait(self.0, &mut ev, 1, timeout_ms) }).map(|n| n > 0)
    }

    /// Makes an eventfd readable.
    pub fn raise(&self) {
        let one = 1u64;
        // SAFETY: eight bytes of a live integer. A full counter is readable already.
        unsafe { libc::write(self.0, (&raw const one).cast(), 8) };
    }

    /// Makes an eventfd unreadable.
    pub fn lower(&self) {
        let mut n = 0u64;
        // SAFETY: room for eight bytes; the descriptor is non-blocking.
        unsafe { libc::read(self.0, (&raw mut n).cast(), 8) };
    }
}

/// Sleeps until one of two descriptors is readable, at most `timeout_ms` (negative: for ever).
/// Returns true if the second one is.
///
/// # Errors
/// `Os(EINTR)`: a signal came.
pub fn sleep_on(fds: [RawFd; 2], timeout_ms: i32) -> Result<bool> {
    let mut asked = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: two entries, which live through the call.
    check(unsafe { libc::poll(asked.as_mut_ptr(), 2, timeout_ms) })?;
    Ok(asked[1].revents != 0)
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: ours alone, and not used after this.
        unsafe { libc::close(self.0) };
    }
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is writable; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Whether every page of a range is mapped.
pub fn is_mapped(addr: u64, length: u64) -> bool {
    // SAFETY: no precondition.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let first = addr & !(page - 1);
    let at = core::ptr::with_exposed_provenance_mut(first as usize);
    // SAFETY: MS_ASYNC touches nothing, it only looks whether there are mappings.
    unsafe { libc::msync(at, (addr - first).saturating_add(length) as usize, libc::MS_ASYNC) == 0 }
}
