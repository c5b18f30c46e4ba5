//! The target: takes associations into its contexts, refuses others, and answers packets of
//! associations that it does not know.

use super::contexts::{Context, Reply};
use super::{control, Sent, Transport};
use crate::roce::peer::{Path, PeerAddr};
use crate::roce::run::Run;
use crate::roce::txbuf::TxBuf;
use crate::roce::Origin;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::shared::Shared;
use crate::verbs::types::{qp_state, wc_status, QpAttr};
use crate::verbs::NONE;
use crate::wire::dceth::{refusal, DcEth, DcMessage};
use crate::wire::{mtu_bytes, Psn};

/// Most contexts of one initiator: that of its present association, and one that a late OPEN has
/// made.
const CONTEXTS_EACH: usize = 2;
/// Shortest time between two messages by which an initiator is asked for its context.
const RECLAIM_INTERVAL_NS: u64 = 1_000_000;
/// Time in microseconds that an initiator without a context is told to wait: a round trip, in which
/// another initiator gives up its own.
const BUSY_US: u32 = 100;
/// Bounds of the lease that an initiator may ask for.
const LEASE_MIN_MS: u32 = 1_000;
const LEASE_MAX_MS: u32 = 60_000;

/// Whether two keys are equal. The time that this takes does not depend on where they differ.
fn is_same_key(a: u64, b: u64) -> bool {
    core::hint::black_box(a ^ b) == 0
}

impl Transport {
    /// Takes the OPEN of an initiator to a DCT. False: the OPEN is dropped.
    pub(super) fn take_open(
        &mut self,
        s: &Shared,
        dct: usize,
        now: u64,
        from: &Origin,
        run: &Run,
        eth: &DcEth,
    ) -> bool {
        let back = control(eth.qpn, run.psn);
        let refuse = |flags, time| DcEth { flags, time, ..answer(DcMessage::Refuse, eth) };
        if eth.version != DcEth::VERSION {
            return self.reply(dct, from, back, refuse(refusal::VERSION, 0));
        }
        // Nothing is made or kept for the sender before its key is known to be right.
        if !is_same_key(eth.word, self.qps[dct].init.dc_key) {
            self.conn(s, dct).count(|c| &mut c.dc_refused_key);
            return self.dc.take_key_refusal(now)
                && self.reply(dct, from, back, refuse(refusal::KEY, 0));
        }
        let known = |c: &Context| {
            c.dct == dct as u32 && c.id == eth.id && c.gid == from.gid && c.qpn == eth.qpn
        };
        if let Some(at) = self.dc.list.iter().position(known) {
            // The initiator asks again, or asks whether the association still exists.
            let context = &mut self.dc.list[at];
            context.owes = Some(DcMessage::Accept);
            context.since = now;
            let qi = context.qi as usize;
            self.common.ready.set(qi);
            return true;
        }
        if eth.flags & DcEth::RESUME != 0 {
            self.conn(s, dct).count(|c| &mut c.dc_gone);
            let incarnation = self.dc.incarnation;
            let anew = eth.incarnation != incarnation;
            let flags = if anew { DcEth::RESTARTED } else { 0 };
            let gone = DcEth { flags, word: incarnation, ..answer(DcMessage::Gone, eth) };
            return self.reply(dct, from, back, gone);
        }
        let made = self
            .choose_context(s, dct, now, from, eth.qpn)
            .and_then(|at| self.bind_context(s, at, dct, now, from, run, eth).then_some(()));
        if made.is_none() {
            self.conn(s, dct).count(|c| &mut c.dc_busy);
            return self.reply(dct, from, back, refuse(refusal::BUSY, BUSY_US));
        }
        self.conn(s, dct).count(|c| &mut c.dc_accepted);
        true
    }

    /// Chooses a context for one more initiator. `None`: none is free, and an initiator is asked
    /// for its own.
    fn choose_context(
        &mut self,
        s: &Shared,
        dct: usize,
        now: u64,
        from: &Origin,
        qpn: u32,
    ) -> Option<usize> {
        let (mut free, mut wanted, mut over) = (None::<(u8, u64, usize)>, None, None);
        let is_own = |c: &Context| !c.is_free() && c.gid == from.gid && c.qpn == qpn;
        let crowded = self.dc.list.iter().filter(|c| is_own(c)).count() >= CONTEXTS_EACH;
        let srq = self.qps[dct].srq;
        for at in 0..self.dc.list.len() {
            let context = &mut self.dc.list[at];
            if crowded && !is_own(context) {
                continue;
            }
            let qp = &self.qps[context.qi as usize];
            if context.is_free() {
                // A context that holds a receive request of this SRQ comes first, one that holds a
                // request of another SRQ last.
                let holds = match qp.conn.resp.recv.taken {
                    true if qp.srq == srq => 0,
                    false => 1,
                    true => 2,
                };
                let rank = (holds, context.since, at);
                free = Some(free.map_or(rank, |best| best.min(rank)));
                continue;
            }
            let silence = context.silence(qp, now);
            let is_idle = qp.is_idle_context();
            // In the middle of a message an initiator has twice the time.
            let lease = context.lease_ns.saturating_mul(if is_idle { 1 } else { 2 });
            if silence > lease {
                over = over.max(Some((silence, at)));
            } else if qp.state == qp_state::RTR
                && context.owes.is_none()
                && now >= context.reclaim_at
            {
                // An idle context is preferred, because the initiator of any other ends its
                // requests first.
                wanted = wanted.max(Some((is_idle, silence, at)));
            }
        }
        if let Some((.., at)) = free {
            return Some(at);
        }
        if let Some((_, at)) = over {
            self.free_context(s, at, now);
            return Some(at);
        }
        let (.., at) = wanted?;
        let context = &mut self.dc.list[at];
        context.owes = Some(DcMessage::Reclaim);
        context.reclaim_at = now.saturating_add(RECLAIM_INTERVAL_NS);
        let qi = context.qi as usize;
        self.common.ready.set(qi);
        self.conn(s, dct).count(|c| &mut c.dc_reclaimed);
        None
    }

    /// Gives a free context to an initiator. False: no record is left for the initiator's address,
    /// or the context cannot be used now.
    #[allow(clippy::too_many_arguments)] // who, for whom, and what it asked for
    fn bind_context(
        &mut self,
        s: &Shared,
        at: usize,
        dct: usize,
        now: u64,
        from: &Origin,
        run: &Run,
        eth: &DcEth,
    ) -> bool {
        let srq = self.qps[dct].srq;
        if !self.hands_over(s, self.dc.list[at].qi as usize, srq) {
            return false;
        }
        let Some((peer, loopback)) = self.peer_of_origin(dct, from) else { return false };
        let each = self.dc.numbers_each();
        let context = &mut self.dc.list[at];
        context.number = (context.number + 1) % each.max(1) as u32;
        let qpn = self.dc.numbers[at * each + context.number as usize];
        let wants_link = matches!(from.path, Path::Link(_));
        self.dc.want_links |= wants_link;
        let context = &mut self.dc.list[at];
        let lease_ms = eth.time.clamp(LEASE_MIN_MS, LEASE_MAX_MS);
        let qi = context.qi as usize;
        *context = Context {
            dct: dct as u32,
            id: eth.id,
            gid: from.gid,
            qpn: eth.qpn,
            seen: self.qps[qi].counters.rcvd_pkts,
            since: now,
            lease_ns: u64::from(lease_ms) * 1_000_000,
            owes: Some(DcMessage::Accept),
            reclaim_at: 0,
            wants_link,
            ..*context
        };
        let t = &self.qps[dct];
        let (pd, recv_pd, rcq, shown) = (t.pd, t.recv_pd, t.rcq, t.qpn);
        let (access, rnr) = (t.attr.qp_access_flags, t.attr.min_rnr_timer);
        let (mtu, most) = (t.attr.path_mtu, self.common.config.max_rd_atomic.min(255) as u8);
        let index = qpn.wrapping_sub(self.common.qpn_base) as usize;
        self.common.by_qpn[index] = qi as u32 + 1;
        let qp = &mut self.qps[qi];
        (qp.pd, qp.recv_pd, qp.srq, qp.rcq) = (pd, recv_pd, srq, rcq);
        (qp.qpn, qp.wc_qpn) = (qpn, shown);
        qp.attr = QpAttr {
            path_mtu: mtu.min(u32::from(eth.mtu).max(1)),
            dest_qp_num: eth.qpn,
            qp_access_flags: access,
            min_rnr_timer: rnr,
            max_dest_rd_atomic: eth.depth.min(most),
            port_num: 1,
            ..QpAttr::default()
        };
        qp.conn.mtu = mtu_bytes(qp.attr.path_mtu).unwrap_or(256);
        (qp.conn.peer, qp.conn.loopback) = (peer, loopback);
        qp.conn.resp.epsn = run.psn;
        qp.conn.resp.ack_psn = run.psn.prev();
        self.conn(s, qi).begin_acks();
        self.common.connections_begun = self.common.connections_begun.wrapping_add(1);
        self.conn(s, qi).set_state(qp_state::RTR);
        self.common.ready.set(qi);
        true
    }

    /// Ends the receive request that a free context holds, if it is of another SRQ than the one
    /// that the context will serve. It completes as flushed, unless the DCT that took it has ended.
    /// False: its CQ has no room.
    fn hands_over(&mut self, s: &Shared, qi: usize, srq: u32) -> bool {
        let qp = &self.qps[qi];
        if !qp.conn.resp.recv.taken || qp.srq == srq {
            return true;
        }
        if qp.rcq != NONE {
            self.conn(s, qi).fail_recv(wc_status::WR_FLUSH_ERR);
            if self.qps[qi].conn.resp.recv.taken {
                return false;
            }
        }
        self.qps[qi].conn.resp.recv = Default::default();
        true
    }

    /// The record of the address from which a control packet came, with one more user. `None`: no
    /// record is free.
    fn peer_of_origin(&mut self, dct: usize, from: &Origin) -> Option<(u32, bool)> {
        let (local, ah) = (self.common.local, self.qps[dct].attr.ah);
        let addr = PeerAddr {
            gid: from.gid,
            scope_id: if from.gid[..2] == [0xfe, 0x80] { local.scope_id } else { 0 },
            port: local.port,
            traffic_class: ah.traffic_class,
            hop_limit: ah.hop_limit,
            flow_label: ah.flow_label,
        };
        let path = match from.path {
            Path::Loopback => Path::Loopback,
            // The way back over a link is another link, which may not exist yet.
            Path::Port | Path::Link(_) | Path::Lost => Path::Port,
        };
        let peer = self.peer_join(addr, path)?;
        Some((peer, path == Path::Loopback))
    }

    /// Ends an association. False: the context is of another one.
    pub(super) fn take_close(
        &mut self,
        s: &Shared,
        qi: usize,
        now: u64,
        from: &Origin,
        eth: &DcEth,
    ) -> bool {
        let at = self.context_of(qi);
        let context = &self.dc.list[at];
        let ours = context.id == eth.id && context.qpn == eth.qpn && !context.is_free();
        if !ours || context.gid != from.gid {
            return false;
        }
        self.free_context(s, at, now);
        true
    }

    /// Queues an answer that belongs to no context: of a DCT, or of a DCI to a context that is not
    /// that of its association. False: the answer finds no place.
    pub(super) fn reply(&mut self, qi: usize, from: &Origin, run: Run, eth: DcEth) -> bool {
        if self.dc.replies.is_full() {
            return false;
        }
        let Some((peer, _)) = self.peer_of_origin(qi, from) else { return false };
        let queued = self.dc.replies.push(Reply { of: qi as u32, peer, run, eth });
        debug_assert!(queued.is_ok(), "a place was checked");
        self.common.ready.set(qi);
        true
    }

    /// The place of the next such answer of a queue pair.
    fn next_reply(&self, qi: usize) -> Option<usize> {
        self.dc.replies.iter().position(|reply| reply.of == qi as u32)
    }

    /// Sends the answers that [`Transport::reply`] has queued.
    pub(super) fn transmit_replies(&mut self, dct: usize, tx: &mut TxBuf<'_>) -> Sent {
        while let Some(at) = self.next_reply(dct) {
            let Reply { peer: to, run, eth, .. } = self.dc.replies[at];
            if let Some(sent) = self.send_control(dct, to, tx, &run, &eth) {
                return sent;
            }
            self.dc.replies.remove(at);
            self.peer_leave(to);
        }
        Sent::Idle
    }

    /// The path of the next of these answers.
    pub(super) fn next_reply_path(&self, dct: usize) -> Option<Path> {
        let at = self.next_reply(dct)?;
        self.peers.get(self.dc.replies[at].peer as usize).map(|p| p.path)
    }

    /// As [`Transport::transmit`], for a context: the owed control message, then its answers.
    pub(super) fn transmit_context(
        &mut self,
        s: &Shared,
        qi: usize,
        tx: &mut TxBuf<'_>,
        now: u64,
    ) -> Sent {
        let at = self.context_of(qi);
        let context = self.dc.list[at];
        if let Some(message) = context.owes {
            let (run, eth) = self.control_of(&self.qps[qi], &context, message);
            let to = self.qps[qi].conn.peer;
            if let Some(sent) = self.send_control(qi, to, tx, &run, &eth) {
                return sent;
            }
            self.dc.list[at].owes = None;
        }
        self.conn(s, qi).transmit_associated(tx, now)
    }

    /// The control message of a context, and its packet.
    fn control_of(&self, qp: &Qp, context: &Context, message: DcMessage) -> (Run, DcEth) {
        debug_assert!(qp.kind == QpKind::DcContext && context.dct != NONE);
        let base = DcEth::new(message, qp.qpn, context.id);
        let expected: Psn = qp.conn.resp.epsn;
        let eth = match message {
            DcMessage::Accept => DcEth {
                mtu: qp.attr.path_mtu as u8,
                word: self.dc.incarnation,
                time: (context.lease_ns / 1_000_000) as u32,
                depth: qp.attr.max_dest_rd_atomic,
                ..base
            },
            _ => base,
        };
        (control(context.qpn, expected), eth)
    }
}

/// An answer to an initiator's OPEN that names no context.
fn answer(message: DcMessage, to: &DcEth) -> DcEth {
    DcEth::new(message, to.qpn, to.id)
}
