//! perf: targets that only watch, threads, ends at signals, numbers of messages.

use super::*;

/// A target that only watches its memory: it calls the library only to answer, and its helper
/// thread runs the engine, over either path.
#[test]
fn perf_measures_a_target_that_only_watches_its_memory() {
    let perf = library::examples().join("perf/perf");
    for (path, port) in [("shm", "19944"), ("udp", "19945")] {
        let device = |last| format!("soft:{},path={path}", loopback(41, last));
        let server = Running::start(Command::new(&perf).args(["-d", &device(61), "-p", port]));
        let mut client = Command::new(&perf);
        client.args([
            "-d",
            &device(62),
            "-p",
            port,
            "write",
            "lat",
            "--no-progress",
            "-s",
            "8",
            "-n",
            "100",
        ]);
        let done = run(client.args(["--json", &loopback(41, 61)]), 60);
        assert!(done.ok(), "{path}: {done}");
        for said in ["\"no_progress\":true", "\"iterations\":100,"] {
            assert!(done.output.contains(said), "{path}: no {said} in {done}");
        }
        let served = server.finish(LIMIT);
        assert!(served.ok(), "{path}: {served}");
    }
    for wrong in
        [["send", "lat", "127.0.0.1"], ["write", "bw", "127.0.0.1"], ["write", "lat", "-dloopback"]]
    {
        let refused = run(Command::new(&perf).args(wrong).arg("--no-progress"), 10);
        assert!(
            refused.code() == Some(2) && refused.output.contains("--no-progress"),
            "{wrong:?}: {refused}"
        );
    }
}

/// Each thread has a CQ and queue pairs of its own, on the device of all, on an engine of its own
/// or on a device of its own.
#[test]
fn perf_measures_threads_of_one_device_and_checks_their_data() {
    let perf = library::examples().join("perf/perf");
    let threads = ["-T", "3", "-q", "2", "-n", "300", "-s", "5000", "-C", "--json"];
    // Three threads with two queue pairs each.
    let expect = |done: &Done, what: &str| {
        for said in ["\"threads\":3,", "\"messages\":1800,", "\"checked\":true"] {
            assert!(done.ok() && done.output.contains(said), "{what}: no {said}: {done}");
        }
    };
    for more in [&[][..], &["--contexts"], &["--engines"]] {
        let mut alone = Command::new(&perf);
        alone.args(["-d", "loopback", "send", "bw"]).args(threads).args(more);
        expect(&run(&mut alone, 60), &format!("loopback {more:?}"));
    }
    for (path, port) in [("shm", "19946"), ("udp", "19947")] {
        let device = |last| format!("soft:{},path={path}", loopback(41, last));
        let server =
            Running::start(Command::new(&perf).args(["-k", "-d", &device(63), "-p", port]));
        let engines = &["--engines"][..];
        for (verb, more) in [
            ("send", &[][..]),
            ("write", &["--contexts"]),
            ("read", &[]),
            ("send", engines),
            ("write", engines),
        ] {
            let mut client = Command::new(&perf);
            client.args(["-d", &device(64), "-p", port, verb, "bw"]).args(threads).args(more);
            expect(&run(client.arg(loopback(41, 63)), 120), &format!("{path} {verb}"));
        }
        for more in [&[][..], &["--contexts"], engines] {
            let mut both = Command::new(&perf);
            both.args(["-d", &device(65), "--both-ends", "send", "bw"]).args(threads).args(more);
            expect(&run(&mut both, 120), &format!("{path} both ends {more:?}"));
        }
        // A signal ends the run of all threads.
        let mut client = Command::new(&perf);
        client.args(["-d", &device(64), "-p", port, "-T", "2", "-n", "1000000000", "--json"]);
        let mut client = Running::start(client.args(["write", "bw", &loopback(41, 63)]));
        client.wait_for_output("\"results\"");
        client.interrupt();
        let done = client.finish(LIMIT);
        assert_eq!(done.code(), Some(130), "{path}: {done}");
        assert!(done.output.contains("perf: interrupted"), "{path}: {done}");
        server.signal(libc::SIGTERM);
        let served = server.finish(LIMIT);
        assert!(served.code().is_some(), "{path}: {served}");
    }
    for wrong in [["send", "lat", "-T2"], ["send", "bw", "-eT2"], ["send", "bw", "--both-ends"]] {
        let refused = run(Command::new(&perf).args(["-d", "loopback"]).args(wrong), 10);
        assert_eq!(refused.code(), Some(2), "{wrong:?}: {refused}");
    }
}

#[test]
fn perf_ends_at_a_signal_and_reports_what_it_measured() {
    let perf = library::examples().join("perf/perf");
    let tests: [&[&str]; 4] = [
        &["send", "lat"],
        &["write", "bw", "-q", "2", "--json"],
        &["send", "bw", "-b", "-c", "UD", "-s", "1024"],
        &["write", "bw", "-b", "-e"],
    ];
    for (k, signal) in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP].into_iter().enumerate() {
        for (i, test) in tests.iter().enumerate() {
            let (port, last) = (19_950 + 4 * k + i, 70 + 2 * (4 * k + i) as u32);
            let port = port.to_string();
            let device = |last| format!("soft:{}", loopback(41, last));
            let server =
                Running::start(Command::new(&perf).args(["-d", &device(last), "-p", &port]));
            let mut client = Command::new(&perf);
            client.args(["-d", &device(last + 1), "-p", &port]).args(*test).arg(loopback(41, last));
            let mut client = Running::start(client.args(["-n", "1000000000"]));
            client.wait_for_output(if test.contains(&"--json") { "\"results\"" } else { "#bytes" });
            client.signal(signal);
            let done = client.finish(LIMIT);
            assert_eq!(done.code(), Some(128 + signal), "{test:?}: {done}");
            assert!(done.output.contains("perf: interrupted"), "{test:?}: {done}");
            if test.contains(&"--json") {
                assert!(done.output.contains("],\"interrupted\":true}\n"), "{test:?}: {done}");
            }
            // Both ends agreed on the end of the run.
            let served = server.finish(LIMIT);
            assert!(served.ok(), "{test:?}: {served}: {done}");
        }
    }
}

#[test]
fn perf_on_loopback_and_its_server_end_at_a_signal() {
    let perf = library::examples().join("perf/perf");
    for test in [["send", "lat"], ["read", "bw"]] {
        let mut alone = Running::start(
            Command::new(&perf).args(["-d", "loopback", "-n", "1000000000"]).args(test),
        );
        alone.wait_for_output("#bytes");
        // The test has begun when it takes CPU time; on a busy machine its next turn may be a while
        // away.
        let used = || cpu::of(alone.pid()).expect("perf runs");
        let before = used();
        wait_for(60, "perf does not measure", || used() - before > Duration::from_millis(50));
        alone.interrupt();
        let done = alone.finish(LIMIT);
        assert_eq!(done.code(), Some(130), "{test:?}: {done}");
        assert_eq!(
            done.output.lines().filter(|l| l.starts_with("  ")).count(),
            2,
            "head and row: {done}"
        );
    }
    // A server in the middle of a test notifies its client, which keeps the measurements.
    let (address, port) = (loopback(41, 101), "19980");
    let server = Running::start(Command::new(&perf).args([
        "-k",
        "-d",
        &format!("soft:{address}"),
        "-p",
        port,
    ]));
    let mut client = Command::new(&perf);
    client.args([
        "-d",
        &format!("soft:{}", loopback(41, 102)),
        "-p",
        port,
        "write",
        "bw",
        "--json",
    ]);
    let mut client = Running::start(client.args(["-n", "1000000000", &address]));
    client.wait_for_output("\"results\"");
    server.signal(libc::SIGTERM);
    let (served, done) = (server.finish(LIMIT), client.finish(LIMIT));
    assert_eq!(served.code(), Some(143), "{served}");
    assert_eq!(done.code(), Some(1), "{done}");
    assert!(done.output.contains("it was interrupted") && done.output.contains("]}\n"), "{done}");
    // A server that waits for its next client ends at once.
    let mut idle = Running::start(Command::new(&perf).args([
        "-k",
        "-d",
        &format!("soft:{address}"),
        "-p",
        port,
    ]));
    idle.wait_for_output("waiting on");
    idle.signal(libc::SIGTERM);
    let idle = idle.finish(LIMIT);
    assert!(idle.ok(), "{idle}");
}

#[test]
fn perf_sends_the_requested_number_of_messages() {
    let perf = library::examples().join("perf/perf");
    for (test, count) in [
        (["send", "lat"], "\"iterations\":10,"),
        (["write", "bw"], "\"messages\":10,"),
        (["read", "lat"], "\"iterations\":10,"),
        (["atomic_write", "lat"], "\"iterations\":10,"),
        (["flush", "lat"], "\"iterations\":10,"),
        (["flush", "bw"], "\"messages\":10,"),
    ] {
        let done =
            run(Command::new(&perf).args(["-d", "loopback", "-n", "10", "--json"]).args(test), 30);
        assert!(done.ok() && done.output.contains(count), "{test:?}: {done}");
    }
    // Each word as it was sent, and no other.
    let done = run(
        Command::new(&perf)
            .args(["-d", "loopback", "-C", "-q", "3", "-l", "5", "--json"])
            .args(["atomic_write", "bw"]),
        60,
    );
    assert!(done.ok() && done.output.contains("\"messages\":15000,"), "{done}");
    // A count that, times the largest size, exceeds 64 bits: -a bounds the count by a division.
    let mut all = Command::new(&perf);
    let mut all = Running::start(all.args([
        "-d",
        "loopback",
        "write",
        "lat",
        "-a",
        "-n",
        "1099511627776",
        "--json",
    ]));
    all.wait_for_output("\"results\"");
    all.interrupt();
    assert_eq!(all.finish(LIMIT).code(), Some(130));
}

/// Tests, each with its arguments: every one that XRC and DC have, with the data checked where
/// there is something to check.
const WITH_TARGETS: &[&[&str]] = &[
    &["send", "lat", "-C", "-s", "4097"],
    &["send", "bw", "-C", "-b", "-q", "3", "-l", "4", "-s", "9000"],
    &["write", "lat", "-s", "100"],
    &["write", "bw", "-C", "-b", "-q", "3", "-s", "65536"],
    &["read", "lat", "-C", "-s", "4097"],
    &["read", "bw", "-C", "-b", "-s", "9000"],
    &["atomic", "lat", "-C"],
    &["atomic", "bw", "-C", "-q", "2", "-A", "CMP_AND_SWAP"],
    &["atomic_write", "lat", "-C"],
    &["atomic_write", "bw", "-C", "-b", "-q", "2"],
    &["flush", "lat", "-s", "4096"],
    &["flush", "bw", "-b", "-e"],
];

/// Runs a test, whose head names the type.
fn measures(test: &[&str], kind: &str, more: &[&str], peer: Option<&str>) {
    let mut client = Command::new(library::examples().join("perf/perf"));
    client.args(more).args(test).args(["-c", kind, "-n", "60", "--json"]).args(peer);
    let done = run(&mut client, 60);
    let counted = if test[1] == "lat" { "\"iterations\":60," } else { "\"messages\":" };
    assert!(done.ok(), "{kind} {test:?} {more:?}: {done}");
    for said in [&format!("\"connection\":\"{kind}\""), counted] {
        assert!(done.output.contains(said), "{kind} {test:?}: no {said}: {done}");
    }
}

#[test]
fn perf_measures_over_xrc_and_dc_in_one_process() {
    for kind in ["XRC", "DC"] {
        for test in WITH_TARGETS {
            measures(test, kind, &["-d", "loopback"], None);
        }
    }
    let refused = run(
        Command::new(library::examples().join("perf/perf"))
            .args(["-d", "loopback", "read", "bw", "-c", "UC"]),
        10,
    );
    assert!(refused.code() == Some(2) && refused.output.contains("RC, XRC and DC"), "{refused:?}");
}

#[test]
fn perf_measures_over_xrc_and_dc_between_processes() {
    let perf = library::examples().join("perf/perf");
    for (path, port, last) in [("udp", "19990", 111), ("shm", "19991", 113)] {
        let device = |last| format!("soft:{},path={path}", loopback(41, last));
        let server = Running::start(
            Command::new(&perf).args(["-k", "-d", &device(last)]).args(["-p", port]),
        );
        for kind in ["XRC", "DC"] {
            for test in WITH_TARGETS {
                let more = ["-d", &device(last + 1), "-p", port];
                measures(test, kind, &more, Some(&loopback(41, last)));
            }
        }
        // More initiators than a device has contexts for by default.
        let more = ["-d", &device(last + 1), "-p", port];
        measures(
            &["send", "bw", "-C", "-q", "300", "-s", "8", "-t", "4"],
            "DC",
            &more,
            Some(&loopback(41, last)),
        );
        server.interrupt();
        let served = server.finish(LIMIT);
        assert!(served.ok() && !served.output.contains("left open"), "{served}");
    }
}
