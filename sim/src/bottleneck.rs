//! Congestion control at a bottleneck: eight senders through one switch port.
//!
//! Each sender has an engine and a link of its own to a switch. Behind the switch one link of the
//! same speed leads to one receiver, so the senders together offer eight times its capacity. The
//! switch keeps one queue, marks packets as RED does (never below `K_MIN`, always above `K_MAX`,
//! with a probability that grows to `P_MAX` between them) and drops packets that do not fit.
//! Senders without congestion control send packets that may not be marked. Answers travel back
//! without a queue. Everything follows from the seed.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::counters::Counters;
use gdrcore_core::device::MrAttr;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::types::*;
use gdrcore_testkit::engine::address;
use gdrcore_testkit::requests::{queue_pair, queues, region, send_wr};
use gdrcore_testkit::rng::Rng;

use gdrcore_testkit::connection::Connection;
use gdrcore_testkit::engine::OwnedEngine;

use crate::buf::Buf;

/// Flows, each from a host of its own.
pub const FLOWS: usize = 8;
/// Every link, in bytes per second: 10 Gb/s.
const LINE: u64 = 1_250_000_000;
/// Propagation delay from end to end, each way.
const DELAY_NS: u64 = 5_000;
/// Capacity of the switch's queue.
pub const QUEUE_BYTES: usize = 1 << 20;
/// Queue length in bytes below which nothing is marked.
const K_MIN: usize = 40 << 10;
/// Queue length above which every packet is marked.
pub const K_MAX: usize = 200 << 10;
/// Probability of a mark just below `K_MAX`, in a million.
const P_MAX: u64 = 100_000;
/// Bytes that the wire adds to a packet of the engine: UDP, IP, Ethernet, preamble and gap.
const OVERHEAD: usize = 8 + 20 + 38;
/// Bytes of every WRITE; four are outstanding.
const MESSAGE: u32 = 256 << 10;
const DEPTH: u32 = 4;
/// The flows begin one after the other, this far apart.
const STAGGER_NS: u64 = 2_000_000;
/// The measurement begins here, when the rates have settled.
const WARM_NS: u64 = 60_000_000;

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Bytes of each flow that were acknowledged during the measurement.
    pub bytes: Vec<u64>,
    /// Jain's index of fairness over them: 1 if all are equal, 1/8 if one flow has all.
    pub jain: f64,
    /// Their share of the bottleneck's capacity, headers not counted.
    pub used: f64,
    /// Most bytes in the queue.
    pub queue_max: usize,
    /// Mean bytes in the queue, over arrivals.
    pub queue_mean: f64,
    /// Packets dropped because the queue was full.
    pub dropped: u64,
    /// Packets marked.
    pub marked: u64,
    /// Sum of all engines' counters.
    pub counters: Counters,
}

/// A sender, or the receiver.
struct Node {
    engine: OwnedEngine,
    /// When the host's own link has finished sending.
    link_free: u64,
    /// When it runs next; `u64::MAX`: only when a packet arrives.
    wake_at: u64,
}

/// One flow, at the sender's side.
struct BulkSender {
    qp: Handle,
    cq: Handle,
    mr: MrAttr,
    target: MrAttr,
    done: u64,
    /// Memory of the two regions.
    _bufs: [Buf; 2],
}

enum Event {
    /// A sender's packet reaches the switch, or the receiver's packet reaches a sender.
    Arrives { from: usize, to: usize, bytes: Vec<u8> },
    /// The bottleneck has sent the first packet of its queue.
    Served,
    /// A host's timer expires.
    Wake(usize),
}

struct Switch {
    /// Whether the senders' packets are ECN-capable (ECT).
    marks: bool,
    queue: VecDeque<(usize, Vec<u8>, bool)>,
    bytes: usize,
    rng: Rng,
}

struct World {
    now: u64,
    seq: u64,
    events: BinaryHeap<Reverse<(u64, u64, usize)>>,
    bodies: Vec<Option<Event>>,
    free: Vec<usize>,
    /// The last one is the receiver.
    nodes: Vec<Node>,
    flows: Vec<BulkSender>,
    switch: Switch,
    report: Report,
    arrivals: u64,
    scratch: Vec<u8>,
}

fn node(seed: u64, n: usize, flags: u32) -> Node {
    let addr = address(false, n as u8 + 1);
    let config = Config {
        seed,
        flags,
        line_rate_bytes_per_s: LINE,
        max_qp: 16,
        max_peer: 16,
        ..Config::default()
    };
    Node { engine: OwnedEngine::in_used_memory(&config, addr), link_free: 0, wake_at: u64::MAX }
}

impl Node {
    /// A QP in RESET with a CQ and a registered buffer.
    fn qp(&self) -> (Handle, u32, Handle, MrAttr, Buf) {
        let mut g = self.engine.lock();
        let pd = g.pd_alloc().expect("room");
        let (cq, _) = g.cq_create(16).expect("room");
        let init = queue_pair(qp_type::RC, pd, [cq; 2], queues(DEPTH, 1, 0));
        let init = QpInit { sq_sig_all: 1, ..init };
        let (qp, qpn, _) = g.qp_create(0, &init).expect("room");
        let buf = Buf::new(MESSAGE as usize);
        let reg =
            region(pd, buf.addr(), u64::from(MESSAGE), access::LOCAL_WRITE | access::REMOTE_WRITE);
        let (_, mr) = g.mr_reg(&reg).expect("room");
        (qp, qpn, cq, mr, buf)
    }

    fn connect(&self, qp: Handle, to: &PeerAddr, qpn: u32) {
        let connection = Connection {
            access: access::REMOTE_WRITE,
            mtu: mtu::MTU_4096,
            ah: AhAttr { dgid: to.gid, ..AhAttr::default() },
            dest_qpn: qpn,
            rd_atomic: 1,
            ..Connection::default()
        };
        for (attr, mask) in connection.steps() {
            self.engine.lock().qp_modify(0, qp, &attr, mask).expect("a legal transition");
        }
    }
}

impl World {
    fn new(seed: u64, dcqcn: bool) -> World {
        let mut rng = Rng::new(seed);
        let flags = if dcqcn { config_flags::DCQCN } else { 0 };
        let nodes: Vec<Node> = (0..=FLOWS).map(|n| node(rng.next(), n, flags)).collect();
        let sink = &nodes[FLOWS];
        let flows = nodes[..FLOWS].iter().map(|sender| {
            let (qp, qpn, cq, mr, buf) = sender.qp();
            let (their_qp, their_qpn, _, target, their_buf) = sink.qp();
            sender.connect(qp, &sink.engine.addr, their_qpn);
            sink.connect(their_qp, &sender.engine.addr, qpn);
            BulkSender { qp, cq, mr, target, done: 0, _bufs: [buf, their_buf] }
        });
        let flows = flows.collect();
        let report = Report {
            bytes: Vec::new(),
            jain: 0.0,
            used: 0.0,
            queue_max: 0,
            queue_mean: 0.0,
            dropped: 0,
            marked: 0,
            counters: Counters::default(),
        };
        let switch = Switch { marks: dcqcn, queue: VecDeque::new(), bytes: 0, rng };
        World {
            now: 0,
            seq: 0,
            events: BinaryHeap::new(),
            bodies: Vec::new(),
            free: Vec::new(),
            nodes,
            flows,
            switch,
            report,
            arrivals: 0,
            scratch: vec![0; 65_536],
        }
    }

    fn at(&mut self, when: u64, event: Event) {
        self.seq += 1;
        let body = self.free.pop().unwrap_or_else(|| {
            self.bodies.push(None);
            self.bodies.len() - 1
        });
        self.bodies[body] = Some(event);
        self.events.push(Reverse((when, self.seq, body)));
    }

    fn wake(&mut self, n: usize, when: u64) {
        if when < self.nodes[n].wake_at {
            self.nodes[n].wake_at = when;
            self.at(when, Event::Wake(n));
        }
    }

    fn run(&mut self, end: u64) -> Result<(), String> {
        for flow in 0..FLOWS {
            self.wake(flow, flow as u64 * STAGGER_NS);
        }
        let mut base: Option<Vec<u64>> = None;
        while let Some(Reverse((when, _, body))) = self.events.pop() {
            if when > end {
                break;
            }
            if when >= WARM_NS && base.is_none() {
                base = Some(self.flows.iter().map(|f| f.done).collect());
            }
            self.now = when;
            let event = self.bodies[body].take().ok_or("an event ran twice")?;
            self.free.push(body);
            match event {
                // Stale if an earlier wake-up has replaced it.
                Event::Wake(n) if self.nodes[n].wake_at == when => {
                    self.nodes[n].wake_at = u64::MAX;
                    self.drive(n)?;
                }
                Event::Wake(_) => {}
                Event::Served => self.served()?,
                Event::Arrives { from, to, bytes } if to == FLOWS => self.enqueue(from, bytes),
                Event::Arrives { from, to, bytes } => self.receive(from, to, &bytes, false)?,
            }
        }
        let base = base.ok_or("the run ended before it was measured")?;
        self.report.bytes = self.flows.iter().zip(base).map(|(f, b)| f.done - b).collect();
        Ok(())
    }

    /// A packet reaches the switch's port towards the receiver.
    fn enqueue(&mut self, from: usize, bytes: Vec<u8>) {
        let (s, r) = (&mut self.switch, &mut self.report);
        let size = bytes.len() + OVERHEAD;
        self.arrivals += 1;
        r.queue_mean += s.bytes as f64;
        if s.bytes + size > QUEUE_BYTES {
            r.dropped += 1;
            return;
        }
        let chance = match s.bytes {
            b if b <= K_MIN => 0,
            b if b >= K_MAX => 1_000_000,
            b => (b - K_MIN) as u64 * P_MAX / (K_MAX - K_MIN) as u64,
        };
        let mark = s.rng.chance(chance as u32) && s.marks;
        r.marked += u64::from(mark);
        s.bytes += size;
        r.queue_max = r.queue_max.max(s.bytes);
        s.queue.push_back((from, bytes, mark));
        if s.queue.len() == 1 {
            self.at(self.now + time_of(size), Event::Served);
        }
    }

    fn served(&mut self) -> Result<(), String> {
        let (from, bytes, mark) = self.switch.queue.pop_front().ok_or("served nothing")?;
        self.switch.bytes -= bytes.len() + OVERHEAD;
        if let Some((_, next, _)) = self.switch.queue.front() {
            self.at(self.now + time_of(next.len() + OVERHEAD), Event::Served);
        }
        // The delay of the packet included the way behind the switch.
        self.receive(from, FLOWS, &bytes, mark)
    }

    fn receive(&mut self, from: usize, to: usize, bytes: &[u8], mark: bool) -> Result<(), String> {
        let src = self.nodes[from].engine.addr;
        let mut g = self.nodes[to].engine.try_lock().ok_or("one thread")?;
        g.handle_packets(self.now, &src, bytes.len(), bytes, mark);
        drop(g);
        self.drive(to)
    }

    /// Lets a host post, send as its link allows, and set its next wake-up.
    fn drive(&mut self, n: usize) -> Result<(), String> {
        if n < FLOWS {
            self.keep_busy(n)?;
        }
        let now = self.now;
        let mut scratch = std::mem::take(&mut self.scratch);
        loop {
            let node = &self.nodes[n];
            let mut g = node.engine.try_lock().ok_or("one thread")?;
            g.handle_timeout(now);
            if node.link_free > now {
                // The transmit queue is full: later.
                drop(g);
                self.wake(n, self.nodes[n].link_free);
                break;
            }
            let Some(burst) = g.poll_transmit(now, &mut scratch) else {
                let next = g.next_timeout(now);
                drop(g);
                if let Some(t) = next {
                    self.wake(n, t.max(now + 1));
                }
                break;
            };
            drop(g);
            let to = self
                .nodes
                .iter()
                .position(|x| x.engine.addr.gid == burst.dst.gid)
                .ok_or("sent to nobody")?;
            let mut left = now;
            for packet in scratch[..burst.len].chunks(burst.seg) {
                left += time_of(packet.len() + OVERHEAD);
                self.at(left + DELAY_NS, Event::Arrives { from: n, to, bytes: packet.to_vec() });
            }
            // The receiver's own link is not the bottleneck.
            if n < FLOWS {
                self.nodes[n].link_free = left;
            }
        }
        self.scratch = scratch;
        Ok(())
    }

    /// Posts as many requests as fit, and takes completions.
    fn keep_busy(&mut self, n: usize) -> Result<(), String> {
        let (engine, flow) = (&self.nodes[n].engine, &mut self.flows[n]);
        let mut wc = [Wc::default(); 8];
        let taken = engine.poll_cq(flow.cq, &mut wc).map_err(|e| format!("poll_cq: {e:?}"))?;
        for w in &wc[..taken] {
            if w.status != wc_status::SUCCESS {
                return Err(format!("flow {n}: status {}", w.status));
            }
            flow.done += u64::from(MESSAGE);
        }
        let sge = Sge { addr: flow.mr.iova, length: MESSAGE, lkey: flow.mr.lkey };
        let to = RdmaWr { remote_addr: flow.target.iova, rkey: flow.target.rkey };
        let wr = send_wr(1, wr_opcode::RDMA_WRITE, std::slice::from_ref(&sge), to);
        let mut bad = std::ptr::null();
        // SAFETY: the request and its list live through the calls.
        while unsafe { engine.post_send(flow.qp, &wr, &mut bad) }.is_ok() {}
        Ok(())
    }
}

/// Time that a link takes for so many bytes.
fn time_of(bytes: usize) -> u64 {
    (bytes as u64 * 1_000_000_000).div_ceil(LINE)
}

/// Runs the world of a seed for `ms` milliseconds of virtual time.
pub fn run(seed: u64, dcqcn: bool, ms: u64) -> Result<Report, String> {
    let mut world = World::new(seed, dcqcn);
    let end = WARM_NS + ms * 1_000_000;
    world.run(end)?;
    let mut r = world.report.clone();
    for node in &world.nodes {
        r.counters.add(&node.engine.try_lock().ok_or("one thread")?.counters());
    }
    let sum: u64 = r.bytes.iter().sum();
    let squares: f64 = r.bytes.iter().map(|&b| (b as f64).powi(2)).sum();
    r.jain = (sum as f64).powi(2) / (r.bytes.len() as f64 * squares);
    r.used = sum as f64 / (LINE as f64 * ms as f64 / 1e3);
    r.queue_mean /= world.arrivals as f64;
    Ok(r)
}

/// Names of the runs with and without congestion control.
pub const NAMES: [&str; 2] = ["DCQCN", "window alone"];

/// Prints a report on one line.
pub fn print(name: &str, r: &Report) {
    println!(
        "{name}: Jain {:.3}, {:.1} % used, queue mean {:.0} KiB, most \
         {:.0} KiB, {} dropped, {} marked, {} CNPs, {} sent again",
        r.jain,
        100.0 * r.used,
        r.queue_mean / 1024.0,
        r.queue_max as f64 / 1024.0,
        r.dropped,
        r.marked,
        r.counters.np_cnp_sent,
        r.counters.retransmitted_pkts
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_flows_share_one_bottleneck() {
        let on = run(1, true, 100).expect("a run");
        let off = run(1, false, 100).expect("a run");
        print(NAMES[0], &on);
        print(NAMES[1], &off);
        assert!(on.jain >= 0.9, "fair");
        assert!(on.used >= 0.8, "no collapse");
        assert_eq!(
            (on.dropped, on.counters.retransmitted_pkts),
            (0, 0),
            "bounded: nothing was lost"
        );
        assert!(on.queue_mean < K_MAX as f64 && on.queue_max < QUEUE_BYTES, "bounded");
        assert!(on.counters.np_cnp_sent > 0 && on.counters.rp_cnp_handled > 0);
        // Without congestion control the queue stays full, or overflows.
        assert!(off.queue_mean > 3.0 * on.queue_mean && off.dropped > 0, "{off:?}");
    }

    #[test]
    fn a_seed_repeats_exactly() {
        assert_eq!(run(7, true, 5), run(7, true, 5));
    }
}
