//! Reads the keys of other hosts: all of a network as of a revision, and each change from then on.
//! A thread for each network in which this host has tenants.

use crate::etcd::{Change, Error, Etcd};
use crate::keys::{self, Holder};
use crate::{note, Router};
use gdrcore_router_feed::{Entry, Event, Key};
use std::time::{Duration, Instant};

/// The pause after a failure of the store.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The meaning of an address's value.
enum VipState {
    Here(Entry),
    /// It is one of this host's.
    Own(Key),
    Withdrawn(Key),
    /// The adapter did not write it: perhaps somebody did by hand.
    Nothing,
}

fn vip_state(network: &str, own: &str, key: &str, value: &[u8]) -> VipState {
    let Some(key) = keys::parse(network, key) else { return VipState::Nothing };
    match serde_json::from_slice::<Holder>(value) {
        Ok(place) if place.withdrawn => VipState::Withdrawn(key),
        Ok(place) if place.host == own => VipState::Own(key),
        Ok(place) => VipState::Here(place.entry(key)),
        Err(_) => VipState::Nothing,
    }
}

/// A network whose tenants the router gets.
pub struct Watch<'s> {
    pub etcd: &'s Etcd,
    pub router: &'s Router,
    /// The id of this host.
    pub own: &'s str,
    pub network: &'s str,
    /// Gets the addresses that may be free.
    pub freed: &'s dyn Fn(Key),
}

impl Watch<'_> {
    /// Reports all tenants, then each change, until the router is gone.
    pub fn run(&self) {
        let mut is_up = true;
        while self.router.lives() {
            let Err(why) = self.read().and_then(|from| self.follow(from, &mut is_up)) else {
                continue;
            };
            // A new reading follows at once.
            if why == Error::Compacted {
                note(format_args!("network {}: {why}; it is read again", self.network));
                continue;
            }
            self.set_up(&mut is_up, Some(&why));
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn set_up(&self, is_up: &mut bool, fault: Option<&Error>) {
        let up = fault.is_none();
        if up != *is_up {
            match fault {
                Some(why) => note(format_args!("network {}: {why}", self.network)),
                None => note(format_args!("network {}: etcd answers again", self.network)),
            }
            self.router.say(&Event::Store { network: self.network.into(), up });
        }
        *is_up = up;
    }

    /// Reports all tenants; returns the revision from which on changes are new.
    fn read(&self) -> Result<i64, Error> {
        self.router.say(&Event::Begin { network: self.network.into() });
        let revision = self.etcd.range(&keys::network(self.network), |pair| {
            if let VipState::Here(entry) = vip_state(self.network, self.own, &pair.key, &pair.value)
            {
                self.router.say(&Event::Put(entry));
            }
        })?;
        self.router.say(&Event::End { network: self.network.into() });
        Ok(revision + 1)
    }

    /// Reports the changes, by one watch after the other.
    fn follow(&self, mut from: i64, is_up: &mut bool) -> Result<(), Error> {
        let prefix = keys::network(self.network);
        while self.router.lives() {
            let began = Instant::now();
            // A member that answers this has a majority.
            let next = self.etcd.probe(&prefix).and_then(|()| {
                self.set_up(is_up, None);
                self.etcd.watch(&prefix, from, |change| {
                    self.report(change);
                    self.router.lives()
                })
            });
            match next {
                Ok(next) => {
                    // So that a member which ends its watches at once does not get requests without
                    // pause.
                    if next == from && began.elapsed() < RETRY_PAUSE {
                        self.etcd.turn_away();
                        std::thread::sleep(RETRY_PAUSE);
                    }
                    from = next;
                }
                Err(Error::Compacted) => return Err(Error::Compacted),
                Err(why) => {
                    self.set_up(is_up, Some(&why));
                    self.etcd.turn_away();
                    std::thread::sleep(RETRY_PAUSE);
                }
            }
        }
        Ok(())
    }

    fn report(&self, change: Change) {
        let gone = |key: Key, stale| {
            self.router.say(&Event::Gone { network: key.network, vip: key.vip, stale });
        };
        match change {
            Change::Put(pair) => match vip_state(self.network, self.own, &pair.key, &pair.value) {
                VipState::Here(entry) => drop(self.router.say(&Event::Put(entry))),
                VipState::Withdrawn(key) | VipState::Own(key) => gone(key, false),
                VipState::Nothing => {}
            },
            // Withdrawn before, or the lease of its host has ended.
            Change::Delete(key) => {
                if let Some(key) = keys::parse(self.network, &key) {
                    gone(key.clone(), true);
                    (self.freed)(key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
