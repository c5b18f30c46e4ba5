//! libmempool.so, as a program of FreeFlow's links and finds it.

use gdrcore_tests::tools::{compile, installed, run, scratch};
use gdrcore_tests::{library, or_skip, skip};
use std::process::Command;

#[test]
fn a_c_program_links_it_by_freeflows_names() {
    let dir = scratch("mempool");
    let at = library::mempool();
    let folder = format!("-L{}", at.display());
    let program = compile("cc", "mempool", &dir, &[&folder, "-lmempool", "-lpthread"]);
    let done = run(Command::new(&program).env("LD_LIBRARY_PATH", &at), 60);
    assert!(done.ok() && done.output == "ok\n", "{done}");
    let valgrind = or_skip!(installed("valgrind"));
    let mut c = Command::new(valgrind);
    c.args(["-q", "--error-exitcode=9"]).arg(&program).env("LD_LIBRARY_PATH", &at);
    let done = run(&mut c, 120);
    assert!(done.ok(), "{done}");
}

/// Nothing but the names, and no library but those that each program has.
#[test]
fn it_exports_the_names_alone() {
    let readelf = or_skip!(installed("readelf"));
    let library = library::mempool().join("libmempool.so");
    let ask = |what: &str| {
        let done = run(Command::new(&readelf).args(["-W", what]).arg(&library), 60);
        assert!(done.ok(), "{done}");
        done.output
    };
    let dynamic = ask("-d");
    assert!(dynamic.contains("soname: [libmempool.so]"), "{dynamic}");
    for line in dynamic.lines().filter(|l| l.contains("(NEEDED)")) {
        let known = ["libc.so", "libgcc_s.so", "ld-linux"];
        assert!(known.iter().any(|name| line.contains(name)), "{line}");
    }
    let mut names: Vec<String> = ask("--dyn-syms")
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>())
        .filter(|w| w.len() == 8 && w[4] == "GLOBAL" && w[6] != "UND")
        .map(|w| w[7].to_string())
        .collect();
    names.sort();
    let of = |kind: &str, all: &[&str]| all.iter().map(|n| format!("{kind}_{n}")).collect();
    let pool: Vec<String> = of("mempool", &["create", "del", "destroy", "get", "insert"]);
    let queue = of("memqueue", &["create", "del_tail", "destroy", "get_new_head", "get_tail"]);
    assert_eq!(names, [pool, queue].concat());
}

/// FreeFlow's own libraries on it, where FreeFlow's sources are.
#[test]
fn freeflow_runs_on_it_where_its_sources_are() {
    let script = gdrcore_tests::source::root().join("scripts/freeflow.sh");
    let done = run(&mut Command::new(script), 900);
    assert!(done.ok(), "{done}");
    if std::env::var_os("FREEFLOW_SRC").is_none() {
        skip!("FREEFLOW_SRC does not say where FreeFlow's sources are");
    }
    assert!(done.output.contains(" passed, 0 failed"), "{done}");
}
