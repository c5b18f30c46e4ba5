//! The completer: ACKs, NAKs and answers to the requester's packets.

use super::conn::Conn;
use super::peer::PACKET_COST;
use super::requester::window_cost;
use super::rules::ack::progress;
use super::rules::sge::CopyError;
use super::run::Run;
use crate::mem::Target;
use crate::ring::EngineConsumer;
use crate::verbs::cause::CauseCode;
use crate::verbs::opcode;
use crate::verbs::req::{tx_block, SendBlock};
use crate::verbs::types::wc_status;
use crate::verbs::wqe::SendWqe;
use crate::wire::{NakCode, PacketKind, Psn, Syndrome};

/// A request fails after so many sequence NAKs without progress. A NAK shows that the peer lives,
/// but a peer that sends only NAKs would block the queue for ever.
const NAK_MAX: u8 = 200;

/// How long a READ waits when its answer found no staging room.
const STAGING_WAIT_NS: u64 = 20_000;

impl Conn<'_> {
    /// Whether `released <= acked <= next <= tail`, as [`crate::verbs::req::Req`] promises.
    pub(crate) fn req_is_sound(&self) -> bool {
        let sq = self.q.engine_sq(&self.common.key);
        let req = &self.qp.conn.req;
        let behind = |i: u32| i.wrapping_sub(sq.head());
        req.released == sq.head()
            && behind(req.acked) <= behind(req.next)
            && behind(req.next) <= sq.len()
    }

    /// The oldest WQE that a NAK or a timeout can concern. `None`: all sent requests have ended,
    /// with or without a delivered completion.
    pub(crate) fn oldest_open(&mut self) -> Option<u32> {
        let sq = self.q.engine_sq(&self.common.key);
        let tail = sq.end();
        let index = self.qp.conn.req.acked;
        let ws = self.qp.wqe(index);
        (index != tail && ws.started && !ws.done).then_some(index)
    }

    /// Takes an ACK, NAK, READ response or atomic answer. `port`: the sender's UDP port; 0: it came
    /// by another path.
    pub(crate) fn handle_answer(&mut self, now: u64, port: u16, run: &Run, payload: &[u8]) {
        debug_assert!(!self.qp.can_send() || self.req_is_sound(), "{:?} {run:?}", self.qp.conn.req);
        if !self.qp.can_send() {
            return;
        }
        // Answers for PSNs that were never sent, or ended long ago, mean nothing.
        let off = self.qp.off_by(run.psn, run.n);
        if off != 0 {
            return self.note_stray(now, off);
        }
        match run.kind {
            PacketKind::Ack => match Syndrome::parse(run.syndrome) {
                // IBTA 9.7.7.2, taken: An ACK counts whatever credits it grants.
                Syndrome::Ack { .. } => {
                    if !payload.is_empty() {
                        return;
                    }
                    self.ack_through(&self.q.engine_sq(&self.common.key), now, run.psn);
                    self.complete(now);
                }
                Syndrome::Rnr { timer } => self.handle_rnr(now, run.psn, timer),
                // A NAK with a code that RC does not have is no answer.
                Syndrome::Nak(NakCode::InvalidRd | NakCode::Reserved(_)) => self.note_stray(now, 0),
                Syndrome::Nak(code) => self.handle_nak(now, run.psn, code, Some(port)),
                _ => {}
            },
            _ => self.handle_data(now, run, payload),
        }
        debug_assert!(self.req_is_sound(), "{:?} {run:?}", self.qp.conn.req);
    }

    /// Ends the requests up to and including `psn`, as far as no READ or atomic among them still
    /// lacks its answer.
    #[inline(always)]
    fn ack_through(&mut self, sq: &EngineConsumer<'_, SendWqe>, now: u64, psn: Psn) {
        let mut freed = 0u32;
        let mut progress = false;
        let mut implied = None;
        let qp = &mut *self.qp;
        loop {
            let i = qp.conn.req.acked;
            let ws = *qp.wqe(i);
            // In a full queue the slot behind the last request is that of the first, not released
            // yet.
            if !ws.started || i == sq.end() {
                break;
            }
            if ws.npkts == 0 {
                // A local operation.
                if !ws.done {
                    break;
                }
                qp.conn.req.acked = i.wrapping_add(1);
                if i == qp.conn.req.next {
                    qp.conn.req.go_behind(i);
                }
                continue;
            }
            // IBTA 9.7.5.1.2: An ACK acknowledges all requests up to its PSN.
            if psn.diff(ws.psn) < 0 {
                break;
            }
            let wqe = sq.at(i).header();
            if wqe.is_answered() && !ws.done {
                // rxe rxe_comp.c check_psn, READ: An ACK that passes a READ or atomic whose answer
                // has not come means that the answer was lost.
                implied = Some(ws.psn.add(ws.done_pkts));
                break;
            }
            let from = qp.conn.req.una_psn.diff(ws.psn).max(0) as u32;
            let upto = (psn.diff(ws.psn) as u32 + 1).min(ws.npkts);
            if upto > from && !ws.done {
                freed += window_cost(qp, wqe.length, from, upto);
                progress = true;
                qp.conn.req.una_psn = ws.psn.add(upto);
            }
            if upto < ws.npkts {
                break;
            }
            qp.wqe(i).done = true;
            qp.conn.req.acked = i.wrapping_add(1);
            if i == qp.conn.req.next {
                // The request was rewound, and its ACK came nevertheless.
                qp.conn.req.go_behind(i);
                qp.conn.req.next_psn = qp.conn.req.una_psn;
            }
            if qp.conn.req.acked == sq.end() {
                break;
            }
        }
        // More packets of a rewound WQE have arrived than were sent again.
        let una = qp.conn.req.una_psn;
        if qp.conn.req.next_psn.diff(una) < 0 {
            let ws = *qp.wqe(qp.conn.req.next);
            if ws.started {
                qp.conn.req.cur_pkt = una.diff(ws.psn).max(0) as u32;
                qp.conn.req.next_psn = una;
            }
        }
        if progress {
            self.on_progress(sq, now, freed, 0);
        }
        if let Some(psn) = implied {
            self.request_lost_answer(now, psn);
        }
    }

    /// Requests the missing answer of a READ or atomic again, once until there is progress.
    #[inline(never)]
    fn request_lost_answer(&mut self, now: u64, psn: Psn) {
        if self.qp.conn.req.rewound == Some(psn) || !self.qp.conn.req.may_repeat() {
            return;
        }
        self.peer.rx.on_loss(now);
        self.rewind(psn);
    }

    /// Requests a response that found no staging room again, soon. This is no retry, because the
    /// peer lives.
    fn ask_again(&mut self, now: u64, psn: Psn) {
        self.rewind(psn);
        let qp = &mut *self.qp;
        qp.conn.req.rewound = None;
        qp.conn.req.retry_left = qp.attr.retry_cnt;
        qp.conn.req.ack_deadline = now + qp.conn.timeout_ns;
        qp.conn.req.set_send_block(SendBlock::Until(now + STAGING_WAIT_NS));
        self.arm_timer();
    }

    /// Notes that the oldest unacknowledged PSN has moved.
    #[inline(always)]
    fn on_progress(
        &mut self,
        sq: &EngineConsumer<'_, SendWqe>,
        now: u64,
        freed: u32,
        read_freed: u32,
    ) {
        progress(self.qp, &mut *self.peer, now, freed, read_freed);
        // A QP that has sent everything is not looked at again.
        if self.qp.conn.req.next != sq.end() {
            self.common.ready.set(self.qi);
        }
        if self.qp.conn.req.is(tx_block::DRAIN_EVENT) {
            self.check_drained();
        }
        self.common.wake_windows();
    }

    /// Acknowledges the requests before `psn`, which was answered.
    #[inline(never)]
    pub(super) fn ack_before(&mut self, now: u64, psn: Psn) {
        if psn.diff(self.qp.conn.req.una_psn) > 0 {
            self.ack_through(&self.q.engine_sq(&self.common.key), now, psn.prev());
            self.complete(now);
        }
    }

    /// Handles a NAK for `psn`. `port`: its UDP port. `None`: the NAK was doubted, and silence
    /// followed.
    #[inline(never)]
    pub(crate) fn handle_nak(&mut self, now: u64, psn: Psn, code: NakCode, port: Option<u16>) {
        let besieged = self.qp.is_besieged(now);
        if code != NakCode::Psn && port.is_some_and(|port| !self.qp.weigh_end(now, psn, code, port))
        {
            // The newest packet is sent once more. A peer that acknowledges it did not send the
            // NAK; one whose QP has failed repeats the NAK or stays silent.
            self.qp.conn.req.set(tx_block::PROBE, true);
            self.common.ready.set(self.qi);
            return;
        }
        if code != NakCode::Psn || !besieged {
            self.ack_before(now, psn);
        }
        let Some(index) = self.oldest_open() else { return };
        let qp = &mut *self.qp;
        if psn.diff(qp.conn.req.una_psn) < 0 || !qp.can_send() {
            return;
        }
        let (status, cause) = match code {
            NakCode::Psn => {
                // rxe rxe_comp.c check_ack, sequence: A sequence NAK acknowledges what is before
                // its PSN; the rest is sent again.
                self.count(|c| &mut c.rcvd_seq_err);
                let qp = &mut *self.qp;
                // While besieged, a NAK acknowledges nothing: all unacknowledged packets are sent
                // again.
                let psn = if besieged { qp.conn.req.una_psn } else { psn };
                if psn != qp.conn.req.una_psn
                    || matches!(qp.conn.req.send_block(), SendBlock::Rnr(_))
                {
                    return;
                }
                qp.conn.req.naks = qp.conn.req.naks.saturating_add(1);
                if qp.conn.req.naks > NAK_MAX {
                    let (timeout, made) = (qp.conn.timeout_ns, u64::from(NAK_MAX));
                    let (status, cause) = (wc_status::RETRY_EXC_ERR, CauseCode::RetryExceeded);
                    return self.fail_request(now, index, status, cause, timeout, made);
                }
                // Only what was sent beyond the missing packet can be sent again.
                if qp.conn.req.next_psn.diff(psn) > 0 {
                    self.peer.tx.on_loss(now);
                    self.rewind(psn);
                }
                return;
            }
            // rxe rxe_comp.c check_ack, NAK: Each other NAK ends the request at its PSN with a
            // status of its own, and the queue pair with it.
            NakCode::InvalidRequest => {
                (wc_status::REM_INV_REQ_ERR, CauseCode::RemoteInvalidRequest)
            }
            NakCode::RemoteAccess => (wc_status::REM_ACCESS_ERR, CauseCode::RemoteAccess),
            _ => (wc_status::REM_OP_ERR, CauseCode::RemoteOperation),
        };
        self.count(|c| &mut c.rcvd_nak_err);
        let wqe = *self.q.engine_sq(&self.common.key).at(index).header();
        self.fail_request(now, index, status, cause, wqe.rkey.into(), wqe.remote_addr);
    }

    /// Takes packets of a READ response, or an atomic's answer, if they are the next ones. Requests
    /// packets that are missing before them again.
    #[inline(never)]
    fn handle_data(&mut self, now: u64, run: &Run, payload: &[u8]) {
        self.ack_before(now, run.psn);
        let Some(index) = self.oldest_open() else { return };
        let sq = self.q.engine_sq(&self.common.key);
        let slot = sq.at(index);
        let wqe = slot.header();
        let qp = &mut *self.qp;
        let (mtu, ws) = (qp.conn.mtu, *qp.wqe(index));
        // rxe rxe_comp.c check_ack, ATOMIC WRITE: An ATOMIC WRITE or a FLUSH is answered as a READ
        // of no bytes.
        let is_read = run.kind == PacketKind::ReadResponse;
        let ours = opcode::row(wqe.opcode).kind.answer() == Some(run.kind);
        if ws.npkts == 0 || !ours {
            return;
        }
        let expected = ws.psn.add(ws.done_pkts);
        let ahead = run.psn.diff(expected);
        if ahead != 0 {
            if ahead > 0 {
                self.request_lost_answer(now, expected);
            }
            return;
        }
        // rxe rxe_comp.c do_atomic: The value that an atomic's answer brings is written to the
        // memory of the request.
        let value = run.a.to_ne_bytes();
        let (bytes, offset) = match is_read {
            true => (payload, u64::from(ws.done_pkts) * u64::from(mtu)),
            false => (&value[..], 0),
        };
        let want = (wqe.length - offset).min(u64::from(run.n) * u64::from(mtu));
        // rxe rxe_comp.c do_read: A packet of a READ's answer with another length than its place
        // requires is a bad response.
        let wrong = is_read
            && (payload.len() as u64 != want
                || run.n > ws.npkts - ws.done_pkts
                || !qp.has_place(run, ws.done_pkts, ws.npkts));
        if wrong {
            if qp.is_besieged(now) {
                return self.request_lost_answer(now, expected);
            }
            let status = wc_status::BAD_RESP_ERR;
            return self.fail_request(now, index, status, CauseCode::BadResponse, 0, 0);
        }
        let sges = slot.sges(usize::from(wqe.num_sge));
        match self.common.memory.scatter(qp.pd, sges, offset, bytes) {
            Ok(None) => {}
            Ok(Some(next)) => {
                let ws = qp.wqe(index);
                let before = ws.placing.then_some((ws.provider, ws.token));
                let last = self.common.memory.providers.later_of(before, next);
                (ws.placing, (ws.provider, ws.token)) = (true, last);
            }
            // The answer counts as lost on the way: the request is sent again.
            Err(CopyError::Busy | CopyError::Pending(..)) => return self.ask_again(now, expected),
            Err(CopyError::Refused(code, lkey, addr)) => {
                let status = wc_status::LOC_PROT_ERR;
                return self.fail_request(now, index, status, code, lkey.into(), addr);
            }
        }
        self.note_answer_placed(now, index, run, payload.len());
    }

    /// The READ that a MIDDLE packet answers, and the place of its payload. `None`: the packet is
    /// not the expected one of a READ's response, or its place is not one piece of host memory. The
    /// caller checks that the QP is in RTS.
    pub(super) fn next_of_read(&mut self, psn: Psn, len: usize) -> Option<(u32, Target)> {
        if self.qp.off_by(psn, 1) != 0 {
            return None;
        }
        // While an older request is open the general path takes the packet, because it acknowledges
        // that request first.
        let index = self.oldest_open()?;
        let sq = self.q.engine_sq(&self.common.key);
        let slot = sq.at(index);
        let wqe = slot.header();
        let (mtu, ws) = (self.qp.conn.mtu, *self.qp.wqe(index));
        let expected = wqe.is_read() && psn == ws.psn.add(ws.done_pkts);
        // The packet is neither the first nor the last one.
        let inner = ws.done_pkts.wrapping_sub(1) < ws.npkts.wrapping_sub(2);
        if !expected || len != mtu as usize || !inner {
            return None;
        }
        let sges = slot.sges(usize::from(wqe.num_sge));
        let offset = u64::from(ws.done_pkts) * u64::from(mtu);
        let target = self.common.memory.host_target(self.qp.pd, sges, offset, mtu)?;
        Some((index, target))
    }

    /// Notes that the next packets of the answer to a request, of `len` bytes, are placed. The last
    /// one ends the request.
    pub(super) fn note_answer_placed(&mut self, now: u64, index: u32, run: &Run, len: usize) {
        let sq = self.q.engine_sq(&self.common.key);
        let is_read = run.kind == PacketKind::ReadResponse;
        let qp = &mut *self.qp;
        let ws = *qp.wqe(index);
        let done = ws.done_pkts + if is_read { run.n } else { 1 };
        let finished = done == ws.npkts;
        let ended = qp.read_pieces_ended(ws.done_pkts, done, finished);
        qp.conn.req.rd_out = qp.conn.req.rd_out.saturating_sub(ended);
        qp.wqe(index).done_pkts = done;
        qp.conn.req.una_psn = ws.psn.add(done);
        if finished {
            qp.wqe(index).done = true;
            qp.conn.req.acked = index.wrapping_add(1);
        }
        self.catch_up(index);
        let (freed, read_freed) = if is_read { (0, len as u32) } else { (PACKET_COST, 0) };
        self.on_progress(&sq, now, freed, read_freed);
        if finished {
            self.skip_done();
            self.complete(now);
        }
    }

    /// Continues behind a response that arrived although its request had been rewound.
    fn catch_up(&mut self, index: u32) {
        let qp = &mut *self.qp;
        if qp.conn.req.next == index && qp.conn.req.next_psn.diff(qp.conn.req.una_psn) < 0 {
            let ws = *qp.wqe(index);
            qp.conn.req.next_psn = qp.conn.req.una_psn;
            if ws.done {
                qp.conn.req.go_behind(index);
            } else {
                qp.conn.req.cur_pkt = ws.done_pkts;
            }
        }
    }
}
