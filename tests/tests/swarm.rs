//! Processes of one address that start, leave and are killed: short runs of the program `swarm`.

use gdrcore_tests::tools::{loopback, run};
use std::process::Command;

/// An address that no other run of the tests uses.
fn address(last: u32) -> String {
    format!("{}:4791", loopback(54, last))
}

#[test]
fn eight_processes_of_one_address_come_go_and_are_killed() {
    let done = run(Command::new(env!("CARGO_BIN_EXE_swarm")).args(["8", "6", &address(1)]), 120);
    println!("{}", done.output);
    assert!(done.ok(), "{done}");
}

#[test]
fn without_steering_processes_forward_packets() {
    let done =
        run(Command::new(env!("CARGO_BIN_EXE_swarm")).args(["6", "4", &address(2), "nobpf"]), 120);
    println!("{}", done.output);
    if done.output.contains("no seccomp here") {
        gdrcore_tests::skip!("this kernel has no seccomp filters");
    }
    assert!(done.ok(), "{done}");
    assert!(
        done.output.contains("the kernel does not steer packets"),
        "no member reported it: {done}"
    );
}

#[test]
fn processes_that_are_stopped_for_a_while_lose_nothing() {
    let done =
        run(Command::new(env!("CARGO_BIN_EXE_swarm")).args(["8", "6", &address(3), "stops"]), 120);
    println!("{}", done.output);
    assert!(done.ok(), "{done}");
}
