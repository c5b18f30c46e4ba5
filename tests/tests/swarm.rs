//! Processes of one address that come, go and are killed: the short form of what the program `swarm` does for as long as it is told.

use gdrcore_tests::tools::run;
use std::process::Command;

/// An address that no other run of the tests uses.
fn address() -> String {
    format!("127.54.{}.1:4791", std::process::id() % 250)
}

#[test]
fn eight_processes_of_one_address_come_go_and_are_killed() {
    let done = run(Command::new(env!("CARGO_BIN_EXE_swarm")).args(["8", "6", &address()]), 120);
    println!("{}", done.output);
    assert!(done.ok(), "{}", done.output);
}
