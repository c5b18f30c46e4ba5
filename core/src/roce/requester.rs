//! The requester: makes packets of the send queue, and makes them again after a loss.

use super::conn::Conn;
use super::peer::{Path, Window, PACKET_COST};
use super::peer_write::Mapped;
use super::rules::send::{Charge, Departed, PSN_WINDOW};
use super::rules::sge::CopyError;
use super::run::Run;
use super::txbuf::{Emission, Emitted, TxBuf, MAX_BURST};
use super::{Sent, Transport, AHEAD};
use crate::device::async_event;
use crate::mem::TransferId;
use crate::ring::{EngineConsumer, SlotRef};
use crate::verbs::cause::CauseCode;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::opcode;
use crate::verbs::req::{tx_block, PeerReady, SendBlock, WqeState};
use crate::verbs::shared::Shared;
use crate::verbs::types::{qp_state, wc_status, wr_opcode};
use crate::verbs::wqe::SendWqe;
use crate::verbs::NONE;
use crate::wire::{PacketKind, Psn};

/// Most requests in a batch. Two batches fill a send queue of the usual size.
const GROUP: u32 = 16;
/// Longest WRITE that is divided. Longer ones fill bursts of their own, and their middle packets
/// cost the receiver less.
const DIVIDED_MAX: u64 = 64 << 10;
/// Time until the other engines of a device are asked again for a change of their tables.
const OTHERS_WAIT_NS: u64 = 10_000;
/// Time until a request that found no staging room is tried again. Room is free when a copy ends,
/// which no event announces, and a copy takes some 10 us.
const STAGING_RETRY_NS: u64 = 10_000;

impl Transport {
    /// Whether requests that were just posted may wait for the next post or poll, so that several
    /// leave as one burst. They may if few wait and enough are in flight, because the ACKs of those
    /// bring the program or the helper back here.
    pub(crate) fn may_gather(&self, s: &Shared, qi: usize) -> bool {
        let qp = &self.qps[qi];
        if qp.conn.req.next.wrapping_sub(qp.conn.req.acked) < qp.conn.req.deep()
            || !qp.kind.is_reliable()
            || qp.state != qp_state::RTS
        {
            return false;
        }
        let sq = s.sq(qi, &self.common.key);
        let waiting = sq.end().wrapping_sub(qp.conn.req.next);
        waiting < GROUP && self.next_path(s, qi) == Some(Path::Port)
    }

    /// Writes the packets of a QP into `tx`: answers first, then requests, an owed ACK last.
    pub fn transmit(&mut self, s: &Shared, qi: usize, tx: &mut TxBuf<'_>, now: u64) -> Sent {
        if self.qps[qi].has_failed() {
            self.flush_failed(s, qi);
        }
        let qp = &self.qps[qi];
        if !qp.may_transmit() {
            return Sent::Idle;
        }
        if !qp.kind.has_fixed_peer() {
            return self.transmit_unfixed(s, qi, tx, now);
        }
        self.conn(s, qi).transmit(tx, now)
    }
}

impl Conn<'_> {
    /// [`Conn::transmit`] out of line, for kinds whose peer changes.
    #[inline(never)]
    pub(super) fn transmit_associated(&mut self, tx: &mut TxBuf<'_>, now: u64) -> Sent {
        self.transmit(tx, now)
    }

    /// As [`Transport::transmit`], for a queue pair that has a peer.
    #[inline(always)]
    fn transmit(&mut self, tx: &mut TxBuf<'_>, now: u64) -> Sent {
        let to = self.qp.conn.peer;
        let peer = &*self.peer;
        if peer.path != tx.path() {
            if peer.path != Path::Lost {
                return Sent::OtherPath;
            }
            if to != NONE {
                // A QP whose path is lost fails, now or when it has something to send.
                self.fail_path(now, CauseCode::PathLost, 0);
            }
            return Sent::Idle;
        }
        if !tx.aim_connected(to, peer) {
            return Sent::Full;
        }
        if self.qp.conn.resp.job_len() > 0 && self.transmit_answers(tx, now) == Sent::Full {
            return Sent::Full;
        }
        let sq = self.q.engine_sq(&self.common.key);
        if self.qp.can_send() && self.qp.conn.req.next != sq.end() {
            let first = self.qp.conn.req.next;
            let stop = loop {
                match self.transmit_request(&sq, tx, now) {
                    Step::Sent => {}
                    stop => break stop,
                }
            };
            let req = &mut self.qp.conn.req;
            let left = req.next.wrapping_sub(first);
            req.batch_left(left);
            if left > 0 {
                self.note_reply();
            }
            if stop == Step::Full {
                self.transmit_ack(tx);
                return Sent::Full;
            }
            self.arm_timer();
        }
        if !self.qp.conn.req.is(tx_block::PROBE) && !self.qp.conn.resp.owes_answer() {
            return Sent::Idle;
        }
        if self.qp.conn.req.is(tx_block::PROBE) && self.qp.can_send() && !self.transmit_probe(tx) {
            return Sent::Full;
        }
        if self.transmit_ack(tx) {
            Sent::Idle
        } else {
            Sent::Full
        }
    }

    /// Sends the next run of the send queue, or says why not.
    fn transmit_request(
        &mut self,
        sq: &EngineConsumer<'_, SendWqe>,
        tx: &mut TxBuf<'_>,
        now: u64,
    ) -> Step {
        let index = match self.next_request(sq, tx, now) {
            Ok(index) => index,
            Err(step) => return step,
        };
        let slot = sq.at(index);
        let wqe = slot.header();
        let ws = *self.qp.wqe(index);
        let Some((n, ends)) = self.packets_allowed(wqe, &ws, now) else { return Step::Idle };

        let qp = &*self.qp;
        let next = run_of_request(qp, wqe, &ws, qp.conn.req.cur_pkt, n);
        let RequestRun { run, psn, bytes, payload, .. } = next;
        // A READ ends with its response, which alone counts against a window.
        let is_read = run.kind.answer() == Some(PacketKind::ReadResponse);
        let rc = qp.kind.is_reliable();
        let answered = !matches!(run.kind, PacketKind::Send | PacketKind::Write);
        // The packets of this burst, not all that the window permits.
        let burst = if n > 1 { n.min(tx.packets_of(qp.conn.mtu).max(1)) } else { n };
        let cost = bytes.min(burst.saturating_mul(qp.conn.mtu)) + burst * PACKET_COST;
        let ends = ends && burst == n;
        let within = ws.divided && !run.ack_req;
        let asks = rc && (answered || qp.asks_for_ack(&self.peer.tx, cost, psn, ends, within));
        let done = self.emit_run(tx, &slot, index, &next, asks);

        // Packets that left count, whatever held the rest back.
        if done.packets > 0 {
            let qp = &mut *self.qp;
            let payload = payload.min(done.packets * qp.conn.mtu);
            let asked = asks || run.ack_req && done.packets == n;
            let (psns, answers, charge) = match () {
                () if is_read && n > 1 => {
                    (n, qp.read_pieces(qp.conn.req.cur_pkt, n), Charge::ReadWindow(bytes))
                }
                () if is_read => (1, 1, Charge::ReadWindow(bytes)),
                () if rc => {
                    let bytes = PACKET_COST * done.packets + payload;
                    (done.packets, u32::from(answered), Charge::Window { bytes, asked })
                }
                () => (done.packets, 0, Charge::Free),
            };
            let wire = run.wire_bytes(done.packets, payload);
            if qp.is_paced() {
                let answer = if is_read { bytes } else { 0 };
                qp.bucket.take(now, (wire as u32).saturating_add(answer));
                qp.conn.congestion.on_sent(now, wire as u32);
            }
            qp.conn.req.rd_out += answers;
            qp.conn.req.cur_pkt += psns;
            let packets = done.packets;
            self.note_sent::<false>(&Departed { psn, psns, packets, bytes: wire, charge });
            if rc {
                self.start_timers(now);
            }
            let qp = &mut *self.qp;
            if qp.conn.req.cur_pkt == ws.npkts {
                qp.conn.req.go_behind(index);
                if !rc {
                    // rxe rxe_req.c rxe_requester, UC: A request of UC ends when its last packet
                    // has left.
                    qp.wqe(index).done = true;
                    qp.conn.req.acked = qp.conn.req.next;
                    qp.conn.req.una_psn = qp.conn.req.next_psn;
                    self.complete(now);
                    return Step::Sent;
                }
            }
        }
        match done.stop {
            None if done.packets == run.n && self.qp.conn.req.next == sq.end() => Step::Last,
            None if done.packets == run.n => Step::Sent,
            None => Step::Full,
            Some(stop) => {
                self.stop_at_memory(index, stop, now);
                Step::Idle
            }
        }
    }

    /// Emits as many packets of a run of the request at an index as fit.
    #[inline(always)]
    fn emit_run(
        &self,
        tx: &mut TxBuf<'_>,
        slot: &SlotRef<'_, SendWqe>,
        index: u32,
        of: &RequestRun,
        asks: bool,
    ) -> Emitted<CopyError> {
        let (memory, qp) = (&self.common.memory, &*self.qp);
        let id = TransferId::request(qp.qpn, index, 0);
        let RequestRun { run, payload, .. } = of;
        let (mtu, payload) = (qp.conn.mtu, *payload);
        tx.emit(Emission { run, mtu, payload, ack_each_burst: asks }, |off, dst, state| {
            memory.fill(qp.pd, slot, of.offset + u64::from(off), dst, id, state)
        })
    }

    /// Stops a request at its local memory, which is not ready or refuses.
    #[cold]
    pub(super) fn stop_at_memory(&mut self, index: u32, stop: CopyError, now: u64) {
        match stop {
            CopyError::Pending(provider, token) => {
                self.fetch_ahead(index);
                self.qp.conn.req.set_send_block(SendBlock::Memory(provider as u8, token));
                self.common.mem_wait.set(self.qi);
            }
            CopyError::Busy => {
                self.qp.conn.req.set_send_block(SendBlock::Until(now + STAGING_RETRY_NS))
            }
            CopyError::Refused(code, lkey, addr) => {
                self.fail_request(now, index, wc_status::LOC_PROT_ERR, code, lkey.into(), addr);
            }
        }
    }

    /// Begins the next request, and returns its index. Err: the queue pair's own state holds the
    /// request back, or it was executed here, without a packet.
    #[inline(always)]
    fn next_request(
        &mut self,
        sq: &EngineConsumer<'_, SendWqe>,
        tx: &mut TxBuf<'_>,
        now: u64,
    ) -> Result<u32, Step> {
        let tail = sq.end();
        let qp = &mut *self.qp;
        match qp.conn.req.send_block() {
            SendBlock::None | SendBlock::Unready => {}
            SendBlock::Rnr(at) | SendBlock::Until(at) if at <= now => qp.go_on(),
            _ => return Err(Step::Idle),
        }
        // After a rewind the local operations among the WQEs have been executed already.
        let mut ws = qp.wqe(qp.conn.req.next);
        while ws.done && ws.npkts == 0 && qp.conn.req.next != tail {
            qp.conn.req.go_behind(qp.conn.req.next);
            ws = qp.wqe(qp.conn.req.next);
        }
        let index = qp.conn.req.next;
        if index == tail || qp.conn.req.is(tx_block::FAILED) && is_behind_failed(qp, index) {
            return Err(Step::Idle);
        }
        if qp.wqe(index).started {
            return Ok(index);
        }
        // rxe rxe_req.c req_next_wqe: In SQD no request begins; those that have begun end.
        if qp.conn.req.is(tx_block::DRAINING) {
            return Err(Step::Idle);
        }
        let slot = sq.at(index);
        let wqe = slot.header();
        if qp.conn.peer_ready == PeerReady::Doubtful {
            qp.end_doubt(wqe);
        }
        // rxe rxe_req.c rxe_wqe_is_fenced: A fenced request waits until all READs, atomics, ATOMIC
        // WRITEs and FLUSHes before it have ended.
        if wqe.is_fenced() && waits_at_fence(qp, sq, index) {
            return Err(Step::Idle);
        }
        // rxe rxe_req.c rxe_do_local_ops: Binding and invalidating are executed in their turn,
        // once, without a packet.
        if wqe.is_local() {
            let wqe = *wqe;
            return Err(self.execute_local(now, index, &wqe));
        }
        if self.qp.kind == QpKind::Dci && self.must_change(index) {
            return Err(Step::Idle);
        }
        if let Some((memory, budget)) = tx.memory() {
            match self.place_in_peer(memory, budget, now) {
                Mapped::No => {}
                Mapped::Later => return Err(Step::Idle),
                Mapped::Partly => return Err(Step::Full),
                Mapped::Whole => return Err(Step::Sent),
            }
        }
        let mtu = u64::from(self.qp.conn.mtu);
        // rxe rxe_req.c update_wqe_psn: A READ takes as many PSNs as its answer has packets, at
        // least one; other requests take one for each packet.
        let npkts = if wqe.length <= mtu { 1 } else { wqe.length.div_ceil(mtu) as u32 };
        self.qp.begin_request(index, npkts);
        self.qp.conn.req.cur_pkt = 0;
        if npkts > 1 && self.divides(wqe, tx.path()) {
            self.qp.wqe(index).divided = true;
        }
        Ok(index)
    }

    /// Whether a request of several packets travels as a WRITE for each of them.
    ///
    /// A burst has packets of one size, and only its last may be shorter. The first packet of a
    /// WRITE has an RETH, and those behind it are shorter: so a WRITE of a few packets would take
    /// two bursts of its own. With an RETH in each packet they are of one size, and the packets of
    /// several WRITEs share a burst. To the responder they are WRITEs of one packet each. Immediate
    /// data would make the last packet longer than the others.
    #[inline(never)]
    fn divides(&self, wqe: &SendWqe, path: Path) -> bool {
        self.common.divides_writes
            && path == Path::Port
            && u32::from(wqe.opcode) == wr_opcode::RDMA_WRITE
            && wqe.length <= DIVIDED_MAX
            && self.qp.kind == QpKind::Rc
    }

    /// How many packets of a request that has begun may leave now (of a READ: of its response), and
    /// whether they use up the PSNs. `None`: none may leave until an answer, a window or the rate
    /// allows it.
    #[inline(always)]
    fn packets_allowed(&mut self, wqe: &SendWqe, ws: &WqeState, now: u64) -> Option<(u32, bool)> {
        let (qp, peer) = (&mut *self.qp, &mut *self.peer);
        let first_pkt = qp.conn.req.cur_pkt;
        let mtu = qp.conn.mtu;
        let psn = ws.psn.add(first_pkt);
        let left = ws.npkts - first_pkt;
        let rc = qp.kind.is_reliable();
        let outstanding = psn.diff(qp.conn.req.una_psn).max(0) as u32;
        let mut psn_room = if rc { PSN_WINDOW.saturating_sub(outstanding) } else { PSN_WINDOW };
        if qp.conn.peer_ready != PeerReady::Yes {
            psn_room = qp.room_of_unready(wqe, ws, psn, psn_room);
            qp.conn.req.reads_cut = true;
        }
        // rxe rxe_req.c check_init_depth: At most max_rd_atomic READs, atomics, ATOMIC WRITEs and
        // FLUSHes are under way.
        if psn_room == 0
            || wqe.is_answered() && qp.conn.req.rd_out >= u32::from(qp.attr.max_rd_atomic).max(1)
        {
            return None;
        }
        // A due retry ignores the window: other queue pairs that wait longer for a dead peer would
        // keep it closed, and so delay the end of this one.
        let due = qp.conn.req.retry_left < qp.attr.retry_cnt
            && qp.conn.req.una_psn != qp.conn.req.max_psn
            && qp.conn.req.inflight == 0
            && qp.conn.req.read_inflight == 0;
        let mut n = left.min(psn_room);
        let closed;
        if wqe.is_read() {
            (n, closed) = match qp.read_packets(&peer.rx, first_pkt, left) {
                0 => (1, true),
                most => (n.min(most), false),
            };
        } else if rc {
            let room = peer.tx.available();
            let fits = if n > 1 { room / (mtu + PACKET_COST) } else { u32::from(room > 0) };
            closed = room == 0 || fits < n && qp.waits_for_more(fits, &peer.tx);
            n = n.min(fits.max(1));
        } else {
            closed = false;
        }
        if closed {
            if !due {
                self.common.win_wait.set(self.qi);
                self.count(|c| &mut c.window_closed);
                return None;
            }
            qp.conn.req.reads_cut = true;
        }
        if qp.is_paced() {
            match qp.pace(now) {
                Ok(most) => {
                    qp.conn.req.reads_cut = true;
                    n = n.min(most);
                }
                Err(at) => {
                    qp.conn.req.set_send_block(SendBlock::Until(at));
                    return None;
                }
            }
        }
        if ws.divided {
            n = 1;
        }
        Some((n, n == psn_room))
    }

    /// Announces to slow memory the requests behind the one at `index`, which waits for it. Their
    /// keys are checked again when they are sent. No request behind a fence is announced, because a
    /// READ before the fence may bring its bytes.
    #[cold]
    fn fetch_ahead(&self, index: u32) {
        let (qp, memory) = (&*self.qp, &self.common.memory);
        let sq = self.q.engine_sq(&self.common.key);
        for i in (1..=AHEAD).map(|k| index.wrapping_add(k)) {
            if i == sq.end() {
                return;
            }
            let slot = sq.at(i);
            let wqe = slot.header();
            if wqe.is_fenced() || wqe.is_local() || !qp.kind.is_connected() {
                return;
            }
            if wqe.inline != 0 || wqe.is_answered() {
                continue;
            }
            let Some(sge) = slot.sges(usize::from(wqe.num_sge)).first().filter(|s| s.length > 0)
            else {
                continue;
            };
            if let Ok(target) = memory.regions.local(sge.lkey, qp.pd, sge.addr, sge.length, false) {
                memory.providers.ahead(&target, TransferId::request(qp.qpn, i, sge.length));
            }
        }
    }

    /// Sends the probe: the newest packet once more, with a request for an ACK. A receiver that has
    /// everything acknowledges it again; one that misses an earlier packet sends a NAK. So a loss
    /// at the end costs a round trip, not the ACK timeout. The QP's state does not change.
    #[inline(never)]
    fn transmit_probe(&mut self, tx: &mut TxBuf<'_>) -> bool {
        let sq = self.q.engine_sq(&self.common.key);
        let qp = &mut *self.qp;
        qp.conn.req.set(tx_block::PROBE, false);
        if qp.conn.keep.ask {
            let sent = self.transmit_keepalive(tx);
            self.qp.conn.req.set(tx_block::PROBE, !sent);
            return sent;
        }
        let psn = qp.conn.req.next_psn.prev();
        if psn.diff(qp.conn.req.una_psn) < 0 || !qp.conn.req.may_repeat() {
            return true;
        }
        let mut index = qp.conn.req.next;
        if qp.conn.req.cur_pkt == 0 {
            index = index.wrapping_sub(1);
        }
        if (index.wrapping_sub(qp.conn.req.acked) as i32) < 0 {
            return true;
        }
        let ws = *qp.wqe(index);
        let into = psn.diff(ws.psn);
        if !ws.started || ws.done || into < 0 || into as u32 >= ws.npkts {
            return true;
        }
        let slot = sq.at(index);
        let wqe = slot.header();
        let mut pkt = into as u32;
        let mut n = 1;
        if wqe.is_read() {
            // The last piece that the newest request asked for.
            let piece = qp.read_piece();
            let begin = (pkt / piece * piece).max(ws.done_pkts);
            n = pkt + 1 - begin;
            pkt = begin;
        }
        let mut probe = run_of_request(qp, wqe, &ws, pkt, n);
        probe.run.ack_req = true;
        let done = self.emit_run(tx, &slot, index, &probe, true);
        if done.packets == 0 && done.stop.is_none() {
            self.qp.conn.req.set(tx_block::PROBE, true);
            return false;
        }
        // A probe does not wait for slow memory: the ACK timeout remains.
        let wire_bytes = probe.run.wire_bytes(1, probe.payload);
        let c = &mut self.qp.counters;
        c.count_sent(done.packets, u64::from(done.packets) * wire_bytes);
        c.retransmitted_pkts += u64::from(done.packets);
        true
    }

    /// Executes LOCAL_INV and BIND_MW in their turn, without a packet.
    #[inline(never)]
    pub(super) fn execute_local(&mut self, now: u64, index: u32, wqe: &SendWqe) -> Step {
        let (pd, qpn, memory) = (self.qp.pd, self.qp.qpn, &mut self.common.memory);
        // Bytes that were taken are placed now, because none may be placed through a closed window.
        memory.providers.finish();
        let (key, outcome) = if u32::from(wqe.opcode) == wr_opcode::LOCAL_INV {
            (wqe.imm, memory.regions.invalidate(wqe.imm, pd, qpn))
        } else {
            let (key, va, len) = (wqe.rkey, wqe.remote_addr, wqe.length);
            let bound = memory.bind(wqe.a, |regions| {
                regions.bind(wqe.a, key, wqe.b, va, len, wqe.access, (pd, qpn))
            });
            let Some(bound) = bound else {
                self.qp.conn.req.set_send_block(SendBlock::Until(now + OTHERS_WAIT_NS));
                self.arm_timer();
                return Step::Idle;
            };
            (key, bound.map(|_| ()))
        };
        if outcome.is_err() {
            let status = wc_status::MW_BIND_ERR;
            self.fail_request(now, index, status, CauseCode::BadWindow, key.into(), 0);
            return Step::Idle;
        }
        self.end_here(now, index);
        Step::Sent
    }

    /// Ends the next request, at an index, without a packet. Its completion takes its turn.
    pub(super) fn end_here(&mut self, now: u64, index: u32) {
        self.qp.begin_request(index, 0);
        self.qp.wqe(index).done = true;
        self.qp.conn.req.go_behind(index);
        self.skip_done();
        self.complete(now);
    }

    /// Goes back to a PSN: everything from there on is sent again from the send queue.
    pub(crate) fn rewind(&mut self, psn: Psn) {
        self.forget_inflight();
        let qp = &mut *self.qp;
        // rxe rxe_req.c req_retry: The requester goes back to a PSN and sends all from there again.
        let mut i = qp.conn.req.acked;
        loop {
            let ws = *qp.wqe(i);
            if i != qp.conn.req.next && ws.started && ws.npkts == 0 {
                i = i.wrapping_add(1);
                continue;
            }
            if !ws.started {
                return;
            }
            let into = psn.diff(ws.psn);
            if into < 0 {
                return;
            }
            if (into as u32) < ws.npkts {
                qp.conn.req.next = i;
                qp.conn.req.cur_pkt = into as u32;
                qp.conn.req.next_psn = psn;
                break;
            }
            if i == qp.conn.req.next {
                return;
            }
            i = i.wrapping_add(1);
        }
        qp.conn.req.rewound = Some(psn);
        self.common.ready.set(self.qi);
    }

    /// Fails the oldest request, because the path to the peer is lost. Without a request the queue
    /// pair fails.
    #[inline(never)]
    pub(crate) fn fail_path(&mut self, now: u64, cause: CauseCode, arg0: u64) {
        if !self.qp.can_receive() || self.qp.conn.req.is(tx_block::FAILED) {
            return;
        }
        let sq = self.q.engine_sq(&self.common.key);
        let waiting = (self.qp.conn.req.next != sq.end()).then_some(self.qp.conn.req.next);
        let request = self.oldest_open().or(waiting);
        let status = wc_status::RETRY_EXC_ERR;
        match request {
            Some(index) if self.qp.can_send() => {
                self.fail_request(now, index, status, cause, arg0, 0)
            }
            // No request is left whose completion could report it.
            _ => {
                self.note(now, cause, status, arg0, 0);
                self.enter_error(Some(async_event::QP_FATAL));
            }
        }
    }

    /// Retries or fails after the peer was silent for the ACK timeout.
    pub(crate) fn on_ack_timeout(&mut self, now: u64) {
        self.qp.conn.req.ack_deadline = 0;
        if !self.qp.can_send() || self.qp.conn.req.una_psn == self.qp.conn.req.max_psn {
            return;
        }
        let Some(index) = self.oldest_open() else { return };
        if self.is_excused(now) {
            self.qp.conn.req.retry_left = self.qp.attr.retry_cnt;
            return self.send_again(now);
        }
        if self.common.has_witness && self.ask_witness(now) {
            return;
        }
        // IBTA 9.7.6.1.3: After an ACK timeout everything from the oldest unacknowledged PSN on is
        // sent again; after retry_cnt timeouts the next one fails the request.
        self.count(|c| &mut c.retry_timeouts);
        self.common.loss_signs = self.common.loss_signs.wrapping_add(1);
        let qp = &mut *self.qp;
        if let Some((psn, code)) = qp.doubts() {
            // The peer's NAK was doubted, and silence has confirmed it.
            return self.handle_nak(now, psn, code, None);
        }
        let no_timer = qp.attr.timeout == 0;
        if no_timer || qp.conn.req.retry_left == 0 {
            let (timeout, retries) = (qp.conn.timeout_ns, u64::from(qp.attr.retry_cnt));
            let since = qp.mute_since();
            let (cause, a, b) = match self.explanation(since) {
                Some(known) => known,
                None if no_timer => (CauseCode::Deadline, timeout, 0),
                None => (CauseCode::RetryExceeded, timeout, retries),
            };
            return self.fail_request(now, index, wc_status::RETRY_EXC_ERR, cause, a, b);
        }
        if qp.conn.req.retry_left == qp.attr.retry_cnt {
            qp.conn.req.mute_since = qp.conn.req.silent_since;
        }
        qp.conn.req.retry_left -= 1;
        self.send_again(now);
    }

    /// Sends everything from the oldest unacknowledged PSN on again.
    fn send_again(&mut self, now: u64) {
        let (psn, peer) = (self.qp.conn.req.una_psn, self.qp.conn.peer);
        if peer != NONE {
            self.peer.tx.on_timeout(now);
            self.peer.rx.on_timeout(now);
        }
        self.doubt_association();
        // The timer starts again when something leaves: a queue that waits for its share of the
        // window has sent nothing that could be left unanswered.
        self.rewind(psn);
    }
}

/// Bytes that packets `from..to` of a WQE cost in the window.
pub(crate) fn window_cost(qp: &Qp, length: u64, from: u32, to: u32) -> u32 {
    let at = |k: u32| (u64::from(k) * u64::from(qp.conn.mtu)).min(length);
    (at(to) - at(from)) as u32 + (to - from) * PACKET_COST
}

impl Qp {
    /// When the peer's silence began, before all retries: an ICMP error that explains the silence
    /// may have come only once.
    pub(super) fn mute_since(&self) -> u64 {
        if self.conn.req.retry_left < self.attr.retry_cnt {
            self.conn.req.mute_since
        } else {
            self.conn.req.silent_since
        }
    }

    /// Whether room for `fits` packets is too little for a burst. A short burst costs nearly as
    /// much as a long one, and would divide the window into ever smaller pieces (TCP's silly
    /// window), so it waits for the ACK that the last burst requested. It does not wait for room
    /// for a whole burst, which would leave a long path idle.
    fn waits_for_more(&self, fits: u32, window: &Window) -> bool {
        let burst = (MAX_BURST as u32 / self.conn.mtu)
            .min(window.size() / 2 / (self.conn.mtu + PACKET_COST));
        fits < burst / 2 && self.conn.req.una_psn != self.conn.req.max_psn
    }

    /// Whether a burst of `cost` bytes from `psn` on, which does not end its message, asks for an
    /// ACK. An ACK costs the peer nearly as much as a burst, so a quarter of the window may go
    /// without. A burst that leaves no room for another, or that is sent again, asks for one.
    /// `within`: the packet is within a divided WRITE, and most likely within a burst. Then, if an
    /// answer is still to come, an eighth of the window may go without an ACK.
    fn asks_for_ack(
        &self,
        window: &Window,
        cost: u32,
        psn: Psn,
        psns_end: bool,
        within: bool,
    ) -> bool {
        let room = window.size().saturating_sub(window.inflight());
        let req = &self.conn.req;
        let unasked = req.unasked.saturating_add(cost);
        unasked >= window.size() / 4
            || room < cost.saturating_add(MAX_BURST as u32)
                && !(within && req.inflight > req.unasked && unasked < window.size() / 8)
            || psn != self.conn.req.max_psn
            || self.is_paced()
            || psns_end
    }
}

/// Whether a READ or atomic before the fenced request at an index has not ended. `rd_out` is
/// inexact after a loss, when an answer may come for a request that was sent twice.
#[cold]
fn waits_at_fence(qp: &mut Qp, sq: &EngineConsumer<'_, SendWqe>, index: u32) -> bool {
    let first = qp.conn.req.acked;
    (0..index.wrapping_sub(first))
        .map(|k| first.wrapping_add(k))
        .any(|i| !qp.wqe(i).done && sq.at(i).header().is_answered())
}

/// Whether the WQE at `index` must not be sent after a failure: the failed one, those behind it,
/// and those that have not begun. WQEs before it may be sent again, and must end first.
#[cold]
fn is_behind_failed(qp: &mut Qp, index: u32) -> bool {
    let first = qp.conn.req.released;
    let failed = (0..=index.wrapping_sub(first))
        .map(|k| *qp.wqe(first.wrapping_add(k)))
        .any(|ws| ws.done && ws.status != 0);
    failed || !qp.wqe(index).started
}

/// A run of a request, and where its bytes come from.
struct RequestRun {
    run: Run,
    /// PSN of the first packet; of a READ that of its answer.
    psn: Psn,
    /// Bytes of the request before the run.
    offset: u64,
    /// Bytes that the run carries or asks for.
    bytes: u32,
    /// Bytes that the run carries.
    payload: u32,
}

/// Packets `first_pkt..first_pkt + n` of a WQE.
fn run_of_request(qp: &Qp, wqe: &SendWqe, ws: &WqeState, first_pkt: u32, n: u32) -> RequestRun {
    let (rc, mtu) = (qp.kind.is_reliable(), u64::from(qp.conn.mtu));
    let offset = u64::from(first_pkt) * mtu;
    let bytes = (wqe.length - offset.min(wqe.length)).min(u64::from(n) * mtu) as u32;
    let psn = ws.psn.add(first_pkt);
    let op = u32::from(wqe.opcode);
    let kind = opcode::row(wqe.opcode).kind;
    let last = first_pkt + n == ws.npkts;
    // A field that a kind of request lacks is zero in its WQE, and its packets do not have the
    // field.
    let mut run = Run {
        first: first_pkt == 0,
        last,
        solicited: wqe.is_solicited(),
        // rxe rxe_req.c init_req_packet: The last packet of a message asks for an ACK.
        ack_req: rc && last,
        has_imm: matches!(op, wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM),
        has_inv: op == wr_opcode::SEND_WITH_INV,
        n,
        va: wqe.remote_addr,
        rkey: wqe.rkey,
        dma_len: wqe.length as u32,
        a: wqe.a,
        b: wqe.b,
        imm: wqe.imm,
        src_qpn: wqe.srqn,
        ..Run::new(qp.kind.class(), kind, qp.attr.dest_qp_num, psn)
    };
    if kind == PacketKind::ReadRequest || ws.divided {
        // A READ request is one packet, whatever it asks for.
        (run.first, run.last, run.n) = (true, true, 1);
        run.ack_req |= rc && kind == PacketKind::ReadRequest;
        (run.va, run.dma_len) = (wqe.remote_addr.wrapping_add(offset), bytes);
    }
    if kind.has_empty_answer() {
        (run.dma_len, run.a) = (wqe.a as u32, 0);
    }
    let payload = match kind {
        PacketKind::Send | PacketKind::Write => bytes,
        PacketKind::AtomicWrite => run.dma_len,
        _ => 0,
    };
    RequestRun { run, psn, offset, bytes, payload }
}

/// Result of one step of the requester.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Sent,
    /// Sent, and the send queue is empty.
    Last,
    Idle,
    Full,
}
