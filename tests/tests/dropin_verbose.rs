//! The reasons of refused verbs, printed with GDRC_VERBOSE=1 or `gdrcore-run -v`, and not without.

use gdrcore_tests::dropin::command;
use gdrcore_tests::or_skip;
use gdrcore_tests::rdmacm::launcher;
use gdrcore_tests::tools::{loopback, run, verbs_program, Done};
use std::path::Path;
use std::process::Command;

/// Runs a program; an error: as [`verbs_program`].
fn done(
    name: &str,
    at: &str,
    run_it: impl FnOnce(&Path, &str) -> Done,
    place: u32,
) -> Result<Done, String> {
    let (program, _dir) = verbs_program(at, name, &[])?;
    Ok(run_it(&program, &loopback(place, 1)))
}

/// Compares each expected line with the line printed after it; returns their number.
fn compared(output: &str) -> usize {
    let mut lines = output.lines();
    let mut n = 0;
    while let Some(line) = lines.next() {
        let Some(wanted) = line.strip_prefix("want ") else { continue };
        let said = lines.next().unwrap_or_default();
        let said = said
            .strip_prefix("gdrcore: ")
            .unwrap_or_else(|| panic!("expected the reason '{wanted}', printed: '{said}'"));
        assert!(
            said == wanted || wanted.ends_with(' ') && said.starts_with(wanted),
            "wanted: {wanted}\nsaid:   {said}"
        );
        assert!(said.len() < 600, "{said}");
        n += 1;
    }
    n
}

#[test]
fn every_refused_verb_names_the_wrong_argument() {
    let verbose = |program: &Path, at: &str| run(command(program, at).env("GDRC_VERBOSE", "1"), 30);
    let done = or_skip!(done("refusals", "refusals", verbose, 171));
    assert!(done.ok(), "{done}");
    let n = compared(&done.output);
    assert!(done.output.contains(&format!("{n} refusals")) && n >= 40, "{n}: {done}");
    // No other reason is printed: only refusals have one.
    assert_eq!(done.output.matches("gdrcore: ").count(), n, "{done}");
}

#[test]
fn reasons_are_printed_only_on_request() {
    let quiet = |program: &Path, at: &str| run(&mut command(program, at), 30);
    let done = or_skip!(done("refusals", "refusals-quiet", quiet, 172));
    assert!(done.ok() && !done.output.contains("gdrcore:"), "{done}");
}

#[test]
fn gdrcore_run_prints_reasons_with_an_option() {
    let by_option = |program: &Path, at: &str| {
        let mut c = Command::new(launcher());
        c.env_remove("GDRC_VERBOSE").args(["-v", "--address", at]).arg(program);
        run(&mut c, 30)
    };
    let done = or_skip!(done("refusals", "refusals-run", by_option, 173));
    assert!(done.ok() && compared(&done.output) >= 40, "{done}");
}

#[test]
fn a_failed_request_is_explained_once_a_connection() {
    for (engines, place) in [("1", 188), ("2", 189)] {
        let run_it = |verbose: &'static str| {
            move |program: &Path, at: &str| {
                let mut c = command(program, at);
                run(c.env("GDRC_VERBOSE", verbose).env("GDRC_ENGINES", engines), 60)
            }
        };
        let verbose = or_skip!(done("failed", "failed", run_it("1"), place));
        assert!(verbose.ok() && verbose.output.contains("ok\n"), "{verbose}");
        assert_eq!(compared(&verbose.output), 4, "{verbose}");
        assert_eq!(verbose.output.matches("gdrcore: ").count(), 4, "{verbose}");
        let quiet = done("failed", "failed-quiet", run_it("0"), place).expect("as before");
        assert!(quiet.ok() && !quiet.output.contains("gdrcore:"), "{quiet}");
    }
}
