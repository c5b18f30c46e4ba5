//! Packets in.

use super::{cm, Guard};
use crate::counters::Counters;
use crate::roce::peer::{Path, PeerAddr};
use crate::roce::run::{head_words, Run, HEAD_MAX};
use crate::roce::Origin;
use crate::verbs::types::Wc;
use crate::wire::{Flow, ICRC_LEN};

/// The identification of a packet that is what its sender sent, likely `ident`; what is wrong with it is counted.
#[inline(always)]
fn whole(flow: &Flow, ident: u16, packet: &[u8], counters: &mut Counters) -> Option<u16> {
    if packet.len() < 16 {
        counters.rcvd_malformed += 1;
        return None;
    }
    match flow.check(ident, packet) {
        Ok(accepted) => Some(accepted.ident),
        Err(_) => {
            counters.rcvd_icrc_err += 1;
            None
        }
    }
}

/// Reads a packet that is whole.
#[inline(always)]
fn read<'p>(packet: &'p [u8], counters: &mut Counters) -> Option<(Run, &'p [u8])> {
    let read = Run::parse_packet(&packet[..packet.len() - ICRC_LEN]);
    counters.rcvd_malformed += u64::from(read.is_err());
    read.ok()
}

impl Guard<'_> {
    /// Takes what one receive brought: `data` is one packet, or several of `seg` bytes each, the last one
    /// maybe shorter (GRO). `ce`: the network marked congestion. Returns the packets looked at.
    ///
    /// Anything that a network can bring is legal here; what is wrong is dropped and counted.
    #[inline]
    pub fn handle_packets(&mut self, now: u64, src: &PeerAddr, seg: usize, data: &[u8], ce: bool) -> usize {
        self.handle_segments(now, src, 0, seg, data, ce)
    }

    /// As [`Guard::handle_packets`], for a part of what one receive brought: `data` begins with packet number `first`.
    #[inline]
    pub fn handle_segments(
        &mut self,
        now: u64,
        src: &PeerAddr,
        first: u16,
        seg: usize,
        data: &[u8],
        ce: bool,
    ) -> usize {
        self.take_segments(now, || now, src, first, seg, data, ce)
    }

    /// As [`Guard::handle_packets`], with the time as of a moment ago, which will do for small messages with nothing in their way:
    /// an owed ACK leaves so much earlier. `now` is asked where the time must be right.
    #[inline]
    pub fn handle_packets_of_late(
        &mut self,
        late: u64,
        now: impl FnMut() -> u64,
        src: &PeerAddr,
        seg: usize,
        data: &[u8],
        ce: bool,
    ) -> usize {
        self.take_segments(late, now, src, 0, seg, data, ce)
    }

    #[allow(clippy::too_many_arguments)] // two times, and what came
    #[inline(always)]
    fn take_segments(
        &mut self,
        late: u64,
        mut now: impl FnMut() -> u64,
        src: &PeerAddr,
        first: u16,
        seg: usize,
        data: &[u8],
        ce: bool,
    ) -> usize {
        let (inner, s) = self.split();
        let known = &inner.rx_flow.0;
        if known.gid != src.gid || known.port != src.port {
            let flow = Flow::from_gids(&src.gid, &inner.local.gid, src.port, inner.local.port);
            inner.rx_flow = (*src, flow);
            inner.rx_ident = 0;
        }
        let t = &mut inner.transport;
        let from = Origin { gid: src.gid, path: Path::Port };
        let seg = if seg == 0 { data.len().max(1) } else { seg };
        let mut n = 0;
        for (i, packet) in data.chunks(seg).enumerate() {
            n += 1;
            let number = first.wrapping_add(i as u16);
            let expected = inner.rx_ident.wrapping_add(number);
            let Some(ident) = whole(&inner.rx_flow.1, expected, packet, &mut t.counters) else { continue };
            if ident != expected && !inner.rx_flow.1.is_v6() {
                inner.rx_ident = ident.wrapping_sub(number);
            }
            if !ce && t.take_lone_packet(s, late, &src.gid, packet) {
                continue;
            }
            let Some((run, payload)) = read(packet, &mut t.counters) else { continue };
            let now = now();
            if ce {
                t.on_mark(now, &from, &run);
            }
            if run.dest_qpn == cm::GSI_QPN {
                cm::take(&mut inner.cm, t, s, &inner.local, now, src, &run, payload);
                continue;
            }
            t.handle_run(s, now, &from, &run, payload);
        }
        if inner.rx_ident != 0 {
            inner.rx_ident = inner.rx_ident.wrapping_add(1);
        }
        n
    }

    /// What [`Guard::handle_packets`] does first for a packet that is whole and not marked: takes it if it is a small message or an ACK
    /// with nothing in its way. False: nothing has changed.
    #[inline]
    pub fn take_lone_packet(&mut self, now: u64, src: &PeerAddr, packet: &[u8]) -> bool {
        let (inner, s) = self.split();
        inner.transport.take_lone_packet(s, now, &src.gid, packet)
    }

    /// As [`Guard::handle_packets`], for what came to a group that the port listens for.
    pub fn handle_multicast(&mut self, now: u64, src: &PeerAddr, group: &[u8; 16], seg: usize, data: &[u8]) -> usize {
        let (inner, s) = self.split();
        let flow = Flow::from_gids(&src.gid, group, src.port, inner.local.port);
        let t = &mut inner.transport;
        let from = Origin { gid: src.gid, path: Path::Port };
        let seg = if seg == 0 { data.len().max(1) } else { seg };
        let mut n = 0;
        for (i, packet) in data.chunks(seg).enumerate() {
            n += 1;
            if whole(&flow, i as u16, packet, &mut t.counters).is_none() {
                continue;
            }
            if let Some((run, payload)) = read(packet, &mut t.counters) {
                t.handle_multicast(s, now, &from, group, &run, payload);
            }
        }
        n
    }

    /// Takes one run that another process of this host wrote: what a record says, checked by nobody yet.
    #[inline]
    pub fn handle_run(&mut self, now: u64, src: &PeerAddr, run: &Run, payload: &[u8]) {
        let (inner, s) = self.split();
        let from = Origin { gid: src.gid, path: Path::Link(0) };
        inner.transport.handle_run(s, now, &from, run, payload);
    }

    /// Takes the first record of `rest`, as [`Guard::handle_run`] would, if it is a small message or an ACK with nothing in its
    /// way. `head`: its first words, copied out of `rest`. Returns the bytes that it took; 0: nothing has changed.
    #[inline]
    pub fn take_lone(&mut self, now: u64, gid: &[u8; 16], head: &[u64; HEAD_MAX / 8], rest: &[u8]) -> usize {
        let (inner, s) = self.split();
        inner.transport.take_lone(s, now, gid, head, rest)
    }

    /// This thread polls the CQ at an index, which is empty: the first thing that completes there until [`Guard::take_expected`],
    /// which must follow under the same lock, is its own, where it can be handed over.
    #[inline(always)]
    pub fn expect(&mut self, cq: u32) {
        self.split().0.transport.poller.expect(cq);
    }

    /// What was handed over. It completed before anything that the CQ holds now.
    #[inline(always)]
    pub fn take_expected(&mut self) -> Option<&Wc> {
        self.split().0.transport.poller.take()
    }

    /// Something came that was no packet and no run.
    pub fn count_malformed(&mut self) {
        self.split().0.transport.counters.rcvd_malformed += 1;
    }

    /// Takes records that another process of this host wrote (a path that carries runs whole).
    pub fn handle_records(&mut self, now: u64, src: &PeerAddr, mut data: &[u8]) -> usize {
        let mut n = 0;
        while !data.is_empty() {
            n += 1;
            let taken = self.take_lone(now, &src.gid, &head_words(data), data);
            if taken > 0 {
                data = &data[taken..];
                continue;
            }
            match Run::parse_record(data) {
                Ok((run, payload, rest)) => {
                    self.handle_run(now, src, &run, payload);
                    data = rest;
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
