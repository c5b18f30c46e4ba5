//! Routes and the links between sessions: whether policy allows one, and the messages to both ends.

use super::session::{RouteEnd, LINKS_PER_SECOND, UNANSWERED};
use super::{
    errno, leaves_enough, refusal, Action, Broker, Link, Message, Refusal, Routed, SessionId,
    UpSession,
};
use crate::policy::{show, wants, Tenant};
use crate::rate::Rate;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::proto::{link_flag, route_kind, Envelope, Route, Text};
use std::ops::Range;

impl Broker {
    pub(super) fn route(&mut self, now: u64, id: SessionId, seq: u32, route: &Route) {
        match self.make_route(now, id, route) {
            Ok((routed, link)) => {
                let routed = Envelope::answer(seq, 0, Message::Routed(routed));
                self.out.push(match link {
                    Some((owner, link)) => Action::Connect { caller: id, routed, owner, link },
                    None => Action::Send(id, routed),
                });
            }
            Err(refusal) => {
                let Err((errno, cause)) = self.keep_route(now, id, seq, route, refusal) else {
                    return;
                };
                let refused = Message::Routed(Routed::refused(Text::new(&cause)));
                self.out.push(Action::Send(id, Envelope::answer(seq, -errno, refused)));
            }
        }
    }

    /// The answer to the session that asks, and for a new link the message to the other end.
    fn make_route(
        &mut self,
        now: u64,
        id: SessionId,
        route: &Route,
    ) -> Result<(Routed, Option<(SessionId, Envelope)>), Refusal> {
        self.check_not_draining()?;
        let up = self.asking_mut(id)?;
        if !up.rate.take(now) {
            let n = up.tenant.quotas.route_rate;
            return Err(refusal!(errno::AGAIN, "more than {n} routes in a second: ask again"));
        }
        if route.sgid_index > u32::from(up.tenant.outside) {
            return Err(refusal!(
                errno::INVALID,
                "sgid_index {}: the session has {} addresses",
                route.sgid_index,
                1 + u32::from(up.tenant.outside)
            ));
        }
        if route.qpn == 0 {
            return Err(refusal!(
                errno::UNSUPPORTED,
                "no queue pair: datagrams need no route, they go by the session's rings"
            ));
        }
        if let Some(routed) = self.route_far(id, route)? {
            return Ok((routed, None));
        }
        if let Some(routed) = self.route_outside(id, route)? {
            return Ok((routed, None));
        }
        let owner = self.owner_of(id, route)?;
        let (up, other) = (self.asking(id)?, self.asking(owner)?);
        check_talk(up, other)?;
        if self.isolated || self.policy.relays(&up.tenant, &other.tenant) {
            return Ok((self.route_by_rings(id, owner)?, None));
        }
        let (routed, link) = self.route_by_link(now, id, owner)?;
        Ok((routed, Some((owner, link))))
    }

    /// A route by a new link, and the message to its other end.
    fn route_by_link(
        &mut self,
        now: u64,
        id: SessionId,
        owner: SessionId,
    ) -> Result<(Routed, Envelope), Refusal> {
        let (up, other) = (self.asking(id)?, self.asking(owner)?);
        let may_grant = up.tenant.name == other.tenant.name;
        let flags = if may_grant { 0 } else { link_flag::NO_GRANTS };
        let (gid, blocks, asker) = (up.gid, other.blocks.clone(), up.tenant.name.clone());
        let (number_of_peer, own_number) = (other.number, up.number);
        // So that the router does not hold descriptors for a process that is stopped or does not
        // read.
        let of_tenant = other.unanswered.values().filter(|asker| **asker == up.tenant.name);
        if !leaves_enough(of_tenant.count(), other.unanswered.len(), UNANSWERED) {
            return Err(refusal!(
                errno::AGAIN,
                "{} has {} links waiting and takes none: \
                 its process is stopped, or nobody polls there",
                show(&other.gid),
                other.unanswered.len()
            ));
        }
        let up = self.asking_mut(id)?;
        if !up.rates.entry(owner).or_insert_with(|| Rate::new(now, LINKS_PER_SECOND)).take(now) {
            return Err(refusal!(
                errno::AGAIN,
                "more than {LINKS_PER_SECOND} links in a second to the same process"
            ));
        }
        let number = up.route_to(RouteEnd::Session(owner))?;
        let other = self.asking_mut(owner)?;
        let link_seq = other.next_seq();
        other.unanswered.insert(link_seq, asker);
        other.linked_by.insert(id);
        let by_rings = by_rings(number, number_of_peer, &blocks, self.mtu);
        let routed = Routed { kind: route_kind::DIRECT, flags, ..by_rings };
        let link = Envelope::new(link_seq, Message::Link(Link { gid, peer: own_number, flags }));
        Ok((routed, link))
    }

    /// A route by the rings of both sessions.
    fn route_by_rings(&mut self, id: SessionId, owner: SessionId) -> Result<Routed, Refusal> {
        let (up, other) = (self.asking(id)?, self.asking(owner)?);
        if !up.relays || !other.relays {
            return Err(refusal!(
                errno::UNSUPPORTED,
                "policy has no direct links here, and one end has no rings"
            ));
        }
        let (blocks, peer) = (other.blocks.clone(), other.number);
        let up = self.asking_mut(id)?;
        let route = up.route_to(RouteEnd::Session(owner))?;
        Ok(by_rings(route, peer, &blocks, self.mtu))
    }

    /// A route to a plain endpoint. `None`: the address is not an endpoint's, or the tenant may not
    /// talk to it.
    fn route_outside(&mut self, id: SessionId, route: &Route) -> Result<Option<Routed>, Refusal> {
        let up = self.asking(id)?;
        let rules = self.policy.outside_of(&up.tenant);
        if !rules.is_some_and(|rules| rules.is_allowed(&route.gid)) {
            return Ok(None);
        }
        if !up.relays {
            return Err(refusal!(errno::UNSUPPORTED, "the session has no rings"));
        }
        let mtu = self.mtu;
        let up = self.asking_mut(id)?;
        let number = up.route_to(RouteEnd::Outside(route.gid))?;
        Ok(Some(by_rings(number, 0, &(0..0), mtu)))
    }

    /// The session that has the queue pair. The error is the same whether or not another network
    /// has it.
    fn owner_of(&self, id: SessionId, route: &Route) -> Result<SessionId, Refusal> {
        let up = self.asking(id)?;
        let here =
            |other: &UpSession| other.tenant.network == up.tenant.network && other.gid == route.gid;
        let owner =
            self.blocks.owner(route.qpn).filter(|&owner| self.find_up(owner).is_some_and(here));
        let (gid, network) = (show(&route.gid), &up.tenant.network);
        match owner {
            Some(owner) if owner == id => Err(refusal!(
                errno::INVALID,
                "queue pair {:#x} is one of the session that asks",
                route.qpn
            )),
            Some(owner) => Ok(owner),
            None if self.all_up().any(|(_, other)| here(other)) => {
                let qpn = route.qpn;
                Err(refusal!(
                    errno::UNREACHABLE,
                    "{gid} has no queue pair {qpn:#x}: its process is gone, or the number is wrong"
                ))
            }
            None => {
                let outside = match (&self.policy.host, up.tenant.outside) {
                    (None, _) => "",
                    (_, false) => ", and by the policy this tenant may not talk to others",
                    (_, true) => ", and by the policy it is no address outside for this tenant",
                };
                Err(refusal!(
                    errno::UNREACHABLE,
                    "nobody in network {network} has the address {gid} at the moment{outside}"
                ))
            }
        }
    }
}

/// A route through rings, to one that has these blocks.
pub(super) fn by_rings(route: u32, peer: u32, blocks: &Range<u32>, mtu: u32) -> Routed {
    Routed {
        kind: route_kind::RELAYED,
        route,
        peer,
        flags: link_flag::NO_GRANTS,
        qpns: (blocks.start * QPN_UNIT, blocks.len() as u32 * QPN_UNIT),
        mtu,
        cause: Text::EMPTY,
    }
}

/// Checks that both tenants want to talk to each other.
///
/// # Errors
/// The one that does not.
pub(super) fn check_talk(a: &UpSession, b: &UpSession) -> Result<(), Refusal> {
    check_talk_to(&a.tenant, &b.tenant.name, &b.gid)?;
    check_talk_to(&b.tenant, &a.tenant.name, &a.gid)
}

/// Checks that a tenant wants to talk to another one, at an address.
///
/// # Errors
/// That it does not.
pub(super) fn check_talk_to(tenant: &Tenant, other: &str, gid: &[u8; 16]) -> Result<(), Refusal> {
    if wants(tenant, other, gid) {
        return Ok(());
    }
    let (one, gid) = (&tenant.name, show(gid));
    Err(refusal!(errno::ACCESS, "policy: `allow` of tenant {one} names neither {other} nor {gid}"))
}
