//! Accepting a request: PSNs, counters and completions of the responder; and the whole step for a
//! single message.

use super::cq::CqSide;
use super::recv::{note_remaining, recv_queue};
use crate::mem::{Access, KeyError, RegisteredMemory, Target};
use crate::roce::conn::Conn;
use crate::roce::run::Run;
use crate::verbs::cause::CauseCode;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::resp::{rx_block, Resp};
use crate::verbs::types::{access, wc_flags, wc_opcode, wc_status, Wc};
use crate::verbs::NONE;
use crate::wire::PacketKind;

impl Resp {
    /// Accepts the next `psns` PSNs. `ends`: a message ends with them. NAKs about them are void.
    #[inline(always)]
    pub(in crate::roce) fn advance(&mut self, psns: u32, ends: bool) {
        self.epsn = self.epsn.add(psns);
        // IBTA C9-148: The MSN grows by one with each message that is done, with a READ when its
        // request is accepted.
        self.msn = self.msn.wrapping_add(u32::from(ends));
        self.forget_naks();
    }

    /// Lets everything that was accepted be acknowledged, because none of it waits for slow memory.
    #[inline(always)]
    pub(in crate::roce) fn acknowledge_all(&mut self) {
        self.ack_psn = self.epsn.prev();
        self.ack_msn = self.msn;
    }
}

impl Qp {
    /// Whether the QP takes WRITEs at all.
    #[inline(always)]
    pub(in crate::roce) fn takes_writes(&self) -> bool {
        self.attr.qp_access_flags & access::REMOTE_WRITE != 0
    }

    /// The memory that the peer names, if its key gives the right (`access`) to it in a PD. The key
    /// is looked up for every packet, because it may end between two.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)] // the parts of a RETH, and who asks
    pub(in crate::roce) fn remote_target(
        &self,
        memory: &RegisteredMemory,
        pd: u32,
        rkey: u32,
        va: u64,
        len: u32,
        right: u32,
    ) -> Result<Target, KeyError> {
        // rxe rxe_resp.c check_rkey, key: A key that is unknown, of another protection domain or
        // without the right, or a range outside of it, is a remote access error.
        memory.regions.remote(rkey, pd, self.qpn, va, len, right)
    }

    /// The sender's QPN in completions of receive requests: a DC target has many senders.
    #[inline(always)]
    pub(in crate::roce) fn src_qp(&self) -> u32 {
        if self.kind == QpKind::DcContext {
            self.attr.dest_qp_num
        } else {
            0
        }
    }

    /// The completion of a receive request, whose message of `bytes` bytes ends with `run`.
    /// `src_qp`: [`Qp::src_qp`].
    #[inline(always)]
    pub(in crate::roce) fn recv_completion(
        &self,
        wr_id: u64,
        run: &Run,
        bytes: u32,
        src_qp: u32,
    ) -> Wc {
        // rxe rxe_resp.c do_complete: A receive completes with the bytes of its message, and its
        // immediate data or the key that was invalidated.
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let writes = run.kind == PacketKind::Write;
        Wc {
            wr_id,
            opcode: if writes { wc_opcode::RECV_RDMA_WITH_IMM } else { wc_opcode::RECV },
            byte_len: bytes,
            imm_data: run.imm,
            qp_num: self.wc_qpn,
            wc_flags: flag(run.has_imm, wc_flags::WITH_IMM) | flag(run.has_inv, wc_flags::WITH_INV),
            src_qp,
            ..Wc::default()
        }
    }

    /// The completion of a receive request that fails or is flushed.
    pub(in crate::roce) fn recv_failure(&self, wr_id: u64, status: u32) -> Wc {
        let (opcode, vendor_err) = (wc_opcode::RECV, self.vendor_err(status));
        Wc { wr_id, status, opcode, vendor_err, qp_num: self.wc_qpn, ..Wc::default() }
    }

    /// The cause for a completion of a status.
    #[inline(always)]
    pub(in crate::roce) fn vendor_err(&self, status: u32) -> u32 {
        match status {
            wc_status::SUCCESS => 0,
            wc_status::WR_FLUSH_ERR => CauseCode::Flushed as u32,
            _ => self.cause.code,
        }
    }
}

impl Conn<'_> {
    /// Counts packets that were accepted from the QP's peer.
    #[inline(always)]
    pub(in crate::roce) fn count_received(&mut self, packets: u32, bytes: u64) {
        self.qp.counters.count_received(packets, bytes);
    }

    /// Takes a message of one packet, a SEND or WRITE, if it is in order and nothing blocks it; its
    /// ACK is owed then. False: nothing has changed, and the general path takes the message. The
    /// caller has checked that the packet is of the queue pair's peer. `DC`: the queue pair is a
    /// context of a DC target; else it is RC.
    #[inline(always)]
    pub(in crate::roce) fn take_single<const DC: bool>(
        &mut self,
        now: u64,
        run: &Run,
        bytes: usize,
        payload: &[u8],
    ) -> bool {
        let receives = run.kind != PacketKind::Write || run.has_imm;
        // Mostly the thread that runs this also polls the CQ, and gets the completion by hand. A
        // completion that goes into the CQ instead has a function of its own: inlined here, its
        // values would take the registers of the usual case.
        let taken = match !receives || self.hands_over() {
            true => self.accept_single::<DC, true>(run, bytes, payload),
            false => self.reborrow().accept_into_cq::<DC>(&Run { ..*run }, bytes, payload),
        };
        if taken {
            self.owe_ack(now, 1, run.ack_req);
        }
        taken
    }

    /// Whether the next completion of a receive goes to the thread that polls the CQ.
    #[inline(always)]
    fn hands_over(&self) -> bool {
        let cq = self.common.cqs.get(self.qp.rcq as usize);
        cq.is_some_and(|cq| self.common.handoff.is_open(cq))
    }

    /// As [`Conn::accept_single`], for a message whose completion goes into the CQ.
    #[cold]
    #[inline(never)]
    fn accept_into_cq<const DC: bool>(mut self, run: &Run, bytes: usize, payload: &[u8]) -> bool {
        self.accept_single::<DC, false>(run, bytes, payload)
    }

    /// Places a single message and completes it, if it is in order and nothing blocks it. False:
    /// nothing has changed. The caller owes the ACK. `bytes`: from BTH to ICRC. `POLLED`: a
    /// completion goes to the thread that polls the CQ ([`Conn::hands_over`]); else into the CQ.
    #[inline(always)]
    pub(in crate::roce) fn accept_single<const DC: bool, const POLLED: bool>(
        &mut self,
        run: &Run,
        bytes: usize,
        payload: &[u8],
    ) -> bool {
        let (qp, common) = (&mut *self.qp, &mut *self.common);
        let Run { psn, has_imm, .. } = *run;
        let writes = run.kind == PacketKind::Write;
        let len = payload.len();
        if psn != qp.conn.resp.epsn
            || qp.conn.resp.is(rx_block::BEFORE_MESSAGES)
            || len > qp.conn.mtu as usize
        {
            return false;
        }
        let mut to = None;
        if writes {
            if !qp.takes_writes() || len == 0 || len != run.dma_len as usize {
                return false;
            }
            let right = access::REMOTE_WRITE;
            match qp.remote_target(&common.memory, qp.pd, run.rkey, run.va, len as u32, right) {
                Ok(t) if t.provider == 0 => to = Some(t.addr),
                _ => return false,
            }
        }
        let receives = !writes | has_imm;
        if receives {
            // RC with an SRQ takes the general path.
            if qp.conn.resp.recv.taken || !DC && qp.srq != NONE {
                return false;
            }
            let mut cq = None;
            if !POLLED {
                cq = CqSide::find_reservable(self.s, &common.key, &mut common.cqs, qp.rcq);
                if cq.is_none() {
                    return false;
                }
            }
            let srq = if DC { qp.srq } else { NONE };
            let mut rq = recv_queue(self.s, self.q, &common.key, srq);
            if rq.ready() == 0 {
                return false;
            }
            let slot = rq.peek(0);
            let wqe = slot.header();
            if !writes && len > 0 {
                let Some(sge) = slot.sges(1).first().filter(|_| wqe.num_sge == 1) else {
                    return false;
                };
                if len as u64 > u64::from(sge.length) {
                    return false;
                }
                let regions = &common.memory.regions;
                to = regions.local_host(sge.lkey, qp.recv_pd, sge.addr, len as u32);
                if to.is_none() {
                    return false;
                }
            }
            let wr_id = wqe.wr_id;
            // If this copy fails half way, the general path repeats it and reports the failure.
            if to.is_some_and(|to| common.memory.providers.put(to, payload) != Access::Ready) {
                return false;
            }
            rq.release(1);
            if DC {
                note_remaining(self.s, &mut common.srqs, srq, rq.ready());
            }
            let src_qp = if DC { qp.src_qp() } else { 0 };
            let wc = qp.recv_completion(wr_id, run, len as u32, src_qp);
            match cq {
                None => common.handoff.put(wc),
                Some(mut cq) => cq.push(self.s, wc, run.solicited),
            }
        } else if to.is_some_and(|to| common.memory.providers.put(to, payload) != Access::Ready) {
            return false;
        }
        self.count_received(1, bytes as u64);
        self.qp.counters.rdma_recvs += u64::from(receives);
        self.qp.conn.resp.advance(1, true);
        self.qp.conn.resp.acknowledge_all();
        true
    }
}
