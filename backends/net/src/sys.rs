//! Common parts of libc calls: errno as [`Error`], descriptors that close themselves.

use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

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

/// Allocates the pages of a shared mapping, so that no later access lacks memory. From Linux 5.14.
///
/// # Safety
/// `len` bytes from `p`, which begins a page, are mapped and writable.
pub(crate) unsafe fn populate(p: *mut u8, len: usize) -> Result<()> {
    // SAFETY: the caller's promise; the call changes no byte.
    check(unsafe { libc::madvise(p.cast(), len, libc::MADV_POPULATE_WRITE) }).map(drop)
}

/// A descriptor that is closed when dropped.
#[derive(Debug)]
pub(crate) struct Fd(OwnedFd);

impl Fd {
    /// Owns the descriptor that a libc call returned, or returns the error.
    pub(crate) fn from_call(rc: i32) -> Result<Fd> {
        // SAFETY: open, and nobody else's.
        check(rc).map(|fd| Fd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Another descriptor of the same file as `fd`, closed on exec.
    pub(crate) fn copy_of(fd: RawFd) -> Result<Fd> {
        // SAFETY: no pointers.
        Fd::from_call(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) })
    }

    #[inline]
    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<Fd> for OwnedFd {
    fn from(fd: Fd) -> OwnedFd {
        fd.0
    }
}

/// fstat of a descriptor.
pub(crate) fn stat(fd: RawFd) -> Result<libc::stat> {
    // SAFETY: zeroes are a valid stat, and it lives through the call.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    check(unsafe { libc::fstat(fd, &mut stat) })?;
    Ok(stat)
}

/// statx of a descriptor: what `wanted` (`STATX_*`) names; `None`: the kernel does not know it.
/// `flags`: `AT_STATX_*`.
pub(crate) fn statx(fd: RawFd, flags: i32, wanted: u32) -> Option<libc::statx> {
    // SAFETY: zeroes are a valid statx.
    let mut stat: libc::statx = unsafe { core::mem::zeroed() };
    let how = libc::AT_EMPTY_PATH | flags;
    // By number: musl has the function only since 1.2.4.
    // SAFETY: the path is a C string, and `stat` lives through the call.
    let rc =
        unsafe { libc::syscall(libc::SYS_statx, fd, c"".as_ptr(), how, wanted, &raw mut stat) };
    (rc == 0 && stat.stx_mask & wanted == wanted).then_some(stat)
}

/// fstatat of a name below a directory, without following a link.
pub(crate) fn stat_at(dir: RawFd, name: &core::ffi::CStr) -> Result<libc::stat> {
    // SAFETY: zeroes are a valid stat, and it lives through the call.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above; the name is a C string.
    check(unsafe { libc::fstatat(dir, name.as_ptr(), &mut stat, libc::AT_SYMLINK_NOFOLLOW) })?;
    Ok(stat)
}

/// A pidfd of a process; `None`: there is no such process, or no such call.
pub(crate) fn pidfd_open(pid: libc::pid_t) -> Option<Fd> {
    // SAFETY: no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0u32) };
    Fd::from_call(i32::try_from(fd).ok()?).ok()
}

/// Makes an eventfd readable, or adds a token to one that counts. A full one is readable already.
pub(crate) fn raise(fd: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes of a live integer.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

/// Takes back the value that [`raise`] has written, or one token.
pub(crate) fn lower(fd: RawFd) {
    let mut n = 0u64;
    // SAFETY: room for eight bytes; the descriptor is non-blocking.
    unsafe { libc::read(fd, (&raw mut n).cast(), 8) };
}

/// A non-blocking eventfd, with further flags of eventfd(2).
///
/// # Errors
/// [`Error::Os`].
pub(crate) fn eventfd(flags: i32) -> Result<Fd> {
    // SAFETY: no pointers.
    Fd::from_call(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | flags) })
}

/// Whether one of these descriptors has one of the events, or a hangup. Does not wait.
pub(crate) fn any_ready<const N: usize>(fds: [(RawFd, i16); N]) -> bool {
    let mut asked = fds.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
    // SAFETY: the array has N entries and lives through the call.
    unsafe { libc::poll(asked.as_mut_ptr(), N as libc::nfds_t, 0) != 0 }
}

/// Waits up to `ms` milliseconds (-1: for ever) until a descriptor has one of the events, or a
/// hangup. False: the time is over, or a signal came.
pub(crate) fn wait_ready(fd: RawFd, events: i16, ms: i32) -> bool {
    let mut asked = libc::pollfd { fd, events, revents: 0 };
    // SAFETY: one entry, which lives through the call.
    unsafe { libc::poll(&mut asked, 1, ms) == 1 }
}

/// `setsockopt` of a plain value.
pub(crate) fn set_option<T: Copy>(fd: RawFd, level: i32, name: i32, value: T) -> Result<()> {
    // SAFETY: the pointer and the length describe `value`, which lives through the call.
    let rc = unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            (&raw const value).cast(),
            core::mem::size_of::<T>() as libc::socklen_t,
        )
    };
    check(rc).map(|_| ())
}

/// Attaches a classic BPF program; `name` is one of the options that do so. The kernel copies the
/// instructions.
pub(crate) fn set_filter(fd: RawFd, name: i32, code: &[libc::sock_filter]) -> Result<()> {
    /// [`libc::sock_fprog`] without padding: the kernel gets no uninitialised byte.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Program {
        len: u16,
        zero: [u16; 3],
        filter: *const libc::sock_filter,
    }
    const _: () = assert!(
        core::mem::size_of::<Program>() == core::mem::size_of::<libc::sock_fprog>()
            && core::mem::offset_of!(Program, filter)
                == core::mem::offset_of!(libc::sock_fprog, filter)
    );
    let len = u16::try_from(code.len());
    let len = len.map_err(|_| refuse!(Invalid, "program: {} instructions", code.len()))?;
    set_option(fd, libc::SOL_SOCKET, name, Program { len, zero: [0; 3], filter: code.as_ptr() })
}

/// A value that a socket option may have.
///
/// # Safety
/// All bytes are valid values.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: integers, and a struct of integers.
unsafe impl Plain for i32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above.
unsafe impl<const N: usize> Plain for [u32; N] {}
// SAFETY: as above.
unsafe impl Plain for libc::ucred {}

/// `getsockopt` of a plain value.
pub(crate) fn get_option<T: Plain>(fd: RawFd, level: i32, name: i32) -> Result<T> {
    // SAFETY: zeroes are a value, as all bytes are.
    let mut value: T = unsafe { core::mem::zeroed() };
    let mut len = core::mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: the pointers describe `value` and its length, both live through the call.
    let rc = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &mut len) };
    check(rc).map(|_| value)
}
