//! Another policy, while sessions are there.

use super::route::may_talk;
use super::{because, errno, route_event, Action, Broker, SessionId, State};
use crate::identity::{tenant_of, World};
use crate::policy::{Policy, Tenant};

impl Broker {
    /// Puts another policy in force: sessions that would have another name, network or address by
    /// it end, and so do links that it does not allow. What a session has beyond a new quota it
    /// keeps.
    pub fn reload(&mut self, now: u64, policy: Policy, world: &dyn World, out: &mut Vec<Action>) {
        self.policy = policy;
        for id in self.all_up().map(|(id, _)| id).collect::<Vec<_>>() {
            match self.judged_anew(id, world) {
                Some(tenant) => {
                    if let Some(up) = self.up_mut(id) {
                        up.tenant = tenant;
                    }
                }
                None => {
                    let why = "the policy has changed: it has another tenant, \
                         network or address for this process, or none";
                    self.end(now, id, because!(errno::ACCESS, "{why}"), out);
                }
            }
        }
        for (a, b) in self.forbidden() {
            for (one, other) in [(a, b), (b, a)] {
                self.tell(one, other, route_event::REVOKED, "policy allows it no more", out);
            }
        }
    }

    /// What a session is by the policy in force, if it is the same tenant with the same address.
    fn judged_anew(&mut self, id: SessionId, world: &dyn World) -> Option<Tenant> {
        let session = self.sessions.get(&id)?;
        let State::Up(up) = &session.state else { return None };
        let (gid, before) = (up.gid, (up.tenant.name.clone(), up.tenant.network.clone()));
        let tenant = tenant_of(&self.policy, &session.seen, up.ffr_id, world)?;
        let vip = self.vips.of(&self.policy, &tenant, |_| true)?;
        (before == (tenant.name.clone(), tenant.network.clone()) && vip == gid).then_some(tenant)
    }

    /// Sessions that are linked and may not be.
    fn forbidden(&self) -> Vec<(SessionId, SessionId)> {
        let mut pairs = Vec::new();
        for (id, up) in self.all_up() {
            for &peer in &up.linked_by {
                if self.up(peer).is_some_and(|other| may_talk(up, other).is_err()) {
                    pairs.push((id, peer));
                }
            }
        }
        pairs
    }
}
