//! `gdrcore top`: the devices of this user's processes, their queue pairs, rates and troubles, and
//! the sessions of routers.
//! docs/using/TOP.md explains what it shows.

mod http;
mod process;
mod routers;
mod snapshot;
mod table;

use gdrcore_net::status;
use lexopt::prelude::*;
use snapshot::{changes, Device};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The text of `--help`.
pub const HELP: &str = "\
usage: gdrcore top [--json] [--once] [--interval SECONDS] [--router SOCKET]...
       gdrcore top --prometheus ADDRESS:PORT [--router SOCKET]...
Shows the soft devices of this user's processes: their queue pairs, rates and troubles; and the
sessions of routers that let this user ask.

  --json         one JSON object for each interval instead of a table
  --once         end after one interval
  --interval S   seconds between two looks; 1 if it is not given, at least 0.1
  --router SOCKET
                 the admin socket of a router, instead of that of the system's
  --prometheus ADDRESS:PORT
                 answer GET /metrics there, until a signal comes
  -h, --help
";

/// How long devices have for an answer. One that polls needs a millisecond or two.
const WAIT: Duration = Duration::from_millis(100);
/// How long routers have at least.
const WAIT_FOR_ROUTERS: Duration = Duration::from_secs(1);

/// The options.
#[derive(Debug, Default, PartialEq)]
pub struct Options {
    json: bool,
    once: bool,
    interval: Duration,
    prometheus: Option<SocketAddr>,
    /// Admin sockets; none: that of the system's router.
    routers: Vec<PathBuf>,
}

/// Parses the words behind `top`; `None`: help is wanted.
///
/// # Errors
/// The fault in words.
pub fn parse(words: impl Iterator<Item = OsString>) -> Result<Option<Options>, lexopt::Error> {
    let mut words = lexopt::Parser::from_args(words);
    let mut o = Options { interval: Duration::from_secs(1), ..Options::default() };
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
            Long("router") => o.routers.push(words.value()?.into()),
            Long("prometheus") => o.prometheus = Some(words.value()?.parse()?),
            Short('h') | Long("help") => return Ok(None),
            word => return Err(word.unexpected()),
        }
    }
    if o.prometheus.is_some() && (o.json || o.once) {
        return Err("--prometheus takes neither --json nor --once".into());
    }
    Ok(Some(o))
}

/// All devices of this user now.
fn query_devices() -> Vec<Device> {
    status::ask(WAIT).iter().map(Device::from_status).collect()
}

/// Shows the devices until it is done. Returns the exit code.
///
/// # Errors
/// What cannot be written, or served, in words.
pub fn run(o: &Options) -> Result<u8, String> {
    let limit = o.interval.max(WAIT_FOR_ROUTERS);
    // At the same time, so that the devices are shown whatever the routers do.
    let look_at_all = || {
        std::thread::scope(|s| {
            let routers = s.spawn(|| routers::query(&o.routers, limit));
            let devices = query_devices();
            (routers.join().unwrap_or_default(), devices)
        })
    };
    if let Some(at) = o.prometheus {
        return http::serve(at, || {
            let (routers, devices) = look_at_all();
            let devices = devices.iter().map(table::source);
            table::prometheus(&devices.chain(routers::sources(&routers)).collect::<Vec<_>>())
        });
    }
    let mut before = look_at_all();
    let mut due = Instant::now();
    loop {
        // After a stop, the looks that were missed are left out.
        due = (due + o.interval).max(Instant::now());
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let now = look_at_all();
        let changes = changes(&before.1, &now.1);
        let text = match o.json {
            true => {
                let mut all = table::json(&now.1, &changes);
                all["routers"] = routers::json(&now.0, &before.0);
                format!("{all}\n")
            }
            false => {
                let clears = !o.once && std::io::stdout().is_terminal();
                table::text(&now.1, &changes, clears) + &routers::text(&now.0, &before.0)
            }
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
