//! The worker's way to other hosts: plain RoCEv2 between routers' addresses.
//!
//! Each session has two sockets. It sends by one whose UDP port names its block (`relay::far`), so
//! it has its own send buffer and ICMP errors. It receives by the other. All receiving sockets have
//! the router's address and port, and a program in the kernel picks one by DestQP, so a flood fills
//! only its victim's buffer. The worker sorts packets that reach the wrong socket. The first socket
//! gets QP1, and numbers without an owner.
//!
//! Sockets that have received something lately are polled each round, the others by epoll. Nothing
//! here allocates after [`Wire::new`].

mod sockets;

use super::sys::Epoll;
use crate::relay::far::source_port;
use crate::relay::{Refused, SLOTS};
use gdrcore_core::wire::grh::Fields;
use gdrcore_core::wire::{Class, Hop, IcrcFlow, Opcode};
use gdrcore_net::addr::{endpoint, Endpoint, ROCE_PORT};
use gdrcore_net::addr_group::steer::{Insn, Program, BY_HASH, INSTRUCTIONS};
use gdrcore_net::map::Map;
use gdrcore_net::port::ErrorKind;
use gdrcore_net::shm::relay::{Packet, PACKET_MAX};
use gdrcore_net::udp::{udp_flags, OwnedUdpPort, UdpConfig, UdpSocket};
use sockets::{HeldPacket, SessionSockets};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The token of a receiving socket, with its slot in the lower bits; and of a sending one.
pub(super) const RX: u64 = 1 << 32;
pub(super) const TX: u64 = 2 << 32;
/// The first socket, in place of a slot.
const COMMON: u16 = SLOTS as u16;
/// A socket without a packet for this time is left to epoll.
const HOT_NS: u64 = 50_000;
/// Bytes that the kernel is asked to buffer for a receiving session.
const RCVBUF: u32 = 1 << 20;
/// ECN: switches may mark these packets when they are congested.
const ECT_0: u8 = 2;

/// The options of a sending socket, and of a receiving one.
const SENDS: UdpConfig = UdpConfig {
    tx_batch: 16,
    tx_bytes: 1,
    rx_batch: 1,
    burst_bytes: 0,
    rcvbuf: 0,
    sndbuf: 0,
    busy_poll_us: 0,
    traffic_class: ECT_0,
    flags: 0,
};
const RECEIVES: UdpConfig =
    UdpConfig { tx_batch: 1, rx_batch: 8, rcvbuf: RCVBUF, traffic_class: 0, ..SENDS };

/// Counters of the traffic with other hosts.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Packets to other hosts, and their bytes.
    pub(super) tx: (AtomicU64, AtomicU64),
    /// Packets of other hosts that arrived, and their bytes.
    pub(super) rx: (AtomicU64, AtomicU64),
    /// Packets from addresses that are no host's.
    pub(super) bad_host: AtomicU64,
    /// Packets whose source port names no tenant's block.
    pub(super) bad_block: AtomicU64,
    pub(super) bad_icrc: AtomicU64,
    pub(super) refused: [AtomicU64; Refused::ALL.len()],
    /// Packets beyond a receiver's rate, and packets that found its ring full.
    pub(super) over_rate: AtomicU64,
    pub(super) full: AtomicU64,
    /// Bursts that the kernel did not send.
    pub(super) not_sent: AtomicU64,
    /// ICMP errors: no listener, or no route.
    pub(super) unreachable: AtomicU64,
    /// Packets longer than the link's MTU.
    pub(super) too_long: AtomicU64,
    /// Programs that the kernel refused: then only the worker sorts the packets.
    pub(super) unsteered: AtomicU64,
}

/// Adds to a counter, which only the worker writes.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// The first socket of the router's address, opened before there is a worker.
pub(super) struct Common {
    socket: UdpSocket,
    memory: Map,
    at: Endpoint,
}

impl Common {
    /// Opens the router's address and port for itself alone, or takes the socket there that a
    /// supervisor has `given`.
    pub(super) fn open(at: &Endpoint, given: Option<OwnedFd>) -> gdrcore_core::Result<Common> {
        let socket = match given {
            Some(fd) => UdpSocket::adopt(fd, at, &RECEIVES)?,
            None => UdpSocket::open(at, &RECEIVES)?,
        };
        socket.allow_reuse_port()?;
        Ok(Common { socket, memory: OwnedUdpPort::memory(&RECEIVES)?, at: *at })
    }

    /// MTU of its interface.
    pub(super) fn link_mtu(&self) -> u32 {
        self.socket.link_mtu()
    }
}

/// The first thread's part of a session's sockets: the one whose port names the session, and memory
/// for both.
pub(super) struct SocketParts {
    socket: UdpSocket,
    memory: [Map; 2],
    blocks: Range<u32>,
}

impl SocketParts {
    /// Opens the sending socket of a session with these blocks.
    pub(super) fn open(at: &Endpoint, blocks: &Range<u32>) -> gdrcore_core::Result<SocketParts> {
        let socket = UdpSocket::open(&Endpoint { port: source_port(blocks.start), ..*at }, &SENDS)?;
        socket.refuse_input()?;
        let memory = [OwnedUdpPort::memory(&SENDS)?, OwnedUdpPort::memory(&RECEIVES)?];
        Ok(SocketParts { socket, memory, blocks: blocks.clone() })
    }
}

/// A received packet.
pub(super) struct ReceivedPacket<'p> {
    /// Its sender.
    pub(super) from: Endpoint,
    /// Its place in its burst. A router of ours sends that as the identification.
    pub(super) ident: u16,
    /// It was marked on its way.
    pub(super) marked: bool,
    /// Fields of its IP header.
    pub(super) grh: Fields,
    pub(super) packet: &'p [u8],
}

pub(super) struct Wire {
    at: Endpoint,
    common: OwnedUdpPort,
    /// In the order of the kernel's list of receiving sockets, which begins with `common`. When one
    /// goes, the last takes its place.
    sessions: Vec<SessionSockets>,
    /// The place of each slot in `sessions`.
    places: Vec<u16>,
    /// Slots of the sockets that are polled each round, with the time of the last packet.
    polled: Vec<(u16, u64)>,
    code: Vec<Insn>,
    entries: Vec<(u16, u16)>,
    /// A packet's room for each slot.
    rooms: Vec<[u8; PACKET_MAX]>,
    counters: Arc<Counters>,
}

/// No place.
const NOWHERE: u16 = u16::MAX;

impl Wire {
    /// The worker's half of the socket that `Common` has opened.
    pub(super) fn new(
        common: Common,
        counters: Arc<Counters>,
        epoll: &Epoll,
    ) -> gdrcore_core::Result<Wire> {
        let Common { socket, memory, at } = common;
        let wire = Wire {
            at,
            common: OwnedUdpPort::new(socket, &RECEIVES, memory)?,
            sessions: Vec::with_capacity(SLOTS),
            places: vec![NOWHERE; SLOTS],
            polled: Vec::with_capacity(SLOTS + 1),
            code: vec![BY_HASH; INSTRUCTIONS],
            entries: Vec::with_capacity(2 * SLOTS + 1),
            rooms: vec![[0; PACKET_MAX]; SLOTS],
            counters,
        };
        let added = epoll.add(wire.common.as_fd(), RX | u64::from(COMMON));
        added.map_err(|_| gdrcore_core::Error::NoMemory)?;
        Ok(wire)
    }

    fn get_mut(&mut self, slot: u16) -> Option<&mut SessionSockets> {
        let place = *self.places.get(usize::from(slot))?;
        self.sessions.get_mut(usize::from(place))
    }

    fn get(&self, slot: u16) -> Option<&SessionSockets> {
        let place = *self.places.get(usize::from(slot))?;
        self.sessions.get(usize::from(place))
    }

    /// Opens the worker's sockets of a new session. False: that failed.
    pub(super) fn open(&mut self, slot: u16, parts: SocketParts, epoll: &Epoll) -> bool {
        let SocketParts { socket, memory: [sends, receives], blocks } = parts;
        let shared = UdpConfig { flags: udp_flags::REUSE_PORT, ..RECEIVES };
        let ports = UdpSocket::open(&self.at, &shared).and_then(|own| {
            let tx = OwnedUdpPort::new(socket, &SENDS, sends)?;
            Ok((tx, OwnedUdpPort::new(own, &RECEIVES, receives)?))
        });
        let Ok((tx, rx)) = ports else { return false };
        let slot_token = u64::from(slot);
        let heard = epoll.add(rx.as_fd(), RX | slot_token).is_ok()
            && epoll.add(tx.as_fd(), TX | slot_token).is_ok();
        self.places[usize::from(slot)] = self.sessions.len() as u16;
        let (open, hop, held) = (None, Hop::default(), None);
        let (waits, polled, shown) = (false, false, false);
        self.sessions.push(SessionSockets {
            slot,
            tx,
            rx,
            blocks,
            open,
            hop,
            held,
            waits,
            polled,
            shown,
        });
        self.steer();
        heard
    }

    /// Closes a session's sockets. Its open burst is sent if the kernel has room.
    pub(super) fn close(&mut self, slot: u16) {
        let at = self.at;
        let Some(place) = self.places.get_mut(usize::from(slot)) else { return };
        let place = usize::from(std::mem::replace(place, NOWHERE));
        if place >= self.sessions.len() {
            return;
        }
        let mut gone = self.sessions.swap_remove(place);
        gone.flush(&at, &self.rooms[usize::from(slot)]);
        drop(gone);
        if let Some(moved) = self.sessions.get(place) {
            self.places[usize::from(moved.slot)] = place as u16;
        }
        self.steer();
    }

    /// Tells the kernel the socket of each block.
    fn steer(&mut self) {
        let entries = &mut self.entries;
        entries.clear();
        entries.push((0, 0));
        for (k, s) in self.sessions.iter().enumerate() {
            entries.push((s.blocks.start as u16, k as u16 + 1));
            // The blocks behind belong to no session, unless they have an entry of their own.
            entries.push((s.blocks.end as u16, 0));
        }
        entries.sort_unstable_by_key(|&(block, index)| (block, index == 0));
        entries.dedup_by_key(|(block, _)| *block);
        if Program::by_block(&mut self.code, entries).attach(self.common.fd()).is_err() {
            add(&self.counters.unsteered, 1);
        }
    }

    /// Sends a packet of a session to another host, at the latest at the end of the round. Its last
    /// four bytes become the ICRC of this hop. With the flow `was`, a wrong ICRC stays wrong;
    /// without it (the router has changed the packet) the ICRC is computed anew.
    pub(super) fn send(
        &mut self,
        slot: u16,
        to: &Endpoint,
        packet: &Packet<'_>,
        was: Option<IcrcFlow>,
    ) {
        let at = self.at;
        let Some(s) = self.get_mut(slot) else { return };
        if !s.append(&at, to, packet, was) {
            if packet.len() > PACKET_MAX || s.held.is_some() {
                return add(&self.counters.not_sent, 1);
            }
            s.held = Some(HeldPacket { to: *to, grh: packet.grh, len: packet.len(), was });
            s.waits = true;
            let _ = packet.copy_to(&mut self.rooms[usize::from(slot)][..packet.len()]);
        }
        add(&self.counters.tx.0, 1);
        add(&self.counters.tx.1, packet.len() as u64);
    }

    /// Whether a session must wait before it sends more.
    pub(super) fn waits(&self, slot: u16) -> bool {
        self.get(slot).is_some_and(|s| s.waits)
    }

    /// Whether a session's next packet would join an open burst.
    pub(super) fn has_begun(&self, slot: u16) -> bool {
        self.get(slot).is_some_and(SessionSockets::has_begun)
    }

    /// Sends a session's open burst. If the kernel has no room, epoll reports when it has. `told`:
    /// epoll has reported that, or an error. `unreachable` is called for each host at which no
    /// router listens.
    pub(super) fn flush(
        &mut self,
        slot: u16,
        told: bool,
        epoll: &Epoll,
        unreachable: impl FnMut(&Endpoint),
    ) {
        let place = self.places.get(usize::from(slot)).copied().unwrap_or(NOWHERE);
        let Some(s) = self.sessions.get_mut(usize::from(place)) else { return };
        if told {
            s.tx.drain_errors();
        }
        s.waits = !s.flush(&self.at, &self.rooms[usize::from(slot)]);
        if s.waits || told {
            let _ = epoll.want_write(s.tx.as_fd(), TX | u64::from(slot), s.waits);
        }
        if s.tx.has_error() {
            take_errors(&self.counters, &mut s.tx, unreachable);
        }
    }

    /// Polls a socket each round from here on, since epoll reports that it is readable.
    pub(super) fn start_polling(&mut self, now: u64, slot: u16) {
        let is_new = match self.get_mut(slot) {
            Some(s) => !std::mem::replace(&mut s.polled, true),
            None => slot == COMMON && self.polled.iter().all(|(other, _)| *other != slot),
        };
        if is_new {
            self.polled.push((slot, now));
        }
    }

    /// Receives from the sockets that are polled. Returns the number of packets.
    pub(super) fn receive(&mut self, now: u64, mut each: impl FnMut(ReceivedPacket<'_>)) -> usize {
        let Wire { polled, common, sessions, places, .. } = self;
        let mut heard = 0;
        polled.retain_mut(|(slot, last)| {
            let place = places.get(usize::from(*slot)).copied().unwrap_or(NOWHERE);
            let (port, received_lately, is_shown) = match sessions.get_mut(usize::from(place)) {
                Some(s) => (&mut s.rx, &mut s.polled, &mut s.shown),
                // It gets messages of connection managers, which have no GRH.
                None if *slot == COMMON => (&mut *common, &mut true, &mut true),
                None => return false,
            };
            let n = port.rx_poll();
            let mut datagrams = false;
            for k in 0..n {
                let r = port.rx_get(k);
                datagrams |= r.src.hop_limit == 0 && is_datagram(r.data);
                for (ident, packet) in r.data.chunks(usize::from(r.seg).max(1)).enumerate() {
                    let ident = ident as u16;
                    heard += 1;
                    let (from, grh) = (endpoint(&r.src), r.src.grh());
                    each(ReceivedPacket { from, ident, marked: r.is_marked(), grh, packet });
                }
            }
            if datagrams && !std::mem::replace(is_shown, true) {
                // The GRH of all later datagrams has a hop limit. Sessions without datagrams save
                // this cost.
                port.show_headers();
            }
            *last = if n > 0 { now } else { *last };
            *received_lately = now.saturating_sub(*last) < HOT_NS;
            *received_lately
        });
        heard
    }

    /// The router's own address and port.
    pub(super) fn address(&self) -> &Endpoint {
        &self.at
    }

    pub(super) fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
}

/// Whether the first packet is a datagram.
fn is_datagram(packets: &[u8]) -> bool {
    packets.first().is_some_and(|&op| Opcode(op).class() == Class::Ud)
}

/// Counts the errors of the network and the kernel for a session's packets.
#[cold]
fn take_errors(counters: &Counters, tx: &mut OwnedUdpPort, mut unreachable: impl FnMut(&Endpoint)) {
    while let Some(e) = tx.take_error() {
        match e.kind {
            ErrorKind::Icmp => {
                add(&counters.unreachable, 1);
                unreachable(&e.dst);
            }
            ErrorKind::Mtu => add(&counters.too_long, 1),
            ErrorKind::Send => add(&counters.not_sent, 1),
        }
    }
}

/// The ICRC between two tenants as their rings carry it: for their addresses and the port of
/// RoCEv2.
pub(super) fn flow_of(from: &[u8; 16], to: &[u8; 16]) -> IcrcFlow {
    IcrcFlow::from_gids(from, to, ROCE_PORT, ROCE_PORT)
}
