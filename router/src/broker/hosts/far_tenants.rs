//! The known tenants of other hosts, the stale ones of them, and the addresses of this host's own
//! tenants that other hosts have.

use crate::policy::Placed;
use gdrcore_net::addr::Endpoint;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// A virtual address.
pub(in crate::broker) type Gid = [u8; 16];

/// Tenants that an adapter may bring.
pub(super) const TENANTS_MAX: usize = 1 << 17;

/// The time for which a stale tenant stays known: its host does not renew it, but may only be cut
/// off from the store.
pub(in crate::broker) const STALE_NS: u64 = 600_000_000_000;

/// A tenant of another host.
#[derive(Debug)]
struct FarTenant {
    placed: Arc<Placed>,
    /// The listing of its network that had it last.
    round: u32,
    /// If it is stale: the time at which it is forgotten.
    until: Option<u64>,
}

#[derive(Debug, Default)]
pub(super) struct FarNetwork {
    tenants: BTreeMap<Gid, FarTenant>,
    /// The number of the last listing of all its tenants.
    round: u32,
    /// The present adapter has listed all its tenants.
    complete: bool,
    /// The store of this network answers.
    up: bool,
    /// Own tenants' addresses that other hosts have: that host, and the listing that said so.
    denied: BTreeMap<Gid, (String, u32)>,
}

impl FarNetwork {
    /// Whether all its tenants are known, so that an unknown address belongs to none.
    fn is_known(&self) -> bool {
        self.complete && self.up
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(in crate::broker) struct FarTenants {
    networks: BTreeMap<Arc<str>, FarNetwork>,
    /// By host address, then first block: these identify a tenant on the wire.
    sources: BTreeMap<([u8; 16], u32), BTreeMap<u32, Arc<Placed>>>,
    /// Stale tenants with the time at which each is forgotten, earliest first.
    stale: VecDeque<(u64, Arc<str>, Gid)>,
    len: usize,
    /// Counts the changes.
    pub(super) changes: u64,
    /// Hosts at whose addresses no router listens.
    pub(super) silent: BTreeSet<String>,
}

fn host_of(at: &Endpoint) -> ([u8; 16], u32) {
    (at.ip, at.scope_id)
}

impl FarTenants {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(in crate::broker) fn find(&self, network: &str, gid: &Gid) -> Option<&Arc<Placed>> {
        Some(&self.networks.get(network)?.tenants.get(gid)?.placed)
    }

    /// All tenants, in the order of networks and addresses.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Placed>> {
        self.networks.values().flat_map(|n| n.tenants.values()).map(|entry| &entry.placed)
    }

    /// The number of stale tenants.
    pub(super) fn stale(&self) -> usize {
        let entries = self.networks.values().flat_map(|n| n.tenants.values());
        entries.filter(|entry| entry.until.is_some()).count()
    }

    /// Whether an adapter has listed all tenants of a network, and the store still answers.
    pub(super) fn is_known(&self, network: &str) -> bool {
        self.networks.get(network).is_some_and(FarNetwork::is_known)
    }

    /// The networks, and whether all of each is known.
    pub(super) fn networks(&self) -> impl Iterator<Item = (&str, bool)> {
        self.networks.iter().map(|(name, n)| (&**name, n.is_known()))
    }

    /// Own tenants' addresses that other hosts have: network, address, host.
    pub(super) fn denied(&self) -> impl Iterator<Item = (&str, &Gid, &str)> {
        let of = |(name, n)| {
            let (name, n): (&'_ Arc<str>, &'_ FarNetwork) = (name, n);
            n.denied.iter().map(move |(gid, (holder, _))| (&**name, gid, holder.as_str()))
        };
        self.networks.iter().flat_map(of)
    }

    /// The other host that has the address of an own tenant.
    pub(in crate::broker) fn holder(&self, network: &str, gid: &Gid) -> Option<&str> {
        self.networks.get(network)?.denied.get(gid).map(|(holder, _)| holder.as_str())
    }

    fn network(&mut self, name: &str) -> (Arc<str>, &mut FarNetwork) {
        if !self.networks.contains_key(name) {
            self.networks.insert(name.into(), FarNetwork::default());
        }
        match self.networks.get_key_value(name).map(|(name, _)| name.clone()) {
            Some(name) => (name.clone(), self.networks.entry(name).or_default()),
            None => unreachable!("it was put there"),
        }
    }

    /// Adds or moves a tenant. Returns the tenants that this removes: its own former entry, and
    /// tenants of its host that had one of its blocks.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn put(&mut self, mut placed: Placed) -> Result<Vec<Arc<Placed>>, String> {
        let is_new = self.find(&placed.network, &placed.gid).is_none();
        if is_new && self.len >= TENANTS_MAX {
            return Err(format!("more than {TENANTS_MAX} tenants"));
        }
        let mut lost = self.take_blocks(&placed);
        // Tenants of one host share its name's allocation.
        let there = self.sources.get(&host_of(&placed.at)).and_then(|s| s.first_key_value());
        if let Some((_, other)) = there.filter(|(_, other)| other.host == placed.host) {
            placed.host = other.host.clone();
        }
        let (name, network) = self.network(&placed.network);
        placed.network = name;
        let round = network.round;
        if let Some(entry) = network.tenants.get_mut(&placed.gid) {
            (entry.round, entry.until) = (round, None);
            if *entry.placed == placed {
                return Ok(lost);
            }
        }
        lost.extend(self.remove(&placed.network.clone(), &placed.gid));
        let placed = Arc::new(placed);
        let source = self.sources.entry(host_of(&placed.at)).or_default();
        source.insert(placed.blocks.start, placed.clone());
        let (gid, entry) = (placed.gid, FarTenant { placed: placed.clone(), round, until: None });
        self.network(&placed.network).1.tenants.insert(gid, entry);
        self.len += 1;
        self.changes += 1;
        Ok(lost)
    }

    /// Removes other tenants of the host that have one of the tenant's blocks.
    fn take_blocks(&mut self, placed: &Placed) -> Vec<Arc<Placed>> {
        let Some(source) = self.sources.get(&host_of(&placed.at)) else { return Vec::new() };
        let before = source.range(..placed.blocks.end).rev();
        // The ranges are disjoint, so the ranges that meet the tenant's are adjacent in the map.
        let meet = before.take_while(|(_, other)| other.blocks.end > placed.blocks.start);
        let same = |o: &Placed| o.gid == placed.gid && o.network == placed.network;
        let others: Vec<_> = meet.map(|(_, o)| o.clone()).filter(|o| !same(o)).collect();
        others.iter().for_each(|o| drop(self.remove(&o.network, &o.gid)));
        others
    }

    /// Forgets a tenant.
    pub(super) fn remove(&mut self, network: &str, gid: &Gid) -> Option<Arc<Placed>> {
        let placed = self.networks.get_mut(network)?.tenants.remove(gid)?.placed;
        let host = host_of(&placed.at);
        if let Some(source) = self.sources.get_mut(&host) {
            source.remove(&placed.blocks.start);
            if source.is_empty() {
                self.sources.remove(&host);
            }
        }
        self.len -= 1;
        self.changes += 1;
        Some(placed)
    }

    /// Marks a tenant as stale.
    pub(super) fn age(&mut self, now: u64, network: &str, gid: &Gid) {
        let (name, network) = self.network(network);
        let Some(entry) = network.tenants.get_mut(gid).filter(|e| e.until.is_none()) else {
            return;
        };
        let until = now.saturating_add(STALE_NS);
        entry.until = Some(until);
        self.stale.push_back((until, name, *gid));
        // A stale tenant that was renewed has left old entries behind: drop them.
        if self.stale.len() > 2 * self.len + 1024 {
            let networks = &self.networks;
            self.stale.retain(|(until, name, gid)| {
                let entry = networks.get(name).and_then(|n| n.tenants.get(gid));
                entry.is_some_and(|entry| entry.until == Some(*until))
            });
        }
    }

    /// Begins a listing of all tenants of a network.
    pub(super) fn begin(&mut self, network: &str) {
        let (_, network) = self.network(network);
        network.round = network.round.wrapping_add(1);
        network.complete = false;
    }

    /// Ends the listing. Tenants that were not in it become stale, and addresses that it did not
    /// deny are accepted.
    pub(super) fn end(&mut self, now: u64, name: &str) {
        let (_, network) = self.network(name);
        let round = network.round;
        (network.complete, network.up) = (true, true);
        network.denied.retain(|_, (_, of)| *of == round);
        let entries = network.tenants.iter();
        let unseen: Vec<Gid> =
            entries.filter(|(_, e)| e.round != round).map(|(gid, _)| *gid).collect();
        unseen.iter().for_each(|gid| self.age(now, name, gid));
    }

    /// Whether the store answers for a network.
    pub(super) fn set_up(&mut self, network: &str, up: bool) {
        self.network(network).1.up = up;
    }

    /// The adapter has disconnected: no network is complete.
    pub(super) fn lose(&mut self) {
        self.networks.values_mut().for_each(|n| n.complete = false);
    }

    /// Another host has the address of an own tenant.
    pub(super) fn deny(&mut self, network: &str, gid: Gid, holder: &str) {
        let (_, network) = self.network(network);
        network.denied.insert(gid, (holder.into(), network.round));
    }

    /// No other host has it.
    pub(super) fn accept(&mut self, network: &str, gid: &Gid) {
        self.network(network).1.denied.remove(gid);
    }

    /// Drops the denied addresses that no own tenant has any more.
    pub(super) fn keep_denied(&mut self, is_own: impl Fn(&str, &Gid) -> bool) {
        for (name, network) in &mut self.networks {
            network.denied.retain(|gid, _| is_own(name, gid));
        }
    }

    /// Forgets stale tenants whose time is over, and returns them.
    pub(super) fn expire(&mut self, now: u64) -> Vec<Arc<Placed>> {
        let mut gone = Vec::new();
        while let Some((until, ..)) = self.stale.front().filter(|(until, ..)| *until <= now) {
            let until = *until;
            let Some((_, network, gid)) = self.stale.pop_front() else { break };
            let entry = self.networks.get(&network).and_then(|n| n.tenants.get(&gid));
            if entry.is_some_and(|entry| entry.until == Some(until)) {
                gone.extend(self.remove(&network, &gid));
            }
        }
        gone
    }

    /// The time of the next [`FarTenants::expire`].
    pub(super) fn deadline(&self) -> Option<u64> {
        self.stale.front().map(|(until, ..)| *until)
    }
}

#[cfg(test)]
mod tests;
