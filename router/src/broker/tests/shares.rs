//! Limits that all tenants share: no tenant can take everything.

use super::*;

/// Two tenants with many sessions, and one without any.
const CROWD: &str = r#"
[router]
listen = "/s"
[tenant.greedy]
match = { uid = 1 }
vip = "10.0.0.1"
sessions = 100
blocks = 100
route_rate = 100000
listens = 1000
[tenant.victim]
match = { uid = 2 }
vip = "10.0.0.2"
[tenant.late]
match = { uid = 3 }
vip = "10.0.0.3"
"#;

#[test]
fn a_tenant_that_opens_and_closes_takes_no_others_numbers() {
    let mut b = Bench::new(CROWD);
    let mut blocks = std::collections::BTreeSet::new();
    for _ in 0..1100 {
        let (id, welcome) = b.up(1);
        blocks.insert(welcome.qpns.0 / QPN_UNIT);
        b.broker.end_session(b.now, id);
        b.broker.take_actions();
    }
    assert_eq!(blocks.len(), 100, "its quota: new ones first");
    let (_, welcome) = b.up(3);
    assert!(!blocks.contains(&(welcome.qpns.0 / QPN_UNIT)), "what rests is not another's");
}

#[test]
fn a_tenant_leaves_ports_to_listen_at() {
    let mut b = Bench::new(CROWD);
    let mut taken = 0;
    for space in 0..10 {
        let (id, _) = b.up(1);
        for port in 0..1000 {
            let listen = Message::Listen(Service { space, port });
            match b.say(id, &Envelope::new(5, listen))[..] {
                [Action::Send(_, Envelope { status: 0, .. })] => taken += 1,
                [Action::Send(_, Envelope { status, .. })] => assert_eq!(status, -errno::QUOTA),
                ref other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(taken, LISTENS / 2);
    let (late, _) = b.up(3);
    for port in 0..256 {
        let said = b.say(late, &Envelope::new(5, Message::Listen(Service { space: 0x106, port })));
        assert!(matches!(said[..], [Action::Send(_, Envelope { status: 0, .. })]), "{said:?}");
    }
}

#[test]
fn a_tenant_leaves_room_for_links_to_who_takes_none() {
    let mut b = Bench::new(CROWD);
    let (_, victim) = b.up(2);
    let to = (victim.gids[0], victim.qpns.0 + 5);
    let asks: Vec<_> = (0..4).map(|_| b.up(1).0).collect();
    let mut made = 0;
    for _ in 0..UNANSWERED {
        for &id in &asks {
            match &b.route(id, to.0, to.1)[..] {
                [Action::Connect { .. }] => made += 1,
                [Action::Send(_, Envelope { status, .. })] => assert_eq!(*status, -errno::AGAIN),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(made, UNANSWERED / 2);
    // LINKs outlive the sessions that asked for them, and count as their tenant's.
    for id in asks {
        b.broker.end_session(b.now, id);
        b.broker.take_actions();
    }
    let (again, _) = b.up(1);
    assert!(matches!(&b.route(again, to.0, to.1)[..], [Action::Send(_, e)] if e.status < 0));
    let (late, _) = b.up(3);
    b.linked(late, &victim);
}

#[test]
fn a_tenant_leaves_room_for_routes_that_wait_for_the_map() {
    const HOST: &str = r#"
[host]
id = "here"
address = "192.0.2.1"
map = "feed"
feed = "/feed"
[host.tenant.greedy]
vip = "10.0.0.1"
blocks = [5, 100]
[host.tenant.late]
vip = "10.0.0.3"
blocks = [105, 8]
"#;
    let mut b = Bench::new(&format!("{CROWD}{HOST}"));
    let gid = |n: u16| {
        let [high, low] = n.to_be_bytes();
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, high, low]
    };
    let mut kept = 0;
    for _ in 0..32 {
        let (id, _) = b.with_rings(1);
        kept += (0..64).filter(|&n| b.route(id, gid(n), 9 * QPN_UNIT).is_empty()).count();
    }
    assert_eq!(kept, 512);
    let (late, _) = b.with_rings(3);
    assert_eq!(b.route(late, gid(1), 9 * QPN_UNIT), []);
}
