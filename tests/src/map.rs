//! Memory that vanishes: mappings that a test removes while a device uses them.

use crate::ends::End;
use gdrcore_core::device::MrReg;
use gdrcore_core::verbs::types::{access, Handle};
use std::ptr::null_mut;

/// A shared mapping of an anonymous file; tests unmap it or truncate the file.
pub struct Map {
    at: *mut u8,
    len: usize,
    fd: i32,
}

impl Map {
    /// `len` zero bytes.
    pub fn new(len: usize) -> Map {
        Map::make(null_mut(), len, 0)
    }

    /// As [`Map::new`], at an address that the kernel does not choose by itself, so that the range
    /// stays unmapped after the drop. The range must not be in use; `slot` tells several maps of a
    /// process apart.
    pub fn apart(slot: usize, len: usize) -> Map {
        assert!(len <= 1 << 30);
        Map::make(
            std::ptr::without_provenance_mut((0x2000 << 32) + (slot << 30)),
            len,
            libc::MAP_FIXED_NOREPLACE,
        )
    }

    fn make(hint: *mut libc::c_void, len: usize, flags: i32) -> Map {
        let flags = flags | libc::MAP_SHARED;
        // SAFETY: the name is a terminated string; the mapping is new memory: the kernel chooses
        // where, or refuses a place in use.
        unsafe {
            let fd = libc::memfd_create(c"gdrcore-test".as_ptr(), libc::MFD_CLOEXEC);
            assert!(
                fd >= 0 && libc::ftruncate(fd, len as i64) == 0,
                "{}",
                std::io::Error::last_os_error()
            );
            let at = libc::mmap(hint, len, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0);
            assert!(at != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            Map { at: at.cast(), len, fd }
        }
    }

    /// The address of the first byte.
    pub fn addr(&self) -> u64 {
        self.at as u64
    }

    /// Writes bytes; the memory must still be mapped.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: in range of a mapping that the caller says is there; `bytes` lies elsewhere.
        unsafe { self.at.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Removes the memory. The address range stays reserved without access, so that no other
    /// mapping is placed there.
    pub fn vanish(&self) {
        let (kind, all) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED, self.len);
        // SAFETY: replaces our own mapping; only devices that expect it to vanish still know the
        // address.
        let at = unsafe { libc::mmap(self.at.cast(), all, libc::PROT_NONE, kind, -1, 0) };
        assert!(at != libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    }

    /// Truncates the file behind the memory to `len` bytes: accesses to pages beyond that raise
    /// SIGBUS.
    pub fn truncate(&self, len: usize) {
        // SAFETY: our own descriptor.
        assert_eq!(unsafe { libc::ftruncate(self.fd, len as i64) }, 0);
    }
}

/// Registers a mapping in the PD of an end with all access rights; returns the region and its rkey.
pub fn register(end: &End, map: &Map) -> (Handle, u32) {
    let access =
        access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let (addr, length) = (map.addr(), map.len as u64);
    let reg = MrReg { pd: end.pd, addr, length, iova: addr, access, provider: 0, cookie: 0 };
    let (mr, attr) = end.dev.mr_reg(&reg).expect("mr_reg");
    (mr, attr.rkey)
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: mapping and descriptor are ours and go with us.
        unsafe {
            libc::munmap(self.at.cast(), self.len);
            libc::close(self.fd);
        }
    }
}
