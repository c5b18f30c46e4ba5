//! Routes to unknown addresses, kept for a moment while the adapter has not listed all tenants: the
//! address may become known.

use super::{errno, refusal, Broker, Gid, Refusal, SessionId};
use crate::broker::{leaves_enough, Action};
use crate::policy::show;
use gdrcore_net::via::proto::{Envelope, Message, Route, Routed, Text};

/// The time for which a route is kept. A program waits 5 seconds for an answer.
const WAIT_NS: u64 = 2_000_000_000;
/// Limits of kept routes, of all sessions and of one.
const ALL_MAX: usize = 1024;
const EACH_MAX: usize = 64;

/// A session's request.
#[derive(Debug)]
struct KeptRoute {
    id: SessionId,
    seq: u32,
    route: Route,
    until: u64,
}

/// The kept routes, oldest first.
#[derive(Debug, Default)]
pub(in crate::broker) struct KeptRoutes(Vec<KeptRoute>);

impl KeptRoutes {
    /// A session is gone.
    pub(in crate::broker) fn forget(&mut self, id: SessionId) {
        self.0.retain(|kept| kept.id != id);
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        self.0.first().map(|kept| kept.until)
    }
}

impl Broker {
    /// Keeps a route to an unknown address that may belong to a tenant not listed yet.
    ///
    /// # Errors
    /// `refusal`, if the address certainly has no tenant; or that too many routes are kept.
    pub(in crate::broker) fn keep_route(
        &mut self,
        now: u64,
        id: SessionId,
        seq: u32,
        route: &Route,
        refusal: Refusal,
    ) -> Result<(), Refusal> {
        let Some(network) = self.unknown(id, &route.gid) else { return Err(refusal) };
        let tenant = |id| self.find_up(id).map(|up| &up.tenant.name);
        let all = &self.kept_routes.0;
        let own = all.iter().filter(|kept| kept.id == id).count();
        let of_tenant = all.iter().filter(|kept| tenant(kept.id) == tenant(id)).count();
        if !leaves_enough(of_tenant, all.len(), ALL_MAX) || own >= EACH_MAX {
            return Err(store_down(&network, &route.gid));
        }
        let until = now.saturating_add(WAIT_NS);
        self.kept_routes.0.push(KeptRoute { id, seq, route: *route, until });
        Ok(())
    }

    /// The network of a session, if an address in it may belong to a tenant not listed yet.
    fn unknown(&self, id: SessionId, gid: &Gid) -> Option<String> {
        let up = self.find_up(id)?;
        let network = &up.tenant.network;
        let is_fed = self.policy.host.as_ref().is_some_and(|host| host.feed().is_some());
        let may_come = is_fed && up.tenant.place.is_some() && !self.far.is_known(network);
        let here = |other: &super::UpSession| other.tenant.network == *network && other.gid == *gid;
        let is_here = self.far.find(network, gid).is_some()
            || self.own_placed(network, gid).is_some()
            || self.all_up().any(|(_, other)| here(other));
        (may_come && !is_here).then(|| network.clone())
    }

    /// Routes the kept requests again: those of a network, or for one address of it that has become
    /// known.
    pub(super) fn route_again(&mut self, now: u64, network: &str, gid: Option<&Gid>) {
        // So that these routes are not kept again, for longer than a program waits.
        let settles = gid.is_some() || self.far.is_known(network);
        if self.kept_routes.0.is_empty() || !settles {
            return;
        }
        let all = std::mem::take(&mut self.kept_routes.0);
        let concerns = |kept: &KeptRoute| {
            let same = self.find_up(kept.id).is_some_and(|up| up.tenant.network == network);
            same && gid.is_none_or(|gid| kept.route.gid == *gid)
        };
        let (again, others): (Vec<_>, Vec<_>) = all.into_iter().partition(concerns);
        self.kept_routes.0 = others;
        for kept in again {
            self.route(now, kept.id, kept.seq, &kept.route);
        }
    }

    /// Refuses routes that have waited long enough.
    pub(super) fn refuse_late(&mut self, now: u64) {
        let late = self.kept_routes.0.iter().take_while(|kept| kept.until <= now).count();
        for kept in self.kept_routes.0.drain(..late).collect::<Vec<_>>() {
            let Some(network) = self.find_up(kept.id).map(|up| up.tenant.network.clone()) else {
                continue;
            };
            let (errno, cause) = store_down(&network, &kept.route.gid);
            let refused = Message::Routed(Routed::refused(Text::new(&cause)));
            self.out.push(Action::Send(kept.id, Envelope::answer(kept.seq, -errno, refused)));
        }
    }
}

fn store_down(network: &str, gid: &Gid) -> Refusal {
    refusal!(
        errno::AGAIN,
        "store down: {} of network {network} is not known here, and the store of hosts can't be \
         asked",
        show(gid)
    )
}
