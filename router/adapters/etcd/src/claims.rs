//! Writes this host's keys into the store: the host's own key and one for each tenant's address.
//! All are under one lease, which ends by itself after the router. The store may be slow, so a
//! thread of its own does this.

use crate::etcd::{Error, Etcd, If, Pair};
use crate::keys::{self, Holder, Host};
use crate::{note, Router};
use gdrcore_router_feed::{Entry, Event, Key};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// The pauses before a repeated call: after a failure, and after another host was found to have the
/// address.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
const DENIED_PAUSE: Duration = Duration::from_secs(5);

/// An order to the thread.
pub enum Order {
    /// Publish a tenant.
    Publish(Entry),
    /// Withdraw a tenant.
    Withdraw(Key),
    /// An address may be free: claim it again.
    Freed(Key),
}

/// A tenant to publish.
struct Want {
    entry: Entry,
    /// The value in the store, if it is this host's.
    held: Option<Vec<u8>>,
    /// The time of the next claim, and the other host that was last reported to have the address.
    next: Instant,
    denied: Option<String>,
}

/// This host's keys.
pub struct Claims<'s> {
    pub etcd: &'s Etcd,
    pub router: &'s Router,
    pub id: &'s str,
    pub host: Host,
    /// Seconds.
    pub ttl: u64,
    wants: BTreeMap<Key, Want>,
    /// Values to delete.
    withdrawn: BTreeMap<Key, Vec<u8>>,
    lease: Option<i64>,
    renewed: Instant,
    /// The host's key is under the lease.
    is_named: bool,
    /// The store's fault that was reported last.
    fault: Option<Error>,
}

impl<'s> Claims<'s> {
    pub fn new(
        etcd: &'s Etcd,
        router: &'s Router,
        id: &'s str,
        host: Host,
        ttl: u64,
    ) -> Claims<'s> {
        let (wants, withdrawn) = Default::default();
        let (lease, is_named, fault) = (None, false, None);
        let renewed = Instant::now();
        Claims { etcd, router, id, host, ttl, wants, withdrawn, lease, renewed, is_named, fault }
    }

    /// Works until the router is gone. The lease then ends by itself; a router that is back earlier
    /// puts its keys under a new one.
    pub fn run(mut self, orders: &Receiver<Order>) {
        while self.router.lives() {
            let outcome = self.step();
            let wait = match &outcome {
                Ok(()) => self.patience(),
                Err(_) => RETRY_PAUSE,
            };
            self.say(outcome.err());
            match orders.recv_timeout(wait) {
                Ok(order) => self.obey(order),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.router.lives() {
                return;
            }
            orders.try_iter().for_each(|order| self.obey(order));
        }
    }

    /// Prints a line if the fault has changed.
    fn say(&mut self, fault: Option<Error>) {
        if fault != self.fault {
            match &fault {
                Some(why) => note(format_args!("claims: {why}")),
                None => note(format_args!("claims: etcd does them again")),
            }
            self.fault = fault;
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Publish(entry) => {
                let key = entry.key();
                self.withdrawn.remove(&key);
                let next = Instant::now();
                self.wants.insert(key, Want { entry, held: None, next, denied: None });
            }
            Order::Withdraw(key) => {
                let held = self.wants.remove(&key).and_then(|want| want.held);
                self.withdrawn.extend(held.map(|value| (key, value)));
            }
            Order::Freed(key) => {
                // Also if the key was this host's: somebody has deleted it.
                if let Some(want) = self.wants.get_mut(&key) {
                    (want.held, want.next) = (None, Instant::now());
                }
            }
        }
    }

    fn every(&self) -> Duration {
        Duration::from_secs(self.ttl) / 3
    }

    /// The time until the next claim or renewal.
    fn patience(&self) -> Duration {
        let open = self.wants.values().filter(|want| want.held.is_none()).map(|want| want.next);
        let now = Instant::now();
        let next = open.chain([self.renewed + self.every()]).min().unwrap_or(now);
        next.saturating_duration_since(now)
    }

    /// Renews the lease if that is due, and puts and deletes keys.
    fn step(&mut self) -> Result<(), Error> {
        if let Some(lease) = self.lease {
            if self.renewed.elapsed() >= self.every() {
                if self.etcd.keep(lease)? {
                    self.renewed = Instant::now();
                } else {
                    note(format_args!("claims: the lease has ended; all is claimed again"));
                    self.lease = None;
                }
            }
        }
        let lease = match self.lease {
            Some(lease) => lease,
            None => self.begin()?,
        };
        if !self.is_named {
            self.name(lease)?;
        }
        self.withdraw(lease)?;
        let now = Instant::now();
        let due = |want: &&mut Want| want.held.is_none() && want.next <= now;
        for want in self.wants.values_mut().filter(due) {
            claim(self.etcd, self.router, lease, want)?;
        }
        Ok(())
    }

    /// Gets a new lease, which has no key yet.
    fn begin(&mut self) -> Result<i64, Error> {
        let lease = self.etcd.grant(self.ttl)?;
        (self.lease, self.renewed, self.is_named) = (Some(lease), Instant::now(), false);
        for want in self.wants.values_mut() {
            (want.held, want.next) = (None, Instant::now());
        }
        Ok(lease)
    }

    /// Puts the host's key. Tenants are claimed only afterwards, because another router of the same
    /// name would make the same claims.
    fn name(&mut self, lease: i64) -> Result<(), Error> {
        let (key, value) = (keys::host(self.id), keys::bytes(&self.host));
        let mine = |pair: &Pair| {
            let other = serde_json::from_slice::<Host>(&pair.value).ok();
            other.is_none_or(|o| o.address == self.host.address && o.port == self.host.port)
        };
        let there = match put(self.etcd, &key, &value, lease, mine)? {
            None => {
                self.is_named = true;
                return Ok(());
            }
            Some(there) => there,
        };
        let other = serde_json::from_slice::<Host>(&there.value).ok();
        let at = other.map_or_else(String::new, |o| format!(" at {}", o.address));
        let holder = format!("{}{at}", self.id);
        for want in self.wants.values_mut() {
            deny(self.router, want, &holder);
        }
        Err(Error::Refused(format!("host id {} is that of another router{at}", self.id)))
    }

    /// Deletes the withdrawn keys. It marks each one first, so that other hosts know that its host
    /// has withdrawn it.
    fn withdraw(&mut self, lease: i64) -> Result<(), Error> {
        while let Some((key, value)) = self.withdrawn.pop_first() {
            let name = keys::vip(&key);
            let gone = || {
                let mut place = serde_json::from_slice::<Holder>(&value).ok()?;
                place.withdrawn = true;
                Some(keys::bytes(&place))
            };
            let Some(gone) = gone() else { continue };
            let outcome = self.etcd.change(&name, Some((&gone, lease)), If::Value(&value));
            match outcome.and_then(|_| self.etcd.change(&name, None, If::Value(&gone))) {
                Ok(_) => {}
                Err(why) => {
                    self.withdrawn.insert(key, value);
                    return Err(why);
                }
            }
        }
        Ok(())
    }
}

/// Puts a key that does not exist or is already this host's (`mine`); otherwise returns the
/// existing one.
fn put(
    etcd: &Etcd,
    key: &str,
    value: &[u8],
    lease: i64,
    mine: impl Fn(&Pair) -> bool,
) -> Result<Option<Pair>, Error> {
    let mut on = If::Absent;
    // Another host may change the key between the tries. After four lost races the caller tries
    // again later.
    for _ in 0..4 {
        match etcd.change(key, Some((value, lease)), on)? {
            Ok(()) => return Ok(None),
            Err(Some(there)) if mine(&there) => on = If::Revision(there.revision),
            Err(Some(there)) => return Ok(Some(there)),
            Err(None) => on = If::Absent,
        }
    }
    Err(Error::Refused(format!("{key} changes all the time")))
}

fn claim(etcd: &Etcd, router: &Router, lease: i64, want: &mut Want) -> Result<(), Error> {
    let (key, value) = (want.entry.key(), keys::bytes(&Holder::from_entry(&want.entry)));
    let host = &want.entry.host;
    let place = |pair: &Pair| serde_json::from_slice::<Holder>(&pair.value).ok();
    let mine = |pair: &Pair| place(pair).is_none_or(|p| p.host == *host);
    match put(etcd, &keys::vip(&key), &value, lease, mine)? {
        None => {
            (want.held, want.denied) = (Some(value), None);
            router.say(&Event::Claimed(key));
        }
        Some(there) => {
            let holder = place(&there).map_or_else(String::new, |p| p.host);
            deny(router, want, &holder);
        }
    }
    Ok(())
}

/// Reports the host that has an address, if it is another one than before.
fn deny(router: &Router, want: &mut Want, holder: &str) {
    want.next = Instant::now() + DENIED_PAUSE;
    if want.denied.as_deref() != Some(holder) {
        let Key { network, vip } = want.entry.key();
        note(format_args!("{vip} of network {network} is held by host {holder}"));
        router.say(&Event::Denied { network, vip, holder: holder.into() });
        want.denied = Some(holder.into());
    }
}

#[cfg(test)]
mod tests;
