//! Fast handles of queue pairs and CQs, by the header's inline functions as C and C++ compile them
//! (tests/c/fast.c), on devices without a NIC. The test `verbs` runs the same program on a NIC.

use gdrcore_tests::library;
use gdrcore_tests::or_skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{installed, loopback, run, scratch};
use std::process::Command;

/// Builds the program with a compiler and runs it on devices of both kinds that every machine has.
fn fast(compiler: &str, flags: &[&str]) {
    or_skip!(installed(compiler));
    let lib = library::build();
    let dir =
        scratch(&format!("fast-{}", flags.last().expect("a standard").trim_start_matches("-std=")));
    let so = dir.join("libgdrcore.so.0");
    std::os::unix::fs::symlink(lib.join("libgdrcore.so"), so).expect("a link");
    let program = dir.join("fast");
    let mut cc = Command::new(compiler);
    cc.args(flags).args(["-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    cc.arg(format!("-I{}", root().join("include").display())).arg(root().join("tests/c/fast.c"));
    cc.arg(format!("-L{}", lib.display())).args(["-lgdrcore", "-lpthread", "-o"]).arg(&program);
    let built = run(&mut cc, 60);
    assert!(built.ok(), "{built}");
    for device in ["loopback".to_string(), format!("soft:{}", loopback(61, 1))] {
        for engines in ["1", "2"] {
            let mut fast = Command::new(&program);
            let done = run(fast.args([&device, engines]).env("LD_LIBRARY_PATH", &dir), 60);
            assert!(done.ok() && done.output.contains("ok"), "{device}: {done}");
        }
    }
}

#[test]
fn fast_handles_as_c11_sees_them() {
    fast("cc", &["-D_GNU_SOURCE", "-std=c11"]);
}

#[test]
fn fast_handles_as_cpp11_sees_them() {
    fast("c++", &["-x", "c++", "-std=c++11"]);
}
