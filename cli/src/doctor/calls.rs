//! System calls that are tried, and limits.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The errno of a call that failed.
type Outcome = Result<(), i32>;

fn outcome(result: i64) -> Outcome {
    if result < 0 {
        return Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    Ok(())
}

/// The same for a call that makes a descriptor.
fn made(fd: i64) -> Result<OwnedFd, i32> {
    outcome(fd)?;
    // SAFETY: the system made it for this call alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// A socket.
///
/// # Errors
/// The errno.
pub fn socket(family: i32, kind: i32, protocol: i32) -> Result<OwnedFd, i32> {
    // SAFETY: no pointers.
    made(i64::from(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) }))
}

pub fn udp() -> Outcome {
    socket(libc::AF_INET, libc::SOCK_DGRAM, 0).map(drop)
}

pub fn unix() -> Outcome {
    socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0).map(drop)
}

pub fn netlink() -> Outcome {
    socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE).map(drop)
}

pub fn memfd() -> Outcome {
    // SAFETY: a C string; the call keeps nothing of it.
    let fd = unsafe { libc::memfd_create(c"doctor".as_ptr(), libc::MFD_CLOEXEC) };
    made(i64::from(fd)).map(drop)
}

pub fn eventfd() -> Outcome {
    // SAFETY: no pointers.
    made(i64::from(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) })).map(drop)
}

pub fn pidfd() -> Outcome {
    // SAFETY: no pointers.
    made(unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0u32) }).map(drop)
}

pub fn vm_read() -> Outcome {
    let (from, mut to) = ([1u8; 8], [0u8; 8]);
    let of = |at: *mut u8| libc::iovec { iov_base: at.cast(), iov_len: 8 };
    let (own, other) = (of(to.as_mut_ptr()), of(from.as_ptr().cast_mut()));
    // SAFETY: this process's own memory; only `to` is written.
    outcome(unsafe { libc::process_vm_readv(libc::getpid(), &own, 1, &other, 1, 0) } as i64)
}

/// Sets an option of a socket to a number.
///
/// # Errors
/// The errno.
pub fn set_option(fd: &impl AsRawFd, level: i32, name: i32, value: i32) -> Outcome {
    let at: *const i32 = &value;
    // SAFETY: `at` leads to a number of this length.
    outcome(i64::from(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, at.cast(), size_of::<i32>() as u32)
    }))
}

/// Whether an option of a socket can be read.
///
/// # Errors
/// The errno.
pub fn has_option(fd: &impl AsRawFd, level: i32, name: i32) -> Outcome {
    let (mut value, mut len) = ([0u8; 8], 8u32);
    // SAFETY: `value` has `len` bytes.
    outcome(i64::from(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, value.as_mut_ptr().cast(), &mut len)
    }))
}

/// The soft limit of a resource; `u64::MAX`: none.
pub fn limit(resource: libc::__rlimit_resource_t) -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call fills in a struct of its type.
    if unsafe { libc::getrlimit(resource, &mut limit) } != 0 {
        return libc::RLIM_INFINITY;
    }
    limit.rlim_cur
}

/// The effective user.
pub fn uid() -> u32 {
    // SAFETY: no precondition.
    unsafe { libc::geteuid() }
}

/// Whether this user may make names in a folder.
pub fn may_write(folder: &std::path::Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(folder.as_os_str().as_bytes()) else { return false };
    // SAFETY: a C string.
    unsafe {
        libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK | libc::X_OK, libc::AT_EACCESS)
            == 0
    }
}
