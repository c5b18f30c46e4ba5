//! Runs docs/using/LAB.md: its commands are typed into one shell in the order of the page, and must
//! print what the page shows below them.
//!
//! A block ```` ```sh ```` holds commands, which must end with code 0. A block ```` ```text ````
//! behind it shows their output: its lines in this order (` ```text unordered `: in any), with
//! other lines between them allowed; `…` stands for any text, and any blanks count as one.

use gdrcore_core::counters::Counters;
use gdrcore_tests::lab::Lab;
use gdrcore_tests::rdmacm::launcher;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{all_installed, run, scratch, verbs_compiler, Running};
use gdrcore_tests::{library, or_skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// One command block and what it shows.
#[derive(Debug, Default)]
struct Step {
    line: usize,
    commands: String,
    shown: Vec<Shown>,
}

#[derive(Debug)]
struct Shown {
    ordered: bool,
    lines: Vec<String>,
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/using/LAB.md")).expect("docs/using/LAB.md")
}

/// The command blocks of the page, in order.
fn steps(page: &str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut fence: Option<(String, usize, Vec<String>)> = None;
    for (n, line) in page.lines().enumerate() {
        match (&mut fence, line.strip_prefix("```")) {
            (None, Some(info)) => fence = Some((info.trim().to_string(), n + 1, Vec::new())),
            (None, None) => {}
            (Some((_, _, lines)), None) => lines.push(line.to_string()),
            (Some(_), Some(_)) => {
                let Some((info, line, lines)) = fence.take() else { continue };
                match info.as_str() {
                    "sh" => {
                        steps.push(Step { line, commands: lines.join("\n"), shown: Vec::new() })
                    }
                    "text" | "text unordered" => {
                        let step = steps
                            .last_mut()
                            .unwrap_or_else(|| panic!("line {line}: output before any command"));
                        step.shown.push(Shown { ordered: info == "text", lines });
                    }
                    "c" => {}
                    other => {
                        panic!("line {line}: a block of kind '{other}' is neither run nor compared")
                    }
                }
            }
        }
    }
    assert!(fence.is_none(), "a block does not end");
    steps
}

/// Whether `line` matches `pattern`, in which `…` stands for any text and any blanks count as one.
fn fits(pattern: &str, line: &str) -> bool {
    let one = |s: &str| s.split_whitespace().collect::<Vec<_>>().join(" ");
    let (pattern, line) = (one(pattern), one(line));
    let mut parts = pattern.split('…');
    let Some(mut rest) = line.strip_prefix(parts.next().unwrap_or("")) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// The first line that the page shows and that the output lacks.
fn missing<'a>(shown: &'a Shown, output: &str) -> Option<&'a str> {
    let mut left: Vec<&str> = output.lines().collect();
    for want in shown.lines.iter().filter(|l| !l.trim().is_empty()) {
        let Some(at) = left.iter().position(|have| fits(want, have)) else { return Some(want) };
        if shown.ordered {
            left.drain(..=at);
        } else {
            left.remove(at);
        }
    }
    None
}

#[test]
fn the_comparison_finds_missing_lines() {
    assert!(fits("a … b", "a  12   b") && fits("x=…", "x=") && fits("  plain ", "plain"));
    assert!(!fits("a … b", "a 12 c") && !fits("plain", "plain text") && !fits("…tail", "tails"));
    let shown =
        |ordered, lines: [&str; 2]| Shown { ordered, lines: lines.map(str::to_string).to_vec() };
    assert_eq!(missing(&shown(true, ["a", "b"]), "a\nx\nb\n"), None);
    assert_eq!(missing(&shown(true, ["b", "a"]), "a\nx\nb\n"), Some("a"));
    assert_eq!(missing(&shown(false, ["b", "a"]), "a\nx\nb\n"), None);
    assert_eq!(missing(&shown(false, ["a", "a"]), "a\nb\n"), Some("a"));
    let found = steps("```sh\none\n```\nwords\n```text\nout\n```\n```sh\ntwo\n```\n");
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].commands.as_str(), found[0].shown.len(), found[1].shown.len()),
        ("one", 1, 0)
    );
}

/// An error says what this machine lacks for the lab.
fn machine() -> Result<(), String> {
    all_installed(&["bash", "unshare", "ip", "tcpdump", "tshark"])?;
    verbs_compiler()?;
    // The command by which the page enters a network namespace.
    let enter = "[ $(id -u) = 0 ] && unshare -n ip link set lo \
                 up || unshare -cn --keep-caps ip link set lo up";
    let may = run(Command::new("bash").args(["-c", enter]), 20);
    may.ok()
        .then_some(())
        .ok_or_else(|| format!("no network namespace of one's own: {}", may.output.trim()))
}

#[test]
fn the_page_shows_the_output_of_its_commands() {
    or_skip!(machine());
    library::examples();
    let steps = steps(&page());
    assert!(steps.len() > 10, "the page has lost its commands");
    // The shell reads its commands from a pipe, byte by byte, so that a shell that a command starts
    // reads the following ones.
    let dir = scratch("lab");
    let mut typed = String::new();
    for (n, step) in steps.iter().enumerate() {
        let out = dir.join(format!("{n:02}"));
        // Both outputs go to one file; the commands are one list, so the exit code is that of the
        // last one.
        typed += &format!(
            "exec >{0:?} 2>&1\n{1}\necho $? >{2:?}\n",
            out,
            step.commands,
            out.with_extension("code")
        );
    }
    let script = dir.join("typed");
    std::fs::write(&script, typed).expect("a file");
    let mut shell = Command::new("bash");
    shell.args(["-c", "cat \"$0\" | timeout 280 bash"]).arg(&script).current_dir(root());
    let done = run(&mut shell, 300);
    let mut faults = Vec::new();
    for (n, step) in steps.iter().enumerate() {
        let read = |suffix: &str| {
            std::fs::read_to_string(dir.join(format!("{n:02}")).with_extension(suffix))
                .unwrap_or_default()
        };
        let (output, code) = (read(""), read("code"));
        let place = format!(
            "docs/using/LAB.md:{}: {}",
            step.line,
            step.commands.lines().next().unwrap_or("")
        );
        if code.trim() != "0" {
            faults.push(format!("{place}\n  ended with code '{}':\n{output}", code.trim()));
        }
        for shown in &step.shown {
            if let Some(line) = missing(shown, &output) {
                faults.push(format!(
                    "{place}\n  the page shows a line that is not printed: {line}\n{output}"
                ));
            }
        }
    }
    assert!(faults.is_empty(), "{}\n{done}", faults.join("\n"));
    assert!(done.ok(), "{done}");
}

#[test]
fn the_page_explains_every_counter() {
    let page = page();
    let rows: Vec<&str> = page
        .lines()
        .filter_map(|l| l.strip_prefix("| `"))
        .filter_map(|l| l.split('`').next())
        .collect();
    for name in Counters::NAMES {
        assert_eq!(rows.iter().filter(|r| *r == name).count(), 1, "{name}");
    }
}

fn exercises(file: &str) -> String {
    std::fs::read_to_string(root().join("c-examples/lab").join(file)).expect("an exercise file")
}

/// The offset of exercise `n`'s function.
fn begin(text: &str, n: usize) -> usize {
    text.find(&format!("\nint exercise_{n}_")).unwrap_or_else(|| panic!("no exercise {n}"))
}

/// The exercises as of a learner after the first `done`: the solution up to there, the skeleton
/// from there on.
fn learner(done: usize) -> String {
    let (skeleton, solution) = (exercises("skeleton.c"), exercises("solution.c"));
    format!(
        "{}{}",
        &solution[..begin(&solution, done + 1)],
        &skeleton[begin(&skeleton, done + 1)..]
    )
}

/// Builds the program with this text of the exercises.
fn build(dir: &Path, name: &str, text: &str) -> PathBuf {
    let (source, program, c) =
        (dir.join(format!("{name}.c")), dir.join(name), root().join("c-examples"));
    let built = library::examples().join("../obj");
    std::fs::write(&source, text).expect("a file");
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c11",
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-unused-function",
        "-o",
    ]);
    cc.arg(&program).arg(&source).arg(built.join("lab/lab.o"));
    for part in ["say", "sleep", "conn", "dev", "mem", "crc32c"] {
        cc.arg(built.join(format!("common/{part}.o")));
    }
    let lib = library::examples().join("../lib");
    cc.arg("-I")
        .arg(c.join("lab"))
        .arg("-I")
        .arg(root().join("include"))
        .arg("-L")
        .arg(&lib)
        .arg("-lgdrcore");
    cc.arg(format!("-Wl,-rpath,{}", lib.display()));
    let done = run(&mut cc, 120);
    assert!(done.ok(), "{name}: {done}");
    program
}

#[test]
fn the_program_names_the_next_exercise() {
    let lab = or_skip!(Lab::new(1));
    let (skeleton, solution) = (exercises("skeleton.c"), exercises("solution.c"));
    let names = |text: &str| {
        (1..=6)
            .map(|n| text[begin(text, n)..].split(')').next().map(str::to_string))
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&skeleton), names(&solution), "the same functions in both");
    assert!(!skeleton.contains("int exercise_7_"));
    let (dir, right) = (scratch("learner"), library::examples().join("lab/solution"));
    for done in 0..6 {
        let program = build(&dir, &format!("done{done}"), &learner(done));
        let next = format!("exercise {} is yours", done + 1);
        // The first two exercises fail before the client has met the server.
        let server =
            (done >= 2).then(|| Running::start(lab.command(0, &right).args(["-a", "127.0.0.1"])));
        let client = run(lab.command(0, &program).args(["-a", "127.0.0.2", "127.0.0.1"]), 60);
        assert!(client.code() == Some(1) && client.output.contains(&next), "{next}: {client}");
        if let Some(server) = server {
            let server = server.finish(Duration::from_secs(30));
            assert!(
                server.code() == Some(1) && server.output.contains("an exercise is not done yet"),
                "{server}"
            );
        }
    }
}

/// The lab for libibverbs on the drop-in, with itself and with the library's own program at the
/// other end.
#[test]
fn the_solution_for_libibverbs_runs_with_either_program() {
    or_skip!(verbs_compiler());
    let lab = or_skip!(Lab::new(1));
    let (bin, launcher) = (library::examples(), launcher());
    let side = |verbs: bool, address: &str, more: &[&str]| {
        let mut c = if verbs {
            let mut c = lab.command(0, &launcher);
            c.args(["--address", address]).arg(bin.join("lab/solution_verbs"));
            c
        } else {
            lab.command(0, &bin.join("lab/solution"))
        };
        c.args(["-a", address]).args(more);
        c
    };
    for (server, client) in [(true, true), (true, false), (false, true)] {
        let waiting = Running::start(&mut side(server, "127.0.0.1", &[]));
        let done =
            run(&mut side(client, "127.0.0.2", &["-t", "hello", "-i", "42", "127.0.0.1"]), 60);
        let waited = waiting.finish(Duration::from_secs(30));
        assert!(done.ok() && waited.ok(), "{server} {client}: {done:?} {waited:?}");
        assert!(done.output.contains("our READ: all 10000 bytes are right"), "{done:?}");
        assert!(
            waited.output.contains("the client's WRITE: all 10000 bytes are right"),
            "{waited:?}"
        );
        assert!(
            waited.output.contains("received 5 bytes, immediate 0x0000002a: hello"),
            "{waited:?}"
        );
    }
}

#[test]
fn the_application_reports_wrong_arguments() {
    let lab = or_skip!(Lab::new(1));
    let program = library::examples().join("lab/solution");
    let try_with = |arguments: &[&str]| run(lab.command(0, &program).args(arguments), 60);
    for (arguments, code, said) in [
        (&[][..], 2, "-a"),
        (&["-a", "127.0.0.1", "-s", "0"], 2, "--size"),
        (&["-a", "127.0.0.1", "-i", "4294967296"], 2, "--immediate"),
        (&["-a", "127.0.0.1", "127.0.0.2", "127.0.0.3"], 2, "at most one address"),
        (&["-a", "nobody.invalid"], 1, "'nobody.invalid'"),
        (&["-a", "192.0.2.77"], 1, "no interface of this machine has 192.0.2.77"),
        (&["-a", "127.0.0.1", "-w", "/nowhere/at.all"], 1, "cannot open device"),
    ] {
        let done = try_with(arguments);
        assert!(done.code() == Some(code) && done.output.contains(said), "{arguments:?}: {done:?}");
    }
    // Blocks of different sizes, of one packet, and of one byte more.
    for (server, client, good) in
        [("8192", "8191", false), ("4096", "4096", true), ("4097", "4097", true), ("1", "1", true)]
    {
        let waiting =
            Running::start(lab.command(0, &program).args(["-a", "127.0.0.1", "-s", server]));
        let done = try_with(&["-a", "127.0.0.2", "-s", client, "127.0.0.1"]);
        let waited = waiting.finish(Duration::from_secs(30));
        assert!(done.ok() == good && waited.ok() == good, "{server} {client}: {done:?} {waited:?}");
        assert!(
            good || done.output.contains("another size") || waited.output.contains("another size"),
            "{done:?} {waited:?}"
        );
    }
}
