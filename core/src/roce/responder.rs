//! The responder: requests of RC and UC.
//!
//! Checks in the order of the standard; the first that fails names the NAK: PSN, then sequence of
//! opcodes and length of the packet, then what the request needs. For a SEND that is a receive
//! (RNR), and then its length; for a WRITE the right to it, a receive if it has immediate data, key
//! and range. PSNs and messages advance only after all of them.

use core::sync::atomic::{fence, Ordering};

use super::conn::Conn;
use super::rules::sge::CopyError;
use super::run::Run;
use super::siege::NEAR;
use crate::mem::{Access, AtomicOp, KeyError, Target, Token, TransferId};
use crate::verbs::cause::CauseCode as Cause;
use crate::verbs::objects::Qp;
use crate::verbs::resp::{rx_block, Incoming, Landing, Resource, Resp, MAX_LANDINGS};
use crate::verbs::types::wc_status::{self, SUCCESS};
use crate::verbs::types::{access, qp_state, Wc};
use crate::verbs::NONE;
use crate::wire::NakCode::{InvalidRequest, RemoteAccess, RemoteOperation};
use crate::wire::{Feth, NakCode, PacketKind, Psn, Syndrome};

/// RNR timer code when staging room is missing, not a receive request: 10 µs.
const RNR_SOON: u8 = 1;

/// Why a request is not executed.
enum Refusal {
    /// RNR NAK with this timer code.
    Rnr(u8),
    /// NAK, with the cause and its two numbers. The QP fails. The receive request in use ends with
    /// the status, unless that is SUCCESS.
    Nak(NakCode, Cause, u32, u64, u64),
    /// The request counts as lost now. A sequence NAK follows when the answers before it have left.
    Later,
}

use Refusal::{Later, Nak, Rnr};

fn bad_request(run: &Run) -> Refusal {
    Nak(InvalidRequest, Cause::PeerBadRequest, SUCCESS, run.opcode(true, true).0.into(), 0)
}

/// An operation that the queue pair takes under no key. This is no access error.
fn not_allowed(rkey: u32, va: u64) -> Refusal {
    // rxe rxe_resp.c check_op_valid: An operation that the queue pair does not allow its peer is an
    // invalid request.
    Nak(InvalidRequest, Cause::PeerLacksAccess, SUCCESS, rkey.into(), va)
}

/// A key that was refused.
fn bad_key(e: KeyError, rkey: u32, va: u64) -> Refusal {
    Nak(RemoteAccess, e.peer_cause(), SUCCESS, rkey.into(), va)
}

/// Memory behind a valid key is gone, which is no fault of the peer.
fn memory_gone(rkey: u32, va: u64) -> Refusal {
    Nak(RemoteOperation, Cause::LocalMemoryGone, SUCCESS, rkey.into(), va)
}

/// Whether a request is a FLUSH of a whole region, whose range is not looked at.
fn flushes_region(run: &Run) -> bool {
    run.kind == PacketKind::Flush && Feth::of_word(run.imm).selectivity == Feth::MR
}

/// PSNs that an answer takes.
fn answer_packets(run: &Run, mtu: u32) -> u32 {
    match run.kind {
        PacketKind::ReadRequest => run.dma_len.div_ceil(mtu).max(1),
        _ => 1,
    }
}

/// The part of a run from its packet `k` on. FIRST stays with the packets before.
fn rest_of<'p>(run: &Run, k: u32, mtu: u32, payload: &'p [u8]) -> Option<(Run, &'p [u8])> {
    let rest = Run { psn: run.psn.add(k), n: run.n - k, first: false, ..*run };
    Some((rest, payload.get(k as usize * mtu as usize..)?))
}

/// How many requests with answers a queue pair serves at once.
fn depth(qp: &Qp) -> usize {
    qp.conn.resp.resources.len().min(qp.attr.max_dest_rd_atomic.into())
}

/// How many answers are still to be sent, without those that are sent again.
fn answers_owed(qp: &Qp) -> usize {
    qp.conn.resp.queued_jobs().filter(|job| !job.again).count()
}

/// Whether one more request with an answer would be more than are served at once.
fn has_too_many(qp: &Qp) -> bool {
    depth(qp) == 0 || answers_owed(qp) >= depth(qp)
}

/// Refuses a request with an answer that cannot be served now.
fn check_answer_room(qp: &Qp, run: &Run) -> Result<(), Refusal> {
    if (qp.conn.resp.job_len() as usize) < depth(qp) {
        return Ok(());
    }
    if has_too_many(qp) {
        // rxe rxe_resp.c check_resource, depth: READs, atomics, ATOMIC WRITEs and FLUSHes beyond
        // those that the queue pair (max_dest_rd_atomic) and the device serve at once are invalid
        // requests.
        return Err(bad_request(run));
    }
    if qp.conn.resp.jobs_are_full() {
        return Err(Later);
    }
    Ok(())
}

impl Conn<'_> {
    /// Takes a request of an RC peer.
    pub(crate) fn handle_request(&mut self, now: u64, run: &Run, payload: &[u8]) {
        // rxe rxe_resp.c check_psn, expected: A request is executed at the expected PSN only.
        let ahead = run.psn.diff(self.qp.conn.resp.epsn);
        if ahead == 0 {
            if let Err(refusal) = self.execute(now, run, payload) {
                self.refuse_request(now, run, payload, refusal);
            }
        } else if ahead > 0 {
            self.handle_ahead(now, run.psn);
        } else {
            self.handle_old(now, run, payload);
        }
    }

    /// Takes a run that begins before the expected PSN.
    #[inline(never)]
    fn handle_old(&mut self, now: u64, run: &Run, payload: &[u8]) {
        let behind = run.psn.diff(self.qp.conn.resp.epsn).unsigned_abs();
        if behind >= run.n || run.kind == PacketKind::ReadRequest {
            if behind > NEAR as u32 && matches!(run.kind, PacketKind::Send | PacketKind::Write) {
                self.note_odd(now);
            }
            return self.handle_duplicate(run);
        }
        // The rest of the run is new.
        let Some((rest, payload)) = rest_of(run, behind, self.qp.conn.mtu, payload) else { return };
        self.handle_request(now, &rest, payload);
    }

    /// Refuses a request: owes the NAK, at once or after the answers to earlier requests. A WRITE
    /// with immediate data that lacks only its receive request is executed up to its last packet.
    #[inline(never)]
    fn refuse_request(&mut self, now: u64, run: &Run, payload: &[u8], refusal: Refusal) {
        // A NAK ends the connection with all that is queued. So the answers to earlier requests
        // leave first, and then the peer is asked for this request again.
        let refusal = match refusal {
            // A request beyond those that are served at once is refused at once.
            Nak(_, Cause::PeerBadRequest, ..) if has_too_many(self.qp) => refusal,
            Nak(..) if answers_owed(self.qp) > 0 => Later,
            refusal => refusal,
        };
        match refusal {
            // Only the last packet lacks a receive request: those before it count, as if they had
            // come one by one.
            Rnr(_) if run.n > 1 && run.last && run.has_imm && run.kind == PacketKind::Write => {
                let (n, mtu) = (run.n - 1, self.qp.conn.mtu);
                let Some((rest, last)) = rest_of(run, n, mtu, payload) else { return };
                let before = &payload[..payload.len() - last.len()];
                self.handle_request(now, &Run { n, last: false, ack_req: false, ..*run }, before);
                if self.qp.conn.resp.epsn == rest.psn {
                    self.handle_request(now, &rest, last);
                }
            }
            Rnr(timer) => {
                self.owe_nak(Syndrome::Rnr { timer }, run.psn);
                if self.qp.conn.resp.incoming() != Incoming::Send {
                    // No message has begun, so the CQE is free for others until the peer sends
                    // again.
                    self.release_cqe();
                }
            }
            Later => {
                // The packets that follow are ahead of the expected PSN, and must draw no NAK.
                let resp = &mut self.qp.conn.resp;
                resp.nak_high = Some(run.psn);
                resp.set_nak_later(true);
            }
            Nak(code, cause, status, a, b) => {
                self.note(now, cause, status, a, b);
                let completes = status != SUCCESS && self.qp.conn.resp.recv.taken;
                if completes {
                    self.fail_recv(status);
                }
                // rxe rxe_resp.c do_class_ac_error: A request that may not be executed draws its
                // NAK and moves the queue pair to ERR.
                self.end_by_nak(code, self.qp.conn.resp.epsn, !completes);
            }
        }
    }

    /// Owes a NAK about the expected PSN. PSNs beyond `high` draw none until the gap is closed.
    fn owe_nak(&mut self, syndrome: Syndrome, high: Psn) {
        let resp = &mut self.qp.conn.resp;
        resp.set_nak(Some(syndrome.byte()));
        resp.nak_high = Some(high);
        self.common.ready.set(self.qi);
    }

    /// Owes an RNR NAK for the expected PSN, although there may be a receive request.
    pub(crate) fn refuse_unready(&mut self) {
        let (timer, psn) = (self.qp.attr.min_rnr_timer, self.qp.conn.resp.epsn);
        self.owe_nak(Syndrome::Rnr { timer }, psn);
    }

    /// Handles a request ahead of the expected PSN: a packet was lost. It owes one NAK for each
    /// round of the peer.
    #[inline(never)]
    fn handle_ahead(&mut self, now: u64, psn: Psn) {
        self.count(|c| &mut c.out_of_seq_request);
        let far = psn.diff(self.qp.conn.resp.epsn) > NEAR;
        let believed = self.qp.weigh_ahead(now, far);
        if far {
            self.note_odd(now);
        }
        if !believed {
            return;
        }
        let resp = &mut self.qp.conn.resp;
        // rxe rxe_resp.c check_psn, gap: A request ahead of the expected PSN draws one NAK with
        // that PSN, and no other until the gap is closed or the peer begins anew. Packets with
        // ascending PSNs are of the same round. At another PSN the peer has begun anew, and the
        // expected packet was lost again.
        if resp.nak_high.is_some_and(|high| psn.diff(high) > 0) {
            resp.nak_high = Some(psn);
            return;
        }
        self.owe_nak(Syndrome::Nak(NakCode::Psn), psn);
    }

    #[inline(never)]
    fn handle_duplicate(&mut self, run: &Run) {
        self.count(|c| &mut c.duplicate_request);
        self.common.loss_signs = self.common.loss_signs.wrapping_add(1);
        let resp = &mut self.qp.conn.resp;
        match run.kind.answer() {
            Some(_) => {
                let npkts = answer_packets(run, self.qp.conn.mtu);
                let len = if run.kind == PacketKind::ReadRequest { run.dma_len } else { 0 };
                // rxe rxe_resp.c duplicate_request, READ: A READ that comes again is answered again
                // if it is the same one, or a part of it under the same key; otherwise it is
                // dropped.
                let found = resp.resources.iter().find(|r| {
                    let into = run.psn.diff(r.psn);
                    let bytes = (into.max(0) as u64) * u64::from(self.qp.conn.mtu);
                    // Linux's rxe sends an ATOMIC WRITE or a FLUSH again with address 0.
                    let bare = run.kind.has_empty_answer();
                    r.valid
                        && r.kind == run.kind
                        && into >= 0
                        && into as u32 + npkts <= r.npkts
                        && (bare || r.rkey == run.rkey)
                        && (bare || run.va == r.va.wrapping_add(bytes))
                        && u64::from(len) + bytes <= u64::from(r.len)
                });
                // rxe rxe_resp.c duplicate_request, atomic: An atomic, an ATOMIC WRITE or a FLUSH
                // that comes again is answered with the value of its execution, and not executed
                // again.
                let Some(found) = found.copied() else { return };
                let again = Resource {
                    psn: run.psn,
                    npkts,
                    va: run.va,
                    len,
                    sent: 0,
                    again: true,
                    msn: resp.msn,
                    after_landing: resp.landings_pushed,
                    ..found
                };
                if resp.answers_anyway(&found, &again, self.qp.conn.mtu) || resp.jobs_are_full() {
                    return;
                }
                resp.push_job(again);
            }
            None => {
                // IBTA C9-105: A SEND or WRITE that comes again is not executed again, but
                // acknowledged again with the latest PSN.
                (resp.ack_owed, resp.ack_now) = (true, true);
            }
        }
        self.common.ready.set(self.qi);
    }

    /// Executes a run that begins with the expected PSN.
    #[inline(always)]
    fn execute(&mut self, now: u64, run: &Run, payload: &[u8]) -> Result<(), Refusal> {
        if !self.qp.conn.resp.has_landing_room() {
            return Err(Later);
        }
        if self.qp.xrcd != NONE && !self.bind_srq(run) {
            return Err(bad_request(run));
        }
        match run.kind {
            PacketKind::Send | PacketKind::Write => {
                self.place(run, payload)?;
                self.accept(now, run, payload);
                Ok(())
            }
            kind if kind.answer().is_some() => self.execute_answered(run, payload),
            _ => Err(bad_request(run)),
        }
    }

    /// Checks packets of a SEND or WRITE, and places their bytes.
    #[inline(always)]
    fn place(&mut self, run: &Run, payload: &[u8]) -> Result<(), Refusal> {
        self.begin_or_continue(run, payload)?;
        let pending = if run.kind == PacketKind::Send {
            self.place_send(run, payload)?
        } else {
            self.place_write(run, payload)?
        };
        self.invalidate(run)?;
        if let Some(next) = pending {
            let before = self.qp.conn.resp.placing();
            let last = self.common.memory.providers.later_of(before, next);
            self.qp.conn.resp.set_placing(Some(last));
            self.common.mem_wait.set(self.qi);
        }
        Ok(())
    }

    /// Checks the order and the lengths of the packets. With FIRST it also stores the RETH.
    #[inline(always)]
    fn begin_or_continue(&mut self, run: &Run, payload: &[u8]) -> Result<(), Refusal> {
        let resp = &mut self.qp.conn.resp;
        // rxe rxe_resp.c check_op_seq, RC: Inside a message only its own MIDDLE and LAST packets
        // may follow; anything else is an invalid request.
        let in_order = resp.incoming()
            == if run.first { Incoming::Idle } else { Incoming::from_kind(run.kind) };
        let len = payload.len() as u64;
        let full = u64::from(run.n) * u64::from(self.qp.conn.mtu);
        let before_last = full - u64::from(self.qp.conn.mtu);
        // IBTA C9-92: FIRST and MIDDLE packets carry as many bytes as the path MTU, LAST one to as
        // many, ONLY none to as many.
        let length_fits = if run.last {
            len <= full && len >= before_last && (len > before_last || run.first && run.n == 1)
        } else {
            len == full
        };
        if !in_order || !length_fits {
            return Err(bad_request(run));
        }
        if run.first {
            resp.offset = 0;
        }
        if run.kind == PacketKind::Write {
            if run.first {
                (resp.va, resp.rkey, resp.dma_len) = (run.va, run.rkey, run.dma_len);
                // IBTA C9-94: The DMA length of a READ or WRITE is at most 2^31 bytes.
                if u64::from(run.dma_len) > crate::verbs::post::MAX_MESSAGE {
                    return Err(bad_request(run));
                }
            }
            let end = resp.offset + len;
            let total = u64::from(resp.dma_len);
            // rxe rxe_resp.c check_rkey, length: A WRITE carries as many bytes as its RETH says.
            if if run.last { end != total } else { end >= total } {
                return Err(bad_request(run));
            }
        }
        Ok(())
    }

    fn place_send(&mut self, run: &Run, payload: &[u8]) -> Result<Option<(u8, Token)>, Refusal> {
        // Inside a message the receive is taken already, and its CQE is needed again only at the
        // end.
        let under_way = self.qp.conn.resp.recv.taken && !run.last;
        if !under_way && !self.take_recv() {
            // rxe rxe_resp.c check_resource, RNR: A message without a receive request draws an RNR
            // NAK with the timer of the queue pair.
            return Err(Rnr(self.qp.attr.min_rnr_timer));
        }
        let (offset, recv) = (self.qp.conn.resp.offset, &self.qp.conn.resp.recv);
        let end = offset + payload.len() as u64;
        // rxe rxe_resp.c send_data_in, length: A message longer than its receive request is an
        // invalid request, and ends the receive with a length error.
        if end > u64::from(recv.length) {
            let (cause, status) = (Cause::MessageTooLong, wc_status::LOC_LEN_ERR);
            return Err(Nak(InvalidRequest, cause, status, end, recv.length.into()));
        }
        if payload.is_empty() {
            return Ok(None);
        }
        match self.common.memory.scatter(self.qp.recv_pd, &recv.sges, offset, payload) {
            Ok(pending) => Ok(pending),
            Err(CopyError::Busy | CopyError::Pending(..)) => Err(Rnr(RNR_SOON)),
            // rxe rxe_resp.c send_data_in, buffer: A receive request whose own memory may not be
            // written is a remote operation error to the peer.
            Err(CopyError::Refused(cause, lkey, addr)) => {
                Err(Nak(RemoteOperation, cause, wc_status::LOC_PROT_ERR, lkey.into(), addr))
            }
        }
    }

    #[inline(always)]
    fn place_write(&mut self, run: &Run, payload: &[u8]) -> Result<Option<(u8, Token)>, Refusal> {
        let Resp { rkey, va, .. } = self.qp.conn.resp;
        if !self.qp.takes_writes() {
            return Err(not_allowed(rkey, va));
        }
        // rxe rxe_resp.c check_resource, immediate: A WRITE with immediate data takes a receive
        // request with its last packet.
        if run.has_imm && run.last && !self.take_recv() {
            return Err(Rnr(self.qp.attr.min_rnr_timer));
        }
        let qp = &*self.qp;
        // IBTA C9-88: The key of a request of length 0 is not checked.
        if qp.conn.resp.dma_len == 0 {
            return Ok(None);
        }
        let refuse = |e| bad_key(e, rkey, va);
        let (memory, right) = (&self.common.memory, access::REMOTE_WRITE);
        if run.first && !run.last {
            // The whole range is checked at once, so that no byte of a WRITE that leaves the region
            // is placed. (A WRITE that comes whole is checked below.)
            qp.remote_target(memory, qp.pd, rkey, va, qp.conn.resp.dma_len, right)
                .map_err(refuse)?;
        }
        let (at, len) = (va.wrapping_add(qp.conn.resp.offset), payload.len() as u32);
        let target = qp.remote_target(memory, qp.pd, rkey, at, len, right).map_err(refuse)?;
        match memory.providers.place(&target, 0, payload) {
            Access::Ready => Ok(None),
            Access::Pending(t) => Ok(Some((target.provider as u8, t))),
            Access::Busy => Err(Rnr(RNR_SOON)),
            Access::Fault => Err(memory_gone(rkey, at)),
        }
    }

    /// The place in host memory for a MIDDLE packet of the WRITE under way. `None`: the packet is
    /// not the expected one, something blocks it, or its place is in another kind of memory.
    #[inline(always)]
    pub(super) fn next_of_write(&self, psn: Psn, len: usize) -> Option<Target> {
        let (qp, resp) = (&*self.qp, &self.qp.conn.resp);
        let under_way = psn == resp.epsn
            && resp.incoming() == Incoming::Write
            && !resp.is(rx_block::PLACING | rx_block::LANDINGS);
        let fits =
            len == qp.conn.mtu as usize && resp.offset + (len as u64) < u64::from(resp.dma_len);
        if !under_way || !fits || !qp.takes_writes() {
            return None;
        }
        let (at, right) = (resp.va.wrapping_add(resp.offset), access::REMOTE_WRITE);
        let memory = &self.common.memory;
        let target = qp.remote_target(memory, qp.pd, resp.rkey, at, len as u32, right).ok()?;
        (target.provider == 0).then_some(target)
    }

    /// Closes the window that the last packet of a SEND with invalidate names. Its bytes are placed
    /// already, so a key that cannot be invalidated fails the receive as well.
    #[inline(always)]
    fn invalidate(&mut self, run: &Run) -> Result<(), Refusal> {
        if !run.has_inv || !run.last {
            return Ok(());
        }
        // rxe rxe_resp.c invalidate_rkey: The window that a SEND with invalidate names is closed
        // before the receive completes.
        let (key, qp) = (run.imm, &*self.qp);
        let bad = |_| Nak(RemoteAccess, Cause::BadWindow, wc_status::LOC_PROT_ERR, key.into(), 0);
        self.common.memory.regions.invalidate(key, qp.pd, qp.qpn).map_err(bad)
    }

    /// Accepts a run that was placed: advances, and ends the message with its last packet.
    #[inline(always)]
    pub(super) fn accept(&mut self, now: u64, run: &Run, payload: &[u8]) {
        let resp = &mut self.qp.conn.resp;
        resp.offset += payload.len() as u64;
        resp.advance(run.n, run.last);
        resp.set_incoming(if run.last { Incoming::Idle } else { Incoming::from_kind(run.kind) });
        let bytes = resp.offset as u32;
        let completes = run.last && (run.kind == PacketKind::Send || run.has_imm);
        let wc = completes.then(|| self.end_recv(run, bytes));
        self.end_part(run, wc);
        self.owe_ack(now, run.n, run.ack_req);
    }

    /// Advances the PSN that may be acknowledged, at once or behind slow memory.
    #[inline(always)]
    fn end_part(&mut self, run: &Run, wc: Option<Wc>) {
        let resp = &mut self.qp.conn.resp;
        let waits = resp.is(rx_block::PLACING | rx_block::LANDINGS);
        if !waits {
            resp.acknowledge_all();
            if let Some(wc) = wc {
                self.push_reserved(self.qp.rcq, wc, run.solicited);
            }
        } else if run.last || run.ack_req {
            // The peer waits for an ACK inside the message, because its window is limited. When
            // half of the places are taken, such a landing overwrites the one before it; the rest
            // are for ends of messages.
            let (psn, msn) = (resp.epsn.prev(), resp.msn);
            // The landing stays behind the earlier ones even if its own bytes have landed already.
            let (provider, token) = resp.last_placed();
            resp.set_placing(None);
            let (cq, solicited) = (self.qp.rcq, run.solicited);
            let landing = Landing { provider, token, psn, msn, wc, cq, solicited };
            let crowded = !run.last && resp.landing_count() >= MAX_LANDINGS / 2;
            let joined = resp.last_landing().filter(|last| crowded && last.wc.is_none());
            let Some(before) = joined.map(|last| (last.provider, last.token)) else {
                return self.push_landing(landing);
            };
            // The landing before may be the end of a WRITE to memory of another kind.
            let both = self.common.memory.providers.later_of(Some(before), (provider, token));
            if let Some(last) = self.qp.conn.resp.last_landing() {
                *last = Landing { provider: both.0, token: both.1, ..landing };
            }
        }
    }

    /// The memory that a request with an answer names, if its QP takes such operations and its key
    /// gives the right. The key of a request of length 0 is not checked (IBTA C9-88).
    fn allowed_target(&self, run: &Run, len: u32, right: u32) -> Result<Target, Refusal> {
        let Run { rkey, va, .. } = *run;
        // rxe rxe_resp.c check_op_valid
        if self.qp.attr.qp_access_flags & right == 0 {
            return Err(not_allowed(rkey, va));
        }
        // IBTA C9-88
        if len == 0 {
            return Ok(Target::default());
        }
        let qp = &*self.qp;
        let target = qp.remote_target(&self.common.memory, qp.pd, rkey, va, len, right);
        target.map_err(|e| bad_key(e, rkey, va))
    }

    /// Reads the bytes that a READ request asks for, if the request is in order and its answer has
    /// room. The caller has seen that nothing holds the responder (`Resp::holds`). Nothing changes:
    /// [`Conn::accept_answered`] is next, or the general path executes or refuses the request.
    pub(in crate::roce) fn read_answer_bytes(&self, run: &Run, dst: &mut [u8]) -> bool {
        debug_assert_eq!(self.qp.conn.resp.holds(), 0);
        if run.psn != self.qp.conn.resp.epsn || check_answer_room(self.qp, run).is_err() {
            return false;
        }
        let Ok(target) = self.allowed_target(run, run.dma_len, access::REMOTE_READ) else {
            return false;
        };
        let of = TransferId::answer(self.qp.qpn, run.psn.get(), run.dma_len);
        let providers = &self.common.memory.providers;
        target.provider == 0 && providers.fetch(&target, 0, dst, of) == Access::Ready
    }

    /// Executes a READ, an atomic, an ATOMIC WRITE or a FLUSH: keeps it for duplicates, and queues
    /// its answer.
    fn execute_answered(&mut self, run: &Run, payload: &[u8]) -> Result<(), Refusal> {
        let resp = &self.qp.conn.resp;
        // IBTA C9-94
        let too_long =
            u64::from(run.dma_len) > crate::verbs::post::MAX_MESSAGE && !flushes_region(run);
        if resp.incoming() != Incoming::Idle || too_long {
            return Err(bad_request(run));
        }
        check_answer_room(self.qp, run)?;
        let value = match run.kind {
            PacketKind::ReadRequest => {
                self.allowed_target(run, run.dma_len, access::REMOTE_READ)?;
                0
            }
            PacketKind::Flush => {
                self.execute_flush(run, payload)?;
                0
            }
            _ => self.execute_atomic(run, payload)?,
        };
        let job = self.accept_answered(run, value);
        self.qp.conn.resp.push_job(job);
        self.common.ready.set(self.qi);
        Ok(())
    }

    /// Accepts a request whose answer has room (`check_answer_room`), and keeps it for duplicates.
    /// `value`: the answer of an atomic. Returns the answer, for [`Resp::push_job`].
    pub(in crate::roce) fn accept_answered(&mut self, run: &Run, value: u64) -> Resource {
        let Run { kind, psn, va, rkey, .. } = *run;
        let (npkts, pd) = (answer_packets(run, self.qp.conn.mtu), self.qp.pd);
        let len = if kind == PacketKind::ReadRequest { run.dma_len } else { 0 };
        let of = Resource { valid: true, kind, pd, value, ..Resource::default() };
        let mut job = Resource { psn, npkts, va, rkey, len, ..of };
        let resp = &mut self.qp.conn.resp;
        let depth = resp.resources.len() as u32;
        resp.advance(job.npkts, true);
        job.msn = resp.msn;
        job.after_landing = resp.landings_pushed;
        let at = (resp.res_next % depth) as usize;
        resp.resources[at] = job;
        resp.res_next = (resp.res_next + 1) % depth;
        if !resp.is(rx_block::LANDINGS) {
            resp.acknowledge_all();
        }
        job
    }

    /// Executes an atomic or an ATOMIC WRITE; returns the value for the answer of an atomic.
    #[inline(never)]
    fn execute_atomic(&mut self, run: &Run, payload: &[u8]) -> Result<u64, Refusal> {
        let op = match (run.kind, <[u8; 8]>::try_from(payload)) {
            (PacketKind::CmpSwap, _) => AtomicOp::CmpSwap { compare: run.a, swap: run.b },
            (PacketKind::FetchAdd, _) => AtomicOp::FetchAdd(run.a),
            // rxe rxe_resp.c atomic_write_reply: An ATOMIC WRITE stores its 8 bytes in one piece,
            // behind all that came before it.
            (_, Ok(word)) if run.dma_len == 8 => AtomicOp::Store(u64::from_ne_bytes(word)),
            // IBTA A19.4.2, length: An ATOMIC WRITE of another length than 8 bytes is an invalid
            // request.
            _ => return Err(bad_request(run)),
        };
        // rxe rxe_resp.c atomic_reply, alignment: An atomic whose address is not a multiple of 8 is
        // an invalid request.
        // IBTA A19.4.2, alignment: An ATOMIC WRITE whose address is not a multiple of 8 is an
        // invalid request.
        let misaligned = Nak(InvalidRequest, Cause::MisalignedAtomic, SUCCESS, run.va, 0);
        if run.va & 7 != 0 {
            return Err(misaligned);
        }
        let right = match op {
            AtomicOp::Store(_) => access::REMOTE_WRITE,
            _ => access::REMOTE_ATOMIC,
        };
        let target = self.allowed_target(run, 8, right)?;
        if target.addr & 7 != 0 {
            return Err(misaligned);
        }
        // An ATOMIC WRITE tells a program that all earlier bytes are there. Within one kind of
        // memory the order of the calls ensures that. Bytes on their way into another kind land
        // first.
        let elsewhere = |landing: &Landing| u32::from(landing.provider) != target.provider;
        if matches!(op, AtomicOp::Store(_)) && self.qp.conn.resp.landings().any(elsewhere) {
            return Err(Later);
        }
        // rxe rxe_resp.c atomic_reply, value: The answer is the value that the memory had before
        // the atomic.
        let of = TransferId::answer(self.qp.qpn, run.psn.get(), 8);
        self.common.memory.providers.atomic(&target, op, of).map_err(|e| match e {
            Access::Fault => memory_gone(run.rkey, run.va),
            _ => Rnr(RNR_SOON),
        })
    }

    /// Executes a FLUSH: all that came before it on its queue pair is placed, and visible to all
    /// who read that memory.
    #[inline(never)]
    fn execute_flush(&mut self, run: &Run, payload: &[u8]) -> Result<(), Refusal> {
        let feth = Feth::of_word(run.imm);
        // rxe rxe_hdr.h feth_init, values: A FLUSH of no type, of another type or level than those
        // that there are, or with data, is an invalid request.
        if !feth.is_legal() || !payload.is_empty() {
            return Err(bad_request(run));
        }
        let Run { rkey, va, .. } = *run;
        let right = |of: u8, right: u32| if feth.placement & of != 0 { right } else { 0 };
        let rights = right(Feth::GLOBAL, access::FLUSH_GLOBAL)
            | right(Feth::PERSISTENT, access::FLUSH_PERSISTENT);
        // rxe rxe_resp.c check_op_valid
        if self.qp.attr.qp_access_flags & rights != rights {
            return Err(not_allowed(rkey, va));
        }
        // rxe rxe_resp.c check_rkey, FLUSH: The key of a FLUSH must give the right of each of its
        // types, whatever its length; its range must lie in the region, unless it is about the
        // whole one.
        let qp = &*self.qp;
        let memory = &self.common.memory;
        let opens = match flushes_region(run) {
            true => memory.regions.remote_key(rkey, qp.pd, qp.qpn, rights),
            false => qp.remote_target(memory, qp.pd, rkey, va, run.dma_len, rights).map(|_| ()),
        };
        opens.map_err(|e| bad_key(e, rkey, va))?;
        // rxe rxe_resp.c process_flush: A FLUSH is executed when all that came before it on its
        // queue pair has been placed.
        if self.qp.conn.resp.landing_count() > 0 {
            return Err(Later);
        }
        // CPUs and devices see one coherent memory, and the others miss only bytes that the copies
        // have left in this CPU's buffers. Persistent memory is never registered, so nothing is
        // written back to it.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Takes a packet of a UC peer. A packet that does not fit is dropped, and so is the rest of
    /// its message.
    pub(crate) fn handle_uc(&mut self, now: u64, run: &Run, payload: &[u8]) {
        let gap = run.psn != self.qp.conn.resp.epsn;
        self.qp.conn.resp.epsn = run.psn.add(run.n);
        if !matches!(run.kind, PacketKind::Send | PacketKind::Write) {
            return self.drop_message();
        }
        // rxe rxe_resp.c check_psn, UC: A gap drops the message of UC in which it lies, up to the
        // next that begins.
        let begun = !matches!(self.qp.conn.resp.incoming(), Incoming::Idle | Incoming::Skip);
        if gap && begun {
            // The message under way has lost a packet. The receive that it had taken serves the
            // next message.
            self.qp.conn.resp.set_incoming(Incoming::Skip);
            self.drop_message();
        }
        let qp = &mut *self.qp;
        if run.first {
            qp.conn.resp.set_incoming(Incoming::Idle);
        } else if gap || matches!(qp.conn.resp.incoming(), Incoming::Skip | Incoming::Idle) {
            let is_new = qp.conn.resp.incoming() == Incoming::Idle;
            qp.conn.resp.set_incoming(if run.last { Incoming::Idle } else { Incoming::Skip });
            if is_new {
                // The message's FIRST was lost, which counts once. Later packets of a skipped
                // message are not counted again.
                self.count(|c| &mut c.rcvd_dropped);
            }
            return;
        }
        let epsn = qp.conn.resp.epsn;
        match self.place(run, payload) {
            Ok(()) => {
                // `accept` advances from the packet's PSN. A packet that is dropped leaves `epsn`
                // behind it.
                self.qp.conn.resp.epsn = run.psn;
                if !self.makes_landing_room(now) {
                    self.qp.conn.resp.epsn = epsn;
                    return self.drop_message();
                }
                self.accept(now, run, payload);
                if !run.last {
                    // The rest of the message may never come, so the CQE is free for others until
                    // it does.
                    self.release_cqe();
                }
                self.qp.conn.resp.ack_owed = false;
                self.common.acks.forget(self.qi);
            }
            Err(Nak(_, cause, status, a, b)) if status == wc_status::LOC_PROT_ERR => {
                // The program's own buffer is invalid. Only a completion can report that.
                self.note(now, cause, status, a, b);
                self.fail_recv(status);
                self.enter_error(None);
            }
            Err(_) => {
                self.drop_message();
                // rxe rxe_resp.c check_op_seq, UC: A packet of UC that may not be executed is
                // dropped with the rest of its message, without an answer.
                self.qp.conn.resp.set_incoming(if run.last {
                    Incoming::Idle
                } else {
                    Incoming::Skip
                });
            }
        }
        debug_assert!(self.qp.state == qp_state::ERR || self.qp.conn.resp.epsn == epsn);
    }

    pub(crate) fn drop_message(&mut self) {
        self.release_cqe();
        self.count(|c| &mut c.rcvd_dropped);
    }
}
