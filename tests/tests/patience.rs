//! Time limits of tests grow with the machine's load (`scripts/patience.sh`).

use gdrcore_tests::or_skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{installed, run};
use std::process::Command;

fn measured(command: &mut Command) -> u32 {
    let done = run(command, 60);
    assert!(done.ok(), "{done}");
    done.output.trim().parse().unwrap_or_else(|e| panic!("'{done}': {e}"))
}

#[test]
fn a_measured_factor_is_passed_on() {
    let script = root().join("scripts/patience.sh");
    assert_eq!(measured(Command::new(&script).env("GDRC_TEST_PATIENCE", "7")), 7);
    let here = measured(Command::new(&script).env_remove("GDRC_TEST_PATIENCE"));
    assert!((1..=10).contains(&here), "{here}");
}

#[test]
fn one_cpu_counts_less_than_two() {
    let taskset = or_skip!(installed("taskset"));
    let own = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let list = own.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).expect("CPUs").trim();
    let first = list.split(['-', ',']).next().expect("a CPU");
    let mut one = Command::new(taskset);
    one.args(["-c", first])
        .arg(root().join("scripts/patience.sh"))
        .env_remove("GDRC_TEST_PATIENCE");
    assert!(measured(&mut one) >= 2);
}
