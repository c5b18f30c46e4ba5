//! Injected faults (docs/using/TESTING.md) in unmodified programs: the program goes on or fails as
//! the fault says, the counters show it, and a seed repeats it.

use gdrcore_core::counters::Counters;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::qp_type;
use gdrcore_net::inject::FaultSpec;
use gdrcore_net::soft::{soft_flags, PathChoice, SoftConfig};
use gdrcore_tests::dropin::{free_port, start_server};
use gdrcore_tests::ends::{connected, Op, Shape};
use gdrcore_tests::or_skip;
use gdrcore_tests::patience::{until, wait_for};
use gdrcore_tests::rdmacm::{command, counted, has_served, Pair};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{installed, loopback, run, scratch, Done, Running};
use gdrcore_tests::traffic::every_operation;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A ping-pong of libibverbs' own, server and client on one address or two.
struct PingPong {
    tool: PathBuf,
    addresses: [String; 2],
    arguments: &'static str,
}

impl PingPong {
    /// `n` numbers the test. An error: it is not installed.
    fn new(tool: &str, n: u32, apart: bool, arguments: &'static str) -> Result<PingPong, String> {
        let first = loopback(111, 2 * n);
        let second = if apart { loopback(111, 2 * n + 1) } else { first.clone() };
        Ok(PingPong { tool: installed(tool)?, addresses: [first, second], arguments })
    }

    fn server(&self, options: &[&str], port: u16) -> Running {
        let mut server = command(Some(&self.addresses[0]), options, &self.tool);
        let port_word = port.to_string();
        server.args(self.arguments.split_whitespace()).args(["-p", &port_word]);
        start_server(&mut server, port)
    }

    /// Starts both sides with options of the launcher: the server and the client.
    fn start(&self, server: &[&str], client: &[&str]) -> (Running, Running) {
        let port = free_port();
        let server = self.server(server, port);
        let mut c = command(Some(&self.addresses[1]), client, &self.tool);
        c.args(self.arguments.split_whitespace()).args(["-p", &port.to_string(), "127.0.0.1"]);
        (server, Running::start(&mut c))
    }

    /// Runs both sides to their ends.
    fn run(&self, server: &[&str], client: &[&str]) -> [Done; 2] {
        let (server, client) = self.start(server, client);
        let client = client.finish(LIMIT);
        [server.finish(LIMIT), client]
    }
}

/// Runs `work` beside threads that take the processors.
fn beside_a_busy_machine<T>(work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = work();
        over.store(true, Ordering::Relaxed);
        result
    })
}

/// The lines of a log, in one order.
fn lines(log: &Path) -> Vec<String> {
    let text = fs::read_to_string(log).expect("the log");
    let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
    lines.sort_unstable();
    lines
}

fn path_str(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn the_same_seed_has_the_same_faults_in_each_run_of_an_unmodified_program() {
    const RULES: &str = "loss rate 1%; corrupt rate 1%; delay 200us rate 1%";
    for (n, apart) in [(0, false), (1, true)] {
        let pingpong = PingPong::new("ibv_rc_pingpong", n, apart, "-g 0 -c -s 20000 -n 200");
        let pingpong = or_skip!(pingpong);
        let dir = scratch(&format!("faults-{n}"));
        let mut logs = Vec::new();
        for k in 0..5 {
            let [s, c] = ["server", "client"].map(|side| dir.join(format!("{side}-{k}")));
            let options = |log| ["--fault", RULES, "--seed", "7", "--fault-log", log];
            let (server, client) = (options(path_str(&s)), options(path_str(&c)));
            let run = || pingpong.run(&server, &client);
            let done = if k % 2 == 0 { beside_a_busy_machine(run) } else { run() };
            for done in &done {
                assert!(done.ok(), "{done}");
                let again = format!("gdrcore-run --fault '{RULES}' --seed 7 -- PROGRAM");
                assert_eq!(done.output.matches(&again).count(), 1, "{done}");
            }
            logs.push([lines(&s), lines(&c)]);
        }
        let [server, client] = &logs[0];
        for action in ["loss", "corrupt", "delay"] {
            let of = |log: &[String]| log.iter().filter(|l| l.starts_with(action)).count();
            assert!(of(server) > 5 && of(client) > 5, "{action}: {server:#?} {client:#?}");
        }
        for (k, log) in logs.iter().enumerate() {
            assert_eq!(*log, logs[0], "run {k} has other faults");
        }
        // Another seed has others.
        let other = dir.join("other");
        let options = ["--fault", RULES, "--seed", "8", "--fault-log", path_str(&other)];
        let [_, done] = pingpong.run(&[], &options);
        assert!(done.ok(), "{done}");
        assert_ne!(lines(&other), *client);
    }
}

#[test]
fn a_drawn_seed_is_told_and_repeats_the_run() {
    let pingpong = or_skip!(PingPong::new("ibv_rc_pingpong", 2, false, "-g 0 -c -n 500"));
    let dir = scratch("faults-drawn");
    let (first, second) = (dir.join("first"), dir.join("second"));
    let rules = dir.join("rules");
    fs::write(&rules, "# in a file\nloss rate 2%\n\nreorder 2 every 50 # often\n").unwrap();
    let from_file = format!("@{}", rules.display());
    let options = ["--fault", &from_file, "--fault-log", path_str(&first)];
    let [_, done] = pingpong.run(&[], &options);
    assert!(done.ok(), "{done}");
    let said = done.output.lines().find(|l| l.contains("the same ones again: ")).expect("a line");
    let (_, words) = said.split_once("gdrcore-run --fault '").expect("the command");
    let (rules, rest) = words.split_once("' --seed ").expect("a seed");
    assert_eq!(rules, "loss rate 2%; reorder 2 every 50");
    let seed = rest.trim_end_matches(" -- PROGRAM");
    let options = ["--fault", rules, "--seed", seed, "--fault-log", path_str(&second)];
    let [_, done] = pingpong.run(&[], &options);
    assert!(done.ok(), "{done}");
    assert_eq!(lines(&first), lines(&second));
    assert!(lines(&first).len() > 10);
}

#[test]
fn connections_of_rdma_cm_and_their_data_survive_losses() {
    let dir = scratch("faults-rping");
    for (n, options) in [
        (112, ["--fault", "loss rate 1%; duplicate rate 1%", "--seed", "3", "--stats"]),
        (113, ["--fault", "loss type GSI nth 1; loss in rate 2%", "--seed", "3", "--stats"]),
    ] {
        let lines = ("rping -s -a {S} -C 300 -V", "rping -c -a {S} -C 300 -V");
        let pair = Pair { options: &options, ..Pair::new(lines.0, lines.1) };
        let [server, client] = or_skip!(pair.run(n, &dir));
        assert!(client.ok() && has_served("rping", &server), "{server}\n{client}");
        let again = |done: &Done| counted(&done.output, "retransmitted_pkts");
        assert!(again(&server) + again(&client) > 0, "{client}");
        if n == 113 {
            let again = counted(&client.output, "cm_retries");
            assert!(again > 0, "the request for a connection was lost: {client}");
        }
    }
}

#[test]
fn each_fault_is_seen_by_its_counter() {
    const ARGUMENTS: &str = "-g 0 -c -s 4096 -n 300";
    for (n, rules, counters) in [
        (3, "rnr every 50", [("send_rnr_err", true), ("rcvd_icrc_err", false)]),
        (4, "corrupt in every 100", [("rcvd_icrc_err", true), ("send_rnr_err", false)]),
        (5, "ecn every 10", [("np_cnp_sent", true), ("rcvd_icrc_err", false)]),
        (6, "delay 300us every 20", [("rdma_sends", true), ("rcvd_icrc_err", false)]),
        (7, "duplicate in every 20", [("duplicate_request", true), ("rcvd_icrc_err", false)]),
        (8, "reorder 2 in every 21", [("out_of_seq_request", true), ("rcvd_icrc_err", false)]),
        (9, "slow 30us", [("rdma_sends", true), ("rcvd_icrc_err", false)]),
    ] {
        for apart in [false, true] {
            let pingpong = PingPong::new("ibv_rc_pingpong", n, apart, ARGUMENTS);
            let pingpong = or_skip!(pingpong);
            // The client alone has faults; its peer is any other host.
            let options = ["--fault", rules, "--seed", "1", "--stats"];
            let [server, client] = pingpong.run(&["--stats"], &options);
            assert!(server.ok() && client.ok(), "{rules}: {server}\n{client}");
            for (name, grows) in counters {
                let n = counted(&client.output, name);
                assert_eq!(n > 0, grows, "{rules}: {name} {n}: {client}");
            }
            assert_eq!(counted(&client.output, "rdma_sends"), 300, "{rules}");
            let unready = counted(&server.output, "rcvd_rnr_err");
            assert_eq!(unready, counted(&client.output, "send_rnr_err"), "{rules}");
        }
    }
}

#[test]
fn a_partition_in_one_direction_ends_the_requests_of_the_other_end() {
    let pingpong = or_skip!(PingPong::new("ibv_rc_pingpong", 10, true, "-g 0 -n 1000"));
    for (rules, loser) in [("partition from 100", 1), ("partition in from 100", 0)] {
        let options = ["--fault", rules, "--seed", "1", "--stats"];
        // Whose requests the other end does not hear fails; the other one waits for more.
        let (server, client) = pingpong.start(&["--stats"], &options);
        let mut both = [server, client];
        let failed = |done: &mut Running| done.output().contains("retry counter exceeded");
        wait_for(60, "no request fails", || failed(&mut both[loser]));
        both.iter_mut().for_each(|side| side.signal(libc::SIGTERM));
        let done = both.map(|side| side.finish(LIMIT));
        let said = &done[loser].output;
        assert_eq!(counted(said, "retry_exceeded_err"), 1, "{rules}: {said}");
    }
}

#[test]
fn a_partition_is_one_fault_however_many_packets_it_takes() {
    let pingpong = or_skip!(PingPong::new("ibv_rc_pingpong", 12, true, "-g 0 -n 1000 -s 1024"));
    let options = ["--fault", "partition from 100", "--seed", "1"];
    let (mut server, client) = pingpong.start(&[], &options);
    let client = client.finish(LIMIT);
    server.kill();
    assert!(!client.ok() && client.output.contains("gdrcore: 1 faults;"), "{client}");
}

#[test]
fn unreliable_messages_are_lost() {
    let dir = scratch("faults-ud");
    let log = dir.join("log");
    let pingpong = or_skip!(PingPong::new("ibv_ud_pingpong", 11, true, "-g 0 -s 1024 -n 1000"));
    let options = ["--fault", "loss message nth 10 type UD", "--fault-log", path_str(&log)];
    let (mut server, mut client) = pingpong.start(&[], &options);
    wait_for(60, "the tenth datagram was not lost", || {
        fs::read_to_string(&log).is_ok_and(|text| text.ends_with('\n'))
    });
    // Nobody sends it again: both wait.
    assert!(server.still_runs() && client.still_runs());
    let peer = &pingpong.addresses[0];
    let wanted = format!("loss out qp 1 packet 10 UD_SEND_ONLY peer {peer} rule 1");
    assert_eq!(lines(&log), [wanted]);
    server.kill();
    client.kill();
}

#[test]
fn wrong_rules_are_refused_before_the_program_runs() {
    let devinfo = or_skip!(installed("ibv_devinfo"));
    let own = loopback(111, 30);
    for (options, part) in [
        (&["--fault", "loss nth x"][..], "'loss nth x': line 1, column 10: 'x': a number"),
        (&["--fault", "loss", "--seed", "often"], "not a number from 1"),
        (&["--fault", "event PORT_ERR"], "column 15: the rule ends too early: 'after' or 'at'"),
        (&["--fault", "@/nonexistent/rules"], "/nonexistent/rules"),
    ] {
        let done = run(&mut command(Some(&own), options, &devinfo), 60);
        assert_eq!(done.code(), Some(125), "{options:?}: {done}");
        assert!(done.output.contains(part), "{options:?}: {done}");
    }
    let done = run(&mut command(Some(&own), &["--fault", "loss"], &devinfo), 60);
    assert!(done.ok() && !done.output.contains("faults"), "there were none: {done}");
    // Without the launcher the device does not open, because a run without faults would seem to
    // pass.
    for (variable, value, part) in [
        ("GDRC_FAULTS", "loss nth x", "faults: line 1, column 10: 'x'"),
        ("GDRC_FAULT_LOG", "/nonexistent/log", "GDRC_FAULT_LOG: cannot be opened: No such file"),
        ("GDRC_FAULTS", "loss \u{fffd}", "column 6"),
    ] {
        let mut c = command(Some(&own), &[], &devinfo);
        let value = match value.strip_suffix('\u{fffd}') {
            Some(words) => OsString::from_vec([words.as_bytes(), &[0xff]].concat()),
            None => value.into(),
        };
        c.env("GDRC_FAULTS", "loss").env(variable, value);
        let done = run(&mut c, 60);
        assert!(!done.ok() && done.output.contains(part), "{done}");
    }
}

/// One datagram from a device whose packets are late to another. `ends`: the first queue pair ends
/// meanwhile.
fn late_datagram(last: u8, rules: &str, flags: u32, ends: bool) {
    let spec = FaultSpec { rules, seed: 1, launched: None };
    let config = SoftConfig { faults: Some(&spec), flags, ..SoftConfig::default() };
    let [a, b] = [last, last + 1].map(|n| Soft::open(&address(n), &config).expect("a device"));
    let shape = Shape { qp_type: qp_type::UD, ..Shape::default() };
    let (x, mut y) = connected(a.dev(), b.dev(), shape).expect("two ends");
    y.post_recv(1, 0, 128).expect("a receive");
    x.post(2, Op::Send(None), 0, 64).expect("a datagram");
    let _x = if ends {
        x.destroy().expect("its end");
        None
    } else {
        Some(x)
    };
    let come = || {
        y.poll();
        y.take(1)
    };
    until(60, || "the datagram does not come".into(), come);
}

#[test]
fn what_waits_leaves_before_its_queue_pair_ends() {
    late_datagram(5, "delay 60s", 0, true);
}

#[test]
fn what_waits_leaves_by_a_helper_that_sleeps() {
    late_datagram(7, "delay 30ms", soft_flags::HELPER, false);
}

/// Every operation and transport, between the queue pairs of one device, of two devices of this
/// process, and of two engines that would share memory.
#[test]
fn every_operation_gets_through_a_device_with_faults() {
    let rules = "loss rate 3%; corrupt rate 3%; duplicate rate 3%; reorder 2 rate 3%; \
                 loss opcode ACK rate 3%; ecn every 20; rnr every 30";
    let spec = FaultSpec { rules, seed: 5, launched: None };
    let config = SoftConfig { faults: Some(&spec), path: PathChoice::Udp, ..SoftConfig::default() };
    let open = |last, config: &SoftConfig<'_>| {
        let name = address(last);
        Soft::open(&name, config).unwrap_or_else(|e| panic!("{name}: {e}"))
    };
    let (one, two) = (open(1, &config), open(2, &config));
    let plain = SoftConfig { path: PathChoice::Auto, ..SoftConfig::default() };
    let plain = open(3, &plain);
    let shape = Shape { qp_type: qp_type::RC, ..Shape::default() };
    let of = |device: &dyn Device| -> Counters { device.counters().expect("counters") };
    for (a, b) in [(&one, &one), (&one, &two), (&two, &plain), (&plain, &two)] {
        let before = of(b.dev()).rcvd_icrc_err + of(a.dev()).rcvd_icrc_err;
        let (mut a_end, mut b_end) =
            connected(a.dev(), b.dev(), shape).expect("connected queue pairs");
        for _ in 0..3 {
            every_operation(&mut a_end, &mut b_end, 40_000);
        }
        let damaged = of(b.dev()).rcvd_icrc_err + of(a.dev()).rcvd_icrc_err - before;
        assert!(damaged > 0, "no packet of them was damaged");
    }
}
