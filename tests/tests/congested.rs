//! Runs the program `congested`: marks on a wire between two network namespaces must slow the
//! sender down. A test binary of its own, since it needs the machine's CPUs.

use gdrcore_tests::skip;
use gdrcore_tests::tools::run;
use std::process::Command;

#[test]
fn marks_of_a_wire_between_two_namespaces_slow_the_sender_down() {
    if let Err(e) = std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
        skip!("/dev/net/tun: {e}");
    }
    let apart =
        |flags: &str, program: &str| run(Command::new("unshare").args([flags, program]), 120);
    let Some(flags) = ["-n", "-Urn"].into_iter().find(|flags| apart(flags, "true").ok()) else {
        skip!("this process cannot make a network namespace");
    };
    let done = apart(flags, env!("CARGO_BIN_EXE_congested"));
    println!("{}", done.output);
    assert!(done.ok(), "{done}");
}
