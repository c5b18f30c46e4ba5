//! Fuzzes the map of hosts as an adapter brings it: any events, among sessions that ask for ways to
//! whoever may be there.

use crate::bytes::Bytes;
use crate::coverage::counts;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::proto::{
    feature, mode, Envelope, Hello, Message, Route, Text, MESSAGE_MAX, VERSIONS,
};
use gdrcore_router::broker::{Action, Broker, MapEvent, SessionId, SessionState};
use gdrcore_router::identity::PeerFacts;
use gdrcore_router::policy::{show, Placed, Policy};
use std::collections::BTreeMap;

counts! {
    Fed {
        /// Events that were taken in.
        taken: u64,
        /// Events that were refused.
        refused: u64,
        /// Routes that were made.
        made: u64,
        /// Routes that were refused.
        failed: u64,
        /// Routes that had to wait for their answer.
        waited: u64,
        /// Sessions that an event has ended.
        ended: u64,
    }
}

/// Two tenants that other hosts may know, and one that they may not.
const POLICY: &str = r#"
[router]
listen = "/s"
pool = "10.0.0.0/28"
[host]
id = "a"
address = "192.0.2.1"
map = "feed"
feed = "/feed"
[host.tenant.blue]
vip = "10.0.0.1"
blocks = [1, 40]
[host.tenant.red]
vip = "10.0.0.2"
blocks = [41, 40]
[tenant.blue]
match = { uid = 1 }
[tenant.red]
match = { uid = 2 }
allow = ["blue", "10.0.0.0/29"]
[tenant.local]
match = { uid = 3 }
"#;

/// A route is answered after so long at the latest.
const PATIENCE: u64 = 2_000_000_000;

/// A router, and what it owes its sessions.
struct Side {
    broker: Broker,
    now: u64,
    /// Routes that are not answered: since when, by session and number.
    open: BTreeMap<(SessionId, u32), u64>,
    seq: u32,
    seen: Fed,
}

/// The string selects events, sessions, routes and the passage of time. After each step: every
/// route is answered once, in time, unless its session has ended; who has an address of this host
/// and who of another one are never both there; no two tenants of a host have a block in common.
pub fn feed(data: &[u8]) -> Fed {
    let mut input = Bytes::new(data);
    let policy = Policy::parse(POLICY).unwrap_or_else(|fault| panic!("{fault}"));
    let broker = Broker::new(policy, 1, |_| None);
    let mut side = Side { broker, now: 0, open: BTreeMap::new(), seq: 1, seen: Fed::default() };
    while !input.is_empty() {
        let kind = input.u8() % 16;
        match kind {
            0 | 1 => side.join(input.u8() % 3),
            2 => side.now += u64::from(input.u8()) << 24,
            3 => side.now += u64::from(input.u8()) << 32,
            4..=7 => side.ask(&mut input),
            _ => {
                let event = event(&mut input);
                match side.broker.map(side.now, event) {
                    Ok(()) => side.seen.taken += 1,
                    Err(_) => side.seen.refused += 1,
                }
            }
        }
        let out = side.broker.take_actions();
        let is_ended = |a: &&Action| matches!(a, Action::End(_, why) if !why.is_empty());
        if kind >= 8 {
            side.seen.ended += out.iter().filter(is_ended).count() as u64;
        }
        side.settle(out);
        side.broker.tick(side.now);
        let out = side.broker.take_actions();
        side.settle(out);
        side.check();
    }
    side.seen
}

/// An address, few of which there are.
fn vip(input: &mut Bytes<'_>) -> String {
    format!("10.0.0.{}", 1 + input.u8() % 8)
}

fn gid(vip: &str) -> [u8; 16] {
    let ip: std::net::Ipv4Addr = vip.parse().unwrap_or_else(|e| panic!("{e}"));
    ip.to_ipv6_mapped().octets()
}

fn event(input: &mut Bytes<'_>) -> MapEvent {
    let network = ["default", "other"][usize::from(input.u8() % 8 == 0)].to_string();
    let vip = vip(input);
    let gid = gid(&vip);
    match input.u8() % 16 {
        0 => MapEvent::Begin(network),
        1 => MapEvent::End(network),
        2 => MapEvent::Store(network, input.u8() % 2 == 0),
        3 => MapEvent::Lost,
        4 => MapEvent::Claimed(network, gid),
        5 => MapEvent::Denied { network, gid, holder: "b".into() },
        6 | 7 => MapEvent::Gone { network, gid, stale: input.u8() % 2 == 0 },
        _ => {
            let host = ["a", "b", "c", "d"][usize::from(input.u8() % 4)];
            let address = format!("192.0.2.{}", 1 + input.u8() % 4);
            let blocks = (1 + u32::from(input.u8() % 8), 1 + u32::from(input.u8() % 4));
            let placed = Placed::checked((host, &address, 4791), "t", &network, &vip, blocks);
            MapEvent::Put(placed.unwrap_or_else(|why| panic!("{why}")))
        }
    }
}

impl Side {
    fn say(&mut self, id: SessionId, message: Message) {
        let mut bytes = [0; MESSAGE_MAX];
        let n = Envelope::new(self.seq, message).emit(&mut bytes);
        self.broker.handle(self.now, id, &bytes[..n], 0);
    }

    fn join(&mut self, tenant: u8) {
        let uid = Some(u32::from(tenant) + 1);
        let id = self
            .broker
            .connect(self.now, PeerFacts { socket: "/s".into(), uid, ..PeerFacts::default() });
        let hello = Hello {
            versions: VERSIONS,
            features: feature::DIRECT | feature::RELAY,
            mode: mode::SWITCH,
            qpns: QPN_UNIT,
            ffr_id: -1,
            program: Text::new("fuzz"),
            token: [0; 64],
        };
        self.say(id, Message::Hello(hello));
    }

    fn ask(&mut self, input: &mut Bytes<'_>) {
        let ids: Vec<SessionId> = self.broker.sessions().map(|(id, _)| id).collect();
        let (gid, block) = (gid(&vip(input)), u32::from(input.u8() % 12));
        if ids.is_empty() {
            return;
        }
        let id = ids[input.below(ids.len())];
        self.seq += 1;
        self.open.insert((id, self.seq), self.now);
        let route = Route { gid, sgid_index: 0, qpn: block * QPN_UNIT + 5, traffic_class: 0 };
        self.say(id, Message::Route(route));
    }

    /// Takes note of what sessions are told.
    fn settle(&mut self, out: Vec<Action>) {
        for action in out {
            let (id, e) = match action {
                Action::Send(id, e) | Action::Connect { caller: id, routed: e, .. } => (id, e),
                Action::End(id, _) => {
                    self.open.retain(|(of, _), _| *of != id);
                    continue;
                }
                _ => continue,
            };
            let Message::Routed(_) = e.message else { continue };
            let since = self.open.remove(&(id, e.seq)).expect("a route that waits for its answer");
            match e.status {
                0 => self.seen.made += 1,
                _ => self.seen.failed += 1,
            }
            self.seen.waited += u64::from(since < self.now);
        }
    }

    fn check(&self) {
        let late = |&&since: &&u64| since + PATIENCE <= self.now;
        assert_eq!(self.open.values().filter(late).count(), 0, "a route is not answered in time");
        let far: Vec<_> = self.broker.far_tenants().collect();
        let denied: Vec<_> = self.broker.denied().map(|(n, g, _)| (n.to_string(), *g)).collect();
        for (id, session) in self.broker.sessions() {
            let SessionState::Up(up) = &session.state else { continue };
            let own = (up.tenant.network.clone(), up.gid);
            assert!(!denied.contains(&own), "session {id} has the address of another host");
            let there = far.iter().any(|p| *p.network == *own.0 && p.gid == own.1);
            assert!(!there, "{} is here and elsewhere", show(&up.gid));
        }
        for (k, a) in far.iter().enumerate() {
            let meets = far[..k].iter().any(|b| {
                b.at.same_host(&a.at)
                    && b.blocks.start < a.blocks.end
                    && a.blocks.start < b.blocks.end
            });
            assert!(!meets, "{a:?} has another one's blocks");
        }
    }
}
