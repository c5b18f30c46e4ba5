//! Memory that the library maps: anonymous, for contexts, and what a descriptor stands for.

use crate::sys::last_error;
use core::ffi::c_int;
use gdrcore_core::error::{Error, Result};
use std::os::fd::RawFd;
use std::ptr::NonNull;

/// Page-aligned memory, unmapped when dropped: zeroed and private ([`Map::new`]; a forked child inherits a copy), or a descriptor's.
#[derive(Debug)]
pub struct Map {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: the map is plain memory owned by this value; nothing in it is tied to a thread.
unsafe impl Send for Map {}
// SAFETY: by shared reference only the address and the length are given out.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `len` bytes, rounded up to whole pages. Pages are taken when first touched.
    ///
    /// # Errors
    /// `Invalid` for a length of 0 or near the end of the address space, `NoMemory`.
    pub fn new(len: usize) -> Result<Map> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::of(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// Maps `len` bytes, whole pages of them, of what `fd` stands for, shared; `offset` is that of a page. The mapping outlives the
    /// descriptor. What ends before the mapping does (a file that is cut) faults when it is touched: see [`crate::fault`].
    ///
    /// # Errors
    /// `Invalid` as [`Map::new`], and for an offset inside a page; `Os(EBADF)`, `Access` or `Os(EACCES)`, `NoDevice`: no
    /// descriptor, not open for that, nothing that the CPU could map; `NoMemory`.
    pub fn shared(fd: RawFd, offset: u64, len: usize, writable: bool) -> Result<Map> {
        let at = libc::off_t::try_from(offset).map_err(|_| Error::Invalid)?;
        if offset % page_size() as u64 != 0 {
            return Err(Error::Invalid);
        }
        let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        Self::of(len, prot, libc::MAP_SHARED, fd, at)
    }

    /// What both are: `len` rounded up to whole pages, at an address of the kernel's choice.
    fn of(len: usize, prot: c_int, flags: c_int, fd: RawFd, at: libc::off_t) -> Result<Map> {
        let page = page_size();
        let len = len.checked_add(page - 1).ok_or(Error::Invalid)? & !(page - 1);
        if len == 0 {
            return Err(Error::Invalid);
        }
        // SAFETY: a new mapping, without MAP_FIXED, touches nothing that exists.
        let p = unsafe { libc::mmap(core::ptr::null_mut(), len, prot, flags, fd, at) };
        if p == libc::MAP_FAILED {
            return Err(last_error());
        }
        let ptr = NonNull::new(p.cast()).ok_or(Error::NoMemory)?;
        Ok(Map { ptr, len })
    }

    /// First byte; aligned to a page.
    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// Bytes mapped.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never true; a map has at least one page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the memory up without unmapping it: `(first byte, length)`, to be freed by [`Map::from_raw`].
    pub fn into_raw(self) -> (*mut u8, usize) {
        let me = core::mem::ManuallyDrop::new(self);
        (me.ptr.as_ptr(), me.len)
    }

    /// Takes back what [`Map::into_raw`] gave.
    ///
    /// # Safety
    /// `ptr` and `len` come from one `into_raw` and nothing uses the memory any more.
    pub unsafe fn from_raw(ptr: *mut u8, len: usize) -> Option<Map> {
        NonNull::new(ptr).map(|ptr| Map { ptr, len })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` or `shared` made; whoever uses it borrows it or was promised by `from_raw`.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

/// Bytes of a page.
pub fn page_size() -> usize {
    // SAFETY: sysconf has no precondition.
    let n = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(n).unwrap_or(4096).max(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_is_zero_and_writable() {
        let m = Map::new(5000).unwrap();
        assert!(m.len() >= 5000 && m.len() & (page_size() - 1) == 0 && !m.is_empty());
        // SAFETY: the map is ours and `len` bytes long.
        let s = unsafe { core::slice::from_raw_parts_mut(m.as_ptr(), m.len()) };
        assert!(s.iter().all(|&b| b == 0));
        s[4999] = 7;
        let (p, n) = m.into_raw();
        // SAFETY: straight from into_raw.
        drop(unsafe { Map::from_raw(p, n) });
    }

    #[test]
    fn impossible_lengths_are_refused() {
        assert_eq!(Map::new(0).unwrap_err(), Error::Invalid);
        assert_eq!(Map::new(usize::MAX).unwrap_err(), Error::Invalid);
        assert_eq!(Map::new(1 << 60).unwrap_err(), Error::NoMemory);
    }
}
