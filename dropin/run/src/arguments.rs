//! The command line.

use std::ffi::{OsStr, OsString};

/// What `--help` prints.
pub const HELP: &str = "\
usage: gdrcore-run [OPTION]... PROGRAM [ARGUMENT]...
Runs a program that was written for libibverbs or librdmacm on gdrcore: RDMA without an RDMA NIC.

  --address ADDRESS   use this address of the machine (GDRC_ADDRESS);
                      else the program sees a device for each address
  --device NAME       show the program only this device, such as gdrc0 (GDRC_DEVICE)
  --path udp|shm|auto how peers on this machine are reached (GDRC_PATH);
                      auto, the default: through shared memory where they offer it;
                      shm,cma and auto,cma: long WRITEs are copied by the kernel
  --pcap FILE         write all packets into FILE, for Wireshark (GDRC_PCAP)
  --stats             print the counters, under the names of Linux's rxe driver,
                      to standard error at the end and at SIGUSR2 (GDRC_STATS)
  --no-agent          start no agent for what processes on one address share (GDRC_AGENT=0)
  --help, --version

The program's exit code and signals are its own; 125, 126 and 127 mean bad usage, a program that cannot be executed,
and none of that name. Libraries that the caller preloads stay in place, before gdrcore's.

  gdrcore-run --address 127.0.0.2 ibv_rc_pingpong &
  gdrcore-run --address 127.0.0.3 ibv_rc_pingpong 127.0.0.2
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Wish {
    Help,
    Version,
    Run(Arguments),
}

/// A program to run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// Variables to set.
    pub environment: Vec<(&'static str, OsString)>,
    pub program: OsString,
    pub rest: Vec<OsString>,
}

/// Options with a value, and the variable that takes it.
const VALUED: &[(&str, &str)] =
    &[("--address", "GDRC_ADDRESS"), ("--device", "GDRC_DEVICE"), ("--path", "GDRC_PATH"), ("--pcap", "GDRC_PCAP")];
/// Options without one, the variable and what it is set to.
const PLAIN: &[(&str, &str, &str)] = &[("--stats", "GDRC_STATS", "1"), ("--no-agent", "GDRC_AGENT", "0")];

/// Reads the command line, without the program's own name. Options end at the first word that is none, or at `--`.
///
/// # Errors
/// What is wrong, in words.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Wish, String> {
    let mut a = Arguments::default();
    let mut words = words;
    let mut program = None;
    while let Some(word) = words.next() {
        if word == "--" {
            program = words.next();
            break;
        }
        let Some(text) = word.to_str().filter(|t| t.starts_with('-') && t.len() > 1) else {
            program = Some(word);
            break;
        };
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (text, None),
        };
        if let Some((_, variable)) = VALUED.iter().find(|(n, _)| *n == name) {
            let value = inline.or_else(|| words.next()).filter(|v| !v.is_empty());
            let value = value.ok_or_else(|| format!("{name} needs a value"))?;
            check(name, &value)?;
            a.environment.push((variable, value));
        } else if let (Some((_, variable, value)), None) = (PLAIN.iter().find(|(n, ..)| *n == name), &inline) {
            a.environment.push((variable, OsString::from(value)));
        } else {
            match text {
                "--help" | "-h" => return Ok(Wish::Help),
                "--version" | "-V" => return Ok(Wish::Version),
                _ => return Err(format!("no such option: {text}")),
            }
        }
    }
    a.program = program.ok_or("which program?")?;
    a.rest = words.collect();
    Ok(Wish::Run(a))
}

fn check(name: &str, value: &OsStr) -> Result<(), String> {
    match name {
        "--path" if !["udp", "shm", "auto", "shm,cma", "auto,cma"].iter().any(|p| *p == value) => {
            Err("--path is udp, shm or auto, the last two with ,cma behind or without".into())
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Wish, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn run(line: &str) -> Arguments {
        match of(line) {
            Ok(Wish::Run(a)) => a,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_become_variables() {
        let a = run("--address 127.0.0.2 --device=gdrc0 --path shm --pcap /tmp/x --stats --no-agent rping -s -v");
        let set: Vec<_> = a.environment.iter().map(|(n, v)| format!("{n}={}", v.to_string_lossy())).collect();
        let wanted = [
            "GDRC_ADDRESS=127.0.0.2",
            "GDRC_DEVICE=gdrc0",
            "GDRC_PATH=shm",
            "GDRC_PCAP=/tmp/x",
            "GDRC_STATS=1",
            "GDRC_AGENT=0",
        ];
        assert_eq!(set, wanted);
        assert_eq!((a.program, a.rest), ("rping".into(), vec!["-s".into(), "-v".into()]));
    }

    #[test]
    fn what_follows_the_program_is_the_programs() {
        let a = run("prog --stats --path nonsense");
        assert!(a.environment.is_empty());
        assert_eq!(a.rest, ["--stats", "--path", "nonsense"]);
        assert_eq!(run("-- --odd x").program, "--odd");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (line, part) in [
            ("", "program"),
            ("--stats", "program"),
            ("--path tcp prog", "udp, shm or auto"),
            ("--path udp,cma prog", "udp, shm or auto"),
            ("--address", "value"),
            ("--address= prog", "value"),
            ("--stats=1 prog", "--stats=1"),
            ("--bogus prog", "--bogus"),
        ] {
            let why = of(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
        assert_eq!(of("--help"), Ok(Wish::Help));
        assert_eq!(of("--stats -V prog"), Ok(Wish::Version));
    }
}
