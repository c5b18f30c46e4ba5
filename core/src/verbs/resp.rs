//! The responder's half of a queue pair: what is expected, what arrives, what is owed.

use core::fmt;

use heapless::{Deque, Vec};

use crate::arena::RawSlice;
use crate::mem::Token;
use crate::verbs::holds::Holds;
use crate::verbs::types::{Sge, Wc};
use crate::wire::{PacketKind, Psn};

/// Conditions that keep requests of the peer, or our own, off the single path.
pub mod rx_block {
    /// Answers are being sent.
    pub const JOBS: u32 = 1;
    /// Message ends wait for slow memory.
    pub const LANDINGS: u32 = 2;
    /// A NAK is owed.
    pub const NAK: u32 = 4;
    /// A request was dropped for want of a place; a sequence NAK is owed once there is one.
    pub const NAK_LATER: u32 = 8;
    /// A message is under way.
    pub const INCOMING: u32 = 16;
    /// Slow memory places bytes of it.
    pub const PLACING: u32 = 32;
    /// Answers that leave before the next request.
    pub const BEFORE_REQUESTS: u32 = JOBS | LANDINGS | NAK | NAK_LATER;
    /// Conditions that a single message may not overtake.
    pub const BEFORE_MESSAGES: u32 = INCOMING | PLACING | LANDINGS;
}

/// Largest scatter/gather list that a configuration may ask for.
pub const MAX_SGE: usize = 32;
/// Message ends that may wait for slow memory on one QP.
pub const MAX_LANDINGS: usize = 8;

/// The message that arrives.
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

impl Incoming {
    /// A message of a SEND or WRITE.
    #[inline(always)]
    pub fn from_kind(kind: PacketKind) -> Incoming {
        if kind == PacketKind::Send {
            Incoming::Send
        } else {
            Incoming::Write
        }
    }
}

/// The receive request that a message is using.
#[derive(Clone, Debug, Default)]
pub struct TakenRecv {
    /// One is taken.
    pub taken: bool,
    /// Its CQE is reserved. False once its message was dropped and it waits for the next one, and
    /// after others have got the CQE.
    pub reserved: bool,
    /// Status of its failure, while its CQ has no room for the completion; 0: it has not failed.
    pub failed: u32,
    /// Of the request.
    pub wr_id: u64,
    /// Room in bytes.
    pub length: u32,
    /// Its pieces.
    pub sges: Vec<Sge, MAX_SGE>,
}

/// A request with an answer of its own, kept for duplicates, and its answer while it is being sent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resource {
    /// In use.
    pub valid: bool,
    /// Of the request.
    pub kind: PacketKind,
    /// First PSN.
    pub psn: Psn,
    /// PSNs.
    pub npkts: u32,
    /// Remote (our) address.
    pub va: u64,
    /// Key that the peer used.
    pub rkey: u32,
    /// The PD in which the key counts.
    pub pd: u32,
    /// Bytes that the answer brings from there.
    pub len: u32,
    /// Original value of an atomic.
    pub value: u64,
    /// MSN to send.
    pub msn: u32,
    /// Response packets already sent.
    pub sent: u32,
    /// The answer of a duplicate: it does not count as outstanding.
    pub again: bool,
    /// Landings that must have passed before the answer may leave (it acknowledges what came before
    /// it).
    pub after_landing: u32,
}

/// The end of a message whose bytes are still on their way into slow memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Landing {
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
    /// Index of its CQ.
    pub cq: u32,
    /// It is a solicited one.
    pub solicited: bool,
}

/// The responder's state.
#[derive(Default)]
pub struct Resp {
    /// Expected PSN.
    pub epsn: Psn,
    /// Messages completed.
    pub msn: u32,
    /// Last PSN that may be acknowledged.
    pub ack_psn: Psn,
    /// The MSN to send with it.
    pub ack_msn: u32,
    /// The message that arrives.
    incoming: Incoming,
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
    /// The owed ACK does not wait for a packet to leave with.
    pub ack_now: bool,
    /// Packets since the last ACK left.
    pub pkts_since_ack: u32,
    /// An owed ACK does not wait once so many have come.
    pub ack_after: u32,
    /// An ACK has left alone since the program last sent a request.
    pub acked_alone: bool,
    /// A NAK (AETH syndrome) is owed.
    nak_owed: Option<u8>,
    /// The NAK that ended the connection, repeated for a peer that missed it.
    pub fatal_nak: Option<u8>,
    /// Its PSN.
    pub fatal_psn: Psn,
    /// Conditions that keep requests and messages off the single path: bits of [`rx_block`].
    holds: Holds,
    /// QP_LAST_WQE_REACHED was raised.
    pub last_wqe: bool,
    /// After a sequence or RNR NAK, until the expected PSN comes: the highest PSN since. Nothing
    /// ahead is answered as long as PSNs go up.
    pub nak_high: Option<Psn>,
    /// The expected PSN when a request ahead of it was first not believed, and the time of that.
    pub ahead: Option<(Psn, u64)>,
    /// Requests that were answered, a ring.
    pub resources: RawSlice<Resource>,
    /// Where the next one goes.
    pub res_next: u32,
    /// Answers being sent: a ring of copies.
    pub jobs: RawSlice<Resource>,
    /// First job.
    job_head: u32,
    /// Jobs.
    job_len: u32,
    /// Message ends that wait for slow memory.
    landings: Deque<Landing, MAX_LANDINGS>,
    /// Landings pushed since RESET.
    pub landings_pushed: u32,
    /// Landings passed.
    pub landings_passed: u32,
    /// Last placement of the current message that was not ready at once.
    placing: Option<(u8, Token)>,
}

/// Answers as a list.
struct Answers<I>(I);

impl<'a, I: Iterator<Item = &'a Resource> + Clone> fmt::Debug for Answers<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.clone()).finish()
    }
}

impl fmt::Debug for Resp {
    /// Leaves out what has no meaning now: the target when no WRITE is under way, the pieces of a
    /// receive request when none is taken, and places of the job queue that are not in use.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each field by name: a new one is not to be forgotten here.
        let Resp {
            epsn,
            msn,
            ack_psn,
            ack_msn,
            incoming,
            offset,
            va,
            rkey,
            dma_len,
            recv,
            ack_owed,
            ack_now,
            pkts_since_ack,
            ack_after,
            acked_alone,
            nak_owed,
            fatal_nak,
            fatal_psn,
            holds,
            last_wqe,
            nak_high,
            ahead,
            resources,
            res_next,
            jobs: _,
            job_head: _,
            job_len: _,
            landings,
            landings_pushed,
            landings_passed,
            placing,
        } = self;
        let mut out = f.debug_struct("Resp");
        if *incoming != Incoming::Idle {
            out.field("offset", offset);
        }
        if *incoming == Incoming::Write {
            out.field("va", va).field("rkey", rkey).field("dma_len", dma_len);
        }
        out.field("incoming", incoming)
            .field("expected", &(epsn, msn))
            .field("acknowledged", &(ack_psn, ack_msn))
            .field("recv", &(recv.taken, recv.reserved, recv.failed))
            .field("recv_wqe", &recv.taken.then_some((recv.wr_id, recv.length, &recv.sges)))
            .field("ack", &(ack_owed, ack_now, pkts_since_ack, ack_after, acked_alone))
            .field("nak", &(nak_owed, fatal_nak, fatal_psn, nak_high, ahead))
            .field("holds", holds)
            .field("last_wqe", last_wqe)
            .field("resources", &Answers(resources.iter().filter(|r| r.valid)))
            .field("res_next", res_next)
            .field("queued", &Answers(self.queued_jobs()))
            .field("landings", &(landings, landings_pushed, landings_passed, placing))
            .finish()
    }
}

impl Resp {
    /// Begins anew, with the memory that it has.
    pub fn reset(&mut self) {
        let (resources, jobs) =
            (core::mem::take(&mut self.resources), core::mem::take(&mut self.jobs));
        *self = Resp { resources, jobs, ..Resp::default() };
        self.resources.fill(Resource::default());
    }

    /// Whether any of these bits of [`rx_block`] is set.
    #[inline(always)]
    pub fn is(&self, bits: u32) -> bool {
        self.holds.is(bits)
    }

    /// Sets or clears bits of [`rx_block`].
    #[inline(always)]
    fn set(&mut self, bits: u32, on: bool) {
        self.holds.set(bits, on);
    }

    /// Whether the bits agree with the fields that they stand for.
    pub fn holds_are_true(&self) -> bool {
        self.is(rx_block::JOBS) == (self.job_len != 0)
            && self.is(rx_block::LANDINGS) != self.landings.is_empty()
            && self.is(rx_block::NAK) == self.nak_owed.is_some()
            && self.is(rx_block::INCOMING) == (self.incoming != Incoming::Idle)
            && self.is(rx_block::PLACING) == self.placing.is_some()
    }

    /// All bits that are set.
    #[inline(always)]
    pub fn holds(&self) -> u32 {
        self.holds.all()
    }

    /// The message that arrives.
    #[inline(always)]
    pub fn incoming(&self) -> Incoming {
        self.incoming
    }

    /// A message begins, goes on or ends.
    #[inline(always)]
    pub fn set_incoming(&mut self, incoming: Incoming) {
        self.incoming = incoming;
        self.set(rx_block::INCOMING, incoming != Incoming::Idle);
    }

    /// The AETH syndrome of the NAK that is owed.
    #[inline(always)]
    pub fn nak_owed(&self) -> Option<u8> {
        self.nak_owed
    }

    /// Owes a NAK, or none.
    #[inline(always)]
    pub fn set_nak(&mut self, syndrome: Option<u8>) {
        self.nak_owed = syndrome;
        self.set(rx_block::NAK, syndrome.is_some());
    }

    /// A request was dropped for want of a place; a sequence NAK is owed once there is one.
    #[inline(always)]
    pub fn set_nak_later(&mut self, later: bool) {
        self.set(rx_block::NAK_LATER, later);
    }

    /// Answers being sent.
    #[inline(always)]
    pub fn job_len(&self) -> u32 {
        self.job_len
    }

    /// Sets their number.
    #[inline(always)]
    fn set_job_len(&mut self, n: u32) {
        self.job_len = n;
        self.set(rx_block::JOBS, n != 0);
    }

    /// Where the `k`-th job stands. Only where there may be jobs.
    #[inline]
    fn job_at(&self, k: u32) -> usize {
        let (at, len) = ((self.job_head + k) as usize, self.jobs.len());
        // Without a division, which takes longer than all else about a small answer.
        if at < len {
            at
        } else {
            at - len
        }
    }

    /// Whether no further answer can be queued.
    #[inline]
    pub fn jobs_are_full(&self) -> bool {
        self.job_len as usize == self.jobs.len()
    }

    /// Answers being sent, oldest first.
    pub fn queued_jobs(&self) -> impl Iterator<Item = &Resource> + Clone {
        (0..self.job_len).map(|k| &self.jobs[self.job_at(k)])
    }

    /// Whether a queued answer covers a request that comes again. An answer that is on its way does
    /// not begin again. One that has not begun is extended to the earliest packet that was asked
    /// for. `again`: the answer, of `found` or a part of it.
    pub fn answers_anyway(&mut self, found: &Resource, again: &Resource, mtu: u32) -> bool {
        let end = again.psn.add(again.npkts);
        for k in 0..self.job_len {
            let at = self.job_at(k);
            let job = &mut self.jobs[at];
            let into = job.psn.diff(found.psn);
            let same = job.kind == again.kind && into >= 0 && (into as u32) < found.npkts;
            if !same || end.diff(job.psn.add(job.npkts)) > 0 {
                continue;
            }
            if again.psn.diff(job.psn.add(job.sent)) >= 0 {
                return true;
            }
            if job.sent == 0 {
                let earlier = job.psn.diff(again.psn) as u32;
                job.len += earlier * mtu;
                job.npkts += earlier;
                (job.psn, job.va) = (again.psn, again.va);
                return true;
            }
        }
        false
    }

    /// Queues an answer; there is a place.
    #[inline]
    pub fn push_job(&mut self, job: Resource) {
        let at = self.job_at(self.job_len);
        self.jobs[at] = job;
        self.set_job_len(self.job_len + 1);
    }

    /// The answer that is being sent.
    #[inline]
    pub fn first_job(&mut self) -> Option<&mut Resource> {
        let at = (self.job_len > 0).then(|| self.job_at(0))?;
        self.jobs.get_mut(at)
    }

    /// The answer that was being sent has left whole, or is given up.
    #[inline]
    pub fn pop_job(&mut self) {
        self.job_head = self.job_at(1) as u32;
        self.set_job_len(self.job_len - 1);
    }

    /// All answers are given up.
    pub fn clear_jobs(&mut self) {
        self.set_job_len(0);
    }

    /// Message ends that wait for slow memory.
    #[inline(always)]
    pub fn landing_count(&self) -> usize {
        self.landings.len()
    }

    /// Message ends that wait for slow memory, oldest first.
    #[inline]
    pub fn landings(&self) -> impl Iterator<Item = &Landing> {
        self.landings.iter()
    }

    /// The oldest message end.
    #[inline]
    pub fn first_landing(&self) -> Option<Landing> {
        self.landings.front().copied()
    }

    /// Whether there is a place for one more message end, and one for that of a message that has
    /// begun.
    #[inline(always)]
    pub fn has_landing_room(&self) -> bool {
        self.landings.len() < MAX_LANDINGS - 1
    }

    /// Queues the end of a message behind slow memory. The caller has seen that there is a place.
    pub fn push_landing(&mut self, landing: Landing) {
        let pushed = self.landings.push_back(landing);
        debug_assert!(pushed.is_ok(), "a place was checked");
        self.landings_pushed = self.landings_pushed.wrapping_add(1);
        self.set(rx_block::LANDINGS, true);
    }

    /// The latest message end.
    #[inline]
    pub fn last_landing(&mut self) -> Option<&mut Landing> {
        self.landings.back_mut()
    }

    /// The latest placement that may not have landed: later message ends wait for it too.
    #[inline]
    pub fn last_placed(&mut self) -> (u8, Token) {
        let last = self.landings.back();
        self.placing.or(last.map(|f| (f.provider, f.token))).unwrap_or_default()
    }

    /// Takes the oldest message end.
    pub fn pop_landing(&mut self) -> Option<Landing> {
        let landing = self.landings.pop_front()?;
        self.landings_passed = self.landings_passed.wrapping_add(1);
        self.set(rx_block::LANDINGS, !self.landings.is_empty());
        Some(landing)
    }

    /// Whether an answer must wait: bytes before it have not landed in slow memory.
    #[inline]
    pub fn waits_for_landings(&self, job: &Resource) -> bool {
        (self.landings_passed.wrapping_sub(job.after_landing) as i32) < 0
    }

    /// Last placement of the current message that was not ready at once.
    #[inline(always)]
    pub fn placing(&self) -> Option<(u8, Token)> {
        self.placing
    }

    /// Sets that.
    #[inline(always)]
    pub fn set_placing(&mut self, placing: Option<(u8, Token)>) {
        self.placing = placing;
        self.set(rx_block::PLACING, placing.is_some());
    }

    /// Whether an ACK or a NAK is owed.
    #[inline]
    pub fn owes_answer(&self) -> bool {
        self.ack_owed || self.owes_nak()
    }

    /// Whether a NAK is owed.
    #[inline]
    pub fn owes_nak(&self) -> bool {
        self.is(rx_block::NAK | rx_block::NAK_LATER)
    }

    /// The expected PSN has come: NAKs about it are void.
    #[inline]
    pub fn forget_naks(&mut self) {
        self.nak_high = None;
        self.nak_owed = None;
        self.set(rx_block::NAK | rx_block::NAK_LATER, false);
    }
}
