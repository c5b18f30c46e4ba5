//! UCX, libfabric and Open MPI as Debian packages them, on the drop-in.

use gdrcore_tests::dropin::{both, free_port};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::rdmacm::{command, counted, launcher};
use gdrcore_tests::tools::{compile, find, installed, loopback, run, scratch, Done};
use gdrcore_tests::{or_skip, skip};
use std::path::Path;
use std::process::Command;

/// Limits UCX to our device, and to a process's own memory for messages to itself. `rc_v` and
/// `ud_v` are UCX's names of RC and UD through libibverbs; RC needs datagrams for UCX's own
/// connection messages.
fn ucx<'a>(c: &'a mut Command, transport: &str) -> &'a mut Command {
    c.env("UCX_TLS", format!("{transport},self")).env("UCX_NET_DEVICES", "gdrc0:1")
}

/// Checks that both sides succeeded, and that our device carried at least `least` messages, RDMA
/// operations included.
#[track_caller]
fn carried(what: &str, done: &[Done; 2], least: u64) {
    let [server, client] = done;
    assert!(server.ok() && client.ok(), "{what}\nserver {server}\nclient {client}");
    let all = server.output.clone() + &client.output;
    let kinds = ["rdma_sends", "rdma_writes", "rdma_reads", "rdma_atomics"];
    let n: u64 = kinds.iter().map(|k| counted(&all, k)).sum();
    assert!(n >= least, "{what}: only {n} messages of {least} went over the device\n{all}");
}

/// `ucx_perftest` between two addresses.
fn ucx_perftest(n: u32, transport: &str, path: &str, test: &str, size: u32, times: u32) {
    let tool = or_skip!(installed("ucx_perftest"));
    let port = free_port();
    let side = |last: u32, more: &[&str]| {
        let mut c = command(Some(&loopback(n, last)), &["--stats", "--path", path], &tool);
        ucx(&mut c, transport).args(["-t", test, "-f", "-p", &port.to_string()]);
        c.args(["-s", &size.to_string(), "-n", &times.to_string(), "-w", "10"]).args(more);
        c
    };
    let done = both(&mut side(1, &[]), &mut side(2, &["127.0.0.1"]), port);
    carried(&format!("{transport} {path} {test} {size}"), &done, u64::from(times));
}

#[test]
fn ucx_runs_over_reliable_connections() {
    ucx_perftest(100, "rc_v", "udp", "tag_lat", 64, 500);
    for (test, size, times) in [
        ("tag_lat", 8, 1000),
        ("tag_bw", 4096, 1000),
        ("tag_bw", 1 << 20, 50),
        ("ucp_put_lat", 8, 1000),
        ("ucp_put_bw", 1 << 20, 50),
        ("ucp_get", 65536, 100),
        ("ucp_fadd", 8, 300),
        ("stream_bw", 4096, 500),
    ] {
        ucx_perftest(100, "rc_v", "shm", test, size, times);
    }
}

#[test]
fn ucx_runs_over_datagrams() {
    ucx_perftest(101, "ud_v", "udp", "tag_lat", 64, 500);
    for (test, size, times) in [
        ("tag_lat", 8, 1000),
        ("tag_bw", 4096, 1000),
        ("tag_bw", 1 << 20, 20),
        ("ucp_put_lat", 8, 500),
        ("ucp_put_bw", 65536, 100),
    ] {
        ucx_perftest(101, "ud_v", "shm", test, size, times);
    }
}

/// UCX identifies a datagram's sender by the address in its GRH, whose place differs between IPv4
/// and IPv6.
#[test]
fn ucx_runs_over_ipv6() {
    let tool = or_skip!(installed("ucx_perftest"));
    let port = free_port();
    let side = |more: &[&str]| {
        let mut c = command(Some("::1"), &["--stats"], &tool);
        ucx(&mut c, "ud_v")
            .args(["-t", "tag_lat", "-f", "-n", "200", "-w", "10", "-p", &port.to_string()])
            .args(more);
        c
    };
    if std::net::UdpSocket::bind("[::1]:0").is_err() {
        skip!("no IPv6");
    }
    carried("IPv6", &both(&mut side(&[]), &mut side(&["127.0.0.1"]), port), 200);
}

/// libfabric ignores loopback addresses, so its hosts are linked namespaces.
#[test]
fn libfabric_runs_between_hosts_and_on_one() {
    let tool = or_skip!(installed("fi_pingpong"));
    let lab = or_skip!(Lab::new(2));
    let (own, other, far) = ("10.9.0.1", "10.9.0.3", "10.9.0.2");
    lab.link((0, "a0", &["10.9.0.1/24", "10.9.0.3/24"]), (1, "b0", &["10.9.0.2/24"]))
        .expect("a link");
    // The tool's default; each host has ports of its own.
    const CONTROL: u16 = 47592;
    for arguments in [
        "-p verbs -e msg -c",
        "-p verbs;ofi_rxm -e rdm -c",
        "-p verbs;ofi_rxm -e rdm -m tagged -c",
        "-p verbs;ofi_rxd -e rdm -c",
    ] {
        let side = |host: usize, address: &str, more: &[&str]| {
            let mut c = lab.command(host, &launcher());
            c.args(["--stats", "--address", address])
                .arg(&tool)
                .args(arguments.split_whitespace())
                .args(more);
            c
        };
        for (host, address) in [(1, far), (0, other), (0, own)] {
            let done = both(&mut side(0, own, &[]), &mut side(host, address, &[own]), CONTROL);
            // Ten messages each way of six sizes, and the RDMA operations that the large ones
            // consist of.
            carried(&format!("{arguments} from {address}"), &done, 120);
        }
    }
}

/// Runs a program that checks its data under `mpirun`; `ranks`: processes on each address.
fn mpi(n: u32, transport: &str, path: &str, ranks: &[u32]) {
    let (Some(mpirun), Some(_)) = (find("mpirun.openmpi"), find("mpicc.openmpi")) else {
        skip!("no Open MPI (openmpi-bin, libopenmpi-dev)")
    };
    let dir = scratch(&format!("mpi-{n}"));
    let program = compile("mpicc.openmpi", "mpi", &dir, &[]);
    let mut c = Command::new(mpirun);
    // Only through UCX, and from UCX only through the device: neither Open MPI's own shared memory
    // nor TCP.
    c.args([
        "--allow-run-as-root",
        "--oversubscribe",
        "--mca",
        "pml",
        "ucx",
        "--mca",
        "osc",
        "ucx",
        "--mca",
        "btl",
        "self",
    ]);
    ucx(&mut c, transport).env("GDRC_STATS", "1").env("GDRC_PATH", path);
    for (i, count) in ranks.iter().enumerate() {
        if i > 0 {
            c.arg(":");
        }
        c.args(["-np", &count.to_string()])
            .arg(launcher())
            .args(["--address", &loopback(n, i as u32 + 1)])
            .arg(&program);
    }
    let done = run(&mut c, 60);
    let all: u32 = ranks.iter().sum();
    let what = format!("{transport} {path} {ranks:?}");
    assert!(done.ok() && done.output.contains(&format!("ok {all} ranks")), "{what}: {done}");
    // Each rank sends 28 MB around the ring.
    let bytes = counted(&done.output, "request_bytes");
    assert!(
        bytes > 28_000_000 * u64::from(all),
        "{what}: only {bytes} bytes over the device\n{done}"
    );
}

#[test]
fn open_mpi_runs_over_reliable_connections() {
    mpi(102, "rc_v", "auto", &[2]);
    mpi(102, "rc_v", "auto", &[4]);
    mpi(102, "rc_v", "udp", &[2]);
    mpi(102, "rc_v", "auto", &[1, 1]);
    mpi(102, "rc_v", "auto", &[2, 2]);
}

#[test]
fn open_mpi_runs_over_datagrams() {
    mpi(103, "ud_v", "auto", &[2]);
    mpi(103, "ud_v", "auto", &[4]);
    mpi(103, "ud_v", "udp", &[1, 1]);
}

#[test]
fn ucx_finds_the_files_of_a_device() {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        skip!("no <infiniband/verbs.h> (libibverbs-dev)");
    }
    let dir = scratch("names");
    let program = compile("cc", "names", &dir, &["-libverbs"]);
    let done = run(&mut command(Some(&loopback(104, 1)), &[], program), 20);
    assert!(done.ok(), "{done}");
}
