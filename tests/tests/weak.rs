//! `gdrcore-run --weak` (docs/using/WEAK.md): each program of tests/c/weak that depends on what
//! RDMA does not promise works without the option and fails with it, at its wrong line; a right
//! program runs with it, and a seed repeats it. Other right programs: `right_programs.rs`.

use gdrcore_core::verbs::types::qp_type;
use gdrcore_net::inject::FaultSpec;
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::ends::{connected, Shape};
use gdrcore_tests::launched::{programs_of, Place};
use gdrcore_tests::skip;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{loopback, run};
use gdrcore_tests::traffic::every_operation;
use std::path::PathBuf;

const WRONG: &[&str] = &[
    "early_answer",
    "early_message",
    "event_new",
    "freed_region",
    "handle_index",
    "last_byte",
    "never_ready",
    "one_poll",
    "one_session",
    "read_first",
    "srq_order",
    "ud_order",
];
const RIGHT: &str = "right";
const SEEDS: [&str; 3] = ["1", "2", "3"];

fn source(name: &str) -> PathBuf {
    root().join(format!("tests/c/weak/{name}.c"))
}

#[test]
fn each_program_of_the_folder_is_in_the_table() {
    let mut names = programs_of("weak");
    names.retain(|n| n != RIGHT);
    assert_eq!(names, WRONG);
}

#[test]
fn wrong_programs_fail_on_the_weak_device_alone_at_their_lines() {
    let Some(w) = Place::new("weak-wrong", loopback(226, 1)) else {
        skip!("no cc or libibverbs headers")
    };
    for name in WRONG {
        let program = w.compile(&format!("weak/{name}"), &[]);
        let plain = w.run(&[], &program);
        assert!(plain.ok() && plain.output == "ok\n", "{name}: {}", plain.output);
        let text = std::fs::read_to_string(source(name)).expect("the program");
        let wrong = text.lines().zip(1..).filter(|(line, _)| line.contains("/* WRONG */"));
        let places: Vec<String> = wrong.map(|(_, n)| format!("{name}.c:{n}:")).collect();
        assert!(!places.is_empty(), "{name}");
        for seed in SEEDS {
            let done = w.run(&["--weak", "--seed", seed], &program);
            let at = places.iter().any(|place| done.output.contains(place));
            assert!(done.code() == Some(1) && at, "{name}, {seed}: {}", done.output);
            // It is told of packets, of polls, and of keys where there are none.
            let again = format!("gdrcore-run --fault 'weak' --seed {seed} -- PROGRAM");
            assert!(done.output.contains(&again), "{name}: {}", done.output);
        }
    }
}

/// Nobody can rely on a number, and a run with it can be repeated.
#[test]
fn keys_handles_and_numbers_follow_from_the_seed_and_differ_between_programs() {
    let Some(w) = Place::new("weak-keys", loopback(226, 5)) else {
        skip!("no cc or libibverbs headers")
    };
    let program = w.compile(&format!("weak/{RIGHT}"), &[]);
    // Handle, key and QPNs of each device of a run.
    let numbers = |options: &[&str], word: &str, rank: &str| -> [Vec<String>; 4] {
        let mut c = w.command(options, &program);
        let done = run(c.arg(word).env("OMPI_COMM_WORLD_RANK", rank), 60);
        assert!(done.ok(), "{}", done.output);
        [word, "again", "first", "second"].map(|of| {
            let line =
                done.output.lines().find_map(|line| line.strip_prefix(of)?.strip_prefix(':'));
            let line = line.unwrap_or_else(|| panic!("{of}: {}", done.output));
            line.split_whitespace().map(str::to_string).collect()
        })
    };
    let weak = |seed| ["--weak", "--seed", seed];
    let one = numbers(&weak("1"), "client", "0");
    assert_eq!(one, numbers(&weak("1"), "client", "0"));
    let others = [("2", "client", "0"), ("1", "server", "0"), ("1", "client", "1")];
    let others = others.map(|(seed, word, rank)| numbers(&weak(seed), word, rank));
    for other in &others {
        assert_ne!(one[0][0], other[0][0], "the first handle: {one:?} {other:?}");
    }
    // Devices of a process have handles of one order, and keys of their own.
    let devices: Vec<&[String]> =
        one.iter().chain(others.iter().flatten()).map(|d| &d[1..]).collect();
    for (i, a) in devices.iter().enumerate() {
        for b in &devices[..i] {
            assert!(a.iter().zip(*b).all(|(a, b)| a != b), "{a:?} {b:?}");
        }
    }
    let plain = [(); 2].map(|()| numbers(&[], "client", "0"));
    assert_eq!((plain[0][0][0].as_str(), plain[1][0][0].as_str()), ("0", "0"));
    assert_ne!(plain[0][0][1..], plain[1][0][1..], "drawn anew");
}

/// A seed that was drawn is said, also where neither a packet nor a call has a fault.
#[test]
fn keys_and_short_polls_say_how_they_repeat() {
    let Some(w) = Place::new("weak-told", loopback(226, 6)) else {
        skip!("no cc or libibverbs headers")
    };
    for (rules, program) in [("keys", "handle_index"), ("few", "one_poll"), ("few", "one_session")]
    {
        let program = w.compile(&format!("weak/{program}"), &[]);
        let done = w.run(&["--fault", rules], &program);
        let again = format!("gdrcore-run --fault '{rules}' --seed ");
        assert!(done.output.contains(&again), "{rules}: {}", done.output);
    }
}

#[test]
fn a_right_program_runs_and_a_seed_repeats_its_log() {
    let Some(w) = Place::new("weak-right", loopback(226, 2)) else {
        skip!("no cc or libibverbs headers")
    };
    let program = w.compile(&format!("weak/{RIGHT}"), &[]);
    let mut logs = Vec::new();
    for (k, seed) in ["1", "1", "2", "3"].iter().enumerate() {
        let log = format!("log-{k}");
        let done = w.run(&["--weak", "--seed", seed, "--fault-log", &log], &program);
        assert!(done.ok() && done.output.starts_with("ok\n"), "{seed}: {}", done.output);
        let text = std::fs::read_to_string(w.dir.join(log)).expect("the log");
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        lines.sort();
        for rule in ["scatter in qp", "lag in qp"] {
            assert!(lines.iter().any(|line| line.starts_with(rule)), "{rule}: {lines:?}");
        }
        logs.push(lines);
    }
    assert_eq!(logs[0], logs[1]);
    assert_ne!(logs[1], logs[2]);
}

/// By the C API's way to faults: within a device, and between two of which one is weak.
#[test]
fn every_operation_gets_through() {
    for seed in 1..4 {
        let spec = FaultSpec { rules: "weak", seed, launched: None };
        let path = PathChoice::Udp;
        let config = SoftConfig { faults: Some(&spec), path, ..SoftConfig::default() };
        let plain = SoftConfig { path, ..SoftConfig::default() };
        let open = |last, config: &SoftConfig<'_>| Soft::open(&address(last), config);
        let (weak, plain) =
            (open(1, &config).expect("a device"), open(2, &plain).expect("another"));
        let shape = Shape { qp_type: qp_type::RC, ..Shape::default() };
        for (a, b) in [(&weak, &weak), (&weak, &plain), (&plain, &weak)] {
            let (mut a, mut b) = connected(a.dev(), b.dev(), shape).expect("two ends");
            every_operation(&mut a, &mut b, 40_000);
        }
    }
}
