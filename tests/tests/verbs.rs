//! The verbs device: in a machine with Linux's rxe (the behaviour suite, the C examples,
//! instructions per operation), and its messages where a part is missing.

use gdrcore_tests::library;
use gdrcore_tests::rxe::vm::{self, Release, Vm};
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{all_installed, find, installed, run, scratch, verbs_compiler};
use gdrcore_tests::{or_skip, skip};
use std::path::Path;
use std::process::Command;

/// Requests in a list, and the greatest allowed ratio of instructions for a post and a poll of it
/// to libibverbs' own (docs/records/PERFORMANCE.md, "The verbs device").
const COST_MAX: [(u32, f64); 2] = [(1, 1.45), (16, 1.18)];
/// The greatest ratio by a fast handle.
const FAST_MAX: f64 = 1.10;

/// An error says what this machine lacks.
fn machine() -> Result<(), String> {
    all_installed(&["cc", "apt-get", "dpkg"])?;
    verbs_compiler()?;
    if !library::build().join("libgdrcore_verbs.so").exists() {
        return Err("libgdrcore_verbs.so is not built (make verbs)".into());
    }
    vm::prepare(Release::Host)
}

fn copy(from: &Path, to: &Path) {
    let done = run(Command::new("cp").arg("-rL").arg(from).arg(to), 60);
    assert!(done.ok(), "{done}");
}

/// Builds a program for the machine; it finds its libraries in `lib`, relative to itself.
fn compile(source: &str, program: &Path, lib: &Path, more: &[&str]) {
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-o"]).arg(program).arg(root().join(source));
    cc.arg(format!("-I{}", root().join("include").display())).arg(format!("-L{}", lib.display()));
    let built = run(cc.args(["-lgdrcore", "-Wl,-rpath,$ORIGIN/lib"]).args(more), 60);
    assert!(built.ok(), "{built}");
}

/// Instructions per operation, as counted in the machine.
fn instructions(vm: &Vm, kind: &str, list: u32) -> f64 {
    let n = 60;
    let count = format!(
        "vg/valgrind --tool=callgrind --toggle-collect={kind}_post_one \
         --toggle-collect={kind}_poll_one"
    );
    let command = format!(
        "cd /share && export VALGRIND_LIB=/share/vg LD_BIND_NOW=1 && \
         {count} --callgrind-out-file=/dev/null ./cost {kind} rxe0 {n} {list} 2>&1"
    );
    let said = vm.run(&command, 240).unwrap_or_else(|e| panic!("{e}"));
    let collected = said.lines().find_map(|l| l.split_once("Collected : ")).expect("a count").1;
    let collected: f64 = collected.trim().parse().expect("a number");
    assert!(said.contains(&format!("{n} posts, {n} polls")), "an empty poll was counted: {said}");
    collected / f64::from(n * list)
}

#[test]
fn behaviour_examples_and_cost_on_rxe() {
    or_skip!(machine());
    let share = scratch("verbs");
    let bin = library::examples();
    copy(&bin, &share.join("bin"));
    std::fs::create_dir(share.join("lib")).expect("a folder");
    for file in ["libgdrcore.so", "libgdrcore_verbs.so"] {
        copy(&library::build().join(file), &share.join("lib").join(file));
        copy(&library::build().join(file), &share.join(file));
    }
    copy(&share.join("lib/libgdrcore.so"), &share.join("lib/libgdrcore.so.0"));
    copy(Path::new(env!("CARGO_BIN_EXE_suite")), &share.join("suite"));
    copy(&root().join("tests/vm/verbs.sh"), &share.join("verbs.sh"));
    compile(
        "tests/c/fast.c",
        &share.join("fast"),
        &share.join("lib"),
        &["-D_GNU_SOURCE", "-lpthread"],
    );
    let vm = Vm::start(Release::Host, "pair", &share).unwrap_or_else(|e| panic!("{e}"));

    let said = vm
        .run("cd /share && ./suite --device verbs:rxe0 --peer verbs:rxe1 2>&1", 600)
        .unwrap_or_else(|e| panic!("{e}"));
    print!("{said}");
    let sum = said.lines().find(|l| l.contains(" passed, ")).expect("a sum");
    println!("suite over verbs on rxe: {sum}");
    assert!(sum.contains(" 0 failed"), "{said}");
    for reason in said.lines().filter_map(|l| l.strip_prefix("skipped: ")) {
        gdrcore_tests::skip::skipped(format_args!("{reason}"));
    }

    let said = vm.run("cd /share && bash verbs.sh 2>&1", 300).unwrap_or_else(|e| panic!("{e}"));
    println!("{said}");
    assert!(said.contains(" 0 failed"), "{said}");

    let said = vm.run("cd /share && ./fast verbs:rxe0 2>&1", 120).unwrap_or_else(|e| panic!("{e}"));
    println!("fast handles on rxe: {}", said.trim());
    assert!(said.contains("ok"), "{said}");

    let valgrind = Path::new("/usr/libexec/valgrind/callgrind-amd64-linux");
    let Some(front) =
        find("valgrind.bin").or_else(|| find("valgrind")).filter(|_| valgrind.exists())
    else {
        skip!("instructions per operation: valgrind is not installed");
    };
    std::fs::create_dir(share.join("vg")).expect("a folder");
    copy(&front, &share.join("vg/valgrind"));
    for file in ["callgrind-amd64-linux", "default.supp", "vgpreload_core-amd64-linux.so"] {
        copy(&valgrind.with_file_name(file), &share.join("vg").join(file));
    }
    compile("tests/vm/cost.c", &share.join("cost"), &share.join("lib"), &["-libverbs"]);
    for (list, most) in COST_MAX {
        let [raw, ours, fast] = ["raw", "gdrc", "fast"].map(|kind| instructions(&vm, kind, list));
        let (ratio, fast_ratio) = (ours / raw, fast / raw);
        println!(
            "post + poll, lists of {list}: libibverbs {raw:.0} instructions a request, verbs \
            device {ours:.0}, {ratio:.2} x, fast {fast:.0}, {fast_ratio:.3} x"
        );
        assert!(ratio <= most, "lists of {list}: {ours} instructions against {raw}");
        assert!(fast_ratio <= FAST_MAX, "lists of {list}, fast: {fast} instructions against {raw}");
    }
}

/// The output of `devinfo` for a verbs device, with the library in a folder of its own.
fn open_with(dir: &Path, change: impl Fn(&mut Command) -> &mut Command) -> String {
    let lib = dir.join("lib");
    std::fs::create_dir_all(dir.join("bin/perf")).expect("folders");
    std::fs::create_dir_all(&lib).expect("a folder");
    copy(&library::build().join("libgdrcore.so"), &lib.join("libgdrcore.so.0"));
    copy(&library::examples().join("perf/devinfo"), &dir.join("bin/perf/devinfo"));
    let mut command = Command::new(dir.join("bin/perf/devinfo"));
    // cargo's LD_LIBRARY_PATH lists folders that may hold a module.
    command.args(["-d", "verbs:nosuch0"]).env_remove("LD_LIBRARY_PATH");
    let done = run(change(&mut command), 20);
    assert!(done.code().is_some_and(|c| c > 0), "{done}");
    done.output
}

#[test]
fn an_open_without_the_module_is_explained() {
    let dir = scratch("verbs-without");
    let said = open_with(&dir, |c| c);
    assert!(said.contains("libgdrcore_verbs.so") && said.contains("make verbs"), "{said}");
    // A module of another build.
    let other = dir.join("other.c");
    let table = "const void *gdrcore_verbs_module(void) { static \
                 const unsigned long t[9] = {1, 2, 3}; return t; }";
    std::fs::write(&other, table).expect("a source");
    let module = dir.join("lib/libgdrcore_verbs.so");
    let built =
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&module).arg(&other), 30);
    assert!(built.ok(), "{built}");
    let said = open_with(&dir, |c| c);
    assert!(said.contains("install both from one build"), "{said}");
    std::fs::write(&other, "int something_else;").expect("a source");
    let built =
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&module).arg(&other), 30);
    assert!(built.ok(), "{built}");
    let said = open_with(&dir, |c| c);
    assert!(said.contains("not a module of gdrcore"), "{said}");
}

#[test]
fn our_own_libibverbs_is_not_opened() {
    let module = library::build().join("libgdrcore_verbs.so");
    if !module.exists() {
        skip!("libgdrcore_verbs.so is not built (make verbs)");
    }
    let dir = scratch("verbs-dropin");
    std::fs::create_dir_all(dir.join("lib")).expect("a folder");
    copy(&module, &dir.join("lib/libgdrcore_verbs.so"));
    let source = dir.join("dropin.c");
    let text = "const char *ibv_get_device_name(void *d) { return (void)d, \"gdrc0\"; }\n\
                int gdrcore_dropin_version = 1;\n";
    std::fs::write(&source, text).expect("a source");
    let dropin = dir.join("dropin.so");
    let built =
        run(Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&dropin).arg(&source), 30);
    assert!(built.ok(), "{built}");
    let said = open_with(&dir, |c| c.env("LD_PRELOAD", &dropin));
    assert!(said.contains("gdrcore's own drop-in"), "{said}");
    let said = open_with(&dir, |c| c);
    assert!(!said.contains("drop-in") && said.contains("verbs:nosuch0"), "{said}");
}

#[test]
fn libgdrcore_needs_no_libibverbs() {
    or_skip!(installed("readelf"));
    let done =
        run(Command::new("readelf").arg("-d").arg(library::build().join("libgdrcore.so")), 20);
    assert!(done.ok() && done.output.contains("NEEDED"), "{done}");
    assert!(!done.output.contains("libibverbs"), "{done}");
}
