//! Memory that engines write to: at fixed addresses, never borrowed while an engine runs.

use std::alloc::{alloc, dealloc, Layout};

/// What untouched memory holds.
pub const BACKGROUND: u8 = 0xaa;

/// A block of memory, aligned to a page, filled with [`BACKGROUND`].
pub struct Buf {
    ptr: *mut u8,
    len: usize,
}

impl Buf {
    /// `len` bytes.
    pub fn new(len: usize) -> Buf {
        // SAFETY: the layout is not empty.
        let ptr = unsafe { alloc(Buf::layout(len)) };
        assert!(!ptr.is_null());
        // SAFETY: fresh memory of this length.
        unsafe { ptr.write_bytes(BACKGROUND, len.max(1)) };
        Buf { ptr, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), 4096).expect("a size that fits")
    }

    /// Its address.
    pub fn addr(&self) -> u64 {
        self.ptr as u64
    }

    /// Its pointer.
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A view of a piece, for as long as no engine runs.
    pub fn view(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= self.len);
        // SAFETY: inside the block; engines run only in calls of the world, which hold no views.
        unsafe { std::slice::from_raw_parts(self.ptr.add(at), len) }
    }

    /// Writes a piece.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: inside the block; engines run only in calls of the world.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.ptr.add(at), bytes.len()) }
    }

    /// Fills a piece with one byte.
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        assert!(at + len <= self.len);
        // SAFETY: inside the block; engines run only in calls of the world.
        unsafe { self.ptr.add(at).write_bytes(byte, len) }
    }

    /// Writes byte `i` of message `id`'s pattern at `at + i`.
    pub fn put_pattern(&self, at: usize, len: usize, id: u64) {
        assert!(at + len <= self.len);
        for i in 0..len {
            // SAFETY: inside the block, as checked.
            unsafe { self.ptr.add(at + i).write(pattern(id, i)) }
        }
    }

    /// The first place where a piece differs from a message's pattern.
    pub fn differs(&self, at: usize, len: usize, id: u64) -> Option<usize> {
        self.view(at, len).iter().enumerate().position(|(i, &b)| b != pattern(id, i))
    }

    /// The first place in a piece that was touched.
    pub fn touched(&self, at: usize, len: usize) -> Option<usize> {
        self.view(at, len).iter().position(|&b| b != BACKGROUND)
    }

    /// Eight bytes as a number.
    pub fn get_u64(&self, at: usize) -> u64 {
        let mut word = [0; 8];
        word.copy_from_slice(self.view(at, 8));
        u64::from_ne_bytes(word)
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: allocated so in `new`.
        unsafe { dealloc(self.ptr, Buf::layout(self.len)) }
    }
}

/// Byte `i` of message `id`. The first eight are the id itself, so that a message tells who it is.
#[inline]
pub fn pattern(id: u64, i: usize) -> u8 {
    if i < 8 {
        (id >> (8 * i)) as u8
    } else {
        let x = (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize;
        (x.wrapping_add(i.wrapping_mul(167)).wrapping_add(i >> 8) & 0xff) as u8
    }
}
