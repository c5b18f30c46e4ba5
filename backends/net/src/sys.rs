//! What every module here does with libc: errno to [`Error`], descriptors that close themselves.

use gdrcore_core::error::{Error, Result};
use std::os::fd::RawFd;

/// errno of the last failed call of this thread.
#[inline]
pub(crate) fn errno() -> i32 {
    // SAFETY: the pointer is the thread's own errno, valid as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

/// The [`Error`] of an errno.
pub(crate) fn error_of(errno: i32) -> Error {
    Error::from_errno(errno)
}

/// The [`Error`] of the last failed call.
pub(crate) fn last_error() -> Error {
    error_of(errno())
}

/// Turns the C convention (negative: see errno) into a result.
pub(crate) fn check(rc: i32) -> Result<i32> {
    if rc < 0 {
        Err(last_error())
    } else {
        Ok(rc)
    }
}

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub(crate) struct Fd(RawFd);

impl Fd {
    /// Owns the descriptor that a libc call returned, or reports why there is none.
    pub(crate) fn from_call(rc: i32) -> Result<Fd> {
        check(rc).map(Fd)
    }

    #[inline]
    pub(crate) fn raw(&self) -> RawFd {
        self.0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: the descriptor is ours alone and is not used after this.
        unsafe { libc::close(self.0) };
    }
}

/// What fstat says of a descriptor.
pub(crate) fn stat(fd: RawFd) -> Result<libc::stat> {
    // SAFETY: zeroes are a valid stat, and it lives through the call.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    check(unsafe { libc::fstat(fd, &mut stat) })?;
    Ok(stat)
}

/// Bytes of the memory that a descriptor stands for; `None`: it has not all of these seals, or is no memory.
pub(crate) fn sealed_len(fd: RawFd, wanted: i32) -> Option<u64> {
    // SAFETY: no pointers.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    let sealed = seals >= 0 && seals & wanted == wanted;
    stat(fd).ok().filter(|_| sealed).and_then(|s| u64::try_from(s.st_size).ok())
}

/// `setsockopt` of a plain value.
pub(crate) fn set_option<T: Copy>(fd: RawFd, level: i32, name: i32, value: T) -> Result<()> {
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    let rc = unsafe {
        libc::setsockopt(fd, level, name, (&raw const value).cast(), core::mem::size_of::<T>() as libc::socklen_t)
    };
    check(rc).map(|_| ())
}

/// `getsockopt` of an int.
#[cfg(test)]
pub(crate) fn get_option(fd: RawFd, level: i32, name: i32) -> Result<i32> {
    let mut value = 0i32;
    let mut len = core::mem::size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointers describe `value` and its length, both live through the call.
    let rc = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    check(rc).map(|_| value)
}
