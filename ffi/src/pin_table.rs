//! The pins of a process: the context and the object of each.
//!
//! The entries that the header's inline functions read ([`pin_entries`](crate::pin_entries)) are
//! wiped in the child of a fork; a [`PinSlot`] is not, and tells whether a pin is a parent's, was
//! given back, or is on a device without a fast path.

use crate::c_result::refuse;
use crate::c_types::gdrc_context;
use crate::context_device::ContextDevice;
use crate::pin_entries::{CqEntry, PinEntries, PinEntry, QpEntry, CQ_ENTRIES, PINS, QP_ENTRIES};
use core::cell::UnsafeCell;
use core::mem::{size_of, MaybeUninit};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicUsize};
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::{Error, Result};
use gdrcore_net::fork::{wipe_in_children, ForkGuard};
use gdrcore_net::soft::{PinnedCq as SoftCq, PinnedQp as SoftQp};
use gdrcore_verbs::VerbsDevice;

/// States of a slot.
const FREE: u32 = 0;
const CHANGING: u32 = 1;
const PINNED: u32 = 2;

/// The device of a pin, or its object there, by their own types.
#[derive(Clone, Copy)]
pub(crate) enum PinTarget {
    Nic(&'static VerbsDevice),
    SoftQp(SoftQp),
    SoftCq(SoftCq),
    /// The device has no fast path: calls go by context and handle.
    Checked,
}

/// The queue pair or CQ of a pin: what only the library reads.
#[derive(Clone, Copy)]
pub(crate) struct PinnedObject {
    pub(crate) device: &'static dyn ContextDevice,
    pub(crate) target: PinTarget,
    pub(crate) owner: ForkGuard,
    pub(crate) handle: Handle,
}

/// A place for a pin.
struct PinSlot {
    /// `PINNED` is stored with release after `object` was written, and loaded with acquire before
    /// it is read.
    state: AtomicU32,
    ctx: AtomicPtr<gdrc_context>,
    object: UnsafeCell<MaybeUninit<PinnedObject>>,
}

// SAFETY: `object` is written only by the thread that moved `state` to CHANGING, and read only
// while it is PINNED.
unsafe impl Sync for PinSlot {}

/// The pins of QPs, or those of CQs.
pub(crate) struct PinTable<E: 'static> {
    entries: &'static PinEntries<E>,
    slots: [PinSlot; PINS],
    /// Slots are given in turn, so that a stale pin stays stale for as long as possible.
    next: AtomicUsize,
    /// No slot from here on was ever given.
    end: AtomicUsize,
}

impl<E> PinTable<E> {
    const fn new(entries: &'static PinEntries<E>) -> Self {
        let slots = [const {
            PinSlot {
                state: AtomicU32::new(FREE),
                ctx: AtomicPtr::new(core::ptr::null_mut()),
                object: UnsafeCell::new(MaybeUninit::uninit()),
            }
        }; PINS];
        PinTable { entries, slots, next: AtomicUsize::new(0), end: AtomicUsize::new(0) }
    }
}

pub(crate) static QPS: PinTable<QpEntry> = PinTable::new(&QP_ENTRIES);
pub(crate) static CQS: PinTable<CqEntry> = PinTable::new(&CQ_ENTRIES);

/// Whether fork() runs [`wipe`].
static HANDLER: AtomicBool = AtomicBool::new(false);

/// Wipes the entries where the kernel does not. Reads first, so that it touches no page that was
/// never used.
extern "C" fn wipe() {
    for entry in QP_ENTRIES.0.iter().filter(|e| !e.is_shut()) {
        entry.shut();
    }
    for entry in CQ_ENTRIES.0.iter().filter(|e| !e.is_shut()) {
        entry.shut();
    }
}

#[cold]
#[inline(never)]
fn given_back() -> Error {
    refuse!(StaleHandle, "pin: it was given back")
}

impl<E: PinEntry> PinTable<E> {
    /// The index of a pin that C gave. Any bits are fine.
    pub(crate) fn index(&self, pin: *const E) -> Result<usize> {
        let off = pin.addr().wrapping_sub(self.entries.0.as_ptr().addr());
        let index = off / size_of::<E>();
        if index >= PINS || !off.is_multiple_of(size_of::<E>()) {
            return Err(refuse!(Invalid, "pin {:#x}: not a pin of this library", pin.addr()));
        }
        Ok(index)
    }

    /// The object of a pin, and its context, for calls that need more than the entry.
    pub(crate) fn object(
        &'static self,
        pin: *const E,
    ) -> Result<(&'static PinnedObject, *mut gdrc_context)> {
        let slot = &self.slots[self.index(pin)?];
        if slot.state.load(Acquire) != PINNED {
            return Err(given_back());
        }
        // SAFETY: PINNED was loaded with acquire, so `object` was written before; it is not changed
        // until the pin is given back, and the header forbids other calls on a pin during that.
        let object = unsafe { (*slot.object.get()).assume_init_ref() };
        object.owner.check()?;
        Ok((object, slot.ctx.load(Relaxed)))
    }

    /// Makes a pin of an object that the device has pinned. `open` fills its entry where the device
    /// has a fast path.
    pub(crate) fn insert(
        &'static self,
        ctx: *mut gdrc_context,
        object: PinnedObject,
        open: impl FnOnce(&E, &'static PinTarget),
    ) -> Result<*const E> {
        // SAFETY: tables of our own, statics of atomics that may be 0; the handler only stores to
        // them.
        unsafe {
            wipe_in_children(
                (&raw const *self.entries).cast(),
                size_of::<PinEntries<E>>(),
                wipe,
                &HANDLER,
            )
        };
        for _ in 0..PINS {
            let i = self.next.fetch_add(1, Relaxed) % PINS;
            let slot = &self.slots[i];
            if slot.state.compare_exchange(FREE, CHANGING, Acquire, Relaxed).is_err() {
                continue;
            }
            self.end.fetch_max(i + 1, Relaxed);
            // SAFETY: the slot is CHANGING and this thread made it so: nobody else reads or writes
            // `object`.
            let object: &'static PinnedObject = unsafe { (*slot.object.get()).write(object) };
            slot.ctx.store(ctx, Relaxed);
            slot.state.store(PINNED, Release);
            open(&self.entries.0[i], &object.target);
            return Ok(&raw const self.entries.0[i]);
        }
        Err(refuse!(NoMemory, "pins: the process has {PINS} of this kind, the most it can have"))
    }

    /// Gives a pin back. `release` unpins its object.
    pub(crate) fn vacate(
        &self,
        i: usize,
        release: impl FnOnce(&PinnedObject) -> Result<()>,
    ) -> Result<()> {
        let slot = &self.slots[i];
        // Of two calls at once one succeeds, the other gets a stale pin.
        if slot.state.compare_exchange(PINNED, CHANGING, Acquire, Relaxed).is_err() {
            return Err(given_back());
        }
        // SAFETY: the slot was PINNED, so `object` was written; it is CHANGING by us, so nobody
        // writes it.
        let object = unsafe { (*slot.object.get()).assume_init() };
        let released = object.owner.check().and_then(|()| {
            self.entries.0[i].shut();
            release(&object)
        });
        slot.state.store(if released.is_ok() { FREE } else { PINNED }, Release);
        released
    }

    /// Gives back the pins of a context. Their objects end with its device.
    fn forget(&self, ctx: *const gdrc_context) {
        for i in 0..self.end.load(Relaxed) {
            let slot = &self.slots[i];
            if slot.state.load(Acquire) == PINNED && core::ptr::eq(slot.ctx.load(Relaxed), ctx) {
                let _ = self.vacate(i, |_| Ok(()));
            }
        }
    }
}

/// Gives back the pins of a context that is about to be closed.
pub(crate) fn forget(ctx: *const gdrc_context) {
    QPS.forget(ctx);
    CQS.forget(ctx);
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ffi::{c_int, c_void};
    use gdrcore_verbs::pinned::PinnedCq as NicCq;

    #[test]
    fn what_is_wiped_by_hand_lets_nothing_through() {
        // A pin of no device: an entry is opened and wiped, its slot stays.
        let (fake, ctx) = crate::fake_device::Fake::open();
        let object = PinnedObject {
            device: fake,
            target: PinTarget::Checked,
            owner: ForkGuard::new(),
            handle: 1,
        };
        let nowhere = NicCq { poll_cq: never, object: core::ptr::null_mut() };
        let pin = CQS.insert(ctx, object, |entry, _| entry.open_nic(&nowhere)).unwrap();
        // SAFETY: entries are statics.
        let entry = unsafe { &*pin };
        assert!(!entry.is_shut());
        wipe();
        assert!(entry.is_shut() && CQS.object(pin).is_ok());
        CQS.forget(ctx);
        assert!(CQS.object(pin).is_err());
    }

    unsafe extern "C" fn never(
        _: *mut c_void,
        _: c_int,
        _: *mut gdrcore_core::verbs::types::Wc,
    ) -> c_int {
        unreachable!("the entry is not called through")
    }
}
