//! What a router gives nobody: more descriptors than it has, room for connections that say nothing,
//! answers to other users.

use gdrcore_net::via::proto::{feature, Envelope, Hello, Message};
use gdrcore_tests::or_skip;
use gdrcore_tests::patience::{limit, wait_for};
use gdrcore_tests::process::descriptors;
use gdrcore_tests::router::{hello, Raw, Router};
use gdrcore_tests::tools::{as_root, installed};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

const POLICY: &str = r#"
[tenant.a]
listen = "DIR/a"
sessions = 100
blocks = 100
"#;

#[test]
fn sessions_beyond_the_descriptors_are_sent_away_and_the_rest_is_served() {
    const MOST: usize = 128;
    or_skip!(installed("prlimit"));
    let mut router = Router::start_with_descriptors(POLICY, MOST);
    let mut kept = Vec::new();
    let mut sent_away = 0;
    for _ in 0..60 {
        let mut raw = Raw::connect(&router.socket("a")).expect("a connection");
        let features = feature::DIRECT | feature::RELAY;
        raw.say(1, Message::Hello(Hello { features, ..hello() }));
        match raw.hear() {
            Some((Envelope { status: 0, .. }, rings)) => kept.push((raw, rings)),
            Some((e, _)) => panic!("{e:?}"),
            None => sent_away += 1,
        }
    }
    assert!(kept.len() >= 10 && sent_away > 0, "{} are there", kept.len());
    // It has some left for who asks it.
    assert_eq!(router.sessions().len(), kept.len());
    assert!(descriptors(router.running().pid()) < MOST);
    drop(kept);
    wait_for(60, "sessions stay", || router.sessions().is_empty());
    Raw::connect(&router.socket("a")).expect("a connection").greet();
}

#[test]
fn of_too_many_connections_that_say_nothing_the_oldest_is_told_so() {
    let router = Router::start(POLICY);
    // Within a second, after which all of them go anyway.
    let is_told = || {
        let silent = (0..100).map(|_| Raw::connect(&router.socket("a")).expect("a connection"));
        silent.collect::<Vec<_>>().iter_mut().any(|raw| match raw.hear() {
            Some((Envelope { message: Message::Bye(bye), .. }, _)) => {
                bye.text.as_str().contains("too many connections")
            }
            _ => false,
        })
    };
    assert!((0..5).any(|_| is_told()));
    Raw::connect(&router.socket("a")).expect("a connection").greet();
}

#[test]
fn another_user_is_not_answered() {
    or_skip!(as_root());
    let router = Router::start(POLICY);
    let admin = router.socket("admin");
    let mode = std::fs::metadata(&admin).expect("a socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    // Even if somebody has opened it to all.
    std::fs::set_permissions(&admin, PermissionsExt::from_mode(0o666)).expect("a socket");
    let ask = move |user: i32| {
        // SAFETY: takes numbers alone. Of this thread, and not of the process, as the library's
        // call would.
        assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, user, -1) }, 0);
        let mut asks = UnixStream::connect(&admin).expect("the socket");
        asks.set_read_timeout(Some(limit(60))).expect("a limit");
        // It may have hung up already.
        let _ = asks.write_all(b"{\"do\":\"status\"}\n");
        let _ = asks.shutdown(std::net::Shutdown::Write);
        let mut said = Vec::new();
        let _ = asks.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    };
    let stranger = ask.clone();
    let said = std::thread::spawn(move || stranger(30_002)).join().expect("a stranger");
    assert!(!said.contains("\"pid\""), "{said}");
    let said = std::thread::spawn(move || ask(0)).join().expect("root");
    assert!(said.contains("\"pid\""), "{said}");
}
