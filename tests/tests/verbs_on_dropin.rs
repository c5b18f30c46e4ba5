//! The verbs device on gdrcore's own libibverbs, which has what no NIC at hand has: XRC, ATOMIC
//! WRITE, FLUSH, DC, SRQs that can be resized. Real traffic, through both libraries in one process.
//!
//! The programs are those that test the soft device by the C API, and the behaviour suite.

use gdrcore_tests::library;
use gdrcore_tests::place;
use gdrcore_tests::rdmacm::{counted, wait_until_it_listens_at};
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{compile, find, loopback, run, scratch, Done, Running, Scratch};
use gdrcore_tests::{dropin, patience};
use gdrcore_tests::{or_skip, skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The variable that allows it.
const ALLOW: &str = "GDRC_VERBS_ON_DROPIN";
/// The one device of the drop-in.
const DEVICE: &str = "verbs:gdrc0";

/// What a module says that was built without the header of mlx5dv, and why a test is skipped then.
const WITHOUT: &str = "built without <infiniband/mlx5dv.h>";
const NO_DC: &str = "the module has no DC: <infiniband/mlx5dv.h> is not installed (libibverbs-dev)";

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

/// Whether the module was built without DC; on the device of an address of its own.
fn lacks_dc(libraries: &Libraries, last: u32) -> bool {
    let ops = libraries.program("dc_ops");
    let done = run(libraries.command(&ops, &loopback(159, last)).args([DEVICE, "lacks"]), 20);
    assert_ok(&done, "without the identity of mlx5");
    done.output.contains(WITHOUT)
}

/// As a ConnectX-5, whose DC it then has.
fn as_mlx5(command: &mut Command) -> &mut Command {
    command.env("GDRC_IDENTITY", "mlx5")
}

fn assert_ok(done: &Done, what: &str) {
    assert!(done.ok() && done.output.contains("ok"), "{what}:\n{done}");
}

#[test]
fn it_is_refused_unless_a_variable_allows_it() {
    let libraries = or_skip!(Libraries::new("verbs-refused"));
    let program = library::examples().join("perf/devinfo");
    for allow in [None, Some(""), Some("0"), Some("yes")] {
        let mut c = libraries.command(&program, &loopback(159, 1));
        c.env_remove(ALLOW).args(["-d", DEVICE]);
        if let Some(value) = allow {
            c.env(ALLOW, value);
        }
        let done = run(&mut c, 20);
        assert!(done.code().is_some_and(|c| c > 0), "{allow:?}: {done}");
        assert!(done.output.contains("gdrcore's own drop-in"), "{allow:?}: {done}");
    }
    let mut c = libraries.command(&program, &loopback(159, 1));
    let done = run(c.args(["-d", DEVICE]), 20);
    assert!(done.ok() && done.output.contains("gdrc0"), "{done}");
}

#[test]
fn xrc_and_srqs_of_another_size() {
    let libraries = or_skip!(Libraries::new("verbs-xrc"));
    let program = libraries.program("xrc");
    let mut c = libraries.command(&program, &loopback(159, 2));
    assert_ok(&run(c.arg(DEVICE), 60), "xrc");
}

#[test]
fn atomic_writes_and_flushes() {
    let libraries = or_skip!(Libraries::new("verbs-words"));
    let program = libraries.program("flush_and_words");
    let mut c = libraries.command(&program, &loopback(159, 3));
    assert_ok(&run(c.arg(DEVICE), 60), "verbs");
    // The same calls do the same on the soft device.
    let mut c = libraries.command(&program, &loopback(159, 4));
    assert_ok(&run(c.arg("loopback"), 60), "soft");
}

#[test]
fn multicast_groups() {
    let libraries = or_skip!(Libraries::new("verbs-mcast"));
    let program = libraries.program("mcast");
    let mut c = libraries.command(&program, &loopback(159, 5));
    let group = format!("239.{}.159.5", place::number());
    assert_ok(&run(c.args([DEVICE, DEVICE, &group]), 60), "verbs");
}

#[test]
fn dc_of_each_operation_and_of_many() {
    let libraries = or_skip!(Libraries::new("verbs-dc"));
    if lacks_dc(&libraries, 6) {
        skip!("{NO_DC}");
    }
    let (ops, many) = (libraries.program("dc_ops"), libraries.program("dc"));
    let mut c = libraries.command(&ops, &loopback(159, 6));
    let done = run(as_mlx5(&mut c).arg(DEVICE), 60);
    assert_ok(&done, "verbs");
    assert!(counted(&done.output, "dc_opened") > 3, "{done}");
    let mut c = libraries.command(&many, &loopback(159, 7));
    assert_ok(&run(as_mlx5(&mut c).arg(DEVICE), 120), "64 of each");
    // The same calls do the same on the soft device.
    let mut c = libraries.command(&ops, &loopback(159, 8));
    assert_ok(&run(c.arg("loopback"), 60), "soft");
}

#[test]
fn without_dc_the_error_says_what_is_missing_and_names_rc() {
    let libraries = or_skip!(Libraries::new("verbs-no-dc"));
    if lacks_dc(&libraries, 9) {
        skip!("{NO_DC}");
    }
    let ops = libraries.program("dc_ops");
    let says = |c: &mut Command, words: &str| {
        let done = run(c.args([DEVICE, "lacks"]), 20);
        assert_ok(&done, words);
        for kind in ["DCI", "DCT"] {
            let said = format!("qp_type {kind}: {words}; use RC");
            assert!(done.output.contains(&said), "'{said}': {done}");
        }
    };
    // The drop-in's own identity is none of mlx5.
    let mut c = libraries.command(&ops, &loopback(159, 9));
    says(&mut c, "NICs of mlx5 have DC, and this is none");
    // A libmlx5 that is not of this libibverbs, as Debian's, which finds no NIC of its own.
    let other = scratch("verbs-no-dc-other");
    let link = |from: &Path, name: &str| {
        std::os::unix::fs::symlink(from, other.join(name)).expect("a link");
    };
    link(&library::dropin().join("libibverbs.so.1"), "libibverbs.so.1");
    let paths = std::env::join_paths([other.to_path_buf(), libraries.0.to_path_buf()]);
    let paths = paths.expect("paths");
    if Path::new("/usr/lib/x86_64-linux-gnu/libmlx5.so.1").exists() {
        let mut c = libraries.command(&ops, &loopback(159, 10));
        as_mlx5(&mut c).env("LD_LIBRARY_PATH", &paths);
        says(&mut c, "NICs of mlx5 have DC, and this is none");
    }
    // None that can be loaded.
    std::fs::write(other.join("libmlx5.so.1"), "no library").expect("a file");
    let mut c = libraries.command(&ops, &loopback(159, 11));
    as_mlx5(&mut c).env("LD_LIBRARY_PATH", &paths);
    says(&mut c, "DC needs libmlx5.so.1 (ibverbs-providers), which cannot be loaded");
}

/// Server and client of gpu_direct by DC, each on its own device; every byte is checked.
#[test]
fn gpu_direct_by_dc() {
    let libraries = or_skip!(Libraries::new("verbs-gpu-direct"));
    if lacks_dc(&libraries, 17) {
        skip!("{NO_DC}");
    }
    let bin = library::examples().join("gpu_direct");
    let side = |program: &str, last: u32| {
        let mut c = libraries.command(&bin.join(program), &loopback(159, last));
        as_mlx5(&mut c).args(["-p", "19951", "-T", "dc"]);
        c
    };
    let mut server = side("server", 12);
    // Fails each client's first task on purpose, to see the initiator recover.
    server.args(["-a", DEVICE, "-s", "1M", "-l", "3", "-P", "-D", "8"]);
    let mut server = Running::start(&mut server);
    server.wait_for_output("serving on");
    for (n, (kind, size)) in [("0", "300001"), ("1", "300001"), ("0", "7")].into_iter().enumerate()
    {
        let soft = format!("soft:{}", loopback(159, 20 + n as u32));
        // The last one is a soft device: on the wire both are of one kind.
        let device = if n == 2 { &soft } else { DEVICE };
        let mut client = side("client", 13 + n as u32);
        client.args(["-a", device, "-t", kind, "-n", "60", "-s", size, "-c", "-D", "1"]);
        let done = run(client.arg(loopback(159, 12)), 60);
        assert!(done.ok(), "{device} -t {kind}: {done}\nserver: {}", server.output());
        assert_eq!(done.output.matches("failed on the server").count(), 1, "{done}");
    }
    server.interrupt();
    let done = server.finish(Duration::from_secs(60));
    assert!(done.ok() && !done.output.contains("left open"), "{done}");
    assert!(counted(&done.output, "dc_opened") > 0, "{done}");
    assert_eq!(done.output.matches("REM_ACCESS_ERR").count(), 3, "{done}");

    // A NIC without DC.
    let mut c = libraries.command(&bin.join("server"), &loopback(159, 16));
    let done = run(c.args(["-a", DEVICE, "-T", "dc"]), 20);
    assert_eq!(done.code(), Some(1), "{done}");
    for words in ["NICs of mlx5 have DC", "--transport rc"] {
        assert!(done.output.contains(words), "'{words}': {done}");
    }
}

/// rping's job by the C API, over Debian's librdmacm with the drop-in's device file. Either side is
/// a NIC or a soft device.
#[test]
fn connections_by_the_manager_of_the_host() {
    let libraries = or_skip!(Libraries::new("verbs-cm"));
    let program = library::examples().join("cm/cm_ping");
    let preload = ["libibverbs.so.1", "libgdrcore_preload.so"];
    let preload = preload.map(|name| library::dropin().join(name).display().to_string()).join(":");
    let side = |last: u32, is_nic: bool, words: &[&str]| {
        let address = loopback(159, last);
        let mut c = libraries.command(&program, &address);
        let device = if is_nic { DEVICE.into() } else { format!("soft:{address}") };
        c.args(["-d", &device]).args(words);
        if is_nic {
            c.env("LD_PRELOAD", &preload);
        }
        c
    };
    for (n, nics) in [[true, true], [true, false], [false, true]].into_iter().enumerate() {
        let (server, client) = (30 + 2 * n as u32, 31 + 2 * n as u32);
        let mut serving = Running::start(&mut side(server, nics[0], &["-s", "-v"]));
        wait_until_it_listens_at(&mut serving, &loopback(159, server), 7174);
        let asked =
            run(&mut side(client, nics[1], &["-c", "-C", "100", &loopback(159, server)]), 60);
        let served = serving.finish(Duration::from_secs(60));
        assert!(asked.ok() && served.ok(), "{nics:?}: {}\n{}", asked.output, served.output);
    }
    // Nobody listens there; the second one has nobody at all.
    for (to, said) in [(36, "REJECTED"), (30, "UNREACHABLE")] {
        let asked = run(&mut side(36, true, &["-c", &loopback(159, to)]), 60);
        assert!(!asked.ok() && asked.output.contains(said), "{}", asked.output);
    }
    // A host without librdmacm's device file.
    let mut c = side(37, true, &["-s"]);
    let done = run(c.env_remove("LD_PRELOAD"), 20);
    assert!(!done.ok() && done.output.contains("listening: not supported"), "{}", done.output);
}

#[test]
fn the_behaviour_suite() {
    let libraries = or_skip!(Libraries::new("verbs-suite"));
    // The suite has the verbs device in itself, and so looks for the module beside itself.
    let program = libraries.0.join("suite");
    std::fs::copy(env!("CARGO_BIN_EXE_suite"), &program).expect("a copy");
    let mut c = libraries.command(&program, &loopback(159, 5));
    let done = run(c.args(["--device", DEVICE]), 600 * u64::from(patience::factor()));
    let sum = done.output.lines().find(|l| l.contains(" passed, ")).unwrap_or_default();
    assert!(done.ok() && sum.contains(" 0 failed"), "{done}");
    println!("suite over verbs on the drop-in: {sum}");
}
