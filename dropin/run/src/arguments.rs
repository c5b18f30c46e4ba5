//! Parses the command line of gdrcore-run.

use gdrcore_calls::options::{
    self, codes, Setting, Takes, ALL, FAULTS, FINE, SEARCH_FAULTS, SEED, TIMEOUT,
};
use lexopt::prelude::*;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// The text of `--help`.
pub fn help() -> String {
    format!(
        "\
usage: gdrcore-run [OPTION]... PROGRAM [ARGUMENT]...
Runs a program that was written for libibverbs or librdmacm on gdrcore: RDMA without an RDMA NIC.

{}  --help, --version

The exit code and signals are the program's own; 125, 126 and 127 mean bad usage, a program that
cannot be executed, and no program of that name. Libraries that the caller preloads stay, before
gdrcore's.

  gdrcore-run --address 127.0.0.2 ibv_rc_pingpong &
  gdrcore-run --address 127.0.0.3 ibv_rc_pingpong 127.0.0.2
",
        options::help()
    )
}

/// The request of the command line.
#[derive(Debug, PartialEq, Eq)]
pub enum Request {
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
    /// The options given, but for those of faults, seed and search.
    pub options: Vec<OsString>,
    /// Run it many times.
    pub search: Option<Search>,
}

impl Arguments {
    /// The value of an option that counts: the last.
    pub fn value(&mut self, of: &Setting) -> Option<&mut OsString> {
        let all = self.environment.iter_mut();
        all.rev().find(|(name, _)| *name == of.variable).map(|(_, value)| value)
    }

    /// Prepares the file of an option, if it was given, and makes its path absolute, as the program
    /// may change its folder.
    ///
    /// # Errors
    /// In words: the file cannot be prepared.
    pub fn begin_file(
        &mut self,
        of: &Setting,
        prepare: impl FnOnce(&Path) -> std::io::Result<()>,
    ) -> Result<(), String> {
        let Some(value) = self.value(of) else { return Ok(()) };
        let begun = std::path::absolute(&*value).and_then(|path| prepare(&path).map(|()| path));
        *value = begun.map_err(|e| format!("--{} {}: {e}", of.option, value.display()))?.into();
        Ok(())
    }
}

/// A search for faults with which the program fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    pub seeds: u32,
    /// How long a run may take.
    pub timeout: Duration,
    /// Exit codes with which it has not failed.
    pub fine: Vec<i32>,
}

impl Search {
    /// The search of its options, if there is one. Their values are right.
    fn from_options(given: &[(&Setting, OsString)]) -> Result<Option<Search>, String> {
        let value = |setting: &Setting| {
            let of = given.iter().rfind(|(s, _)| s.option == setting.option);
            of.and_then(|(_, value)| value.to_str())
        };
        let Some(seeds) = value(&SEARCH_FAULTS).and_then(|n| n.parse().ok()) else {
            return match given.first() {
                Some((s, _)) => Err(format!("--{} needs --search-faults", s.option)),
                None => Ok(None),
            };
        };
        let seconds = value(&TIMEOUT).and_then(|s| s.parse().ok()).unwrap_or(30.0);
        let fine = value(&FINE).and_then(codes).unwrap_or_else(|| vec![0]);
        Ok(Some(Search { seeds, timeout: Duration::from_secs_f64(seconds), fine }))
    }
}

/// Parses the command line, without the program's own name. Options end at the first word that is
/// not one, or at `--`.
///
/// # Errors
/// The fault in words.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Request, lexopt::Error> {
    let mut words = lexopt::Parser::from_args(words);
    let (mut environment, mut searching) = (Vec::new(), Vec::new());
    let mut options: Vec<OsString> = Vec::new();
    while let Some(word) = words.next()? {
        let found = match &word {
            Short('h') | Long("help") => return Ok(Request::Help),
            Short('V') | Long("version") => return Ok(Request::Version),
            Value(program) => {
                let program = program.clone();
                let rest = words.raw_args()?.collect();
                let search = Search::from_options(&searching)?;
                return Ok(Request::Run(Arguments { environment, program, rest, options, search }));
            }
            Short(letter) => ALL.iter().find(|s| s.short == Some(*letter)),
            Long(name) => ALL.iter().find(|s| s.option == *name && !name.is_empty()),
        };
        let Some(setting) = found else { return Err(word.unexpected()) };
        let option = format!("--{}", setting.option);
        let value = match setting.takes {
            Takes::Nothing(value) => {
                if !is_of_faults(setting) {
                    options.push(option.clone().into());
                }
                value.into()
            }
            Takes::Optional(_, without) => {
                let value = words.optional_value().unwrap_or_else(|| without.into());
                let mut option = OsString::from(format!("{option}="));
                option.push(&value);
                options.push(option);
                value
            }
            Takes::Value(_) => {
                let value = words.value()?;
                if !is_of_faults(setting) {
                    options.extend([OsString::from(&option), value.clone()]);
                }
                value
            }
        };
        setting.check(&value).map_err(|why| format!("{option} {}: {why}", value.display()))?;
        match setting.variable {
            "" => searching.push((setting, value)),
            variable => environment.push((variable, value)),
        }
    }
    Err("which program?".into())
}

/// Whether it chooses faults or a search for them.
fn is_of_faults(setting: &Setting) -> bool {
    setting.variable.is_empty() || [FAULTS, SEED].iter().any(|s| s.variable == setting.variable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|e| e.to_string())
    }

    fn run(line: &str) -> Arguments {
        match of(line) {
            Ok(Request::Run(a)) => a,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn options_become_variables() {
        let a = run("--address 127.0.0.2 --device=gdrc0 --path shm --pcap /tmp/x --stats --lid \
             --mlx5 rping -s -v");
        let set: Vec<_> =
            a.environment.iter().map(|(n, v)| format!("{n}={}", v.to_string_lossy())).collect();
        let wanted = [
            "GDRC_ADDRESS=127.0.0.2",
            "GDRC_DEVICE=gdrc0",
            "GDRC_PATH=shm",
            "GDRC_PCAP=/tmp/x",
            "GDRC_STATS=1",
            "GDRC_LID=1",
            "GDRC_IDENTITY=mlx5",
        ];
        assert_eq!(set, wanted);
        assert_eq!((a.program, a.rest), ("rping".into(), vec!["-s".into(), "-v".into()]));
    }

    #[test]
    fn verbose_has_two_names() {
        for line in ["-v rping -v", "--verbose rping -v"] {
            let a = run(line);
            assert_eq!(a.environment, [("GDRC_VERBOSE", "1".into())], "{line}");
            assert_eq!(a.rest, ["-v"], "{line}");
        }
    }

    #[test]
    fn a_trace_may_have_a_file() {
        let set = |line: &str| {
            let a = run(line);
            assert_eq!(a.program, "prog", "{line}");
            a.environment
        };
        assert_eq!(set("--trace prog"), [("GDRC_TRACE", "1".into())]);
        assert_eq!(set("--trace=x prog"), [("GDRC_TRACE", "x".into())]);
        assert_eq!(set("--trace=chrome:x -- prog"), [("GDRC_TRACE", "chrome:x".into())]);
        for count in ["-c prog", "--trace-count prog"] {
            assert_eq!(set(count), [("GDRC_TRACE_COUNT", "1".into())]);
        }
        let filter = "call=ibv_post_*,rdma_connect;qp=0x11";
        let set = set(&format!("--trace-filter {filter} prog"));
        assert_eq!(set, [("GDRC_TRACE_FILTER", filter.into())]);
    }

    #[test]
    fn a_keepalive_of_0_is_none() {
        assert_eq!(run("--keepalive 0 prog").environment, [("GDRC_KEEPALIVE", "0".into())]);
    }

    #[test]
    fn strict_has_a_mode() {
        let set = |line: &str| run(line).environment;
        assert_eq!(set("--strict prog"), [("GDRC_STRICT", "report".into())]);
        assert_eq!(set("--strict=exit=66 prog"), [("GDRC_STRICT", "exit=66".into())]);
        let like = [("GDRC_STRICT", "abort".into()), ("GDRC_LIKE", "mlx5".into())];
        assert_eq!(set("--strict=abort --like mlx5 prog"), like);
    }

    #[test]
    fn a_search_has_options_of_its_own() {
        let a = run("--search-faults 7 --seed 3 --timeout 1.5 --fine 0,2 prog x");
        let timeout = Duration::from_millis(1500);
        assert_eq!(a.search, Some(Search { seeds: 7, timeout, fine: vec![0, 2] }));
        assert_eq!(a.environment, [("GDRC_SEED", "3".into())]);
        assert_eq!(run("prog --search-faults 7").search, None);
        let a = run("--lid --search-faults 7 --fault loss --trace=x --path udp -v prog --mlx5");
        assert_eq!(a.options, ["--lid", "--trace=x", "--path", "udp", "--verbose"]);
    }

    #[test]
    fn weak_is_a_rule() {
        let a = run("--weak --seed 3 --fault loss --lid prog");
        let rules = [("GDRC_FAULTS", "weak".into()), ("GDRC_SEED", "3".into())];
        assert_eq!(a.environment[..2], rules);
        assert_eq!(a.environment[2], ("GDRC_FAULTS", "loss".into()));
        assert_eq!(a.options, ["--lid"], "a search names its rules by itself");
    }

    #[test]
    fn words_behind_the_program_are_its_arguments() {
        let a = run("prog --stats --path nonsense");
        assert!(a.environment.is_empty());
        assert_eq!(a.rest, ["--stats", "--path", "nonsense"]);
        assert_eq!(run("-- --odd x").program, "--odd");
    }

    #[test]
    fn faults_of_the_command_line_are_named() {
        for (line, part) in [
            ("", "program"),
            ("--stats", "program"),
            ("--path tcp prog", "udp, shm, auto"),
            ("--keepalive soon prog", "seconds"),
            ("--engines 0 prog", "1 to 64"),
            ("--trace= prog", "value"),
            ("--trace=chrome: prog", "a file"),
            ("--trace-filter call=ibv_post_sent prog", "'ibv_post_sent': no call"),
            ("--trace-filter", "--trace-filter"),
            ("--trace-count=1 prog", "--trace-count"),
            ("--strict=yes prog", "report, abort or exit=N"),
            ("--like mlx4 prog", "mlx5, rxe, efa or hns"),
            ("--search-faults many prog", "a number from 0"),
            ("--search-faults 3 --timeout 0 prog", "seconds"),
            ("--search-faults 3 --fine 1,x prog", "exit codes"),
            ("--timeout 5 prog", "--timeout needs --search-faults"),
            ("--seed x prog", "a number from 1"),
            ("--address", "--address"),
            ("--address= prog", "a value"),
            ("--stats=1 prog", "--stats"),
            ("-x prog", "-x"),
            ("--bogus prog", "--bogus"),
            ("--no-agent prog", "--no-agent"),
        ] {
            let why = of(line).unwrap_err();
            assert!(why.contains(part), "{line}: {why}");
        }
        assert_eq!(of("--help"), Ok(Request::Help));
        assert_eq!(of("--stats -V prog"), Ok(Request::Version));
    }
}
