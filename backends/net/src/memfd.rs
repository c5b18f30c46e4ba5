//! Memory as a file that other processes may map: memfds with seals.

use crate::signals::without_signals;
use crate::sys::{check, stat, Fd};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use std::os::fd::RawFd;

/// Seals that fix the size of a file, so that no page vanishes under its readers, and that forbid
/// further seals.
pub(crate) const FIXED_SIZE: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// A memfd of `len` bytes with these seals. The pages of the first `allocated` are allocated now: a
/// page that is missing later would raise SIGBUS.
///
/// # Errors
/// [`Error::NoMemory`], [`Error::Os`]: those of memfd_create, ftruncate, fallocate and fcntl.
pub(crate) fn sealed_memfd(name: &core::ffi::CStr, len: usize, allocated: usize) -> Result<Fd> {
    // SAFETY: the name is a C string; the call keeps nothing of it.
    let fd = Fd::from_call(unsafe {
        libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    })?;
    // SAFETY: no pointers.
    let sized = without_signals(|| unsafe {
        check(libc::ftruncate(fd.raw(), len as libc::off_t))?;
        check(libc::fallocate(fd.raw(), 0, 0, allocated as libc::off_t))
    });
    sized.map_err(|e| match e {
        Error::Os(libc::EFBIG) => {
            let name = name.to_string_lossy();
            refuse!(
                Os(libc::EFBIG),
                "{name}: {len} bytes are more than a file may have (`ulimit -f`, RLIMIT_FSIZE)"
            )
        }
        e => e,
    })?;
    // SAFETY: no pointers.
    check(unsafe { libc::fcntl(fd.raw(), libc::F_ADD_SEALS, FIXED_SIZE) })?;
    Ok(fd)
}

/// Bytes of a memfd; `None`: it lacks one of these seals, or is no memory.
pub(crate) fn sealed_len(fd: RawFd, wanted: i32) -> Option<u64> {
    // SAFETY: no pointers.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    let sealed = seals >= 0 && seals & wanted == wanted;
    stat(fd).ok().filter(|_| sealed).and_then(|s| u64::try_from(s.st_size).ok())
}
