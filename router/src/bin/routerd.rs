//! `gdrcore-routerd`: the router as a program.

use gdrcore_router::daemon::{check, note, Daemon, Options};
use gdrcore_router::firewall::Firewall;
use gdrcore_router::policy::rate_limits;
use lexopt::prelude::*;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

const HELP: &str = "\
usage: gdrcore-routerd [OPTION]... [FILE]
Gives containers of this host RDMA without a NIC: identities, addresses and links, by the policy
in FILE (TOML).

  --listen PATH   without FILE: the socket to listen at; every user is a tenant
                  of its own
  --admin PATH    the socket for gdrcore-routerctl, where FILE names none
  --isolated      no direct links: all goes by way of the router, which can end it
  --firewall WORD where there are other hosts: check (the default) says what is
                  wrong with the firewall's rule, require starts with it only,
                  off does not look
  --check         say what is wrong with FILE, and what it names and this host lacks, and end
  --no-confine    no filter of system calls and no Landlock: for debuggers and profilers, and
                  kernels that have none
  -v, --verbose   say on standard error, or in systemd's journal, who comes and goes
  --help, --version

RATE_LIMIT_<id> in the environment (FreeFlow's) is what the tenant with that ffr_id may send, in
bits a second, where FILE names no tx_rate. SIGHUP reads FILE anew. SIGTERM lets sessions go on for
a minute and begins nothing new; SIGINT, or a second SIGTERM, ends the router at once, and sessions
wait for the next one. docs/using/ROUTER-OPERATE.md tells all of it.
";

enum Request {
    Run(Options),
    Check(PathBuf),
    Say(String),
}

fn parse(words: impl Iterator<Item = OsString>) -> Result<Request, lexopt::Error> {
    let mut words = lexopt::Parser::from_args(words);
    let mut options = Options { confine: true, ..Options::default() };
    let mut check = false;
    while let Some(word) = words.next()? {
        match word {
            Long("listen") => options.listen = Some(words.value()?.into()),
            Long("admin") => options.admin = Some(words.value()?.into()),
            Long("check") => check = true,
            Long("firewall") => {
                let known = words.value()?.to_str().and_then(Firewall::parse);
                options.firewall = known.ok_or("--firewall: check, require or off")?;
            }
            Long("isolated") => options.isolated = true,
            Long("no-confine") => options.confine = false,
            Short('v') | Long("verbose") => options.verbose = true,
            Short('h') | Long("help") => return Ok(Request::Say(HELP.into())),
            Short('V') | Long("version") => {
                return Ok(Request::Say(format!("gdrcore-routerd {}\n", env!("CARGO_PKG_VERSION"))))
            }
            Value(_) if options.file.is_some() => return Err("more than one FILE".into()),
            Value(file) => options.file = Some(file.into()),
            _ => return Err(word.unexpected()),
        }
    }
    if options.file.is_some() && options.listen.is_some() {
        return Err("--listen and FILE: the file says where".into());
    }
    match options.file {
        Some(file) if check => Ok(Request::Check(file)),
        None if check => Err("--check needs a FILE".into()),
        _ => Ok(Request::Run(options)),
    }
}

fn run(request: Request) -> Result<(), String> {
    match request {
        Request::Say(text) => std::io::stdout()
            .write_all(text.as_bytes())
            .map_err(|e| format!("standard output: {e}")),
        Request::Check(file) => match &check(&file)[..] {
            [] => Ok(()),
            faults => {
                faults.iter().for_each(|fault| note(format_args!("{fault}")));
                Err(format!("{}: {} faults", file.display(), faults.len()))
            }
        },
        Request::Run(mut options) => {
            // A variable that is not UTF-8 is not a number.
            let text = |word: OsString| word.to_string_lossy().into_owned();
            let environment = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
            options.rate_limits = rate_limits(environment)?;
            let mut daemon = Daemon::open(&options)?;
            // The parent process may wait for this line.
            note(format_args!("ready"));
            daemon.run()
        }
    }
}

fn main() -> ExitCode {
    let request = match parse(std::env::args_os().skip(1)) {
        Ok(request) => request,
        Err(what) => {
            note(format_args!("{what}\n{HELP}"));
            return ExitCode::from(2);
        }
    };
    match run(request) {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            note(format_args!("{what}"));
            ExitCode::FAILURE
        }
    }
}
