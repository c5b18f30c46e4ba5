//! Unmodified programs between all pairs of four containers on two hosts, with a router each: as
//! namespaces, in bubblewrap and in runc, with a network of their own for TCP, and without any.

use gdrcore_tests::containers::Maker;
use gdrcore_tests::cuda;
use gdrcore_tests::ends::pattern;
use gdrcore_tests::rdmacm::launcher;
use gdrcore_tests::tools::{compile, find, run, scratch, Done, Running};
use gdrcore_tests::two_hosts::{succeeded, Setup, TwoHosts, PAIRS};
use gdrcore_tests::{library, or_skip, patience, skip};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// UCX may use our device, and a process's own memory for what it sends to itself.
const UCX: [(&str, &str); 1] = [("UCX_NET_DEVICES", "gdrc0:1")];

/// Programs with a TCP handshake. `-u 20`: a timeout of seconds. With `-c` they compare the bytes;
/// for the others router and receiver check the ICRC of each packet.
const BY_TCP: &[&str] = &[
    "ibv_rc_pingpong -g 0 -c -p {P}",
    "ibv_uc_pingpong -g 0 -c -p {P}",
    "ibv_ud_pingpong -g 0 -c -p {P}",
    "ibv_srq_pingpong -g 0 -c -p {P}",
    "ib_send_bw -F -u 20 -n 100 -x 0 -p {P}",
    "ib_send_lat -F -u 20 -n 100 -x 0 -p {P}",
    "ib_write_bw -F -u 20 -n 100 -x 0 -p {P}",
    "ib_read_lat -F -u 20 -n 100 -x 0 -p {P}",
    "ib_atomic_bw -F -u 20 -n 100 -x 0 -p {P}",
];

/// Two sides of a program of librdmacm. Those with -V look at the bytes.
const BY_CM: &[[&str; 2]] = &[
    ["rping -s -C 10 -V -S 4000", "rping -c -a {S} -C 10 -V -S 4000"],
    ["ucmatose", "ucmatose -s {S}"],
    ["udaddy", "udaddy -s {S}"],
    ["ib_send_bw -R -F -u 20 -n 100", "ib_send_bw -R -F -u 20 -n 100 {S}"],
    ["ib_send_lat -R -F -u 20 -n 100", "ib_send_lat -R -F -u 20 -n 100 {S}"],
    ["ib_write_bw -R -F -u 20 -n 100", "ib_write_bw -R -F -u 20 -n 100 {S}"],
    ["ib_read_lat -R -F -u 20 -n 100", "ib_read_lat -R -F -u 20 -n 100 {S}"],
    ["ib_atomic_bw -R -F -u 20 -n 100", "ib_atomic_bw -R -F -u 20 -n 100 {S}"],
];

macro_rules! world {
    ($setup:expr) => {
        or_skip!(TwoHosts::with(&$setup))
    };
}

/// A program between two containers, to its end.
fn by_tcp(world: &TwoHosts, words: &str, tenants: [&str; 2]) {
    let client = format!("{words} {{S}}");
    match world.run_by_tcp([words, &client], tenants, &[], &[]) {
        Ok(done) => succeeded(words, &done, world),
        Err(why) => println!("{why}"),
    }
}

fn by_cm(world: &TwoHosts, sides: &[&str; 2], tenants: [&str; 2]) {
    match world.run(*sides, tenants) {
        Ok(done) => succeeded(sides[1], &done, world),
        Err(why) => println!("{why}"),
    }
}

/// UCX: reliable connections, and datagrams.
fn ucx(world: &TwoHosts, transport: &str, test: &str, tenants: [&str; 2]) {
    let tool = format!("{} ucx_perftest", launcher().display());
    let Some(path) = find("ucx_perftest") else { return println!("no ucx_perftest (ucx-utils)") };
    let server = tool.replace("ucx_perftest", &path.display().to_string());
    let server = format!("{server} -t {test} -f -s 8192 -n 300 -w 10 -p {{P}}");
    let sides = [server.as_str(), &format!("{server} {{S}}")];
    let environment = [UCX[0], ("UCX_TLS", transport)];
    let done = world.run_by_tcp(sides, tenants, &environment, &[]).expect("found");
    succeeded(&format!("{transport} {test}"), &done, world);
}

/// A file, by the C examples, which is compared.
fn file(world: &TwoHosts, dir: &Path, tenants: [&str; 2]) {
    let name = tenants.concat();
    let from = dir.join(&name);
    let bytes = pattern(7, 3_000_001);
    fs::write(&from, &bytes).expect("a file");
    let to = dir.join(format!("to-{name}"));
    fs::create_dir(&to).expect("a folder");
    fs::set_permissions(&to, fs::Permissions::from_mode(0o777)).expect("a folder for all");
    let copy = library::examples().join("rdma_copy/rdma_copy_file").display().to_string();
    let server = format!("{copy} -d router: -p {{P}} -o {} -1", to.display());
    let client = format!("{copy} -d router: -p {{P}} {{S}} {}", from.display());
    let done = world.run_by_tcp([&server, &client], tenants, &[], &[dir]).expect("our own");
    succeeded("rdma_copy_file", &done, world);
    assert!(fs::read(to.join(name)).expect("the copy") == bytes, "{tenants:?}: the copy differs");
}

/// Nothing was dropped or forged on the hosts' wire, and it carried what crossed.
fn wire_is_clean(world: &TwoHosts) {
    for host in [0, 1] {
        assert!(world.wire(host, "tx_packets") > 100 && world.wire(host, "rx_packets") > 100);
        for name in ["bad_host", "bad_block", "bad_icrc", "bad_source", "policy", "unsteered"] {
            assert_eq!(world.wire(host, name), 0, "{name} of host {host}");
        }
    }
}

/// A folder in which every user may write.
fn open_to_all(dir: &Path) {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).expect("a folder for all");
}

#[test]
fn all_pairs_with_a_network_for_their_tcp() {
    let world = world!(Setup { more: &[], network: true, maker: Maker::Namespaces });
    let dir = scratch("router-programs");
    open_to_all(&dir);
    for tenants in PAIRS {
        BY_TCP.iter().for_each(|words| by_tcp(&world, words, tenants));
        ucx(&world, "rc_v,self", "tag_bw", tenants);
        ucx(&world, "ud_v,self", "tag_lat", tenants);
        file(&world, &dir, tenants);
    }
    wire_is_clean(&world);
}

#[test]
fn all_pairs_without_any_network() {
    let world = world!(Setup { more: &[], network: false, maker: Maker::Namespaces });
    for tenants in PAIRS {
        BY_CM.iter().for_each(|sides| by_cm(&world, sides, tenants));
    }
    wire_is_clean(&world);
}

/// A program there has no capability, and of its router nothing but the tenant's folder.
fn sees_what_it_should(world: &TwoHosts) {
    let words = ["/bin/sh", "-c", "grep CapEff /proc/self/status; ls -a /run/gdrcore /dev"];
    let done = run(&mut world.command("blue", &words.map(str::to_string), &[], &[]), 60);
    let has = |text: &str| done.output.contains(text);
    assert!(done.ok() && has("0000000000000000") && has("tenant.gdrc"), "{done}");
    assert!(!has("infiniband") && !has("admin"), "{done}");
}

/// All programs, each between one pair; all pairs.
fn in_a_runtime(maker: Maker, name: &str) {
    let world = world!(Setup { more: &[], network: true, maker });
    let dir = scratch(name);
    open_to_all(&dir);
    sees_what_it_should(&world);
    let pair = |k: usize| PAIRS[k % PAIRS.len()];
    BY_TCP.iter().enumerate().for_each(|(k, words)| by_tcp(&world, words, pair(k)));
    BY_CM.iter().enumerate().for_each(|(k, sides)| by_cm(&world, sides, pair(k + 3)));
    ucx(&world, "rc_v,self", "tag_bw", pair(2));
    file(&world, &dir, pair(4));
    wire_is_clean(&world);
}

#[test]
fn in_bubblewrap() {
    in_a_runtime(Maker::Bubblewrap, "router-programs-bwrap");
}

#[test]
fn in_runc() {
    in_a_runtime(Maker::Runc, "router-programs-runc");
}

/// Four ranks, one in each container. What starts the others is not `ssh`: it writes down what it
/// is to start, and the test does so.
#[test]
fn open_mpi_over_all_four() {
    let (Some(mpirun), Some(_)) = (find("mpirun.openmpi"), find("mpicc.openmpi")) else {
        skip!("no Open MPI (openmpi-bin, libopenmpi-dev)")
    };
    let world = world!(Setup { more: &[], network: true, maker: Maker::Namespaces });
    let dir = scratch("router-mpi");
    let program = compile("mpicc.openmpi", "mpi", &dir, &[]);
    let agent = dir.join("agent");
    let script = "#!/bin/sh\nhost=$1\nshift\necho \"$*\" >\"${0%/*}/.$host\"\n\
                  mv \"${0%/*}/.$host\" \"${0%/*}/start-$host\"\n";
    fs::write(&agent, script).expect("a file");
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).expect("a program");
    let names = ["blue", "red", "green", "gold"];
    let hosts = names.map(|name| format!("{name}:1")).join(",");
    let words = format!(
        "{} --allow-run-as-root --host {hosts} -np 4 --mca plm_rsh_agent {} \
         --mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include 10.99.0.0/24 --mca pml ucx \
         --mca osc ucx --mca btl self -x UCX_TLS=rc_v,self -x UCX_NET_DEVICES=gdrc0:1 {} {}",
        mpirun.display(),
        agent.display(),
        launcher().display(),
        program.display()
    );
    // Its files are named by the host, which they all are.
    let own = |name: &str| {
        let at = dir.join(name);
        fs::create_dir(&at).expect("a folder");
        at.display().to_string()
    };
    let at = own("mpirun");
    let rank =
        Running::start(&mut world.tool("blue", &words, &[("TMPDIR", &at)], &[]).expect("it"));
    let mut started: Vec<Running> = Vec::new();
    for name in names {
        let order = dir.join(format!("start-{name}"));
        patience::wait_for(60, "mpirun starts nobody", || order.exists());
        let words = fs::read_to_string(&order).expect("its words").replace("--daemonize", "");
        let (words, at) = (["/bin/sh".into(), "-c".into(), words], own(name));
        started.push(Running::start(&mut world.command(name, &words, &[("TMPDIR", &at)], &[])));
    }
    let done: Done = rank.finish(Duration::from_secs(120));
    assert!(
        done.ok() && done.output.contains("ok 4 ranks"),
        "{done}\n{:?}",
        started.iter().map(|s| s.output()).collect::<Vec<_>>()
    );
    wire_is_clean(&world);
    // Messages of up to 8 MiB went around the ring, three of each, by an edge from host to host.
    for host in [0, 1] {
        let bytes = world.wire(host, "tx_bytes");
        assert!(bytes > 28_000_000, "host {host} sent {bytes} bytes");
    }
}

/// Runs the demo; `more`: its arguments, and what it finds in its environment.
fn demo(bin: &Path, more: &[&str], environment: &[(&str, &str)]) -> Done {
    library::dropin();
    library::router();
    let mut c = Command::new(gdrcore_tests::source::root().join("c-examples/demo_router.sh"));
    c.args(more).env("LIMIT", (90 * patience::factor()).to_string()).env("BIN", bin);
    run(c.envs(environment.iter().copied()), 240)
}

/// The demo says what it did, and its end is its exit code.
#[test]
fn the_demo_of_the_router() {
    // What this machine lacks for it.
    drop(world!(Setup { more: &[], network: true, maker: Maker::Namespaces }));
    let done = demo(&library::examples(), &[], &[]);
    assert!(done.ok(), "{done}");
    let mut lines = vec![
        "container gold on host b, 10.99.0.4: no capability, no /dev/infiniband",
        "checked: 528894 bytes read and 322893 bytes written by RDMA are the same at both ends",
        "[peer] 6. the router has seen it; done",
        "demo: passed",
    ];
    match find("ib_send_bw") {
        Some(_) => lines.extend(["ib_atomic_lat ", "tx_rate=", "checked: not more than the limit"]),
        None => lines.push("skipped: perftest is not installed"),
    }
    for line in lines {
        assert!(done.output.contains(line), "no '{line}' in {done}");
    }
    // Where something is missing it says so, and fails.
    let done = demo(Path::new("/nowhere"), &[], &[]);
    assert_eq!(done.code(), Some(1));
    assert!(done.output.contains("/nowhere/gdrcore-routerd is not there"), "{done}");
    let done = demo(Path::new("/nowhere"), &["--far"], &[]);
    assert!(done.code() == Some(2) && done.output.contains("'--far'"), "{done}");
}

/// The same in remote mode, with host memory and with a GPU's: the router has the device and the
/// GPU, and the client, without either, writes what the peer on the other host reads by RDMA.
#[test]
fn the_demo_of_the_router_in_remote_mode() {
    drop(world!(Setup { more: &[], network: true, maker: Maker::Namespaces }));
    let fake = cuda::fake().to_str().expect("a plain path");
    let gpu = [("GPU", "b7:00.0"), ("FAKECUDA_DEVICES", "0000:b7:00.0"), ("LD_LIBRARY_PATH", fake)];
    for (environment, kind) in [(&[][..], "shared memory"), (&gpu[..], "cuda:b7:00.0 memory")] {
        let done = demo(&library::examples(), &["--remote"], environment);
        assert!(done.ok(), "{done}");
        for line in [
            kind,
            "checked: 528894 bytes read and 322893 bytes written by RDMA are the same at both ends",
            "demo: passed",
        ] {
            assert!(done.output.contains(line), "no '{line}' in {done}");
        }
    }
}
