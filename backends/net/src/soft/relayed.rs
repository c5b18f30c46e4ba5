//! Traffic over the router's rings ([`crate::shm::relay`]): datagrams, messages of the connection
//! manager, and queue pairs that have no link.

use super::budget::BURSTS;
use super::{peer_addr, PortState, SoftDevice};
use crate::addr::{Endpoint, ROCE_PORT};
use crate::shm::relay::{Put, Relay, FRAME_MAX, HEAD, PACKET_MAX};
use crate::shm::ring::{Broken, FRAME_ALIGN, FRAME_HEAD};
use gdrcore_core::engine::Guard;

/// Frames that one round takes.
const BATCH: usize = 32;
/// Bytes that the engine gets for a burst: a packet of the largest MTU, or several short ones.
const SPACE: usize = PACKET_MAX;
/// The shortest packet: a BTH and an ICRC.
const PACKET_MIN: usize = 16;
/// Room in the ring for all packets of one burst.
const ROOM: usize =
    SPACE / PACKET_MIN * (HEAD + FRAME_HEAD + PACKET_MIN).next_multiple_of(FRAME_ALIGN);
const _: () = assert!(ROOM <= crate::shm::relay::RINGS.0 as usize / 2);

/// Passes the rings' packets to the engine. Returns their number.
#[inline]
pub(super) fn receive(g: &mut Guard<'_>, port: &mut PortState, now: u64) -> usize {
    match &port.relay {
        Some(relay) if relay.has_input() => take_all(g, port, now),
        _ => 0,
    }
}

fn take_all(g: &mut Guard<'_>, port: &mut PortState, now: u64) -> usize {
    let Some(relay) = &mut port.relay else { return 0 };
    let mut space = [0; FRAME_MAX];
    let mut handled = 0;
    for _ in 0..BATCH {
        match relay.take(&mut space) {
            Ok(None) => break,
            Ok(Some(frame)) => {
                // The sender's address is set by the router.
                let from = peer_addr(&Endpoint::new(frame.address, 0, ROCE_PORT));
                let (len, packet) = (frame.packet.len(), frame.packet);
                handled += g.handle_packets(now, &from, len, packet, frame.congested);
            }
            Err(Broken) => {
                lose(port);
                break;
            }
        }
    }
    if handled > 0 {
        port.udp_hot_ns = now;
    }
    handled
}

/// Writes the engine's packets for peers without a link.
pub(super) fn send(g: &mut Guard<'_>, port: &mut PortState, now: u64) {
    let Some(relay) = &mut port.relay else { return };
    let mut written = false;
    let result = write_all(g, relay, now, &mut written);
    if written {
        relay.wake();
    }
    match result {
        Ok(full) => port.rings_full |= full,
        Err(Broken) => lose(port),
    }
}

/// Returns true if the ring is full; its socket is readable when there is room. `written`: it has
/// got something, of which the router does not know if it sleeps.
fn write_all(
    g: &mut Guard<'_>,
    relay: &mut Relay,
    now: u64,
    written: &mut bool,
) -> Result<bool, Broken> {
    let mut space = [0; SPACE];
    for _ in 0..BURSTS {
        if !relay.has_room(ROOM)? {
            return Ok(true);
        }
        let Some(burst) = g.poll_transmit(now, &mut space) else { break };
        for packet in space[..burst.len].chunks(burst.seg.max(PACKET_MIN)) {
            if relay.put_quietly(&burst.dst.gid, packet, false)? == Put::Full {
                return Ok(true);
            }
            *written = true;
        }
    }
    Ok(false)
}

/// Takes the wake-ups, and notices the router's end.
pub(super) fn maintain(port: &mut PortState) {
    if port.relay.as_ref().is_some_and(Relay::hear) {
        lose(port);
    }
}

/// Packets are dropped from here on, until a router gives new rings ([`super::outage`]).
#[cold]
fn lose(port: &mut PortState) {
    port.relay = None;
    port.discards = true;
    port.outage.relay_lost = true;
}

impl SoftDevice {
    /// Whether there are rings over which other devices are reached, or may be again.
    pub(super) fn relays(&self) -> bool {
        self.via.is_some() && self.lock_engine().port().relays()
    }
}

impl PortState {
    /// Whether there are rings, or a router that is away may give some.
    pub(super) fn relays(&self) -> bool {
        self.relay.is_some() || self.outage.is_away()
    }
}
