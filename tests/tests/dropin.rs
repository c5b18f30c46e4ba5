//! The libibverbs drop-in under programs as Debian packages them.

use gdrcore_tests::cpu;
use gdrcore_tests::dropin::{
    command, exports, free_port, table, wait_until_listened_at, without_defaults, Pair,
};
use gdrcore_tests::patience::{self, wait_for};
use gdrcore_tests::rdmacm::counted;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{
    compile, find, installed, loopback, run, scratch, verbs_compiler, Running,
};
use gdrcore_tests::{library, or_skip, skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Runs a tool in all its variants between two processes, over shared memory; the variants that say
/// so over UDP as well.
fn all_pass(tool: &str, n: u32, variants: &[&str]) {
    for (i, arguments) in variants.iter().enumerate() {
        for path in ["shm", "udp"] {
            // Over UDP the first variant is enough.
            if path == "udp" && i > 0 {
                continue;
            }
            let pair = or_skip!(Pair::new(tool, arguments, n));
            let pair = pair.over(path);
            let [server, client] = pair.run();
            assert!(
                server.ok() && client.ok(),
                "{tool} {arguments} over {path}\nserver {server}\nclient {client}"
            );
        }
    }
}

#[test]
fn the_exports_are_those_of_debians_libraries() {
    let ours = library::dropin().join("libibverbs.so.1");
    let ours = or_skip!(exports(&ours));
    let listed = table("ibverbs.txt");
    assert!(listed.len() > 600, "the table has shrunk");
    // Drivers and tools of a release look for symbols with its private version: each number must be
    // exported.
    for release in [33, 34, 57, 59, 64, 65] {
        let name = format!("verbs_register_driver_{release} IBVERBS_PRIVATE_{release}");
        assert!(listed.contains(&name), "{name}");
    }
    assert_eq!(without_defaults(&ours), listed);
    // On a machine with Debian's own library: its names and its defaults are in the table.
    let theirs = std::path::Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.so.1.14.44.0");
    if let Some(theirs) = theirs.exists().then(|| exports(theirs).ok()).flatten() {
        assert!(without_defaults(&theirs).is_subset(&listed));
        let defaults: Vec<_> =
            theirs.iter().filter(|n| n.contains("@@") && !ours.contains(*n)).collect();
        assert!(defaults.is_empty(), "not the default version: {defaults:?}");
    }
}

#[test]
fn the_devices_are_listed_and_described() {
    let tool = or_skip!(installed("ibv_devinfo"));
    let address = loopback(90, 1);
    let info = run(command(tool, &address).arg("-v"), 20);
    for part in [
        "hca_id:\tgdrc0",
        "PORT_ACTIVE",
        "link_layer:\t\tEthernet",
        "RoCE v2",
        "ATOMIC_GLOB",
        &address,
    ] {
        assert!(info.ok() && info.output.contains(part), "{part}: {info}");
    }
    let tool = or_skip!(installed("ibv_devices"));
    let all = run(command(&tool, &address).env_remove("GDRC_ADDRESS"), 20);
    // The devices include 127.0.0.1, whatever interfaces this machine has.
    assert!(all.ok() && all.output.contains("ffff7f0012b6"), "{all}");
    let one =
        run(command(&tool, &address).env_remove("GDRC_ADDRESS").env("GDRC_DEVICE", "gdrc0"), 20);
    assert_eq!(one.output.matches("gdrc").count(), 1, "{}", one.output);
    let none = run(command(&tool, &address).env("GDRC_DEVICE", "mlx5_0"), 20);
    assert!(!none.output.contains("gdrc"), "{}", none.output);
}

#[test]
fn rdma_cores_ping_pongs_run_unmodified() {
    // Two processes that spin on one busy CPU make one step per time slice, so the count falls with
    // the load.
    let long = format!("-g 0 -n {} -s 64", 100_000 / patience::factor());
    all_pass(
        "ibv_rc_pingpong",
        91,
        &["-g 0 -c", "-g 0 -c -e", "-g 0 -t", &long, "-g 0 -c -m 4096 -s 1000000 -n 20", "-g 0 -o"],
    );
    // Every GID index that a NIC usually has.
    all_pass("ibv_rc_pingpong", 91, &["-g 1 -c", "-g 2 -c", "-g 3 -c"]);
    all_pass("ibv_ud_pingpong", 91, &["-g 3 -c"]);
    all_pass("ibv_uc_pingpong", 91, &["-g 0 -c", "-g 0 -e"]);
    all_pass("ibv_ud_pingpong", 91, &["-g 0 -c", "-g 0 -e"]);
    all_pass("ibv_srq_pingpong", 91, &["-g 0 -c", "-g 0 -e -q 32"]);
}

/// Programs written for InfiniBand use no GIDs; so do the ping-pongs without an index.
#[test]
fn programs_for_lids_only_run_with_an_option() {
    for (kind, arguments) in [("rc", "-c"), ("uc", "-c"), ("ud", "-c"), ("srq", "-c -q 4")] {
        let tool = format!("ibv_{kind}_pingpong");
        let with = or_skip!(Pair::new(&tool, arguments, 98));
        let [server, client] = with.with_lids().run();
        assert!(server.ok() && client.ok(), "{tool}: {server:?} {client:?}");
        assert!(!server.output.contains("LID 0x0000"), "{server}");
    }
    let [server, client] = Pair::new("ibv_rc_pingpong", "-c", 98).expect("looked for").run();
    assert!(
        !server.ok() && !client.ok(),
        "the ping-pong passed without LIDs: {server:?} {client:?}"
    );
    let dir = scratch("dropin-lid");
    let program = or_skip!(compiled(&dir, "verbs", &["-libverbs"]));
    let done = run(command(&program, &loopback(98, 3)).env("GDRC_LID", "1").arg("lid"), 60);
    assert!(done.ok(), "{done}");
    let launched = gdrcore_tests::rdmacm::command(Some(&loopback(98, 4)), &["--lid"], &program)
        .arg("lid")
        .output();
    assert!(launched.expect("it starts").status.success());
}

#[test]
fn our_pingpong_runs_against_rdma_cores() {
    for (i, kind) in ["rc", "uc", "ud"].iter().enumerate() {
        let tool = or_skip!(installed(&format!("ibv_{kind}_pingpong")));
        for ours_waits in [true, false] {
            let n = 97 + 2 * i as u32 + u32::from(ours_waits);
            let (near, far, port) = (loopback(n, 1), loopback(n, 2), free_port());
            let common = ["-n", "500", "-s", "1001", "-p", &port.to_string()].map(str::to_string);
            let ours = |host: &[&str]| {
                let mut c = Command::new(library::examples().join("perf/pingpong"));
                c.args([kind, "--ibv-peer", "-d"])
                    .arg(format!("soft:{near}"))
                    .args(&common)
                    .args(host);
                Running::start(&mut c)
            };
            let theirs = |host: &[&str]| {
                Running::start(command(&tool, &far).args(["-g", "0"]).args(&common).args(host))
            };
            let (mut waits, limit) =
                (if ours_waits { ours(&[]) } else { theirs(&[]) }, Duration::from_secs(30));
            wait_until_listened_at(port, &mut waits);
            let begins =
                if ours_waits { theirs(&[&near]) } else { ours(&["127.0.0.1"]) }.finish(limit);
            let waited = waits.finish(limit);
            assert!(
                begins.ok() && waited.ok(),
                "{kind}, ours waits: {ours_waits}: {waited:?} {begins:?}"
            );
        }
    }
    let both = run(
        Command::new(library::examples().join("perf/pingpong")).args(["rc", "--ibv-peer", "-c"]),
        10,
    );
    assert_eq!(both.code(), Some(2), "{both}");
}

#[test]
fn perftests_latency_tools_run_unmodified() {
    all_pass(
        "ib_send_lat",
        92,
        &[
            "-F -x 0 -n 500",
            "-F -x 0 -n 500 -e",
            "-F -x 0 -n 500 -c UC",
            "-F -x 0 -n 500 -c UD",
            "-F -x 0 -n 500 -I 64",
            "-F -x 3 -n 500",
            "-F -n 500",
        ],
    );
    all_pass(
        "ib_write_lat",
        92,
        &["-F -x 0 -n 500", "-F -x 0 -n 500 -c UC", "-F -x 0 -n 500 -I 128"],
    );
    all_pass("ib_read_lat", 92, &["-F -x 0 -n 500", "-F -x 0 -n 500 -e"]);
    all_pass("ib_atomic_lat", 92, &["-F -x 0 -n 500", "-F -x 0 -n 500 -A CMP_AND_SWAP"]);
}

#[test]
fn perftests_bandwidth_tools_run_unmodified() {
    all_pass(
        "ib_send_bw",
        93,
        &[
            "-F -x 0 -n 500",
            "-F -x 0 -n 500 -e",
            "-F -x 0 -n 500 -b",
            "-F -x 0 -n 500 -c UD",
            "-F -x 0 -n 500 -q 4",
        ],
    );
    all_pass(
        "ib_write_bw",
        93,
        &[
            "-F -x 0 -n 500",
            "-F -x 0 -n 500 -b",
            "-F -x 0 -n 500 -q 4",
            "-F -x 0 -n 500 -c UC",
            "-F -x 0 -a -n 5",
        ],
    );
    all_pass("ib_read_bw", 93, &["-F -x 0 -n 500", "-F -x 0 -n 500 -q 4", "-F -x 0 -n 500 -b"]);
    all_pass("ib_atomic_bw", 93, &["-F -x 0 -n 500", "-F -x 0 -n 500 -q 4"]);
}

/// Compiles a file of `tests/c`; an error: as [`verbs_compiler`].
fn compiled(dir: &Path, name: &str, flags: &[&str]) -> Result<PathBuf, String> {
    verbs_compiler()?;
    Ok(compile("cc", name, dir, flags))
}

#[test]
fn a_program_of_libibverbs_finds_everything_as_documented() {
    let dir = scratch("dropin-c");
    let program = or_skip!(compiled(&dir, "verbs", &["-libverbs"]));
    for mode in [
        "router",
        "events",
        "gids",
        "lid",
        "forks",
        "hostile",
        "buffers",
        "grow",
        "limits",
        "stack",
        "leaks",
        "sealed_buffer",
        "ended_buffer",
        "rereg",
    ] {
        let done = run(command(&program, &loopback(94, 1)).arg(mode), 60);
        assert!(done.ok(), "{mode}: {done}");
    }
    // The versions that FreeFlow's router imports: nothing newer than 1.1.
    let readelf = or_skip!(installed("readelf"));
    let needs = run(Command::new(readelf).args(["-W", "-V"]).arg(&program), 20).output;
    assert!(needs.contains("IBVERBS_1.1") && !needs.contains("IBVERBS_1.2"), "{needs}");
}

#[test]
fn programs_run_unmodified_on_a_device_of_several_engines() {
    let dir = scratch("dropin-engines");
    let threads = or_skip!(compiled(&dir, "verbs_threads", &["-libverbs", "-lpthread"]));
    let program = or_skip!(compiled(&dir, "verbs", &["-libverbs"]));
    // Without a number of engines: one for each CPU.
    let by_default = std::thread::available_parallelism().expect("CPUs").to_string();
    for engines in [None, Some("1"), Some("2"), Some("3")] {
        let vectors = [engines.unwrap_or(&by_default)];
        // The threads make their CQs, or the main thread does, over all completion vectors or in
        // thread domains.
        for vectors in [&[][..], &vectors, &["domains"]] {
            let mut c = command(&threads, &loopback(94, 8));
            c.args(["4", "3000"]).args(vectors).env("GDRC_STATS", "1");
            if let Some(engines) = engines {
                c.env("GDRC_ENGINES", engines);
            }
            let done = run(&mut c, 60);
            assert!(done.ok() && done.output.contains("ok, 12000"), "{engines:?}: {done}");
            // The receives of queue pairs of other engines end at the main thread's CQ.
            let crossing = counted(&done.output, "qps_of_two_engines");
            let n: u64 = engines.unwrap_or(&by_default).parse().expect("a number");
            assert_eq!(crossing > 0, n > 1, "{engines:?}: {done}");
            if vectors == ["domains"] {
                // Two of each worker, and none of those of SRQs.
                let elsewhere = (0..4).filter(|domain| domain % n.min(16) != 0).count() as u64;
                assert_eq!(crossing, 2 * elsewhere, "{engines:?}: {done}");
            }
        }
    }
    for mode in ["events", "gids", "lid", "forks", "hostile", "buffers", "grow", "stack", "leaks"] {
        let mut c = command(&program, &loopback(94, 9));
        let done = run(c.arg(mode).env("GDRC_ENGINES", "2"), 60);
        assert!(done.ok(), "{mode}: {done}");
    }
    let mut c = command(&threads, &loopback(94, 8));
    let done = run(c.args(["2", "10"]).env("GDRC_ENGINES", "many"), 60);
    assert!(done.ok() && done.output.contains("1 to 64"), "{done}");
}

/// Writes commands to a context, as FreeFlow's router does. Without the preloaded library nothing
/// answers a write(2), so it fails.
#[test]
fn commands_written_to_a_context_are_answered_or_refused() {
    let dir = scratch("dropin-commands");
    let program = or_skip!(compiled(&dir, "commands", &["-libverbs", "-lpthread"]));
    let done = run(command(&program, &loopback(94, 7)).arg("refused"), 60);
    assert!(done.ok(), "{done}");
    let mut launched = gdrcore_tests::rdmacm::command(Some(&loopback(94, 7)), &[], &program);
    let done = run(launched.arg("answered"), 60);
    assert!(done.ok(), "{done}");
}

#[test]
fn requests_found_in_memory_are_answered_by_datagrams_as_in_herd() {
    let dir = scratch("dropin-herd");
    let program = or_skip!(compiled(&dir, "herd", &["-libverbs"]));
    let done = run(&mut command(&program, &loopback(94, 4)), 60);
    assert!(done.ok(), "{done}");
}

#[test]
fn the_drop_in_is_found_by_dlopen_beside_libgdrcore() {
    let dir = scratch("dropin-dlopen");
    let lib = library::build();
    let (l, i) =
        (format!("-L{}", lib.display()), format!("-I{}", root().join("include").display()));
    let flags = [i.as_str(), l.as_str(), "-lgdrcore", "-ldl"];
    let program = or_skip!(compiled(&dir, "verbs_dlopen", &flags));
    std::os::unix::fs::symlink(lib.join("libgdrcore.so"), dir.join("libgdrcore.so.0"))
        .expect("a link");
    let mut c = command(&program, &loopback(94, 2));
    let path = format!("{}:{}", library::dropin().display(), dir.display());
    let done = run(c.env("LD_LIBRARY_PATH", path).arg(format!("soft:{}", loopback(94, 3))), 60);
    assert!(done.ok(), "{done}");
}

/// Kills one of two processes `later` after their traffic began. Returns whether the other one ends
/// by itself; its message differs by tool.
fn survivor_ends(tool: &str, arguments: &str, victim: &str, later: Duration) -> bool {
    let pair = Pair::new(tool, arguments, 96).expect("looked for before");
    let (mut server, mut client) = (pair.server(), pair.client());
    // The client takes CPU time, so the traffic has begun.
    let at_work = || cpu::of(client.pid()).is_none_or(|used| used > Duration::from_millis(300));
    wait_for(60, "the client does nothing", at_work);
    std::thread::sleep(later);
    assert!(server.still_runs() && client.still_runs());
    let rest = if victim == "server" {
        server.kill();
        client
    } else {
        client.kill();
        server
    };
    // With a request outstanding it ends within its timeouts, which are half a second in all.
    rest.finish(Duration::from_secs(3)).code().is_some_and(|c| c != 0)
}

#[test]
fn the_survivor_of_a_killed_peer_gets_an_error_and_the_next_run_works() {
    for (tool, arguments) in
        [("ibv_rc_pingpong", "-g 0 -n 100000000"), ("ib_write_bw", "-F -x 0 -D 100")]
    {
        or_skip!(installed(tool));
        for victim in ["server", "client"] {
            // A program that has nothing outstanding and only waits for a message gets no error, as
            // with a NIC. On a busy CPU that is every second case: the victim's thread has
            // acknowledged the message, and its program not seen it yet. The moment of the kill
            // varies, since threads of one CPU alternate in a fixed order.
            let ended = (0..24)
                .any(|i| survivor_ends(tool, arguments, victim, Duration::from_millis(7 * i % 64)));
            assert!(ended, "{tool}, {victim} killed: the other one did not end");
        }
    }
    all_pass("ibv_rc_pingpong", 96, &["-g 0 -c"]);
}

/// Copies a file, with one name in it replaced by another of the same length.
fn renamed(from: &std::path::Path, to: &std::path::Path, old: &[u8], new: &[u8]) {
    let mut bytes = std::fs::read(from).expect("the file");
    let places: Vec<usize> = bytes
        .windows(old.len())
        .enumerate()
        .filter_map(|(at, w)| (w == old).then_some(at))
        .collect();
    assert!(!places.is_empty(), "{}: its library's name", from.display());
    for at in places {
        bytes[at..at + old.len()].copy_from_slice(new);
    }
    std::fs::write(to, bytes).expect("the copy");
    let mode = std::fs::metadata(from).expect("it is there").permissions();
    std::fs::set_permissions(to, mode).expect("its rights");
}

/// A program that comes with Debian's library under a name of its own and loads only that, as
/// Python wheels do.
#[test]
fn a_program_that_brings_its_own_libibverbs_runs_under_the_launcher() {
    let theirs = std::path::Path::new("/usr/lib/x86_64-linux-gnu/libibverbs.so.1");
    if !theirs.exists() {
        skip!("no libibverbs.so.1 (libibverbs1)");
    }
    let dir = scratch("dropin-bundled");
    let program = or_skip!(compiled(&dir, "verbs", &["-libverbs", "-Wl,-rpath,$ORIGIN"]));
    let (old, new) = (b"libibverbs.so.1", b"libibverbz.so.1");
    renamed(theirs, &dir.join("libibverbz.so.1"), old, new);
    renamed(&program, &dir.join("bundled"), old, new);
    // With LD_LIBRARY_PATH alone it keeps its own library, which finds no devices.
    let alone = run(command(dir.join("bundled"), &loopback(94, 5)).arg("router"), 60);
    assert!(
        !alone.ok(),
        "the bundled library finds a device by itself, so this test shows nothing: {alone}"
    );
    let mut launched = Command::new(gdrcore_tests::rdmacm::launcher());
    launched
        .args(["--stats", "--address", &loopback(94, 5)])
        .arg(dir.join("bundled"))
        .arg("router");
    let done = run(launched.env_remove("LD_PRELOAD"), 60);
    assert!(done.ok(), "{done}");
    assert!(gdrcore_tests::rdmacm::counted(&done.output, "rdma_writes") > 0, "{done}");
}

#[test]
fn the_launcher_reports_programs_that_it_cannot_help() {
    let dir = scratch("dropin-static");
    let launch = |program: &std::path::Path| {
        run(
            Command::new(gdrcore_tests::rdmacm::launcher())
                .args(["--address", &loopback(94, 6)])
                .arg(program),
            20,
        )
    };
    std::fs::write(dir.join("empty.c"), "int main(void) { return 0; }\n").expect("a file");
    for flag in ["-static", "-static-pie"] {
        let program = dir.join(flag.trim_start_matches('-'));
        let built =
            run(Command::new("cc").arg(flag).arg("-o").arg(&program).arg(dir.join("empty.c")), 60);
        assert!(built.ok(), "{built}");
        let done = launch(&program);
        assert!(done.ok() && done.output.contains("is statically linked"), "{flag}: {done}");
    }
    // A program that needs no warning runs without any output of the launcher.
    let done = launch(&find("true").expect("true"));
    assert!(done.ok() && done.output.is_empty(), "{done}");
}
