//! The behaviour suite over our own devices; `verbs.rs` runs it over a NIC.

use gdrcore_tests::tools::{loopback, run};
use std::process::Command;

fn suite(device: &str, peer: &str, engines: u32) {
    let mut suite = Command::new(env!("CARGO_BIN_EXE_suite"));
    suite.args(["--device", device, "--peer", peer, "--engines", &engines.to_string()]);
    let done = run(&mut suite, 300);
    let said = done.output.lines().find(|l| l.contains(" passed, ")).unwrap_or("no result");
    println!("suite over {device}, {engines} engines: {said}");
    assert!(done.ok() && said.contains(" 0 failed"), "{done}");
}

#[test]
fn behaviour_within_one_device() {
    suite("loopback", "loopback", 1);
}

#[test]
fn behaviour_over_udp() {
    let address = |last| format!("soft:{}", loopback(47, last));
    suite(&address(1), &address(2), 1);
}

#[test]
fn behaviour_of_several_engines() {
    suite("loopback", "loopback", 3);
    let address = |last| format!("soft:{}", loopback(48, last));
    suite(&address(1), &address(2), 3);
}

#[test]
fn a_missing_device_is_named() {
    let done =
        run(Command::new(env!("CARGO_BIN_EXE_suite")).args(["--device", "soft:192.0.2.99"]), 60);
    assert_eq!(done.code(), Some(3));
    assert!(done.output.contains("192.0.2.99"), "{done}");
}
