//! XRC by the C API, as a C program uses it (tests/c/xrc.c), on devices without a NIC.

use gdrcore_tests::library;
use gdrcore_tests::or_skip;
use gdrcore_tests::tools::{installed, loopback, run, scratch};
use std::process::Command;

#[test]
fn a_c_program_sends_to_two_srqs_of_a_domain() {
    or_skip!(installed("cc"));
    let dir = scratch("xrc");
    let program = library::program("xrc", &dir);
    for device in ["loopback".to_string(), format!("soft:{}", loopback(64, 1))] {
        let done = run(Command::new(&program).arg(&device), 60);
        assert!(done.ok() && done.output.contains("ok"), "{device}: {done}");
    }
}
