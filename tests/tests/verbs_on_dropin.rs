//! The verbs device on gdrcore's own libibverbs, which has what no NIC at hand has: XRC, ATOMIC
//! WRITE, FLUSH, DC, SRQs that can be resized. Real traffic, through both libraries in one process.
//!
//! The programs are those that test the soft device by the C API, and the behaviour suite.

use gdrcore_tests::library;
use gdrcore_tests::skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{compile, find, loopback, run, scratch, Done, Scratch};
use gdrcore_tests::{dropin, patience};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variable that allows it.
const ALLOW: &str = "GDRC_VERBS_ON_DROPIN";
/// The one device of the drop-in.
const DEVICE: &str = "verbs:gdrc0";

/// libgdrcore.so.0 and the module, in a folder of their own.
struct Libraries(Scratch);

impl Libraries {
    /// # Errors
    /// What is missing.
    fn new(name: &str) -> Result<Libraries, &'static str> {
        let built = library::build();
        let module = built.join("libgdrcore_verbs.so");
        if !module.exists() {
            return Err("libgdrcore_verbs.so is not built (make verbs)");
        }
        if find("cc").is_none() {
            return Err("cc is not installed");
        }
        let dir = scratch(name);
        let links = [("libgdrcore.so", "libgdrcore.so.0"), ("libgdrcore_verbs.so", "")];
        for (file, alias) in links {
            let to = dir.join(if alias.is_empty() { file } else { alias });
            std::os::unix::fs::symlink(built.join(file), to).expect("a link");
        }
        Ok(Libraries(dir))
    }

    /// A program of `tests/c` that is linked to them.
    fn program(&self, name: &str) -> PathBuf {
        let include = format!("-I{}", root().join("include").display());
        let folder = format!("-L{}", library::build().display());
        compile("cc", name, &self.0, &[&include, &folder, "-lgdrcore", "-lpthread"])
    }

    /// A command that finds them, and the drop-in with a device of its own.
    fn command(&self, program: &Path, address: &str) -> Command {
        let mut c = dropin::command(program, address);
        let paths = [library::dropin(), self.0.to_path_buf()];
        c.env("LD_LIBRARY_PATH", std::env::join_paths(paths).expect("paths")).env(ALLOW, "1");
        c.env("GDRC_STATS", "1");
        c
    }
}

fn assert_ok(done: &Done, what: &str) {
    assert!(done.ok() && done.output.contains("ok"), "{what}:\n{}", done.output);
}

#[test]
fn it_is_refused_unless_a_variable_allows_it() {
    let libraries = match Libraries::new("verbs-refused") {
        Ok(libraries) => libraries,
        Err(why) => skip!("{why}"),
    };
    let program = library::examples().join("perf/devinfo");
    for allow in [None, Some(""), Some("0"), Some("yes")] {
        let mut c = libraries.command(&program, &loopback(159, 1));
        c.env_remove(ALLOW).args(["-d", DEVICE]);
        if let Some(value) = allow {
            c.env(ALLOW, value);
        }
        let done = run(&mut c, 20);
        assert!(done.code().is_some_and(|c| c > 0), "{allow:?}: {}", done.output);
        assert!(done.output.contains("gdrcore's own drop-in"), "{allow:?}: {}", done.output);
    }
    let mut c = libraries.command(&program, &loopback(159, 1));
    let done = run(c.args(["-d", DEVICE]), 20);
    assert!(done.ok() && done.output.contains("gdrc0"), "{}", done.output);
}

#[test]
fn xrc_and_srqs_of_another_size() {
    let libraries = match Libraries::new("verbs-xrc") {
        Ok(libraries) => libraries,
        Err(why) => skip!("{why}"),
    };
    let program = libraries.program("xrc");
    let mut c = libraries.command(&program, &loopback(159, 2));
    assert_ok(&run(c.arg(DEVICE), 60), "xrc");
}

#[test]
fn atomic_writes_and_flushes() {
    let libraries = match Libraries::new("verbs-words") {
        Ok(libraries) => libraries,
        Err(why) => skip!("{why}"),
    };
    let program = libraries.program("flush_and_words");
    let mut c = libraries.command(&program, &loopback(159, 3));
    assert_ok(&run(c.arg(DEVICE), 60), "verbs");
    // The same calls do the same on the soft device.
    let mut c = libraries.command(&program, &loopback(159, 4));
    assert_ok(&run(c.arg("loopback"), 60), "soft");
}

#[test]
fn the_behaviour_suite() {
    let libraries = match Libraries::new("verbs-suite") {
        Ok(libraries) => libraries,
        Err(why) => skip!("{why}"),
    };
    // The suite has the verbs device in itself, and so looks for the module beside itself.
    let program = libraries.0.join("suite");
    std::fs::copy(env!("CARGO_BIN_EXE_suite"), &program).expect("a copy");
    let mut c = libraries.command(&program, &loopback(159, 5));
    let done = run(c.args(["--device", DEVICE]), 600 * u64::from(patience::factor()));
    let sum = done.output.lines().find(|l| l.contains(" passed, ")).unwrap_or_default();
    assert!(done.ok() && sum.contains(" 0 failed"), "{}", done.output);
    println!("suite over verbs on the drop-in: {sum}");
}
