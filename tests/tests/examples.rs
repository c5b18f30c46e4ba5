//! The C examples over UDP: they succeed, and fail with the right message and exit code.

use gdrcore_tests::cpu;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::source::files;
use gdrcore_tests::tools::{compile, loopback, run, scratch, Running};
use gdrcore_tests::{library, router_round};
use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);

#[test]
fn router_client_and_peer_over_two_loopback_addresses() {
    let bin = library::examples();
    let dir = scratch("trio");
    router_round::run(&router_round::Round {
        command: &|_, program| Command::new(bin.join(program)),
        router: &format!("soft:{}", loopback(41, 1)),
        peer: &format!("soft:{}", loopback(41, 2)),
        address: &loopback(41, 1),
        bytes: 300_001,
        dir: &dir,
    });
}

#[test]
fn every_program_has_help_and_refuses_nonsense() {
    let mut seen = 0;
    for program in files(&library::examples(), &[""]) {
        seen += 1;
        let help = run(Command::new(&program).arg("--help"), 10);
        assert!(
            help.ok() && help.output.contains("usage:"),
            "{}: {}",
            program.display(),
            help.output
        );
        let nonsense = run(Command::new(&program).arg("--no-such-option"), 10);
        assert!(
            nonsense.code().is_some_and(|c| c > 0),
            "{}: {}",
            program.display(),
            nonsense.output
        );
    }
    assert!(seen >= 8, "only {seen} programs");
}

#[test]
fn errors_of_the_device_name_a_remedy() {
    let router = library::examples().join("freeflow_gdr/router");
    for (device, said) in [
        ("soft:192.0.2.77", "192.0.2.77"),
        ("soft:nonsense", "nonsense"),
        ("nosuchlink0", "nosuchlink0"),
    ] {
        let done = run(Command::new(&router).args(["-d", device, "-t", "1"]), 10);
        assert!(done.code().is_some_and(|c| c > 0), "{device}: {}", done.output);
        assert!(
            done.output.contains(said) && done.output.lines().count() >= 2,
            "{device}: {}",
            done.output
        );
    }
}

#[test]
fn gpu_direct_serves_many_clients_with_writes_and_reads() {
    let bin = library::examples();
    let address = loopback(41, 11);
    let mut command = Command::new(bin.join("gpu_direct/server"));
    let server =
        Running::start(command.args(["-a", &address, "-p", "19941", "-s", "1M", "-l", "3", "-P"]));
    let clients = [["0", "200", "100001"], ["1", "200", "65536"], ["0", "50", "1M"]];
    let clients: Vec<Running> = clients
        .iter()
        .zip(12..)
        .map(|([kind, n, size], last)| {
            let mut command = Command::new(bin.join("gpu_direct/client"));
            command.args([
                "-a",
                &loopback(41, last),
                "-p",
                "19941",
                "-c",
                "-t",
                kind,
                "-n",
                n,
                "-s",
                size,
                &address,
            ]);
            Running::start(&mut command)
        })
        .collect();
    for client in clients {
        let done = client.finish(LIMIT);
        assert!(done.ok(), "{:?}: {}", done.status, done.output);
    }
    server.interrupt();
    let done = server.finish(LIMIT);
    assert!(done.ok(), "{:?}: {}", done.status, done.output);
}

#[test]
fn rdma_sends_one_message() {
    let rdma = library::examples().join("rdma_copy/rdma");
    let receiver = Running::start(Command::new(&rdma).args([
        "-d",
        &format!("soft:{}", loopback(41, 21)),
        "-p",
        "19942",
    ]));
    let sender = Command::new(&rdma)
        .args([
            "-d",
            &format!("soft:{}", loopback(41, 22)),
            "-p",
            "19942",
            &loopback(41, 21),
            "from here to there",
        ])
        .output()
        .expect("rdma");
    let received = receiver.finish(LIMIT);
    assert!(sender.status.success(), "{}", String::from_utf8_lossy(&sender.stderr));
    assert!(received.ok() && received.output.contains("from here to there"), "{}", received.output);
}

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
        assert!(done.ok(), "{path}: {:?}: {}", done.status, done.output);
        for said in ["\"no_progress\":true", "\"iterations\":100,"] {
            assert!(done.output.contains(said), "{path}: no {said} in {}", done.output);
        }
        let served = server.finish(LIMIT);
        assert!(served.ok(), "{path}: {:?}: {}", served.status, served.output);
    }
    for wrong in
        [["send", "lat", "127.0.0.1"], ["write", "bw", "127.0.0.1"], ["write", "lat", "-dloopback"]]
    {
        let refused = run(Command::new(&perf).args(wrong).arg("--no-progress"), 10);
        assert!(
            refused.code() == Some(2) && refused.output.contains("--no-progress"),
            "{wrong:?}: {}",
            refused.output
        );
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
            assert_eq!(done.code(), Some(128 + signal), "{test:?}: {}", done.output);
            assert!(done.output.contains("perf: interrupted"), "{test:?}: {}", done.output);
            if test.contains(&"--json") {
                assert!(
                    done.output.contains("],\"interrupted\":true}\n"),
                    "{test:?}: {}",
                    done.output
                );
            }
            // Both ends agreed on the end of the run.
            let served = server.finish(LIMIT);
            assert!(served.ok(), "{test:?}: {}: {}", served.output, done.output);
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
        assert_eq!(done.code(), Some(130), "{test:?}: {}", done.output);
        assert_eq!(
            done.output.lines().filter(|l| l.starts_with("  ")).count(),
            2,
            "head and row: {}",
            done.output
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
    assert_eq!(served.code(), Some(143), "{}", served.output);
    assert_eq!(done.code(), Some(1), "{}", done.output);
    assert!(
        done.output.contains("it was interrupted") && done.output.contains("]}\n"),
        "{}",
        done.output
    );
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
    assert!(idle.ok(), "{:?}: {}", idle.status, idle.output);
}

#[test]
fn perf_sends_the_requested_number_of_messages() {
    let perf = library::examples().join("perf/perf");
    for (test, count) in [
        (["send", "lat"], "\"iterations\":10,"),
        (["write", "bw"], "\"messages\":10,"),
        (["read", "lat"], "\"iterations\":10,"),
    ] {
        let done =
            run(Command::new(&perf).args(["-d", "loopback", "-n", "10", "--json"]).args(test), 30);
        assert!(done.ok() && done.output.contains(count), "{test:?}: {}", done.output);
    }
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

#[test]
fn cm_ping_reports_its_cause_of_failure() {
    let ping = library::examples().join("cm/cm_ping");
    let device = |last| format!("soft:{}", loopback(41, last));
    let command = |last, more: &[&str]| {
        let mut c = Command::new(&ping);
        c.args(["-d", &device(last), "-p", "7991"]).args(more);
        c
    };
    for (how, said) in
        [(libc::SIGINT, "ended the connection after"), (libc::SIGKILL, "shared memory is gone")]
    {
        let mut server = Running::start(&mut command(111, &["-s"]));
        server.wait_for_output("waiting on");
        let mut client =
            Running::start(&mut command(112, &["-c", "-v", "-C", "0", &loopback(41, 111)]));
        client.wait_for_output("rdma-ping-5");
        server.signal(how);
        let done = client.finish(LIMIT);
        assert_eq!(done.code(), Some(1), "{}", done.output);
        assert!(done.output.contains(said), "signal {how}: {}", done.output);
        drop(server);
    }
    let nobody = run(&mut command(112, &["-c", &loopback(41, 113)]), 60);
    assert!(
        nobody.code() == Some(1) && nobody.output.contains(&loopback(41, 113)),
        "{}",
        nobody.output
    );
}

#[test]
fn output_that_cannot_be_written_is_an_error() {
    let full = || fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let refused = |command: &mut Command| {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(full())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a program");
        let mut said = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut said).expect("its messages");
        let status = child.wait().expect("its end");
        assert!(
            !status.success() && said.contains("standard output"),
            "{command:?}: {status}: {said}"
        );
    };
    for program in files(&library::examples(), &[""]) {
        if !program.ends_with("gdrcore-run") {
            refused(Command::new(&program).arg("--help"));
        }
    }
    // Behind a device and a table as well.
    refused(
        Command::new(library::examples().join("perf/perf"))
            .args(["-d", "loopback", "send", "lat", "-n", "10"]),
    );
    refused(&mut Command::new(library::examples().join("static_mem")));
}

#[test]
fn static_memory_is_enough_and_nothing_is_allocated() {
    let done = run(&mut Command::new(library::examples().join("static_mem")), 60);
    assert!(done.ok() && done.output.contains("proven: nothing was allocated"), "{}", done.output);
}

#[test]
fn the_data_plane_allocates_nothing_under_the_examples() {
    let bin = library::examples();
    let preload = bin.join("malloc_count.so");
    let dir = scratch("malloc");
    let report = dir.join("report");
    router_round::run(&router_round::Round {
        command: &|_, program| {
            let mut command = Command::new(bin.join(program));
            command
                .env("LD_PRELOAD", &preload)
                .env("GDRC_MALLOC_REPORT", &report)
                .env("GDRC_MALLOC_FAIL", "1");
            command
        },
        router: &format!("soft:{}", loopback(41, 31)),
        peer: &format!("soft:{}", loopback(41, 32)),
        address: &loopback(41, 31),
        bytes: 900_000,
        dir: &dir,
    });
    let report = fs::read_to_string(&report).expect("the counter's report");
    let lines: Vec<&str> = report.lines().filter(|l| l.contains("data-plane calls")).collect();
    assert!(lines.iter().any(|l| l.contains("peer") && !l.contains(" 0 data-plane")), "{report}");
    assert!(lines.iter().all(|l| l.ends_with(", 0 allocations")), "{report}");
}

/// Posts and polls by fast handles are inline functions; the counter must still see them.
#[test]
fn the_allocation_counter_sees_calls_by_fast_handles() {
    let bin = library::examples();
    let dir = scratch("malloc-fast");
    let counted = |preload: &str, test: &[&str]| {
        let report = dir.join("report");
        let _ = fs::remove_file(&report);
        let mut command = Command::new(bin.join("perf/perf"));
        command
            .env("LD_PRELOAD", preload)
            .env("GDRC_MALLOC_REPORT", &report)
            .env("GDRC_MALLOC_FAIL", "1");
        let done = run(
            command.args(["-d", &format!("soft:{},path=udp", loopback(41, 121))]).args(test),
            60,
        );
        (done, fs::read_to_string(&report).unwrap_or_default())
    };
    let counter = bin.join("malloc_count.so").to_string_lossy().into_owned();
    // Each test of perf makes at least two posts and a poll for each message, and nothing else
    // calls the data plane so often.
    let serve = |port: &str| {
        let device = format!("soft:{}", loopback(41, 122));
        let mut server =
            Running::start(Command::new(bin.join("perf/perf")).args(["-d", &device, "-p", port]));
        server.wait_for_output("waiting on");
        server
    };
    let server = serve("19981");
    let (done, report) =
        counted(&counter, &["-p", "19981", "send", "lat", "-n", "2000", &loopback(41, 122)]);
    assert!(done.ok(), "{}: {report}", done.output);
    let calls = report.split(' ').find_map(|w| w.parse::<u64>().ok()).unwrap_or(0);
    assert!(calls > 3 * 2000 && report.ends_with(", 0 allocations\n"), "{report}");
    assert!(server.finish(LIMIT).ok());
    // An allocation inside such a call must be found: a sendmsg that allocates.
    let wasteful = compile("cc", "wasteful", &dir, &["-shared", "-fPIC", "-ldl"]);
    let server = serve("19982");
    let (done, report) = counted(
        &format!("{counter}:{}", wasteful.display()),
        &["-p", "19982", "write", "bw", "-n", "10", &loopback(41, 122)],
    );
    assert_eq!(done.code(), Some(99), "{}: {report}", done.output);
    assert!(server.finish(LIMIT).ok());
}

#[test]
fn a_taken_port_is_named() {
    let rdma = library::examples().join("rdma_copy/rdma");
    let listener =
        std::net::TcpListener::bind(format!("{}:19943", loopback(41, 51))).expect("a port");
    let done = run(
        Command::new(&rdma).args(["-d", &format!("soft:{}", loopback(41, 51)), "-p", "19943"]),
        10,
    );
    assert!(done.code().is_some_and(|c| c > 0) && done.output.contains("19943"), "{}", done.output);
    drop(listener);
}
