//! Traffic over the router's rings ([`crate::shm::relay`]): datagrams, messages of the connection
//! manager, and queue pairs that have no link.

use super::budget::BURSTS;
use super::{peer_addr, PortState, SoftDevice};
use crate::addr::{Endpoint, ROCE_PORT};
use crate::shm::relay::{Put, Relay, FRAME_MAX, PACKET_MAX};
use crate::shm::ring::{Broken, FRAME_ALIGN, FRAME_HEAD};
use gdrcore_core::engine::Guard;

/// Frames that one round takes.
const BATCH: usize = 32;
/// Bytes that the engine gets for a burst: seven packets of the largest MTU.
const BURST: usize = 32 << 10;
/// Room in a ring for any frame.
const FRAME_ROOM: usize = (FRAME_HEAD + FRAME_MAX).next_multiple_of(FRAME_ALIGN);

/// Memory beside the rings.
pub(super) struct Room {
    /// The engine's last burst, of which packets from `at` on have found no room in the ring.
    burst: [u8; BURST],
    at: usize,
    len: usize,
    /// Bytes of each packet but the last.
    seg: usize,
    to: [u8; 16],
    /// The frame that was taken.
    frame: [u8; FRAME_MAX],
}

impl Default for Room {
    fn default() -> Self {
        Room { burst: [0; BURST], at: 0, len: 0, seg: 0, to: [0; 16], frame: [0; FRAME_MAX] }
    }
}

/// Passes the rings' packets to the engine. Returns their number.
#[inline]
pub(super) fn receive(g: &mut Guard<'_>, port: &mut PortState, now: u64) -> usize {
    match &port.relay {
        Some(relay) if relay.has_input() => take_all(g, port, now),
        _ => 0,
    }
}

fn take_all(g: &mut Guard<'_>, port: &mut PortState, now: u64) -> usize {
    let (Some(relay), Some(room)) = (&mut port.relay, &mut port.relay_room) else { return 0 };
    let mut handled = 0;
    for _ in 0..BATCH {
        match relay.take(&mut room.frame) {
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
    let (Some(relay), Some(room)) = (&mut port.relay, &mut port.relay_room) else { return };
    let mut written = false;
    let result = write_all(g, relay, room, now, &mut written);
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
    room: &mut Room,
    now: u64,
    written: &mut bool,
) -> Result<bool, Broken> {
    for _ in 0..BURSTS {
        // Bursts begin with room for a packet, so that requests gather while there is none.
        if !relay.has_room(FRAME_ROOM)? {
            return Ok(true);
        }
        if room.at == room.len {
            let Some(burst) = g.poll_transmit(now, &mut room.burst) else { break };
            (room.at, room.len, room.seg) = (0, burst.len, burst.seg.max(1));
            room.to = burst.dst.gid;
        }
        while let Some(packet) = room.burst[room.at..room.len].chunks(room.seg).next() {
            if relay.put_quietly(&room.to, packet, false)? == Put::Done {
                room.at += packet.len();
                *written = true;
            } else if packet.len() > PACKET_MAX || !relay.has_room(FRAME_ROOM)? {
                // The rest leaves first when there is room.
                return Ok(true);
            }
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
    port.end_relay();
    port.outage.relay_lost = true;
}

impl SoftDevice {
    /// Whether there are rings over which other devices are reached, or may be again.
    pub(super) fn relays(&self) -> bool {
        self.via.is_some() && self.lock_engine().port().relays()
    }
}

impl PortState {
    /// Ends the rings. What has found no room in them is lost, as on a wire.
    #[cold]
    pub(super) fn end_relay(&mut self) {
        self.relay = None;
        self.discards = true;
        if let Some(room) = &mut self.relay_room {
            room.at = room.len;
        }
    }

    /// Whether there are rings, or a router that is away may give some.
    pub(super) fn relays(&self) -> bool {
        self.relay.is_some() || self.outage.is_away()
    }
}
