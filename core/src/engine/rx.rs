//! Packets and records in.
//!
//! A function `take_*` may decline a packet or a record: false or 0, and nothing has changed. A
//! function `handle_*` always consumes it.

use super::{cm, EngineGuard, Inner};
use crate::counters::Counters;
use crate::receipt::Receipts;
use crate::roce::frame::middle::FEWEST;
use crate::roce::frame::record::{ack_behind, is_ack, shape, shape_of, ACK_BESIDE};
use crate::roce::peer::{Path, PeerAddr};
use crate::roce::run::{head_words, Run, Words, HEAD_MAX, HEAD_MIN};
use crate::roce::{Origin, Transport};
use crate::verbs::shared::{CqShared, Shared};
use crate::verbs::types::Wc;
use crate::wire::{IcrcFlow, Opcode, ICRC_LEN};

/// Packets of one sender that one receive brought through the port: all of them, or some.
#[derive(Clone, Copy, Debug)]
pub struct Arrival<'a> {
    /// The sender, and what the IP header had.
    pub src: &'a PeerAddr,
    /// The number of its first packet in the burst.
    pub first: u16,
    /// Bytes of each packet but the last, which may be shorter (GRO); 0: it is one packet.
    pub segment: usize,
    /// The packets.
    pub data: &'a [u8],
    /// The network marked congestion.
    pub ecn_ce: bool,
    /// A reading of the clock from just before the receive. Single messages need no newer one: an
    /// owed ACK leaves that much earlier.
    pub recent: u64,
}

/// Checks the ICRC of a packet with the likely IPv4 identification `ident`. Returns the
/// identification, or counts the error.
#[inline(always)]
fn check_icrc(flow: &IcrcFlow, ident: u16, packet: &[u8], counters: &mut Counters) -> Option<u16> {
    if packet.len() < 16 {
        counters.rcvd_malformed += 1;
        return None;
    }
    // IBTA CA17-24: A packet with a wrong ICRC is dropped without an answer, before anything
    // changes.
    match flow.check(ident, packet) {
        Ok(accepted) => Some(accepted.ident),
        Err(_) => {
            counters.rcvd_icrc_err += 1;
            None
        }
    }
}

/// Reads a packet whose ICRC is right.
#[inline(always)]
fn parse_run<'p>(packet: &'p [u8], counters: &mut Counters) -> Option<(Run, &'p [u8])> {
    let read = Run::parse_packet(&packet[..packet.len() - ICRC_LEN]);
    counters.rcvd_malformed += u64::from(read.is_err());
    read.ok()
}

/// Whether a burst is a single message that takes a receive request, and an ACK behind it. The ACK
/// is last because only the last packet of a burst may be shorter.
#[inline(always)]
fn ack_is_behind(seg: usize, data: &[u8]) -> bool {
    let Some([ack, ..]) = data.get(seg..).filter(|rest| rest.len() <= seg) else { return false };
    let received = [Opcode::RC_SEND_ONLY, Opcode::RC_SEND_ONLY_IMM, Opcode::RC_WRITE_ONLY_IMM];
    *ack == Opcode::RC_ACK.0 && data.first().is_some_and(|op| received.contains(&Opcode(*op)))
}

/// Takes a packet that is whole and not marked, if it is a single message or its ACK.
#[inline(always)]
fn take_single(t: &mut Transport, s: &Shared, now: u64, from: &Origin, packet: &[u8]) -> bool {
    t.take_packet::<false>(s, now, from, packet) || take_single_of_dc(t, s, now, from, packet)
}

#[inline(never)]
fn take_single_of_dc(
    t: &mut Transport,
    s: &Shared,
    now: u64,
    from: &Origin,
    packet: &[u8],
) -> bool {
    let is_dc = packet.first().is_some_and(|op| Opcode(*op).is_of_dc());
    is_dc && t.take_packet::<true>(s, now, from, packet)
}

impl Inner {
    /// Checks the ICRC of packet `number` of a burst, before anything else changes. Its sender's
    /// identifications count from what it has now. False: the packet is dropped and counted.
    #[inline(always)]
    fn verify<const LONG: bool>(&mut self, from: &Origin, number: u16, packet: &[u8]) -> bool {
        let (flow, t) = (&self.rx_flow.1, &mut self.transport);
        let expected = self.rx_ident.wrapping_add(number);
        let Some(ident) = check_icrc(flow, expected, packet, &mut t.common.counters) else {
            return false;
        };
        // IPv6 has no identification.
        if ident == expected || flow.is_v6() {
            return true;
        }
        if t.has_strange_ident(from, ident, packet) {
            t.common.counters.rcvd_icrc_err += 1;
            return false;
        }
        if LONG {
            self.rx_expected = false;
        }
        self.rx_ident = ident.wrapping_sub(number);
        true
    }

    /// Handles a packet whose ICRC is right, and which is no single message.
    #[inline(always)]
    fn handle_verified(
        &mut self,
        s: &Shared,
        from: &Origin,
        arrival: &Arrival<'_>,
        packet: &[u8],
        now: &mut impl FnMut() -> u64,
    ) {
        let t = &mut self.transport;
        let Some((mut run, payload)) = parse_run(packet, &mut t.common.counters) else { return };
        run.grh = arrival.src.grh();
        let now = now();
        if arrival.ecn_ce {
            t.on_mark(s, now, from, &run);
        }
        if run.dest_qpn == cm::GSI_QPN {
            return cm::take_packet(
                &mut self.cm,
                t,
                s,
                &self.local,
                now,
                arrival.src,
                &run,
                payload,
            );
        }
        t.handle_run(s, now, from, &run, payload);
    }
}

/// Data: what arrives.
impl EngineGuard<'_> {
    /// As [`EngineGuard::handle_arrival`], for all that one receive brought: `data` is one packet,
    /// or several of `seg` bytes each, the last one maybe shorter. `ecn_ce`: the network marked it.
    #[inline]
    pub fn handle_packets(
        &mut self,
        now: u64,
        src: &PeerAddr,
        seg: usize,
        data: &[u8],
        ecn_ce: bool,
    ) -> usize {
        let arrival = Arrival { src, first: 0, segment: seg, data, ecn_ce, recent: now };
        self.handle_arrival(&arrival, || now)
    }

    /// Takes packets that the port has received. `now` is called for packets that are no single
    /// messages. Returns the packets looked at.
    ///
    /// Any bytes that a network can bring are legal here. Wrong packets are dropped and counted.
    #[inline]
    pub fn handle_arrival(&mut self, arrival: &Arrival<'_>, mut now: impl FnMut() -> u64) -> usize {
        if arrival.data.len() >= FEWEST {
            return self.handle_long(arrival, &mut now);
        }
        self.handle_each::<false>(arrival, now)
    }

    #[inline(never)]
    fn handle_long(&mut self, arrival: &Arrival<'_>, now: &mut dyn FnMut() -> u64) -> usize {
        self.handle_each::<true>(arrival, now)
    }

    /// `LONG`: there may be packets of [`FEWEST`] bytes or more.
    #[inline(always)]
    fn handle_each<const LONG: bool>(
        &mut self,
        arrival: &Arrival<'_>,
        mut now: impl FnMut() -> u64,
    ) -> usize {
        let Arrival { src, first, segment: seg, data, ecn_ce, recent } = *arrival;
        let (inner, s) = self.split();
        let known = &inner.rx_flow.0;
        if known.gid != src.gid || known.port != src.port {
            let flow = IcrcFlow::from_gids(&src.gid, &inner.local.gid, src.port, inner.local.port);
            inner.rx_flow = (*src, flow);
            inner.rx_ident = 0;
        }
        let from = Origin { gid: src.gid, path: Path::Port, port: src.port };
        let seg = if seg == 0 { data.len().max(1) } else { seg };
        let mut n = 0;
        // An ACK that came with a message is taken before the message, as with records.
        let (message, rest) = data.split_at(if ack_is_behind(seg, data) { seg } else { 0 });
        let rest = rest.chunks(seg).zip(u16::from(!message.is_empty())..);
        for (packet, i) in rest.chain(message.chunks(seg).zip(0..)) {
            n += 1;
            let t = &mut inner.transport;
            if recent < t.common.siege_until && t.screen_besieged(recent, &from, packet) {
                t.common.counters.rcvd_throttled += 1;
                continue;
            }
            let number = first.wrapping_add(i);
            if LONG && packet.len() >= FEWEST && !ecn_ce {
                let flow = (&inner.rx_flow.1, inner.rx_ident.wrapping_add(number));
                if inner.rx_expected && t.take_middle(s, &from, flow, packet, &mut now) {
                    continue;
                }
                // Until `verify` says otherwise.
                inner.rx_expected = true;
            }
            if !inner.verify::<LONG>(&from, number, packet) {
                continue;
            }
            let t = &mut inner.transport;
            if !ecn_ce && take_single(t, s, recent, &from, packet) {
                continue;
            }
            inner.handle_verified(s, &from, arrival, packet, &mut now);
        }
        if inner.rx_ident != 0 {
            inner.rx_ident = inner.rx_ident.wrapping_add(1);
        }
        n
    }

    /// The first step of [`EngineGuard::handle_arrival`] for a packet whose ICRC is right and that
    /// is not marked: takes it if it is a single message or its ACK. False: nothing has changed.
    #[inline]
    pub fn take_packet(&mut self, now: u64, src: &PeerAddr, packet: &[u8]) -> bool {
        let (inner, s) = self.split();
        let from = Origin { gid: src.gid, path: Path::Port, port: src.port };
        take_single(&mut inner.transport, s, now, &from, packet)
    }

    /// As [`EngineGuard::handle_packets`], for packets to a group that the port listens for.
    pub fn handle_multicast(
        &mut self,
        now: u64,
        src: &PeerAddr,
        group: &[u8; 16],
        seg: usize,
        data: &[u8],
    ) -> usize {
        let (inner, s) = self.split();
        let flow = IcrcFlow::from_gids(&src.gid, group, src.port, inner.local.port);
        let t = &mut inner.transport;
        let from = Origin { gid: src.gid, path: Path::Port, port: src.port };
        let seg = if seg == 0 { data.len().max(1) } else { seg };
        let mut n = 0;
        for (i, packet) in data.chunks(seg).enumerate() {
            n += 1;
            if check_icrc(&flow, i as u16, packet, &mut t.common.counters).is_none() {
                continue;
            }
            if let Some((mut run, payload)) = parse_run(packet, &mut t.common.counters) {
                run.grh = src.grh();
                t.handle_multicast(s, now, &from, group, &run, payload);
            }
        }
        n
    }

    /// Takes one run of another process of this host, from a record that was not checked yet.
    /// `receipts`: those of its link.
    #[inline]
    pub fn handle_run(
        &mut self,
        now: u64,
        src: &PeerAddr,
        run: &Run,
        payload: &[u8],
        receipts: &Receipts,
    ) {
        let (inner, s) = self.split();
        let from = Origin { gid: src.gid, path: Path::Link(0), port: 0 };
        inner.transport.handle_run(s, now, &from, run, payload);
        inner.transport.leave_receipt(run, receipts);
    }

    /// Takes the first record of `rest`, as [`EngineGuard::handle_run`] would, if it is a single
    /// message or its ACK. `head`: the first words of `rest`. Returns the bytes that it took;
    /// 0: nothing has changed; [`ACK_BESIDE`]: it took only the ACK beside the message.
    #[inline(always)]
    pub fn take_record(
        &mut self,
        now: u64,
        gid: &[u8; 16],
        head: impl Words,
        rest: &[u8],
        receipts: &Receipts,
    ) -> usize {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        macro_rules! take {
            ($dc:literal, $shape:ident) => {
                t.take_record::<$dc, { shape::$shape }, _>(s, now, gid, head, rest, receipts)
            };
        }
        match shape_of(head) {
            Some((false, shape::SEND)) => take!(false, SEND),
            Some((false, shape::WRITE)) => take!(false, WRITE),
            Some((false, _)) => take!(false, ACK),
            Some((true, shape::SEND)) => take!(true, SEND),
            Some((true, shape::WRITE)) => take!(true, WRITE),
            Some((true, _)) => take!(true, ACK),
            None => 0,
        }
    }

    /// Lets the first completion for a CQ bypass its ring, if the ring is empty, because this
    /// thread polls the CQ. [`EngineGuard::finish_handoff`] must follow under the same lock.
    #[inline(always)]
    pub fn begin_handoff(&mut self, cq: usize, ring: &CqShared) {
        let common = &mut self.split().0.transport.common;
        if let Some(cq) = common.cqs.get_mut(cq) {
            common.handoff.begin(cq, ring.ring.is_empty());
        }
    }

    /// The completion that bypassed the ring. It is older than all that the CQ holds now.
    #[inline(always)]
    pub fn finish_handoff(&mut self) -> Option<&Wc> {
        self.split().0.transport.common.handoff.finish()
    }

    /// Counts something that was no packet and no run.
    pub fn count_malformed(&mut self) {
        self.split().0.transport.common.counters.rcvd_malformed += 1;
    }

    /// Takes records that another process of this host wrote. A record carries a whole run.
    /// `receipts`: those of its link.
    pub fn handle_records(
        &mut self,
        now: u64,
        src: &PeerAddr,
        mut data: &[u8],
        receipts: &Receipts,
    ) -> usize {
        let mut n = 0;
        while !data.is_empty() {
            n += 1;
            let words = head_words(data);
            let behind = ack_behind(&words, data.len()).map(|at| data.split_at(at));
            let behind = behind.filter(|(_, ack)| is_ack(&head_words(ack)));
            // An ACK among the first words is taken with the message, if it can be.
            let together = behind.is_none() || data.len() <= HEAD_MAX;
            let taken =
                if together { self.take_record(now, &src.gid, &words, data, receipts) } else { 0 };
            if !matches!(taken, 0 | ACK_BESIDE) {
                data = &data[taken..];
                continue;
            }
            if let Some((message, ack)) = behind.filter(|_| taken == 0) {
                n += self.handle_records(now, src, ack, receipts);
                data = message;
                continue;
            }
            match Run::parse_record(data) {
                Ok((run, payload, rest)) => {
                    self.handle_run(now, src, &run, payload, receipts);
                    data = &rest[if taken == ACK_BESIDE { HEAD_MIN } else { 0 }..];
                }
                Err(_) => {
                    self.count_malformed();
                    break;
                }
            }
        }
        n
    }
}
