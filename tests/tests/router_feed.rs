//! The router's feed as an adapter sees it, with adapters that keep to the protocol and such that
//! do not.

use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::via::proto::Message;
use gdrcore_router_feed::{Event, Key, Wish, LINE_MAX};
use gdrcore_tests::feed::{address, ask, entry, policy, routed, start, status, wait_for, Adapter};
use gdrcore_tests::rng::Rng;
use gdrcore_tests::router::{Raw, Router};
use gdrcore_tests::tools::as_root;
use gdrcore_tests::{or_skip, patience};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const EAGAIN: i32 = 11;

/// A router of a host with one tenant, blue.
fn router(host: u32) -> Router {
    start(&policy("a", &address(host), &[("blue", 1, (748, 4))]))
}

#[test]
fn an_adapter_is_told_of_this_hosts_tenants_and_tells_of_others() {
    let router = router(1);
    let socket = router.socket("feed");
    let mut adapter = Adapter::connect(&socket);
    let own = adapter.hear_all();
    assert_eq!(own.len(), 1);
    assert_eq!(
        (own[0].vip.as_str(), own[0].blocks, own[0].host.as_str()),
        ("10.99.0.1", (748, 4), "a")
    );
    assert_eq!(own[0].address, address(1));
    assert_eq!(status(&router, "adapter"), "true");
    adapter.tell_all(&[entry("b", "192.0.2.2", 7, (1, 4)), entry("c", "192.0.2.3", 8, (1, 4))]);
    wait_for(&router, "tenants", "2");
    assert_eq!(status(&router, "default"), "true");
    let hosts = router.ask("hosts").output;
    assert!(hosts.contains("192.0.2.2:4791") && hosts.contains("192.0.2.3:4791"), "{hosts}");
    // A second one is sent away, and the first one stays.
    let mut second = Adapter::connect(&socket);
    match second.hear() {
        Some(Wish::Error { why }) => assert!(why.contains("adapter already"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert!(second.wait_for_end());
    adapter.say(&Event::Gone { network: "default".into(), vip: "10.99.0.8".into(), stale: true });
    wait_for(&router, "stale", "1");
    // A new policy.
    let more = policy("a", &address(1), &[("blue", 1, (748, 4)), ("red", 2, (752, 4))]);
    router.write(&more);
    router.reload().unwrap();
    match adapter.hear() {
        Some(Wish::Publish(entry)) => assert_eq!(entry.tenant, "red"),
        other => panic!("{other:?}"),
    }
    router.write(&policy("a", &address(1), &[("red", 2, (752, 4))]));
    router.reload().unwrap();
    let withdrawn = Key { network: "default".into(), vip: "10.99.0.1".into() };
    assert_eq!(adapter.hear(), Some(Wish::Withdraw(withdrawn)));
    router.write(&more.replace("map = \"feed\"\nfeed = \"DIR/feed\"", "map = \"DIR/none\""));
    assert!(router.reload().is_err());
    // What it has brought outlives it.
    drop(adapter);
    wait_for(&router, "adapter", "false");
    assert_eq!(
        (status(&router, "tenants"), status(&router, "default")),
        ("2".into(), "false".into())
    );
    let mut next = Adapter::connect(&socket);
    assert_eq!(next.hear_all().len(), 1);
    next.tell_all(&[entry("b", "192.0.2.2", 7, (1, 4))]);
    wait_for(&router, "default", "true");
    assert_eq!(status(&router, "stale"), "1", "the other one may be cut off");
}

#[test]
fn a_program_waits_for_what_is_not_known_yet_and_not_for_ever() {
    let router = router(2);
    let mut raw = Raw::connect(&router.socket("blue.gdrc")).unwrap();
    let (welcome, _rings) = raw.greet_with_rings();
    assert_eq!(welcome.qpns.0, 748 * QPN_UNIT);
    // Nobody brings the map.
    assert!(raw.say(2, ask(7, QPN_UNIT)));
    let (e, _) = raw.hear().unwrap();
    let (status, routed_) = routed(&e);
    assert_eq!((e.seq, status), (2, -EAGAIN));
    assert!(routed_.cause.as_str().starts_with("store down: 10.99.0.7"), "{:?}", routed_.cause);
    // It comes while the program waits.
    let mut adapter = Adapter::connect(&router.socket("feed"));
    adapter.hear_all();
    assert!(raw.say(3, ask(7, QPN_UNIT)));
    adapter.tell_all(&[entry("b", "192.0.2.2", 7, (1, 4))]);
    let (e, _) = raw.hear().unwrap();
    assert_eq!((e.seq, routed(&e).0), (3, 0));
    assert!(raw.say(4, ask(8, QPN_UNIT)));
    let (e, _) = raw.hear().unwrap();
    assert_eq!((e.seq, routed(&e).0), (4, -libc::EHOSTUNREACH), "all is known");
    drop(adapter);
    wait_for(&router, "adapter", "false");
    assert!(raw.say(5, ask(7, QPN_UNIT)));
    let (e, _) = raw.hear().unwrap();
    assert_eq!((e.seq, routed(&e).0), (5, 0), "what is known stays known");
}

#[test]
fn a_tenant_whose_address_another_host_has_is_told_the_holder() {
    let router = router(3);
    let mut raw = Raw::connect(&router.socket("blue.gdrc")).unwrap();
    let _rings = raw.greet_with_rings();
    let mut adapter = Adapter::connect(&router.socket("feed"));
    adapter.hear_all();
    let (network, vip) = ("default".to_string(), "10.99.0.1".to_string());
    adapter.say(&Event::Denied { network, vip, holder: "b".into() });
    match raw.hear() {
        Some((e, _)) => match e.message {
            Message::Bye(bye) => {
                assert_eq!(bye.text.as_str(), "address 10.99.0.1 of tenant blue is held by host b")
            }
            other => panic!("{other:?}"),
        },
        None => panic!("no farewell"),
    }
    assert!(router.ask("status").output.contains("\"host\":\"b\""));
}

/// Lines that no adapter sends.
fn nonsense(rng: &mut Rng) -> Vec<u8> {
    let mut bytes: Vec<u8> = match rng.below(6) {
        0 => (0..rng.below(2000)).map(|_| rng.below(256) as u8).collect(),
        1 => b"{\"put\":{".repeat(1 + rng.below(200) as usize),
        2 => b"[".repeat(LINE_MAX - 1),
        3 => b"{\"put\":{\"network\":\"default\"}}".to_vec(),
        4 => format!("{{\"begin\":{{\"network\":\"{}\"}}}}", "x".repeat(LINE_MAX)).into_bytes(),
        _ => b"\"\\ud800\"".to_vec(),
    };
    bytes.push(b'\n');
    bytes
}

#[test]
fn nothing_that_an_adapter_sends_harms() {
    let mut router = router(4);
    let socket = router.socket("feed");
    let mut raw = Raw::connect(&router.socket("blue.gdrc")).unwrap();
    let _rings = raw.greet_with_rings();
    let mut adapter = Adapter::connect(&socket);
    adapter.hear_all();
    adapter.tell_all(&[entry("b", "192.0.2.2", 7, (1, 4))]);
    wait_for(&router, "tenants", "1");
    drop(adapter);
    let mut rng = Rng::new(17);
    for seq in 0..60 {
        wait_for(&router, "adapter", "false");
        let mut bad = Adapter::connect(&socket);
        bad.say_bytes(b"\n");
        assert!(bad.wait_for_end(), "an empty line is none");
        wait_for(&router, "adapter", "false");
        let mut bad = Adapter::connect(&socket);
        let line = nonsense(&mut rng);
        let (one, rest) = line.split_at(rng.below(line.len() as u64) as usize);
        bad.say_bytes(one);
        if seq % 8 == 0 {
            bad.pause();
        }
        bad.say_bytes(rest);
        assert!(bad.wait_for_end(), "{}", String::from_utf8_lossy(&line));
        assert!(raw.say(seq, ask(7, QPN_UNIT)));
        let (e, _) = raw.hear().unwrap();
        assert_eq!((e.seq, routed(&e).0), (seq, 0), "what was known is known");
    }
    // Half a line, and the end.
    Adapter::connect(&socket).say_bytes(b"{\"begin\":{\"netw");
    wait_for(&router, "adapter", "false");
    // What can't be is refused; answers that nobody reads are left out, and cost no memory.
    let mut bad = Adapter::connect(&socket);
    let mut flood = Vec::new();
    for n in 0..20_000 {
        let e = match n % 4 {
            0 => entry("a", "192.0.2.9", 9, (1, 1)),
            1 => entry("b", &address(4), 9, (1, 1)),
            2 => entry("b", "192.0.2.2", 9, (0, 1)),
            _ => entry("b", "0.0.0.0", 9, (1, 1)),
        };
        gdrcore_router_feed::write(&Event::Put(e), &mut flood);
    }
    assert!(bad.say_bytes(&flood));
    patience::wait_for(60, "refused lines", || status(&router, "refused") == "20000");
    assert_eq!(status(&router, "tenants"), "1");
    bad.hear_all();
    match bad.hear() {
        Some(Wish::Refused { why, .. }) => assert!(why.contains("host a is this one"), "{why}"),
        other => panic!("{other:?}"),
    }
    drop(bad);
    assert!(router.running().still_runs());
    assert!(raw.say(99, ask(7, QPN_UNIT)));
    assert_eq!(routed(&raw.hear().unwrap().0).0, 0);
}

#[test]
fn another_user_is_no_adapter() {
    or_skip!(as_root());
    let router = router(5);
    let socket = router.socket("feed");
    let mode = |path: &Path| std::fs::metadata(path).expect("a socket").permissions().mode();
    assert_eq!(mode(&socket) & 0o777, 0o600);
    // Even if somebody has opened it to all.
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).expect("a socket");
    let said = std::thread::spawn(move || {
        // SAFETY: takes numbers alone. Of this thread, and not of the process, as the library's
        // call would.
        let rc = unsafe { libc::syscall(libc::SYS_setresuid, -1, 30_002, -1) };
        assert_eq!(rc, 0);
        let mut stranger = Adapter::connect(&socket);
        (stranger.hear(), stranger.wait_for_end())
    });
    match said.join().expect("a stranger") {
        (Some(Wish::Error { why }), true) => assert!(why.contains("only root"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(status(&router, "adapters"), "0");
}
