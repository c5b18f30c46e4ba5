//! `gdrcore doctor`: what keeps RDMA from working here. Each check is a function that returns what
//! it found; docs/using/DOCTOR.md has the table.

mod calls;
mod machine;
mod net;
mod nics;
mod peer;
mod program;
mod soft;

use lexopt::prelude::*;
use serde_json::json;
use std::ffi::OsString;
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The text of `--help`.
pub const HELP: &str = "\
usage: gdrcore doctor [--json] [--root FOLDER] [ADDRESS] [-- PROGRAM]
       gdrcore doctor --listen [ADDRESS]
Says what keeps RDMA from working on this machine: what was seen, whether it matters, what to do.

  ADDRESS        look at the way to this peer as well: its firewall and this one's, the
                 packets that fit; in both directions where the peer runs --listen
  -- PROGRAM     say which libibverbs this program would load by gdrcore-run
  --listen       be the peer of others' doctors, at ADDRESS or at all of this machine's,
                 until a signal comes; UDP and TCP port 4791
  --json         one JSON object instead of lines
  --root FOLDER  read the files of /proc, /sys, /dev and /run below FOLDER
  -h, --help

The exit code is 0 if nothing is wrong, 1 with warnings, 2 if something will not work, or the
command line is wrong.
";

/// The options.
#[derive(Debug, Default, PartialEq)]
pub struct Options {
    peer: Option<IpAddr>,
    program: Option<OsString>,
    json: bool,
    listen: bool,
    root: Option<PathBuf>,
}

/// An IP address, which may stand in brackets.
fn address(text: &str) -> Option<IpAddr> {
    text.trim_start_matches('[').trim_end_matches(']').parse().ok()
}

/// Parses the words behind `doctor`; `None`: help is wanted.
///
/// # Errors
/// The fault in words.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Option<Options>, lexopt::Error> {
    let mut words = lexopt::Parser::from_args(words);
    let mut o = Options::default();
    loop {
        // What is behind `--` is the program; its own arguments may follow.
        if let Some(mut raw) = words.try_raw_args() {
            if raw.peek().is_some_and(|w| w == "--") {
                raw.next();
                o.program = Some(raw.next().ok_or("which program?")?);
                raw.for_each(drop);
                break;
            }
        }
        match words.next()? {
            Some(Long("json")) => o.json = true,
            Some(Long("listen")) => o.listen = true,
            Some(Long("root")) => o.root = Some(words.value()?.into()),
            Some(Short('h') | Long("help")) => return Ok(None),
            Some(Value(text)) if o.peer.is_none() => {
                let text = text.string()?;
                o.peer = Some(address(&text).ok_or(format!("'{text}' is no IP address"))?);
            }
            Some(word) => return Err(word.unexpected()),
            None => break,
        }
    }
    if o.listen && (o.program.is_some() || o.json) {
        return Err("--listen takes an address alone".into());
    }
    Ok(Some(o))
}

/// Whether a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// As it should be.
    Fine,
    /// Something is missing or slow, or will not work later.
    Warning,
    /// It will not work.
    Broken,
}

impl Level {
    fn name(self) -> &'static str {
        ["ok", "warning", "broken"][self as usize]
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The check.
    pub check: &'static str,
    pub level: Level,
    /// What was seen.
    pub seen: String,
    /// What to do; empty: nothing.
    pub remedy: String,
}

/// Makes findings of a check.
pub fn fine(check: &'static str, seen: impl Into<String>) -> Finding {
    Finding { check, level: Level::Fine, seen: seen.into(), remedy: String::new() }
}

/// As [`fine`], of something to know.
pub fn warning(check: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { level: Level::Warning, remedy: remedy.into(), ..fine(check, seen) }
}

/// As [`fine`], of what will not work.
pub fn broken(check: &'static str, seen: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { level: Level::Broken, ..warning(check, seen, remedy) }
}

/// Where the facts of files are read.
pub struct FactSource<'a> {
    root: &'a Path,
}

impl FactSource<'_> {
    /// A path such as `proc/self/status`.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The content of a file, without space at its end; empty if it cannot be read.
    pub fn text(&self, path: &str) -> String {
        std::fs::read_to_string(self.path(path)).unwrap_or_default().trim_end().to_string()
    }

    /// The names in a folder, in order; none where there is no folder.
    pub fn names(&self, folder: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(folder)).into_iter().flatten().flatten();
        let mut all: Vec<String> =
            entries.filter_map(|e| e.file_name().into_string().ok()).collect();
        all.sort();
        all
    }
}

/// All findings, in the order in which they are told.
fn examine(options: &Options) -> Vec<Finding> {
    let facts = FactSource { root: options.root.as_deref().unwrap_or(Path::new("/")) };
    let mut all = machine::all(&facts);
    all.extend(net::all(&facts));
    all.extend(nics::all(&facts));
    if let Some(program) = &options.program {
        all.push(program::diagnose(program));
    }
    if let Some(peer) = options.peer {
        all.extend(peer::diagnose(peer));
    }
    all
}

fn as_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for f in findings {
        text += &format!("{:<8} {:<10} {}\n", f.level.name(), f.check, f.seen);
        if !f.remedy.is_empty() {
            text += &format!("{:20}do: {}\n", "", f.remedy);
        }
    }
    text
}

fn as_json(findings: &[Finding], status: u8) -> String {
    let each: Vec<_> = findings
        .iter()
        .map(|f| json!({"check": f.check, "level": f.level.name(), "seen": f.seen, "do": f.remedy}))
        .collect();
    format!(
        "{}\n",
        json!({"status": status, "version": env!("CARGO_PKG_VERSION"), "findings": each})
    )
}

/// Examines this machine, or listens; returns the exit code.
///
/// # Errors
/// In words: standard output cannot be written, or the port cannot be had.
pub fn run(options: &Options) -> Result<u8, String> {
    let said = |e: std::io::Error| format!("standard output: {e}");
    if options.listen {
        return peer::listen(options.peer, |line| {
            let mut out = std::io::stdout();
            writeln!(out, "{line}").and_then(|()| out.flush()).map_err(said)
        });
    }
    let findings = examine(options);
    let worst = findings.iter().map(|f| f.level).max().unwrap_or(Level::Fine);
    let status = worst as u8;
    let text = if options.json { as_json(&findings, status) } else { as_text(&findings) };
    std::io::stdout().write_all(text.as_bytes()).map_err(said)?;
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A root with some files, for one test.
    pub struct Root(pub PathBuf);

    impl Root {
        pub fn new(name: &str, files: &[(&str, &str)]) -> Root {
            let name = format!("gdrcore-doctor-{name}-{}", std::process::id());
            let root = Root(std::env::temp_dir().join(name));
            files.iter().for_each(|(path, text)| root.put(path, text));
            root
        }

        pub fn put(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn of(line: &str) -> Result<Option<Options>, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|e| e.to_string())
    }

    #[test]
    fn the_command_line_has_one_grammar() {
        let o = of("--json --root=/x 192.0.2.7 -- prog --json").unwrap().unwrap();
        assert_eq!(o.peer, Some("192.0.2.7".parse().unwrap()));
        assert_eq!(o.program, Some("prog".into()));
        assert!(o.json && o.root == Some("/x".into()));
        assert_eq!(of("--root -- -- prog").unwrap().unwrap().program, Some("prog".into()));
        assert_eq!(of("--help"), Ok(None));
        for (line, part) in [
            ("--bogus", "--bogus"),
            ("-x", "-x"),
            ("host.example", "IP address"),
            ("127.0.0.1 127.0.0.2", "127.0.0.2"),
            ("--", "program"),
            ("--json=1", "--json"),
            ("--listen -- prog", "--listen"),
        ] {
            let why = of(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
    }

    #[test]
    fn lines_and_json_say_the_same() {
        let all = [fine("a", "b"), warning("c", "d \"e\"", "f")];
        assert_eq!(as_text(&all).lines().count(), 3);
        let json: serde_json::Value = serde_json::from_str(&as_json(&all, 1)).unwrap();
        assert_eq!((&json["status"], &json["findings"][1]["do"]), (&json!(1), &json!("f")));
        assert_eq!(json["findings"][0]["level"], "ok");
    }
}
