//! The behaviour suite over our own devices; `verbs.rs` runs it over a NIC.

use gdrcore_tests::tools::{loopback, run};
use std::process::Command;

fn suite(device: &str, peer: &str) {
    let done = run(
        Command::new(env!("CARGO_BIN_EXE_suite")).args(["--device", device, "--peer", peer]),
        300,
    );
    let said = done.output.lines().find(|l| l.contains(" passed, ")).unwrap_or("no result");
    println!("suite over {device}: {said}");
    assert!(done.ok() && said.contains(" 0 failed"), "{}", done.output);
}

#[test]
fn behaviour_within_one_device() {
    suite("loopback", "loopback");
}

#[test]
fn behaviour_over_udp() {
    let address = |last| format!("soft:{}", loopback(47, last));
    suite(&address(1), &address(2));
}

#[test]
fn a_missing_device_is_named() {
    let done =
        run(Command::new(env!("CARGO_BIN_EXE_suite")).args(["--device", "soft:192.0.2.99"]), 60);
    assert_eq!(done.code(), Some(3));
    assert!(done.output.contains("192.0.2.99"), "{}", done.output);
}
