//! The way of a single request from its queue to its completion, whatever framing carries it.

use super::ack::single_progress;
use super::complete::{prepare, Ending, InFlight};
use super::cq::CqSide;
use super::send::{Charge, Departed, PreparedSend};
use crate::roce::answers::ACK_BYTES;
use crate::roce::conn::Conn;
use crate::roce::peer::PACKET_COST;
#[cfg(doc)]
use crate::verbs::objects::Qp;
use crate::verbs::req::WqeState;
use crate::verbs::types::{wc_opcode, wc_status, wr_opcode};
use crate::verbs::wqe::SendWqe;
use crate::verbs::NONE;
use crate::wire::Psn;

/// Whether a request is a SEND or a WRITE.
#[inline(always)]
fn is_plain(wqe: &SendWqe) -> bool {
    u32::from(wqe.opcode) <= wr_opcode::SEND_WITH_IMM
}

/// The [`wc_opcode`] of a SEND or a WRITE.
#[inline(always)]
fn code_of_single(wqe: &SendWqe) -> u32 {
    let writes = u32::from(wqe.opcode) <= wr_opcode::RDMA_WRITE_WITH_IMM;
    if writes {
        wc_opcode::RDMA_WRITE
    } else {
        wc_opcode::SEND
    }
}

impl WqeState {
    /// Whether a request was sent as one packet with a PSN, and has not ended.
    #[inline(always)]
    fn is_single(&self, psn: Psn) -> bool {
        self.started && !self.done && self.npkts == 1 && self.psn == psn
    }
}

impl Conn<'_> {
    /// Records that the waiting request, which has begun ([`Qp::begin_single`]), has left with the
    /// owed ACK. The caller starts the timers.
    #[inline(always)]
    pub(in crate::roce) fn note_single_sent(&mut self, prepared: &PreparedSend) {
        let PreparedSend { payload, bytes, acks, .. } = *prepared;
        let (index, psn) = (self.qp.conn.req.next, self.qp.conn.req.next_psn);
        self.qp.conn.req.next = index.wrapping_add(1);
        self.qp.conn.req.batch_left(1);
        let charge = Charge::Window { bytes: PACKET_COST + payload, asked: true };
        let mut sent = Departed { psn, psns: 1, packets: 1, bytes: bytes.into(), charge };
        if acks {
            sent.packets += 1;
            sent.bytes += ACK_BYTES;
            self.note_ack_left();
        }
        self.note_sent::<true>(&sent);
    }

    /// Ends the only request in flight, if the ACK of `psn` ends it and nothing blocks that. False:
    /// nothing has changed. [`Conn::note_single_ended`] is next.
    #[inline(always)]
    pub(in crate::roce) fn end_single(&mut self, now: u64, psn: Psn) -> bool {
        let (qp, common) = (&mut *self.qp, &mut *self.common);
        let index = qp.conn.req.released;
        let next = index.wrapping_add(1);
        let mut sq = self.q.engine_sq(&common.key);
        let all = qp.conn.req.acked == index && qp.conn.req.next == next && sq.end() == next;
        if !all
            || qp.conn.req.read_inflight != 0
            || qp.conn.req.holds() != 0
            || qp.conn.req.sends_again()
        {
            return false;
        }
        let slot = sq.peek(0);
        let wqe = slot.header();
        let at = qp.wqe_at(index);
        let ws = &mut qp.wqes[at];
        if !ws.is_single(psn) || !is_plain(wqe) {
            return false;
        }
        if wqe.is_signaled() {
            return self.reborrow().end_signaled(now);
        }
        let ending = Ending::prepare_unsignaled(wqe, code_of_single(wqe));
        *ws = WqeState::default();
        qp.counters.count_received(1, ACK_BYTES);
        single_progress(qp, self.peer, now);
        ending.finish(self.s, qp, &mut sq, InFlight::NothingAndClear, None);
        true
    }

    /// The end of [`Conn::end_single`] for a request that completes.
    #[cold]
    #[inline(never)]
    fn end_signaled(self, now: u64) -> bool {
        let (qp, common) = (self.qp, self.common);
        let mut sq = self.q.engine_sq(&common.key);
        let slot = sq.peek(0);
        let wqe = slot.header();
        let scq = (&common.key, &mut common.cqs, qp.scq);
        let ending = prepare(self.s, scq, wqe, code_of_single(wqe), wc_status::SUCCESS);
        let Some(ending) = ending else { return false };
        qp.counters.count_received(1, ACK_BYTES);
        single_progress(qp, self.peer, now);
        let handoff = Some(&mut common.handoff);
        ending.finish(self.s, qp, &mut sq, InFlight::Nothing, handoff);
        true
    }

    /// Ends all requests in flight, if the ACK of `psn` ends them, each was one packet and nothing
    /// blocks that. False: nothing has changed. [`Conn::note_single_ended`] is next.
    #[inline(always)]
    pub(in crate::roce) fn end_singles_through(&mut self, now: u64, psn: Psn) -> bool {
        self.end_single(now, psn) || self.reborrow().end_several(now, psn)
    }

    /// As [`Conn::end_singles_through`], for more than one request.
    #[cold]
    #[inline(never)]
    fn end_several(mut self, now: u64, psn: Psn) -> bool {
        let count = self.singles_through(psn);
        if count == 0 {
            return false;
        }
        let (qp, common) = (&mut *self.qp, &mut *self.common);
        let mut sq = self.q.engine_sq(&common.key);
        qp.counters.count_received(1, ACK_BYTES);
        single_progress(qp, self.peer, now);
        for _ in 0..count {
            let slot = sq.at(qp.conn.req.released);
            let wqe = slot.header();
            let scq = (&common.key, &mut common.cqs, qp.scq);
            let ending = prepare(self.s, scq, wqe, code_of_single(wqe), wc_status::SUCCESS);
            debug_assert!(ending.is_some(), "room was checked");
            let Some(ending) = ending else { break };
            let handoff = Some(&mut common.handoff);
            ending.finish(self.s, qp, &mut sq, InFlight::Others, handoff);
            qp.conn.req.acked = qp.conn.req.released;
        }
        if qp.conn.req.next != sq.end() {
            common.ready.set(self.qi);
        }
        true
    }

    /// How many requests the ACK of `psn` ends, if no others have begun, each is single, and their
    /// completions have room; else 0.
    #[inline(always)]
    fn singles_through(&mut self, psn: Psn) -> u32 {
        let (qp, common) = (&*self.qp, &mut *self.common);
        let req = &qp.conn.req;
        let (first, count) = (req.released, req.next.wrapping_sub(req.released));
        if psn.add(1) != req.max_psn
            || req.acked != first
            || req.read_inflight != 0
            || req.holds() != 0
            || req.sends_again()
        {
            return 0;
        }
        let sq = self.q.engine_sq(&common.key);
        let mut signaled = 0;
        for k in 0..count {
            let index = first.wrapping_add(k);
            let slot = sq.at(index);
            let wqe = slot.header();
            if !qp.wqes[qp.wqe_at(index)].is_single(req.una_psn.add(k)) || !is_plain(wqe) {
                return 0;
            }
            signaled += u32::from(wqe.is_signaled());
        }
        if signaled > 0 {
            let side = CqSide::find(self.s, &common.key, &mut common.cqs, qp.scq);
            if !side.is_some_and(|side| side.has_room_for(signaled)) {
                return 0;
            }
        }
        count
    }

    /// Drops the deferred timer, and wakes QPs that wait for a window, after all requests in flight
    /// have ended.
    #[inline(always)]
    pub(in crate::roce) fn note_single_ended(&mut self) {
        if self.common.timer_deferred == self.qi as u32 {
            self.common.timer_deferred = NONE;
        }
        self.common.wake_windows();
    }
}
