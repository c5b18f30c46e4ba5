//! Silent peers, and the receipts of those whose process has ended.

use super::EngineGuard;
use crate::receipt::Receipts;
use crate::roce::peer::{Path, Peer, PeerAddr};
use crate::roce::witness::Suspect;
use crate::verbs::cause::CauseCode;
use crate::wire::Psn;

/// Data: the witness and receipts.
impl EngineGuard<'_> {
    /// From now on, before a request fails because its peer is silent,
    /// [`EngineGuard::next_suspect`] names the peer at each check, and the caller answers by
    /// [`EngineGuard::testify`].
    pub fn set_witness(&mut self) {
        self.transport.common.has_witness = true;
    }

    /// Whether [`EngineGuard::next_suspect`] may return a QP.
    #[inline]
    pub fn has_suspects(&self) -> bool {
        !self.transport.common.suspects.is_empty()
    }

    /// Takes a QP whose request is about to fail.
    pub fn next_suspect(&mut self) -> Option<Suspect> {
        self.transport.next_suspect()
    }

    /// Answers why a suspect's peer is silent; `None`: unknown. Its request fails with that cause;
    /// with [`CauseCode::NotPolled`] when ten checks, 50 ms to 0.5 s apart, have said so.
    pub fn testify(&mut self, now: u64, qi: usize, code: Option<CauseCode>) {
        let (inner, s) = self.split();
        inner.transport.testify(s, qi, now, code);
    }

    /// The process of a suspect's peer has ended, and has left the receipt of an ACK for `psn`:
    /// ends the requests that it has accepted. [`EngineGuard::testify`] must follow.
    pub fn take_receipt(&mut self, now: u64, qi: usize, psn: Psn) {
        let (inner, s) = self.split();
        inner.transport.take_receipt(s, now, qi, psn);
    }

    /// From now on, ACKs that wait to leave through the port leave their receipts there.
    pub fn leave_receipts(&mut self, receipts: &'static Receipts) {
        self.transport.common.acks.receipts = Some(receipts);
    }

    /// Takes the `receipts` that the process at the other end of a link has left. The process has
    /// ended, and all that it had written to the link is read. The caller gives the link up
    /// afterwards.
    pub fn take_link_receipts(&mut self, now: u64, link: u16, receipts: &Receipts) {
        let (inner, s) = self.split();
        let is_lost = |peer: &Peer| peer.path == Path::Link(link);
        inner.transport.take_receipts(s, now, is_lost, receipts);
    }

    /// Takes the `receipts` that the process of a peer behind the port has left. The process has
    /// ended, and all that it had sent is received.
    pub fn take_port_receipts(&mut self, now: u64, at: &PeerAddr, receipts: &Receipts) {
        let (inner, s) = self.split();
        let is_lost = |peer: &Peer| {
            peer.path == Path::Port && (peer.addr.gid, peer.addr.port) == (at.gid, at.port)
        };
        inner.transport.take_receipts(s, now, is_lost, receipts);
    }

    /// The number of connections that have begun. When it changes, a receipt counts only if
    /// [`EngineGuard::is_receipt`] says so.
    #[inline]
    pub fn connections_begun(&self) -> u32 {
        self.transport.common.connections_begun
    }

    /// Whether a receipt is of the present connection of a QP.
    pub fn is_receipt(&self, qpn: u32, psn: Psn) -> bool {
        let qi = self.transport.common.qp_of(qpn);
        qi.is_some_and(|qi| self.transport.qps[qi].conn.resp.ack_psn == psn)
    }
}
