//! `gdrcore top`: the devices of this user's processes, their queue pairs, rates and troubles.
//! docs/using/TOP.md explains what it shows.

mod http;
mod process;
mod snapshot;
mod table;

use gdrcore_net::status;
use lexopt::prelude::*;
use snapshot::{changes, Device};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// The text of `--help`.
pub const HELP: &str = "\
usage: gdrcore top [--json] [--once] [--interval SECONDS]
       gdrcore top --prometheus ADDRESS:PORT
Shows the soft devices of this user's processes: their queue pairs, rates and troubles.

  --json         one JSON object for each interval instead of a table
  --once         end after one interval
  --interval S   seconds between two looks; 1 if it is not given, at least 0.1
  --prometheus ADDRESS:PORT
                 answer GET /metrics there, until a signal comes
  -h, --help
";

/// How long devices have for an answer. One that polls needs a millisecond or two.
const WAIT: Duration = Duration::from_millis(100);

/// The options.
#[derive(Debug, PartialEq)]
pub struct Options {
    json: bool,
    once: bool,
    interval: Duration,
    prometheus: Option<SocketAddr>,
}

/// Parses the words behind `top`; `None`: help is wanted.
///
/// # Errors
/// The fault in words.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Option<Options>, lexopt::Error> {
    let mut words = lexopt::Parser::from_args(words);
    let mut o =
        Options { json: false, once: false, interval: Duration::from_secs(1), prometheus: None };
    while let Some(word) = words.next()? {
        match word {
            Long("json") => o.json = true,
            Long("once") => o.once = true,
            Long("interval") => {
                let seconds: f64 = words.value()?.parse()?;
                if !(0.1..=3600.0).contains(&seconds) {
                    return Err("--interval: from 0.1 to 3600 seconds".into());
                }
                o.interval = Duration::from_secs_f64(seconds);
            }
            Long("prometheus") => o.prometheus = Some(words.value()?.parse()?),
            Short('h') | Long("help") => return Ok(None),
            word => return Err(word.unexpected()),
        }
    }
    if o.prometheus.is_some() && (o.json || o.once) {
        return Err("--prometheus takes no other option".into());
    }
    Ok(Some(o))
}

/// All devices of this user now.
fn look() -> Vec<Device> {
    status::ask(WAIT).iter().map(Device::of).collect()
}

/// Shows the devices until it is done. Returns the exit code.
///
/// # Errors
/// What cannot be written, or served, in words.
pub fn run(o: &Options) -> Result<u8, String> {
    if let Some(at) = o.prometheus {
        return http::serve(at, || table::prometheus(&look()));
    }
    let mut before = look();
    let mut due = Instant::now();
    loop {
        // After a stop, the looks that were missed are left out.
        due = (due + o.interval).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = look();
        let changes = changes(&before, &now);
        let text = match o.json {
            true => format!("{}\n", table::json(&now, &changes)),
            false => table::text(&now, &changes, !o.once && std::io::stdout().is_terminal()),
        };
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .map_err(|e| format!("standard output: {e}"))?;
        if o.once {
            return Ok(0);
        }
        before = now;
    }
}

#[cfg(test)]
mod tests;
