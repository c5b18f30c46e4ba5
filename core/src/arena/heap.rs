//! A buddy heap in the arena, for the rings and chunks that come and go with their objects.
//!
//! Each region has one byte of state per 64-byte unit at its start, then the units. A block of
//! order k is 2^k units at a multiple of 2^k; its first unit's byte says what it is, all other
//! bytes of it are `INNER`. Free blocks of one order are in a list whose links lie in the blocks
//! themselves.

use core::mem::{align_of, size_of};
use core::ptr::NonNull;

use super::{RawBytes, RawSlice};
use crate::error::{Error, Result};
use crate::reason::refuse;

/// Smallest block in bytes: a cache line.
const UNIT: usize = 64;
/// Payload alignment: blocks are aligned to their size up to this.
const PAGE: usize = 4096;
/// Orders 0..32: blocks of 64 B to 128 GiB.
const ORDERS: usize = 32;
/// Regions in one heap: the first memory and 15 additions.
pub(super) const REGIONS: usize = 16;
/// End of a list.
const NIL: u32 = u32::MAX;

/// State byte: not the first unit of a block.
const INNER: u8 = 0;
/// State bits of a block head; the low five bits are its order.
const FREE: u8 = 0x40;
/// Allocated by [`Heap::alloc`].
pub(super) const RAW: u8 = 0x80;
/// Allocated for a [`RawSlice`]. Kept apart from `RAW`, so that a [`RawBytes`], which may be copied
/// and freed twice by mistake, can never free the memory under a RawSlice.
pub(super) const TYPED: u8 = 0xc0;
/// The bits that hold the order.
const ORDER: u8 = 0x1f;

/// One piece of memory and its free lists.
#[derive(Clone, Copy)]
pub(super) struct Arena {
    /// State bytes, one per unit.
    state: *mut u8,
    /// First unit, aligned to [`PAGE`].
    units: *mut u8,
    /// Number of units.
    pub(super) count: u32,
    /// Bit k: `lists[k]` is not empty.
    pub(super) nonempty: u32,
    /// First unit of the first free block, by order.
    lists: [u32; ORDERS],
}

/// The links at the start of a free block.
#[derive(Clone, Copy)]
#[repr(C)]
struct Links {
    next: u32,
    prev: u32,
}

impl Arena {
    const NONE: Arena = Arena {
        state: core::ptr::null_mut(),
        units: core::ptr::null_mut(),
        count: 0,
        nonempty: 0,
        lists: [NIL; ORDERS],
    };

    fn state(&self, unit: u32) -> u8 {
        assert!(unit < self.count);
        // SAFETY: `add` laid out `count` state bytes at `state`, all written there, and unit <
        // count.
        unsafe { self.state.add(unit as usize).read() }
    }

    fn set_state(&mut self, unit: u32, s: u8) {
        assert!(unit < self.count);
        // SAFETY: as in `state`; the heap owns these bytes alone.
        unsafe { self.state.add(unit as usize).write(s) }
    }

    fn unit_ptr(&self, unit: u32) -> *mut u8 {
        assert!(unit < self.count);
        // SAFETY: `add` made sure that `count` units lie at `units` inside the region, and unit <
        // count.
        unsafe { self.units.add(unit as usize * UNIT) }
    }

    fn links(&self, unit: u32) -> Links {
        debug_assert!(self.state(unit) & 0xc0 == FREE);
        // SAFETY: the block is free, so its bytes are the heap's, and `push` wrote Links there;
        // units are 64-aligned.
        unsafe { self.unit_ptr(unit).cast::<Links>().read() }
    }

    fn set_links(&mut self, unit: u32, l: Links) {
        debug_assert!(self.state(unit) & 0xc0 == FREE);
        // SAFETY: the block is free, so its bytes are the heap's alone; units are 64-aligned.
        unsafe { self.unit_ptr(unit).cast::<Links>().write(l) }
    }

    /// Puts a block at the front of its order's list.
    fn push(&mut self, unit: u32, order: u32) {
        self.set_state(unit, FREE | order as u8);
        let next = self.lists[order as usize];
        self.set_links(unit, Links { next, prev: NIL });
        if next != NIL {
            let l = self.links(next);
            self.set_links(next, Links { prev: unit, ..l });
        }
        self.lists[order as usize] = unit;
        self.nonempty |= 1 << order;
    }

    /// Takes a free block out of its list; its state byte becomes `INNER`.
    fn unlink(&mut self, unit: u32, order: u32) {
        let Links { next, prev } = self.links(unit);
        if next != NIL {
            let l = self.links(next);
            self.set_links(next, Links { prev, ..l });
        }
        if prev != NIL {
            let l = self.links(prev);
            self.set_links(prev, Links { next, ..l });
        } else {
            self.lists[order as usize] = next;
            if next == NIL {
                self.nonempty &= !(1 << order);
            }
        }
        self.set_state(unit, INNER);
    }

    /// A block of `order`, split from the smallest that is large enough.
    fn alloc(&mut self, order: u32, kind: u8) -> Option<u32> {
        let fit = self.nonempty & (u32::MAX << order);
        if fit == 0 {
            return None;
        }
        let mut have = fit.trailing_zeros();
        let unit = self.lists[have as usize];
        self.unlink(unit, have);
        while have > order {
            have -= 1;
            self.push(unit + (1 << have), have);
        }
        self.set_state(unit, kind | order as u8);
        Some(unit)
    }

    /// Frees the block at `unit` and joins it with its free buddies. The bytes freed.
    fn free(&mut self, mut unit: u32) -> usize {
        let mut order = u32::from(self.state(unit) & ORDER);
        let bytes = UNIT << order;
        self.set_state(unit, INNER);
        while order + 1 < ORDERS as u32 {
            let buddy = unit ^ (1 << order);
            if buddy >= self.count || self.state(buddy) != FREE | order as u8 {
                break;
            }
            self.unlink(buddy, order);
            unit &= !(1 << order);
            order += 1;
        }
        self.push(unit, order);
        bytes
    }
}

/// A buddy heap over up to 16 regions of memory.
///
/// Blocks are powers of two, at least 64 bytes, aligned to their size or 4096, whichever is less.
/// Allocating and freeing take O(log n), plus one step per region that is full; metadata lies in
/// the regions.
pub struct Heap {
    pub(super) arenas: [Arena; REGIONS],
    pub(super) used: usize,
    free: usize,
}

// SAFETY: the pointers lead to memory that `add` was promised to be exclusively the heap's.
unsafe impl Send for Heap {}
// SAFETY: all changes go through `&mut self`; `&self` reads plain fields only.
unsafe impl Sync for Heap {}

impl Default for Heap {
    fn default() -> Self {
        Heap::new()
    }
}

impl Heap {
    /// A heap without memory.
    pub const fn new() -> Self {
        Heap { arenas: [Arena::NONE; REGIONS], used: 0, free: 0 }
    }

    /// Adds `len` bytes at `r`, of any alignment.
    ///
    /// # Errors
    /// [`Error::Invalid`] for null or less than [`Heap::bytes_for`]`(64)`; [`Error::NoMemory`]
    /// after 16 regions.
    ///
    /// # Safety
    /// `r..r + len` is memory exclusively ours, and it lives as long as the heap and everything
    /// allocated from it.
    pub unsafe fn add(&mut self, r: *mut u8, len: usize) -> Result<()> {
        if r.is_null() {
            return Err(refuse!(Invalid, "memory: NULL"));
        }
        let count = (len.saturating_sub(PAGE - 1) / (UNIT + 1)).min(1 << (ORDERS - 1));
        if count == 0 {
            return Err(refuse!(
                Invalid,
                "bytes {len}: too few to be of use, at least {}",
                Heap::bytes_for(UNIT)
            ));
        }
        let slot = self.arenas.get_mut(self.used);
        let slot = slot.ok_or_else(|| {
            refuse!(NoMemory, "memory: {REGIONS} pieces were given, and there can be no more")
        })?;
        // SAFETY: count < len.
        let after = unsafe { r.add(count) };
        let skip = after.align_offset(PAGE);
        // SAFETY: count + skip + count * UNIT <= count * (UNIT + 1) + PAGE - 1 <= len.
        let units = unsafe { after.add(skip) };
        // SAFETY: count < len bytes at r are ours.
        unsafe { r.write_bytes(INNER, count) };
        *slot = Arena { state: r, units, count: count as u32, ..Arena::NONE };
        // The binary digits of `count`, largest first, so that each block is aligned to its size.
        let mut unit = 0u32;
        while unit < slot.count {
            let order = (slot.count - unit).ilog2();
            slot.push(unit, order);
            unit += 1 << order;
        }
        self.used += 1;
        self.free += count * UNIT;
        Ok(())
    }

    /// Bytes of one region that is certain to hold `total_payload` bytes of blocks, metadata and
    /// alignment included.
    ///
    /// Precisely: added to an empty heap, it serves every sequence of allocations without a free
    /// between them, in any order, whose sizes, each rounded up to a power of two and to at least
    /// 64, sum to `total_payload` or less. (Each split leaves at most one free block of an order,
    /// so a refused order k means that less than 2^k units are free.) After frees, fragmentation
    /// may waste some of it.
    pub const fn bytes_for(total_payload: usize) -> usize {
        total_payload.div_ceil(UNIT).saturating_mul(UNIT + 1).saturating_add(PAGE - 1)
    }

    /// The order of a block for `bytes`.
    fn order(bytes: usize) -> Result<u32> {
        let units = bytes.div_ceil(UNIT).max(1);
        let order = units.checked_next_power_of_two().ok_or(Error::NoMemory)?.ilog2();
        if order as usize >= ORDERS {
            return Err(Error::NoMemory);
        }
        Ok(order)
    }

    fn take(&mut self, bytes: usize, kind: u8) -> Result<NonNull<u8>> {
        let order = Self::order(bytes)?;
        for arena in &mut self.arenas[..self.used] {
            if let Some(unit) = arena.alloc(order, kind) {
                self.free -= UNIT << order;
                return NonNull::new(arena.unit_ptr(unit)).ok_or(Error::NoMemory);
            }
        }
        Err(refuse!(
            NoMemory,
            "ring_bytes: no {bytes} bytes are left in one piece; raise it, or give more memory"
        ))
    }

    /// Frees the block at `ptr` if it is one and of this kind.
    pub(super) fn give(&mut self, ptr: *mut u8, kind: u8) -> bool {
        let addr = ptr as usize;
        for arena in &mut self.arenas[..self.used] {
            let at = addr.wrapping_sub(arena.units as usize);
            if at >= arena.count as usize * UNIT {
                continue;
            }
            let unit = (at / UNIT) as u32;
            if at % UNIT != 0 || arena.state(unit) & !ORDER != kind {
                return false;
            }
            self.free += arena.free(unit);
            return true;
        }
        false
    }

    /// At least `bytes` bytes (the region's length is the block's), aligned to min(length, 4096).
    /// Not zeroed.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where no free block is large enough.
    pub fn alloc(&mut self, bytes: usize) -> Result<RawBytes> {
        let p = self.take(bytes, RAW)?;
        Ok(RawBytes::from_raw(p.as_ptr(), UNIT << Self::order(bytes)?))
    }

    /// Takes back what [`Heap::alloc`] gave. The caller no longer uses it.
    ///
    /// Anything else (an empty region, memory of another heap or of a [`RawSlice`], a second free
    /// that can be recognised as such) is left alone.
    pub fn free(&mut self, r: RawBytes) {
        let known = r.is_empty() || self.give(r.as_ptr(), RAW);
        debug_assert!(known, "free of a region that is not allocated here");
    }

    /// `n` copies of `init`.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where no free block is large enough.
    pub fn slice<T: Copy>(&mut self, n: usize, init: T) -> Result<RawSlice<T>> {
        self.slice_with(n, |_| init)
    }

    /// `n` elements, each from `init(index)`.
    ///
    /// # Errors
    /// [`Error::NoMemory`] where no free block is large enough.
    pub fn slice_with<T>(&mut self, n: usize, init: impl FnMut(usize) -> T) -> Result<RawSlice<T>> {
        const { assert!(align_of::<T>() <= PAGE) };
        let size = n.checked_mul(size_of::<T>()).ok_or(Error::NoMemory)?;
        let at = if size == 0 {
            NonNull::<T>::dangling()
        } else {
            self.take(size.max(align_of::<T>()), TYPED)?.cast()
        };
        // SAFETY: the block holds `size` bytes, is aligned to at least T's alignment (blocks are
        // aligned to min(size, 4096)), and is nobody else's until `free_slice` takes this very
        // RawSlice.
        Ok(unsafe { RawSlice::fill(at, n, init) })
    }

    /// Takes back what [`Heap::slice`] or [`Heap::slice_with`] gave; its elements are not dropped.
    ///
    /// A slice that is not of this heap (of a walk, or empty) is simply forgotten.
    pub fn free_slice<T>(&mut self, s: RawSlice<T>) {
        if size_of::<T>() * s.len() > 0 {
            self.give(s.as_ptr().cast_mut().cast(), TYPED);
        }
    }

    /// Bytes in free blocks, of all regions.
    pub fn free_bytes(&self) -> usize {
        self.free
    }
}
