//! What verbs programs may rely on, as on a NIC: small C programs of libibverbs and librdmacm, one
//! for each kind of thing, on the drop-in.

use gdrcore_tests::dropin::command;
use gdrcore_tests::or_skip;
use gdrcore_tests::rdmacm::Pair;
use gdrcore_tests::tools::{loopback, run, verbs_program, Scratch};
use std::path::{Path, PathBuf};

/// A program of `tests/c`.
fn compiled(name: &str) -> Result<(PathBuf, Scratch), String> {
    verbs_program(&format!("nic-{name}"), name, &["-lrdmacm"])
}

/// Runs a program once with each value of a variable; it has to print "ok".
#[track_caller]
fn says_ok(program: &Path, n: u32, name: &str, values: &[&str]) {
    for value in values {
        let done = run(command(program, &loopback(n, 1)).env(name, value), 60);
        assert!(done.ok() && done.output.ends_with("ok\n"), "{name}={value}: {done}");
    }
}

#[test]
fn handles_are_the_lowest_free_numbers_of_the_process() {
    let (program, _dir) = or_skip!(compiled("handles"));
    says_ok(&program, 160, "GDRC_ENGINES", &["1", "2", "4"]);
}

#[test]
fn events_of_a_channel_come_in_the_order_of_arrival() {
    let (program, dir) = or_skip!(compiled("cm_order"));
    let (server, client) =
        (format!("{} s {{S}}", program.display()), format!("{} c {{S}}", program.display()));
    for options in [&[][..], &["--path", "udp"], &["--engines", "2"]] {
        let pair = Pair { options, ..Pair::new(&server, &client) };
        let done = pair.run(161, &dir).expect("the program is there");
        for side in done {
            assert!(side.ok() && side.output.contains("ok\n"), "{options:?}: {side}");
        }
    }
}

#[test]
fn windows_take_the_low_byte_of_the_programs_key() {
    let (program, _dir) = or_skip!(compiled("windows"));
    says_ok(&program, 162, "GDRC_ENGINES", &["1", "2"]);
}

#[test]
fn an_srq_may_be_of_another_protection_domain() {
    let (program, _dir) = or_skip!(compiled("srq_domains"));
    says_ok(&program, 163, "GDRC_ENGINES", &["1", "2"]);
}

#[test]
fn atomics_write_8_bytes_of_a_longer_list() {
    let (program, _dir) = or_skip!(compiled("atomics"));
    says_ok(&program, 164, "GDRC_ENGINES", &["1", "2"]);
}

#[test]
fn without_an_ack_timeout_a_peer_that_has_ended_is_not_waited_for() {
    let (program, _dir) = or_skip!(compiled("forever"));
    for path in ["shm", "udp"] {
        let [own, other] = [1, 2].map(|last| loopback(165, last));
        let mut c = command(&program, &own);
        let done = run(c.args([&own, &other]).env("GDRC_PATH", path), 60);
        assert!(done.ok() && done.output.ends_with("ok\n"), "{path}: {done}");
    }
}

#[test]
fn what_the_man_pages_call_ignored_is_ignored() {
    let (program, _dir) = or_skip!(compiled("ignored"));
    says_ok(&program, 166, "GDRC_ENGINES", &["1", "2"]);
}

#[test]
fn a_server_has_a_million_regions_and_as_many_objects_as_it_needs() {
    let (program, _dir) = or_skip!(compiled("many"));
    let mut c = command(&program, &loopback(167, 1));
    c.envs([("GDRC_ENGINES", "1"), ("GDRC_QPS", "32768")]);
    let done = run(&mut c, 120);
    assert!(done.ok() && done.output.ends_with("ok\n"), "{done}");
}

#[test]
fn packets_have_the_class_of_their_address_handle_or_connection() {
    let (program, dir) = or_skip!(compiled("traffic_class"));
    let [server, client] = ["s", "c"].map(|side| format!("{} {side} {{S}}", program.display()));
    for options in [&[][..], &["--path", "udp"], &["--engines", "2"]] {
        let pair = Pair { options, ..Pair::new(&server, &client) };
        for side in pair.run(168, &dir).expect("the program is there") {
            assert!(side.ok() && side.output.contains("ok\n"), "{options:?}: {side}");
        }
    }
}
