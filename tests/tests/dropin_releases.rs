//! The drop-in in place of the libibverbs of other Debian releases: their names, and their tools.

use gdrcore_tests::debian_root::{DebianRoot, LAUNCHER};
use gdrcore_tests::dropin::{both, exports, free_port, without_defaults};
use gdrcore_tests::rdmacm::{has_served, wait_until_it_listens};
use gdrcore_tests::tools::{installed, loopback, run, Running};
use gdrcore_tests::{library, or_skip, skip};
use std::path::Path;
use std::time::Duration;

/// Each tool, with its arguments before the server's name; `-p` follows.
const TOOLS: [&str; 8] = [
    "ibv_rc_pingpong -g 0 -c",
    "ibv_ud_pingpong -g 0 -c",
    "ibv_srq_pingpong -g 0 -c",
    "ib_send_lat -F -x 0 -n 100",
    "ib_write_bw -F -x 0 -n 100",
    "ib_read_bw -F -x 0 -n 100",
    "ib_atomic_bw -F -x 0 -n 100",
    "ib_send_bw -F -x 0 -n 100 -c UD",
];

/// Names that a release's library exports and ours does not.
fn missing(root: &DebianRoot, library: &str) -> Vec<String> {
    let ours = exports(&library::dropin().join(library)).expect("readelf");
    let theirs = exports(&root.library(library)).expect("readelf");
    assert!(theirs.len() > 90, "{theirs:?}");
    without_defaults(&theirs).difference(&without_defaults(&ours)).cloned().collect()
}

fn words(line: &str) -> impl Iterator<Item = &str> {
    line.split_whitespace().skip(1)
}

/// Every tool between two processes; `n` is the test's number for its addresses.
fn runs_tools(root: &DebianRoot, n: u32) {
    let [a, b] = [1, 2].map(|last| loopback(n, last));
    let devices = run(&mut root.on_the_drop_in(&a, "ibv_devinfo"), 60);
    assert!(devices.ok() && devices.output.contains("PORT_ACTIVE"), "{devices}");
    for line in TOOLS {
        let (tool, port) = (line.split(' ').next().expect("a name"), free_port());
        let side = |address: &str| {
            let mut c = root.on_the_drop_in(address, tool);
            c.args(words(line)).args(["-p", &port.to_string()]);
            c
        };
        for done in both(&mut side(&a), side(&b).arg("127.0.0.1"), port) {
            assert!(done.ok(), "{line}: {done}");
        }
    }
    let side = |address: &str| root.on_the_drop_in(address, "rping");
    let mut server = Running::start(side(&a).args(["-s", "-a", &a, "-C", "10", "-V"]));
    wait_until_it_listens(&mut server, &a);
    let client = run(side(&b).args(["-c", "-a", &a, "-C", "10", "-V"]), 60);
    let server = server.finish(Duration::from_secs(60));
    assert!(client.ok(), "{client}\n{}", server.output);
    assert!(has_served("rping", &server), "{}", server.output);
}

/// Whether the C library of the root has what the drop-in is linked to.
fn can_load(root: &DebianRoot) -> bool {
    let done = run(root.command(Path::new(LAUNCHER)).arg("--version"), 60);
    assert!(done.ok() || done.output.contains("GLIBC_"), "{done}");
    done.ok()
}

fn serves_the_release(release: &str, n: u32) {
    or_skip!(installed("readelf"));
    library::dropin();
    let root = or_skip!(DebianRoot::new(release));
    for library in ["libibverbs.so.1", "libmlx5.so.1"] {
        assert_eq!(missing(&root, library), [""; 0], "{library} of {release}");
    }
    if !can_load(&root) {
        skip!("the tools of {release}: its C library is older than the one linked here");
    }
    runs_tools(&root, n);
}

#[test]
fn debian_11() {
    serves_the_release("bullseye", 171);
}

#[test]
fn debian_12() {
    serves_the_release("bookworm", 172);
}

#[test]
fn debian_13() {
    serves_the_release("trixie", 173);
}

#[test]
fn debian_sid() {
    serves_the_release("sid", 174);
}
