//! The status of a device, in a file of its block's owner.
//!
//! The owner writes a line about its process when it opens the device and when it takes its names
//! again, and replaces the file when another process of the user asks for it ([`crate::status`]).
//! Between these, a device that nobody asks pays nothing.

use super::Lock;
use crate::signals::without_signals;
use crate::status::write_process;
use crate::sys::{check, Fd};
use core::ffi::CStr;
use core::fmt;
use gdrcore_core::error::Result;

/// The file's name, and the name under which it is written. Both are part of the protocol between
/// processes.
pub(super) const FILE: &CStr = c"status";
pub(super) const NEW_FILE: &CStr = c"status.new";

/// Text on its way to a file, by way of a buffer on the stack.
pub(crate) struct StatusText {
    fd: Fd,
    buffer: heapless::Vec<u8, 4096>,
    /// The first error of a write.
    result: Result<()>,
}

impl StatusText {
    fn new(fd: Fd) -> StatusText {
        StatusText { fd, buffer: heapless::Vec::new(), result: Ok(()) }
    }

    /// Writes the rest. The error is that of the first write that failed.
    fn finish(mut self) -> Result<()> {
        self.flush();
        self.result
    }

    fn flush(&mut self) {
        let (mut rest, fd) = (&self.buffer[..], self.fd.raw());
        while !rest.is_empty() && self.result.is_ok() {
            // SAFETY: pointer and length are those of `rest`.
            let written = without_signals(|| unsafe {
                check(libc::write(fd, rest.as_ptr().cast(), rest.len()) as i32)
            });
            match written {
                Ok(n) => rest = rest.get(n as usize..).unwrap_or_default(),
                Err(e) => self.result = Err(e),
            }
        }
        self.buffer.clear();
    }
}

impl fmt::Write for StatusText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.as_bytes().chunks(1024) {
            if self.buffer.extend_from_slice(piece).is_err() {
                self.flush();
                let _ = self.buffer.extend_from_slice(piece);
            }
        }
        Ok(())
    }
}

impl Lock {
    /// Replaces the status file of the holder by what `write` writes. Readers find the old file or
    /// the new one.
    ///
    /// # Errors
    /// As open(2), write(2), rename(2).
    pub(crate) fn replace_status(&self, write: impl FnOnce(&mut StatusText)) -> Result<()> {
        let flags =
            libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let (dir, mode) = (self.dir.raw(), 0o600 as libc::c_uint);
        // A killed owner may have left its file. A router's filter allows new files alone (O_EXCL).
        // SAFETY: a C string; no other pointers.
        unsafe { libc::unlinkat(dir, NEW_FILE.as_ptr(), 0) };
        // SAFETY: a C string; no other pointers.
        let fd = unsafe { Fd::from_call(libc::openat(dir, NEW_FILE.as_ptr(), flags, mode)) }?;
        let mut text = StatusText::new(fd);
        write(&mut text);
        text.finish()?;
        // SAFETY: C strings; no other pointers.
        check(unsafe { libc::renameat(dir, NEW_FILE.as_ptr(), dir, FILE.as_ptr()) })?;
        Ok(())
    }

    /// Makes a status that names the process alone: who asks before the device answers learns at
    /// least whose it is.
    pub(crate) fn name_process(&self) {
        // A full disk prevents it.
        let _ = self.replace_status(|text| {
            // The text keeps its errors.
            let _ = write_process(text);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::{Holder, Role, SocketDir};
    use core::fmt::Write;
    use gdrcore_testkit::descriptors::keep;
    use gdrcore_testkit::place::loopback;
    use std::os::fd::IntoRawFd;

    #[test]
    fn a_status_is_replaced_whole_and_goes_with_its_owner() {
        let _kept = keep();
        let at = crate::addr::Endpoint::v4(loopback(5, 1), 4791);
        let lock = Lock::take(&SocketDir::open().unwrap(), &at, Holder::Block(1)).unwrap();
        let folder = lock.name(Role::Messages).path().parent().unwrap().to_owned();
        let long = "seven b".repeat(10_000);
        for text in [long.as_str(), "short"] {
            lock.replace_status(|to| to.write_str(text).unwrap()).unwrap();
            assert_eq!(std::fs::read_to_string(folder.join("status")).unwrap(), text);
            assert!(!folder.join("status.new").exists());
        }
        drop(lock);
        assert!(!folder.exists());
    }

    #[test]
    fn a_full_disk_is_noticed() {
        let _kept = keep();
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut text = StatusText::new(Fd::from_call(full.into_raw_fd()).unwrap());
        text.write_str(&"x".repeat(5000)).unwrap();
        assert_eq!(text.finish(), Err(gdrcore_core::Error::Os(libc::ENOSPC)));
    }
}
