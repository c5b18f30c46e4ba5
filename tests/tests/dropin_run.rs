//! Features of `gdrcore-run`: counters, printed once however the program ends, and a capture whose
//! frames are whole whatever happens.

use gdrcore_core::wire::ip::ETHERNET_LEN;
use gdrcore_testkit::icrc::check_exact;
use gdrcore_testkit::pcap::records;
use gdrcore_tests::dropin::{free_port, start_server};
use gdrcore_tests::rdmacm::{command, counted};
use gdrcore_tests::tools::{
    installed, loopback, run, scratch, verbs_program, Done, Running, Scratch,
};
use gdrcore_tests::{library, or_skip};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// A program that sends a datagram on each of several contexts (tests/c/contexts.c), with its
/// folder and an address.
struct Contexts {
    program: PathBuf,
    dir: Scratch,
    address: String,
}

impl Contexts {
    /// An error: as [`verbs_program`].
    fn new(test: &str, last: u32) -> Result<Contexts, String> {
        library::dropin();
        let (program, dir) = verbs_program(test, "contexts", &[])?;
        Ok(Contexts { program, dir, address: loopback(43, last) })
    }

    fn command(&self, options: &[&str], arguments: &[&str]) -> Command {
        let mut c = command(Some(&self.address), options, &self.program);
        c.args(arguments);
        c
    }
}

/// Number of frames in a capture; checks that each is whole and has a valid ICRC.
fn frames(file: &Path) -> usize {
    let bytes = fs::read(file).expect("the capture");
    let records = records(&bytes);
    for record in &records {
        check_exact(&record.frame[ETHERNET_LEN..]).expect("a right ICRC");
    }
    records.len()
}

/// How many times a counter was printed.
fn times(done: &Done, counter: &str) -> usize {
    done.output.lines().filter(|l| l.starts_with(&format!("gdrcore: {counter} "))).count()
}

#[test]
fn counters_are_printed_once_by_each_process_however_it_ends() {
    let p = or_skip!(Contexts::new("stats", 1));
    // Ends by itself, after three contexts.
    let done = run(&mut p.command(&["--stats"], &["3"]), 60);
    assert!(done.ok(), "{done}");
    assert_eq!((times(&done, "sent_pkts"), counted(&done.output, "sent_pkts")), (1, 3), "{done}");
    // Ends by a signal, with one context open and two closed.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        let mut waiting = Running::start(&mut p.command(&["--stats"], &["2", "wait"]));
        waiting.wait_for_output("ready");
        waiting.signal(signal);
        let done = waiting.finish(LIMIT);
        assert_eq!(done.status.expect("it ended").signal(), Some(signal), "{done}");
        assert_eq!(
            (times(&done, "sent_pkts"), counted(&done.output, "sent_pkts")),
            (1, 3),
            "{done}"
        );
    }
    // A signal that is ignored stays ignored.
    let mut sh = command(Some(&p.address), &["--stats"], "sh");
    let mut waiting =
        Running::start(sh.args(["-c", "trap '' HUP; exec \"$0\" 1 wait"]).arg(&p.program));
    waiting.wait_for_output("ready");
    waiting.signal(libc::SIGHUP);
    waiting.signal(libc::SIGTERM);
    let done = waiting.finish(LIMIT);
    assert_eq!(done.status.expect("it ended").signal(), Some(libc::SIGTERM), "{done}");
    assert_eq!(times(&done, "sent_pkts"), 1, "{done}");
    // A child of a fork prints its own counters; a child that opens no device ends by signals as
    // usual.
    let done = run(&mut p.command(&["--stats"], &["2", "fork"]), 60);
    assert!(done.ok(), "{done}");
    assert_eq!((times(&done, "sent_pkts"), counted(&done.output, "sent_pkts")), (2, 3), "{done}");
    let done = run(&mut p.command(&["--stats"], &["0", "child"]), 60);
    assert!(done.ok() && times(&done, "sent_pkts") == 1, "{done}");
}

#[test]
fn each_variable_with_a_wrong_value_is_reported_once() {
    let p = or_skip!(Contexts::new("wrong-values", 5));
    let wrong = [("GDRC_KEEPALIVE", "soon"), ("GDRC_QPS", "0"), ("GDRC_ENGINES", "65")];
    let done = run(p.command(&[], &["2"]).envs(wrong).env("GDRC_STATS", "0"), 60);
    assert!(done.ok() && !done.output.contains("sent_pkts"), "{done}");
    for (name, value) in wrong {
        let said = format!("gdrcore: {name}={value}: not a number");
        assert_eq!(done.output.matches(&said).count(), 1, "{name}: {done}");
    }
}

#[test]
fn counters_that_cannot_be_printed_are_an_error() {
    let p = or_skip!(Contexts::new("stats-full", 2));
    let status = |options: &[&str]| {
        let full = fs::File::options().write(true).open("/dev/full").expect("/dev/full");
        let mut c = p.command(options, &["1"]);
        let out = c.stdin(Stdio::null()).stderr(full).output().expect("the program");
        assert_eq!(
            String::from_utf8_lossy(&out.stdout),
            "ready\n",
            "{options:?}: the program's own output is missing"
        );
        out.status
    };
    assert!(status(&[]).success());
    assert_eq!(status(&["--stats"]).code(), Some(1));
}

#[test]
fn a_capture_has_the_packets_of_every_context_and_starts_anew_with_each_run() {
    let p = or_skip!(Contexts::new("capture", 3));
    let file = p.dir.join("file.pcap");
    let pcap = file.to_str().expect("a plain path");
    for _ in 0..2 {
        let done = run(&mut p.command(&["--pcap", pcap, "--stats"], &["3"]), 60);
        assert!(done.ok() && counted(&done.output, "capture_frames") == 3, "{done}");
        assert_eq!(frames(&file), 3, "{done}");
    }
    // With the variable alone the capture continues; a relative name counts from the launcher's
    // folder.
    let mut again = p.command(&[], &["1", "fork"]);
    let done = run(again.env("GDRC_PCAP", &file), 60);
    assert!(done.ok() && frames(&file) == 5, "{done}");
    let mut sh = command(Some(&p.address), &["--pcap", "here.pcap"], "sh");
    let done = run(
        sh.args(["-c", "cd / && \"$0\" 1 && \"$0\" 1"]).arg(&p.program).current_dir(&*p.dir),
        60,
    );
    assert!(done.ok() && frames(&p.dir.join("here.pcap")) == 2, "{done}");
    // Frames are whole whatever ends the process.
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut waiting = Running::start(&mut p.command(&["--pcap", pcap], &["2", "wait"]));
        waiting.wait_for_output("ready");
        waiting.signal(signal);
        let done = waiting.finish(LIMIT);
        assert_eq!(done.status.expect("it ended").signal(), Some(signal), "{done}");
        assert_eq!(frames(&file), 3, "signal {signal}: {done}");
    }
    let done = run(&mut p.command(&["--pcap", "/nonexistent/x.pcap"], &["1"]), 60);
    assert!(done.code() == Some(125) && done.output.contains("/nonexistent/x.pcap"), "{done}");
}

#[test]
fn a_disk_that_fills_up_ends_the_capture_and_not_the_program() {
    let p = or_skip!(Contexts::new("capture-full", 4));
    let file = p.dir.join("file.pcap");
    let mut sh = command(
        Some(&p.address),
        &["--pcap", file.to_str().expect("a plain path"), "--stats"],
        "sh",
    );
    // Two blocks of 512 bytes hold a header and a few frames.
    let done =
        run(sh.args(["-c", "trap '' XFSZ; ulimit -f 2; exec \"$0\" 20"]).arg(&p.program), 60);
    assert!(done.ok(), "{done}");
    assert!(done.output.contains(&format!("the capture {} ends here", file.display())), "{done}");
    let (kept, lost) =
        (counted(&done.output, "capture_frames"), counted(&done.output, "capture_lost"));
    assert!(kept > 0 && lost > 0 && kept + lost == 20, "{done}");
    assert_eq!(frames(&file) as u64, kept);
}

/// Processes of one host that would use shared memory: with a capture they use UDP, and one file
/// holds the packets of both.
#[test]
fn a_capture_has_the_packets_between_processes_of_one_host() {
    let pingpong = or_skip!(installed("ibv_rc_pingpong"));
    library::dropin();
    let dir = scratch("capture-host");
    let exchange = |options: &[&str]| {
        let (addresses, port) = ([loopback(43, 11), loopback(43, 12)], free_port());
        let side = |i: usize| {
            let mut c = command(Some(&addresses[i]), options, &pingpong);
            c.args(["-g", "0", "-n", "100", "-p", &port.to_string()]);
            c
        };
        let server = start_server(&mut side(0), port);
        let client = Running::start(side(1).arg(&addresses[0])).finish(LIMIT);
        let server = server.finish(LIMIT);
        assert!(server.ok() && client.ok(), "{server}\n{client}");
        [server.output, client.output]
    };
    let file = dir.join("both.pcap");
    let pcap = file.to_str().expect("a plain path");
    let said = exchange(&["--pcap", pcap, "--stats"]);
    let seen: u64 = said.iter().map(|o| counted(o, "capture_frames")).sum();
    // Each of 200 messages of 4 KiB is at least one packet, sent and received.
    assert!(seen >= 400 && frames(&file) as u64 == seen, "{seen}: {said:?}");
    assert!(said.iter().all(|o| o.matches("not through shared memory").count() == 1), "{said:?}");
    // With --path the named path is used, and a warning says what the capture lacks.
    let said = exchange(&["--pcap", pcap, "--path", "shm"]);
    assert!(said.iter().all(|o| o.matches("is not captured").count() == 1), "{said:?}");
    assert_eq!(frames(&file), 0);
}
