//! Interoperation of our device with Linux's rxe, in a machine that this test boots; the cases are
//! in `gdrcore_tests::rxe`.
//!
//! docs/records/INTEROP.md holds the latest results. `GDRC_BLESS=1 cargo test -p gdrcore-tests
//! --test interop` writes it; without that, the page must list the features that were run.

use gdrcore_tests::rxe::vm;
use gdrcore_tests::skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{find, run, scratch};
use std::path::Path;
use std::process::Command;

/// What this machine lacks; `None`: nothing.
fn missing() -> Option<String> {
    for tool in ["cc", "ip", "unshare", "apt-get", "dpkg"] {
        if find(tool).is_none() {
            return Some(format!("{tool} is not installed"));
        }
    }
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return Some("libibverbs-dev is not installed".into());
    }
    if let Err(e) = std::fs::File::options().read(true).write(true).open("/dev/net/tun") {
        return Some(format!("/dev/net/tun: {e}"));
    }
    let may = run(Command::new("unshare").args(apart()).arg("true"), 10);
    if !may.ok() {
        return Some(format!("no network namespace: {}", may.output.trim()));
    }
    vm::prepare().err()
}

/// Options of `unshare` for a network namespace, and for a pid namespace, so that the machine ends
/// with its driver, however that ends.
fn apart() -> [&'static str; 4] {
    let net =
        if run(Command::new("unshare").args(["-n", "true"]), 10).ok() { "-n" } else { "-Urn" };
    [net, "-pf", "--mount-proc", "--kill-child"]
}

/// Heading of the part of docs/records/INTEROP.md that `scripts/interop_long.sh` writes.
const LONGER: &str = "## A longer run";

/// The features of the table, in order; the longer run has a table of its own.
fn features(text: &str) -> Vec<String> {
    let text = text.find(LONGER).map_or(text, |at| &text[..at]);
    let rows = text.lines().filter(|l| l.starts_with("| ") && !l.starts_with("| feature"));
    rows.map(|l| l.split(" | ").next().unwrap_or(l).to_string()).collect()
}

#[test]
fn every_feature_works_between_our_device_and_rxe() {
    if let Some(why) = missing() {
        skip!("no machine with rxe: {why}");
    }
    let share = scratch("interop");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(share.join("peer"));
    cc.arg(root().join("tests/vm/peer.c")).arg("-libverbs");
    let built = run(&mut cc, 60);
    assert!(built.ok(), "{}", built.output);
    let driver = Path::new(env!("CARGO_BIN_EXE_interop"));
    std::fs::copy(driver, share.join("interop")).expect("a copy for the machine");
    let mut lab = Command::new("unshare");
    lab.args(apart()).arg(driver).arg("lab").arg(&share);
    let done = run(&mut lab, 900);
    for line in done.output.lines().filter(|l| l.contains("FAILED") || l.starts_with("broken off"))
    {
        println!("{line}");
    }
    let said = done.output.lines().rev().find(|l| l.contains(" cases, ")).unwrap_or("no result");
    println!("interop: {said}");
    assert!(done.ok(), "{said}; the output is in {}", share.display());
    let now = std::fs::read_to_string(share.join("INTEROP.md")).expect("the report");
    let path = root().join("docs/records/INTEROP.md");
    let kept = root().join("tests/vm/evidence");
    let evidence: Vec<_> =
        std::fs::read_dir(share.join("evidence")).expect("captures").flatten().collect();
    if std::env::var_os("GDRC_BLESS").is_some() {
        // The longer run follows the table, and is made by another command.
        let old = std::fs::read_to_string(&path).unwrap_or_default();
        let tail = old.find(LONGER).map_or("", |at| &old[at..]);
        std::fs::write(&path, format!("{now}\n{tail}")).expect("docs/records/INTEROP.md");
        std::fs::create_dir_all(&kept).expect("tests/vm/evidence");
        for file in &evidence {
            std::fs::copy(file.path(), kept.join(file.file_name())).expect("a capture");
        }
    }
    for file in &evidence {
        let name = file.file_name();
        assert!(
            kept.join(&name).exists(),
            "no capture {name:?} in {}: run this with GDRC_BLESS=1",
            kept.display()
        );
        assert!(
            now.contains(name.to_string_lossy().as_ref()),
            "docs/records/INTEROP.md does not name {name:?}"
        );
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        features(&kept),
        features(&now),
        "docs/records/INTEROP.md is of other cases: run this with GDRC_BLESS=1"
    );
    let _ = std::fs::remove_dir_all(&share);
}
