//! `gdrcore-run --strict`: each program of tests/c/wrong is named with its rule and its line, does
//! what it wants without the option, and right programs run without a report.

use gdrcore_tests::dropin::{both, free_port};
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{find, loopback, run, scratch, Done, Scratch};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The programs of tests/c/wrong, the rule that each breaks, and the NIC that is meant.
const WRONG: &[(&str, &str, &str)] = &[
    ("ah_early", "ah-in-use", ""),
    ("armed_late", "event-missed", ""),
    ("built_unsignaled", "send-queue-never-signaled", ""),
    ("cq_too_small", "cq-overrun", ""),
    ("dereg_early", "region-in-use", ""),
    ("dereg_unsignaled", "region-in-use", ""),
    ("events_kept", "events-unacknowledged", ""),
    ("forked", "fork-unprepared", ""),
    ("gid_index_zero", "gid-roce-v1", "mlx5"),
    ("leaked_ah", "object-left", ""),
    ("leaked_reading", "object-left", ""),
    ("leaked_region", "object-left", ""),
    ("long_list", "send-queue-never-signaled", ""),
    ("many_pieces", "limit-of-nic", "mlx5"),
    ("many_reads", "limit-of-nic", "mlx5"),
    ("much_inline", "limit-of-nic", "hns"),
    ("never_polled", "send-queue-full", ""),
    ("never_signaled", "send-queue-never-signaled", ""),
    ("no_retries", "no-retries", ""),
    ("no_rnr_retries", "no-rnr-retries", ""),
    ("rc_on_efa", "limit-of-nic", "efa"),
    ("read_into_recv", "buffers-overlap", ""),
    ("read_then_send", "missing-fence", ""),
    ("read_then_write", "missing-fence", ""),
    ("recv_touched", "recv-buffer-changed", ""),
    ("rnr_timer_zero", "rnr-timer-longest", ""),
    ("same_recv_twice", "buffers-overlap", ""),
    ("send_changed", "send-buffer-changed", ""),
    ("signaled_too_late", "send-queue-never-signaled", ""),
    ("stack_buffer", "send-buffer-changed", ""),
    ("timeout_zero", "timeout-zero", ""),
    ("two_writers", "remote-writes-overlap", ""),
    ("unmapped_in_flight", "memory-unmapped", ""),
    ("unsignaled_reused", "send-buffer-changed", ""),
];
/// One that no report names: it reads what is garbage.
const READS_GARBAGE: &str = "failed_opcode";

/// A folder with compiled programs, and an address.
struct Strict {
    dir: Scratch,
    address: String,
}

impl Strict {
    /// `None`: libibverbs's headers are not installed.
    fn new(test: &str, place: u32) -> Option<Strict> {
        let has_headers = Path::new("/usr/include/infiniband/verbs.h").exists();
        let there = find("cc").is_some() && has_headers;
        there.then(|| Strict { dir: scratch(test), address: loopback(225, place) })
    }

    /// Compiles a program of tests/c with debug information, if its name has more than one part
    /// from the folder of that name.
    fn compile(&self, name: &str) -> PathBuf {
        let to = self.dir.join(name.replace('/', "-"));
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-o"]);
        cc.arg(&to).arg(source(name)).args(["-libverbs", "-lpthread"]);
        let done = run(&mut cc, 60);
        assert!(done.ok(), "{name}: {}", done.output);
        to
    }

    fn run(&self, options: &[&str], program: &Path) -> Done {
        let mut c = command(Some(&self.address), options, program);
        run(c.current_dir(&*self.dir), 60)
    }

    fn wrong(&self, name: &str) -> PathBuf {
        self.compile(&format!("wrong/{name}"))
    }
}

fn source(name: &str) -> PathBuf {
    root().join(format!("tests/c/{name}.c"))
}

/// The line that says WRONG.
fn wrong_line(name: &str) -> String {
    let text = std::fs::read_to_string(source(&format!("wrong/{name}"))).expect("the program");
    let n = text.lines().position(|l| l.contains("/* WRONG */")).expect(name) + 1;
    format!("{name}.c:{n}")
}

/// The reports in an output: the rule of each, and its lines.
fn reports(output: &str) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> = Vec::new();
    for line in output.lines() {
        if let Some(rest) = line.strip_prefix("gdrcore strict: ") {
            let rule = rest.split(':').next().expect("a rule");
            all.push((rule.into(), String::new()));
        }
        if let Some((_, text)) = all.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    all
}

/// The frames of a report's own place, not of the other one.
fn place(report: &str) -> &str {
    report.split("  noticed at\n").next().expect("a part")
}

#[test]
fn each_program_of_the_folder_is_in_the_table() {
    let folder = std::fs::read_dir(root().join("tests/c/wrong")).expect("the folder");
    let names = folder.flatten().filter_map(|e| {
        e.file_name().to_str().and_then(|n| n.strip_suffix(".c")).map(str::to_string)
    });
    let mut names: Vec<String> = names.filter(|n| n != READS_GARBAGE).collect();
    names.sort();
    let table: Vec<&str> = WRONG.iter().map(|(name, ..)| *name).collect();
    assert_eq!(names, table);
}

#[test]
fn each_mistake_is_named_with_its_rule_and_line() {
    let Some(s) = Strict::new("strict-wrong", 1) else { skip!("no cc or libibverbs headers") };
    for (name, rule, like) in WRONG {
        let program = s.wrong(name);
        let plain = s.run(&[], &program);
        assert!(plain.ok() && plain.output == "ok\n", "{name}: {}", plain.output);
        let like = if like.is_empty() { vec![] } else { vec!["--like", like] };
        let options = [&["--strict=exit=66"], &like[..]].concat();
        let done = s.run(&options, &program);
        assert_eq!(done.code(), Some(66), "{name}: {}", done.output);
        assert!(done.output.starts_with("ok\n"), "{name}: {}", done.output);
        let line = wrong_line(name);
        let all = reports(&done.output);
        let at_line = |(r, text): &&(String, String)| {
            r == rule && place(text).lines().any(|l| l.ends_with(&line))
        };
        assert_eq!(all.iter().filter(at_line).count(), 1, "{name} {line}: {}", done.output);
        // Limits of NICs are exceeded elsewhere in the program, too.
        let others = all.iter().filter(|(r, _)| r != rule).count();
        assert!(!like.is_empty() || others == 0, "{name}: {}", done.output);
    }
}

#[test]
fn fields_of_a_failed_completion_are_garbage() {
    let Some(s) = Strict::new("strict-garbage", 2) else { skip!("no cc or libibverbs headers") };
    let program = s.wrong(READS_GARBAGE);
    assert!(s.run(&[], &program).ok());
    let done = s.run(&["--strict"], &program);
    let line = wrong_line(READS_GARBAGE);
    assert!(done.code() == Some(1) && done.output.contains(&line), "{}", done.output);
}

#[test]
fn a_report_ends_the_program_is_suppressed_or_a_line_of_json() {
    let Some(s) = Strict::new("strict-modes", 3) else { skip!("no cc or libibverbs headers") };
    let program = s.wrong("send_changed");
    let report = s.run(&["--strict"], &program);
    assert!(report.ok() && reports(&report.output).len() == 1, "{}", report.output);
    let abort = s.run(&["--strict=abort"], &program);
    let one = reports(&abort.output).len() == 1 && !abort.output.contains("ok\n");
    assert!(abort.code().is_none() && one, "{}", abort.output);
    // A suppression by the rule alone, by a function, and by one that is not there.
    for (words, n) in [
        ("send-buffer-changed", 0),
        ("# all\nsend-buffer-changed:next_wc\n", 0),
        ("send-buffer-changed:poll_bad\nobject-left\n", 1),
    ] {
        std::fs::write(s.dir.join("suppressions"), words).expect("written");
        let options = ["--strict=exit=66", "--strict-suppressions", "suppressions"];
        let done = s.run(&options, &program);
        assert_eq!(reports(&done.output).len(), n, "{words}: {}", done.output);
        assert_eq!(done.code(), Some(if n == 0 { 0 } else { 66 }), "{words}");
    }
    std::fs::write(s.dir.join("suppressions"), "send-buffer-lost\n").expect("written");
    let wrong = s.run(&["--strict", "--strict-suppressions", "suppressions"], &program);
    assert!(wrong.output.contains("line 1: no rule 'send-buffer-lost'"), "{}", wrong.output);
    let json = s.run(&["--strict", "--strict-json", "reports"], &program);
    assert!(json.ok(), "{}", json.output);
    let text = std::fs::read_to_string(s.dir.join("reports")).expect("the reports");
    let (file, line) = (wrong_line("send_changed"), text.lines().collect::<Vec<_>>());
    let (file, number) = file.split_once(':').expect("a line");
    assert_eq!(line.len(), 1, "{text}");
    assert!(line[0].starts_with("{\"rule\":\"send-buffer-changed\",\"pid\":"), "{text}");
    assert!(line[0].contains(&format!("{file}\",\"line\":{number},")), "{text}");
    if find("python3").is_some() {
        let mut python = Command::new("python3");
        let valid = run(python.args(["-m", "json.tool"]).arg(s.dir.join("reports")), 60);
        assert!(valid.ok(), "{}", valid.output);
    }
}

#[test]
fn a_nic_like_rxe_frees_unsignaled_requests() {
    let Some(s) = Strict::new("strict-rxe", 4) else { skip!("no cc or libibverbs headers") };
    let program = s.wrong("never_signaled");
    let done = s.run(&["--strict=exit=66", "--like", "rxe"], &program);
    assert!(done.ok() && reports(&done.output).is_empty(), "{}", done.output);
}

/// Programs of tests/c that do what they should, but some leave objects.
const RIGHT: &[&str] = &[
    "atomics",
    "buffers",
    "careful",
    "failed",
    "fields",
    "flush",
    "herd",
    "hints",
    "longer",
    "man_verbs",
    "many",
    "names",
    "ops_table",
    "posting_threads",
    "refusals",
    "refused_posts",
    "srq_domains",
    "windows",
    "xrcd",
];

#[test]
fn right_programs_have_no_report() {
    let Some(s) = Strict::new("strict-right", 5) else { skip!("no cc or libibverbs headers") };
    std::fs::write(s.dir.join("suppressions"), "object-left\n").expect("written");
    for name in RIGHT {
        let program = s.compile(name);
        let options = ["--strict=exit=66", "--strict-suppressions", "suppressions"];
        let done = s.run(&options, &program);
        assert!(done.ok() && reports(&done.output).is_empty(), "{name}: {}", done.output);
    }
}

#[test]
fn tools_have_no_report_but_those_that_the_page_tells_of() {
    let tools = [
        ("ibv_rc_pingpong", "-g 0 -n 100"),
        ("ibv_uc_pingpong", "-g 0 -n 100"),
        ("ibv_ud_pingpong", "-g 0 -n 100"),
        ("ibv_srq_pingpong", "-g 0 -n 100 -e"),
        ("ib_write_lat", "-n 100 -F"),
        ("ib_write_bw", "-n 500 -F -q 4"),
        ("ib_read_bw", "-n 500 -F"),
        ("ib_send_bw", "-n 500 -F"),
        ("ib_atomic_bw", "-n 100 -F"),
    ];
    if tools.iter().any(|(tool, _)| find(tool).is_none()) {
        skip!("no ibverbs-utils or perftest")
    }
    let [server, client] = [6, 7].map(|place| loopback(225, place));
    for (tool, arguments) in tools {
        let port = free_port();
        let side = |address: &str| {
            let mut c = command(Some(address), &["--strict=exit=66"], tool);
            c.args(arguments.split(' ')).args(["-p", &port.to_string()]);
            c
        };
        let ends = both(&mut side(&server), side(&client).arg(&server), port);
        for done in ends {
            let all = reports(&done.output);
            // Each of them receives into one buffer; perftest leaves CQs.
            let is_told = |rule: &str| matches!(rule, "buffers-overlap" | "object-left");
            assert!(all.iter().all(|(rule, _)| is_told(rule)), "{tool}: {}", done.output);
            assert_eq!(done.code(), Some(if all.is_empty() { 0 } else { 66 }), "{tool}");
        }
    }
}

#[test]
fn threads_forks_and_signal_handlers_may_call() {
    let Some(s) = Strict::new("strict-threads", 8) else { skip!("no cc or libibverbs headers") };
    let traced = s.compile("traced");
    for how in ["many", "cancel"] {
        let mut c = command(Some(&s.address), &["--strict=exit=66"], &traced);
        let done = run(c.args([how, "200"]), 60);
        let all = reports(&done.output);
        // It ends as it is, with all its objects.
        let left = all.iter().all(|(rule, _)| rule == "object-left");
        assert!(left && done.output.contains("ok\n"), "{how}: {}", done.output);
    }
    let interrupted = s.compile("interrupted");
    for how in ["exit", "fork"] {
        let done = run(command(None, &["--strict"], &interrupted).arg(how), 60);
        assert!(done.ok(), "{how}: {:?} {}", done.status, done.output);
    }
    // A child has no objects of its parent.
    let done = run(command(Some(&s.address), &["--strict"], &traced).arg("fork"), 60);
    let all = reports(&done.output);
    assert_eq!(all.iter().filter(|(rule, _)| rule == "fork-unprepared").count(), 1, "{all:?}");
}
