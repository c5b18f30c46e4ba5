//! The arena: the one block of memory that an engine gets, and its allocators.
//!
//! Three allocators, for three lifetimes:
//!
//! - [`Walk`] carves memory that lives as long as the engine. The same walk, run without memory, is
//!   the size query, so the two cannot drift apart.
//! - [`Heap`] is a buddy heap for memory that lives as long as an object: rings, and growth of
//!   tables.
//! - [`Table`] is a chunked array over both: it grows and its elements never move.
//!
//! No destructor ever runs: the memory is the caller's, and ends when the caller takes it back.

use core::fmt;
use core::marker::PhantomData;
use core::mem::{align_of, size_of};
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use crate::error::{Error, Result};
use crate::reason::refuse;

mod heap;
mod table;
#[cfg(test)]
mod tests;

pub use heap::Heap;
pub use table::{Table, CHUNK};

/// Alignment of everything that a [`Walk`] lays out: two cache lines, as CPUs prefetch them in
/// pairs.
pub const ARENA_ALIGN: usize = 128;

/// One walk over the layout, used for both the size query (no base) and the carving.
///
/// Offsets count from the first [`ARENA_ALIGN`]ed address of the memory, so that both kinds of walk
/// see the same numbers, wherever the caller's memory begins.
pub struct Walk {
    /// First aligned byte; `None` in a size query.
    base: Option<NonNull<u8>>,
    /// Bytes laid out so far, from `base`.
    offset: usize,
    /// Bytes from `base` to the end of the memory.
    limit: usize,
    /// Bytes lost before `base`: the worst case in a size query.
    pad: usize,
}

/// Bytes from which on a slice of zeroes is read before it is written.
const LARGE: usize = 64 << 10;

/// Types of whole, aligned words of which zeroes are a valid value.
///
/// # Safety
/// Size and alignment are multiples of 8, and zeroes are valid.
pub unsafe trait Zeroes {}

// SAFETY: a word, of which any bits are valid.
unsafe impl Zeroes for u64 {}
// SAFETY: a word, and null is valid.
unsafe impl<T> Zeroes for core::sync::atomic::AtomicPtr<T> {}

impl Walk {
    /// A walk without memory: everything it returns is empty, and [`Walk::offset`] ends as the size
    /// needed.
    pub fn size_query() -> Self {
        Walk { base: None, offset: 0, limit: usize::MAX, pad: ARENA_ALIGN - 1 }
    }

    /// A walk that deals out `len` bytes at `base`, of any alignment.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a null `base`, [`Error::NoMemory`] where not even the alignment fits.
    ///
    /// # Safety
    /// `base..base + len` is memory exclusively ours, and it lives as long as everything carved
    /// from it.
    pub unsafe fn carve(base: *mut u8, len: usize) -> Result<Self> {
        if base.is_null() {
            return Err(refuse!(Invalid, "memory: NULL"));
        }
        let pad = base.align_offset(ARENA_ALIGN);
        let limit = len.checked_sub(pad).ok_or(Error::NoMemory)?;
        // SAFETY: pad <= len, so the result is inside the caller's memory or one past its end.
        let base = unsafe { base.add(pad) };
        Ok(Walk { base: NonNull::new(base), offset: 0, limit, pad })
    }

    /// Takes `size` bytes at `align` (a power of two); `None` in a size query.
    fn take(&mut self, size: usize, align: usize) -> Result<Option<NonNull<u8>>> {
        debug_assert!(align.is_power_of_two());
        // `base` itself is only ARENA_ALIGNed. A larger alignment takes extra room to align the
        // pointer, always the same amount, so that the query and the carving agree.
        let slack = align.saturating_sub(ARENA_ALIGN);
        let step = align.min(ARENA_ALIGN);
        let start = self.offset.checked_next_multiple_of(step).ok_or(Error::NoMemory)?;
        let end =
            start.checked_add(size).and_then(|e| e.checked_add(slack)).ok_or(Error::NoMemory)?;
        if end > self.limit {
            return Err(Error::NoMemory);
        }
        self.offset = end;
        let Some(base) = self.base else { return Ok(None) };
        // SAFETY: start <= end <= limit, all inside the memory that `carve` was promised.
        let p = unsafe { base.add(start) };
        let skip = p.align_offset(align);
        debug_assert!(skip <= slack);
        // SAFETY: p is ARENA_ALIGNed where align is larger, so skip <= slack and p + skip + size <=
        // end.
        Ok(Some(unsafe { p.add(skip) }))
    }

    /// `n` copies of `init`; empty in a size query.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where they do not fit, or their size overflows.
    pub fn slice<T: Copy>(&mut self, n: usize, init: T) -> Result<RawSlice<T>> {
        self.slice_with(n, |_| init)
    }

    /// `n` elements, each from `init(index)`; in a size query empty, and `init` is not called.
    ///
    /// `T` may hold atomics. It is never dropped.
    ///
    /// # Errors
    /// As [`Walk::slice`].
    pub fn slice_with<T>(&mut self, n: usize, init: impl FnMut(usize) -> T) -> Result<RawSlice<T>> {
        let size = n.checked_mul(size_of::<T>()).ok_or(Error::NoMemory)?;
        match self.take(size, align_of::<T>())? {
            None => Ok(RawSlice::empty()),
            // SAFETY: `take` gave `size` aligned bytes, ours alone, for as long as the caller of
            // `carve` promised.
            Some(p) => Ok(unsafe { RawSlice::fill(p.cast(), n, init) }),
        }
    }

    /// `n` elements of zeroes; empty in a size query. Of a large slice, only words that are not
    /// zero are written: fresh pages of the system stay untouched until something is put there.
    ///
    /// # Errors
    /// As [`Walk::slice`].
    pub fn zeroes<T: Zeroes>(&mut self, n: usize) -> Result<RawSlice<T>> {
        const WORD: usize = size_of::<u64>();
        let size = n.checked_mul(size_of::<T>()).ok_or(Error::NoMemory)?;
        let Some(p) = self.take(size, align_of::<T>())? else { return Ok(RawSlice::empty()) };
        if size < LARGE {
            // SAFETY: `take` gave `size` bytes, ours alone.
            unsafe { p.write_bytes(0, size) };
        } else {
            for i in 0..size / WORD {
                // SAFETY: inside those bytes, which are aligned to a word as each `Zeroes` is.
                let word = unsafe { p.cast::<u64>().add(i) };
                // SAFETY: as above; any bits are a number. Volatile, since nobody wrote them here.
                if unsafe { word.read_volatile() } != 0 {
                    // SAFETY: as above.
                    unsafe { word.write(0) };
                }
            }
        }
        // SAFETY: `n` elements, for as long as the caller of `carve` promised; zeroes are valid.
        Ok(unsafe { RawSlice::filled(p.cast(), n) })
    }

    /// `n` raw bytes at `align` (a power of two, at most 4096); empty in a size query. Not zeroed.
    ///
    /// # Errors
    /// [`Error::Invalid`] for another alignment, else as [`Walk::slice`].
    pub fn bytes(&mut self, n: usize, align: usize) -> Result<RawBytes> {
        if !align.is_power_of_two() || align > 4096 {
            return Err(refuse!(Invalid, "alignment {align}: a power of two up to 4096"));
        }
        Ok(self.take(n, align)?.map_or(RawBytes::EMPTY, |p| RawBytes { ptr: p.as_ptr(), len: n }))
    }

    /// Bytes used so far, the alignment of the memory included; after a size query, the size
    /// needed.
    pub fn offset(&self) -> usize {
        self.offset.saturating_add(self.pad)
    }
}

/// A piece of raw memory: an address and a length, nothing more. Reading it takes unsafe code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawBytes {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: a RawBytes is only an address; whoever dereferences it proves that this is sound.
unsafe impl Send for RawBytes {}
// SAFETY: as above.
unsafe impl Sync for RawBytes {}

impl RawBytes {
    /// No memory.
    pub const EMPTY: RawBytes = RawBytes { ptr: NonNull::<u8>::dangling().as_ptr(), len: 0 };

    /// Names `len` bytes at `ptr`. Nothing is read or checked.
    pub const fn from_raw(ptr: *mut u8, len: usize) -> Self {
        RawBytes { ptr, len }
    }

    /// First byte; dangling where the region is empty.
    pub const fn as_ptr(self) -> *mut u8 {
        self.ptr
    }

    /// Length in bytes.
    pub const fn len(self) -> usize {
        self.len
    }

    /// Whether it holds no bytes.
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }
}

/// Owner of a `[T]` in the arena: what `Box<[T]>` is with an allocator. Its elements are never
/// dropped.
pub struct RawSlice<T> {
    ptr: NonNull<T>,
    len: usize,
    own: PhantomData<T>,
}

// SAFETY: a RawSlice owns its elements alone, as a Box<[T]> does.
unsafe impl<T: Send> Send for RawSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for RawSlice<T> {}

impl<T> RawSlice<T> {
    /// No elements.
    pub const fn empty() -> Self {
        RawSlice { ptr: NonNull::dangling(), len: 0, own: PhantomData }
    }

    /// Owns `n` elements at `ptr`.
    ///
    /// # Safety
    /// As for `fill`, and they are initialised.
    unsafe fn filled(ptr: NonNull<T>, n: usize) -> Self {
        RawSlice { ptr, len: n, own: PhantomData }
    }

    /// Writes `n` elements at `ptr` and owns them.
    ///
    /// # Safety
    /// `ptr` is aligned, and `n` elements there are memory that nothing else uses, for as long as
    /// the RawSlice and everything made from it lives.
    unsafe fn fill(ptr: NonNull<T>, n: usize, mut init: impl FnMut(usize) -> T) -> Self {
        for i in 0..n {
            // SAFETY: i < n, inside what the caller promised.
            let p = unsafe { ptr.add(i) };
            // SAFETY: p is valid and aligned by the caller's promise; what was there is raw bytes.
            unsafe { p.write(init(i)) };
        }
        RawSlice { ptr, len: n, own: PhantomData }
    }
}

impl<T> Deref for RawSlice<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `fill` initialised `len` elements at `ptr`, which are ours alone and stay.
        unsafe { core::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for RawSlice<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the borrow exclusive.
        unsafe { core::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T> Default for RawSlice<T> {
    fn default() -> Self {
        RawSlice::empty()
    }
}

impl<T: fmt::Debug> fmt::Debug for RawSlice<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
