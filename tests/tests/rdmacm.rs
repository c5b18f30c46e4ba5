//! Debian's librdmacm and its tools, unmodified, on the drop-in's implementation of the kernel
//! interface.

use gdrcore_tests::ends::pattern;
use gdrcore_tests::or_skip;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::place;
use gdrcore_tests::rdmacm::{command, counted, launcher, wait_until_it_listens, Pair};
use gdrcore_tests::tools::{
    compile, find, installed, loopback, run, scratch, verbs_compiler, Done, Running,
};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

/// Checks that both sides succeeded.
#[track_caller]
fn well(pair: &Pair<'_>, done: &[Done; 2]) {
    let [server, client] = done;
    assert!(
        (server.ok() || pair.endless) && client.ok(),
        "{} | {} {:?} together: {}\nserver {server}\nclient {client}",
        pair.server,
        pair.client,
        pair.options,
        pair.together
    );
}

/// Runs each line of a tool (server | client) between two processes on the launcher's default path,
/// which is shared memory. Runs the first line also over UDP and on one address.
fn all_pass(test: &str, n: u32, lines: &[(&str, &str)]) {
    pass(test, n, lines, true);
}

fn pass(test: &str, n: u32, lines: &[(&str, &str)], on_one_address: bool) {
    let dir = scratch(test);
    for (i, (server, client)) in lines.iter().enumerate() {
        let plain = Pair::new(server, client);
        let mut ways = vec![Pair { ..plain }];
        if i == 0 {
            ways.push(Pair { options: &["--path", "udp"], ..Pair::new(server, client) });
        }
        if i == 0 && on_one_address {
            ways.push(Pair { together: true, ..Pair::new(server, client) });
        }
        for pair in &ways {
            let done = or_skip!(pair.run(n, &dir));
            well(pair, &done);
        }
    }
}

#[test]
fn rping_checks_its_data() {
    all_pass(
        "rping",
        60,
        &[
            ("rping -s -a {S} -C 200 -V", "rping -c -a {S} -C 200 -V"),
            ("rping -s -a {S} -C 20 -V -S 65000", "rping -c -a {S} -C 20 -V -S 65000"),
            ("rping -s -a {S} -C 20 -V -q", "rping -c -a {S} -C 20 -V -q"),
        ],
    );
}

#[test]
fn connections_in_numbers() {
    all_pass(
        "ucmatose",
        61,
        &[
            ("ucmatose -b {S} -c 20 -C 50", "ucmatose -s {S} -c 20 -C 50"),
            ("ucmatose -b {S} -t 32", "ucmatose -s {S} -t 32"),
        ],
    );
}

#[test]
fn datagram_services() {
    // Over shared memory, where no datagram is lost: udaddy waits for each without end.
    all_pass("udaddy", 62, &[("udaddy -b {S} -c 10", "udaddy -s {S} -c 10")]);
}

#[test]
fn the_examples_of_rdma_create_ep() {
    all_pass(
        "rdma_server",
        63,
        &[
            ("rdma_server -s {S}", "rdma_client -s {S}"),
            ("rdma_xserver -c r", "rdma_xclient -s {S} -c r"),
        ],
    );
}

#[test]
fn multicast_between_processes() {
    let group = Ipv4Addr::new(239, place::number(), 0, 9);
    let (receiver, sender) =
        (format!("mckey -m {group} -b {{S}}"), format!("mckey -m {group} -b {{C}} -s"));
    let dir = scratch("mckey");
    for together in [false, true] {
        let pair = Pair { group: Some(group), together, ..Pair::new(&receiver, &sender) };
        let done = or_skip!(pair.run(64, &dir));
        well(&pair, &done);
    }
}

#[test]
fn streams_over_rsockets_check_their_data() {
    all_pass(
        "rstream",
        65,
        &[
            (
                "rstream -b {S} -S 5000 -I 100 -C 10 -T v",
                "rstream -s {S} -S 5000 -I 100 -C 10 -T v",
            ),
            (
                "rstream -b {S} -S 5000 -I 100 -C 10 -T v -T n",
                "rstream -s {S} -S 5000 -I 100 -C 10 -T v -T n",
            ),
            (
                "rstream -b {S} -S 5000 -I 100 -C 10 -T v -T r",
                "rstream -s {S} -S 5000 -I 100 -C 10 -T v -T r",
            ),
            ("rstream -b {S} -S 200000 -I 20 -C 10", "rstream -s {S} -S 200000 -I 20 -C 10"),
        ],
    );
    all_pass(
        "riostream",
        66,
        &[
            (
                "riostream -b {S} -S 5000 -I 20 -C 10 -T v",
                "riostream -s {S} -S 5000 -I 20 -C 10 -T v",
            ),
            (
                "riostream -b {S} -S 5000 -I 20 -C 10 -T v -T a",
                "riostream -s {S} -S 5000 -I 20 -C 10 -T v -T a",
            ),
        ],
    );
}

#[test]
fn a_file_copied_over_rsockets() {
    let dir = scratch("rcopy");
    let bytes = pattern(1, 5_000_001);
    std::fs::write(dir.join("from"), &bytes).expect("a file");
    for options in [&[][..], &["--path", "udp"]] {
        let _ = std::fs::remove_file(dir.join("to"));
        let pair =
            Pair { options, endless: true, ..Pair::new("rcopy", "rcopy {D}/from {S}:{D}/to") };
        let done = or_skip!(pair.run(67, &dir));
        well(&pair, &done);
        assert!(std::fs::read(dir.join("to")).expect("the copy") == bytes, "the copy differs");
    }
}

#[test]
fn perftest_connects_by_rdma_cm() {
    // Each side on its own address: perftest ends its first listener before it begins the second.
    // On one address no process then knows of the listener, so a client that requests between the
    // two is refused.
    pass(
        "perftest",
        68,
        &[
            ("ib_send_lat -R -F -n 500", "ib_send_lat -R -F -n 500 {S}"),
            ("ib_write_bw -R -F -n 500", "ib_write_bw -R -F -n 500 {S}"),
            ("ib_send_bw -R -F -n 500 -c UD", "ib_send_bw -R -F -n 500 -c UD {S}"),
            ("ib_write_bw -R -F -n 200 -q 4", "ib_write_bw -R -F -n 200 -q 4 {S}"),
        ],
        false,
    );
}

/// librdmacm's own preload library, which carries a program's TCP over RDMA.
fn rsockets() -> Result<&'static Path, String> {
    let library = Path::new("/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so");
    let there = library.exists().then_some(library);
    there.ok_or_else(|| format!("no {} (librdmacm1)", library.display()))
}

/// Checks that RDMA carried a side's bytes.
#[track_caller]
fn received(side: &Done, least: u64) {
    let bytes = counted(&side.output, "rcvd_bytes");
    assert!(bytes >= least, "{bytes} bytes of {least} came over RDMA: {side}");
}

/// A TCP program without RDMA code.
#[test]
fn a_program_of_sockets_runs_over_rdma() {
    let preload = or_skip!(rsockets());
    let dir = scratch("sockets");
    let program = compile("cc", "tcp_echo", &dir, &[]).display().to_string();
    let (server, client) = (format!("{program} {{S}}"), format!("{program} {{C}} {{S}}"));
    for options in [&["--stats"][..], &["--stats", "--path", "udp"]] {
        let pair = Pair { preload: Some(preload), options, ..Pair::new(&server, &client) };
        let done = pair.run(69, &dir).expect("a program with a path");
        well(&pair, &done);
        // 2,000,000 each way.
        done.iter().for_each(|d| received(d, 2_000_000));
    }
}

/// The netcat of Debian's busybox. The server's standard input is the file; the client's stays
/// open, because closing it ends both sides.
#[test]
fn a_file_comes_by_netcat_over_rdma() {
    let preload = or_skip!(rsockets());
    or_skip!(installed("busybox"));
    let dir = scratch("netcat");
    let bytes = pattern(1, 3_000_001);
    std::fs::write(dir.join("from"), &bytes).expect("a file");
    std::fs::write(dir.join("server"), "exec busybox nc -l -p 7004 <from\n").expect("a script");
    std::fs::write(
        dir.join("client"),
        "mkfifo open; exec 3<>open; exec busybox nc $1 7004 <&3 >to\n",
    )
    .expect("a script");
    for options in [&["--stats"][..], &["--stats", "--path", "udp"]] {
        for old in ["open", "to"] {
            let _ = std::fs::remove_file(dir.join(old));
        }
        let pair = Pair {
            preload: Some(preload),
            options,
            endless: true,
            ..Pair::new("sh server", "sh client {S}")
        };
        let done = pair.run(75, &dir).expect("sh");
        well(&pair, &done);
        received(&done[1], 3_000_001);
        assert!(std::fs::read(dir.join("to")).expect("what came") == bytes, "the copy differs");
    }
}

#[test]
fn iperf_measures_rdma_for_tcp() {
    let preload = or_skip!(rsockets());
    let dir = scratch("iperf");
    let (server, client) = ("iperf -s -B {S}", "iperf -c {S} -t 1 -P 2");
    let pair = Pair {
        preload: Some(preload),
        options: &["--stats"],
        endless: true,
        ..Pair::new(server, client)
    };
    let done = or_skip!(pair.run(76, &dir));
    well(&pair, &done);
    // The sender counts acknowledged bytes.
    assert!(counted(&done[1].output, "request_bytes") > 10_000_000, "{}", done[1].output);
}

#[test]
fn the_device_file_checks_the_bytes_that_a_program_writes() {
    or_skip!(verbs_compiler());
    let dir = scratch("rdma-cm-file");
    let program = compile("cc", "rdma_cm_file", &dir, &["-libverbs"]);
    let address = loopback(70, 1);
    let done = run(command(Some(&address), &[], program).arg(&address), 60);
    assert!(done.ok() && done.output.contains("ok"), "{done}");
}

#[test]
fn a_server_survives_a_killed_client() {
    let rping = or_skip!(installed("rping"));
    let (address, other) = (loopback(71, 1), loopback(71, 2));
    let mut server = Running::start(
        command(Some(&address), &[], &rping).args(["-P", "-s", "-a", &address, "-V"]),
    );
    wait_until_it_listens(&mut server, &address);
    for _ in 0..3 {
        let mut client =
            Running::start(command(Some(&other), &[], &rping).args(["-c", "-a", &address, "-v"]));
        client.wait_for_output("ping data");
        client.kill();
    }
    let last =
        run(command(Some(&other), &[], &rping).args(["-c", "-a", &address, "-V", "-C", "20"]), 30);
    assert!(last.ok(), "{last}");
    assert!(server.still_runs(), "the server has ended");
}

#[test]
fn a_missing_listener_is_reported_soon() {
    let rping = or_skip!(installed("rping"));
    let (address, other) = (loopback(72, 1), loopback(72, 2));
    // A host that exists, without a listener.
    let listener = Running::start(
        command(Some(&address), &[], &rping).args(["-s", "-a", &address, "-p", "7000"]),
    );
    let mut listener = listener;
    wait_until_it_listens(&mut listener, &address);
    let done = run(
        command(Some(&other), &[], &rping).args(["-c", "-a", &address, "-p", "7001", "-C", "1"]),
        30,
    );
    assert!(done.code().is_some_and(|c| c != 0) && done.output.contains("REJECTED"), "{done}");
    // An address of another family than the device's.
    let done =
        run(command(Some(&other), &[], &rping).args(["-c", "-a", "fd00::77", "-C", "1"]), 30);
    assert!(done.code().is_some_and(|c| c != 0) && done.output.contains("ADDR_ERROR"), "{done}");
}

#[test]
fn the_launcher_becomes_the_program() {
    let sh = or_skip!(installed("sh"));
    let address = loopback(73, 1);
    let script = |text: &str| run(command(Some(&address), &[], &sh).args(["-c", text]), 20);
    assert_eq!(script("exit 7").code(), Some(7));
    let done = script("kill -TERM $$");
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&done.status.expect("it ended")),
        Some(libc::SIGTERM)
    );
    assert_eq!(script("echo $GDRC_ADDRESS").output.trim(), address);
    let bare = |words: &[&str]| run(Command::new(launcher()).args(words), 20);
    assert_eq!(bare(&["no-such-program-here"]).code(), Some(127));
    assert_eq!(bare(&["--path", "tcp", "true"]).code(), Some(125));
    assert_eq!(bare(&["/etc/passwd"]).code(), Some(126));
    let help = bare(&["--help"]);
    assert!(
        help.ok() && help.output.contains("--address") && help.output.contains("--pcap"),
        "{help}"
    );
    // A library that does not exist is reported; the caller's own LD_PRELOAD stays.
    let lost = run(Command::new(launcher()).env("GDRC_LIBRARIES", "/nowhere").arg("true"), 20);
    assert!(lost.code() == Some(125) && lost.output.contains("GDRC_LIBRARIES"), "{lost}");
    let kept = run(
        Command::new(launcher()).env("LD_PRELOAD", "/lib/none.so").args([
            "sh",
            "-c",
            "echo $LD_PRELOAD",
        ]),
        20,
    );
    assert!(kept.output.lines().any(|l| l.starts_with("/lib/none.so:/")), "{}", kept.output);
}

/// Counters, printed at the end and at SIGUSR2.
#[test]
fn counters_are_printed_at_a_signal() {
    let rping = or_skip!(installed("rping"));
    let (address, other) = (loopback(74, 1), loopback(74, 2));
    // Its output goes to a file, which the test polls.
    let dir = scratch("stats");
    let words = dir.join("words");
    let said = || std::fs::read_to_string(&words).unwrap_or_default();
    let sh = ["-c", "exec \"$0\" \"$@\" >\"$WORDS\" 2>&1"];
    let mut c = command(Some(&address), &["--stats"], find("sh").expect("sh"));
    let mut server = Running::start(
        c.args(sh).arg(&rping).args(["-P", "-s", "-a", &address]).env("WORDS", &words),
    );
    wait_until_it_listens(&mut server, &address);
    let client = run(
        command(Some(&other), &["--stats"], &rping).args(["-c", "-a", &address, "-C", "10"]),
        30,
    );
    assert!(client.ok() && client.output.contains("gdrcore: rcvd_pkts "), "{client}");
    run(Command::new("kill").args(["-USR2", &server.pid().to_string()]), 10);
    wait_for(60, "no counters were printed", || {
        said().contains("gdrcore: rcvd_pkts ") || !server.still_runs()
    });
    assert!(server.still_runs(), "SIGUSR2 has ended it: {}", said());
    server.kill();
}

/// Both the side that rejects and the side that is rejected print the reason.
#[test]
fn both_ends_print_a_rejection_with_its_reason() {
    let rping = or_skip!(installed("rping"));
    let (address, other) = (loopback(75, 1), loopback(75, 2));
    let side = |at: &str, options: &[&str]| {
        let mut c = command(Some(at), &[], &rping);
        c.args(options).args(["-a", &address, "-C", "1"]).env("GDRC_VERBOSE", "1");
        c
    };
    let mut server = Running::start(&mut side(&address, &["-s", "-p", "7201"]));
    wait_until_it_listens(&mut server, &address);
    let client = run(&mut side(&other, &["-c", "-p", "7202"]), 60);
    let heard = format!(
        "gdrcore: {address} rejected the connection with its \
         port 7202: reason 8: nobody listens at this port"
    );
    assert!(!client.ok() && client.output.contains(&heard), "{client}");
    server.wait_for_output(&format!(
        "gdrcore: rejected {other}, which requested port 7202: reason 8: nobody listens"
    ));
    server.kill();
}
