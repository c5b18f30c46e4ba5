//! Fast handles of a process: a table that grows by chunks and is never freed, so that a released
//! handle is an invalid one and never a dangling pointer.
//!
//! The header's inline functions read the first word of an entry only, the table of functions.
//! Releasing a handle, closing its context and fork replace it by a table that refuses.

use crate::c_result::refuse;
use crate::c_types::gdrc_context;
use crate::context_device::ContextDevice;
use core::cell::UnsafeCell;
use core::mem::{size_of, MaybeUninit};
use core::ptr::null_mut;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize};
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::{Error, Result};
use gdrcore_net::fork::ForkGuard;

/// States of an entry.
const FREE: u32 = 0;
const CHANGING: u32 = 1;
const IN_USE: u32 = 2;

/// Entries of the first chunk; each further one doubles.
const FIRST: usize = 1024;
const CHUNKS: usize = 16;

/// The queue pair or CQ of a fast handle. `T`: the data that its device's functions need.
#[derive(Clone, Copy)]
pub(crate) struct FastObject<T> {
    pub(crate) device: &'static dyn ContextDevice,
    pub(crate) owner: ForkGuard,
    pub(crate) handle: Handle,
    pub(crate) target: T,
}

/// A fast handle. `O`: its table of functions.
#[repr(C)]
pub(crate) struct FastEntry<O: 'static, T: 'static> {
    ops: AtomicPtr<O>,
    /// `IN_USE` is stored with release after `object` was written, and loaded with acquire before
    /// it is read.
    state: AtomicU32,
    ctx: AtomicPtr<gdrc_context>,
    object: UnsafeCell<MaybeUninit<FastObject<T>>>,
}

// SAFETY: `object` is written only by the thread that moved `state` to CHANGING, and read only
// while it is IN_USE; any thread may use its contents.
unsafe impl<O: Sync, T: Sync> Sync for FastEntry<O, T> {}

impl<O, T: 'static> FastEntry<O, T> {
    const fn new() -> Self {
        FastEntry {
            ops: AtomicPtr::new(null_mut()),
            state: AtomicU32::new(FREE),
            ctx: AtomicPtr::new(null_mut()),
            object: UnsafeCell::new(MaybeUninit::uninit()),
        }
    }

    /// The object of a handle whose functions are called, which is in use.
    ///
    /// # Safety
    /// The handle is in use and not released during `'static`: that is the header's contract while
    /// one of its functions runs.
    #[inline(always)]
    pub(crate) unsafe fn object_in_use(&self) -> &'static FastObject<T> {
        // SAFETY: our contract: written before the entry was published, and not changed meanwhile.
        unsafe { (*self.object.get()).assume_init_ref() }
    }

    /// Its context. Any thread; it stays while the handle is in use.
    pub(crate) fn context(&self) -> *mut gdrc_context {
        self.ctx.load(Relaxed)
    }

    /// Why the functions of this entry refuse: it was released, or belongs to a parent process.
    #[cold]
    pub(crate) fn refusal(&self) -> Error {
        if self.state.load(Acquire) != IN_USE {
            return given_back();
        }
        // SAFETY: IN_USE was loaded with acquire; the header forbids to release it during another
        // call with it.
        match unsafe { self.object_in_use() }.owner.check() {
            Err(e) => e,
            Ok(()) => given_back(),
        }
    }
}

#[cold]
#[inline(never)]
fn given_back() -> Error {
    refuse!(StaleHandle, "fast handle: it was released")
}

/// The fast handles of queue pairs, or those of CQs.
pub(crate) struct FastTable<O: 'static, T: 'static> {
    first: [FastEntry<O, T>; FIRST],
    /// Chunks 1 to 15; null until they are allocated.
    more: [AtomicPtr<FastEntry<O, T>>; CHUNKS - 1],
    /// Entries are reused in turn, so that a stale handle stays stale for as long as possible.
    next: AtomicUsize,
    /// The functions of an unused entry.
    shut: &'static O,
}

impl<O: Sync, T: Copy + Sync> FastTable<O, T> {
    pub(crate) const fn new(shut: &'static O) -> Self {
        FastTable {
            first: [const { FastEntry::new() }; FIRST],
            more: [const { AtomicPtr::new(null_mut()) }; CHUNKS - 1],
            next: AtomicUsize::new(0),
            shut,
        }
    }

    /// The chunks that are there, in order.
    fn chunks(&'static self) -> impl Iterator<Item = &'static [FastEntry<O, T>]> {
        let more = self.more.iter().enumerate().map_while(|(i, chunk)| {
            let base = chunk.load(Acquire);
            // SAFETY: a chunk of that many entries, never freed, written before its address was
            // stored with release.
            (!base.is_null())
                .then(|| unsafe { core::slice::from_raw_parts(base, FIRST << (i + 1)) })
        });
        core::iter::once(&self.first[..]).chain(more)
    }

    /// The entry of a handle from C. Any bits are allowed.
    pub(crate) fn find<P>(&'static self, handle: *const P) -> Result<&'static FastEntry<O, T>> {
        let size = size_of::<FastEntry<O, T>>();
        let found = self.chunks().find_map(|chunk| {
            let off = handle.addr().wrapping_sub(chunk.as_ptr().addr());
            chunk.get(off / size).filter(|_| off.is_multiple_of(size))
        });
        found.ok_or_else(|| {
            refuse!(Invalid, "fast handle {:#x}: not one of this library", handle.addr())
        })
    }

    /// A free entry, in state CHANGING, for this thread alone.
    fn claim(&'static self) -> Result<&'static FastEntry<O, T>> {
        loop {
            let len: usize = self.chunks().map(<[_]>::len).sum();
            let from = self.next.fetch_add(1, Relaxed) % len;
            let all = || self.chunks().flatten();
            let free = all().skip(from).chain(all().take(from)).find(|entry| {
                entry.state.compare_exchange(FREE, CHANGING, Acquire, Relaxed).is_ok()
            });
            match free {
                Some(entry) => return Ok(entry),
                None => self.grow(len)?,
            }
        }
    }

    /// Adds a chunk to `len` entries, unless another thread does.
    fn grow(&'static self, len: usize) -> Result<()> {
        let chunk = (len / FIRST + 1).ilog2() as usize;
        let Some(place) = self.more.get(chunk - 1) else {
            return Err(refuse!(NoMemory, "fast handles: the process has {len} of this kind"));
        };
        let entries: Box<[FastEntry<O, T>]> =
            (0..FIRST << chunk).map(|_| FastEntry::new()).collect();
        let new = Box::into_raw(entries);
        if place.compare_exchange(null_mut(), new.cast(), AcqRel, Relaxed).is_err() {
            // SAFETY: it came from a box just now, and nobody else has seen it.
            drop(unsafe { Box::from_raw(new) });
        }
        Ok(())
    }

    /// Makes a handle with these functions for an object that the device has pinned.
    pub(crate) fn insert(
        &'static self,
        ctx: *mut gdrc_context,
        object: FastObject<T>,
        ops: &'static O,
    ) -> Result<&'static FastEntry<O, T>> {
        let entry = self.claim()?;
        // SAFETY: the entry is CHANGING and this thread made it so: no other thread reads or writes
        // `object`.
        unsafe { (*entry.object.get()).write(object) };
        entry.ctx.store(ctx, Relaxed);
        entry.state.store(IN_USE, Release);
        entry.ops.store((&raw const *ops).cast_mut(), Release);
        Ok(entry)
    }

    /// Releases a handle; `release` unpins its object.
    pub(crate) fn vacate(
        &'static self,
        entry: &'static FastEntry<O, T>,
        release: impl FnOnce(&FastObject<T>) -> Result<()>,
    ) -> Result<()> {
        // Of two calls at once one succeeds; the other gets a stale handle.
        if entry.state.compare_exchange(IN_USE, CHANGING, Acquire, Relaxed).is_err() {
            return Err(given_back());
        }
        // SAFETY: the entry was IN_USE, so `object` was written; this thread made it CHANGING, so
        // no other writes it.
        let object = unsafe { (*entry.object.get()).assume_init_ref() };
        let released = object.owner.check().and_then(|()| {
            let ops = entry.ops.load(Relaxed);
            self.shut(entry);
            release(object).inspect_err(|_| entry.ops.store(ops, Release))
        });
        entry.state.store(if released.is_ok() { FREE } else { IN_USE }, Release);
        released
    }

    fn shut(&self, entry: &FastEntry<O, T>) {
        entry.ops.store((&raw const *self.shut).cast_mut(), Release);
    }

    /// Invalidates all handles in the child of a fork: they are its parent's. Only stores to
    /// memory.
    pub(crate) fn disown(&'static self) {
        for entry in self.chunks().flatten() {
            if entry.state.load(Relaxed) != FREE {
                self.shut(entry);
            }
        }
    }

    /// Releases the handles of a context. Their objects end with its device.
    pub(crate) fn forget(&'static self, ctx: *const gdrc_context) {
        for entry in self.chunks().flatten() {
            let of_ctx = || core::ptr::eq(entry.ctx.load(Relaxed), ctx);
            if entry.state.load(Acquire) == IN_USE && of_ctx() {
                let _ = self.vacate(entry, |_| Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fake_device::Fake;

    type Ops = u32;

    fn object(fake: &'static Fake, handle: Handle) -> FastObject<u32> {
        FastObject { device: fake, owner: ForkGuard::new(), handle, target: 7 }
    }

    fn ops(entry: &FastEntry<Ops, u32>) -> u32 {
        // SAFETY: one of the two statics below.
        unsafe { *entry.ops.load(Acquire) }
    }

    #[test]
    fn the_table_grows_and_released_handles_are_reused() {
        static SHUT: Ops = 0;
        static OPEN: Ops = 1;
        static TABLE: FastTable<Ops, u32> = FastTable::new(&SHUT);
        let (fake, ctx) = Fake::open();
        const N: usize = 3 * FIRST + 5;
        let make = |n| TABLE.insert(ctx, object(fake, n), &OPEN).unwrap();
        let made: Vec<_> = (0..N as Handle).map(make).collect();
        for (n, entry) in made.iter().enumerate() {
            assert!(core::ptr::eq(TABLE.find::<FastEntry<Ops, u32>>(*entry).unwrap(), *entry));
            // SAFETY: it is in use.
            let object = unsafe { entry.object_in_use() };
            assert_eq!((ops(entry), object.handle, object.target), (1, n as Handle, 7));
        }
        let inside = (&raw const *made[FIRST]).cast::<u8>().wrapping_add(8);
        assert!(TABLE.find(inside).is_err(), "it is inside of one");
        for entry in &made[1..] {
            assert_eq!(TABLE.vacate(entry, |_| Ok(())), Ok(()));
            assert_eq!(TABLE.vacate(entry, |_| Ok(())), Err(Error::StaleHandle));
            assert_eq!((ops(entry), entry.refusal()), (0, Error::StaleHandle));
        }
        // As many again need no more room.
        let again: Vec<_> = (1..N as Handle).map(make).collect();
        assert!(again.iter().all(|e| !core::ptr::eq(*e, made[0])));
        assert_eq!(TABLE.chunks().map(<[_]>::len).sum::<usize>(), 7 * FIRST);
        // If the device cannot unpin an object, its handle stays.
        assert_eq!(TABLE.vacate(made[0], |_| Err(Error::Busy)), Err(Error::Busy));
        assert_eq!(ops(made[0]), 1);
        TABLE.disown();
        assert_eq!(ops(made[0]), 0);
        TABLE.forget(core::ptr::null());
        assert_eq!(made[0].state.load(Acquire), IN_USE);
        TABLE.forget(ctx);
        assert_eq!(made[0].state.load(Acquire), FREE);
    }
}
