//! Idle queue pairs cost nothing: a busy pair takes as many instructions beside 4096 of them as
//! alone.

use gdrcore_tests::skip;
use gdrcore_tests::tools::{find, run, scratch};
use std::process::Command;

/// Instructions that a busy pair takes beside `idle` QPs.
fn instructions(idle: u32) -> u64 {
    let dir = scratch("idle");
    let out = dir.join("callgrind");
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=gdrc_test_busy"]);
    command.arg(format!("--callgrind-out-file={}", out.display()));
    let done = run(command.arg(env!("CARGO_BIN_EXE_idle")).arg(idle.to_string()), 300);
    assert!(done.ok(), "{}", done.output);
    // "==PID== Collected : 123456"
    let collected = done.output.lines().find_map(|line| line.split_once("Collected : "));
    collected.and_then(|(_, n)| n.trim().parse().ok()).unwrap_or_else(|| panic!("{}", done.output))
}

#[test]
fn a_busy_pair_beside_4096_idle_ones_takes_no_more_instructions() {
    if find("valgrind").is_none() {
        skip!("valgrind is not installed");
    }
    let [alone, beside] = [0, 4096].map(instructions);
    println!("{alone} instructions alone, {beside} beside 4096 idle QPs");
    assert!(alone > 400 * 100, "400 rounds cannot take {alone} instructions");
    assert!(
        beside * 100 <= alone * 102,
        "{beside} instructions beside 4096 idle QPs, {alone} alone"
    );
}
