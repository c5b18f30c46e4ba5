//! DC by the C API, as a C program uses it (tests/c/dc.c), on devices without a NIC.

use gdrcore_tests::library;
use gdrcore_tests::skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{compile, find, loopback, run, scratch};
use std::process::Command;

#[test]
fn one_initiator_reaches_64_targets_and_64_initiators_one() {
    if find("cc").is_none() {
        skip!("cc is not installed");
    }
    let lib = library::build();
    let dir = scratch("dc");
    let so = dir.join("libgdrcore.so.0");
    std::os::unix::fs::symlink(lib.join("libgdrcore.so"), so).expect("a link");
    let include = format!("-I{}", root().join("include").display());
    let folder = format!("-L{}", lib.display());
    let program = compile("cc", "dc", &dir, &[&include, &folder, "-lgdrcore"]);
    let soft = |n| format!("soft:{}", loopback(97, n));
    let within = vec!["loopback".to_string()];
    let alone = vec![soft(1)];
    let both = vec![soft(2), soft(3)];
    let [udp, shm] = ["udp", "shm"].map(|path| vec![soft(4), soft(5), path.to_string()]);
    for args in [within, alone, both, udp, shm] {
        let done = run(Command::new(&program).args(&args).env("LD_LIBRARY_PATH", &dir), 120);
        assert!(done.ok() && done.output.contains("ok"), "{args:?}: {}", done.output);
    }
}
