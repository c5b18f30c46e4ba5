//! Devices by way of a router: what connects, what policy forbids and in which words, what goes on
//! when the router or a process ends.

use gdrcore_core::cm::types::{cm_event, port_space};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{qp_type, wc_status};
use gdrcore_core::Error;
use gdrcore_net::reason;
use gdrcore_net::soft::{SoftConfig, SoftDevice};
use gdrcore_tests::cm::{self, cm};
use gdrcore_tests::ends::{connected, connected_pair, pattern, succeed, End, Op, Shape};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::patience::{deadline, wait_for};
use gdrcore_tests::router::{number, words, Router, TWO};
use gdrcore_tests::soft::Soft;
use gdrcore_tests::tools::as_root;
use gdrcore_tests::traffic::{exchange_between, failure};
use gdrcore_tests::{far_end, or_skip};
use std::time::{Duration, Instant};

const FAR: &str = env!("CARGO_BIN_EXE_far_end");

#[test]
fn connected_queue_pairs_of_two_tenants_and_of_one() {
    let router = Router::start(TWO);
    let devices = [router.open("a"), router.open("a"), router.open("b")];
    let attrs = devices.iter().map(|d| d.dev().query().expect("query")).collect::<Vec<_>>();
    assert_eq!(attrs[0].gid[10..], [0xff, 0xff, 10, 99, 0, 2]);
    assert_eq!((attrs[1].gid, attrs[2].gid[15]), (attrs[0].gid, 3));
    let mut blocks: Vec<u32> = attrs.iter().map(|a| a.qpn_base / QPN_UNIT).collect();
    blocks.sort_unstable();
    blocks.dedup();
    assert_eq!(blocks.len(), 3, "each has numbers of its own");
    let uc = Shape { qp_type: qp_type::UC, ..Shape::default() };
    for _ in 0..3 {
        for x in &devices {
            for y in &devices {
                exchange_between(x.dev(), y.dev(), Shape::default(), 300_001);
                exchange_between(x.dev(), y.dev(), uc, 30_000);
            }
        }
    }
    let counters = devices[0].dev().counters().expect("counters");
    assert_eq!(
        (counters.port_tx_calls, counters.retry_timeouts, counters.rcvd_malformed),
        (0, 0, 0)
    );
    let sessions = router.sessions();
    assert_eq!(sessions.len(), 3, "{sessions:?}");
    assert_eq!(
        sessions
            .iter()
            .filter(|s| s.contains("\"tenant\":\"a\"") && s.contains("\"address\":\"10.99.0.2\""))
            .count(),
        2
    );
    let status = router.ask("status");
    assert!(status.ok() && status.output.contains("\"sessions\":3"), "{status}");
    drop(devices);
    wait_for(60, "sessions stay", || router.sessions().is_empty());
}

#[test]
fn what_policy_forbids_is_refused_in_its_words() {
    let router = Router::start(
        &TWO.replace("vip = \"10.99.0.2\"", "vip = \"10.99.0.2\"\nallow = [\"c\"]").replace(
            "[tenant.b]",
            "[network.far]\n[tenant.c]\nlisten = \"DIR/c\"\nnetwork = \"far\"\n[tenant.b]",
        ),
    );
    reason::install();
    let [a, b, c] = ["a", "b", "c"].map(|name| router.open(name));
    for (x, y) in [(&a, &b), (&b, &a)] {
        let (e, why) = words(connected(x.dev(), y.dev(), Shape::default()).map(drop));
        assert!(
            e == Error::Access && why.contains("`allow` of tenant a names neither b nor 10.99.0.3"),
            "{e} {why}"
        );
    }
    // Of another network: it is as if nobody were there.
    let (e, why) = words(connected(a.dev(), c.dev(), Shape::default()).map(drop));
    assert!(
        e == Error::Os(libc::EHOSTUNREACH) && why.contains("nobody in network default"),
        "{e} {why}"
    );
    // Another policy, and it works.
    router.write(TWO);
    assert_eq!(router.reload(), Ok(()));
    exchange_between(a.dev(), b.dev(), Shape::default(), 1000);
    // And one with a slip changes nothing.
    router.write("[tenant.a]\nlissten = \"DIR/a\"\n");
    let fault = router.reload().unwrap_err();
    assert!(fault.contains("line 2, column 1: unknown field `lissten`"), "{fault}");
    exchange_between(b.dev(), a.dev(), Shape::default(), 1000);
}

#[test]
fn an_open_that_leads_nowhere_says_where() {
    let router = Router::start(TWO);
    reason::install();
    let open = |name: &str| words(Soft::open(name, &SoftConfig::default()).map(drop));
    let (e, why) = open("router:/nowhere/at.all");
    assert!(
        e == Error::NoDevice && why.contains("'/nowhere/at.all': there is no such socket"),
        "{e} {why}"
    );
    let (e, why) = open("router:nobody");
    assert!(
        e == Error::NoDevice
            && why.contains("neither /freeflow/nobody.gdrc nor /run/gdrcore/nobody.gdrc"),
        "{e} {why}"
    );
    let (e, why) = open(&router.device("admin"));
    assert!(e == Error::NoDevice && why.contains("another program's"), "{e} {why}");
    let mut config = SoftConfig::default();
    config.core.qpn_base = 5 * QPN_UNIT;
    let (e, why) = words(Soft::open(&router.device("a"), &config).map(drop));
    assert!(e == Error::Invalid && why.contains("qpn_base"), "{e} {why}");
    // Who is nobody's.
    router.write("[router]\nlisten = \"DIR/any\"\n[tenant.x]\nmatch = { uid = 4000000 }\n");
    assert_eq!(router.reload(), Ok(()));
    let (e, why) = open(&router.device("any"));
    assert!(e == Error::Access && why.contains("no tenant of the policy is pid"), "{e} {why}");
    assert!(
        why.contains(&format!("pid {}, uid", std::process::id()))
            && why.contains("network namespace"),
        "{why}"
    );
    let (e, why) = open(&router.device("a"));
    assert!(
        e == Error::NoDevice && why.contains("there is no such socket"),
        "it is no tenant's any more: {e} {why}"
    );
}

/// A number of the relay's, summed over the sessions.
fn relayed(router: &Router, name: &str) -> u64 {
    router.sessions().iter().filter_map(|line| number(line, name)).sum()
}

/// Datagrams there and back.
fn talk(a: &dyn Device, b: &dyn Device) {
    let shape = Shape { qp_type: qp_type::UD, ..Shape::default() };
    let (mut x, mut y) = connected(a, b, shape).expect("ends that know each other");
    for (n, bytes) in [1u32, 64, 1000, 4096].into_iter().enumerate() {
        let n = n as u64;
        let data = pattern(n, bytes as usize);
        for _ in 0..2 {
            x.buffer.write(0, &data);
            y.post_recv(100 + n, 500_000, bytes + 40).expect("post_recv");
            x.post(n, Op::Send(None), 0, bytes).expect("post_send");
            succeed(&mut x, &mut y, n);
            succeed(&mut y, &mut x, 100 + n);
            assert!(y.buffer.read(500_040, bytes as usize) == data);
            std::mem::swap(&mut x, &mut y);
        }
    }
    x.destroy().expect("nothing in use");
    y.destroy().expect("nothing in use");
}

#[test]
fn datagrams_go_by_way_of_the_router() {
    let router = Router::start(TWO);
    let devices = [router.open("a"), router.open("a"), router.open("b")];
    for x in &devices {
        for y in &devices {
            talk(x.dev(), y.dev());
        }
    }
    // Six pairs of two processes, eight datagrams each.
    assert_eq!((relayed(&router, "tx_packets"), relayed(&router, "rx_packets")), (48, 48));
    for refused in ["full", "bad_frame", "bad_source", "bad_address", "bad_qpn", "policy", "rate"] {
        assert_eq!(relayed(&router, refused), 0, "{refused}");
    }
    let counters = devices[0].dev().counters().expect("counters");
    assert_eq!((counters.rcvd_malformed, counters.rcvd_icrc_err), (0, 0));
}

#[test]
fn the_connection_manager_goes_by_way_of_the_router() {
    let router = Router::start(TWO);
    reason::install();
    let [a, b, c] = ["a", "b", "b"].map(|name| router.open(name));
    for to in [&b, &c] {
        let (mut x, mut y, ids) = cm::connected(a.dev(), to.dev(), Shape::default());
        let data = pattern(3, 100_000);
        x.buffer.write(0, &data);
        y.post_recv(9, 500_000, 100_000).expect("post_recv");
        x.post(1, Op::Send(None), 0, 100_000).expect("post_send");
        succeed(&mut x, &mut y, 1);
        succeed(&mut y, &mut x, 9);
        assert!(y.buffer.read(500_000, 100_000) == data);
        cm(a.dev()).destroy(ids[0]).expect("destroy");
        cm(to.dev()).destroy(ids[1]).expect("destroy");
    }
    // One listener a port of an address, whichever process it is.
    let (id, port) = cm::listen(b.dev(), port_space::TCP, 1);
    let other = cm(c.dev()).create(port_space::TCP, 0).expect("create");
    cm(c.dev()).bind(other, port).expect("bind");
    let (e, why) = words(cm(c.dev()).listen(other, 1));
    assert!(e == Error::AddressInUse && why.contains("another process of this address"), "{why}");
    let elsewhere = cm(a.dev()).create(port_space::TCP, 0).expect("create");
    cm(a.dev()).bind(elsewhere, port).expect("bind");
    cm(a.dev()).listen(elsewhere, 1).expect("another address");
    cm(b.dev()).destroy(id).expect("destroy");
    cm(c.dev()).listen(other, 1).expect("the port is free");
    // Nobody listens: refused at once, not by a timeout.
    let end = End::new(a.dev(), Shape::default()).expect("an end");
    let id = cm::connect(&end, cm::address(b.dev()), port ^ 1, &cm::offer(b""));
    cm::Events::default().expect([a.dev(), b.dev()], cm_event::REJECTED, id);
}

#[test]
fn a_router_that_isolates_carries_all_of_it() {
    let mut router = Router::start_with(TWO, &["--isolated"]);
    // They do not wait for another router for long.
    let mut config = SoftConfig::default();
    config.core.deadline_ns = 500_000_000;
    let [a, b] = ["a", "b"].map(|n| Soft::open(&router.device(n), &config).expect("a device"));
    for _ in 0..3 {
        for (x, y) in [(&a, &b), (&b, &a), (&a, &a)] {
            exchange_between(x.dev(), y.dev(), Shape::default(), 300_001);
        }
        talk(a.dev(), b.dev());
    }
    assert!(relayed(&router, "tx_bytes") > 3 * 2 * 900_000);
    let sessions = router.sessions();
    assert!(sessions.iter().all(|s| s.contains("\"linked_by\":[]")), "{sessions:?}");
    // Policy counts for what is under way.
    let brief = Shape { timeout: 12, retry_cnt: 2, ..Shape::default() };
    let (mut x, mut y) = connected(a.dev(), b.dev(), brief).expect("connected ends");
    router.write(&TWO.replace("[tenant.b]", "[tenant.b]\nallow = []"));
    assert_eq!(router.reload(), Ok(()));
    assert_eq!(failure(&mut x, &mut y).0, wc_status::RETRY_EXC_ERR);
    assert!(relayed(&router, "policy") > 0);
    // And without the router nothing goes.
    router.write(TWO);
    assert_eq!(router.reload(), Ok(()));
    let (mut x, mut y) = connected(a.dev(), b.dev(), brief).expect("connected ends");
    x.post(1, Op::Write(0, None), 0, 100).expect("post_send");
    succeed(&mut x, &mut y, 1);
    router.kill();
    let (status, cause) = failure(&mut x, &mut y);
    let lost = (wc_status::RETRY_EXC_ERR, CauseCode::RouterLost as u32);
    assert_eq!((status, cause.code), lost);
}

#[test]
fn links_outlive_the_router_and_new_ones_need_it() {
    let mut router = Router::start(TWO);
    reason::install();
    let (a, b) = (router.open("a"), router.open("b"));
    let (mut x, mut y) = connected_pair(a.dev(), b.dev());
    let mut write = |n: u64| {
        x.buffer.write(0, &pattern(n, 50_000));
        x.post(n, Op::Write(0, None), 0, 50_000).expect("post_send");
        succeed(&mut x, &mut y, n);
        assert!(y.buffer.read(0, 50_000) == pattern(n, 50_000));
    };
    write(1);
    router.kill();
    (2..200).for_each(&mut write);
    // Over the link that stands, another queue pair; to anybody else none.
    exchange_between(a.dev(), b.dev(), Shape::default(), 1000);
    let other = Soft::new("loopback");
    let nobody = connected(a.dev(), other.dev(), Shape::default()).map(drop);
    let (e, why) = words(nobody);
    assert!(e == Error::Os(libc::ENOTCONN) && why.contains("the router at"), "{e} {why}");
    let (e, why) = words(Soft::open(&router.device("a"), &SoftConfig::default()).map(drop));
    assert!(e == Error::NoDevice && why.contains("the router is not running"), "{e} {why}");
    (200..300).for_each(&mut write);
    router.restart();
    (300..310).for_each(&mut write);
    // Who opens anew is served by the new one, with numbers that its table has.
    let (c, d) = (router.open("a"), router.open("b"));
    exchange_between(c.dev(), d.dev(), Shape::default(), 100_000);
}

#[test]
fn a_link_that_policy_allows_no_more_ends() {
    let router = Router::start(TWO);
    let (a, b) = (router.open("a"), router.open("b"));
    let (mut x, mut y) = connected_pair(a.dev(), b.dev());
    x.post(1, Op::Write(0, None), 0, 100).expect("post_send");
    succeed(&mut x, &mut y, 1);
    router.write(&TWO.replace("[tenant.b]", "[tenant.b]\nallow = []"));
    assert_eq!(router.reload(), Ok(()));
    let (status, cause) = failure(&mut x, &mut y);
    // What the peer has taken succeeds by its receipt; then the next one finds the end.
    assert!([wc_status::RETRY_EXC_ERR, wc_status::WR_FLUSH_ERR].contains(&status), "{status}");
    assert_eq!(cause.code, CauseCode::PathLost as u32);
    assert_eq!(router.sessions().len(), 2, "the sessions stay");
    assert!(connected(a.dev(), b.dev(), Shape::default()).is_err());
    exchange_between(a.dev(), a.dev(), Shape::default(), 1000);
}

/// The router may tell of an end before the link was read: what is in it may be the ACK that a
/// program waits for.
#[test]
fn what_was_sent_before_a_link_ends_arrives() {
    const WRITES: usize = 300;
    let router = Router::start(TWO);
    let (a, b) = (router.open("a"), router.open("b"));
    let shape = Shape { qp_type: qp_type::UC, depth: 512, cqe: 1024, ..Shape::default() };
    let (mut x, mut y) = connected(a.dev(), b.dev(), shape).expect("connected ends");
    let data = pattern(1, WRITES);
    x.buffer.write(0, &data);
    for i in 0..WRITES as u64 {
        x.post(i, Op::Write(i, None), i, 1).expect("post_send");
    }
    wait_for(60, "they do not leave", || {
        x.poll();
        x.done.len() == WRITES
    });
    router.write(&TWO.replace("[tenant.b]", "[tenant.b]\nallow = []"));
    assert_eq!(router.reload(), Ok(()));
    wait_for(60, "the link stays", || {
        y.poll();
        y.dev.qp_cause(y.qp).expect("qp_cause").code == CauseCode::PathLost as u32
    });
    assert!(y.buffer.read(0, WRITES) == data);
}

#[test]
fn a_process_that_ends_is_noticed_and_its_numbers_rest() {
    let router = Router::start(TWO);
    let a = router.open("a");
    let mut far = Far::start(FAR, &router.device("b"), &[]);
    let mut end = End::new(a.dev(), Shape::default()).expect("an end");
    far.connect(&mut end);
    end.post(1, Op::Write(0, None), 0, 100).expect("post_send");
    let mut idle = End::new(a.dev(), Shape::default()).expect("an end");
    succeed(&mut end, &mut idle, 1);
    far.kill();
    let (status, cause) = failure(&mut end, &mut idle);
    let lost = (wc_status::RETRY_EXC_ERR, CauseCode::PathLost as u32);
    assert_eq!((status, cause.code), lost);
    wait_for(60, "the session stays", || router.sessions().len() == 1);
    let again = router.open("b");
    assert_ne!(again.dev().query().expect("query").qpn_base, end.peer.qpn / QPN_UNIT * QPN_UNIT);
    exchange_between(a.dev(), again.dev(), Shape::default(), 1000);
}

#[test]
fn a_process_without_descriptors_left_refuses_links_and_keeps_its_session() {
    let router = Router::start(TWO);
    reason::install();
    let a = router.open("a");
    let mut full = Far::start(FAR, &router.device("b"), &["full=1"]);
    full.say("make");
    let peer = far_end::parse_address(&full.answer("at ")).expect("an address");
    // More often than links may wait for an answer.
    for _ in 0..25 {
        let mut end = End::new(a.dev(), Shape::default()).expect("an end");
        // It hangs up before this side has said anything, or afterwards.
        if let Err(e) = end.connect(peer) {
            let (e, why) = words::<()>(Err(e));
            assert!(
                e == Error::Os(libc::EHOSTUNREACH) && why.contains("has closed the link"),
                "{e} {why}"
            );
            continue;
        }
        let mut idle = End::new(a.dev(), Shape::default()).expect("an end");
        assert_eq!(failure(&mut end, &mut idle).1.code, CauseCode::PathLost as u32);
    }
    assert_eq!(router.sessions().len(), 2);
}

#[test]
fn a_process_that_is_stopped_delays_its_own_links_only() {
    let router = Router::start(TWO);
    reason::install();
    let (a, b) = (router.open("a"), router.open("a"));
    let mut far = Far::start(FAR, &router.device("b"), &[]);
    far.say("make");
    let peer = far_end::parse_address(&far.answer("at ")).expect("an address");
    far.stop();
    // Its socket takes links until the router knows that nobody looks at them.
    let mut refusals = 0;
    for _ in 0..40 {
        let fresh = router.open("a");
        let mut end = End::new(fresh.dev(), Shape::default()).expect("an end");
        if let Err(e) = end.connect(peer) {
            refusals += 1;
            assert_eq!(e, Error::Again);
            assert!(words::<()>(Err(e)).1.contains("stopped"), "{}", words::<()>(Err(e)).1);
            break;
        }
        exchange_between(a.dev(), b.dev(), Shape::default(), 1000);
    }
    assert_eq!(refusals, 1);
    exchange_between(a.dev(), b.dev(), Shape::default(), 1000);
    far.signal(libc::SIGCONT);
    let end = deadline(60);
    let mut late = End::new(a.dev(), Shape::default()).expect("an end");
    while let Err(e) = late.connect(peer) {
        assert!(e == Error::Again && Instant::now() < end, "{e}");
        // It may wait for a CPU longer than there are queue pair numbers.
        late.destroy().expect("nothing in use");
        std::thread::sleep(Duration::from_millis(5));
        late = End::new(a.dev(), Shape::default()).expect("an end");
    }
}

#[test]
fn tenants_are_told_apart_by_their_users() {
    or_skip!(as_root());
    let router = Router::start(
        "[router]\nlisten = \"DIR/any\"\npool = \"10.50.0.0/24\"\n[tenant.one]\nmatch = \
         { uid = 30001 }\n[tenant.two]\nmatch = { uid = 30002 }\n",
    );
    let device = router.device("any");
    let mut from = Far::start(FAR, &device, &["user=30001", "stream=write", "piece=4096"]);
    let mut to = Far::start(FAR, &device, &["user=30002"]);
    let [a, b] = from.connect_far(&mut to);
    assert_ne!(a.ah.dgid, b.ah.dgid);
    from.say("go");
    for _ in 0..100 {
        from.answer("moved ");
    }
    let sessions = router.sessions();
    for (tenant, uid) in [("one", 30001), ("two", 30002)] {
        let has = |s: &&String| {
            s.contains(&format!("\"tenant\":\"{tenant}\"")) && s.contains(&format!("\"uid\":{uid}"))
        };
        assert_eq!(sessions.iter().filter(has).count(), 1, "{sessions:?}");
    }
    let (e, why) = {
        reason::install();
        words(Soft::open(&device, &SoftConfig::default()).map(drop))
    };
    assert!(e == Error::Access && why.contains("uid 0"), "root is neither: {e} {why}");
    let mut others = from.answer("moved ");
    wait_for(60, "the stream stands still", || {
        let next = from.answer("moved ");
        std::mem::replace(&mut others, next.clone()) != next
    });
}

#[test]
fn a_router_without_a_file_makes_every_user_a_tenant() {
    let mut router = Router::start("[router]\nlisten = \"DIR/any\"\nunmatched = \"uid\"\n");
    let (a, b) = (router.open("any"), router.open("any"));
    exchange_between(a.dev(), b.dev(), Shape::default(), 1000);
    // SAFETY: no precondition.
    let uid = unsafe { libc::geteuid() };
    assert!(router.sessions().iter().all(|s| s.contains(&format!("\"tenant\":\"uid-{uid}\""))));
    router.running().signal(libc::SIGINT);
    wait_for(60, "it does not end", || !router.running().still_runs());
    assert!(!router.socket("any").exists(), "its sockets go with it");
}

/// Makes sure that `memsize` needs nobody's answer.
#[test]
fn the_size_of_a_device_is_known_without_its_router() {
    let config = SoftConfig::default();
    assert!(SoftDevice::memsize("router:/nowhere/at.all", &config).expect("a size") > 0);
}
