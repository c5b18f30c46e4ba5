//! The libibverbs drop-in under programs as Debian ships them.

use gdrcore_tests::dropin::{command, Pair};
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{find, loopback, run};
use gdrcore_tests::{library, skip};
use std::collections::BTreeSet;
use std::process::Command;

/// Runs a tool in all its variants between two processes, over shared memory and, where it says so, over UDP.
fn all_pass(tool: &str, n: u32, variants: &[&str]) {
    for (i, arguments) in variants.iter().enumerate() {
        for path in ["shm", "udp"] {
            // The first variant shows the other path.
            if path == "udp" && i > 0 {
                continue;
            }
            let Some(pair) = Pair::new(tool, arguments, n) else { skip!("no {tool} (ibverbs-utils, perftest)") };
            let [server, client] = pair.over(path).run();
            assert!(
                server.ok() && client.ok(),
                "{tool} {arguments} over {path}\nserver {:?}:\n{}\nclient {:?}:\n{}",
                server.status,
                server.output,
                client.status,
                client.output
            );
        }
    }
}

/// Names and versions that a library exports, as `name version`; the default version of a name has `@@`.
fn exports(library: &std::path::Path) -> Option<BTreeSet<String>> {
    let done = run(Command::new(find("readelf")?).args(["-W", "--dyn-syms"]).arg(library), 20);
    let symbols = done.output.lines().filter_map(|l| {
        let words: Vec<&str> = l.split_whitespace().collect();
        let name = *words.get(7)?;
        // Not what it imports, nor the versions themselves.
        (name.contains("@") && words[6] != "UND" && words[6] != "ABS").then(|| name.to_string())
    });
    Some(symbols.collect())
}

#[test]
fn the_exports_are_those_of_debians_library() {
    let ours = library::dropin().join("libibverbs.so.1");
    let Some(ours) = exports(&ours) else { skip!("no readelf (binutils)") };
    let listed: BTreeSet<String> = std::fs::read_to_string(root().join("dropin/symbols/debian-12.txt"))
        .expect("the table")
        .lines()
        .filter(|l| !l.starts_with('#'))
        .map(|l| l.split_whitespace().take(2).collect::<Vec<_>>().join(" "))
        .collect();
    let split = |s: &BTreeSet<String>| -> BTreeSet<String> {
        s.iter().map(|n| n.replacen("@@", "@", 1).replacen('@', " ", 1)).collect()
    };
    assert!(listed.len() > 170, "the table has shrunk");
    let exported = split(&ours);
    let missing: Vec<_> = listed.difference(&exported).collect();
    assert!(missing.is_empty(), "not exported: {missing:?}");
    // Where Debian's own is at hand: the table is its list, and the defaults are its defaults.
    let theirs = std::path::Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0");
    if let Some(theirs) = theirs.exists().then(|| exports(theirs)).flatten() {
        assert_eq!(split(&theirs), listed);
        let defaults: Vec<_> = theirs.iter().filter(|n| n.contains("@@") && !ours.contains(*n)).collect();
        assert!(defaults.is_empty(), "not the default version: {defaults:?}");
    }
}

#[test]
fn the_devices_are_listed_and_described() {
    let Some(tool) = find("ibv_devinfo") else { skip!("no ibv_devinfo (ibverbs-utils)") };
    let address = loopback(90, 1);
    let info = run(command(tool, &address).arg("-v"), 20);
    for part in ["hca_id:\tgdrc0", "PORT_ACTIVE", "link_layer:\t\tEthernet", "RoCE v2", "ATOMIC_GLOB", &address] {
        assert!(info.ok() && info.output.contains(part), "{part}: {}", info.output);
    }
    let Some(tool) = find("ibv_devices") else { skip!("no ibv_devices (ibverbs-utils)") };
    let all = run(command(&tool, &address).env_remove("GDRC_ADDRESS"), 20);
    // Whatever else this machine has, 127.0.0.1 is among it.
    assert!(all.ok() && all.output.contains("ffff7f0012b6"), "{}", all.output);
    let one = run(command(&tool, &address).env_remove("GDRC_ADDRESS").env("GDRC_DEVICE", "gdrc0"), 20);
    assert_eq!(one.output.matches("gdrc").count(), 1, "{}", one.output);
    let none = run(command(&tool, &address).env("GDRC_DEVICE", "mlx5_0"), 20);
    assert!(!none.output.contains("gdrc"), "{}", none.output);
}

#[test]
fn rdma_cores_ping_pongs_run_unmodified() {
    all_pass(
        "ibv_rc_pingpong",
        91,
        &["-g 0 -c", "-g 0 -c -e", "-g 0 -t", "-g 0 -n 100000 -s 64", "-g 0 -c -m 4096 -s 1000000 -n 20", "-g 0 -o"],
    );
    all_pass("ibv_uc_pingpong", 91, &["-g 0 -c", "-g 0 -e"]);
    all_pass("ibv_ud_pingpong", 91, &["-g 0 -c", "-g 0 -e"]);
    all_pass("ibv_srq_pingpong", 91, &["-g 0 -c", "-g 0 -e -q 32"]);
}

#[test]
fn perftests_latency_tools_run_unmodified() {
    all_pass(
        "ib_send_lat",
        92,
        &[
            "-F -x 0 -n 500",
            "-F -x 0 -n 500 -e",
            "-F -x 0 -n 500 -c UC",
            "-F -x 0 -n 500 -c UD",
            "-F -x 0 -n 500 -I 64",
        ],
    );
    all_pass("ib_write_lat", 92, &["-F -x 0 -n 500", "-F -x 0 -n 500 -c UC", "-F -x 0 -n 500 -I 128"]);
    all_pass("ib_read_lat", 92, &["-F -x 0 -n 500", "-F -x 0 -n 500 -e"]);
    all_pass("ib_atomic_lat", 92, &["-F -x 0 -n 500", "-F -x 0 -n 500 -A CMP_AND_SWAP"]);
}

#[test]
fn perftests_bandwidth_tools_run_unmodified() {
    all_pass(
        "ib_send_bw",
        93,
        &["-F -x 0 -n 500", "-F -x 0 -n 500 -e", "-F -x 0 -n 500 -b", "-F -x 0 -n 500 -c UD", "-F -x 0 -n 500 -q 4"],
    );
    all_pass(
        "ib_write_bw",
        93,
        &["-F -x 0 -n 500", "-F -x 0 -n 500 -b", "-F -x 0 -n 500 -q 4", "-F -x 0 -n 500 -c UC", "-F -x 0 -a -n 5"],
    );
    all_pass("ib_read_bw", 93, &["-F -x 0 -n 500", "-F -x 0 -n 500 -q 4", "-F -x 0 -n 500 -b"]);
    all_pass("ib_atomic_bw", 93, &["-F -x 0 -n 500", "-F -x 0 -n 500 -q 4"]);
}
