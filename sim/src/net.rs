//! The network between the hosts: delay, loss, duplication, reordering, corruption, partitions,
//! replays, all by seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gdrcore_testkit::rng::Rng;

/// The faults of a network. Probabilities are in a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Loss of a packet.
    pub loss: u32,
    /// Duplication.
    pub dup: u32,
    /// Reordering: later packets overtake it.
    pub reorder: u32,
    /// Corruption: some of its bits change.
    pub corrupt: u32,
    /// Start of a partition at any packet: one direction, both directions, or all paths of a host.
    pub dark: u32,
    /// Its longest duration.
    pub dark_ns: u64,
    /// In every other period of this length all packets are held and arrive at its end, the newest
    /// first.
    pub reverse_ns: u64,
    /// Propagation delay.
    pub delay_ns: u64,
    /// Additional delay of packets that are overtaken.
    pub late_ns: u64,
    /// Whether bursts arrive whole, as with receive offload.
    pub bursts: bool,
    /// Whether copies of some packets are kept, for [`Network::replay`].
    pub keep: bool,
}

impl Faults {
    /// Whether every packet arrives once, in order and unchanged.
    pub fn none(&self) -> bool {
        let harmless = Faults {
            delay_ns: self.delay_ns,
            late_ns: self.late_ns,
            bursts: self.bursts,
            ..Faults::default()
        };
        *self == harmless
    }
}

/// What the network did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Packets that entered.
    pub packets: u64,
    /// Packets lost, also in partitions.
    pub lost: u64,
    /// Packets duplicated.
    pub doubled: u64,
    /// Packets overtaken.
    pub late: u64,
    /// Packets corrupted.
    pub corrupted: u64,
    /// Partitions.
    pub cuts: u64,
    /// Packets replayed after their connection had ended.
    pub replayed: u64,
}

impl Done {
    /// Adds the numbers of another network.
    pub fn add(&mut self, o: &Done) {
        self.packets += o.packets;
        self.lost += o.lost;
        self.doubled += o.doubled;
        self.late += o.late;
        self.corrupted += o.corrupted;
        self.cuts += o.cuts;
        self.replayed += o.replayed;
    }
}

/// Bytes on their way.
#[derive(Default)]
pub struct Flight {
    /// Sending host.
    pub from: usize,
    /// Receiving host.
    pub to: usize,
    /// Bytes of each packet but the last.
    pub seg: usize,
    /// The packets.
    pub bytes: Vec<u8>,
}

/// One direction between two hosts.
#[derive(Clone, Copy, Default)]
struct Path {
    /// When its partition ends.
    light_at: u64,
    /// When its latest packet that was not overtaken arrives.
    last_at: u64,
}

/// Longest time that a packet is under way: half the shortest time-wait of a QPN.
pub const LIFETIME_NS: u64 = 50_000_000;
/// Copies kept for a replay.
const KEPT: usize = 128;

/// The network.
pub struct Network {
    faults: Faults,
    rng: Rng,
    /// Time of arrival, order among equal times, index of the flight.
    queue: BinaryHeap<Reverse<(u64, u64, u32)>>,
    flights: Vec<Flight>,
    spare: Vec<u32>,
    seq: u64,
    /// By sender and receiver.
    paths: Vec<Path>,
    hosts: usize,
    /// Sum of the probabilities of all faults of single packets.
    any: u32,
    /// Time of sending and copy of each kept packet.
    kept: Vec<(u64, Flight)>,
    kept_at: usize,
    /// What it has done so far.
    pub done: Done,
}

impl Network {
    /// An empty network.
    pub fn new(faults: Faults, rng: Rng, hosts: usize) -> Network {
        Network {
            faults,
            rng,
            queue: BinaryHeap::new(),
            flights: Vec::new(),
            spare: Vec::new(),
            seq: 0,
            paths: vec![Path::default(); hosts * hosts],
            hosts,
            any: faults.loss + faults.dup + faults.reorder + faults.corrupt + faults.dark,
            kept: Vec::new(),
            kept_at: 0,
            done: Done::default(),
        }
    }

    /// Sends a burst.
    pub fn send(&mut self, now: u64, from: usize, to: usize, seg: usize, data: &[u8]) {
        // Packets without a fault stay together, if bursts may.
        let (mut first, mut at) = (0, 0);
        for packet in data.chunks(seg) {
            self.done.packets += 1;
            let plain = self.fate(now, from, to, packet);
            if !plain || !self.faults.bursts {
                self.fly(now, from, to, seg, &data[first..at], 0);
                first = at;
            }
            at += packet.len();
            if !plain {
                first = at;
            }
        }
        self.fly(now, from, to, seg, &data[first..at], 0);
    }

    /// Draws the faults of a packet. True: none, and the caller sends it.
    fn fate(&mut self, now: u64, from: usize, to: usize, packet: &[u8]) -> bool {
        let f = self.faults;
        if f.keep {
            self.keep(now, from, to, packet);
        }
        let dark = now < self.paths[from * self.hosts + to].light_at;
        let dice = if self.any == 0 { u32::MAX } else { self.rng.below(1_000_000) as u32 };
        if dark || dice < f.loss {
            self.done.lost += 1;
            return false;
        }
        let mut over = f.loss;
        let mut is = |chance: u32| {
            over += chance;
            dice < over
        };
        // A packet that is duplicated or corrupted may be late, too.
        if is(f.dup) {
            self.done.doubled += 1;
            for _ in 0..2 {
                let late = self.lateness(4);
                self.fly(now, from, to, packet.len(), packet, late);
            }
        } else if is(f.reorder) {
            let late = self.lateness(1);
            self.fly(now, from, to, packet.len(), packet, late);
        } else if is(f.corrupt) {
            self.done.corrupted += 1;
            let late = self.lateness(8);
            let slot = self.slot(from, to, packet.len(), packet);
            let mut bytes = std::mem::take(&mut self.flights[slot as usize].bytes);
            self.damage(&mut bytes);
            self.flights[slot as usize].bytes = bytes;
            self.depart(now, slot, late);
        } else if is(f.dark) {
            self.done.lost += 1;
            self.darken(now, from, to);
        } else {
            return true;
        }
        false
    }

    /// The additional delay of a packet, in one of `n` cases.
    fn lateness(&mut self, n: u64) -> u64 {
        if self.rng.below(n) > 0 {
            return 0;
        }
        self.done.late += 1;
        1 + self.rng.below(self.faults.late_ns)
    }

    /// Starts a partition: one direction, both directions, or everything to and from a host.
    fn darken(&mut self, now: u64, from: usize, to: usize) {
        self.done.cuts += 1;
        let until = now + self.rng.below(self.faults.dark_ns);
        let kind = self.rng.below(4);
        for a in 0..self.hosts {
            for b in 0..self.hosts {
                let hit = match kind {
                    0 | 1 => (a, b) == (from, to),
                    2 => (a, b) == (from, to) || (b, a) == (from, to),
                    _ => a == from || b == from,
                };
                let path = &mut self.paths[a * self.hosts + b];
                if hit {
                    path.light_at = path.light_at.max(until);
                }
            }
        }
    }

    fn keep(&mut self, now: u64, from: usize, to: usize, packet: &[u8]) {
        if self.rng.below(8) > 0 {
            return;
        }
        if self.kept.len() < KEPT {
            self.kept.push((0, Flight::default()));
        }
        let i = self.kept_at % KEPT;
        self.kept_at += 1;
        self.kept[i].0 = now;
        let f = &mut self.kept[i].1;
        (f.from, f.to, f.seg) = (from, to, packet.len());
        f.bytes.clear();
        f.bytes.extend_from_slice(packet);
    }

    /// Delivers all kept packets once more, as if they had been under way all the time.
    pub fn replay(&mut self, now: u64) {
        for (at, mut f) in std::mem::take(&mut self.kept) {
            if now - at > LIFETIME_NS {
                continue;
            }
            self.done.replayed += 1;
            let late = self.rng.below(self.faults.late_ns + 1);
            let bytes = std::mem::take(&mut f.bytes);
            self.fly(now, f.from, f.to, f.seg, &bytes, late);
        }
        self.kept_at = 0;
    }

    fn slot(&mut self, from: usize, to: usize, seg: usize, data: &[u8]) -> u32 {
        let slot = self.spare.pop().unwrap_or_else(|| {
            self.flights.push(Flight::default());
            self.flights.len() as u32 - 1
        });
        let f = &mut self.flights[slot as usize];
        (f.from, f.to, f.seg) = (from, to, seg);
        f.bytes.clear();
        f.bytes.extend_from_slice(data);
        slot
    }

    fn fly(&mut self, now: u64, from: usize, to: usize, seg: usize, data: &[u8], late: u64) {
        if !data.is_empty() {
            let slot = self.slot(from, to, seg, data);
            self.depart(now, slot, late);
        }
    }

    fn depart(&mut self, now: u64, slot: u32, late: u64) {
        let f = &self.flights[slot as usize];
        let path = &mut self.paths[f.from * self.hosts + f.to];
        let mut at = now + self.faults.delay_ns;
        if late > 0 {
            at += late;
        } else {
            at = at.max(path.last_at);
            path.last_at = at;
        }
        self.seq += 1;
        let period = self.faults.reverse_ns;
        let reversed = period > 0 && (at / period) & 1 == 1;
        let (at, order) = if reversed {
            ((at / period + 1) * period, u64::MAX - self.seq)
        } else {
            (at, self.seq)
        };
        self.queue.push(Reverse((at, order, slot)));
    }

    fn damage(&mut self, bytes: &mut Vec<u8>) {
        match self.rng.below(4) {
            0 => {
                let n = self.rng.below(bytes.len() as u64) as usize;
                bytes.truncate(n);
            }
            1 => {
                for _ in 0..self.rng.range(1, 40) {
                    let at = self.rng.below(bytes.len() as u64) as usize;
                    bytes[at] = self.rng.next() as u8;
                }
            }
            _ => {
                let at = self.rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.rng.below(8);
            }
        }
    }

    /// When the next packet arrives.
    pub fn next_at(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(f)| f.0)
    }

    /// A packet that has arrived by now.
    pub fn arrive(&mut self, now: u64) -> Option<Flight> {
        if self.next_at()? > now {
            return None;
        }
        let Reverse((_, _, slot)) = self.queue.pop()?;
        self.spare.push(slot);
        Some(std::mem::take(&mut self.flights[slot as usize]))
    }

    /// Delivers a flight again later, since its host is stopped.
    pub fn again(&mut self, flight: Flight, at: u64) {
        let slot = self.slot(flight.from, flight.to, flight.seg, &flight.bytes);
        self.recycle(flight);
        self.seq += 1;
        self.queue.push(Reverse((at, self.seq, slot)));
    }

    /// Keeps the memory of a delivered flight for reuse.
    pub fn recycle(&mut self, flight: Flight) {
        if let Some(&slot) = self.spare.last() {
            self.flights[slot as usize].bytes = flight.bytes;
        }
    }
}
