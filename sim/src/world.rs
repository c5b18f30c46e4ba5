//! A world: hosts, a network, links, one clock. Everything that happens follows from the seed.

use std::collections::VecDeque;

use gdrcore_core::counters::Counters;
use gdrcore_core::device::async_event;
use gdrcore_core::verbs::types::*;

use crate::host::Host;
use crate::link::{Link, Plan};
use crate::net::{Done, Faults, Network};
use crate::oracle::{is_recv, Verdict};
use crate::rng::Rng;
use crate::trap::armed;

/// A world that is not done by then is stuck.
const TIME_MAX_NS: u64 = 3_000_000_000_000;
/// So is one that has gone round so often.
const ROUNDS_MAX: u64 = 1_000_000;

/// What happened in a world, or in many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Worlds.
    pub worlds: u64,
    /// What the networks did.
    pub net: Done,
    /// Requests that ended well.
    pub ended: u64,
    /// Requests that failed or were flushed.
    pub failed: u64,
    /// Links made anew after a failure.
    pub remade: u64,
    /// The engines' counters.
    pub counters: Counters,
    /// Virtual time.
    pub time_ns: u64,
}

impl Stats {
    /// Adds another's numbers.
    pub fn add(&mut self, o: &Stats) {
        self.worlds += o.worlds;
        self.net.packets += o.net.packets;
        self.net.lost += o.net.lost;
        self.net.doubled += o.net.doubled;
        self.net.late += o.net.late;
        self.net.corrupted += o.net.corrupted;
        self.ended += o.ended;
        self.failed += o.failed;
        self.remade += o.remade;
        self.counters.add(&o.counters);
        self.time_ns += o.time_ns;
    }
}

/// The world of one seed.
pub struct World {
    rng: Rng,
    now: u64,
    net: Network,
    links: Vec<Link>,
    hosts: Vec<Host>,
    /// Until when a host's process is stopped.
    stopped: Vec<u64>,
    stops: u32,
    /// Completions polled but not judged, by host and CQ.
    backlog: Vec<Vec<VecDeque<Wc>>>,
    next_id: u64,
    /// Nothing goes wrong in this world: no request may fail.
    calm: bool,
    buf: Vec<u8>,
    /// Tell what happens.
    pub verbose: bool,
}

fn faults(rng: &mut Rng) -> Faults {
    let delay_ns = rng.pick(&[0, 2_000, 20_000, 200_000]);
    let base = Faults { delay_ns, late_ns: delay_ns * 4 + 1000, bursts: rng.coin(), ..Faults::default() };
    match rng.below(8) {
        0 => base,
        1 => Faults { loss: rng.pick(&[1000, 10_000, 100_000]), ..base },
        2 => Faults { dup: rng.pick(&[1000, 50_000, 300_000]), ..base },
        3 => Faults { reorder: rng.pick(&[1000, 50_000, 300_000]), ..base },
        4 => Faults { corrupt: rng.pick(&[1000, 50_000]), ..base },
        5 => Faults { dark: 200, dark_ns: 50_000_000, ..base },
        _ => Faults {
            loss: rng.below(30_000) as u32,
            dup: rng.below(30_000) as u32,
            reorder: rng.below(50_000) as u32,
            corrupt: rng.below(10_000) as u32,
            dark: rng.pick(&[0, 0, 100]),
            dark_ns: rng.pick(&[1_000_000, 300_000_000]),
            ..base
        },
    }
}

fn plan(rng: &mut Rng, hosts: &[Host]) -> Plan {
    let kind = rng.pick(&[qp_type::RC, qp_type::RC, qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD]);
    let ends = [rng.below(hosts.len() as u64) as usize, rng.below(hosts.len() as u64) as usize];
    let mut most = rng.pick(&[300, 5_000, 5_000, 20_000, 20_000, 150_000]);
    let mut srq = [false; 2];
    for i in 0..2 {
        srq[i] = kind != qp_type::UC && hosts[ends[i]].shared.is_some() && rng.coin();
    }
    if kind == qp_type::UD {
        most = most.min(4096);
    }
    if srq[0] || srq[1] {
        most = most.min(20_000 - crate::link::GRH);
    }
    let depth = rng.pick(&[1, 2, 4, 16]);
    let todo = if most > 100_000 { 20 } else { rng.range(20, 150) as u32 };
    Plan {
        hosts: ends,
        kind,
        mtu: rng.range(1, 5) as u32,
        most,
        depth,
        recvs: rng.pick(&[1, 4, 16]),
        timeout: rng.range(8, 13) as u8,
        retry: rng.pick(&[1, 3, 7, 7, 7]),
        rnr: rng.pick(&[7, 7, 7, 7, 3, 0]),
        rd_atomic: rng.pick(&[1, 2, 4, 16]),
        sge: rng.pick(&[1, 3, 8]),
        todo,
        srq,
        signal_every: rng.pick(&[1, 2, 8]),
    }
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64) -> World {
        let mut rng = Rng::new(seed);
        let faults = faults(&mut rng);
        // A receiver of IPv4 cannot check 16 bits of the ICRC, so now and then it would take a damaged packet
        // for a good one. There UDP's checksum and Ethernet's stand before it, here nothing does.
        let v6 = faults.corrupt > 0 || rng.coin();
        let n = rng.range(1, 3) as usize;
        let hosts: Vec<Host> = (0..n).map(|i| Host::new(&mut rng, i, v6)).collect();
        let plans: Vec<Plan> = (0..rng.range(1, 5)).map(|_| plan(&mut rng, &hosts)).collect();
        let now = 1_000_000;
        let links: Vec<Link> = plans.iter().map(|p| Link::new(*p, &hosts, &mut rng, now)).collect();
        let quiet = Faults { delay_ns: 0, late_ns: 0, bursts: false, ..faults };
        let quiet = format!("{quiet:?}") == format!("{:?}", Faults::default());
        let stops = if rng.below(4) == 0 { 20 } else { 0 };
        World {
            // Memory as slow as an ACK timeout makes peers look silent.
            calm: quiet && stops == 0 && hosts.iter().all(|h| h.slow.delay_ns() <= 5_000),
            net: Network::new(faults, Rng::new(rng.next()), n),
            backlog: hosts.iter().map(|h| vec![VecDeque::new(); h.cqs.len()]).collect(),
            stopped: vec![0; n],
            stops,
            rng,
            now,
            links,
            hosts,
            next_id: 0,
            buf: vec![0; 65_536],
            verbose: false,
        }
    }

    /// Runs it to its end.
    pub fn run(&mut self) -> Result<Stats, String> {
        if self.verbose {
            for l in &self.links {
                println!("{:?}", l.plan);
            }
        }
        let mut idle = 0u32;
        for round in 0.. {
            if self.links.iter().all(Link::is_done) {
                break;
            }
            let moved = self.round().map_err(|e| format!("at {} ns: {e}", self.now))?;
            if self.now > TIME_MAX_NS || round > ROUNDS_MAX {
                return Err(format!("stuck at {} ns: {}", self.now, self.describe()));
            }
            if moved {
                idle = 0;
                continue;
            }
            idle += 1;
            let tick = self.now + (20_000u64 << idle.min(8));
            let timers = (0..self.hosts.len()).filter_map(|i| match self.stopped[i] {
                t if t > self.now => Some(t),
                _ => self.hosts[i].lock().next_timeout(self.now),
            });
            let at = timers.chain(self.net.next_at()).chain([tick]).min().unwrap_or(tick);
            self.now = at.max(self.now + 1);
        }
        self.close()
    }

    fn round(&mut self) -> Result<bool, String> {
        let mut moved = self.receive();
        for i in 0..self.hosts.len() {
            if self.stops > 0 && self.rng.chance(self.stops) {
                self.stopped[i] = self.now + self.rng.below(20_000_000);
            }
            if self.stopped[i] <= self.now {
                moved |= self.drive(i);
            }
        }
        for k in 0..self.links.len() {
            let up = self.links[k].plan.hosts.iter().all(|&h| self.stopped[h] <= self.now);
            if up {
                moved |= self.links[k].step(&self.hosts, &mut self.rng, &mut self.next_id)?;
            }
        }
        for i in 0..self.hosts.len() {
            moved |= self.hosts[i].refill(&mut self.rng, &mut self.next_id)?;
            self.events(i)?;
            for c in 0..self.hosts[i].cqs.len() {
                if self.rng.coin() {
                    let most = self.rng.range(1, 16) as usize;
                    moved |= self.poll(i, c, most)?;
                }
            }
        }
        // Judging may poll, and fill the backlogs of CQs that were done.
        while self.judge_backlog()? {
            moved = true;
        }
        for k in 0..self.links.len() {
            if self.links[k].ending {
                moved |= self.links[k].finish_end(&self.hosts, &mut self.rng, self.now)?;
            }
        }
        Ok(moved)
    }

    fn receive(&mut self) -> bool {
        let mut late = Vec::new();
        let mut moved = false;
        while let Some(flight) = self.net.arrive(self.now) {
            if self.stopped[flight.to] > self.now {
                late.push(flight);
                continue;
            }
            moved = true;
            let src = self.hosts[flight.from].addr;
            let host = &mut self.hosts[flight.to];
            host.heard = true;
            host.slow.set_now(self.now);
            let mut g = host.engine.try_lock().expect("one thread");
            armed(|| g.handle_packets(self.now, &src, flight.seg, &flight.bytes, false));
            drop(g);
            self.net.recycle(flight);
        }
        for flight in late {
            let at = self.stopped[flight.to];
            self.net.again(flight, at);
        }
        moved
    }

    /// One round of a host's engine, as the soft device drives it.
    fn drive(&mut self, i: usize) -> bool {
        let now = self.now;
        let heard = std::mem::take(&mut self.hosts[i].heard);
        let host = &self.hosts[i];
        host.slow.set_now(now);
        let mut g = host.engine.try_lock().expect("one thread");
        let moved = armed(|| {
            let mut n = g.run_loopback(now, 64);
            if heard {
                g.poll_memory(now);
            } else if n == 0 {
                g.handle_timeout(now);
                g.flush_acks();
                n += g.run_loopback(now, 64);
            }
            n > 0
        });
        let mut bursts = 0;
        for _ in 0..self.rng.range(1, 40) {
            let Some(b) = armed(|| g.poll_transmit(now, &mut self.buf)) else { break };
            bursts += 1;
            let to = self.hosts.iter().position(|h| h.addr.gid == b.dst.gid);
            if let Some(to) = to {
                self.net.send(now, i, to, b.seg, &self.buf[..b.len]);
            }
        }
        moved || bursts > 0
    }

    fn events(&mut self, i: usize) -> Result<(), String> {
        while let Some(event) = self.hosts[i].lock().take_async_event() {
            if event.event == async_event::QP_LAST_WQE_REACHED {
                let ends = self.links.iter_mut().flat_map(|l| l.ends.iter_mut());
                let end = ends.filter(|e| e.host == i).find(|e| e.qp == event.handle);
                end.ok_or("LAST_WQE of no QP")?.last_wqe = true;
            }
        }
        Ok(())
    }

    /// Polls a CQ once; receives are judged at once, so that sends may ask for them.
    fn poll(&mut self, i: usize, c: usize, most: usize) -> Result<bool, String> {
        let mut wc = [Wc::default(); 16];
        let host = &self.hosts[i];
        let n = armed(|| host.engine.poll_cq(host.cqs[c], &mut wc[..most])).map_err(|e| format!("poll_cq: {e:?}"))?;
        for wc in &wc[..n] {
            if self.verbose {
                println!("{:>12} host {i} cq {c}: {wc:?}", self.now);
            }
            if is_recv(wc) {
                self.judge(i, wc)?;
            } else {
                self.backlog[i][c].push_back(*wc);
            }
        }
        Ok(n > 0)
    }

    fn judge(&mut self, i: usize, wc: &Wc) -> Result<Verdict, String> {
        let owner = self.links.iter().enumerate().find_map(|(k, l)| {
            let end = l.ends.iter().position(|e| e.host == i && e.qpn == wc.qp_num)?;
            Some((k, end))
        });
        let (k, end) = owner.ok_or_else(|| format!("{wc:?} of no QP"))?;
        let verdict = self.links[k].judge(&mut self.hosts, end, wc);
        let verdict = verdict.map_err(|e| {
            let ends = &self.links[k].ends;
            let why: Vec<_> =
                ends.iter().map(|e| self.hosts[e.host].lock().qp_cause(e.qp).map(|c| c.to_string())).collect();
            format!("link {k}, end {end}: {e}\n  {why:?}")
        })?;
        if verdict == Verdict::Failed && !self.links[k].ending {
            let expected = self.links[k].plan.rnr != 7 || !self.calm;
            if !expected {
                let e = &self.links[k].ends[end];
                let cause = self.hosts[i].lock().qp_cause(e.qp).map(|c| c.to_string());
                return Err(format!("link {k}, end {end}: {wc:?} in a calm world: {cause:?}"));
            }
            self.links[k].begin_end(&self.hosts, self.now)?;
        }
        Ok(verdict)
    }

    fn judge_backlog(&mut self) -> Result<bool, String> {
        let mut moved = false;
        for i in 0..self.hosts.len() {
            for c in 0..self.hosts[i].cqs.len() {
                let mut looked = false;
                while let Some(wc) = self.backlog[i][c].front().copied() {
                    match self.judge(i, &wc)? {
                        Verdict::PeerFirst if looked => {
                            return Err(format!("host {i}: {wc:?}, but the peer has not received it"));
                        }
                        Verdict::PeerFirst => {
                            looked = true;
                            self.poll_all()?;
                        }
                        _ => {
                            looked = false;
                            moved = true;
                            self.backlog[i][c].pop_front();
                        }
                    }
                }
            }
        }
        Ok(moved)
    }

    fn poll_all(&mut self) -> Result<(), String> {
        for i in 0..self.hosts.len() {
            for c in 0..self.hosts[i].cqs.len() {
                while self.poll(i, c, 16)? {}
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let mut out = String::new();
        for (k, l) in self.links.iter().enumerate() {
            for (i, e) in l.ends.iter().enumerate() {
                let g = self.hosts[e.host].lock();
                let (attr, _) = g.qp_query(e.qp).unwrap_or_default();
                let first = e.ops.front();
                let c = g.qp_counters(e.qp).unwrap_or_default();
                out += &format!(
                    "\n  link {k} end {i}: state {} todo {} ops {} posted {} expected {} ending {} first {first:?}\n   ",
                    attr.qp_state,
                    e.todo,
                    e.ops.len(),
                    e.posted.len(),
                    e.expected.len(),
                    l.ending,
                );
                let t = &g.transport;
                let qi = crate::link::index(e.qp);
                let recv = &t.qps[qi].resp.recv;
                let (fences, jobs) = (t.qps[qi].resp.fence_len, t.qps[qi].resp.job_len);
                out += &format!(" taken {} reserved {} fences {fences} jobs {jobs}", recv.taken, recv.reserved);
                for c in e.cqs.map(|c| crate::link::index(self.hosts[e.host].cqs[c])) {
                    let ring = &self.hosts[e.host].engine.shared().cqs[c].ring;
                    out += &format!(" CQ {c}: {}/{} reserved {}", ring.len(), ring.capacity(), t.cqs[c].reserved);
                }
                for (name, n) in Counters::NAMES.iter().zip(c.values()).filter(|(_, n)| *n > 0) {
                    out += &format!(" {name} {n}");
                }
            }
        }
        out
    }

    /// Takes everything down and checks that nothing is left.
    fn close(&mut self) -> Result<Stats, String> {
        let mut stats = Stats { worlds: 1, net: self.net.done, time_ns: self.now, ..Stats::default() };
        self.poll_all()?;
        while self.judge_backlog()? {}
        for l in &mut self.links {
            l.destroy(&self.hosts, self.now)?;
            stats.remade += l.remade;
            for e in &l.ends {
                stats.ended += e.ended[0];
                stats.failed += e.ended[1];
                let mut g = self.hosts[e.host].lock();
                for area in [&e.src, &e.win, &e.rcv] {
                    g.mr_dereg(area.handle).map_err(|e| format!("mr_dereg: {e:?}"))?;
                }
                if e.ah != 0 {
                    g.ah_destroy(e.ah).map_err(|e| format!("ah_destroy: {e:?}"))?;
                }
            }
        }
        for (i, h) in self.hosts.iter().enumerate() {
            let mut g = h.lock();
            stats.counters.add(&g.counters());
            if let Some(shared) = &h.shared {
                g.srq_destroy(shared.srq).map_err(|e| format!("srq_destroy: {e:?}"))?;
                g.mr_dereg(shared.area.handle).map_err(|e| format!("mr_dereg: {e:?}"))?;
            }
            for &cq in &h.cqs {
                g.cq_destroy(cq).map_err(|e| format!("cq_destroy: {e:?}"))?;
            }
            g.pd_dealloc(h.pd).map_err(|e| format!("pd_dealloc: {e:?}"))?;
            if g.leaks() != Default::default() {
                return Err(format!("host {i} leaks {:?}", g.leaks()));
            }
            if g.free_bytes() != h.free_at_first {
                return Err(format!("host {i}: {} of {} heap bytes are free", g.free_bytes(), h.free_at_first));
            }
            if self.calm && stats.counters.rcvd_icrc_err + stats.counters.rcvd_malformed > 0 {
                return Err(format!("host {i}: bad packets in a calm world: {:?}", stats.counters));
            }
        }
        Ok(stats)
    }
}
