//! Which queue pair a packet is of, and a refusal that the responder did not decide: for faults
//! that the device's owner injects ([`crate::inject`]). Nothing here is called without them.

use super::Guard;
use crate::roce::peer::PeerAddr;
use crate::roce::Transport;
use crate::verbs::objects::Qp;
use crate::wire::Psn;

/// A queue pair, as far as its packets are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketQp {
    /// Its index.
    pub index: usize,
    /// The first PSN that it sends, and the first that it expects, if its attributes name them.
    pub first: Option<(Psn, Psn)>,
    /// GID of its peer, if it has one.
    pub peer: Option<[u8; 16]>,
    /// The PSN that its responder expects now.
    pub expected: Psn,
    /// Path MTU in bytes; 0: it has no connection.
    pub mtu: u32,
    /// A packet of it may come again.
    pub is_reliable: bool,
}

impl PacketQp {
    fn of(t: &Transport, index: usize, qp: &Qp) -> PacketQp {
        let first = (Psn::new(qp.attr.sq_psn), Psn::new(qp.attr.rq_psn));
        PacketQp {
            index,
            first: qp.kind.has_fixed_peer().then_some(first),
            peer: t.peers.get(qp.conn.peer as usize).map(|p| p.addr.gid),
            expected: qp.conn.resp.epsn,
            mtu: qp.conn.mtu,
            is_reliable: qp.kind.is_reliable(),
        }
    }
}

/// Control: what injected faults ask for.
impl Guard<'_> {
    /// The queue pair of a number, if it takes packets.
    pub fn place_of(&self, qpn: u32) -> Option<PacketQp> {
        let t = &self.transport;
        let index = t.common.qp_of(qpn)?;
        t.qps.get(index).filter(|qp| qp.can_receive()).map(|qp| PacketQp::of(t, index, qp))
    }

    /// The connected queue pair that sends to the number `qpn` at an address. `guess`: an index to
    /// look at first. Cost: a look at each queue pair if the guess is wrong.
    pub fn sender_to(&self, to: &PeerAddr, qpn: u32, guess: usize) -> Option<PacketQp> {
        let t = &self.transport;
        let is_it = |qp: &Qp| {
            let peer = t.peers.get(qp.conn.peer as usize);
            qp.live
                && qp.can_receive()
                && qp.kind.is_connected()
                && qp.attr.dest_qp_num == qpn
                && peer.is_some_and(|p| p.addr.gid == to.gid && p.addr.port == to.port)
        };
        let index = match t.qps.get(guess) {
            Some(qp) if is_it(qp) => Some(guess),
            _ => t.qps.iter().position(is_it),
        }?;
        Some(PacketQp::of(t, index, &t.qps[index]))
    }

    /// Owes the peer of a queue pair an RNR NAK for the packet that it expects, as if it had no
    /// receive request for that. The packet itself must not reach the engine.
    pub fn refuse_unready(&mut self, index: usize) {
        let (inner, s) = self.split();
        inner.transport.conn(s, index).refuse_unready();
    }
}
