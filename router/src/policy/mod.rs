//! The policy: networks, tenants, how the router identifies them, and which may talk to which.
//!
//! ```toml
//! [router]
//! listen = "/run/gdrcore/router.gdrc"    # for tenants that are told apart by `match`
//! admin = "/run/gdrcore/admin.sock"
//! pool = "10.99.0.0/16"                  # virtual addresses of tenants without `vip`
//! unmatched = "refuse"                   # or "uid": every other user is a tenant of its own
//! local = "auto"                         # direct links but where a limit needs the relay
//! line_rate = "40Gbit"                   # what the relay carries in all
//!
//! [network.prod]
//! pool = "fd99::/64"
//!
//! [tenant.blue]
//! listen = "/run/gdrcore/t/blue/tenant.gdrc"   # whoever can connect here is blue
//! vip = "10.99.0.2"
//! allow = ["red", "10.99.3.0/24"]
//! tx_rate = "1Gbit"
//! weight = 3
//!
//! [tenant.red]
//! # All that is named must be so.
//! match = { uid = 100000, cgroup = "/machine/red*", netns = "/run/netns/red" }
//! network = "prod"
//! ```
//!
//! With `[host]` there are other hosts: see `hosts`.
//!
//! The order of the tenants' tables counts: the first that matches wins. Unknown keys and invalid
//! values are errors, with line and column.

/// As [`checks::wrong`], with the arguments of `format!`.
macro_rules! wrong {
    ($at:expr, $($words:tt)+) => { crate::policy::checks::wrong($at, format!($($words)+)) };
}

mod address;
mod checks;
mod file;
mod hosts;
mod limits;
mod outside;
mod pattern;

pub use address::{gid_of, parse as parse_address, show, Cidr};
pub use file::{host_references, HostObject, HostReference};
pub use hosts::{Host, Map, Placed, Source, BLOCKS};
pub use limits::{burst_of, packet_burst_of, rate_limits, Limits};
pub use outside::{Outside, Published};
pub use pattern::Pattern;

use gdrcore_net::via::proto::Service;
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The network of tenants that name none.
pub const DEFAULT_NETWORK: &str = "default";

/// Quotas of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quotas {
    /// Sessions at a time; each process with an open device has one.
    pub sessions: u32,
    /// Blocks of 16,384 queue pair numbers.
    pub blocks: u32,
    /// Routes of a session.
    pub routes: u32,
    /// Ports of the connection manager at which a session listens.
    pub listens: u32,
    /// Route requests in a second, of a session.
    pub route_rate: u32,
}

impl Quotas {
    /// The quotas of a tenant for which the file sets none.
    pub const DEFAULT: Quotas =
        Quotas { sessions: 16, blocks: 16, routes: 1024, listens: 256, route_rate: 1000 };
}

/// An entry of an `allow` list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allow {
    /// A tenant of this name.
    Tenant(String),
    /// Tenants with an address of this range.
    Range(Cidr),
}

/// How the router identifies a tenant's processes. `None`: the fact is not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Its user, as the router sees it.
    pub uid: Option<u32>,
    /// A line of its `/proc/<pid>/cgroup`, without the two fields before the path.
    pub cgroup: Option<Pattern>,
    /// The file of its network namespace.
    pub netns: Option<PathBuf>,
}

impl Rules {
    /// Whether there are no rules.
    pub fn is_empty(&self) -> bool {
        *self == Rules::default()
    }
}

/// A tenant of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Its name.
    pub name: String,
    /// A socket of its own.
    pub listen: Option<PathBuf>,
    /// The rules that identify its processes.
    pub rules: Rules,
    /// The number by which FreeFlow's programs name it.
    pub ffr_id: Option<i32>,
    /// Its address; `None`: one of its network's pool.
    pub vip: Option<[u8; 16]>,
    /// Its network.
    pub network: String,
    /// The tenants to which it wants to talk; `None`: all of its network.
    pub allow: Option<Vec<Allow>>,
    /// Its quotas.
    pub quotas: Quotas,
    /// Its limits.
    pub limits: Limits,
    /// It may talk to plain endpoints, which see it at the host's address.
    pub outside: bool,
    /// Ports of the connection manager at which it answers there.
    pub publish: Vec<Service>,
    /// The router's device that executes its verbs; `None`: its engine is its own.
    pub device: Option<String>,
    /// Most bytes that a session of it registers on that device; `None`: by the device's kind.
    pub memory: Option<u64>,
    /// Its blocks of queue pair numbers, where other hosts know it by them; `None`: any others.
    pub place: Option<Range<u32>>,
}

/// A network: tenants of different ones never see each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// Addresses of tenants without one.
    pub pool: Cidr,
}

/// The treatment of a process that fits no tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmatched {
    /// It is refused.
    Refuse,
    /// Its user is a tenant, `uid-<n>`, of the default network.
    Uid,
}

/// The path of connected queue pairs within a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Local {
    /// By direct links, unless a tenant's limits need the relay.
    Auto,
    /// By direct links, to which no limit applies.
    Direct,
    /// By the relay.
    Relay,
}

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The socket for tenants without one of their own.
    pub listen: Option<PathBuf>,
    /// The socket of `gdrcore-routerctl`.
    pub admin: Option<PathBuf>,
    /// The file of the router's key; `None`: beside the socket of `gdrcore-routerctl`.
    pub key: Option<PathBuf>,
    /// The treatment of processes that fit no tenant.
    pub unmatched: Unmatched,
    /// The path of connected queue pairs.
    pub local: Local,
    /// Limit of the relay in bytes a second; `None`: none.
    pub line_rate: Option<u64>,
    /// The address of the metrics over HTTP; `None`: there are none.
    pub metrics: Option<SocketAddr>,
    /// The addresses that may ask there.
    pub metrics_from: Vec<Cidr>,
    /// This host; `None`: there are no others.
    pub host: Option<Host>,
    /// The map of hosts and tenants, this host among them.
    pub map: Map,
    /// The networks, the default one among them.
    pub networks: Vec<Network>,
    /// The tenants, in the order of the file.
    pub tenants: Vec<Tenant>,
    /// The router's device of tenants that the file does not name; those that it names have theirs.
    pub device: Option<String>,
    /// GPUs whose memory tenants of devices register, by PCI address.
    pub gpus: Vec<String>,
}

/// How a file's names are looked up.
#[derive(Clone, Copy)]
pub struct Lookup<'l> {
    /// Reads the map of hosts; an error is in words.
    pub map: &'l dyn Fn(&Path) -> Result<Map, String>,
    /// The number of a user's name; an error is in words.
    pub user: &'l dyn Fn(&str) -> Result<u32, String>,
}

impl<'l> Lookup<'l> {
    /// Of maps alone: a user's name is a fault.
    pub fn maps(map: &'l dyn Fn(&Path) -> Result<Map, String>) -> Lookup<'l> {
        Lookup { map, user: &|_| Err("not looked up here".into()) }
    }
}

/// A fault of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// From 1 on.
    pub line: usize,
    /// In characters, from 1 on.
    pub column: usize,
    /// In words.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}: {}", self.line, self.column, self.what)
    }
}

impl std::error::Error for Fault {}

impl Policy {
    /// Reads a file that names no other, and no user.
    ///
    /// # Errors
    /// The first fault, and its place; a `map` is a fault here, and the name of a user.
    pub fn parse(text: &str) -> Result<Policy, Fault> {
        let map = |file: &Path| Err(format!("'{}': not read here", file.display()));
        Policy::parse_with(text, Lookup::maps(&map))
    }

    /// Reads a file, and looks up what it names.
    ///
    /// # Errors
    /// The first fault, and its place. A fault in the map has the place where the file names the
    /// map.
    pub fn parse_with(text: &str, lookup: Lookup<'_>) -> Result<Policy, Fault> {
        file::parse(text, lookup)
    }

    /// The tenant of a name. With `unmatched = "uid"` also the tenant of a user.
    pub fn tenant(&self, name: &str) -> Option<Tenant> {
        let by_uid = || {
            let uid = name.strip_prefix("uid-")?.parse().ok()?;
            (self.unmatched == Unmatched::Uid && name == uid_name(uid))
                .then(|| self.tenant_of_uid(uid))
        };
        self.tenants.iter().find(|t| t.name == name).cloned().or_else(by_uid)
    }

    /// Whether two tenants' connected queue pairs go by the relay.
    pub fn relays(&self, a: &Tenant, b: &Tenant) -> bool {
        match self.local {
            Local::Auto => a.limits.need_relay() || b.limits.need_relay(),
            Local::Direct => false,
            Local::Relay => true,
        }
    }

    /// Gives tenants the rates of FreeFlow's environment ([`rate_limits`]); a `tx_rate` of the file
    /// has precedence.
    ///
    /// # Errors
    /// In words: no tenant has the number.
    pub fn limit_by_ffr_id(&mut self, limits: &[(i32, Option<u64>)]) -> Result<(), String> {
        for &(id, rate) in limits {
            let mut named = self.tenants.iter_mut().filter(|t| t.ffr_id == Some(id)).peekable();
            if named.peek().is_none() {
                return Err(format!("RATE_LIMIT_{id}: no tenant has ffr_id = {id}"));
            }
            named.for_each(|t| t.limits.tx_rate = t.limits.tx_rate.or(rate));
        }
        Ok(())
    }

    /// The devices that its tenants have, and may have.
    pub fn devices(&self) -> impl Iterator<Item = &String> {
        self.tenants.iter().filter_map(|t| t.device.as_ref()).chain(&self.device)
    }

    /// The tenant of a user that fits no other.
    pub fn tenant_of_uid(&self, uid: u32) -> Tenant {
        Tenant { device: self.device.clone(), ..tenant_of_uid(uid) }
    }

    /// The network of a name. Every tenant's network exists.
    pub fn network(&self, name: &str) -> Option<&Network> {
        self.networks.iter().find(|n| n.name == name)
    }
}

/// The name of the tenant of a user that fits no other.
pub fn uid_name(uid: u32) -> String {
    format!("uid-{uid}")
}

/// The same in a policy without devices.
pub fn tenant_of_uid(uid: u32) -> Tenant {
    Tenant {
        name: uid_name(uid),
        listen: None,
        rules: Rules { uid: Some(uid), ..Rules::default() },
        ffr_id: None,
        vip: None,
        network: DEFAULT_NETWORK.into(),
        allow: None,
        quotas: Quotas::DEFAULT,
        limits: Limits::NONE,
        outside: false,
        publish: Vec::new(),
        device: None,
        memory: None,
        place: None,
    }
}

/// Whether a tenant wants to talk to another one; to itself always.
pub fn wants(tenant: &Tenant, other: &str, gid: &[u8; 16]) -> bool {
    let named = |a: &Allow| match a {
        Allow::Tenant(name) => name == other,
        Allow::Range(range) => range.contains(gid),
    };
    tenant.name == other || tenant.allow.as_ref().is_none_or(|list| list.iter().any(named))
}

#[cfg(test)]
mod tests;
