//! Injected faults of calls (docs/using/TESTING.md) in unmodified programs: each fails in the form
//! of its man page, changes nothing, and is in the log and in the trace.

use gdrcore_tests::launched::Program;
use gdrcore_tests::or_skip;
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::tools::{installed, loopback, run};

fn program(test: &str, place: u32) -> Result<Program, String> {
    Program::new("call_faults", test, loopback(103, place))
}

/// Rules of first calls.
fn first(calls: &[(&str, &str)]) -> String {
    let rule = |(name, errno): &(&str, &str)| format!("call {name} nth 1 errno {errno}\n");
    calls.iter().map(rule).collect()
}

#[test]
fn a_call_fails_in_the_form_of_its_man_page_and_changes_nothing() {
    const CALLS: &[(&str, &str)] = &[
        ("ibv_get_device_list", "ENOMEM"),
        ("ibv_open_device", "EACCES"),
        ("ibv_alloc_pd", "ENOMEM"),
        ("ibv_reg_mr", "ENOMEM"),
        ("ibv_create_comp_channel", "EMFILE"),
        ("ibv_create_cq", "ENOMEM"),
        ("ibv_create_qp_ex", "EAGAIN"),
        ("ibv_modify_qp", "EIO"),
        ("ibv_query_device", "EIO"),
        ("ibv_query_port", "EIO"),
        ("ibv_query_gid", "EINVAL"),
        ("ibv_query_gid_ex", "ENODATA"),
        ("ibv_query_gid_table", "EIO"),
        ("ibv_req_notify_cq", "EIO"),
        ("ibv_get_cq_event", "EINTR"),
        ("ibv_poll_cq", "EIO"),
        ("ibv_start_poll", "EIO"),
        ("ibv_destroy_qp", "EBUSY"),
        ("ibv_destroy_cq", "EBUSY"),
        ("ibv_dereg_mr", "EBUSY"),
        ("ibv_dealloc_pd", "EBUSY"),
        ("ibv_close_device", "EBUSY"),
    ];
    let p = or_skip!(program("call-faults", 0));
    let rules = first(CALLS);
    let options = ["--fault", &rules, "--seed", "7", "--fault-log", "log", "--trace=trace"];
    let done = p.run(&options, &["forms"]);
    assert!(done.ok() && done.output.contains("ok\n"), "{done}");
    let log: Vec<String> = p.read("log").lines().map(str::to_string).collect();
    assert_eq!(log.len(), CALLS.len(), "{log:#?}");
    let trace = p.read("trace");
    for (i, (name, errno)) in CALLS.iter().enumerate() {
        let line = format!("call {name} nth 1 errno {errno} rule {}", i + 1);
        assert!(log.contains(&line), "{line}: {log:#?}");
        assert!(trace.contains(&format!("{errno} (fault: {line})")), "{line}: {trace}");
    }
    let count = CALLS.len();
    let repeat = format!("gdrcore: {count} faults; the same ones again: gdrcore-run --fault 'call");
    assert_eq!(done.output.matches(&repeat).count(), 1, "{done}");
    // Without the rules the first call succeeds, which the program does not expect.
    let done = p.run(&[], &["forms"]);
    assert!(!done.ok(), "{done}");
}

#[test]
fn a_post_that_fails_posts_nothing() {
    let p = or_skip!(program("call-posts", 1));
    let rules = first(&[
        ("ibv_post_send", "ENOMEM"),
        ("ibv_post_recv", "EINVAL"),
        ("ibv_wr_complete", "ENOMEM"),
    ]);
    let done = p.run(&["--fault", &rules], &["posts"]);
    assert!(done.ok() && done.output.contains("ok\n"), "{done}");
}

#[test]
fn calls_of_all_threads_count_and_a_child_counts_anew() {
    let p = or_skip!(program("call-threads", 2));
    let options = ["--fault", "call ibv_query_device every 10 errno EIO"];
    let done = p.run(&options, &["threads"]);
    assert!(done.ok() && done.output.contains("1000 faults"), "{done}");
    let options = ["--fault", "call ibv_fork_init nth 2 errno ENOMEM", "--fault-log", "log"];
    let done = p.run(&options, &["fork"]);
    assert!(done.ok() && done.output.contains("ok\n"), "{done}");
    assert_eq!(p.read("log").lines().count(), 2, "of parent and child");
}

#[test]
fn a_file_of_the_program_gets_no_lines_of_the_log() {
    let p = or_skip!(program("call-closed", 3));
    let options = ["--fault", "call ibv_fork_init errno ENOMEM", "--fault-log", "log"];
    let done = p.run(&options, &["closed", "own"]);
    assert!(done.ok(), "{done}");
    assert_eq!((p.read("own"), p.read("log").lines().count()), (String::new(), 1));
}

#[test]
fn a_rate_hits_the_same_calls_with_the_same_seed() {
    let p = or_skip!(program("call-rate", 4));
    let log = |seed: &str, name: &str| {
        let rules = "call ibv_query_device rate 50% errno EIO";
        let options = ["--fault", rules, "--seed", seed, "--fault-log", name];
        // One call of ten would fail; so the program ends with an error.
        let done = p.run(&options, &["threads"]);
        assert!(!done.ok(), "{done}");
        let mut lines: Vec<String> = p.read(name).lines().map(str::to_string).collect();
        lines.sort_unstable();
        lines
    };
    let first = log("1", "a");
    assert!((4000..6000).contains(&first.len()), "{}", first.len());
    assert_eq!(first, log("1", "b"));
    assert_ne!(first, log("2", "c"));
}

#[test]
fn calls_of_librdmacm_fail() {
    let rping = or_skip!(installed("rping"));
    let own = loopback(103, 5);
    for (rule, said) in [
        ("call rdma_resolve_addr errno EHOSTUNREACH", "No route to host"),
        ("call rdma_create_id errno ENOMEM", "Cannot allocate memory"),
        ("call rdma_create_event_channel errno EMFILE", "Too many open files"),
    ] {
        let mut c = command(Some(&own), &["--fault", rule], &rping);
        let done = run(c.args(["-c", "-a", &own, "-C", "1"]), 60);
        assert!(!done.ok() && done.output.contains(said), "{rule}: {done}");
    }
}

#[test]
fn names_and_errnos_are_checked_before_the_program_runs() {
    let p = or_skip!(program("call-wrong", 6));
    for (rule, part) in [
        ("call ibv_post errno EIO", "column 6: 'ibv_post': no call"),
        ("call rdma_create_qp errno EIO", "column 6: 'rdma_create_qp': no call"),
        ("call ibv_wr_send errno EIO", "column 6: 'ibv_wr_send': that call cannot fail"),
        ("call ibv_post_send errno EWHAT", "column 26: 'EWHAT': no errno"),
        ("call ibv_post_send nth 3", "column 25: the rule ends too early: 'errno'"),
    ] {
        let done = p.run(&["--fault", rule], &["twice"]);
        assert_eq!(done.code(), Some(125), "{rule}: {done}");
        assert!(done.output.contains(part), "{rule}: {done}");
    }
    // By the variable alone nothing fails, and no device opens.
    let mut c = command(Some(&p.address), &[], &p.file);
    let done = run(c.arg("threads").env("GDRC_FAULTS", "call ibv_wr_send errno EIO"), 60);
    assert!(!done.ok() && done.output.contains("that call cannot fail"), "{done}");
}
