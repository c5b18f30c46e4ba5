//! Handles and their objects: libibverbs' pointers behind index and generation.
//!
//! A C program may pass any bits as a handle, destroy an object while another thread uses it, or
//! use it afterwards: libibverbs would follow a dangling pointer. So a thread uses an object only
//! between [`Slot::enter`] (or one of the busy flags) and the end of the use, and an object is
//! destroyed only while no thread uses it.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::abi::Object;
use gdrcore_core::arena::{RawSlice, Walk};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::pool::{index_of, stale, Pool};
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::Handle;

/// An object of one kind; `T` is the other state of that kind.
pub struct Slot<T> {
    /// The live handle, or [`vacant`] while there is none. Stored with release after the rest.
    handle: AtomicU64,
    /// libibverbs' object.
    object: AtomicPtr<c_void>,
    /// Threads that use it now.
    users: AtomicU32,
    /// Existing objects that were made on this one.
    children: AtomicU32,
    /// The other state of its kind.
    pub more: T,
}

/// A use of an object, which cannot be destroyed meanwhile.
pub struct Use<'a, T>(&'a Slot<T>);

impl<T> Use<'_, T> {
    /// libibverbs' object.
    pub fn object(&self) -> Object {
        self.0.object.load(Ordering::Relaxed)
    }

    /// The other state of its kind.
    pub fn more(&self) -> &T {
        &self.0.more
    }

    /// Counts one more object that was made on this one.
    pub fn adopt(&self) {
        self.0.children.fetch_add(1, Ordering::SeqCst);
    }
}

impl<T> Drop for Use<'_, T> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::Release);
    }
}

impl<T> Slot<T> {
    fn new(index: usize, more: T) -> Self {
        Slot {
            handle: AtomicU64::new(vacant(index)),
            object: AtomicPtr::new(core::ptr::null_mut()),
            users: AtomicU32::new(0),
            children: AtomicU32::new(0),
            more,
        }
    }

    /// Whether this is the object's handle. A thread that gets true sees all writes before the
    /// publication.
    #[inline(always)]
    pub fn is(&self, handle: Handle) -> bool {
        self.handle.load(Ordering::Acquire) == handle
    }

    /// libibverbs' object; valid only for the holder of a use or a busy flag.
    #[inline(always)]
    pub fn object(&self) -> Object {
        self.object.load(Ordering::Relaxed)
    }

    /// Uses the object.
    ///
    /// The add here and the store of 0 in [`Slots::take_out`] are one Dekker pair, both SeqCst:
    /// either the user sees the handle gone or the destroyer sees the user.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    fn enter(&self, handle: Handle) -> Result<Use<'_, T>> {
        self.users.fetch_add(1, Ordering::SeqCst);
        let held = Use(self);
        if self.handle.load(Ordering::SeqCst) == handle {
            Ok(held)
        } else {
            Err(stale(0, handle))
        }
    }
}

/// All objects of one kind. `add`, `remove`: one thread at a time (the device's control lock).
pub struct Slots<T> {
    pool: Pool,
    slots: RawSlice<Slot<T>>,
    /// Their number less one.
    mask: usize,
    bound: usize,
}

/// The word in place of a handle while slot `index` has none. As a handle it would belong to
/// another slot, so no handle, not even 0, equals it in its own slot.
const fn vacant(index: usize) -> u64 {
    if index == 0 {
        1
    } else {
        0
    }
}

impl<T> Slots<T> {
    /// Room for `bound` objects of a type. Their handles have the tag of the type and the number of
    /// the context.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if it does not fit.
    pub fn carve(
        walk: &mut Walk,
        kind: (u8, u32),
        bound: u32,
        more: impl Fn() -> T,
    ) -> Result<Self> {
        let bound = bound as usize;
        let pool = Pool::carve(walk, kind, bound, bound, None)?;
        // The pool rounds up to chunks; a power of two, so that any word has a slot (`masked`).
        let room = bound.next_multiple_of(gdrcore_core::arena::CHUNK).next_power_of_two();
        let slots = walk.slice_with(room, |i| Slot::new(i, more()))?;
        let mask = slots.len().wrapping_sub(1);
        Ok(Slots { pool, slots, mask, bound })
    }

    /// The slot whose index is the low bits of a word. For a handle of ours that is its own slot.
    /// Never called during a size query, whose slots are empty.
    #[inline(always)]
    pub(crate) fn masked(&self, handle: Handle) -> &Slot<T> {
        debug_assert!(self.slots.len() == self.mask.wrapping_add(1) && !self.slots.is_empty());
        // SAFETY: `mask` is the length less one, and the length a power of two, so every masked
        // index is below it.
        unsafe { self.slots.get_unchecked(handle as usize & self.mask) }
    }

    /// The slot that a word names as a handle.
    #[inline(always)]
    pub fn slot(&self, handle: Handle) -> Result<&Slot<T>> {
        self.slots.get(index_of(handle)).ok_or_else(|| stale(0, handle))
    }

    /// Uses an object.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn enter(&self, handle: Handle) -> Result<Use<'_, T>> {
        self.slot(handle)?.enter(handle)
    }

    /// Reserves a handle for an object that does not exist yet: it is stale until
    /// [`Slots::publish`].
    ///
    /// # Errors
    /// [`Error::NoMemory`]: the bound is reached.
    pub fn reserve(&self) -> Result<(Handle, &Slot<T>)> {
        if self.pool.live() >= self.bound {
            return Err(refuse!(
                NoMemory,
                "{} objects of this type are in use, the bound of gdrc_config",
                self.bound
            ));
        }
        let (handle, index) = self.pool.alloc()?;
        let slot = self.slots.get(index).ok_or(Error::NoMemory)?;
        Ok((handle, slot))
    }

    /// Makes a reserved handle valid: it names `object` from now on.
    pub fn publish(&self, handle: Handle, object: Object) {
        if let Ok(slot) = self.slot(handle) {
            slot.children.store(0, Ordering::Relaxed);
            slot.object.store(object, Ordering::Relaxed);
            slot.handle.store(handle, Ordering::SeqCst);
        }
    }

    /// Releases a handle that was reserved and not published, or taken out and destroyed.
    pub fn release(&self, handle: Handle) {
        self.pool.free(index_of(handle));
    }

    /// Makes a handle stale, so that its object may be destroyed. [`Slots::release`] or
    /// [`Slots::put_back`] must follow.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`]: a thread uses it, or objects live on it.
    pub fn take_out(&self, handle: Handle) -> Result<Object> {
        let slot = self.slot(handle)?;
        let in_use =
            || refuse!(Busy, "handle {handle:#x}: another thread uses it, or objects depend on it");
        let none = vacant(index_of(handle));
        // Before the handle is gone: one that stays must not look stale to other threads.
        if slot.is(handle) && slot.children.load(Ordering::SeqCst) != 0 {
            return Err(in_use());
        }
        if slot.handle.compare_exchange(handle, none, Ordering::SeqCst, Ordering::Relaxed).is_err()
        {
            return Err(stale(0, handle));
        }
        if slot.users.load(Ordering::SeqCst) != 0 || slot.children.load(Ordering::SeqCst) != 0 {
            slot.handle.store(handle, Ordering::SeqCst);
            return Err(in_use());
        }
        Ok(slot.object())
    }

    /// Undoes [`Slots::take_out`] if the object could not be destroyed.
    pub fn put_back(&self, handle: Handle) {
        if let Ok(slot) = self.slot(handle) {
            slot.handle.store(handle, Ordering::SeqCst);
        }
    }

    /// Notes that an object made on this one is gone.
    pub fn disown(&self, parent: Handle) {
        if parent != 0 {
            if let Ok(slot) = self.slot(parent) {
                slot.children.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }

    /// Objects that live.
    pub fn live(&self) -> u32 {
        u32::try_from(self.pool.live()).unwrap_or(u32::MAX)
    }

    /// All objects that live.
    pub fn iter(&self) -> impl Iterator<Item = (Handle, &Slot<T>)> {
        let each = self.slots.iter().enumerate();
        each.map(|(i, s)| (i, s.handle.load(Ordering::Acquire), s))
            .filter(|&(i, h, _)| h != vacant(i))
            .map(|(_, h, s)| (h, s))
    }
}

/// A flag that one thread at a time may hold. A thread tries it, and never waits.
#[derive(Default)]
pub struct Busy(AtomicU32);

/// The error of the second thread at a queue.
#[cold]
#[inline(never)]
pub(crate) fn used_by_two() -> Error {
    refuse!(Busy, "queue: another thread posts to it, or polls it")
}

impl Busy {
    /// Takes the flag, if it is free. Returns whether it was.
    #[inline(always)]
    pub fn try_enter(&self) -> bool {
        self.0.swap(1, Ordering::Acquire) == 0
    }

    /// [`Busy::try_enter`] with the error of the call.
    #[inline(always)]
    pub fn enter(&self) -> Result<()> {
        self.try_enter().then_some(()).ok_or_else(used_by_two)
    }

    /// Clears the flag.
    #[inline(always)]
    pub fn leave(&self) {
        self.0.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(bound: u32) -> Slots<()> {
        let mut query = Walk::size_query();
        Slots::carve(&mut query, (3, 0), bound, || ()).unwrap();
        let bytes = query.offset();
        let memory = std::alloc::Layout::from_size_align(bytes, 128).unwrap();
        // SAFETY: the layout is not empty; the memory is leaked, so it lives for ever.
        let at = unsafe { std::alloc::alloc_zeroed(memory) };
        // SAFETY: `bytes` fresh bytes of our own.
        let mut walk = unsafe { Walk::carve(at, bytes) }.unwrap();
        Slots::carve(&mut walk, (3, 0), bound, || ()).unwrap()
    }

    fn object(n: usize) -> Object {
        core::ptr::without_provenance_mut(n)
    }

    #[test]
    fn a_handle_lives_from_publish_to_take_out() {
        let s = slots(2);
        let (h, _) = s.reserve().unwrap();
        assert!(s.enter(h).is_err(), "not published yet");
        s.publish(h, object(8));
        assert_eq!(s.enter(h).unwrap().object(), object(8));
        assert_eq!(s.take_out(h), Ok(object(8)));
        assert_eq!(s.enter(h).err(), Some(Error::StaleHandle));
        assert_eq!(s.take_out(h), Err(Error::StaleHandle));
        s.put_back(h);
        assert!(s.enter(h).is_ok());
        s.take_out(h).unwrap();
        s.release(h);
        assert_eq!(s.live(), 0);
        for bad in [0, 1, u64::MAX, h, h ^ 1 << 24, h ^ 1 << 33] {
            assert_eq!(s.enter(bad).err(), Some(Error::StaleHandle), "{bad:#x}");
        }
        // No word equals that of a vacant slot either.
        for bad in
            (0..64).chain((0..64).map(|bit| 1 << bit)).chain((0..64).map(|bit| u64::MAX << bit))
        {
            assert!(!s.masked(bad).is(bad), "{bad:#x}");
        }
        assert_eq!(s.iter().count(), 0);
    }

    #[test]
    fn an_object_in_use_or_with_children_stays() {
        let s = slots(2);
        let (h, _) = s.reserve().unwrap();
        s.publish(h, object(8));
        let held = s.enter(h).unwrap();
        assert_eq!(s.take_out(h), Err(Error::Busy));
        held.adopt();
        drop(held);
        assert_eq!(s.take_out(h), Err(Error::Busy));
        s.disown(h);
        assert!(s.take_out(h).is_ok());
    }

    #[test]
    fn the_bound_is_exact() {
        let s = slots(2);
        let (a, _) = s.reserve().unwrap();
        s.reserve().unwrap();
        assert_eq!(s.reserve().err(), Some(Error::NoMemory));
        s.release(a);
        assert!(s.reserve().is_ok());
    }
}
