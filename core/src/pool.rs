//! Index and generation allocator: the handles of objects in the API.
//!
//! A handle is `generation << 32 | tag << 24 | index`. A generation is odd while its object lives
//! and even while the index is free, and advances by one each way. The table has the handle of each
//! index that lives, and for a free one a word that is no handle of that index. So a handle that is
//! stale, invented or of another type is recognised by one comparison, and a live one is never 0.
//! The generations of a context begin far from those of others ([`first_generation`]), so a handle
//! of another context is recognised by the same comparison.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arena::{Heap, Table, Walk};
use crate::error::{Error, Result};
use crate::reason::refuse;
use crate::verbs::types::Handle;

/// Bits of a handle that hold the index.
const INDEX_BITS: u32 = 24;
/// Largest number of indexes.
const INDEX_MAX: usize = 1 << INDEX_BITS;
/// End of the free list.
const NIL: u32 = u32::MAX;

/// The handle of an object, in the object: a thread that was given one finds both by one look-up.
/// [`Pool`] decides which handles live, and the engine keeps this in step.
pub struct LiveHandle(AtomicU64);

/// No table is so large that a handle with this index finds an object.
const NAMELESS: Handle = u64::MAX;

impl Default for LiveHandle {
    fn default() -> LiveHandle {
        LiveHandle::NONE
    }
}

impl LiveHandle {
    /// That of an object without a handle.
    #[allow(clippy::declare_interior_mutable_const)] // a value to begin with
    pub(crate) const NONE: LiveHandle = LiveHandle(AtomicU64::new(NAMELESS));

    /// Whether the object lives, and this is its handle. A thread that gets true sees what was
    /// written before it had the name.
    #[inline(always)]
    pub fn is(&self, handle: Handle) -> bool {
        self.0.load(Ordering::Acquire) == handle
    }

    /// The object lives from now on.
    pub(crate) fn give(&self, handle: Handle) {
        self.0.store(handle, Ordering::Release);
    }

    /// The object has ended.
    pub(crate) fn take(&self) {
        self.0.store(NAMELESS, Ordering::Release);
    }
}

macro_rules! tags {
    ($($tag:ident = $n:literal, $argument:literal, $bound:literal;)*) => {
        /// Tags of handles, by object type.
        #[allow(missing_docs)]
        pub mod tag {
            $(pub const $tag: u8 = $n;)*
        }

        /// The argument that has a handle of this type, and the bound of the configuration for such
        /// objects.
        pub(crate) const fn names_of(tag: u8) -> (&'static str, &'static str) {
            match tag {
                $($n => ($argument, $bound),)*
                _ => ("handle", "the bound"),
            }
        }
    };
}

tags! {
    PD = 1, "pd", "max_pd";
    MR = 2, "mr", "max_mr";
    MW = 3, "mw", "max_mr";
    CQ = 4, "cq", "max_cq";
    QP = 5, "qp", "max_qp";
    SRQ = 6, "srq", "max_srq";
    AH = 7, "ah", "max_ah";
    CM_ID = 8, "id", "max_cm_ids";
    XRCD = 9, "xrcd", "max_pd";
    CHANNEL = 10, "channel", "the channels of a context";
}

/// The generation with which free indexes begin in the context with this number, so that handles of
/// different contexts differ. The step is 2^32 divided by the golden ratio, which spreads any
/// number of contexts evenly: two are 800 million uses of an index apart, a thousand some million.
pub const fn first_generation(context: u32) -> u32 {
    context.wrapping_mul(0x9e37_79b9) & !1
}

/// The word of an index in its table: its handle. A free index (its generation is even) has the
/// handle with another index, which matches nobody's.
const fn word(generation: u32, tag: u8, index: usize) -> u64 {
    handle_of(generation, tag, index) ^ (!generation & 1) as u64
}

/// The handle of an object of a type, at an index below 2^24.
pub const fn handle_of(generation: u32, tag: u8, index: usize) -> Handle {
    (generation as u64) << 32 | (tag as u64) << INDEX_BITS | index as u64
}

/// The index in a handle.
#[inline(always)]
pub const fn index_of(h: Handle) -> usize {
    (h as u32 as usize) & (INDEX_MAX - 1)
}

/// The tag in a handle.
pub const fn tag_of(h: Handle) -> u8 {
    (h >> INDEX_BITS) as u8
}

/// The generation in a handle.
pub const fn generation_of(h: Handle) -> u32 {
    (h >> 32) as u32
}

/// Deals out indexes of one type of object, oldest free index first, so that a stale handle meets
/// the same generation again only after 2^31 reuses of every index.
///
/// # Thread-safety
/// `check` and the other questions: any thread. `alloc`, `free`, `grow`: one thread at a time (the
/// engine's lock).
pub struct Pool {
    /// Object type, in every handle.
    tag: u8,
    /// Of indexes that were never used.
    first: u32,
    /// By index: its handle ([`word`]).
    handles: Table<AtomicU64>,
    /// By index: the next free index.
    next: Table<AtomicU32>,
    /// Oldest free index.
    head: AtomicU32,
    /// Latest free index.
    tail: AtomicU32,
    /// Live objects.
    live: AtomicU32,
    /// Most of them.
    most: usize,
}

impl Pool {
    /// A pool of `initial` indexes that can grow to `limit`, both rounded up to whole chunks, of
    /// the objects of a type in the context with a number. `most`: of so many objects at a time.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where it does not fit, [`Error::Invalid`] for more than 2^24 indexes.
    pub fn carve(
        walk: &mut Walk,
        (tag, context): (u8, u32),
        initial: usize,
        limit: usize,
        most: Option<u64>,
    ) -> Result<Self> {
        if limit > INDEX_MAX {
            return Err(refuse!(Invalid, "{} {limit}: at most {INDEX_MAX}", bound_of(tag)));
        }
        let first = first_generation(context);
        let handles = Table::carve(walk, initial, limit, |i| AtomicU64::new(word(first, tag, i)))?;
        let next = Table::carve(walk, initial, limit, |_| AtomicU32::new(NIL))?;
        let pool = Pool {
            tag,
            first,
            handles,
            next,
            head: AtomicU32::new(NIL),
            tail: AtomicU32::new(NIL),
            live: AtomicU32::new(0),
            most: most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX),
        };
        for i in 0..pool.next.len() {
            pool.append(i as u32);
        }
        Ok(pool)
    }

    /// Adds a chunk of indexes from the heap.
    ///
    /// # Errors
    /// [`Error::NoMemory`] at the limit or where the heap has no room; the pool is then as before.
    pub fn grow(&self, heap: &mut Heap) -> Result<()> {
        self.add_chunk(heap).inspect_err(|e| self.exhausted(e))
    }

    /// The words of a growth that has failed.
    #[cold]
    fn exhausted(&self, e: &Error) {
        if *e == Error::NoMemory {
            let (n, bound) = (self.live(), bound_of(self.tag));
            refuse!(
                NoMemory,
                "{bound}: {n} are in use, and there is no \
                 room for more; raise it, or give more memory"
            );
        }
    }

    fn add_chunk(&self, heap: &mut Heap) -> Result<()> {
        let first = self.capacity();
        self.next.grow_past(first, heap, |_| AtomicU32::new(NIL))?;
        self.handles.grow(heap, |i| AtomicU64::new(word(self.first, self.tag, i)))?;
        for i in first..self.capacity() {
            self.append(i as u32);
        }
        Ok(())
    }

    /// Puts `i` at the end of the free list.
    fn append(&self, i: u32) {
        self.next[i as usize].store(NIL, Ordering::Relaxed);
        match self.tail.load(Ordering::Relaxed) {
            NIL => self.head.store(i, Ordering::Relaxed),
            last => self.next[last as usize].store(i, Ordering::Relaxed),
        }
        self.tail.store(i, Ordering::Relaxed);
    }

    /// A fresh handle and its index. The pool does not grow by itself.
    ///
    /// # Errors
    /// [`Error::NoMemory`] when all indexes are live; [`Error::Limit`].
    pub fn alloc(&self) -> Result<(Handle, usize)> {
        if self.live() >= self.most {
            let bound = bound_of(self.tag);
            return Err(refuse!(Limit, "{bound}: the device allows {}", self.most));
        }
        let head = self.head.load(Ordering::Relaxed);
        if head == NIL {
            // No words: the caller grows the pool next, which gives one if it fails.
            return Err(Error::NoMemory);
        }
        let index = head as usize;
        let next = self.next[index].load(Ordering::Relaxed);
        self.head.store(next, Ordering::Relaxed);
        if next == NIL {
            self.tail.store(NIL, Ordering::Relaxed);
        }
        self.step(index);
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok((self.handle(index), index))
    }

    /// A handle by `take`: [`Pool::alloc`] or [`Pool::adopt`]. If the pool has no room, it grows,
    /// after `tables` has grown the tables of its objects, which have as many elements.
    ///
    /// # Errors
    /// Those of `take`, `tables` and [`Pool::grow`].
    pub fn growing(
        &self,
        heap: &mut Heap,
        take: impl Fn(&Pool) -> Result<(Handle, usize)>,
        tables: impl Fn(usize, &mut Heap) -> Result<()>,
    ) -> Result<(Handle, usize)> {
        loop {
            match take(self) {
                Err(Error::NoMemory) => {
                    tables(self.capacity(), heap).inspect_err(|e| self.exhausted(e))?;
                    self.grow(heap)?;
                }
                other => return other,
            }
        }
    }

    /// Makes a handle of another pool of this type live here, so that it names one object in
    /// several engines. Returns its index, too.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: the pool has to grow first. [`Error::Busy`]: the index is live here.
    ///
    /// # Cost
    /// A walk through the free list up to the index: it is the first one where all pools have had
    /// the same calls.
    pub fn adopt(&self, h: Handle) -> Result<(Handle, usize)> {
        let index = index_of(h);
        if index >= self.capacity() {
            // No words: the caller grows the pool next.
            return Err(Error::NoMemory);
        }
        self.unlink(index as u32)?;
        self.handles[index].store(h, Ordering::Release);
        self.live.fetch_add(1, Ordering::Relaxed);
        Ok((h, index))
    }

    /// Becomes a copy of another pool of this type: the same handles are live, and the same indexes
    /// come next.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: the pool has to grow first. [`Error::Busy`]: it is the larger one, or
    /// has live objects.
    pub fn copy(&self, of: &Pool) -> Result<()> {
        if self.capacity() < of.capacity() {
            // No words: the caller grows the pool next.
            return Err(Error::NoMemory);
        }
        if self.capacity() > of.capacity() || self.live() != 0 {
            return Err(refuse!(Busy, "{}: in use in another engine", bound_of(self.tag)));
        }
        let put = |to: &AtomicU32, from: &AtomicU32| {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        };
        for (to, from) in self.handles.iter().zip(of.handles.iter()) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
        self.next.iter().zip(of.next.iter()).for_each(|(to, from)| put(to, from));
        put(&self.head, &of.head);
        put(&self.tail, &of.tail);
        put(&self.live, &of.live);
        Ok(())
    }

    /// Takes `i` out of the free list.
    fn unlink(&self, i: u32) -> Result<()> {
        let (mut before, mut at) = (NIL, self.head.load(Ordering::Relaxed));
        while at != i {
            if at == NIL {
                return Err(refuse!(Busy, "handle: its index is in use in another engine"));
            }
            (before, at) = (at, self.next[at as usize].load(Ordering::Relaxed));
        }
        let after = self.next[i as usize].load(Ordering::Relaxed);
        match before {
            NIL => self.head.store(after, Ordering::Relaxed),
            before => self.next[before as usize].store(after, Ordering::Relaxed),
        }
        if after == NIL {
            self.tail.store(before, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Ends the life of `index`: its handles are stale from here on. One that is not live is left
    /// alone.
    pub fn free(&self, index: usize) {
        if !self.is_live(index) {
            debug_assert!(false, "free of an index that is not live");
            return;
        }
        self.step(index);
        self.live.fetch_sub(1, Ordering::Relaxed);
        self.append(index as u32);
    }

    /// Advances the generation. Release: a thread whose `check` passes sees what was written
    /// before.
    fn step(&self, index: usize) {
        let at = &self.handles[index];
        let next = generation_of(at.load(Ordering::Relaxed)).wrapping_add(1);
        at.store(word(next, self.tag, index), Ordering::Release);
    }

    /// The index of a live handle of this type. Any thread, wait-free.
    ///
    /// # Errors
    /// [`Error::StaleHandle`] for everything else.
    #[inline]
    pub fn check(&self, h: Handle) -> Result<usize> {
        let index = index_of(h);
        match self.handles.get(index) {
            Some(at) if at.load(Ordering::Acquire) == h => Ok(index),
            _ => Err(stale(self.tag, h)),
        }
    }

    /// The handle of `index` as it stands; stale while the index is free. Panics for an index out
    /// of range.
    pub fn handle(&self, index: usize) -> Handle {
        let generation = generation_of(self.handles[index].load(Ordering::Relaxed));
        handle_of(generation, self.tag, index)
    }

    /// Whether `index` is live.
    pub fn is_live(&self, index: usize) -> bool {
        let lives = |at: &AtomicU64| generation_of(at.load(Ordering::Acquire)) & 1 == 1;
        self.handles.get(index).is_some_and(lives)
    }

    /// Live objects.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::Relaxed) as usize
    }

    /// Indexes that exist now.
    pub fn capacity(&self) -> usize {
        self.handles.len()
    }

    /// Indexes that are live, in order.
    pub fn iter_live(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.capacity()).filter(|&i| self.is_live(i))
    }
}

fn bound_of(tag: u8) -> &'static str {
    names_of(tag).1
}

/// Why a handle is refused where one of type `tag` is wanted, 0: of any.
#[cold]
#[inline(never)]
pub fn stale(tag: u8, h: Handle) -> Error {
    let wanted = names_of(tag).0;
    let given = names_of(tag_of(h)).0;
    match h {
        0 => refuse!(StaleHandle, "{wanted} {{0}}: no handle"),
        _ if tag != 0 && given != wanted && given != "handle" => {
            refuse!(StaleHandle, "{wanted} {h:#x}: the handle is of another type ({given})")
        }
        _ => refuse!(StaleHandle, "{wanted} {h:#x}: stale, it was destroyed; or another context's"),
    }
}

#[cfg(test)]
mod tests;
