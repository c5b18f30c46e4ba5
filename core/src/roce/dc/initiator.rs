//! The initiator: chooses the target that the next request names, opens and ends associations.

use super::{control, Sent, Transport};
use crate::roce::conn::Conn;
use crate::roce::peer::{Path, PROBE_MAX_NS, PROBE_NS};
use crate::roce::txbuf::TxBuf;
use crate::roce::{Common, Origin};
use crate::verbs::association::{Association, DcPhase, DcTarget};
use crate::verbs::cause::CauseCode;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::req::{tx_block, SendBlock};
use crate::verbs::shared::Shared;
use crate::verbs::transition::is_unicast;
use crate::verbs::types::wc_status;
use crate::verbs::wqe::DcAddr;
use crate::wire::dceth::{refusal, DcEth, DcMessage};
use crate::wire::mtu_bytes;

/// Bounds of a lease. The target keeps a silent initiator's context for so long. The initiator
/// stops using it after half of that time.
const LEASE_MIN_NS: u64 = 1_000_000_000;
const LEASE_MAX_NS: u64 = 60_000_000_000;
/// Shortest and longest time between two OPENs to a target that has no context free.
const BUSY_MIN_NS: u64 = 20_000;
const BUSY_MAX_NS: u64 = 1_000_000;

/// The request at the head of the send queue.
enum NextRequest {
    /// No request that may begin.
    None,
    /// A request without a target, which is executed here.
    Local(u32),
    /// A request to a target.
    For(DcTarget),
    /// A request, at an index, whose target does not exist.
    Bad(u32, u64),
}

impl Qp {
    /// Whether every request that has begun has ended. `end`: of the send queue. The next request
    /// may have begun although a window or the number of READs holds back its first packet: then
    /// its PSNs are those of this association.
    fn is_drained(&self, end: u32) -> bool {
        let req = &self.conn.req;
        let begun = req.next != end && self.has_begun(req.next);
        req.acked == req.next && req.cur_pkt == 0 && req.una_psn == req.max_psn && !begun
    }

    /// Time that a request may take until it fails without an answer.
    fn patience_ns(&self) -> u64 {
        let tries = if self.attr.timeout == 0 { 1 } else { u64::from(self.attr.retry_cnt) + 1 };
        self.conn.timeout_ns.saturating_mul(tries)
    }
}

impl Transport {
    /// As [`Qp::is_drained`], of the QP at an index.
    fn is_drained(&self, s: &Shared, qi: usize) -> bool {
        self.qps[qi].is_drained(s.sq(qi, &self.common.key).end())
    }

    /// The request at the head of a DCI's send queue.
    fn head_of(&self, s: &Shared, qi: usize) -> NextRequest {
        let qp = &self.qps[qi];
        let sq = s.sq(qi, &self.common.key);
        let (req, index) = (&qp.conn.req, qp.conn.req.next);
        let held = tx_block::DRAINING | tx_block::FAILED;
        if !qp.can_send() || req.is(held) || req.cur_pkt != 0 || index == sq.end() {
            return NextRequest::None;
        }
        if qp.has_begun(index) {
            return NextRequest::None;
        }
        let slot = sq.at(index);
        if slot.header().is_local() {
            return NextRequest::Local(index);
        }
        let addr = DcAddr::read(slot.tail());
        match self.common.dc_target(qp, &addr) {
            Some(target) if is_unicast(&self.peers[target.peer as usize].addr.gid) => {
                NextRequest::For(target)
            }
            _ => NextRequest::Bad(index, addr.ah),
        }
    }

    /// As [`Transport::transmit`], for a DCI: first the control message that its association owes,
    /// then the requests for the present target.
    pub(super) fn transmit_initiator(
        &mut self,
        s: &Shared,
        qi: usize,
        tx: &mut TxBuf<'_>,
        now: u64,
    ) -> Sent {
        if !self.dc.replies.is_empty() {
            match self.transmit_replies(qi, tx) {
                Sent::Idle => {}
                sent => return sent,
            }
        }
        loop {
            if !self.keeps_target(s, qi, now) {
                self.choose_target(s, qi, now);
                if let Some(sent) = self.send_owed(s, qi, tx) {
                    return sent;
                }
            }
            let qp = &mut self.qps[qi];
            let (phase, before) = (qp.association().phase, qp.conn.req.next_psn);
            if matches!(phase, DcPhase::Closing | DcPhase::Leaving) {
                self.leave(s, qi);
                continue;
            }
            let sent = match phase {
                DcPhase::Open => self.conn(s, qi).transmit_associated(tx, now),
                _ => Sent::Idle,
            };
            let qp = &mut self.qps[qi];
            if qp.conn.req.next_psn != before {
                qp.association().used_at = now;
            }
            let at = qp.association().next_deadline();
            if at != u64::MAX {
                self.conn(s, qi).wake_at(at);
            }
            // The rest of the queue may be for another target, and nothing of this association is
            // under way.
            let again = sent == Sent::Idle && self.may_change(s, qi);
            if !again {
                return sent;
            }
        }
    }

    /// Whether no target need be chosen: the next request is for the target of the latest one,
    /// whose association is open and owes no control message.
    fn keeps_target(&mut self, s: &Shared, qi: usize, now: u64) -> bool {
        let is_over = self.may_be_over(qi, now);
        let qp = &mut self.qps[qi];
        let next = qp.conn.req.next;
        let sq = s.sq(qi, &self.common.key);
        if next == sq.end() || is_over {
            return false;
        }
        let slot = sq.at(next);
        !slot.header().is_local()
            && self.common.try_open_association(qp, &DcAddr::read(slot.tail()))
    }

    /// Whether [`Transport::choose_target`] would do something.
    fn may_change(&self, s: &Shared, qi: usize) -> bool {
        let qp = &self.qps[qi];
        let is_empty = qp.conn.req.next == s.sq(qi, &self.common.key).end();
        if is_empty && qp.dci[0].phase == DcPhase::Open && !qp.dci[0].wanted {
            return false;
        }
        let head = self.head_of(s, qi);
        let drained = self.is_drained(s, qi);
        let association = &qp.dci[0];
        match (association.phase, head) {
            (DcPhase::Closing | DcPhase::Leaving, _) => true,
            (DcPhase::Apart, head) => !matches!(head, NextRequest::None),
            (DcPhase::Open, _) if drained && association.wanted => true,
            (DcPhase::Open, NextRequest::For(target)) => target != association.target && drained,
            (DcPhase::Open, NextRequest::Bad(..)) => drained,
            (DcPhase::Open, NextRequest::None | NextRequest::Local(_)) | (DcPhase::Opening, _) => {
                false
            }
        }
    }

    /// Begins or ends an association, as the next request requires.
    fn choose_target(&mut self, s: &Shared, qi: usize, now: u64) {
        loop {
            let head = self.head_of(s, qi);
            let drained = self.is_drained(s, qi);
            let association = self.qps[qi].association();
            match (association.phase, head) {
                (DcPhase::Apart, NextRequest::For(target)) => {
                    self.begin_opening(qi, target, now);
                    return self.note_path(s, qi);
                }
                (DcPhase::Apart, NextRequest::Local(index)) => {
                    if !self.conn(s, qi).execute_next(now, index) {
                        return;
                    }
                }
                (DcPhase::Apart | DcPhase::Open, NextRequest::Bad(index, ah)) if drained => {
                    let (status, cause) = (wc_status::LOC_QP_OP_ERR, CauseCode::BadAddressHandle);
                    return self.conn(s, qi).fail_request(now, index, status, cause, ah, 0);
                }
                (DcPhase::Open, _) if drained && association.wanted => {
                    association.phase = DcPhase::Closing;
                    return;
                }
                (DcPhase::Open, NextRequest::For(target)) if drained => {
                    if association.target != target {
                        association.phase = DcPhase::Closing;
                    } else if self.may_be_over(qi, now) {
                        self.qps[qi].association().phase = DcPhase::Leaving;
                    }
                    return;
                }
                _ => return,
            }
        }
    }

    /// Whether the target may have given the context to another initiator. Within the engine its
    /// table shows that.
    fn may_be_over(&self, qi: usize, now: u64) -> bool {
        let qp = &self.qps[qi];
        if !qp.conn.loopback {
            return qp.dci[0].is_stale(now);
        }
        let context = self.common.qp_of(qp.attr.dest_qp_num).map(|at| &self.qps[at]);
        !context.is_some_and(|c| c.kind == QpKind::DcContext && c.attr.dest_qp_num == qp.qpn)
    }

    /// Asks a target for an association.
    fn begin_opening(&mut self, qi: usize, target: DcTarget, now: u64) {
        let qp = &mut self.qps[qi];
        let peer = &mut self.peers[target.peer as usize];
        peer.refs = peer.refs.saturating_add(1);
        qp.conn.peer = target.peer;
        qp.conn.loopback = peer.path == Path::Loopback;
        qp.conn.mtu = mtu_bytes(qp.attr.path_mtu).unwrap_or(256);
        qp.conn.req.retry_left = qp.attr.retry_cnt;
        qp.conn.req.rnr_left = qp.attr.rnr_retry;
        let patience = qp.patience_ns();
        let again = PROBE_NS.min(qp.conn.timeout_ns);
        let association = qp.association();
        *association = Association {
            phase: DcPhase::Opening,
            target,
            // The upper half is the life of the initiator.
            id: association.id & !0xffff_ffff | u64::from((association.id as u32).wrapping_add(1)),
            asks: true,
            since: now,
            again_at: now.saturating_add(again),
            wait_ns: again,
            deadline: now.saturating_add(patience),
            lease_ns: patience.saturating_mul(2).clamp(LEASE_MIN_NS, LEASE_MAX_NS),
            max_rd_atomic: association.max_rd_atomic,
            ..Association::default()
        };
    }

    /// Sends the owed OPEN or CLOSE. `None`: none is owed any more.
    fn send_owed(&mut self, s: &Shared, qi: usize, tx: &mut TxBuf<'_>) -> Option<Sent> {
        let qp = &mut self.qps[qi];
        let (qpn, psn, mtu) = (qp.qpn, qp.conn.req.next_psn, qp.attr.path_mtu as u8);
        let context = qp.attr.dest_qp_num;
        let a = *qp.association();
        let (run, eth) = match a.phase {
            DcPhase::Opening | DcPhase::Open if a.asks => {
                let resumes = a.phase == DcPhase::Open;
                let eth = DcEth {
                    flags: if resumes { DcEth::RESUME } else { 0 },
                    mtu,
                    word: a.target.key,
                    time: (a.lease_ns / 1_000_000) as u32,
                    depth: a.max_rd_atomic,
                    incarnation: a.incarnation,
                    ..DcEth::new(DcMessage::Open, qpn, a.id)
                };
                (control(a.target.dctn, psn), eth)
            }
            DcPhase::Closing => (control(context, psn), DcEth::new(DcMessage::Close, qpn, a.id)),
            _ => return None,
        };
        let to = self.qps[qi].conn.peer;
        let sent = self.send_control(qi, to, tx, &run, &eth);
        if sent.is_none() {
            self.qps[qi].association().asks = false;
            let closes = a.phase == DcPhase::Closing;
            if closes {
                self.conn(s, qi).count(|c| &mut c.dc_closed);
            }
        }
        sent
    }

    /// Ends the association on this side, and takes a user from the peer's record.
    fn leave(&mut self, s: &Shared, qi: usize) {
        self.conn(s, qi).forget_inflight();
        debug_assert!(!self.qps[qi].can_send() || self.is_drained(s, qi), "its PSNs are taken");
        let qp = &mut self.qps[qi];
        let peer = qp.conn.leave_peer();
        let limited = qp.attr.rate_limit_bytes_per_s != 0;
        qp.set_paced(limited);
        let association = qp.association();
        association.phase = DcPhase::Apart;
        association.target = DcTarget::NONE;
        let most = association.max_rd_atomic;
        qp.attr.max_rd_atomic = most;
        qp.attr.dest_qp_num = 0;
        self.peer_leave(peer);
    }

    /// The path of the next packet of a DCI.
    pub(super) fn next_initiator_path(&self, s: &Shared, qi: usize) -> Option<Path> {
        let owed = self.next_reply_path(qi);
        owed.or_else(|| self.path_to_peer(qi)).or_else(|| match self.head_of(s, qi) {
            NextRequest::For(target) => Some(self.peers[target.peer as usize].path),
            _ => None,
        })
    }

    /// Takes an answer of a target. False: the answer is not for the present association.
    pub(super) fn take_answer(
        &mut self,
        s: &Shared,
        qi: usize,
        now: u64,
        from: &Origin,
        eth: &DcEth,
    ) -> bool {
        let mut c = self.conn(s, qi);
        let a = *c.qp.association();
        let is_over = eth.id != a.id || a.phase == DcPhase::Apart;
        if eth.version == DcEth::VERSION && is_over && eth.message == DcMessage::Reclaim {
            // The CLOSE of the association that is asked for was lost, or a late OPEN has made it.
            let close = DcEth::new(DcMessage::Close, c.qp.qpn, eth.id);
            let run = control(eth.qpn, c.qp.conn.req.next_psn);
            return self.reply(qi, from, run, close);
        }
        if eth.version != DcEth::VERSION
            || eth.id != a.id
            || !c.has_address_of_peer(&from.gid, from.path)
        {
            return false;
        }
        match (eth.message, a.phase) {
            (DcMessage::Accept, DcPhase::Opening) => c.take_accept(now, eth),
            // The target confirms the association.
            (DcMessage::Accept, DcPhase::Open) => {}
            (DcMessage::Refuse, DcPhase::Opening) => c.take_refusal(now, eth),
            (DcMessage::Reclaim, DcPhase::Open) => c.qp.association().wanted = true,
            (DcMessage::Gone, DcPhase::Open) => c.take_gone(now, eth),
            _ => return false,
        }
        self.common.ready.set(qi);
        true
    }
}

impl Common {
    /// The target of a request of a DC initiator. `None`: its address handle is stale.
    fn dc_target(&self, qp: &Qp, addr: &DcAddr) -> Option<DcTarget> {
        let ah = &self.ahs[self.ah_pool.check(addr.ah).ok()?];
        let DcAddr { dctn, key, .. } = *addr;
        let peer = self.datagram_peer(ah, dctn);
        (ah.live && ah.pd == qp.pd).then_some(DcTarget { peer, dctn, key })
    }

    /// Whether the association of a DC initiator serves a request: it is open, and its target is
    /// the one that the request names. Notes the request's address if so.
    #[inline(always)]
    fn try_target(&self, qp: &mut Qp, addr: &DcAddr) -> bool {
        let association = qp.association();
        if association.phase != DcPhase::Open || association.wanted {
            return false;
        }
        association.named == (*addr, self.ahs_ended) || self.look_up_target(qp, addr)
    }

    /// As [`Common::try_target`], by a look-up of the address handle, whose result is noted.
    #[inline(never)]
    fn look_up_target(&self, qp: &mut Qp, addr: &DcAddr) -> bool {
        let target = self.dc_target(qp, addr);
        let association = qp.association();
        let same = target == Some(association.target);
        if same {
            association.named = (*addr, self.ahs_ended);
        }
        same
    }

    /// As [`Common::try_target`], for a request that is to leave at once: no control message is
    /// owed, and the target still has the association.
    #[inline(always)]
    pub(in crate::roce) fn try_association(&self, qp: &mut Qp, addr: &DcAddr, now: u64) -> bool {
        self.try_open_association(qp, addr) && !qp.association().is_stale(now)
    }

    /// As [`Common::try_association`], if it is known that the target has the association.
    #[inline(always)]
    pub(in crate::roce) fn try_open_association(&self, qp: &mut Qp, addr: &DcAddr) -> bool {
        self.try_target(qp, addr) && !qp.association().asks
    }
}

impl Conn<'_> {
    /// Executes the request at the head of the queue, which has no target. False: the request
    /// waits, and its timer is armed.
    fn execute_next(&mut self, now: u64, index: u32) -> bool {
        let sq = self.q.engine_sq(&self.common.key);
        let wqe = *sq.at(index).header();
        self.execute_local(now, index, &wqe);
        !matches!(self.qp.conn.req.send_block(), SendBlock::Until(_))
    }

    /// Whether an initiator may go on after a request has ended: to the next request, maybe of
    /// another target, or away from a target that wants its context back.
    pub(in crate::roce) fn may_go_on(&self) -> bool {
        if self.qp.kind != QpKind::Dci {
            return false;
        }
        let waits = self.q.engine_sq(&self.common.key).end() != self.qp.conn.req.next;
        waits || self.qp.dci[0].wanted
    }

    /// Whether the next request must wait, because it is for another target than the present one,
    /// or the present one wants its context back.
    #[inline(always)]
    pub(in crate::roce) fn must_change(&mut self, index: u32) -> bool {
        let sq = self.q.engine_sq(&self.common.key);
        let addr = DcAddr::read(sq.at(index).tail());
        !self.common.try_target(self.qp, &addr)
    }

    /// Takes the target's ACCEPT: it has a context for this initiator.
    fn take_accept(&mut self, now: u64, eth: &DcEth) {
        let qp = &mut *self.qp;
        qp.attr.dest_qp_num = eth.qpn;
        qp.attr.max_rd_atomic = qp.attr.max_rd_atomic.min(eth.depth);
        if let Some(mtu) = mtu_bytes(u32::from(eth.mtu)) {
            qp.conn.mtu = qp.conn.mtu.min(mtu);
        }
        let association = qp.association();
        association.phase = DcPhase::Open;
        association.incarnation = eth.word;
        association.used_at = now;
        association.busy = false;
        association.asks = false;
        self.count(|c| &mut c.dc_opened);
    }

    /// Takes the target's refusal of an association.
    fn take_refusal(&mut self, now: u64, eth: &DcEth) {
        let index = self.qp.conn.req.next;
        let association = self.qp.association();
        let dctn = u64::from(association.target.dctn);
        match eth.flags {
            refusal::BUSY => {
                let least =
                    u64::from(eth.time).saturating_mul(1_000).clamp(BUSY_MIN_NS, BUSY_MAX_NS);
                let wait = match association.busy {
                    true => association.wait_ns.saturating_mul(2).clamp(least, BUSY_MAX_NS),
                    false => least,
                };
                association.busy = true;
                association.wait_ns = wait;
                association.again_at = now.saturating_add(wait);
                let at = association.next_deadline();
                self.wake_at(at);
            }
            refusal::KEY => {
                let (status, cause) = (wc_status::REM_ACCESS_ERR, CauseCode::DcKey);
                self.fail_request(now, index, status, cause, dctn, 0);
            }
            _ => {
                let (status, cause) = (wc_status::REM_INV_REQ_ERR, CauseCode::RemoteInvalidRequest);
                self.fail_request(now, index, status, cause, dctn, 0);
            }
        }
    }

    /// Takes the target's message that it does not know the association: requests under way may
    /// have been executed or not.
    fn take_gone(&mut self, now: u64, eth: &DcEth) {
        self.qp.association().phase = DcPhase::Leaving;
        let Some(index) = self.oldest_open() else { return };
        let dctn = u64::from(self.qp.association().target.dctn);
        let anew = u64::from(eth.flags & DcEth::RESTARTED);
        let (status, cause) = (wc_status::RETRY_EXC_ERR, CauseCode::DcTargetGone);
        self.fail_request(now, index, status, cause, dctn, anew);
    }

    /// Makes a DCI ask a silent peer whether the association still exists.
    pub(in crate::roce) fn doubt_association(&mut self) {
        if self.qp.kind == QpKind::Dci {
            self.qp.association().asks = true;
        }
    }

    /// Asks again, or gives up, when the timer of a DCI runs.
    #[cold]
    pub(in crate::roce) fn on_dc_timer(&mut self, now: u64) {
        let association = self.qp.association();
        if association.phase != DcPhase::Opening {
            return;
        }
        if now >= association.deadline {
            return self.give_up_opening(now);
        }
        if now >= association.again_at {
            association.asks = true;
            association.again_at = now.saturating_add(association.wait_ns);
            if !association.busy {
                association.wait_ns = association.wait_ns.saturating_mul(2).min(PROBE_MAX_NS);
            }
            self.common.ready.set(self.qi);
        }
        let at = self.qp.association().next_deadline();
        self.wake_at(at);
    }

    /// Fails the request at the head, because no target has answered in time.
    fn give_up_opening(&mut self, now: u64) {
        let (timeout, retries) = (self.qp.conn.timeout_ns, u64::from(self.qp.attr.retry_cnt));
        let a = *self.qp.association();
        let (cause, x, y) = match self.explanation(a.since) {
            _ if a.busy => (CauseCode::DcNoContext, a.target.dctn.into(), 0),
            Some(known) => known,
            None if self.qp.attr.timeout == 0 => (CauseCode::Deadline, timeout, 0),
            None => (CauseCode::RetryExceeded, timeout, retries),
        };
        let index = self.qp.conn.req.next;
        self.fail_request(now, index, wc_status::RETRY_EXC_ERR, cause, x, y);
    }
}
