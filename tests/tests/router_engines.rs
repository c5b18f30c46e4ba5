//! A device of several engines over a router: each engine is a session of its tenant, so its
//! threads do not wait for each other, and what the router counts and bounds it counts for each.

use gdrcore_core::cm::types::port_space;
use gdrcore_core::device::CqPlace;
use gdrcore_core::verbs::types::{qp_type, wc_opcode};
use gdrcore_net::soft::{soft_flags, EngineCount, SoftConfig};
use gdrcore_tests::cm::{join, listen, Events};
use gdrcore_tests::ends::{connect_both, connected, pattern, succeed, End, Op, Shape};
use gdrcore_tests::or_skip;
use gdrcore_tests::patience::{deadline, wait_for};
use gdrcore_tests::rdmacm::counted;
use gdrcore_tests::router::{on_the_drop_in, Router, TWO};
use gdrcore_tests::soft::Soft;
use gdrcore_tests::tools::{compile, run, scratch, verbs_compiler};
use gdrcore_tests::workers::{await_one, block, comes, elsewhere, engine_of, shape, write, LEN};
use std::process::Command;

/// Links between tenants, and a router that passes everything on.
const EACH: [&[&str]; 2] = [&[], &["--isolated"]];

fn open(router: &Router, tenant: &str, engines: EngineCount) -> Soft {
    let config = SoftConfig { flags: soft_flags::HELPER, ..SoftConfig::default() };
    Soft::open_with(&router.device(tenant), &config, engines).expect("open")
}

/// Ends of this thread's engines, and of another thread's.
fn pairs<'d>(a: &'d Soft, b: &'d Soft) -> [(End<'d>, End<'d>); 2] {
    let make = || connected(a.dev(), b.dev(), shape()).expect("ends");
    [make(), elsewhere(make)]
}

#[test]
fn threads_of_a_tenant_work_beside_each_other() {
    for options in EACH {
        let router = Router::start_with(TWO, options);
        let [a, b] = ["a", "b"].map(|tenant| open(&router, tenant, EngineCount::all(2)));
        assert_eq!(router.sessions().len(), 4);
        let pairs = pairs(&a, &b);
        assert_ne!(block(&pairs[0].0), block(&pairs[1].0), "an engine each");
        std::thread::scope(|scope| {
            for (n, (mut x, y)) in pairs.into_iter().enumerate() {
                scope.spawn(move || {
                    write(&mut x, &y, (n as u64) << 40, 300);
                    x.destroy().expect("destroy");
                    y.destroy().expect("destroy");
                });
            }
        });
        assert_eq!(a.dev().leaks().unwrap(), Default::default());
        drop((a, b));
        wait_for(60, "sessions stay", || router.sessions().is_empty());
    }
}

#[test]
fn queue_pairs_of_two_engines_of_a_tenant_reach_each_other() {
    for options in EACH {
        let router = Router::start_with(TWO, options);
        let set = open(&router, "a", EngineCount::all(2));
        let dev = set.dev();
        let mut a = End::new(dev, shape()).expect("end");
        let mut b = elsewhere(|| End::new(dev, shape()).expect("end"));
        assert_ne!(block(&a), block(&b));
        connect_both(&mut a, &mut b);
        for round in 0..20 {
            let bytes = pattern(round, 3000);
            a.buffer.write(0, &bytes);
            a.post(round, Op::Write(4096, None), 0, 3000).unwrap();
            succeed(&mut a, &mut b, round);
            assert!(b.buffer.read(4096, 3000) == bytes, "{round}");
        }
        // Datagrams, which the router passes on.
        let shape = Shape { qp_type: qp_type::UD, ..shape() };
        let mut a = End::new(dev, shape).expect("end");
        let mut b = elsewhere(|| End::new(dev, shape).expect("end"));
        connect_both(&mut a, &mut b);
        for round in 0..20 {
            b.post_recv(round, 4096, LEN + 40).expect("post_recv");
            loop {
                a.post(round, Op::Send(None), 0, LEN).expect("post_send");
                await_one(&mut a, wc_opcode::SEND);
                if comes(&mut b, wc_opcode::RECV, deadline(2)) {
                    break;
                }
            }
        }
    }
}

#[test]
fn connections_have_queue_pairs_of_any_engine() {
    for options in EACH {
        let router = Router::start_with(TWO, options);
        let [a, b] = ["a", "b"].map(|tenant| open(&router, tenant, EngineCount::all(2)));
        let [a, b] = [a.dev(), b.dev()];
        let mut events = Events::default();
        let (_, port) = listen(b, port_space::TCP, 0);
        let ends = || [a, b].map(|dev| End::new(dev, shape()).expect("end"));
        for [mut mine, mut theirs] in [ends(), elsewhere(ends)] {
            join(&mut events, &mine, &theirs, port);
            (mine.peer, theirs.peer) = (theirs.own, mine.own);
            let bytes = pattern(1, 1000);
            mine.buffer.write(0, &bytes);
            mine.post(1, Op::Write(0, None), 0, 1000).unwrap();
            succeed(&mut mine, &mut theirs, 1);
            assert!(theirs.buffer.read(0, 1000) == bytes);
        }
    }
}

#[test]
fn threads_share_an_engine_where_the_router_gives_no_further_session() {
    let policy = TWO.replace("vip = \"10.99.0.2\"", "vip = \"10.99.0.2\"\nsessions = 2");
    let router = Router::start(&policy);
    let set = open(&router, "a", EngineCount::up_to(4));
    let dev = set.dev();
    let of = |n| engine_of(dev.cq_create_at(4, CqPlace::Domain(n)).expect("a CQ").0);
    let made = [0, 1, 2, 3].map(of);
    assert_eq!(made[..2], [0, 1]);
    assert!(made.iter().all(|&k| k < 2), "{made:?}");
    assert_eq!(router.sessions().len(), 2);
}

#[test]
fn a_program_on_the_drop_in_has_as_many_sessions_as_engines() {
    or_skip!(verbs_compiler());
    let dir = scratch("router-engines");
    let program = compile("cc", "verbs_threads", &dir, &["-libverbs", "-lpthread"]);
    for (engines, expected) in [(None, 0), (Some("3"), 4)] {
        let router = Router::start(TWO);
        let mut c = Command::new(&program);
        on_the_drop_in(&mut c);
        c.args(["4", "500", "domains"]).env("GDRC_ROUTER", router.socket("a"));
        c.env("GDRC_STATS", "1").env_remove("GDRC_ENGINES");
        c.envs(engines.map(|n| ("GDRC_ENGINES", n)));
        let done = run(&mut c, 120);
        assert!(done.ok() && done.output.contains("ok, 2000"), "{engines:?}: {done}");
        // Two of each worker whose thread domain is of another engine than the main thread's.
        let crossing = counted(&done.output, "qps_of_two_engines");
        assert_eq!(crossing, expected, "{engines:?}: {done}");
    }
}

#[test]
fn all_engines_go_on_when_the_router_comes_back() {
    let mut router = Router::start_with(TWO, &["--isolated"]);
    let [a, b] = ["a", "b"].map(|tenant| open(&router, tenant, EngineCount::all(2)));
    let mut pairs = pairs(&a, &b);
    for round in 0..3 {
        for (x, y) in &mut pairs {
            write(x, y, round, 20);
        }
        router.kill();
        router.restart();
        wait_for(60, "sessions do not come back", || router.sessions().len() == 4);
    }
}
