//! Completions in order, room in CQs, error and flush.

use core::sync::atomic::Ordering;

use super::peer::FlowControl;
use super::rules::complete::{prepare, Left};
use super::rules::cq::CqSide;
use super::Transport;
use crate::device::async_event;
use crate::mem::Access;
use crate::verbs::cause::CauseCode;
use crate::verbs::objects::{Fence, Hold, Incoming, Ready, MAX_FENCES, NONE};
use crate::verbs::shared::Shared;
use crate::verbs::types::{qp_state, qp_type, wc_opcode, wc_status, Wc};
use crate::wire::{NakCode, Syndrome};

impl Transport {
    /// Pushes a completion for which there is room.
    #[inline]
    fn push_cqe(&mut self, s: &Shared, cq: u32, wc: Wc, solicited: bool) {
        if let Some(mut side) = CqSide::of(s, &self.key, &mut self.cqs, cq) {
            side.push(s, wc, solicited);
        }
    }

    /// Notes that a QP waits for room in a CQ.
    #[inline(never)]
    fn starve(&mut self, s: &Shared, qi: usize, cq: u32) {
        self.counters.cq_full += 1;
        self.qps[qi].counters.cq_full += 1;
        self.cq_wait.set(qi);
        self.full_cqs.set(cq as usize);
        let free = s.cq(cq as usize, &self.key).free();
        self.cqs[cq as usize].seen_free = free;
        if free > 0 {
            self.take_promise_back(cq);
        }
    }

    /// Whether a CQ has room that it did not have when a QP began to wait for it.
    fn has_room_again(&self, s: &Shared, cq: usize) -> bool {
        let free = s.cq(cq, &self.key).free();
        free > self.cqs[cq].reserved || free > self.cqs[cq].seen_free
    }

    /// The first CQ at or after an index that QPs wait for and that has room again.
    pub(crate) fn next_with_room(&self, s: &Shared, from: usize) -> Option<usize> {
        let mut at = from;
        while let Some(cq) = self.full_cqs.next_from(at).filter(|&cq| cq >= at) {
            if self.has_room_again(s, cq) {
                return Some(cq);
            }
            at = cq + 1;
        }
        None
    }

    /// Goes on with what waited for room in CQs that the program has polled since. The engine looks, every round and
    /// only where somebody waits, so that a poll has nothing to tell: it would take a fence each time.
    pub(crate) fn look_for_room(&mut self, s: &Shared, now: u64) {
        let mut at = 0;
        while let Some(cq) = self.next_with_room(s, at) {
            self.full_cqs.clear(cq);
            at = cq + 1;
        }
        if at > 0 {
            self.retry_full(s, now);
        }
    }

    /// Every free entry of a CQ is promised to messages under way, and a completion that is due waits. One of those
    /// messages may be the very one that it would tell the program about, so a promise is taken back: the
    /// last packet of that message asks for an entry anew.
    #[cold]
    fn take_promise_back(&mut self, cq: u32) {
        let holds = |t: &Self, qi: usize| {
            t.qps
                .get(qi)
                .is_some_and(|q| q.live && q.rcq == cq && q.resp.recv.reserved && q.resp.incoming == Incoming::Send)
        };
        let holder = self.cqs[cq as usize].holder as usize;
        let found = if holds(self, holder) { Some(holder) } else { (0..self.qps.len()).find(|&qi| holds(self, qi)) };
        if let Some(qi) = found {
            self.release_cqe(qi);
        }
    }

    /// Completes, in order, what has ended. True: something waits for slow memory.
    #[inline]
    pub(crate) fn complete(&mut self, s: &Shared, qi: usize, now: u64) -> bool {
        let mut sq = s.sq(qi, &self.key);
        loop {
            let qp = &mut self.qps[qi];
            let una = qp.req.una;
            // Behind the last request of the queue nothing is done: what was there before it was released.
            let ws = *qp.wqe(una);
            if !ws.done || matches!(qp.state, qp_state::ERR | qp_state::SQE) {
                // What is left in those states flushes.
                return false;
            }
            if ws.placing {
                match self.providers.poll(u32::from(ws.provider), ws.token) {
                    Access::Pending(_) | Access::Busy => {
                        self.mem_wait.set(qi);
                        return true;
                    }
                    Access::Fault => {
                        let ws = qp.wqe(una);
                        ws.placing = false;
                        ws.status = wc_status::LOC_PROT_ERR as u8;
                        self.note(qi, now, CauseCode::LocalMemoryGone, wc_status::LOC_PROT_ERR, 0, 0);
                        continue;
                    }
                    Access::Ready => qp.wqe(una).placing = false,
                }
            }
            let slot = sq.at(una);
            let wqe = slot.header();
            let status = u32::from(ws.status);
            let scq = qp.scq;
            let Some(ending) = prepare(s, &self.key, &mut self.cqs, qp, wqe, status) else {
                self.starve(s, qi, scq);
                return false;
            };
            ending.finish(s, qp, &mut self.counters, &mut sq, Left::Others, None);
            if status == wc_status::SUCCESS {
                if qp.req.una == sq.end() {
                    return false;
                }
            } else {
                qp.req.broken = true;
                // What failed counts as dealt with: the flush begins behind it.
                if (qp.req.acked.wrapping_sub(qp.req.una) as i32) < 0 {
                    qp.req.acked = qp.req.una;
                }
                if (qp.req.next.wrapping_sub(qp.req.una) as i32) < 0 {
                    qp.req.next = qp.req.una;
                    qp.req.cur_pkt = 0;
                }
                if qp.kind == qp_type::RC {
                    self.enter_error(s, qi, None);
                } else {
                    self.enter_sqe(s, qi);
                }
                return false;
            }
        }
    }

    /// Ends the WQE at a ring index well, if nothing before it is left and its completion, where it has one, finds room. False: nothing
    /// has changed; it takes its turn.
    #[inline]
    pub(crate) fn complete_lone(&mut self, s: &Shared, qi: usize, index: u32) -> bool {
        let mut sq = s.sq(qi, &self.key);
        let qp = &mut self.qps[qi];
        if qp.req.una != index || qp.req.drain_event {
            return false;
        }
        let ending = prepare(s, &self.key, &mut self.cqs, qp, sq.at(index).header(), wc_status::SUCCESS);
        let Some(ending) = ending else { return false };
        ending.finish(s, qp, &mut self.counters, &mut sq, Left::NothingUnsent, None);
        true
    }

    /// Ends the WQE at a ring index with an error, in its turn. Nothing after it is sent.
    #[inline(never)]
    pub(crate) fn fail_wqe(&mut self, s: &Shared, qi: usize, now: u64, index: u32, status: u32) {
        let qp = &mut self.qps[qi];
        let ws = qp.wqe(index);
        ws.done = true;
        ws.placing = false;
        ws.status = status as u8;
        if qp.req.next == index {
            // It counts as sent, so that completion reaches it; the hold keeps the rest back.
            qp.req.next = index.wrapping_add(1);
            qp.req.cur_pkt = 0;
        }
        qp.req.failed = true;
        self.skip_done(s, qi);
        self.complete(s, qi, now);
    }

    /// Moves `acked` over WQEs that have ended, and `next` with it over local operations that were executed
    /// before a rewind.
    pub(crate) fn skip_done(&mut self, s: &Shared, qi: usize) {
        let sq = s.sq(qi, &self.key);
        let tail = sq.head().wrapping_add(sq.len());
        let qp = &mut self.qps[qi];
        while qp.req.acked != tail && qp.wqe(qp.req.acked).done {
            if qp.req.acked == qp.req.next {
                qp.req.next = qp.req.next.wrapping_add(1);
                qp.req.cur_pkt = 0;
            }
            qp.req.acked = qp.req.acked.wrapping_add(1);
        }
        if qp.req.drain_event {
            // Local operations behind the answer that has just come may have been all that was left.
            self.check_drained(s, qi);
        }
    }

    /// The requester's part of the window is given back: nothing of it is on its way any more.
    pub(crate) fn forget_inflight(&mut self, qi: usize) {
        let qp = &mut self.qps[qi];
        let (tx, rx) = (qp.req.inflight, qp.req.read_inflight);
        qp.req.inflight = 0;
        qp.req.read_inflight = 0;
        qp.req.rd_out = 0;
        let peer = qp.peer;
        if peer != NONE && tx | rx != 0 {
            let p = &mut self.peers[peer as usize];
            p.tx.on_forgotten(tx);
            p.rx.on_forgotten(rx);
            self.wake_windows();
        }
    }

    /// To ERR: both queues flush. `event` (`async_event`): for an error that no completion reports. One that ends a request, or the
    /// receive in use, is reported by that completion alone (IBTA 9.9.3 and 10.10.2), as is what the program asked for.
    #[inline(never)]
    pub(crate) fn enter_error(&mut self, s: &Shared, qi: usize, event: Option<u32>) {
        if self.qps[qi].state == qp_state::ERR {
            return;
        }
        self.set_state(s, qi, qp_state::ERR);
        self.stop(qi);
        if let Some(event) = event {
            self.raise_qp(s, qi, event);
        }
        self.flush(s, qi);
    }

    /// The event of an error for which a responder has sent a fatal NAK and has no receive to complete: the peer left its rights, or
    /// the protocol, or it is this side that failed.
    pub(crate) fn responder_event(code: NakCode) -> u32 {
        match code {
            NakCode::RemoteAccess => async_event::QP_ACCESS_ERR,
            NakCode::InvalidRequest => async_event::QP_REQ_ERR,
            _ => async_event::QP_FATAL,
        }
    }

    /// To SQE (UC, UD): the send queue flushes, the receive queue lives on.
    #[inline(never)]
    fn enter_sqe(&mut self, s: &Shared, qi: usize) {
        self.set_state(s, qi, qp_state::SQE);
        self.forget_inflight(qi);
        self.qps[qi].req.ack_deadline = 0;
        self.flush_sq(s, qi);
    }

    /// Ends everything under way on a QP, without completions.
    pub(crate) fn stop(&mut self, qi: usize) {
        self.forget_inflight(qi);
        let qp = &mut self.qps[qi];
        qp.req.ack_deadline = 0;
        qp.req.hold = Hold::None;
        qp.ready = Ready::Yes;
        qp.req.failed = false;
        qp.resp.incoming = Incoming::Idle;
        qp.resp.job_len = 0;
        qp.resp.nak_later = false;
        // A failure is still told to the peer; that something should be sent again is not.
        let fatal = |n: &u8| matches!(Syndrome::parse(*n), Syndrome::Nak(code) if code != NakCode::Psn);
        qp.resp.nak_owed = qp.resp.nak_owed.filter(fatal);
        qp.resp.placing = None;
        qp.req.armed_at = 0;
        qp.keep = Default::default();
        self.wheel.cancel(qi);
        self.win_wait.clear(qi);
        self.acks.forget(qi);
        self.cnp_owed.clear(qi);
    }

    /// Writes the state and its snapshot.
    pub(crate) fn set_state(&mut self, s: &Shared, qi: usize, state: u32) {
        self.note_change();
        self.qps[qi].state = state;
        self.qps[qi].attr.qp_state = state;
        s.qps[qi].state.store(state, Ordering::Release);
    }

    /// Flushes both queues as far as the CQs have room; the rest follows when they have.
    #[inline(never)]
    pub(crate) fn flush(&mut self, s: &Shared, qi: usize) {
        self.flush_sq(s, qi);
        self.flush_rq(s, qi);
    }

    #[inline(never)]
    pub(crate) fn flush_sq(&mut self, s: &Shared, qi: usize) {
        let mut sq = s.sq(qi, &self.key);
        while !sq.is_empty() {
            let qp = &mut self.qps[qi];
            let una = qp.req.una;
            let ws = *qp.wqe(una);
            // Behind a failure nothing has ended well, not even what was done already.
            let ended = ws.done && !ws.placing && !qp.req.broken;
            let status = if ended { u32::from(ws.status) } else { wc_status::WR_FLUSH_ERR };
            let scq = qp.scq;
            let Some(ending) = prepare(s, &self.key, &mut self.cqs, qp, sq.at(una).header(), status) else {
                return self.starve(s, qi, scq);
            };
            qp.req.broken |= status != wc_status::SUCCESS;
            qp.req.cur_pkt = 0;
            ending.finish(s, qp, &mut self.counters, &mut sq, Left::Nothing, None);
        }
    }

    fn flush_rq(&mut self, s: &Shared, qi: usize) {
        self.flush_fences(s, qi);
        if self.qps[qi].resp.recv.taken {
            if !self.take_recv(s, qi) {
                let rcq = self.qps[qi].rcq;
                self.starve(s, qi, rcq);
                return;
            }
            let failed = self.qps[qi].resp.recv.failed;
            self.fail_recv(s, qi, if failed == 0 { wc_status::WR_FLUSH_ERR } else { failed });
        }
        let qp = &self.qps[qi];
        let (rcq, qpn, srq) = (qp.rcq, qp.qpn, qp.srq);
        if srq != NONE {
            if !core::mem::replace(&mut self.qps[qi].resp.last_wqe, true) {
                self.raise_qp(s, qi, async_event::QP_LAST_WQE_REACHED);
            }
            return;
        }
        loop {
            let mut rq = s.rq(qi, &self.key);
            if rq.is_empty() {
                return;
            }
            let Some(mut cq) = CqSide::of(s, &self.key, &mut self.cqs, rcq) else { return };
            if !cq.has_room() {
                drop(cq);
                return self.starve(s, qi, rcq);
            }
            let Some(wqe) = rq.pop() else { return };
            let wc = Wc {
                wr_id: wqe.wr_id,
                status: wc_status::WR_FLUSH_ERR,
                opcode: wc_opcode::RECV,
                vendor_err: CauseCode::Flushed as u32,
                qp_num: qpn,
                ..Wc::default()
            };
            cq.push(s, wc, false);
        }
    }

    /// Goes on with what waited for room in a CQ.
    pub(crate) fn retry_full(&mut self, s: &Shared, now: u64) {
        let mut from = 0;
        while let Some(qi) = self.cq_wait.next_from(from) {
            if qi < from {
                break;
            }
            from = qi + 1;
            self.cq_wait.clear(qi);
            match self.qps[qi].state {
                qp_state::ERR => self.flush(s, qi),
                qp_state::SQE => self.flush_sq(s, qi),
                _ => {
                    self.complete(s, qi, now);
                    self.ready.set(qi);
                }
            }
        }
    }

    /// Takes a receive request and reserves its CQE, unless one is taken already. False: there is none.
    #[inline]
    pub(crate) fn take_recv(&mut self, s: &Shared, qi: usize) -> bool {
        let qp = &mut self.qps[qi];
        if qp.resp.recv.taken && qp.resp.recv.reserved {
            return true;
        }
        let Some(mut cq) = CqSide::of(s, &self.key, &mut self.cqs, qp.rcq) else { return false };
        if !cq.can_reserve() {
            self.counters.cq_full += 1;
            return false;
        }
        if qp.resp.recv.taken {
            qp.resp.recv.reserved = true;
            cq.reserve(qi);
            return true;
        }
        let mut queue = if qp.srq == NONE { s.rq(qi, &self.key) } else { s.srq(qp.srq as usize, &self.key) };
        let len = queue.len();
        if len == 0 {
            return false;
        }
        let slot = queue.peek(0);
        let wqe = *slot.header();
        let recv = &mut qp.resp.recv;
        recv.wr_id = wqe.wr_id;
        recv.length = wqe.length;
        let sges = slot.sges(wqe.num_sge as usize);
        let n = sges.len().min(recv.sges.len());
        recv.sges[..n].copy_from_slice(&sges[..n]);
        recv.num_sge = n as u32;
        recv.taken = true;
        recv.reserved = true;
        recv.failed = 0;
        queue.release(1);
        cq.reserve(qi);
        let srq = qp.srq;
        if srq != NONE {
            let q = &mut self.srqs[srq as usize];
            if q.limit != 0 && len - 1 < q.limit {
                q.limit = 0;
                q.events |= 1 << async_event::SRQ_LIMIT_REACHED;
                s.notify.store(true, Ordering::Release);
            }
        }
        true
    }

    /// Gives back the CQE of a receive whose message was dropped; the receive itself serves the next one.
    #[inline(never)]
    pub(crate) fn release_cqe(&mut self, qi: usize) {
        let qp = &mut self.qps[qi];
        if core::mem::take(&mut qp.resp.recv.reserved) {
            let rcq = qp.rcq;
            self.unreserve(rcq, 1);
        }
    }

    /// Entries of a CQ that were promised will not be used; who waits for room may look again.
    pub(crate) fn unreserve(&mut self, cq: u32, n: u32) {
        let c = &mut self.cqs[cq as usize];
        c.reserved = c.reserved.saturating_sub(n);
    }

    /// Pushes a completion into the entry that `take_recv` reserved.
    pub(crate) fn push_reserved(&mut self, s: &Shared, qi: usize, wc: Wc, solicited: bool) {
        let rcq = self.qps[qi].rcq;
        let cq = &mut self.cqs[rcq as usize];
        cq.reserved = cq.reserved.saturating_sub(1);
        self.push_cqe(s, rcq, wc, solicited);
    }

    /// The completion of the receive in use. `flags`, `imm` and `opcode` as in [`Wc`].
    pub(crate) fn recv_wc(&mut self, qi: usize, status: u32, bytes: u32, imm: u32, flags: u32) -> Wc {
        let qp = &mut self.qps[qi];
        qp.resp.recv.taken = false;
        qp.resp.recv.reserved = false;
        Wc {
            wr_id: qp.resp.recv.wr_id,
            status,
            opcode: wc_opcode::RECV,
            vendor_err: match status {
                wc_status::SUCCESS => 0,
                wc_status::WR_FLUSH_ERR => CauseCode::Flushed as u32,
                _ => qp.cause.code,
            },
            byte_len: bytes,
            imm_data: imm,
            qp_num: qp.qpn,
            wc_flags: flags,
            ..Wc::default()
        }
    }

    /// Ends messages that were over but wait for slow memory: their bytes may still land, so they are reported as
    /// flushed. Their CQEs are reserved.
    fn flush_fences(&mut self, s: &Shared, qi: usize) {
        while self.qps[qi].resp.fence_len > 0 {
            let fence = self.pop_fence(qi);
            if let Some(mut wc) = fence.wc {
                wc.status = wc_status::WR_FLUSH_ERR;
                wc.vendor_err = CauseCode::Flushed as u32;
                self.push_reserved(s, qi, wc, false);
            }
        }
    }

    /// Ends the receive in use with an error, behind those that came before it. The caller ends the QP. Inside a message its
    /// entry of the CQ may have been promised to others meanwhile: then the flush that follows says so when there is room.
    pub(crate) fn fail_recv(&mut self, s: &Shared, qi: usize, status: u32) {
        self.flush_fences(s, qi);
        if !self.take_recv(s, qi) {
            self.qps[qi].resp.recv.failed = status;
            return;
        }
        let wc = self.recv_wc(qi, status, 0, 0, 0);
        self.push_reserved(s, qi, wc, false);
    }

    /// Queues the end of a message behind slow memory. The caller has checked that there is a place.
    pub(crate) fn push_fence(&mut self, qi: usize, fence: Fence) {
        let resp = &mut self.qps[qi].resp;
        debug_assert!((resp.fence_len as usize) < MAX_FENCES);
        let at = (resp.fence_head + resp.fence_len) as usize % MAX_FENCES;
        resp.fences[at] = fence;
        resp.fence_len += 1;
        resp.fences_pushed = resp.fences_pushed.wrapping_add(1);
        self.mem_wait.set(qi);
    }

    fn pop_fence(&mut self, qi: usize) -> Fence {
        let resp = &mut self.qps[qi].resp;
        let fence = resp.fences[resp.fence_head as usize % MAX_FENCES];
        resp.fence_head = (resp.fence_head + 1) % MAX_FENCES as u32;
        resp.fence_len -= 1;
        resp.fences_passed = resp.fences_passed.wrapping_add(1);
        fence
    }

    /// Passes message ends whose bytes have landed. True: some still wait.
    pub(crate) fn pass_fences(&mut self, s: &Shared, qi: usize, now: u64) -> bool {
        while self.qps[qi].resp.fence_len > 0 {
            let resp = &self.qps[qi].resp;
            let fence = resp.fences[resp.fence_head as usize % MAX_FENCES];
            match self.providers.poll(u32::from(fence.provider), fence.token) {
                Access::Pending(_) | Access::Busy => return true,
                Access::Ready => {
                    self.pop_fence(qi);
                    let resp = &mut self.qps[qi].resp;
                    resp.ack_psn = fence.psn;
                    resp.ack_msn = fence.msn;
                    if let Some(wc) = fence.wc {
                        self.push_reserved(s, qi, wc, fence.solicited);
                    }
                    self.ready.set(qi);
                }
                Access::Fault => {
                    // The bytes are lost after they were taken: the peer must not see an ACK for them.
                    self.note(qi, now, CauseCode::LocalMemoryGone, wc_status::LOC_PROT_ERR, 0, 0);
                    self.pop_fence(qi);
                    let event = fence.wc.is_none().then_some(async_event::QP_FATAL);
                    if let Some(mut wc) = fence.wc {
                        wc.status = wc_status::LOC_PROT_ERR;
                        wc.vendor_err = CauseCode::LocalMemoryGone as u32;
                        self.push_reserved(s, qi, wc, false);
                    }
                    let psn = self.qps[qi].resp.epsn;
                    self.owe_fatal_nak(qi, NakCode::RemoteOperation, psn);
                    self.enter_error(s, qi, event);
                    return false;
                }
            }
        }
        false
    }

    /// Notes an asynchronous event of a QP.
    pub(crate) fn raise_qp(&mut self, s: &Shared, qi: usize, event: u32) {
        self.qps[qi].events |= 1 << event;
        self.event_qps.set(qi);
        s.notify.store(true, Ordering::Release);
    }

    /// SQD: tells the program once everything that had begun has ended.
    #[cold]
    pub(crate) fn check_drained(&mut self, s: &Shared, qi: usize) {
        let req = &mut self.qps[qi].req;
        if req.drain_event && req.acked == req.next && req.cur_pkt == 0 {
            req.drain_event = false;
            self.qps[qi].attr.sq_draining = 0;
            self.raise_qp(s, qi, async_event::SQ_DRAINED);
        }
    }
}
