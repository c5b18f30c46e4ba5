//! `gdrcore-router-etcd`: brings a router the map of hosts from etcd, and publishes this host's
//! tenants there (docs/using/ROUTER-HOSTS.md, "Many hosts on etcd").
//!
//! It connects to the router's socket `feed`, and starts over whenever that connection ends. One
//! thread reads the router's lines, one writes this host's keys ([`mod@claims`]), and one for each
//! network watches it ([`mod@watch`]).

mod claims;
mod etcd;
#[cfg(test)]
mod fake;
mod keys;
mod watch;

use claims::{Claims, Order};
use etcd::Etcd;
use gdrcore_router_feed::{read, write, Event, Wish, LINE_MAX, VERSION};
use lexopt::prelude::*;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{channel, Sender};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use watch::Watch;

const HELP: &str = "\
usage: gdrcore-router-etcd [OPTION]...
Brings the router whose policy has map = \"feed\" the map of hosts from etcd, and puts this host's
tenants there.

  --feed PATH       the router's socket (/run/gdrcore/feed.sock)
  --endpoints LIST  http://HOST:PORT of each member, with commas between them
                    (http://127.0.0.1:2379)
  --ttl SECONDS     after so long without the router others know that it is gone (15)
  --help, --version

It never ends by itself: where router or etcd are not there, it tries again.
";

/// The pause before a new try to reach the router.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// A line on standard error, which may have been closed.
pub(crate) fn note(words: std::fmt::Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("gdrcore-router-etcd: {words}\n").as_bytes());
}

/// The router, for all threads to talk to.
pub(crate) struct Router {
    to: Mutex<UnixStream>,
    lives: AtomicBool,
}

impl Router {
    pub(crate) fn new(to: UnixStream) -> Router {
        Router { to: Mutex::new(to), lives: AtomicBool::new(true) }
    }

    /// Sends an event. False: the router is gone.
    pub(crate) fn say(&self, event: &Event) -> bool {
        let mut line = Vec::new();
        write(event, &mut line);
        // A longer line cannot be a host's, since names and addresses are short.
        if line.len() > LINE_MAX {
            return self.lives();
        }
        let Ok(mut to) = self.to.lock() else { return false };
        if self.lives() && to.write_all(&line).is_err() {
            self.end();
        }
        self.lives()
    }

    pub(crate) fn lives(&self) -> bool {
        self.lives.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.lives.store(false, Ordering::Relaxed);
    }
}

struct Options {
    feed: String,
    endpoints: Vec<String>,
    ttl: u64,
}

enum Request {
    Run(Options),
    Say(String),
}

/// The request of the command line.
///
/// # Errors
/// The fault in words.
fn parse(words: impl Iterator<Item = OsString>) -> Result<Request, lexopt::Error> {
    let mut words = lexopt::Parser::from_args(words);
    let mut options = Options {
        feed: "/run/gdrcore/feed.sock".into(),
        endpoints: vec!["http://127.0.0.1:2379".into()],
        ttl: 15,
    };
    while let Some(word) = words.next()? {
        match word {
            Long("feed") => options.feed = words.value()?.string()?,
            Long("endpoints") => {
                let list = words.value()?.string()?;
                let each = list.split(',').map(|e| e.trim_end_matches('/').to_string());
                options.endpoints = each.collect();
                if let Some(bad) = options.endpoints.iter().find(|e| !e.starts_with("http://")) {
                    return Err(format!("endpoint '{bad}': http://HOST:PORT").into());
                }
            }
            Long("ttl") => {
                let text = words.value()?.string()?;
                let seconds = text.parse().ok().filter(|n| (3..=3600).contains(n));
                options.ttl = seconds.ok_or(format!("ttl '{text}': 3 to 3600 seconds"))?;
            }
            Short('h') | Long("help") => return Ok(Request::Say(HELP.into())),
            Short('V') | Long("version") => {
                let text = format!("gdrcore-router-etcd {}\n", env!("CARGO_PKG_VERSION"));
                return Ok(Request::Say(text));
            }
            _ => return Err(word.unexpected()),
        }
    }
    Ok(Request::Run(options))
}

/// The router's next line; `None`: the router is gone, or the line is not of the protocol.
fn read_wish(from: &mut BufReader<UnixStream>) -> Option<Wish> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line).ok()?;
    if line.pop() != Some(b'\n') {
        return None;
    }
    read(&line).map_err(|why| note(format_args!("the router: {why}"))).ok()
}

fn watch(etcd: Arc<Etcd>, router: Arc<Router>, own: String, network: String, to: Sender<Order>) {
    std::thread::spawn(move || {
        let freed = |key| drop(to.send(Order::Freed(key)));
        let (own, network) = (own.as_str(), network.as_str());
        Watch { etcd: &etcd, router: &router, own, network, freed: &freed }.run();
    });
}

/// Serves one connection to the router.
fn serve(options: &Options, etcd: &Arc<Etcd>, stream: UnixStream) -> std::io::Result<()> {
    let mut from = BufReader::new(stream.try_clone()?);
    let (id, host) = match read_wish(&mut from) {
        Some(Wish::Hello { version: VERSION, host: id, address, port, epoch }) => {
            let version = env!("CARGO_PKG_VERSION").into();
            (id, keys::Host { address, port, epoch, version })
        }
        Some(Wish::Hello { version, .. }) => {
            note(format_args!("the router speaks version {version}, and this adapter {VERSION}"));
            return Ok(());
        }
        Some(Wish::Error { why }) => {
            note(format_args!("the router sends this adapter away: {why}"));
            return Ok(());
        }
        _ => return Ok(()),
    };
    note(format_args!("serves host {id}"));
    let router = Arc::new(Router::new(stream));
    let (orders, queue) = channel();
    // The threads of a router that is gone end by themselves, at the store's next answer.
    let claims = (etcd.clone(), router.clone(), id.clone(), options.ttl);
    std::thread::spawn(move || {
        let (etcd, router, id, ttl) = claims;
        Claims::new(&etcd, &router, &id, host, ttl).run(&queue);
    });
    let mut watched = BTreeSet::new();
    while let Some(wish) = read_wish(&mut from) {
        match wish {
            Wish::Publish(entry) => {
                if watched.insert(entry.network.clone()) {
                    let network = entry.network.clone();
                    watch(etcd.clone(), router.clone(), id.clone(), network, orders.clone());
                }
                let _ = orders.send(Order::Publish(entry));
            }
            Wish::Withdraw(key) => drop(orders.send(Order::Withdraw(key))),
            Wish::Refused { network, vip, why } => {
                note(format_args!("the router refuses {vip} of network {network}: {why}"));
            }
            Wish::Error { why } => note(format_args!("the router sends it away: {why}")),
            Wish::Hello { .. } | Wish::Ready {} => {}
        }
    }
    router.end();
    note(format_args!("the router is gone"));
    Ok(())
}

fn main() -> ExitCode {
    let options = match parse(std::env::args_os().skip(1)) {
        Ok(Request::Run(options)) => options,
        Ok(Request::Say(text)) => {
            return match std::io::stdout().write_all(text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(e) => {
                    note(format_args!("standard output: {e}"));
                    ExitCode::FAILURE
                }
            };
        }
        Err(what) => {
            note(format_args!("{what}\n{HELP}"));
            return ExitCode::from(2);
        }
    };
    let etcd = Arc::new(Etcd::new(options.endpoints.clone()));
    let mut is_missing = false;
    loop {
        let served =
            UnixStream::connect(&options.feed).and_then(|stream| serve(&options, &etcd, stream));
        match served {
            Ok(()) => is_missing = false,
            Err(e) if !is_missing => {
                note(format_args!("{}: {e}; it is tried again", options.feed));
                is_missing = true;
            }
            Err(_) => {}
        }
        std::thread::sleep(RECONNECT_PAUSE);
    }
}
