//! Memory as a file that other processes may map: memfds with seals, dma-bufs.

use crate::signals::without_signals;
use crate::sys::{check, stat, statx, Fd};
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

/// Bytes of a memfd; `None`: it lacks one of these seals, or is no memory. Waits for no other
/// process, whatever the descriptor is of.
pub(crate) fn sealed_len(fd: RawFd, wanted: i32) -> Option<u64> {
    // SAFETY: no pointers.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    if seals < 0 || seals & wanted != wanted {
        // The server of a FUSE file would be asked for its size, and may never answer.
        return None;
    }
    stat(fd).ok().and_then(|s| u64::try_from(s.st_size).ok())
}

/// `DMA_BUF_MAGIC` of linux/magic.h.
const DMA_BUF_MAGIC: u32 = 0x444d_4142;

/// The type of a descriptor's file system (fstatfs(2)). The server of a FUSE file is asked.
pub(crate) fn file_system(fd: RawFd) -> Result<u32> {
    // SAFETY: zeroes are a valid statfs, which lives through the call.
    unsafe {
        let mut about: libc::statfs = core::mem::zeroed();
        check(libc::fstatfs(fd, &mut about))?;
        // The types of the field differ by libc.
        Ok(about.f_type as u32)
    }
}

/// The type of a descriptor's file (`S_IFMT`). No other process is asked.
pub(crate) fn file_type(fd: RawFd) -> Option<u32> {
    let stat = statx(fd, libc::AT_STATX_DONT_SYNC, libc::STATX_TYPE)?;
    Some(u32::from(stat.stx_mode) & libc::S_IFMT)
}

/// Whether a descriptor is of a dma-buf. No other process is asked: like all of the kernel's own,
/// its file has no type, and a FUSE server's has one.
pub(crate) fn of_dma_buf(fd: RawFd) -> bool {
    file_type(fd) == Some(0) && file_system(fd) == Ok(DMA_BUF_MAGIC)
}
