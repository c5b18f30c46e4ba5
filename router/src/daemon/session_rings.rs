//! The rings of sessions, and the forwarding of one packet from a session or another host.

use super::wire::{self, add, flow_of, ReceivedPacket, Wire};
use crate::relay::scheduler::OVERHEAD;
use crate::relay::{
    Counters, Destination, Ingress, Refused, Scheduler, SessionAddress, Slots, Switch,
    UnknownSender, SLOTS,
};
use gdrcore_core::cm::mad::MAD_LEN;
use gdrcore_core::cm::readdress;
use gdrcore_core::wire::{Hop, IcrcFlow, ICRC_LEN};
use gdrcore_net::addr::{Endpoint, ROCE_PORT};
use gdrcore_net::shm::relay::{Packet, Put, Relay, LONG, PACKET_MAX};
use gdrcore_net::shm::ring::BrokenRing;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Charged bytes of packets between two looks at idle sessions: one large packet, or several small
/// ones, which take as long.
const LOOK_BYTES: usize = 1024;

/// The rings, and the sessions at them.
pub(super) struct SessionRings {
    pub(super) switch: Switch,
    pub(super) scheduler: Scheduler,
    pub(super) rings: Vec<Option<Relay>>,
    /// The tenant of each slot.
    tenants: Vec<u16>,
    /// Slots that have rings.
    pub(super) open: Vec<u16>,
    /// The place in `open` of the last ring that was looked at.
    cursor: usize,
    /// Charged bytes of packets that were forwarded since that look.
    passed: usize,
    /// The packet that is being forwarded.
    frame: Box<[u8; LONG]>,
    /// Slots whose packets have gone to other hosts in this round.
    pub(super) sending: Vec<u16>,
    /// Slots that have got packets in this round. At the round's end those that sleep are woken.
    told: Vec<u16>,
    /// By slot: whether it is in `told`.
    is_told: Vec<bool>,
    /// Slots whose sockets have no room: their rings are left alone until there is room.
    pub(super) stalled: Vec<bool>,
    /// How the ICRCs of packets from other hosts change, by the receiver's slot.
    hops: Vec<Hop>,
    /// Slots whose rings were found broken when another host's packet was put there.
    pub(super) broken: Vec<u16>,
    slots: Arc<Slots>,
}

/// Adds to a counter of a session and to that of its tenant.
fn count(of: [&Counters; 2], which: impl Fn(&Counters) -> &AtomicU64, n: u64) {
    for counters in of {
        let counter = which(counters);
        // Only the worker writes them.
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
}

/// Notes that a slot has got a packet.
#[inline]
fn note_told(told: &mut Vec<u16>, is_told: &mut [bool], slot: u16) {
    if !std::mem::replace(&mut is_told[usize::from(slot)], true) {
        told.push(slot);
    }
}

impl SessionRings {
    /// Without sessions. `listens`: limit of the ports at which sessions listen. `round`: limit of
    /// the packets of a round.
    pub(super) fn new(slots: Arc<Slots>, listens: usize, round: usize) -> SessionRings {
        SessionRings {
            switch: Switch::new(slots.clone(), listens),
            scheduler: Scheduler::new(),
            rings: (0..SLOTS).map(|_| None).collect(),
            tenants: vec![0; SLOTS],
            open: Vec::with_capacity(SLOTS),
            cursor: 0,
            passed: 0,
            frame: Box::new([0; LONG]),
            sending: Vec::with_capacity(round),
            told: Vec::with_capacity(SLOTS),
            is_told: vec![false; SLOTS],
            stalled: vec![false; SLOTS],
            hops: vec![Hop::default(); SLOTS],
            broken: Vec::with_capacity(SLOTS),
            slots,
        }
    }

    /// Forwards the next packet of a ring, if there is one. `ends`: the session ends, and its
    /// packets do not wait for credit. An error is the slot whose ring is broken.
    pub(super) fn pass(
        &mut self,
        now: u64,
        from: u16,
        ends: bool,
        wire: Option<&mut Wire>,
    ) -> Result<bool, u16> {
        let SessionRings {
            switch, scheduler, rings, tenants, frame, slots, sending, stalled, ..
        } = self;
        let (told, is_told) = (&mut self.told, &mut self.is_told);
        let Some(address) = switch.gid(from) else { return Ok(false) };
        let of = |slot: u16| [slots.counters(slot), slots.tenant(tenants[usize::from(slot)])];
        let Some(ring) = &mut rings[usize::from(from)] else { return Ok(false) };
        let Some((to, came)) = ring.look(frame).map_err(|BrokenRing| from)? else {
            return Ok(false);
        };
        let bytes = came.len();
        self.passed += bytes + OVERHEAD as usize;
        let passed = 'packet: {
            if ends && !scheduler.lets_finish(now, from) {
                count(of(from), |c| &c.unpaid, 1);
                break 'packet Ok(true);
            }
            // A refused packet is work, too.
            scheduler.charge(now, from, bytes);
            let goal = switch.route(now, from, &to, came.first);
            let hop = goal.and_then(|goal| next_hop(switch, &address, &to, goal, came.first));
            let to = match hop {
                Ok((Destination::Slot(to), _)) => to,
                Ok((goal, at)) => {
                    count(of(from), |c| &c.tx.0, 1);
                    count(of(from), |c| &c.tx.1, bytes as u64);
                    if sending.last() != Some(&from) && sending.len() < sending.capacity() {
                        sending.push(from);
                    }
                    if let Some((wire, at)) = wire.zip(at) {
                        send_to_host(wire, from, goal, (&address, &to), &at, &came);
                        stalled[usize::from(from)] = wire.waits(from);
                    }
                    break 'packet Ok(true);
                }
                Err(why) => {
                    count(of(from), |c| &c.refused[why as usize], 1);
                    break 'packet Ok(true);
                }
            };
            let Some(ring) = &mut rings[usize::from(to)] else { break 'packet Ok(true) };
            let ingress = scheduler.receive(now, to, bytes);
            if ingress == Ingress::Drop {
                count(of(to), |c| &c.over_rate, 1);
                break 'packet Ok(true);
            }
            let marked = ingress == Ingress::Mark;
            match ring.put_with_icrc(&address, &came, &[], marked) {
                Ok(Put::Done) => {
                    let (sender, receiver) = (of(from), of(to));
                    count(sender, |c| &c.tx.0, 1);
                    count(sender, |c| &c.tx.1, bytes as u64);
                    count(receiver, |c| &c.rx.0, 1);
                    count(receiver, |c| &c.rx.1, bytes as u64);
                    if marked {
                        count(receiver, |c| &c.marked, 1);
                    }
                    note_told(told, is_told, to);
                }
                // Drop the packet instead of waiting: the sender's packets for others would wait
                // behind it.
                Ok(Put::Full) => count(of(to), |c| &c.full, 1),
                Err(BrokenRing) => break 'packet Err(to),
            }
            Ok(true)
        };
        if let Some(ring) = &mut rings[usize::from(from)] {
            ring.consume();
        }
        passed
    }

    /// Delivers a packet of another host to its receiver.
    pub(super) fn arrive(
        &mut self,
        now: u64,
        own: &Endpoint,
        counted: &wire::Counters,
        came: ReceivedPacket<'_>,
    ) {
        let SessionRings { switch, .. } = self;
        let refuse = |why: Refused| add(&counted.refused[why as usize], 1);
        if !(PACKET_MIN..=PACKET_MAX).contains(&came.packet.len()) {
            return refuse(Refused::Frame);
        }
        let peer = match switch.far().sender(&came.from) {
            Ok(peer) => peer,
            Err(UnknownSender::Host) => return self.arrive_outside(now, own, counted, came),
            Err(UnknownSender::Block) => return add(&counted.bad_block, 1),
        };
        switch.far().note_life(&came.from);
        let to = match switch.route_far(peer, came.packet) {
            Ok(to) => to,
            Err(why) => return refuse(why),
        };
        let Some(sender) = switch.far().peer(peer).map(|p| p.gid) else { return };
        let Some(gid) = switch.gid(to) else { return };
        let (was, flow) = (flow_of_hosts(own, &came), flow_of(&sender, &gid));
        let Some((body, _)) = came.packet.split_last_chunk::<ICRC_LEN>() else { return };
        let icrc = if was.is_v6() || !flow.is_v6() {
            // The ICRC stays the sender's all the way, so that the receiver checks it.
            self.hops[usize::from(to)].icrc_after(&flow, 0, (&was, came.ident), came.packet)
        } else if was.check(came.ident, came.packet).is_ok() {
            // Checked here: IPv6 has no identification, so the receiver could not notice an
            // unexpected one.
            flow.icrc(0, body)
        } else {
            return add(&counted.bad_icrc, 1);
        };
        let body = Packet::whole(body, came.grh);
        self.deliver(now, counted, (&sender, to), (&body, icrc), came.marked);
    }

    /// Delivers a packet of a plain endpoint to its receiver.
    fn arrive_outside(
        &mut self,
        now: u64,
        own: &Endpoint,
        counted: &wire::Counters,
        came: ReceivedPacket<'_>,
    ) {
        let SessionRings { switch, .. } = self;
        let refuse = |why: Refused| add(&counted.refused[why as usize], 1);
        if !switch.talks_outside() {
            return add(&counted.bad_host, 1);
        }
        let Some((body, _)) = came.packet.split_last_chunk::<ICRC_LEN>() else { return };
        if flow_of_hosts(own, &came).check(came.ident, came.packet).is_err() {
            return add(&counted.bad_icrc, 1);
        }
        let outside = match switch.judge_outside(&came.from.ip, came.packet) {
            Ok(outside) => outside,
            Err(why) => return refuse(why),
        };
        let Some(gid) = switch.gid(outside.slot) else { return };
        let mut changed;
        let body = if outside.is_mad && is_mad(came.packet) {
            changed = [0; MAD_AT + MAD_LEN];
            changed.copy_from_slice(body);
            readdress(&mut changed[MAD_AT..], &own.ip, &gid);
            &changed
        } else {
            body
        };
        let icrc = flow_of(&came.from.ip, &gid).icrc(0, body);
        let body = Packet::whole(body, came.grh);
        self.deliver(now, counted, (&came.from.ip, outside.slot), (&body, icrc), came.marked);
    }

    /// Puts another host's packet into a ring. `body` and `icrc` are the packet as its receiver
    /// gets it.
    fn deliver(
        &mut self,
        now: u64,
        counted: &wire::Counters,
        (sender, to): (&[u8; 16], u16),
        (body, icrc): (&Packet<'_>, u32),
        was_marked: bool,
    ) {
        let SessionRings { scheduler, rings, tenants, slots, broken, .. } = self;
        let (told, is_told) = (&mut self.told, &mut self.is_told);
        let bytes = body.len() + ICRC_LEN;
        let of = |slot: u16| [slots.counters(slot), slots.tenant(tenants[usize::from(slot)])];
        let Some(ring) = &mut rings[usize::from(to)] else { return };
        let ingress = scheduler.receive(now, to, bytes);
        if ingress == Ingress::Drop {
            add(&counted.over_rate, 1);
            return count(of(to), |c| &c.over_rate, 1);
        }
        let marked = ingress == Ingress::Mark;
        match ring.put_with_icrc(sender, body, &icrc.to_le_bytes(), marked || was_marked) {
            Ok(Put::Done) => {
                note_told(told, is_told, to);
                add(&counted.rx.0, 1);
                add(&counted.rx.1, bytes as u64);
                count(of(to), |c| &c.rx.0, 1);
                count(of(to), |c| &c.rx.1, bytes as u64);
                if marked {
                    count(of(to), |c| &c.marked, 1);
                }
            }
            Ok(Put::Full) => {
                add(&counted.full, 1);
                count(of(to), |c| &c.full, 1);
            }
            Err(BrokenRing) if !broken.contains(&to) => broken.push(to),
            Err(BrokenRing) => {}
        }
    }

    /// Wakes the sleeping receivers of this round's packets.
    pub(super) fn wake(&mut self) {
        for slot in self.told.drain(..).map(usize::from) {
            self.is_told[slot] = false;
            if let Some(ring) = &mut self.rings[slot] {
                ring.wake();
            }
        }
    }

    /// Looks at the rings of the next `most` sessions, if they are idle.
    pub(super) fn poll_idle(&mut self, most: usize) {
        for _ in 0..most.min(self.open.len()) {
            self.cursor = if self.cursor + 1 < self.open.len() { self.cursor + 1 } else { 0 };
            self.look_at(self.open[self.cursor]);
        }
    }

    /// Looks at the ring of a session, if it is idle.
    #[inline]
    pub(super) fn look_at(&mut self, slot: u16) {
        if self.scheduler.is_idle(slot) && self.has_input(slot) {
            self.scheduler.ready(slot);
        }
    }

    /// As [`SessionRings::poll_idle`], but only after enough work: a look costs as much as a small
    /// packet.
    #[inline]
    pub(super) fn look_in_time(&mut self, most: usize) {
        if self.passed >= LOOK_BYTES {
            self.passed = 0;
            self.poll_idle(most);
        }
    }

    pub(super) fn has_input(&self, slot: u16) -> bool {
        let ring = &self.rings[usize::from(slot)];
        !self.stalled[usize::from(slot)] && ring.as_ref().is_some_and(Relay::has_input)
    }

    pub(super) fn open(
        &mut self,
        now: u64,
        slot: u16,
        tenant: u16,
        place: SessionAddress,
        ring: Relay,
    ) {
        self.switch.join(now, slot, place);
        self.scheduler.join(slot, tenant);
        self.tenants[usize::from(slot)] = tenant;
        self.stalled[usize::from(slot)] = false;
        self.rings[usize::from(slot)] = Some(ring);
        self.open.push(slot);
    }

    /// Lets go of a slot's rings. False: it had none.
    pub(super) fn close(&mut self, slot: u16) -> bool {
        self.switch.leave(slot);
        self.scheduler.leave(slot);
        self.open.retain(|&s| s != slot);
        self.rings.get_mut(usize::from(slot)).is_some_and(|ring| ring.take().is_some())
    }
}

/// The host to which a packet goes, if it is another one. A packet that the router will change is
/// dropped if its ICRC is wrong: the router computes a new one, which would hide the damage.
fn next_hop(
    switch: &Switch,
    from: &[u8; 16],
    to: &[u8; 16],
    goal: Destination,
    packet: &[u8],
) -> Result<(Destination, Option<Endpoint>), Refused> {
    let at = match goal {
        Destination::Slot(_) => return Ok((goal, None)),
        Destination::Far(peer) => switch.far().peer(peer).ok_or(Refused::Address)?.at,
        Destination::Outside => Endpoint::new(*to, 0, ROCE_PORT),
    };
    if goal == Destination::Outside && is_mad(packet) {
        flow_of(from, to).check(0, packet).map_err(|_| Refused::Frame)?;
    }
    Ok((goal, Some(at)))
}

/// Sends a session's packet to another host. `from` and `to` are the tenants' addresses.
fn send_to_host(
    wire: &mut Wire,
    slot: u16,
    goal: Destination,
    (from, to): (&[u8; 16], &[u8; 16]),
    at: &Endpoint,
    packet: &Packet<'_>,
) {
    if goal == Destination::Outside && is_mad(packet.first) {
        let mut changed = [0; MAD_AT + MAD_LEN + ICRC_LEN];
        changed.copy_from_slice(packet.first);
        readdress(&mut changed[MAD_AT..MAD_AT + MAD_LEN], from, &wire.address().ip);
        wire.send(slot, at, &Packet::whole(&changed, packet.grh), None);
    } else {
        wire.send(slot, at, packet, Some(flow_of(from, to)));
    }
}

/// The flow between the hosts of a received packet.
fn flow_of_hosts(own: &Endpoint, came: &ReceivedPacket<'_>) -> IcrcFlow {
    IcrcFlow::from_gids(&came.from.ip, &own.ip, came.from.port, own.port)
}

/// Whether a packet is a message of the connection manager.
fn is_mad(packet: &[u8]) -> bool {
    packet.len() == MAD_AT + MAD_LEN + ICRC_LEN && packet[5..8] == [0, 0, 1]
}

/// The shortest packet: a BTH and an ICRC.
const PACKET_MIN: usize = 16;
/// Offset of a datagram's payload: behind BTH and DETH.
const MAD_AT: usize = 12 + 8;
