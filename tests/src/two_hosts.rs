//! Two hosts with a router each, linked by an Ethernet, and four containers, two tenants on each
//! host. The containers have no network, or one of their own for the programs' TCP handshakes.

use crate::containers::{Containers, Inside, Maker};
use crate::dropin::{free_port, is_listened_at};
use crate::lab::Lab;
use crate::patience;
use crate::rdmacm;
use crate::router::{number, Router};
use crate::tools::{favoured, installed, Done, Running};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::shm::relay::Relay;
use gdrcore_net::via::find::SocketPath;
use gdrcore_net::via::session::Session;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
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

/// All pairs of containers, within the hosts and across. The first of a pair is the server.
pub const PAIRS: [[&str; 2]; 6] = [
    ["blue", "red"],
    ["gold", "green"],
    ["green", "blue"],
    ["red", "gold"],
    ["blue", "gold"],
    ["green", "red"],
];

/// Options of the set-up.
pub struct Setup<'a> {
    /// Further lines of the tenants' policies, by name.
    pub more: &'a [(&'a str, &'a str)],
    /// Containers have a network of their own, in which they have the addresses of the map.
    pub network: bool,
    /// The program that makes them.
    pub maker: Maker,
}

/// The whole set-up; dropping it ends everything.
pub struct TwoHosts {
    /// Dropped before the namespaces that it enters.
    containers: Containers,
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
        text +=
            &format!("[tenant.{name}]\nlisten = \"DIR/t/{name}/tenant.gdrc\"\n{}", network(name));
        let of = more.iter().filter(|(whose, _)| whose == name);
        of.for_each(|(_, line)| text += &format!("{line}\n"));
    }
    text
}

impl TwoHosts {
    /// Makes the set-up; `more` adds lines to tenants, by name. The error names what this machine
    /// lacks.
    pub fn new(more: &[(&str, &str)]) -> Result<TwoHosts, String> {
        TwoHosts::with(&Setup { more, network: false, maker: Maker::Namespaces })
    }

    /// The same, as it is wanted.
    pub fn with(setup: &Setup) -> Result<TwoHosts, String> {
        if let Some(lacks) = setup.maker.lacks() {
            return Err(lacks);
        }
        let lab = Lab::new(FIRST + CONTAINERS + usize::from(setup.network))?;
        let with = |host: usize| format!("{}/24", HOSTS[host]);
        let stranger = format!("{STRANGER}/24");
        lab.link((0, "w0", &[&with(0), &stranger]), (1, "w1", &[&with(1)]))?;
        if setup.network {
            join(&lab)?;
        }
        let start =
            |host| Router::start_on(&lab, host, &policy(host, setup.more), &[("map", &map())]);
        let routers = [start(0), start(1)];
        let containers = Containers::new(setup.maker, routers[0].dir().join("containers"));
        Ok(TwoHosts { containers, routers, lab })
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
        let at = self.socket(name);
        let at = SocketPath::new(at.as_os_str().as_bytes()).expect("a path");
        let (session, relay) = Session::open(&at, QPN_UNIT).expect("a session");
        (session, relay.expect("rings"))
    }

    /// The router of a tenant.
    pub fn router_of(&self, name: &str) -> &Router {
        &self.routers[TENANTS[TwoHosts::number(name)].1]
    }

    /// The socket of a tenant.
    fn socket(&self, name: &str) -> PathBuf {
        self.router_of(name).socket(&format!("t/{name}/tenant.gdrc"))
    }

    /// A program in a tenant's container, on the drop-in, and what more it finds in its environment
    /// and sees of the file system.
    pub fn command(
        &self,
        tenant: &str,
        words: &[String],
        environment: &[(&str, &str)],
        folders: &[&Path],
    ) -> Command {
        let (place, socket) = (FIRST + TwoHosts::number(tenant), self.socket(tenant));
        // What it says of a device that fails is the test's reason.
        let environment = &[&[("GDRC_VERBOSE", "1")], environment].concat();
        let inside = Inside { place, socket: &socket, words, environment, folders };
        favoured(&self.containers.command(&self.lab, &inside))
    }

    /// An installed program, with its arguments, in a tenant's container; an error: there is none.
    pub fn tool(
        &self,
        tenant: &str,
        words: &str,
        environment: &[(&str, &str)],
        folders: &[&Path],
    ) -> Result<Command, String> {
        let mut all: Vec<String> = words.split_whitespace().map(str::to_string).collect();
        if !all[0].starts_with('/') {
            all[0] = text(&installed(&all[0])?);
        }
        Ok(self.command(tenant, &all, environment, folders))
    }

    /// A program of librdmacm in a tenant's container; an error: it is not installed.
    pub fn cm(&self, tenant: &str, words: &str) -> Result<Command, String> {
        let (name, rest) = words.split_once(' ').unwrap_or((words, ""));
        let words =
            format!("{} {} {rest}", rdmacm::launcher().display(), installed(name)?.display());
        self.tool(tenant, &words, &[], &[])
    }

    /// Runs both sides of a program of librdmacm until they have ended; `{S}` stands for the
    /// server's address. An error: the program is not installed.
    pub fn run(&self, sides: [&str; 2], tenants: [&str; 2]) -> Result<[Done; 2], String> {
        let began = std::time::Instant::now();
        let words = sides.map(|side| side.replace("{S}", TwoHosts::vip(tenants[0])));
        // The session of a server that has just ended may still be there, with its listener.
        patience::wait_for(60, "the server before listens still", || !self.listens(tenants[0]));
        let mut server = Running::start(&mut self.cm(tenants[0], &words[0])?);
        self.wait_for_listener(tenants[0], &mut server);
        let client = Running::start(&mut self.cm(tenants[1], &words[1])?).finish(LIMIT);
        let server = server.finish(LIMIT);
        println!("{tenants:?}: {}: {:?}", words[1], began.elapsed());
        Ok([server, client])
    }

    /// The same of a program whose sides find each other by TCP at a port (`{P}`).
    pub fn run_by_tcp(
        &self,
        sides: [&str; 2],
        tenants: [&str; 2],
        environment: &[(&str, &str)],
        folders: &[&Path],
    ) -> Result<[Done; 2], String> {
        let began = std::time::Instant::now();
        let port = free_port();
        let side = |of: usize| {
            let words = sides[of].replace("{S}", TwoHosts::vip(tenants[0]));
            let words = words.replace("{P}", &port.to_string());
            self.tool(tenants[of], &words, environment, folders)
        };
        let mut server = Running::start(&mut side(0)?);
        let first = self.lab.first_process(FIRST + TwoHosts::number(tenants[0]));
        patience::wait_for(60, "the server does not listen", || {
            is_listened_at(port, first) || !server.still_runs()
        });
        let client = Running::start(&mut side(1)?).finish(LIMIT);
        let server = server.finish(LIMIT);
        println!("{tenants:?}: {}: {:?}", sides[1], began.elapsed());
        Ok([server, client])
    }

    /// Waits until a program of a tenant listens.
    pub fn wait_for_listener(&self, tenant: &str, server: &mut Running) {
        patience::wait_for(60, "the server does not listen", || {
            self.listens(tenant) || !server.still_runs()
        });
    }

    /// Whether a session of a tenant has a listener.
    fn listens(&self, tenant: &str) -> bool {
        let own = format!("\"tenant\":\"{tenant}\"");
        let listens = |s: &String| s.contains(&own) && s.contains("\"listens\":1");
        self.router_of(tenant).sessions().iter().any(listens)
    }

    /// A counter of a host's router for packets between hosts, by name.
    pub fn wire(&self, host: usize, name: &str) -> u64 {
        let done = self.routers[host].ask("status");
        assert!(done.ok(), "{done}");
        let (_, wire) = done.output.split_once("\"wire\":").expect("a router with hosts");
        number(wire, name).unwrap_or_else(|| panic!("{name}: {wire}"))
    }
}

/// Joins the containers by a network of their own.
fn join(lab: &Lab) -> Result<(), String> {
    let switch = FIRST + CONTAINERS;
    lab.admin(switch, &["link", "add", "br0", "type", "bridge"])?;
    lab.admin(switch, &["link", "set", "br0", "up"])?;
    for (k, (name, _, vip, _)) in TENANTS.iter().take(CONTAINERS).enumerate() {
        lab.link((switch, name, &[]), (FIRST + k, "eth0", &[&format!("{vip}/24")]))?;
        lab.admin(switch, &["link", "set", name, "master", "br0"])?;
    }
    Ok(())
}

/// A path of text.
fn text(path: &Path) -> String {
    path.to_str().expect("a path of text").into()
}

/// Checks that both sides of a command succeeded.
pub fn succeeded(what: &str, sides: &[Done; 2], world: &TwoHosts) {
    let [server, client] = sides;
    let tool = what.split(' ').next().unwrap_or_default();
    assert!(
        rdmacm::has_served(tool, server) && client.ok(),
        "{what}\nserver {server}\nclient {client}\n{:?}\n{:?}\n{}\n{}",
        world.routers[0].sessions(),
        world.routers[1].sessions(),
        world.routers[0].ask("status").output,
        world.routers[1].ask("status").output
    );
}
