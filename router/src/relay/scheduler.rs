//! The order in which the relay serves tenants and sessions.
//!
//! The relay serves tenants by deficit round robin: each round gives a tenant 4 KiB times its
//! weight, which pays for its packets. A tenant that was idle goes once to the front, so a small
//! message waits for one packet of a bulk stream, not for a round (M. Shreedhar and G. Varghese
//! 1995; RFC 8290 has the same two lists). The sessions of a tenant take turns, a packet each, so
//! more processes bring no larger share.
//!
//! A tenant without credit in one of its buckets is skipped until it has some. Its packets stay in
//! its rings, which fill up, so nothing is lost. One packet may overdraw a bucket, and later ones
//! wait for the debt, so rates are exact in the long run.
//!
//! Nothing here allocates after [`Scheduler::new`].

use super::slots::{SLOTS, TENANTS};
use crate::policy::{burst_of, packet_burst_of, Limits};
use gdrcore_core::bucket::TokenBucket;
use std::collections::VecDeque;

/// Bytes that a round gives, for weight 1.
const QUANTUM: i64 = 4 << 10;
/// Cost of a packet besides its bytes, for headers in the rings and for work that does not depend
/// on its size.
pub const OVERHEAD: u32 = 48;
/// No slot.
const NONE: u16 = u16::MAX;
const SECOND: u64 = 1_000_000_000;

/// The verdict of the receiver's bucket on a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ingress {
    /// It arrives.
    Pass,
    /// It arrives with a congestion mark (ECN).
    Mark,
    /// It is dropped: the rate is exceeded.
    Drop,
}

/// The state of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TenantState {
    /// It has nothing to send.
    Idle,
    /// It is in one of the lists.
    Listed,
    /// It has no credit until this time.
    Waits(u64),
}

#[derive(Debug)]
struct Tenant {
    tx: TokenBucket,
    pps: TokenBucket,
    rx: TokenBucket,
    /// Packets for it are marked if its bucket has less than this.
    rx_half: u32,
    /// The time in which its empty send buckets become full.
    fill_ns: u64,
    quantum: i64,
    deficit: i64,
    stand: TenantState,
    /// The queue of its sessions that have packets.
    first: u16,
    last: u16,
}

/// The state of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionTurn {
    /// There is none.
    Absent,
    /// Its ring was empty at the last look.
    Idle,
    /// It is in its tenant's queue.
    Queued,
    /// Its packet is being forwarded.
    Served,
}

#[derive(Clone, Copy, Debug)]
struct Session {
    state: SessionTurn,
    tenant: u16,
    next: u16,
}

/// The queues of tenants and sessions. It allocates only when it is made.
#[derive(Debug)]
pub struct Scheduler {
    tenants: Vec<Tenant>,
    sessions: Vec<Session>,
    /// Listed tenants: those that were idle before, and those that have had a turn.
    fresh: VecDeque<u16>,
    old: VecDeque<u16>,
    /// Tenants without credit.
    waiting: VecDeque<u16>,
    /// The earliest time at which one of them has credit.
    earliest: u64,
    /// The bucket of all tenants together.
    line: TokenBucket,
    /// `line` has no credit until this time.
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
            stand: TenantState::Idle,
            first: NONE,
            last: NONE,
        }
    }

    /// `None` if it has credit; otherwise when it will.
    fn credit_at(&mut self, now: u64) -> Option<u64> {
        if self.tx.available(now) > 0 && self.pps.available(now) > 0 {
            return None;
        }
        Some(self.tx.ready_at(now, 1).max(self.pps.ready_at(now, 1)))
    }
}

impl Scheduler {
    /// Queues without sessions, and without limits.
    pub(crate) fn new() -> Scheduler {
        Scheduler {
            tenants: (0..TENANTS).map(|_| Tenant::new()).collect(),
            sessions: vec![Session { state: SessionTurn::Absent, tenant: 0, next: NONE }; SLOTS],
            fresh: VecDeque::with_capacity(TENANTS),
            old: VecDeque::with_capacity(TENANTS),
            waiting: VecDeque::with_capacity(TENANTS),
            earliest: u64::MAX,
            line: TokenBucket::default(),
            line_until: None,
        }
    }

    /// Sets the limits of a tenant. Its debt remains.
    pub fn limit(&mut self, now: u64, tenant: u16, limits: &Limits) {
        let Some(t) = self.tenants.get_mut(usize::from(tenant)) else { return };
        let bucket = |bucket: &mut TokenBucket, rate: Option<u64>, burst: u32| {
            bucket.set_rate(now, rate.unwrap_or(0), burst);
            rate.map_or(0, |rate| u64::from(burst).saturating_mul(SECOND) / rate.max(1))
        };
        let burst = |rate: Option<u64>| limits.burst.unwrap_or(burst_of(rate.unwrap_or(0)));
        let packets = limits.tx_pps.map_or(0, packet_burst_of);
        let tx = bucket(&mut t.tx, limits.tx_rate, burst(limits.tx_rate));
        let pps = bucket(&mut t.pps, limits.tx_pps.map(u64::from), packets);
        bucket(&mut t.rx, limits.rx_rate, burst(limits.rx_rate));
        t.rx_half = burst(limits.rx_rate) / 2;
        t.fill_ns = tx.max(pps);
        t.quantum = i64::from(limits.weight) * QUANTUM;
        // The new limits may end its wait.
        if matches!(t.stand, TenantState::Waits(_)) {
            t.stand = TenantState::Waits(now);
            self.earliest = now;
        }
    }

    /// Clears a number for another tenant, which has no session yet.
    pub fn forget(&mut self, tenant: u16) {
        let Some(t) = self.tenants.get_mut(usize::from(tenant)) else { return };
        let stand = match t.stand {
            TenantState::Waits(_) => {
                self.earliest = 0;
                TenantState::Waits(0)
            }
            other => other,
        };
        *t = Tenant { stand, ..Tenant::new() };
    }

    /// Sets the rate of all tenants together; 0: no limit.
    pub fn limit_line(&mut self, now: u64, rate: u64) {
        self.line.set_rate(now, rate, burst_of(rate));
    }

    /// Adds a session of a tenant.
    pub fn join(&mut self, slot: u16, tenant: u16) {
        self.leave(slot);
        if let Some(s) = self.sessions.get_mut(usize::from(slot)) {
            *s = Session { state: SessionTurn::Idle, tenant, next: NONE };
        }
    }

    /// Removes a session.
    pub fn leave(&mut self, slot: u16) {
        let Some(&s) = self.sessions.get(usize::from(slot)) else { return };
        if s.state == SessionTurn::Queued {
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
        self.sessions[usize::from(slot)].state = SessionTurn::Absent;
    }

    /// Whether a session is idle, so that its ring has to be polled.
    pub fn is_idle(&self, slot: u16) -> bool {
        self.sessions.get(usize::from(slot)).is_some_and(|s| s.state == SessionTurn::Idle)
    }

    /// Whether a session's tenant waits for credit, or all tenants do.
    pub fn waits(&self, slot: u16) -> bool {
        let waits = |s: &Session| {
            matches!(self.tenants[usize::from(s.tenant)].stand, TenantState::Waits(_))
        };
        self.line_until.is_some() || self.sessions.get(usize::from(slot)).is_some_and(waits)
    }

    /// Queues an idle session: its ring has a packet.
    pub fn ready(&mut self, slot: u16) {
        if !self.is_idle(slot) {
            return;
        }
        let tenant = self.queue(slot);
        let t = &mut self.tenants[usize::from(tenant)];
        if t.stand == TenantState::Idle {
            t.stand = TenantState::Listed;
            // One quantum whatever its weight, because other new tenants wait behind it.
            t.deficit = QUANTUM;
            self.fresh.push_back(tenant);
        }
    }

    /// Puts a session behind the others of its tenant.
    fn queue(&mut self, slot: u16) -> u16 {
        let s = &mut self.sessions[usize::from(slot)];
        (s.state, s.next) = (SessionTurn::Queued, NONE);
        let tenant = s.tenant;
        let t = &mut self.tenants[usize::from(tenant)];
        let last = std::mem::replace(&mut t.last, slot);
        match t.first {
            NONE => t.first = slot,
            _ => self.sessions[usize::from(last)].next = slot,
        }
        tenant
    }

    /// Takes the session whose packet is next out of its queue, until [`Scheduler::served`].
    /// `None`: no session has a packet, or all of them wait for credit ([`Scheduler::wake_at`]).
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
                // It must not return to the front before the others had their turn.
                if is_fresh && !self.old.is_empty() {
                    self.old.push_back(tenant);
                } else {
                    t.stand = TenantState::Idle;
                }
            } else if let Some(at) = t.credit_at(now) {
                list.pop_front();
                t.stand = TenantState::Waits(at);
                self.waiting.push_back(tenant);
                self.earliest = self.earliest.min(at);
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
                s.state = SessionTurn::Served;
                t.first = s.next;
                if t.first == NONE {
                    t.last = NONE;
                }
                return Some(slot);
            }
        }
    }

    /// Charges a packet of a session to its tenant: its bytes, and [`OVERHEAD`].
    pub fn charge(&mut self, now: u64, slot: u16, bytes: usize) {
        let Some(s) = self.sessions.get(usize::from(slot)) else { return };
        let cost = cost(bytes);
        let t = &mut self.tenants[usize::from(s.tenant)];
        t.deficit -= i64::from(cost);
        t.tx.take(now, cost);
        t.pps.take(now, 1);
        self.line.take(now, cost);
    }

    /// Ends the service of a session. `more`: it has another packet.
    pub fn served(&mut self, slot: u16, more: bool) {
        match self.sessions.get_mut(usize::from(slot)) {
            Some(s) if s.state == SessionTurn::Served && !more => s.state = SessionTurn::Idle,
            // Its tenant is still listed: it leaves its list only in `next`.
            Some(s) if s.state == SessionTurn::Served => drop(self.queue(slot)),
            _ => {}
        }
    }

    /// Charges a packet for a session to its tenant's receive bucket. Without credit the packet is
    /// dropped. It cannot wait in the sender's ring: packets for others would wait behind it.
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

    /// Whether a session that ends may still send its packets: its tenant's debt is at most a
    /// burst. Without this limit, sessions that come and go would evade the rate.
    pub fn lets_finish(&mut self, now: u64, slot: u16) -> bool {
        let Some(s) = self.sessions.get(usize::from(slot)) else { return false };
        let t = &mut self.tenants[usize::from(s.tenant)];
        let spare = now.saturating_add(t.fill_ns);
        t.credit_at(now).is_none_or(|at| at <= spare)
    }

    /// The time of the next turn: a waiting tenant, or `line`, has credit then. 0: a session became
    /// ready after [`Scheduler::next`] had none. `None`: nobody waits.
    pub fn wake_at(&self) -> Option<u64> {
        let listed = !(self.fresh.is_empty() && self.old.is_empty());
        if listed && self.line_until.is_none() {
            return Some(0);
        }
        let tenants = (!self.waiting.is_empty()).then_some(self.earliest);
        tenants.into_iter().chain(self.line_until).min()
    }

    /// Lists tenants again that have waited long enough.
    fn wake(&mut self, now: u64) {
        if now < self.earliest {
            return;
        }
        self.earliest = u64::MAX;
        for _ in 0..self.waiting.len() {
            let Some(tenant) = self.waiting.pop_front() else { break };
            let t = &mut self.tenants[usize::from(tenant)];
            match t.stand {
                TenantState::Waits(until) if now < until => {
                    self.waiting.push_back(tenant);
                    self.earliest = self.earliest.min(until);
                }
                _ => {
                    t.stand = TenantState::Listed;
                    self.old.push_back(tenant);
                }
            }
        }
    }
}

fn cost(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).saturating_add(OVERHEAD)
}

#[cfg(test)]
mod tests;
