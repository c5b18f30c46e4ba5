//! Fuzzes the router's broker: any number of processes with any messages, in any order, while time
//! passes and policies change.

use crate::bytes::Bytes;
use crate::coverage::counts;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::client::Client;
use gdrcore_net::via::proto::{
    link_flag, Envelope, Hello, Link, Message, Route, Service, Text, Unroute, HEAD_LEN, MESSAGE_MAX,
};
use gdrcore_router::broker::{Action, Broker, SessionId, SessionState};
use gdrcore_router::identity::PeerFacts;
use gdrcore_router::policy::{wants, Policy};
use std::collections::{BTreeMap, BTreeSet};

counts! {
    Routed {
        /// Sessions with an identity.
        welcomed: u64,
        /// Links.
        links: u64,
        /// Routes that were refused.
        refused: u64,
        /// Sessions that were ended by the broker.
        expelled: u64,
        /// Links that a new policy has ended.
        revoked: u64,
        /// Listeners added or removed by sessions with rings.
        listens: u64,
        /// Policies of the string that were valid.
        policies: u64,
    }
}

/// The policies to switch between.
const POLICIES: [&str; 3] = [
    "[router]\nlisten = \"/s\"\n[tenant.a]\nmatch = { uid = 0 }\n[tenant.b]\nmatch = \
     { uid = 1 }\n[network.n]\n[tenant.c]\nmatch = { uid = 2 }\nnetwork = \"n\"\n",
    "[router]\nlisten = \"/s\"\n[tenant.a]\nmatch = { uid = 0 }\nallow = []\nsessions = \
     2\n[tenant.b]\nmatch = { uid = 1 }\nroutes = 2\nroute_rate = 3\n",
    "[router]\nlisten = \"/s\"\nunmatched = \"uid\"\npool = \"10.0.0.0/30\"\n",
];

/// The string selects the connections, their messages, the passage of time and the changes of
/// policy. After each step: no action is for an ended session, links are made only between sessions
/// that may have them, and every message to a process is one that the process's end of the protocol
/// accepts.
pub fn router(data: &[u8]) -> Routed {
    let mut input = Bytes::new(data);
    let mut seen = Routed::default();
    let mut broker = Broker::new(policy(0), 1, |_| None);
    let mut here: BTreeMap<SessionId, Client> = BTreeMap::new();
    let mut now = 0u64;
    while !input.is_empty() && here.len() < 24 {
        let ids: Vec<SessionId> = here.keys().copied().collect();
        let id = if ids.is_empty() { 0 } else { ids[input.below(ids.len())] };
        match input.u8() % 16 {
            0 | 1 => {
                let seen = PeerFacts {
                    socket: "/s".into(),
                    uid: Some(input.u8().into()),
                    ..PeerFacts::default()
                };
                here.insert(broker.connect(now, seen), Client::new());
            }
            2 => now += u64::from(input.u16()) << 16,
            3 => broker.tick(now),
            4 => broker.end_session(now, id),
            5 => broker.reload(now, policy(input.below(POLICIES.len()))),
            6 => {
                let text = String::from_utf8_lossy(input.take(60)).into_owned();
                seen.policies += u64::from(Policy::parse(&text).is_ok());
            }
            _ => {
                let (bytes, fds) = message(&mut input, &broker, id);
                broker.handle(now, id, &bytes, fds);
            }
        }
        for action in broker.take_actions() {
            check(&mut broker, &mut here, action, &mut input, &mut seen);
        }
    }
    let known: BTreeSet<SessionId> = broker.sessions().map(|(id, _)| id).collect();
    assert!(known.iter().eq(here.keys()), "a session ended without an action");
    seen
}

fn policy(n: usize) -> Policy {
    Policy::parse(POLICIES[n]).unwrap_or_else(|fault| panic!("{fault}"))
}

/// A message of a process: mostly a valid one, sometimes any bytes, seldom with descriptors.
fn message(input: &mut Bytes<'_>, broker: &Broker, id: SessionId) -> (Vec<u8>, usize) {
    let peers: Vec<_> = broker
        .sessions()
        .filter_map(|(_, s)| match &s.state {
            SessionState::Up(up) => {
                Some((up.gid, up.blocks.start * QPN_UNIT, up.unanswered.clone()))
            }
            SessionState::New(_) | SessionState::Waits(_) => None,
        })
        .collect();
    let waiting =
        broker.sessions().find(|(other, _)| *other == id).and_then(|(_, s)| match &s.state {
            SessionState::Up(up) => up.unanswered.keys().next().copied(),
            SessionState::New(_) | SessionState::Waits(_) => None,
        });
    let (gid, qpn) = match peers.len() {
        0 => ([0; 16], 0),
        n => peers.get(input.below(n)).map_or(([0; 16], 0), |p| (p.0, p.1)),
    };
    let service = Service { space: 1, port: (input.u8() % 4).into() };
    let e = match input.u8() % 12 {
        0..=3 => Envelope::new(1, Message::Hello(hello(input))),
        4..=6 => {
            let qpn = qpn + u32::from(input.u8() & 3);
            Envelope::new(
                2,
                Message::Route(Route {
                    gid,
                    sgid_index: u32::from(input.u8() == 9),
                    qpn,
                    traffic_class: 0,
                }),
            )
        }
        7 => {
            let link = Link { gid, peer: 0, flags: 0 };
            Envelope::answer(waiting.unwrap_or(input.u8().into()), 0, Message::Link(link))
        }
        8 => Envelope::new(3, Message::Listen(service)),
        9 => Envelope::new(3, Message::Unlisten(service)),
        10 => Envelope::new(3, Message::Unroute(Unroute { route: input.u8().into() })),
        _ => Envelope::new(4, Message::Ping(())),
    };
    let mut bytes = [0; MESSAGE_MAX];
    let n = e.emit(&mut bytes);
    let mut bytes = bytes[..n].to_vec();
    match input.u8() {
        0 => return (input.take(80).to_vec(), 0),
        1 => {
            let at = input.below(bytes.len());
            bytes[at] ^= input.u8();
        }
        2 => {
            bytes.truncate(HEAD_LEN + input.below(bytes.len() - HEAD_LEN + 1));
            let len = bytes.len() as u32;
            bytes[12..16].copy_from_slice(&len.to_le_bytes());
        }
        3 => return (bytes, 1 + input.below(5)),
        _ => {}
    }
    (bytes, 0)
}

fn hello(input: &mut Bytes<'_>) -> Hello {
    let odd = input.u8() < 16;
    Hello {
        versions: if odd { (3, 4) } else { (0, 5) },
        features: if odd { 1 } else { 3 },
        mode: 0,
        qpns: QPN_UNIT * u32::from(input.u8() % 5),
        ffr_id: -1,
        program: Text::new("fuzz"),
        token: [0; 64],
    }
}

/// Executes an action as the daemon would, and checks that it is allowed.
fn check(
    broker: &mut Broker,
    here: &mut BTreeMap<SessionId, Client>,
    action: Action,
    input: &mut Bytes<'_>,
    seen: &mut Routed,
) {
    let tell = |here: &mut BTreeMap<SessionId, Client>, id: SessionId, e: &Envelope, fds: usize| {
        let client = here
            .get_mut(&id)
            .unwrap_or_else(|| panic!("an action for session {id}, which has ended: {e:?}"));
        let mut bytes = [0; MESSAGE_MAX];
        let n = e.emit(&mut bytes);
        client.take(&bytes[..n], fds).unwrap_or_else(|broken| panic!("{e:?}: {broken:?}"));
    };
    match action {
        Action::Send(id, e) => {
            tell(here, id, &e, 0);
            match e.message {
                Message::Welcome(_) if e.status == 0 => seen.welcomed += 1,
                Message::Routed(_) => seen.refused += 1,
                Message::Bye(_) => seen.expelled += 1,
                Message::RouteEvent(event) if event.event == 4 => seen.revoked += 1,
                _ => {}
            }
        }
        Action::Join(id, e) => {
            let (up, peers) = broker.peers(id).expect("a session that is up");
            assert!(up.relays && peers.contains(&id));
            for &peer in &peers {
                let (other, back) = broker.peers(peer).expect("a session that is up");
                assert!(back.contains(&id), "the link exists in one direction only");
                assert_eq!(up.tenant.network, other.tenant.network);
                assert!(wants(&up.tenant, &other.tenant.name, &other.gid));
            }
            seen.welcomed += 1;
            tell(here, id, &e, 3);
        }
        Action::Listen(id, service, on) => {
            let (up, _) = broker.peers(id).expect("a session that is up");
            assert_eq!(up.listens.contains(&(service.space, service.port)), on);
            seen.listens += 1;
        }
        Action::Connect { caller, routed, owner, link } => {
            let up = |id| {
                broker.sessions().find(|(other, _)| *other == id).and_then(|(_, s)| {
                    match &s.state {
                        SessionState::Up(up) => Some(up),
                        SessionState::New(_) | SessionState::Waits(_) => None,
                    }
                })
            };
            let (Some(a), Some(b)) = (up(caller), up(owner)) else {
                panic!("a link of sessions that do not exist")
            };
            assert_eq!(a.tenant.network, b.tenant.network);
            assert!(
                wants(&a.tenant, &b.tenant.name, &b.gid)
                    && wants(&b.tenant, &a.tenant.name, &a.gid)
            );
            let Message::Link(said) = link.message else { panic!("{link:?}") };
            assert_eq!(
                (said.gid, said.peer),
                (a.gid, caller),
                "only the caller's own address and number"
            );
            assert_eq!(said.flags & link_flag::NO_GRANTS == 0, a.tenant.name == b.tenant.name);
            seen.links += 1;
            // Sometimes it does not fit.
            if input.u8() == 7 {
                return broker.link_failed(owner, link.seq);
            }
            tell(here, owner, &link, 1);
            tell(here, caller, &routed, 1);
        }
        Action::End(id, _) => assert!(here.remove(&id).is_some(), "session {id} ends twice"),
    }
}
