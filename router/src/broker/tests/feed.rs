//! The map from an adapter: addresses that are not known yet, hosts that are cut off, and two hosts
//! that want one address.

use super::*;
use crate::policy::Placed;

const HOST: &str = r#"
[host]
id = "here"
address = "192.0.2.1"
map = "feed"
feed = "/feed"
[host.tenant.blue]
vip = "10.0.0.1"
blocks = [5, 8]
"#;

/// The time for which a stale tenant stays known.
const STALE: u64 = 600 * SECOND;

fn bench() -> Bench {
    Bench::new(&format!("{POLICY}{HOST}"))
}

fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
}

fn at(host: &str, last: u8, blocks: (u32, u32)) -> Placed {
    let address = format!("192.0.2.{}", host.len());
    let vip = format!("10.0.0.{last}");
    Placed::checked((host, &address, 4791), "gold", "default", &vip, blocks).unwrap()
}

fn gold() -> Placed {
    at("there", 7, (5, 2))
}

impl Bench {
    fn map(&mut self, event: MapEvent) -> Vec<Action> {
        self.broker.map(self.now, event).unwrap();
        self.broker.take_actions()
    }

    fn later(&mut self, ns: u64) -> Vec<Action> {
        self.now += ns;
        self.broker.tick(self.now);
        self.broker.take_actions()
    }

    /// All of the network, as an adapter tells it.
    fn told(&mut self, all: &[Placed]) -> Vec<Action> {
        let mut out = self.map(MapEvent::Begin("default".into()));
        for p in all {
            out.extend(self.map(MapEvent::Put(p.clone())));
        }
        out.extend(self.map(MapEvent::End("default".into())));
        out
    }
}

fn gone(last: u8, stale: bool) -> MapEvent {
    MapEvent::Gone { network: "default".into(), gid: gid(last), stale }
}

const GOLD: u32 = 6 * QPN_UNIT + 9;

/// The status of the only answer to a route.
fn status(out: &[Action]) -> i32 {
    match out {
        [Action::Send(_, Envelope { seq: 9, status, message: Message::Routed(_), .. })] => *status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_route_to_whom_nobody_knows_yet_waits_two_seconds() {
    let mut b = bench();
    let (blue, _) = b.with_rings(1);
    assert_eq!(b.route(blue, gid(7), GOLD), []);
    assert_eq!(b.later(SECOND), []);
    assert_eq!(b.route(blue, gid(8), GOLD), []);
    // It becomes known.
    let out = b.map(MapEvent::Put(gold()));
    assert_eq!(status(&out), 0);
    assert_eq!(b.broker.deadline(), Some(3 * SECOND), "the other one waits");
    assert_eq!(b.later(2 * SECOND - 1), []);
    match &b.later(1)[..] {
        [Action::Send(to, Envelope { seq: 9, status, message: Message::Routed(r), .. })] => {
            assert_eq!((*to, *status), (blue, -errno::AGAIN));
            assert!(r.cause.as_str().starts_with("store down: 10.0.0.8"), "{:?}", r.cause);
        }
        other => panic!("{other:?}"),
    }
    // Once all tenants are listed, an unknown address has none.
    assert_eq!(b.route(blue, gid(8), GOLD), []);
    let out = b.map(MapEvent::End("default".into()));
    assert_eq!(status(&out), -errno::UNREACHABLE);
    assert_eq!(b.refused(blue, gid(8), GOLD).0, errno::UNREACHABLE);
    // A store that does not answer makes the listing incomplete.
    b.map(MapEvent::Store("default".into(), false));
    assert_eq!(b.route(blue, gid(8), GOLD), []);
    let out = b.map(MapEvent::Store("default".into(), true));
    assert_eq!(status(&out), -errno::UNREACHABLE);
    b.map(MapEvent::Lost);
    assert_eq!(status(&b.route(blue, gid(7), GOLD)), 0, "what is known is known");
    assert_eq!(b.route(blue, gid(8), GOLD), []);
    assert_eq!(b.later(SECOND), []);
    let out = b.map(MapEvent::Store("default".into(), true));
    assert_eq!(out, [], "a store that answers has not told of all");
    assert_eq!(status(&b.later(SECOND)), -errno::AGAIN, "and nobody waits longer for that");
    assert_eq!(b.route(blue, gid(8), GOLD), []);
    // A session that ends asks no more.
    b.broker.end_session(b.now, blue);
    b.broker.take_actions();
    assert_eq!(b.later(SECOND), []);
    // A wrong number, a tenant that other hosts do not know and a tenant of this host do not wait.
    let (blue, welcome) = b.with_rings(1);
    assert_eq!(b.refused(blue, gid(7), 9 * QPN_UNIT).0, errno::UNREACHABLE);
    assert_eq!(b.refused(blue, welcome.gids[0], 9 * QPN_UNIT).0, errno::UNREACHABLE);
    let (red, _) = b.with_rings(2);
    assert_eq!(b.refused(red, gid(8), GOLD).0, errno::UNREACHABLE);
}

#[test]
fn as_many_routes_wait_as_there_is_room_for() {
    let mut b = bench();
    let (blue, _) = b.with_rings(1);
    let (_, other) = b.with_rings(1);
    assert_ne!(other.session, blue);
    for n in 0..64 {
        assert_eq!(b.route(blue, gid(100 + n), GOLD), []);
    }
    let (errno, why) = b.refused(blue, gid(99), GOLD);
    assert_eq!(errno, errno::AGAIN);
    assert!(why.contains("store down"), "{why}");
    assert_eq!(b.route(other.session, gid(99), GOLD), [], "another session has its own");
    assert_eq!(b.later(2 * SECOND).len(), 65);
}

#[test]
fn who_is_cut_off_stays_known_for_ten_minutes() {
    let mut b = bench();
    let (blue, _) = b.with_rings(1);
    b.told(&[gold(), at("other", 8, (1, 1))]);
    b.map(gone(7, true));
    assert_eq!(b.broker.far_count(), (2, 1));
    assert_eq!(b.later(STALE - 1), []);
    assert_eq!(status(&b.route(blue, gid(7), GOLD)), 0, "routes are still made");
    b.later(1);
    assert_eq!(b.refused(blue, gid(7), GOLD).0, errno::UNREACHABLE);
    assert_eq!(b.broker.far_count(), (1, 0));
    // A tenant that is renewed in time stays; a withdrawn tenant is gone at once.
    b.map(MapEvent::Put(gold()));
    b.map(gone(7, true));
    b.later(STALE / 2);
    b.map(MapEvent::Put(gold()));
    b.later(STALE);
    assert_eq!(status(&b.route(blue, gid(7), GOLD)), 0);
    b.map(gone(7, false));
    assert_eq!(b.refused(blue, gid(7), GOLD).0, errno::UNREACHABLE);
    // A tenant that is missing in a new listing becomes stale.
    b.told(&[gold()]);
    assert_eq!(b.broker.far_count(), (2, 1));
    b.later(STALE);
    assert_eq!(b.broker.far_count(), (1, 0));
    // Another host's claim replaces a stale tenant at once.
    b.map(gone(7, true));
    b.map(MapEvent::Put(at("elsewhere", 7, (9, 1))));
    assert_eq!(b.refused(blue, gid(7), GOLD).0, errno::UNREACHABLE, "its blocks are others");
    assert_eq!(status(&b.route(blue, gid(7), 9 * QPN_UNIT)), 0);
    b.later(2 * STALE);
    assert_eq!(b.broker.far_count(), (1, 0));
}

#[test]
fn a_tenant_whose_address_another_host_has_ends_with_the_holders_name() {
    for put in [false, true] {
        let mut b = bench();
        b.told(&[]);
        let (blue, _) = b.with_rings(1);
        let out = match put {
            true => b.map(MapEvent::Put(at("there", 1, (9, 1)))),
            false => b.map(MapEvent::Denied {
                network: "default".into(),
                gid: gid(1),
                holder: "there".into(),
            }),
        };
        let (errno, why) = end_of(&out, blue);
        assert_eq!(errno, errno::IN_USE);
        assert_eq!(why, "address 10.0.0.1 of tenant blue is held by host there");
        // The tenant has no new sessions either.
        let again = b.connect(1);
        match &b.hello(again, hello())[..] {
            [Action::Send(_, Envelope { status, message: Message::Welcome(w), .. }), ..] => {
                assert_eq!((*status, w.cause.as_str()), (-errno::IN_USE, why.as_str()));
            }
            other => panic!("{other:?}"),
        }
        let denied: Vec<_> = b.broker.denied().map(|(n, g, h)| (n.to_string(), *g, h)).collect();
        assert_eq!(denied, [("default".to_string(), gid(1), "there")]);
        // Other tenants are not affected.
        b.up(2);
        // The denial ends when the store accepts the address as this host's.
        b.map(gone(1, true));
        b.map(MapEvent::Claimed("default".into(), gid(1)));
        assert_eq!(b.broker.far_count(), (0, 0));
        b.up(1);
        // A denial that a new listing does not repeat is over, too.
        b.map(MapEvent::Denied { network: "default".into(), gid: gid(1), holder: "x".into() });
        assert_eq!(b.broker.denied().count(), 1);
        b.told(&[]);
        b.up(1);
        assert_eq!(b.broker.denied().count(), 0);
    }
}

#[test]
fn denials_of_what_is_nobodys_here_change_nothing() {
    let mut b = bench();
    let (red, _) = b.up(2);
    for last in [2, 9] {
        let gid = gid(last);
        b.map(MapEvent::Denied { network: "default".into(), gid, holder: "there".into() });
    }
    assert_eq!((b.broker.denied().count(), b.broker.sessions().count()), (0, 1));
    // A tenant that other hosts do not know yields its address to the tenant in the store. It does
    // not get the address back while the other is only stale.
    let out = b.map(MapEvent::Put(at("there", 2, (9, 1))));
    assert!(end_of(&out, red).1.contains("10.0.0.2 is a tenant's of host there"), "{out:?}");
    b.map(gone(2, true));
    let again = b.connect(2);
    match &b.hello(again, hello())[..] {
        [Action::Send(_, Envelope { status, .. }), ..] => assert_eq!(*status, -errno::IN_USE),
        other => panic!("{other:?}"),
    }
    b.map(gone(2, false));
    b.up(2);
}

#[test]
fn what_is_said_to_be_of_this_host_is_refused() {
    let mut b = bench();
    let mut no = |p: Placed| b.broker.map(0, MapEvent::Put(p)).unwrap_err();
    assert!(no(at("here", 7, (1, 1))).contains("host here is this one"));
    let here = gdrcore_net::addr::Endpoint::v4([192, 0, 2, 1], 4999);
    assert!(no(Placed { at: here, ..gold() }).contains("this host's"));
    assert_eq!(b.broker.far_count(), (0, 0));
}

#[test]
fn a_new_policy_keeps_what_the_adapter_has_brought() {
    let mut b = bench();
    let (blue, _) = b.with_rings(1);
    b.told(&[gold()]);
    let changes = b.broker.far_changes();
    let other = POLICY.replace("listens = 2", "listens = 3");
    b.broker.reload(0, Policy::parse(&format!("{other}{HOST}")).unwrap());
    let out = b.broker.take_actions();
    assert_eq!((out.len(), b.broker.far_changes()), (0, changes));
    assert_eq!(status(&b.route(blue, gid(7), GOLD)), 0);
    // After a change of the tenant's address the denial of the former one applies to nobody.
    b.map(MapEvent::Denied { network: "default".into(), gid: gid(1), holder: "there".into() });
    let moved = format!("{POLICY}{HOST}").replace("10.0.0.1", "10.0.0.9");
    b.broker.reload(0, Policy::parse(&moved).unwrap());
    b.broker.take_actions();
    assert_eq!(b.broker.denied().count(), 0);
    assert_eq!(b.with_rings(1).1.gids[0], gid(9));
}
