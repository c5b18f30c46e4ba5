//! Host memory of a device that is placed in any order ([`gdrcore_core::mem::weak`]).
//!
//! An engine keeps its memory for as long as it lives, so these are never freed: a device gives its
//! own back, and the next one takes it.

use crate::clock::now_ns;
use core::ops::Deref;
use gdrcore_core::mem::weak::Weak;
use gdrcore_core::mem::{Access, AtomicOp, Memory, Token, TransferId};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Host memory of one device, by the clock of [`now_ns`].
pub struct WeakMemory(Mutex<Weak>);

/// Those of devices that were closed.
static SPARE: Mutex<Vec<&'static WeakMemory>> = Mutex::new(Vec::new());

/// A device's own memory, until it is closed.
pub struct OwnMemory(&'static WeakMemory);

impl WeakMemory {
    /// The state. Nobody waits for it: a device has one engine, whose lock the caller holds.
    pub fn state(&self) -> MutexGuard<'_, Weak> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OwnMemory {
    /// For a device that is opened.
    pub fn take() -> OwnMemory {
        // No wait: a fork may have copied the lock while another thread had it.
        let spare = SPARE.try_lock().ok().and_then(|mut spare| spare.pop());
        OwnMemory(spare.unwrap_or_else(|| Box::leak(Box::new(WeakMemory(Mutex::default())))))
    }

    /// What the engine gets.
    pub fn memory(&self) -> &'static WeakMemory {
        self.0
    }
}

impl Deref for OwnMemory {
    type Target = WeakMemory;
    fn deref(&self) -> &WeakMemory {
        self.0
    }
}

impl Drop for OwnMemory {
    fn drop(&mut self) {
        *self.0.state() = Weak::new();
        if let Ok(mut spare) = SPARE.try_lock() {
            spare.push(self.0);
        }
    }
}

impl Memory for WeakMemory {
    fn fetch(&self, _: u64, addr: u64, dst: &mut [u8], of: TransferId) -> Access {
        self.state().fetch(now_ns(), addr, dst, of)
    }

    fn place(&self, is_relaxed: u64, addr: u64, src: &[u8]) -> Access {
        self.state().place(now_ns(), is_relaxed != 0, addr, src)
    }

    fn poll(&self, token: Token) -> Access {
        self.state().poll(now_ns(), token)
    }

    fn atomic(&self, _: u64, addr: u64, op: AtomicOp, _: TransferId) -> Result<u64, Access> {
        self.state().atomic(addr, op)
    }

    fn finish(&self) {
        self.state().finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::wire::Opcode;

    #[test]
    fn the_memory_of_a_closed_device_serves_the_next_one_empty() {
        let word = std::sync::atomic::AtomicU64::new(0);
        let addr = word.as_ptr() as u64;
        let first = OwnMemory::take();
        let memory = first.memory();
        let mut waits = false;
        for draw in 0..100 {
            memory.state().begin(1, Opcode::RC_WRITE_ONLY, Some(draw));
            waits |= matches!(memory.place(0, addr, &[7; 8]), Access::Pending(_));
            if waits {
                break;
            }
        }
        assert!(waits);
        word.store(0, std::sync::atomic::Ordering::Relaxed);
        drop(first);
        let second = OwnMemory::take();
        second.memory().finish();
        assert_eq!(word.load(std::sync::atomic::Ordering::Relaxed), 0, "nobody's bytes are left");
    }
}
