//! Fast path: a SEND, WRITE or READ of one packet between two queue pairs of one engine, in one
//! step.
//!
//! The initiator follows the rules of single requests, the target those of single messages
//! (`Conn::accept_single`) or of READ requests (`Conn::read_answer_bytes`); no frame is written. A
//! request that is accepted is acknowledged, so nothing stays outstanding, and no clock is read. If
//! a check fails, nothing has changed, and the request takes the general path.
//! `core/tests/engine/shapes/local.rs` runs both over the same requests and compares the results.

use core::sync::atomic::Ordering;

use crate::mem::{Access, TransferId};
use crate::ring::EngineConsumer;
use crate::roce::answers::ACK_BYTES;
use crate::roce::conn::Conn;
use crate::roce::rules::ack::refill_retries;
use crate::roce::rules::complete::{prepare, InFlight};
use crate::roce::rules::cq::CqSide;
use crate::roce::rules::send::{class_of_singles, Charge, Departed, Eligible};
use crate::roce::run::Run;
use crate::roce::Transport;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::post::Single;
use crate::verbs::shared::{slotless, Shared};
use crate::verbs::types::{send_flags, wc_opcode, wc_status::SUCCESS, wr_opcode};
use crate::verbs::wqe::{DcAddr, SendWqe};
use crate::wire::{packet_bytes, Opcode, PacketKind, Psn};

/// Longest request without a slot whose bytes pass over the stack. With requests of two threads the
/// engine's room for a packet would move from core to core each time.
const SHORT: usize = 64;

/// Whether a QP and its peer are of this engine and connected, and its responder is idle. `kind`:
/// the kind that the QP must be of.
#[inline(always)]
fn is_local(qp: &Qp, kind: QpKind) -> bool {
    qp.conn.loopback && qp.kind == kind && qp.conn.resp.holds() == 0 && !qp.conn.resp.ack_owed
}

/// Whether a QP is of a kind and takes requests of the QP `from` of this engine now.
#[inline(always)]
fn takes_from(b: &Qp, kind: QpKind, (from, mtu): (u32, u32)) -> bool {
    let connected = b.attr.dest_qp_num == from && b.conn.mtu == mtu && b.can_receive();
    connected && is_local(b, kind)
}

/// The kinds of initiator and target.
#[inline(always)]
const fn kinds(dc: bool) -> (QpKind, QpKind) {
    if dc {
        (QpKind::Dci, QpKind::DcContext)
    } else {
        (QpKind::Rc, QpKind::Rc)
    }
}

/// The [`wc_opcode`] of a SEND or WRITE, from its packet.
#[inline(always)]
fn code_of(run: &Run) -> u32 {
    if run.kind == PacketKind::Write {
        wc_opcode::RDMA_WRITE
    } else {
        wc_opcode::SEND
    }
}

/// The packet of a single request that has no slot, and its opcode.
#[inline(always)]
fn run_of_single<const WRITE: bool>(request: &Single, dest_qpn: u32, psn: Psn) -> (Run, Opcode) {
    let Single { opcode, imm, sge, solicited, remote_addr, rkey, .. } = *request;
    let writes = WRITE || opcode <= wr_opcode::RDMA_WRITE_WITH_IMM;
    let has_imm = !WRITE && opcode & 1 != 0;
    let kind = if writes { PacketKind::Write } else { PacketKind::Send };
    let only = if writes { Opcode::RC_WRITE_ONLY } else { Opcode::RC_SEND_ONLY };
    let run = Run {
        solicited,
        has_imm,
        imm,
        va: remote_addr,
        rkey,
        dma_len: sge.length,
        ..Run::new(class_of_singles(false), kind, dest_qpn, psn)
    };
    (run, Opcode(only.0 + u8::from(has_imm)))
}

impl Transport {
    /// The target of a request, by its QPN, if it is of a kind and takes requests of the QP `from`
    /// now.
    #[inline(always)]
    fn local_target<'t>(
        &'t mut self,
        s: &'t Shared,
        qpn: u32,
        kind: QpKind,
        (from, mtu): (u32, u32),
    ) -> Option<Conn<'t>> {
        let b = self.common.qp_of(qpn).and_then(|bi| self.loopback_conn(s, bi))?;
        takes_from(b.qp, kind, (from, mtu)).then_some(b)
    }

    /// Executes the only request in the send queue of the QP at an index, if it can be done in one
    /// step. The request is then acknowledged and, if signaled, completed. False: nothing has
    /// changed.
    ///
    /// `scratch`: room for one packet. `DC`: the QP is a DCI; else it is RC. `WRITE`: the request
    /// is to be a WRITE without immediate data, so that the compiler drops the code for receives.
    #[inline(never)]
    pub(crate) fn try_local<const DC: bool, const WRITE: bool>(
        &mut self,
        s: &Shared,
        qi: usize,
        scratch: &mut [u8],
    ) -> bool {
        let (initiator, target) = kinds(DC);
        let (Some(q), Some(qp)) = (s.qps.get(qi), self.qps.get_mut(qi)) else { return false };
        if !is_local(qp, initiator) || !qp.conn.req.nothing_in_flight() {
            return false;
        }
        let common = &mut self.common;
        let mut sq = q.engine_sq(&common.key);
        let Some(Eligible { index, slot, op, run }) = qp.next_single::<DC>(&sq) else {
            return false;
        };
        if qp.has_begun(index) {
            return false;
        }
        // Below it is checked that the context is still that of this association.
        if DC && !common.try_open_association(qp, &DcAddr::read(slot.tail())) {
            return false;
        }
        let run = match WRITE {
            true if op.class_to_rc(class_of_singles(DC)) != Opcode::RC_WRITE_ONLY => return false,
            true => Run { kind: PacketKind::Write, has_imm: false, ..run },
            false => run,
        };
        let wqe = slot.header();
        let len = wqe.length as u32;
        let (qpn, mtu, psn) = (qp.qpn, qp.conn.mtu, run.psn);
        let payload: &[u8] = if wqe.inline != 0 {
            let Some(bytes) = slot.tail().get(..len as usize) else { return false };
            bytes
        } else {
            let Some(bytes) = scratch.get_mut(..len as usize) else { return false };
            // A fetch that slow memory begins here continues for the general path.
            let of = TransferId::request(qpn, index, 0);
            if common.memory.gather(qp.pd, &slot, 0, bytes, of).is_err() {
                return false;
            }
            bytes
        };
        let bytes = packet_bytes(op.class_to_rc(class_of_singles(DC)), len as usize);

        let b = self.local_target(s, run.dest_qpn, target, (qpn, mtu));
        let Some(mut b) = b else { return false };
        if !b.accept_and_acknowledge::<DC>(&run, bytes, payload) {
            return false;
        }

        let Some(mut a) = self.loopback_conn(s, qi) else { return false };
        let (bytes, charge) = (bytes as u64, Charge::Free);
        let sent = Departed { psn, psns: 1, packets: 1, bytes, charge };
        a.end_local(&mut sq, index, &sent, ACK_BYTES, code_of(&run));
        if !DC {
            q.slotless.store(slotless::WITHIN, Ordering::Relaxed);
        }
        true
    }

    /// Executes one SEND or WRITE of the RC QP at an index without a slot of the send queue, as
    /// [`Transport::try_local`] does one with a slot. False: no state has changed, and the caller
    /// posts the request.
    ///
    /// `scratch`, `WRITE`: as there.
    #[inline(always)]
    pub(crate) fn pass_single<const WRITE: bool>(
        &mut self,
        s: &Shared,
        qi: usize,
        request: &Single,
        scratch: &mut [u8],
    ) -> bool {
        let Single { wr_id, sge, inline, signaled, .. } = *request;
        let Transport { qps, nobody: peer, common, .. } = self;
        // A QP that is connected to itself takes a slot. Conditions that stand one by one become
        // branches; the compiler computes combined ones as values.
        let Some(to) = qps.get(qi).map(|qp| qp.attr.dest_qp_num) else { return false };
        let Some(bi) = common.qp_of(to) else { return false };
        let Some((qp, b)) = qps.pair_mut(qi, bi) else { return false };
        let Some(q) = s.qps.get(qi) else { return false };
        let Some(bq) = s.qps.get(bi) else { return false };
        let index = qp.conn.req.next;
        if !qp.conn.req.nothing_in_flight() || q.engine_sq(&common.key).end() != index {
            return false;
        }
        if !is_local(qp, QpKind::Rc) || !takes_from(b, QpKind::Rc, (qp.qpn, qp.conn.mtu)) {
            return false;
        }
        if sge.length > qp.conn.mtu || !qp.may_send_new::<false>() {
            return false;
        }
        // A completion without room would need its slot. The completion of the receive may take an
        // entry of the same CQ before it.
        if signaled {
            let scq = CqSide::find(s, &common.key, &mut common.cqs, qp.scq);
            if !scq.is_some_and(|scq| scq.has_room_for(if WRITE { 1 } else { 2 })) {
                return false;
            }
        }
        let (mut short, len) = ([0; SHORT], sge.length as usize);
        let room = if len <= SHORT { &mut short[..] } else { scratch };
        let Some(bytes) = room.get_mut(..len) else { return false };
        if !common.memory.gather_single(qp.pd, &sge, inline, bytes) {
            return false;
        }
        let psn = qp.conn.req.next_psn;
        let (run, op) = run_of_single::<WRITE>(request, qp.attr.dest_qp_num, psn);
        let size = packet_bytes(op, bytes.len());

        let mut b = Conn { qi: bi, qp: b, q: bq, peer, s, common };
        if !b.accept_and_acknowledge::<false>(&run, size, bytes) {
            return false;
        }

        let mut a = Conn { qi, qp, q, peer, s, common };
        let (bytes, charge) = (size as u64, Charge::Free);
        a.note_answered(&Departed { psn, psns: 1, packets: 1, bytes, charge }, ACK_BYTES);
        let flags = if signaled { send_flags::SIGNALED as u16 } else { 0 };
        let wqe = SendWqe { wr_id, length: sge.length.into(), flags, ..SendWqe::default() };
        let scq = (&a.common.key, &mut a.common.cqs, a.qp.scq);
        let ending = prepare(s, scq, &wqe, code_of(&run), SUCCESS);
        debug_assert!(ending.is_some(), "room was checked");
        if let Some(ending) = ending {
            ending.finish_slotless(s, a.qp);
        }
        true
    }

    /// As [`Transport::pass_single`], for all but a WRITE without immediate data.
    #[inline(never)]
    pub(crate) fn pass_send(
        &mut self,
        s: &Shared,
        qi: usize,
        request: &Single,
        scratch: &mut [u8],
    ) -> bool {
        self.pass_single::<false>(s, qi, request, scratch)
    }

    /// Executes the only request in the send queue of the QP at an index, a READ, if it can be done
    /// in one step, as [`Transport::try_local`] does others.
    #[inline(never)]
    pub(crate) fn try_local_read<const DC: bool>(
        &mut self,
        s: &Shared,
        qi: usize,
        scratch: &mut [u8],
    ) -> bool {
        let (initiator, target) = kinds(DC);
        let (Some(q), Some(qp)) = (s.qps.get(qi), self.qps.get_mut(qi)) else { return false };
        if !is_local(qp, initiator) || !qp.conn.req.nothing_in_flight() {
            return false;
        }
        let common = &mut self.common;
        let mut sq = q.engine_sq(&common.key);
        let read = wr_opcode::RDMA_READ;
        let Some((index, slot)) = qp.next_alone::<DC>(&sq, (read, read)) else { return false };
        if qp.has_begun(index) {
            return false;
        }
        if DC && !common.try_open_association(qp, &DcAddr::read(slot.tail())) {
            return false;
        }
        let wqe = slot.header();
        let len = wqe.length as u32;
        let sges = slot.sges(usize::from(wqe.num_sge));
        let Some(into) = common.memory.host_target(qp.pd, sges, 0, len) else { return false };
        let Some(bytes) = scratch.get_mut(..len as usize) else { return false };
        let (qpn, mtu, psn) = (qp.qpn, qp.conn.mtu, qp.conn.req.next_psn);
        let class = class_of_singles(DC);
        let run = Run {
            va: wqe.remote_addr,
            rkey: wqe.rkey,
            dma_len: len,
            ..Run::new(class, PacketKind::ReadRequest, qp.attr.dest_qp_num, psn)
        };
        let request = packet_bytes(Opcode::RC_READ_REQUEST.rc_to_class(class), 0) as u64;
        let answer =
            packet_bytes(Opcode::RC_READ_RESPONSE_ONLY.rc_to_class(class), bytes.len()) as u64;

        let b = self.local_target(s, run.dest_qpn, target, (qpn, mtu));
        let Some(mut b) = b else { return false };
        // If the copy into the requester's memory fails half way, the general path repeats it and
        // reports the failure.
        if !b.read_answer_bytes(&run, bytes)
            || b.common.memory.providers.put(into.addr, bytes) != Access::Ready
        {
            return false;
        }
        b.count_received(1, request);
        b.accept_answered(&run, 0);
        b.qp.conn.resp.pkts_since_ack = 0;
        b.count_sent(1, answer);

        let Some(mut a) = self.loopback_conn(s, qi) else { return false };
        let sent = Departed { psn, psns: 1, packets: 1, bytes: request, charge: Charge::Free };
        a.end_local(&mut sq, index, &sent, answer, wc_opcode::RDMA_READ);
        true
    }
}

impl Conn<'_> {
    /// Accepts a message of one packet, and acknowledges it. False: no state has changed, and the
    /// general path takes the message. `DC`, `bytes`: as [`Conn::accept_single`].
    #[inline(always)]
    fn accept_and_acknowledge<const DC: bool>(
        &mut self,
        run: &Run,
        bytes: usize,
        payload: &[u8],
    ) -> bool {
        if !self.accept_single::<DC, false>(run, bytes, payload) {
            return false;
        }
        self.qp.conn.resp.pkts_since_ack = 0;
        self.count_sent(1, ACK_BYTES);
        true
    }

    /// Notes that a request has left and that its answer of so many bytes has come, so that nothing
    /// is in flight.
    #[inline(always)]
    fn note_answered(&mut self, sent: &Departed, answer: u64) {
        self.note_sent::<true>(sent);
        self.count_received(1, answer);
        self.qp.conn.req.una_psn = self.qp.conn.req.max_psn;
        refill_retries(self.qp);
    }

    /// Ends the only request of the send queue, at a ring index, which the peer has executed:
    /// acknowledges and, if it is signaled, completes it. `answer`: bytes of the peer's packet.
    #[inline(always)]
    fn end_local(
        &mut self,
        sq: &mut EngineConsumer<'_, SendWqe>,
        index: u32,
        sent: &Departed,
        answer: u64,
        code: u32,
    ) {
        self.note_answered(sent, answer);
        let (s, common) = (self.s, &mut *self.common);
        let slot = sq.at(index);
        let wqe = slot.header();
        let scq = (&common.key, &mut common.cqs, self.qp.scq);
        if let Some(ending) = prepare(s, scq, wqe, code, SUCCESS) {
            ending.finish(s, self.qp, sq, InFlight::NothingAndClear, None);
            return;
        }
        // The request has ended, and waits for room in its CQ as any other.
        let ws = self.qp.wqe(index);
        (ws.started, ws.psn, ws.npkts, ws.done) = (true, sent.psn, 1, true);
        let next = index.wrapping_add(1);
        (self.qp.conn.req.next, self.qp.conn.req.acked) = (next, next);
        self.complete(0);
    }
}
