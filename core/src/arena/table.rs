//! A table that grows: its elements never move, and any thread may read it meanwhile.
//!
//! The elements that it is made with lie in one block, and those that come later in chunks under a
//! directory. Most tables never grow, and finding an element of the block takes half of the
//! instructions that one of a chunk takes.

use core::marker::PhantomData;
use core::ops::{Index, IndexMut};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use super::{Heap, RawSlice, Walk};
use crate::error::{Error, Result};
use crate::reason::refuse;

/// Elements in a chunk: few, so that an engine for a few objects is small.
pub const CHUNK: usize = 4;

/// Elements in a block, and more of them in chunks of [`CHUNK`] under a directory that is sized for
/// the limit.
///
/// `len` is published with release after the chunk's pointer and its elements; readers load it with
/// acquire.
pub struct Table<T> {
    block: RawSlice<T>,
    directory: RawSlice<AtomicPtr<T>>,
    /// Elements of both.
    len: AtomicU32,
    /// A thread is in `grow`.
    growing: AtomicBool,
    /// AtomicPtr is Send and Sync for every T; a table is only as far as T is.
    own: PhantomData<T>,
}

impl<T> Table<T> {
    /// A table of `initial` elements that can grow to `limit`, both rounded up to whole chunks.
    ///
    /// In a size query it is empty, and `init` is not called.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where it does not fit, [`Error::Invalid`] for `initial > limit` or over
    /// 2^31 elements.
    pub fn carve(
        walk: &mut Walk,
        initial: usize,
        limit: usize,
        mut init: impl FnMut(usize) -> T,
    ) -> Result<Self> {
        if initial > limit || limit > 1 << 31 {
            return Err(refuse!(
                Invalid,
                "{initial} elements, {limit} at most: more than a table holds"
            ));
        }
        let first = initial.next_multiple_of(CHUNK);
        let chunks = limit.div_ceil(CHUNK) - first / CHUNK;
        let directory: RawSlice<AtomicPtr<T>> = walk.zeroes(chunks)?;
        let block = walk.slice_with(first, &mut init)?;
        let len = AtomicU32::new(block.len() as u32);
        Ok(Table { block, directory, len, growing: AtomicBool::new(false), own: PhantomData })
    }

    /// Publishes one more chunk. Only one thread may be here at a time.
    fn attach(&self, chunk: RawSlice<T>) -> Result<()> {
        debug_assert_eq!(chunk.len(), CHUNK);
        let len = self.len.load(Ordering::Relaxed);
        let number = (len as usize - self.block.len()) / CHUNK;
        let entry = self.directory.get(number).ok_or(Error::NoMemory)?;
        // Pairs with the acquire in `get`.
        entry.store(chunk.ptr.as_ptr(), Ordering::Release);
        // Pairs with the acquire in `len`: a reader of the length sees the pointer and the
        // elements.
        self.len.store(len + CHUNK as u32, Ordering::Release);
        Ok(())
    }

    /// Adds one chunk from the heap, while other threads read; `init` gets the new indexes.
    ///
    /// # Errors
    /// [`Error::NoMemory`] at the limit, or where the heap has no room; [`Error::Busy`] while
    /// another thread grows it.
    pub fn grow(&self, heap: &mut Heap, mut init: impl FnMut(usize) -> T) -> Result<()> {
        if self.growing.swap(true, Ordering::Acquire) {
            return Err(Error::Busy);
        }
        let len = self.len();
        let outcome = if len >= self.limit() {
            Err(Error::NoMemory)
        } else {
            heap.slice_with(CHUNK, |i| init(len + i)).and_then(|chunk| self.attach(chunk))
        };
        self.growing.store(false, Ordering::Release);
        outcome
    }

    /// Adds one chunk unless there are more than `have` elements. Tables that grow together may
    /// differ in size: an earlier growth may have found no room for one of them.
    ///
    /// # Errors
    /// As [`Table::grow`].
    pub fn grow_past(
        &self,
        have: usize,
        heap: &mut Heap,
        init: impl FnMut(usize) -> T,
    ) -> Result<()> {
        if self.len() > have {
            return Ok(());
        }
        self.grow(heap, init)
    }

    /// Elements that exist now.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.load(Ordering::Acquire) as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Elements that it can grow to.
    pub fn limit(&self) -> usize {
        self.block.len() + self.directory.len() * CHUNK
    }

    /// Where element `i` lies, if it exists.
    #[inline(always)]
    fn at(&self, i: usize) -> Option<*mut T> {
        if i >= self.block.len() {
            return self.in_chunk(i);
        }
        // SAFETY: inside the block.
        Some(unsafe { self.block.ptr.as_ptr().add(i) })
    }

    /// [`Table::at`] behind the block. Inlined: around a call the caller would keep its values in
    /// memory.
    #[inline(always)]
    fn in_chunk(&self, i: usize) -> Option<*mut T> {
        if i >= self.len() {
            return None;
        }
        let behind = i - self.block.len();
        // SAFETY: below the length, so `attach` stored the pointer of its chunk before it stored
        // that length.
        let chunk = unsafe { self.directory.get_unchecked(behind / CHUNK) }.load(Ordering::Acquire);
        // SAFETY: as above: CHUNK elements that never move.
        Some(unsafe { chunk.add(behind % CHUNK) })
    }

    /// Element `i`, from any thread.
    #[inline(always)]
    pub fn get(&self, i: usize) -> Option<&T> {
        // SAFETY: `at` gives live elements only, and they are borrowed from the table.
        self.at(i).map(|p| unsafe { &*p })
    }

    /// Two different elements, exclusively; `None`: one of them does not exist, or they are one.
    #[inline(always)]
    pub fn pair_mut(&mut self, i: usize, j: usize) -> Option<(&mut T, &mut T)> {
        if i == j {
            return None;
        }
        let (a, b) = (self.at(i)?, self.at(j)?);
        // SAFETY: `at` gives live elements only; they are two, and the table is borrowed
        // exclusively.
        Some(unsafe { (&mut *a, &mut *b) })
    }

    /// Element `i`, exclusively.
    #[inline(always)]
    pub fn get_mut(&mut self, i: usize) -> Option<&mut T> {
        // SAFETY: as `get`, and `&mut self` makes the borrow exclusive.
        self.at(i).map(|p| unsafe { &mut *p })
    }

    /// All elements that exist now, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &T> + '_ {
        (0..self.len()).map(|i| &self[i])
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;
    /// Element `i`; panics where it does not exist, so only for indexes that are our own.
    #[inline]
    fn index(&self, i: usize) -> &T {
        self.get(i).expect("table index")
    }
}

impl<T> IndexMut<usize> for Table<T> {
    #[inline]
    fn index_mut(&mut self, i: usize) -> &mut T {
        self.get_mut(i).expect("table index")
    }
}
