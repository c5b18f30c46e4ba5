//! Faults of hosts and links: stopped processes, clocks that jump, engines that die, regions that
//! are deregistered, queues that drain.

use gdrcore_core::device::async_event;
use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;

use crate::host::Host;
use crate::link::{index, Drain};
use crate::scenario::feature;
use crate::world::World;

/// Most engines of a world that die: each takes its peers' time to notice.
const RESTARTS_MAX: u64 = 6;
/// Longest stop of a process, and largest jump of a clock.
const STOP_MAX_NS: u64 = 20_000_000;
/// Longest stop where initiators of DC have leases.
const STOP_OF_LEASES_NS: u64 = 4_000_000_000;
/// Chance in a million, per host and round, that its engine is killed.
const DEATH_EVERY: u32 = 300;

impl World {
    /// Faults of a host in this round.
    pub fn disturb(&mut self, i: usize) -> Result<(), String> {
        if self.scenario.has(feature::STOP) && self.rng.chance(20) {
            // Sometimes longer than a lease of DC.
            let long = self.scenario.has(feature::DC) && self.rng.below(8) == 0;
            let most = if long { STOP_OF_LEASES_NS } else { STOP_MAX_NS };
            self.stopped[i] = self.now + self.rng.below(most);
        }
        if self.scenario.has(feature::JUMP) && self.rng.chance(50) {
            // As after a suspended machine: packets have waited, and timers are overdue.
            let most = self.rng.pick(&[100_000, STOP_MAX_NS, 1_000_000_000]);
            let host = &mut self.hosts[i];
            host.skew += self.rng.below(most);
            host.jumped_at = host.time(self.now);
        }
        let dies = self.scenario.has(feature::RESTART) && self.restarts < RESTARTS_MAX;
        if dies && self.rng.chance(DEATH_EVERY) {
            self.restart(i)?;
        }
        Ok(())
    }

    /// Faults of a link in this round.
    pub fn disturb_link(&mut self, k: usize) -> Result<(), String> {
        let l = &mut self.links[k];
        if l.ending || l.down || l.is_orphan() || l.plan.kind != qp_type::RC {
            return Ok(());
        }
        if self.scenario.has(feature::DEREG) && !l.doomed && self.rng.chance(300) {
            l.dereg(&self.hosts, &mut self.rng)?;
        }
        if l.plan.targets > 0 && self.scenario.has(feature::STOP) && self.rng.chance(100) {
            return l.abandon(&self.hosts, &mut self.rng, &mut self.numbers, self.now);
        }
        if self.scenario.has(feature::DRAIN) {
            // A DC target has no send queue.
            let i = usize::from(self.rng.coin() && l.plan.targets == 0);
            l.drain(&self.hosts, &mut self.rng, self.now, i)?;
        }
        Ok(())
    }

    /// Ends the engines of a host's device with all their objects, and starts others at its
    /// address.
    fn restart(&mut self, i: usize) -> Result<(), String> {
        self.restarts += 1;
        let engines = self.scenario.engines_of(i);
        let life = self.restarts;
        let hosts = Host::of_device(&mut self.rng, engines.clone(), &self.scenario, life);
        for (i, mut host) in engines.clone().zip(hosts) {
            self.dead.add(&self.hosts[i].lock().counters());
            host.skew = self.hosts[i].skew;
            self.hosts[i] = host;
            self.numbers.restart(i);
            self.backlog[i] = vec![Default::default(); self.hosts[i].cqs.len()];
        }
        for k in 0..self.links.len() {
            for e in 0..2 {
                let i = self.links[k].ends[e].host;
                if engines.contains(&i) {
                    self.numbers.release(&self.links[k], e, &self.hosts[i], self.now);
                    self.links[k].die(&self.hosts, &mut self.rng, e);
                }
            }
        }
        Ok(())
    }

    /// Makes a link with a dead end anew, once the other end has noticed. The other end's requests
    /// end by their own timers.
    pub fn bury(&mut self, k: usize) -> Result<bool, String> {
        let l = &mut self.links[k];
        if !l.is_orphan() || l.ending {
            return Ok(false);
        }
        let waits = l.plan.kind == qp_type::RC
            && l.ends.iter().any(|e| {
                !e.dead
                    && e.drain == Drain::No
                    && !self.hosts[e.host].engine.shared().qps[index(e.qp)].sq.is_empty()
            });
        if !waits {
            l.begin_end(&self.hosts, self.now)?;
        }
        Ok(!waits)
    }

    /// Handles the asynchronous events of a host.
    pub fn events(&mut self, i: usize) -> Result<(), String> {
        while let Some(event) = self.hosts[i].lock().take_async_event() {
            let ends = self.links.iter_mut().flat_map(|l| l.ends.iter_mut());
            let end = ends
                .filter(|e| e.host == i && !e.dead)
                .find(|e| e.qps().any(|(qp, _)| qp == event.handle));
            match event.event {
                async_event::QP_LAST_WQE_REACHED => end.ok_or("LAST_WQE of no QP")?.last_wqe = true,
                async_event::SQ_DRAINED => {
                    let e = end.ok_or("SQ_DRAINED of no QP")?;
                    if e.drain == Drain::Begun {
                        let done = self.hosts[i].time(self.now) + self.rng.below(2_000_000);
                        e.drain = Drain::Done(done);
                    }
                }
                _ => {}
            }
        }
        loop {
            let met = self.hosts[i].lock().take_cq_event();
            let Some(cq) = met else { break };
            let host = &mut self.hosts[i];
            if let Some(c) = host.cqs.iter().position(|&h| h == cq) {
                host.armed[c] = false;
            }
        }
        Ok(())
    }

    /// Polls a CQ as a sleeping program does: after an event, until it is empty; then arms it and
    /// polls once more.
    pub fn poll_sleeping(&mut self, i: usize, c: usize) -> Result<bool, String> {
        if self.hosts[i].armed[c] {
            return Ok(false);
        }
        while self.poll(i, c, 16)? {}
        let host = &mut self.hosts[i];
        let cq = host.cqs[c];
        let waiting = host.lock().arm_cq(cq, false).map_err(|e| format!("arm_cq: {e:?}"))?;
        host.armed[c] = true;
        if waiting {
            while self.poll(i, c, 16)? {}
        }
        Ok(true)
    }

    /// Resizes a CQ, unless its entries and reservations exceed the new size.
    pub fn resize(&mut self, i: usize, c: usize) -> Result<(), String> {
        let cqe = self.rng.pick(&[1, 2, 4, 16, 256]);
        let done = self.hosts[i].lock().cq_resize(self.hosts[i].cqs[c], cqe);
        match done {
            Err(e) if e != Error::Invalid => Err(format!("cq_resize: {e:?}")),
            _ => Ok(()),
        }
    }

    /// Resizes a host's SRQ, if it has one: to less than it may hold, which is refused if more is
    /// posted, and then to enough.
    pub fn resize_srq(&mut self, i: usize) -> Result<(), String> {
        let more = self.rng.pick(&[1, 2, 5]);
        let Some(shared) = &self.hosts[i].shared else { return Ok(()) };
        let (srq, slots) = (shared.srq, (shared.free.len() + shared.posted.len()) as u32);
        let mut g = self.hosts[i].lock();
        match g.srq_resize(srq, 1, None) {
            Err(e) if e != Error::Invalid => return Err(format!("srq_resize: {e:?}")),
            _ => {}
        }
        g.srq_resize(srq, slots * more, None).map_err(|e| format!("srq_resize: {e:?}"))?;
        Ok(())
    }
}
