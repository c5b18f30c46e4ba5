//! Frames between two ends: records over a link, or bursts of packets, and what happens to them on
//! their way.

use std::fmt::Debug;
use std::sync::atomic::Ordering::Relaxed;

use gdrcore_core::engine::Arrival;
use gdrcore_core::roce::frame::packet::Packets;
use gdrcore_core::roce::frame::record::{self, Links, ACK_BESIDE};
use gdrcore_core::roce::peer::{ConnectedFlow, PeerAddr};
use gdrcore_core::roce::run::{head_words, Run};
use gdrcore_core::verbs::types::qp_type;
use gdrcore_core::wire::{IcrcFlow, Opcode, PacketKind};

use super::{same, World};
use crate::util::*;

/// A frame, or a burst, on its way: who sent it, its bytes, and those of each packet.
pub(super) type Frame = (usize, Vec<u8>, usize);

/// What a link says of the place for its next frame.
const NEXT: u64 = 0x1234_5600;

/// The links of an end: one.
pub(super) struct Out {
    pub(super) link: u16,
    pub(super) buf: Vec<u8>,
    pub(super) sent: usize,
}

impl Links for Out {
    type Frame<'p> = Written<'p>;
    fn begin(&mut self, link: u16) -> Option<(&mut [u8], Written<'_>)> {
        (link == self.link).then_some((&mut self.buf[..], Written(&mut self.sent)))
    }
}

pub(super) struct Written<'p>(&'p mut usize);

impl record::Frame for Written<'_> {
    fn commit(self, len: usize) -> u64 {
        *self.0 = len;
        NEXT
    }
}

/// The port of an end: what was sent, and the bytes of each packet.
struct Wire {
    buf: Vec<u8>,
    sent: (usize, usize),
    now: u64,
}

impl Packets for Wire {
    fn begin(&mut self) -> Option<(&mut [u8], Option<&ConnectedFlow>)> {
        Some((&mut self.buf, None))
    }

    fn commit(&mut self, _to: &PeerAddr, len: usize, seg: usize, for_connected: bool) -> u64 {
        assert!(!for_connected);
        self.sent = (len, seg);
        self.now
    }
}

/// Fate of a frame on its way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Harm {
    None,
    Lost,
    Twice,
    /// A bit of its head is another; the address is left alone, since it differs between the
    /// worlds.
    Bit(usize, u8),
    /// It ends early.
    Cut(usize),
    /// Its sender is another host.
    Stranger,
    /// The network marked congestion on it.
    Marked,
}

/// How many records of a frame are no ACKs.
fn requests(mut data: &[u8]) -> usize {
    let mut n = 0;
    while let Ok((run, _, rest)) = Run::parse_record(data) {
        n += usize::from(run.kind != PacketKind::Ack);
        data = rest;
    }
    n
}

impl World {
    /// The doorbell of an end: the frame that it sends then.
    pub(super) fn ring(&mut self, end: usize) -> Option<Frame> {
        let e = &self.ends[end];
        let (qi, link, now) = (index(e.qp), self.ends[1 - end].host as u16, self.net.now);
        let dc = e.kind == qp_type::DCI;
        let mut buf = vec![0; 20_000];
        let mut g = self.net.lock(e);
        if self.is_wire() {
            // A post that gets the lock leaves no mark.
            g.shared().active.drain(|_| {});
            let alone = g.may_send_alone(qi);
            let mut out = Wire { buf, sent: (0, 0), now };
            let sent = match (self.single, dc) {
                (false, _) => None,
                (true, true) => g.send_packet::<true, _>(qi, &mut out, || now),
                (true, false) => {
                    g.send_packet::<false, _>(qi, &mut out, || unreachable!("RC's clock"))
                }
            };
            self.ways.sent += u64::from(sent.is_some());
            self.ways.not_sent += u64::from(self.single && sent.is_none());
            if sent.is_some() {
                assert!(alone);
                let (len, seg) = out.sent;
                return Some((end, out.buf[..len].to_vec(), seg));
            }
            assert_eq!(out.sent, (0, 0), "nothing leaves of what was not sent");
            if !alone {
                g.wake(qi);
                return None;
            }
            let b = g.transmit_to_port(now, qi, &mut out.buf, None)?;
            return Some((end, out.buf[..b.len].to_vec(), b.seg));
        }
        if self.single {
            // Every second one sets its timer at once, the others when the clock is read.
            let (mut out, wanted) = (Out { link, buf, sent: 0 }, self.ways.sent % 2 == 1);
            let clock = || if wanted || dc { now } else { unreachable!("the time is not wanted") };
            let sent = match dc {
                true => g.send_single::<true, _>(qi, &mut out, wanted, clock),
                false => g.send_single::<false, _>(qi, &mut out, wanted, clock),
            };
            if sent {
                g.arm_deferred_timer(now);
                self.ways.sent += 1;
                assert_eq!(g.shared().qps[qi].next_frame.load(Relaxed), NEXT);
                return Some((end, out.buf[..out.sent].to_vec(), out.sent));
            }
            self.ways.not_sent += 1;
            buf = out.buf;
        }
        let len = g.transmit_to_link(now, qi, link, &mut buf, &mut ());
        (len > 0).then(|| (end, buf[..len].to_vec(), len))
    }

    /// All frames that both ends have to send now.
    fn frames(&mut self) -> Vec<Frame> {
        let mut out = Vec::new();
        let mut buf = vec![0; 20_000];
        for end in 0..2 {
            for _ in 0..1000 {
                let mut g = self.net.lock(&self.ends[end]);
                if self.is_wire() {
                    let Some(b) = g.poll_transmit(self.net.now, &mut buf) else { break };
                    out.push((end, buf[..b.len].to_vec(), b.seg));
                    continue;
                }
                let Some(link) = g.next_link(self.net.now, |_| false) else { break };
                buf.fill(0);
                let len = g.poll_transmit_link(self.net.now, link, &mut buf, &mut ());
                if len == 0 {
                    break;
                }
                out.push((end, buf[..len].to_vec(), len));
            }
        }
        out
    }

    /// Computes the ICRC of each packet anew, as the sender or a stranger would.
    fn sign(&self, (from, bytes, seg): &mut Frame, stranger: bool) {
        let (mut src, dst) = (
            self.net.hosts[self.ends[*from].host].addr,
            self.net.hosts[self.ends[1 - *from].host].addr,
        );
        src.gid[15] ^= if stranger { 0x40 } else { 0 };
        let flow = IcrcFlow::from_gids(&src.gid, &dst.gid, src.port, dst.port);
        for (i, packet) in bytes.chunks_mut(*seg).enumerate() {
            flow.append_icrc(i as u16, packet);
        }
    }

    fn deliver_packets(&mut self, (from, bytes, seg): &Frame, src: &PeerAddr, marked: bool) {
        let now = self.net.now;
        let mut g = self.net.lock(&self.ends[1 - from]);
        let flow = IcrcFlow::from_gids(
            &src.gid,
            &self.net.hosts[self.ends[1 - from].host].addr.gid,
            src.port,
            src.port,
        );
        for (i, packet) in bytes.chunks(*seg).enumerate() {
            let mut packet = packet.to_vec();
            if !self.single && packet.len() > 4 {
                // A mark that only the single path looks at, and that no ICRC covers: the general
                // path takes the packet.
                packet[4] |= 0x80;
            }
            if self.single && !marked && flow.check(i as u16, &packet).is_ok() {
                let acks = packet[0] & 0x1f == 0x11;
                if g.take_packet(now, src, &packet) {
                    self.ways.acks += u64::from(acks);
                    self.ways.requests += u64::from(!acks);
                    continue;
                }
                self.ways.not_taken += 1;
            }
            let (segment, first) = (packet.len(), i as u16);
            let data = &packet[..];
            let arrival = Arrival { src, first, segment, data, ecn_ce: marked, recent: now };
            g.handle_arrival(&arrival, || now);
        }
    }

    fn deliver(&mut self, frame: &Frame, harm: Harm) {
        let (from, bytes, _) = frame;
        let mut src = self.net.hosts[self.ends[*from].host].addr;
        src.gid[15] ^= if matches!(harm, Harm::Stranger) { 0x40 } else { 0 };
        if self.is_wire() {
            return self.deliver_packets(frame, &src, matches!(harm, Harm::Marked));
        }
        let now = self.net.now;
        let to = &self.ends[1 - from];
        let mut g = self.net.lock(to);
        let receipts = &self.net.hosts[to.host].receipts;
        // A completion that is handed over leaves room in the CQ, for which a second message might
        // have to wait otherwise.
        let polls =
            self.polls && requests(bytes) == 1 && g.shared().cqs[index(to.rcq)].ring.is_empty();
        if polls && self.single {
            let cq = index(to.rcq);
            g.begin_handoff(cq, &self.net.hosts[to.host].engine.shared().cqs[cq]);
        }
        let mut data = &bytes[..];
        while !data.is_empty() {
            let mut beside = 0;
            let words = head_words(data);
            let behind = record::ack_behind(&words, data.len())
                .filter(|at| record::is_ack(&head_words(&data[*at..])));
            let apart = behind.filter(|_| data.len() > words.len() * 8 || !self.single);
            if self.single && apart.is_none() {
                let taken = g.take_record(now, &src.gid, &words, data, receipts);
                if taken == ACK_BESIDE {
                    (self.ways.acks, beside) = (self.ways.acks + 1, 24);
                } else if taken > 0 {
                    // An ACK alone, a request, or a request and the ACK beside it.
                    let acks =
                        data[taken - 24 + 4] & 0x1f == 0x11 && data[taken - 24..][..4] == [0; 4];
                    self.ways.acks += u64::from(acks);
                    self.ways.requests += u64::from(!acks || taken > 24);
                    data = &data[taken..];
                    continue;
                }
                self.ways.not_taken += 1;
            }
            if let Some(at) = behind.filter(|_| beside == 0) {
                // Whatever takes it, the ACK is taken first.
                let ack = &data[at..];
                let single = self.single
                    && g.take_record(now, &src.gid, &head_words(ack), ack, receipts) > 0;
                self.ways.acks += u64::from(single);
                if let (false, Ok((run, payload, _))) = (single, Run::parse_record(ack)) {
                    g.handle_run(now, &src, &run, payload, receipts);
                }
                data = &data[..at];
                continue;
            }
            match Run::parse_record(data) {
                Ok((run, payload, rest)) => {
                    g.handle_run(now, &src, &run, payload, receipts);
                    data = &rest[beside..];
                }
                Err(_) => {
                    g.count_malformed();
                    break;
                }
            }
        }
        // The way back to a DCI is another link.
        while let Some((at, ..)) = g.next_unlinked() {
            g.set_context_link(at, self.ends[*from].host as u16);
        }
        if polls {
            let handed = g.finish_handoff().copied();
            drop(g);
            self.ways.handed += u64::from(handed.is_some());
            self.polled.extend(handed);
            self.polled.extend(self.net.poll(to.host, to.rcq));
        }
    }

    /// Timers and owed ACKs, after a while.
    pub(super) fn wait(&mut self, ns: u64, flush: bool) {
        self.net.now += ns;
        for e in &self.ends {
            let mut g = self.net.lock(e);
            g.handle_timeout(self.net.now);
            if flush {
                g.flush_acks();
            }
        }
    }
}

/// The bytes of frames without the addresses, which differ between the worlds.
fn shown(frame: &Option<Frame>, wire: bool) -> Option<Frame> {
    let (from, mut bytes, seg) = frame.clone()?;
    for packet in bytes.chunks_mut(seg).filter(|_| wire) {
        if Opcode(packet[0]).has_reth() || Opcode(packet[0]).has_atomic_eth() {
            let icrc = packet.len() - 4;
            // Behind the FETH, where there is one.
            let at = if Opcode(packet[0]).has_feth() { 16 } else { 12 };
            packet[at..at + 8].fill(0);
            packet[icrc..].fill(0);
        }
    }
    if wire {
        return Some((from, bytes, seg));
    }
    let mut at = 0;
    while let Ok((run, _, rest)) = Run::parse_record(&bytes[at..]) {
        let next = bytes.len() - rest.len();
        if run.head_len() > 24 && run.va != 0 {
            bytes[at + 24..at + 32].fill(0);
        }
        at = next;
    }
    Some((from, bytes, seg))
}

/// Takes a frame of each world to its end, with the same harm done to both.
pub(super) fn carry(
    worlds: &mut [World; 2],
    frames: [Option<Frame>; 2],
    harm: Harm,
    what: &dyn Debug,
) {
    let wire = worlds[0].is_wire();
    assert!(shown(&frames[0], wire) == shown(&frames[1], wire), "{what:?}: frames {frames:?}");
    for (w, frame) in worlds.iter_mut().zip(frames) {
        let Some(mut frame) = frame else { continue };
        match harm {
            Harm::Bit(at, bit) => frame.1[at] ^= bit,
            Harm::Cut(n) => frame.1.truncate(frame.1.len().saturating_sub(n)),
            _ => {}
        }
        match harm {
            // A bit may be damaged on the way; or the sender itself wrote it so, with an ICRC that
            // is right.
            Harm::Bit(_, bit) if wire && bit & 0x11 == 0 => w.sign(&mut frame, false),
            Harm::Cut(n) if wire && n % 4 == 0 => w.sign(&mut frame, false),
            Harm::Stranger if wire => w.sign(&mut frame, true),
            _ => {}
        }
        if !matches!(harm, Harm::Lost) {
            w.deliver(&frame, harm);
        }
        if matches!(harm, Harm::Twice) {
            w.deliver(&frame, harm);
        }
    }
    same(worlds, what);
}

/// Everything that moves without time passing, step by step.
pub(super) fn settle(worlds: &mut [World; 2], what: &dyn Debug) {
    for _ in 0..50 {
        let [a, b] = worlds;
        let (x, y) = (a.frames(), b.frames());
        assert_eq!(x.len(), y.len(), "{what:?}");
        if x.is_empty() {
            return;
        }
        for (x, y) in x.into_iter().zip(y) {
            carry(worlds, [Some(x), Some(y)], Harm::None, what);
        }
    }
}
