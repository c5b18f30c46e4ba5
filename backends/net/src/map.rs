//! Memory that the library maps: anonymous, for contexts, or a descriptor's.

use crate::memfd::{of_dma_buf, sealed_memfd};
use crate::sys::{check, last_error, stat, Fd};
use core::ffi::c_int;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use std::os::fd::{OwnedFd, RawFd};
use std::ptr::NonNull;

/// Page-aligned memory, unmapped when dropped: zeroed and private ([`Map::new`]; a forked child
/// inherits a copy), or a descriptor's.
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
    /// Maps `len` bytes, rounded up to whole pages. The kernel provides pages when they are first
    /// touched.
    ///
    /// # Errors
    /// `Invalid` for a length of 0 or near the end of the address space, `NoMemory`.
    pub fn new(len: usize) -> Result<Map> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::map_pages(len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
    }

    /// Reserves addresses without memory, for mappings that replace it (MAP_FIXED).
    ///
    /// # Errors
    /// As [`Map::new`].
    pub(crate) fn reserved(len: usize) -> Result<Map> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::map_pages(len, libc::PROT_NONE, flags, -1, 0)
    }

    /// Maps `len` bytes of a descriptor's memory, rounded up to whole pages, shared; `offset` is
    /// page-aligned. The mapping outlives the descriptor. Pages beyond the end of the file (after a
    /// truncation) fault when they are touched: see [`crate::fault`].
    ///
    /// # Errors
    /// `Invalid` as [`Map::new`], and for an offset inside a page; `Os(EBADF)`, `Access` or
    /// `Os(EACCES)`, `NoDevice`: no descriptor, not open for that access, no memory that the CPU
    /// can map; `NoMemory`.
    pub fn shared(fd: RawFd, offset: u64, len: usize, writable: bool) -> Result<Map> {
        let at = libc::off_t::try_from(offset).ok().filter(|_| offset % page_size() as u64 == 0);
        let at =
            at.ok_or_else(|| refuse!(Invalid, "offset {offset:#x}: not that of a page of a file"))?;
        let prot = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        Self::map_pages(len, prot, libc::MAP_SHARED, fd, at)
    }

    /// As [`Map::shared`], for a buffer that a device may share; returns where `offset` is in the
    /// map, too. A dma-buf is mapped from its beginning on: drivers that have its pages from shmem
    /// find them by the place in the mapping alone (vgem; drm_gem_shmem_fault of Linux).
    ///
    /// # Errors
    /// As [`Map::shared`].
    pub fn of_buffer(fd: RawFd, offset: u64, len: usize, writable: bool) -> Result<(Map, u64)> {
        let before = if of_dma_buf(fd) { offset } else { 0 };
        let all =
            usize::try_from(before).ok().and_then(|n| n.checked_add(len)).ok_or_else(|| {
                refuse!(
                    Invalid,
                    "length {len:#x} from {offset:#x} on: more than the address space has"
                )
            })?;
        let map = Map::shared(fd, offset - before, all, writable)?;
        let at = map.as_ptr() as u64 + before;
        Ok((map, at))
    }

    /// Maps `len` bytes of a new memfd, zeroed and shared, of a fixed size; with its descriptor.
    ///
    /// # Errors
    /// As [`Map::new`]; `Os`: no descriptor, or more than a file may have.
    pub fn with_file(name: &core::ffi::CStr, len: usize) -> Result<(Map, OwnedFd)> {
        let fd = sealed_memfd(name, len, len)?;
        Ok((Map::shared(fd.raw(), 0, len, true)?, fd.into()))
    }

    /// Common part of all constructors: maps `len` rounded up to whole pages, at an address of the
    /// kernel's choice.
    fn map_pages(len: usize, prot: c_int, flags: c_int, fd: RawFd, at: libc::off_t) -> Result<Map> {
        let page = page_size();
        let whole = len.checked_add(page - 1).map(|n| n & !(page - 1)).filter(|n| *n != 0);
        let len = whole.ok_or_else(|| {
            refuse!(Invalid, "length {len:#x}: at least 1, and within the address space")
        })?;
        // SAFETY: a new mapping, without MAP_FIXED, touches nothing that exists.
        let p = unsafe { libc::mmap(core::ptr::null_mut(), len, prot, flags, fd, at) };
        if p == libc::MAP_FAILED {
            return Err(last_error());
        }
        let ptr = NonNull::new(p.cast()).ok_or(Error::NoMemory)?;
        Ok(Map { ptr, len })
    }

    /// Moves another map, of the same length, to the address of this one.
    ///
    /// # Errors
    /// `Os`: as mremap(2).
    pub(crate) fn replace(&mut self, other: Map) -> Result<()> {
        let (from, len) = (other.ptr.as_ptr(), other.len);
        debug_assert_eq!(len, self.len);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both maps are owned here, and of one length. The kernel unmaps what was at the
        // target, so no address of this map is without memory at any time.
        let at = unsafe { libc::mremap(from.cast(), len, len, flags, self.ptr.as_ptr()) };
        if at == libc::MAP_FAILED {
            return Err(last_error());
        }
        // The other map's memory has moved.
        let _ = other.into_raw();
        Ok(())
    }

    /// As [`Map::as_ptr`].
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.ptr
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

    /// Releases the memory without unmapping it: `(first byte, length)`, for [`Map::from_raw`].
    pub fn into_raw(self) -> (*mut u8, usize) {
        let me = core::mem::ManuallyDrop::new(self);
        (me.ptr.as_ptr(), me.len)
    }

    /// Takes over the mapping that [`Map::into_raw`] released.
    ///
    /// # Safety
    /// `ptr` and `len` come from one `into_raw` and nothing uses the memory any more.
    pub unsafe fn from_raw(ptr: *mut u8, len: usize) -> Option<Map> {
        NonNull::new(ptr).map(|ptr| Map { ptr, len })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping that `new` or `shared` made. Its users borrow it, or
        // `from_raw`'s contract excludes them.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), self.len) };
    }
}

/// Whether the whole range at `addr` is a shared mapping of a descriptor's memory from `offset` on,
/// by /proc/self/maps. Allocates nothing.
///
/// # Errors
/// `Os`: no such descriptor, or no /proc.
pub fn is_mapping_of(addr: u64, len: u64, fd: RawFd, offset: u64) -> Result<bool> {
    let stat = stat(fd)?;
    // SAFETY: the name is a C string.
    let maps = Fd::from_call(unsafe {
        libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC)
    })?;
    let Some(end) = addr.checked_add(len) else { return Ok(false) };
    let mut next = addr;
    let mut line = [0u8; 128];
    let mut n = 0;
    let mut buf = [0u8; 1024];
    loop {
        // SAFETY: room for that many bytes.
        let got =
            check(unsafe { libc::read(maps.raw(), buf.as_mut_ptr().cast(), buf.len()) } as i32)?
                as usize;
        for &byte in &buf[..got] {
            if byte != b'\n' {
                // A long name is cut; the fields that count precede it.
                if let Some(place) = line.get_mut(n) {
                    (*place, n) = (byte, n + 1);
                }
                continue;
            }
            let mapping = core::str::from_utf8(&line[..n]).ok().and_then(Mapping::parse);
            n = 0;
            let Some(m) = mapping.filter(|m| next < end && m.start <= next && next < m.end) else {
                continue;
            };
            let device = (libc::major(stat.st_dev), libc::minor(stat.st_dev));
            let at = (next - m.start).checked_add(m.offset);
            let wanted = (next - addr).checked_add(offset);
            if !m.shared
                || m.inode != stat.st_ino
                || m.device != device
                || at.is_none()
                || at != wanted
            {
                return Ok(false);
            }
            next = m.end.min(end);
        }
        if next == end || got == 0 {
            return Ok(next == end);
        }
    }
}

/// A line of /proc/self/maps.
struct Mapping {
    start: u64,
    end: u64,
    shared: bool,
    offset: u64,
    device: (u32, u32),
    inode: u64,
}

impl Mapping {
    fn parse(line: &str) -> Option<Mapping> {
        let hex = |s| u64::from_str_radix(s, 16).ok();
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let shared = fields.next()?.as_bytes().get(3) == Some(&b's');
        let offset = hex(fields.next()?)?;
        let (major, minor) = fields.next()?.split_once(':')?;
        let inode = fields.next()?.parse().ok()?;
        let device = (hex(major)? as u32, hex(minor)? as u32);
        Some(Mapping { start: hex(start)?, end: hex(end)?, shared, offset, device, inode })
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
    fn a_mapping_is_known_by_its_descriptor() {
        // SAFETY: the name is a C string; no other pointers.
        let fd =
            Fd::from_call(unsafe { libc::memfd_create(c"x".as_ptr(), libc::MFD_CLOEXEC) }).unwrap();
        // SAFETY: no pointers.
        check(unsafe { libc::ftruncate(fd.raw(), 16 << 12) }).unwrap();
        let m = Map::shared(fd.raw(), 4 << 12, 8 << 12, true).unwrap();
        let at = m.as_ptr() as u64;
        let is = |addr, len, offset| is_mapping_of(addr, len, fd.raw(), offset).unwrap();
        assert!(is(at, 8 << 12, 4 << 12) && is(at + 100, 5000, (4 << 12) + 100));
        assert!(
            !is(at, 8 << 12, 0)
                && !is(at, (8 << 12) + 1, 4 << 12)
                && !is(u64::MAX - 10, 100, 0)
                && !is(8, 16, 0)
        );
        let other = Map::new(4096).unwrap();
        assert!(!is(other.as_ptr() as u64, 100, 0));
        assert!(is_mapping_of(at, 10, -1, 0).is_err());
    }

    #[test]
    fn impossible_lengths_are_refused() {
        assert_eq!(Map::new(0).unwrap_err(), Error::Invalid);
        assert_eq!(Map::new(usize::MAX).unwrap_err(), Error::Invalid);
        assert_eq!(Map::new(1 << 60).unwrap_err(), Error::NoMemory);
    }
}
