//! Receipts ([`Receipts`]) of a link or of the port: left by the responder, read by the requester
//! when the other end is gone. Those of the port are left where an ACK begins to wait
//! (`rules::ack`).

use super::answers::plain_ack;
use super::peer::Peer;
use super::run::Run;
use super::{Common, Origin, Transport};
use crate::receipt::Receipts;
use crate::verbs::association::DcPhase;
use crate::verbs::objects::Qp;
use crate::verbs::shared::Shared;
use crate::verbs::NONE;
use crate::wire::Psn;

impl Transport {
    /// After a run that came over a link: leaves the receipt of the ACK that its QP owes.
    #[inline(always)]
    pub(crate) fn leave_receipt(&mut self, run: &Run, receipts: &Receipts) {
        let qp = self.common.qp_of(run.dest_qpn).map(|qi| &self.qps[qi]);
        let owed = qp.filter(|qp| qp.conn.resp.ack_owed).map(|qp| qp.conn.resp.ack_psn);
        let former = owed.map_or(0, |psn| receipts.leave(run.dest_qpn, psn));
        if former != 0 {
            self.common.flush_ack_of(former);
        }
    }

    /// The other end of a path is gone: its receipts end the requests that it has accepted.
    pub(crate) fn take_receipts(
        &mut self,
        s: &Shared,
        now: u64,
        is_lost: impl Fn(&Peer) -> bool,
        receipts: &Receipts,
    ) {
        for qi in 0..self.qps.len() {
            let qp = &self.qps[qi];
            if !qp.live || qp.conn.peer == NONE || !is_lost(&self.peers[qp.conn.peer as usize]) {
                continue;
            }
            if let Some(psn) = qp.responder().and_then(|qpn| receipts.find(qpn)) {
                self.take_receipt(s, now, qi, psn);
            }
        }
    }

    /// The peer of a queue pair is gone, and its receipt is that of an ACK for `psn`.
    pub(crate) fn take_receipt(&mut self, s: &Shared, now: u64, qi: usize, psn: Psn) {
        let qp = &self.qps[qi];
        let peer = &self.peers[qp.conn.peer as usize];
        let from = Origin { gid: peer.addr.gid, path: peer.path, port: peer.addr.port };
        let ack = plain_ack(qp.kind.class(), qp.qpn, psn);
        self.conn(s, qi).handle_run(now, &from, &ack, &[]);
    }
}

impl Qp {
    /// The queue pair that acknowledges the requests of this one.
    pub(super) fn responder(&self) -> Option<u32> {
        let open = || self.dci.first().is_some_and(|a| a.phase == DcPhase::Open);
        let asks = self.kind.is_reliable() && self.kind.has_requester();
        (asks && (self.kind.has_fixed_peer() || open())).then_some(self.attr.dest_qp_num)
    }
}

impl Common {
    /// The receipt of a QP was replaced: its ACK leaves with the next bursts.
    #[cold]
    pub(crate) fn flush_ack_of(&mut self, qpn: u32) {
        if let Some(qi) = self.qp_of(qpn).filter(|&qi| self.acks.is_pending(qi)) {
            self.acks.forget(qi);
            self.ready.set(qi);
        }
    }

    /// Lets every owed ACK leave with the next bursts.
    #[cold]
    pub(crate) fn flush_acks(&mut self) {
        self.acks.flush(&mut self.ready);
    }
}
