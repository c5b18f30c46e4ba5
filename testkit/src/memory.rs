//! Memory that a device or an engine reads and writes at any time.

use std::alloc::{alloc_zeroed, dealloc, Layout};

/// Page-aligned memory, zeroed at first. Tests access it by copies only, never by reference.
pub struct Buffer {
    at: *mut u8,
    layout: Layout,
}

impl Buffer {
    /// Zeroed memory of `len` bytes.
    pub fn new(len: usize) -> Buffer {
        let layout = Layout::from_size_align(len.max(1), 4096).expect("a layout of whole pages");
        // SAFETY: the layout is not of size zero.
        let at = unsafe { alloc_zeroed(layout) };
        assert!(!at.is_null(), "out of memory");
        Buffer { at, layout }
    }

    /// The address of its first byte.
    pub fn addr(&self) -> u64 {
        self.at as u64
    }

    /// Its first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.at
    }

    /// Copies bytes in.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.layout.size());
        // SAFETY: the range lies inside the allocation, and `bytes`, being a reference, does not.
        unsafe { self.at.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes out.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.layout.size());
        let mut out = vec![0; len];
        // SAFETY: the range lies inside the allocation, and `out` is fresh.
        unsafe { self.at.add(offset).copy_to_nonoverlapping(out.as_mut_ptr(), len) };
        out
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout.
        unsafe { dealloc(self.at, self.layout) }
    }
}

// SAFETY: the memory is owned and every access goes through copies of whatever bytes are there.
unsafe impl Send for Buffer {}
// SAFETY: as for Send; racing copies may see mixed bytes, which tests of racing memory want.
unsafe impl Sync for Buffer {}
