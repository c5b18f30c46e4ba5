//! Memory that engines write to: at fixed addresses, never borrowed while an engine runs.

use std::alloc::{alloc, dealloc, Layout};

/// Value of bytes that nothing has written.
pub const BACKGROUND: u8 = 0xaa;
/// Bytes before and behind a block that must not be written: a page, so the block stays
/// page-aligned.
const GUARD: usize = 4096;

/// A block of memory, aligned to a page, filled with [`BACKGROUND`], between two guards.
pub struct Buf {
    ptr: *mut u8,
    len: usize,
}

impl Buf {
    /// `len` bytes.
    pub fn new(len: usize) -> Buf {
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(Buf::layout(len)) };
        assert!(!start.is_null());
        // SAFETY: fresh memory of this length.
        unsafe { start.write_bytes(BACKGROUND, Buf::layout(len).size()) };
        // SAFETY: inside the allocation.
        let ptr = unsafe { start.add(GUARD) };
        Buf { ptr, len }
    }

    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len + 2 * GUARD, 4096).expect("a size that fits")
    }

    /// Its address.
    pub fn addr(&self) -> u64 {
        self.ptr as u64
    }

    /// Its length.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A view of a range; no engine may run while it exists.
    pub fn view(&self, at: usize, len: usize) -> &[u8] {
        assert!(at + len <= self.len);
        // SAFETY: inside the block; engines run only in calls of the world, which hold no views.
        unsafe { std::slice::from_raw_parts(self.ptr.add(at), len) }
    }

    /// Writes a range.
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: inside the block; engines run only in calls of the world.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.ptr.add(at), bytes.len()) }
    }

    /// Fills a range with one byte.
    pub fn fill(&self, at: usize, len: usize, byte: u8) {
        assert!(at + len <= self.len);
        // SAFETY: inside the block; engines run only in calls of the world.
        unsafe { self.ptr.add(at).write_bytes(byte, len) }
    }

    /// Writes the pattern of message `id`.
    pub fn put_pattern(&self, at: usize, len: usize, id: u64) {
        assert!(at + len <= self.len);
        // SAFETY: inside the block, as checked.
        let to = unsafe { self.ptr.add(at) };
        let words = len / 8;
        for k in 0..words {
            // SAFETY: word `k` lies inside the piece.
            let word = unsafe { to.add(8 * k) };
            // SAFETY: as above; the piece need not be aligned.
            unsafe { word.cast::<u64>().write_unaligned(pattern(id, k).to_le()) }
        }
        let rest = &pattern(id, words).to_le_bytes()[..len % 8];
        self.put(at + 8 * words, rest);
    }

    /// The first offset at which a range differs from a message's pattern.
    pub fn differs(&self, at: usize, len: usize, id: u64) -> Option<usize> {
        let piece = self.view(at, len);
        let (words, rest) = piece.split_at(len & !7);
        let mut wrong = 0;
        for (k, word) in words.chunks_exact(8).enumerate() {
            wrong |= read(word) ^ pattern(id, k);
        }
        let last = pattern(id, len / 8).to_le_bytes();
        if wrong == 0 && *rest == last[..len % 8] {
            return None;
        }
        piece.iter().enumerate().position(|(i, &b)| b != pattern(id, i / 8).to_le_bytes()[i % 8])
    }

    /// The first offset in a range that was written.
    pub fn touched(&self, at: usize, len: usize) -> Option<usize> {
        let piece = self.view(at, len);
        let wrong = piece.iter().fold(0, |wrong, &b| wrong | (b ^ BACKGROUND));
        if wrong == 0 {
            return None;
        }
        piece.iter().position(|&b| b != BACKGROUND)
    }

    /// A sum over all bytes, for a later comparison.
    pub fn sum(&self) -> u64 {
        let mix = |sum: u64, b: &u8| (sum ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3);
        self.view(0, self.len).iter().fold(0xcbf2_9ce4_8422_2325, mix)
    }

    /// Whether the guards before and behind the block are unchanged.
    pub fn is_guarded(&self) -> bool {
        let intact = |from: *mut u8| {
            (0..GUARD).all(|i| {
                // SAFETY: the guards belong to the allocation.
                let at = unsafe { from.add(i) };
                // SAFETY: as above.
                unsafe { at.read() == BACKGROUND }
            })
        };
        // SAFETY: the guard before the block.
        let before = unsafe { self.ptr.sub(GUARD) };
        // SAFETY: the guard behind it.
        let behind = unsafe { self.ptr.add(self.len) };
        intact(before) && intact(behind)
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
        let start = unsafe { self.ptr.sub(GUARD) };
        // SAFETY: as above.
        unsafe { dealloc(start, Buf::layout(self.len)) }
    }
}

fn read(word: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(word);
    u64::from_le_bytes(bytes)
}

/// Word `k` of message `id`. The first word is the id itself, so that a message identifies itself.
#[inline]
pub fn pattern(id: u64, k: usize) -> u64 {
    let step = id.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    id.wrapping_add(step.wrapping_mul(k as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_is_found_wherever_it_is() {
        let buf = Buf::new(64);
        for len in 0..=40 {
            buf.put_pattern(3, len, 77);
            assert_eq!((buf.differs(3, len, 77), buf.touched(3 + len, 20)), (None, None));
            for at in 0..len {
                let was = buf.view(3 + at, 1)[0];
                buf.put(3 + at, &[was ^ 1]);
                assert_eq!(buf.differs(3, len, 77), Some(at));
                buf.put(3 + at, &[was]);
            }
            buf.fill(3, len, BACKGROUND);
            assert_eq!(buf.touched(0, 64), None);
        }
    }

    #[test]
    fn a_byte_outside_is_noticed() {
        let buf = Buf::new(10);
        assert!(buf.is_guarded());
        // SAFETY: the guard belongs to the allocation.
        let behind = unsafe { buf.ptr.add(10) };
        // SAFETY: as above.
        unsafe { behind.write(0) };
        assert!(!buf.is_guarded());
    }
}
