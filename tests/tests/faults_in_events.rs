//! Events, completions and errors of CQs that rules cause (docs/using/TESTING.md), in an unmodified
//! program: each event comes once, with the state that it tells of.

use gdrcore_tests::launched::Program;
use gdrcore_tests::or_skip;
use gdrcore_tests::rdmacm::{command, wait_until_it_listens};
use gdrcore_tests::tools::{installed, loopback, run, Done, Running};
use std::path::PathBuf;

fn program(test: &str, place: u32) -> Result<Program, String> {
    Program::new("events", test, loopback(103, place))
}

/// What the program prints, without the launcher's last line.
fn prints(p: &Program, options: &[&str], words: &[&str]) -> String {
    let done = p.run(options, words);
    assert!(done.ok(), "{options:?}: {done}");
    let own = done.output.lines().filter(|line| !line.starts_with("gdrcore: "));
    own.collect::<Vec<_>>().join("\n")
}

/// States of a pair and its port, as the program prints them: RTS 3, ERR 6; ACTIVE 4, DOWN 1.
const UP: &str = "a 3 b 3 port 4 sysfs 4: ACTIVE";

/// A rule, how many events it brings, the events as the program prints them, and the states behind
/// them; none: the queue pairs have failed, or one has.
const EVENTS: &[(&str, u32, &str, &str)] = &[
    ("event QP_FATAL after 2", 1, "event 1 a", "a 6 b 3 port 4 sysfs 4: ACTIVE"),
    ("event QP_ACCESS_ERR in after 2 qp 2", 2, "event 3 b\nevent 16 b", ""),
    ("event QP_REQ_ERR in after 2 qp 2", 2, "event 2 b\nevent 16 b", ""),
    ("event CQ_ERR after 2", 2, "event 16 b\nevent 0 cq", "a 6 b 6 port 4 sysfs 4: ACTIVE"),
    ("event SRQ_ERR after 2 qp 2 in", 2, "event 16 b\nevent 14 srq", ""),
    ("event SRQ_LIMIT_REACHED in after 2 qp 2", 1, "event 15 srq", UP),
    ("event QP_LAST_WQE_REACHED in after 2 qp 2", 1, "event 16 b", ""),
    ("event PATH_MIG after 2", 1, "event 6 a", UP),
    ("event PATH_MIG_ERR after 2", 1, "event 7 a", UP),
    ("event COMM_EST after 2", 1, "event 4 a", UP),
    ("event LID_CHANGE after 2", 1, "event 11 port 1", UP),
    ("event PKEY_CHANGE after 2", 1, "event 12 port 1", UP),
    ("event SM_CHANGE after 2", 1, "event 13 port 1", UP),
    ("event CLIENT_REREGISTER after 2", 1, "event 17 port 1", UP),
    ("event GID_CHANGE after 2", 1, "event 18 port 1", UP),
    ("event PORT_ERR after 2", 1, "event 10 port 1", "a 3 b 3 port 1 sysfs 1: DOWN"),
    ("event DEVICE_FATAL after 2", 2, "event 8 port 1\nevent 16 b", ""),
    ("event SQ_DRAINED after 2", 1, "event 5 a", UP),
];

/// The port comes back, and what waited for it arrives.
const PORT_IS_BACK: &str = "event PORT_ERR after 2; event PORT_ACTIVE at 300ms";

/// What ends rping's connection, and what it says of the event.
const ENDS: &[(&str, &str)] = &[
    ("event DISCONNECTED after 2", "DISCONNECT EVENT"),
    ("event DEVICE_FATAL after 2", "cma detected device removal"),
];

#[test]
fn each_event_of_the_rules_is_in_a_table() {
    let rules = EVENTS.iter().map(|e| e.0).chain(ENDS.iter().map(|e| e.0)).chain([PORT_IS_BACK]);
    let events = rules.flat_map(|r| r.split("; ")).filter_map(|rule| rule.split(' ').nth(1));
    let mut tested: Vec<&str> = events.collect();
    let mut all: Vec<&str> = gdrcore_core::inject::events::names().collect();
    tested.sort_unstable();
    tested.dedup();
    all.sort_unstable();
    assert_eq!(tested, all);
}

#[test]
fn each_event_comes_once_with_its_state() {
    let p = or_skip!(program("events", 40));
    for (rules, count, events, states) in EVENTS.iter().copied() {
        let said = prints(&p, &["--fault", rules], &[&count.to_string()]);
        let is_event = |line: &&str| line.starts_with("event ");
        let lines: Vec<&str> = said.lines().filter(is_event).collect();
        assert_eq!(lines.join("\n"), events, "{rules}: {said}");
        let last = said.lines().find(|line| line.starts_with("a ")).expect("the states");
        let failed = if rules.contains("DEVICE") { "a 6 b 6 port 1" } else { "b 6 port 4" };
        let is_it = if states.is_empty() { last.contains(failed) } else { last == states };
        assert!(is_it, "{rules}: {said}");
    }
    let said = prints(&p, &["--fault", PORT_IS_BACK], &["2", "more"]);
    assert_eq!(said, format!("event 10 port 1\nevent 9 port 1\n{UP}"));
}

#[test]
fn a_completion_has_the_status_of_its_rule() {
    let p = or_skip!(program("events-status", 41));
    for (rule, said) in [
        ("completion RETRY_EXC_ERR nth 3 qp 1", "send transport retry counter exceeded"),
        ("completion GENERAL_ERR opcode SEND_ONLY every 4", "send general error"),
        ("completion LOC_LEN_ERR in nth 2", "receive local length error"),
    ] {
        let options = ["--fault", rule, "--fault-log", "log", "-v"];
        // The other end's queue pair tells that it has no receive requests any more.
        let fails = p.run(
            &[&options[..], &["--fault", "event QP_LAST_WQE_REACHED at 1s qp 2"]].concat(),
            &["1"],
        );
        assert!(fails.ok() && fails.output.contains(said), "{rule}: {fails}");
        assert!(fails.output.contains("a fault that was injected"), "{rule}: {fails}");
        let log = std::fs::read_to_string(p.dir.join("log")).expect("the log");
        std::fs::remove_file(p.dir.join("log")).expect("removed");
        assert!(log.contains(" RC_SEND_ONLY ") && log.starts_with("completion "), "{log}");
    }
}

#[test]
fn a_cq_that_is_too_small_fails_as_on_a_nic() {
    let p = or_skip!(program("events-full", 42));
    let said = prints(&p, &["--fault", "cq overrun"], &["2", "full"]);
    assert_eq!(said, "event 16 b\nevent 0 cq\na 6 b 6 port 4 sysfs 4: ACTIVE");
}

/// rping's server, and what its client prints with rules of its own.
struct Rping {
    server: Running,
    own: String,
    peer: String,
    tool: PathBuf,
}

impl Rping {
    /// An error: rping is not installed.
    fn new(place: u32) -> Result<Rping, String> {
        let tool = installed("rping")?;
        let [own, peer] = [loopback(103, place), loopback(103, place + 1)];
        let mut c = command(Some(&peer), &[], &tool);
        // It serves one client after the other.
        let mut server = Running::start(c.args(["-s", "-P", "-a", &peer]));
        wait_until_it_listens(&mut server, &peer);
        Ok(Rping { server, own, peer, tool })
    }

    fn client(&self, rules: &str, more: &[&str]) -> Done {
        let mut c = command(Some(&self.own), &["--fault", rules], &self.tool);
        run(c.args(["-c", "-a", &self.peer, "-C", "3"]).args(more), 60)
    }
}

#[test]
fn connections_fail_with_the_event_of_their_rule() {
    let mut rping = or_skip!(Rping::new(43));
    for (rules, said) in [
        ("reject CONSUMER", "RDMA_CM_EVENT_REJECTED, error 28"),
        ("reject 10 nth 1", "RDMA_CM_EVENT_REJECTED, error 10"),
        ("unreachable", "RDMA_CM_EVENT_UNREACHABLE, error -113"),
        ("loss cm REQ", "RDMA_CM_EVENT_UNREACHABLE, error -110"),
    ]
    .iter()
    .chain(ENDS)
    {
        let done = rping.client(rules, &[]);
        assert_eq!(done.output.matches(said).count(), 1, "{rules}: {done}");
        assert!(!done.output.contains("ESTABLISHED, error"), "{rules}: {done}");
    }
    // What is late, doubled, lost once or has less private data, connects all the same.
    for rules in [
        "delay 700ms cm REP in",
        "duplicate cm REQ; duplicate cm RTU",
        "duplicate cm REP in",
        "loss cm REQ nth 1; loss cm REP in nth 1",
        "cut 0",
    ] {
        let done = rping.client(rules, &[]);
        assert!(done.ok() && done.output.contains(" faults; "), "{rules}: {done}");
    }
    assert!(rping.server.still_runs());
    rping.server.kill();
}
