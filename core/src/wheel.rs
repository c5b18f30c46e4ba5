//! A hierarchical timing wheel: thousands of timers, most of them cancelled before they fire.
//!
//! Four levels of 64 slots, a tick of 4096 ns at the lowest, reach 68.7 s. A later deadline waits
//! in the last slot of the top level and is placed again when its turn comes, so any deadline
//! works. A timer is placed by its distance: less than 64 ticks at level 0, less than 64^2 at level
//! 1 and so on. When time reaches the start of a slot of a higher level, the timers in it move
//! down.

use crate::arena::{Heap, Table, Walk};
use crate::error::{Error, Result};

/// Nanoseconds of a tick, as a shift.
const TICK_SHIFT: u32 = 12;
/// Slots of a level, as a shift.
const SLOT_SHIFT: u32 = 6;
/// Slots of a level.
const SLOTS: u64 = 1 << SLOT_SHIFT;
/// Levels.
const LEVELS: u32 = 4;
/// Ticks that the levels reach.
const SPAN: u64 = 1 << (SLOT_SHIFT * LEVELS);
/// End of a list; also the slot of a timer that is not armed.
const NIL: u32 = u32::MAX;

/// One timer: its place in the list of a slot. Lists are circular through `next` and `prev`.
#[derive(Clone, Copy)]
struct Node {
    deadline_ns: u64,
    next: u32,
    prev: u32,
    /// `level * 64 + slot`, or `NIL` while not armed.
    slot: u32,
}

impl Node {
    const IDLE: Node = Node { deadline_ns: 0, next: NIL, prev: NIL, slot: NIL };
}

/// Timers with the ids `0..n`, intrusive: arming and cancelling are O(1) and need no memory.
///
/// The clock is the caller's, monotonic, in nanoseconds; a time before the latest one seen is
/// ignored.
pub struct Wheel {
    nodes: Table<Node>,
    /// First timer of each slot's circular list.
    heads: [u32; (LEVELS as usize) << SLOT_SHIFT],
    /// By level: bit s is set while slot s has timers.
    occupied: [u64; LEVELS as usize],
    /// Every earlier tick is done. No timer is in the slot of a level ≥ 1 that holds this tick,
    /// unless it is a whole turn later.
    tick: u64,
}

impl Wheel {
    /// A wheel for `initial` timers that can grow to `limit`, both rounded up to whole chunks.
    ///
    /// # Errors
    /// As [`Table::carve`].
    pub fn carve(walk: &mut Walk, initial: usize, limit: usize) -> Result<Self> {
        let nodes = Table::carve(walk, initial, limit, |_| Node::IDLE)?;
        Ok(Wheel {
            nodes,
            heads: [NIL; (LEVELS as usize) << SLOT_SHIFT],
            occupied: [0; LEVELS as usize],
            tick: 0,
        })
    }

    /// Adds a chunk of timers unless there are more than `have`.
    ///
    /// # Errors
    /// [`Error::NoMemory`] at the limit or where the heap has no room.
    pub fn grow_past(&mut self, have: usize, heap: &mut Heap) -> Result<()> {
        if have >= NIL as usize {
            return Err(Error::NoMemory);
        }
        self.nodes.grow_past(have, heap, |_| Node::IDLE)
    }

    /// Timers that exist now.
    pub fn capacity(&self) -> usize {
        self.nodes.len()
    }

    /// Arms timer `id` for `deadline_ns`, or moves it there. Panics for an id out of range, as all
    /// of these do.
    ///
    /// A deadline that has passed fires at the next [`Wheel::pop_expired`].
    pub fn arm(&mut self, id: usize, deadline_ns: u64) {
        let node = &mut self.nodes[id];
        let same = node.slot != NIL && node.deadline_ns == deadline_ns;
        if same {
            return;
        }
        let armed = node.slot != NIL;
        node.deadline_ns = deadline_ns;
        if armed {
            self.unlink(id as u32);
        }
        self.place(id as u32);
    }

    /// Disarms timer `id`, if it is armed.
    pub fn cancel(&mut self, id: usize) {
        if self.is_armed(id) {
            self.unlink(id as u32);
        }
    }

    /// Whether timer `id` is armed.
    pub fn is_armed(&self, id: usize) -> bool {
        self.nodes[id].slot != NIL
    }

    /// The deadline of timer `id` in nanoseconds, while it is armed.
    pub fn deadline(&self, id: usize) -> Option<u64> {
        let node = &self.nodes[id];
        (node.slot != NIL).then_some(node.deadline_ns)
    }

    /// Disarms and returns a timer whose deadline is not after `now_ns`; call it until `None`.
    ///
    /// Never early, and late by less than a tick (4096 ns). Timers of different ticks come in
    /// order.
    ///
    /// # Cost
    /// O(1) amortised: a timer moves down at most three times in 68 s. However far the clock jumps,
    /// empty slots are skipped, and after a jump of more than the reach all timers are placed once
    /// more.
    pub fn pop_expired(&mut self, now_ns: u64) -> Option<usize> {
        let now = now_ns >> TICK_SHIFT;
        if now < self.tick {
            return None;
        }
        if now - self.tick >= SPAN {
            self.rebuild(now);
        }
        loop {
            let due = self.heads[(self.tick % SLOTS) as usize];
            if due != NIL {
                self.unlink(due);
                return Some(due as usize);
            }
            match self.next_event() {
                Some(tick) if tick <= now => self.enter(tick),
                _ => {
                    self.tick = now;
                    return None;
                }
            }
        }
    }

    /// When to call [`Wheel::pop_expired`] next, in nanoseconds; `None` while nothing is armed.
    ///
    /// A lower bound: never later than the earliest deadline rounded up to a tick, but it may be
    /// the time at which timers move down a level. O(levels).
    pub fn next_deadline(&self) -> Option<u64> {
        self.next_event().map(|tick| tick.saturating_mul(1 << TICK_SHIFT))
    }

    /// The first tick, from the current one on, at which a slot with timers begins.
    fn next_event(&self) -> Option<u64> {
        let mut first: Option<u64> = None;
        for level in 0..LEVELS {
            let occupied = self.occupied[level as usize];
            if occupied == 0 {
                continue;
            }
            let here = self.tick >> (SLOT_SHIFT * level);
            // At level 0 the current slot is due now, above it is a whole turn ahead.
            let from = if level == 0 { here } else { here + 1 };
            let ahead = occupied.rotate_right((from % SLOTS) as u32).trailing_zeros();
            let start = (from + u64::from(ahead)) << (SLOT_SHIFT * level);
            first = Some(first.map_or(start, |f| f.min(start)));
        }
        first
    }

    /// Moves time to `tick`, where at least one slot begins, and the timers of those slots down.
    fn enter(&mut self, tick: u64) {
        self.tick = tick;
        for level in (1..LEVELS).rev() {
            let shift = SLOT_SHIFT * level;
            if tick % (1 << shift) == 0 {
                let slot = ((tick >> shift) % SLOTS) as u32;
                self.scatter(level << SLOT_SHIFT | slot);
            }
        }
    }

    /// After a jump over the whole reach: every timer is placed anew from `now` on.
    fn rebuild(&mut self, now: u64) {
        let heads = self.heads;
        self.heads = [NIL; (LEVELS as usize) << SLOT_SHIFT];
        self.occupied = [0; LEVELS as usize];
        self.tick = now;
        for head in heads {
            self.place_list(head);
        }
    }

    /// Empties a slot and places its timers anew.
    fn scatter(&mut self, slot: u32) {
        let head = core::mem::replace(&mut self.heads[slot as usize], NIL);
        self.occupied[(slot >> SLOT_SHIFT) as usize] &= !(1 << (u64::from(slot) % SLOTS));
        self.place_list(head);
    }

    /// Places every timer of a circular list that no slot holds any more.
    fn place_list(&mut self, head: u32) {
        if head == NIL {
            return;
        }
        let last = self.nodes[head as usize].prev;
        let mut id = head;
        loop {
            let next = self.nodes[id as usize].next;
            self.place(id);
            if id == last {
                return;
            }
            id = next;
        }
    }

    /// Puts timer `id`, which is in no list, at the end of the list where its deadline belongs.
    fn place(&mut self, id: u32) {
        // Rounded up, so that a timer is never early.
        let due = self.nodes[id as usize].deadline_ns.div_ceil(1 << TICK_SHIFT).max(self.tick);
        let due = due.min(self.tick + SPAN - 1);
        let distance = due - self.tick;
        let level = distance.checked_ilog2().unwrap_or(0) / SLOT_SHIFT;
        let place = ((due >> (SLOT_SHIFT * level)) % SLOTS) as u32;
        let slot = level << SLOT_SHIFT | place;
        let head = self.heads[slot as usize];
        if head == NIL {
            self.heads[slot as usize] = id;
            self.occupied[level as usize] |= 1 << place;
            let node = &mut self.nodes[id as usize];
            (node.next, node.prev, node.slot) = (id, id, slot);
        } else {
            let last = self.nodes[head as usize].prev;
            self.nodes[last as usize].next = id;
            self.nodes[head as usize].prev = id;
            let node = &mut self.nodes[id as usize];
            (node.next, node.prev, node.slot) = (head, last, slot);
        }
    }

    /// Takes timer `id` out of its list.
    fn unlink(&mut self, id: u32) {
        let Node { next, prev, slot, .. } = self.nodes[id as usize];
        self.nodes[id as usize].slot = NIL;
        if next == id {
            self.heads[slot as usize] = NIL;
            self.occupied[(slot >> SLOT_SHIFT) as usize] &= !(1 << (u64::from(slot) % SLOTS));
            return;
        }
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
        if self.heads[slot as usize] == id {
            self.heads[slot as usize] = next;
        }
    }
}

#[cfg(test)]
mod tests;
