use super::session::UNANSWERED;
use super::*;
use crate::policy::show;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::proto::{
    feature, link_flag, mode, route_kind, Drain, Fault, Hello, Route, Unroute, Welcome, KINDS,
    MESSAGE_MAX, VERSIONS,
};

/// Three tenants by their users: blue and red of one network, green of another.
const POLICY: &str = r#"
[router]
listen = "/s"
[network.far]
[tenant.blue]
match = { uid = 1 }
vip = "10.0.0.1"
[tenant.red]
match = { uid = 2 }
vip = "10.0.0.2"
sessions = 3
route_rate = 100
listens = 2
[tenant.green]
match = { uid = 3 }
vip = "10.0.0.2"
network = "far"
"#;

const SECOND: u64 = 1_000_000_000;

struct Bench {
    broker: Broker,
    now: u64,
}

#[test]
fn frames_have_ip_headers_where_both_ends_know_of_them() {
    let known = feature::DIRECT | feature::RELAY | feature::HEADERS;
    for (features, qpns, has) in [
        (known, 8, true),
        (known & !feature::HEADERS, 8, false),
        (known & !feature::RELAY, 8, false),
        (known, 0, false),
    ] {
        let mut b = Bench::new(POLICY);
        let id = b.connect(1);
        let actions = b.hello(id, Hello { features, qpns, ..hello() });
        let said = actions.iter().find_map(|a| match a {
            Action::Join(_, e) | Action::Send(_, e) => match &e.message {
                Message::Welcome(w) => Some(w.features & feature::HEADERS != 0),
                _ => None,
            },
            _ => None,
        });
        assert_eq!(
            (said, b.broker.find_up(id).unwrap().headers),
            (Some(has), has),
            "{features:#x}"
        );
    }
}

#[test]
fn a_tenant_with_a_device_has_remote_sessions_and_no_others() {
    let black = "[tenant.black]\nmatch = { uid = 4 }\ndevice = \"soft:192.0.2.4\"\n";
    let policy = format!("{POLICY}{black}");
    let remote = Hello { mode: mode::REMOTE, features: feature::REMOTE, qpns: 0, ..hello() };
    let said = |actions: &[Action]| {
        actions.iter().find_map(|a| match a {
            Action::Send(_, e) | Action::Join(_, e) => match &e.message {
                Message::Welcome(w) => Some((e.status, w.mode, w.features)),
                _ => None,
            },
            _ => None,
        })
    };
    let mut b = Bench::new(&policy);
    b.broker.note_device("soft:192.0.2.4", gdrcore_net::addr::Endpoint::v4([192, 0, 2, 4], 0).ip);
    // It waits for no numbers, which are the device's.
    b.broker.resume_by(Keys { key: [1; 16], floor: 0, learn_until: Some(2 * SECOND) });
    let id = b.connect(4);
    let actions = b.hello(id, remote);
    assert!(matches!(actions[..], [Action::Join(..)]), "{actions:?}");
    assert_eq!(said(&actions), Some((0, mode::REMOTE, feature::REMOTE)));
    let up = b.broker.find_up(id).unwrap();
    assert_eq!((&up.gid[12..], up.blocks.len()), (&[192, 0, 2, 4][..], 0));
    let id = b.connect(4);
    let refused = said(&b.hello(id, hello())).map(|s| s.0);
    assert_eq!(refused, Some(-66), "the HELLO that it tries first waits as little");
    // Each mode is refused where the other is due.
    let mut b = Bench::new(&policy);
    for (uid, hello, status) in [(4, hello(), -66), (1, remote, -95)] {
        let id = b.connect(uid);
        assert_eq!(said(&b.hello(id, hello)).map(|s| s.0), Some(status), "user {uid}");
    }
    // No link and no listener is made for its address.
    let (id, gid) = (b.connect(4), [0; 16]);
    b.hello(id, remote);
    assert!(b.route(id, gid, 5).iter().any(|a| matches!(a, Action::End(..))));
    // Another device is another policy for it.
    let id = b.connect(4);
    b.hello(id, remote);
    for (device, ends) in [("192.0.2.4", false), ("192.0.2.5", true)] {
        let policy = Policy::parse(&policy.replace("192.0.2.4", device)).unwrap();
        b.broker.reload(b.now, policy);
        let out = b.broker.take_actions();
        assert_eq!(out.iter().any(|a| matches!(a, Action::End(..))), ends, "{device}");
    }
}

impl Bench {
    fn new(policy: &str) -> Bench {
        Bench { broker: Broker::new(Policy::parse(policy).unwrap(), 7, |_| None), now: 0 }
    }

    fn seen(uid: u32) -> PeerFacts {
        PeerFacts { socket: "/s".into(), pid: 100, uid: Some(uid), ..PeerFacts::default() }
    }

    fn connect(&mut self, uid: u32) -> SessionId {
        self.broker.connect(self.now, Bench::seen(uid))
    }

    fn raw(&mut self, id: SessionId, bytes: &[u8], fds: usize) -> Vec<Action> {
        self.broker.handle(self.now, id, bytes, fds);
        self.broker.take_actions()
    }

    fn say(&mut self, id: SessionId, e: &Envelope) -> Vec<Action> {
        let mut bytes = [0; MESSAGE_MAX];
        let n = e.emit(&mut bytes);
        self.raw(id, &bytes[..n], 0)
    }

    fn hello(&mut self, id: SessionId, hello: Hello) -> Vec<Action> {
        self.say(id, &Envelope::new(1, Message::Hello(hello)))
    }

    /// A session that is up.
    fn up(&mut self, uid: u32) -> (SessionId, Welcome) {
        let id = self.connect(uid);
        match &self.hello(id, hello())[..] {
            [Action::Send(
                to,
                Envelope { answer: true, seq: 1, status: 0, message: Message::Welcome(w) },
            )] => {
                assert_eq!(*to, id);
                (id, *w)
            }
            other => panic!("{other:?}"),
        }
    }

    fn route(&mut self, id: SessionId, gid: [u8; 16], qpn: u32) -> Vec<Action> {
        let route = Route { gid, sgid_index: 0, qpn, traffic_class: 0 };
        self.say(id, &Envelope::new(9, Message::Route(route)))
    }

    /// A link that is made: the answer, and the owner's message.
    fn linked(&mut self, id: SessionId, to: &Welcome) -> (Routed, SessionId, u32, Link) {
        match &self.route(id, to.gids[0], to.qpns.0 + 5)[..] {
            [Action::Connect { caller, routed, owner, link }] => {
                assert_eq!((*caller, routed.seq, routed.status), (id, 9, 0));
                let (Message::Routed(r), Message::Link(l)) = (routed.message, link.message) else {
                    panic!()
                };
                (r, *owner, link.seq, l)
            }
            other => panic!("{other:?}"),
        }
    }

    fn refused(&mut self, id: SessionId, gid: [u8; 16], qpn: u32) -> (i32, String) {
        match &self.route(id, gid, qpn)[..] {
            [Action::Send(
                to,
                Envelope { answer: true, seq: 9, status, message: Message::Routed(r) },
            )] => {
                assert_eq!(*to, id);
                (-status, r.cause.as_str().to_string())
            }
            other => panic!("{other:?}"),
        }
    }
}

fn hello() -> Hello {
    Hello {
        versions: VERSIONS,
        features: feature::DIRECT,
        mode: mode::SWITCH,
        qpns: QPN_UNIT,
        ffr_id: -1,
        program: Text::new("test"),
        token: [0; 64],
    }
}

/// The errno and the words with which a session was ended.
fn end_of(actions: &[Action], id: SessionId) -> (i32, String) {
    match actions {
        [.., Action::Send(a, Envelope { message: Message::Bye(bye), .. }), Action::End(b, why)] => {
            assert_eq!((*a, *b, bye.text.as_str()), (id, id, why.as_str()));
            (bye.errno, why.clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_has_an_identity_an_address_and_numbers_of_its_own() {
    let mut b = Bench::new(POLICY);
    let (one, w) = b.up(1);
    assert_eq!(
        (w.tenant.as_str(), w.network.as_str(), show(&w.gids[0]).as_str()),
        ("blue", "default", "10.0.0.1")
    );
    assert_eq!((w.qpns, w.epoch, w.session), ((QPN_UNIT, QPN_UNIT), 7, one));
    let (_, other) = b.up(1);
    assert_eq!(
        (other.gids[0], other.qpns.0),
        (w.gids[0], 2 * QPN_UNIT),
        "the same tenant, other numbers"
    );
    // A session that only asks for its identity takes no blocks.
    let id = b.connect(2);
    let asked = b.hello(id, Hello { qpns: 0, ..hello() });
    let [Action::Send(_, Envelope { message: Message::Welcome(w), .. })] = &asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(w.qpns.1, 0);
}

#[test]
fn who_is_refused_hears_why() {
    let mut b = Bench::new(POLICY);
    let mut refused = |uid, h: Hello| {
        let id = b.connect(uid);
        match &b.hello(id, h)[..] {
            [Action::Send(
                to,
                Envelope { answer: true, status, message: Message::Welcome(w), .. },
            ), Action::End(end, why)] => {
                assert_eq!((*to, *end, w.cause.as_str()), (id, id, why.as_str()));
                // The log has the tenant from here.
                assert_eq!(w.tenant.as_str().is_empty(), *status == -errno::ACCESS, "{why}");
                (-*status, why.clone())
            }
            other => panic!("{other:?}"),
        }
    };
    let (n, why) = refused(99, hello());
    assert!(n == libc::EACCES && why.contains("uid 99") && why.contains("/s"), "{n} {why}");
    assert_eq!(refused(1, Hello { versions: (3, 9), ..hello() }).0, libc::EPROTONOSUPPORT);
    assert_eq!(refused(1, Hello { mode: 2, ..hello() }).0, libc::EOPNOTSUPP);
    assert_eq!(refused(1, Hello { features: 0, ..hello() }).0, libc::EOPNOTSUPP);
    assert_eq!(refused(1, Hello { qpns: 17 * QPN_UNIT, ..hello() }).0, libc::EDQUOT);
    for _ in 0..3 {
        b.up(2);
    }
    let id = b.connect(2);
    let fourth = b.hello(id, hello());
    assert!(matches!(&fourth[0], Action::Send(_, e) if e.status == -libc::EDQUOT), "{fourth:?}");
}

#[test]
fn two_that_may_talk_get_the_ends_of_a_socket() {
    let mut b = Bench::new(POLICY);
    let ((blue, _), (red, w)) = (b.up(1), b.up(2));
    let (routed, owner, seq, link) = b.linked(blue, &w);
    assert_eq!(
        (owner, routed.peer, routed.qpns, routed.flags),
        (red, red, w.qpns, link_flag::NO_GRANTS)
    );
    assert_eq!(
        (show(&link.gid).as_str(), link.peer, link.flags),
        ("10.0.0.1", blue, link_flag::NO_GRANTS)
    );
    // The answer to the link counts once.
    let answer = Envelope::answer(seq, 0, Message::Link(link));
    assert_eq!(b.say(red, &answer), []);
    assert_eq!(end_of(&b.say(red, &answer), red).0, libc::EPROTO);
    // Sessions of one tenant may lend each other memory.
    let (_, w) = b.up(1);
    assert_eq!(b.linked(blue, &w).0.flags, 0);
}

#[test]
fn a_route_that_leads_nowhere_or_is_forbidden_says_so() {
    let mut b =
        Bench::new(&POLICY.replace("vip = \"10.0.0.1\"", "vip = \"10.0.0.1\"\nallow = [\"blue\"]"));
    let ((blue, wb), (red, wr), (green, wg)) = (b.up(1), b.up(2), b.up(3));
    for (from, to) in [(blue, &wr), (red, &wb)] {
        let (n, why) = b.refused(from, to.gids[0], to.qpns.0);
        assert!(n == libc::EACCES && why.contains("tenant blue"), "both must want it: {n} {why}");
    }
    let (n, why) = b.refused(red, [9; 16], wb.qpns.0);
    assert!(n == libc::EHOSTUNREACH && why.contains("nobody in network default"), "{n} {why}");
    let (n, why) = b.refused(red, wb.gids[0], wg.qpns.0);
    assert!(n == libc::EHOSTUNREACH && why.contains("no queue pair"), "{n} {why}");
    // The same address in another network belongs to another tenant.
    assert_eq!(b.refused(green, wb.gids[0], wb.qpns.0).0, libc::EHOSTUNREACH);
    assert_eq!(
        b.refused(green, wr.gids[0], wr.qpns.0).0,
        libc::EHOSTUNREACH,
        "its own address, and red's number"
    );
    assert_eq!(b.refused(red, wr.gids[0], wr.qpns.0).0, libc::EINVAL, "its own number");
    assert_eq!(b.refused(red, wb.gids[0], 0).0, libc::EOPNOTSUPP, "datagrams");
    let route = Route { gid: wb.gids[0], sgid_index: 1, qpn: wb.qpns.0, traffic_class: 0 };
    let answer = b.say(red, &Envelope::new(9, Message::Route(route)));
    assert!(matches!(&answer[..], [Action::Send(_, e)] if e.status == -libc::EINVAL));
}

#[test]
fn one_who_asks_too_much_is_told_later_and_who_takes_nothing_gets_no_more() {
    let mut b = Bench::new(POLICY);
    let ((blue, wb), (red, _)) = (b.up(1), b.up(2));
    let mut links = Vec::new();
    for _ in 0..UNANSWERED / 2 {
        links.push(b.linked(red, &wb).2);
    }
    let (n, why) = b.refused(red, wb.gids[0], wb.qpns.0);
    assert!(n == libc::EAGAIN && why.contains("stopped"), "{n} {why}");
    // One that could not be sent does not count.
    b.broker.link_failed(blue, links[0]);
    assert_eq!(b.linked(red, &wb).1, blue);
    let mut refused = 0;
    while b.refused(red, wb.gids[0], wb.qpns.0).1.contains("stopped") {
        refused += 1;
        assert!(refused < 200);
    }
    let (n, why) = b.refused(red, wb.gids[0], wb.qpns.0);
    assert!(n == libc::EAGAIN && why.contains("more than 100 routes in a second"), "{n} {why}");
    b.now += SECOND;
    assert!(b.refused(red, wb.gids[0], wb.qpns.0).1.contains("stopped"));
}

#[test]
fn nobody_is_kept_busy_with_new_links() {
    let mut b = Bench::new(&POLICY.replace("route_rate = 100", ""));
    let ((_, wb), (_, w2), (red, _)) = (b.up(1), b.up(1), b.up(2));
    let link = |b: &mut Bench, to: &Welcome| match &b.route(red, to.gids[0], to.qpns.0 + 5)[..] {
        [Action::Connect { owner, link, .. }] => {
            let (owner, answer) = (*owner, Envelope { answer: true, ..*link });
            b.say(owner, &answer);
            true
        }
        // A route that is given back does not restart the count.
        [Action::Send(..)] => {
            b.say(red, &Envelope::new(3, Message::Unroute(Unroute { route: 1 })));
            false
        }
        other => panic!("{other:?}"),
    };
    let made = |b: &mut Bench, to: &Welcome| (0..100).filter(|_| link(b, to)).count();
    assert_eq!((made(&mut b, &wb), made(&mut b, &w2)), (32, 32), "each by itself");
    assert!(b.refused(red, wb.gids[0], wb.qpns.0).1.contains("more than 32 links in a second"));
    b.now += SECOND / 2;
    assert_eq!(made(&mut b, &wb), 16);
}

#[test]
fn the_end_of_a_session_is_told_to_those_with_links() {
    let mut b = Bench::new(POLICY);
    let ((blue, wb), (red, wr), (other, _)) = (b.up(1), b.up(2), b.up(1));
    b.linked(blue, &wr);
    // A session's statements about its routes do not hide its links.
    let (routed, ..) = b.linked(red, &wb);
    let unroute = Message::Unroute(Unroute { route: routed.route });
    for status in [0, -libc::EINVAL] {
        let said = b.say(red, &Envelope::new(3, unroute));
        assert!(matches!(&said[..], [Action::Send(_, e)] if e.status == status), "{said:?}");
    }
    b.broker.end_session(b.now, red);
    let out = b.broker.take_actions();
    let [Action::Send(to, event), Action::End(end, why)] = &out[..] else { panic!("{out:?}") };
    let Message::RouteEvent(e) = event.message else { panic!("{event:?}") };
    assert_eq!((*to, *end, e.peer, e.event, why.as_str()), (blue, red, red, route_event::DOWN, ""));
    assert_eq!(b.refused(blue, wr.gids[0], wr.qpns.0).0, libc::EHOSTUNREACH);
    assert_eq!(b.broker.blocks_given(), 2);
    b.broker.end_session(b.now, red);
    b.broker.take_actions();
    // An expelled process may live on, so its peers are told that its links no longer count.
    let (red, wr) = b.up(2);
    b.linked(blue, &wr);
    let out = b.raw(red, b"nonsense", 0);
    assert!(matches!(&out[0], Action::Send(to, Envelope { message: Message::RouteEvent(e), .. })
        if *to == blue && e.event == route_event::REVOKED && e.peer == red));
    assert_eq!(end_of(&out, red).0, libc::EINVAL);
    assert!(b.broker.find_up(other).is_some());
}

#[test]
fn messages_that_are_not_expected_end_the_session() {
    let hello = Message::Hello(hello());
    let messages = [
        (Message::Routed(Routed::refused(Text::EMPTY)), true),
        (Message::Welcome(Welcome::refused(Text::EMPTY)), true),
        (Message::Link(Link { gid: [1; 16], peer: 1, flags: 0 }), true),
        (
            Message::RouteEvent(RouteEvent {
                route: 1,
                event: 1,
                peer: 1,
                final_ms: 0,
                cause: Text::EMPTY,
            }),
            true,
        ),
        (Message::Drain(Drain { deadline_ms: 1, text: Text::EMPTY }), true),
        (hello, true),
        (Message::Ping(()), false),
        (Message::Route(Route { gid: [1; 16], sgid_index: 0, qpn: 1, traffic_class: 0 }), false),
        (Message::Listen(Service { space: 1, port: 1 }), false),
    ];
    for (message, up) in messages {
        let mut b = Bench::new(POLICY);
        let id = if up { b.up(1).0 } else { b.connect(1) };
        let out = b.say(id, &Envelope::new(5, message));
        let (n, why) = end_of(&out, id);
        assert!(n == libc::EPROTO && why.contains(&message.kind().to_string()), "{n} {why}");
        assert!(b.say(id, &Envelope::new(5, message)).is_empty(), "it is gone");
    }
    let mut b = Bench::new(POLICY);
    let id = b.up(1).0;
    let mut bytes = [0; MESSAGE_MAX];
    let n = Envelope::new(5, Message::Ping(())).emit(&mut bytes);
    let out = b.raw(id, &bytes[..n], 1);
    assert!(end_of(&out, id).1.contains("1 descriptors"));
    let id = b.up(1).0;
    bytes[..2].copy_from_slice(&77u16.to_le_bytes());
    let out = b.raw(id, &bytes[..n], 0);
    assert_eq!(end_of(&out, id), (Fault::Unknown(77).errno(), Fault::Unknown(77).to_string()));
}

#[test]
fn a_ping_is_answered_and_a_bye_ends_it() {
    let mut b = Bench::new(POLICY);
    let id = b.up(1).0;
    let ping = Envelope::new(6, Message::Ping(()));
    assert_eq!(b.say(id, &ping), [Action::Send(id, Envelope { answer: true, ..ping })]);
    assert_eq!(b.say(id, &Envelope::answer(6, 0, Message::Ping(()))), []);
    let bye = Message::Bye(Bye { errno: 0, text: Text::EMPTY });
    assert_eq!(b.say(id, &Envelope::new(7, bye)), [Action::End(id, String::new())]);
    let fresh = b.connect(1);
    assert_eq!(b.say(fresh, &Envelope::new(7, bye)), [Action::End(fresh, String::new())]);
}

#[test]
fn a_port_has_one_listener_at_an_address() {
    let mut b = Bench::new(POLICY);
    let (one, two, red) = (b.up(1).0, b.up(1).0, b.up(2).0);
    let mut status = |id, on: bool, port| {
        let service = Service { space: 0x106, port };
        let message = if on { Message::Listen(service) } else { Message::Unlisten(service) };
        match &b.say(id, &Envelope::new(4, message))[..] {
            [Action::Send(_, e)] => -e.status,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(status(one, true, 7), 0);
    assert_eq!(status(two, true, 7), libc::EADDRINUSE);
    assert_eq!(status(red, true, 7), 0, "another address");
    assert_eq!(status(two, false, 7), libc::EINVAL, "it is not its own");
    assert_eq!(status(one, false, 7), 0);
    assert_eq!(status(two, true, 7), 0);
    assert_eq!((status(red, true, 8), status(red, true, 9)), (0, libc::EDQUOT));
}

#[test]
fn a_connection_that_says_nothing_ends() {
    let mut b = Bench::new(POLICY);
    let id = b.connect(1);
    assert_eq!(b.broker.deadline(), Some(SECOND));
    b.broker.tick(SECOND - 1);
    let out = b.broker.take_actions();
    assert!(out.is_empty());
    b.broker.tick(SECOND);
    let out = b.broker.take_actions();
    assert!(end_of(&out, id).1.contains("no HELLO"));
    b.up(1);
    assert_eq!(b.broker.deadline(), None, "who is up may be silent");
}

#[test]
fn another_policy_ends_what_it_does_not_allow() {
    let mut b = Bench::new(POLICY);
    let ((blue, wb), (red, wr), (green, _)) = (b.up(1), b.up(2), b.up(3));
    b.linked(blue, &wr);
    let mut reload = |policy: &str| {
        b.broker.reload(b.now, Policy::parse(policy).unwrap());
        b.broker.take_actions()
    };
    assert_eq!(reload(POLICY), []);
    // Links end, but sessions stay.
    let apart = POLICY.replace("vip = \"10.0.0.1\"", "vip = \"10.0.0.1\"\nallow = []");
    let out = reload(&apart);
    let revoked = |a: &Action| match a {
        Action::Send(to, Envelope { message: Message::RouteEvent(e), .. })
            if e.event == route_event::REVOKED =>
        {
            (*to, e.peer)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(out.iter().map(revoked).collect::<Vec<_>>(), [(red, blue), (blue, red)]);
    assert_eq!(reload(&apart), []);
    // A changed address, or none, ends the session.
    let out = reload(&POLICY.replace("10.0.0.1", "10.0.0.9"));
    assert_eq!(end_of(&out, blue).0, libc::EACCES);
    let out = reload(&POLICY.replace("uid = 3", "uid = 4"));
    assert_eq!(end_of(&out, green).0, libc::EACCES);
    assert_eq!(b.refused(red, wb.gids[0], wb.qpns.0).0, libc::EHOSTUNREACH);
    assert_eq!(KINDS.len(), 12, "all messages have their test above");
}

#[test]
fn sessions_come_and_go_without_a_trace() {
    let mut b = Bench::new(POLICY);
    for _ in 0..3000 {
        let ((blue, _), (red, w)) = (b.up(1), b.up(2));
        b.linked(blue, &w);
        b.broker.end_session(b.now, blue);
        b.broker.end_session(b.now, red);
        b.broker.take_actions();
        b.now += SECOND;
    }
    assert_eq!((b.broker.sessions().count(), b.broker.blocks_given()), (0, 0));
}

#[test]
fn routes_have_a_quota_and_those_to_one_session_count_once() {
    let named = "vip = \"10.0.0.1\"\n";
    let mut b = Bench::new(&POLICY.replace(named, &format!("{named}routes = 1\n")));
    let ((blue, _), (_, red), (_, other)) = (b.up(1), b.up(2), b.up(2));
    assert_eq!(b.linked(blue, &red).0.route, b.linked(blue, &red).0.route);
    let (errno, why) = b.refused(blue, other.gids[0], other.qpns.0 + 5);
    assert!(errno == errno::QUOTA && why.contains("1 routes"), "{errno} {why}");
}

#[test]
fn rings_grow_where_both_ends_can_and_the_rate_is_not_low() {
    let grows = |policy: &str, features: u64| {
        let mut b = Bench::new(policy);
        let id = b.connect(1);
        match &b.hello(id, Hello { features, ..hello() })[..] {
            [Action::Join(_, Envelope { message: Message::Welcome(w), .. })] => {
                assert_eq!(w.features & !feature::GROW, feature::DIRECT | feature::RELAY);
                let grows = w.features & feature::GROW != 0;
                assert_eq!(b.broker.find_up(id).unwrap().grows, grows);
                grows
            }
            other => panic!("{other:?}"),
        }
    };
    let all = feature::DIRECT | feature::RELAY | feature::GROW;
    assert!(grows(POLICY, all) && !grows(POLICY, all & !feature::GROW));
    let named = "vip = \"10.0.0.1\"\n";
    for (limit, may) in [
        ("tx_rate = 16_000_000", true),
        ("tx_rate = 15_999_999", false),
        ("tx_pps = 125_000", true),
        ("tx_pps = 124_999", false),
    ] {
        assert_eq!(
            grows(&POLICY.replace(named, &format!("{named}{limit}\n")), all),
            may,
            "{limit}"
        );
    }
    for (rate, may) in [(16_000_000, true), (15_999_999, false)] {
        let router = "listen = \"/s\"\n";
        let policy = POLICY.replace(router, &format!("{router}line_rate = {rate}\n"));
        assert_eq!(grows(&policy, all), may, "{rate}");
    }
}

impl Bench {
    /// A session with rings.
    fn with_rings(&mut self, uid: u32) -> (SessionId, Welcome) {
        let id = self.connect(uid);
        let features = feature::DIRECT | feature::RELAY;
        match &self.hello(id, Hello { features, ..hello() })[..] {
            [Action::Join(to, Envelope { status: 0, message: Message::Welcome(w), .. })] => {
                assert_eq!((*to, w.features, w.rings), (id, features, (128 << 10, 256 << 10)));
                (id, *w)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Whether the way to another session is by the relay; otherwise it is a link.
    fn reaches_by_relay(&mut self, id: SessionId, to: &Welcome) -> bool {
        match &self.route(id, to.gids[0], to.qpns.0 + 5)[..] {
            [Action::Send(to_id, Envelope { status: 0, message: Message::Routed(r), .. })] => {
                assert_eq!((*to_id, r.kind, r.qpns), (id, route_kind::RELAYED, to.qpns));
                true
            }
            [Action::Connect { routed, .. }] => {
                assert!(
                    matches!(routed.message, Message::Routed(r) if r.kind == route_kind::DIRECT)
                );
                false
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_router_that_isolates_makes_no_links() {
    let mut b = Bench::new(POLICY);
    b.broker.isolate();
    let ((blue, _), (_, red), (_, plain)) = (b.with_rings(1), b.with_rings(2), b.up(2));
    assert!(b.reaches_by_relay(blue, &red));
    let (errno, why) = b.refused(blue, plain.gids[0], plain.qpns.0 + 5);
    assert!(errno == errno::UNSUPPORTED && why.contains("no rings"), "{errno} {why}");
    // A session that only asks for its identity gets no rings.
    let id = b.connect(1);
    let ask = Hello { features: feature::DIRECT | feature::RELAY, qpns: 0, ..hello() };
    assert!(matches!(&b.hello(id, ask)[..], [Action::Send(..)]));
}

#[test]
fn who_may_be_reached_by_rings_is_who_policy_allows() {
    let policy = POLICY.replace("sessions = 3\n", "sessions = 3\nallow = [\"red\"]\n");
    let mut b = Bench::new(&policy);
    let mut rings = |uid: u32| {
        let id = b.connect(uid);
        b.hello(id, Hello { features: feature::DIRECT | feature::RELAY, ..hello() });
        id
    };
    let (blue, red, second, green) = (rings(1), rings(2), rings(2), rings(3));
    let plain = b.up(1).0;
    let peers = |b: &Bench, id| b.broker.peers(id).map(|(_, peers)| peers);
    assert_eq!(peers(&b, blue), Some(vec![blue]));
    assert_eq!(peers(&b, red), Some(vec![red, second]));
    assert_eq!(peers(&b, green), Some(vec![green]), "another network");
    assert_eq!(peers(&b, plain), Some(vec![blue, plain]));
    let policy = Policy::parse(POLICY).unwrap();
    b.broker.reload(b.now, policy);
    b.broker.take_actions();
    assert_eq!(peers(&b, blue), Some(vec![blue, red, second]));
    // The relay learns of a listener before the program gets the answer.
    let service = Service { space: 0x106, port: 7 };
    match &b.say(red, &Envelope::new(5, Message::Listen(service)))[..] {
        [Action::Listen(id, s, true), Action::Send(..)] => assert_eq!((*id, *s), (red, service)),
        other => panic!("{other:?}"),
    }
    match &b.say(red, &Envelope::new(6, Message::Unlisten(service)))[..] {
        [Action::Listen(id, s, false), Action::Send(..)] => assert_eq!((*id, *s), (red, service)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn numbers_have_a_quota_over_all_sessions_of_a_tenant() {
    let named = "vip = \"10.0.0.1\"\n";
    let mut b = Bench::new(&POLICY.replace(named, &format!("{named}blocks = 2\n")));
    let (first, _) = b.up(1);
    b.up(1);
    let id = b.connect(1);
    match &b.hello(id, hello())[..] {
        [Action::Send(to, Envelope { status, .. }), Action::End(..)] => {
            assert_eq!((*to, *status), (id, -errno::QUOTA));
        }
        other => panic!("{other:?}"),
    }
    b.broker.end_session(b.now, first);
    b.broker.take_actions();
    b.up(1);
}

#[test]
fn a_port_is_listened_at_in_each_network_by_itself() {
    let mut b = Bench::new(POLICY);
    let ((red, w), (green, other)) = (b.up(2), b.up(3));
    assert_eq!(w.gids[0], other.gids[0]);
    for id in [red, green] {
        let listen = Envelope::new(5, Message::Listen(Service { space: 0x106, port: 7 }));
        let said = b.say(id, &listen);
        assert!(matches!(said[..], [Action::Send(_, Envelope { status: 0, .. })]), "{said:?}");
    }
}

mod drain;
mod feed;
mod hosts;
mod limits;
mod resume;
mod shares;
