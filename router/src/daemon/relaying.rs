//! The first thread's half of the relay: makes rings, sets which sessions may reach each other, and
//! reads the worker's counters.

use super::sys;
use super::wire::{self, Common};
use super::worker::{Command, RelayLoop};
use super::worker_thread::WorkerThread;
use crate::broker::{Broker, SessionId, UpSession, LISTENS};
use crate::policy::{Limits, Outside, Placed, Published, Tenant};
use crate::relay::far::source_port;
use crate::relay::{Counters, Far, FarPeer, SessionAddress, SlotState, Slots, TENANTS};
use gdrcore_core::Error;
use gdrcore_net::addr::Endpoint;
use gdrcore_net::clock::now_ns;
use gdrcore_net::shm::relay::{Relay, RingDescriptors};
use gdrcore_net::soft::largest_path_mtu;
use gdrcore_net::via::proto::Service;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// A tenant at the worker: its number and its limits.
struct WorkerTenant {
    number: u16,
    limits: Limits,
    /// [`RelayWorker::joined`] at its last session. The tenant with the least value is the least
    /// recently used.
    used: u64,
}

/// Other hosts, and the relay's state for them.
struct FarHosts {
    at: Endpoint,
    mtu: u32,
    counters: Arc<wire::Counters>,
    /// Tables given to the worker, which frees none.
    tables: Vec<Arc<Far>>,
    /// The tenants of the last table, and their numbers in it.
    known: Vec<Arc<Placed>>,
    numbers: Vec<u32>,
    /// [`Broker::far_changes`] of the last table; `None`: there is no table yet.
    changes: Option<u64>,
    /// The earliest time of the next table.
    next: u64,
}

pub(super) struct RelayWorker {
    worker: WorkerThread<Command>,
    news: OwnedFd,
    slots: Arc<Slots>,
    given: BTreeMap<SessionId, u16>,
    /// By name.
    tenants: BTreeMap<String, WorkerTenant>,
    /// Sessions so far.
    joined: u64,
    line_rate: u64,
    networks: BTreeMap<String, u32>,
    hosts: Option<FarHosts>,
    /// Rules and tables given to the worker, which frees none.
    outside: Vec<Arc<Outside>>,
    published: Vec<Arc<Published>>,
}

impl RelayWorker {
    /// Starts the worker. `at`: this host's address, if there are others. `given`: the socket
    /// there, if a supervisor holds it.
    ///
    /// # Errors
    /// In words: the address is not free, or there is no descriptor or no thread.
    pub(super) fn start(
        at: Option<&Endpoint>,
        given: Option<OwnedFd>,
    ) -> Result<RelayWorker, String> {
        let open = |at| Common::open(at, given).map_err(|e| no_address(at, e));
        let common = at.map(open).transpose()?;
        let hosts = at.zip(common.as_ref()).map(|(at, common)| FarHosts {
            at: *at,
            mtu: largest_path_mtu(common.link_mtu()),
            counters: Arc::default(),
            tables: Vec::new(),
            known: Vec::new(),
            numbers: Vec::new(),
            changes: None,
            next: 0,
        });
        RelayWorker::begin(common, hosts).map_err(|e| format!("relay: {e}"))
    }

    fn begin(common: Option<Common>, hosts: Option<FarHosts>) -> io::Result<RelayWorker> {
        let [news, tells] = sys::pair()?;
        let slots = Arc::new(Slots::default());
        let wire = common.zip(hosts.as_ref().map(|hosts| hosts.counters.clone()));
        let worker = WorkerThread::start("relay", |queue, bell| {
            let worker = RelayLoop::new(queue, bell, tells, slots.clone(), LISTENS, wire)?;
            Ok(|| worker.run())
        })?;
        Ok(RelayWorker {
            worker,
            news,
            slots,
            given: BTreeMap::new(),
            tenants: BTreeMap::new(),
            joined: 0,
            line_rate: 0,
            networks: BTreeMap::new(),
            hosts,
            outside: Vec::new(),
            published: Vec::new(),
        })
    }

    /// Readable when the worker has given up a session.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.news.as_fd()
    }

    /// Whether the worker lives. It ends only by a fault of its own.
    pub(super) fn is_alive(&self) -> bool {
        self.worker.is_alive()
    }

    /// Makes a session's rings and adds it to the relay. Returns the session's ends.
    ///
    /// # Errors
    /// In words.
    pub(super) fn join(
        &mut self,
        broker: &Broker,
        id: SessionId,
    ) -> Result<RingDescriptors, String> {
        let (up, peers) = broker.peers(id).ok_or("there is no such session")?;
        let (ring, ends) = Relay::create(up.grows)
            .map_err(|_| "the router has no descriptor or memory left for rings".to_string())?;
        let ring = ring.with_headers(up.headers);
        let leaves = up.tenant.place.is_some() || up.tenant.outside;
        let wire = self.hosts.as_ref().filter(|_| leaves);
        let wire = wire.map(|hosts| wire::SocketParts::open(&hosts.at, &up.blocks)).transpose();
        let wire = wire.map_err(|e| no_port(e, source_port(up.blocks.start)))?;
        let slot = self.slots.take().ok_or("the router has no rings left")?;
        let network = self.network(&up.tenant.network);
        self.given.insert(id, slot);
        self.allow(slot, &peers);
        self.allow_far(broker, [(slot, up)].into_iter());
        let place = SessionAddress { network, gid: up.gid, blocks: up.blocks.clone() };
        let number = self.number(broker, &up.tenant);
        self.worker.send(Command::Join(slot, number, place, ring, wire));
        self.review_outside(broker, slot, up);
        if !up.tenant.publish.is_empty() {
            self.review_published(broker);
        }
        Ok(ends)
    }

    /// Tells the worker which plain endpoints a slot may talk to.
    fn review_outside(&mut self, broker: &Broker, slot: u16, up: &UpSession) {
        // The worker frees no rules: free those that it has dropped.
        self.outside.retain(|rules| Arc::strong_count(rules) > 1);
        let rules = broker.policy().outside_of(&up.tenant).map(|rules| {
            let known = self.outside.iter().find(|known| ***known == rules).cloned();
            known.unwrap_or_else(|| {
                self.outside.push(Arc::new(rules));
                self.outside[self.outside.len() - 1].clone()
            })
        });
        if rules.is_some() || up.tenant.outside || !self.outside.is_empty() {
            self.worker.send(Command::Outside(slot, rules));
        }
    }

    /// Tells the worker which tenants answer at the host's address.
    fn review_published(&mut self, broker: &Broker) {
        let mut all = Vec::new();
        for tenant in &broker.policy().tenants {
            let gid = tenant.vip.or_else(|| broker.vip_of(tenant));
            let Some(gid) = gid.filter(|_| !tenant.publish.is_empty()) else { continue };
            let network = self.network(&tenant.network);
            all.extend(tenant.publish.iter().map(|&service| (service, network, gid)));
        }
        let all = Published::new(all.into_iter());
        if self.published.last().is_none_or(|known| **known != all) {
            self.published.retain(|table| Arc::strong_count(table) > 1);
            let all = Arc::new(all);
            self.published.push(all.clone());
            self.worker.send(Command::Published(all));
        }
    }

    /// The number of a network.
    fn network(&mut self, name: &str) -> u32 {
        let next = self.networks.len() as u32;
        *self.networks.entry(name.into()).or_insert(next)
    }

    /// Sets which tenants of other hosts all slots may reach.
    fn allow_far_all(&self, broker: &Broker) {
        let here = self.given.iter().filter_map(|(&id, &slot)| Some((slot, broker.find_up(id)?)));
        self.allow_far(broker, here);
    }

    /// The same for some slots. All sessions of a tenant may reach the same tenants.
    fn allow_far<'u>(&self, broker: &Broker, all: impl Iterator<Item = (u16, &'u UpSession)>) {
        let Some(FarHosts { tables, known, numbers, .. }) = &self.hosts else { return };
        let Some(far) = tables.last() else { return };
        let mut found: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
        for (slot, up) in all {
            if up.tenant.place.is_none() {
                far.forbid_all(slot);
                continue;
            }
            let reached = found.entry(&up.tenant.name);
            let reached = reached.or_insert_with(|| broker.reach(up, known).collect());
            for (&peer, &may) in numbers.iter().zip(&*reached) {
                far.set_allowed(slot, peer, may);
            }
        }
    }

    /// Makes a new table of other hosts' tenants, if they have changed. The caller fills in which
    /// slots may reach them, and then gives the table to the worker.
    fn renew_far(&mut self, broker: &Broker) -> Option<Arc<Far>> {
        let changes = Some(broker.far_changes());
        self.hosts.as_ref().filter(|hosts| hosts.changes != changes)?;
        let known: Vec<Arc<Placed>> = broker.far_tenants().cloned().collect();
        let networks: Vec<u32> = known.iter().map(|p| self.network(&p.network)).collect();
        let peer = |(p, &network): (&Arc<Placed>, &u32)| FarPeer {
            network,
            gid: p.gid,
            blocks: p.blocks.clone(),
            at: p.at,
        };
        let far = Arc::new(Far::new(known.iter().zip(&networks).map(peer).collect()));
        let number = |(p, &network): (&Arc<Placed>, &u32)| far.find(network, &p.gid).unwrap_or(0);
        let numbers = known.iter().zip(&networks).map(number).collect();
        let hosts = self.hosts.as_mut()?;
        // Free the tables that the worker has dropped.
        hosts.tables.retain(|table| Arc::strong_count(table) > 1);
        hosts.tables.push(far.clone());
        (hosts.known, hosts.numbers, hosts.changes) = (known, numbers, changes);
        Some(far)
    }

    /// Gives the worker a new table of other hosts' tenants, if one is due.
    pub(super) fn catch_up(&mut self, broker: &Broker, now: u64) {
        if self.next_catch_up(broker).is_none_or(|at| now < at) {
            return;
        }
        let Some(far) = self.renew_far(broker) else { return };
        self.allow_far_all(broker);
        self.worker.send(Command::Far(far));
        if let Some(hosts) = &mut self.hosts {
            // So that tables take at most a fifth of this thread's time, however fast the adapter
            // is.
            let took = now_ns().saturating_sub(now);
            hosts.next = now.saturating_add(took.saturating_mul(5));
        }
    }

    /// The time of the next [`RelayWorker::catch_up`]; `None`: the worker's table is current.
    pub(super) fn next_catch_up(&self, broker: &Broker) -> Option<u64> {
        let hosts = self.hosts.as_ref()?;
        (hosts.changes != Some(broker.far_changes())).then_some(hosts.next)
    }

    /// Hosts at whose addresses no router listens.
    pub(super) fn silent(&self, now: u64) -> BTreeSet<String> {
        let Some(FarHosts { tables, known, .. }) = &self.hosts else { return BTreeSet::new() };
        let silent = tables.last().into_iter().flat_map(|far| far.silent(now));
        let named = silent.filter_map(|at| known.iter().find(|p| p.at == *at));
        named.map(|p| p.host.to_string()).collect()
    }

    /// Bytes of payload of a packet to another host; `None`: there are no other hosts.
    pub(super) fn mtu(&self) -> Option<u32> {
        self.hosts.as_ref().map(|hosts| hosts.mtu)
    }

    /// Counters of the traffic with other hosts.
    pub(super) fn wire(&self) -> Option<&wire::Counters> {
        self.hosts.as_ref().map(|hosts| &*hosts.counters)
    }

    /// The number of a tenant. It stays the tenant's after its last session, so that its buckets
    /// keep their debts. If all numbers are in use, the least recently used one is taken back.
    fn number(&mut self, broker: &Broker, tenant: &Tenant) -> u16 {
        self.joined += 1;
        if !self.tenants.contains_key(&tenant.name) {
            let number = match u16::try_from(self.tenants.len()) {
                Ok(next) if usize::from(next) < TENANTS => next,
                _ => self.take_back(broker),
            };
            let known = WorkerTenant { number, limits: Limits::NONE, used: 0 };
            self.tenants.insert(tenant.name.clone(), known);
        }
        self.limit(&tenant.name, &tenant.limits);
        let joined = self.joined;
        self.tenants.get_mut(&tenant.name).map_or(0, |known| {
            known.used = joined;
            known.number
        })
    }

    #[cold]
    fn take_back(&mut self, broker: &Broker) -> u16 {
        let here = broker.tenants_here();
        let idle = self.tenants.iter().filter(|(name, _)| !here.contains(name.as_str()));
        let oldest = idle.min_by_key(|(_, known)| known.used).map(|(name, _)| name.clone());
        // There is an idle number, because there are more numbers than slots.
        let number = oldest.and_then(|name| self.tenants.remove(&name)).map_or(0, |k| k.number);
        self.worker.send(Command::Forget(number));
        self.slots.clear_tenant(number);
        number
    }

    /// Sends a tenant's limits to the worker, if they have changed.
    fn limit(&mut self, name: &str, limits: &Limits) {
        let Some(known) = self.tenants.get_mut(name).filter(|k| k.limits != *limits) else {
            return;
        };
        known.limits = *limits;
        let number = known.number;
        self.worker.send(Command::Limit(number, *limits));
    }

    /// Sets which sessions a slot may reach.
    fn allow(&self, slot: u16, peers: &[SessionId]) {
        for (id, &other) in &self.given {
            self.slots.set_allowed(slot, other, peers.contains(id));
        }
    }

    /// Applies a new policy.
    pub(super) fn review(&mut self, broker: &Broker) {
        let fresh = self.renew_far(broker);
        self.review_published(broker);
        for (id, slot) in self.given.clone() {
            if let Some((up, _)) = broker.peers(id) {
                self.review_outside(broker, slot, up);
            }
        }
        let line_rate = broker.policy().line_rate.unwrap_or(0);
        if line_rate != self.line_rate {
            self.line_rate = line_rate;
            self.worker.send(Command::Line(line_rate));
        }
        for name in self.tenants.keys().cloned().collect::<Vec<_>>() {
            if let Some(tenant) = broker.policy().tenant(&name) {
                self.limit(&name, &tenant.limits);
            }
        }
        for (&id, &slot) in &self.given {
            let peers = broker.peers(id).map(|(_, peers)| peers).unwrap_or_default();
            self.allow(slot, &peers);
        }
        self.allow_far_all(broker);
        if let Some(far) = fresh {
            self.worker.send(Command::Far(far));
        }
    }

    /// Removes a session. `at_once`: it was expelled, so the relay refuses its packets from now on.
    pub(super) fn leave(&mut self, id: SessionId, at_once: bool) {
        if let Some(slot) = self.given.remove(&id) {
            if at_once {
                self.slots.expel(slot);
                let tables = self.hosts.iter().flat_map(|hosts| &hosts.tables);
                tables.for_each(|far| far.forbid_all(slot));
            }
            self.worker.send(Command::Leave(slot));
        }
    }

    /// A session begins (`on`) or ends to listen at a port.
    pub(super) fn listen(&mut self, id: SessionId, service: Service, on: bool) {
        if let Some(&slot) = self.given.get(&id) {
            self.worker.send(Command::Listen(slot, service, on));
        }
    }

    /// Sessions that the worker has given up.
    pub(super) fn broken(&self) -> Vec<SessionId> {
        while matches!(sys::read(&self.news, &mut [0; 64]), Ok(1..)) {}
        let is_broken = |slot: u16| self.slots.state(slot) == SlotState::Broken;
        self.given.iter().filter(|(_, &slot)| is_broken(slot)).map(|(&id, _)| id).collect()
    }

    pub(super) fn counters(&self, id: SessionId) -> Option<&Counters> {
        self.given.get(&id).map(|&slot| self.slots.counters(slot))
    }

    /// A tenant's counters; `None`: it never had a session.
    pub(super) fn tenant(&self, name: &str) -> Option<&Counters> {
        self.tenants.get(name).map(|known| self.slots.tenant(known.number))
    }
}

#[cold]
fn no_address(at: &Endpoint, e: Error) -> String {
    let why = match e {
        Error::AddressInUse => "another program has the address and port".into(),
        Error::AddressNotLocal => "no interface of this host has the address".into(),
        e => e.to_string(),
    };
    format!("[host] {at}: {why}")
}

/// Why a session has no socket of its own. Other hosts identify its tenant by the UDP source port.
#[cold]
fn no_port(e: Error, port: u16) -> String {
    match e {
        Error::AddressInUse => format!(
            "UDP port {port} of the host, which names the session on the wire, is another program's"
        ),
        _ => "the router has no descriptor or memory left for the way to other hosts".into(),
    }
}

#[cfg(test)]
mod tests;
