//! The network between the hosts: delay, loss, duplication, reordering, corruption, darkness. By seed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::rng::Rng;

/// What a network does to packets. Chances are in a million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// A packet vanishes.
    pub loss: u32,
    /// It arrives twice.
    pub dup: u32,
    /// It is overtaken.
    pub reorder: u32,
    /// Some of its bits change.
    pub corrupt: u32,
    /// The path goes dark for a while, at any packet.
    pub dark: u32,
    /// How long at most.
    pub dark_ns: u64,
    /// Time on the way.
    pub delay_ns: u64,
    /// More of it for those that are overtaken.
    pub late_ns: u64,
    /// Bursts arrive whole, as with receive offload.
    pub bursts: bool,
}

/// What it did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Packets that entered.
    pub packets: u64,
    /// Lost, in the dark too.
    pub lost: u64,
    /// Delivered once more.
    pub doubled: u64,
    /// Overtaken.
    pub late: u64,
    /// Changed.
    pub corrupted: u64,
}

/// Bytes on their way.
pub struct Flight {
    at: u64,
    seq: u64,
    /// Sending host.
    pub from: usize,
    /// Receiving host.
    pub to: usize,
    /// Bytes of each packet but the last.
    pub seg: usize,
    /// The packets.
    pub bytes: Vec<u8>,
}

impl PartialEq for Flight {
    fn eq(&self, other: &Flight) -> bool {
        (self.at, self.seq) == (other.at, other.seq)
    }
}
impl Eq for Flight {}
impl PartialOrd for Flight {
    fn partial_cmp(&self, other: &Flight) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Flight {
    fn cmp(&self, other: &Flight) -> std::cmp::Ordering {
        (self.at, self.seq).cmp(&(other.at, other.seq))
    }
}

/// The network.
pub struct Network {
    faults: Faults,
    rng: Rng,
    queue: BinaryHeap<Reverse<Flight>>,
    seq: u64,
    /// By sender and receiver: when the path is light again, and when its last packet arrives.
    paths: Vec<(u64, u64)>,
    hosts: usize,
    spare: Vec<Vec<u8>>,
    /// What it did so far.
    pub done: Done,
}

impl Network {
    /// An empty network.
    pub fn new(faults: Faults, rng: Rng, hosts: usize) -> Network {
        let paths = vec![(0, 0); hosts * hosts];
        Network {
            faults,
            rng,
            queue: BinaryHeap::new(),
            seq: 0,
            paths,
            hosts,
            spare: Vec::new(),
            done: Done::default(),
        }
    }

    /// Takes a burst.
    pub fn send(&mut self, now: u64, from: usize, to: usize, seg: usize, data: &[u8]) {
        let f = self.faults;
        if f.bursts && !self.rng.chance(f.loss + f.dup + f.reorder + f.corrupt + f.dark) {
            self.done.packets += data.len().div_ceil(seg) as u64;
            self.fly(now, from, to, seg, data, 0);
            return;
        }
        for packet in data.chunks(seg) {
            self.done.packets += 1;
            let path = &mut self.paths[from * self.hosts + to];
            if self.rng.chance(f.dark) {
                path.0 = now + self.rng.below(f.dark_ns);
            }
            if now < path.0 || self.rng.chance(f.loss) {
                self.done.lost += 1;
                continue;
            }
            let copies = if self.rng.chance(f.dup) { 2 } else { 1 };
            self.done.doubled += copies - 1;
            for _ in 0..copies {
                let late = if self.rng.chance(f.reorder) { 1 + self.rng.below(f.late_ns) } else { 0 };
                self.done.late += u64::from(late > 0);
                self.fly(now, from, to, packet.len(), packet, late);
            }
        }
    }

    fn fly(&mut self, now: u64, from: usize, to: usize, seg: usize, data: &[u8], late: u64) {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(data);
        if self.rng.chance(self.faults.corrupt) {
            self.done.corrupted += 1;
            self.damage(&mut bytes);
        }
        let path = &mut self.paths[from * self.hosts + to];
        let mut at = now + self.faults.delay_ns;
        if late > 0 {
            at += late;
        } else {
            at = at.max(path.1);
            path.1 = at;
        }
        self.seq += 1;
        self.queue.push(Reverse(Flight { at, seq: self.seq, from, to, seg, bytes }));
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
        self.queue.peek().map(|Reverse(f)| f.at)
    }

    /// A packet that has arrived by now.
    pub fn arrive(&mut self, now: u64) -> Option<Flight> {
        if self.next_at()? > now {
            return None;
        }
        self.queue.pop().map(|Reverse(f)| f)
    }

    /// Lets a flight arrive once more, later: its host is stopped.
    pub fn again(&mut self, flight: Flight, at: u64) {
        self.queue.push(Reverse(Flight { at, ..flight }));
    }

    /// Takes the bytes of a delivered flight back.
    pub fn recycle(&mut self, flight: Flight) {
        self.spare.push(flight.bytes);
    }
}
