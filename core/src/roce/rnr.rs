//! The requester's rules for a peer that has no receive request for a message, until it has one.
//!
//! The peer answers the packet for which it is not ready with an RNR NAK and throws away all that
//! comes behind it. When the time that the NAK names is over, the refused packet goes first, alone,
//! and asks for an ACK: while the peer refuses it again, one packet is lost and not a whole window.
//! Once it is accepted the rest of its message follows. A peer that was late for one message is
//! mostly late for the next one, so behind it one more packet is tried: the one that takes the next
//! receive request. Each time that what was tried is accepted at once, more is tried: twice as much
//! up to half of what the last refusal has cost, from there on an eighth more. Then the window is
//! open again as for any other peer. A peer that posts its receive requests in batches refuses the
//! first packet behind each batch, so nothing beyond that packet is tried. A refusal then costs a
//! part of what was accepted before it, and not a window.
//!
//! Requests that take no receive request wait only behind a refused one, since all arrive in order.

use super::conn::Conn;
use super::siege::RNR_NS;
use crate::verbs::cause::CauseCode;
use crate::verbs::objects::Qp;
use crate::verbs::req::{Ready, SendBlock, WqeState};
use crate::verbs::types::{wc_status, wr_opcode};
use crate::verbs::wqe::SendWqe;
use crate::wire::{Psn, RNR_TIMER_NS};

/// After so many packets that were accepted at once the window is open again.
const TRIED_MAX: u16 = 256;

impl Qp {
    /// Lets requests leave again, as far as the peer is ready for them.
    pub(super) fn go_on(&mut self) {
        self.conn.req.set_send_block(if self.conn.ready == Ready::Yes {
            SendBlock::None
        } else {
            SendBlock::Unready
        });
    }

    /// How many of `room` PSNs from `psn` on, of the request `wqe`, may leave to a peer that was
    /// not ready. A READ is not cut short: its PSNs are those of the answer, and its request is one
    /// packet.
    #[cold]
    pub(super) fn room_of_unready(
        &mut self,
        wqe: &SendWqe,
        ws: &WqeState,
        psn: Psn,
        room: u32,
    ) -> u32 {
        if self.conn.ready == Ready::Doubtful && wqe.takes_receive() {
            // A WRITE takes it with its last packet.
            let writes = u32::from(wqe.opcode) == wr_opcode::RDMA_WRITE_WITH_IMM;
            let takes = if writes { ws.psn.add(ws.npkts - 1) } else { ws.psn };
            if psn.diff(takes) <= 0 {
                let last = takes.add(u32::from(self.conn.tried) - 1);
                let next = self.conn.refused_psn.add(u32::from(self.conn.batch));
                let foreseen = self.conn.batch != 0 && takes.diff(next) <= 0 && next.diff(last) < 0;
                (self.conn.ready, self.conn.ready_psn) =
                    (Ready::Tried, if foreseen { next } else { last });
            }
        }
        if self.conn.ready == Ready::Doubtful {
            return room;
        }
        // 1 is added to the difference, not to the PSN: a message may take half of all PSNs.
        match (self.conn.ready_psn.diff(psn) + 1).max(0) as u32 {
            upto if upto == 0 || !wqe.is_read() => room.min(upto),
            _ => room,
        }
    }

    /// A request begins while the peer's readiness is in doubt. If all before it has ended and it
    /// takes no receive request, the doubt ends: it would cost each such request more than it
    /// saves.
    #[cold]
    pub(super) fn end_doubt(&mut self, wqe: &SendWqe) {
        if self.conn.req.una_psn == self.conn.req.max_psn && !wqe.takes_receive() {
            self.conn.ready = Ready::Yes;
            self.end_unready();
        }
    }

    /// The oldest unacknowledged PSN has moved: the packet that the peer was not ready for may lie
    /// before it now.
    #[cold]
    pub(super) fn note_accepted(&mut self) {
        let accepted = self.conn.req.una_psn.diff(self.conn.ready_psn) > 0;
        self.conn.ready = match self.conn.ready {
            Ready::Refused if accepted => Ready::Doubtful,
            Ready::Tried if accepted => self.try_more(),
            same => same,
        };
        self.end_unready();
    }

    /// What was tried has been accepted.
    fn try_more(&mut self) -> Ready {
        let tried = self.conn.tried;
        let more = if tried < self.conn.tried_half { tried } else { tried / 8 + 1 };
        self.conn.tried = tried + more;
        if self.conn.tried < TRIED_MAX {
            Ready::Doubtful
        } else {
            Ready::Yes
        }
    }

    fn end_unready(&mut self) {
        if matches!(self.conn.req.send_block(), SendBlock::Unready) {
            self.go_on();
        }
    }
}

impl Conn<'_> {
    /// Takes an RNR NAK.
    #[inline(never)]
    pub(super) fn handle_rnr(&mut self, now: u64, psn: Psn, timer: u8) {
        self.count(|c| &mut c.rcvd_rnr_err);
        let besieged = self.qp.is_besieged(now);
        if !besieged {
            self.ack_before(now, psn);
        }
        let Some(index) = self.oldest_open() else { return };
        let qp = &mut *self.qp;
        if psn.diff(qp.conn.req.una_psn) < 0
            || matches!(qp.conn.req.send_block(), SendBlock::Rnr(_))
            || !qp.can_send()
        {
            return;
        }
        // rxe rxe_comp.c rxe_completer: As many RNR NAKs without progress are endured as rnr_retry
        // says, with 7 any number; the next one fails the request.
        if qp.conn.req.rnr_left == 0 && !besieged {
            let made = u64::from(qp.attr.rnr_retry);
            self.count(|c| &mut c.retry_rnr_exceeded_err);
            let (status, cause) = (wc_status::RNR_RETRY_EXC_ERR, CauseCode::RnrRetryExceeded);
            return self.fail_request(now, index, status, cause, made, 0);
        }
        // rxe rxe_comp.c rnrnak_jiffies: After an RNR NAK the refused request is not sent again
        // before the time that the NAK names.
        let mut wait = RNR_TIMER_NS[usize::from(timer & 31)];
        if besieged {
            wait = wait.min(RNR_NS);
        } else if qp.attr.rnr_retry != 7 {
            qp.conn.req.rnr_left -= 1;
        }
        if qp.conn.ready != Ready::Refused {
            // All packets that have left, from the refused one on, are lost.
            let lost = qp.conn.req.next_psn.diff(psn).max(0) as u32;
            let half = (lost / 2).min(u32::from(TRIED_MAX)) as u16;
            let batch = u16::try_from(psn.diff(qp.conn.refused_psn)).unwrap_or(0);
            qp.conn.batch = if qp.conn.tried == 0 { 0 } else { batch };
            (qp.conn.tried, qp.conn.tried_half, qp.conn.refused_psn) = (1, half, psn);
        }
        // Not from `psn`: answers of READs before it may have been lost.
        let una = qp.conn.req.una_psn;
        self.rewind(una);
        let qp = &mut *self.qp;
        qp.conn.req.rewound = None;
        // The peer lives: silence begins anew when the request leaves again.
        qp.conn.req.retry_left = qp.attr.retry_cnt;
        qp.conn.req.ack_deadline = 0;
        qp.conn.req.probe_at = 0;
        qp.conn.req.set_send_block(SendBlock::Rnr(now + wait));
        (qp.conn.ready, qp.conn.ready_psn) = (Ready::Refused, psn);
        self.arm();
    }
}
