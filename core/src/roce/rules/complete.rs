//! The end of a send request: its counters, its slot, its completion.

use super::cq::{CompletionHandoff, CqSide};
use crate::arena::Table;
use crate::counters::Counters;
use crate::ring::EngineConsumer;
use crate::roce::conn::Conn;
use crate::verbs::objects::{Cq, Qp};
use crate::verbs::opcode;
use crate::verbs::shared::{EngineKey, Shared};
use crate::verbs::types::{wc_opcode, wc_status, Wc};
use crate::verbs::wqe::SendWqe;

/// Counts a request that has ended with success.
#[inline(always)]
fn count(c: &mut Counters, code: u32, length: u64) {
    *match code {
        wc_opcode::SEND => &mut c.rdma_sends,
        wc_opcode::RDMA_WRITE => &mut c.rdma_writes,
        wc_opcode::RDMA_READ => &mut c.rdma_reads,
        wc_opcode::COMP_SWAP | wc_opcode::FETCH_ADD => &mut c.rdma_atomics,
        wc_opcode::ATOMIC_WRITE => {
            c.request_bytes = c.request_bytes.wrapping_add(8);
            &mut c.rdma_atomics
        }
        _ => return,
    } += 1;
    c.request_bytes = c.request_bytes.wrapping_add(length);
}

/// The prepared end of one request. Nothing has changed yet, and its completion has room.
pub(in crate::roce) struct Ending<'a> {
    /// The CQ of its completion, if it has one.
    cq: Option<CqSide<'a>>,
    wr_id: u64,
    length: u64,
    /// The [`wc_opcode`] of the completion.
    code: u32,
    status: u32,
}

/// Prepares the end of a request: finds room for its completion, if it is signaled or has failed.
/// `None`: there is no room now. `code`: its [`wc_opcode`], an argument because the single path
/// knows it without a look-up. `scq`: the index of its queue pair's CQ, among those of the engine.
#[inline(always)]
pub(in crate::roce) fn prepare<'a>(
    s: &'a Shared,
    (key, cqs, scq): (&EngineKey, &'a mut Table<Cq>, u32),
    wqe: &SendWqe,
    code: u32,
    status: u32,
) -> Option<Ending<'a>> {
    let mut cq = None;
    // IBTA 10.7.3.1: A request that fails completes, signaled or not.
    if status != wc_status::SUCCESS || wqe.is_signaled() {
        let side = CqSide::find(s, key, cqs, scq)?;
        cq = match side.has_room() {
            true => Some(side),
            false if side.has_failed() => None,
            false => return None,
        };
    }
    Some(Ending { cq, wr_id: wqe.wr_id, length: wqe.length, code, status })
}

/// What is in flight when a request ends. The state that ends with it is reset.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::roce) enum InFlight {
    /// The request's packets were sent, and others may be under way behind them.
    Others,
    /// The request's packets were sent, and nothing else is under way.
    Nothing,
    /// As `Nothing`, and the request's [`crate::verbs::req::WqeState`] is clear already: no packet
    /// was sent, or the caller has cleared it.
    NothingAndClear,
}

impl Conn<'_> {
    /// Ends the oldest request of the send queue. False: its completion finds no room, and nothing
    /// has changed.
    #[inline(always)]
    pub(in crate::roce) fn end_request(
        &mut self,
        sq: &mut EngineConsumer<'_, SendWqe>,
        status: u32,
        in_flight: InFlight,
    ) -> bool {
        let (qp, common) = (&mut *self.qp, &mut *self.common);
        let slot = sq.at(qp.conn.req.released);
        let wqe = slot.header();
        let code = opcode::row(wqe.opcode).completion;
        let scq = (&common.key, &mut common.cqs, qp.scq);
        let Some(ending) = prepare(self.s, scq, wqe, code, status) else { return false };
        ending.finish(self.s, qp, sq, in_flight, None);
        true
    }
}

impl Ending<'_> {
    /// Prepares the end of a request which ends with success and does not complete.
    #[inline(always)]
    pub(in crate::roce) fn prepare_unsignaled(wqe: &SendWqe, code: u32) -> Self {
        let status = wc_status::SUCCESS;
        Ending { cq: None, wr_id: wqe.wr_id, length: wqe.length, code, status }
    }

    /// Ends the oldest request of a QP's send queue, at ring index `qp.conn.req.released`. The slot
    /// is released before the completion can be seen ([`CqSide::push`] says why).
    #[inline(always)]
    pub(in crate::roce) fn finish(
        self,
        s: &Shared,
        qp: &mut Qp,
        sq: &mut EngineConsumer<'_, SendWqe>,
        in_flight: InFlight,
        handoff: Option<&mut CompletionHandoff>,
    ) {
        self.count(qp);
        let oldest = qp.conn.req.released;
        if in_flight != InFlight::NothingAndClear {
            *qp.wqe(oldest) = Default::default();
        }
        qp.conn.req.released = oldest.wrapping_add(1);
        if in_flight != InFlight::Others {
            (qp.conn.req.acked, qp.conn.req.next) = (qp.conn.req.released, qp.conn.req.released);
        }
        sq.release(1);
        self.complete(s, qp, handoff);
    }

    /// As [`Ending::finish`], of a request without a slot.
    #[inline(always)]
    pub(in crate::roce) fn finish_slotless(self, s: &Shared, qp: &mut Qp) {
        self.count(qp);
        self.complete(s, qp, None);
    }

    #[inline(always)]
    fn count(&self, qp: &mut Qp) {
        if self.status == wc_status::SUCCESS {
            count(&mut qp.counters, self.code, self.length);
        }
    }

    #[inline(always)]
    fn complete(self, s: &Shared, qp: &Qp, handoff: Option<&mut CompletionHandoff>) {
        let code = self.code;
        let Some(mut cq) = self.cq else { return };
        let carries =
            matches!(code, wc_opcode::RDMA_READ | wc_opcode::COMP_SWAP | wc_opcode::FETCH_ADD);
        let wc = Wc {
            wr_id: self.wr_id,
            status: self.status,
            opcode: code,
            vendor_err: qp.vendor_err(self.status),
            byte_len: if carries { self.length as u32 } else { 0 },
            qp_num: qp.qpn,
            ..Wc::default()
        };
        match handoff {
            Some(handoff) => cq.hand_over(s, handoff, wc, false),
            None => cq.push(s, wc, false),
        }
    }
}
