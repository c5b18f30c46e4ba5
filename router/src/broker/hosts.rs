//! Tenants of other hosts: who they are, and whether a session may talk to them.
//!
//! Where they are comes from outside, as [`MapEvent`]s: from the policy's map now, and from
//! whatever else knows it later. Nothing here waits for that.

use super::route::may_talk_to;
use super::session::To;
use super::{because, errno, Broker, Refusal, Routed, SessionId, State, Up};
use crate::policy::{show, Placed};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::proto::{link_flag, route_kind, Route, Text};
use std::collections::{BTreeMap, BTreeSet};

/// What has become known of other hosts' tenants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MapEvent {
    /// A tenant is there, or has moved.
    Put(Placed),
    /// Nobody of a network has an address any more.
    Gone(String, [u8; 16]),
    /// These are there, and no others.
    Snapshot(Vec<Placed>),
}

/// Who is known, by network and address.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    tenants: BTreeMap<(String, [u8; 16]), Placed>,
    /// Hosts that say that nobody listens there.
    silent: BTreeSet<String>,
}

impl Hosts {
    /// The addresses of a network.
    pub(super) fn addresses<'h>(&'h self, network: &'h str) -> impl Iterator<Item = [u8; 16]> + 'h {
        self.tenants.keys().filter(move |(n, _)| n == network).map(|(_, gid)| *gid)
    }

    fn find(&self, network: &str, gid: &[u8; 16]) -> Option<&Placed> {
        self.tenants.get(&(network.into(), *gid))
    }
}

impl Broker {
    /// Takes in what has become known. Routes to tenants that are gone are forgotten; queue pairs
    /// that had them find out by their timers, as behind a wire.
    pub fn map(&mut self, event: MapEvent) {
        let key = |p: Placed| ((p.network.clone(), p.gid), p);
        match event {
            MapEvent::Put(placed) => {
                let (key, placed) = key(placed);
                self.far.tenants.insert(key, placed);
            }
            MapEvent::Gone(network, gid) => drop(self.far.tenants.remove(&(network, gid))),
            MapEvent::Snapshot(all) => self.far.tenants = all.into_iter().map(key).collect(),
        }
        for session in self.sessions.values_mut() {
            let State::Up(up) = &mut session.state else { continue };
            let network = &up.tenant.network;
            let known = |to: &To| match to {
                To::Session(_) => true,
                To::Far(gid) => self.far.find(network, gid).is_some(),
            };
            up.routes.retain(|to, _| known(to));
        }
    }

    /// Says which hosts do not answer; no new routes are made to them.
    pub fn set_silent(&mut self, hosts: BTreeSet<String>) {
        self.far.silent = hosts;
    }

    /// The tenants of other hosts, in the order of networks and addresses.
    pub fn far_tenants(&self) -> impl Iterator<Item = &Placed> {
        self.far.tenants.values()
    }

    /// Whether a session and a tenant of another host may talk: both of one network, the session
    /// with an identity on the wire and rings, and policy lets them. What this policy says of the
    /// other counts as well; its own host's counts there.
    pub fn may_reach(&self, up: &Up, far: &Placed) -> bool {
        up.relays && up.tenant.network == far.network && self.allowed(up, far).is_ok()
    }

    fn allowed(&self, up: &Up, far: &Placed) -> Result<(), Refusal> {
        let name = &up.tenant.name;
        if up.tenant.place.is_none() {
            return Err(because!(
                errno::ACCESS,
                "the map of hosts has no blocks for tenant {name} of this host, by which {} would \
                 know it",
                far.host
            ));
        }
        may_talk_to(&up.tenant, &far.tenant, &far.gid)?;
        match self.policy.tenant(&far.tenant).filter(|t| t.network == far.network) {
            Some(other) => may_talk_to(&other, name, &up.gid),
            None => Ok(()),
        }
    }

    /// The tenants of other hosts that the policy's map has.
    pub(super) fn far_of_policy(&self) -> Vec<Placed> {
        let own = self.policy.host.as_ref().map(|host| host.id.as_str());
        self.policy.map.tenants.iter().filter(|p| Some(p.host.as_str()) != own).cloned().collect()
    }

    /// A way to another host by the rings and the wire; `None`: the address is none of another
    /// host's.
    pub(super) fn far(&mut self, id: SessionId, route: &Route) -> Result<Option<Routed>, Refusal> {
        let Some(up) = self.up(id) else { return Err(because!(errno::INVALID, "no session")) };
        let Some(far) = self.far.find(&up.tenant.network, &route.gid) else { return Ok(None) };
        self.allowed(up, far)?;
        let (gid, host, qpn) = (show(&route.gid), &far.host, route.qpn);
        if !up.relays {
            return Err(because!(
                errno::UNSUPPORTED,
                "{gid} is on host {host}, and the session has no rings"
            ));
        }
        if !far.blocks.contains(&(qpn / QPN_UNIT)) {
            return Err(because!(
                errno::UNREACHABLE,
                "{gid} on host {host} can't have a queue pair {qpn:#x}: the number is wrong"
            ));
        }
        if self.far.silent.contains(host) {
            return Err(because!(
                errno::UNREACHABLE,
                "{gid} is on host {host}, at {}, where no router listens",
                far.at
            ));
        }
        let (qpns, mtu) = (far.blocks.clone(), self.mtu);
        let Some(up) = self.up_mut(id) else { return Err(because!(errno::INVALID, "no session")) };
        let most = up.tenant.quotas.routes;
        let Some(route) = up.route_to(To::Far(route.gid)) else {
            return Err(because!(errno::QUOTA, "the session has {most} routes, its most"));
        };
        Ok(Some(Routed {
            kind: route_kind::RELAYED,
            route,
            peer: 0,
            flags: link_flag::NO_LOANS,
            qpns: (qpns.start * QPN_UNIT, qpns.len() as u32 * QPN_UNIT),
            mtu,
            cause: Text::EMPTY,
        }))
    }
}
