//! What routers carry: the sessions of each router that lets this user ask. `gdrcore-routerctl`
//! asks, as for `gdrcore ctl`.

use super::snapshot::{rates, Counts};
use super::table::Source;
use crate::programs::PROGRAMS;
use serde_json::{json, Value};
use std::fmt::Write;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A session, as the router tells of it (docs/using/ROUTER-OPERATE.md), and its counters.
#[derive(Debug)]
pub struct SessionStatus {
    said: Value,
    counters: Counts<u64>,
}

/// A router at one time.
#[derive(Debug)]
pub struct Router {
    /// Its admin socket; empty: that of a router of the system.
    place: String,
    at: Instant,
    /// Its sessions, or why it did not tell.
    sessions: Result<Vec<SessionStatus>, String>,
}

/// The counters in what a router says of a session: numbers below `relay`, and the sum of packets
/// that were refused; those below `remote`, which are of requests, with that word in front.
fn counters(said: &Value) -> Counts<u64> {
    let sum = |v: &Value| match v {
        Value::Object(reasons) => Some(reasons.values().filter_map(Value::as_u64).sum()),
        number => number.as_u64(),
    };
    let below = |(of, before)| {
        let numbers = Value::as_object(&said[of]).into_iter().flatten();
        numbers.filter_map(move |(name, v)| Some((format!("{before}{name}"), sum(v)?)))
    };
    [("relay", ""), ("remote", "remote_")].into_iter().flat_map(below).collect()
}

impl SessionStatus {
    /// A word that it told, for a terminal, which no control character reaches.
    fn word(&self, name: &str) -> String {
        match &self.said[name] {
            Value::Null => "-".into(),
            Value::String(text) => text.replace(char::is_control, "?"),
            other => other.to_string(),
        }
    }
}

impl Router {
    /// Reads the answer of `gdrcore-routerctl sessions`.
    pub fn from_answer(place: &str, answer: Result<&str, String>) -> Router {
        let session = |line: &str| {
            let said = serde_json::from_str::<serde_json::Map<_, _>>(line);
            let said = Value::from(said.map_err(|e| e.to_string())?);
            Ok(SessionStatus { counters: counters(&said), said })
        };
        let sessions = answer.and_then(|text| text.lines().map(session).collect());
        Router { place: place.into(), at: Instant::now(), sessions }
    }

    /// Asks a router. `None`: it does not tell, and nobody has named it.
    fn ask(named: Option<&PathBuf>, limit: Duration) -> Option<Router> {
        let place = named.map(|socket| socket.display().to_string()).unwrap_or_default();
        let answer = sessions_of(named, limit);
        let router = Router::from_answer(&place, answer.as_deref().map_err(Clone::clone));
        (named.is_some() || router.sessions.is_ok()).then_some(router)
    }

    /// The changes a second of each session since an earlier look, in the order of the sessions.
    fn changes(&self, before: &[Router]) -> Vec<Counts<f64>> {
        let old = before.iter().find(|old| old.place == self.place);
        let seconds = old.map_or(0.0, |old| self.at.duration_since(old.at).as_secs_f64());
        let none = Vec::new();
        let old = old.and_then(|old| old.sessions.as_ref().ok()).unwrap_or(&none);
        let sessions = self.sessions.iter().flatten();
        let changes = sessions.map(|s| {
            let old = old.iter().find(|o| o.said["session"] == s.said["session"]);
            old.map(|old| rates(&old.counters, &s.counters, seconds)).unwrap_or_default()
        });
        changes.collect()
    }
}

/// What `gdrcore-routerctl sessions` prints, if it does so in time. A router that is stopped, or
/// that others keep busy, does not answer.
fn sessions_of(socket: Option<&PathBuf>, limit: Duration) -> Result<String, String> {
    let ctl = PROGRAMS.iter().find(|p| p.name == "ctl").ok_or("no ctl")?;
    let path = ctl.find().ok_or_else(|| format!("there is no {}", ctl.installed))?;
    let mut command = Command::new(path);
    if let Some(socket) = socket {
        command.arg("--socket").arg(socket);
    }
    command.arg("sessions").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    match output_within(&mut command, limit).map_err(|e| e.to_string())? {
        Some((true, said, _)) => Ok(said),
        Some((false, _, why)) => Err(why.trim().replace(char::is_control, "?")),
        None => Err(format!("no answer within {} s", limit.as_secs_f64())),
    }
}

/// Whether a program succeeds, and what it says, to standard output and to standard error, both
/// pipes. `None`: it was killed, since it did not end in time.
fn output_within(
    command: &mut Command,
    limit: Duration,
) -> io::Result<Option<(bool, String, String)>> {
    let mut child = command.spawn()?;
    let pipes = (child.stdout.take(), child.stderr.take());
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let [mut out, mut err] = [Vec::new(), Vec::new()];
        let _ = pipes.0.map(|mut pipe| pipe.read_to_end(&mut out));
        let _ = pipes.1.map(|mut pipe| pipe.read_to_end(&mut err));
        // Nobody listens any more if it comes late.
        let _ = tell.send([out, err].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
    });
    let said = told.recv_timeout(limit).ok();
    if said.is_none() {
        child.kill()?;
    }
    let is_good = child.wait()?.success();
    Ok(said.map(|[out, err]| (is_good, out, err)))
}

/// All routers that are named, or that of the system, now. Each has `limit` for its answer.
pub fn query(named: &[PathBuf], limit: Duration) -> Vec<Router> {
    if named.is_empty() {
        return Router::ask(None, limit).into_iter().collect();
    }
    std::thread::scope(|s| {
        let ask = |socket| s.spawn(move || Router::ask(Some(socket), limit));
        let asked: Vec<_> = named.iter().map(ask).collect();
        asked.into_iter().filter_map(|one| one.join().ok().flatten()).collect()
    })
}

/// The JSON of each router.
pub fn json(routers: &[Router], before: &[Router]) -> Value {
    let one = |r: &Router| {
        let changes = r.changes(before);
        let sessions = r.sessions.iter().flatten().zip(changes).map(|(session, rates)| {
            let mut said = session.said.clone();
            said["rates"] = json!(rates);
            said
        });
        json!({
            "socket": r.place, "error": r.sessions.as_ref().err(),
            "sessions": sessions.collect::<Vec<_>>(),
        })
    };
    routers.iter().map(one).collect()
}

/// What Prometheus is told of routers: whether each answers, and the counters of its sessions.
pub fn sources(routers: &[Router]) -> impl Iterator<Item = Source<'_>> {
    routers.iter().flat_map(|r| {
        let gauges = vec![("router_answers".into(), u64::from(r.sessions.is_ok()))];
        let own = Source { labels: vec![("router", r.place.clone())], gauges, counters: None };
        let sessions = r.sessions.iter().flatten().map(|s| {
            let names = ["session", "tenant", "address", "program", "pid"];
            let labels = names.iter().map(|&name| (name, s.word(name)));
            Source {
                labels: std::iter::once(("router", r.place.clone())).chain(labels).collect(),
                gauges: Vec::new(),
                counters: Some(("session_", &s.counters)),
            }
        });
        std::iter::once(own).chain(sessions)
    })
}

/// A table for each router.
pub fn text(routers: &[Router], before: &[Router]) -> String {
    let mut text = String::new();
    for r in routers {
        let name = if r.place.is_empty() { "router" } else { &r.place };
        let sessions = match &r.sessions {
            Ok(sessions) => sessions,
            Err(why) => {
                let _ = writeln!(text, "{name}: {why}");
                continue;
            }
        };
        let _ = writeln!(text, "{name}: {} sessions", sessions.len());
        if !sessions.is_empty() {
            let _ = writeln!(
                text,
                "  {:<9} {:<17} {:<22} {:<16} {:>8} {:>9} {:>9} {:>9} {:>9} {:>6}",
                "SESSION",
                "TENANT",
                "ADDRESS",
                "PROGRAM",
                "PID",
                "TX MB/s",
                "RX MB/s",
                "PKT/s",
                "MSG/s",
                "LOST"
            );
        }
        for (s, rates) in sessions.iter().zip(r.changes(before)) {
            let word = |name| s.word(name);
            let rate = |names: &[&str]| -> f64 { names.iter().filter_map(|n| rates.get(*n)).sum() };
            let lost = ["full", "over_rate", "unpaid", "refused"];
            let lost: u64 = lost.iter().filter_map(|n| s.counters.get(*n)).sum();
            let _ = writeln!(
                text,
                "  {:<9} {:<17} {:<22} {:<16} {:>8} {:>9.1} {:>9.1} {:>9.0} {:>9.0} {lost:>6}",
                word("session"),
                word("tenant"),
                word("address"),
                word("program"),
                word("pid"),
                rate(&["tx_bytes"]) / 1e6,
                rate(&["rx_bytes"]) / 1e6,
                rate(&["tx_packets", "rx_packets"]),
                rate(&["remote_posted"]),
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_does_not_end_is_killed() {
        let limit = gdrcore_testkit::patience::limit(30);
        let run = |line: &str, limit| {
            let mut command = Command::new("sh");
            command.args(["-c", line]).stdout(Stdio::piped()).stderr(Stdio::piped());
            output_within(&mut command, limit).expect("a shell")
        };
        let said = |good, out: &str, err: &str| Some((good, out.to_string(), err.to_string()));
        assert_eq!(run("echo a; echo b >&2", limit), said(true, "a\n", "b\n"));
        assert_eq!(run("echo b >&2; exit 3", limit), said(false, "", "b\n"));
        assert_eq!(run("exec sleep infinity", Duration::from_millis(10)), None);
    }
}
