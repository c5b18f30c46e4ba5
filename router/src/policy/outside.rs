//! Tenants that talk to plain RoCEv2 endpoints.
//!
//! ```toml
//! [tenant.blue]
//! outside = true
//! publish = [{ port = 4420 }, { port = 9000, space = "udp" }]
//! ```
//!
//! Endpoints see a tenant at the host's address. Within a host each queue pair number has one
//! owner, so the router leaves numbers unchanged. It replaces addresses only in messages of the
//! connection manager, since no other packets name any.

use super::checks::{number, one_of, wrong, Checked};
use super::{Allow, Cidr, Host, Policy, Tenant};
use gdrcore_net::addr::ROCE_PORT;
use gdrcore_net::via::proto::Service;
use serde::Deserialize;
use std::collections::BTreeSet;
use toml::Spanned;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishTable {
    port: Spanned<i64>,
    space: Option<Spanned<String>>,
}

/// rdma_cm's port spaces.
const SPACES: [(&str, u16); 3] = [("tcp", 0x0106), ("udp", 0x0111), ("ib", 0x013f)];

/// The ports that a tenant publishes.
pub(super) fn published(table: &[PublishTable]) -> Checked<Vec<Service>> {
    let one = |p: &PublishTable| {
        let port = number(Some(&p.port), "port", 1, 0xffff)?.map_or(0, |n| n as u16);
        let space = one_of(p.space.as_ref(), "space", SPACES[0].1, &SPACES)?;
        Ok(Service { space, port })
    };
    table.iter().map(one).collect()
}

/// Checks `outside` and `publish` of all tenants against each other.
pub(super) fn check<'t>(
    tables: impl Iterator<Item = (Option<&'t Spanned<bool>>, &'t [PublishTable])>,
    host: Option<&Host>,
) -> Checked<()> {
    let mut taken = BTreeSet::new();
    for (outside, publish) in tables {
        let outside = outside.filter(|at| *at.get_ref());
        if let Some(at) = outside {
            let Some(host) = host else {
                return wrong(at, "outside: there is no [host], whose address it would be");
            };
            if host.at.port != ROCE_PORT {
                let what =
                    "outside: plain endpoints know UDP port 4791 alone, and [host] has another";
                return wrong(at, what);
            }
        }
        for (p, service) in publish.iter().zip(published(publish)?) {
            if outside.is_none() {
                return wrong(&p.port, "publish: the tenant has no `outside = true`");
            }
            if !taken.insert((service.space, service.port)) {
                return wrong!(&p.port, "port {}: it is published twice", service.port);
            }
        }
    }
    Ok(())
}

/// The endpoints to which a tenant may talk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// The host's address, at which endpoints see the tenant.
    pub own: [u8; 16],
    /// The addresses that the tenant's policy allows; `None`: all.
    pub allow: Option<Vec<Cidr>>,
    /// Ranges of virtual addresses.
    pub pools: Vec<Cidr>,
    /// Addresses of tenants and of hosts that have routers, in order.
    pub inside: Vec<[u8; 16]>,
}

/// Whether an endpoint can have an address: not an unspecified, loopback, link-local, multicast or
/// reserved one.
fn is_routed(gid: &[u8; 16]) -> bool {
    let ip = std::net::Ipv6Addr::from(*gid);
    match ip.to_ipv4_mapped() {
        Some(v4) => {
            let first = v4.octets()[0];
            !(first == 0 || first >= 224 || v4.is_loopback() || v4.is_link_local())
        }
        None => {
            !(ip.is_unspecified()
                || ip.is_loopback()
                || ip.is_multicast()
                || ip.segments()[0] & 0xffc0 == 0xfe80)
        }
    }
}

impl Outside {
    /// Whether the tenant may talk to the plain endpoint at an address.
    pub fn is_allowed(&self, gid: &[u8; 16]) -> bool {
        let is_v4 = |gid: &[u8; 16]| std::net::Ipv6Addr::from(*gid).to_ipv4_mapped().is_some();
        let allowed = self.allow.as_ref().is_none_or(|all| all.iter().any(|r| r.contains(gid)));
        let inside = *gid == self.own
            || self.inside.binary_search(gid).is_ok()
            || self.pools.iter().any(|pool| pool.contains(gid));
        allowed && !inside && is_v4(gid) == is_v4(&self.own) && is_routed(gid)
    }
}

/// The tenants that answer at the host's address: port space and port, then network and address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Published(Vec<PublishedPort>);

/// Port space and port; network and address.
type PublishedPort = ((u16, u16), (u32, [u8; 16]));

impl Published {
    /// A table of published ports, each once.
    pub fn new(all: impl Iterator<Item = (Service, u32, [u8; 16])>) -> Published {
        let mut table: Vec<_> =
            all.map(|(s, network, gid)| ((s.space, s.port), (network, gid))).collect();
        table.sort_unstable();
        Published(table)
    }

    /// The tenant that answers at a port.
    pub fn find(&self, space: u16, port: u16) -> Option<(u32, [u8; 16])> {
        let at = self.0.binary_search_by_key(&(space, port), |(key, _)| *key).ok()?;
        Some(self.0[at].1)
    }
}

impl Policy {
    /// The plain endpoints that a tenant may talk to; `None`: none.
    pub fn outside_of(&self, tenant: &Tenant) -> Option<Outside> {
        let host = self.host.as_ref().filter(|_| tenant.outside)?;
        let range = |a: &Allow| match a {
            Allow::Range(range) => Some(*range),
            Allow::Tenant(_) => None,
        };
        let vips = self.tenants.iter().filter_map(|t| t.vip);
        let far = self.map.tenants.iter().map(|p| p.gid);
        let hosts = self.map.hosts.values().map(|at| at.ip);
        let inside: BTreeSet<[u8; 16]> = vips.chain(far).chain(hosts).collect();
        Some(Outside {
            own: host.at.ip,
            allow: tenant.allow.as_ref().map(|all| all.iter().filter_map(range).collect()),
            pools: self.networks.iter().map(|n| n.pool).collect(),
            inside: inside.into_iter().collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> [u8; 16] {
        match text.parse().unwrap() {
            std::net::IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(a) => a.octets(),
        }
    }

    fn outside(allow: Option<&str>) -> Outside {
        Outside {
            own: gid("192.0.2.1"),
            allow: allow.map(|text| vec![Cidr::parse(text).unwrap()]),
            pools: vec![Cidr::parse("10.99.0.0/16").unwrap()],
            inside: vec![gid("192.0.2.2"), gid("198.51.100.7")],
        }
    }

    #[test]
    fn what_is_inside_or_no_endpoint_is_not_outside() {
        let all = outside(None);
        assert!(all.is_allowed(&gid("192.0.2.9")) && all.is_allowed(&gid("8.8.8.8")));
        for inside in [
            "192.0.2.1",
            "192.0.2.2",
            "198.51.100.7",
            "10.99.3.4",
            "127.0.0.1",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "255.255.255.255",
            "169.254.1.1",
            "::1",
            "fe80::1",
            "ff02::1",
            "2001:db8::1",
        ] {
            assert!(!all.is_allowed(&gid(inside)), "{inside}");
        }
        let some = outside(Some("192.0.2.8/30"));
        assert!(some.is_allowed(&gid("192.0.2.9")) && !some.is_allowed(&gid("192.0.2.12")));
        let six = Outside { own: gid("2001:db8::2"), ..outside(None) };
        assert!(six.is_allowed(&gid("2001:db8::1")) && !six.is_allowed(&gid("192.0.2.9")));
        assert!(!six.is_allowed(&gid("fe80::1")) && !six.is_allowed(&gid("ff02::1")));
    }

    #[test]
    fn a_published_port_has_one_tenant() {
        let at = |space, port| Service { space, port };
        let all =
            [(at(0x106, 9), 1, [1; 16]), (at(0x111, 9), 2, [2; 16]), (at(0x106, 5), 3, [3; 16])];
        let table = Published::new(all.into_iter());
        assert_eq!(table.find(0x106, 9), Some((1, [1; 16])));
        assert_eq!(table.find(0x106, 5), Some((3, [3; 16])));
        assert_eq!((table.find(0x106, 6), table.find(0x107, 9)), (None, None));
    }
}
