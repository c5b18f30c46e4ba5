//! Routers whose map an adapter brings, and adapters that say what they are told to say.

use crate::router::Router;
use crate::{patience, tools};
use gdrcore_net::via::proto::{Envelope, Message, Route, Routed};
use gdrcore_router_feed::{read, write, Entry, Event, Wish};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// A host of its own on an address of the loopback: its name, and its tenants with the last part of
/// their addresses (10.99.0.x) and their blocks.
pub fn policy(id: &str, address: &str, tenants: &[(&str, u32, (u32, u32))]) -> String {
    let mut text = format!(
        "[host]\nid = \"{id}\"\naddress = \"{address}\"\nmap = \"feed\"\nfeed = \"DIR/feed\"\n"
    );
    for (name, last, (first, count)) in tenants {
        text += &format!(
            "[host.tenant.{name}]\nvip = \"10.99.0.{last}\"\nblocks = [{first}, {count}]\n\
             [tenant.{name}]\nlisten = \"DIR/{name}.gdrc\"\n"
        );
    }
    text
}

/// Starts a router with such a policy.
pub fn start(policy: &str) -> Router {
    Router::start_with(policy, &["--firewall", "off"])
}

/// The address of a test's host, which no other process has.
pub fn address(last: u32) -> String {
    tools::loopback(90, last)
}

/// What a router says of a name of its `feed` in `status`: the text up to the next comma or brace.
pub fn status(router: &Router, name: &str) -> String {
    let done = router.ask("status");
    assert!(done.ok(), "{done}");
    let (_, fed) = done.output.split_once("\"feed\":").expect("a feed");
    let (_, rest) = fed.split_once(&format!("\"{name}\":")).expect("a name");
    rest.split([',', '}']).next().unwrap_or_default().to_string()
}

/// Waits until a router says that of a name.
pub fn wait_for(router: &Router, name: &str, value: &str) {
    let what = format!("the feed of a router has not {name} = {value}");
    patience::wait_for(60, &what, || status(router, name) == value);
}

/// A tenant of another host.
pub fn entry(host: &str, address: &str, last: u32, blocks: (u32, u32)) -> Entry {
    Entry {
        network: "default".into(),
        vip: format!("10.99.{}.{}", last >> 8, last & 0xff),
        tenant: format!("t{last}"),
        blocks,
        host: host.into(),
        address: address.into(),
        port: 4791,
    }
}

/// An adapter.
pub struct Adapter {
    to: UnixStream,
    from: BufReader<UnixStream>,
}

impl Adapter {
    /// Connects to a router's socket, and says nothing yet.
    pub fn connect(socket: &Path) -> Adapter {
        let to = UnixStream::connect(socket).expect("the router's socket");
        to.set_read_timeout(Some(patience::limit(60))).expect("a limit");
        to.set_write_timeout(Some(patience::limit(60))).expect("a limit");
        let from = BufReader::new(to.try_clone().expect("a descriptor"));
        Adapter { to, from }
    }

    /// Sends any bytes. False: the router has ended the connection.
    pub fn say_bytes(&mut self, bytes: &[u8]) -> bool {
        self.to.write_all(bytes).is_ok()
    }

    /// Sends an event.
    pub fn say(&mut self, event: &Event) -> bool {
        let mut line = Vec::new();
        write(event, &mut line);
        self.say_bytes(&line)
    }

    /// The tenants of the network `default`, and no others.
    pub fn tell_all(&mut self, all: &[Entry]) {
        let network = "default".to_string();
        self.say(&Event::Begin { network: network.clone() });
        for entry in all {
            self.say(&Event::Put(entry.clone()));
        }
        self.say(&Event::End { network });
    }

    /// The next line; `None`: the router has ended the connection.
    pub fn hear(&mut self) -> Option<Wish> {
        let mut line = Vec::new();
        match self.from.read_until(b'\n', &mut line) {
            Ok(1..) if line.pop() == Some(b'\n') => Some(read(&line).expect("a line")),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => panic!("nothing comes"),
            _ => None,
        }
    }

    /// What comes up to `ready`: the tenants that are to be published.
    pub fn hear_all(&mut self) -> Vec<Entry> {
        let mut all = Vec::new();
        loop {
            match self.hear() {
                Some(Wish::Hello { .. }) => {}
                Some(Wish::Publish(entry)) => all.push(entry),
                Some(Wish::Ready {}) => return all,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Waits until the router has ended the connection. False: it has broken instead.
    pub fn wait_for_end(&mut self) -> bool {
        match self.from.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            // It had not read all.
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    /// Nothing is read for a moment, so that what the router says stays in its socket.
    pub fn pause(&self) {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The message that asks a router for a way to a queue pair of an address.
pub fn ask(last: u8, qpn: u32) -> Message {
    let gid = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 99, 0, last];
    Message::Route(Route { gid, sgid_index: 0, qpn, traffic_class: 0 })
}

/// The answer: its status, and what it says.
pub fn routed(e: &Envelope) -> (i32, &Routed) {
    match &e.message {
        Message::Routed(routed) => (e.status, routed),
        other => panic!("{other:?}"),
    }
}
