//! mlx5dv and DC on the libibverbs drop-in: the names of `libmlx5.so.1`, who is refused, programs
//! of our own that are compiled and linked as for NVIDIA's library, and perftest.

use gdrcore_tests::dropin::{both, exports, free_port, table, without_defaults, Pair};
use gdrcore_tests::rdmacm::{command, counted};
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{
    compile, installed, loopback, run, scratch, verbs_compiler, verbs_program, Done, Scratch,
};
use gdrcore_tests::{dropin, library, or_skip, patience};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian has its libraries.
const DEBIANS: &str = "/usr/lib/x86_64-linux-gnu";
/// The table of names.
const TABLE: &str = "mlx5.txt";

/// A program of `tests/c` that is linked to Debian's libmlx5.
fn linked(name: &str, more: &[&str]) -> Result<(PathBuf, Scratch), String> {
    verbs_program(name, name, &[more, &["-lmlx5"]].concat())
}

fn assert_ok(done: &Done, what: &str) {
    assert!(done.ok() && done.output.contains("ok"), "{what}:\n{done}");
}

#[test]
fn the_exports_are_those_of_debians_libmlx5() {
    let ours = library::dropin().join("libmlx5.so.1");
    let ours = or_skip!(exports(&ours));
    let listed = table(TABLE);
    assert!(listed.len() > 140, "the table has shrunk");
    assert_eq!(without_defaults(&ours), listed);
    let theirs = Path::new(DEBIANS).join("libmlx5.so.1.24.44.0");
    if let Some(theirs) = theirs.exists().then(|| exports(&theirs).ok()).flatten() {
        assert!(theirs.is_subset(&ours), "a name, or the default version of one, is missing");
    }
}

/// A process with another libibverbs has no device of ours; one with the drop-in gets no crash of
/// null pointers either.
#[test]
fn every_name_refuses_with_and_without_the_drop_in() {
    let dropin = library::dropin();
    or_skip!(verbs_compiler());
    let dir = scratch("mlx5_names");
    let program = compile("cc", "mlx5_names", &dir, &["-libverbs"]);
    let names = |c: &mut Command, errno: &str| {
        c.arg(dropin.join("libmlx5.so.1")).arg(root().join("dropin/symbols").join(TABLE));
        let done = run(c.arg(errno), 20);
        assert!(done.ok() && done.output.contains(&format!("ok {}", table(TABLE).len())), "{done}");
    };
    names(Command::new(&program).env_remove("LD_LIBRARY_PATH"), "EOPNOTSUPP");
    names(&mut dropin::command(&program, &loopback(155, 1)), "EINVAL");
}

/// NVIDIA's library over the drop-in, as in a folder without ours.
#[test]
fn debians_libmlx5_refuses_our_device() {
    let (program, dir) = or_skip!(linked("mlx5_foreign", &[]));
    let alone = dir.join("libibverbs.so.1");
    std::fs::copy(library::dropin().join("libibverbs.so.1"), alone).expect("a copy");
    let mut c = dropin::command(&program, &loopback(155, 2));
    // With the identity, too.
    for identity in ["gdrcore", "mlx5"] {
        c.env("LD_LIBRARY_PATH", &*dir).env("GDRC_IDENTITY", identity);
        assert_ok(&run(&mut c, 20), identity);
    }
}

#[test]
fn vendor_and_part_are_mlx5s_on_request_only() {
    let tool = or_skip!(installed("ibv_devinfo"));
    let address = loopback(155, 3);
    for (options, vendor, part) in
        [(&[][..], "0x24744", "\t1\n"), (&["--mlx5"][..], "0x02c9", "\t4119\n")]
    {
        let done = run(&mut command(Some(&address), options, &tool), 20);
        let line = |name: &str| {
            let found = done.output.lines().find(|l| l.trim_start().starts_with(name));
            format!("{}\n", found.unwrap_or_default())
        };
        assert!(done.ok() && line("vendor_id:").contains(vendor), "{done}");
        assert!(line("vendor_part_id:").ends_with(part), "{done}");
    }
    let cat = or_skip!(installed("cat"));
    // Programs that read the number of a PCI device would use such a NIC's registers.
    for file in ["vendor", "device"] {
        let mut c = command(Some(&address), &["--mlx5"], &cat);
        let done = run(c.arg(format!("/sys/class/infiniband/gdrc0/device/{file}")), 20);
        assert!(!done.ok() && done.output.contains("No such file"), "{done}");
    }
}

#[test]
fn calls_of_mlx5dv_do_what_a_program_expects() {
    let (program, _dir) = or_skip!(linked("dc_calls", &[]));
    let address = loopback(155, 4);
    assert_ok(&run(&mut command(Some(&address), &["--mlx5"], &program), 30), "--mlx5");
    assert_ok(&run(command(Some(&address), &[], &program).arg("own"), 30), "own identity");
}

#[test]
fn one_device_is_initiator_and_target() {
    let (program, _dir) = or_skip!(linked("dc_data", &[]));
    let done = run(&mut command(Some(&loopback(155, 5)), &["--mlx5", "--stats"], &program), 60);
    assert_ok(&done, "dc_data");
    assert!(counted(&done.output, "dc_opened") >= 4, "{done}");
}

/// As servers of GPU memory do: the client asks over TCP, the server writes by DC.
#[test]
fn a_server_writes_into_the_memory_of_who_asks() {
    let (program, _dir) = or_skip!(linked("dc_server", &["-lrdmacm"]));
    for (path, requests, bytes) in
        [("udp", 24, 10_000_000u64), ("shm", 24, 10_000_000), ("auto", 200, 4099)]
    {
        let [server, client] = [1, 2].map(|last| loopback(156, last));
        let port = free_port();
        let side = |address: &str| {
            let mut c = command(Some(address), &["--mlx5", "--stats", "--path", path], &program);
            c.args([address, &port.to_string()]);
            c
        };
        let requests = (requests / patience::factor()).max(8).to_string();
        let mut asks = side(&client);
        let done = both(&mut side(&server), asks.args([&requests, &bytes.to_string()]), port);
        for one in &done {
            assert_ok(
                one,
                &format!("{path}, {bytes} bytes\n{}\n{}", done[0].output, done[1].output),
            );
        }
        // By DC, and each refused request brought its initiator up again.
        let refused = requests.parse::<u32>().expect("a number") / 8;
        let said = format!("ok, 1 address handles, {refused} initiators brought up again");
        assert!(done[0].output.contains(&said), "{said}: {}", done[0].output);
        assert!(counted(&done[0].output, "dc_opened") > 0, "{}", done[0].output);
    }
}

/// Every initiator writes to every target, and every byte is checked. 320 initiators are more than
/// a device of a target has contexts for (256).
#[test]
fn many_initiators_and_many_targets() {
    let (program, _dir) = or_skip!(linked("dc_crowd", &[]));
    let [targets, initiators] = [1, 2].map(|last| loopback(158, last));
    for crowd in ["64 1 20", "1 64 20", "16 16 10", "320 1 3", "300 4 2"] {
        let numbers: Vec<&str> = crowd.split(' ').collect();
        let [i, t, rounds] = [0, 1, 2].map(|k| numbers[k].parse::<u64>().expect("a number"));
        // An initiator with one target asks for it once, unless another takes its context.
        let least = if t == 1 { i } else { i * t * rounds };
        let assert_opened =
            |done: &Done| assert!(counted(&done.output, "dc_opened") >= least, "{crowd}: {done}");
        let alone =
            run(command(Some(&initiators), &["--stats"], &program).arg("0").args(&numbers), 60);
        assert_ok(&alone, crowd);
        assert_opened(&alone);
        for path in ["udp", "shm"] {
            let port = free_port();
            let side = |address: &str| {
                let mut c = command(Some(address), &["--stats", "--path", path], &program);
                c.arg(port.to_string());
                c
            };
            let [server, client] =
                both(&mut side(&targets), side(&initiators).args(&numbers), port);
            let what = format!("{crowd} over {path}\n{}\n{}", server.output, client.output);
            assert_ok(&server, &what);
            assert_ok(&client, &what);
            assert_opened(&client);
        }
    }
}

/// Server and client of a tool of perftest with DC end well, and it was DC.
fn passes(tool: &str, arguments: &str, path: &'static str) {
    let arguments = format!("-F -x 1 -c DC {arguments}");
    let pair = or_skip!(Pair::new(tool, &arguments, 157));
    let [server, client] = pair.over(path).as_mlx5().run();
    assert!(
        server.ok() && client.ok(),
        "{tool} {arguments} over {path}\nserver:\n{server}\nclient:\n{client}"
    );
    assert!(counted(&client.output, "dc_opened") > 0, "{tool}: {client}");
}

#[test]
fn perftest_runs_unmodified() {
    for path in ["udp", "shm"] {
        for tool in ["ib_send_bw", "ib_write_bw", "ib_read_lat", "ib_write_lat"] {
            passes(tool, "-n 300", path);
        }
    }
    for tool in ["ib_send_lat", "ib_read_bw", "ib_atomic_bw", "ib_atomic_lat"] {
        passes(tool, "-n 300", "auto");
    }
    passes("ib_send_bw", "-n 300 -b", "auto");
    passes("ib_write_bw", "-n 300 -q 4", "auto");
    passes("ib_write_lat", "-n 300 -s 100", "auto");
}
