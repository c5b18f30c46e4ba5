//! The receipts of ACKs that wait to leave through the port, in a file of the block's owner: what
//! the owner had accepted when it was killed.
//!
//! An owner that ends otherwise sends its ACKs and removes the file. A killed owner's file stays
//! for [`KEPT_S`] seconds after the first sweep that finds it, so that peers read it when their
//! requests have used up their retries.

use super::socket_dir::{open_dir, SocketDir};
use super::{lock, Holder, Lock, Part};
use crate::addr::Endpoint;
use crate::map::Map;
use crate::signals::without_signals;
use crate::sys::{check, stat, stat_at, Fd};
use core::ffi::CStr;
use gdrcore_core::error::Result;
use gdrcore_core::receipt::Receipts;
use std::os::fd::RawFd;

/// Its name, which is part of the protocol between processes.
pub(super) const FILE: &CStr = c"acks";
/// Its mode, and that after a sweep has found it without an owner.
const MODE: libc::mode_t = 0o600;
const FOUND_MODE: libc::mode_t = 0o400;
/// A minute: the retries of most requests end within it.
const KEPT_S: u64 = 60;

/// The file, mapped. Its layout: a [`Receipts`].
#[derive(Debug)]
pub(crate) struct ReceiptFile(Map);

impl ReceiptFile {
    /// Makes the file of a holder, without receipts. Its page is allocated now: one that turned out
    /// missing later would be a SIGBUS.
    ///
    /// # Errors
    /// As open(2), ftruncate(2), fallocate(2), mmap(2).
    pub(crate) fn create(holder: &Lock) -> Result<ReceiptFile> {
        let flags =
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a C string; no other pointers.
        let fd = Fd::from_call(unsafe {
            libc::openat(holder.dir.raw(), FILE.as_ptr(), flags, libc::c_uint::from(MODE))
        })?;
        let len = size_of::<Receipts>();
        // SAFETY: no pointers.
        without_signals(|| unsafe {
            check(libc::ftruncate(fd.raw(), len as libc::off_t))?;
            check(libc::fallocate(fd.raw(), 0, 0, len as libc::off_t))
        })?;
        Map::shared(fd.raw(), 0, len, true).map(ReceiptFile)
    }

    /// Makes the file again for a holder whose directory was removed, with the receipts that it
    /// had, at the same address.
    ///
    /// # Errors
    /// As [`ReceiptFile::create`], mremap(2).
    pub(crate) fn renew(&mut self, holder: &Lock) -> Result<()> {
        let new = ReceiptFile::create(holder)?;
        new.receipts().copy(self.receipts());
        self.0.replace(new.0)
    }

    /// The file of a block's owner, if that has ended. Cost: seven system calls.
    pub(crate) fn of_ended(socket_dir: &SocketDir, at: &Endpoint, block: u16) -> Option<Self> {
        let parts = [Part::of_address(at), Part::of_holder(Holder::Block(block))];
        let path = socket_dir.c_path(&[parts[0].bytes(), parts[1].bytes()]).ok()?;
        let dir = open_dir(libc::AT_FDCWD, path.as_c_str()).ok()?;
        // A living owner sends its ACKs. The lock is released with `dir`.
        if lock(dir.raw()) != Ok(true) {
            return None;
        }
        let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        // SAFETY: a C string; no other pointers.
        let fd = Fd::from_call(unsafe { libc::openat(dir.raw(), FILE.as_ptr(), flags) }).ok()?;
        let is_whole = stat(fd.raw()).is_ok_and(|s| s.st_size >= size_of::<Receipts>() as i64);
        is_whole.then_some(())?;
        Map::shared(fd.raw(), 0, size_of::<Receipts>(), false).ok().map(ReceiptFile)
    }

    /// The receipts.
    pub(crate) fn receipts(&self) -> &Receipts {
        // SAFETY: the map has that many bytes, aligned to a page; a `Receipts` is atomic words, of
        // which every value is valid. Only processes of this user can reach the file, and none
        // makes it shorter.
        unsafe { &*self.0.as_ptr().cast::<Receipts>() }
    }
}

/// Whether peers of an owner that has ended may still read its file at a time (ns of
/// CLOCK_REALTIME, as the kernel stamps files). The lock of the directory is held.
pub(super) fn may_be_read(dir: RawFd, wall_ns: u64) -> bool {
    let Ok(file) = stat_at(dir, FILE) else { return false };
    if file.st_mode & 0o777 == MODE {
        // SAFETY: a C string; no other pointers. The change of mode is noted with its time.
        return unsafe { libc::fchmodat(dir, FILE.as_ptr(), FOUND_MODE, 0) } == 0;
    }
    let (now, found) = (wall_ns / 1_000_000_000, file.st_ctime as u64);
    // A clock that was set back keeps no file for ever.
    now.abs_diff(found) < KEPT_S
}
