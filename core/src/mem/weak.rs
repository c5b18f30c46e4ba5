//! Host memory that places bytes in any order. RDMA allows this; most NICs rarely do it.
//!
//! The last bytes of a packet are mostly placed first, others up to a millisecond later, and the
//! bytes that a READ asks for may be taken as late. While a piece of a receive buffer, or of what a
//! READ or an atomic brings, waits, its place holds poison that follows from the seed, because
//! nobody may look there before the completion. What the standard promises stays:
//! - a message ends (its completion, its ACK, an answer behind it) when all its bytes are placed;
//! - the next message of its queue pair is placed behind it, unless the region of that message has
//!   RELAXED_ORDERING;
//! - of bytes that are written twice the later ones remain;
//! - an atomic follows all that came before it, and a request takes what was placed before it;
//! - a word of 8 aligned bytes is stored in one piece;
//! - a WRITE leaves what was there until its own bytes are, and no byte beside a message changes.
//!
//! Decisions are the caller's: [`Weak::begin`] names a number that follows from the seed and the
//! place of a packet. Nothing is allocated.

use super::{host, Access, AtomicOp, Token, TransferId};
use crate::random::Random;
use crate::wire::{Opcode, PacketKind};
use heapless::{Deque, Vec};

/// Most pieces that wait.
const HELD_MAX: usize = 128;
/// Bytes of the longest piece.
const PIECE_BYTES: usize = 512;
/// Pieces are divided at multiples of this, so that words stay whole.
const WORD: u64 = 8;
/// Most READs that wait.
const READS_MAX: usize = 64;
/// Separates these random numbers from those of other parts with the same seed.
const PURPOSE: u64 = 0x7765_616b;
/// A token is QP number << 40 | placement number.
const NUMBER_BITS: u32 = 40;
/// A delay is 2^k µs, 0 <= k < 11.
const DOUBLINGS: u64 = 11;
/// The token of an answer that waits. No placement has it.
const READING: Token = Token(u64::MAX);

/// A piece that waits.
struct Held {
    qp: u32,
    /// The number of its placement.
    number: u64,
    /// It is placed at this time.
    due: u64,
    addr: u64,
    len: usize,
    bytes: [u8; PIECE_BYTES],
}

/// The packet that is being handled.
#[derive(Clone, Copy, Default)]
struct Packet {
    qp: u32,
    /// It begins a message, and none of its bytes is placed.
    begins: bool,
    /// Its bytes may be poisoned while they wait.
    poisons: bool,
    /// The number from which the order of its bytes follows; `None`: they are placed in order.
    draw: Option<u64>,
}

/// What waits to be placed. All times are of one clock, in nanoseconds.
///
/// # Thread-safety
/// None of its own; calls must be by one thread at a time.
pub struct Weak {
    held: Vec<Held, HELD_MAX>,
    /// READs: [`TransferId::id`], and the time from which their bytes may be taken.
    reads: Deque<(u64, u64), READS_MAX>,
    /// By queue pair: the first placement that lost bytes, because its memory had vanished.
    lost: Vec<Token, HELD_MAX>,
    /// The number of the last placement.
    number: u64,
    packet: Packet,
}

impl Held {
    fn overlaps(&self, addr: u64, len: usize) -> bool {
        let (ahead, behind) = (self.addr.wrapping_sub(addr), addr.wrapping_sub(self.addr));
        ahead < len as u64 || behind < self.len as u64
    }
}

fn token(qp: u32, number: u64) -> Token {
    Token(u64::from(qp) << NUMBER_BITS | number & ((1 << NUMBER_BITS) - 1))
}

/// Whether a placement is of the queue pair of another one, and not behind it.
fn is_before(placed: Token, other: Token) -> bool {
    placed.0 >> NUMBER_BITS == other.0 >> NUMBER_BITS && placed.0 <= other.0
}

/// Notes a placement that lost bytes; without room, in place of the oldest one.
fn note_lost(lost: &mut Vec<Token, HELD_MAX>, token: Token) {
    if lost.iter().any(|earlier| is_before(*earlier, token)) {
        return;
    }
    if lost.is_full() {
        lost.remove(0);
    }
    let _ = lost.push(token);
}

/// A delay by a random number: mostly a few microseconds, at most about a millisecond.
pub fn delay_ns(draw: u64) -> u64 {
    1000 << (draw % DOUBLINGS)
}

impl Default for Weak {
    fn default() -> Self {
        Weak::new()
    }
}

impl Weak {
    /// Nothing waits.
    pub const fn new() -> Weak {
        Weak {
            held: Vec::new(),
            reads: Deque::new(),
            lost: Vec::new(),
            number: 0,
            packet: Packet { qp: 0, begins: false, poisons: false, draw: None },
        }
    }

    /// A packet is about to be handled: placements from here on are its. `qp`: its queue pair.
    /// `draw`: the number from which its order follows; `None`: its bytes are placed at once, in
    /// their order.
    pub fn begin(&mut self, qp: u32, opcode: Opcode, draw: Option<u64>) {
        // ibv_post_recv(3), ibv_post_send(3): A buffer is the program's again when it has polled
        // the completion. A WRITE has none where it is placed.
        let poisons = matches!(
            opcode.kind(),
            PacketKind::Send | PacketKind::ReadResponse | PacketKind::AtomicAck
        );
        self.packet = Packet { qp, begins: opcode.is_first(), poisons, draw };
    }

    /// The answer of a READ is not made before `due`. `id`: [`TransferId::answer`].
    pub fn delay_read(&mut self, id: u64, due: u64) {
        if self.reads.is_full() {
            self.reads.pop_front();
        }
        let _ = self.reads.push_back((id, due));
    }

    /// Places bytes, now or later. `is_relaxed`: the region has RELAXED_ORDERING.
    pub fn place(&mut self, now: u64, is_relaxed: bool, addr: u64, src: &[u8]) -> Access {
        self.land_due(now);
        self.number += 1;
        let Packet { qp, begins, draw, .. } = self.packet;
        self.packet.begins = false;
        if begins && !is_relaxed {
            self.land_all(|held| held.qp == qp);
        }
        self.land_all(|held| held.overlaps(addr, src.len()));
        let Some(draw) = draw else { return store(addr, src) };
        let mut random = Random::new(draw, PURPOSE);
        // Another placement of the same packet has another order.
        self.packet.draw = Some(random.draw());
        self.scatter(now, addr, src, &mut random)
    }

    /// Places the last bytes of `src` first, the others at once or later.
    fn scatter(&mut self, now: u64, addr: u64, src: &[u8], random: &mut Random) -> Access {
        let (own, mut end) = (token(self.packet.qp, self.number), src.len());
        let mut access = Access::Ready;
        while end > 0 {
            let begin = cut(addr, end, random.draw());
            let (at, piece) = (addr.wrapping_add(begin as u64), &src[begin..end]);
            let is_last = end == src.len();
            let at_once = if is_last { random.draw() % 4 != 0 } else { random.draw() % 4 == 0 };
            if at_once {
                if store(at, piece) != Access::Ready {
                    return Access::Fault;
                }
            } else {
                if self.packet.poisons && poison(at, piece.len(), random) != Access::Ready {
                    return Access::Fault;
                }
                self.hold(now + delay_ns(random.draw()), at, piece);
                access = Access::Pending(own);
            }
            end = begin;
        }
        access
    }

    /// Keeps a piece, in place of the one that is due first if there is no room.
    fn hold(&mut self, due: u64, addr: u64, piece: &[u8]) {
        if self.held.is_full() {
            let first = (0..self.held.len()).min_by_key(|i| self.held[*i].due);
            first.into_iter().for_each(|i| self.land(i));
        }
        let mut bytes = [0; PIECE_BYTES];
        bytes[..piece.len()].copy_from_slice(piece);
        let (qp, number, len) = (self.packet.qp, self.number, piece.len());
        let _ = self.held.push(Held { qp, number, due, addr, len, bytes });
    }

    /// Places a piece that has waited.
    fn land(&mut self, i: usize) {
        let Held { qp, number, addr, len, bytes, .. } = &self.held[i];
        if store(*addr, &bytes[..*len]) != Access::Ready {
            note_lost(&mut self.lost, token(*qp, *number));
        }
        self.held.swap_remove(i);
    }

    fn land_all(&mut self, which: impl Fn(&Held) -> bool) {
        while let Some(i) = self.held.iter().position(&which) {
            self.land(i);
        }
    }

    /// Places what is due.
    fn land_due(&mut self, now: u64) {
        self.land_all(|held| held.due <= now);
    }

    /// Places all that waits: a queue pair or a region ends.
    pub fn finish(&mut self) {
        self.land_all(|_| true);
    }

    /// Asks after a placement, and those before it of its queue pair.
    pub fn poll(&mut self, now: u64, asked: Token) -> Access {
        self.land_due(now);
        if let Some(i) = self.lost.iter().position(|lost| is_before(*lost, asked)) {
            self.lost.swap_remove(i);
            return Access::Fault;
        }
        match self.held.iter().any(|held| is_before(token(held.qp, held.number), asked)) {
            true => Access::Pending(asked),
            false => Access::Ready,
        }
    }

    /// Copies from memory, unless the READ that asks for the bytes waits. A request of the
    /// program's own gets all that was placed before, because it may be fenced.
    pub fn fetch(&mut self, now: u64, addr: u64, dst: &mut [u8], of: TransferId) -> Access {
        self.land_due(now);
        if !of.is_answer() {
            self.land_all(|held| held.overlaps(addr, dst.len()));
        } else if self.reads.iter().any(|(id, due)| *id == of.id && now < *due) {
            return Access::Pending(READING);
        }
        super::answer(host::fetch(addr, dst))
    }

    /// An atomic, behind all that was placed.
    ///
    /// # Errors
    /// [`Access::Fault`]: the memory has vanished.
    pub fn atomic(&mut self, addr: u64, op: AtomicOp) -> Result<u64, Access> {
        self.land_all(|_| true);
        super::host_atomic(addr, op)
    }
}

/// Where the last piece of `end` bytes at `addr` begins: at a word, at most [`PIECE_BYTES`] bytes
/// before the end.
fn cut(addr: u64, end: usize, draw: u64) -> usize {
    let words = 1 + draw as usize % (PIECE_BYTES / WORD as usize);
    let Some(begin) = end.checked_sub(words * WORD as usize) else { return 0 };
    let at = addr.wrapping_add(begin as u64);
    begin + (at.wrapping_neg() % WORD) as usize
}

/// Fills memory with what follows from random numbers.
fn poison(addr: u64, len: usize, random: &mut Random) -> Access {
    let mut bytes = [0; PIECE_BYTES];
    for word in bytes.chunks_exact_mut(WORD as usize) {
        word.copy_from_slice(&random.draw().to_ne_bytes());
    }
    store(addr, &bytes[..len])
}

fn store(addr: u64, src: &[u8]) -> Access {
    super::answer(host::place(addr, src))
}

#[cfg(test)]
mod tests;
