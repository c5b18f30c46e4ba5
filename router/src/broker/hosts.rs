//! Tenants of other hosts, and whether a session may talk to them.
//!
//! The policy's map or an adapter reports the places of these tenants, as [`MapEvent`]s. Nothing
//! here waits for a report. Until an adapter has listed all tenants, a route to an unknown address
//! is kept for a while.

mod far_tenants;
mod kept_routes;

pub(super) use far_tenants::FarTenants;
pub(super) use kept_routes::KeptRoutes;

use super::route::{by_rings, check_talk_to};
use super::session::RouteEnd;
use super::{all_up_mut, errno, refusal, Broker, Refusal, Routed, SessionId, UpSession};
use crate::policy::{show, wants, Placed, Tenant};
use far_tenants::Gid;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::proto::Route;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A change of the map of other hosts' tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapEvent {
    /// These are all tenants, in all networks.
    Snapshot(Vec<Placed>),
    /// All tenants of a network follow, up to `End`.
    Begin(String),
    /// A tenant is new, or has moved.
    Put(Placed),
    /// No tenant of a network has an address any more. `stale`: the tenant's host has only stopped
    /// renewing it, and may come back.
    Gone {
        /// The network.
        network: String,
        /// The address.
        gid: [u8; 16],
        /// The tenant may come back.
        stale: bool,
    },
    /// The tenants since `Begin` are all of a network.
    End(String),
    /// Whether the store of a network answers.
    Store(String, bool),
    /// Another host has the address of a tenant of this one.
    Denied {
        /// The network.
        network: String,
        /// The address.
        gid: [u8; 16],
        /// The id of the host.
        holder: String,
    },
    /// No other host has the address.
    Claimed(String, [u8; 16]),
    /// The adapter has disconnected.
    Lost,
}

impl Broker {
    /// Applies a change of the map, and forgets the routes to tenants that it removes. Their queue
    /// pairs fail by their retry timers, as if a cable were cut.
    ///
    /// # Errors
    /// In words: the tenant has an invalid place. Nothing has changed then.
    pub fn map(&mut self, now: u64, event: MapEvent) -> Result<(), String> {
        match event {
            MapEvent::Snapshot(all) => self.replace(all),
            MapEvent::Begin(network) => self.far.begin(&network),
            MapEvent::Put(placed) => return self.put(now, placed),
            MapEvent::Gone { network, gid, stale: true } => self.far.age(now, &network, &gid),
            MapEvent::Gone { network, gid, stale: false } => {
                if self.far.remove(&network, &gid).is_some() {
                    self.forget_routes(&network, &gid);
                }
            }
            MapEvent::End(network) => {
                self.far.end(now, &network);
                self.route_again(now, &network, None);
            }
            MapEvent::Store(network, up) => {
                self.far.set_up(&network, up);
                if up {
                    self.route_again(now, &network, None);
                }
            }
            MapEvent::Denied { network, gid, holder } => {
                self.deny(now, &network, gid, &holder);
            }
            MapEvent::Claimed(network, gid) => {
                self.far.accept(&network, &gid);
                // The tenant that had the address here loses it.
                if self.far.remove(&network, &gid).is_some() {
                    self.forget_routes(&network, &gid);
                }
            }
            MapEvent::Lost => self.far.lose(),
        }
        Ok(())
    }

    /// Replaces all tenants by those of the policy's map.
    fn replace(&mut self, all: Vec<Placed>) {
        if self.far.len() == all.len() {
            let same = |p: &Placed| self.far.find(&p.network, &p.gid).is_some_and(|o| **o == *p);
            if all.iter().all(same) {
                return;
            }
        }
        let (silent, changes) = (std::mem::take(&mut self.far.silent), self.far.changes + 1);
        self.far = FarTenants::default();
        (self.far.silent, self.far.changes) = (silent, changes);
        // This cannot fail: a file has fewer tenants than the limit.
        all.into_iter().for_each(|placed| drop(self.far.put(placed)));
        for (_, up) in all_up_mut(&mut self.sessions) {
            let network = &up.tenant.network;
            let known = |to: &RouteEnd| match to {
                RouteEnd::Session(_) | RouteEnd::Outside(_) => true,
                RouteEnd::Far(gid) => self.far.find(network, gid).is_some(),
            };
            up.routes.retain(|to, _| known(to));
        }
    }

    fn put(&mut self, now: u64, placed: Placed) -> Result<(), String> {
        let own = self.policy.host.as_ref();
        if own.is_some_and(|own| *own.id == *placed.host) {
            return Err(format!("host {} is this one", placed.host));
        }
        if own.is_some_and(|own| own.at.same_host(&placed.at)) {
            return Err(format!("address {} is this host's", placed.at));
        }
        let (network, gid, host) = (placed.network.clone(), placed.gid, placed.host.clone());
        if self.own_placed(&network, &gid).is_some() {
            self.deny(now, &network, gid, &host);
        }
        let is_new = self.far.find(&network, &gid).is_none();
        for lost in self.far.put(placed)? {
            if (lost.gid, &lost.network) != (gid, &network) {
                self.forget_routes(&lost.network, &lost.gid);
            }
        }
        if is_new {
            let why = format!("address {} is a tenant's of host {host} now", show(&gid));
            self.end_at(now, &network, &gid, &why);
            self.route_again(now, &network, Some(&gid));
        }
        Ok(())
    }

    /// This host's tenant with an address that other hosts may know.
    fn own_placed(&self, network: &str, gid: &Gid) -> Option<&Tenant> {
        let is = |t: &&Tenant| t.place.is_some() && t.vip == Some(*gid) && t.network == network;
        self.policy.tenants.iter().find(is)
    }

    /// Ends the sessions of a tenant whose address another host has.
    fn deny(&mut self, now: u64, network: &str, gid: Gid, holder: &str) {
        let Some(tenant) = self.own_placed(network, &gid) else { return };
        let why = held(&tenant.name, &gid, holder);
        self.far.deny(network, gid, holder);
        self.end_at(now, network, &gid, &why);
    }

    /// Ends the sessions with an address that another host has.
    fn end_at(&mut self, now: u64, network: &str, gid: &Gid, why: &str) {
        let here = |up: &UpSession| up.tenant.network == network && up.gid == *gid;
        for id in self.all_up().filter(|(_, up)| here(up)).map(|(id, _)| id).collect::<Vec<_>>() {
            self.end(now, id, refusal!(errno::IN_USE, "{why}"));
        }
    }

    /// Whether a tenant may have sessions: no other host has its address.
    ///
    /// # Errors
    /// The one that has it.
    pub(super) fn not_denied(&self, tenant: &Tenant) -> Result<(), Refusal> {
        let Some(gid) = tenant.vip else { return Ok(()) };
        let known = || self.far.find(&tenant.network, &gid).map(|p| &*p.host);
        match self.far.holder(&tenant.network, &gid).or_else(known) {
            Some(holder) => Err((errno::IN_USE, held(&tenant.name, &gid, holder))),
            None => Ok(()),
        }
    }

    fn forget_routes(&mut self, network: &str, gid: &Gid) {
        for (_, up) in all_up_mut(&mut self.sessions).filter(|(_, up)| up.tenant.network == network)
        {
            up.routes.remove(&RouteEnd::Far(*gid));
        }
    }

    /// Applies the map of a new policy, if it has one.
    pub(super) fn map_again(&mut self) {
        if self.policy.host.as_ref().is_some_and(|host| host.feed().is_some()) {
            let tenants = &self.policy.tenants;
            let own = |network: &str, gid: &Gid| {
                let is = |t: &Tenant| t.vip == Some(*gid) && t.network == network;
                tenants.iter().any(|t| t.place.is_some() && is(t))
            };
            self.far.keep_denied(own);
        } else {
            self.replace(self.far_of_policy());
        }
    }

    /// Forgets tenants that no host has renewed for ten minutes, and refuses routes that have
    /// waited long enough.
    pub(super) fn tick_far(&mut self, now: u64) {
        for gone in self.far.expire(now) {
            self.forget_routes(&gone.network, &gone.gid);
        }
        self.refuse_late(now);
    }

    /// The time of the next [`Broker::tick_far`].
    pub(super) fn far_deadline(&self) -> Option<u64> {
        self.far.deadline().into_iter().chain(self.kept_routes.deadline()).min()
    }

    /// The number of changes of other hosts' tenants.
    pub fn far_changes(&self) -> u64 {
        self.far.changes
    }

    /// The number of known tenants, and how many of them are stale.
    pub fn far_count(&self) -> (usize, usize) {
        (self.far.len(), self.far.stale())
    }

    /// The networks that an adapter has named, and whether all their tenants are known.
    pub fn far_networks(&self) -> impl Iterator<Item = (&str, bool)> {
        self.far.networks()
    }

    /// Own tenants' addresses that other hosts have: network, address, and host.
    pub fn denied(&self) -> impl Iterator<Item = (&str, &[u8; 16], &str)> {
        self.far.denied()
    }

    /// Sets the hosts that do not answer. No new routes are made to them.
    pub fn set_silent(&mut self, hosts: BTreeSet<String>) {
        self.far.silent = hosts;
    }

    /// The tenants of other hosts, in the order of networks and addresses.
    pub fn far_tenants(&self) -> impl Iterator<Item = &Arc<Placed>> {
        self.far.all()
    }

    /// Whether a session may talk to each of so many tenants of other hosts, by the rule of
    /// [`Broker::may_reach`]. Cost for each tenant: that of the session's `allow` list.
    pub fn reach<'b>(
        &'b self,
        up: &'b UpSession,
        all: &'b [Arc<Placed>],
    ) -> impl Iterator<Item = bool> + 'b {
        let (name, network) = (&up.tenant.name, up.tenant.network.as_str());
        let of_network = self.policy.tenants.iter().filter(move |t| t.network == network);
        let here: BTreeMap<&str, &Tenant> = of_network.map(|t| (t.name.as_str(), t)).collect();
        let is_there = up.relays && up.tenant.place.is_some();
        let wanted = move |far: &Placed| match here.get(far.tenant.as_str()) {
            Some(other) => wants(other, name, &up.gid),
            None => true,
        };
        all.iter().map(move |far| {
            is_there
                && *far.network == *network
                && wants(&up.tenant, &far.tenant, &far.gid)
                && wanted(far)
        })
    }

    /// Whether a session and a tenant of another host may talk. Both are of one network, the
    /// session has rings and an identity on the wire, and policy allows it. Each host checks its
    /// own policy for both directions.
    pub fn may_reach(&self, up: &UpSession, far: &Placed) -> bool {
        up.relays && *up.tenant.network == *far.network && self.allowed(up, far).is_ok()
    }

    fn allowed(&self, up: &UpSession, far: &Placed) -> Result<(), Refusal> {
        let name = &up.tenant.name;
        if up.tenant.place.is_none() {
            return Err(refusal!(
                errno::ACCESS,
                "the map of hosts has no blocks for tenant {name} of this host, by which {} would \
                 know it",
                far.host
            ));
        }
        check_talk_to(&up.tenant, &far.tenant, &far.gid)?;
        match self.policy.tenant(&far.tenant).filter(|t| *t.network == *far.network) {
            Some(other) => check_talk_to(&other, name, &up.gid),
            None => Ok(()),
        }
    }

    /// The tenants of other hosts that the policy's map has.
    pub(super) fn far_of_policy(&self) -> Vec<Placed> {
        let own = self.policy.host.as_ref().map(|host| host.id.as_str());
        self.policy.map.tenants.iter().filter(|p| Some(&*p.host) != own).cloned().collect()
    }

    /// A route to a tenant of another host, by the rings and the wire. `None`: no tenant of another
    /// host has the address.
    pub(super) fn route_far(
        &mut self,
        id: SessionId,
        route: &Route,
    ) -> Result<Option<Routed>, Refusal> {
        let up = self.asking(id)?;
        let Some(far) = self.far.find(&up.tenant.network, &route.gid) else { return Ok(None) };
        self.allowed(up, far)?;
        let (gid, host, qpn) = (show(&route.gid), &far.host, route.qpn);
        if !up.relays {
            return Err(refusal!(
                errno::UNSUPPORTED,
                "{gid} is on host {host}, and the session has no rings"
            ));
        }
        if !far.blocks.contains(&(qpn / QPN_UNIT)) {
            return Err(refusal!(
                errno::UNREACHABLE,
                "{gid} on host {host} can't have a queue pair {qpn:#x}: the number is wrong"
            ));
        }
        if self.far.silent.contains(&**host) {
            return Err(refusal!(
                errno::UNREACHABLE,
                "{gid} is on host {host}, at {}, where no router listens",
                far.at
            ));
        }
        let (qpns, mtu) = (far.blocks.clone(), self.mtu);
        let up = self.asking_mut(id)?;
        let route = up.route_to(RouteEnd::Far(route.gid))?;
        Ok(Some(by_rings(route, 0, &qpns, mtu)))
    }
}

/// The reason for which a tenant has no sessions.
fn held(tenant: &str, gid: &Gid, holder: &str) -> String {
    format!("address {} of tenant {tenant} is held by host {holder}", show(gid))
}
