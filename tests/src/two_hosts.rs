//! Two hosts with a router each, linked by an Ethernet, and four containers without a network: two
//! tenants on each host.

use crate::lab::Lab;
use crate::patience;
use crate::rdmacm;
use crate::router::{contained, number, Router};
use crate::tools::{find, Done, Running};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::shm::relay::Relay;
use gdrcore_net::via::find::SocketPath;
use gdrcore_net::via::session::Session;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Time limit of a tool.
const LIMIT: Duration = Duration::from_secs(120);

/// The hosts' addresses.
pub const HOSTS: [&str; 2] = ["192.0.2.1", "192.0.2.2"];
/// An address of the first host's network that belongs to no host.
pub const STRANGER: &str = "192.0.2.9";
/// The tenants: name, host, address, first block. The last is of a network of its own, and has no
/// container.
pub const TENANTS: [(&str, usize, &str, u32); 5] = [
    ("blue", 0, "10.99.0.1", 1),
    ("red", 0, "10.99.0.2", 301),
    ("green", 1, "10.99.0.3", 1),
    ("gold", 1, "10.99.0.4", 301),
    ("iron", 1, "10.99.0.1", 601),
];
/// Blocks of each tenant: a block rests for a minute after its process has ended.
pub const BLOCKS: u32 = 300;
/// Index of the first container: they follow the hosts.
const FIRST: usize = 2;
const CONTAINERS: usize = 4;

/// The line that gives a tenant its network.
fn network(name: &str) -> &'static str {
    match name {
        "iron" => "network = \"other\"\n",
        _ => "",
    }
}

/// The whole set-up; dropping it ends everything.
pub struct TwoHosts {
    /// The routers; dropped before the namespaces.
    pub routers: [Router; 2],
    /// Hosts 0 and 1, then the containers.
    pub lab: Lab,
}

/// The map.
pub fn map() -> String {
    let mut text = String::new();
    for (host, address) in HOSTS.iter().enumerate() {
        text += &format!("[h{host}]\naddress = \"{address}\"\n");
        for (name, _, vip, block) in TENANTS.iter().filter(|t| t.1 == host) {
            let network = network(name);
            text += &format!(
                "[h{host}.tenant.{name}]\n{network}vip = \"{vip}\"\nblocks = [{block}, {BLOCKS}]\n"
            );
        }
    }
    text
}

/// The policy of a host; `more` adds lines to tenants, by name.
pub fn policy(host: usize, more: &[(&str, &str)]) -> String {
    let address = HOSTS[host];
    let mut text =
        format!("[host]\nid = \"h{host}\"\naddress = \"{address}\"\nmap = \"DIR/map\"\n");
    text += "[network.other]\n";
    for (name, ..) in TENANTS.iter().filter(|t| t.1 == host) {
        text += &format!("[tenant.{name}]\nlisten = \"DIR/{name}\"\n{}", network(name));
        let of = more.iter().filter(|(whose, _)| whose == name);
        of.for_each(|(_, line)| text += &format!("{line}\n"));
    }
    text
}

impl TwoHosts {
    /// Makes the set-up; `more` adds lines to tenants, by name. The error names what this machine
    /// lacks.
    pub fn new(more: &[(&str, &str)]) -> Result<TwoHosts, String> {
        let lab = Lab::new(FIRST + CONTAINERS)?;
        let with = |host: usize| format!("{}/24", HOSTS[host]);
        let stranger = format!("{STRANGER}/24");
        lab.link((0, "w0", &[&with(0), &stranger]), (1, "w1", &[&with(1)]))?;
        let start = |host| Router::start_on(&lab, host, &policy(host, more), &[("map", &map())]);
        let routers = [start(0), start(1)];
        Ok(TwoHosts { routers, lab })
    }

    /// The index of the tenant of this name.
    fn number(name: &str) -> usize {
        TENANTS.iter().position(|t| t.0 == name).unwrap_or_else(|| panic!("no tenant {name}"))
    }

    /// The address of a tenant.
    pub fn vip(name: &str) -> &'static str {
        TENANTS[TwoHosts::number(name)].2
    }

    /// The same as a GID.
    pub fn gid(name: &str) -> [u8; 16] {
        let ip: std::net::Ipv4Addr = TwoHosts::vip(name).parse().expect("an address");
        ip.to_ipv6_mapped().octets()
    }

    /// A session with a tenant's router, held by this process.
    pub fn session(&self, name: &str) -> (Session, Relay) {
        let at = self.router_of(name).socket(name);
        let at = SocketPath::new(at.as_os_str().as_bytes()).expect("a path");
        let (session, relay) = Session::open(&at, QPN_UNIT).expect("a session");
        (session, relay.expect("rings"))
    }

    /// The router of a tenant.
    pub fn router_of(&self, name: &str) -> &Router {
        &self.routers[TENANTS[TwoHosts::number(name)].1]
    }

    /// A program in a tenant's container, on the drop-in.
    pub fn command(&self, tenant: &str, program: &Path) -> Command {
        let socket = self.router_of(tenant).socket(tenant);
        contained(&self.lab, FIRST + TwoHosts::number(tenant), program, Some(&socket))
    }

    /// A program of librdmacm in a tenant's container; `None`: it is not installed.
    pub fn cm(&self, tenant: &str, words: &str) -> Option<Command> {
        let mut words = words.split_whitespace();
        let program = find(words.next()?)?;
        let mut c = self.command(tenant, &rdmacm::launcher());
        c.arg(program).args(words);
        Some(c)
    }

    /// Runs both sides of a program of librdmacm until they have ended; `{S}` stands for the
    /// server's address. `None`: the program is not installed.
    pub fn run(&self, sides: [&str; 2], tenants: [&str; 2]) -> Option<[Done; 2]> {
        let began = std::time::Instant::now();
        let words = sides.map(|side| side.replace("{S}", TwoHosts::vip(tenants[0])));
        let mut server = Running::start(&mut self.cm(tenants[0], &words[0])?);
        self.wait_for_listener(tenants[0], &mut server);
        let client = Running::start(&mut self.cm(tenants[1], &words[1])?).finish(LIMIT);
        let server = server.finish(LIMIT);
        println!("{tenants:?}: {}: {:?}", words[1], began.elapsed());
        Some([server, client])
    }

    /// Waits until a program of a tenant listens.
    pub fn wait_for_listener(&self, tenant: &str, server: &mut Running) {
        let own = format!("\"tenant\":\"{tenant}\"");
        let listens = |s: &String| s.contains(&own) && s.contains("\"listens\":1");
        patience::wait_for(60, "the server does not listen", || {
            self.router_of(tenant).sessions().iter().any(listens) || !server.is_running()
        });
    }

    /// A counter of a host's router for packets between hosts, by name.
    pub fn wire(&self, host: usize, name: &str) -> u64 {
        let done = self.routers[host].ask("status");
        assert!(done.ok(), "{}", done.output);
        let (_, wire) = done.output.split_once("\"wire\":").expect("a router with hosts");
        number(wire, name).unwrap_or_else(|| panic!("{name}: {wire}"))
    }
}

/// Checks that both sides succeeded.
pub fn succeeded(what: &str, sides: &[Done; 2], world: &TwoHosts) {
    let [server, client] = sides;
    assert!(
        server.ok() && client.ok(),
        "{what}\nserver {:?}:\n{}\nclient {:?}:\n{}\n{:?}\n{:?}\n{}\n{}",
        server.status,
        server.output,
        client.status,
        client.output,
        world.routers[0].sessions(),
        world.routers[1].sessions(),
        world.routers[0].ask("status").output,
        world.routers[1].ask("status").output,
    );
}
