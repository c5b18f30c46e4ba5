//! Other hosts: `[host]`, this host's address on the wire, and the map of hosts and their tenants.
//!
//! ```toml
//! [host]                       # in the policy: who this host is
//! id = "a"
//! address = "192.0.2.1"        # of the RoCE interface
//! port = 4791                  # UDP
//! map = "/etc/gdrcore/hosts.toml"
//! ```
//!
//! ```toml
//! [a]                          # the map, the same on all hosts
//! address = "192.0.2.1"
//! [a.tenant.blue]
//! network = "default"
//! vip = "10.99.0.1"
//! blocks = [1, 64]             # the first, and how many
//! [b]
//! address = "192.0.2.2"
//! [b.tenant.red]
//! vip = "10.99.0.2"
//! blocks = [1, 64]
//! ```
//!
//! With `map = "feed"` an adapter brings the map ([`crate::daemon`]), and the policy names this
//! host's own tenants:
//!
//! ```toml
//! [host]
//! id = "a"
//! address = "192.0.2.1"
//! map = "feed"
//! feed = "/run/gdrcore/feed.sock"
//! [host.tenant.blue]
//! vip = "10.99.0.1"
//! blocks = [1, 64]
//! ```
//!
//! Each host has its own blocks of queue pair numbers. A packet identifies its sender by the host's
//! address and one of the sender's blocks, so tenants that other hosts can reach have fixed blocks.

use super::checks::{
    check_name, check_name_text, fault, in_order, number, read_toml, vip, wrong, Checked, Wrong,
};
use super::{address, show, Fault, Tenant, DEFAULT_NETWORK};
use gdrcore_core::wire::grh::is_link_local;
use gdrcore_net::addr::{Endpoint, ROCE_PORT};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Spanned;

/// The blocks of queue pair numbers that a host gives to sessions. Block 0 has the reserved
/// numbers, and those above the range are not given, as without a router.
pub const BLOCKS: Range<u32> = 1..1016;
/// Limits of the hosts and tenants of a map.
const HOSTS_MAX: usize = 1024;
const TENANTS_MAX: usize = 1 << 14;

/// This host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name in the map.
    pub id: String,
    /// Its address and UDP port.
    pub at: Endpoint,
    /// Where the map comes from.
    pub map: Source,
}

/// The source of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file.
    File(PathBuf),
    /// An adapter, by this socket of the router.
    Feed(PathBuf),
}

impl Host {
    /// The socket by which an adapter brings the map; `None`: the map is a file.
    pub fn feed(&self) -> Option<&Path> {
        match &self.map {
            Source::File(_) => None,
            Source::Feed(socket) => Some(socket),
        }
    }
}

/// A tenant of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    /// Its host.
    pub host: Arc<str>,
    /// The address and UDP port of that.
    pub at: Endpoint,
    /// Its name there.
    pub tenant: String,
    /// Its network.
    pub network: Arc<str>,
    /// Its address.
    pub gid: [u8; 16],
    /// Its blocks.
    pub blocks: Range<u32>,
}

/// The map of hosts and tenants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// The hosts, by name.
    pub hosts: BTreeMap<String, Endpoint>,
    /// Their tenants.
    pub tenants: Vec<Placed>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HostTable {
    id: Spanned<String>,
    pub(super) address: Spanned<String>,
    pub(super) port: Option<Spanned<i64>>,
    pub(super) map: Spanned<String>,
    pub(super) feed: Option<Spanned<String>>,
    #[serde(default)]
    tenant: BTreeMap<Spanned<String>, TenantTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PlaceTable {
    address: Spanned<String>,
    port: Option<Spanned<i64>>,
    #[serde(default)]
    tenant: BTreeMap<Spanned<String>, TenantTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantTable {
    network: Option<Spanned<String>>,
    vip: Spanned<String>,
    blocks: Spanned<Vec<i64>>,
}

pub(super) fn endpoint(
    address: &Spanned<String>,
    port: Option<&Spanned<i64>>,
) -> Checked<Endpoint> {
    let port = number(port, "port", 1, 0xffff)?.map_or(ROCE_PORT, |n| n as u16);
    endpoint_of(address.get_ref(), port).map_or_else(
        || wrong!(address, "address '{}': one that an interface has", address.get_ref()),
        Ok,
    )
}

/// The endpoint of a text and a port; `None`: no host can have it.
fn endpoint_of(address: &str, port: u16) -> Option<Endpoint> {
    let ip = match address.parse() {
        Ok(IpAddr::V4(ip)) => Some(ip.to_ipv6_mapped()),
        Ok(IpAddr::V6(ip)) => Some(ip).filter(|ip| ip.to_ipv4_mapped().is_none()),
        Err(_) => None,
    };
    let at = ip.map(|ip| Endpoint::new(ip.octets(), 0, port));
    at.filter(|at| at.port != 0 && at.is_unicast() && !is_link_local(&at.ip))
}

/// Reads `[host]`. The map must have the host with the same address.
pub(super) fn host(table: &HostTable, map: &Map, path: PathBuf) -> Checked<Host> {
    if let Some(at) = &table.feed {
        return wrong(at, "feed: with `map = \"feed\"` alone");
    }
    if let Some((name, _)) = in_order(&table.tenant).first() {
        return wrong(name, "[host.tenant]: with `map = \"feed\"` alone; else the map has them");
    }
    check_name(&table.id)?;
    let at = endpoint(&table.address, table.port.as_ref())?;
    let id = table.id.get_ref().clone();
    match map.hosts.get(&id) {
        None => wrong!(&table.id, "id '{id}': the map has no host of that name"),
        Some(other) if *other != at => {
            wrong!(&table.address, "address {at}: the map has {other} for this host")
        }
        Some(_) => Ok(Host { id, at, map: Source::File(path) }),
    }
}

/// Reads `[host]` for a map that an adapter brings by `socket`. The map has only this host.
pub(super) fn fed(table: &HostTable, socket: Option<PathBuf>) -> Checked<(Host, Map)> {
    let Some(socket) = socket else {
        return wrong(&table.map, "map \"feed\": `feed` names no socket");
    };
    let mut map = Map::default();
    map.add(&table.id, &table.address, table.port.as_ref(), &table.tenant)?;
    let id = table.id.get_ref().clone();
    let at = map.hosts.get(&id).copied().unwrap_or_default();
    Ok((Host { id, at, map: Source::Feed(socket) }, map))
}

/// Gives this host's tenants their addresses and blocks from the map. No tenant here may have an
/// address that another host's tenant has.
pub(super) fn place(at: &Spanned<String>, id: &str, map: &Map, all: &mut [Tenant]) -> Checked<()> {
    let (own, others): (Vec<_>, Vec<_>) = map.tenants.iter().partition(|p| *p.host == *id);
    for p in own {
        let name = &p.tenant;
        let Some(tenant) = all.iter_mut().find(|t| t.name == *name) else {
            return wrong!(at, "map: tenant '{name}' of host '{id}' is not in this file");
        };
        if *tenant.network != *p.network {
            let (here, there) = (&tenant.network, &p.network);
            return wrong!(
                at,
                "map: tenant '{name}' has network '{there}', and '{here}' in this file"
            );
        }
        if tenant.vip.is_some_and(|vip| vip != p.gid) {
            let vip = show(&p.gid);
            return wrong!(at, "map: tenant '{name}' has vip {vip}, and another one here");
        }
        (tenant.vip, tenant.place) = (Some(p.gid), Some(p.blocks.clone()));
    }
    let taken = |t: &Tenant| {
        others.iter().find(|p| *p.network == *t.network && t.vip == Some(p.gid)).copied()
    };
    match all.iter().find_map(|t| taken(t).map(|p| (t, p))) {
        Some((t, p)) => {
            let (vip, host) = (show(&p.gid), &p.host);
            wrong!(at, "map: vip {vip} of tenant '{}' is one of host '{host}'", t.name)
        }
        None => Ok(()),
    }
}

impl Map {
    /// Reads the file of a map.
    ///
    /// # Errors
    /// The first thing that is wrong with it, and where.
    pub fn parse(text: &str) -> Result<Map, Fault> {
        type File = BTreeMap<Spanned<String>, PlaceTable>;
        let file: File = read_toml(text)?;
        let mut map = Map::default();
        in_order(&file)
            .into_iter()
            .try_for_each(|(id, t)| map.add(id, &t.address, t.port.as_ref(), &t.tenant))
            .map_err(|Wrong(at, what)| fault(text, at, what))?;
        Ok(map)
    }

    /// The UDP ports of the hosts.
    pub fn ports(&self) -> BTreeSet<u16> {
        self.hosts.values().map(|at| at.port).collect()
    }

    fn add(
        &mut self,
        id: &Spanned<String>,
        address: &Spanned<String>,
        port: Option<&Spanned<i64>>,
        tenants: &BTreeMap<Spanned<String>, TenantTable>,
    ) -> Checked<()> {
        check_name(id)?;
        let at = endpoint(address, port)?;
        if let Some((other, _)) = self.hosts.iter().find(|(_, e)| e.same_host(&at)) {
            return wrong!(address, "address {at}: host '{other}' has it");
        }
        if self.hosts.len() == HOSTS_MAX {
            return wrong!(id, "more than {HOSTS_MAX} hosts");
        }
        self.hosts.insert(id.get_ref().clone(), at);
        for (name, tenant) in in_order(tenants) {
            let placed = placed(id.get_ref(), at, name, tenant)?;
            self.clash(&placed, tenant)?;
            if self.tenants.len() == TENANTS_MAX {
                return wrong!(name, "more than {TENANTS_MAX} tenants");
            }
            self.tenants.push(placed);
        }
        Ok(())
    }

    /// Checks that each address has one place, and each block of a host one tenant.
    fn clash(&self, p: &Placed, table: &TenantTable) -> Checked<()> {
        let same = |o: &&Placed| o.network == p.network && o.gid == p.gid;
        if let Some(o) = self.tenants.iter().find(same) {
            let (tenant, host) = (&o.tenant, &o.host);
            return wrong!(
                &table.vip,
                "vip {}: tenant '{tenant}' of host '{host}' has it",
                show(&p.gid)
            );
        }
        let both = |o: &&Placed| {
            o.host == p.host && o.blocks.start < p.blocks.end && p.blocks.start < o.blocks.end
        };
        match self.tenants.iter().find(both) {
            Some(o) => wrong!(
                &table.blocks,
                "blocks {} to {}: tenant '{}' has {} to {} of the same host",
                p.blocks.start,
                p.blocks.end - 1,
                o.tenant,
                o.blocks.start,
                o.blocks.end - 1
            ),
            None => Ok(()),
        }
    }
}

fn placed(
    host: &str,
    at: Endpoint,
    name: &Spanned<String>,
    table: &TenantTable,
) -> Checked<Placed> {
    check_name(name)?;
    if let Some(network) = &table.network {
        check_name(network)?;
    }
    let blocks = match table.blocks.get_ref()[..] {
        [first, n] => blocks_of(first, n),
        _ => None,
    };
    let Some(blocks) = blocks else { return wrong(&table.blocks, NO_BLOCKS) };
    Ok(Placed {
        host: host.into(),
        at,
        tenant: name.get_ref().clone(),
        network: table.network.as_ref().map_or(DEFAULT_NETWORK, |n| n.get_ref()).into(),
        gid: vip(&table.vip)?,
        blocks,
    })
}

/// The range of `n` blocks from `first` on; `None`: a host cannot have them.
fn blocks_of(first: i64, n: i64) -> Option<Range<u32>> {
    let own = i64::from(BLOCKS.start)..i64::from(BLOCKS.end);
    let fits = n > 0 && own.contains(&first) && n <= own.end - first;
    fits.then(|| first as u32..(first + n) as u32)
}

const NO_BLOCKS: &str = "blocks: [first, count], within 1 to 1015";

impl Placed {
    /// Checks a tenant of an adapter: texts, and blocks as the first and their number.
    ///
    /// # Errors
    /// In words: which value is not valid.
    pub fn checked(
        (host, address, port): (&str, &str, u16),
        tenant: &str,
        network: &str,
        vip: &str,
        blocks: (u32, u32),
    ) -> Result<Placed, String> {
        [host, tenant, network].into_iter().try_for_each(check_name_text)?;
        let at = endpoint_of(address, port)
            .ok_or_else(|| format!("address '{address}', port {port}: what an interface has"))?;
        let gid =
            address::parse(vip).ok_or_else(|| format!("vip '{vip}': an address of a tenant"))?;
        let blocks = blocks_of(blocks.0.into(), blocks.1.into()).ok_or(NO_BLOCKS)?;
        Ok(Placed {
            host: host.into(),
            at,
            tenant: tenant.into(),
            network: network.into(),
            gid,
            blocks,
        })
    }
}

#[cfg(test)]
mod tests;
