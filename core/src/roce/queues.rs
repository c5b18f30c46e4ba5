//! Completions in order, room in CQs, error and flush.

use core::sync::atomic::Ordering;

use super::conn::Conn;
use super::rules::complete::InFlight;
use super::rules::cq::CqSide;
use super::{Common, Transport};
use crate::device::async_event;
use crate::mem::Access;
use crate::verbs::cause::CauseCode;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::{Cq, CqError, Qp};
use crate::verbs::req::{tx_block, PeerReady, SendBlock};
use crate::verbs::resp::{Incoming, Landing};
use crate::verbs::shared::Shared;
use crate::verbs::types::{qp_state, wc_status, Wc};
use crate::verbs::NONE;
use crate::wire::{NakCode, Syndrome};

impl Transport {
    /// Resumes the QPs that waited for room in CQs that the program has polled since. The engine
    /// looks for room in each round in which a QP waits, so that a poll notifies nobody. A
    /// notification would take a fence at each poll.
    pub(crate) fn look_for_room(&mut self, s: &Shared, now: u64) {
        if core::mem::take(&mut self.common.reclaim) {
            self.end_overruns(s, now);
            self.reclaim_reservations(s);
        }
        let mut at = 0;
        while let Some(cq) = self.common.next_with_room(s, at) {
            self.common.full_cqs.clear(cq);
            at = cq + 1;
        }
        if at > 0 {
            self.retry_full(s, now);
        }
    }

    /// Takes back one reserved entry of each CQ in which a completion waits for room while messages
    /// under way have reserved all free entries. The program may have to see that completion before
    /// it can let those messages go on. The last packet of a message reserves an entry anew.
    #[cold]
    fn reclaim_reservations(&mut self, s: &Shared) {
        let mut at = 0;
        while let Some(cq) = self.common.full_cqs.at_or_after(at) {
            at = cq + 1;
            let free = s.cq(cq, &self.common.key).free();
            if free == 0 || free > self.common.cqs[cq].reserved {
                continue;
            }
            let holds = |qi: &usize| {
                self.qps.get(*qi).is_some_and(|q| {
                    let resp = &q.conn.resp;
                    let begun = resp.recv.reserved && resp.incoming() == Incoming::Send;
                    q.live && q.rcq == cq as u32 && begun
                })
            };
            let last = self.common.cqs[cq].holder as usize;
            if let Some(qi) = Some(last).filter(holds).or_else(|| (0..self.qps.len()).find(holds)) {
                self.conn(s, qi).release_cqe();
            }
        }
    }

    /// Resumes the QPs that wait for room in a CQ.
    pub(crate) fn retry_full(&mut self, s: &Shared, now: u64) {
        let mut from = 0;
        while let Some(qi) = self.common.cq_wait.at_or_after(from) {
            from = qi + 1;
            self.common.cq_wait.clear(qi);
            if self.qps[qi].has_failed() {
                self.flush_failed(s, qi);
            } else {
                self.conn(s, qi).complete(now);
                self.common.ready.set(qi);
            }
        }
    }

    /// Flushes the requests that were posted to a QP in ERR or SQE.
    #[cold]
    pub(super) fn flush_failed(&mut self, s: &Shared, qi: usize) {
        let mut c = self.conn(s, qi);
        if c.qp.state == qp_state::SQE {
            c.flush_sq()
        } else {
            c.flush()
        }
    }
}

impl Transport {
    /// Ends the CQs in which a completion found no room.
    #[cold]
    fn end_overruns(&mut self, s: &Shared, now: u64) {
        if !self.common.config.limits.cq_overrun {
            return;
        }
        for cq in 0..self.common.cqs.len() {
            if self.common.cqs[cq].error == CqError::Overrun {
                self.fail_cq(s, now, cq, CauseCode::CqOverrun, cq as u64);
            }
        }
    }

    /// Ends a CQ: the program may still poll its completions, further ones are lost, and its queue
    /// pairs fail with the given cause and number.
    #[cold]
    pub(crate) fn fail_cq(&mut self, s: &Shared, now: u64, cq: usize, cause: CauseCode, a: u64) {
        // The CQ's event reports the error. No completion reports the requests that would have
        // completed in the CQ.
        self.common.cqs[cq].fail();
        self.common.cq_errors += 1;
        s.notify.store(true, Ordering::Release);
        let uses = |q: &Qp| q.live && [q.scq, q.rcq].contains(&(cq as u32));
        for qi in 0..self.qps.len() {
            if !uses(&self.qps[qi]) {
                continue;
            }
            if self.qps[qi].can_fail() {
                let mut conn = self.conn(s, qi);
                conn.note(now, cause, 0, a, 0);
                conn.enter_error(None);
            } else if self.common.cq_wait.get(qi) {
                // The queue pair's flush waits for room in this CQ, or in its other one.
                self.common.cq_wait.clear(qi);
                self.flush_failed(s, qi);
            }
        }
        // Nobody waits for room in it any more.
        self.common.full_cqs.clear(cq);
    }
}

impl Common {
    /// Notes that a completion found no room in a CQ. Where CQs overrun
    /// (`LoweredLimits::cq_overrun`) it fails in the next round, if no entry is free.
    #[cold]
    pub(crate) fn note_overrun(&mut self, s: &Shared, cq: u32) {
        if !self.config.limits.cq_overrun {
            return;
        }
        let side = CqSide::find(s, &self.key, &mut self.cqs, cq);
        if side.is_some_and(|side| side.is_full() && !side.has_failed()) {
            self.cqs[cq as usize].error = CqError::Overrun;
            self.full_cqs.set(cq as usize);
            self.reclaim = true;
        }
    }

    /// The first CQ at or after an index that QPs wait for, and that has an unreserved entry, or
    /// more free entries than when they began to wait.
    pub(crate) fn next_with_room(&self, s: &Shared, from: usize) -> Option<usize> {
        self.full_cqs.iter().filter(|&cq| cq >= from).find(|&cq| {
            let free = s.cq(cq, &self.key).free();
            free > self.cqs[cq].reserved || free > self.cqs[cq].seen_free
        })
    }

    /// Whether [`Transport::look_for_room`] may find something to do.
    pub(crate) fn may_go_on(&self, s: &Shared) -> bool {
        self.reclaim || self.next_with_room(s, 0).is_some()
    }

    /// Gives back a reserved entry of a CQ; [`Transport::look_for_room`] finds the room.
    pub(crate) fn unreserve(&mut self, cq: u32) {
        let c = &mut self.cqs[cq as usize];
        c.reserved = c.reserved.saturating_sub(1);
    }
}

impl Conn<'_> {
    /// Notes that a QP waits for room in a CQ.
    #[inline(never)]
    fn wait_for_cq_room(&mut self, cq: u32) {
        self.count(|c| &mut c.cq_full);
        self.common.note_overrun(self.s, cq);
        self.common.cq_wait.set(self.qi);
        self.common.full_cqs.set(cq as usize);
        let free = self.s.cq(cq as usize, &self.common.key).free();
        self.common.cqs[cq as usize].seen_free = free;
        if free > 0 {
            self.common.reclaim = true;
        }
    }

    /// Completes, in order, the requests that have ended. True: one waits for slow memory.
    pub(crate) fn complete(&mut self, now: u64) -> bool {
        let mut sq = self.q.engine_sq(&self.common.key);
        loop {
            let qp = &mut *self.qp;
            let oldest = qp.conn.req.released;
            // rxe rxe_comp.c do_complete: Requests of a queue complete in their order.
            // The WQE state behind the last request is cleared: that slot was released.
            let ws = *qp.wqe(oldest);
            if !ws.done || matches!(qp.state, qp_state::ERR | qp_state::SQE) {
                // In those states all remaining requests flush.
                return false;
            }
            if ws.placing {
                match self.common.memory.providers.poll(u32::from(ws.provider), ws.token) {
                    Access::Pending(_) | Access::Busy => {
                        self.common.mem_wait.set(self.qi);
                        return true;
                    }
                    Access::Fault => {
                        let ws = qp.wqe(oldest);
                        ws.placing = false;
                        ws.status = wc_status::LOC_PROT_ERR as u8;
                        self.note(now, CauseCode::LocalMemoryGone, wc_status::LOC_PROT_ERR, 0, 0);
                        continue;
                    }
                    Access::Ready => qp.wqe(oldest).placing = false,
                }
            }
            let status = u32::from(ws.status);
            if !self.end_request(&mut sq, status, InFlight::Others) {
                self.wait_for_cq_room(self.qp.scq);
                return false;
            }
            let qp = &mut *self.qp;
            if status == wc_status::SUCCESS {
                if qp.conn.req.released == sq.end() {
                    return false;
                }
            } else {
                qp.conn.req.set(tx_block::BROKEN, true);
                // The failed request counts as acknowledged: the flush begins behind it.
                if (qp.conn.req.acked.wrapping_sub(qp.conn.req.released) as i32) < 0 {
                    qp.conn.req.acked = qp.conn.req.released;
                }
                if (qp.conn.req.next.wrapping_sub(qp.conn.req.released) as i32) < 0 {
                    qp.conn.req.next = qp.conn.req.released;
                    qp.conn.req.cur_pkt = 0;
                }
                if qp.kind.is_reliable() {
                    self.enter_error(None);
                } else {
                    self.enter_sqe();
                }
                return false;
            }
        }
    }

    /// Completes the WQE at a ring index with success, if the WQE is the oldest and its completion,
    /// if any, finds room. False: nothing has changed, and the WQE completes in its turn.
    pub(crate) fn complete_single(&mut self, index: u32) -> bool {
        let mut sq = self.q.engine_sq(&self.common.key);
        if self.qp.conn.req.released != index || self.qp.conn.req.is(tx_block::DRAIN_EVENT) {
            return false;
        }
        self.end_request(&mut sq, wc_status::SUCCESS, InFlight::NothingAndClear)
    }

    /// Ends the WQE at a ring index with an error, in its turn, and says why: a cause and its two
    /// numbers. Nothing after it is sent.
    #[inline(never)]
    pub(crate) fn fail_request(
        &mut self,
        now: u64,
        index: u32,
        status: u32,
        cause: CauseCode,
        a: u64,
        b: u64,
    ) {
        self.note(now, cause, status, a, b);
        // The completion comes after the bytes of the answer's first part.
        self.common.memory.providers.finish();
        if status == wc_status::RETRY_EXC_ERR {
            self.count(|c| &mut c.retry_exceeded_err);
            self.common.silent.set(self.qi);
        }
        let ws = self.qp.wqe(index);
        ws.done = true;
        ws.placing = false;
        ws.status = status as u8;
        if self.qp.conn.req.next == index {
            // The request counts as sent, so that completion reaches it. FAILED holds the requests
            // behind it back.
            self.qp.conn.req.go_behind(index);
        }
        self.qp.conn.req.set(tx_block::FAILED, true);
        self.skip_done();
        self.complete(now);
    }

    /// Moves `acked` over WQEs that have ended. Moves `next` with it over local operations that
    /// were executed before a rewind.
    pub(crate) fn skip_done(&mut self) {
        let sq = self.q.engine_sq(&self.common.key);
        let tail = sq.end();
        let qp = &mut *self.qp;
        while qp.conn.req.acked != tail && qp.wqe(qp.conn.req.acked).done {
            if qp.conn.req.acked == qp.conn.req.next {
                qp.conn.req.go_behind(qp.conn.req.next);
            }
            qp.conn.req.acked = qp.conn.req.acked.wrapping_add(1);
        }
        if qp.conn.req.is(tx_block::DRAIN_EVENT) {
            // The answer that has just come may have left only local operations behind it.
            self.check_drained();
        }
    }

    /// Gives back the requester's part of the window: nothing of it is in flight any more.
    pub(crate) fn forget_inflight(&mut self) {
        let qp = &mut *self.qp;
        let tx = core::mem::take(&mut qp.conn.req.inflight);
        let rx = core::mem::take(&mut qp.conn.req.read_inflight);
        qp.conn.req.rd_out = 0;
        if qp.conn.peer != NONE && tx | rx != 0 {
            self.peer.tx.on_forgotten(tx);
            self.peer.rx.on_forgotten(rx);
            self.common.wake_windows();
        }
    }

    /// Moves the QP to ERR: both queues flush. `event` (`async_event`): for an error that no
    /// completion reports. An error that ends a request, or the receive in use, is reported by that
    /// completion alone (IBTA 9.9.3 and 10.10.2). A move that the program requested raises no
    /// event.
    #[inline(never)]
    pub(crate) fn enter_error(&mut self, event: Option<u32>) {
        if self.qp.state == qp_state::ERR {
            return;
        }
        self.set_state(qp_state::ERR);
        self.stop();
        if let Some(event) = event {
            self.raise_qp(event);
        }
        self.flush();
    }

    /// Moves a QP of UC or UD to SQE: the send queue flushes, and the receive queue goes on.
    #[inline(never)]
    fn enter_sqe(&mut self) {
        // IBTA 10.3.1, SQE: A send of UC or UD that fails moves the queue pair to SQE, where it
        // still receives.
        self.set_state(qp_state::SQE);
        self.forget_inflight();
        self.qp.conn.req.ack_deadline = 0;
        self.flush_sq();
    }

    /// Ends everything under way on a QP, without completions.
    pub(crate) fn stop(&mut self) {
        self.forget_inflight();
        // Bytes that memory has taken are placed before the program may use the buffers again.
        self.common.memory.providers.finish();
        let qp = &mut *self.qp;
        qp.conn.req.ack_deadline = 0;
        qp.conn.req.set_send_block(SendBlock::None);
        qp.conn.peer_ready = PeerReady::Yes;
        qp.conn.req.set(tx_block::FAILED, false);
        qp.conn.resp.set_incoming(Incoming::Idle);
        qp.conn.resp.clear_jobs();
        qp.conn.resp.set_nak_later(false);
        // A fatal NAK is still sent to the peer; a sequence or RNR NAK is not.
        let fatal =
            |n: &u8| matches!(Syndrome::parse(*n), Syndrome::Nak(code) if code != NakCode::Psn);
        qp.conn.resp.set_nak(qp.conn.resp.nak_owed().filter(fatal));
        qp.conn.resp.set_placing(None);
        qp.conn.req.armed_at = 0;
        qp.conn.keep = Default::default();
        if qp.kind == QpKind::Dci {
            qp.association().fail();
            self.common.ready.set(self.qi);
        }
        self.common.wheel.cancel(self.qi);
        self.common.win_wait.clear(self.qi);
        self.common.acks.forget(self.qi);
        self.common.cnp_owed.clear(self.qi);
    }

    /// Ends every wait of a QP: to send, for memory, for a CQ.
    pub(crate) fn wait_for_nothing(&mut self) {
        let Common { ready, mem_wait, cq_wait, silent, .. } = &mut *self.common;
        for set in [ready, mem_wait, cq_wait, silent] {
            set.clear(self.qi);
        }
    }

    /// Writes the state and its snapshot.
    pub(crate) fn set_state(&mut self, state: u32) {
        self.common.note_change();
        self.qp.set_state(state);
        self.q.set_state(state);
    }

    /// Flushes both queues as far as the CQs have room. The rest follows when the CQs have room
    /// again.
    #[inline(never)]
    pub(crate) fn flush(&mut self) {
        self.flush_sq();
        self.flush_rq();
    }

    #[inline(never)]
    pub(crate) fn flush_sq(&mut self) {
        let mut sq = self.q.engine_sq(&self.common.key);
        while !sq.is_empty() {
            let oldest = self.qp.conn.req.released;
            let ws = *self.qp.wqe(oldest);
            // IBTA C10-96: In ERR all requests end as flushed, in order, those posted later too.
            // Behind a failure every request flushes, even one that was done already.
            let ended = ws.done && !ws.placing && !self.qp.conn.req.is(tx_block::BROKEN);
            let status = if ended { u32::from(ws.status) } else { wc_status::WR_FLUSH_ERR };
            if !self.end_request(&mut sq, status, InFlight::Nothing) {
                return self.wait_for_cq_room(self.qp.scq);
            }
            if status != wc_status::SUCCESS {
                self.qp.conn.req.set(tx_block::BROKEN, true);
            }
            self.qp.conn.req.cur_pkt = 0;
        }
    }

    fn flush_rq(&mut self) {
        let rcq = self.qp.rcq;
        self.flush_landings();
        let has_failed = self.common.cqs.get(rcq as usize).is_some_and(Cq::has_failed);
        if self.qp.conn.resp.recv.taken && has_failed {
            let recv = &mut self.qp.conn.resp.recv;
            (recv.taken, recv.reserved) = (false, false);
        }
        if self.qp.conn.resp.recv.taken {
            if !self.take_recv() {
                return self.wait_for_cq_room(rcq);
            }
            let failed = self.qp.conn.resp.recv.failed;
            self.fail_recv(if failed == 0 { wc_status::WR_FLUSH_ERR } else { failed });
        }
        if self.qp.srq != NONE || self.qp.xrcd != NONE {
            if !core::mem::replace(&mut self.qp.conn.resp.last_wqe, true) {
                self.raise_qp(async_event::QP_LAST_WQE_REACHED);
            }
            return;
        }
        loop {
            let mut rq = self.q.engine_rq(&self.common.key);
            if rq.is_empty() {
                return;
            }
            let (key, cqs) = (&self.common.key, &mut self.common.cqs);
            if has_failed {
                rq.release(1);
                continue;
            }
            let Some(mut cq) = CqSide::find(self.s, key, cqs, rcq).filter(CqSide::has_room) else {
                return self.wait_for_cq_room(rcq);
            };
            let Some(wqe) = rq.pop() else { return };
            let wc = self.qp.recv_failure(wqe.wr_id, wc_status::WR_FLUSH_ERR);
            cq.push(self.s, wc, false);
        }
    }

    /// Ends messages that arrived whole but wait for slow memory. Bytes that do not land at once
    /// may still do so, and their messages are reported as flushed. Their CQEs are reserved.
    pub(super) fn flush_landings(&mut self) {
        if self.qp.conn.resp.first_landing().is_some() {
            self.common.memory.providers.finish();
        }
        let mut have_landed = true;
        while let Some(landing) = self.qp.conn.resp.pop_landing() {
            let (provider, token) = (u32::from(landing.provider), landing.token);
            have_landed =
                have_landed && self.common.memory.providers.poll(provider, token) == Access::Ready;
            match have_landed {
                true => self.end_landing(&landing),
                false => self.fail_landing(&landing, wc_status::WR_FLUSH_ERR),
            }
        }
    }

    /// Ends a message whose bytes have landed. The next ACK or NAK acknowledges it.
    fn end_landing(&mut self, landing: &Landing) {
        let resp = &mut self.qp.conn.resp;
        (resp.ack_psn, resp.ack_msn) = (landing.psn, landing.msn);
        if let Some(wc) = landing.wc {
            self.push_reserved(landing.cq, wc, landing.solicited);
        }
    }

    /// Ends the receive of a message that had arrived whole, with an error.
    fn fail_landing(&mut self, landing: &Landing, status: u32) {
        if let Some(wc) = landing.wc {
            let vendor_err = self.qp.vendor_err(status);
            self.push_reserved(landing.cq, Wc { status, vendor_err, ..wc }, false);
        }
    }

    /// Queues the end of a message behind slow memory. The caller has checked that there is a
    /// place.
    pub(crate) fn push_landing(&mut self, landing: Landing) {
        self.qp.conn.resp.push_landing(landing);
        self.common.mem_wait.set(self.qi);
    }

    /// Whether there is a place for a message that nobody sends again behind the messages whose
    /// bytes wait for slow memory. If there is none, memory that can place at once places its
    /// bytes, so that weak memory loses no message.
    #[inline]
    pub(crate) fn makes_landing_room(&mut self, now: u64) -> bool {
        self.qp.conn.resp.has_landing_room() || self.land_at_once(now)
    }

    #[cold]
    fn land_at_once(&mut self, now: u64) -> bool {
        self.common.memory.providers.finish();
        self.pass_landings(now);
        self.qp.state != qp_state::ERR && self.qp.conn.resp.has_landing_room()
    }

    /// Passes the landings whose bytes have landed. True: some remain.
    pub(crate) fn pass_landings(&mut self, now: u64) -> bool {
        while let Some(landing) = self.qp.conn.resp.first_landing() {
            match self.common.memory.providers.poll(u32::from(landing.provider), landing.token) {
                Access::Pending(_) | Access::Busy => return true,
                Access::Ready => {
                    self.qp.conn.resp.pop_landing();
                    self.end_landing(&landing);
                    self.common.ready.set(self.qi);
                }
                Access::Fault => {
                    // The bytes were taken and then lost, so the peer must not get an ACK for them.
                    self.note(now, CauseCode::LocalMemoryGone, wc_status::LOC_PROT_ERR, 0, 0);
                    self.qp.conn.resp.pop_landing();
                    self.fail_landing(&landing, wc_status::LOC_PROT_ERR);
                    let psn = self.qp.conn.resp.epsn;
                    self.end_by_nak(NakCode::RemoteOperation, psn, landing.wc.is_none());
                    return false;
                }
            }
        }
        false
    }

    /// Notes an asynchronous event of a QP.
    pub(crate) fn raise_qp(&mut self, event: u32) {
        if self.qp.kind == QpKind::DcContext {
            // No program knows this queue pair. Its initiator is told.
            return;
        }
        self.qp.events |= 1 << event;
        self.common.event_qps.set(self.qi);
        self.s.notify.store(true, Ordering::Release);
    }

    /// Raises SQ_DRAINED in SQD, once every request that had begun has ended.
    #[cold]
    pub(crate) fn check_drained(&mut self) {
        let req = &mut self.qp.conn.req;
        // rxe rxe_comp.c complete_ack: SQ_DRAINED is raised when all requests that had begun have
        // ended.
        if req.is(tx_block::DRAIN_EVENT) && req.acked == req.next && req.cur_pkt == 0 {
            req.set(tx_block::DRAIN_EVENT, false);
            self.qp.attr.sq_draining = 0;
            self.raise_qp(async_event::SQ_DRAINED);
        }
    }
}
