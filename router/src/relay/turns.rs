//! Whose packet is next.
//!
//! Tenants take turns by deficit round robin: each turn brings a tenant 4 KiB for each of its
//! weight, and packets are paid from that. A tenant that had nothing to send goes once to the
//! front, so a small message waits for one packet of a bulk stream, and not for a round (M.
//! Shreedhar and G. Varghese 1995; the two lists are those of RFC 8290). Within a tenant its
//! sessions take turns, a packet each: more processes buy nothing.
//!
//! A tenant without credit in one of its buckets is left out until there is some. What it has sent
//! stays in its rings, which fill up, and it waits: nothing is lost. A bucket may be overdrawn by
//! one packet, which the next ones wait for, so rates are exact in the long run.
//!
//! Nothing here allocates after [`Turns::new`].

use super::slots::{SLOTS, TENANTS};
use crate::policy::{burst_of, Limits};
use gdrcore_core::bucket::TokenBucket;
use std::collections::VecDeque;

/// Bytes that a turn brings for each of a weight.
const QUANTUM: i64 = 4 << 10;
/// What a packet costs besides its own bytes, for its heads in the rings and the work that it
/// makes, whatever its size.
pub const OVERHEAD: u32 = 48;
/// The least packets that may come at once.
const PACKETS: u32 = 64;
/// No slot.
const NONE: u16 = u16::MAX;
const SECOND: u64 = 1_000_000_000;

/// What becomes of a packet at its receiver's bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ingress {
    /// It arrives.
    Pass,
    /// It arrives, and says that there is too much of it.
    Mark,
    /// There was too much of it.
    Drop,
}

/// Where a tenant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stand {
    /// It has nothing to send.
    Idle,
    /// It is in one of the lists.
    Listed,
    /// It has no credit until then.
    Waits(u64),
}

#[derive(Debug)]
struct Tenant {
    tx: TokenBucket,
    pps: TokenBucket,
    rx: TokenBucket,
    /// From here down what it is sent is marked.
    rx_half: u32,
    /// How long its buckets take to fill.
    fill_ns: u64,
    quantum: i64,
    deficit: i64,
    stand: Stand,
    /// Its sessions that have something, in turn.
    first: u16,
    last: u16,
}

/// Where a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// There is none.
    Absent,
    /// It had nothing when it was looked at.
    Idle,
    /// It is in its tenant's queue.
    Queued,
    /// Its packet is on its way.
    Served,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    place: Place,
    tenant: u16,
    next: u16,
}

/// Who waits for what. All its memory is taken when it is made.
#[derive(Debug)]
pub struct Turns {
    tenants: Vec<Tenant>,
    sessions: Vec<Session>,
    /// Tenants that had nothing, and those that have had a turn.
    fresh: VecDeque<u16>,
    old: VecDeque<u16>,
    /// Tenants without credit.
    waiting: VecDeque<u16>,
    /// When the first of them has some.
    earliest: u64,
    /// What all may send.
    line: TokenBucket,
    /// Nobody may send until then.
    line_until: Option<u64>,
}

impl Tenant {
    fn new() -> Tenant {
        let off = TokenBucket::default();
        Tenant {
            tx: off,
            pps: off,
            rx: off,
            rx_half: 0,
            fill_ns: 0,
            quantum: QUANTUM,
            deficit: 0,
            stand: Stand::Idle,
            first: NONE,
            last: NONE,
        }
    }

    /// When it has credit; `None`: now.
    fn until(&mut self, now: u64) -> Option<u64> {
        if self.tx.available(now) > 0 && self.pps.available(now) > 0 {
            return None;
        }
        Some(self.tx.ready_at(now, 1).max(self.pps.ready_at(now, 1)))
    }
}

impl Turns {
    /// Nobody is there, and nobody has a limit.
    pub fn new() -> Turns {
        Turns {
            tenants: (0..TENANTS).map(|_| Tenant::new()).collect(),
            sessions: vec![Session { place: Place::Absent, tenant: 0, next: NONE }; SLOTS],
            fresh: VecDeque::with_capacity(TENANTS),
            old: VecDeque::with_capacity(TENANTS),
            waiting: VecDeque::with_capacity(TENANTS),
            earliest: u64::MAX,
            line: TokenBucket::default(),
            line_until: None,
        }
    }

    /// Says how fast a tenant may be from now on. What it owes it owes.
    pub fn limit(&mut self, now: u64, tenant: u16, limits: &Limits) {
        let Some(t) = self.tenants.get_mut(usize::from(tenant)) else { return };
        let bucket = |bucket: &mut TokenBucket, rate: Option<u64>, burst: u32| {
            bucket.set_rate(now, rate.unwrap_or(0), burst);
            rate.map_or(0, |rate| u64::from(burst).saturating_mul(SECOND) / rate.max(1))
        };
        let burst = |rate: Option<u64>| limits.burst.unwrap_or(burst_of(rate.unwrap_or(0)));
        let packets = limits.tx_pps.map_or(0, |n| (n / 500).max(PACKETS));
        let tx = bucket(&mut t.tx, limits.tx_rate, burst(limits.tx_rate));
        let pps = bucket(&mut t.pps, limits.tx_pps.map(u64::from), packets);
        bucket(&mut t.rx, limits.rx_rate, burst(limits.rx_rate));
        t.rx_half = burst(limits.rx_rate) / 2;
        t.fill_ns = tx.max(pps);
        t.quantum = i64::from(limits.weight) * QUANTUM;
        // It is asked again whether it has to wait.
        if matches!(t.stand, Stand::Waits(_)) {
            t.stand = Stand::Waits(now);
            self.earliest = now;
        }
    }

    /// Forgets what a number's tenant was and owed: it becomes another's, who has no session yet.
    pub fn forget(&mut self, tenant: u16) {
        let Some(t) = self.tenants.get_mut(usize::from(tenant)) else { return };
        let stand = match t.stand {
            Stand::Waits(_) => {
                self.earliest = 0;
                Stand::Waits(0)
            }
            other => other,
        };
        *t = Tenant { stand, ..Tenant::new() };
    }

    /// Says how much all may send together; 0: as much as goes.
    pub fn limit_line(&mut self, now: u64, rate: u64) {
        self.line.set_rate(now, rate, burst_of(rate));
    }

    /// A session of a tenant has come.
    pub fn join(&mut self, slot: u16, tenant: u16) {
        self.leave(slot);
        if let Some(s) = self.sessions.get_mut(usize::from(slot)) {
            *s = Session { place: Place::Idle, tenant, next: NONE };
        }
    }

    /// It is gone.
    pub fn leave(&mut self, slot: u16) {
        let Some(&s) = self.sessions.get(usize::from(slot)) else { return };
        if s.place == Place::Queued {
            let t = &mut self.tenants[usize::from(s.tenant)];
            let (mut at, mut before) = (t.first, NONE);
            while at != slot {
                (before, at) = (at, self.sessions[usize::from(at)].next);
            }
            match before {
                NONE => t.first = s.next,
                before => self.sessions[usize::from(before)].next = s.next,
            }
            if t.last == slot {
                t.last = before;
            }
        }
        self.sessions[usize::from(slot)].place = Place::Absent;
    }

    /// Whether a session has to be looked at: it had nothing.
    pub fn is_idle(&self, slot: u16) -> bool {
        self.sessions.get(usize::from(slot)).is_some_and(|s| s.place == Place::Idle)
    }

    /// Whether a session's tenant waits for credit, or all do.
    pub fn waits(&self, slot: u16) -> bool {
        let waits =
            |s: &Session| matches!(self.tenants[usize::from(s.tenant)].stand, Stand::Waits(_));
        self.line_until.is_some() || self.sessions.get(usize::from(slot)).is_some_and(waits)
    }

    /// An idle session has something.
    pub fn ready(&mut self, slot: u16) {
        if !self.is_idle(slot) {
            return;
        }
        let tenant = self.queue(slot);
        let t = &mut self.tenants[usize::from(tenant)];
        if t.stand == Stand::Idle {
            t.stand = Stand::Listed;
            // Whatever its weight: others that had nothing wait behind it.
            t.deficit = QUANTUM;
            self.fresh.push_back(tenant);
        }
    }

    /// Puts a session behind the others of its tenant.
    fn queue(&mut self, slot: u16) -> u16 {
        let s = &mut self.sessions[usize::from(slot)];
        (s.place, s.next) = (Place::Queued, NONE);
        let tenant = s.tenant;
        let t = &mut self.tenants[usize::from(tenant)];
        let last = std::mem::replace(&mut t.last, slot);
        match t.first {
            NONE => t.first = slot,
            _ => self.sessions[usize::from(last)].next = slot,
        }
        tenant
    }

    /// The session whose packet is next; it is out of its queue until [`Turns::served`]. `None`:
    /// nobody has anything, or who has must wait, see [`Turns::wake_at`].
    pub fn next(&mut self, now: u64) -> Option<u16> {
        self.wake(now);
        self.line_until = None;
        loop {
            let is_fresh = !self.fresh.is_empty();
            let list = if is_fresh { &mut self.fresh } else { &mut self.old };
            let tenant = *list.front()?;
            let t = &mut self.tenants[usize::from(tenant)];
            if t.first == NONE {
                list.pop_front();
                // Not a newcomer again before the others had their turn.
                if is_fresh && !self.old.is_empty() {
                    self.old.push_back(tenant);
                } else {
                    t.stand = Stand::Idle;
                }
            } else if let Some(until) = t.until(now) {
                list.pop_front();
                t.stand = Stand::Waits(until);
                self.waiting.push_back(tenant);
                self.earliest = self.earliest.min(until);
            } else if self.line.available(now) == 0 {
                self.line_until = Some(self.line.ready_at(now, 1));
                return None;
            } else if t.deficit <= 0 {
                t.deficit += t.quantum;
                list.pop_front();
                self.old.push_back(tenant);
            } else {
                let slot = t.first;
                let s = &mut self.sessions[usize::from(slot)];
                s.place = Place::Served;
                t.first = s.next;
                if t.first == NONE {
                    t.last = NONE;
                }
                return Some(slot);
            }
        }
    }

    /// A packet of a session costs its tenant so many bytes, and [`OVERHEAD`].
    pub fn charge(&mut self, now: u64, slot: u16, bytes: usize) {
        let Some(s) = self.sessions.get(usize::from(slot)) else { return };
        let cost = cost(bytes);
        let t = &mut self.tenants[usize::from(s.tenant)];
        t.deficit -= i64::from(cost);
        t.tx.take(now, cost);
        t.pps.take(now, 1);
        self.line.take(now, cost);
    }

    /// A session has been served; whether it has more.
    pub fn served(&mut self, slot: u16, more: bool) {
        match self.sessions.get_mut(usize::from(slot)) {
            Some(s) if s.place == Place::Served && !more => s.place = Place::Idle,
            // Its tenant is in a list still: nobody takes it out while it is served.
            Some(s) if s.place == Place::Served => drop(self.queue(slot)),
            _ => {}
        }
    }

    /// A packet arrives at a session: its tenant's bucket pays for it, or it does not arrive. Not
    /// left where it is: the sender's packets for others would wait with it.
    pub fn receive(&mut self, now: u64, slot: u16, bytes: usize) -> Ingress {
        let Some(s) = self.sessions.get(usize::from(slot)) else { return Ingress::Pass };
        let t = &mut self.tenants[usize::from(s.tenant)];
        let there = t.rx.available(now);
        if there == 0 {
            return Ingress::Drop;
        }
        t.rx.take(now, cost(bytes));
        if there < t.rx_half {
            Ingress::Mark
        } else {
            Ingress::Pass
        }
    }

    /// Whether what a session has left in its ring may go at once: its tenant owes no more than a
    /// burst. Else who comes and goes would not be limited.
    pub fn may_finish(&mut self, now: u64, slot: u16) -> bool {
        let Some(s) = self.sessions.get(usize::from(slot)) else { return false };
        let t = &mut self.tenants[usize::from(s.tenant)];
        let spare = now.saturating_add(t.fill_ns);
        t.until(now).is_none_or(|until| until <= spare)
    }

    /// When somebody has credit who has none now; `None`: nobody waits for credit.
    pub fn wake_at(&self) -> Option<u64> {
        let tenants = (!self.waiting.is_empty()).then_some(self.earliest);
        tenants.into_iter().chain(self.line_until).min()
    }

    /// Tenants that have waited long enough are in the round again.
    fn wake(&mut self, now: u64) {
        if now < self.earliest {
            return;
        }
        self.earliest = u64::MAX;
        for _ in 0..self.waiting.len() {
            let Some(tenant) = self.waiting.pop_front() else { break };
            let t = &mut self.tenants[usize::from(tenant)];
            match t.stand {
                Stand::Waits(until) if now < until => {
                    self.waiting.push_back(tenant);
                    self.earliest = self.earliest.min(until);
                }
                _ => {
                    t.stand = Stand::Listed;
                    self.old.push_back(tenant);
                }
            }
        }
    }
}

impl Default for Turns {
    fn default() -> Turns {
        Turns::new()
    }
}

fn cost(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(OVERHEAD)
}

#[cfg(test)]
mod tests;
