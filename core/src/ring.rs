//! Rings of fixed-stride slots: what a program and the engine share (SQ, RQ, SRQ, CQ).
//!
//! One producer, one consumer, each wait-free. Indexes are u32, run freely and are masked at
//! access. A slot is a header `H` and a tail of `stride - size_of::<H>()` bytes (scatter/gather
//! list or inline data).
//! One end of each ring is the program's, the other the engine's. The program's end takes a busy
//! flag, so that the second of two threads gets [`crate::Error::Busy`] instead of a race; the
//! engine's end relies on the engine's lock.
//!
//! The two pairs that carry the data: `tail` is stored with release by [`Producer::publish`] and
//! loaded with acquire by the consumer, so slots are complete when seen; `head` is stored with
//! release by [`Consumer::release`] and loaded with acquire by the producer, so slots are no longer
//! read when reused.

use core::cell::Cell;
use core::marker::PhantomData;
use core::mem::{align_of, size_of};
#[cfg(not(loom))]
use core::ptr;

use crossbeam_utils::CachePadded;

use crate::arena::RawBytes;
use crate::error::{Error, Result};
use crate::pool::LiveHandle;
use crate::sync::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use crate::verbs::types::Sge;

/// Largest capacity: free-running u32 indexes need one spare bit.
const CAPACITY_MAX: u32 = 1 << 31;
/// What a stride must be a multiple of, so that each tail can hold 8-byte fields.
const STRIDE_ALIGN: usize = 8;

/// One end's cursor and busy flag, on cache lines of their own.
struct RingEnd {
    /// Free-running index: the next to publish, or the next to take.
    cursor: AtomicU32,
    /// A thread of the program is inside.
    busy: AtomicBool,
}

/// A ring of slots with a header of type `H`, in memory that [`SlotRing::install`] gives.
///
/// Without memory its capacity is 0: it is full for a producer and empty for a consumer.
pub struct SlotRing<H> {
    /// Slot 0. These three change only in `install`, when nobody is at either end.
    base: AtomicPtr<u8>,
    stride: AtomicU32,
    capacity: AtomicU32,
    /// The handle of an object that is found together with this ring (a CQ). It is here because
    /// this cache line has room, and a poll reads the line.
    pub name: LiveHandle,
    producing: CachePadded<RingEnd>,
    consuming: CachePadded<RingEnd>,
    #[cfg(loom)]
    shadow: Shadow,
    /// Headers are copied in and out through raw memory.
    headers: PhantomData<*mut H>,
}

// SAFETY: headers move between the two threads, hence H: Send; the cursors order every access
// (module documentation), the busy flags and the contracts of the engine's ends keep it at one
// thread per end.
unsafe impl<H: Send> Send for SlotRing<H> {}
// SAFETY: as above.
unsafe impl<H: Send> Sync for SlotRing<H> {}

impl<H> SlotRing<H> {
    /// A ring without memory.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        const fn end() -> CachePadded<RingEnd> {
            CachePadded::new(RingEnd { cursor: AtomicU32::new(0), busy: AtomicBool::new(false) })
        }
        SlotRing {
            base: AtomicPtr::new(ptr::null_mut()),
            stride: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            name: LiveHandle::NONE,
            producing: end(),
            consuming: end(),
            headers: PhantomData,
        }
    }

    /// A ring without memory.
    #[cfg(loom)]
    pub fn new() -> Self {
        let end = || {
            CachePadded::new(RingEnd { cursor: AtomicU32::new(0), busy: AtomicBool::new(false) })
        };
        SlotRing {
            base: AtomicPtr::new(core::ptr::null_mut()),
            stride: AtomicU32::new(0),
            capacity: AtomicU32::new(0),
            name: LiveHandle::NONE,
            producing: end(),
            consuming: end(),
            shadow: Shadow::default(),
            headers: PhantomData,
        }
    }
}

impl<H> Default for SlotRing<H> {
    fn default() -> Self {
        SlotRing::new()
    }
}

impl<H: Copy> SlotRing<H> {
    /// Bytes of memory for `capacity` slots (a power of two) of `stride` bytes.
    ///
    /// `None` where the capacity is no power of two, the stride is less than a header or no
    /// multiple of 8 and of the header's alignment, or the size overflows.
    pub fn bytes(capacity: u32, stride: u32) -> Option<usize> {
        let step = stride as usize;
        let fits =
            step >= size_of::<H>() && step % STRIDE_ALIGN == 0 && step % align_of::<H>() == 0;
        let whole = capacity.is_power_of_two() && capacity <= CAPACITY_MAX;
        if fits && whole && step > 0 {
            (capacity as usize).checked_mul(step)
        } else {
            None
        }
    }

    /// Gives the ring its memory, zeroes it and empties the ring. With an empty region and capacity
    /// 0 it takes the memory away.
    ///
    /// Panics where [`SlotRing::bytes`] is `None`, or larger than the region.
    ///
    /// # Safety
    /// `r` is memory exclusively the ring's until the next install, aligned for `H` and to 8 (a
    /// heap's blocks are). All-zero bytes are a valid `H`. Nobody uses a Producer or Consumer made
    /// before, and nobody makes one meanwhile: both busy flags are held, or the object is not
    /// published.
    pub unsafe fn install(&self, r: RawBytes, capacity: u32, stride: u32) {
        if capacity > 0 {
            let size = Self::bytes(capacity, stride).expect("ring geometry");
            assert!(
                size <= r.len() && r.as_ptr() as usize % align_of::<H>().max(STRIDE_ALIGN) == 0
            );
            // Zeroed, so that headers and tails are initialised memory before the first lap, and
            // nothing of an earlier owner is left in them.
            // SAFETY: the caller gives these bytes to the ring alone; size <= r.len().
            unsafe { r.as_ptr().write_bytes(0, size) };
        }
        self.base.store(r.as_ptr(), Ordering::Relaxed);
        self.stride.store(stride, Ordering::Relaxed);
        self.capacity.store(capacity, Ordering::Relaxed);
        self.producing.cursor.store(0, Ordering::Relaxed);
        self.consuming.cursor.store(0, Ordering::Relaxed);
    }

    /// Takes the memory away: a ring of no capacity, which nothing can be posted to.
    ///
    /// # Safety
    /// As [`SlotRing::install`].
    pub unsafe fn uninstall(&self) {
        self.base.store(core::ptr::null_mut(), Ordering::Relaxed);
        self.stride.store(0, Ordering::Relaxed);
        self.capacity.store(0, Ordering::Relaxed);
        self.producing.cursor.store(0, Ordering::Relaxed);
        self.consuming.cursor.store(0, Ordering::Relaxed);
    }

    /// Takes over the memory and the entries of `other`, which is not used any more.
    ///
    /// # Safety
    /// As [`SlotRing::install`], for both.
    pub unsafe fn adopt(&self, other: &Self) {
        self.base.store(other.base.load(Ordering::Relaxed), Ordering::Relaxed);
        self.stride.store(other.stride.load(Ordering::Relaxed), Ordering::Relaxed);
        self.capacity.store(other.capacity.load(Ordering::Relaxed), Ordering::Relaxed);
        let (head, tail) = (&other.consuming.cursor, &other.producing.cursor);
        self.consuming.cursor.store(head.load(Ordering::Relaxed), Ordering::Relaxed);
        self.producing.cursor.store(tail.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Number of slots; 0 while there is no memory.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Bytes of a slot.
    #[inline(always)]
    pub fn stride(&self) -> u32 {
        self.stride.load(Ordering::Relaxed)
    }

    /// Free-running index of the next slot to publish. Any thread; a snapshot.
    #[inline(always)]
    pub fn tail(&self) -> u32 {
        self.producing.cursor.load(Ordering::Acquire)
    }

    /// Published elements that are not released yet. Any thread; a snapshot.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        let head = self.consuming.cursor.load(Ordering::Acquire);
        let tail = self.producing.cursor.load(Ordering::Acquire);
        // A snapshot of two cursors: between the loads both may have moved on, tail by more than a
        // lap.
        tail.wrapping_sub(head).min(self.capacity())
    }

    /// Whether there is none. Any thread; a snapshot.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        // The tail is never behind a head that was read before it.
        self.consuming.cursor.load(Ordering::Acquire)
            == self.producing.cursor.load(Ordering::Acquire)
    }

    /// The program's producing end, or `None` while another thread is inside. Dropping it releases
    /// it.
    #[inline(always)]
    pub fn producer(&self) -> Option<Producer<'_, H>> {
        // Acquire pairs with the release in drop: the cursor and geometry of the last thread are
        // seen.
        if self.producing.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(self.make_producer(true))
    }

    /// The program's consuming end, or `None` while another thread is inside. Dropping it releases
    /// it.
    #[inline(always)]
    pub fn consumer(&self) -> Option<Consumer<'_, H>> {
        if self.consuming.busy.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(self.make_consumer(true))
    }

    /// The engine's producing end, of rings whose consuming end is the program's.
    ///
    /// # Safety
    /// The engine's lock is held for as long as this lives, no other producing end of this ring is
    /// alive, and [`SlotRing::producer`] is not used on it.
    #[inline(always)]
    pub unsafe fn engine_producer(&self) -> EngineProducer<'_, H> {
        self.make_producer(false)
    }

    /// The engine's consuming end, of rings whose producing end is the program's.
    ///
    /// # Safety
    /// The engine's lock is held for as long as this lives, no other consuming end of this ring is
    /// alive, and [`SlotRing::consumer`] is not used on it.
    #[inline(always)]
    pub unsafe fn engine_consumer(&self) -> EngineConsumer<'_, H> {
        self.make_consumer(false)
    }

    #[inline(always)]
    fn make_producer(&self, guard: bool) -> Producer<'_, H> {
        Producer {
            ring: self,
            guard,
            capacity: self.capacity(),
            tail: self.producing.cursor.load(Ordering::Relaxed),
            head_seen: Cell::new(self.consuming.cursor.load(Ordering::Acquire)),
        }
    }

    #[inline(always)]
    fn make_consumer(&self, guard: bool) -> Consumer<'_, H> {
        Consumer {
            ring: self,
            guard,
            head: self.consuming.cursor.load(Ordering::Relaxed),
            tail_seen: Cell::new(self.producing.cursor.load(Ordering::Acquire)),
        }
    }

    #[inline(always)]
    fn geometry(&self) -> Geometry {
        Geometry {
            base: self.base.load(Ordering::Relaxed),
            stride: self.stride(),
            capacity: self.capacity(),
        }
    }

    /// Tells loom that this slot is written now.
    #[inline(always)]
    fn touch_mut(&self, _index: u32) {
        #[cfg(loom)]
        self.shadow.0[(_index & (self.capacity() - 1)) as usize].with_mut(|_| ());
    }

    /// Tells loom that this slot is read now.
    #[inline(always)]
    fn touch(&self, _index: u32) {
        #[cfg(loom)]
        self.shadow.0[(_index & (self.capacity() - 1)) as usize].with(|_| ());
    }
}

/// Slots that loom watches: the ring memory itself is invisible to it. Model rings are no larger.
#[cfg(loom)]
const SHADOWS: usize = 4;

/// One loom cell per slot, touched wherever the slot is.
#[cfg(loom)]
#[derive(Default)]
struct Shadow([loom::cell::UnsafeCell<()>; SHADOWS]);

/// Where the slots are. Read anew for each slot, so that an end need not keep these words in
/// registers.
#[derive(Clone, Copy)]
struct Geometry {
    base: *mut u8,
    stride: u32,
    capacity: u32,
}

impl Geometry {
    /// First byte of the slot of a free-running index. `capacity` is not 0.
    #[inline(always)]
    fn slot(&self, index: u32) -> *mut u8 {
        let i = (index & (self.capacity - 1)) as usize;
        // SAFETY: `install` checked that capacity * stride bytes lie at base, and i < capacity.
        unsafe { self.base.add(i * self.stride as usize) }
    }

    /// Bytes behind the header.
    #[inline(always)]
    fn tail_len<H>(&self) -> usize {
        self.stride as usize - size_of::<H>()
    }
}

/// The producing end of a [`SlotRing`].
pub struct Producer<'a, H> {
    ring: &'a SlotRing<H>,
    /// Holds the busy flag.
    guard: bool,
    capacity: u32,
    /// Next index to publish.
    tail: u32,
    /// The consumer's cursor as last seen.
    head_seen: Cell<u32>,
}

/// The engine's producing end: the same, under the engine's lock in place of the busy flag.
pub type EngineProducer<'a, H> = Producer<'a, H>;

impl<H: Copy> Producer<'_, H> {
    /// Free slots as last seen; [`Producer::free`] looks anew.
    #[inline(always)]
    pub fn room(&self) -> u32 {
        self.capacity.saturating_sub(self.tail.wrapping_sub(self.head_seen.get()))
    }

    /// Free slots now; only the consumer can change that, to more.
    #[inline(always)]
    pub fn free(&self) -> u32 {
        self.head_seen.set(self.ring.consuming.cursor.load(Ordering::Acquire));
        self.room()
    }

    /// The `k`-th unpublished slot. Panics unless `k < free()`.
    #[inline(always)]
    pub fn slot(&mut self, k: u32) -> Slot<'_, H> {
        assert!(k < self.room() || k < self.free(), "slot beyond the free ones");
        let index = self.tail.wrapping_add(k);
        self.ring.touch_mut(index);
        let at = self.ring.geometry();
        Slot { at: at.slot(index), tail: at.tail_len::<H>(), owner: PhantomData }
    }

    /// Hands the first `n` unpublished slots to the consumer. Panics unless `n <= free()`.
    #[inline(always)]
    pub fn publish(&mut self, n: u32) {
        assert!(n <= self.room() || n <= self.free(), "publish beyond the free slots");
        self.tail = self.tail.wrapping_add(n);
        self.ring.producing.cursor.store(self.tail, Ordering::Release);
    }

    /// Number of slots.
    #[inline(always)]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Free-running index of the next slot to publish.
    #[inline(always)]
    pub fn tail(&self) -> u32 {
        self.tail
    }

    /// Publishes one element that is a header only; its tail bytes stay as they are.
    ///
    /// # Errors
    /// [`Error::Again`] when the ring is full.
    #[inline(always)]
    pub fn push(&mut self, h: H) -> Result<()> {
        if self.room() == 0 && self.free() == 0 {
            return Err(Error::Again);
        }
        *self.slot(0).header_mut() = h;
        self.publish(1);
        Ok(())
    }
}

impl<H> Drop for Producer<'_, H> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.guard {
            self.ring.producing.busy.store(false, Ordering::Release);
        }
    }
}

/// The consuming end of a [`SlotRing`].
pub struct Consumer<'a, H> {
    ring: &'a SlotRing<H>,
    /// Holds the busy flag.
    guard: bool,
    /// Next index to release.
    head: u32,
    /// The producer's cursor as last seen.
    tail_seen: Cell<u32>,
}

/// The engine's consuming end: the same, under the engine's lock in place of the busy flag.
pub type EngineConsumer<'a, H> = Consumer<'a, H>;

impl<H: Copy> Consumer<'_, H> {
    /// Published elements that have been seen; [`Consumer::len`] looks anew.
    #[inline(always)]
    pub fn ready(&self) -> u32 {
        self.tail_seen.get().wrapping_sub(self.head)
    }

    /// Published elements now; only the producer can change that, to more.
    #[inline(always)]
    pub fn len(&self) -> u32 {
        self.tail_seen.set(self.ring.producing.cursor.load(Ordering::Acquire));
        self.ready()
    }

    /// Whether there is none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Free-running index behind the last element that has been seen; [`Consumer::len`] looks anew.
    #[inline(always)]
    pub fn end(&self) -> u32 {
        self.tail_seen.get()
    }

    /// The `k`-th element. Panics unless `k < len()`.
    #[inline(always)]
    pub fn peek(&self, k: u32) -> SlotRef<'_, H> {
        assert!(k < self.ready() || k < self.len(), "peek beyond the published slots");
        let index = self.head.wrapping_add(k);
        self.ring.touch(index);
        let at = self.ring.geometry();
        SlotRef { at: at.slot(index), tail: at.tail_len::<H>(), owner: PhantomData }
    }

    /// The element of a free-running index. Panics unless it is in `head()..head() + len()`.
    #[inline(always)]
    pub fn at(&self, index: u32) -> SlotRef<'_, H> {
        self.peek(index.wrapping_sub(self.head))
    }

    /// Gives the first `n` slots back to the producer. Panics unless `n <= len()`.
    #[inline(always)]
    pub fn release(&mut self, n: u32) {
        assert!(n <= self.ready() || n <= self.len(), "release beyond the published slots");
        self.head = self.head.wrapping_add(n);
        self.ring.consuming.cursor.store(self.head, Ordering::Release);
    }

    /// Exchanges the first element with the `k`-th. Panics unless `k < len()`.
    pub fn swap(&mut self, k: u32) {
        assert!(k < self.len(), "swap beyond the published slots");
        let (first, other) = (self.head, self.head.wrapping_add(k));
        self.ring.touch_mut(first);
        self.ring.touch_mut(other);
        let at = self.ring.geometry();
        if k > 0 {
            // SAFETY: two slots of the ring, which differ as `k` is less than the capacity; both
            // are published and not released, so that the producer does not touch them, and this
            // is the only consuming end.
            unsafe {
                core::ptr::swap_nonoverlapping(at.slot(first), at.slot(other), at.stride as usize);
            }
        }
    }

    /// Free-running index of the first element.
    #[inline(always)]
    pub fn head(&self) -> u32 {
        self.head
    }

    /// Takes the first element's header and releases its slot.
    #[inline(always)]
    pub fn pop(&mut self) -> Option<H> {
        if self.ready() == 0 && self.is_empty() {
            return None;
        }
        let h = *self.peek(0).header();
        self.release(1);
        Some(h)
    }

    /// Takes the headers of the first elements that have been seen, as many as `out` has room for,
    /// and releases their slots. Returns how many.
    #[inline(always)]
    pub fn take_headers(&mut self, out: &mut [H]) -> usize {
        let n = out.len().min(self.ready() as usize);
        let at = self.ring.geometry();
        for h in &mut out[..n] {
            self.ring.touch(self.head);
            // SAFETY: aligned and initialised as in `Slot::header_mut`; published, and not released
            // before the store below.
            *h = unsafe { *at.slot(self.head).cast::<H>() };
            self.head = self.head.wrapping_add(1);
        }
        self.ring.consuming.cursor.store(self.head, Ordering::Release);
        n
    }
}

impl<H> Drop for Consumer<'_, H> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.guard {
            self.ring.consuming.busy.store(false, Ordering::Release);
        }
    }
}

/// A slot that is not published yet.
pub struct Slot<'a, H> {
    at: *mut u8,
    /// Bytes behind the header.
    tail: usize,
    owner: PhantomData<&'a mut H>,
}

impl<H: Copy> Slot<'_, H> {
    /// The header: what an earlier lap left there, or zeroes.
    #[inline(always)]
    pub fn header_mut(&mut self) -> &mut H {
        // SAFETY: the slot is aligned for H (`install`), initialised (zeroed there, H since), and
        // the producer's alone until published, which needs the producer that this slot borrows
        // exclusively.
        unsafe { &mut *self.at.cast::<H>() }
    }

    /// The bytes behind the header.
    #[inline(always)]
    pub fn tail_mut(&mut self) -> &mut [u8] {
        // SAFETY: `size_of::<H>() <= stride` (`install`), so this is inside the slot.
        let p = unsafe { self.at.add(size_of::<H>()) };
        // SAFETY: header and tail are the whole slot, initialised and exclusively ours as in
        // `header_mut`.
        unsafe { core::slice::from_raw_parts_mut(p, self.tail) }
    }

    /// The tail as a scatter/gather list: the first `n` entries, or as many as it has room for.
    #[inline(always)]
    pub fn sges_mut(&mut self, n: usize) -> &mut [Sge] {
        const { assert!(size_of::<H>() % align_of::<Sge>() == 0) };
        let n = n.min(self.tail / size_of::<Sge>());
        let p = self.tail_mut().as_mut_ptr();
        // SAFETY: n entries fit in the tail; slot and header size are multiples of Sge's alignment;
        // any bytes are a valid Sge; exclusive as in `header_mut`.
        unsafe { core::slice::from_raw_parts_mut(p.cast(), n) }
    }
}

/// A published slot: immutable until released.
pub struct SlotRef<'a, H> {
    at: *const u8,
    /// Bytes behind the header.
    tail: usize,
    owner: PhantomData<&'a H>,
}

impl<H> Clone for SlotRef<'_, H> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<H> Copy for SlotRef<'_, H> {}

impl<'a, H: Copy> SlotRef<'a, H> {
    /// The header.
    #[inline(always)]
    pub fn header(&self) -> &'a H {
        // SAFETY: aligned and initialised as in `Slot::header_mut`; the producer does not write it
        // until it is released, which needs the consumer that this borrows.
        unsafe { &*self.at.cast::<H>() }
    }

    /// The bytes behind the header.
    #[inline(always)]
    pub fn tail(&self) -> &'a [u8] {
        // SAFETY: `size_of::<H>() <= stride` (`install`), so this is inside the slot.
        let p = unsafe { self.at.add(size_of::<H>()) };
        // SAFETY: inside the slot, initialised, immutable as in `header`.
        unsafe { core::slice::from_raw_parts(p, self.tail) }
    }

    /// The tail as a scatter/gather list: the first `n` entries, or as many as it has room for.
    #[inline(always)]
    pub fn sges(&self, n: usize) -> &'a [Sge] {
        const { assert!(size_of::<H>() % align_of::<Sge>() == 0) };
        let n = n.min(self.tail / size_of::<Sge>());
        // SAFETY: n entries fit in the tail; slot and header size are multiples of Sge's alignment;
        // any bytes are a valid Sge; immutable as in `header`.
        unsafe { core::slice::from_raw_parts(self.tail().as_ptr().cast(), n) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
