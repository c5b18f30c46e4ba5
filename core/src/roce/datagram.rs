//! UD: datagrams out and in.

use super::conn::Conn;
use super::peer::Path;
use super::rules::sge::CopyError;
use super::run::Run;
use super::txbuf::{Emission, TxBuf};
use super::Common;
use super::{Origin, Sent, Transport};
use crate::mem::TransferId;
use crate::ring::SlotRef;
use crate::verbs::cause::CauseCode;
use crate::verbs::objects::Ah;
use crate::verbs::req::{tx_block, SendBlock};
use crate::verbs::resp::Landing;
use crate::verbs::shared::Shared;
use crate::verbs::types::{wc_flags, wc_status, wr_opcode};
use crate::verbs::wqe::SendWqe;
use crate::verbs::NONE;
use crate::wire::grh::Fields;
use crate::wire::{Class, PacketKind, Psn};

/// Bytes of the GRH that come before the payload of a received datagram.
pub const GRH_LEN: usize = 40;

/// The QPN that a datagram is for.
fn dest_qpn(wqe: &SendWqe) -> u32 {
    (wqe.b >> 32) as u32 & 0xff_ffff
}

impl Transport {
    /// Sends datagrams to one destination until the burst is full or the next goes elsewhere.
    pub(crate) fn transmit_ud(
        &mut self,
        s: &Shared,
        qi: usize,
        tx: &mut TxBuf<'_>,
        now: u64,
    ) -> Sent {
        loop {
            let Some((index, ah)) = self.conn(s, qi).next_datagram(now) else { return Sent::Idle };
            let sq = s.sq(qi, &self.common.key);
            let slot = sq.at(index);
            let to = self.common.datagram_peer(&ah, dest_qpn(slot.header()));
            let peer = &self.peers[to as usize];
            // Over a link that is gone the datagram is lost, and its request completes with
            // success.
            let lost = peer.path == Path::Lost;
            if peer.path != tx.path() && !lost {
                return Sent::OtherPath;
            }
            if !lost && !tx.aim(to, &peer.flow, peer.max_seg) {
                return Sent::Full;
            }
            let grh = peer.addr.grh();
            let tx = (!lost).then_some(&mut *tx);
            if let Some(sent) = self.conn(s, qi).send_datagram(index, &slot, grh, tx, now) {
                return sent;
            }
        }
    }

    /// How the next datagram of a UD queue pair will travel.
    pub(crate) fn next_datagram_path(&self, s: &Shared, qi: usize) -> Option<Path> {
        let sq = s.sq(qi, &self.common.key);
        let next = self.qps[qi].conn.req.next;
        if next == sq.end() {
            return None;
        }
        let slot = sq.at(next);
        let wqe = slot.header();
        let ah = self.common.ah_pool.check(wqe.a).ok()?;
        let to = self.common.datagram_peer(&self.common.ahs[ah], dest_qpn(wqe));
        Some(self.peers[to as usize].path)
    }
}

impl Common {
    /// The peer record for a datagram to a QPN at the address of a handle.
    pub(super) fn datagram_peer(&self, ah: &Ah, dest_qpn: u32) -> u32 {
        if ah.others != NONE && !self.owns(dest_qpn) {
            self.siblings.peer_of(dest_qpn).unwrap_or(ah.others)
        } else {
            ah.peer
        }
    }
}

impl Conn<'_> {
    /// The index of the next datagram that may leave, and its address handle. `None`: none may
    /// leave now. A datagram that can never leave fails here.
    fn next_datagram(&mut self, now: u64) -> Option<(u32, Ah)> {
        let sq = self.q.engine_sq(&self.common.key);
        let tail = sq.end();
        let qp = &mut *self.qp;
        if !qp.can_send() || qp.conn.req.is(tx_block::DRAINING) || qp.conn.req.is(tx_block::FAILED)
        {
            return None;
        }
        match qp.conn.req.send_block() {
            SendBlock::None => {}
            SendBlock::Until(at) if at <= now => qp.conn.req.set_send_block(SendBlock::None),
            _ => {
                self.arm_timer();
                return None;
            }
        }
        let index = qp.conn.req.next;
        if index == tail {
            return None;
        }
        let slot = sq.at(index);
        let wqe = slot.header();
        let ah = self.common.ah_pool.check(wqe.a).ok().map(|i| self.common.ahs[i]);
        let mtu = u64::from(self.common.config.max_mtu);
        let (cause, status, a, b) = match ah.filter(|a| a.live && a.pd == qp.pd) {
            None => (CauseCode::BadAddressHandle, wc_status::LOC_QP_OP_ERR, wqe.a, 0),
            // rxe rxe_req.c rxe_requester, UD: A datagram longer than the MTU of the port is not
            // sent; its request ends with a length error.
            Some(_) if wqe.length > mtu => {
                (CauseCode::TooLong, wc_status::LOC_LEN_ERR, wqe.length, mtu)
            }
            Some(ah) => return Some((index, ah)),
        };
        self.fail_request(now, index, status, cause, a, b);
        None
    }

    /// Sends the datagram at an index, or (without `tx`) drops it; its request ends with that.
    /// `None`: the next may follow.
    fn send_datagram(
        &mut self,
        index: u32,
        slot: &SlotRef<'_, SendWqe>,
        grh: Fields,
        tx: Option<&mut TxBuf<'_>>,
        now: u64,
    ) -> Option<Sent> {
        let (qp, common) = (&mut *self.qp, &mut *self.common);
        let wqe = slot.header();
        if qp.bucket.available(now) == 0 {
            qp.conn.req.set_send_block(SendBlock::Until(
                qp.bucket.ready_at(now, wqe.length as u32).max(now + 1),
            ));
            self.arm_timer();
            return Some(Sent::Idle);
        }
        let mut run = Run::new(Class::Ud, PacketKind::Send, dest_qpn(wqe), qp.conn.req.next_psn);
        run.has_imm = u32::from(wqe.opcode) == wr_opcode::SEND_WITH_IMM;
        run.imm = wqe.imm;
        run.solicited = wqe.is_solicited();
        run.src_qpn = qp.qpn;
        // A packet has these fields in its IP header; a record and a run carry them beside it.
        run.grh = grh.sent();
        // IBTA 10.2.5: A Q_Key with its top bit set stands for that of the sending queue pair.
        run.qkey = if wqe.b as u32 & 1 << 31 != 0 { qp.attr.qkey } else { wqe.b as u32 };
        if let Some(tx) = tx {
            let (memory, pd) = (&common.memory, qp.pd);
            let of = TransferId::request(qp.qpn, index, 0);
            let (mtu, payload) = (common.config.max_mtu, wqe.length as u32);
            let what = Emission { run: &run, mtu, payload, ack_each_burst: false };
            let done =
                tx.emit(what, |off, dst, state| memory.fill(pd, slot, off.into(), dst, of, state));
            match done.stop {
                None if done.packets == 1 => {}
                None => return Some(Sent::Full),
                Some(stop) => {
                    self.stop_at_memory(index, stop, now);
                    self.arm_timer();
                    return Some(Sent::Idle);
                }
            }
        }
        let wire_bytes = run.wire_bytes(1, wqe.length as u32);
        qp.bucket.take(now, wire_bytes as u32);
        self.count_sent(1, wire_bytes);
        let qp = &mut *self.qp;
        let psn = qp.conn.req.next_psn;
        qp.begin_request(index, 1);
        qp.wqe(index).done = true;
        let next = psn.next();
        (qp.conn.req.next_psn, qp.conn.req.max_psn, qp.conn.req.una_psn) = (next, next, next);
        qp.conn.req.go_behind(index);
        qp.conn.req.acked = qp.conn.req.next;
        self.complete(now);
        None
    }

    /// Takes a datagram to the GID `to`, this engine's or a group's: 40 bytes of GRH first, then
    /// the payload.
    #[allow(clippy::too_many_arguments)] // who, to whom, and the packet
    pub(crate) fn handle_ud(
        &mut self,
        now: u64,
        from: &Origin,
        to: &[u8; 16],
        run: &Run,
        payload: &[u8],
    ) {
        // IBTA 9.6.1.4.1: A datagram with another Q_Key than the queue pair's is dropped.
        if run.kind != PacketKind::Send || run.qkey != self.qp.attr.qkey || run.n != 1 {
            return self.count(|c| &mut c.rcvd_refused);
        }
        let too_long = payload.len() > self.common.config.max_mtu as usize;
        // rxe rxe_resp.c check_resource, UD: A datagram without a receive request is dropped.
        if too_long || !self.makes_landing_room(now) || !self.take_recv() {
            return self.drop_message();
        }
        let bytes = GRH_LEN + payload.len();
        if bytes as u64 > u64::from(self.qp.conn.resp.recv.length) {
            // rxe rxe_resp.c send_data_in, UD: A datagram longer than its receive request is
            // dropped, and the request serves the next one.
            return self.drop_message();
        }
        // IBTA A17.4.5.2: A datagram is preceded by 40 bytes: the IPv6 header, or the IPv4 header
        // in the second half.
        let mut grh = [0u8; GRH_LEN];
        // UDP header 8, BTH 12, DETH 8, ICRC 4, ImmDt; the payload with its padding.
        let udp_len = ((payload.len() + 32 + 4 * usize::from(run.has_imm) + 3) & !3) as u16;
        run.grh.emit(&from.gid, to, udp_len, &mut grh);
        let (pd, sges) = (self.qp.recv_pd, &self.qp.conn.resp.recv.sges);
        let memory = &self.common.memory;
        let outcome = memory.scatter(pd, sges, 0, &grh).and_then(|header| {
            let body = memory.scatter(pd, sges, GRH_LEN as u64, payload)?;
            Ok(body.map(|body| memory.providers.later_of(header, body)).or(header))
        });
        match outcome {
            Ok(pending) => {
                let mut wc = self.end_recv(run, bytes as u32);
                wc.wc_flags |= wc_flags::GRH;
                wc.src_qp = run.src_qpn;
                match pending {
                    None if self.qp.conn.resp.landing_count() == 0 => {
                        self.push_reserved(self.qp.rcq, wc, run.solicited)
                    }
                    _ => {
                        let (provider, token) = pending.unwrap_or(self.qp.conn.resp.last_placed());
                        let wc = Some(wc);
                        let (psn, msn, solicited) = (Psn::new(0), 0, run.solicited);
                        let cq = self.qp.rcq;
                        self.push_landing(Landing { provider, token, psn, msn, wc, cq, solicited });
                    }
                }
            }
            Err(CopyError::Busy | CopyError::Pending(..)) => self.drop_message(),
            Err(CopyError::Refused(code, lkey, addr)) => {
                self.note(now, code, wc_status::LOC_PROT_ERR, u64::from(lkey), addr);
                self.fail_recv(wc_status::LOC_PROT_ERR);
                self.enter_error(None);
            }
        }
    }
}
