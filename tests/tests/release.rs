//! `make release`, in a copy of the sources with a history of its own.

use gdrcore_tests::skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{run, scratch, Done, Scratch};
use std::fs;
use std::path::Path;
use std::process::Command;

fn git(tree: &Path, words: &[&str]) -> String {
    let who = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"];
    let done = run(Command::new("git").arg("-C").arg(tree).args(who).args(words), 60);
    assert!(done.ok(), "git {words:?}: {done}");
    done.output.trim().to_string()
}

/// The sources as they are, in a repository with one commit.
fn a_repository(test: &str) -> Scratch {
    let tree = scratch(test);
    let pack = "cd \"$0\" && git ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' f; do [ ! -f \"$f\" ] || printf '%s\\0' \"$f\"; done |
        tar --null --files-from=- --create | tar --extract --directory \"$1\"";
    let done = run(
        Command::new("bash").args(["-euo", "pipefail", "-c", pack]).arg(root()).arg(&*tree),
        120,
    );
    assert!(done.ok(), "the sources as git lists them: {done}");
    git(&tree, &["init", "--quiet"]);
    git(&tree, &["add", "--all"]);
    git(&tree, &["commit", "--quiet", "--message", "all"]);
    tree
}

fn release(tree: &Path, version: &str) -> Done {
    let mut make = Command::new("make");
    for name in ["MAKELEVEL", "MAKEFLAGS", "MFLAGS"] {
        make.env_remove(name);
    }
    for name in ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"] {
        make.env(name, "test");
    }
    for name in ["GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"] {
        make.env(name, "test@example.invalid");
    }
    make.args(["--no-print-directory", "release", "-C"]).arg(tree);
    run(make.arg(format!("VERSION={version}")), 120)
}

fn read(tree: &Path, path: &str) -> String {
    fs::read_to_string(tree.join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn a_release_is_one_commit_that_names_the_version_everywhere_and_a_tag() {
    if !run(Command::new("git").arg("--version"), 60).ok() {
        skip!("no git to make a release with (apt-get install git)");
    }
    let tree = a_repository("release");
    let own = env!("CARGO_PKG_VERSION");
    let done = release(&tree, "0.99.2");
    assert!(done.ok(), "{done}");
    assert_eq!(git(&tree, &["status", "--porcelain"]), "");
    assert_eq!(git(&tree, &["cat-file", "-t", "v0.99.2"]), "tag");
    let at = |what: &str| git(&tree, &["rev-parse", what]);
    assert_eq!(at("v0.99.2^{commit}"), at("HEAD"));
    assert_eq!(git(&tree, &["rev-list", "--count", "HEAD"]), "2");
    assert!(read(&tree, "include/gdrcore.h").contains("#define GDRC_VERSION 0x00006302\n"));
    assert!(read(&tree, "ffi/src/c_consts.rs").contains("GDRC_VERSION: u32 = 0x0000_6302;"));
    let changes = read(&tree, "CHANGELOG.md");
    assert!(changes.contains("\n## [0.99.2] - ") && !changes.contains("not released yet"));
    let minor = own.rsplit_once('.').expect("a patch level").0;
    assert_eq!(read(&tree, "ffi/abi/0.99.txt"), read(&tree, &format!("ffi/abi/{minor}.txt")));
    let lock = read(&tree, "Cargo.lock");
    for (version, is_there) in [("0.99.2", true), (own, false)] {
        let line = format!("name = \"gdrcore-core\"\nversion = \"{version}\"");
        assert_eq!(lock.contains(&line), is_there, "{line}");
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--locked", "--offline", "--no-deps", "--format-version=1"]);
    let metadata = run(cargo.current_dir(&*tree), 120);
    assert!(metadata.ok(), "{metadata}");
    assert!(metadata.output.contains("\"version\":\"0.99.2\""));
    assert!(!metadata.output.contains(&format!("\"version\":\"{own}\"")));
    // What install instructions name is the file of this version.
    let named = run(
        Command::new("git")
            .args(["grep", "-n", "-e", &format!("gdrcore-{own}-"), "-e", &format!("gdrcore:{own}")])
            .current_dir(&*tree),
        60,
    );
    assert_eq!(named.output, "", "the version before");
}

#[test]
fn a_release_of_a_changed_tree_or_of_no_newer_version_is_refused_and_changes_nothing() {
    if !run(Command::new("git").arg("--version"), 60).ok() {
        skip!("no git to make a release with (apt-get install git)");
    }
    let tree = a_repository("release-refused");
    let refused = |version: &str, says: &str| {
        let (before, changed) =
            (git(&tree, &["rev-parse", "HEAD"]), git(&tree, &["status", "--porcelain"]));
        let done = release(&tree, version);
        assert!(!done.ok() && done.output.contains(says), "{version}: {done}");
        assert_eq!(git(&tree, &["rev-parse", "HEAD"]), before);
        assert_eq!(git(&tree, &["status", "--porcelain"]), changed);
    };
    for version in ["", "1", "1.2", "1.2.3.4", "01.2.3", "1.2.x", "1.2.256", "$(id)"] {
        refused(version, "a version is three numbers");
    }
    refused("0.0.9", "is not newer");
    git(&tree, &["tag", "v0.98.0"]);
    refused("0.98.0", "is there already");
    let made = release(&tree, "0.99.0");
    assert!(made.ok(), "{made}");
    refused("0.99.0", "is there already");
    // A heading for what comes next is missing now.
    refused("0.99.1", "CHANGELOG.md has no");
    fs::write(tree.join("new.md"), "").expect("a file");
    refused("0.99.1", "the tree has changes");
}
