//! XRC by the C API, as a C program uses it (tests/c/xrc.c), on devices without a NIC.

use gdrcore_tests::library;
use gdrcore_tests::skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{compile, find, loopback, run, scratch};
use std::process::Command;

#[test]
fn a_c_program_sends_to_two_srqs_of_a_domain() {
    if find("cc").is_none() {
        skip!("cc is not installed");
    }
    let lib = library::build();
    let dir = scratch("xrc");
    let so = dir.join("libgdrcore.so.0");
    std::os::unix::fs::symlink(lib.join("libgdrcore.so"), so).expect("a link");
    let include = format!("-I{}", root().join("include").display());
    let folder = format!("-L{}", lib.display());
    let program = compile("cc", "xrc", &dir, &[&include, &folder, "-lgdrcore"]);
    for device in ["loopback".to_string(), format!("soft:{}", loopback(64, 1))] {
        let done = run(Command::new(&program).arg(&device).env("LD_LIBRARY_PATH", &dir), 60);
        assert!(done.ok() && done.output.contains("ok"), "{device}: {}", done.output);
    }
}
