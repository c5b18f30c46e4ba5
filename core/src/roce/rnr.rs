//! How the requester treats a peer that has no receive request for a message, until it has one.
//!
//! The peer refuses the packet for which it is not ready with an RNR NAK, and drops all that comes
//! behind it. When the time that the NAK names is over, the refused packet leaves alone, and asks
//! for an ACK: if the peer refuses it again, one packet is lost and not a whole window. Once it is
//! accepted, the rest of its message follows.
//!
//! A peer that was late for one message is mostly late for the next one. So the next message begins
//! with a trial of one packet, which takes the receive request. Each time that the peer accepts a
//! whole trial, the next trial is larger: twice as many packets, up to half of those that the last
//! refusal has cost; from there on an eighth more. After [`TRIED_MAX`] packets the window is open
//! again as for any other peer.
//!
//! A peer that posts its receive requests in batches refuses the first packet behind each batch. So
//! no trial goes beyond that packet.
//!
//! Requests that take no receive request wait only behind a refused one, since all arrive in order.

use super::conn::Conn;
use super::siege::RNR_NS;
use crate::verbs::cause::CauseCode;
use crate::verbs::objects::Qp;
use crate::verbs::req::{PeerReady, RnrTrial, SendBlock, WqeState};
use crate::verbs::types::{wc_status, wr_opcode};
use crate::verbs::wqe::SendWqe;
use crate::wire::{Psn, RNR_TIMER_NS};

/// Packets accepted at once after which the window is open again.
const TRIED_MAX: u16 = 256;

impl Qp {
    /// Lets requests leave again, as far as the peer is ready for them.
    pub(super) fn go_on(&mut self) {
        self.conn.req.set_send_block(if self.conn.peer_ready == PeerReady::Yes {
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
        if self.conn.peer_ready == PeerReady::Doubtful && wqe.takes_receive() {
            // A WRITE takes its receive request with the last packet.
            let writes = u32::from(wqe.opcode) == wr_opcode::RDMA_WRITE_WITH_IMM;
            let takes = if writes { ws.psn.add(ws.npkts - 1) } else { ws.psn };
            if psn.diff(takes) <= 0 {
                let RnrTrial { packets, batch, refused, .. } = self.conn.trial;
                let last = takes.add(u32::from(packets) - 1);
                let next = refused.add(u32::from(batch));
                let foreseen = batch != 0 && takes.diff(next) <= 0 && next.diff(last) < 0;
                self.conn.peer_ready = PeerReady::Tried(if foreseen { next } else { last });
            }
        }
        let (PeerReady::Refused(last) | PeerReady::Tried(last)) = self.conn.peer_ready else {
            return room;
        };
        // 1 is added to the difference and not to the PSN, because a message may take half of all
        // PSNs.
        match (last.diff(psn) + 1).max(0) as u32 {
            upto if upto == 0 || !wqe.is_read() => room.min(upto),
            _ => room,
        }
    }

    /// Ends the doubt about the peer when a request begins that takes no receive request, and
    /// nothing is in flight: the doubt would cost each such request more than it saves.
    #[cold]
    pub(super) fn end_doubt(&mut self, wqe: &SendWqe) {
        if self.conn.req.una_psn == self.conn.req.max_psn && !wqe.takes_receive() {
            self.conn.peer_ready = PeerReady::Yes;
            self.end_unready();
        }
    }

    /// Notes that the oldest unacknowledged PSN has moved, maybe past the packet for which the peer
    /// was not ready.
    #[cold]
    pub(super) fn note_accepted(&mut self) {
        let una = self.conn.req.una_psn;
        self.conn.peer_ready = match self.conn.peer_ready {
            PeerReady::Refused(psn) if una.diff(psn) > 0 => PeerReady::Doubtful,
            PeerReady::Tried(psn) if una.diff(psn) > 0 => self.try_more(),
            same => same,
        };
        self.end_unready();
    }

    /// Enlarges the trial, because the peer has accepted the last one.
    fn try_more(&mut self) -> PeerReady {
        let trial = &mut self.conn.trial;
        let packets = trial.packets;
        let more = if packets < trial.half_lost { packets } else { packets / 8 + 1 };
        trial.packets = packets + more;
        if trial.packets < TRIED_MAX {
            PeerReady::Doubtful
        } else {
            PeerReady::Yes
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
        if !matches!(qp.conn.peer_ready, PeerReady::Refused(_)) {
            // All packets that have left, from the refused one on, are lost.
            let lost = qp.conn.req.next_psn.diff(psn).max(0) as u32;
            let half_lost = (lost / 2).min(u32::from(TRIED_MAX)) as u16;
            let RnrTrial { packets, refused, .. } = qp.conn.trial;
            let batch = u16::try_from(psn.diff(refused)).unwrap_or(0);
            let batch = if packets == 0 { 0 } else { batch };
            qp.conn.trial = RnrTrial { packets: 1, half_lost, batch, refused: psn };
        }
        // The rewind does not begin at `psn`, because answers of READs before it may have been
        // lost.
        let una = qp.conn.req.una_psn;
        self.rewind(una);
        let qp = &mut *self.qp;
        qp.conn.req.rewound = None;
        // The peer lives, so silence begins anew when the request leaves again.
        qp.conn.req.retry_left = qp.attr.retry_cnt;
        qp.conn.req.ack_deadline = 0;
        qp.conn.req.probe_at = 0;
        qp.conn.req.set_send_block(SendBlock::Rnr(now + wait));
        qp.conn.peer_ready = PeerReady::Refused(psn);
        self.arm_timer();
    }
}
