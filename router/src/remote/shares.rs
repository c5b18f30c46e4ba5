//! Rates and turns of the tenants of a device.
//!
//! While a tenant of a device has a limit, or the device a rate, requests are posted in the order
//! of the relay's scheduler. Each is charged as it is posted: with its bytes, those of a READ as
//! well, though they travel in the other direction, in which nothing else limits them. What has no
//! credit stays in the tenant's ring.
//!
//! So that a device has no long backlog of one tenant, a tenant with [`WINDOW`] bytes under way
//! waits for completions. A request of any size may exceed that once.

use crate::policy::{Limits, Tenant};
use crate::relay::{Scheduler, SLOTS, TENANTS};
use std::collections::{BTreeMap, VecDeque};

/// Bytes under way of a tenant from which on it posts no more.
pub(super) const WINDOW: u64 = 1 << 20;

/// A tenant.
struct Share {
    limits: Limits,
    sessions: u32,
    under_way: u64,
}

/// The shares of a device's tenants.
pub(super) struct Shares {
    scheduler: Scheduler,
    numbers: BTreeMap<String, u16>,
    shares: Vec<Share>,
    /// Sessions by slot.
    slots: Vec<Option<u32>>,
    line_rate: u64,
}

impl Shares {
    pub(super) fn new() -> Shares {
        Shares {
            scheduler: Scheduler::new(),
            numbers: BTreeMap::new(),
            shares: Vec::new(),
            slots: vec![None; SLOTS],
            line_rate: 0,
        }
    }

    /// Whether there is a limit.
    pub(super) fn are_limited(&self) -> bool {
        let limited = |s: &Share| s.sessions > 0 && is_limited(&s.limits);
        self.line_rate > 0 || self.shares.iter().any(limited)
    }

    /// The number of a tenant, which it keeps after its last session, so that its debt stays.
    /// `None`: all numbers have sessions.
    pub(super) fn number(&mut self, tenant: &Tenant) -> Option<u16> {
        if let Some(number) = self.known(tenant) {
            return Some(number);
        }
        let number = match u16::try_from(self.shares.len()) {
            Ok(next) if usize::from(next) < TENANTS => {
                self.shares.push(Share { limits: Limits::NONE, sessions: 0, under_way: 0 });
                next
            }
            _ => self.take_back()?,
        };
        self.numbers.insert(tenant.name.clone(), number);
        Some(number)
    }

    /// The number of a tenant that has had one.
    pub(super) fn known(&self, tenant: &Tenant) -> Option<u16> {
        self.numbers.get(&tenant.name).copied()
    }

    #[cold]
    fn take_back(&mut self) -> Option<u16> {
        let is_idle = |number: u16| self.shares[usize::from(number)].sessions == 0;
        let (name, &number) = self.numbers.iter().find(|(_, &number)| is_idle(number))?;
        let name = name.clone();
        self.numbers.remove(&name);
        self.scheduler.forget(number);
        self.shares[usize::from(number)].limits = Limits::NONE;
        Some(number)
    }

    /// Sets the limits of a tenant.
    pub(super) fn limit(&mut self, now: u64, number: u16, limits: &Limits) {
        self.shares[usize::from(number)].limits = *limits;
        self.scheduler.limit(now, number, limits);
    }

    /// Sets the rate of all tenants together; 0: no limit.
    pub(super) fn limit_line(&mut self, now: u64, rate: u64) {
        self.line_rate = rate;
        self.scheduler.limit_line(now, rate);
    }

    /// Adds a session of a tenant; returns its slot. `None`: there is none left.
    pub(super) fn join(&mut self, session: u32, tenant: u16) -> Option<u16> {
        let slot = self.slots.iter().position(Option::is_none)?;
        self.slots[slot] = Some(session);
        self.shares[usize::from(tenant)].sessions += 1;
        self.scheduler.join(slot as u16, tenant);
        Some(slot as u16)
    }

    /// Removes a session.
    pub(super) fn leave(&mut self, slot: u16, tenant: u16) {
        self.slots[usize::from(slot)] = None;
        self.shares[usize::from(tenant)].sessions -= 1;
        self.scheduler.leave(slot);
    }

    /// Begins a round: nothing is known to be under way.
    pub(super) fn begin(&mut self) {
        self.shares.iter_mut().for_each(|s| s.under_way = 0);
    }

    /// Bytes of a tenant are under way.
    pub(super) fn add(&mut self, tenant: u16, bytes: u64) {
        self.shares[usize::from(tenant)].under_way += bytes;
    }

    /// Whether a tenant may post a request.
    pub(super) fn has_window(&self, tenant: u16) -> bool {
        self.shares[usize::from(tenant)].under_way < WINDOW
    }

    /// A session has requests.
    pub(super) fn ready(&mut self, slot: u16) {
        self.scheduler.ready(slot);
    }

    /// The slot and the session whose turn is next, until [`Shares::served`]. `None`: none has both
    /// a request and credit.
    pub(super) fn next(&mut self, now: u64) -> Option<(u16, u32)> {
        loop {
            let slot = self.scheduler.next(now)?;
            match self.slots[usize::from(slot)] {
                Some(session) => return Some((slot, session)),
                None => self.scheduler.served(slot, false),
            }
        }
    }

    /// Charges a request.
    pub(super) fn charge(&mut self, now: u64, slot: u16, bytes: u64) {
        self.scheduler.charge(now, slot, usize::try_from(bytes).unwrap_or(usize::MAX));
    }

    /// Ends a turn. `more`: the session has another request.
    pub(super) fn served(&mut self, slot: u16, more: bool) {
        self.scheduler.served(slot, more);
    }
}

fn is_limited(limits: &Limits) -> bool {
    limits.tx_rate.is_some() || limits.weight != Limits::NONE.weight
}

/// Bytes of a send queue under way. A completion says that all requests before it are done, too, so
/// requests are counted in groups that end with a signalled one.
#[derive(Default)]
pub(super) struct UnderWay {
    groups: VecDeque<u64>,
    /// Of the group that has no end yet: a program may leave it so for good, so it does not count.
    open: u64,
    bytes: u64,
}

impl UnderWay {
    /// A request was posted.
    pub(super) fn posted(&mut self, bytes: u64, signalled: bool) {
        self.open = self.open.saturating_add(bytes);
        if signalled {
            let group = core::mem::take(&mut self.open);
            self.bytes = self.bytes.saturating_add(group);
            self.groups.push_back(group);
        }
    }

    /// A request has completed.
    pub(super) fn completed(&mut self) {
        self.bytes = self.bytes.saturating_sub(self.groups.pop_front().unwrap_or(0));
    }

    /// The queue pair has failed, or was reset.
    pub(super) fn clear(&mut self) {
        *self = UnderWay::default();
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}
