//! Memory that a device or an engine reads and writes at any time.

use std::ptr::null_mut;

/// Page-aligned memory, zeroed at first. Tests access it by copies only, never by reference.
pub struct Buffer {
    at: *mut u8,
    len: usize,
}

/// Bytes that are mapped for so many: never none.
fn mapped(len: usize) -> usize {
    len.max(1).next_multiple_of(4096)
}

impl Buffer {
    /// Zeroed memory of `len` bytes.
    pub fn new(len: usize) -> Buffer {
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // No memory of the allocator: a router's device keeps the pages, which no child of a fork
        // has, and the allocator would give them to others.
        // SAFETY: a new mapping at an address of the kernel's choice.
        let at = unsafe { libc::mmap(null_mut(), mapped(len), prot, flags, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED, "out of memory");
        Buffer { at: at.cast(), len: len.max(1) }
    }

    /// The address of its first byte.
    pub fn addr(&self) -> u64 {
        self.at as u64
    }

    /// Its length in bytes; one at least.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.len);
        // SAFETY: the range lies inside the mapping, and `bytes`, being a reference, does not.
        unsafe { self.at.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len);
        let mut out = vec![0; len];
        // SAFETY: the range lies inside the mapping, and `out` is fresh.
        unsafe { self.at.add(offset).copy_to_nonoverlapping(out.as_mut_ptr(), len) };
        out
    }

    /// Copies 8 bytes in, in the order of the machine.
    pub fn write_u64(&self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }

    /// Copies 8 bytes out, in the order of the machine.
    pub fn read_u64(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.read(offset, 8).try_into().expect("8 bytes"))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with the same length.
        unsafe { libc::munmap(self.at.cast(), mapped(self.len)) };
    }
}

// SAFETY: the memory is owned and every access goes through copies of whatever bytes are there.
unsafe impl Send for Buffer {}
// SAFETY: as for Send; racing copies may see mixed bytes, which tests of racing memory want.
unsafe impl Sync for Buffer {}
