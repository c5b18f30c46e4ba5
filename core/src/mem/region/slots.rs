//! The slots of a table of regions: which are free, and in what order they are used; their keys;
//! and how many of them a protection domain has.

use super::{Regions, Slot, SlotKind, FREE, NIL, RANDOM_BITS};
use crate::arena::Heap;
use crate::error::{Error, Result};
use crate::random::{Random, Shuffle};
use crate::reason::refuse;

/// A table grows by an eighth, and by no more than this: slots that come together are used in a
/// secret order.
const BATCH: usize = 1024;
/// Purposes of random numbers: keys, and the order of slots.
const PURPOSE: u64 = 0;
const ORDER_PURPOSE: u64 = 0x006f_7264_6572;

impl Regions {
    /// Adds slots from the heap.
    ///
    /// # Errors
    /// [`Error::NoMemory`] at the limit or where the heap has no room.
    pub fn grow(&mut self, heap: &mut Heap) -> Result<()> {
        let first = self.slots.len();
        let fresh = self.fresh;
        while self.slots.len() - first < (first / 8).clamp(1, BATCH) {
            match self.slots.grow(heap, |_| fresh) {
                Ok(()) => {}
                Err(_) if self.slots.len() > first => break,
                Err(e) => {
                    if e == Error::NoMemory {
                        refuse!(
                            NoMemory,
                            "max_mr: {first} regions and windows are in use, and there is \
                            no room for more; raise it, or give more memory"
                        );
                    }
                    return Err(e);
                }
            }
        }
        self.append_from(first);
        Ok(())
    }

    /// Puts all slots from an index on at the end of the list, in a secret order.
    pub(super) fn append_from(&mut self, first: usize) {
        let n = (self.slots.len() - first) as u32;
        if n == 0 {
            return;
        }
        let key = Random::new(self.seed, ORDER_PURPOSE ^ (first as u64) << 48);
        let order = Shuffle::new(key, n.next_power_of_two().ilog2());
        for i in (0..n.next_power_of_two()).map(|place| order.number_at(place)).filter(|i| *i < n) {
            self.append(first as u32 + i);
        }
    }

    /// Regions and windows of a protection domain.
    pub fn pd_users(&self, pd: u32) -> u32 {
        self.of_pd.get(pd as usize).map_or(0, |n| *n as u32)
    }

    /// A slot joins a protection domain; `leaves`: of which it was before.
    pub(super) fn count(&mut self, joins: Option<u32>, leaves: Option<u32>) {
        if let Some(n) = joins.and_then(|pd| self.of_pd.get_mut(pd as usize)) {
            *n += 1;
        }
        if let Some(n) = leaves.and_then(|pd| self.of_pd.get_mut(pd as usize)) {
            *n -= 1;
        }
    }

    /// A free slot, live and with a fresh key; the caller fills in the rest.
    pub(super) fn take(&mut self) -> Result<usize> {
        if u64::from(self.mr_live) + u64::from(self.mw_live) >= self.most {
            return Err(refuse!(Limit, "max_mr: the device allows {}", self.most));
        }
        if self.free_head == NIL {
            // No words: `grow` gives it.
            return Err(Error::NoMemory);
        }
        let index = self.free_head as usize;
        let slot = &mut self.slots[index];
        let next = slot.link;
        slot.generation = slot.generation.wrapping_add(1);
        slot.key = self.keys.next(index, slot.key);
        self.free_head = next;
        match next {
            NIL => self.free_tail = NIL,
            next => self.slots[next as usize].qp = NIL,
        }
        Ok(index)
    }

    /// Takes a slot out of the list of free ones.
    pub(super) fn unlink(&mut self, index: u32) -> Result<()> {
        let Slot { kind, qp: before, link: after, .. } = self.slots[index as usize];
        if kind != SlotKind::Free {
            return Err(refuse!(Busy, "key: its index is in use in another engine"));
        }
        match before {
            NIL => self.free_head = after,
            before => self.slots[before as usize].link = after,
        }
        match after {
            NIL => self.free_tail = before,
            after => self.slots[after as usize].qp = before,
        }
        Ok(())
    }

    /// Makes a live slot free; its key stays, to tell an expired key and to choose another next
    /// time.
    pub(super) fn give_back(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let pd = slot.pd;
        *slot =
            Slot { key: slot.key, aged: true, generation: slot.generation.wrapping_add(1), ..FREE };
        self.count(None, Some(pd));
        self.append(index as u32);
    }

    /// Puts a free slot at the end of the list.
    fn append(&mut self, index: u32) {
        let last = core::mem::replace(&mut self.free_tail, index);
        let slot = &mut self.slots[index as usize];
        (slot.qp, slot.link) = (last, NIL);
        match last {
            NIL => self.free_head = index,
            last => self.slots[last as usize].link = index,
        }
    }
}

/// The random parts of keys.
pub(super) struct Keys(Random);

impl Keys {
    pub(super) fn new(seed: u64) -> Keys {
        Keys(Random::new(seed, PURPOSE))
    }

    /// A key for `index`. Its bits between the program's byte and the index are neither 0 nor those
    /// of `last`, so no choice of that byte makes it 0 or the last key again.
    fn next(&mut self, index: usize, last: u32) -> u32 {
        const MASK: u32 = (1 << RANDOM_BITS) - 1;
        loop {
            let random = self.0.draw() as u32 & MASK;
            if random >> 8 != 0 && random >> 8 != (last & MASK) >> 8 {
                return (index as u32) << RANDOM_BITS | random;
            }
        }
    }
}
