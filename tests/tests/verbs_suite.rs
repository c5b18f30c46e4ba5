//! rdma-core's own test suite (Debian's python3-pyverbs) on the drop-in. Its tests of generic verbs all run; which of them
//! pass may only grow: docs/VERBS-SUITE.md has the number, and each that does not pass with the reason.
//! `GDRC_BLESS=1` writes that page anew.

use gdrcore_tests::dropin::command;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{loopback, run, scratch};
use gdrcore_tests::{library, skip};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// Debian's interpreter, which has pyverbs.
const PYTHON: &str = "/usr/bin/python3";
/// Where Debian puts the suite, each file compressed.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";

/// The modules that are not of one vendor's NIC.
const MODULES: &str = "test_addr,test_atomic,test_cq,test_cq_events,test_cqex,test_device,test_flow,test_fork,test_mr,\
    test_odp,test_parent_domain,test_pd,test_qp,test_qpex,test_rdmacm,test_relaxed_ordering,test_rss_traffic,\
    test_shared_pd,test_tag_matching";

/// What the suite says when it skips, and why that is so here.
const WHY: &[(&str, &str)] = &[
    ("Create XRCD", "the device has no XRC"),
    ("Create QP type 8", "raw Ethernet packets: the device is in user space, above UDP"),
    ("Raw Packet QP", "raw Ethernet packets: the device is in user space, above UDP"),
    ("RAW Packet QP", "raw Ethernet packets: the device is in user space, above UDP"),
    ("Allocating dmabuf", "needs a graphics device (DRM) that gives dma-bufs"),
    ("huge pages", "this machine had no huge pages set aside"),
    ("net interface", "needs librdmacm's kernel interface (libgdrcore_preload.so)"),
    ("Extended CQ is not supported", "the device has no tag matching"),
    ("Extended QP is not supported", "the device has no ATOMIC WRITE"),
];

/// One test of the suite.
struct Line {
    module: String,
    test: String,
    outcome: String,
    reason: String,
}

fn parse(output: &str) -> Vec<Line> {
    let line = |l: &str| {
        let mut parts = l.split('\t').map(str::to_string);
        let (module, test, outcome) = (parts.next()?, parts.next()?, parts.next()?);
        let known = matches!(outcome.as_str(), "pass" | "skip" | "fail");
        known.then(|| Line { module, test, outcome, reason: parts.next().unwrap_or_default() })
    };
    output.lines().filter_map(line).collect()
}

/// Unpacks the suite.
fn unpack(to: &Path) {
    for entry in std::fs::read_dir(SUITE).expect("the suite").flatten() {
        let (from, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        match name.strip_suffix(".gz") {
            Some(plain) => {
                let done = run(Command::new("gzip").arg("-dc").arg(&from), 10);
                assert!(done.ok(), "{name}: {}", done.output);
                std::fs::write(to.join(plain), done.output).expect("a file");
            }
            None if from.is_file() => drop(std::fs::copy(&from, to.join(&name)).expect("a copy")),
            None => {}
        }
    }
}

fn page(lines: &[Line], passed: usize) -> String {
    let mut page = format!(
        "# rdma-core's test suite on the drop-in\n\n\
         {passed} of {} tests pass: the tests of generic verbs of rdma-core 44 (Debian 12's python3-pyverbs), run unmodified on\n\
         `libibverbs.so.1` of this repository by `tests/tests/verbs_suite.rs`, which also wrote this page. Those that do not pass:\n\n\
         | Module | Test | Outcome | Why |\n|---|---|---|---|\n",
        lines.len()
    );
    for l in lines.iter().filter(|l| l.outcome != "pass") {
        let why = WHY.iter().find(|(said, _)| l.reason.contains(said)).map_or(l.reason.as_str(), |(_, why)| why);
        let test = l.test.rsplit('.').next().unwrap_or(&l.test);
        writeln!(page, "| {} | {test} | {} | {why} |", l.module, l.outcome).expect("a String");
    }
    page
}

#[test]
fn rdma_cores_suite_passes_as_far_as_the_page_says() {
    if !Path::new(SUITE).is_dir() || !run(Command::new(PYTHON).args(["-c", "import pyverbs"]), 20).ok() {
        skip!("no {SUITE}, or no pyverbs (python3-pyverbs)");
    }
    let dir = scratch("verbs-suite");
    let tests = dir.join("tests");
    std::fs::create_dir_all(&tests).expect("a folder");
    unpack(&tests);
    let mut suite = command(PYTHON, &loopback(95, 1));
    // librdmacm's kernel interface; without it the tests of librdmacm are skipped.
    let preload = library::dropin().join("libgdrcore_preload.so");
    if preload.exists() {
        suite.env("LD_PRELOAD", preload);
    }
    suite.current_dir(&dir).arg("-B").arg(root().join("tests/python/verbs_suite.py"));
    let done = run(suite.args(["--dev", "gdrc0", "--gid", "0", MODULES]), 240);
    assert!(done.ok(), "crashed or did not end: {:?}\n{}", done.status, done.output);
    let lines = parse(&done.output);
    let passed = lines.iter().filter(|l| l.outcome == "pass").count();
    println!("rdma-core's suite: {passed} of {} pass", lines.len());
    for l in lines.iter().filter(|l| l.outcome == "fail") {
        println!("{} {}: {}", l.module, l.test, l.reason);
    }
    let file = root().join("docs/VERBS-SUITE.md");
    if std::env::var_os("GDRC_BLESS").is_some() {
        std::fs::write(&file, page(&lines, passed)).expect("the page");
        return;
    }
    let text = std::fs::read_to_string(&file).expect("docs/VERBS-SUITE.md");
    let number = |word: usize| -> usize {
        let line = text.lines().find(|l| l.contains("tests pass")).expect("the line with the number");
        line.split_whitespace().nth(word).and_then(|w| w.parse().ok()).expect("a number")
    };
    if lines.len() != number(2) {
        skip!("another release of the suite: {} tests", lines.len());
    }
    assert!(passed >= number(0), "{passed} pass, {} did", number(0));
}
