//! The tap of a device: sees each packet that leaves through its port or arrives, for a capture
//! and for injected faults. A device without a tap pays nothing for it.
//!
//! The capture shows what is on the wire: what has left after its faults, and what has arrived
//! before them.

use super::{commit, Batched, Host};
use crate::addr::{DeviceName, Endpoint};
use crate::clock::now_ns;
use crate::inject::{Injector, Waiting};
use crate::pcap::Pcap;
use crate::port::{Burst, Port, RxPacket};
use crate::soft::group::rx::split_by_owner;
use crate::soft::{endpoint, PathChoice, PortState, SoftConfig};
use gdrcore_core::engine::{self, EngineGuard};
use gdrcore_core::error::Result;
use gdrcore_core::inject::Direction;
use gdrcore_core::refuse;
use gdrcore_core::roce::peer::{ConnectedFlow, PeerAddr};
use gdrcore_core::wire::IcrcFlow;

/// Takes what has arrived, and returns how many packets were handled.
type Take<'a> = &'a mut dyn FnMut(&mut EngineGuard<'_>, &RxPacket<'_>) -> usize;

/// What a tap has.
pub(in crate::soft) struct Tap {
    pub(in crate::soft) pcap: Option<Pcap>,
    pub(in crate::soft) faults: Option<Faults>,
}

/// Injected faults, and room for a burst that is taken apart.
pub(in crate::soft) struct Faults {
    injector: Injector,
    room: Box<[u8]>,
}

impl SoftConfig<'_> {
    /// Checks that the device can have the faults that it is to have.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Unsupported`]: it has no port, has links, or several engines.
    pub(in crate::soft) fn check_faults(&self, name: &DeviceName) -> Result<()> {
        let Some(faults) = self.faults else { return Ok(()) };
        faults.read()?;
        let why = match name {
            DeviceName::Loopback => "a loopback device has no packets",
            DeviceName::Router(_) => "a device behind a router cannot have them yet",
            DeviceName::Soft(_) if self.path != PathChoice::Udp => {
                "they need GDRC_CONFIG_UDP_ONLY, since links carry no packets"
            }
            DeviceName::Soft(_) if self.engines.most != 1 => "they need one engine",
            DeviceName::Soft(_) => return Ok(()),
        };
        Err(refuse!(Unsupported, "faults: {why}"))
    }
}

impl Tap {
    /// The tap of a device, if it is to have one.
    ///
    /// # Errors
    /// As [`Injector::open`].
    #[inline(never)]
    pub(in crate::soft) fn open(
        pcap: Option<Pcap>,
        config: &SoftConfig<'_>,
        burst_bytes: u32,
    ) -> Result<Option<Box<Tap>>> {
        let faults = match config.faults {
            Some(spec) => {
                let room = vec![0; burst_bytes as usize].into();
                Some(Faults { injector: Injector::open(spec)?, room })
            }
            None => None,
        };
        let any = pcap.is_some() || faults.is_some();
        Ok(any.then(|| Box::new(Tap { pcap, faults })))
    }

    /// Captures what has arrived at `to`. `first`: the number of its first packet in its burst.
    pub(in crate::soft) fn capture(
        &mut self,
        now: u64,
        r: &RxPacket<'_>,
        to: &Endpoint,
        first: u16,
    ) {
        if let Some(pcap) = &mut self.pcap {
            pcap.burst(now, &endpoint(&r.src), to, first, r.seg, r.data);
        }
    }

    /// Hands what has arrived to `take`, packet by packet if there are faults. Returns how many
    /// were handled.
    pub(in crate::soft) fn arrive(
        &mut self,
        g: &mut EngineGuard<'_>,
        now: u64,
        r: &RxPacket<'_>,
        local: &Endpoint,
        take: Take<'_>,
    ) -> usize {
        let Some(Faults { injector, .. }) = &mut self.faults else { return take(g, r) };
        let sign = IcrcFlow::from_gids(&r.src.gid, &local.ip, r.src.port, local.port);
        let mut handled = 0;
        for data in r.data.chunks(usize::from(r.seg).max(1)) {
            let one = RxPacket { src: r.src, seg: data.len() as u16, data };
            handled += injector.arrive(g, now, &sign, &one, &mut *take);
        }
        handled
    }

    /// Captures what the port has received, and hands it on as [`Tap::arrive`] does. Packets that
    /// have waited arrive first.
    #[cold]
    #[inline(never)]
    pub(super) fn receive(
        &mut self,
        host: &impl Host,
        g: &mut EngineGuard<'_>,
        now: u64,
        r: &RxPacket<'_>,
        take: Take<'_>,
    ) -> usize {
        self.capture(now, r, host.address(), 0);
        let mut handled = 0;
        while let Some(waiting) = self.injector().and_then(|i| i.take_due(now, [false, true])) {
            let Waiting { other: src, bytes: data, .. } = waiting;
            handled += take(g, &RxPacket { src, seg: data.len() as u16, data });
        }
        handled += self.arrive(g, now, r, host.address(), take);
        if let Some(injector) = self.injector() {
            injector.act(g, now);
        }
        if let Some(due) = self.due() {
            host.due_at(due);
        }
        handled
    }

    /// The injected faults.
    pub(in crate::soft) fn injector(&mut self) -> Option<&mut Injector> {
        self.faults.as_mut().map(|f| &mut f.injector)
    }

    /// When a packet that waits is due.
    pub(in crate::soft) fn due(&self) -> Option<u64> {
        self.faults.as_ref().and_then(|f| f.injector.due())
    }
}

/// Sends a packet with the next batch. False: there is no room.
fn send<P: Port>(
    net: &mut P,
    pcap: &mut Option<Pcap>,
    now: u64,
    local: &Endpoint,
    to: &PeerAddr,
    bytes: &[u8],
) -> bool {
    let room = net.tx_space().and_then(|(space, _)| space.get_mut(..bytes.len()));
    let Some(room) = room else { return false };
    room.copy_from_slice(bytes);
    let seg = bytes.len() as u16;
    if let Some(pcap) = pcap {
        pcap.burst(now, local, &endpoint(to), 0, seg, bytes);
    }
    net.tx_commit(Burst { dst: *to, len: bytes.len(), seg });
    true
}

impl<P: Port> PortState<P> {
    /// Whether packets have injected faults.
    pub(in crate::soft) fn has_faults(&self) -> bool {
        self.tap.as_ref().is_some_and(|tap| tap.faults.is_some())
    }

    /// Whether a packet has waited long enough.
    pub(in crate::soft) fn has_due(&self, now: u64) -> bool {
        self.tap.as_ref().is_some_and(|tap| tap.due().is_some_and(|due| due <= now))
    }

    /// The injected faults, if there are any.
    pub(in crate::soft) fn injector(&mut self) -> Option<&mut Injector> {
        self.tap.as_mut()?.injector()
    }

    /// As [`PortState::put`], on a device with a tap. Packets that have waited go first.
    #[cold]
    #[inline(never)]
    pub(super) fn put_tapped<F>(
        &mut self,
        host: &impl Host,
        g: &mut EngineGuard<'_>,
        now: u64,
        make: F,
    ) -> Batched
    where
        F: FnOnce(&mut EngineGuard<'_>, &mut [u8], Option<&ConnectedFlow>) -> Option<engine::Burst>,
    {
        let sent = self.release(host, g, now);
        let before = if sent > 0 { Batched::Burst(sent) } else { Batched::Nothing };
        let PortState { net: Some(net), tap: Some(tap), .. } = self else { return before };
        let Tap { pcap, faults } = &mut **tap;
        if faults.as_ref().is_some_and(|f| f.injector.is_full_outbound()) {
            return before;
        }
        let Some((space, _)) = net.tx_space() else { return before };
        let Some(burst) = make(g, space, None) else { return before };
        let engine::Burst { dst, len, seg, .. } = burst;
        let local = host.address();
        let Some(Faults { injector, room }) = faults else {
            if let Some(pcap) = pcap {
                pcap.burst(now, local, &endpoint(&dst), 0, seg as u16, &space[..len]);
            }
            // Only faults keep packets, so nothing has left before it.
            return commit(net, g, &burst);
        };
        let Some(bytes) = room.get_mut(..len) else { return before };
        bytes.copy_from_slice(&space[..len]);
        // Each packet leaves by itself, the first of a burst.
        g.limit_segments(&dst, 1);
        let sign = IcrcFlow::from_gids(&local.ip, &dst.gid, local.port, dst.port);
        for (k, packet) in bytes.chunks_mut(seg.max(1)).enumerate() {
            if k > 0 {
                sign.append_icrc(0, packet);
            }
            let send = |packet: &[u8]| send(net, pcap, now, local, &dst, packet);
            injector.leave(g, now, &dst, &sign, packet, send);
        }
        injector.act(g, now);
        if let Some(due) = injector.due() {
            host.due_at(due);
        }
        Batched::Burst(sent + len)
    }

    /// Does what is due by faults, and passes on packets that have waited long enough. Returns the
    /// bytes that were added to the batch.
    fn release(&mut self, host: &impl Host, g: &mut EngineGuard<'_>, now: u64) -> usize {
        if let Some(injector) = self.injector() {
            injector.act(g, now);
        }
        let (mut sent, local) = (0, *host.address());
        while let PortState { net, tap: Some(tap), member, .. } = self {
            let Tap { pcap, faults: Some(Faults { injector, .. }) } = &mut **tap else { break };
            let room = net.as_mut().is_some_and(|net| net.tx_space().is_some());
            let Some(waiting) = injector.take_due(now, [room, true]) else { break };
            let (other, bytes) = (waiting.other, waiting.bytes);
            match (waiting.direction, net) {
                (Direction::Out, Some(net)) => {
                    send(net, pcap, now, &local, &other, bytes);
                    sent += bytes.len();
                }
                (Direction::In, _) => {
                    let r = RxPacket { src: other, seg: bytes.len() as u16, data: bytes };
                    match member {
                        Some(member) => split_by_owner(g, member, now, &r),
                        None => g.handle_arrival(&r.arrival(now), || now),
                    };
                }
                (Direction::Out, None) => {}
            }
        }
        sent
    }

    /// What waits leaves and arrives now: before a queue pair ends, or all of them.
    pub(in crate::soft) fn release_held(
        &mut self,
        host: &impl Host,
        g: &mut EngineGuard<'_>,
        index: Option<usize>,
    ) {
        let Some(injector) = self.injector() else { return };
        injector.release_held(index);
        self.send(host, g, now_ns());
    }
}
