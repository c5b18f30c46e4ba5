//! The responder's answers, in the order of the requests: READ responses (one of no bytes answers
//! an ATOMIC WRITE or a FLUSH), atomic answers, ACKs and NAKs.

use super::conn::Conn;
use super::run::Run;
use super::txbuf::{Emission, TxBuf};
use super::{Sent, Transport, AHEAD};
use crate::mem::{Access, Target, TransferId};
use crate::verbs::cause::CauseCode;
use crate::verbs::resp::{rx_block, Resource, Resp};
use crate::verbs::shared::Shared;
use crate::verbs::types::{access, qp_state};
use crate::wire::{packet_bytes, Class, NakCode, Opcode, PacketKind, Psn, Syndrome};

/// The syndrome of an ACK of this device: credits are unlimited, as in rxe.
// IBTA 9.7.7.2, granted: ACKs grant unlimited credits.
pub(super) const ACK_UNLIMITED: u8 = 0x1f;

/// Bytes of an ACK or NAK, as the counters count them.
pub(super) const ACK_BYTES: u64 = packet_bytes(Opcode::RC_ACK, 0) as u64;

impl Resp {
    /// The ACK for everything that may be acknowledged.
    #[inline(always)]
    pub(super) fn ack(&self, class: Class, dest_qpn: u32) -> Run {
        Run { msn: self.ack_msn, ..plain_ack(class, dest_qpn, self.ack_psn) }
    }
}

/// An ACK of everything up to a PSN.
#[inline(always)]
pub(super) fn plain_ack(class: Class, dest_qpn: u32, psn: Psn) -> Run {
    Run { syndrome: ACK_UNLIMITED, ..Run::new(class, PacketKind::Ack, dest_qpn, psn) }
}

impl Conn<'_> {
    /// Sends queued answers. `Full`: there is more than fits.
    pub(crate) fn transmit_answers(&mut self, tx: &mut TxBuf<'_>, now: u64) -> Sent {
        while let Some(&mut job) = self.qp.conn.resp.first_job() {
            // An answer acknowledges all before it, so the bytes of all before it must have landed.
            if self.qp.conn.resp.waits_for_landings(&job) {
                self.common.mem_wait.set(self.qi);
                return Sent::Idle;
            }
            let offset = job.sent.wrapping_mul(self.qp.conn.mtu);
            let Some((run, bytes)) = self.answer_run(&job, offset, now) else { return Sent::Idle };
            let qp = &mut *self.qp;
            // rxe rxe_resp.c rxe_recheck_mr: The key of a READ is looked up again for each part of
            // its answer.
            let va = job.va.wrapping_add(u64::from(offset));
            let memory = &self.common.memory;
            let target = match bytes {
                0 => Ok(Target::default()),
                _ => qp.remote_target(memory, job.pd, job.rkey, va, bytes, access::REMOTE_READ),
            };
            let (packets, stop) = match &target {
                Ok(target) => {
                    let qpn = qp.qpn;
                    let (mtu, payload) = (qp.conn.mtu, bytes);
                    let what = Emission { run: &run, mtu, payload, ack_each_burst: false };
                    let done = tx.emit(what, |off, dst, state| {
                        let left = job.len.saturating_sub(offset.saturating_add(off));
                        let of = TransferId::answer(qpn, job.psn.get(), left);
                        let providers = &memory.providers;
                        let mut sum = state.unwrap_or(0);
                        let access = match state {
                            None => providers.fetch(target, off, dst, of),
                            Some(_) => providers.fetch_crc(target, off, dst, of, &mut sum),
                        };
                        match access {
                            Access::Ready => Ok(sum),
                            stop => Err(stop),
                        }
                    });
                    (done.packets, done.stop)
                }
                Err(_) => (0, Some(Access::Fault)),
            };
            let finished = job.sent + packets == job.npkts;
            let carried = bytes.min(packets.wrapping_mul(qp.conn.mtu));
            let wire = if packets > 0 { run.wire_bytes(packets, carried) } else { 0 };
            if qp.is_paced() {
                qp.conn.congestion.on_sent(now, wire as u32);
            }
            self.count_sent(packets, wire);
            if finished {
                self.qp.conn.resp.pop_job();
                let resp = &mut self.qp.conn.resp;
                if resp.job_len() == 0 && resp.ack_psn.diff(job.psn.add(job.npkts - 1)) <= 0 {
                    // The answer has acknowledged everything.
                    self.note_ack_left();
                }
                continue;
            }
            if let Some(job) = self.qp.conn.resp.first_job() {
                job.sent += packets;
            }
            match stop {
                None => return Sent::Full,
                Some(Access::Pending(_) | Access::Busy) => {
                    self.answers_ahead();
                    self.common.mem_wait.set(self.qi);
                    return Sent::Idle;
                }
                // The network may delay a duplicate until its key was invalidated: no error of the
                // peer. A peer that still waits repeats the request until its retries end.
                Some(_) if job.again => self.qp.conn.resp.pop_job(),
                Some(_) => {
                    let psn = job.psn.add(job.sent + packets);
                    self.refuse_answer(&job, psn, target.is_ok(), now);
                    return Sent::Idle;
                }
            }
        }
        Sent::Idle
    }

    /// Ends the connection by a NAK at `psn`, because the memory of an answer cannot be read.
    #[cold]
    fn refuse_answer(&mut self, job: &Resource, psn: Psn, has_key: bool, now: u64) {
        // With a valid key the memory itself is gone. That is no fault of the peer, as for a WRITE.
        let (code, cause) = if has_key {
            (NakCode::RemoteOperation, CauseCode::LocalMemoryGone)
        } else {
            (NakCode::RemoteAccess, CauseCode::PeerUsedBadKey)
        };
        self.note(now, cause, 0, u64::from(job.rkey), job.va);
        self.end_by_nak(code, psn, true);
    }

    /// Headers of the rest of an answer, from byte `offset` on, and its payload bytes, as far as
    /// the rate allows. `None`: nothing may leave now.
    #[inline(always)]
    fn answer_run(&mut self, job: &Resource, offset: u32, now: u64) -> Option<(Run, u32)> {
        let mut run = Run::new(
            self.qp.kind.class(),
            PacketKind::ReadResponse,
            self.qp.attr.dest_qp_num,
            job.psn.add(job.sent),
        );
        run.syndrome = ACK_UNLIMITED;
        run.msn = job.msn;
        if matches!(job.kind, PacketKind::CmpSwap | PacketKind::FetchAdd) {
            run.kind = PacketKind::AtomicAck;
            run.a = job.value;
            return Some((run, 0));
        }
        // rxe rxe_resp.c read_reply: A READ is answered by packets of the path MTU with the PSNs of
        // its request; all but MIDDLE packets have an AETH.
        run.first = job.sent == 0;
        run.n = job.npkts - job.sent;
        let mut bytes = job.len - offset.min(job.len);
        if self.qp.is_paced() {
            match self.qp.pace_congestion(now) {
                Ok(most) if most < run.n => {
                    run.n = most;
                    run.last = false;
                    bytes = most * self.qp.conn.mtu;
                }
                Ok(_) => {}
                Err(at) => {
                    self.wake_at(at);
                    return None;
                }
            }
        }
        Some((run, bytes))
    }

    /// Announces the next answers to slow memory while the first waits for it. Answers behind a
    /// landing are not announced, because they must read the bytes of a WRITE that has not landed
    /// yet.
    #[cold]
    fn answers_ahead(&self) {
        let memory = &self.common.memory;
        for job in self.qp.conn.resp.queued_jobs().skip(1).take(AHEAD as usize) {
            if self.qp.conn.resp.waits_for_landings(job) {
                return;
            }
            if job.len == 0 {
                continue;
            }
            let right = access::REMOTE_READ;
            let Resource { pd, rkey, va, len, .. } = *job;
            if let Ok(target) = self.qp.remote_target(memory, pd, rkey, va, len, right) {
                let of = TransferId::answer(self.qp.qpn, job.psn.get(), job.len);
                memory.providers.ahead(&target, of);
            }
        }
    }

    /// Sends the owed ACK or NAK, unless answers must go first. False: the burst had no room.
    pub(crate) fn transmit_ack(&mut self, tx: &mut TxBuf<'_>) -> bool {
        let qp = &mut *self.qp;
        let resp = &mut qp.conn.resp;
        if resp.job_len() > 0 {
            return true;
        }
        if resp.is(rx_block::NAK_LATER) && !resp.is(rx_block::LANDINGS | rx_block::NAK) {
            resp.set_nak_later(false);
            resp.set_nak(Some(Syndrome::Nak(NakCode::Psn).byte()));
        }
        if let Some(syndrome) = resp.nak_owed() {
            if resp.landing_count() > 0 && qp.state != qp_state::ERR {
                return true;
            }
            if resp.pkts_since_ack > 0 && syndrome == Syndrome::Nak(NakCode::Psn).byte() {
                // An ACK for what came since the last answer goes first. After a sequence NAK rxe
                // ignores further ones until it has seen an ACK, whatever they acknowledge, and
                // would wait for its timer.
                if !tx.emit_bare(&resp.ack(qp.kind.class(), qp.attr.dest_qp_num)) {
                    return false;
                }
                resp.pkts_since_ack = 0;
                self.count_sent(1, ACK_BYTES);
            }
            let resp = &mut self.qp.conn.resp;
            let mut psn = if resp.fatal_nak.is_some() { resp.fatal_psn } else { resp.epsn };
            if self.qp.state == qp_state::ERR && resp.ack_psn.next().diff(psn) < 0 {
                // Bytes that had not landed in slow memory when the QP failed are not acknowledged.
                psn = resp.ack_psn.next();
            }
            let (to, msn) = (self.qp.attr.dest_qp_num, resp.msn);
            let run =
                Run { syndrome, msn, ..Run::new(self.qp.kind.class(), PacketKind::Ack, to, psn) };
            if !tx.emit_bare(&run) {
                return false;
            }
            resp.set_nak(None);
            let not_ready = matches!(Syndrome::parse(syndrome), Syndrome::Rnr { .. });
            self.count(|c| if not_ready { &mut c.send_rnr_err } else { &mut c.send_nak_err });
        } else if resp.ack_owed && qp.state != qp_state::ERR {
            if !resp.ack_now && tx.is_empty() && self.common.acks.is_pending(self.qi) {
                // The QP is ready for another reason (an ACK of the peer, a window), so its own ACK
                // may still wait for a packet to leave with.
                return true;
            }
            let alone = tx.is_empty();
            if !tx.emit_bare(&resp.ack(qp.kind.class(), qp.attr.dest_qp_num)) {
                return false;
            }
            if alone {
                self.note_ack_alone();
            }
        } else {
            return true;
        }
        self.note_ack_left();
        self.count_sent(1, ACK_BYTES);
        true
    }

    /// The ACK that a QP owes to another QP of this engine. `None`: an answer or a NAK must go
    /// first, and leaves when the QP sends next.
    pub(crate) fn take_local_ack(&mut self) -> Option<Run> {
        let resp = &mut self.qp.conn.resp;
        if !resp.ack_owed || resp.job_len() > 0 || resp.owes_nak() || self.qp.state == qp_state::ERR
        {
            return None;
        }
        let run = resp.ack(self.qp.kind.class(), self.qp.attr.dest_qp_num);
        self.note_ack_left();
        self.count_sent(1, ACK_BYTES);
        Some(run)
    }
}

impl Transport {
    /// Ends the only request in flight of a QP by the ACK of another QP of this engine. False:
    /// nothing has changed, and the ACK is to be handled like any other packet.
    #[inline(always)]
    pub(crate) fn end_local_single(&mut self, s: &Shared, now: u64, ack: &Run) -> bool {
        let qi = self.common.qp_of(ack.dest_qpn);
        let Some(mut c) = qi.and_then(|qi| self.connected(s, qi)) else { return false };
        if !c.qp.is_rc_in_rts() || !c.qp.conn.loopback || !c.end_single(now, ack.psn) {
            return false;
        }
        c.note_single_ended();
        true
    }
}
