//! The object handles that programs see. Each kind of object has small numbers in the process: a
//! new object gets the lowest free one, as the kernel does for an open file. FreeFlow's router, for
//! example, uses them as indexes of its own tables. With `--weak` they begin elsewhere ([`weak`]).
//! The device's handle of an object is another number.

use crate::weak;
use gdrcore_net::fork::around_forks;
use gdrcore_net::thread_lock::ForkLock;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A kind of object that has numbers of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    Pd,
    Mr,
    Mw,
    Ah,
    Cq,
    Srq,
    Qp,
    Dm,
}

const KINDS: usize = ObjectKind::Dm as usize + 1;

/// The numbers of a kind.
struct Numbers {
    /// For each number the device of its object; 0: it is free.
    owners: Vec<usize>,
    free: BinaryHeap<Reverse<u32>>,
}

impl Numbers {
    fn take(&mut self, owner: usize) -> u32 {
        if let Some(Reverse(n)) = self.free.pop() {
            self.owners[n as usize] = owner;
            return n;
        }
        self.owners.push(owner);
        self.owners.len() as u32 - 1
    }

    fn give_back(&mut self, n: usize) {
        self.owners[n] = 0;
        self.free.push(Reverse(n as u32));
    }
}

static NUMBERS: ForkLock<[Numbers; KINDS]> =
    ForkLock::new([const { Numbers { owners: Vec::new(), free: BinaryHeap::new() } }; KINDS]);

/// Holds the lock of the numbers around every later fork.
pub fn guard_forks() {
    around_forks(hold, release);
}

fork_handlers!(NUMBERS);

/// An object's number. Dropping it frees the number.
#[derive(Debug, PartialEq, Eq)]
pub struct ObjectNumber {
    kind: ObjectKind,
    number: u32,
}

impl ObjectNumber {
    /// The lowest free number of a kind, for an object of `device`.
    pub fn new<D>(kind: ObjectKind, device: *const D) -> ObjectNumber {
        ObjectNumber { kind, number: NUMBERS.lock()[kind as usize].take(device.addr()) }
    }

    /// The handle: the number, behind the first handle of its kind.
    pub fn get(&self) -> u32 {
        weak::first_handle(self.kind as u64) + self.number
    }
}

impl Drop for ObjectNumber {
    fn drop(&mut self) {
        NUMBERS.lock()[self.kind as usize].give_back(self.number as usize);
    }
}

/// Frees the numbers of the objects that a program left on a closing device. Those objects are
/// never dropped, because the program may still have pointers to them.
pub fn free_all<D>(device: *const D) {
    for numbers in NUMBERS.lock().iter_mut() {
        for n in 0..numbers.owners.len() {
            if numbers.owners[n] == device.addr() {
                numbers.give_back(n);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(device: usize, kind: ObjectKind) -> ObjectNumber {
        ObjectNumber::new::<()>(kind, core::ptr::without_provenance(device))
    }

    #[test]
    fn the_lowest_free_number_of_each_kind_is_given() {
        // No other test makes windows or device memory.
        let [a, b, c] = [(); 3].map(|()| of(8, ObjectKind::Mw));
        assert_eq!([a.get(), b.get(), c.get()], [0, 1, 2]);
        assert_eq!(of(8, ObjectKind::Dm).get(), 0);
        drop(b);
        drop(a);
        let [a, b, d] = [8, 16, 16].map(|device| of(device, ObjectKind::Mw));
        assert_eq!([a.get(), b.get(), d.get()], [0, 1, 3]);
        // A program leaves its objects when it closes a device.
        core::mem::forget([b, d]);
        free_all::<()>(core::ptr::without_provenance(16));
        let [b, d, e] = [(); 3].map(|()| of(8, ObjectKind::Mw));
        assert_eq!([b.get(), d.get(), e.get()], [1, 3, 4]);
    }
}
