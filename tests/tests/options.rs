//! One grammar of options for all programs: `--version`, `--help`, `--option=value`, and unknown
//! words named.

use gdrcore_tests::tools::{find, installed, run, scratch, Done};
use gdrcore_tests::{library, or_skip, skip};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program: its path below build/bin, its exit code for bad usage, and an option with a value
/// that is refused in words.
const PROGRAMS: [(&str, i32, &str, &str); 21] = [
    ("gdrcore", 2, "", ""),
    ("gdrcore-run", 125, "--path=tcp", "udp, shm, auto"),
    ("gdrcore-routerd", 2, "--firewall=often", "check, require or off"),
    ("gdrcore-routerctl", 1, "--socket=/nowhere/x", "/nowhere/x"),
    ("gdrcore-router-etcd", 2, "--ttl=1", "3 to 3600"),
    ("perf/perf", 2, "--port=many", "many"),
    ("perf/pingpong", 2, "--port=many", "many"),
    ("perf/devinfo", 2, "--gid-index=many", "many"),
    ("perf/ping", 2, "--port=many", "many"),
    ("rdma_copy/rdma_copy_file", 2, "--port=many", "many"),
    ("rdma_copy/rdma", 2, "--port=many", "many"),
    ("gpu_direct/server", 2, "--port=many", "many"),
    ("gpu_direct/client", 2, "--port=many", "many"),
    ("gpu_direct/map_pci_nic_gpu", 2, "--ids=", ""),
    ("freeflow_gdr/router", 2, "--port=many", "many"),
    ("freeflow_gdr/client", 2, "--wait=many", "many"),
    ("freeflow_gdr/peer", 2, "--port=many", "many"),
    ("lab/skeleton", 2, "--port=many", "many"),
    ("lab/solution", 2, "--port=many", "many"),
    ("cm/cm_ping", 2, "--port=many", "many"),
    ("static_mem", 2, "", ""),
];

/// Builds all of them; returns their folder.
fn built() -> PathBuf {
    library::cli();
    library::dropin();
    library::router();
    library::router_etcd();
    library::examples()
}

fn say(program: &Path, words: &[&str]) -> Done {
    run(Command::new(program).args(words), 30)
}

#[test]
fn every_program_has_the_same_grammar() {
    let bin = built();
    for (name, usage, option, said) in PROGRAMS {
        let program = bin.join(name);
        let file = program.file_name().expect("a name").to_string_lossy();
        for version in ["--version", "-V"] {
            let done = say(&program, &[version]);
            let expected = format!("{file} {}\n", env!("CARGO_PKG_VERSION"));
            assert!(done.ok() && done.output == expected, "{name} {version}: {done}");
        }
        for help in ["--help", "-h"] {
            let done = say(&program, &[help]);
            assert!(done.ok() && done.output.contains("usage:"), "{name} {help}: {done}");
            assert!(done.output.contains("--version"), "{name}: {done}");
        }
        for unknown in ["--no-such-option", "--no-such-option=1"] {
            let done = say(&program, &[unknown]);
            let usage = if name.ends_with("routerctl") { 2 } else { usage };
            assert_eq!(done.code(), Some(usage), "{name}: {done}");
            assert!(done.output.contains("no-such-option"), "{name}: {done}");
        }
        if !said.is_empty() {
            let words = if usage == 1 { vec![option, "status"] } else { vec![option, "x"] };
            let done = say(&program, &words);
            assert_eq!(done.code(), Some(usage), "{name} {option}: {done}");
            assert!(done.output.contains(said), "{name} {option}: {done}");
        }
    }
}

#[test]
fn words_that_a_program_does_not_take_are_named() {
    let bin = built();
    for (words, said) in [
        ("gdrcore-router-etcd odd", "odd"),
        ("gdrcore-routerctl odd", "odd"),
        ("perf/devinfo odd", "'odd'"),
        ("perf/perf odd", "'odd'"),
        ("perf/perf write lat HOST odd", "'odd'"),
        ("perf/ping -S odd", "'odd'"),
        ("perf/ping HOST odd", "'odd'"),
        ("perf/ping", "no HOST"),
        ("perf/pingpong odd HOST", "'odd'"),
        ("perf/pingpong rc HOST odd", "'odd'"),
        ("gpu_direct/server odd", "'odd'"),
    ] {
        let mut words = words.split(' ');
        let program = bin.join(words.next().expect("a program"));
        let done = say(&program, &words.collect::<Vec<_>>());
        assert_eq!(done.code(), Some(2), "{}: {done}", program.display());
        assert!(done.output.contains(said), "{}: {done}", program.display());
    }
}

/// What zsh and fish, if they are installed, complete. zsh's own functions need a terminal, so
/// others that print stand in their places.
fn complete_in_other_shells(bin: &Path) {
    let zsh = "compdef() { [[ $* == '_gdrcore gdrcore gdrcore-run '* ]] && echo is_defined }; \
               compadd() { print -l -- $found }; _files() { print files }; \
               _describe() { print -l ${found%%:*} }; . <(gdrcore completion zsh); \
               words=(${=1}); CURRENT=$#words; PREFIX=$words[-1]; _gdrcore";
    let fish = "gdrcore completion fish | source; complete -C $argv[1]";
    let rows = [
        ("gdrcore do", "doctor"),
        ("gdrcore doctor --js", "--json"),
        ("gdrcore run --pc", "--pcap"),
        ("gdrcore-run --pc", "--pcap"),
        ("gdrcore-routerctl --v", "--version"),
    ];
    let path = format!("{}:/usr/bin:/bin", bin.display());
    for (shell, script) in [("zsh", zsh), ("fish", fish)] {
        if find(shell).is_none() {
            println!("test completion_of_{shell} ... skipped: {shell} is not installed");
            continue;
        }
        for (typed, completed) in rows {
            let mut c = Command::new(shell);
            c.env("PATH", &path).env("HOME", scratch("options")).args(["-c", script]);
            let done = run(c.args((shell == "zsh").then_some("zsh")).arg(typed), 30);
            let found: Vec<_> = done.output.split_whitespace().collect();
            assert!(found.contains(&completed), "{shell}, {typed}: {done}");
            assert!(shell == "fish" || found[0] == "is_defined", "{done}");
        }
    }
}

#[test]
fn subcommands_are_the_programs() {
    let bin = built();
    let gdrcore = bin.join("gdrcore");
    let rows = [
        ("run", "gdrcore-run", "gdrcore-run"),
        ("devices", "perf/devinfo", "gdrcore-devinfo"),
        ("perf", "perf/perf", "gdrcore-perf"),
        ("ping", "perf/ping", "gdrcore-ping"),
        ("pingpong", "perf/pingpong", "gdrcore-pingpong"),
        ("copy", "rdma_copy/rdma_copy_file", "rdma_copy_file"),
        ("router", "gdrcore-routerd", "gdrcore-routerd"),
        ("ctl", "gdrcore-routerctl", "gdrcore-routerctl"),
    ];
    let help = say(&gdrcore, &["--help"]).output;
    // As they are installed, in a folder beside the one of `gdrcore`.
    let dir = scratch("options");
    for folder in ["bin", "libexec/gdrcore"] {
        std::fs::create_dir_all(dir.join(folder)).expect("a folder");
    }
    std::fs::copy(&gdrcore, dir.join("bin/gdrcore")).expect("a copy");
    for (name, built, installed) in rows {
        let own = say(&bin.join(built), &["--help"]);
        for words in [[name, "--help"], ["help", name]] {
            let done = say(&gdrcore, &words);
            assert!(done.ok() && done.output == own.output, "{words:?}: {done}");
        }
        assert!(help.contains(&format!("\n  {name} ")), "{name}: {help}");
        let lacking = say(&dir.join("bin/gdrcore"), &[name]);
        assert_eq!(lacking.code(), Some(127), "{name}: {lacking}");
        assert!(lacking.output.contains(installed), "{name}: {lacking}");
        symlink(bin.join(built), dir.join("libexec/gdrcore").join(installed)).expect("a link");
        let there = say(&dir.join("bin/gdrcore"), &[name, "--version"]);
        assert!(there.ok() && there.output.starts_with(installed), "{name}: {there}");
    }
    let complete = "PATH=${0%/*}:$PATH; . <(gdrcore completion); COMP_WORDS=($1); \
                    COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _gdrcore \"${COMP_WORDS[0]}\" \
                    \"${COMP_WORDS[$COMP_CWORD]}\"; echo \"${COMPREPLY[@]}\"";
    for (typed, completed) in [
        ("gdrcore do", "doctor\n"),
        ("gdrcore ping", "ping pingpong\n"),
        ("gdrcore --v", "--version\n"),
        ("gdrcore doctor --js", "--json\n"),
        ("gdrcore run --pc", "--pcap\n"),
        ("gdrcore-run --pc", "--pcap\n"),
        ("perf/ping --gid", "--gid-index\n"),
        ("gdrcore-routerctl --v", "--version\n"),
        ("gdrcore-run ping", "\n"),
    ] {
        let mut bash = Command::new("bash");
        bash.current_dir(&bin).args(["-c", complete]).arg(&gdrcore).arg(typed);
        let done = run(&mut bash, 30);
        assert_eq!(done.output, completed, "{typed}");
    }
    complete_in_other_shells(&bin);
    let version = say(&gdrcore, &["version"]);
    assert_eq!(version.output, say(&gdrcore, &["--version"]).output);
    let doctor = say(&gdrcore, &["help", "doctor"]);
    assert!(doctor.ok() && doctor.output == say(&gdrcore, &["doctor", "--help"]).output);
    for (words, said) in [
        (&[][..], "which command"),
        (&["dance"], "no command 'dance'"),
        (&["--dance", "run"], "--dance"),
        (&["version", "x"], "too many"),
        (&["help", "dance"], "dance"),
        (&["completion", "dance"], "no shell 'dance'"),
        (&["doctor", "--dance"], "--dance"),
    ] {
        let done = say(&gdrcore, words);
        assert_eq!(done.code(), Some(2), "{words:?}: {done}");
        assert!(done.output.contains(said), "{words:?}: {done}");
    }
    // Codes and words behind the subcommand are the program's own.
    let done = say(&gdrcore, &["run", "--", "sh", "-c", "exit 7"]);
    assert_eq!(done.code(), Some(7), "{done}");
    let done = say(&gdrcore, &["ctl", "--socket=/nowhere/x", "status"]);
    assert!(done.code() == Some(1) && done.output.contains("/nowhere/x"), "{done}");
    let done = say(&gdrcore, &["router", "--listen=relative"]);
    assert!(done.code() == Some(1) && done.output.contains("absolute"), "{done}");
    // Without /proc its own folder is that of the name by which it was called.
    let bwrap = or_skip!(installed("bwrap"));
    let within = |program: &Path, words: &[&str]| {
        let mut c = Command::new(&bwrap);
        c.args(["--dev-bind", "/", "/", "--tmpfs", "/proc", "--"]).arg(program).args(words);
        run(&mut c, 30)
    };
    let may = within(Path::new("true"), &[]);
    if !may.ok() {
        skip!("no namespaces: {}", may.output.trim());
    }
    let done = within(&gdrcore, &["ctl", "--version"]);
    assert!(done.ok() && done.output.starts_with("gdrcore-routerctl"), "{done}");
}
