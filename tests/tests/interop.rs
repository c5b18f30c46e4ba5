//! Interoperation of our device with Linux's rxe, in machines that this test boots; the cases are
//! in `gdrcore_tests::rxe`.
//!
//! docs/records/INTEROP.md holds the latest results. `GDRC_BLESS=1 cargo test -p gdrcore-tests
//! --test interop` writes it; without that, the page must list the features that were run.

use gdrcore_tests::or_skip;
use gdrcore_tests::rxe::run_all::NEWER;
use gdrcore_tests::rxe::vm::{self, Release};
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{all_installed, run, scratch, verbs_compiler, Scratch};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An error says what this machine lacks for one with that release.
fn machine(release: Release) -> Result<(), String> {
    all_installed(&["cc", "ip", "unshare", "apt-get", "dpkg"])?;
    verbs_compiler()?;
    if let Err(e) = std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
        return Err(format!("/dev/net/tun: {e}"));
    }
    let may = run(Command::new("unshare").args(apart()).arg("true"), 10);
    if !may.ok() {
        return Err(format!("no network namespace: {}", may.output.trim()));
    }
    vm::prepare(release)
}

/// Options of `unshare` for a network namespace, and for a pid namespace, so that the machine ends
/// with its driver, however that ends.
fn apart() -> [&'static str; 4] {
    let net =
        if run(Command::new("unshare").args(["-n", "true"]), 10).ok() { "-n" } else { "-Urn" };
    [net, "-pf", "--mount-proc", "--kill-child"]
}

/// The parts of docs/records/INTEROP.md: the table, that of the later release, and the longer run,
/// which `scripts/interop_long.sh` writes.
const LONGER: &str = "## A longer run";

fn parts(text: &str) -> [&str; 3] {
    let longer = text.find(LONGER).unwrap_or(text.len());
    let newer = text[..longer].find(NEWER).unwrap_or(longer);
    [&text[..newer], &text[newer..longer], &text[longer..]]
}

/// The features of a table, in order.
fn features(text: &str) -> Vec<String> {
    let rows = text.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| feature"));
    rows.map(|l| l.split(" | ").next().unwrap_or(l).to_string()).collect()
}

/// The machines take both processors, and both tests may write the page.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the program `interop` with a machine, in which are these programs of tests/vm; `cc` are
/// arguments for their compiler. Returns the folder of its results.
fn run_cases(what: &str, programs: &[&str], cc: &[&str]) -> Scratch {
    let share = scratch(&format!("interop-{what}"));
    for program in programs {
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(share.join(program)).args(cc);
        compiler.arg(root().join(format!("tests/vm/{program}.c"))).arg("-libverbs");
        let built = run(&mut compiler, 60);
        assert!(built.ok(), "{built}");
    }
    let driver = Path::new(env!("CARGO_BIN_EXE_interop"));
    std::fs::copy(driver, share.join("interop")).expect("a copy for the machine");
    let mut lab = Command::new("unshare");
    lab.args(apart()).arg(driver).arg(what).arg(&*share);
    let done = run(&mut lab, 900);
    for line in done.output.lines().filter(|l| l.contains("FAILED") || l.starts_with("broken off"))
    {
        println!("{line}");
    }
    let said = done.output.lines().rev().find(|l| l.contains(" cases, ")).unwrap_or("no result");
    println!("interop {what}: {said}");
    assert!(done.ok(), "{said}; the output is in {}", share.display());
    share
}

/// The captures of a run: each must be in tests/vm/evidence, where `GDRC_BLESS` puts it, and be
/// named in the report.
fn check_evidence(share: &Path, report: &str) {
    let kept = root().join("tests/vm/evidence");
    for file in std::fs::read_dir(share.join("evidence")).expect("captures").flatten() {
        let name = file.file_name();
        if is_blessing() {
            std::fs::create_dir_all(&kept).expect("tests/vm/evidence");
            std::fs::copy(file.path(), kept.join(&name)).expect("a capture");
        }
        assert!(
            kept.join(&name).exists(),
            "no capture {name:?} in {}: run this with GDRC_BLESS=1",
            kept.display()
        );
        assert!(
            report.contains(name.to_string_lossy().as_ref()),
            "docs/records/INTEROP.md does not name {name:?}"
        );
    }
}

fn is_blessing() -> bool {
    std::env::var_os("GDRC_BLESS").is_some()
}

/// Compares the features of part `n` of the page with those of the report that a run has written to
/// its folder, or writes that part.
fn compare(n: usize, share: &Path, report: &str) {
    let now = std::fs::read_to_string(share.join(report)).expect("the report");
    check_evidence(share, &now);
    let path = root().join("docs/records/INTEROP.md");
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut all = parts(&text);
    if is_blessing() {
        all[n] = &now;
        let all = all.map(str::trim_end).into_iter().filter(|p| !p.is_empty());
        let text = all.collect::<Vec<_>>().join("\n\n") + "\n";
        std::fs::write(&path, text).expect("docs/records/INTEROP.md");
        return;
    }
    assert_eq!(
        features(all[n]),
        features(&now),
        "docs/records/INTEROP.md is of other cases: run this with GDRC_BLESS=1"
    );
}

#[test]
fn every_feature_works_between_our_device_and_rxe() {
    let _alone = alone();
    or_skip!(machine(Release::Host));
    let share = run_cases("lab", &["peer"], &[]);
    compare(0, &share, "INTEROP.md");
}

/// What rxe has in later kernels only, with the kernel and the rdma-core of Debian 13.
#[test]
fn atomic_write_and_flush_work_between_our_device_and_a_newer_rxe() {
    let _alone = alone();
    or_skip!(machine(Release::Trixie));
    let headers = format!("-I{}", vm::headers(Release::Trixie));
    let share = run_cases("newer", &["peer", "a19"], &["-DA19", &headers]);
    compare(1, &share, "NEWER.md");
}
