//! Slots: the places of sessions in the relay, the pairs that may talk, and counters. The router's
//! first thread and the worker share them, so all are atomics.

use super::refused::Refused;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::sync::OnceLock;

/// Limit of sessions with rings: more than there are blocks of queue pair numbers.
pub const SLOTS: usize = 1024;
/// Limit of tenants: one for each session, and as many without. A tenant's buckets outlive its
/// sessions: otherwise each new session would bring a full bucket.
pub const TENANTS: usize = 2 * SLOTS;

/// The state of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    /// It is free.
    Free,
    /// A session has it.
    Taken,
    /// The worker has given up the session's rings; the first thread must expel the session.
    Broken,
}

/// Counters of a session, or of a tenant.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Counters {
    /// Packets from it that were forwarded, and their bytes.
    pub tx: (AtomicU64, AtomicU64),
    /// Packets that it received, and their bytes.
    pub rx: (AtomicU64, AtomicU64),
    /// Packets for it that were dropped because its ring was full.
    pub full: AtomicU64,
    /// Packets for it that were dropped because they exceeded its receive rate.
    pub over_rate: AtomicU64,
    /// Packets for it that were marked (ECN) near that rate.
    pub marked: AtomicU64,
    /// Packets that were in its ring at its end, and were dropped for lack of credit.
    pub unpaid: AtomicU64,
    /// Its packets that were refused, by [`Refused`].
    pub refused: [AtomicU64; Refused::ALL.len()],
}

/// A counter: its name, its meaning for people, and its place.
type Named = (&'static str, &'static str, fn(&Counters) -> &AtomicU64);

impl Counters {
    /// All but `refused`.
    pub const NAMED: [Named; 8] = [
        ("tx_packets", "Packets sent by way of the relay.", |c| &c.tx.0),
        ("tx_bytes", "Bytes sent by way of the relay.", |c| &c.tx.1),
        ("rx_packets", "Packets received by way of the relay.", |c| &c.rx.0),
        ("rx_bytes", "Bytes received by way of the relay.", |c| &c.rx.1),
        ("full", "Packets dropped as the receiver's ring was full.", |c| &c.full),
        ("over_rate", "Packets dropped beyond the receiver's rx_rate.", |c| &c.over_rate),
        ("marked", "Packets marked as the receiver's rx_rate was near.", |c| &c.marked),
        ("unpaid", "Packets dropped at a session's end, without credit.", |c| &c.unpaid),
    ];

    fn clear(&self) {
        let named = Self::NAMED.iter().map(|(_, _, of)| of(self));
        named.chain(&self.refused).for_each(|n| n.store(0, Ordering::Relaxed));
    }
}

/// A matrix of bits. A row is allocated when its first bit is set.
#[derive(Debug, Default)]
pub struct BitMatrix {
    rows: Vec<OnceLock<Vec<AtomicU64>>>,
    /// Words of a row.
    words: usize,
}

impl BitMatrix {
    /// A matrix without a set bit.
    pub fn new(rows: usize, columns: usize) -> BitMatrix {
        BitMatrix {
            rows: (0..rows).map(|_| OnceLock::new()).collect(),
            words: columns.div_ceil(64),
        }
    }

    /// Whether a bit is set. False outside the matrix.
    pub fn get(&self, row: u16, column: u32) -> bool {
        let bits = self.rows.get(usize::from(row)).and_then(OnceLock::get);
        let word = bits.and_then(|bits| bits.get(column as usize / 64));
        word.is_some_and(|word| word.load(Ordering::Acquire) & 1 << (column % 64) != 0)
    }

    /// Sets or clears a bit. Clearing never allocates.
    pub fn set(&self, row: u16, column: u32, on: bool) {
        let Some(row) = self.rows.get(usize::from(row)) else { return };
        let bits = match on {
            true => row.get_or_init(|| (0..self.words).map(|_| AtomicU64::new(0)).collect()),
            false => match row.get() {
                Some(bits) => bits,
                None => return,
            },
        };
        let Some(word) = bits.get(column as usize / 64) else { return };
        let bit = 1 << (column % 64);
        match on {
            true => word.fetch_or(bit, Ordering::AcqRel),
            false => word.fetch_and(!bit, Ordering::AcqRel),
        };
    }

    /// Clears a row.
    pub fn clear(&self, row: u16) {
        let bits = self.rows.get(usize::from(row)).and_then(OnceLock::get);
        bits.into_iter().flatten().for_each(|word| word.store(0, Ordering::Release));
    }
}

/// All slots.
#[derive(Debug)]
pub struct Slots {
    states: Vec<AtomicU8>,
    expelled: Vec<AtomicBool>,
    /// A row for each sender.
    allowed: BitMatrix,
    counters: Vec<Counters>,
    tenants: Vec<Counters>,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots {
            states: (0..SLOTS).map(|_| AtomicU8::new(0)).collect(),
            expelled: (0..SLOTS).map(|_| AtomicBool::new(false)).collect(),
            allowed: BitMatrix::new(SLOTS, SLOTS),
            counters: (0..SLOTS).map(|_| Counters::default()).collect(),
            tenants: (0..TENANTS).map(|_| Counters::default()).collect(),
        }
    }
}

impl Slots {
    /// The state of a slot.
    pub fn state(&self, slot: u16) -> SlotState {
        match self.states[usize::from(slot)].load(Ordering::Acquire) {
            0 => SlotState::Free,
            1 => SlotState::Taken,
            _ => SlotState::Broken,
        }
    }

    /// Sets the state of a slot.
    pub fn set(&self, slot: u16, state: SlotState) {
        self.states[usize::from(slot)].store(state as u8, Ordering::Release);
    }

    /// Takes a free slot; its session may reach no other one yet.
    pub fn take(&self) -> Option<u16> {
        let slot = (0..SLOTS as u16).find(|&slot| self.state(slot) == SlotState::Free)?;
        self.counters[usize::from(slot)].clear();
        self.expelled[usize::from(slot)].store(false, Ordering::Relaxed);
        self.set(slot, SlotState::Taken);
        Some(slot)
    }

    /// The counters of a slot's session.
    pub fn counters(&self, slot: u16) -> &Counters {
        &self.counters[usize::from(slot)]
    }

    /// The counters of a tenant, over all its sessions.
    pub fn tenant(&self, tenant: u16) -> &Counters {
        &self.tenants[usize::from(tenant)]
    }

    /// Clears the counters of a tenant's number, for another tenant.
    pub fn clear_tenant(&self, tenant: u16) {
        self.tenants[usize::from(tenant)].clear();
    }

    /// Whether the session of one slot may reach that of another.
    pub fn is_allowed(&self, from: u16, to: u16) -> bool {
        self.allowed.get(from, to.into())
    }

    /// Allows or forbids that in both directions, from the next packet on.
    pub fn set_allowed(&self, a: u16, b: u16, may: bool) {
        self.allowed.set(a, b.into(), may);
        self.allowed.set(b, a.into(), may);
    }

    /// Forbids a slot all others, both ways.
    pub fn forbid_all(&self, slot: u16) {
        (0..SLOTS as u16).for_each(|other| self.set_allowed(slot, other, false));
    }

    /// Withdraws all permissions of a slot's session, from the next packet on: it reaches no other
    /// slot and no plain endpoint.
    pub fn expel(&self, slot: u16) {
        self.expelled[usize::from(slot)].store(true, Ordering::Relaxed);
        self.forbid_all(slot);
    }

    /// Whether a slot's session was expelled.
    pub fn is_expelled(&self, slot: u16) -> bool {
        self.expelled[usize::from(slot)].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_reach_whom_is_said_of_each_pair() {
        let slots = Slots::default();
        slots.set_allowed(3, 700, true);
        slots.set_allowed(3, 3, true);
        slots.set_allowed(64, 700, true);
        let all = |s: &Slots| -> Vec<(u16, u16)> {
            let pairs = (0..SLOTS as u16).flat_map(|a| (0..SLOTS as u16).map(move |b| (a, b)));
            pairs.filter(|&(a, b)| s.is_allowed(a, b)).collect()
        };
        assert_eq!(all(&slots), [(3, 3), (3, 700), (64, 700), (700, 3), (700, 64)]);
        slots.set_allowed(700, 3, false);
        assert_eq!(all(&slots), [(3, 3), (64, 700), (700, 64)]);
        slots.forbid_all(700);
        assert_eq!(all(&slots), [(3, 3)]);
    }

    #[test]
    fn a_slot_is_given_again_when_the_worker_has_let_go_of_it() {
        let slots = Slots::default();
        assert_eq!((slots.take(), slots.take()), (Some(0), Some(1)));
        slots.counters(0).full.store(5, Ordering::Relaxed);
        slots.set(0, SlotState::Broken);
        assert_eq!(slots.take(), Some(2));
        slots.set(0, SlotState::Free);
        assert_eq!(slots.take(), Some(0));
        assert_eq!(slots.counters(0).full.load(Ordering::Relaxed), 0);
        assert_eq!((3..SLOTS).map_while(|_| slots.take()).count(), SLOTS - 3);
        assert_eq!(slots.take(), None);
    }
}
