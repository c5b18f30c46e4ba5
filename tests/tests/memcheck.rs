//! Programs under valgrind's memcheck: the library passes no uninitialised byte to the kernel,
//! accesses only its own memory, and frees all it allocated.

use gdrcore_tests::dropin::{free_port, start_server};
use gdrcore_tests::library;
use gdrcore_tests::or_skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{installed, loopback, scratch, Running};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(300);

/// A command under memcheck; a memory error or a lost block makes the exit code 99.
fn watched(program: &Path) -> Command {
    let mut valgrind = Command::new("valgrind");
    valgrind.args([
        "-q",
        "--error-exitcode=99",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    ]);
    valgrind.arg("--show-leak-kinds=definite").arg(program);
    valgrind
}

fn is_clean(what: &str, program: Running) {
    let done = program.finish(LIMIT);
    assert!(done.ok(), "{what}: {done}");
}

#[test]
fn two_processes_are_clean_on_every_path() {
    or_skip!(installed("valgrind"));
    let bin = library::examples();
    // With two addresses and with one; on one address the kernel steers packets by a BPF program.
    for (k, (path, both, test)) in [
        ("udp", true, &["send", "lat", "-n", "300"][..]),
        ("udp", false, &["send", "lat", "-n", "300"]),
        ("shm", true, &["write", "bw", "-n", "100", "-C"]),
        ("shm", false, &["atomic", "bw", "-n", "100"]),
        ("shm,cma", false, &["write", "bw", "-n", "20", "-s", "1M"]),
    ]
    .into_iter()
    .enumerate()
    {
        let (server, port) = (loopback(42, 2 * k as u32 + 1), (18_900 + k).to_string());
        let client = if both { server.clone() } else { loopback(42, 2 * k as u32 + 2) };
        let perf = |address: &str| {
            let mut c = watched(&bin.join("perf/perf"));
            // Under valgrind a peer is slow: 4 s of silence cost one of seven retries.
            c.args(["-d", &format!("soft:{address},path={path}"), "-p", &port, "-u", "20"]);
            c
        };
        let what = format!("{path}, one address: {both}");
        let mut serving = Running::start(&mut perf(&server));
        serving.wait_for_output("waiting on");
        let asking = Running::start(perf(&client).args(test).arg(&server));
        is_clean(&what, asking);
        is_clean(&what, serving);
    }
}

#[test]
fn the_connection_manager_and_a_copied_file_are_clean() {
    or_skip!(installed("valgrind"));
    let (bin, dir) = (library::examples(), scratch("memcheck"));
    let device = |last| format!("soft:{}", loopback(42, last));
    let ping = |last: u32, more: &[&str]| {
        let mut c = watched(&bin.join("cm/cm_ping"));
        c.args(["-d", &device(last), "-p", "7992"]).args(more);
        c
    };
    let mut server = Running::start(&mut ping(21, &["-s"]));
    server.wait_for_output("waiting on");
    let client = Running::start(&mut ping(21, &["-c", &loopback(42, 21)]));
    is_clean("cm_ping -c", client);
    is_clean("cm_ping -s", server);
    let file = root().join("README.md");
    let copy = |last: u32| {
        let mut c = watched(&bin.join("rdma_copy/rdma_copy_file"));
        c.args(["-d", &device(last), "-p", "18910"]);
        c
    };
    let mut server = Running::start(copy(23).args(["-1", "-o"]).arg(&*dir));
    server.wait_for_output("receiving into");
    let client = Running::start(copy(24).arg("--resume").arg(loopback(42, 23)).arg(&file));
    is_clean("rdma_copy_file, client", client);
    is_clean("rdma_copy_file, server", server);
    assert_eq!(
        std::fs::read(dir.join("README.md")).expect("the copy"),
        std::fs::read(file).expect("the file")
    );
}

#[test]
fn a_verbs_program_is_clean_on_the_drop_in() {
    let pingpong = or_skip!(installed("ibv_rc_pingpong"));
    or_skip!(installed("valgrind"));
    let dropin = library::dropin();
    let port = free_port();
    let run = |last: u32| {
        let mut c = watched(&pingpong);
        c.env("LD_LIBRARY_PATH", &dropin).env("GDRC_ADDRESS", loopback(42, last));
        c.args(["-g", "0", "-n", "50", "-p", &port.to_string()]);
        c
    };
    let server = start_server(&mut run(31), port);
    let client = Running::start(run(32).arg(loopback(42, 31)));
    is_clean("ibv_rc_pingpong, client", client);
    is_clean("ibv_rc_pingpong, server", server);
}
