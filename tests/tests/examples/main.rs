//! The C examples over UDP: they succeed, and fail with the right message and exit code.

mod gpu_direct;
mod memory;
mod perf;

use gdrcore_tests::cpu;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::source::files;
use gdrcore_tests::tools::{compile, loopback, run, scratch, Done, Running};
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
        assert!(help.ok() && help.output.contains("usage:"), "{}: {help}", program.display());
        let nonsense = run(Command::new(&program).arg("--no-such-option"), 10);
        assert!(nonsense.code().is_some_and(|c| c > 0), "{}: {nonsense}", program.display());
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
        assert!(done.code().is_some_and(|c| c > 0), "{device}: {done}");
        assert!(done.output.contains(said) && done.output.lines().count() >= 2, "{device}: {done}");
    }
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
    assert!(received.ok() && received.output.contains("from here to there"), "{received}");
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
    // A killed server is missed by its shared memory, or by a host that refuses its port: whichever
    // the client meets first.
    const KILLED: &[&str] = &["shared memory is gone", "nothing listens there"];
    for (how, said) in
        [(libc::SIGINT, &["ended the connection after"] as &[_]), (libc::SIGKILL, KILLED)]
    {
        let mut server = Running::start(&mut command(111, &["-s"]));
        server.wait_for_output("waiting on");
        let mut client =
            Running::start(&mut command(112, &["-c", "-v", "-C", "0", &loopback(41, 111)]));
        client.wait_for_output("rdma-ping-5");
        server.signal(how);
        let done = client.finish(LIMIT);
        assert_eq!(done.code(), Some(1), "{done}");
        let says = said.iter().any(|said| done.output.contains(said));
        assert!(says, "signal {how}: {done}");
        drop(server);
    }
    let nobody = run(&mut command(112, &["-c", &loopback(41, 113)]), 60);
    assert!(nobody.code() == Some(1) && nobody.output.contains(&loopback(41, 113)), "{nobody}");
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
fn a_taken_port_is_named() {
    let rdma = library::examples().join("rdma_copy/rdma");
    let listener =
        std::net::TcpListener::bind(format!("{}:19943", loopback(41, 51))).expect("a port");
    let done = run(
        Command::new(&rdma).args(["-d", &format!("soft:{}", loopback(41, 51)), "-p", "19943"]),
        10,
    );
    assert!(done.code().is_some_and(|c| c > 0) && done.output.contains("19943"), "{done}");
    drop(listener);
}
