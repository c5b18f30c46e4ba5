//! Marks of a wire between two network namespaces: the program `congested` says what they become. A
//! test program of its own, since it takes the machine for itself.

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
        skip!("no network namespace for us");
    };
    let done = apart(flags, env!("CARGO_BIN_EXE_congested"));
    println!("{}", done.output);
    assert!(done.ok(), "{}", done.output);
}
