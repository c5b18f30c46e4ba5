//! The C examples do their job over UDP, and fail as they should.

use gdrcore_tests::source::files;
use gdrcore_tests::tools::{loopback, run, scratch, Running};
use gdrcore_tests::{library, trio};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(90);

#[test]
fn router_client_and_peer_over_two_loopback_addresses() {
    let bin = library::examples();
    let dir = scratch("trio");
    trio::run(&trio::Round {
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
        assert!(help.ok() && help.output.contains("usage:"), "{}: {}", program.display(), help.output);
        let nonsense = run(Command::new(&program).arg("--no-such-option"), 10);
        assert!(nonsense.code().is_some_and(|c| c > 0), "{}: {}", program.display(), nonsense.output);
    }
    assert!(seen >= 8, "only {seen} programs");
}

#[test]
fn errors_of_the_device_say_what_to_do() {
    let router = library::examples().join("freeflow_gdr/router");
    for (device, said) in
        [("soft:192.0.2.77", "192.0.2.77"), ("soft:nonsense", "nonsense"), ("nosuchlink0", "nosuchlink0")]
    {
        let done = run(Command::new(&router).args(["-d", device, "-t", "1"]), 10);
        assert!(done.code().is_some_and(|c| c > 0), "{device}: {}", done.output);
        assert!(done.output.contains(said) && done.output.lines().count() >= 2, "{device}: {}", done.output);
    }
}

#[test]
fn gpu_direct_serves_many_clients_with_writes_and_reads() {
    let bin = library::examples();
    let address = loopback(41, 11);
    let mut command = Command::new(bin.join("gpu_direct/server"));
    let server = Running::start(command.args(["-a", &address, "-p", "19941", "-s", "1M", "-l", "3", "-P"]));
    let clients = [["0", "200", "100001"], ["1", "200", "65536"], ["0", "50", "1M"]];
    let clients: Vec<Running> = clients
        .iter()
        .zip(12..)
        .map(|([kind, n, size], last)| {
            let mut command = Command::new(bin.join("gpu_direct/client"));
            command.args(["-a", &loopback(41, last), "-p", "19941", "-c", "-t", kind, "-n", n, "-s", size, &address]);
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
    let receiver =
        Running::start(Command::new(&rdma).args(["-d", &format!("soft:{}", loopback(41, 21)), "-p", "19942"]));
    let sender = Command::new(&rdma)
        .args(["-d", &format!("soft:{}", loopback(41, 22)), "-p", "19942", &loopback(41, 21), "from here to there"])
        .output()
        .expect("rdma");
    let received = receiver.finish(LIMIT);
    assert!(sender.status.success(), "{}", String::from_utf8_lossy(&sender.stderr));
    assert!(received.ok() && received.output.contains("from here to there"), "{}", received.output);
}

/// A target that watches its memory and calls the library only to answer: its helper does the rest, by either path.
#[test]
fn perf_measures_a_target_that_only_watches_its_memory() {
    let perf = library::examples().join("perf/perf");
    for (path, port) in [("shm", "19944"), ("udp", "19945")] {
        let device = |last| format!("soft:{},path={path}", loopback(41, last));
        let server = Running::start(Command::new(&perf).args(["-d", &device(61), "-p", port]));
        let mut client = Command::new(&perf);
        client.args(["-d", &device(62), "-p", port, "write", "lat", "--no-progress", "-s", "8", "-n", "100"]);
        let done = run(client.args(["--json", &loopback(41, 61)]), 60);
        assert!(done.ok(), "{path}: {:?}: {}", done.status, done.output);
        for said in ["\"no_progress\":true", "\"iterations\":100,"] {
            assert!(done.output.contains(said), "{path}: no {said} in {}", done.output);
        }
        let served = server.finish(LIMIT);
        assert!(served.ok(), "{path}: {:?}: {}", served.status, served.output);
    }
    for wrong in [["send", "lat", "127.0.0.1"], ["write", "bw", "127.0.0.1"], ["write", "lat", "-dloopback"]] {
        let refused = run(Command::new(&perf).args(wrong).arg("--no-progress"), 10);
        assert!(refused.code() == Some(2) && refused.output.contains("--no-progress"), "{wrong:?}: {}", refused.output);
    }
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
    trio::run(&trio::Round {
        command: &|_, program| {
            let mut command = Command::new(bin.join(program));
            command.env("LD_PRELOAD", &preload).env("GDRC_MALLOC_REPORT", &report).env("GDRC_MALLOC_FAIL", "1");
            command
        },
        router: &format!("soft:{}", loopback(41, 31)),
        peer: &format!("soft:{}", loopback(41, 32)),
        address: &loopback(41, 31),
        bytes: 900_000,
        dir: &dir,
    });
    let report = std::fs::read_to_string(&report).expect("the counter's report");
    let lines: Vec<&str> = report.lines().filter(|l| l.contains("data-plane calls")).collect();
    assert!(lines.iter().any(|l| l.contains("peer") && !l.contains(" 0 data-plane")), "{report}");
    assert!(lines.iter().all(|l| l.ends_with(", 0 allocations")), "{report}");
}

#[test]
fn a_taken_port_is_named() {
    let rdma = library::examples().join("rdma_copy/rdma");
    let listener = std::net::TcpListener::bind(format!("{}:19943", loopback(41, 51))).expect("a port");
    let done = run(Command::new(&rdma).args(["-d", &format!("soft:{}", loopback(41, 51)), "-p", "19943"]), 10);
    assert!(done.code().is_some_and(|c| c > 0) && done.output.contains("19943"), "{}", done.output);
    drop(listener);
}
