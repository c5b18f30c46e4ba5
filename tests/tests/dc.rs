//! DC by the C API, as a C program uses it (tests/c/dc.c), on devices without a NIC.

use gdrcore_tests::library;
use gdrcore_tests::or_skip;
use gdrcore_tests::tools::{installed, loopback, run, scratch};
use std::process::Command;

#[test]
fn one_initiator_reaches_64_targets_and_64_initiators_one() {
    or_skip!(installed("cc"));
    let dir = scratch("dc");
    let program = library::program("dc", &dir);
    let soft = |n| format!("soft:{}", loopback(97, n));
    let within = vec!["loopback".to_string()];
    let alone = vec![soft(1)];
    let both = vec![soft(2), soft(3)];
    let [udp, shm] = ["udp", "shm"].map(|path| vec![soft(4), soft(5), path.to_string()]);
    for args in [within, alone, both, udp, shm] {
        let done = run(Command::new(&program).args(&args), 120);
        assert!(done.ok() && done.output.contains("ok"), "{args:?}: {done}");
    }
}
