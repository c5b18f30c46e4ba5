//! The sockets of a session, and the bursts that leave by them.

use crate::relay::far::source_port;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::wire::grh::Fields;
use gdrcore_core::wire::{Hop, IcrcFlow};
use gdrcore_net::addr::{endpoint, peer_addr, Endpoint};
use gdrcore_net::port::{Burst, TxOutcome};
use gdrcore_net::shm::relay::{Packet, PACKET_MAX};
use gdrcore_net::udp::{OwnedUdpPort, MAX_BURST};
use std::ops::Range;

/// A burst that is being put together.
#[derive(Clone, Copy)]
pub(super) struct OpenBurst {
    to: PeerAddr,
    flow: IcrcFlow,
    len: usize,
    seg: usize,
    packets: u16,
}

impl OpenBurst {
    /// Whether a packet of `len` bytes may follow, in a burst of at most `most` packets.
    fn takes(&self, len: usize, most: u16) -> bool {
        // A shorter packet ends its burst.
        let whole = self.len == self.seg * usize::from(self.packets);
        whole && len <= self.seg && self.packets < most && self.len + len <= MAX_BURST
    }
}

/// A packet in [`super::Wire`]'s room for its slot.
#[derive(Clone, Copy)]
pub(super) struct HeldPacket {
    /// Its receiver's host.
    pub(super) to: Endpoint,
    pub(super) grh: Fields,
    pub(super) len: usize,
    /// The flow of its ICRC; `None`: the ICRC is to be computed.
    pub(super) was: Option<IcrcFlow>,
}

/// The sockets of a session.
pub(super) struct SessionSockets {
    pub(super) slot: u16,
    pub(super) tx: OwnedUdpPort,
    pub(super) rx: OwnedUdpPort,
    pub(super) blocks: Range<u32>,
    pub(super) open: Option<OpenBurst>,
    pub(super) hop: Hop,
    /// A packet for which the kernel had no room.
    pub(super) held: Option<HeldPacket>,
    /// The kernel has no room: nothing more is taken from the session's ring until it has.
    pub(super) waits: bool,
    /// It is polled each round.
    pub(super) polled: bool,
    /// The kernel reports fields of IP headers.
    pub(super) shown: bool,
}

impl SessionSockets {
    /// Adds a packet to the open burst, with the ICRC of this hop ([`super::Wire::send`]). False:
    /// there is no room.
    pub(super) fn append(
        &mut self,
        from: &Endpoint,
        to: &Endpoint,
        packet: &Packet<'_>,
        was: Option<IcrcFlow>,
    ) -> bool {
        let len = packet.len();
        let most = self.tx.max_segments(to);
        let Fields { flow_label, traffic_class, hop_limit } = packet.grh;
        let peer = PeerAddr { flow_label, traffic_class, hop_limit, ..peer_addr(to) };
        if !self.open.as_ref().is_some_and(|o| o.to == peer && o.takes(len, most)) {
            self.commit();
            if self.tx.tx_space().is_none() && self.tx.tx_flush() == TxOutcome::Full {
                return false;
            }
            let port = source_port(self.blocks.start);
            let flow = IcrcFlow::from_gids(&from.ip, &to.ip, port, to.port);
            self.open = Some(OpenBurst { to: peer, flow, len: 0, seg: len, packets: 0 });
        }
        let (Some(space), Some(open)) = (self.tx.tx_space(), &mut self.open) else { return false };
        let Some(room) = space.get_mut(open.len..open.len + len) else { return false };
        if packet.copy_to(room).is_err() {
            return true;
        }
        // The kernel sends the packets' places in the burst as their identifications.
        let (flow, ident) = (&open.flow, open.packets);
        let after = was.map(|was| self.hop.icrc_after(flow, ident, (&was, 0), room));
        match (after, room.last_chunk_mut()) {
            (Some(after), Some(icrc)) => *icrc = after.to_le_bytes(),
            _ => flow.append_icrc(ident, room),
        }
        open.len += len;
        open.packets += 1;
        true
    }

    /// Whether the open burst has room for another packet of its size.
    pub(super) fn has_begun(&self) -> bool {
        self.open.as_ref().is_some_and(|o| o.takes(o.seg, self.tx.max_segments(&endpoint(&o.to))))
    }

    fn commit(&mut self) {
        if let Some(OpenBurst { to, len, seg, .. }) = self.open.take().filter(|o| o.len > 0) {
            self.tx.tx_commit(Burst { dst: to, len, seg: seg as u16 });
        }
    }

    /// Sends the open burst and the held packet. False: the kernel has no room for all of it.
    pub(super) fn flush(&mut self, from: &Endpoint, room: &[u8; PACKET_MAX]) -> bool {
        self.commit();
        if self.tx.tx_flush() == TxOutcome::Full {
            return false;
        }
        let Some(HeldPacket { to, grh, len, was }) = self.held.take() else { return true };
        // The batch is empty.
        self.append(from, &to, &Packet::whole(&room[..len], grh), was);
        self.commit();
        self.tx.tx_flush() == TxOutcome::Sent
    }
}
