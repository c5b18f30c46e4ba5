//! The TOML file: its tables, and their checks.

mod references;

pub use references::{host_references, HostObject, HostReference};

use super::address::Cidr;
use super::checks::{
    check_name, fault, in_order, number, one_of, range, read_toml, vip, wrong, Checked, Wrong,
};
use super::hosts::{self, HostTable};
use super::limits::{memory, rate, Amount};
use super::{
    outside, Allow, Fault, Limits, Local, Lookup, Map, Network, Pattern, Policy, Quotas, Rules,
    Tenant, Unmatched, DEFAULT_NETWORK,
};
use gdrcore_cuda::device::Bdf;
use gdrcore_net::addr::Endpoint;
use gdrcore_verbs::name::NicName;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use toml::Spanned;

/// The pool of addresses if the file names none.
const POOL: &str = "10.99.0.0/16";
/// The `device` of a tenant whose engine is its own, whatever that of `[router]` is.
const NO_DEVICE: &str = "none";
/// Who may read metrics at an address of this host alone, if the file does not say.
const LOOPBACK: [&str; 2] = ["127.0.0.0/8", "::1"];

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    router: Router,
    host: Option<HostTable>,
    #[serde(default)]
    network: BTreeMap<Spanned<String>, NetworkTable>,
    #[serde(default)]
    tenant: BTreeMap<Spanned<String>, TenantTable>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Router {
    listen: Option<Spanned<String>>,
    admin: Option<Spanned<String>>,
    key: Option<Spanned<String>>,
    pool: Option<Spanned<String>>,
    unmatched: Option<Spanned<String>>,
    local: Option<Spanned<String>>,
    line_rate: Option<Spanned<Amount>>,
    metrics: Option<Spanned<String>>,
    metrics_from: Option<Spanned<Vec<Spanned<String>>>>,
    device: Option<Spanned<String>>,
    #[serde(default)]
    gpus: Vec<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NetworkTable {
    pool: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TenantTable {
    listen: Option<Spanned<String>>,
    #[serde(rename = "match")]
    rules: Option<RulesTable>,
    ffr_id: Option<Spanned<i64>>,
    vip: Option<Spanned<String>>,
    network: Option<Spanned<String>>,
    allow: Option<Vec<Spanned<String>>>,
    sessions: Option<Spanned<i64>>,
    blocks: Option<Spanned<i64>>,
    routes: Option<Spanned<i64>>,
    listens: Option<Spanned<i64>>,
    route_rate: Option<Spanned<i64>>,
    tx_rate: Option<Spanned<Amount>>,
    rx_rate: Option<Spanned<Amount>>,
    tx_pps: Option<Spanned<Amount>>,
    burst: Option<Spanned<Amount>>,
    weight: Option<Spanned<Amount>>,
    metered: Option<bool>,
    outside: Option<Spanned<bool>>,
    publish: Option<Vec<outside::PublishTable>>,
    device: Option<Spanned<String>>,
    memory: Option<Spanned<Amount>>,
}

impl TenantTable {
    /// The first key that has no meaning beside `device`.
    fn key_of_switch_mode(&self) -> Option<&'static str> {
        let keys = [
            ("vip", self.vip.is_some()),
            ("network", self.network.is_some()),
            ("blocks", self.blocks.is_some()),
            ("routes", self.routes.is_some()),
            ("listens", self.listens.is_some()),
            ("route_rate", self.route_rate.is_some()),
            ("rx_rate", self.rx_rate.is_some()),
            ("tx_pps", self.tx_pps.is_some()),
            ("metered", self.metered.is_some()),
            ("outside", self.outside.is_some()),
            ("publish", self.publish.is_some()),
        ];
        keys.into_iter().find(|(_, is_there)| *is_there).map(|(key, _)| key)
    }

    fn published(&self) -> &[outside::PublishTable] {
        self.publish.as_deref().unwrap_or_default()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesTable {
    uid: Option<Spanned<Amount>>,
    cgroup: Option<String>,
    netns: Option<Spanned<String>>,
}

/// Reads the file. See [`Policy::parse`].
pub(super) fn parse(text: &str, lookup: Lookup<'_>) -> Result<Policy, Fault> {
    let file: File = read_toml(text)?;
    check(&file, lookup).map_err(|Wrong(at, what)| fault(text, at, what))
}

fn check(file: &File, lookup: Lookup<'_>) -> Checked<Policy> {
    let networks = networks(file)?;
    let mut tenants: Vec<Tenant> = Vec::new();
    for (name, table) in in_order(&file.tenant) {
        let tenant = tenant(name, table, file, &networks, lookup)?;
        clash(&tenants, &tenant, table)?;
        tenants.push(tenant);
    }
    let (host, map) = host(file, lookup, &mut tenants)?;
    let tables = file.tenant.values().map(|t| (t.outside.as_ref(), t.published()));
    outside::check(tables, host.as_ref())?;
    let feed = host.as_ref().and_then(hosts::Host::feed).map(PathBuf::from);
    // If an adapter brings the map, other hosts' tenants are still unknown.
    if feed.is_none() {
        allow_lists(file, &tenants, &map)?;
    }
    let router = &file.router;
    let words = [("refuse", Unmatched::Refuse), ("uid", Unmatched::Uid)];
    let unmatched = one_of(router.unmatched.as_ref(), "unmatched", Unmatched::Refuse, &words)?;
    let words = [("auto", Local::Auto), ("direct", Local::Direct), ("relay", Local::Relay)];
    let local = one_of(router.local.as_ref(), "local", Local::Auto, &words)?;
    let line_rate = router.line_rate.as_ref();
    let line_rate =
        line_rate.map(|at| rate("line_rate", &at.get_ref().0).or_else(|what| wrong(at, what)));
    let line_rate = line_rate.transpose()?;
    let (metrics, metrics_from) = metrics(router)?;
    router.device.as_ref().map(device_object).transpose()?;
    let device = router.device.as_ref().map(|at| at.get_ref().clone());
    let gpus = router.gpus.iter().map(gpu).collect::<Checked<_>>()?;
    let [listen, admin, key] = paths(file, &tenants, unmatched, &feed)?;
    #[rustfmt::skip]
    let policy = Policy {
        listen, admin, key, unmatched, local, line_rate, metrics, metrics_from, host, map, networks,
        tenants, device, gpus,
    };
    Ok(policy)
}

/// The paths of `[router]`: `listen`, `admin` and `key`. Each socket has one use, and each tenant
/// one by which it comes.
fn paths(
    file: &File,
    tenants: &[Tenant],
    unmatched: Unmatched,
    feed: &Option<PathBuf>,
) -> Checked<[Option<PathBuf>; 3]> {
    let listen = socket_path(file.router.listen.as_ref())?;
    let by_rules = tenants.iter().any(|t| t.listen.is_none());
    if listen.is_none() && (by_rules || unmatched == Unmatched::Uid) {
        let at = file
            .tenant
            .keys()
            .find(|name| tenants.iter().any(|t| t.listen.is_none() && t.name == *name.get_ref()));
        let what =
            "[router] has no `listen`, so tenants without a `listen` of their own can't be reached";
        return Err(Wrong(at.map_or(0, |name| name.span().start), what.into()));
    }
    let admin = socket_path(file.router.admin.as_ref())?;
    let key = file_path(file.router.key.as_ref())?;
    let sockets = [&listen, &admin, &key, feed];
    let taken = |path: &Option<PathBuf>| path.is_some() && sockets.contains(&path);
    if let Some(at) = file
        .tenant
        .values()
        .filter_map(|t| t.listen.as_ref())
        .find(|at| taken(&Some(at.get_ref().into())))
    {
        return wrong!(at, "listen '{}': [router] has it", at.get_ref());
    }
    if let (Some(at), true) = (&file.router.admin, listen == admin) {
        return wrong!(at, "admin '{}': `listen` is the same", at.get_ref());
    }
    let is_taken = feed.is_some() && (*feed == listen || *feed == admin);
    let feed = file.host.as_ref().and_then(|host| host.feed.as_ref());
    if let Some(at) = feed.filter(|_| is_taken) {
        return wrong!(at, "feed '{}': [router] has it", at.get_ref());
    }
    Ok([listen, admin, key])
}

/// `[host]` and the map, if there are other hosts.
fn host(
    file: &File,
    lookup: Lookup<'_>,
    tenants: &mut [Tenant],
) -> Checked<(Option<hosts::Host>, Map)> {
    let Some(table) = &file.host else { return Ok((None, Map::default())) };
    let at = &table.map;
    if at.get_ref() == "feed" {
        let (host, map) = hosts::fed(table, socket_path(table.feed.as_ref())?)?;
        hosts::place(at, &host.id, &map, tenants)?;
        return Ok((Some(host), map));
    }
    let Some(of_map) = file_path(Some(at))? else { return Ok((None, Map::default())) };
    let map = (lookup.map)(&of_map).or_else(|what| wrong!(at, "map {what}"))?;
    let host = hosts::host(table, &map, of_map)?;
    hosts::place(at, &host.id, &map, tenants)?;
    Ok((Some(host), map))
}

/// A GPU by its PCI address.
fn gpu(at: &Spanned<String>) -> Checked<String> {
    match Bdf::parse(at.get_ref()) {
        Some(_) => Ok(at.get_ref().clone()),
        None => wrong!(at, "gpus '{}': a PCI address, such as b7:00.0", at.get_ref()),
    }
}

/// The address of the metrics, and who may ask there: if other hosts reach the address, the file
/// has to say who.
fn metrics(router: &Router) -> Checked<(Option<SocketAddr>, Vec<Cidr>)> {
    let Some(at) = &router.metrics else {
        return match &router.metrics_from {
            Some(from) => wrong(from, "metrics_from: there is no `metrics`"),
            None => Ok((None, Vec::new())),
        };
    };
    let text = at.get_ref();
    let Some(address) = text.parse().ok().filter(|a: &SocketAddr| a.port() > 0) else {
        return wrong!(at, "metrics '{text}': ADDRESS:PORT, such as 127.0.0.1:9100 or [::]:9100");
    };
    let from = match &router.metrics_from {
        Some(list) => {
            list.get_ref().iter().map(|at| range(at, "metrics_from")).collect::<Checked<_>>()?
        }
        None if address.ip().is_loopback() => {
            LOOPBACK.iter().filter_map(|text| Cidr::parse(text)).collect()
        }
        None => {
            return wrong!(
                at,
                "metrics '{text}': other hosts reach it, and `metrics_from` does not say which of \
                 them may ask"
            )
        }
    };
    Ok((Some(address), from))
}

/// A user: a number, or a name that is looked up.
fn uid(at: &Spanned<Amount>, lookup: Lookup<'_>) -> Checked<u32> {
    let text = &at.get_ref().0;
    match text.parse::<i64>() {
        Ok(n) => match u32::try_from(n) {
            Ok(uid) if uid < u32::MAX => Ok(uid),
            _ => wrong!(at, "uid {text}: from 0 to {}", u32::MAX - 1),
        },
        Err(_) => (lookup.user)(text).or_else(|why| wrong!(at, "uid '{text}': {why}")),
    }
}

fn networks(file: &File) -> Checked<Vec<Network>> {
    let pool = |at: Option<&Spanned<String>>, default: Cidr| {
        at.map_or(Ok(default), |at| range(at, "pool"))
    };
    let ours = Cidr::parse(POOL).unwrap_or_else(|| unreachable!("a constant of this file"));
    let default = pool(file.router.pool.as_ref(), ours)?;
    let mut networks = Vec::new();
    for (name, table) in &file.network {
        check_name(name)?;
        networks.push(Network {
            name: name.get_ref().clone(),
            pool: pool(table.pool.as_ref(), default)?,
        });
    }
    if !networks.iter().any(|n| n.name == DEFAULT_NETWORK) {
        networks.push(Network { name: DEFAULT_NETWORK.into(), pool: default });
    }
    Ok(networks)
}

fn tenant(
    name: &Spanned<String>,
    table: &TenantTable,
    file: &File,
    networks: &[Network],
    lookup: Lookup<'_>,
) -> Checked<Tenant> {
    check_name(name)?;
    if name.get_ref().starts_with("uid-") {
        return wrong!(
            name,
            "tenant '{}': names that begin with uid- are those of `unmatched = \"uid\"`",
            name.get_ref()
        );
    }
    let listen = socket_path(table.listen.as_ref())?;
    let rules = match &table.rules {
        None => Rules::default(),
        Some(r) => Rules {
            uid: r.uid.as_ref().map(|at| uid(at, lookup)).transpose()?,
            cgroup: r.cgroup.as_deref().map(Pattern::new),
            netns: file_path(r.netns.as_ref())?,
        },
    };
    if listen.is_none() && rules.is_empty() {
        return wrong!(
            name,
            "tenant '{}': neither `listen` nor `match` says who it is",
            name.get_ref()
        );
    }
    let network = table.network.as_ref().map_or(DEFAULT_NETWORK, |n| n.get_ref());
    if let Some(at) = table.network.as_ref().filter(|_| !networks.iter().any(|n| n.name == network))
    {
        return wrong!(at, "network '{network}': there is no [network.{network}]");
    }
    let quota = |at: &Option<Spanned<i64>>, name: &str, default: u32, most: i64| {
        number(at.as_ref(), name, 1, most).map(|n| n.map_or(default, |n| n as u32))
    };
    let d = Quotas::DEFAULT;
    Ok(Tenant {
        name: name.get_ref().clone(),
        listen,
        rules,
        ffr_id: number(table.ffr_id.as_ref(), "ffr_id", 0, i64::from(i32::MAX))?.map(|n| n as i32),
        vip: table.vip.as_ref().map(vip).transpose()?,
        network: network.into(),
        allow: table.allow.as_ref().map(|list| list.iter().map(|a| allow(a.get_ref())).collect()),
        quotas: Quotas {
            sessions: quota(&table.sessions, "sessions", d.sessions, 1015)?,
            blocks: quota(&table.blocks, "blocks", d.blocks, 1015)?,
            routes: quota(&table.routes, "routes", d.routes, 1 << 16)?,
            listens: quota(&table.listens, "listens", d.listens, 1 << 16)?,
            route_rate: quota(&table.route_rate, "route_rate", d.route_rate, 1_000_000)?,
        },
        limits: limits(table)?,
        outside: table.outside.as_ref().is_some_and(|at| *at.get_ref()),
        publish: outside::published(table.published())?,
        device: device_of(name, table, file.router.device.as_ref())?,
        memory: memory_of(table, file.router.device.as_ref())?,
        place: None,
    })
}

/// The object of this host that a device of the router names.
fn device_object(at: &Spanned<String>) -> Checked<HostObject> {
    let name = at.get_ref();
    Ok(match name.strip_prefix("soft:").map(Endpoint::parse) {
        Some(Ok(endpoint)) => HostObject::Device(endpoint),
        Some(Err(_)) => return wrong!(at, "device '{name}': no address that a host can have"),
        None if NicName::parse(name).is_ok() => HostObject::Nic(name.clone()),
        None => {
            return wrong!(
                at,
                "device '{name}': \"soft:ADDRESS[:PORT]\", or a NIC: \"verbs:NAME[:PORT[:GID]]\""
            )
        }
    })
}

/// The router's device of a tenant. `default`: that of tenants whose tables name none.
fn device_of(
    tenant: &Spanned<String>,
    table: &TenantTable,
    default: Option<&Spanned<String>>,
) -> Checked<Option<String>> {
    let Some(at) = table.device.as_ref().or(default).filter(|at| at.get_ref() != NO_DEVICE) else {
        return Ok(None);
    };
    device_object(at)?;
    let name = at.get_ref();
    match (table.key_of_switch_mode(), &table.device) {
        (None, _) => Ok(Some(name.clone())),
        (Some(key), Some(at)) => wrong!(at, "device '{name}': `{key}` has no meaning beside it"),
        (Some(key), None) => wrong!(
            tenant,
            "tenant '{}': `{key}` has no meaning beside the `device` of [router]; device = \
             \"{NO_DEVICE}\" is without it",
            tenant.get_ref()
        ),
    }
}

/// The memory that a tenant may register, if it has a device of the router.
fn memory_of(table: &TenantTable, default: Option<&Spanned<String>>) -> Checked<Option<u64>> {
    let Some(at) = &table.memory else { return Ok(None) };
    let device = table.device.as_ref().or(default);
    if device.is_none_or(|at| at.get_ref() == NO_DEVICE) {
        return wrong!(at, "memory: it has a meaning beside a `device` alone");
    }
    memory(&at.get_ref().0).map(Some).or_else(|what| wrong(at, what))
}

fn limits(table: &TenantTable) -> Checked<Limits> {
    let mut limits = Limits { metered: table.metered.unwrap_or(false), ..Limits::NONE };
    for (key, at) in [
        ("tx_rate", &table.tx_rate),
        ("rx_rate", &table.rx_rate),
        ("tx_pps", &table.tx_pps),
        ("burst", &table.burst),
        ("weight", &table.weight),
    ] {
        let Some(at) = at else { continue };
        limits.set(key, &at.get_ref().0).or_else(|what| wrong(at, what))?;
    }
    Ok(limits)
}

fn allow(text: &str) -> Allow {
    Cidr::parse(text).map_or_else(|| Allow::Tenant(text.into()), Allow::Range)
}

/// Every tenant in an `allow` list must exist: a misspelt name would silently forbid the talk.
fn allow_lists(file: &File, tenants: &[Tenant], map: &Map) -> Checked<()> {
    let here = tenants.iter().map(|t| t.name.as_str());
    let names: BTreeSet<&str> = here.chain(map.tenants.iter().map(|p| p.tenant.as_str())).collect();
    for at in file.tenant.values().filter_map(|t| t.allow.as_ref()).flatten() {
        let name = at.get_ref().as_str();
        let is_uid = name.strip_prefix("uid-").is_some_and(|n| n.parse::<u32>().is_ok());
        if matches!(allow(name), Allow::Tenant(_)) && !names.contains(name) && !is_uid {
            return wrong!(
                at,
                "allow '{name}': neither a tenant of this file or of the map of hosts nor a \
                     range of addresses"
            );
        }
    }
    Ok(())
}

/// Two tenants cannot have the same address in one network, nor the same socket.
fn clash(others: &[Tenant], tenant: &Tenant, table: &TenantTable) -> Checked<()> {
    let same_vip =
        |o: &&Tenant| o.vip.is_some() && o.vip == tenant.vip && o.network == tenant.network;
    if let (Some(other), Some(at)) = (others.iter().find(same_vip), &table.vip) {
        return wrong!(
            at,
            "vip '{}': tenant '{}' has it in the same network",
            at.get_ref(),
            other.name
        );
    }
    let same_socket = |o: &&Tenant| o.listen.is_some() && o.listen == tenant.listen;
    if let (Some(other), Some(at)) = (others.iter().find(same_socket), &table.listen) {
        return wrong!(at, "listen '{}': tenant '{}' has it", at.get_ref(), other.name);
    }
    Ok(())
}

/// The absolute path of a socket that the router makes.
fn socket_path(at: Option<&Spanned<String>>) -> Checked<Option<PathBuf>> {
    match at {
        Some(at) if at.get_ref().len() > 100 => {
            wrong!(at, "path '{}': a socket's has at most 100 bytes here", at.get_ref())
        }
        _ => file_path(at),
    }
}

/// The absolute path of a file.
fn file_path(at: Option<&Spanned<String>>) -> Checked<Option<PathBuf>> {
    let Some(at) = at else { return Ok(None) };
    let text = at.get_ref();
    if !text.starts_with('/') || text.contains('\0') || text.ends_with('/') {
        return wrong!(at, "path '{text}': an absolute one of a file");
    }
    Ok(Some(PathBuf::from(text)))
}
