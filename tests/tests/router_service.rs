//! The router as a service: draining, sockets that a supervisor holds, signs of life, units, and
//! programs of other versions.

use gdrcore_core::verbs::types::qp_type;
use gdrcore_net::via::proto::{Envelope, Hello, Message};
use gdrcore_tests::ends::{connected, connected_pair, pattern, succeed, End, Op, Shape};
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::router::{hello, Raw, Router};
use gdrcore_tests::source::root;
use gdrcore_tests::supervisor::{folder, listener, supervised};
use gdrcore_tests::tools::{installed, run, scratch};
use gdrcore_tests::{library, or_skip};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

const TWO: &str = r#"
[tenant.a]
listen = "DIR/a"
metered = true
[tenant.b]
listen = "DIR/b"
"#;

fn write(x: &mut End, y: &mut End, seed: u64) {
    let data = pattern(seed, 50_000);
    x.buffer.write(0, &data);
    x.post(seed, Op::Write(0, None), 0, 50_000).expect("post_send");
    succeed(x, y, seed);
    assert!(y.buffer.read(0, 50_000) == data);
}

/// Says HELLO; the errno of the answer and what it says.
fn answer(router: &Router, hello: Hello) -> (i32, String) {
    let mut raw = Raw::connect(&router.socket("a")).expect("a connection");
    raw.say(1, Message::Hello(hello));
    match raw.hear() {
        Some((Envelope { status, message: Message::Welcome(w), .. }, _)) => {
            (-status, w.cause.as_str().to_string())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_router_that_drains_begins_nothing_and_ends_when_it_is_empty() {
    let mut router = Router::start(TWO);
    let (a, b) = (router.open("a"), router.open("b"));
    let (mut x, mut y) = connected_pair(a.dev(), b.dev());
    write(&mut x, &mut y, 1);
    router.running().signal(libc::SIGTERM);
    wait_for(60, "it does not drain", || router.ask("status").output.contains("\"drains\":true"));
    // What stands goes on, and nothing else begins.
    (2..50).for_each(|n| write(&mut x, &mut y, n));
    let (errno, why) = answer(&router, hello());
    assert!(errno == libc::ESHUTDOWN && why.contains("about to end"), "{errno} {why}");
    let shape = Shape { qp_type: qp_type::UC, ..Shape::default() };
    assert!(connected(b.dev(), a.dev(), shape).is_err());
    x.destroy().expect("nothing in use");
    y.destroy().expect("nothing in use");
    drop((a, b));
    wait_for(60, "it does not end", || !router.running().still_runs());
}

#[test]
fn a_second_signal_ends_a_router_that_drains_at_once() {
    let mut router = Router::start(TWO);
    let _a = router.open("a");
    router.running().signal(libc::SIGTERM);
    wait_for(60, "it does not drain", || router.ask("status").output.contains("\"drains\":true"));
    router.running().signal(libc::SIGTERM);
    wait_for(60, "it does not end", || !router.running().still_runs());
}

#[test]
fn who_is_left_at_the_end_of_a_drain_is_served_by_the_next_router() {
    let mut router = Router::start(TWO);
    let (a, b) = (router.open("a"), router.open("b"));
    let (mut x, mut y) = connected_pair(a.dev(), b.dev());
    write(&mut x, &mut y, 1);
    let done = run(&mut router.asks(&["drain", "--for", "300ms"]), 60);
    assert!(done.ok(), "{done}");
    wait_for(60, "it does not end", || !router.running().still_runs());
    router.restart();
    (2..5).for_each(|n| write(&mut x, &mut y, n));
    assert_eq!(router.sessions().len(), 2);
}

#[test]
fn a_program_of_another_version_is_told_both_ranges() {
    let router = Router::start(TWO);
    for versions in [(3, 9), (7, 7), (0, 0), (1, 1), (9, 3)] {
        let (errno, why) = answer(&router, Hello { versions, ..hello() });
        let ranges = format!(
            "versions 2 to 2 of its protocol, the program {} to {}",
            versions.0, versions.1
        );
        assert!(errno == libc::EPROTONOSUPPORT && why.contains(&ranges), "{errno} {why}");
    }
    // One that speaks ours too, and whose HELLO has fields that we do not know.
    let bytes = |tail: u8| {
        let hello = Message::Hello(Hello { versions: (1, 3), ..hello() });
        let mut buffer = [0; 4096];
        let n = Envelope::new(1, hello).emit(&mut buffer);
        let mut bytes = buffer[..n].to_vec();
        bytes.extend_from_slice(&[0, 0, 0, tail]);
        let len = (bytes.len() as u32).to_le_bytes();
        bytes[12..16].copy_from_slice(&len);
        bytes
    };
    let mut raw = Raw::connect(&router.socket("a")).expect("a connection");
    raw.say_bytes(&bytes(0), None);
    let Some((Envelope { status: 0, message: Message::Welcome(w), .. }, _)) = raw.hear() else {
        panic!("no WELCOME")
    };
    assert_eq!(w.version, 2);
    let mut raw = Raw::connect(&router.socket("a")).expect("a connection");
    raw.say_bytes(&bytes(1), None);
    let Some((Envelope { message: Message::Bye(bye), .. }, _)) = raw.hear() else {
        panic!("no BYE")
    };
    assert_eq!(bye.errno, libc::E2BIG, "fields that it cannot do without");
}

#[test]
fn sockets_of_a_supervisor_outlive_the_router() {
    let bash = or_skip!(installed("bash"));
    let dir = folder("sockets");
    let dir = dir.as_path();
    let (a, at) = (dir.join("a"), gdrcore_tests::place::loopback(7, 77));
    let address = at.map(|n| n.to_string()).join(".");
    let policy = dir.join("policy.toml");
    let map = dir.join("map.toml");
    let host = format!("[h]\naddress = \"{address}\"\nport = 14791\n");
    std::fs::write(&map, &host).expect("the map");
    let text = format!(
        "[router]\nkey = \"{0}/key\"\n[host]\nid = \"h\"\naddress = \"{address}\"\nport = 14791\n\
         map = \"{0}/map.toml\"\n[tenant.a]\nlisten = \"{0}/a\"\n",
        dir.display()
    );
    std::fs::write(&policy, text).expect("the policy");
    let (tenant, stray) = (listener(&a), listener(&dir.join("stray")));
    let wire = std::net::UdpSocket::bind((address.as_str(), 14791)).expect("a socket");
    let start = || {
        let mut running = supervised(&bash, &[&tenant, &wire, &stray], &policy);
        running.wait_for_output("ready");
        running
    };
    let mut first = start();
    assert!(first.output().contains("the socket stray"), "{}", first.output());
    let mut raw = Raw::connect(&a).expect("a connection");
    let (before, _rings) = raw.greet_with_rings();
    first.kill();
    first.finish(Duration::from_secs(60));
    // The next connection waits in the listener, and the address is still taken.
    let mut raw = Raw::connect(&a).expect("a connection");
    raw.say(1, Message::Hello(Hello { token: before.token, ..hello() }));
    assert!(std::net::UdpSocket::bind((address.as_str(), 14791)).is_err());
    let second = start();
    let Some((Envelope { status: 0, message: Message::Welcome(again), .. }, _)) = raw.hear() else {
        panic!("no WELCOME: {}", second.output())
    };
    assert_eq!((again.session, again.qpns), (before.session, before.qpns));
    // It ends in order, and leaves the supervisor's files alone.
    drop(raw);
    second.signal(libc::SIGTERM);
    assert!(second.finish(Duration::from_secs(60)).ok());
    assert!(a.exists());
    std::fs::remove_dir_all(dir).expect("the folder");
}

#[test]
fn a_supervisor_is_told_that_the_router_is_ready_lives_and_ends() {
    let path = folder("notify").join("socket");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut line = [0; 64];
    let mut next = || {
        let n = socket.recv(&mut line).expect("a message");
        String::from_utf8_lossy(&line[..n]).into_owned()
    };
    let name = path.to_str().expect("a path of text");
    let environment = [("NOTIFY_SOCKET", name), ("WATCHDOG_USEC", "200000")];
    let mut router = Router::start_in(TWO, &[], &environment);
    assert_eq!(next(), "READY=1");
    // Without anything to do it still gives signs of life.
    for _ in 0..3 {
        assert_eq!(next(), "WATCHDOG=1");
    }
    router.running().signal(libc::SIGTERM);
    let mut said = next();
    while said == "WATCHDOG=1" {
        said = next();
    }
    assert_eq!(said, "STOPPING=1");
}

#[test]
fn the_units_are_what_systemd_takes() {
    let analyze = or_skip!(installed("systemd-analyze"));
    let dir = scratch("router-units");
    let routerd = library::router().join("gdrcore-routerd");
    let mut files = Vec::new();
    for name in ["gdrcore-routerd.socket", "gdrcore-routerd.service"] {
        let text = std::fs::read_to_string(root().join("router/units").join(name)).expect(name);
        // The router makes the folder of its tenants, for itself alone; systemd, for all.
        let made = text.lines().any(|l| l.starts_with("RuntimeDirectory=") && l.contains("/t"));
        assert!(!made, "{name}");
        let text = text.replace("/usr/bin/gdrcore-routerd", routerd.to_str().expect("text"));
        std::fs::write(dir.join(name), text).expect(name);
        files.push(dir.join(name));
    }
    let done = run(Command::new(&analyze).args(["verify", "--man=no"]).args(&files), 60);
    let ours: Vec<&str> = done.output.lines().filter(|l| l.contains("gdrcore")).collect();
    assert!(done.ok() && ours.is_empty(), "{done}");
}
