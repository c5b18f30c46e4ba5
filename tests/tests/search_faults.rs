//! `gdrcore-run --search-faults`: finds the faults with which prepared programs fail, and takes
//! away what they do not need.

use gdrcore_tests::launched::Program;
use gdrcore_tests::or_skip;
use gdrcore_tests::patience;
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::tools::{loopback, run, scratch, Done};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

fn program(test: &str, place: u32) -> Result<Program, String> {
    Program::new("search", test, loopback(103, place))
}

fn run_long(p: &Program, options: &[&str], words: &[&str]) -> Done {
    run(&mut p.command(options, words), 300)
}

/// The sets of faults that a search prints: how the program ends, and the rules.
fn search(p: &Program, options: &[&str], words: &[&str]) -> Vec<(String, String)> {
    let all: Vec<&str> = options.iter().copied().chain(["--fine", "0,2"]).collect();
    let done = run_long(p, &all, words);
    let sets: Vec<(String, String)> = done
        .output
        .lines()
        .filter_map(|line| {
            let (end, rest) = line.strip_prefix("gdrcore-run: ")?.split_once(": gdrcore-run ")?;
            let (_, rest) = rest.split_once("--fault '")?;
            Some((end.to_string(), rest.split_once("' --seed ")?.0.to_string()))
        })
        .collect();
    let code = if sets.is_empty() { 0 } else { 1 };
    assert_eq!(done.code(), Some(code), "{done}");
    assert!(done.output.contains(&format!("{} sets of faults", sets.len())), "{done}");
    sets
}

fn pair(end: &str, rules: &str) -> (String, String) {
    (end.to_string(), rules.to_string())
}

#[test]
fn a_call_whose_failure_is_not_checked_is_found() {
    let p = or_skip!(program("search-call", 20));
    assert_eq!(search(&p, &["--search-faults", "0"], &["right"]), []);
    let rule = "call ibv_reg_mr nth 2 errno ENOMEM";
    let found = search(&p, &["--search-faults", "0"], &["unchecked"]);
    assert_eq!(found, [pair("signal 11", rule)]);
    // The line repeats it, with the options of the launcher before the faults.
    let done = run_long(&p, &["--fault", rule, "--seed", "1"], &["unchecked"]);
    let signal = done.status.expect("it ended").signal();
    assert_eq!(signal, Some(libc::SIGSEGV), "{done}");
}

#[test]
fn the_one_fault_that_each_program_cannot_take_is_found() {
    let p = or_skip!(program("search-each", 27));
    for (program, end, rule) in [
        ("device", "signal 11", "call ibv_open_device nth 1 errno ENOMEM"),
        ("domain", "signal 11", "call ibv_alloc_pd nth 1 errno ENOMEM"),
        ("queue", "signal 11", "call ibv_create_cq nth 1 errno ENOMEM"),
        ("gid", "exit status 3", "call ibv_query_gid nth 1 errno EIO"),
    ] {
        let found = search(&p, &["--search-faults", "0"], &[program]);
        assert_eq!(found, [pair(end, rule)], "{program}");
    }
    // Of a rule of several faults the one remains that is needed, of several rules that one.
    for (program, end, rules, rule) in [
        (
            "status",
            "exit status 3",
            "completion REM_OP_ERR every 6; duplicate rate 20%",
            "completion REM_OP_ERR qp 1 nth 6",
        ),
        (
            "event",
            "exit status 3",
            "event COMM_EST after 2; duplicate rate 20%",
            "event COMM_EST after 2",
        ),
        (
            "limit",
            "signal 11",
            "limit max_qp = 1; limit max_pd = 9; rnr every 2",
            "limit max_qp = 1",
        ),
    ] {
        let found = search(&p, &["--search-faults", "1", "--fault", rules], &[program]);
        assert_eq!(found.last(), Some(&pair(end, rule)), "{program}: {found:?}");
    }
}

/// The logs of so many runs, their lines in order.
fn logs(p: &Program, runs: usize, rules: &str, words: &[&str]) -> Vec<Vec<String>> {
    let log = p.dir.join(words[0]);
    let of_run = |_| {
        let options = ["--fault", rules, "--seed", "7", "--fault-log", words[0]];
        let done = run_long(p, &options, words);
        assert!(done.code().is_some(), "{done}");
        let text = std::fs::read_to_string(&log).expect("faults");
        std::fs::remove_file(&log).expect("removed");
        let mut lines: Vec<String> = text.lines().map(str::to_string).collect();
        lines.sort_unstable();
        lines
    };
    (0..runs).map(of_run).collect()
}

/// Each of the three keeps the others busy.
#[test]
fn a_hundred_runs_of_three_programs_have_the_same_faults() {
    let p = or_skip!(program("search-same", 28));
    let p = &p;
    std::thread::scope(|s| {
        for (rules, word) in [
            ("loss message rate 40% type UC; duplicate rate 20%", "lost"),
            ("completion GENERAL_ERR every 5; duplicate rate 50%; delay 50us rate 50%", "status"),
            ("rnr rate 50%; ecn rate 50%; event PATH_MIG after 3", "right"),
        ] {
            s.spawn(move || {
                let all = logs(p, 100, rules, &[word]);
                assert!(all[0].len() > 2, "{word}: {:?}", all[0]);
                assert!(all.iter().all(|one| *one == all[0]), "{word}");
            });
        }
    });
}

#[test]
fn a_program_that_waits_for_ever_is_found() {
    let p = or_skip!(program("search-hang", 21));
    let timeout = (10 * patience::factor()).to_string();
    let found = search(&p, &["--search-faults", "0", "--timeout", &timeout], &["hang"]);
    // A run that the machine does not let end in time is another one.
    let it = pair("no end in time", "call ibv_post_send nth 3 errno ENOMEM");
    assert!(found.contains(&it), "{found:?}");
}

#[test]
fn the_faults_of_a_seed_are_reduced_to_those_that_are_needed() {
    let p = or_skip!(program("search-lost", 22));
    let rules = "loss message rate 40% type UC; loss type RC rate 1%";
    let found = search(&p, &["--search-faults", "12", "--fault", rules], &["lost"]);
    let rules = "loss message type UC qp 1 nth 7; loss message type UC qp 1 nth 12";
    assert_eq!(found, [pair("exit status 3", rules)]);
}

#[test]
fn no_process_of_a_run_is_left() {
    let p = or_skip!(program("search-left", 23));
    assert_eq!(search(&p, &["--search-faults", "2"], &["left", "file"]), []);
    if let Ok(file) = File::open(p.dir.join("file")) {
        gdrcore_tests::patience::wait_for(60, "a process holds the file", || {
            file.try_lock().is_ok()
        });
    }
}

#[test]
fn a_signal_ends_the_program_and_leaves_no_files() {
    let dir = scratch("search-signal");
    let (own, script) = (loopback(103, 25), "echo $$ > new; mv new pid; exec sleep 600");
    let mut c = command(Some(&own), &["--search-faults", "3", "--timeout", "600"], "sh");
    let files = dir.join("files");
    std::fs::create_dir(&files).expect("a folder");
    c.args(["-c", script]).current_dir(&*dir).env("TMPDIR", &files);
    let mut launcher = c.stderr(Stdio::null()).spawn().expect("the launcher");
    let pid = dir.join("pid");
    patience::wait_for(60, "the program does not run", || pid.exists());
    let pid = std::fs::read_to_string(pid).expect("a number");
    // SAFETY: our own child, which has not been waited for.
    assert_eq!(unsafe { libc::kill(launcher.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(launcher.wait().expect("a child").signal(), Some(libc::SIGTERM));
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "the program runs");
    assert_eq!(std::fs::read_dir(files).expect("a folder").count(), 0);
}

#[test]
fn a_failure_without_faults_is_none_of_faults() {
    let dir = scratch("search-turns");
    let own = loopback(103, 26);
    // The first run, which counts, is a good one.
    let script = "test -e been && exit 3; touch been";
    let options = ["--search-faults", "2", "--stats", "--path", "udp", "--fault", "loss"];
    let mut c = command(Some(&own), &options, "sh");
    let done = run(c.args(["-c", script]).current_dir(&*dir), 60);
    assert_eq!(done.code(), Some(1), "{done}");
    let again = format!("gdrcore-run --address {own} --stats --path udp -- sh -c '{script}'");
    let line = format!("gdrcore-run: exit status 3: {again}");
    assert!(done.output.lines().any(|l| l == line), "{done}");
    assert!(done.output.contains("3 runs, 1 sets"), "{done}");
}

#[test]
fn a_program_that_fails_without_faults_is_refused() {
    let own = loopback(103, 24);
    let done = run(&mut command(Some(&own), &["--search-faults", "3"], "false"), 60);
    assert_eq!(done.code(), Some(125), "{done}");
    assert!(done.output.contains("without faults the program has exit status 1"), "{done}");
    let done = run(&mut command(Some(&own), &["--search-faults", "3"], "/nonexistent/x"), 60);
    assert_eq!(done.code(), Some(125), "{done}");
}
