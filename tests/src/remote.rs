//! Tenants whose verbs the router executes on a device of its own.

use crate::ends::{connected, succeed, Op, Shape};
use crate::patience::wait_for;
use crate::rdmacm;
use crate::router::{number, Router};
use crate::soft::address;
use crate::tools::{find, run, Running};
use gdrcore_net::remote::client::RemoteDevice;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The tables of a policy: tenants, each with its device.
pub fn tenants<const N: usize>(all: [(&str, &str); N]) -> String {
    let table = |(name, device)| {
        format!("[tenant.{name}]\nlisten = \"DIR/{name}\"\ndevice = \"{device}\"\n")
    };
    all.map(table).concat()
}

/// The tenants `a` and `b` on a device.
pub fn pair_on(device: &str) -> String {
    tenants([("a", device), ("b", device)])
}

/// A router with that pair on a soft device.
pub fn start(last: u8) -> Router {
    Router::start(&pair_on(&address(last)))
}

/// A tenant's device.
pub fn open(router: &Router, name: &str) -> RemoteDevice {
    RemoteDevice::open(&router.device(name)).expect("a remote device")
}

/// The objects on the router's devices; `None`: it tells of no device.
pub fn objects(router: &Router) -> Option<u64> {
    let status = router.ask("status").output;
    let counts = status.match_indices("\"objects\":");
    counts.map(|(at, _)| number(&status[at..], "objects")).reduce(|a, b| Some(a? + b?))?
}

/// Whether programs of libibverbs can be compiled; else why not.
pub fn can_compile() -> Result<(), &'static str> {
    let can = find("cc").is_some() && Path::new("/usr/include/infiniband/verbs.h").exists();
    can.then_some(()).ok_or("no cc, or no <infiniband/verbs.h> (libibverbs-dev)")
}

/// Waits until there is nothing on the router's devices.
pub fn wait_until_empty(router: &Router) {
    wait_for(60, "objects stay on a device", || objects(router) == Some(0));
}

/// Tenants that are killed anywhere in the device suite leave nothing, and disturb no neighbour.
pub fn kill_tenants(router: &Router, suite: &str) {
    let neighbour = open(router, "b");
    let (mut a, mut b) = connected(&neighbour, &neighbour, Shape::default()).expect("ends");
    let before = objects(router);
    let name = router.device("a");
    for kill in 0..5u64 {
        let mut victim = Running::start(Command::new(suite).args(["--device", &name]));
        victim.wait_for_output("ok      ");
        // Somewhere in the cases that follow.
        std::thread::sleep(Duration::from_millis(13 * kill));
        victim.kill();
        victim.finish(Duration::from_secs(60));
        wait_for(60, "its objects stay", || objects(router) == before);
        a.post(kill, Op::Write(0, None), 0, 4096).expect("post_send");
        succeed(&mut a, &mut b, kill);
    }
}

/// Who runs one side of a program of librdmacm.
#[derive(Clone, Copy, Debug)]
pub enum Side<'a> {
    /// The tenant of a name.
    Tenant(&'a str),
    /// A plain endpoint at an address.
    Plain(&'a str),
}

impl Side<'_> {
    /// Its command; `{S}` stands for the address of the server. `None`: it is not installed.
    pub fn command(self, router: &Router, words: &str, server: &str) -> Option<Command> {
        let words = words.replace("{S}", server);
        let mut words = words.split(' ');
        let address = if let Side::Plain(address) = self { Some(address) } else { None };
        let mut c = rdmacm::command(address, &[], find(words.next()?)?);
        c.args(words).env("GDRC_VERBOSE", "1");
        if let Side::Tenant(name) = self {
            c.env("GDRC_ROUTER", router.socket(name));
        }
        Some(c)
    }
}

/// Runs both sides of a program, whose server listens at an address. `port`: the address has other
/// listeners, and the server listens at this port.
pub fn connects(
    router: &Router,
    [server, client]: [(Side<'_>, &str); 2],
    at: &str,
    port: Option<u16>,
) {
    let command = |(side, words): (Side<'_>, &str)| side.command(router, words, at);
    let (Some(mut first), Some(mut second)) = (command(server), command(client)) else {
        return println!("{}: not installed", server.1);
    };
    let mut first = Running::start(&mut first);
    // The router makes the name of the service.
    match port {
        Some(port) => rdmacm::wait_until_it_listens_at(&mut first, at, port),
        None => rdmacm::wait_until_it_listens(&mut first, at),
    }
    let [of_client, of_server] = [run(&mut second, 60), first.finish(Duration::from_secs(60))];
    let tool = server.1.split(' ').next().unwrap_or_default();
    assert!(
        of_client.ok() && rdmacm::has_served(tool, &of_server),
        "{server:?}: {}\n{client:?}: {}",
        of_server.output,
        of_client.output
    );
}
