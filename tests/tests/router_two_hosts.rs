//! Two hosts, a router each, and four containers without any network, which talk over the hosts'
//! wire: plain RoCEv2 that says whose it is by its source.

use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::wire::IcrcFlow;
use gdrcore_core::Error;
use gdrcore_net::addr::ROCE_PORT;
use gdrcore_net::shm::relay::{Put, PACKET_MAX};
use gdrcore_net::via::proto::Route;
use gdrcore_testkit::icrc::check_exact;
use gdrcore_tests::forge::datagram;
use gdrcore_tests::sniffed::{packets, sniff};
use gdrcore_tests::tools::{installed, run, Running};
use gdrcore_tests::two_hosts::{succeeded, TwoHosts, BLOCKS, HOSTS, STRANGER};
use gdrcore_tests::{library, or_skip, patience, skip};
use std::path::Path;
use std::time::{Duration, Instant};

/// A tool's time.
const LIMIT: Duration = Duration::from_secs(120);

macro_rules! world {
    ($more:expr) => {
        or_skip!(TwoHosts::new($more))
    };
}

#[test]
fn a_limit_counts_on_the_way_to_another_host() {
    let world = world!(&[("blue", "tx_rate = \"4MB\"")]);
    // 13 MB, of which 256 KiB go at once.
    let sides = ["ib_send_bw -R -F -n 200", "ib_send_bw -R -F -n 200 {S}"];
    let began = Instant::now();
    let done = or_skip!(world.run(sides, ["green", "blue"]));
    succeeded(sides[1], &done, &world);
    let sent = 200.0 * 65536.0;
    assert!(began.elapsed().as_secs_f64() > (sent - 300e3) / 4e6 * 0.9, "{:?}", began.elapsed());
}

/// The block that a packet's UDP source port names.
fn port_of(block: u32) -> u16 {
    0xc000 | (block as u16) << 4
}

/// Whether the ICRCs of a packet are right, or of the packets that it will be cut into: of one
/// length but for the last, and numbered from 0 on.
fn is_right(ip: &[u8]) -> bool {
    let (head, payload) = ip.split_at(28);
    let cut = |k: usize, bytes: &[u8]| {
        let mut one = [head, bytes].concat();
        one[2..4].copy_from_slice(&((28 + bytes.len()) as u16).to_be_bytes());
        one[4..6].copy_from_slice(&(k as u16).to_be_bytes());
        one[24..26].copy_from_slice(&((8 + bytes.len()) as u16).to_be_bytes());
        check_exact(&one).is_ok()
    };
    let of = |len: usize| payload.chunks(len).enumerate().all(|(k, bytes)| cut(k, bytes));
    (16..=payload.len()).rev().any(of)
}

#[test]
fn on_the_wire_is_plain_roce_that_says_whose_it_is() {
    let world = world!(&[]);
    let file = world.routers[0].dir().join("capture");
    let mut dump = sniff(&world.lab, 0, Path::new(env!("CARGO_BIN_EXE_sniffer")), &file);
    let sides = ["rping -s -C 20 -V -S 900", "rping -c -a {S} -C 20 -V -S 900"];
    let done = or_skip!(world.run(sides, ["green", "blue"]));
    succeeded(sides[1], &done, &world);
    let (mut seen, mut of) = (0, [0, 0]);
    patience::wait_for(60, "the capture has no packets of both", || {
        let bytes = std::fs::read(&file).unwrap_or_default();
        (seen, of) = (0, [0, 0]);
        let is_udp = |ip: &&[u8]| ip.len() > 28 && ip[0] == 0x45 && ip[9] == 17;
        for ip in packets(&bytes).into_iter().filter(is_udp) {
            let port = |at: usize| u16::from_be_bytes([ip[at], ip[at + 1]]);
            let address =
                |at: usize| format!("{}.{}.{}.{}", ip[at], ip[at + 1], ip[at + 2], ip[at + 3]);
            let from = HOSTS.iter().position(|h| **h == address(12)).expect("a host");
            assert_eq!((address(16).as_str(), port(22)), (HOSTS[1 - from], 4791));
            // Only these two talk, and both have the first blocks.
            let block = u32::from(port(20) & 0x3fff) >> 4;
            assert_eq!(port(20), port_of(block));
            assert!((1..=BLOCKS).contains(&block), "{block}");
            // Longer ones are bursts, whose packets the kernel cuts them into later.
            if ip.len() <= 1500 {
                assert!(is_right(ip), "{ip:02x?}");
                seen += 1;
            }
            of[from] += 1;
        }
        seen > 40 && of[0] > 20 && of[1] > 20
    });
    dump.kill();
}

#[test]
fn nothing_that_is_forged_arrives_and_a_flood_hits_its_victim_alone() {
    let world = world!(&[("gold", "allow = [\"blue\"]")]);
    let (iron, _iron_rings) = world.session("iron");
    let (gold, mut gold_rings) = world.session("gold");
    let to = format!("{}:4791", HOSTS[1]);
    let forge = |from: &str, block: u32, qpn: u32, count: u32, bad: &[&str]| {
        let from = format!("{from}:{}", port_of(block));
        let mut c = world.lab.privileged(0, Path::new(env!("CARGO_BIN_EXE_forger")));
        let done = run(c.args([&from, &to, &qpn.to_string(), &count.to_string()]).args(bad), 60);
        assert!(done.ok(), "{done}");
    };
    let counts = |name: &str, n: u64| {
        patience::wait_for(60, name, || world.wire(1, name) >= n);
        assert_eq!(world.wire(1, name), n, "{name}");
    };
    // Blue's last block and red's are no session's now: whoever is root on their host has the port.
    let (blue, red, nobody) = (BLOCKS, 2 * BLOCKS, 700);
    let (gold, iron) = (gold.welcome().qpns.0 + 5, iron.welcome().qpns.0 + 5);
    forge(STRANGER, blue, gold, 3, &[]);
    counts("bad_host", 3);
    forge(HOSTS[0], nobody, gold, 4, &[]);
    counts("bad_block", 4);
    forge(HOSTS[0], blue, iron, 6, &[]);
    counts("bad_qpn", 6);
    forge(HOSTS[0], red, gold, 7, &[]);
    counts("policy", 7);
    assert_eq!(world.wire(1, "rx_packets"), 0);
    // Whether a packet is damaged is seen by its receiver, which gets it as right as it was.
    let path =
        IcrcFlow::from_gids(&TwoHosts::gid("blue"), &TwoHosts::gid("gold"), ROCE_PORT, ROCE_PORT);
    for (bad, n) in [(&["bad"][..], 1), (&[], 2)] {
        forge(HOSTS[0], blue, gold, 1, bad);
        counts("rx_packets", n);
        let mut frame = [0; PACKET_MAX];
        let came = gold_rings.take(&mut frame).expect("whole rings").expect("the packet");
        assert_eq!(came.address, TwoHosts::gid("blue"));
        assert_eq!(path.check(0, came.packet).is_ok(), bad.is_empty());
    }
    // Gold reads nothing. Green's bytes are looked at meanwhile.
    let words = ["rping -s -C 200 -V -S 3000", "rping -c -a 10.99.0.3 -C 200 -V -S 3000"];
    let mut server = or_skip!(world.cm("green", words[0]));
    let mut server = Running::start(&mut server);
    world.wait_for_listener("green", &mut server);
    let client = Running::start(&mut world.cm("blue", words[1]).expect("rping"));
    forge(HOSTS[0], blue, gold, 20_000, &[]);
    let sides = [server.finish(LIMIT), client.finish(LIMIT)];
    succeeded(words[1], &sides, &world);
    assert!(world.wire(1, "full") > 0, "gold's ring holds 256 KiB");
}

/// The rule that is printed does what it says, and a router knows whether it is in force.
#[test]
fn nobody_else_sends_as_the_router_where_the_rule_is_in_force() {
    let world = world!(&[]);
    let rule = world.routers[0].ask("firewall").output;
    let file = world.routers[0].dir().join("rule");
    let in_force = |rule: &str| {
        std::fs::write(&file, rule).expect("a file");
        run(world.lab.privileged(0, Path::new("nft")).arg("-f").arg(&file), 60)
    };
    or_skip!(installed("nft"));
    // It looks before it takes the address, which the other one has.
    let policy = world.routers[0].dir().join("policy.toml");
    let start = |word: &str| {
        let mut c = world.lab.privileged(0, &library::router().join("gdrcore-routerd"));
        let done = run(c.args(["--firewall", word]).arg(&policy), 60);
        assert!(!done.ok(), "{done}");
        done.output
    };
    let taken = "another program has the address";
    let missing = "firewall: there is no chain output";
    let output = start("require");
    assert!(output.contains(missing) && !output.contains(taken), "{output}");
    let output = start("check");
    assert!(output.contains(missing) && output.contains(taken), "{output}");
    let output = start("off");
    assert!(!output.contains("firewall") && output.contains(taken), "{output}");
    let done = in_force(&rule);
    if !done.ok() {
        skip!("no firewall: {}", done.output);
    }
    let output = start("require");
    assert!(!output.contains("firewall") && output.contains(taken), "{output}");
    // The router itself may send.
    let sides = ["rping -s -C 10 -V -S 900", "rping -c -a {S} -C 10 -V -S 900"];
    if let Ok(done) = world.run(sides, ["green", "blue"]) {
        succeeded(sides[1], &done, &world);
    }
    // To a rule for another user, all here are others.
    let others = rule.replace("skuid != 0", "skuid != 12345");
    assert_ne!(others, rule, "this user is 0 on its host");
    assert!(in_force(&others).ok());
    assert!(start("require").contains("chain output of table inet gdrcore lacks UDP port 4791"));
    let forge = || {
        let mut c = world.lab.privileged(0, Path::new(env!("CARGO_BIN_EXE_forger")));
        let (from, to) = (format!("{}:{}", HOSTS[0], port_of(700)), format!("{}:4791", HOSTS[1]));
        let done = run(c.args([&from, &to, "20000", "5"]), 60);
        assert!(done.ok(), "{done}");
    };
    forge();
    assert!(in_force("flush ruleset\n").ok());
    forge();
    patience::wait_for(60, "they do not arrive", || world.wire(1, "bad_block") >= 5);
    assert_eq!(world.wire(1, "bad_block"), 5, "those of the first time went nowhere");
}

#[test]
fn a_host_that_dies_is_told_of_after_a_while_and_comes_back() {
    let mut world = world!(&[]);
    let green = TwoHosts::gid("green");
    let (blue, mut rings) = world.session("blue");
    let qpn = blue.welcome().qpns.0 + 5;
    let to = QPN_UNIT + 5;
    let ask = |gid: [u8; 16], qpn: u32| {
        blue.request_guard()
            .route(Route { gid, sgid_index: 0, qpn, traffic_class: 0 })
            .map(|d| d.is_some())
    };
    assert_eq!(ask(green, to), Ok(false), "by the rings");
    assert_eq!(
        ask(TwoHosts::gid("gold"), to),
        Err(Error::Os(libc::EHOSTUNREACH)),
        "not its number"
    );
    assert_eq!(ask([9; 16], to), Err(Error::Os(libc::EHOSTUNREACH)), "nobody's address");
    world.routers[1].kill();
    let mut packet = datagram(qpn, to, 100);
    IcrcFlow::from_gids(&blue.gid(), &green, ROCE_PORT, ROCE_PORT).append_icrc(0, &mut packet);
    let mut heard = None;
    patience::wait_for(60, "nothing is said of a host without a router", || {
        assert_eq!(rings.put(&green, &packet), Ok(Put::Done));
        std::thread::sleep(Duration::from_millis(100));
        let since = heard.get_or_insert_with(Instant::now);
        let answer = ask(green, to);
        // A restart takes less.
        assert!(answer.is_ok() || since.elapsed() > Duration::from_secs(4), "{answer:?}");
        answer == Err(Error::Os(libc::EHOSTUNREACH))
    });
    assert!(world.wire(0, "unreachable") > 0);
    assert!(world.routers[0].ask("hosts").output.contains("\"answers\":false"));
    world.routers[1].restart();
    let sides = ["rping -s -C 10 -V -S 900", "rping -c -a {S} -C 10 -V -S 900"];
    let done = or_skip!(world.run(sides, ["green", "blue"]));
    succeeded(sides[1], &done, &world);
    assert_eq!(ask(green, to), Ok(false), "it has answered");
}
