//! Small messages that take the short way leave what the usual way leaves, over a link and as
//! packets: the same requests in two worlds, of which one is offered the short way at both ends,
//! and everything compared after each step, the bytes in between as well.

use gdrcore_core::roce::frame::record::{self, Links, ACK_BESIDE};
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::roce::run::{head_words, Run};
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Flow, Kind, Opcode};

use crate::util::*;

/// How often the short way was taken, and how often it was offered in vain.
#[derive(Clone, Copy, Debug, Default)]
struct Ways {
    sent: u64,
    not_sent: u64,
    requests: u64,
    acks: u64,
    not_taken: u64,
    /// Completions that were handed to the thread that polled for them.
    handed: u64,
}

struct World {
    net: Net,
    ends: [End; 2],
    short: bool,
    /// As packets, not over a link.
    wire: bool,
    ways: Ways,
    /// An end to which something is delivered polls then, as a program that runs the engine does.
    polls: bool,
    /// Completions that these polls have brought.
    polled: Vec<Wc>,
}

/// A request, the same in both worlds, though their addresses differ.
#[derive(Clone, Copy, Debug)]
struct Plan {
    from: usize,
    opcode: u32,
    flags: u32,
    len: usize,
    pieces: usize,
    src: usize,
    dst: usize,
    /// What is wrong with it: 0 nothing, 1 the remote key, 2 the remote range, 3 the local key.
    wrong: u64,
}

/// A frame, or a burst, on its way: who sent it, its bytes, and those of each packet.
type Frame = (usize, Vec<u8>, usize);

/// The links of an end: one.
struct Out {
    link: u16,
    buf: Vec<u8>,
    sent: usize,
}

impl Links for Out {
    type Frame<'p> = Written<'p>;
    fn begin(&mut self, link: u16) -> Option<(&mut [u8], Written<'_>)> {
        (link == self.link).then_some((&mut self.buf[..], Written(&mut self.sent)))
    }
}

struct Written<'p>(&'p mut usize);

impl record::Frame for Written<'_> {
    fn commit(self, len: usize) {
        *self.0 = len;
    }
}

/// Fate of a frame on its way.
#[derive(Clone, Copy, Debug)]
enum Harm {
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
        n += usize::from(run.kind != Kind::Ack);
        data = rest;
    }
    n
}

impl World {
    fn new(o: Opts, short: bool) -> World {
        let (net, a, b) = Net::pair(o);
        for (i, e) in [&a, &b].iter().enumerate() {
            e.buf.put(0, &pattern(i as u64, e.buf.len()));
        }
        let wire = o.way == Way::Wire;
        World {
            net,
            ends: [a, b],
            short,
            wire,
            ways: Ways::default(),
            polls: false,
            polled: Vec::new(),
        }
    }

    fn post(&mut self, id: u64, p: &Plan) -> Result<(), gdrcore_core::Error> {
        let (e, peer) = (&self.ends[p.from], &self.ends[1 - p.from]);
        let mut wr = Wr::new(p.opcode).id(id).flags(p.flags).imm(0x0102_0304);
        let each = p.len / p.pieces;
        for i in 0..p.pieces {
            let length = if i + 1 == p.pieces { p.len - each * i } else { each };
            let mut sge = Sge {
                addr: e.mr.iova + (p.src + each * i) as u64,
                length: length as u32,
                lkey: e.mr.lkey,
            };
            if p.wrong == 3 {
                sge.lkey ^= 0x55;
            }
            wr = wr.sge(sge);
        }
        let rkey = peer.mr.rkey ^ if p.wrong == 1 { 0x55 } else { 0 };
        let at = peer.mr.iova + if p.wrong == 2 { peer.buf.len() as u64 } else { p.dst as u64 };
        wr = match p.opcode {
            wr_opcode::ATOMIC_FETCH_AND_ADD => wr.atomic(peer, p.dst, 3, 0),
            _ => wr.key(at, rkey),
        };
        self.net.try_post(e, wr)
    }

    /// The doorbell of an end: what its link brings to the peer then.
    fn ring(&mut self, end: usize) -> Option<Frame> {
        let e = &self.ends[end];
        let (qi, link, now) = (index(e.qp), self.ends[1 - end].host as u16, self.net.now);
        let mut buf = vec![0; 20_000];
        let mut g = self.net.lock(e);
        if self.wire {
            // Who posts and gets the lock leaves no mark.
            g.shared().active.drain(|_| {});
            let alone = g.may_send_alone(qi);
            let prepared = if self.short { g.prepare_packet(qi, &mut buf, |_| None) } else { None };
            self.ways.sent += u64::from(prepared.is_some());
            self.ways.not_sent += u64::from(self.short && prepared.is_none());
            let burst = match prepared {
                Some((burst, prepared)) => {
                    assert!(alone);
                    g.commit_send(now, prepared);
                    Some(burst)
                }
                None if alone => g.transmit_to_port(now, qi, &mut buf),
                None => {
                    g.wake(qi);
                    None
                }
            };
            return burst.map(|b| (end, buf[..b.len].to_vec(), b.seg));
        }
        if self.short {
            // Every second one gets its date at once, the others when the clock is read.
            let (mut out, wanted) = (Out { link, buf, sent: 0 }, self.ways.sent % 2 == 1);
            let clock = || if wanted { now } else { unreachable!("nobody wants to know the time") };
            if g.send_single(qi, &mut out, wanted, clock) {
                g.arm_deferred_timer(now);
                self.ways.sent += 1;
                return Some((end, out.buf[..out.sent].to_vec(), out.sent));
            }
            self.ways.not_sent += 1;
            buf = out.buf;
        }
        let len = g.transmit_to_link(now, qi, link, &mut buf, &mut ());
        (len > 0).then(|| (end, buf[..len].to_vec(), len))
    }

    /// All that both ends have to send now, in frames.
    fn frames(&mut self) -> Vec<Frame> {
        let mut out = Vec::new();
        let mut buf = vec![0; 20_000];
        for end in 0..2 {
            for _ in 0..1000 {
                let mut g = self.net.lock(&self.ends[end]);
                if self.wire {
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

    /// The ICRC of each packet anew, as the sender or a stranger would have it.
    fn sign(&self, (from, bytes, seg): &mut Frame, stranger: bool) {
        let (mut src, dst) = (
            self.net.hosts[self.ends[*from].host].addr,
            self.net.hosts[self.ends[1 - *from].host].addr,
        );
        src.gid[15] ^= if stranger { 0x40 } else { 0 };
        let flow = Flow::from_gids(&src.gid, &dst.gid, src.port, dst.port);
        for (i, packet) in bytes.chunks_mut(*seg).enumerate() {
            flow.append_icrc(i as u16, packet);
        }
    }

    fn deliver_packets(&mut self, (from, bytes, seg): &Frame, src: &PeerAddr, marked: bool) {
        let now = self.net.now;
        let mut g = self.net.lock(&self.ends[1 - from]);
        let flow = Flow::from_gids(
            &src.gid,
            &self.net.hosts[self.ends[1 - from].host].addr.gid,
            src.port,
            src.port,
        );
        for (i, packet) in bytes.chunks(*seg).enumerate() {
            let mut packet = packet.to_vec();
            if !self.short && packet.len() > 4 {
                // A mark that only the short way looks at, and that no ICRC covers: the usual way
                // takes it.
                packet[4] |= 0x80;
            }
            if self.short && !marked && flow.check(i as u16, &packet).is_ok() {
                let acks = packet[0] == 0x11;
                if g.take_packet(now, src, &packet) {
                    self.ways.acks += u64::from(acks);
                    self.ways.requests += u64::from(!acks);
                    continue;
                }
                self.ways.not_taken += 1;
            }
            g.handle_segments(now, src, i as u16, packet.len(), &packet, marked);
        }
    }

    fn deliver(&mut self, frame: &Frame, harm: Harm) {
        let (from, bytes, _) = frame;
        let mut src = self.net.hosts[self.ends[*from].host].addr;
        src.gid[15] ^= if matches!(harm, Harm::Stranger) { 0x40 } else { 0 };
        if self.wire {
            return self.deliver_packets(frame, &src, matches!(harm, Harm::Marked));
        }
        let now = self.net.now;
        let to = &self.ends[1 - from];
        let mut g = self.net.lock(to);
        // What was handed over leaves room in the CQ, for which a second message might have to wait
        // otherwise.
        let polls =
            self.polls && requests(bytes) == 1 && g.shared().cqs[index(to.rcq)].ring.is_empty();
        if polls && self.short {
            g.begin_handoff(index(to.rcq) as u32);
        }
        let mut data = &bytes[..];
        while !data.is_empty() {
            let mut beside = 0;
            let words = head_words(data);
            let behind = record::ack_behind(&words, data.len())
                .filter(|at| record::is_ack(&head_words(&data[*at..])));
            let apart = behind.filter(|_| data.len() > words.len() * 8 || !self.short);
            if self.short && apart.is_none() {
                let taken = g.take_record(now, &src.gid, &words, data);
                if taken == ACK_BESIDE {
                    (self.ways.acks, beside) = (self.ways.acks + 1, 24);
                } else if taken > 0 {
                    // An ACK alone, a request, or a request and the ACK beside it.
                    let acks = data[taken - 24 + 4] == 0x11 && data[taken - 24..][..4] == [0; 4];
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
                let short = self.short && g.take_record(now, &src.gid, &head_words(ack), ack) > 0;
                self.ways.acks += u64::from(short);
                if let (false, Ok((run, payload, _))) = (short, Run::parse_record(ack)) {
                    g.handle_run(now, &src, &run, payload);
                }
                data = &data[..at];
                continue;
            }
            match Run::parse_record(data) {
                Ok((run, payload, rest)) => {
                    g.handle_run(now, &src, &run, payload);
                    data = &rest[beside..];
                }
                Err(_) => {
                    g.count_malformed();
                    break;
                }
            }
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
    fn wait(&mut self, ns: u64, flush: bool) {
        self.net.now += ns;
        for e in &self.ends {
            let mut g = self.net.lock(e);
            g.handle_timeout(self.net.now);
            if flush {
                g.flush_acks();
            }
        }
    }

    /// All that the two ways could leave behind differently, as text.
    fn state(&self) -> String {
        let mut out = format!("polled {:?}\n", self.polled);
        for (i, e) in self.ends.iter().enumerate() {
            out += &end_state(&self.net, i, e, true);
        }
        out
    }
}

fn same(worlds: &mut [World; 2], what: &dyn std::fmt::Debug) {
    let [short, long] = worlds;
    let (a, b) = (short.state(), long.state());
    assert!(a == b, "{what:?}\n--- offered the short way:\n{a}--- not:\n{b}");
    for i in 0..2 {
        let (x, y) = (&short.ends[i].buf, &long.ends[i].buf);
        assert!(x.get(0, x.len()) == y.get(0, y.len()), "{what:?}: memory of end {i}");
    }
}

/// The bytes of frames without the addresses, which differ between the worlds.
fn shown(frame: &Option<Frame>, wire: bool) -> Option<Frame> {
    let (from, mut bytes, seg) = frame.clone()?;
    for packet in bytes.chunks_mut(seg).filter(|_| wire) {
        if Opcode(packet[0]).has_reth() || Opcode(packet[0]).has_atomic_eth() {
            let icrc = packet.len() - 4;
            packet[12..20].fill(0);
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
fn carry(
    worlds: &mut [World; 2],
    frames: [Option<Frame>; 2],
    harm: Harm,
    what: &dyn std::fmt::Debug,
) {
    let wire = worlds[0].wire;
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
fn settle(worlds: &mut [World; 2], what: &dyn std::fmt::Debug) {
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

/// Sometimes CQs, or windows, that have hardly any room.
fn crowd(worlds: &[World; 2], rng: &mut Rng) {
    if rng.below(4) == 0 {
        // All entries of the CQs but one were promised to others.
        for w in worlds {
            for e in &w.ends {
                let mut g = w.net.lock(e);
                for cq in [e.scq, e.rcq] {
                    let entries = g.shared().cqs[index(cq)].ring.capacity();
                    g.transport.common.cqs[index(cq)].reserved = entries - 1;
                }
            }
        }
    }
    if rng.below(3) == 0 {
        // Windows of two packets, as after a silence.
        for w in worlds {
            for e in &w.ends {
                let mut g = w.net.lock(e);
                let peer = g.transport.qps[index(e.qp)].conn.peer as usize;
                g.transport.peers[peer].tx.on_timeout(w.net.now);
            }
        }
    }
}

/// A request, whatever it may be.
fn plan(rng: &mut Rng, kind: u32) -> Plan {
    let p = Plan {
        from: rng.below(2) as usize,
        opcode: match rng.below(16) {
            0 if kind == qp_type::RC => wr_opcode::RDMA_READ,
            1 if kind == qp_type::RC => wr_opcode::ATOMIC_FETCH_AND_ADD,
            2 => wr_opcode::RDMA_WRITE_WITH_IMM,
            3 => wr_opcode::SEND_WITH_IMM,
            4..8 => wr_opcode::RDMA_WRITE,
            _ => wr_opcode::SEND,
        },
        flags: [
            0,
            send_flags::SIGNALED,
            send_flags::SIGNALED,
            send_flags::FENCE,
            send_flags::SOLICITED,
        ][rng.below(5) as usize],
        len: [8, 8, 0, 1, 7, 64, 300, 4096, 5000][rng.below(9) as usize],
        pieces: 1 + usize::from(rng.below(8) == 0),
        src: rng.below(4096) as usize,
        dst: 8 * rng.below(512) as usize,
        wrong: if rng.below(60) == 0 { 1 + rng.below(3) } else { 0 },
    };
    let comes_back = matches!(p.opcode, wr_opcode::RDMA_READ | wr_opcode::ATOMIC_FETCH_AND_ADD);
    let inline = !comes_back && p.len <= 64 && rng.below(2) == 0;
    let atomic = p.opcode == wr_opcode::ATOMIC_FETCH_AND_ADD;
    let (len, pieces) = if atomic { (8, 1) } else { (p.len, p.pieces) };
    Plan { flags: p.flags | if inline { send_flags::INLINE } else { 0 }, len, pieces, ..p }
}

/// What is done to a frame, where something is.
fn harm(rng: &mut Rng, way: Way) -> Harm {
    match rng.below(13) {
        1 => Harm::Lost,
        2 => Harm::Twice,
        3 => Harm::Bit(rng.below(24) as usize, 1 << rng.below(8)),
        4 => Harm::Cut(1 + rng.below(40) as usize),
        5 => Harm::Stranger,
        6 if way == Way::Wire => Harm::Marked,
        _ => Harm::None,
    }
}

/// Polls of all CQs but one, and their events, bring the same in both.
fn same_completions(worlds: &[World; 2], but: u64, what: &dyn std::fmt::Debug) {
    for end in 0..2 {
        if but != end {
            let take = |w: &World| {
                let e = &w.ends[end as usize];
                (w.net.poll(e.host, e.scq), w.net.poll(e.host, e.rcq))
            };
            assert_eq!(take(&worlds[0]), take(&worlds[1]), "{what:?}");
        }
    }
    for host in 0..2 {
        let events = |w: &World| w.net.hosts[host].lock().take_cq_event();
        assert_eq!(events(&worlds[0]).is_some(), events(&worlds[1]).is_some(), "{what:?}");
    }
}

/// A connection of any kind.
fn any_options(rng: &mut Rng, way: Way) -> Opts {
    let kind = if rng.below(16) == 0 { qp_type::UC } else { qp_type::RC };
    Opts {
        way,
        kind,
        bytes: 16 << 10,
        mtu: 1 + rng.below(5) as u32,
        sq: 4 + rng.below(12) as u32,
        rq: 4 + rng.below(12) as u32,
        cqe: 4 + rng.below(16) as u32,
        sig_all: rng.below(4) == 0,
        srq: rng.below(8) == 0,
        access: if rng.below(8) == 0 { ALL & !access::REMOTE_WRITE } else { ALL },
        rnr: 2,
        ..Opts::default()
    }
}

fn compare(seed: u64, way: Way) -> Ways {
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let o = any_options(&mut rng, way);
    let mut worlds = [World::new(o, true), World::new(o, false)];
    let harmful = rng.below(3) == 0;
    crowd(&worlds, &mut rng);
    let mut lame = 0;
    for step in 0..80 {
        // A connection that has failed shows a few more requests how it ends them.
        lame += u32::from(worlds[0].ends.iter().any(|e| worlds[0].net.state(e) == qp_state::ERR));
        if lame > 4 {
            break;
        }
        let p = plan(&mut rng, o.kind);
        let receives = rng.below(3);
        let small = rng.below(12) == 0;
        let more = rng.below(6) == 0;
        let polled = rng.below(3);
        let arm = rng.below(6);
        let drain = rng.below(40) == 0;
        let harm = if harmful { harm(&mut rng, way) } else { Harm::None };
        let answers = rng.below(3);
        let polls = rng.below(3) == 0;
        let wait = [0, 1000, 30_000, 1_500_000][rng.below(4) as usize];
        let what = (seed, step, p, harm);
        for w in &mut worlds {
            w.polls = polls;
            w.polled.clear();
            for k in 0..receives {
                // Full is full in both. A small one is too small for some.
                let _ = w.net.try_recv(
                    &w.ends[1 - p.from],
                    2 * step + k,
                    &[(8192, if small { 4 } else { 6000 })],
                );
            }
            if arm < 2 {
                let e = &w.ends[arm as usize];
                w.net
                    .lock(e)
                    .arm_cq(if step.count_ones() % 2 == 0 { e.scq } else { e.rcq }, step % 3 == 0)
                    .unwrap();
            }
            if drain {
                let _ = w.net.to_state(&w.ends[p.from], qp_state::SQD);
            }
        }
        let outcome: Vec<_> = worlds.iter_mut().map(|w| w.post(1000 + step, &p)).collect();
        assert_eq!(outcome[0], outcome[1], "{what:?}");
        for w in &mut worlds {
            if more {
                // A second one on its heels, before the engine has moved.
                let _ = w.post(2000 + step, &Plan { wrong: 0, ..p });
            }
        }
        let [a, b] = &mut worlds;
        let frames = [a.ring(p.from), b.ring(p.from)];
        // What was damaged is never shorter than the bit that is.
        let harm = match harm {
            Harm::Bit(at, _)
                if frames[0].as_ref().is_none_or(|(_, bytes, _)| bytes.len() <= at) =>
            {
                Harm::None
            }
            h => h,
        };
        carry(&mut worlds, frames, harm, &what);
        match answers {
            0 => {
                for w in &mut worlds {
                    w.wait(wait, step % 2 == 0);
                }
                settle(&mut worlds, &what);
            }
            1 => settle(&mut worlds, &what),
            _ => {}
        }
        if drain {
            for w in &mut worlds {
                let _ = w.net.to_state(&w.ends[p.from], qp_state::RTS);
            }
            settle(&mut worlds, &what);
        }
        same(&mut worlds, &what);
        same_completions(&worlds, polled, &what);
    }
    worlds[0].ways
}

fn compare_all(way: Way) {
    let mut all = Ways::default();
    for seed in 1..250 {
        let w = compare(seed, way);
        all.sent += w.sent;
        all.not_sent += w.not_sent;
        all.requests += w.requests;
        all.acks += w.acks;
        all.not_taken += w.not_taken;
        all.handed += w.handed;
    }
    // Each way was taken, often.
    let least = [all.sent, all.not_sent, all.requests, all.acks, all.not_taken].into_iter().min();
    assert!(least > Some(400) && (way != Way::Link || all.handed > 100), "{all:?}");
}

#[test]
fn the_short_way_over_a_link_leaves_what_the_usual_way_leaves() {
    compare_all(Way::Link);
}

#[test]
fn the_short_way_of_packets_leaves_what_the_usual_way_leaves() {
    compare_all(Way::Wire);
}

#[test]
fn what_leaves_without_a_date_counts_from_the_next_look_at_the_clock() {
    let o = Opts { way: Way::Link, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    let (c, d) = (net.end(a.host, &o), net.end(b.host, &o));
    net.connect(&c, &d, &o);
    let send = |net: &Net, e: &End, wanted, clock: &dyn Fn() -> u64| {
        net.post(e, Wr::new(wr_opcode::SEND).local(e, 0, 8));
        let mut out = Out { link: b.host as u16, buf: vec![0; 20_000], sent: 0 };
        assert!(net.lock(e).send_single(index(e.qp), &mut out, wanted, clock) && out.sent > 0);
    };
    let deadline =
        |net: &Net, e: &End| net.lock(e).transport.qps[index(e.qp)].conn.req.ack_deadline;
    let never = || unreachable!();
    send(&net, &a, false, &never);
    assert_eq!(deadline(&net, &a), 0);
    // A second one of the same queue pair waits with it; one of another has its date at once.
    send(&net, &a, false, &never);
    send(&net, &c, false, &|| 5_000_000);
    assert!(deadline(&net, &a) == 0 && deadline(&net, &c) > 5_000_000);
    // Whoever asks when he is wanted gives it one.
    let next = net.lock(&a).next_timeout(9_000_000).unwrap();
    assert!(next > 5_000_000 && deadline(&net, &a) > 9_000_000, "{next}");
    let first = deadline(&net, &a);
    net.lock(&a).arm_deferred_timer(10_000_000);
    assert_eq!(deadline(&net, &a), first, "once");
    // One of a queue pair that is gone from RTS meanwhile gets none; wanted at once, it has it at
    // once.
    let (mut net, a, b) = Net::pair(o);
    send(&net, &a, false, &never);
    net.to_state(&a, qp_state::ERR).unwrap();
    net.lock(&a).arm_deferred_timer(1_000_000);
    assert_eq!(deadline(&net, &a), 0);
    let c = net.end(a.host, &o);
    let d = net.end(b.host, &o);
    net.connect(&c, &d, &o);
    send(&net, &c, true, &|| 2_000_000);
    assert!(deadline(&net, &c) > 2_000_000);
}

/// A reply and the ACK of what it replies to travel together, the ACK behind. It is taken first: a
/// program with one CQ for both queues sees its own request complete before the reply, as on a NIC.
#[test]
fn a_request_completes_before_the_reply_to_it() {
    for way in [Way::Link, Way::Wire] {
        // With the ACK among the first words of the record and behind them, and a WRITE.
        for (opcode, len) in [
            (wr_opcode::SEND, 4),
            (wr_opcode::SEND_WITH_IMM, 16),
            (wr_opcode::SEND, 200),
            (wr_opcode::SEND, 1000),
            (wr_opcode::RDMA_WRITE_WITH_IMM, 8),
            (wr_opcode::RDMA_WRITE_WITH_IMM, 500),
        ] {
            let (mut net, a, b) = Net::pair(Opts { way, one_cq: true, ..Opts::default() });
            for turn in 0..20 {
                for (from, to) in [(&a, &b), (&b, &a)] {
                    net.recv(to, 7, &[(0, 2048)]);
                    let wr = Wr::new(opcode).id(8).flags(send_flags::SIGNALED).local(from, 0, len);
                    net.post(from, wr.key(to.mr.iova, to.mr.rkey));
                    net.exchange();
                    let seen: Vec<u64> =
                        net.poll(to.host, to.scq).iter().map(|wc| wc.wr_id).collect();
                    // Of the very first message there is no request before it.
                    let first = turn == 0 && from.host == a.host;
                    assert_eq!(
                        seen,
                        if first { vec![7] } else { vec![8, 7] },
                        "{way:?} {opcode} {len} {turn}"
                    );
                }
            }
        }
    }
}
