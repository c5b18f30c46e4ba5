//! Parses the command line of gdrcore-run.

use gdrcore_calls::Filter;
use lexopt::prelude::*;
use std::ffi::{OsStr, OsString};
use std::time::Duration;

/// The text of `--help`.
pub const HELP: &str = "\
usage: gdrcore-run [OPTION]... PROGRAM [ARGUMENT]...
Runs a program that was written for libibverbs or librdmacm on gdrcore: RDMA without an RDMA NIC.

  --address ADDRESS   use this address of the machine (GDRC_ADDRESS);
                      else the program sees a device for each address
  --router PATH|NAME  reach peers by way of this router (GDRC_ROUTER), as containers
                      do; off: none, even if /run/gdrcore/tenant.gdrc exists
  --device NAME       show the program only this device, such as gdrc0 (GDRC_DEVICE)
  --path udp|shm|auto the path to peers on this machine (GDRC_PATH);
                      auto, the default: shared memory if they offer it, else UDP;
                      shm,cma and auto,cma: long WRITEs are copied by the kernel
  --engines N         most engines of each device (GDRC_ENGINES), from 1 to 64:
                      threads with CQs and queue pairs of their own do not wait
                      for each other; default: one for each CPU, at most 16
  --qps N             most queue pairs of each engine (GDRC_QPS), where the usual 16,384
                      are not enough: up to 65536
  --keepalive SECONDS after so long without a packet of its peer a connection
                      probes it, and fails without an answer (GDRC_KEEPALIVE);
                      0, the default: never
  --pcap FILE         write all packets into FILE, for Wireshark (GDRC_PCAP);
                      it is emptied first unless a process is writing it, and all
                      processes of the program append to it; without --path,
                      peers on this machine are then reached by packets, too
  --fault RULES|@FILE faults of packets and calls (GDRC_FAULTS): 'loss rate 1%',
                      'corrupt in nth 3 peer 10.0.0.2', 'delay 2ms every 10',
                      'call ibv_reg_mr nth 3 errno ENOMEM'; several with ';' between
                      them, in lines of FILE, or by several options;
                      docs/using/TESTING.md has all. With faults of packets, peers on
                      this machine are reached by packets, too
  --seed N            which ones have them (GDRC_SEED): the same program with the same
                      number has the same faults; without it a number is drawn, and said
                      when a process ends
  --fault-log FILE    append a line to FILE for each fault (GDRC_FAULT_LOG)
  --search-faults N   run the program with the faults of N seeds (--fault, or losses and others of
                      packets; from --seed on), and with each of its calls failing once; print the
                      sets of faults with which it fails or does not end, without those that it
                      does not need. Its input and output are /dev/null. The exit code is 1 if
                      there are any
  --timeout SECONDS   how long a run may take (30)
  --fine CODES        exit codes with which a run has not failed: 0,2; else only 0
  --stats             print the counters of each process, under the names of
                      Linux's rxe driver, and why its requests failed, to standard
                      error when it ends, also by SIGTERM, SIGINT or SIGHUP, and at
                      SIGUSR2 (GDRC_STATS)
  -v, --verbose       print the reasons of refused verbs to standard error (GDRC_VERBOSE)
  --trace[=FILE]      print each call of libibverbs and librdmacm, with arguments and result,
                      into FILE, a new one for each process, else to standard error
                      (GDRC_TRACE); --trace=chrome:FILE: as events that Perfetto shows
  --trace-filter CONDITION[;CONDITION]...
                      only calls that meet all conditions (GDRC_TRACE_FILTER):
                      call=ibv_post_*,ibv_poll_cq  qp=0x11  cq=2  thread=4711
  -c, --trace-count   print a table of the calls, their errors and times to standard
                      error when a process ends (GDRC_TRACE_COUNT)
  --strict[=report|abort|exit=N]
                      report what the program does though the specification forbids it or
                      leaves it undefined, with the place (GDRC_STRICT); report, the default:
                      the program goes on; abort: it ends; exit=N: its exit status is N
  --like NIC          the NIC whose limits count for --strict: mlx5, rxe, efa or hns (GDRC_LIKE)
  --strict-json FILE  append each report to FILE, as a line of JSON (GDRC_STRICT_JSON)
  --strict-suppressions FILE
                      leave out the reports that FILE names: lines RULE or RULE:WORD,
                      WORD in a function or file of the place (GDRC_STRICT_SUPPRESSIONS)
  --lid               give ports a LID, the low 16 bits of the address, for programs that
                      identify peers by nothing else (GDRC_LID)
  --mlx5              report vendor and part of a ConnectX-5 (GDRC_IDENTITY=mlx5), for programs
                      that use DC only with parts which they know, such as perftest
  --help, --version

The exit code and signals are the program's own; 125, 126 and 127 mean bad usage, a program that
cannot be executed, and no program of that name. Libraries that the caller preloads stay, before
gdrcore's.

  gdrcore-run --address 127.0.0.2 ibv_rc_pingpong &
  gdrcore-run --address 127.0.0.3 ibv_rc_pingpong 127.0.0.2
";

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

/// A search for faults with which the program fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    pub seeds: u32,
    /// How long a run may take.
    pub timeout: Duration,
    /// Exit codes with which it has not failed.
    pub fine: Vec<i32>,
}

/// Options of a search.
const SEARCHING: &[&str] = &["search-faults", "timeout", "fine"];

impl Search {
    /// The search of the options given, if there is one.
    fn of(given: &[(String, OsString)]) -> Result<Option<Search>, String> {
        let mut search = Search { seeds: 0, timeout: Duration::from_secs(30), fine: vec![0] };
        let mut is_wanted = false;
        for (name, value) in given {
            let value = value.to_str().unwrap_or_default();
            match name.as_str() {
                "search-faults" => {
                    is_wanted = true;
                    let n = value.parse().map_err(|_| "search-faults is a number of seeds")?;
                    search.seeds = n;
                }
                "timeout" => {
                    let seconds = value.parse().ok().filter(|s| (0.001..=86_400.0).contains(s));
                    let seconds = seconds.ok_or("timeout is a number of seconds, to 86400")?;
                    search.timeout = Duration::from_secs_f64(seconds);
                }
                _ => {
                    let codes: Option<Vec<u8>> = value.split(',').map(|c| c.parse().ok()).collect();
                    let codes =
                        codes.ok_or("fine has exit codes from 0 to 255, with ',' between")?;
                    search.fine = codes.into_iter().map(i32::from).collect();
                }
            }
        }
        match given.first() {
            Some((name, _)) if !is_wanted => Err(format!("--{name} needs --search-faults")),
            _ => Ok(is_wanted.then_some(search)),
        }
    }
}

/// Options with a value, and the variable that takes it.
const VALUED: &[(&str, &str)] = &[
    ("address", "GDRC_ADDRESS"),
    ("router", "GDRC_ROUTER"),
    ("device", "GDRC_DEVICE"),
    ("path", "GDRC_PATH"),
    ("pcap", "GDRC_PCAP"),
    ("keepalive", "GDRC_KEEPALIVE"),
    ("engines", "GDRC_ENGINES"),
    ("qps", "GDRC_QPS"),
    ("trace-filter", "GDRC_TRACE_FILTER"),
    ("fault", "GDRC_FAULTS"),
    ("seed", "GDRC_SEED"),
    ("fault-log", "GDRC_FAULT_LOG"),
    ("like", "GDRC_LIKE"),
    ("strict-json", "GDRC_STRICT_JSON"),
    ("strict-suppressions", "GDRC_STRICT_SUPPRESSIONS"),
];
/// Options without a value, with the variable and the value to set.
const PLAIN: &[(&str, &str, &str)] = &[
    ("stats", "GDRC_STATS", "1"),
    ("lid", "GDRC_LID", "1"),
    ("mlx5", "GDRC_IDENTITY", "mlx5"),
    ("verbose", "GDRC_VERBOSE", "1"),
    ("trace-count", "GDRC_TRACE_COUNT", "1"),
];
/// Options that may have a value: the variable, and its value without one.
const OPTIONAL: &[(&str, &str, &str)] =
    &[("trace", "GDRC_TRACE", "1"), ("strict", "GDRC_STRICT", "report")];

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
        let name = match &word {
            Short('h') | Long("help") => return Ok(Request::Help),
            Short('V') | Long("version") => return Ok(Request::Version),
            Value(program) => {
                let program = program.clone();
                let rest = words.raw_args()?.collect();
                let search = Search::of(&searching)?;
                return Ok(Request::Run(Arguments { environment, program, rest, options, search }));
            }
            Short('v') => "verbose",
            Short('c') => "trace-count",
            Long(name) => name,
            Short(_) => return Err(word.unexpected()),
        };
        if let Some((_, variable, value)) = PLAIN.iter().find(|(n, ..)| *n == name) {
            options.push(format!("--{name}").into());
            environment.push((*variable, OsString::from(value)));
        } else if SEARCHING.contains(&name) {
            let name = name.to_string();
            searching.push((name, words.value()?));
        } else if let Some((name, variable, value)) = OPTIONAL.iter().find(|(n, ..)| *n == name) {
            let value = words.optional_value().unwrap_or_else(|| OsString::from(value));
            check(name, &value)?;
            let mut option = OsString::from(format!("--{name}="));
            option.push(&value);
            options.push(option);
            environment.push((variable, value));
        } else if let Some((name, variable)) = VALUED.iter().find(|(n, _)| *n == name) {
            let value = words.value()?;
            check(name, &value)?;
            if !matches!(*name, "fault" | "seed") {
                options.extend([format!("--{name}").into(), value.clone()]);
            }
            environment.push((variable, value));
        } else {
            return Err(word.unexpected());
        }
    }
    Err("which program?".into())
}

fn is_from_1_to(most: u32, value: &OsStr) -> bool {
    let number = value.to_str().and_then(|v| v.parse().ok());
    number.is_some_and(|n: u32| (1..=most).contains(&n))
}

/// Whether it is a mode of `--strict`.
fn is_mode(value: &OsStr) -> bool {
    let code = value.to_str().and_then(|v| v.strip_prefix("exit="));
    value == "report" || value == "abort" || code.is_some_and(|n| is_from_1_to(255, n.as_ref()))
}

fn check(name: &str, value: &OsStr) -> Result<(), String> {
    match name {
        _ if value.is_empty() => Err(format!("--{name} needs a value")),
        "path" if !["udp", "shm", "auto", "shm,cma", "auto,cma"].iter().any(|p| *p == value) => {
            Err("path is udp, shm or auto, the last two with ,cma behind or without".into())
        }
        "keepalive"
            if !value
                .to_str()
                .and_then(|v| v.parse().ok())
                .is_some_and(|s| (0.001..=86_400.0).contains(&s) || s == 0.0) =>
        {
            Err("keepalive is a number of seconds from 0.001 to 86400, or 0".into())
        }
        "trace" if value == "chrome:" => Err("--trace=chrome: needs a file behind it".into()),
        "trace-filter" => match value.to_str().map(Filter::parse) {
            Some(Ok(_)) => Ok(()),
            Some(Err(why)) => Err(format!("trace-filter: {why}")),
            None => Err("trace-filter: not a text".into()),
        },
        "seed" if value.to_str().and_then(|v| v.parse::<u64>().ok()).is_none_or(|n| n == 0) => {
            Err("seed is a number from 1 to 2^64 - 1".into())
        }
        "strict" if !is_mode(value) => {
            Err("strict is report, abort or exit=N, N from 1 to 255".into())
        }
        "like" if !["mlx5", "rxe", "efa", "hns"].iter().any(|nic| *nic == value) => {
            Err("like is mlx5, rxe, efa or hns".into())
        }
        "engines" if !is_from_1_to(64, value) => Err("engines is a number from 1 to 64".into()),
        "qps" if !is_from_1_to(65_536, value) => Err("qps is a number from 1 to 65536".into()),
        _ => Ok(()),
    }
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
            ("--path tcp prog", "udp, shm or auto"),
            ("--path udp,cma prog", "udp, shm or auto"),
            ("--keepalive soon prog", "seconds"),
            ("--keepalive 0.0001 prog", "seconds"),
            ("--engines 0 prog", "1 to 64"),
            ("--engines 65 prog", "1 to 64"),
            ("--qps 0 prog", "1 to 65536"),
            ("--qps 65537 prog", "1 to 65536"),
            ("--trace= prog", "value"),
            ("--trace=chrome: prog", "a file"),
            ("--trace-filter call=ibv_post_sent prog", "'ibv_post_sent': no call"),
            ("--trace-filter qp prog", "KEY=VALUE"),
            ("--trace-filter", "--trace-filter"),
            ("--trace-count=1 prog", "--trace-count"),
            ("--strict=yes prog", "report, abort or exit=N"),
            ("--strict=exit=256 prog", "report, abort or exit=N"),
            ("--like mlx4 prog", "mlx5, rxe, efa or hns"),
            ("--search-faults many prog", "a number of seeds"),
            ("--search-faults 3 --timeout 0 prog", "seconds"),
            ("--search-faults 3 --fine 1,x prog", "exit codes"),
            ("--timeout 5 prog", "--timeout needs --search-faults"),
            ("--seed x prog", "from 1 to 2^64"),
            ("--seed 0 prog", "from 1 to 2^64"),
            ("--seed 18446744073709551616 prog", "from 1 to 2^64"),
            ("--address", "--address"),
            ("--address= prog", "value"),
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
