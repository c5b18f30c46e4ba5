//! A change of the policy while there are sessions.

use super::route::check_talk;
use super::{all_up_mut, errno, refusal, route_event, Broker, SessionId, SessionState};
use crate::identity::tenant_of;
use crate::policy::{Limits, Policy, Tenant};
use std::ops::Range;

impl Broker {
    /// Puts a new policy in force. Ends the sessions whose name, network or address it changes, and
    /// the links that it forbids. A session keeps what exceeds a new quota.
    pub fn reload(&mut self, now: u64, policy: Policy) {
        self.policy = policy;
        self.map_again();
        for id in self.all_up().map(|(id, _)| id).collect::<Vec<_>>() {
            match self.judged_anew(id) {
                Some(mut tenant) => {
                    if let Some(up) = self.up_mut(id) {
                        // The new socket does not exist for a present session.
                        tenant.outside &= up.tenant.outside;
                        up.tenant = tenant;
                    }
                }
                None => {
                    let why = "the policy has changed: it has another tenant, network, address or \
                         numbers for this process, or none";
                    self.end(now, id, refusal!(errno::ACCESS, "{why}"));
                }
            }
        }
        self.end_links();
    }

    /// Changes the limits of a tenant of the policy, until the policy is read again.
    ///
    /// # Errors
    /// In words: there is no such tenant, or a change is not valid. Nothing has changed then.
    pub fn set(&mut self, name: &str, changes: &[(String, String)]) -> Result<(), String> {
        let Some(tenant) = self.policy.tenants.iter_mut().find(|t| t.name == name) else {
            return Err(format!("tenant {name}: the policy has none of that name"));
        };
        if let Some(device) = &tenant.device {
            if let Some((key, _)) = changes.iter().find(|(k, _)| Limits::OF_RELAY.contains(&&**k)) {
                return Err(format!("{key}: it has no meaning beside the device '{device}'"));
            }
        }
        let mut limits = tenant.limits;
        changes.iter().try_for_each(|(key, value)| limits.set(key, value))?;
        tenant.limits = limits;
        for (_, up) in all_up_mut(&mut self.sessions).filter(|(_, up)| up.tenant.name == name) {
            up.tenant.limits = limits;
        }
        self.end_links();
        Ok(())
    }

    /// Ends the links that policy no longer allows, or that have to go by the relay.
    fn end_links(&mut self) {
        for (a, b, cause) in self.forbidden() {
            for (one, other) in [(a, b), (b, a)] {
                let Some(number) = self.find_up(other).map(|up| up.number) else { continue };
                self.notify_link_end(one, (other, number), route_event::REVOKED, cause);
            }
        }
    }

    /// The tenant of a session by the new policy, if name, network and address stay the same.
    fn judged_anew(&mut self, id: SessionId) -> Option<Tenant> {
        let session = self.sessions.get(&id)?;
        let SessionState::Up(up) = &session.state else { return None };
        let (gid, before) = (up.gid, (up.tenant.name.clone(), up.tenant.network.clone()));
        let blocks = up.blocks.clone();
        let device = up.tenant.device.clone();
        let tenant = tenant_of(&self.policy, &session.seen, up.ffr_id, self.netns)?;
        self.not_denied(&tenant).ok()?;
        if tenant.device != device {
            return None;
        }
        if device.is_some() {
            return (before.0 == tenant.name).then_some(tenant);
        }
        let far = |vip: &[u8; 16]| self.far.find(&tenant.network, vip).is_some();
        let vip = self.vips.assign(&self.policy, &tenant, far, |_| true)?;
        let same = before == (tenant.name.clone(), tenant.network.clone()) && vip == gid;
        (same && self.may_have(&tenant, &blocks)).then_some(tenant)
    }

    /// Whether the policy in force gives the blocks to the tenant, as other hosts assume.
    pub(super) fn may_have(&self, tenant: &Tenant, blocks: &Range<u32>) -> bool {
        let within = |own: &Range<u32>| own.start <= blocks.start && blocks.end <= own.end;
        let meet = |own: &Range<u32>| own.start < blocks.end && blocks.start < own.end;
        match &tenant.place {
            Some(own) => blocks.is_empty() || within(own),
            None => !self.policy.tenants.iter().filter_map(|t| t.place.as_ref()).any(meet),
        }
    }

    /// Pairs of sessions whose link policy forbids, and why.
    fn forbidden(&self) -> Vec<(SessionId, SessionId, &'static str)> {
        let mut pairs = Vec::new();
        for (id, up) in self.all_up() {
            for (peer, other) in self.all_up() {
                // Of two resumed sessions each counts as linked to the other: one of the two views
                // is enough.
                let both = up.resumed && other.resumed && !up.linked_by.contains(&peer);
                if peer == id || !up.may_link_to(peer, other) || both && peer < id {
                    continue;
                }
                if check_talk(up, other).is_err() {
                    pairs.push((id, peer, "policy allows it no more"));
                } else if self.policy.relays(&up.tenant, &other.tenant) {
                    pairs.push((id, peer, "policy has a limit for it, which links have not"));
                }
            }
        }
        pairs
    }
}
