//! The engine's private half of the verbs objects, reachable only inside its lock.

use crate::arena::{RawSlice, Region};
use crate::bucket::TokenBucket;
use crate::counters::Counters;
use crate::dcqcn::Dcqcn;
use crate::mem::Token;
use crate::verbs::cause::Cause;
use crate::verbs::types::{qp_state, QpAttr, QpInit, Sge, Wc};
use crate::wire::{NakCode, Psn};

/// Largest scatter/gather list that a configuration may ask for.
pub const MAX_SGE: usize = 32;
/// Message ends that may wait for slow memory on one QP.
pub const MAX_FENCES: usize = 8;
/// No object.
pub const NONE: u32 = u32::MAX;

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
    /// Provider of the token.
    pub provider: u8,
    /// Of the last placement that was not ready at once.
    pub token: Token,
}

/// Why a requester does not send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hold {
    /// It may send.
    #[default]
    None,
    /// The peer said RNR; until this time.
    Rnr(u64),
    /// Its token bucket is empty; until this time.
    Rate(u64),
    /// Slow memory fetches what it wants to send.
    Memory(u8, Token),
    /// It may send as far as [`Qp::ready`] allows.
    Unready,
}

/// What the requester knows of the peer's receive requests (`roce::rnr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ready {
    /// It has said nothing.
    #[default]
    Yes,
    /// It has refused the packet with the PSN [`Qp::ready_psn`]. Nothing beyond it leaves until it is accepted.
    Refused,
    /// What it refused has been accepted. It may not be ready for the next message either.
    Doubtful,
    /// The packet with the PSN [`Qp::ready_psn`] takes the next receive request. Nothing beyond it leaves until it is accepted.
    Tried,
}

/// The requester's state: what was sent, what was acknowledged.
///
/// Ring indexes are free-running: `una <= acked <= next <= tail`. Slots before `una` are released,
/// WQEs before `acked` have ended, WQEs before `next` are wholly sent.
#[derive(Debug, Default)]
pub struct Req {
    /// Oldest slot that is not released.
    pub una: u32,
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
    /// Of those, what was sent since an ACK was asked for last.
    pub unasked: u32,
    /// Bytes asked for by READs and not yet received.
    pub read_inflight: u32,
    /// READ requests and atomics outstanding.
    pub rd_out: u32,
    /// Timeouts and sequence NAKs that may still follow without progress.
    pub retry_left: u8,
    /// RNR NAKs that may still follow.
    pub rnr_left: u8,
    /// Why it waits.
    pub hold: Hold,
    /// A request has failed and waits for those before it to end; nothing behind it is sent, then the queue flushes.
    pub failed: bool,
    /// Its failure has been told; all behind it flushes.
    pub broken: bool,
    /// When the peer counts as silent; 0 = nothing outstanding.
    pub ack_deadline: u64,
    /// When the peer was last heard of, or asked anew.
    pub silent_since: u64,
    /// When the silence began in which the first of several timeouts was.
    pub mute_since: u64,
    /// The silence, by when it began, of which a witness was asked.
    pub asked: u64,
    /// How often.
    pub looks: u8,
    /// When to send the newest packet once more; 0 = nothing outstanding.
    pub probe_at: u64,
    /// How long the next such wait is.
    pub probe_wait: u64,
    /// It is due.
    pub probe: bool,
    /// When the wheel will fire; 0 = not armed.
    pub armed_at: u64,
    /// Sequence NAKs since the last progress.
    pub naks: u8,
    /// PSN at which the last rewind happened; a second NAK for it before progress is an echo.
    pub rewound: Option<Psn>,
    /// PSN and code of a NAK that would end the connection and was not believed at once.
    pub doubted: Option<(Psn, NakCode)>,
    /// SQD: begin nothing new.
    pub draining: bool,
    /// SQ_DRAINED is owed.
    pub drain_event: bool,
}

/// The watch over a connection on which nothing happens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// When to look next; 0: it is not watched.
    pub at: u64,
    /// What had come by the last look (`rcvd_pkts`).
    pub seen: u64,
    /// Questions asked since something came, and when the first was.
    pub tries: u32,
    /// See `tries`.
    pub since: u64,
    /// A question is to be sent.
    pub ask: bool,
}

impl Req {
    /// The earliest time at which something must be done if nothing comes; `u64::MAX`: there is none.
    #[inline]
    pub fn next_deadline(&self) -> u64 {
        let mut at = u64::MAX;
        if self.ack_deadline != 0 {
            at = self.ack_deadline;
            if self.probe_at != 0 {
                at = at.min(self.probe_at);
            }
        }
        if let Hold::Rnr(t) | Hold::Rate(t) = self.hold {
            at = at.min(t);
        }
        at
    }

    /// Whether what was sent last may be repeated, or asked for again: it is not kept back altogether.
    #[inline]
    pub fn may_repeat(&self) -> bool {
        matches!(self.hold, Hold::None | Hold::Unready)
    }
}

/// What kind of message arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Incoming {
    /// None: the next packet must be FIRST or ONLY.
    #[default]
    Idle,
    /// A SEND.
    Send,
    /// A WRITE.
    Write,
    /// UC: the rest of a message with a gap; dropped.
    Skip,
}

/// The receive request that a message is using.
#[derive(Clone, Copy)]
pub struct TakenRecv {
    /// One is taken.
    pub taken: bool,
    /// Its CQE is reserved. Not so while it waits for another message because its own was dropped (UC, UD).
    pub reserved: bool,
    /// What it has failed with while its CQ had no room to say so; 0: nothing.
    pub failed: u32,
    /// Of the request.
    pub wr_id: u64,
    /// Room in bytes.
    pub length: u32,
    /// Pieces.
    pub num_sge: u32,
    /// The pieces.
    pub sges: [Sge; MAX_SGE],
}

impl Default for TakenRecv {
    fn default() -> Self {
        TakenRecv {
            taken: false,
            reserved: false,
            failed: 0,
            wr_id: 0,
            length: 0,
            num_sge: 0,
            sges: [Sge::default(); MAX_SGE],
        }
    }
}

/// A READ or an atomic that was answered, kept for duplicates, and its answer while it is being sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resource {
    /// In use.
    pub valid: bool,
    /// Atomic (then `value` is the answer), else READ.
    pub atomic: bool,
    /// First PSN.
    pub psn: Psn,
    /// PSNs.
    pub npkts: u32,
    /// Remote (our) address.
    pub va: u64,
    /// Key that the peer used.
    pub rkey: u32,
    /// Bytes.
    pub len: u32,
    /// Original value of an atomic.
    pub value: u64,
    /// MSN to send.
    pub msn: u32,
    /// Response packets already sent.
    pub sent: u32,
    /// The answer of a duplicate: it does not count as outstanding.
    pub again: bool,
    /// Fences that must have passed before the answer may leave (it acknowledges what came before it).
    pub after_fence: u32,
}

/// The end of a message whose bytes are still on their way into slow memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fence {
    /// Provider.
    pub provider: u8,
    /// Last placement.
    pub token: Token,
    /// PSN that may be acknowledged afterwards.
    pub psn: Psn,
    /// MSN that goes with it.
    pub msn: u32,
    /// The receive completion that is due.
    pub wc: Option<Wc>,
    /// It is a solicited one.
    pub solicited: bool,
}

/// How many packets came for a queue pair of late that no honest peer sends, and what follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Siege {
    /// When the count began.
    pub since: u64,
    /// How many since then.
    pub count: u32,
    /// Until then what may be forged is believed only when it is said twice; 0: always at once.
    pub until: u64,
    /// UDP ports from which packets came that moved the connection on, the last first; 0: none yet.
    pub ports: [u16; 2],
}

/// The responder's state.
#[derive(Default)]
pub struct Resp {
    /// Expected PSN.
    pub epsn: Psn,
    /// Messages completed.
    pub msn: u32,
    /// Last PSN that may be acknowledged, and the MSN to send with it.
    pub ack_psn: Psn,
    /// See `ack_psn`.
    pub ack_msn: u32,
    /// What arrives now.
    pub incoming: Incoming,
    /// Bytes of it received.
    pub offset: u64,
    /// WRITE: where it goes. The key is looked up anew for every packet: it may expire on the way.
    pub va: u64,
    /// WRITE: the key.
    pub rkey: u32,
    /// WRITE: its length by RETH.
    pub dma_len: u32,
    /// The receive request in use.
    pub recv: TakenRecv,
    /// An ACK is owed.
    pub ack_owed: bool,
    /// The owed ACK must not wait for company.
    pub ack_now: bool,
    /// Packets since the last ACK left.
    pub pkts_since_ack: u32,
    /// A NAK (AETH syndrome) is owed.
    pub nak_owed: Option<u8>,
    /// The NAK that ended the connection, to be said again when the peer did not hear it.
    pub fatal_nak: Option<u8>,
    /// Its PSN.
    pub fatal_psn: Psn,
    /// A sequence or RNR NAK was sent; nothing ahead is answered until the expected PSN comes.
    pub nak_sent: bool,
    /// A request was dropped for want of a place; a sequence NAK is owed once there is one.
    pub nak_later: bool,
    /// QP_LAST_WQE_REACHED was raised.
    pub last_wqe: bool,
    /// Highest PSN seen since that NAK.
    pub nak_high: Psn,
    /// The expected PSN when something ahead of it came that is not believed at once, and when that was.
    pub ahead: Option<(Psn, u64)>,
    /// Answered READs and atomics, a ring.
    pub resources: RawSlice<Resource>,
    /// Where the next one goes.
    pub res_next: u32,
    /// Answers being sent: a ring of copies.
    pub jobs: RawSlice<Resource>,
    /// First job.
    pub job_head: u32,
    /// Jobs.
    pub job_len: u32,
    /// Message ends that wait for slow memory.
    pub fences: [Fence; MAX_FENCES],
    /// First of them.
    pub fence_head: u32,
    /// How many.
    pub fence_len: u32,
    /// Fences pushed since the QP began.
    pub fences_pushed: u32,
    /// Fences passed.
    pub fences_passed: u32,
    /// Last placement of the current message that was not ready at once.
    pub placing: Option<(u8, Token)>,
}

impl Resp {
    /// Whether an ACK or a NAK is owed.
    #[inline]
    pub fn owes_answer(&self) -> bool {
        self.ack_owed || self.owes_nak()
    }

    /// Whether a NAK is owed.
    #[inline]
    pub fn owes_nak(&self) -> bool {
        self.nak_owed.is_some() || self.nak_later
    }

    /// Where the latest fence stands. Only while there is one.
    #[inline]
    pub fn last_fence(&self) -> usize {
        (self.fence_head + self.fence_len - 1) as usize % MAX_FENCES
    }

    /// The expected PSN has come: NAKs about it have no object any more.
    #[inline]
    pub fn forget_naks(&mut self) {
        self.nak_sent = false;
        self.nak_later = false;
        self.nak_owed = None;
    }
}

/// The engine's half of a QP.
#[derive(Default)]
pub struct Qp {
    /// Created and not destroyed.
    pub live: bool,
    /// `qp_type`.
    pub kind: u32,
    /// `qp_state`.
    pub state: u32,
    /// QP number.
    pub qpn: u32,
    /// It is not to be destroyed: how many times over.
    pub pins: u32,
    /// Index of its PD.
    pub pd: u32,
    /// Index of the send CQ.
    pub scq: u32,
    /// Index of the receive CQ.
    pub rcq: u32,
    /// Index of the SRQ, or [`NONE`].
    pub srq: u32,
    /// What it was created with.
    pub init: QpInit,
    /// Attributes as they were set.
    pub attr: QpAttr,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// Index of the peer (RC and UC from RTR on), or [`NONE`].
    pub peer: u32,
    /// Its peer is a QP of this engine (not UD, which decides per message).
    pub loopback: bool,
    /// ACK timeout in nanoseconds; the configured deadline when the attribute is 0.
    pub timeout_ns: u64,
    /// It has been in RTR with a peer that is not of this engine, or with any (UD): somebody elsewhere may know its number.
    pub met: bool,
    /// The longest that a peer could be silent in one of its lives before the last RESET.
    pub longest_ns: u64,
    /// Send rate.
    pub bucket: TokenBucket,
    /// Rate of what it sends while its path is congested.
    pub congestion: Dcqcn,
    /// One of the two limits now.
    pub paced: bool,
    /// When the next congestion notification may leave.
    pub cnp_at: u64,
    /// Packets sent when the last congestion notification came, and how many notifications they and those before may still draw.
    pub cnp_sent: u64,
    /// See `cnp_sent`.
    pub cnp_credit: u32,
    /// Congestion notifications are not heeded until then.
    pub cnp_deaf: u64,
    /// Packets that no honest peer sends.
    pub siege: Siege,
    /// Its peer sends from its own UDP port, and from ports that were allowed for its address: others are refused.
    pub own_port: bool,
    /// Progress of the send WQEs, by ring index.
    pub wqes: RawSlice<WqeState>,
    /// Requester.
    pub req: Req,
    /// Whether the peer has receive requests for what is sent.
    pub ready: Ready,
    /// See [`Ready`].
    pub ready_psn: Psn,
    /// One past the last PSN that it sent before it was last in RESET; 0: it sent none.
    pub former_psn: Psn,
    /// Responder.
    pub resp: Resp,
    /// Keepalive.
    pub keep: Keep,
    /// Ring memory of its queues, for the heap.
    pub sq_mem: Option<Region>,
    /// See `sq_mem`.
    pub rq_mem: Option<Region>,
    /// Asynchronous events that the program has not taken: bits by number of the event.
    pub events: u32,
    /// Events.
    pub counters: Counters,
    /// Why it failed.
    pub cause: Cause,
}

impl Qp {
    /// Whether it is in a state that sends anything at all.
    #[inline]
    pub fn may_transmit(&self) -> bool {
        self.live && self.state != qp_state::RESET && self.state != qp_state::INIT
    }
    /// Whether packets from the peer are looked at.
    #[inline]
    pub fn can_receive(&self) -> bool {
        matches!(self.state, qp_state::RTR | qp_state::RTS | qp_state::SQD | qp_state::SQE)
    }
    /// Whether the requester may send.
    #[inline]
    pub fn can_send(&self) -> bool {
        matches!(self.state, qp_state::RTS | qp_state::SQD)
    }
    /// The state record of the WQE at a ring index.
    #[inline]
    pub fn wqe(&mut self, index: u32) -> &mut WqeState {
        let mask = self.wqes.len() - 1;
        &mut self.wqes[index as usize & mask]
    }
}

/// What a program that sleeps wants to hear of a CQ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Armed {
    /// Nothing.
    #[default]
    No,
    /// The next completion that is solicited or failed.
    Urgent,
    /// The next completion.
    Any,
}

/// The engine's half of a CQ.
#[derive(Default)]
pub struct Cq {
    /// Created and not destroyed.
    pub live: bool,
    /// Ring memory, for the heap.
    pub mem: Option<Region>,
    /// Entries promised to receives that have begun.
    pub reserved: u32,
    /// What raises its next event.
    pub armed: Armed,
    /// Free entries when a QP last began to wait for one.
    pub seen_free: u32,
    /// The QP that an entry was promised to last.
    pub holder: u32,
    /// QPs that use it, counted once per queue, and pins.
    pub users: u32,
    /// Send queues among them.
    pub senders: u32,
    /// Sum of the depths of those queues (strict mode).
    pub depth_sum: u32,
    /// Where its events go, if not to the context.
    pub channel: Option<u8>,
    /// It has an event on its channel; `next` is the CQ behind it in the list, plus one.
    pub has_event: bool,
    /// See `has_event`.
    pub next: u32,
}

impl Cq {
    /// Most entries of a CQ of `capacity` that may be promised to receives which have begun. A message
    /// whose sender is gone keeps its promise for ever, so one entry is left to the send queues.
    #[inline]
    pub fn promises(&self, capacity: u32) -> u32 {
        capacity.saturating_sub(u32::from(self.senders > 0))
    }
}

/// The engine's half of an SRQ.
#[derive(Default)]
pub struct Srq {
    /// Created and not destroyed.
    pub live: bool,
    /// Ring memory, for the heap.
    pub mem: Option<Region>,
    /// Its PD.
    pub pd: u32,
    /// QPs that use it.
    pub users: u32,
    /// Raise the limit event below this; 0 = off.
    pub limit: u32,
    /// Asked for at creation.
    pub max_sge: u32,
    /// Asynchronous events not taken.
    pub events: u32,
}

/// An address handle.
#[derive(Clone, Copy, Default)]
pub struct Ah {
    /// Created and not destroyed.
    pub live: bool,
    /// Its PD.
    pub pd: u32,
    /// The peer.
    pub peer: u32,
    /// The peer record for QPNs of other engines at the same address; NONE where the address is not shared.
    pub others: u32,
}

/// A protection domain.
#[derive(Clone, Copy, Default)]
pub struct Pd {
    /// Objects that belong to it, besides MRs and windows.
    pub users: u32,
}
