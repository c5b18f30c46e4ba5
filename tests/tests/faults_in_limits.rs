//! Limits of the device that rules make smaller (docs/using/TESTING.md): unmodified programs and
//! those of the C API see them and meet them.

use gdrcore_tests::or_skip;
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::tools::{compile, installed, loopback, run, scratch, verbs_compiler};

const LIMITS: &str = "limit max_pd = 2; limit max_cq = 3; limit max_qp = 4; limit max_srq = 1
    limit max_ah = 3; limit max_mr = 5; limit max_mr_size = 65536; limit max_cqe = 100
    limit max_qp_wr = 50; limit max_sge = 2; limit max_inline = 0; limit max_qp_rd_atom = 2";

#[test]
fn a_device_shows_and_enforces_smaller_limits() {
    or_skip!(verbs_compiler());
    let dir = scratch("limits");
    let program = compile("cc", "limits", &dir, &["-libverbs"]);
    let own = loopback(103, 10);
    for (rules, how) in [(LIMITS, "all"), ("limit memlock = 65536", "memlock")] {
        let mut c = command(Some(&own), &["--fault", rules], &program);
        let done = run(c.arg(how), 60);
        assert!(done.ok() && done.output.contains("ok\n"), "{how}: {done}");
        // The device itself has others.
        let done = run(command(Some(&own), &[], &program).arg(how), 60);
        assert!(!done.ok(), "{how}: {done}");
    }
}

#[test]
fn a_limit_beyond_the_devices_own_changes_nothing() {
    let devinfo = or_skip!(installed("ibv_devinfo"));
    let own = loopback(103, 11);
    let shown = |options: &[&str]| {
        let done = run(command(Some(&own), options, &devinfo).arg("-v"), 60);
        assert!(done.ok(), "{done}");
        let limits = done.output.lines().filter(|l| l.trim_start().starts_with("max_"));
        limits.map(str::to_string).collect::<Vec<_>>()
    };
    // With one engine, as a device with limits has.
    let plain = shown(&["--engines", "1"]);
    assert!(plain.len() > 10, "{plain:?}");
    let beyond = "limit max_qp = 1000000000; limit max_sge = 1000000000; limit max_cqe=1000000000";
    assert_eq!(shown(&["--fault", beyond]), plain);
}
