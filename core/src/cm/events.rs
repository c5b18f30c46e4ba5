//! Events that the program has not taken, in the order in which they came.
//!
//! A list through the places that every id has, one for each event of [`cm_event`]: no list can
//! overflow, and each step takes the same time however many ids there are.

use super::types::cm_event;
use crate::arena::{RawSlice, Walk};
use crate::error::Result;
use crate::verbs::NONE;
use core::sync::atomic::{AtomicU64, Ordering};

/// Places of an id.
const PLACES: usize = 10;

/// The place of an event among those of its id.
const fn place(event: u32) -> usize {
    match event {
        cm_event::ADDR_CHANGE => PLACES - 2,
        cm_event::TIMEWAIT_EXIT => PLACES - 1,
        _ => (event - cm_event::CONNECT_REQUEST) as usize,
    }
}

const _: () = assert!(place(cm_event::DEVICE_REMOVAL) < place(cm_event::ADDR_CHANGE));

/// The number of something that arrives now: later ones have larger numbers, whatever device of the
/// process they arrive at.
pub fn arrival() -> u64 {
    static ARRIVALS: AtomicU64 = AtomicU64::new(1);
    ARRIVALS.fetch_add(1, Ordering::Relaxed)
}

/// An event's place in the list.
#[derive(Clone, Copy)]
struct Node {
    event: u32,
    prev: u32,
    next: u32,
    /// 0: not in the list.
    arrival: u64,
}

const FREE: Node = Node { event: 0, prev: NONE, next: NONE, arrival: 0 };

/// The list.
pub(super) struct Events {
    nodes: RawSlice<Node>,
    first: u32,
    last: u32,
}

impl Events {
    /// Lays out the places of `ids` ids.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`] where they do not fit.
    pub(super) fn carve(w: &mut Walk, ids: usize) -> Result<Events> {
        Ok(Events { nodes: w.slice(ids * PLACES, FREE)?, first: NONE, last: NONE })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// Whether this event of an id is in the list.
    pub(super) fn has(&self, id: usize, event: u32) -> bool {
        self.nodes[id * PLACES + place(event)].arrival != 0
    }

    /// Whether any event of an id is in the list.
    pub(super) fn has_any(&self, id: usize) -> bool {
        self.places(id).any(|at| self.nodes[at].arrival != 0)
    }

    /// Adds an event of an id at the end; one that is in the list stays where it is.
    pub(super) fn push(&mut self, id: usize, event: u32) {
        if self.has(id, event) {
            return;
        }
        let at = (id * PLACES + place(event)) as u32;
        let prev = core::mem::replace(&mut self.last, at);
        self.nodes[at as usize] = Node { event, prev, next: NONE, arrival: arrival() };
        match prev {
            NONE => self.first = at,
            _ => self.nodes[prev as usize].next = at,
        }
    }

    /// Takes the first: the id, the event, and the number of its arrival.
    pub(super) fn pop(&mut self) -> Option<(usize, u32, u64)> {
        let at = (self.first != NONE).then_some(self.first as usize)?;
        let Node { event, arrival, .. } = self.nodes[at];
        self.unlink(at);
        Some((at / PLACES, event, arrival))
    }

    /// Drops the events of an id.
    pub(super) fn clear(&mut self, id: usize) {
        for at in self.places(id) {
            if self.nodes[at].arrival != 0 {
                self.unlink(at);
            }
        }
    }

    fn places(&self, id: usize) -> core::ops::Range<usize> {
        id * PLACES..(id + 1) * PLACES
    }

    fn unlink(&mut self, at: usize) {
        let Node { prev, next, .. } = core::mem::replace(&mut self.nodes[at], FREE);
        match prev {
            NONE => self.first = next,
            _ => self.nodes[prev as usize].next = next,
        }
        match next {
            NONE => self.last = prev,
            _ => self.nodes[next as usize].prev = prev,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::boxed::Box;
    use std::vec;
    use std::vec::Vec;

    fn events(ids: usize) -> Events {
        let memory: &'static mut [u8] = Box::leak(vec![0u8; 1 << 16].into_boxed_slice());
        // SAFETY: leaked, and nobody else's.
        #[allow(unsafe_code)]
        let mut walk = unsafe { Walk::carve(memory.as_mut_ptr(), memory.len()).unwrap() };
        Events::carve(&mut walk, ids).unwrap()
    }

    #[test]
    fn any_steps_leave_them_in_the_order_of_arrival() {
        const IDS: u64 = 5;
        let kinds = [4, 5, 6, 7, 8, 9, 10, 11, 14, 15];
        let (mut list, mut model) = (events(IDS as usize), Vec::<(usize, u32)>::new());
        let mut random = crate::random::Random::new(7, 7);
        let mut last = 0;
        for _ in 0..100_000 {
            let word = random.draw();
            let (id, event) = ((word % IDS) as usize, kinds[(word >> 32) as usize % 10]);
            match word >> 40 & 7 {
                0..=3 => {
                    list.push(id, event);
                    if !model.contains(&(id, event)) {
                        model.push((id, event));
                    }
                }
                4 => {
                    list.clear(id);
                    model.retain(|(other, _)| *other != id);
                }
                _ => {
                    let first = (!model.is_empty()).then(|| model.remove(0));
                    let got = list.pop();
                    assert_eq!(got.map(|(id, event, _)| (id, event)), first);
                    let arrival = got.map_or(last, |(.., arrival)| arrival);
                    assert!(arrival >= last);
                    last = arrival;
                }
            }
            assert_eq!(list.is_empty(), model.is_empty());
            assert_eq!(list.has(id, event), model.contains(&(id, event)));
            assert_eq!(list.has_any(id), model.iter().any(|(other, _)| *other == id));
        }
    }
}
