//! Receive requests: one and its entry of the CQ are taken together, and end together.

use core::sync::atomic::Ordering;

use super::cq::CqSide;
use crate::arena::Table;
use crate::device::async_event;
use crate::ring::EngineConsumer;
use crate::roce::conn::Conn;
use crate::roce::run::Run;
use crate::verbs::objects::Srq;
use crate::verbs::shared::{EngineKey, QpShared, Shared};
use crate::verbs::types::Wc;
use crate::verbs::wqe::RecvWqe;
use crate::verbs::NONE;

/// The queue of receive requests of a queue pair: its own, or the SRQ at an index.
#[inline(always)]
pub(super) fn recv_queue<'a>(
    s: &'a Shared,
    q: &'a QpShared,
    key: &'a EngineKey,
    srq: u32,
) -> EngineConsumer<'a, RecvWqe> {
    match srq {
        NONE => q.engine_rq(key),
        srq => s.srq(srq as usize, key),
    }
}

/// Notes that a request of the SRQ at an index was taken and `left` remain. [`NONE`]: the request
/// was a queue pair's.
#[inline(always)]
pub(super) fn note_remaining(s: &Shared, srqs: &mut Table<Srq>, srq: u32, left: u32) {
    if srq == NONE {
        return;
    }
    let Some(srq) = srqs.get_mut(srq as usize) else { return };
    // rxe rxe_resp.c get_srq_wqe: An SRQ raises its limit event once, when fewer requests are left
    // than the limit.
    if srq.limit != 0 && left < srq.limit {
        srq.limit = 0;
        srq.events |= 1 << async_event::SRQ_LIMIT_REACHED;
        s.notify.store(true, Ordering::Release);
    }
}

impl Conn<'_> {
    /// Takes a receive request and reserves its CQE, unless that was done already. False: there is
    /// no request, or no room in the CQ.
    pub(crate) fn take_recv(&mut self) -> bool {
        let (qp, common) = (&mut *self.qp, &mut *self.common);
        let recv = &mut qp.conn.resp.recv;
        if recv.taken && recv.reserved {
            return true;
        }
        let (key, cqs) = (&common.key, &mut common.cqs);
        let Some(mut cq) = CqSide::find_reservable(self.s, key, cqs, qp.rcq) else {
            self.note_no_room();
            return false;
        };
        // Inside a message the request is taken, and only the CQE may have been given back.
        if !recv.taken {
            let mut queue = recv_queue(self.s, self.q, &common.key, qp.srq);
            let len = queue.len();
            if len == 0 {
                return false;
            }
            let slot = queue.peek(0);
            let wqe = slot.header();
            (recv.wr_id, recv.length) = (wqe.wr_id, wqe.length);
            recv.sges.clear();
            // The configuration allows no more pieces than the list has room for.
            let _ = recv.sges.extend_from_slice(slot.sges(usize::from(wqe.num_sge)));
            (recv.taken, recv.failed) = (true, 0);
            queue.release(1);
            note_remaining(self.s, &mut common.srqs, qp.srq, len - 1);
        }
        recv.reserved = true;
        cq.reserve(self.qi);
        true
    }

    /// Notes that a message finds no room in the CQ. A message without a receive request would
    /// complete nothing, and does not count.
    #[cold]
    fn note_no_room(&mut self) {
        let (qp, common) = (&mut *self.qp, &mut *self.common);
        qp.counters.cq_full += 1;
        let is_taken = qp.conn.resp.recv.taken;
        if is_taken || !recv_queue(self.s, self.q, &common.key, qp.srq).is_empty() {
            common.note_overrun(self.s, qp.rcq);
        }
    }

    /// Gives back the CQE of a receive whose message was dropped. The receive itself serves the
    /// next message.
    #[inline(never)]
    pub(crate) fn release_cqe(&mut self) {
        if core::mem::take(&mut self.qp.conn.resp.recv.reserved) {
            self.common.unreserve(self.qp.rcq);
        }
    }

    /// Pushes a completion into the entry of a CQ that `take_recv` reserved.
    pub(crate) fn push_reserved(&mut self, cq: u32, wc: Wc, solicited: bool) {
        self.common.unreserve(cq);
        let cq = CqSide::find(self.s, &self.common.key, &mut self.common.cqs, cq);
        if let Some(mut cq) = cq {
            cq.push(self.s, wc, solicited);
        }
    }

    /// The completion of the receive in use, whose message of `bytes` bytes ends with `run`.
    pub(crate) fn end_recv(&mut self, run: &Run, bytes: u32) -> Wc {
        self.count(|c| &mut c.rdma_recvs);
        let recv = &mut self.qp.conn.resp.recv;
        (recv.taken, recv.reserved) = (false, false);
        self.qp.recv_completion(self.qp.conn.resp.recv.wr_id, run, bytes, self.qp.src_qp())
    }

    /// Ends the receive in use with an error, behind those that came before it. The caller ends the
    /// QP. Inside a message its CQE may be reserved for others by now: then the flush that follows
    /// reports the error when there is room.
    pub(crate) fn fail_recv(&mut self, status: u32) {
        self.flush_landings();
        if !self.take_recv() {
            self.qp.conn.resp.recv.failed = status;
            return;
        }
        let recv = &mut self.qp.conn.resp.recv;
        (recv.taken, recv.reserved) = (false, false);
        let wc = self.qp.recv_failure(self.qp.conn.resp.recv.wr_id, status);
        self.push_reserved(self.qp.rcq, wc, false);
    }
}
