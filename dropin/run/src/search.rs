//! `--search-faults`: runs a program with many sets of faults, and shrinks those with which it
//! fails.

use crate::arguments::{Arguments, Search};
use crate::processes::{end_children, Children};
use crate::shrink::{counts, rules_of, smallest, Try};
use crate::stop;
use gdrcore_calls::options::{CALL_COUNTS, FAULTS, FAULT_LOG, SEED};
use gdrcore_calls::{may_fail, Outcome, CALLS};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The rules of the seeds, unless the command line has some.
const RULES: &str = "loss rate 1%; duplicate rate 1%; reorder 3 rate 1%; delay 1ms rate 1%; \
                     corrupt rate 1%; rnr rate 1%";
/// Calls of one name that fail one after the other; of more, as many are chosen.
const CALLS_MAX: u64 = 64;
/// Seeds whose faults are shrunk; others are only named.
const SHRUNK_MAX: usize = 8;
/// How often a program that runs is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Good,
    Status(i32),
    Signal(i32),
    Late,
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Good => f.write_str("a good end"),
            End::Status(code) => write!(f, "exit status {code}"),
            End::Signal(signal) => write!(f, "signal {signal}"),
            End::Late => f.write_str("no end in time"),
        }
    }
}

/// What runs the program.
struct Runner<'a> {
    search: &'a Search,
    /// The program, without faults.
    program: &'a dyn Fn() -> Command,
    /// The files of a run.
    folder: PathBuf,
    /// Processes that the launcher had begun with.
    before: Children,
    runs: u64,
}

impl Runner<'_> {
    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// Runs the program to its end, or for as long as it may take; then no process of it is left.
    fn run(&mut self, set: impl FnOnce(&mut Command)) -> Result<End, String> {
        self.runs += 1;
        let mut c = (self.program)();
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        set(&mut c);
        let named = c.get_program().to_string_lossy().into_owned();
        let mut child = c.spawn().map_err(|e| format!("{named}: {e}"))?;
        let end = Instant::now() + self.search.timeout;
        let status = loop {
            match child.try_wait().map_err(|e| format!("{named}: {e}"))? {
                Some(status) => break Some(status),
                None if Instant::now() > end || stop::signal().is_some() => break None,
                None => std::thread::sleep(LOOK),
            }
        };
        if status.is_none() {
            let _ = child.kill();
            let _ = child.wait();
        }
        // What the program has left running.
        end_children(&self.before);
        if let Some(signal) = stop::signal() {
            return Err(format!("signal {signal} has ended the search"));
        }
        Ok(status.map_or(End::Late, |status| self.judge(status)))
    }

    fn judge(&self, status: ExitStatus) -> End {
        match (status.code(), status.signal()) {
            (Some(code), _) if self.search.fine.contains(&code) => End::Good,
            (Some(code), _) => End::Status(code),
            (None, signal) => End::Signal(signal.unwrap_or(0)),
        }
    }

    /// Runs the program with faults: its end, and the lines of its log.
    fn run_with(&mut self, rules: &[String], seed: u64) -> Result<(End, Vec<String>), String> {
        let log = self.log();
        let _ = fs::remove_file(&log);
        let end = self.run(|c| {
            c.env(FAULTS.variable, rules.join("\n")).env(SEED.variable, seed.to_string());
            c.env(FAULT_LOG.variable, &log);
        })?;
        let text = fs::read_to_string(&log).unwrap_or_default();
        Ok((end, text.lines().map(str::to_string).collect()))
    }

    /// Runs the program without faults, and counts its calls by name.
    fn plain(&mut self) -> Result<BTreeMap<&'static str, u64>, String> {
        let counts = self.folder.join("calls");
        let words = |e: std::io::Error| format!("{}: {e}", counts.display());
        let file = File::create(&counts).map_err(words)?;
        file.set_len(8 * CALLS.len() as u64).map_err(words)?;
        let end = self.run(|c| _ = c.env(CALL_COUNTS.variable, &counts))?;
        if end != End::Good {
            return Err(format!("without faults the program has {end}"));
        }
        let bytes = fs::read(&counts).map_err(words)?;
        let count = |chunk: &[u8]| chunk.try_into().map_or(0, u64::from_ne_bytes);
        let named = CALLS.iter().zip(bytes.chunks(8).map(count));
        let named = named.map(|(call, n)| (call.name.trim_start_matches('_'), n));
        Ok(named.filter(|(name, n)| *n > 0 && may_fail(name).is_ok()).collect())
    }
}

/// A run that has to fail as another one.
struct Again<'a, 'b> {
    runner: &'a mut Runner<'b>,
    seed: u64,
    end: End,
}

impl Try for Again<'_, '_> {
    fn fails(&mut self, rules: &[String]) -> Result<Option<Vec<String>>, String> {
        let (end, log) = self.runner.run_with(rules, self.seed)?;
        Ok((end == self.end).then_some(log))
    }
}

/// The errno with which a call fails where any will do.
fn errno_of(name: &str) -> &'static str {
    let made = CALLS.iter().any(|c| c.name == name && matches!(c.outcome, Outcome::New(_)));
    if made || name.starts_with("ibv_post_") || name == "ibv_wr_complete" {
        "ENOMEM"
    } else {
        "EIO"
    }
}

/// The calls of a name that fail, of `count`: all of them, or the first half and some to the last.
fn chosen(count: u64) -> Vec<u64> {
    if count <= CALLS_MAX {
        return (1..=count).collect();
    }
    let half = CALLS_MAX / 2;
    let rest = (1..=half).map(|k| half + (count - half) * k / half);
    (1..=half).chain(rest).collect()
}

/// A set of faults with which the program fails, and how. Without any: it has failed in a run that
/// had none.
struct Found {
    end: End,
    rules: Vec<String>,
    seed: u64,
}

/// Each call fails once, in a run of its own.
fn single_calls(
    runner: &mut Runner<'_>,
    calls: &BTreeMap<&'static str, u64>,
    tell: &mut dyn FnMut(Found),
) -> Result<(), String> {
    for (name, count) in calls {
        for n in chosen(*count) {
            let rule = format!("call {name} nth {n} errno {}", errno_of(name));
            let (end, log) = runner.run_with(std::slice::from_ref(&rule), 1)?;
            if log.is_empty() && end == End::Good {
                // No process makes so many of them.
                break;
            }
            if log.is_empty() {
                tell(Found { end, rules: Vec::new(), seed: 1 });
            } else if end != End::Good {
                tell(Found { end, rules: vec![rule], seed: 1 });
            }
        }
    }
    Ok(())
}

/// The faults of each seed.
fn seeds(
    runner: &mut Runner<'_>,
    rules: &[String],
    first: u64,
    tell: &mut dyn FnMut(Found),
) -> Result<(), String> {
    let mut shrunk = 0;
    for seed in (first..=u64::MAX).take(runner.search.seeds as usize) {
        let (end, log) = runner.run_with(rules, seed)?;
        if end == End::Good {
            continue;
        }
        let mut found = rules.to_vec();
        if log.is_empty() && rules.iter().all(|rule| counts(rule)) {
            found.clear();
        } else if shrunk < SHRUNK_MAX {
            shrunk += 1;
            found = smallest(rules, log, &mut Again { runner, seed, end })?;
        }
        tell(Found { end, rules: found, seed });
    }
    Ok(())
}

/// The words of a command line, each as a shell reads it.
fn shell_words<'a>(words: impl Iterator<Item = &'a OsString>) -> String {
    let quoted = words.map(|word| {
        let word = word.to_string_lossy();
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&b);
        match !word.is_empty() && word.bytes().all(plain) {
            true => word.into_owned(),
            false => format!("'{}'", word.replace('\'', r"'\''")),
        }
    });
    quoted.collect::<Vec<_>>().join(" ")
}

/// Searches. `program` is the program with the environment of its drop-in.
///
/// # Errors
/// In words: the program cannot be run, or fails without faults.
pub fn run(
    a: &Arguments,
    search: &Search,
    program: &dyn Fn() -> Command,
) -> Result<ExitCode, String> {
    let given = |variable| a.environment.iter().rfind(|(name, _)| *name == variable);
    let text = given(FAULTS.variable).map(|(_, rules)| rules.to_string_lossy().into_owned());
    let rules = rules_of(text.as_deref().unwrap_or(RULES));
    let seed = given(SEED.variable).and_then(|(_, seed)| seed.to_str()?.parse().ok());
    stop::catch_signals();
    let folder = make_folder()?;
    let before = Children::adopt();
    // The rules of the command line are those of the seeds; counting has none.
    let plain = || {
        let mut c = program();
        c.env_remove(FAULTS.variable).env_remove(SEED.variable).env_remove(FAULT_LOG.variable);
        c
    };
    let runner = Runner { search, program: &plain, folder: folder.clone(), before, runs: 0 };
    let done = search_within(runner, a, &rules, seed.unwrap_or(1));
    let _ = fs::remove_dir_all(&folder);
    stop::end_by_signal();
    done
}

/// A folder of this search. One of an earlier process with the same number, which was killed, may
/// be there.
fn make_folder() -> Result<PathBuf, String> {
    let mut k = 0;
    loop {
        let name = format!("gdrcore-search-{}-{k}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(e) if e.kind() == ErrorKind::AlreadyExists && k < 1000 => k += 1,
            Err(e) => return Err(format!("{}: {e}", folder.display())),
        }
    }
}

fn search_within(
    mut runner: Runner<'_>,
    a: &Arguments,
    rules: &[String],
    seed: u64,
) -> Result<ExitCode, String> {
    let options = shell_words(a.options.iter());
    let launcher = format!("gdrcore-run {options}").trim_end().to_string();
    let words = shell_words(std::iter::once(&a.program).chain(&a.rest));
    let mut sets = BTreeMap::new();
    let mut tell = |found: Found| {
        let rules = found.rules.join("; ");
        if sets.insert(rules.clone(), ()).is_none() {
            let (end, seed) = (found.end, found.seed);
            let faults = match rules.is_empty() {
                true => String::new(),
                false => format!(" --fault '{rules}' --seed {seed}"),
            };
            eprintln!("gdrcore-run: {end}: {launcher}{faults} -- {words}");
        }
    };
    let calls = runner.plain()?;
    single_calls(&mut runner, &calls, &mut tell)?;
    seeds(&mut runner, rules, seed, &mut tell)?;
    let (n, runs) = (sets.len(), runner.runs);
    eprintln!("gdrcore-run: {runs} runs, {n} sets of faults with which the program fails");
    Ok(if n == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_chosen_from_the_first_to_the_last() {
        assert_eq!(chosen(3), [1, 2, 3]);
        let many = chosen(1_000_000);
        assert_eq!(many.len() as u64, CALLS_MAX);
        assert!(many.windows(2).all(|w| w[0] < w[1]), "{many:?}");
        assert_eq!((many[0], many[31], many[63]), (1, 32, 1_000_000));
        assert_eq!(chosen(65).last(), Some(&65));
    }

    #[test]
    fn words_are_those_of_a_shell() {
        let words = ["./a b", "-x", "it's", "", "y=1"].map(OsString::from);
        assert_eq!(shell_words(words.iter()), r"'./a b' -x 'it'\''s' '' y=1");
    }
}
