//! The way of a single request from its queue to its completion, whatever framing carries it.

use super::ack::progress;
use super::complete::{prepare, Left};
use super::send::{Charge, Departed, PreparedSend};
use crate::roce::answers::ACK_BYTES;
use crate::roce::conn::Conn;
use crate::roce::peer::PACKET_COST;
use crate::verbs::req::WqeState;
use crate::verbs::types::{wc_opcode, wc_status, wr_opcode};
use crate::verbs::NONE;
use crate::wire::Psn;

impl Conn<'_> {
    /// Records that the waiting request has left, and the owed ACK with it. The caller starts the
    /// timers.
    #[inline(always)]
    pub(in crate::roce) fn single_left(&mut self, prepared: &PreparedSend) {
        let PreparedSend { payload, bytes, acks, .. } = *prepared;
        let (index, psn) = (self.qp.conn.req.next, self.qp.conn.req.next_psn);
        self.qp.begin_request(index, 1);
        self.qp.conn.req.next = index.wrapping_add(1);
        self.qp.conn.req.batch_left(1);
        let charge = Charge::Window { bytes: PACKET_COST + payload, asked: true };
        let mut sent = Departed { psn, psns: 1, packets: 1, bytes: bytes.into(), charge };
        if acks {
            sent.packets += 1;
            sent.bytes += ACK_BYTES;
            self.ack_left();
        }
        self.note_sent::<true>(&sent);
    }

    /// Ends the only request in flight, if the ACK of `psn` ends it and nothing blocks that. False:
    /// nothing has changed. [`Conn::single_ended`] is next.
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
        let slot = sq.at(index);
        let wqe = slot.header();
        let at = qp.wqe_at(index);
        let ws = &mut qp.wqes[at];
        let opcode = u32::from(wqe.opcode);
        let plain = opcode <= wr_opcode::SEND_WITH_IMM;
        if !ws.started || ws.done || ws.npkts != 1 || ws.psn != psn || !plain {
            return false;
        }
        let writes = opcode <= wr_opcode::RDMA_WRITE_WITH_IMM;
        let code = if writes { wc_opcode::RDMA_WRITE } else { wc_opcode::SEND };
        let status = wc_status::SUCCESS;
        let ending = prepare(self.s, &common.key, &mut common.cqs, qp.scq, wqe, code, status);
        let Some(ending) = ending else { return false };
        *ws = WqeState::default();
        qp.counters.count_received(1, ACK_BYTES);
        qp.conn.req.una_psn = qp.conn.req.max_psn;
        progress(qp, self.peer, now, 0, 0);
        let handoff = Some(&mut common.handoff);
        ending.finish(self.s, qp, &mut sq, Left::NothingKept, handoff);
        true
    }

    /// After [`Conn::end_single`]: drops the deferred timer, and wakes QPs that wait for a window.
    #[inline(always)]
    pub(in crate::roce) fn single_ended(&mut self) {
        if self.common.timer_deferred == self.qi as u32 {
            self.common.timer_deferred = NONE;
        }
        self.common.wake_windows();
    }
}
