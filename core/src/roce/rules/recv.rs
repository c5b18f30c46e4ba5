//! Receive requests: one and its entry of the CQ are taken together, and end together.

use core::sync::atomic::Ordering;

use super::cq::CqSide;
use crate::arena::Table;
use crate::device::async_event;
use crate::ring::EngineConsumer;
use crate::roce::conn::Conn;
use crate::verbs::cause::CauseCode;
use crate::verbs::objects::{Cq, Qp};
use crate::verbs::shared::{EngineKey, QpShared, Shared};
use crate::verbs::types::{wc_status, Wc};
use crate::verbs::wqe::RecvWqe;
use crate::verbs::NONE;

/// Resource that a message lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::roce) enum Missing {
    /// An entry of the CQ that is not reserved.
    CqEntry,
    /// A receive request.
    Request,
}

/// The queue with the receive request that is next, its own or the SRQ's, and the CQ with an entry
/// for it. Nothing has changed.
#[inline(always)]
pub(in crate::roce) fn next_receive<'a>(
    s: &'a Shared,
    q: &'a QpShared,
    key: &EngineKey,
    cqs: &'a mut Table<Cq>,
    qp: &Qp,
) -> Result<(EngineConsumer<'a, RecvWqe>, CqSide<'a>), Missing> {
    let queue = if qp.srq == NONE { q.engine_rq(key) } else { s.srq(qp.srq as usize, key) };
    let Some(cq) = CqSide::of(s, key, cqs, qp.rcq) else { return Err(Missing::CqEntry) };
    if !cq.can_reserve() {
        return Err(Missing::CqEntry);
    }
    if queue.end() == queue.head() {
        return Err(Missing::Request);
    }
    Ok((queue, cq))
}

impl Conn<'_> {
    /// Takes a receive request and reserves its CQE, unless one is taken already. False: there is
    /// none.
    #[inline]
    pub(crate) fn take_recv(&mut self) -> bool {
        let qp = &mut *self.qp;
        if qp.conn.resp.recv.taken && qp.conn.resp.recv.reserved {
            return true;
        }
        if qp.conn.resp.recv.taken {
            // Inside a message the entry was given back, and only that is missing.
            let cq = CqSide::of(self.s, &self.common.key, &mut self.common.cqs, qp.rcq)
                .filter(CqSide::can_reserve);
            let Some(mut cq) = cq else {
                self.common.counters.cq_full += 1;
                return false;
            };
            cq.reserve(self.qi);
            qp.conn.resp.recv.reserved = true;
            return true;
        }
        let common = &mut *self.common;
        let (mut queue, mut cq) =
            match next_receive(self.s, self.q, &common.key, &mut common.cqs, qp) {
                Ok(next) => next,
                Err(missing) => {
                    common.counters.cq_full += u64::from(missing == Missing::CqEntry);
                    return false;
                }
            };
        let len = queue.len();
        let slot = queue.peek(0);
        let wqe = *slot.header();
        let recv = &mut qp.conn.resp.recv;
        recv.wr_id = wqe.wr_id;
        recv.length = wqe.length;
        recv.sges.clear();
        // A configuration allows no more pieces than there is room for.
        let _ = recv.sges.extend_from_slice(slot.sges(wqe.num_sge as usize));
        recv.taken = true;
        recv.reserved = true;
        recv.failed = 0;
        queue.release(1);
        cq.reserve(self.qi);
        let srq = qp.srq;
        if srq != NONE {
            let q = &mut common.srqs[srq as usize];
            // rxe rxe_resp.c get_srq_wqe: An SRQ raises its limit event once, when fewer requests
            // are left than the limit.
            if q.limit != 0 && len - 1 < q.limit {
                q.limit = 0;
                q.events |= 1 << async_event::SRQ_LIMIT_REACHED;
                self.s.notify.store(true, Ordering::Release);
            }
        }
        true
    }

    /// Gives back the CQE of a receive whose message was dropped; the receive itself serves the
    /// next one.
    #[inline(never)]
    pub(crate) fn release_cqe(&mut self) {
        let qp = &mut *self.qp;
        if core::mem::take(&mut qp.conn.resp.recv.reserved) {
            let rcq = qp.rcq;
            self.common.unreserve(rcq, 1);
        }
    }

    /// Pushes a completion into the entry that `take_recv` reserved.
    pub(crate) fn push_reserved(&mut self, wc: Wc, solicited: bool) {
        let rcq = self.qp.rcq;
        let cq = &mut self.common.cqs[rcq as usize];
        cq.reserved = cq.reserved.saturating_sub(1);
        self.common.push_cqe(self.s, rcq, wc, solicited);
    }

    /// The completion of the receive in use. `flags`, `imm` and `opcode` as in [`Wc`].
    pub(crate) fn recv_wc(&mut self, status: u32, bytes: u32, imm: u32, flags: u32) -> Wc {
        let qp = &mut *self.qp;
        qp.conn.resp.recv.taken = false;
        qp.conn.resp.recv.reserved = false;
        let vendor_err = match status {
            wc_status::SUCCESS => 0,
            wc_status::WR_FLUSH_ERR => CauseCode::Flushed as u32,
            _ => qp.cause.code,
        };
        Wc {
            status,
            vendor_err,
            ..qp.recv_completion(qp.conn.resp.recv.wr_id, false, bytes, imm, flags)
        }
    }

    /// Ends the receive in use with an error, behind those that came before it. The caller ends the
    /// QP. Inside a message its entry of the CQ may be reserved for others by then: then
    /// the flush that follows says so when there is room.
    pub(crate) fn fail_recv(&mut self, status: u32) {
        self.flush_fences();
        if !self.take_recv() {
            self.qp.conn.resp.recv.failed = status;
            return;
        }
        let wc = self.recv_wc(status, 0, 0, 0);
        self.push_reserved(wc, false);
    }
}
