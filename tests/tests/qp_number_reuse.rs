//! C programs that create and destroy more queue pairs than there are QPNs: tests/c/numbers.c on
//! the C API, and tests/c/verbs_numbers.c, which uses libibverbs, on the drop-in.
//!
//! `GDRC_NUMBERS=COUNT` runs them with another count; docs/records/PROOF.md has the figures for
//! 100,000.

use gdrcore_tests::dropin::command;
use gdrcore_tests::tools::{compile, loopback, run, scratch, verbs_compiler};
use gdrcore_tests::{library, or_skip};
use std::process::Command;

/// More than the 16,384 numbers of a block.
fn count() -> u64 {
    std::env::var("GDRC_NUMBERS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

#[test]
fn the_c_api_never_runs_out_of_numbers() {
    let dir = scratch("numbers");
    let program = library::program("numbers", &dir);
    let (near, far) = (format!("soft:{}", loopback(83, 1)), format!("soft:{}", loopback(83, 3)));
    // Within one device a pair takes two of its numbers, between two devices one of each.
    let made = count();
    for (device, pairs, peer) in
        [("loopback", made / 2, None), (&near, made / 2, None), (&near, made, Some(far))]
    {
        let mut c = Command::new(&program);
        c.arg(device).arg(made.to_string()).arg(pairs.to_string()).args(&peer);
        let done = run(&mut c, 600);
        println!("{device} {peer:?}: {}", done.output.trim());
        assert!(
            done.ok() && done.output.contains(&format!("ok: {made} queue pairs")),
            "{device}: {done}"
        );
    }
}

#[test]
fn a_program_of_libibverbs_never_runs_out_of_numbers() {
    let dir = scratch("verbs-numbers");
    or_skip!(verbs_compiler());
    let program = compile("cc", "verbs_numbers", &dir, &["-libverbs"]);
    let (made, pairs) = (count(), count() / 2);
    let done =
        run(command(&program, &loopback(83, 2)).args([made, pairs].map(|n| n.to_string())), 600);
    println!("{}", done.output.trim());
    assert!(done.ok() && done.output.contains(&format!("ok: {made} queue pairs")), "{done}");
}
