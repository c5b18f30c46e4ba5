//! Processes of one address that come, go and are killed: the short form of what the program `swarm` does for as long as it is told.

use gdrcore_tests::tools::run;
use std::process::Command;

/// An address that no other run of the tests uses.
fn address(last: u8) -> String {
    format!("127.54.{}.{last}:4791", std::process::id() % 250)
}

#[test]
fn eight_processes_of_one_address_come_go_and_are_killed() {
    let done = run(Command::new(env!("CARGO_BIN_EXE_swarm")).args(["8", "6", &address(1)]), 120);
    println!("{}", done.output);
    assert!(done.ok(), "{}", done.output);
}

#[test]
fn where_the_kernel_takes_no_program_they_pass_packets_on() {
    let done = run(Command::new(env!("CARGO_BIN_EXE_swarm")).args(["6", "4", &address(2), "nobpf"]), 120);
    println!("{}", done.output);
    if done.output.contains("no seccomp here") {
        gdrcore_tests::skip!("this kernel has no seccomp filters");
    }
    assert!(done.ok(), "{}", done.output);
    assert!(done.output.contains("the kernel does not steer packets"), "nobody said so: {}", done.output);
}
