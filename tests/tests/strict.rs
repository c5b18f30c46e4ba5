//! `gdrcore-run --strict`: each program of tests/c/wrong is named with its rule and its line, does
//! what it wants without the option, and right programs run without a report.

use gdrcore_tests::launched::{programs_of, Place};
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::skip;
use gdrcore_tests::strict::{place, reports, wrong_line};
use gdrcore_tests::tools::{find, loopback, run};
use std::path::PathBuf;
use std::process::Command;

/// The programs of tests/c/wrong, the rule that each breaks, and the NIC that is meant.
const WRONG: &[(&str, &str, &str)] = &[
    ("ah_early", "ah-in-use", ""),
    ("armed_late", "event-missed", ""),
    ("async_kept", "events-unacknowledged", ""),
    ("built_unsignaled", "send-queue-never-signaled", ""),
    ("cq_too_small", "cq-overrun", ""),
    ("dereg_early", "region-in-use", ""),
    ("dereg_unsignaled", "region-in-use", ""),
    ("drained", "attribute-refused", "mlx5"),
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
    ("rate_in_modify", "attribute-refused", "mlx5"),
    ("rc_on_efa", "limit-of-nic", "efa"),
    ("queue_for_writes", "send-queue-full", ""),
    ("read_into_recv", "buffers-overlap", ""),
    ("read_then_send", "missing-fence", ""),
    ("read_then_write", "missing-fence", ""),
    ("recv_overrun", "cq-failed", ""),
    ("recv_touched", "recv-buffer-changed", ""),
    ("rkey_invalidated", "rkey-ended", ""),
    ("rkey_kept", "rkey-ended", ""),
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
/// Those that no report names, and the options with which each fails in its line: with `--strict`
/// what a program reads is garbage, and a fault is one that it is not prepared for.
const FAILING: &[(&str, &[&str])] = &[
    ("failed_opcode", &["--strict"]),
    ("fatal_waited", &["--fault", "event DEVICE_FATAL after 3"]),
    ("inline_default", &["--fault", "limit max_inline = 100"]),
    ("opcode_asserted", &["--strict", "--fault", "completion REM_OP_ERR nth 2"]),
    ("post_ignored", &["--fault", "call ibv_post_send nth 3 errno ENOMEM"]),
    ("registration_kept", &["--fault", "call ibv_reg_mr nth 3 errno ENOMEM"]),
    ("resize_ignored", &["--fault", "call ibv_resize_cq errno EOPNOTSUPP; cq overrun"]),
    ("wr_id_index", &["--fault", "completion RETRY_EXC_ERR nth 3"]),
];

fn place_of(test: &str, place: u32) -> Option<Place> {
    Place::new(test, loopback(225, place))
}

/// Compiles a program with debug information.
fn debuggable(s: &Place, name: &str) -> PathBuf {
    s.compile(name, &["-g"])
}

fn wrong(s: &Place, name: &str) -> PathBuf {
    debuggable(s, &format!("wrong/{name}"))
}

#[test]
fn each_program_of_the_folder_is_in_the_table() {
    let failing = FAILING.iter().map(|(name, _)| *name);
    let mut table: Vec<&str> = WRONG.iter().map(|(name, ..)| *name).chain(failing).collect();
    table.sort_unstable();
    assert_eq!(programs_of("wrong"), table);
}

#[test]
fn each_mistake_is_named_with_its_rule_and_line() {
    let Some(s) = place_of("strict-wrong", 1) else { skip!("no cc or libibverbs headers") };
    for (name, rule, like) in WRONG {
        let program = wrong(&s, name);
        let plain = s.run(&[], &program);
        assert!(plain.ok() && plain.output == "ok\n", "{name}: {}", plain.output);
        let like = if like.is_empty() { vec![] } else { vec!["--like", like] };
        let options = [&["--strict=exit=66"], &like[..]].concat();
        let done = s.run(&options, &program);
        assert_eq!(done.code(), Some(66), "{name}: {}", done.output);
        assert!(done.output.starts_with("ok\n"), "{name}: {}", done.output);
        let line = wrong_line(&format!("wrong/{name}"));
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
fn a_program_fails_in_its_line_by_garbage_or_a_fault() {
    let Some(s) = place_of("strict-failing", 2) else { skip!("no cc or libibverbs headers") };
    for (name, options) in FAILING {
        let program = wrong(&s, name);
        let plain = s.run(&[], &program);
        assert!(plain.ok() && plain.output == "ok\n", "{name}: {}", plain.output);
        let done = s.run(options, &program);
        let line = wrong_line(&format!("wrong/{name}"));
        assert!(done.code() == Some(1) && done.output.contains(&line), "{name}: {}", done.output);
    }
}

#[test]
fn a_report_ends_the_program_is_suppressed_or_a_line_of_json() {
    let Some(s) = place_of("strict-modes", 3) else { skip!("no cc or libibverbs headers") };
    let program = wrong(&s, "send_changed");
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
    let (file, line) = (wrong_line("wrong/send_changed"), text.lines().collect::<Vec<_>>());
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
    let Some(s) = place_of("strict-rxe", 4) else { skip!("no cc or libibverbs headers") };
    let program = wrong(&s, "never_signaled");
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
    let Some(s) = place_of("strict-right", 5) else { skip!("no cc or libibverbs headers") };
    std::fs::write(s.dir.join("suppressions"), "object-left\n").expect("written");
    for name in RIGHT {
        let program = debuggable(&s, name);
        let options = ["--strict=exit=66", "--strict-suppressions", "suppressions"];
        let done = s.run(&options, &program);
        assert!(done.ok() && reports(&done.output).is_empty(), "{name}: {}", done.output);
    }
}

#[test]
fn threads_forks_and_signal_handlers_may_call() {
    let Some(s) = place_of("strict-threads", 8) else { skip!("no cc or libibverbs headers") };
    let traced = debuggable(&s, "traced");
    for how in ["many", "cancel"] {
        let mut c = command(Some(&s.address), &["--strict=exit=66"], &traced);
        let done = run(c.args([how, "200"]), 60);
        let all = reports(&done.output);
        // It ends as it is, with all its objects.
        let left = all.iter().all(|(rule, _)| rule == "object-left");
        assert!(left && done.output.contains("ok\n"), "{how}: {}", done.output);
    }
    let interrupted = debuggable(&s, "interrupted");
    for how in ["exit", "fork"] {
        let done = run(command(None, &["--strict"], &interrupted).arg(how), 60);
        assert!(done.ok(), "{how}: {:?} {}", done.status, done.output);
    }
    // A child has no objects of its parent.
    let done = run(command(Some(&s.address), &["--strict"], &traced).arg("fork"), 60);
    let all = reports(&done.output);
    assert_eq!(all.iter().filter(|(rule, _)| rule == "fork-unprepared").count(), 1, "{all:?}");
}
