//! A ring of frames in memory that two processes share, one writing and one reading.
//!
//! ```text
//! control page        line 0: magic, version, bytes of data     (written once, at first)
//!                     line 1: tail      bytes consumed            (the reader's)
//!                     line 2: asleep    the reader sleeps         (both)
//!                     line 3: room      the writer waits for room (both)
//!                     line 4: offers    memory that may be granted (the reader's; see `grant`)
//!                     line 5: pinned    the grant in use + 1      (the writer's)
//!                     line 6: grants    serials of active grants  (the reader's)
//!                     then: receipts    of what was accepted      (the reader's; read at its end)
//! data, twice         frames at multiples of 64 bytes: length (4 bytes), zero (4), the frame
//! ```
//!
//! The data pages are mapped twice, one behind the other, so that no frame breaks at the end.
//!
//! There is no head index: a frame is there when its length is not zero. So a small message costs
//! the reader a single cache line. Before the writer stores a length (with release), it stores a
//! zero where the next length will be, so that bytes of an earlier lap are never read as a length.
//!
//! Each end keeps its own position private and checks the one number that it reads from the other.
//! A length must fit; a tail must lie between the last one read and the own head. Anything else is
//! [`BrokenRing`].

use core::mem::offset_of;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use gdrcore_core::frame_len::Length;
use gdrcore_core::lease::{PinWord, Serial};
use gdrcore_core::mem::host;
use gdrcore_core::receipt::Receipts;
use gdrcore_core::sleep::Asleep;
use std::ptr::NonNull;

/// Bytes of the control page.
pub const CONTROL: usize = 4096;
/// Bytes before a frame.
pub const FRAME_HEAD: usize = 8;
/// Frames begin at multiples of this: a cache line, so that a small frame is in one.
pub const FRAME_ALIGN: usize = 64;
/// Bytes of data that a ring may have: a power of two between a page and this.
pub const DATA_MAX: usize = 2 << 20;

/// After a frame of at most `SMALL` bytes the writer prefetches the line `AHEAD` bytes behind the
/// beginning of the next frame. Nearer lines are the reader's, which polls the first line of the
/// next frame and may read the second.
const SMALL: usize = 3 * FRAME_ALIGN;
const AHEAD: u64 = 4 * FRAME_ALIGN as u64;

/// First bytes of a control page.
pub const MAGIC: u64 = u64::from_le_bytes(*b"gdrcring");
/// Version of the layout that is described above.
pub const VERSION: u32 = 3;
/// Grants that may be active at a time.
pub const GRANTS: usize = 16;

/// The other end wrote a value that is never valid: the link must be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokenRing;

#[repr(C, align(64))]
struct Line<T>(T);

/// The control page, as both processes see it.
#[repr(C)]
struct ControlPage {
    stamp: Line<(AtomicU64, AtomicU32, AtomicU32)>,
    tail: Line<AtomicU64>,
    asleep: Line<Asleep>,
    wants_room: Line<AtomicU32>,
    offers: Line<AtomicU32>,
    pinned: Line<PinWord>,
    grants: Line<[Serial; GRANTS]>,
    receipts: Line<Receipts>,
}

const _: () =
    assert!(offset_of!(ControlPage, receipts) == 448 && size_of::<ControlPage>() <= CONTROL);

/// The address of a ring in this process. Copies name the same ring.
#[derive(Clone, Copy, Debug)]
pub struct RingMap {
    base: NonNull<u8>,
    /// Bytes of data, less one.
    mask: usize,
}

impl RingMap {
    /// A ring whose control page begins at `base`, with `size` bytes of data behind it and the same
    /// bytes again.
    ///
    /// # Safety
    /// `CONTROL + 2 * size` bytes are mapped there, shared, as [`segment`](super::segment) maps
    /// them, and stay so while anything made from the result is used. `size` is a power of two from
    /// 4096 to [`DATA_MAX`].
    pub unsafe fn new(base: NonNull<u8>, size: usize) -> RingMap {
        debug_assert!(size.is_power_of_two() && (4096..=DATA_MAX).contains(&size));
        RingMap { base, mask: size - 1 }
    }

    /// Bytes of data.
    #[inline(always)]
    fn size(&self) -> usize {
        self.mask + 1
    }

    fn control(&self) -> &ControlPage {
        // SAFETY: the page is mapped (see `new`) and aligned, and it holds atomics only, for which
        // any bits are valid.
        unsafe { self.base.cast::<ControlPage>().as_ref() }
    }

    /// Writes the first line, before the segment is passed to the other process.
    pub fn stamp(&self) {
        let (magic, version, size) = &self.control().stamp.0;
        magic.store(MAGIC, Ordering::Relaxed);
        version.store(VERSION, Ordering::Relaxed);
        size.store(self.size() as u32, Ordering::Relaxed);
    }

    /// Whether the first line is that of a ring of this layout and size.
    pub fn is_stamped(&self) -> bool {
        let (magic, version, size) = &self.control().stamp.0;
        magic.load(Ordering::Relaxed) == MAGIC
            && version.load(Ordering::Relaxed) == VERSION
            && size.load(Ordering::Relaxed) as usize == self.size()
    }

    /// The word in which the reader announces that it sleeps.
    #[inline]
    pub fn asleep(&self) -> &Asleep {
        &self.control().asleep.0
    }

    /// Not 0: the writer waits for room.
    #[inline]
    pub fn wants_room(&self) -> &AtomicU32 {
        &self.control().wants_room.0
    }

    /// The word in which the reader offers memory.
    #[inline]
    pub fn offers(&self) -> &AtomicU32 {
        &self.control().offers.0
    }

    /// The word in which the writer names the grant that it has pinned.
    #[inline]
    pub fn pinned(&self) -> &PinWord {
        &self.control().pinned.0
    }

    /// The serial of the active grant of a number below [`GRANTS`]; 0: none.
    #[inline]
    pub fn grant(&self, number: u32) -> &Serial {
        &self.control().grants.0[number as usize % GRANTS]
    }

    /// The receipts of the messages that the reader has accepted.
    #[inline(always)]
    pub fn receipts(&self) -> &Receipts {
        &self.control().receipts.0
    }

    /// Address of a position in the data. More than `size` bytes from there on are mapped.
    #[inline(always)]
    fn address_of(&self, pos: u64) -> *mut u8 {
        let off = CONTROL + (pos as usize & self.mask);
        // SAFETY: below CONTROL + size, and CONTROL + 2 * size bytes are mapped.
        unsafe { self.base.as_ptr().add(off) }
    }

    /// Stores an invalid length at the first frame.
    #[cfg(test)]
    pub(super) fn write_length(&self, length: u32) {
        self.length(0).scribble(length);
    }

    /// The length word at a position.
    #[inline(always)]
    fn length(&self, pos: u64) -> &Length {
        // SAFETY: positions are multiples of 64, so the word is aligned and inside the mapping; it
        // is an atomic.
        unsafe { &*self.address_of(pos).cast::<Length>() }
    }
}

/// Bytes that a frame of `len` bytes takes.
#[inline(always)]
fn step(len: usize) -> u64 {
    ((len + FRAME_HEAD + FRAME_ALIGN - 1) & !(FRAME_ALIGN - 1)) as u64
}

/// [`Writer::limit`] for a tail in a ring of so many bytes.
#[inline(always)]
fn limit(tail: u64, size: usize) -> u64 {
    tail.wrapping_add((size - FRAME_HEAD - FRAME_ALIGN) as u64)
}

/// The writing end. One thread at a time.
#[derive(Debug)]
pub struct Writer {
    place: RingMap,
    head: u64,
    /// The position at which the next frame must end, by the tail that was last read. Behind it
    /// there is room for the frame's own head, and for the head of the next frame, whose length is
    /// zeroed first.
    limit: u64,
    /// The position at which [`Writer::prepare`] has zeroed a length.
    zeroed: u64,
}

impl Writer {
    /// Makes the writing end of a ring without frames.
    pub fn new(place: RingMap) -> Writer {
        Writer { place, head: 0, limit: limit(0, place.size()), zeroed: 0 }
    }

    /// The ring.
    #[inline]
    pub fn place(&self) -> &RingMap {
        &self.place
    }

    /// Bytes written since the beginning, with heads and gaps.
    pub(super) fn written(&self) -> u64 {
        self.head
    }

    pub(super) fn half(&self) -> usize {
        self.place.size() / 2
    }

    /// Room for the next frame: at least `want` bytes, at most `most`. `None`: there is less.
    ///
    /// # Errors
    /// [`BrokenRing`].
    #[inline(always)]
    pub fn room(
        &mut self,
        want: usize,
        most: usize,
    ) -> Result<Option<(NonNull<u8>, usize)>, BrokenRing> {
        if self.free() < want.max(most) as i64 {
            // Pairs with the release in `Reader::release`: the reader has read the bytes before
            // they are overwritten.
            let tail = self.place.control().tail.0.load(Ordering::Acquire);
            let last = self.limit.wrapping_sub(limit(0, self.place.size()));
            if tail.wrapping_sub(last) > self.head.wrapping_sub(last)
                || !tail.is_multiple_of(FRAME_ALIGN as u64)
            {
                return Err(BrokenRing);
            }
            self.limit = limit(tail, self.place.size());
            if self.free() < want as i64 {
                return Ok(None);
            }
        }
        // Where `want` is `most`, the room is a constant for the compiler.
        let room = if want < most { most.min(self.free() as usize) } else { most };
        // SAFETY: the position is inside the mapping, FRAME_HEAD bytes behind it too.
        let p = unsafe { self.place.address_of(self.head).add(FRAME_HEAD) };
        // SAFETY: behind the beginning of a mapping.
        Ok(Some((unsafe { NonNull::new_unchecked(p) }, room)))
    }

    /// Bytes of the longest frame that fits; negative: not even a head.
    #[inline(always)]
    fn free(&self) -> i64 {
        self.limit.wrapping_sub(self.head) as i64
    }

    /// Publishes the frame to the reader: `len` bytes, not 0 and at most the room of `room`.
    /// Returns the address of the next one.
    #[inline(always)]
    pub fn publish(&mut self, len: usize) -> u64 {
        debug_assert!(len > 0 && len as i64 <= self.free());
        let next = self.head.wrapping_add(step(len));
        let behind = self.place.length(next);
        // `publish` looks whether the zero of `prepare` is still there: a longer frame, begun and
        // abandoned, may have overwritten it.
        self.place.length(self.head).publish(len as u32, behind, self.zeroed == next);
        let address = (&raw const *behind).expose_provenance() as u64;
        self.head = next;
        // The lines ahead lie in the cache of the reader's core, which read them a lap ago. For
        // long frames the processor itself recognises the stream of stores.
        if len <= SMALL {
            let ahead = self.place.address_of(next.wrapping_add(AHEAD));
            host::expect_write(ahead.expose_provenance() as u64);
        }
        address
    }

    /// Zeroes the length behind the next frame already now, as if that had the least size; to be
    /// called after a publish. That line is in the reader's cache: without this,
    /// [`Writer::publish`] would wait for the line while the reader waits for the frame.
    #[inline(always)]
    pub fn prepare(&mut self) {
        let next = self.head.wrapping_add(FRAME_ALIGN as u64);
        if self.zeroed != next && self.free() > FRAME_ALIGN as i64 {
            self.place.length(next).clear();
            self.zeroed = next;
        }
    }

    /// Whether the reader has taken everything.
    pub fn is_drained(&self) -> bool {
        self.place.control().tail.0.load(Ordering::Acquire) == self.head
    }
}

/// The reading end. One thread at a time.
#[derive(Debug)]
pub struct Reader {
    place: RingMap,
    pos: u64,
    /// The tail that the writer can see.
    published: u64,
}

impl Reader {
    /// Makes the reading end of a ring that was not read yet.
    pub fn new(place: RingMap) -> Reader {
        Reader { place, pos: 0, published: 0 }
    }

    /// The ring.
    #[inline]
    pub fn place(&self) -> &RingMap {
        &self.place
    }

    /// Whether a frame waits.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.place.length(self.pos).looks_empty()
    }

    /// The next frame: its first byte, and its length. The writer may change the bytes at any time:
    /// copy, then check.
    ///
    /// # Errors
    /// [`BrokenRing`]: no valid length.
    #[inline(always)]
    pub fn peek(&self) -> Result<Option<(NonNull<u8>, usize)>, BrokenRing> {
        let len = self.place.length(self.pos).read() as usize;
        if len == 0 {
            return Ok(None);
        }
        if len > self.place.size() - FRAME_HEAD - FRAME_ALIGN {
            return Err(BrokenRing);
        }
        // SAFETY: len + FRAME_HEAD <= size, and size bytes behind any position are mapped.
        let p = unsafe { self.place.address_of(self.pos).add(FRAME_HEAD) };
        // SAFETY: behind the beginning of a mapping.
        Ok(Some((unsafe { NonNull::new_unchecked(p) }, len)))
    }

    /// Gives the writer the room of the frame of `len` bytes that `peek` returned. The tail is
    /// published once a quarter of the ring was released, or by [`Reader::settle`], so that its
    /// cache line does not move for every small message.
    #[inline(always)]
    pub fn release(&mut self, len: usize) {
        self.pos = self.pos.wrapping_add(step(len));
        if self.pos.wrapping_sub(self.published) >= (self.place.size() / 4) as u64 {
            self.settle();
        }
    }

    /// Publishes everything that was released. Returns true if there was something.
    #[inline]
    pub fn settle(&mut self) -> bool {
        if self.published == self.pos {
            return false;
        }
        self.published = self.pos;
        self.place.control().tail.0.store(self.pos, Ordering::Release);
        true
    }
}

#[cfg(test)]
mod tests;
