//! The requester's half of a queue pair: what was sent, what was acknowledged, and the conditions
//! that hold the next request back.

use crate::mem::Token;
use crate::verbs::holds::Holds;
use crate::wire::{NakCode, Psn};

/// Conditions that hold back the next request of a queue pair. If no bit is set, and nothing is
/// sent again ([`Req::cur_pkt`], [`Req::max_psn`]), the request may take the single path.
pub mod tx_block {
    /// [`Req::send_block`](super::Req::send_block) is not `None`.
    pub const HOLD: u32 = 1;
    /// A request has failed and waits for those before it to end; nothing behind it is sent, then
    /// the queue flushes.
    pub const FAILED: u32 = 2;
    /// The error completion of that request was delivered; the requests behind it flush.
    pub const BROKEN: u32 = 4;
    /// SQD: begin nothing new.
    pub const DRAINING: u32 = 8;
    /// SQ_DRAINED is owed.
    pub const DRAIN_EVENT: u32 = 16;
    /// The newest packet is to be sent once more.
    pub const PROBE: u32 = 32;
}

/// Requests in flight from which new ones are batched. A batch of this size also marks the program
/// as a bulk sender.
const DEEP: u32 = 8;
/// After so many shorter batches in a row the program no longer counts as one.
const SHORT_BATCHES: u8 = 8;

/// Progress of one send WQE.
#[derive(Clone, Copy, Debug, Default)]
pub struct WqeState {
    /// PSN of its first packet, once started.
    pub psn: Psn,
    /// PSNs that it takes.
    pub npkts: u32,
    /// READ: response packets placed.
    pub done_pkts: u32,
    /// Completion status, once done.
    pub status: u8,
    /// Has begun: `psn` and `npkts` hold.
    pub started: bool,
    /// Has ended; waits for its turn, and for room in the CQ.
    pub done: bool,
    /// Slow memory still places response bytes; `token` says which.
    pub placing: bool,
    /// A WRITE that travels as one WRITE for each packet.
    pub divided: bool,
    /// Provider of the token.
    pub provider: u8,
    /// Of the last placement that was not ready at once.
    pub token: Token,
}

/// Condition that keeps a requester from sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SendBlock {
    /// It may send.
    #[default]
    None,
    /// An RNR NAK has come: until this time.
    Rnr(u64),
    /// Nothing is sent until this time: its token bucket is empty, slow memory has no room, or
    /// another engine has a lock.
    Until(u64),
    /// Slow memory fetches the bytes that are next.
    Memory(u8, Token),
    /// It may send as far as [`peer_ready`](super::connection::Connection::peer_ready) allows.
    Unready,
}

/// State of the peer's receive requests, as far as RNR NAKs have shown it (`roce::rnr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum PeerReady {
    /// No RNR NAK has come.
    #[default]
    Yes,
    /// It has refused the packet with this PSN. Nothing beyond it leaves until it is accepted.
    Refused(Psn),
    /// What it refused has been accepted. It may not be ready for the next message either.
    Doubtful,
    /// The packet that takes the next receive request is tried, and maybe some behind it, up to
    /// this PSN. Nothing beyond it leaves until all of them are accepted.
    Tried(Psn),
}

/// How much is tried while the peer's readiness is in doubt, as RNR NAKs have taught
/// (`roce::rnr`).
#[derive(Clone, Copy, Debug, Default)]
pub struct RnrTrial {
    /// Packets that are tried at once, the first of which takes a receive request. 0: no RNR NAK
    /// has come.
    pub packets: u16,
    /// Half of the packets that the last refusal has cost.
    pub half_lost: u16,
    /// Packets between the last two that were refused, 0 if unknown.
    pub batch: u16,
    /// The last packet that was refused.
    pub refused: Psn,
}

/// The requester's state: what was sent, what was acknowledged.
///
/// Ring indexes are free-running: `released <= acked <= next <= tail`. Slots before the first are
/// free, WQEs before `acked` have ended, WQEs before `next` are wholly sent.
#[derive(Debug, Default)]
pub struct Req {
    /// Oldest slot that is not released.
    pub released: u32,
    /// Oldest WQE that has not ended.
    pub acked: u32,
    /// The WQE being sent, or the next to begin.
    pub next: u32,
    /// Packets of `next` already sent (READ: PSNs already asked for).
    pub cur_pkt: u32,
    /// Bytes of `next` that lie in memory of the peer already, without a packet.
    pub placed: u64,
    /// PSN of the next packet.
    pub next_psn: Psn,
    /// Oldest unacknowledged PSN.
    pub una_psn: Psn,
    /// One past the highest PSN ever sent.
    pub max_psn: Psn,
    /// Bytes that count against the peer's window.
    pub inflight: u32,
    /// Bytes of `inflight` sent since the last request for an ACK.
    pub unasked: u32,
    /// Bytes asked for by READs and not yet received.
    pub read_inflight: u32,
    /// Pieces of READs ([`crate::roce::READ_PIECE`]) and atomics outstanding.
    pub rd_out: u32,
    /// A request of a READ may have ended elsewhere than at the end of a piece: a rate, or a peer
    /// that is not ready, has cut it.
    pub reads_cut: bool,
    /// Timeouts that may still follow without progress.
    pub retry_left: u8,
    /// RNR NAKs that may still follow.
    pub rnr_left: u8,
    /// How many more short batches may leave before it no longer counts as a bulk sender.
    bulk: u8,
    /// Why it waits; [`tx_block::HOLD`] says whether it does.
    block: SendBlock,
    /// Conditions that hold back the next request: bits of [`tx_block`].
    holds: Holds,
    /// When the ACK timeout expires; 0 = nothing outstanding.
    pub ack_deadline: u64,
    /// When the peer's silence began: with its last answer, or when the timer was restarted.
    pub silent_since: u64,
    /// `silent_since` at the first of several timeouts in a row.
    pub mute_since: u64,
    /// Which silence the witness was asked about: its `silent_since`.
    pub witness_since: u64,
    /// How often it was asked.
    pub witness_looks: u8,
    /// When the probe is sent; 0 = no probe.
    pub probe_at: u64,
    /// Length of the next wait for a probe.
    pub probe_wait: u64,
    /// When the armed timer expires; 0 = not armed.
    pub armed_at: u64,
    /// Sequence NAKs since the last progress.
    pub naks: u8,
    /// PSN of the last rewind; a second report of its loss before progress is an echo.
    pub rewound: Option<Psn>,
    /// PSN and code of a NAK that would end the connection and was not believed at once.
    pub doubted: Option<(Psn, NakCode)>,
}

impl Req {
    /// The state of an empty queue whose next slot is `at`.
    pub fn starting_at(at: u32) -> Req {
        Req { released: at, acked: at, next: at, ..Req::default() }
    }

    /// The requests in flight from which new ones are batched: a datagram costs a microsecond,
    /// whatever it holds. 1 for a bulk sender, whose first requests would cost a datagram each;
    /// else [`DEEP`], so that a program that waits for each request is not delayed.
    #[inline]
    pub fn deep(&self) -> u32 {
        if self.bulk > 0 {
            1
        } else {
            DEEP
        }
    }

    /// Records that a batch of so many requests has left.
    #[inline]
    pub fn batch_left(&mut self, n: u32) {
        self.bulk = if n >= DEEP { SHORT_BATCHES } else { self.bulk.saturating_sub(1) };
    }

    /// Why it waits.
    #[inline(always)]
    pub fn send_block(&self) -> SendBlock {
        self.block
    }

    /// Makes it wait, or go on.
    #[inline(always)]
    pub fn set_send_block(&mut self, block: SendBlock) {
        self.block = block;
        self.set(tx_block::HOLD, block != SendBlock::None);
    }

    /// Whether any of these bits of [`tx_block`] is set.
    #[inline(always)]
    pub fn is(&self, bits: u32) -> bool {
        self.holds.is(bits)
    }

    /// Sets or clears bits of [`tx_block`].
    #[inline(always)]
    pub fn set(&mut self, bits: u32, on: bool) {
        self.holds.set(bits, on);
    }

    /// Moves `next` past `index`.
    #[inline(always)]
    pub fn go_behind(&mut self, index: u32) {
        self.next = index.wrapping_add(1);
        self.cur_pkt = 0;
    }

    /// Whether a request is half sent, or requests are sent again.
    #[inline(always)]
    pub fn sends_again(&self) -> bool {
        self.cur_pkt != 0 || self.next_psn != self.max_psn
    }

    /// Whether all that was sent has ended.
    #[inline(always)]
    pub fn nothing_in_flight(&self) -> bool {
        self.released == self.next && self.una_psn == self.max_psn
    }

    /// Whether the bits agree with the fields that they stand for.
    pub fn holds_are_true(&self) -> bool {
        self.is(tx_block::HOLD) == (self.block != SendBlock::None)
    }

    /// All bits that are set.
    #[inline(always)]
    pub fn holds(&self) -> u32 {
        self.holds.all()
    }

    /// The earliest deadline of the QP's timers; `u64::MAX`: none.
    #[inline]
    pub fn next_deadline(&self) -> u64 {
        let mut at = u64::MAX;
        if self.ack_deadline != 0 {
            at = self.ack_deadline;
            if self.probe_at != 0 {
                at = at.min(self.probe_at);
            }
        }
        if let SendBlock::Rnr(t) | SendBlock::Until(t) = self.block {
            at = at.min(t);
        }
        at
    }

    /// Whether the newest packet may be sent again: no RNR NAK, rate or slow memory holds it.
    #[inline]
    pub fn may_repeat(&self) -> bool {
        matches!(self.block, SendBlock::None | SendBlock::Unready)
    }
}
