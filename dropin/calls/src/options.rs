//! The settings of `gdrcore-run` and the drop-in: option, environment variable, right values and
//! `--help` of each.

use crate::Filter;
use std::ffi::{OsStr, OsString};
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

/// An option, and its variable.
pub struct Setting {
    /// The long name, without `--`; empty: a variable alone.
    pub option: &'static str,
    /// A name of one letter.
    pub short: Option<char>,
    /// The variable; empty: an option of `gdrcore-run` alone.
    pub variable: &'static str,
    /// Whether a value follows.
    pub takes: Takes,
    /// The right values.
    pub wants: Wants,
    /// Its lines of `--help`.
    pub help: &'static str,
}

/// Whether an option has a value.
pub enum Takes {
    /// None; the variable gets this one.
    Nothing(&'static str),
    /// One, of this name in `--help`.
    Value(&'static str),
    /// An optional value behind `=`: its name in `--help`, and the default.
    Optional(&'static str, &'static str),
}

/// The right values of a setting.
pub enum Wants {
    /// Any; not checked here.
    Any,
    /// A number.
    Number(RangeInclusive<u64>),
    /// Seconds, perhaps with a fraction; with `true` also 0.
    Seconds(bool),
    /// One of these.
    OneOf(&'static [&'static str]),
    /// A [`Mode`].
    Mode,
    /// A file, or `chrome:` and a file, or `1`.
    Trace,
    /// A [`Filter`].
    Filter,
    /// Exit codes, with `,` between them.
    Codes,
}

/// What a report of `--strict` leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The program goes on.
    Report,
    /// The first report ends the program by SIGABRT.
    Abort,
    /// The program goes on, and its exit status is this.
    Exit(i32),
}

impl Mode {
    /// Parses `report`, `abort` or `exit=N`.
    pub fn parse(value: &str) -> Option<Mode> {
        match value {
            "report" | "1" => Some(Mode::Report),
            "abort" => Some(Mode::Abort),
            other => {
                let code = other.strip_prefix("exit=")?.parse().ok()?;
                (1..=255).contains(&code).then_some(Mode::Exit(code))
            }
        }
    }
}

/// Parses exit codes, with `,` between them.
pub fn codes(value: &str) -> Option<Vec<i32>> {
    value.split(',').map(|code| code.parse::<u8>().ok().map(i32::from)).collect()
}

/// Seconds of a day.
const DAY: f64 = 86_400.0;

impl Setting {
    /// Checks a value.
    ///
    /// # Errors
    /// In words: what is wrong with it.
    pub fn check(&self, value: &OsStr) -> Result<(), String> {
        let text = value.to_str().unwrap_or_default();
        let right = |is_right: bool, wanted: &str| match is_right {
            true => Ok(()),
            false => Err(format!("not {wanted}")),
        };
        match &self.wants {
            _ if value.is_empty() => Err("it needs a value".into()),
            Wants::Any => Ok(()),
            Wants::Number(range) => {
                let wanted = format!("a number from {} to {}", range.start(), range.end());
                right(text.parse().is_ok_and(|n| range.contains(&n)), &wanted)
            }
            Wants::Seconds(or_zero) => {
                let fits = |s: f64| (0.001..=DAY).contains(&s) || (*or_zero && s == 0.0);
                let zero = if *or_zero { ", or 0" } else { "" };
                let wanted = format!("a number of seconds from 0.001 to {DAY}{zero}");
                right(text.parse().is_ok_and(fits), &wanted)
            }
            Wants::OneOf(all) => right(all.contains(&text), &any_of(all)),
            Wants::Mode => {
                right(Mode::parse(text).is_some(), "report, abort or exit=N, N from 1 to 255")
            }
            Wants::Trace => right(value != "chrome:", "complete: chrome: has a file behind it"),
            Wants::Filter => Filter::parse(text).map(|_| ()),
            Wants::Codes => {
                right(codes(text).is_some(), "exit codes from 0 to 255, with ',' between them")
            }
        }
    }

    /// The value that the environment has. `0` turns a setting off that needs no value. A wrong
    /// value counts as none; `say` reports it, the first time.
    pub fn value(&self, say: impl FnOnce(&str)) -> Option<OsString> {
        let value = std::env::var_os(self.variable).filter(|v| !v.is_empty())?;
        if value == "0" && !matches!(self.takes, Takes::Value(_)) {
            return None;
        }
        match self.check(&value) {
            Ok(()) => Some(value),
            Err(why) => {
                self.report(&value, &why, say);
                None
            }
        }
    }

    /// Reports a wrong value, the first time.
    pub fn report(&self, value: &OsStr, why: &str, say: impl FnOnce(&str)) {
        /// The settings that were reported, one bit for each.
        static REPORTED: AtomicU64 = AtomicU64::new(0);
        const { assert!(ALL.len() <= 64) };
        let bit = ALL.iter().position(|s| s.variable == self.variable).map_or(0, |at| 1 << at);
        if REPORTED.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
            say(&format!("{}={}: {why}; it is ignored", self.variable, value.display()));
        }
    }

    /// The names in the first column of `--help`.
    fn names(&self) -> String {
        let short = self.short.map_or(String::new(), |c| format!("-{c}, "));
        let value = match self.takes {
            Takes::Nothing(_) => String::new(),
            Takes::Value(name) => format!(" {name}"),
            Takes::Optional(name, _) => format!("[={name}]"),
        };
        format!("{short}--{}{value}", self.option)
    }
}

/// `a, b or c`.
fn any_of(all: &[&str]) -> String {
    match all {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => all.concat(),
    }
}

/// The lines of all options for `--help`.
pub fn help() -> String {
    const COLUMN: usize = 22;
    let mut text = String::new();
    for setting in ALL.iter().filter(|s| !s.option.is_empty()) {
        let names = format!("  {}", setting.names());
        // One space at least between the columns.
        let mut before = match names.len() < COLUMN {
            true => format!("{names:COLUMN$}"),
            false => format!("{names}\n{:COLUMN$}", ""),
        };
        for line in setting.help.lines() {
            text += &format!("{before}{line}\n");
            before = " ".repeat(COLUMN);
        }
    }
    text
}

macro_rules! short {
    () => {
        None
    };
    ($letter:literal) => {
        Some($letter)
    };
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident = $option:literal $(/ $short:literal)?, $variable:literal,
        $takes:expr, $wants:expr, $help:expr;)*) => {
        $($(#[$doc])*
        pub const $name: Setting = Setting {
            option: $option,
            short: short!($($short)?),
            variable: $variable,
            takes: $takes,
            wants: $wants,
            help: $help,
        };)*
        /// All settings, in the order of `--help`.
        pub const ALL: &[Setting] = &[$($name),*];
    };
}

use Takes::{Nothing, Optional, Value};
use Wants::{Any, Codes, Number, OneOf, Seconds};

settings! {
    /// The one address of this machine that the process sees as a device, with an optional port:
    /// `10.0.0.1`, `[::1]:4800`.
    ADDRESS = "address", "GDRC_ADDRESS", Value("ADDRESS"), Any, "\
use this address of the machine (GDRC_ADDRESS);
else the program sees a device for each address";
    /// The router through which peers are reached, by its socket's path or name. If it cannot be
    /// reached the process has no device.
    ROUTER = "router", "GDRC_ROUTER", Value("PATH|NAME"), Any, "\
reach peers by way of this router (GDRC_ROUTER), as containers
do; off: none, even if /run/gdrcore/tenant.gdrc exists";
    /// The one device of the list that the process sees.
    DEVICE = "device", "GDRC_DEVICE", Value("NAME"), Any, "\
show the program only this device, such as gdrc0 (GDRC_DEVICE)";
    /// The path to peers of this host.
    PATH = "path", "GDRC_PATH", Value("udp|shm|auto"),
        OneOf(&["udp", "shm", "auto", "shm,cma", "auto,cma"]), "\
the path to peers on this machine (GDRC_PATH);
auto, the default: shared memory if they offer it, else UDP;
shm,cma and auto,cma: long WRITEs are copied by the kernel";
    /// Most engines of each device. A thread gets an engine with its first CQ. A device behind a
    /// router has one unless this says otherwise.
    ENGINES = "engines", "GDRC_ENGINES", Value("N"), Number(1..=64), "\
most engines of each device (GDRC_ENGINES), from 1 to 64:
threads with CQs and queue pairs of their own do not wait
for each other; default: one for each CPU, at most 16";
    /// Most queue pairs of each engine, which takes as many queue pair numbers. All processes on an
    /// address share 2^24 of them. Indexes of queue pairs have 16 bits.
    QPS = "qps", "GDRC_QPS", Value("N"), Number(1..=1 << 16), "\
most queue pairs of each engine (GDRC_QPS), where the usual 16,384
are not enough: up to 65536";
    /// An RC queue pair probes its peer after so many seconds without a packet.
    KEEPALIVE = "keepalive", "GDRC_KEEPALIVE", Value("SECONDS"), Seconds(true), "\
after so long without a packet of its peer a connection
probes it, and fails without an answer (GDRC_KEEPALIVE);
0, the default: never";
    /// The file to which all packets are appended. Without [`PATH`], peers of this host are then
    /// reached by packets, too.
    PCAP = "pcap", "GDRC_PCAP", Value("FILE"), Any, "\
write all packets into FILE, for Wireshark (GDRC_PCAP);
it is emptied first unless a process is writing it, and all
processes of the program append to it; without --path,
peers on this machine are then reached by packets, too";
    /// Rules of injected faults. If packets have any, a device has one engine.
    /// A device does not open if a rule is wrong.
    FAULTS = "fault", "GDRC_FAULTS", Value("RULES|@FILE"), Any, "\
faults of packets and calls (GDRC_FAULTS): 'loss rate 1%',
'corrupt in nth 3 peer 10.0.0.2', 'delay 2ms every 10',
'call ibv_reg_mr nth 3 errno ENOMEM'; several with ';' between
them, in lines of FILE, or by several options;
docs/using/TESTING.md has all. With faults of packets, peers on
this machine are reached by packets, too";
    /// The seed of injected faults.
    SEED = "seed", "GDRC_SEED", Value("N"), Number(1..=u64::MAX), "\
the seed of the faults (GDRC_SEED): the same program with the same
number has the same faults; without it a number is drawn, and said
when a process ends";
    /// The file to which faults are appended.
    FAULT_LOG = "fault-log", "GDRC_FAULT_LOG", Value("FILE"), Any, "\
append a line to FILE for each fault (GDRC_FAULT_LOG)";
    /// A search for faults: the number of its seeds.
    SEARCH_FAULTS = "search-faults", "", Value("N"), Number(0..=u32::MAX as u64), "\
run the program with the faults of N seeds (--fault, or losses and others of
packets; from --seed on), and with each of its calls failing once; print the
sets of faults with which it fails or does not end, without those that it
does not need. Its input and output are /dev/null. The exit code is 1 if
there are any";
    /// The time limit of one run of a search.
    TIMEOUT = "timeout", "", Value("SECONDS"), Seconds(false), "\
how long a run may take (30)";
    /// The exit codes that count as success in a search.
    FINE = "fine", "", Value("CODES"), Codes, "\
exit codes that count as success, such as 0,2; else only 0";
    /// The counters of the process, and why its requests failed, are printed when it ends.
    STATS = "stats", "GDRC_STATS", Nothing("1"), Any, "\
print the counters of each process, under the names of
Linux's rxe driver, and why its requests failed, to standard
error when it ends, also by SIGTERM, SIGINT or SIGHUP, and at
SIGUSR2 (GDRC_STATS)";
    /// Why a verb or a connection is refused is printed to standard error.
    VERBOSE = "verbose" / 'v', "GDRC_VERBOSE", Nothing("1"), Any, "\
print the reasons of refused verbs to standard error (GDRC_VERBOSE)";
    /// Where each call of the program is printed.
    TRACE = "trace", "GDRC_TRACE", Optional("FILE", "1"), Wants::Trace, "\
print each call of libibverbs and librdmacm, with arguments and result,
into FILE, a new one for each process, else to standard error
(GDRC_TRACE); --trace=chrome:FILE: as events that Perfetto shows";
    /// Which calls are printed.
    TRACE_FILTER = "trace-filter", "GDRC_TRACE_FILTER", Value("CONDITION[;CONDITION]..."),
        Wants::Filter, "\
only calls that meet all conditions (GDRC_TRACE_FILTER):
call=ibv_post_*,ibv_poll_cq  qp=0x11  cq=2  thread=4711";
    /// A table of the calls is printed when the process ends.
    TRACE_COUNT = "trace-count" / 'c', "GDRC_TRACE_COUNT", Nothing("1"), Any, "\
print a table of the calls, their errors and times to standard
error when a process ends (GDRC_TRACE_COUNT)";
    /// What the program does against the specification is reported.
    STRICT = "strict", "GDRC_STRICT", Optional("report|abort|exit=N", "report"), Wants::Mode, "\
report what the program does though the specification forbids it or
leaves it undefined, with the place (GDRC_STRICT); report, the default:
the program goes on; abort: it ends; exit=N: its exit status is N";
    /// The NIC whose limits count.
    LIKE = "like", "GDRC_LIKE", Value("NIC"), OneOf(&["mlx5", "rxe", "efa", "hns"]), "\
the NIC whose limits count for --strict: mlx5, rxe, efa or hns (GDRC_LIKE)";
    /// The file to which each report is appended.
    STRICT_JSON = "strict-json", "GDRC_STRICT_JSON", Value("FILE"), Any, "\
append each report to FILE, as a line of JSON (GDRC_STRICT_JSON)";
    /// The file that says which reports are left out.
    STRICT_SUPPRESSIONS = "strict-suppressions", "GDRC_STRICT_SUPPRESSIONS", Value("FILE"), Any, "\
leave out the reports that FILE names: lines RULE or RULE:WORD,
WORD in a function or file of the place (GDRC_STRICT_SUPPRESSIONS)";
    /// A rule of [`FAULTS`].
    WEAK = "weak", "GDRC_FAULTS", Nothing("weak"), Any, "\
show what RDMA allows and NICs seldom do, as --seed says: bytes placed in any
order, READs overtaken, polls that give a part, requests of an SRQ out of
order, datagrams lost, doubled and turned round, receivers that are not ready;
as --fault weak (GDRC_FAULTS); docs/using/WEAK.md";
    /// Ports have a LID, and an address vector may name its peer by that alone.
    LID = "lid", "GDRC_LID", Nothing("1"), Any, "\
give ports a LID, the low 16 bits of the address, for programs that
identify peers by nothing else (GDRC_LID)";
    /// The NIC whose vendor and part the device reports.
    IDENTITY = "mlx5", "GDRC_IDENTITY", Nothing("mlx5"), OneOf(&["gdrcore", "mlx5"]), "\
report vendor and part of a ConnectX-5 (GDRC_IDENTITY=mlx5), for programs
that use DC only with parts which they know, such as perftest";
    /// The file of a search, in which calls are counted.
    CALL_COUNTS = "", "GDRC_CALL_COUNTS", Value("FILE"), Any, "";
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_name_is_there_once_and_help_has_it() {
        let mut names = HashSet::new();
        for s in ALL {
            let help = s.option.is_empty() || s.help.contains(s.variable);
            assert!(help && s.option.is_empty() == s.help.is_empty(), "{}", s.variable);
            let short = s.short.map(String::from).unwrap_or_default();
            let variable = if s.option == WEAK.option { "" } else { s.variable };
            for name in [s.option, variable, &short].map(String::from) {
                assert!(name.is_empty() || names.insert(name.clone()), "{name}");
            }
        }
        let text = help();
        assert!(text.starts_with("  --address ADDRESS   use this address"), "{text}");
        let row = "\n  --trace-filter CONDITION[;CONDITION]...\n                      only calls";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("\n  -v, --verbose       print"), "{text}");
        assert!(text.lines().all(|l| l.len() <= 100), "{text}");
    }

    #[test]
    fn wrong_values_are_named() {
        for (setting, wrong, why) in [
            (ADDRESS, "", "it needs a value"),
            (PATH, "tcp", "not udp, shm, auto, shm,cma or auto,cma"),
            (PATH, "udp,cma", "not udp, shm"),
            (ENGINES, "65", "not a number from 1 to 64"),
            (ENGINES, "0", "1 to 64"),
            (QPS, "65537", "1 to 65536"),
            (KEEPALIVE, "soon", "0.001 to 86400, or 0"),
            (KEEPALIVE, "0.0001", "seconds"),
            (TIMEOUT, "0", "0.001 to 86400"),
            (TIMEOUT, "inf", "seconds"),
            (SEED, "0", "from 1 to 18446744073709551615"),
            (SEED, "18446744073709551616", "from 1 to"),
            (FINE, "1,x", "exit codes"),
            (FINE, "256", "exit codes"),
            (TRACE, "chrome:", "a file"),
            (TRACE_FILTER, "qp", "KEY=VALUE"),
            (STRICT, "yes", "report, abort or exit=N"),
            (STRICT, "exit=256", "exit=N"),
            (LIKE, "mlx4", "not mlx5, rxe, efa or hns"),
        ] {
            let said = setting.check(wrong.as_ref()).unwrap_err();
            assert!(said.contains(why), "{wrong}: {said}");
        }
        for (setting, right) in [
            (KEEPALIVE, "0"),
            (PATH, "shm,cma"),
            (SEED, "18446744073709551615"),
            (TIMEOUT, "1.5"),
            (TRACE, "chrome:x"),
            (FINE, "0,255"),
            (STRICT, "exit=66"),
        ] {
            assert_eq!(setting.check(right.as_ref()), Ok(()), "{right}");
        }
    }

    #[test]
    fn the_mode_is_one_of_three() {
        assert_eq!(Mode::parse("report"), Some(Mode::Report));
        assert_eq!(Mode::parse("abort"), Some(Mode::Abort));
        assert_eq!(Mode::parse("exit=66"), Some(Mode::Exit(66)));
        for wrong in ["", "exit", "exit=", "exit=0", "exit=256", "exit=-1", "yes"] {
            assert_eq!(Mode::parse(wrong), None, "{wrong}");
        }
    }
}
