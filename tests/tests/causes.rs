//! Failures between two machines and the causes that the library reports: the table of
//! docs/using/TROUBLES.md, row by row. Its row "other version" is tested in
//! `ffi/src/endpoint_calls.rs`.

use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_tests::ends::Address;
use gdrcore_tests::far_end::{parse_address, print_address, Far};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::soft::address;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::run;
use gdrcore_tests::{or_skip, skip};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
/// Three tries of 4 ms.
const HASTE: &[&str] = &["timeout=10", "retry=2", "stream=write", "piece=100000", "response=12"];

/// The message of the table's row for a fault.
fn message(fault: &str) -> String {
    let text = std::fs::read_to_string(root().join("docs/using/TROUBLES.md"))
        .expect("docs/using/TROUBLES.md");
    let row = text
        .lines()
        .find(|l| l.starts_with(&format!("| {fault} |")))
        .unwrap_or_else(|| panic!("no row {fault}"));
    row.split('|').nth(2).expect("a message").trim().to_owned()
}

/// Makes two ends, not connected yet; returns their addresses.
fn made(a: &mut Far, b: &mut Far) -> [Address; 2] {
    [a, b].map(|far| {
        far.say("make");
        parse_address(&far.answer("at ")).expect("an address")
    })
}

/// Connects the ends, `a` with `b`'s address as changed by `spoil`, and lets `a` write until that
/// fails. Returns the cause at each end: code and text.
fn causes(
    a: &mut Far,
    b: &mut Far,
    spoil: impl Fn(&mut Address),
    meanwhile: impl Fn(&Far),
) -> (u32, [String; 2]) {
    let [of_a, mut of_b] = made(a, b);
    b.say(&format!("join {}", print_address(&of_a)));
    // It answers this line after it has handled the one before.
    cause(b);
    spoil(&mut of_b);
    a.say(&format!("join {}", print_address(&of_b)));
    meanwhile(b);
    a.say("go");
    // Without the fault the stream would not end.
    let failed = loop {
        let line = a.line(Duration::from_secs(60)).expect("the stream did not end");
        if !line.starts_with("moved") {
            break line;
        }
    };
    assert!(failed.starts_with("failed "), "{failed}");
    let (code, text) = cause(a);
    (code, [text, String::new()])
}

fn cause(far: &mut Far) -> (u32, String) {
    far.say("cause");
    let answer = far.answer("cause ");
    let (code, text) = answer.split_once(' ').expect("a code and a text");
    (code.parse().expect("a code"), text.to_owned())
}

/// The causes that `a` and `b` report; `b` is asked after `a` has failed.
fn both(a: &mut Far, b: &mut Far, spoil: impl Fn(&mut Address)) -> [(u32, String); 2] {
    let (code, [text, _]) = causes(a, b, spoil, |_| ());
    [(code, text), cause(b)]
}

/// Checks that the reported text contains the message of the row, and that the cause has its code.
#[track_caller]
fn says(fault: &str, (code, text): (u32, String), expected: CauseCode) {
    assert_eq!(CauseCode::from_u32(code), Some(expected), "{fault}: {text}");
    assert!(text.contains(&message(fault)), "{fault}: {text}");
}

#[test]
fn ten_faults_have_ten_messages() {
    let faults = [
        "wrong key",
        "wrong right",
        "wrong address",
        "wrong QPN",
        "firewall drops",
        "firewall rejects",
        "MTU hole",
        "peer dead",
        "peer not polling",
        "other version",
    ];
    let messages: BTreeSet<String> = faults.iter().map(|f| message(f)).collect();
    assert_eq!(messages.len(), faults.len(), "{messages:?}");
}

#[test]
fn memory_that_is_not_the_peers_to_use() {
    for path in ["path=udp", "path=auto"] {
        let pair = |more: &[&str]| {
            // Its peer answers, although late.
            let a = Far::start(FAR, &address(1), &["stream=write", "piece=100000", path]);
            (a, Far::start(FAR, &address(2), &[more, &[path]].concat()))
        };
        let (mut a, mut b) = pair(&[]);
        let [of_a, of_b] = both(&mut a, &mut b, |at| at.rkey ^= 0x5a);
        says("wrong key", of_b, CauseCode::PeerUsedBadKey);
        assert_eq!(of_a.0, CauseCode::RemoteAccess as u32, "{}", of_a.1);
        let (mut a, mut b) = pair(&[]);
        let [_, of_b] = both(&mut a, &mut b, |at| at.addr += 1 << 20);
        says("wrong address", of_b, CauseCode::PeerLeftRange);
        let (mut a, mut b) = pair(&["read_only=1"]);
        let [_, of_b] = both(&mut a, &mut b, |_| ());
        says("wrong right", of_b, CauseCode::PeerLacksAccess);
    }
}

#[test]
fn a_peer_of_this_host_that_is_silent() {
    for path in ["path=udp", "path=auto"] {
        let pair = || {
            let start = |last| Far::start(FAR, &address(last), &[HASTE, &[path]].concat());
            (start(1), start(2))
        };
        {
            let (mut a, mut b) = pair();
            let [of_a, _] = both(&mut a, &mut b, |at| at.qpn ^= 1);
            says("wrong QPN", of_a, CauseCode::Unanswered);
        }
        // Alone on its address: otherwise the kernel's list does not tell whose unread socket it
        // is.
        let (mut a, mut b) = pair();
        let (code, [text, _]) = causes(&mut a, &mut b, |_| (), |b| b.stop());
        says("peer not polling", (code, text), CauseCode::NotPolled);
    }
    // The host of a process that has ended reports that; over a link, the socket does.
    let start = |last| Far::start(FAR, &address(last), &[HASTE, &["path=udp"]].concat());
    let (mut a, mut b) = (start(1), start(2));
    let [_, of_b] = made(&mut a, &mut b);
    b.kill();
    a.say(&format!("join {}", print_address(&of_b)));
    a.say("go");
    assert!(a
        .line(Duration::from_secs(60))
        .expect("the stream did not end")
        .starts_with("failed "));
    says("peer dead", cause(&mut a), CauseCode::PeerUnreachable);
}

/// Two linked hosts. The error names what this machine lacks.
fn hosts() -> Result<Lab, String> {
    let lab = Lab::new(2)?;
    lab.link((0, "a0", &["10.8.0.1/24"]), (1, "b0", &["10.8.0.2/24"]))?;
    Ok(lab)
}

fn start(lab: &Lab, host: usize, device: &str, options: &[&str]) -> Far {
    let far = Far::run(lab.command(host, Path::new(FAR)).arg(device).args(options));
    assert_eq!(far.line(Duration::from_secs(60)).as_deref(), Some("open"), "{device}");
    far
}

#[test]
fn firewalls_that_drop_and_that_reject() {
    // Both ends know each other's addresses before the path is blocked.
    let cases = [
        (0, "output", "udp dport 4791 drop", "firewall drops", CauseCode::Firewall, -libc::EPERM),
        (
            1,
            "input",
            "udp dport 4791 reject with icmp type admin-prohibited",
            "firewall rejects",
            CauseCode::PeerUnreachable,
            -libc::EHOSTUNREACH,
        ),
    ];
    for (host, hook, rule, fault, code, status) in cases {
        let lab = or_skip!(hosts());
        let (mut a, mut b) =
            (start(&lab, 0, "soft:10.8.0.1", HASTE), start(&lab, 1, "soft:10.8.0.2", HASTE));
        if let Err(why) = lab.firewall(host, hook, rule) {
            skip!("no firewall: {why}");
        }
        // Linux sends six refusals at once, then one a second; the limit is lifted.
        let unlimited = ["-c", "echo 0 >/proc/sys/net/ipv4/icmp_ratelimit"];
        let done = run(lab.privileged(1, Path::new("sh")).args(unlimited), 10);
        assert!(done.ok(), "{done}");
        let to = print_address(&made(&mut a, &mut b)[1]);
        let [of_a, _] = both(&mut a, &mut b, |_| ());
        says(fault, of_a, code);
        a.say(&format!("ask 7 {to}"));
        let asked = a.answer("asked ");
        assert!(
            asked.starts_with(&format!("7 {status} ")) && asked.contains(&message(fault)),
            "{asked}"
        );
    }
}

/// Two processes of one machine, whose own firewall is between them.
#[test]
fn firewalls_of_one_machine() {
    let cases = [
        ("input", "udp dport 4791 drop", "firewall of this machine drops input", libc::ETIMEDOUT),
        ("input", "udp dport 4791 reject", "firewall of this machine rejects", libc::ECONNREFUSED),
        ("output", "udp dport 4791 reject", "firewall of this machine rejects", libc::EPERM),
    ];
    for (hook, rule, fault, errno) in cases {
        let lab = or_skip!(Lab::new(1));
        lab.admin(0, &["link", "set", "lo", "up"]).expect("lo");
        let options = [HASTE, &["path=udp"]].concat();
        let (mut a, mut b) = (
            start(&lab, 0, "soft:127.0.0.2", &options),
            start(&lab, 0, "soft:127.0.0.3", &options),
        );
        if let Err(why) = lab.firewall(0, hook, rule) {
            skip!("no firewall: {why}");
        }
        let unlimited = ["-c", "echo 0 >/proc/sys/net/ipv4/icmp_ratelimit"];
        let done = run(lab.privileged(0, Path::new("sh")).args(unlimited), 10);
        assert!(done.ok(), "{done}");
        let to = print_address(&made(&mut a, &mut b)[1]);
        let [of_a, _] = both(&mut a, &mut b, |_| ());
        let code =
            if errno == libc::ETIMEDOUT { CauseCode::Unanswered } else { CauseCode::Firewall };
        says(fault, of_a, code);
        a.say(&format!("ask 7 {to}"));
        let asked = a.answer("asked ");
        let words = match errno {
            libc::ETIMEDOUT => "no connection manager answers there".to_owned(),
            _ => message(fault),
        };
        assert!(asked.starts_with(&format!("7 -{errno} ")) && asked.contains(&words), "{asked}");
        assert!(errno != libc::ETIMEDOUT || asked.contains("(port 7 was asked for)"), "{asked}");
    }
}

#[test]
fn a_connection_request_that_cannot_arrive() {
    let lab = or_skip!(hosts());
    for (kind, net) in [("prohibit", 1), ("unreachable", 2), ("blackhole", 3)] {
        lab.admin(0, &["route", "add", kind, &format!("10.9.{net}.0/24")]).expect("a route");
    }
    let mut a = start(&lab, 0, "soft:10.8.0.1", HASTE);
    let mut ask = |ip: [u8; 4]| {
        let mut to = Address::default();
        to.ah.dgid[10..12].fill(0xff);
        to.ah.dgid[12..].copy_from_slice(&ip);
        a.say(&format!("ask 7 {}", print_address(&to)));
        a.answer("asked ")
    };
    // The kernel reports this error at the send, so one try is enough.
    for (ip, errno) in [
        ([10, 9, 1, 1], libc::EACCES),
        ([10, 9, 2, 1], libc::EHOSTUNREACH),
        ([10, 9, 3, 1], libc::EINVAL),
        ([10, 99, 0, 1], libc::ENETUNREACH),
    ] {
        let asked = ask(ip);
        assert!(
            asked.starts_with(&format!("7 -{errno} this machine has no route there")),
            "{ip:?}: {asked}"
        );
    }
    // The host refuses the port by ICMP, which is only believed after all tries.
    let asked = ask([10, 8, 0, 2]);
    assert!(asked.starts_with(&format!("7 -{} network refuses", libc::ECONNREFUSED)), "{asked}");
    assert!(asked.contains(&message("peer dead")), "{asked}");
    // A listener that does not answer: the firewall drops what comes in.
    let b = start(&lab, 1, "soft:10.8.0.2", HASTE);
    match lab.firewall(1, "input", "udp dport 4791 drop") {
        Ok(()) => {
            let asked = ask([10, 8, 0, 2]);
            let begin = format!("7 -{} no connection manager answers there", libc::ETIMEDOUT);
            assert!(asked.starts_with(&begin), "{asked}");
        }
        Err(why) => skip!("no firewall: {why}"),
    }
    drop(b);
}

#[test]
fn a_connection_request_without_poller_or_without_listener() {
    let start = |last| Far::start(FAR, &address(last), HASTE);
    let (mut a, mut b) = (start(1), start(2));
    let to = print_address(&made(&mut a, &mut b)[1]);
    a.say(&format!("ask 7 {to}"));
    assert_eq!(
        a.answer("asked ").split(';').next().map(|s| s.split(',').next().unwrap_or(s).to_owned()),
        Some(
            "8 8 peer rejected the connection to its port 7 (reason 8: nobody listens at this port)"
                .to_owned()
        )
    );
    b.stop();
    a.say(&format!("ask 7 {to}"));
    let asked = a.answer("asked ");
    let begin = format!("7 -{} {}", libc::ETIMEDOUT, message("peer not polling"));
    assert!(asked.starts_with(&begin), "{asked}");
}

#[test]
fn a_network_narrower_than_its_links_announce() {
    let lab = or_skip!(Lab::new(3));
    let links = lab
        .link((0, "a0", &["10.8.1.1/24"]), (1, "r0", &["10.8.1.2/24"]))
        .and_then(|()| lab.link((1, "r1", &["10.8.2.2/24"]), (2, "b0", &["10.8.2.1/24"])))
        .and_then(|()| lab.admin(0, &["link", "set", "a0", "mtu", "9000"]))
        .and_then(|()| lab.admin(1, &["link", "set", "r0", "mtu", "9000"]))
        .and_then(|()| lab.admin(0, &["route", "add", "default", "via", "10.8.1.2"]))
        .and_then(|()| lab.admin(2, &["route", "add", "default", "via", "10.8.2.2"]));
    links.expect("links");
    let forward = ["-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"];
    let done = run(lab.privileged(1, Path::new("sh")).args(forward), 10);
    if !done.ok() {
        skip!("a namespace cannot be made a router: {}", done.output.trim());
    }
    let options = [HASTE, &["mtu=5"]].concat();
    let (mut a, mut b) =
        (start(&lab, 0, "soft:10.8.1.1", &options), start(&lab, 2, "soft:10.8.2.1", &HASTE[..2]));
    let [of_a, _] = both(&mut a, &mut b, |_| ());
    says("MTU hole", of_a, CauseCode::MtuExceeded);
}
