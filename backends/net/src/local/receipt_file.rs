//! The receipts of ACKs that wait to leave through the port, in a file of the block's owner: if the
//! owner is killed, they show what it had accepted.
//!
//! An owner that ends otherwise sends its ACKs and removes the file. A killed owner's file stays
//! for [`KEPT_S`] seconds after the first sweep that finds it, so that peers read it when their
//! requests have used up their retries.

use super::socket_dir::{open_dir, SocketDir};
use super::{first_block, listener_block, lock, Holder, Lock, Part};
use crate::addr::Endpoint;
use crate::map::Map;
use crate::signals::without_signals;
use crate::sys::{check, stat_at, Fd};
use core::ffi::CStr;
use gdrcore_core::error::Result;
use gdrcore_core::receipt::{Receipts, RECEIPTS};
use std::os::fd::RawFd;

/// The file's name, which is part of the protocol between processes.
pub(super) const FILE: &CStr = c"acks";
/// The file's mode, and its mode once a sweep has found the file without an owner. Only the
/// directory keeps others out, so the mode is free for this note, and the kernel adds the time.
const MODE: libc::mode_t = 0o600;
const FOUND_MODE: libc::mode_t = 0o700;
/// Seconds that the file of a killed owner stays: the retries of most requests end within them.
const KEPT_S: u64 = 60;

/// The owner's file, mapped. Its layout: a [`Receipts`].
#[derive(Debug)]
pub(crate) struct ReceiptFile(Map);

impl ReceiptFile {
    /// Makes the file of a holder, without receipts. Its page is allocated now: a page that is
    /// missing later would raise SIGBUS.
    ///
    /// # Errors
    /// As open(2), fallocate(2), mmap(2).
    pub(crate) fn create(holder: &Lock) -> Result<ReceiptFile> {
        let flags =
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: a C string; no other pointers.
        let fd = Fd::from_call(unsafe {
            libc::openat(holder.dir.raw(), FILE.as_ptr(), flags, libc::c_uint::from(MODE))
        })?;
        let len = size_of::<Receipts>();
        // SAFETY: no pointers. It changes the size only if there is room.
        without_signals(|| unsafe { check(libc::fallocate(fd.raw(), 0, 0, len as libc::off_t)) })?;
        Map::shared(fd.raw(), 0, len, true).map(ReceiptFile)
    }

    /// Makes the file again for a holder whose directory was removed, with its receipts, at the
    /// same address.
    ///
    /// # Errors
    /// As [`ReceiptFile::create`], mremap(2).
    pub(crate) fn renew(&mut self, holder: &Lock) -> Result<()> {
        let new = ReceiptFile::create(holder)?;
        new.receipts().copy(self.receipts());
        self.0.replace(new.0)
    }

    /// The receipts.
    pub(crate) fn receipts(&self) -> &Receipts {
        // SAFETY: the map has that many bytes, aligned to a page; a `Receipts` is atomic words, of
        // which every value is valid. Only processes of this user can reach the file, and none
        // makes it shorter.
        unsafe { &*self.0.as_ptr().cast::<Receipts>() }
    }
}

/// The file of a block's owner, which lies with the first of the owner's blocks, and its directory,
/// which may have another owner or none.
fn open_of(socket_dir: &SocketDir, at: &Endpoint, block: u16) -> Option<[Fd; 2]> {
    let first = listener_block(socket_dir, at, block);
    let parts = [Part::of_address(at), Part::of_holder(Holder::Block(first))];
    let path = socket_dir.c_path(&[parts[0].bytes(), parts[1].bytes()]).ok()?;
    let dir = open_dir(libc::AT_FDCWD, path.as_c_str()).ok()?;
    let flags = libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    // SAFETY: a C string; no other pointers.
    let file = Fd::from_call(unsafe { libc::openat(dir.raw(), FILE.as_ptr(), flags) }).ok()?;
    Some([file, dir])
}

/// The receipts that a block's owner has left. `None`: there are none, or the owner lives and sends
/// its ACKs. `has_ended`: the owner is known to have ended. The file is read, not mapped: this
/// process must not depend on the pages of another's file. It is never written: a router that has
/// confined itself opens no file that is there to write. Cost: six system calls, two if there is
/// no directory.
pub(crate) fn receipts_of(
    socket_dir: &SocketDir,
    at: &Endpoint,
    block: u16,
    has_ended: bool,
) -> Option<Receipts> {
    let [file, dir] = open_of(socket_dir, at, block)?;
    // The lock is released with `dir`. A child that outlives the owner after a fork keeps the lock.
    if !has_ended && lock(dir.raw()) != Ok(true) {
        return None;
    }
    let mut words = [0u64; RECEIPTS];
    // SAFETY: pointer and length are those of the words, of which every value is valid.
    let n = unsafe { libc::pread(file.raw(), words.as_mut_ptr().cast(), size_of_val(&words), 0) };
    (usize::try_from(n) == Ok(size_of_val(&words))).then(|| Receipts::of_words(words))
}

/// Whether peers of an owner that has ended may still read its file at a time (ns of
/// CLOCK_REALTIME, as the kernel stamps files). The lock of the directory is held. The directories
/// of the owner's other blocks stay as long as that of the first, which has the file.
pub(super) fn may_be_read(dir: RawFd, wall_ns: u64) -> bool {
    let Ok(file) = stat_at(dir, FILE) else {
        let Some(first) = first_block(dir) else { return false };
        let file = heapless::format!(32; "../{first}/acks\0");
        let path =
            file.as_ref().ok().and_then(|path| CStr::from_bytes_with_nul(path.as_bytes()).ok());
        return path.is_some_and(|path| stat_at(dir, path).is_ok());
    };
    if file.st_mode & 0o777 == MODE {
        // SAFETY: a C string; no other pointers.
        return unsafe { libc::fchmodat(dir, FILE.as_ptr(), FOUND_MODE, 0) } == 0;
    }
    let (now, found) = (wall_ns / 1_000_000_000, file.st_ctime as u64);
    // A clock that was set back keeps no file for ever.
    now.abs_diff(found) < KEPT_S
}
