//! Tenants of other hosts.

use super::*;
use crate::broker::session::RouteEnd;
use crate::policy::{Lookup, Map, Placed};
use std::sync::Arc;

const MAP: &str = r#"
[here]
address = "192.0.2.1"
[here.tenant.blue]
vip = "10.0.0.1"
blocks = [5, 2]
[there]
address = "192.0.2.2"
[there.tenant.gold]
vip = "10.0.0.7"
blocks = [5, 2]
[there.tenant.iron]
network = "far"
vip = "10.0.0.1"
blocks = [7, 1]
"#;

fn policy(map: &str, text: &str) -> Policy {
    let host = "[host]\nid = \"here\"\naddress = \"192.0.2.1\"\nmap = \"/map\"\n";
    let map = |_: &std::path::Path| Ok(Map::parse(map).unwrap());
    Policy::parse_with(&format!("{text}\n{host}"), Lookup::maps(&map)).unwrap()
}

fn bench() -> Bench {
    let broker = Broker::new(policy(MAP, POLICY), 7, |_| None);
    Bench { broker, now: 0 }
}

fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
}

fn routed(b: &mut Bench, id: SessionId, qpn: u32) -> Routed {
    match &b.route(id, gid(7), qpn)[..] {
        [Action::Send(to, Envelope { status: 0, message: Message::Routed(r), .. })] => {
            assert_eq!(*to, id);
            *r
        }
        other => panic!("{other:?}"),
    }
}

const GOLD: u32 = 6 * QPN_UNIT + 9;

#[test]
fn a_tenant_that_others_know_has_its_own_blocks_and_the_rest_has_none_of_them() {
    let mut b = bench();
    let (_, first) = b.with_rings(1);
    let (_, second) = b.with_rings(1);
    let of = |w: &Welcome| (w.qpns.0 / QPN_UNIT, w.gids[0]);
    assert_eq!((of(&first), of(&second)), ((5, gid(1)), (6, gid(1))));
    let third = b.connect(1);
    match &b.hello(third, hello())[..] {
        [Action::Send(_, Envelope { status, message: Message::Welcome(w), .. }), Action::End(..)] =>
        {
            assert_eq!(*status, -errno::NO_SPACE);
            assert!(w.cause.as_str().contains("tenant blue, which has 2 blocks"), "{:?}", w.cause);
        }
        other => panic!("{other:?}"),
    }
    let red: Vec<u32> = (0..3).map(|_| b.with_rings(2).1.qpns.0 / QPN_UNIT).collect();
    assert_eq!(red, [1, 2, 3]);
    assert_eq!([b.up(3), b.up(3)].map(|(_, w)| w.qpns.0 / QPN_UNIT), [4, 7]);
}

#[test]
fn a_route_to_another_host_is_relayed_and_no_other_is_made() {
    let mut b = bench();
    b.broker.set_mtu(1024);
    let (blue, _) = b.with_rings(1);
    let r = routed(&mut b, blue, GOLD);
    assert_eq!((r.kind, r.mtu, r.flags), (route_kind::RELAYED, 1024, link_flag::NO_GRANTS));
    assert_eq!(r.qpns, (5 * QPN_UNIT, 2 * QPN_UNIT));
    assert_eq!(routed(&mut b, blue, GOLD - 1).route, r.route, "one route to an address");
    let no = b.refused(blue, gid(7), 7 * QPN_UNIT);
    assert_eq!(no.0, errno::UNREACHABLE);
    assert!(no.1.contains("on host there can't have a queue pair 0x1c000"), "{no:?}");
    let (red, _) = b.with_rings(2);
    let no = b.refused(red, gid(7), GOLD);
    assert_eq!(no.0, errno::ACCESS);
    assert!(no.1.contains("no blocks for tenant red"), "{no:?}");
    let (plain, _) = b.up(1);
    assert_eq!(b.refused(plain, gid(7), GOLD).0, errno::UNSUPPORTED, "it has no rings");
    b.broker.set_silent(["there".to_string()].into());
    let no = b.refused(blue, gid(7), GOLD);
    assert_eq!(no.0, errno::UNREACHABLE);
    assert!(no.1.contains("host there, at 192.0.2.2:4791, where no router listens"), "{no:?}");
    b.broker.set_silent(Default::default());
    assert_eq!(routed(&mut b, blue, GOLD).route, r.route);
}

#[test]
fn policy_counts_towards_other_hosts_and_from_them() {
    for (more, blue, may) in [
        ("", "", true),
        ("", "allow = [\"red\"]", false),
        ("", "allow = [\"gold\"]", true),
        ("", "allow = [\"10.0.0.0/24\"]", true),
        // This host's policy for the other tenant counts, too.
        ("[tenant.gold]\nmatch = { uid = 9 }\nallow = [\"red\"]", "", false),
        ("[tenant.gold]\nmatch = { uid = 9 }\nallow = [\"blue\"]", "", true),
    ] {
        let text = POLICY.replace("vip = \"10.0.0.1\"", &format!("vip = \"10.0.0.1\"\n{blue}"));
        let broker = Broker::new(policy(MAP, &format!("{text}\n{more}")), 7, |_| None);
        let mut b = Bench { broker, now: 0 };
        let (id, _) = b.with_rings(1);
        let is_ok =
            matches!(b.route(id, gid(7), GOLD)[..], [Action::Send(_, Envelope { status: 0, .. })]);
        assert_eq!(is_ok, may, "{more} {blue}");
        let (up, _) = b.broker.peers(id).unwrap();
        let far: Vec<Arc<Placed>> = b.broker.far_tenants().cloned().collect();
        let reached: Vec<bool> = far.iter().map(|p| b.broker.may_reach(up, p)).collect();
        assert_eq!(reached, [may, false], "gold, and iron of another network");
        assert!(b.broker.reach(up, &far).eq(reached), "all at once");
    }
}

#[test]
fn a_route_to_a_plain_endpoint_outlives_a_new_map() {
    let text = POLICY.replace("vip = \"10.0.0.1\"", "vip = \"10.0.0.1\"\noutside = true");
    let broker = Broker::new(policy(MAP, &text), 7, |_| None);
    let mut b = Bench { broker, now: 0 };
    let (blue, _) = b.with_rings(1);
    let plain = std::net::Ipv4Addr::new(198, 51, 100, 9).to_ipv6_mapped().octets();
    let sent = b.route(blue, plain, 9).pop();
    let Some(Action::Send(_, Envelope { status: 0, .. })) = sent else { panic!("{sent:?}") };
    assert_ne!(routed(&mut b, blue, GOLD).route, 0);
    let other = MAP.replace("vip = \"10.0.0.7\"", "vip = \"10.0.0.8\"");
    b.broker.reload(0, policy(&other, &text));
    b.broker.take_actions();
    let routes: Vec<RouteEnd> = b.broker.find_up(blue).unwrap().routes.keys().copied().collect();
    assert_eq!(routes, [RouteEnd::Outside(plain)], "gold's old address is not known any more");
}

#[test]
fn who_is_gone_is_not_found_and_who_has_other_blocks_now_ends() {
    let mut b = bench();
    let (blue, _) = b.with_rings(1);
    let r = routed(&mut b, blue, GOLD);
    let gold = b.broker.far_tenants().find(|p| p.tenant == "gold").unwrap();
    let gold = Placed::clone(gold);
    let gone = MapEvent::Gone { network: "default".into(), gid: gid(7), stale: false };
    b.broker.map(0, gone).unwrap();
    let no = b.refused(blue, gid(7), GOLD);
    assert_eq!((no.0, no.1.contains("nobody in network default has the address")), (113, true));
    b.broker.map(0, MapEvent::Put(Placed { blocks: 9..10, ..gold })).unwrap();
    assert_eq!(b.refused(blue, gid(7), GOLD).0, errno::UNREACHABLE);
    assert_ne!(routed(&mut b, blue, 9 * QPN_UNIT).route, r.route);
    // The map is read anew.
    b.broker.reload(0, policy(MAP, POLICY));
    let out = b.broker.take_actions();
    assert!(out.is_empty() && routed(&mut b, blue, GOLD).route != 0);
    let moved = MAP.replacen("blocks = [5, 2]", "blocks = [6, 2]", 1);
    b.broker.reload(0, policy(&moved, POLICY));
    let out = b.broker.take_actions();
    assert!(end_of(&out, blue).1.contains("another tenant, network, address or numbers"));
}
