//! DC: one initiator talks to any number of targets, one at a time, and a target to any number of
//! initiators. `docs/internals/DC.md` has the protocol and why it neither loses nor repeats a
//! request.
//!
//! An association is a reliable connection that the two engines make by themselves: between the
//! initiator and a responder context of the target, a queue pair that no program sees. One packet
//! each way makes it; from then on all packets are those of RC, under opcodes of their own, and
//! every rule of RC applies as it stands. So this folder has only what makes, chooses and ends
//! associations: `initiator` for one side, `target` and the table of `contexts` for the other.

pub mod contexts;
mod initiator;
mod target;

use core::convert::Infallible;

use super::run::Run;
use super::txbuf::{Emission, TxBuf};
use super::{Origin, Sent, Transport};
use crate::roce::peer::Path;
use crate::verbs::kind::QpKind;
use crate::verbs::shared::Shared;
use crate::verbs::types::qp_state;
use crate::wire::dceth::{DcEth, DcMessage};
use crate::wire::{is_default_partition, Class, PacketKind, Psn};

/// The packet of a control message.
fn control(dest_qpn: u32, psn: Psn) -> Run {
    Run::new(Class::Dc, PacketKind::DcControl, dest_qpn, psn)
}

/// Writes a control packet into a burst. False: the burst had no room.
fn emit_control(tx: &mut TxBuf<'_>, run: &Run, eth: &DcEth) -> bool {
    let bytes = eth.bytes();
    let (mtu, payload) = (256, DcEth::LEN as u32);
    let what = Emission { run, mtu, payload, ack_each_burst: false };
    let fill = |_, to: &mut [u8], state: Option<u32>| {
        // The packet is shorter than those that are summed while they are copied.
        debug_assert!(state.is_none());
        to.copy_from_slice(&bytes);
        Ok::<u32, Infallible>(0)
    };
    tx.emit(what, fill).packets == 1
}

impl Transport {
    /// Takes a control packet of DC for the queue pair at an index.
    #[cold]
    pub(super) fn handle_dc_control(
        &mut self,
        s: &Shared,
        qi: usize,
        now: u64,
        from: &Origin,
        run: &Run,
        payload: &[u8],
    ) {
        let eth = DcEth::parse(payload).filter(|_| run.n == 1);
        let Some(eth) = eth else {
            self.common.counters.rcvd_malformed += 1;
            return;
        };
        let qp = &self.qps[qi];
        // A context that has failed waits for its initiator to close.
        let hears = qp.can_receive() || qp.kind == QpKind::DcContext && qp.state == qp_state::ERR;
        if !hears || !is_default_partition(run.pkey) {
            self.common.counters.rcvd_no_qp += 1;
            return;
        }
        let taken = match (self.qps[qi].kind, eth.message) {
            (QpKind::Dct, DcMessage::Open) => self.take_open(s, qi, now, from, run, &eth),
            (QpKind::DcContext, DcMessage::Close) => self.take_close(s, qi, now, from, &eth),
            (
                QpKind::Dci,
                DcMessage::Accept | DcMessage::Refuse | DcMessage::Reclaim | DcMessage::Gone,
            ) => self.take_answer(s, qi, now, from, &eth),
            _ => false,
        };
        let bytes = run.wire_bytes(1, DcEth::LEN as u32);
        let counters = &mut self.qps[qi].counters;
        match taken {
            true => counters.count_received(1, bytes),
            false => counters.rcvd_refused += 1,
        }
    }

    /// As [`Transport::transmit`], for kinds whose peer the program does not name.
    #[inline(never)]
    pub(super) fn transmit_unfixed(
        &mut self,
        s: &Shared,
        qi: usize,
        tx: &mut TxBuf<'_>,
        now: u64,
    ) -> Sent {
        match self.qps[qi].kind {
            QpKind::Dci => self.transmit_initiator(s, qi, tx, now),
            QpKind::Dct => self.transmit_replies(qi, tx),
            QpKind::DcContext => self.transmit_context(s, qi, tx, now),
            _ => self.transmit_ud(s, qi, tx, now),
        }
    }

    /// The path of the next packet of a queue pair whose peer the program does not name.
    #[inline(never)]
    pub(super) fn next_unfixed_path(&self, s: &Shared, qi: usize) -> Option<Path> {
        match self.qps[qi].kind {
            QpKind::Dci => self.next_initiator_path(s, qi),
            QpKind::Dct => self.next_reply_path(qi),
            QpKind::DcContext => self.path_to_peer(qi),
            _ => self.next_datagram_path(s, qi),
        }
    }

    /// The path to the peer of a queue pair.
    pub(in crate::roce) fn path_to_peer(&self, qi: usize) -> Option<Path> {
        self.peers.get(self.qps[qi].conn.peer as usize).map(|p| p.path)
    }

    /// Sends a control packet of a queue pair to a peer, by index. `None`: the packet has left, or
    /// the path to the peer is lost.
    fn send_control(
        &mut self,
        qi: usize,
        to: u32,
        tx: &mut TxBuf<'_>,
        run: &Run,
        eth: &DcEth,
    ) -> Option<Sent> {
        let peer = self.peers.get(to as usize)?;
        if peer.path != tx.path() {
            return (peer.path != Path::Lost).then_some(Sent::OtherPath);
        }
        if !tx.aim(to, &peer.flow, peer.max_seg) || !emit_control(tx, run, eth) {
            return Some(Sent::Full);
        }
        let bytes = run.wire_bytes(1, DcEth::LEN as u32);
        self.qps[qi].counters.count_sent(1, bytes);
        None
    }
}
