//! A message of one packet that travels alone over a link, in one step at either end, and the ACK that ends it.
//!
//! As in `direct`, all questions of the usual way are asked together before anything is changed: is something held back,
//! lost, repeated, paced, fenced, full, under way? One yes, and nothing has happened: the usual way takes the request, or
//! the record, and decides. What goes well leaves the state, the counters and the bytes that the usual way would have left:
//! `core/tests/engine/lone.rs` runs both over the same requests and compares all of it.
//!
//! Sending is in two parts: [`Transport::write_lone`] asks and writes the record into the port's buffer,
//! [`Transport::wrote_lone`] notes that it has left. In between the port hands it over, so that the peer begins while the
//! clock is read here and the timer set.

use super::peer::{FlowControl, Path, PACKET_COST};
use super::queues::{count_done, push_to, send_wc};
use super::requester::{gather, PROBE_NS, PSN_WINDOW};
use super::run::{base_of_head, head_flags, HEAD_MAX, HEAD_MIN, RECORD_ALIGN};
use super::Transport;
use crate::mem::{Access, Message, Target};
use crate::ring::{EngineConsumer, SlotRef};
use crate::verbs::objects::{Hold, Incoming, Qp, Req, Resp, WqeState, NONE};
use crate::verbs::shared::Shared;
use crate::verbs::types::{access, qp_state, qp_type, wc_flags, wc_opcode, wc_status, wr_opcode, Wc};
use crate::verbs::wqe::SendWqe;
use crate::wire::{Opcode, Psn, Syndrome};

/// Bytes of the head of a record that names memory.
const HEAD_MEMORY: usize = HEAD_MIN + 16;
/// Bytes of a packet beside its payload, as the counters have it: BTH and ICRC, and the AETH of an ACK.
const PACKET: u64 = 16;
const ACK: u64 = 20;
/// What the flags of a record say of a message of one packet; whether it is solicited and asks for an ACK stands beside it.
const WHOLE: u8 = head_flags::FIRST | head_flags::LAST;

/// A request of one packet as a peer has sent it, by whatever way.
#[derive(Clone, Copy)]
pub(super) struct Received {
    pub(super) psn: Psn,
    pub(super) writes: bool,
    pub(super) has_imm: bool,
    pub(super) solicited: bool,
    pub(super) ack_req: bool,
    pub(super) imm: u32,
    /// Of a WRITE.
    pub(super) va: u64,
    pub(super) rkey: u32,
    pub(super) dma_len: u32,
}

/// A request that lies in the port's buffer. Nothing in the engine knows of it yet.
#[derive(Clone, Copy, Debug)]
#[must_use = "what was handed over must be noted"]
pub struct Lone {
    /// Bytes in the buffer.
    pub len: usize,
    /// The link that they are for.
    pub link: u16,
    pub(super) qi: usize,
    pub(super) payload: u32,
    pub(super) acks: bool,
}

impl Req {
    /// Whether what is posted next may leave: nothing is sent again, and nothing keeps it back.
    #[inline(always)]
    pub(super) fn goes_on(&self) -> bool {
        self.cur_pkt == 0
            && self.next_psn == self.max_psn
            && self.hold == Hold::None
            && !(self.failed | self.broken | self.draining | self.drain_event | self.probe)
    }
}

/// The request of [`Qp::ask_lone`].
pub(super) struct Asked<'q> {
    pub(super) slot: SlotRef<'q, SendWqe>,
    pub(super) op: Opcode,
    pub(super) names_memory: bool,
}

impl Qp {
    /// The only request that waits in the send queue, if it is one packet and nothing of the QP's own is in its way. The peer's
    /// window is still to be asked.
    #[inline(always)]
    pub(super) fn ask_lone<'q>(&mut self, sq: &'q EngineConsumer<'_, SendWqe>) -> Option<Asked<'q>> {
        let index = self.req.next;
        let alone = sq.end() == index.wrapping_add(1);
        if !alone || self.state != qp_state::RTS || self.kind != qp_type::RC || self.paced || !self.req.goes_on() {
            return None;
        }
        if (self.resp.job_len | self.resp.fence_len) != 0 || self.resp.owes_nak() || self.wqe(index).started {
            return None;
        }
        let slot = sq.at(index);
        let wqe = slot.header();
        let (op, names_memory) = match u32::from(wqe.opcode) {
            wr_opcode::SEND => (Opcode::RC_SEND_ONLY, false),
            wr_opcode::RDMA_WRITE => (Opcode::RC_WRITE_ONLY, true),
            wr_opcode::SEND_WITH_IMM => (Opcode::RC_SEND_ONLY_IMM, false),
            wr_opcode::RDMA_WRITE_WITH_IMM => (Opcode::RC_WRITE_ONLY_IMM, true),
            _ => return None,
        };
        let outstanding = self.req.next_psn.diff(self.req.una_psn);
        if wqe.length > u64::from(self.mtu) || wqe.is_fenced() || outstanding >= PSN_WINDOW as i32 {
            return None;
        }
        Some(Asked { slot, op, names_memory })
    }
}

impl Resp {
    /// Whether no message is under way and nothing waits for slow memory.
    #[inline(always)]
    fn is_between(&self) -> bool {
        self.incoming == Incoming::Idle && self.fence_len == 0 && self.placing.is_none()
    }
}

#[inline(always)]
fn padded(len: usize) -> usize {
    (len + RECORD_ALIGN - 1) & !(RECORD_ALIGN - 1)
}

impl Transport {
    /// Writes the only request that waits in the send queue of the QP at an index into the `room` of its link, and the ACK that
    /// the QP owes behind it, if the request is one packet over a link and nothing is in its way. `None`: nothing has changed.
    #[inline]
    pub(crate) fn write_lone<'b>(
        &mut self,
        s: &Shared,
        qi: usize,
        room: impl FnOnce(u16) -> Option<&'b mut [u8]>,
    ) -> Option<Lone> {
        let qp = &mut self.qps[qi];
        let sq = s.sq(qi, &self.key);
        let Asked { slot, op, names_memory, .. } = qp.ask_lone(&sq)?;
        let wqe = slot.header();
        let head = if names_memory { HEAD_MEMORY } else { HEAD_MIN };
        let (index, psn) = (qp.req.next, qp.req.next_psn);
        let peer = self.peers.get_mut(qp.peer as usize)?;
        let Path::Link(link) = peer.path else { return None };
        if peer.tx.available(0) == 0 {
            return None;
        }
        let payload = wqe.length as u32;
        let len = payload as usize;
        let behind = head + padded(len);
        let record = room(link)?.get_mut(..behind + HEAD_MIN)?;
        if len > 0 {
            let body = &mut record[head..head + len];
            // Slow memory that begins to fetch goes on with it for the usual way.
            let of = Message::request(qp.qpn, index, 0);
            gather(&self.regions, &self.providers, qp.pd, &slot, 0, body, of).ok()?;
        }
        let flags = WHOLE | head_flags::ACK_REQ | if wqe.is_solicited() { head_flags::SOLICITED } else { 0 };
        let dest = qp.attr.dest_qp_num;
        record[..HEAD_MIN].copy_from_slice(&base_of_head(payload, op, flags, 0, dest, psn, 1, wqe.imm));
        if names_memory {
            record[24..32].copy_from_slice(&wqe.remote_addr.to_le_bytes());
            record[32..36].copy_from_slice(&wqe.rkey.to_le_bytes());
            record[36..40].copy_from_slice(&payload.to_le_bytes());
        }
        let acks = qp.resp.ack_owed;
        if acks {
            let (psn, msn) = (qp.resp.ack_psn, qp.resp.ack_msn);
            let ack = base_of_head(0, Opcode::RC_ACK, WHOLE, super::answers::ACK_UNLIMITED, dest, psn, 1, msn);
            record[behind..].copy_from_slice(&ack);
        }
        Some(Lone { link, len: behind + if acks { HEAD_MIN } else { 0 }, qi, payload, acks })
    }

    /// What [`Transport::write_lone`] wrote has left.
    #[inline]
    pub(crate) fn wrote_lone(&mut self, now: u64, lone: Lone) {
        let Lone { qi, payload, acks, .. } = lone;
        let qp = &mut self.qps[qi];
        let (index, psn) = (qp.req.next, qp.req.next_psn);
        *qp.wqe(index) = WqeState { started: true, psn, npkts: 1, ..WqeState::default() };
        let next = psn.next();
        qp.req.next = index.wrapping_add(1);
        qp.req.next_psn = next;
        qp.req.max_psn = next;
        let cost = PACKET_COST + payload;
        qp.req.inflight = qp.req.inflight.saturating_add(cost);
        self.peers[qp.peer as usize].tx.on_sent(now, cost);
        let packets = 1 + u64::from(acks);
        let bytes = u64::from(payload) + PACKET + if acks { ACK } else { 0 };
        for c in [&mut qp.counters, &mut self.counters] {
            c.sent_pkts += packets;
            c.sent_bytes += bytes;
        }
        if acks {
            qp.resp.ack_has_left();
            qp.resp.pkts_since_ack = 0;
        }
        if qp.req.ack_deadline == 0 {
            qp.req.silent_since = now;
            qp.req.ack_deadline = now + qp.timeout_ns;
            qp.req.probe_at = now + PROBE_NS;
            qp.req.probe_wait = PROBE_NS;
        }
        let at = qp.req.next_deadline();
        if qp.req.armed_at == 0 || qp.req.armed_at > at {
            self.wake_at(qi, at);
        }
        if acks {
            self.ack_has_left(qi);
        }
    }

    /// Takes the first record of `rest`, which came over a link from `gid`, if it is a message of one packet in order, or an
    /// ACK that ends the only request under way, and nothing is in its way. `w`: its head, copied out, and what follows it.
    /// Returns the bytes that it took; 0: nothing has changed.
    #[inline]
    pub(crate) fn take_lone(
        &mut self,
        s: &Shared,
        now: u64,
        gid: &[u8; 16],
        w: &[u64; HEAD_MAX / 8],
        rest: &[u8],
    ) -> usize {
        let (low, high) = (|i: usize| w[i] as u32, |i: usize| (w[i] >> 32) as u32);
        let [op, flags, ..] = high(0).to_le_bytes();
        let Some(qi) = self.qp_of(low(1) & 0xff_ffff) else { return 0 };
        let qp = &self.qps[qi];
        let whole = flags & (WHOLE | head_flags::BECN) == WHOLE && low(2) == 1;
        if qp.state != qp_state::RTS || qp.kind != qp_type::RC || !whole {
            return 0;
        }
        let Some(peer) = self.peers.get(qp.peer as usize) else { return 0 };
        if peer.addr.gid != *gid || !peer.path.answers(Path::Link(0), self.mixed_paths) {
            return 0;
        }
        let (psn, extra) = (Psn::new(high(1)), high(2));
        let len = low(0) as usize;
        let (head, has_imm) = match Opcode(op) {
            Opcode::RC_SEND_ONLY => (HEAD_MIN, false),
            Opcode::RC_WRITE_ONLY => (HEAD_MEMORY, false),
            Opcode::RC_ACK => {
                let Some(psn) = acked([w[0], w[1], w[2]]) else { return 0 };
                return if self.end_lone(s, qi, now, psn, rest.len()) { HEAD_MIN } else { 0 };
            }
            Opcode::RC_SEND_ONLY_IMM => (HEAD_MIN, true),
            Opcode::RC_WRITE_ONLY_IMM => (HEAD_MEMORY, true),
            _ => return 0,
        };
        let end = head + padded(len);
        if len > qp.mtu as usize || end > rest.len() {
            return 0;
        }
        let writes = head == HEAD_MEMORY;
        let r = Received {
            psn,
            writes,
            has_imm,
            solicited: flags & head_flags::SOLICITED != 0,
            ack_req: flags & head_flags::ACK_REQ != 0,
            imm: extra,
            va: w[3],
            rkey: low(4),
            dma_len: high(4),
        };
        if !self.receive_lone(s, qi, now, &r, &rest[head..head + len]) {
            return 0;
        }
        // The ACK beside a short message lies in the words that were copied out, too.
        match w.get(end / 8..) {
            Some(&[a, b, c, ..]) if b as u32 == w[1] as u32 => match acked([a, b, c]) {
                Some(psn) if self.end_lone(s, qi, now, psn, rest.len() - end) => end + HEAD_MIN,
                _ => end,
            },
            _ => end,
        }
    }

    /// Takes a request of one packet that a QP's own peer has sent, if it is in order and nothing is in its way. False: nothing has
    /// changed.
    #[inline(always)]
    pub(super) fn receive_lone(&mut self, s: &Shared, qi: usize, now: u64, r: &Received, payload: &[u8]) -> bool {
        let Transport { key, qps, cqs, regions, providers, counters, .. } = self;
        let qp = &mut qps[qi];
        let Received { psn, writes, has_imm, .. } = *r;
        let len = payload.len();
        if psn != qp.resp.epsn || !qp.resp.is_between() || len > qp.mtu as usize {
            return false;
        }
        let mut target = Target::default();
        if writes {
            if qp.attr.qp_access_flags & access::REMOTE_WRITE == 0 || len == 0 || len != r.dma_len as usize {
                return false;
            }
            match regions.remote(r.rkey, qp.pd, qp.qpn, r.va, len as u32, access::REMOTE_WRITE) {
                Ok(t) => target = t,
                Err(_) => return false,
            }
        }
        let receives = !writes || has_imm;
        if receives {
            // As `take_recv` has it: a receive, and an entry of the CQ that nobody was promised.
            if qp.srq != NONE || qp.resp.recv.taken {
                return false;
            }
            let (ring, cq) = (s.cq(qp.rcq as usize, key), &cqs[qp.rcq as usize]);
            let mut rq = s.rq(qi, key);
            if ring.free() <= cq.reserved || cq.reserved >= cq.promises(ring.capacity()) || rq.is_empty() {
                return false;
            }
            let slot = rq.peek(0);
            let wqe = slot.header();
            if !writes && len > 0 {
                let Some(sge) = slot.sges(1).first().filter(|_| wqe.num_sge == 1) else { return false };
                let room = len as u64 <= u64::from(sge.length);
                match regions.local(sge.lkey, qp.pd, sge.addr, len as u32, true) {
                    Ok(t) if room => target = t,
                    _ => return false,
                }
            }
            // Should it fail half way, the usual way writes the same bytes again before it says so.
            if target.provider != 0 || len > 0 && providers.place(&target, 0, payload) != Access::Ready {
                return false;
            }
            let wc = Wc {
                wr_id: wqe.wr_id,
                status: wc_status::SUCCESS,
                opcode: if writes { wc_opcode::RECV_RDMA_WITH_IMM } else { wc_opcode::RECV },
                byte_len: len as u32,
                imm_data: r.imm,
                qp_num: qp.qpn,
                wc_flags: if has_imm { wc_flags::WITH_IMM } else { 0 },
                ..Wc::default()
            };
            rq.release(1);
            let (mut ring, cq) = (ring, &mut cqs[qp.rcq as usize]);
            push_to(s, &mut ring, cq, qp.rcq, wc, r.solicited);
        } else if target.provider != 0 || providers.place(&target, 0, payload) != Access::Ready {
            return false;
        }
        let bytes = len as u64 + PACKET;
        for c in [&mut qp.counters, counters] {
            c.rcvd_pkts += 1;
            c.rcvd_bytes += bytes;
            c.rdma_recvs += u64::from(receives);
        }
        let resp = &mut qp.resp;
        resp.epsn = psn.next();
        resp.msn = resp.msn.wrapping_add(1);
        resp.ack_psn = psn;
        resp.ack_msn = resp.msn;
        resp.forget_naks();
        self.owe_ack(qi, now, 1, r.ack_req);
        true
    }

    /// Ends the only request that the QP at an index has under way, if the ACK of `psn`, in a record with so many bytes, ends
    /// it and nothing is in its way. False: nothing has changed.
    #[inline]
    pub(super) fn end_lone(&mut self, s: &Shared, qi: usize, now: u64, psn: Psn, bytes: usize) -> bool {
        let Transport { key, qps, cqs, peers, counters, .. } = self;
        let qp = &mut qps[qi];
        let index = qp.req.una;
        let next = index.wrapping_add(1);
        let mut sq = s.sq(qi, key);
        let all = qp.req.acked == index && qp.req.next == next && sq.end() == next && bytes >= HEAD_MIN;
        if !all || qp.req.read_inflight != 0 || !qp.req.goes_on() {
            return false;
        }
        let ws = *qp.wqe(index);
        let slot = sq.at(index);
        let wqe = slot.header();
        if !ws.started || ws.done || ws.npkts != 1 || ws.psn != psn || wqe.is_read_or_atomic() {
            return false;
        }
        let mut told = None;
        let scq = qp.scq;
        if wqe.is_signaled() {
            let ring = s.cq(scq as usize, key);
            if ring.free() <= cqs[scq as usize].reserved {
                return false;
            }
            told = Some((ring, send_wc(qp, wqe, wc_status::SUCCESS)));
        }
        *qp.wqe(index) = WqeState::default();
        for c in [&mut *counters, &mut qp.counters] {
            c.rcvd_pkts += 1;
            c.rcvd_bytes += PACKET;
        }
        count_done([counters, &mut qp.counters], wqe);
        let req = &mut qp.req;
        req.una = next;
        req.acked = next;
        req.una_psn = req.max_psn;
        req.retry_left = qp.attr.retry_cnt;
        req.rnr_left = qp.attr.rnr_retry;
        req.naks = 0;
        req.rewound = None;
        req.silent_since = now;
        req.ack_deadline = 0;
        req.probe_at = 0;
        req.probe_wait = PROBE_NS;
        peers[qp.peer as usize].tx.on_acked(core::mem::take(&mut req.inflight));
        sq.release(1);
        if let Some((mut ring, wc)) = told {
            push_to(s, &mut ring, &mut cqs[scq as usize], scq, wc, false);
        }
        self.wake_windows();
        true
    }
}

/// The PSN of a plain ACK; `None`: a record begins with something else.
#[inline(always)]
fn acked([a, b, c]: [u64; 3]) -> Option<Psn> {
    let [op, flags, syndrome, _] = ((a >> 32) as u32).to_le_bytes();
    let plain = Opcode(op) == Opcode::RC_ACK && flags == WHOLE && a as u32 == 0 && c as u32 == 1;
    (plain && matches!(Syndrome::parse(syndrome), Syndrome::Ack { .. })).then(|| Psn::new((b >> 32) as u32))
}
