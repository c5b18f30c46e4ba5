//! Traffic over the router's rings ([`crate::shm::relay`]): datagrams, messages of the connection
//! manager, and queue pairs that have no link.

use crate::addr::{Endpoint, ROCE_PORT};
use crate::shm::relay::{Relay, PACKET_MAX};
use crate::shm::ring::BrokenRing;
use crate::soft::rounds::limits::BURSTS;
use crate::soft::{peer_addr, PortState, SoftEngine};
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::wire::grh::Fields;

/// Packets that one round takes.
const BATCH: usize = 32;
/// Bytes that the engine gets for a burst: seven packets of the largest MTU.
const BURST: usize = 32 << 10;

/// Memory for the packet that was taken.
pub(in crate::soft) type Room = Box<[u8; PACKET_MAX]>;

/// Passes the rings' packets to the engine. Returns their number.
#[inline]
pub(in crate::soft) fn receive(g: &mut EngineGuard<'_>, port: &mut PortState, now: u64) -> usize {
    match &port.router.relay {
        Some(relay) if relay.has_input() => take_all(g, port, now),
        _ => 0,
    }
}

fn take_all(g: &mut EngineGuard<'_>, port: &mut PortState, now: u64) -> usize {
    let (Some(relay), Some(room)) = (&mut port.router.relay, &mut port.router.room) else {
        return 0;
    };
    let mut handled = 0;
    for _ in 0..BATCH {
        match relay.take(room) {
            Ok(None) => break,
            Ok(Some(frame)) => {
                // The sender's address is set by the router.
                let Fields { flow_label, traffic_class, hop_limit } = frame.grh;
                let src = peer_addr(&Endpoint::new(frame.address, 0, ROCE_PORT));
                let src = PeerAddr { flow_label, traffic_class, hop_limit, ..src };
                handled += g.handle_packets(now, &src, 0, frame.packet, frame.congested);
            }
            Err(BrokenRing) => {
                lose(port);
                break;
            }
        }
    }
    if handled > 0 {
        port.schedule.note_received(now);
    }
    handled
}

/// Writes the engine's packets for peers without a link.
pub(in crate::soft) fn send(g: &mut EngineGuard<'_>, port: &mut PortState, now: u64) {
    let Some(relay) = &mut port.router.relay else { return };
    let mut written = false;
    let result = write_all(g, relay, now, &mut written);
    if written {
        relay.wake();
    }
    match result {
        Ok(full) => port.rings_full |= full,
        Err(BrokenRing) => lose(port),
    }
}

/// Writes packets until none is left or the ring is full. True: the ring is full; its socket is
/// readable when there is room. `written`: the ring has new packets, of which a sleeping router
/// does not know.
fn write_all(
    g: &mut EngineGuard<'_>,
    relay: &mut Relay,
    now: u64,
    written: &mut bool,
) -> Result<bool, BrokenRing> {
    for _ in 0..BURSTS {
        // Bursts begin with room for a packet, so that requests gather while there is none.
        let Some(room) = relay.room(BURST)? else { return Ok(true) };
        let Some(burst) = g.poll_transmit(now, room) else { break };
        relay.send(&burst.dst, burst.len, burst.seg)?;
        *written = true;
    }
    Ok(false)
}

/// Takes the wake-ups, and notices the router's end.
pub(in crate::soft) fn maintain(port: &mut PortState) {
    if port.router.relay.as_mut().is_some_and(Relay::take_wakeups) {
        lose(port);
    }
}

/// Gives the rings up: packets are dropped until a router gives new rings ([`super::outage`]).
#[cold]
fn lose(port: &mut PortState) {
    port.end_relay();
    port.router.outage.relay_lost = true;
}

/// Control: the rings of a router.
impl SoftEngine {
    /// Whether there are rings to other devices, or may be again.
    pub(in crate::soft) fn relays(&self) -> bool {
        self.via.is_some() && self.lock_control().port().relays()
    }
}

impl PortState {
    /// Ends the rings. Packets in them are lost, as on a wire.
    #[cold]
    pub(in crate::soft) fn end_relay(&mut self) {
        self.router.relay = None;
        self.discards = true;
    }

    /// Whether there are rings, or a router that is away may give some.
    pub(in crate::soft) fn relays(&self) -> bool {
        self.router.relay.is_some() || self.router.outage.is_away()
    }
}
