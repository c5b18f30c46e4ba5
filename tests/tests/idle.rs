//! Idle queue pairs cost nothing: an operation takes as many instructions beside thousands of them
//! as alone, within a context, through shared memory and through UDP.
//!
//! `GDRC_IDLE_QPS=100000` takes as many.

use gdrcore_tests::library;
use gdrcore_tests::or_skip;
use gdrcore_tests::soft::address;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{installed, run, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Operations that are counted.
const COUNT: u64 = 400;

/// The program of scripts/stages.sh with its slow clock.
fn compile(dir: &Path) -> PathBuf {
    let lib = library::build();
    let _ = std::fs::remove_file(dir.join("libgdrcore.so.0"));
    std::os::unix::fs::symlink(lib.join("libgdrcore.so"), dir.join("libgdrcore.so.0"))
        .expect("a link");
    let program = dir.join("loop");
    let stages = root().join("bench/stages");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O2", "-o"]).arg(&program).arg(stages.join("loop.c"));
    cc.arg(format!("-I{}", root().join("include").display())).arg(format!("-L{}", lib.display()));
    let built = run(cc.arg("-lgdrcore").arg(format!("-Wl,-rpath,{}", dir.display())), 60);
    assert!(built.ok(), "{built}");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-shared", "-fPIC", "-o"]).arg(dir.join("slow.so"));
    let built = run(cc.arg(stages.join("slow.c")).arg("-ldl"), 60);
    assert!(built.ok(), "{built}");
    program
}

/// Instructions of an operation beside so many QPs.
fn instructions(dir: &Path, operation: &str, idle: u32, devices: u8) -> u64 {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--collect-atstart=no", "--toggle-collect=measured"]);
    command.arg(format!("--callgrind-out-file={}", dir.join("callgrind").display()));
    command.arg(dir.join("loop")).arg(format!("{operation}:{idle}")).arg(COUNT.to_string());
    command.args([address(devices), address(devices + 1)]);
    let done = run(command.env("LD_PRELOAD", dir.join("slow.so")), 900);
    assert!(done.ok(), "{operation}: {done}");
    // "==PID== Collected : 123456"
    let collected = done.output.lines().find_map(|line| line.split_once("Collected : "));
    let all: Option<u64> = collected.and_then(|(_, n)| n.trim().parse().ok());
    all.unwrap_or_else(|| panic!("{done}")) / COUNT
}

fn is_as_cheap(beside: u64, alone: u64) -> bool {
    beside <= alone + alone / 50
}

#[test]
fn an_operation_beside_idle_queue_pairs_takes_no_more_instructions() {
    or_skip!(installed("valgrind"));
    let many = std::env::var("GDRC_IDLE_QPS").ok().and_then(|n| n.parse().ok()).unwrap_or(2048);
    let dir = scratch("idle");
    compile(&dir);
    for (i, operation) in ["write", "send", "hop", "udp-hop"].into_iter().enumerate() {
        let devices = 4 * i as u8 + 1;
        let alone = instructions(&dir, operation, 0, devices);
        let mut beside = u64::MAX;
        // What idle queue pairs cost is in every run; what a loaded machine costs is not.
        for _ in 0..3 {
            if !is_as_cheap(beside, alone) {
                beside = beside.min(instructions(&dir, operation, many, devices + 2));
            }
        }
        println!("{operation}: {alone} instructions alone, {beside} beside {many} idle QPs");
        assert!(alone > 400, "{operation} cannot take {alone} instructions");
        assert!(
            is_as_cheap(beside, alone),
            "{operation}: {beside} instructions beside {many} idle QPs, {alone} alone"
        );
    }
}
