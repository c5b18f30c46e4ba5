//! Receipts ([`Receipts`]) of a link or of the port: left by the responder, read by the requester
//! when the other end is gone. A receipt of the port is left when its ACK begins to wait
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
    /// Leaves the receipt of the ACK that a QP owes after a run that came over a link.
    #[inline(always)]
    pub(crate) fn leave_receipt(&mut self, run: &Run, receipts: &Receipts) {
        let qp = self.common.qp_of(run.dest_qpn).map(|qi| &self.qps[qi]);
        let owed = qp.filter(|qp| qp.conn.resp.ack_owed).map(|qp| qp.conn.resp.ack_psn);
        let former = owed.map_or(0, |psn| receipts.leave(run.dest_qpn, psn));
        if former != 0 {
            self.common.flush_ack_of(former);
        }
    }

    /// Ends the requests that the other end of a path has accepted, by its receipts, because it is
    /// gone.
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
            if let Some(psn) = qp.responder_qpn().and_then(|qpn| receipts.find(qpn)) {
                self.take_receipt(s, now, qi, psn);
            }
        }
    }

    /// Takes the receipt of an ACK for `psn`, which the peer of a queue pair has left before it
    /// ended.
    pub(crate) fn take_receipt(&mut self, s: &Shared, now: u64, qi: usize, psn: Psn) {
        let qp = &self.qps[qi];
        let peer = &self.peers[qp.conn.peer as usize];
        let from = Origin { gid: peer.addr.gid, path: peer.path, port: peer.addr.port };
        let ack = plain_ack(qp.kind.class(), qp.qpn, psn);
        self.conn(s, qi).handle_run(now, &from, &ack, &[]);
    }
}

impl Qp {
    /// The QPN of the queue pair that acknowledges the requests of this one.
    pub(super) fn responder_qpn(&self) -> Option<u32> {
        let open = || self.dci.first().is_some_and(|a| a.phase == DcPhase::Open);
        let asks = self.kind.is_reliable() && self.kind.has_requester();
        (asks && (self.kind.has_fixed_peer() || open())).then_some(self.attr.dest_qp_num)
    }
}

impl Common {
    /// Lets the ACK of a QP leave with the next bursts, because its receipt was replaced.
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
