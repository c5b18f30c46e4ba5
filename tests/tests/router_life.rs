//! A router that is killed, or started anew, while its tenants go on.

use gdrcore_core::cm::types::port_space;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{qp_type, wc_status};
use gdrcore_net::soft::{soft_flags, SoftConfig};
use gdrcore_net::via::proto::{Hello, Message};
use gdrcore_tests::cm::{self, cm};
use gdrcore_tests::ends::{complete, connected, connected_pair, pattern, succeed, End, Op, Shape};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::router::{hello, number, Raw, Router};
use gdrcore_tests::soft::Soft;
use gdrcore_tests::supervisor::{kills, TWO_PAIRS};
use gdrcore_tests::traffic::{exchange, failure};
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
const LIMIT: Duration = Duration::from_secs(60);
/// Bytes of an exchange.
const BYTES: usize = 60_000;
/// errno of a session that is not resumed.
const STALE: i32 = libc::ESTALE;

/// A device that waits for its router for so long.
fn patient_for(router: &Router, name: &str, grace: Duration) -> Soft {
    let mut config = SoftConfig::default();
    config.core.deadline_ns = grace.as_nanos() as u64;
    Soft::open(&router.device(name), &config).expect("a device")
}

#[test]
fn processes_go_on_when_the_router_is_killed_and_started_again() {
    let mut router = Router::start(TWO_PAIRS);
    let (direct, _other) = Far::stream(FAR, &router.device("a"), &router.device("b"));
    let (relayed, _fourth) = Far::stream(FAR, &router.device("c"), &router.device("d"));
    direct.moves(3);
    relayed.moves(3);
    let numbers = |router: &Router| {
        let sessions = router.sessions();
        let of = |line: &String| {
            let (_, name) = line.split_once("\"tenant\":\"").expect("a tenant");
            (name[..1].to_string(), number(line, "qpn_first"), line.contains("\"linked_by\":["))
        };
        let mut all: Vec<_> = sessions.iter().map(of).collect();
        all.sort();
        all
    };
    let before = numbers(&router);
    assert_eq!(before.len(), 4);
    for kill in 0..kills() {
        router.kill();
        // Links take no part in it.
        direct.moves(5);
        router.restart();
        relayed.moves(1);
        direct.moves(2);
        relayed.moves(5);
        wait_for(60, "sessions stay away", || router.sessions().len() == 4);
        assert_eq!(numbers(&router), before, "kill {kill}");
    }
    for far in [&direct, &relayed] {
        assert!(far.said().is_none_or(|line| line.starts_with("moved ")));
    }
}

#[test]
fn what_is_under_way_arrives_once_and_whole() {
    let mut router = Router::start(TWO_PAIRS);
    let (c, d) = (router.open("c"), router.open("d"));
    let (mut x, mut y) = connected_pair(c.dev(), d.dev());
    for round in 0..u64::from(kills()) {
        exchange(&mut x, &mut y, round, BYTES);
        // Requests of a killed router's last moment, more than its rings hold.
        for n in 0..20 {
            y.post_recv(100 + n, 0, 50_000).expect("post_recv");
        }
        let data = pattern(1000 + round, 50_000);
        x.buffer.write(0, &data);
        for n in 0..20 {
            x.post(200 + n, Op::Send(None), 0, 50_000).expect("post_send");
        }
        router.kill();
        for _ in 0..1000 {
            x.poll();
            y.poll();
        }
        router.restart();
        for n in 0..20 {
            succeed(&mut x, &mut y, 200 + n);
            assert_eq!(succeed(&mut y, &mut x, 100 + n).byte_len, 50_000);
        }
        assert!(y.buffer.read(0, 50_000) == data);
    }
    exchange(&mut y, &mut x, 77, BYTES);
    let counters = c.dev().counters().expect("counters");
    assert_eq!((counters.rcvd_malformed, counters.rcvd_icrc_err), (0, 0));
}

#[test]
fn a_device_that_sleeps_and_one_of_a_helper_come_back_too() {
    let mut router = Router::start(TWO_PAIRS);
    let config = SoftConfig { flags: soft_flags::HELPER, ..SoftConfig::default() };
    let with_helper = |name: &str| Soft::open(&router.device(name), &config).expect("a device");
    let (c, d) = (with_helper("c"), with_helper("d"));
    let (mut x, mut y) = connected_pair(c.dev(), d.dev());
    exchange(&mut x, &mut y, 1, BYTES);
    router.kill();
    // No thread of the program touches the devices.
    router.restart();
    wait_for(60, "the helpers look for no router", || router.sessions().len() == 2);
    exchange(&mut x, &mut y, 2, BYTES);
}

#[test]
fn datagrams_and_listeners_come_back() {
    let mut router = Router::start(TWO_PAIRS);
    let (a, b) = (router.open("a"), router.open("b"));
    let (listener, port) = cm::listen(b.dev(), port_space::TCP, 1);
    let shape = Shape { qp_type: qp_type::UD, ..Shape::default() };
    let (mut x, mut y) = connected(a.dev(), b.dev(), shape).expect("ends");
    router.kill();
    // A datagram of that time is lost, as on any network, and completes.
    x.post(1, Op::Send(None), 0, 100).expect("post_send");
    succeed(&mut x, &mut y, 1);
    // Ends that are made meanwhile count on the router's return.
    let (mut v, mut w) = connected(a.dev(), b.dev(), shape).expect("ends");
    router.restart();
    wait_for(60, "the listener is not announced", || {
        x.poll();
        y.poll();
        let sessions = router.sessions();
        sessions.len() == 2 && sessions.iter().any(|s| s.contains("\"listens\":1"))
    });
    for (from, to) in [(&mut x, &mut y), (&mut v, &mut w)] {
        let data = pattern(5, 1000);
        from.buffer.write(0, &data);
        to.post_recv(9, 500_000, 1040).expect("post_recv");
        from.post(2, Op::Send(None), 0, 1000).expect("post_send");
        succeed(from, to, 2);
        succeed(to, from, 9);
        assert!(to.buffer.read(500_040, 1000) == data);
    }
    // One listener a port of an address, as before.
    let other = router.open("b");
    let id = cm(other.dev()).create(port_space::TCP, 0).expect("create");
    cm(other.dev()).bind(id, port).expect("bind");
    assert!(cm(other.dev()).listen(id, 1).is_err());
    cm(b.dev()).destroy(listener).expect("destroy");
    cm(other.dev()).listen(id, 1).expect("the port is free");
}

/// Takes completions of these requests at both ends; how many succeeded, and how many did not.
fn outcome(x: &mut End, y: &mut End, requests: std::ops::Range<u64>) -> (u32, u32) {
    let (mut well, mut badly) = (0, 0);
    for n in requests {
        match complete(x, y, n, LIMIT).status {
            wc_status::SUCCESS => well += 1,
            wc_status::RETRY_EXC_ERR | wc_status::WR_FLUSH_ERR => badly += 1,
            other => panic!("{n}: status {other}"),
        }
    }
    (well, badly)
}

#[test]
fn a_router_that_stays_away_ends_what_it_carried_and_no_links() {
    let grace = Duration::from_millis(700);
    let mut longest = Duration::ZERO;
    for _ in 0..kills() {
        let mut router = Router::start(TWO_PAIRS);
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| patient_for(&router, name, grace));
        let (mut v, mut w) = connected_pair(a.dev(), b.dev());
        let (mut x, mut y) = connected_pair(c.dev(), d.dev());
        exchange(&mut v, &mut w, 1, BYTES);
        exchange(&mut x, &mut y, 2, BYTES);
        // Under way when it dies: more than its rings hold.
        for n in 0..20 {
            y.post_recv(100 + n, 0, 50_000).expect("post_recv");
            x.post(200 + n, Op::Send(None), 0, 50_000).expect("post_send");
        }
        router.kill();
        let killed = Instant::now();
        // Each ends, and one of them says why.
        let (_, badly) = outcome(&mut x, &mut y, 200..220);
        longest = longest.max(killed.elapsed());
        assert!(badly > 0 && killed.elapsed() >= grace, "{badly} {:?}", killed.elapsed());
        let (status, cause) = failure(&mut x, &mut y);
        assert_eq!((status, cause.code), (wc_status::WR_FLUSH_ERR, CauseCode::RouterLost as u32));
        assert!(cause.to_string().contains("router"), "{cause}");
        exchange(&mut v, &mut w, 3, BYTES);
        // Too late.
        router.restart();
        exchange(&mut v, &mut w, 4, BYTES);
        assert!(router.sessions().iter().all(|s| !s.contains("\"tenant\":\"c\"")));
    }
    println!("a deadline of {grace:?}: all had ended {longest:?} after the kill, at the latest");
}

#[test]
fn a_session_that_the_router_ends_is_not_resumed() {
    let router = Router::start(TWO_PAIRS);
    let (c, d) = (router.open("c"), router.open("d"));
    let (mut x, mut y) = connected_pair(c.dev(), d.dev());
    exchange(&mut x, &mut y, 1, BYTES);
    let sessions = router.sessions();
    let own = sessions.iter().find(|s| s.contains("\"tenant\":\"c\"")).expect("a session");
    let id = number(own, "session").expect("a number").to_string();
    let done = gdrcore_tests::tools::run(&mut router.asks(&["drop", &id]), 60);
    assert!(done.ok(), "{done}");
    assert_eq!(failure(&mut x, &mut y).1.code, CauseCode::RouterLost as u32);
    assert_eq!(router.sessions().len(), 1);
}

#[test]
fn without_the_key_nobody_is_resumed_and_new_sessions_work() {
    let mut router = Router::start(TWO_PAIRS);
    let key = router.socket("admin.key");
    let mode = std::fs::metadata(&key).expect("a key").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (c, d) = (router.open("c"), router.open("d"));
    let (mut x, mut y) = connected_pair(c.dev(), d.dev());
    exchange(&mut x, &mut y, 1, BYTES);
    router.kill();
    std::fs::remove_file(&key).expect("the key");
    router.restart();
    assert_eq!(failure(&mut x, &mut y).1.code, CauseCode::RouterLost as u32);
    let (c, d) = (router.open("c"), router.open("d"));
    let (mut x, mut y) = connected_pair(c.dev(), d.dev());
    exchange(&mut x, &mut y, 1, BYTES);
}

#[test]
fn a_policy_that_changed_meanwhile_counts_for_who_comes_back() {
    let mut router = Router::start(TWO_PAIRS);
    let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| router.open(name));
    let (mut v, mut w) = connected_pair(a.dev(), b.dev());
    let (mut x, mut y) = connected_pair(c.dev(), d.dev());
    exchange(&mut v, &mut w, 1, BYTES);
    exchange(&mut x, &mut y, 2, BYTES);
    router.kill();
    // The tenant c is of another network, and so another tenant.
    let moved = TWO_PAIRS.replace("listen = \"DIR/c\"", "listen = \"DIR/c\"\nnetwork = \"far\"");
    router.write(&format!("[network.far]\n{moved}"));
    router.restart();
    assert_eq!(failure(&mut x, &mut y).1.code, CauseCode::RouterLost as u32);
    exchange(&mut v, &mut w, 3, BYTES);
    wait_for(60, "the others stay away", || {
        w.poll();
        v.poll();
        y.poll();
        router.sessions().len() == 3
    });
    // A link of the former life ends with the policy that allowed it.
    router.write(&TWO_PAIRS.replace("listen = \"DIR/a\"", "listen = \"DIR/a\"\nallow = []"));
    assert_eq!(router.reload(), Ok(()));
    assert_eq!(failure(&mut v, &mut w).1.code, CauseCode::PathLost as u32);
}

/// Says HELLO with a token; the errno of the refusal.
fn refused(router: &Router, name: &str, token: [u8; 64]) -> i32 {
    let mut raw = Raw::connect(&router.socket(name)).expect("a connection");
    raw.say(1, Message::Hello(Hello { token, ..hello() }));
    let Some((e, _)) = raw.hear() else { panic!("no answer") };
    -e.status
}

#[test]
fn forged_replayed_foreign_and_cut_tokens_are_refused() {
    let mut router = Router::start(TWO_PAIRS);
    let greet = |name: &str| {
        let mut raw = Raw::connect(&router.socket(name)).expect("a connection");
        let token = raw.greet().token;
        (raw, token)
    };
    let ((own, token), (others, foreign)) = (greet("a"), greet("b"));
    assert!(token != [0; 64] && foreign != token);
    assert_eq!(refused(&router, "a", token), STALE, "its session is there");
    router.kill();
    drop((own, others));
    router.restart();
    for at in [0, 5, 17, 30, 47, 48, 63] {
        let mut forged = token;
        forged[at] ^= 0x10;
        assert_eq!(refused(&router, "a", forged), STALE, "byte {at}");
        let mut cut = token;
        cut[at.max(1)..].fill(0);
        assert_eq!(refused(&router, "a", cut), STALE, "{at} bytes");
    }
    assert_eq!(refused(&router, "a", foreign), STALE, "another tenant's");
    assert_eq!(refused(&router, "a", [0xff; 64]), STALE);
    let mut back = Raw::connect(&router.socket("a")).expect("a connection");
    back.say(1, Message::Hello(Hello { token, ..hello() }));
    let (e, _) = back.hear().expect("an answer");
    let Message::Welcome(w) = e.message else { panic!("{e:?}") };
    assert_eq!(e.status, 0, "{}", w.cause);
    assert_eq!(refused(&router, "a", token), STALE, "replayed");
    assert_eq!(refused(&router, "a", w.token), STALE, "the newer one, too");
    drop(back);
    wait_for(60, "the session stays", || router.sessions().is_empty());
    assert_eq!(refused(&router, "a", token), STALE, "its numbers rest");
}
