//! Handles: numbers that name a pool or a queue, and tell whether it still lives.
//!
//! | bits | |
//! |---|---|
//! | 0 to 1 | its kind: 1 a pool, 2 a queue. So no handle is NULL, or aligned as memory is |
//! | 2 to 9 | its place |
//! | 10 on | how often the place was used, so the handle of a destroyed object names none |

use crate::HANDLES;
use core::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

struct Slot<T> {
    times: usize,
    value: Option<T>,
}

/// All objects of a kind. Each has a lock of its own.
pub(crate) struct Handles<T> {
    kind: usize,
    slots: [Mutex<Slot<T>>; HANDLES],
}

impl<T> Handles<T> {
    pub(crate) const fn new(kind: usize) -> Handles<T> {
        let slots = [const { Mutex::new(Slot { times: 0, value: None }) }; HANDLES];
        Handles { kind, slots }
    }

    /// Takes an object in; NULL: there is none, or no place for it.
    pub(crate) fn insert(&self, make: impl FnOnce() -> Option<T>) -> *mut c_void {
        let Some(value) = make() else { return core::ptr::null_mut() };
        for (n, slot) in self.slots.iter().enumerate() {
            let mut slot = lock(slot);
            if slot.value.is_none() {
                slot.times = (slot.times + 1) & (usize::MAX >> 10);
                slot.value = Some(value);
                return core::ptr::without_provenance_mut(slot.times << 10 | n << 2 | self.kind);
            }
        }
        core::ptr::null_mut()
    }

    fn find(&self, handle: *mut c_void) -> Option<MutexGuard<'_, Slot<T>>> {
        let handle = handle.addr();
        let slot = lock(&self.slots[handle >> 2 & (HANDLES - 1)]);
        (handle & 3 == self.kind && slot.times == handle >> 10).then_some(slot)
    }

    /// The result of `f` for an object; NULL: the handle names none.
    pub(crate) fn with_object(
        &self,
        handle: *mut c_void,
        f: impl FnOnce(&mut T) -> *mut c_void,
    ) -> *mut c_void {
        let mut slot = self.find(handle);
        slot.as_mut().and_then(|s| s.value.as_mut()).map_or(core::ptr::null_mut(), f)
    }

    pub(crate) fn remove(&self, handle: *mut c_void) {
        let value = self.find(handle).and_then(|mut slot| slot.value.take());
        // Freed without the lock.
        drop(value);
    }
}

/// Nothing under it panics.
fn lock<T>(slot: &Mutex<Slot<T>>) -> MutexGuard<'_, Slot<T>> {
    slot.lock().unwrap_or_else(PoisonError::into_inner)
}
