//! Virtual addresses: one for each tenant, unique in its network.

use crate::policy::{Cidr, Policy, Tenant};
use std::collections::{BTreeMap, BTreeSet};

/// A tenant's network and name.
type Key = (String, String);

/// The address of each tenant. A tenant that comes back gets the same one.
#[derive(Debug, Default)]
pub struct Vips {
    by_tenant: BTreeMap<Key, [u8; 16]>,
}

impl Vips {
    /// The address of a tenant: the policy's, or the lowest free one of its network's pool. `far`:
    /// whether a tenant of another host has an address of the network. `lives`: whether a tenant of
    /// the network has a session. If all addresses are taken, one of a tenant without a session is
    /// reused. `None`: none is left.
    pub fn assign(
        &mut self,
        policy: &Policy,
        tenant: &Tenant,
        far: impl Fn(&[u8; 16]) -> bool,
        lives: impl Fn(&str) -> bool,
    ) -> Option<[u8; 16]> {
        if let Some(vip) = tenant.vip {
            return Some(vip);
        }
        let pool = policy.network(&tenant.network)?.pool;
        let own = (tenant.network.clone(), tenant.name.clone());
        // A new policy may have another pool, or name the address for another tenant.
        let named: BTreeSet<[u8; 16]> = policy
            .tenants
            .iter()
            .filter(|t| t.network == tenant.network)
            .filter_map(|t| t.vip)
            .collect();
        let is_taken = |vip: &[u8; 16]| named.contains(vip) || far(vip);
        if let Some(&vip) = self.by_tenant.get(&own).filter(|v| pool.contains(v) && !is_taken(v)) {
            return Some(vip);
        }
        self.by_tenant.remove(&own);
        let vip = self.free(pool, is_taken, &tenant.network).or_else(|| {
            let idle = |key: &Key, vip: &[u8; 16]| {
                key.0 == tenant.network && pool.contains(vip) && !is_taken(vip) && !lives(&key.1)
            };
            let key = self
                .by_tenant
                .iter()
                .find(|(key, vip)| idle(key, vip))
                .map(|(key, _)| key.clone())?;
            self.by_tenant.remove(&key)
        })?;
        self.by_tenant.insert(own, vip);
        Some(vip)
    }

    /// Gives a tenant the address that it had in a former life of the router. False: the policy
    /// gives it another one, or another tenant has it.
    pub fn keep(
        &mut self,
        policy: &Policy,
        tenant: &Tenant,
        gid: [u8; 16],
        far: impl Fn(&[u8; 16]) -> bool,
    ) -> bool {
        if let Some(vip) = tenant.vip {
            return vip == gid;
        }
        let Some(network) = policy.network(&tenant.network) else { return false };
        let own = (tenant.network.clone(), tenant.name.clone());
        let of_network = policy.tenants.iter().filter(|t| t.network == tenant.network);
        let is_named = of_network.filter_map(|t| t.vip).any(|vip| vip == gid);
        let mut others = self.by_tenant.iter().filter(|(key, _)| **key != own);
        let is_anothers = others.any(|(key, vip)| key.0 == own.0 && *vip == gid);
        let has_another = self.by_tenant.get(&own).is_some_and(|vip| *vip != gid);
        let may =
            network.pool.contains(&gid) && !(is_named || is_anothers || has_another || far(&gid));
        if may {
            self.by_tenant.insert(own, gid);
        }
        may
    }

    /// The address that was given to a tenant for which the policy names none.
    pub fn given(&self, tenant: &Tenant) -> Option<[u8; 16]> {
        self.by_tenant.get(&(tenant.network.clone(), tenant.name.clone())).copied()
    }

    fn free(
        &self,
        pool: Cidr,
        is_taken: impl Fn(&[u8; 16]) -> bool,
        network: &str,
    ) -> Option<[u8; 16]> {
        let of_network = self.by_tenant.iter().filter(|(key, _)| key.0 == network);
        let taken: BTreeSet<[u8; 16]> = of_network.map(|(_, vip)| *vip).collect();
        // The search looks at one address more than are taken, at most.
        pool.hosts().find(|vip| !taken.contains(vip) && !is_taken(vip))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{show, tenant_of_uid};

    fn none(_: &[u8; 16]) -> bool {
        false
    }

    fn policy(pool: &str, more: &str) -> Policy {
        Policy::parse(&format!(
            "[router]\nlisten = \"/s\"\nunmatched = \"uid\"\npool = \"{pool}\"\n{more}"
        ))
        .unwrap()
    }

    #[test]
    fn the_lowest_that_nobody_has_is_given_and_kept() {
        let p = policy("10.0.0.0/29", "[tenant.a]\nlisten = \"/a\"\nvip = \"10.0.0.2\"\n");
        let mut v = Vips::default();
        let mut of = |uid| v.assign(&p, &tenant_of_uid(uid), none, |_| true).map(|g| show(&g));
        assert_eq!(of(7).as_deref(), Some("10.0.0.1"));
        assert_eq!(of(8).as_deref(), Some("10.0.0.3"), "the second is a's by name");
        assert_eq!(of(7).as_deref(), Some("10.0.0.1"));
        let rest = [9, 10, 11].map(&mut of);
        assert_eq!(rest, ["10.0.0.4", "10.0.0.5", "10.0.0.6"].map(|t| Some(t.to_string())));
        assert_eq!(of(12), None, "all live");
        let one_is_gone =
            v.assign(&p, &tenant_of_uid(12), none, |name| name != "uid-9").map(|g| show(&g));
        assert_eq!(one_is_gone.as_deref(), Some("10.0.0.4"));
        assert_eq!(show(&v.assign(&p, &p.tenants[0], none, |_| true).unwrap()), "10.0.0.2");
    }

    #[test]
    fn a_tenant_of_a_former_life_has_its_address_back_if_nobody_else_has_it() {
        let p = policy("10.0.0.0/24", "[tenant.a]\nlisten = \"/a\"\nvip = \"10.0.0.9\"\n");
        let gid = |text: &str| Cidr::parse(text).unwrap().hosts().next().unwrap();
        let mut v = Vips::default();
        let mut keep = |uid, text: &str, far: &[[u8; 16]]| {
            v.keep(&p, &tenant_of_uid(uid), gid(text), |vip| far.contains(vip))
        };
        assert!(keep(7, "10.0.0.5", &[]) && keep(7, "10.0.0.5", &[]));
        assert!(!keep(7, "10.0.0.6", &[]), "it has one");
        assert!(!keep(8, "10.0.0.5", &[]), "another tenant's");
        assert!(!keep(8, "10.0.0.9", &[]), "another tenant's by name");
        assert!(!keep(8, "10.0.1.1", &[]), "not of the pool");
        assert!(!keep(8, "10.0.0.8", &[gid("10.0.0.8")]), "another host's");
        assert!(v.keep(&p, &p.tenants[0], gid("10.0.0.9"), none));
        assert!(!v.keep(&p, &p.tenants[0], gid("10.0.0.5"), none));
        let next = v.assign(&p, &tenant_of_uid(9), none, |_| true).map(|g| show(&g));
        assert_eq!(next.as_deref(), Some("10.0.0.1"));
    }

    #[test]
    fn another_policy_moves_whom_it_must() {
        let mut v = Vips::default();
        let uid = tenant_of_uid(7);
        assert_eq!(
            show(&v.assign(&policy("10.0.0.0/24", ""), &uid, none, |_| true).unwrap()),
            "10.0.0.1"
        );
        let named = policy("10.0.0.0/24", "[tenant.a]\nlisten = \"/a\"\nvip = \"10.0.0.1\"\n");
        assert_eq!(show(&v.assign(&named, &uid, none, |_| true).unwrap()), "10.0.0.2");
        assert_eq!(
            show(&v.assign(&policy("10.1.0.0/24", ""), &uid, none, |_| true).unwrap()),
            "10.1.0.1"
        );
        let far = |vip: &[u8; 16]| show(vip) == "10.1.0.1";
        let moved = v.assign(&policy("10.1.0.0/24", ""), &uid, far, |_| true).unwrap();
        assert_eq!(show(&moved), "10.1.0.2", "another host's tenant has the first");
    }
}
