//! A world: hosts, a network, links and one clock. Everything that happens follows from the seed.

use std::collections::VecDeque;

use gdrcore_core::counters::Counters;
use gdrcore_core::verbs::association::DcPhase;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_testkit::rng::Rng;

use crate::host::Host;
use crate::link::{index, Drain, End, Link, Plan};
use crate::net::{Done, Network, LIFETIME_NS};
use crate::numbers::Numbers;
use crate::oracle::{is_recv, Verdict};
use crate::scenario::{feature, Limits, Scenario};
use crate::trap::armed;

/// Virtual time after which a world counts as stuck.
const TIME_MAX_NS: u64 = 3_000_000_000_000;
/// Rounds without a completed request after which a world counts as stuck.
const ROUNDS_MAX: u64 = 500_000;
/// Time that a request may take beyond its timers: an idle engine runs only every 5 ms.
const SLACK_NS: u64 = 100_000_000;
/// Packets after which a world posts no more requests.
const PACKETS_MAX: u64 = 300_000;

/// Counts of one world or of many.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    /// Worlds.
    pub worlds: u64,
    /// What the networks did.
    pub net: Done,
    /// Requests that succeeded.
    pub ended: u64,
    /// Requests that failed or were flushed.
    pub failed: u64,
    /// Links made anew after a failure.
    pub remade: u64,
    /// Engines that died and were replaced.
    pub restarts: u64,
    /// The engines' counters.
    pub counters: Counters,
    /// Virtual time.
    pub time_ns: u64,
    /// Packets of worlds in which devices have several engines.
    pub of_engines: u64,
    /// Of those, packets between two engines of one device.
    pub within_devices: u64,
}

impl Stats {
    /// Adds other counts.
    pub fn add(&mut self, o: &Stats) {
        self.worlds += o.worlds;
        self.net.add(&o.net);
        self.ended += o.ended;
        self.failed += o.failed;
        self.remade += o.remade;
        self.restarts += o.restarts;
        self.counters.add(&o.counters);
        self.time_ns += o.time_ns;
        self.of_engines += o.of_engines;
        self.within_devices += o.within_devices;
    }
}

/// The world of one seed.
pub struct World {
    pub(crate) scenario: Scenario,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
    pub(crate) net: Network,
    pub(crate) links: Vec<Link>,
    pub(crate) hosts: Vec<Host>,
    /// The time until which a host's process is stopped.
    pub(crate) stopped: Vec<u64>,
    /// Engines that died.
    pub(crate) restarts: u64,
    /// The counters of those engines.
    pub(crate) dead: Counters,
    /// The QPNs that rest.
    pub(crate) numbers: Numbers,
    /// When a host last received a packet of another, by receiver and sender, on the receiver's
    /// clock.
    heard_at: Vec<u64>,
    /// Probability of a CQ's resize in a round, in a million.
    resizes: u32,
    /// Completions that were polled but not checked, by host and CQ.
    pub(crate) backlog: Vec<Vec<VecDeque<Wc>>>,
    next_id: u64,
    /// Whether the world has no faults: then no request may fail.
    calm: bool,
    buf: Vec<u8>,
    /// Packets between two engines of one device.
    within_devices: u64,
    /// Whether to print what happens.
    pub verbose: bool,
}

impl World {
    /// The world of a seed.
    pub fn new(seed: u64, limits: &Limits) -> World {
        let mut rng = Rng::new(seed);
        let scenario = Scenario::new(seed, limits);
        let n = scenario.hosts;
        let hosts: Vec<Host> = (0..n)
            .step_by(scenario.engines)
            .flat_map(|i| Host::of_device(&mut rng, scenario.engines_of(i), &scenario, 0))
            .collect();
        let plans: Vec<Plan> =
            (0..scenario.links).map(|_| Plan::draw(&scenario, &mut rng, &hosts)).collect();
        let now = 1_000_000;
        let links: Vec<Link> = plans.iter().map(|p| Link::new(*p, &hosts, &mut rng, now)).collect();
        let harmless = feature::SLOW
            | feature::RESIZE
            | feature::ARM
            | feature::SRQ
            | feature::WINDOW
            | feature::DENSE
            | feature::DC
            | feature::ENGINES
            | feature::DIVIDE;
        World {
            // Memory that is as slow as an ACK timeout makes peers seem silent.
            calm: scenario.faults.none()
                && scenario.features & !harmless == 0
                && hosts.iter().all(|h| h.slow.delay_ns() <= 5_000),
            net: Network::new(scenario.faults, Rng::new(rng.next()), n),
            backlog: hosts.iter().map(|h| vec![VecDeque::new(); h.cqs.len()]).collect(),
            stopped: vec![0; n],
            restarts: 0,
            dead: Counters::default(),
            numbers: Numbers::default(),
            heard_at: vec![0; n * n],
            resizes: if scenario.has(feature::RESIZE) { 20_000 } else { 0 },
            scenario,
            rng,
            now,
            links,
            hosts,
            next_id: 0,
            buf: vec![0; 65_536],
            within_devices: 0,
            verbose: false,
        }
    }

    /// Runs it until it ends.
    pub fn run(&mut self) -> Result<Stats, String> {
        if self.verbose {
            println!("{:?}", self.scenario);
            for l in &self.links {
                println!("{:?}", l.plan);
            }
        }
        let mut idle = 0u32;
        let (mut rounds, mut ended) = (0, 0);
        loop {
            rounds += 1;
            if self.links.iter().all(Link::is_done) {
                break;
            }
            let moved = self.round().map_err(|e| format!("at {} ns: {e}", self.now))?;
            let all =
                self.links.iter().flat_map(|l| &l.ends).map(|e| e.ended[0] + e.ended[1]).sum();
            if all != ended {
                (rounds, ended) = (0, all);
            }
            if self.net.done.packets > PACKETS_MAX {
                // The last request is signalled, so each end posts one more.
                self.links
                    .iter_mut()
                    .flat_map(|l| &mut l.ends)
                    .for_each(|e| e.todo = e.todo.min(1));
            }
            if self.now > TIME_MAX_NS || rounds > ROUNDS_MAX {
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
                _ => {
                    let host = &self.hosts[i];
                    let at = host.lock().next_timeout(host.time(self.now));
                    at.map(|at| at.saturating_sub(host.skew))
                }
            });
            let at = timers.chain(self.net.next_at()).chain([tick]).min().unwrap_or(tick);
            self.now = at.max(self.now + 1);
        }
        self.close()
    }

    fn round(&mut self) -> Result<bool, String> {
        let mut moved = self.receive();
        for i in 0..self.hosts.len() {
            self.disturb(i)?;
            let starved = self.scenario.starved == Some(i) && self.rng.below(20) > 0;
            if self.stopped[i] <= self.now && !starved {
                moved |= self.drive(i);
            }
        }
        for k in 0..self.links.len() {
            let up = self.links[k].plan.hosts.iter().all(|&h| self.stopped[h] <= self.now);
            if up {
                self.disturb_link(k)?;
                moved |=
                    self.links[k].step(&self.hosts, &mut self.rng, &mut self.next_id, self.now)?;
            }
            moved |= self.bury(k)?;
        }
        for i in 0..self.hosts.len() {
            moved |= self.hosts[i].refill(&mut self.rng, &mut self.next_id)?;
            if self.scenario.has(feature::ARM)
                || self.links.iter().any(|l| l.ending)
                || self.rng.below(8) == 0
            {
                self.events(i)?;
            }
            for c in 0..self.hosts[i].cqs.len() {
                if self.rng.chance(self.resizes) {
                    self.resize(i, c)?;
                    self.resize_srq(i)?;
                }
                if self.scenario.has(feature::ARM) {
                    moved |= self.poll_sleeping(i, c)?;
                } else if self.rng.coin() {
                    let most = self.rng.range(1, 16) as usize;
                    moved |= self.poll(i, c, most)?;
                }
            }
        }
        // A check may poll, and so refill the backlog of a CQ that was done.
        while self.judge_backlog()? {
            moved = true;
        }
        for k in 0..self.links.len() {
            if self.links[k].ending {
                moved |= self.links[k].finish_end(&self.hosts, &mut self.numbers, self.now)?;
            }
            if self.links[k].down && self.links[k].connect(&self.hosts, &mut self.rng, self.now) {
                self.numbers.take(&self.links[k], &self.hosts, self.now)?;
                // No QP may accept packets of former QPs.
                self.net.replay(self.now);
                moved = true;
            }
        }
        self.check_deadlines()?;
        Ok(moved)
    }

    fn receive(&mut self) -> bool {
        let mut late = Vec::new();
        let mut moved = false;
        while let Some(flight) = self.net.arrive(self.now) {
            if self.stopped[flight.to] > self.now {
                // What comes in a long stop finds no room.
                if self.stopped[flight.to] - self.now < LIFETIME_NS {
                    late.push(flight);
                } else {
                    self.net.recycle(flight);
                }
                continue;
            }
            moved = true;
            let src = self.hosts[flight.from].addr;
            let host = &mut self.hosts[flight.to];
            host.heard = true;
            let now = host.time(self.now);
            self.heard_at[flight.to * self.hosts.len() + flight.from] = now;
            let host = &self.hosts[flight.to];
            host.take(now, &src, flight.seg, &flight.bytes);
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
        let heard = std::mem::take(&mut self.hosts[i].heard);
        let host = &self.hosts[i];
        let now = host.time(self.now);
        host.set_memory_time(now);
        let mut g = host.engine.try_lock().expect("one thread");
        let moved = armed(|| {
            let mut n = g.run_loopback(now);
            if heard {
                g.poll_memory(now);
            } else if n == 0 {
                g.handle_timeout(now);
                g.flush_acks();
                n += g.run_loopback(now);
            }
            n > 0
        });
        let mut bursts = 0;
        for _ in 0..self.rng.range(1, 40) {
            let Some(b) = armed(|| g.poll_transmit(now, &mut self.buf)) else { break };
            bursts += 1;
            let first = self.hosts.iter().position(|h| h.addr.gid == b.dst.gid);
            let Some(first) = first else { continue };
            let engines = self.scenario.engines_of(first);
            if engines.len() == 1 {
                self.net.send(self.now, i, first, b.seg, &self.buf[..b.len]);
                continue;
            }
            // Each packet goes to the engine of its QPN, as the port steers it, or hands it over.
            for packet in self.buf[..b.len].chunks(b.seg) {
                let qpn = u32::from_be_bytes([0, packet[5], packet[6], packet[7]]);
                let is_of = |to: &usize| *to != i && self.hosts[*to].has_qpn(qpn);
                let to = engines.clone().find(is_of).unwrap_or(first);
                self.within_devices += u64::from(engines.contains(&i));
                self.net.send(self.now, i, to, b.seg, packet);
            }
        }
        moved || bursts > 0
    }

    /// Checks that every request of an RC queue pair ends when its peer has been silent for as long
    /// as its attributes allow.
    fn check_deadlines(&mut self) -> Result<(), String> {
        let patience =
            |l: &Link| (u64::from(l.plan.retry) + 2) * (4096u64 << l.plan.timeout) + SLACK_NS;
        for k in 0..self.links.len() {
            let l = &self.links[k];
            if l.plan.kind != qp_type::RC || l.ending {
                continue;
            }
            for i in 0..2 {
                let (e, peer) = (&self.links[k].ends[i], self.links[k].ends[1 - i].host);
                // Earlier requests succeeded unsignalled.
                let open = self.hosts[e.host].engine.shared().qps[index(e.qp)].sq.len() as usize;
                let oldest = e.ops.len().checked_sub(open).and_then(|first| e.ops.get(first));
                let (Some(op), Drain::No, false) = (oldest, e.drain, e.dead || peer == e.host)
                else {
                    continue;
                };
                if self.scenario.starved == Some(e.host) {
                    continue;
                }
                let host = &self.hosts[e.host];
                let now = host.time(self.now);
                self.check_opening(k)?;
                let heard = self.heard_at[e.host * self.hosts.len() + peer]
                    .max(self.stopped[e.host] + host.skew);
                let since = op.posted_at.max(heard).max(e.ready_at).max(host.jumped_at);
                let asks = {
                    let g = host.lock();
                    let req = &g.transport.qps[index(e.qp)].conn.req;
                    req.una_psn != req.max_psn
                };
                // Requests that have not been sent may wait for a window that other requests to the
                // same peer hold until they fail.
                let device = |host: usize| self.scenario.device(host);
                let is_of = |o: &Link| o.plan.hosts.iter().any(|&h| device(h) == device(peer));
                let waits_for = |o: &&Link| o.plan.kind == qp_type::RC && is_of(o);
                let shared: u64 = self.links.iter().filter(waits_for).map(patience).sum();
                let (silent, limit) = match asks {
                    true => (now.saturating_sub(since.max(e.mute_at)), patience(&self.links[k])),
                    false => (now.saturating_sub(since), shared),
                };
                if silent > limit {
                    let why = self.describe();
                    return Err(format!(
                        "link {k} end {i}: {op:?} did not end in {silent} ns of silence {why}"
                    ));
                }
                if !asks {
                    self.links[k].ends[i].mute_at = now;
                }
            }
        }
        Ok(())
    }

    /// Checks that a DC initiator does not ask for an association for longer than its attributes
    /// allow, whatever the target answers.
    fn check_opening(&self, k: usize) -> Result<(), String> {
        let (l, e) = (&self.links[k], &self.links[k].ends[0]);
        if l.plan.targets == 0 || e.dead {
            return Ok(());
        }
        let host = &self.hosts[e.host];
        let g = host.lock();
        let association = *g.transport.qps[index(e.qp)].dci.first().ok_or("no initiator")?;
        let since = association.since.max(self.stopped[e.host] + host.skew).max(host.jumped_at);
        let asked = host.time(self.now).saturating_sub(since);
        let limit = (u64::from(l.plan.retry) + 1) * (4096u64 << l.plan.timeout) + SLACK_NS;
        if association.phase == DcPhase::Opening && asked > limit {
            return Err(format!("link {k}: asks for {asked} ns: {association:?}"));
        }
        Ok(())
    }

    /// Polls a CQ once. Receives are checked at once, since the checks of sends may need them.
    pub(crate) fn poll(&mut self, i: usize, c: usize, most: usize) -> Result<bool, String> {
        let mut wc = [Wc::default(); 16];
        let host = &self.hosts[i];
        let n = armed(|| host.engine.poll_cq(host.cqs[c], &mut wc[..most]))
            .map_err(|e| format!("poll_cq: {e:?}"))?;
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
            let is_of = |e: &End| e.host == i && e.qps().any(|(_, qpn)| qpn == wc.qp_num);
            let end = l.ends.iter().position(|e| is_of(e) && !e.dead)?;
            Some((k, end))
        });
        let (k, end) = owner.ok_or_else(|| format!("{wc:?} of no QP"))?;
        let verdict = self.links[k].judge(&mut self.hosts, end, wc);
        let verdict = verdict.map_err(|e| {
            let ends = &self.links[k].ends;
            let why: Vec<_> = ends
                .iter()
                .map(|e| self.hosts[e.host].lock().qp_cause(e.qp).map(|c| c.to_string()))
                .collect();
            format!("link {k}, end {end}: {e}\n  {why:?}")
        })?;
        if verdict == Verdict::Failed && !self.links[k].ending {
            let e = &self.links[k].ends[end];
            let cause = self.hosts[i].lock().qp_cause(e.qp);
            // Contexts are few: those of others may be in use for as long as a request may take.
            let crowded = cause.is_ok_and(|c| c.code == CauseCode::DcNoContext as u32);
            let expected = self.links[k].plan.rnr != 7 || !self.calm || self.links[k].doomed;
            if !expected && !crowded {
                let cause = cause.map(|c| c.to_string());
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
                            return Err(format!(
                                "host {i}: {wc:?}, but the peer has not received it"
                            ));
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
        for (i, h) in self.hosts.iter().enumerate() {
            let g = h.lock();
            out += &format!(
                "\n  host {i}: skew {} heap {}/{} {:?}",
                h.skew,
                g.free_bytes(),
                h.free_at_first,
                g.leaks()
            );
        }
        for (k, l) in self.links.iter().enumerate() {
            for (i, e) in l.ends.iter().enumerate() {
                let g = self.hosts[e.host].lock();
                let (attr, _) = g.qp_query(e.qp).unwrap_or_default();
                let first = e.ops.front();
                let c = g.qp_counters(e.qp).unwrap_or_default();
                out += &format!(
                    "\n  link {k} end {i}: state {} todo {} ops {} posted {} expected {} ending \
                     {} first {first:?}\n   ",
                    attr.qp_state,
                    e.todo,
                    e.ops.len(),
                    e.posted.len(),
                    e.expected.len(),
                    l.ending,
                );
                let t = &g.transport;
                let qi = crate::link::index(e.qp);
                let recv = &t.qps[qi].conn.resp.recv;
                let (landings, jobs) =
                    (t.qps[qi].conn.resp.landing_count(), t.qps[qi].conn.resp.job_len());
                out += &format!(" {:?}", t.qps[qi].conn.req);
                if let Some(association) = t.qps[qi].dci.first() {
                    out += &format!(" {association:?} ready {}", t.common.ready.get(qi));
                }
                out += &format!(
                    " taken {} reserved {} landings {landings} jobs {jobs}",
                    recv.taken, recv.reserved
                );
                for c in e.cqs.map(|c| crate::link::index(self.hosts[e.host].cqs[c])) {
                    let ring = &self.hosts[e.host].engine.shared().cqs[c].ring;
                    out += &format!(
                        " CQ {c}: {}/{} reserved {}",
                        ring.len(),
                        ring.capacity(),
                        t.common.cqs[c].reserved
                    );
                }
                for (name, n) in Counters::NAMES.iter().zip(c.values()).filter(|(_, n)| *n > 0) {
                    out += &format!(" {name} {n}");
                }
            }
        }
        out
    }

    /// Checks that every receive that was posted to an SRQ has completed, waits, or is held by a
    /// queue pair. Returns how many the contexts of DC targets hold, by host.
    fn count_receives(&self) -> Result<Vec<usize>, String> {
        let mut of_contexts = Vec::new();
        for (i, h) in self.hosts.iter().enumerate() {
            let g = h.lock();
            of_contexts.push(Host::held(&g, true));
            let Some(shared) = &h.shared else { continue };
            let (posted, held) = (shared.posted.len(), Host::held(&g, false));
            let waiting = h.engine.shared().srqs[index(shared.srq)].rq.len() as usize;
            if posted != waiting + held {
                return Err(format!(
                    "host {i}: {posted} receives are posted, {waiting} wait, {held} are held"
                ));
            }
        }
        Ok(of_contexts)
    }

    /// Ends what the queue pairs of a host share; `held`: receives that the contexts of its DC
    /// targets held before those ended.
    fn end_shared(&self, held: &[usize]) -> Result<(), String> {
        for (i, h) in self.hosts.iter().enumerate() {
            let Some(shared) = &h.shared else { continue };
            let mut g = h.lock();
            if Host::held(&g, true) != held[i] {
                return Err(format!("host {i}: receives went with their target"));
            }
            if !shared.area.buf.is_guarded() {
                return Err(format!("host {i}: bytes outside the SRQ's memory were written"));
            }
            g.srq_destroy(0, shared.srq).map_err(|e| format!("srq_destroy: {e:?}"))?;
            if let Some((xrcd, ..)) = shared.xrc {
                g.xrcd_dealloc(xrcd).map_err(|e| format!("xrcd_dealloc: {e:?}"))?;
            }
            drop(g);
            h.dereg(shared.area.handle).map_err(|e| format!("mr_dereg: {e:?}"))?;
        }
        Ok(())
    }

    /// Destroys everything and checks that nothing is left.
    fn close(&mut self) -> Result<Stats, String> {
        let mut stats =
            Stats { worlds: 1, net: self.net.done, time_ns: self.now, ..Stats::default() };
        (stats.restarts, stats.counters) = (self.restarts, self.dead);
        stats.within_devices = self.within_devices;
        if self.scenario.engines > 1 && self.hosts.len() > 1 {
            stats.of_engines = stats.net.packets;
        }
        self.poll_all()?;
        while self.judge_backlog()? {}
        let held = self.count_receives()?;
        for l in &mut self.links {
            l.destroy(&self.hosts, self.now)?;
            stats.remade += l.remade;
            for (i, e) in l.ends.iter().enumerate() {
                stats.ended += e.ended[0];
                stats.failed += e.ended[1];
                let host = &self.hosts[e.host];
                for (n, area) in e.areas().into_iter().enumerate() {
                    if l.gone.is_some_and(|gone| (gone.0, gone.1) == (i, n)) {
                        continue;
                    }
                    if !area.buf.is_guarded() {
                        return Err(format!(
                            "bytes outside the region at {:#x} were written",
                            area.mr.addr
                        ));
                    }
                    host.dereg(area.handle).map_err(|e| format!("mr_dereg: {e:?}"))?;
                }
                if e.ah != 0 {
                    host.end_address_handle(e.ah)?;
                }
            }
        }
        self.end_shared(&held)?;
        for (i, h) in self.hosts.iter().enumerate() {
            let mut g = h.lock();
            stats.counters.add(&g.counters());
            for &cq in &h.cqs {
                g.cq_destroy(cq).map_err(|e| format!("cq_destroy: {e:?}"))?;
            }
            g.pd_dealloc(h.pd).map_err(|e| format!("pd_dealloc: {e:?}"))?;
            if g.leaks() != h.there_at_first {
                return Err(format!("host {i} leaks {:?}", g.leaks()));
            }
            if g.free_bytes() != h.free_at_first {
                return Err(format!(
                    "host {i}: {} of {} heap bytes are free",
                    g.free_bytes(),
                    h.free_at_first
                ));
            }
            if self.calm && stats.counters.rcvd_icrc_err + stats.counters.rcvd_malformed > 0 {
                return Err(format!("host {i}: bad packets in a calm world: {:?}", stats.counters));
            }
        }
        Ok(stats)
    }
}
