//! The way from an empty machine to the first program: what `make` needs, and what it says without.

use gdrcore_tests::library;
use gdrcore_tests::or_skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{find, installed, run, scratch, Done};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A cargo that only says which one it is, and fails as old ones do in whatever else it is asked.
fn a_cargo(dir: &Path, version: &str) -> std::path::PathBuf {
    let cargo = dir.join("cargo");
    let text = format!("#!/bin/sh\n[ \"$1\" = --version ] || exit 101\necho 'cargo {version}'\n");
    fs::write(&cargo, text).expect("cargo");
    fs::set_permissions(&cargo, fs::Permissions::from_mode(0o755)).expect("its mode");
    cargo
}

/// A make that is not part of the one that may run this test.
fn a_make() -> Command {
    let mut c = Command::new("make");
    for name in ["MAKELEVEL", "MAKEFLAGS", "MFLAGS"] {
        c.env_remove(name);
    }
    c.args(["--no-print-directory", "-C"]).arg(root());
    c
}

fn make(target: &str, cargo: &Path) -> Done {
    run(a_make().arg(target).arg(format!("CARGO={}", cargo.display())), 60)
}

fn needed() -> String {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let line = manifest.lines().find_map(|l| l.strip_prefix("rust-version = ")).expect("a version");
    line.trim_matches('"').to_string()
}

#[test]
fn make_names_the_rust_that_it_needs() {
    let (dir, needed) = (scratch("cargo-version"), needed());
    let says = format!("gdrcore needs Rust {needed} or newer");
    for old in ["1.65.0", "1.9.0", "0.66.0", "1.88.1 (873a06493 2025-05-10)"] {
        let cargo = a_cargo(&dir, old);
        for target in ["lib", "dropin", "router", "router-etcd"] {
            let done = make(target, &cargo);
            assert_eq!(done.code(), Some(2), "{target} {old}: {done}");
            let lines: Vec<&str> =
                done.output.lines().filter(|l| !l.starts_with("make: ***")).collect();
            let number = old.split(' ').next().expect("a number");
            assert!(matches!(lines[..], [line] if line.contains(&says) && line.contains(number)));
        }
    }
    let nowhere = make("lib", Path::new("/nowhere/cargo"));
    assert!(nowhere.output.contains(&format!("no /nowhere/cargo here: {says}")));
}

#[test]
fn make_takes_every_newer_rust() {
    let dir = scratch("cargo-newer");
    for new in [needed() + ".0", "1.100.0".into(), "2.0.1-nightly (f2d3ce0bd 2026-03-21)".into()] {
        let cargo = a_cargo(&dir, &new);
        let check = root().join("scripts/cargo_version.sh");
        let done = run(Command::new(check).arg(&cargo), 60);
        assert!(done.ok() && done.output.is_empty(), "{new}: {done}");
        // It goes on to the build, which this cargo does not do.
        let done = make("lib", &cargo);
        assert!(done.output.contains("build --release -p gdrcore\n"), "{new}: {done}");
    }
}

#[test]
fn the_first_page_names_the_rust_that_make_needs() {
    let text = fs::read_to_string(root().join("README.md")).expect("README.md");
    assert!(text.contains(&format!("Rust {} or newer", needed())));
}

/// Functions that came with glibc 2.29 to 2.31 (Debian 11's) and that a file needs. From 2.32 on
/// older ones moved and got a version anew. What is needed weakly, a file does without.
fn later_functions(symbols: &str) -> Vec<String> {
    let is_later = |name: &&str| (29..=31).any(|n| name.ends_with(&format!("@GLIBC_2.{n}")));
    let needed = symbols.lines().filter(|line| line.contains(" GLOBAL DEFAULT  UND "));
    needed.flat_map(|line| line.split(' ').filter(is_later).map(str::to_string)).collect()
}

#[test]
fn nothing_needs_a_function_that_glibc_2_28_lacks() {
    let line = |kind: &str| format!(" 7: 0 0 FUNC {kind} DEFAULT  UND gettid@GLIBC_2.30 (4)");
    assert_eq!(later_functions(&line("GLOBAL")), ["gettid@GLIBC_2.30"]);
    assert_eq!(later_functions(&line("WEAK")), [""; 0]);
    or_skip!(installed("readelf"));
    let (bin, drop_in) = (library::router(), library::dropin());
    let files = [
        library::build().join("libgdrcore.so"),
        drop_in.join("libibverbs.so.1"),
        drop_in.join("libmlx5.so.1"),
        drop_in.join("libgdrcore_preload.so"),
        bin.join("gdrcore-run"),
        bin.join("gdrcore-routerd"),
        library::cli(),
    ];
    for file in files {
        let done = run(Command::new("readelf").args(["--wide", "--dyn-syms"]).arg(&file), 60);
        assert!(done.ok() && done.output.contains("UND"), "{done}");
        assert_eq!(later_functions(&done.output), [""; 0], "{}", file.display());
    }
}

/// Names in a folder and below it, without folders.
fn files_below(at: &Path) -> Vec<PathBuf> {
    let listed = run(Command::new("find").arg(at).args(["!", "-type", "d"]), 60);
    listed.output.lines().map(PathBuf::from).collect()
}

/// Each program of a prefix has a page of the manual with all that its `--help` tells.
fn has_pages(prefix: &Path, programs: &[&str]) {
    let pages = files_below(&prefix.join("share/man"));
    for program in programs {
        let words: Vec<&str> = program.split(' ').collect();
        let name = words.join("-");
        let page = pages.iter().find(|p| p.file_stem().is_some_and(|s| s == &*name));
        let page = page.unwrap_or_else(|| panic!("no page of {name}: {pages:?}"));
        let text = fs::read_to_string(page).expect("a page").replace("\\-", "-");
        let mut c = Command::new(prefix.join("bin").join(words[0]));
        let help = run(c.args(&words[1..]).arg("--help"), 60).output;
        let words_of_help = help.split([' ', ',', '[', ']', '|', '`', '\n']);
        for option in words_of_help.filter(|w| w.starts_with('-')) {
            assert!(text.contains(option), "{name}: no {option} in {text}");
        }
        for section in ["NAME", "SYNOPSIS", "SEE ALSO"] {
            assert!(text.contains(&format!("\n.SH {section}\n")), "{name}: {text}");
        }
        let of_usage = |l: &&str| l.starts_with("usage:") || l.starts_with("       ");
        let synopsis = text.matches(&format!("\n.B {}", words.join(" "))).count();
        assert_eq!(synopsis, help.lines().take_while(of_usage).count(), "{name}: {text}");
        if find("mandoc").is_some() {
            let mut lint = Command::new("mandoc");
            let told = run(lint.args(["-T", "lint", "-W", "warning"]).arg(page), 60);
            assert!(told.ok(), "{name}: {told}");
        }
    }
    or_skip!(installed("mandoc"));
}

#[test]
fn units_and_tools_follow_the_prefix_and_uninstall_takes_all() {
    library::examples();
    library::router();
    library::cli();
    let dest = scratch("dist-install").join("dest");
    let make = |target: &str| {
        let mut c = a_make();
        c.args([target, "PREFIX=/opt/g", "DOCDIR=/opt/g/pages"]);
        let done = run(c.arg(format!("DESTDIR={}", dest.display())), 600);
        assert!(done.ok(), "{done}");
    };
    make("install");
    let at = |path: &str| dest.join(path.trim_start_matches('/'));
    let units = at("/opt/g/lib/systemd/system");
    let service = fs::read_to_string(units.join("gdrcore-routerd.service")).expect("the unit");
    let named = |key: &str| {
        let line = service.lines().find_map(|l| l.strip_prefix(key)).expect("the key");
        line.split(' ').next().expect("a path").to_string()
    };
    for path in [named("ExecStart="), named("Documentation=man:gdrcore-routerd(8) file://")] {
        assert!(path.starts_with("/opt/g/") && at(&path).is_file(), "{path}");
    }
    assert!(units.join("gdrcore-routerd.socket").is_file());
    // Its user, and a policy that it takes.
    let users = fs::read_to_string(at("/opt/g/lib/sysusers.d/gdrcore.conf")).expect("users");
    assert!(users.contains(&format!("\nu {} ", named("User="))), "{users}");
    let mut check = Command::new(at("/opt/g/bin/gdrcore-routerd"));
    let done = run(check.arg("--check").arg(at("/opt/g/pages/examples/router.toml")), 60);
    assert!(done.ok(), "{done}");
    // They find the library from where they lie, wherever the tree does.
    let moved = dest.with_file_name("moved");
    fs::rename(at("/opt/g"), &moved).expect("moved");
    for tool in ["perf", "pingpong", "devinfo", "ping", "gpu-server", "gpu-client"] {
        let done = run(Command::new(moved.join(format!("bin/gdrcore-{tool}"))).arg("--help"), 60);
        assert!(done.ok(), "{tool}: {done}");
    }
    assert!(run(Command::new(moved.join("bin/rdma_copy_file")).arg("--help"), 60).ok());
    for command in ["run", "devices", "perf", "ping", "pingpong", "copy", "router", "ctl"] {
        let gdrcore = moved.join("bin/gdrcore");
        let done = run(Command::new(gdrcore).args([command, "--version"]), 60);
        assert!(done.ok(), "{command}: {done}");
    }
    let mut programs = files_below(&moved.join("bin"));
    programs.sort();
    let names = programs.iter().map(|p| p.file_name().expect("a name").to_string_lossy());
    let names: Vec<String> = names.map(|n| n.into_owned()).collect();
    let completed = "for p; do . \"$0/$p\"; complete -p \"$p\"; complete -r; done";
    let mut bash = Command::new("bash");
    bash.args(["-ec", completed]).arg(moved.join("share/bash-completion/completions"));
    let done = run(bash.args(&names), 60);
    assert!(done.ok() && names.len() >= 12, "{done}");
    for (folder, before, behind, first) in [
        ("zsh/site-functions", "_", "", "#compdef gdrcore "),
        ("fish/vendor_completions.d", "", ".fish", "function __gdrcore_options\n"),
    ] {
        for name in &names {
            let file = moved.join("share").join(folder).join(format!("{before}{name}{behind}"));
            let text = fs::read_to_string(&file).unwrap_or_default();
            assert!(text.starts_with(first) && text.contains(name), "{}: {text}", file.display());
        }
    }
    let names = [names, vec!["gdrcore doctor".into(), "gdrcore top".into()]].concat();
    has_pages(&moved, &names.iter().map(String::as_str).collect::<Vec<_>>());
    fs::rename(&moved, at("/opt/g")).expect("moved back");
    // What others have there stays.
    let other = at("/opt/g/pages/other.md");
    fs::write(&other, "").expect("a page of another program");
    make("uninstall");
    assert_eq!(files_below(&dest), [other]);
}
