//! The counters over HTTP, in the text format of Prometheus (version 0.0.4), and whether the router
//! lives (`/healthz`) and is ready for sessions (`/readyz`): one answer a connection. No call
//! blocks.
//!
//! Clients cannot disturb the router. Only those that the policy names get an answer; others'
//! connections are closed. Connections are few, and a new one ends the oldest of the address that
//! has most, so that no address keeps another from asking. Each has a few seconds and a small
//! request. The number of times that counters are told in a second is limited.

use super::sys::{self, Epoll, Ready};
use crate::policy::{gid_of, Cidr, Tenant};
use crate::rate::Rate;
use crate::relay::{Counters, Refused};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Connections at a time.
const CLIENTS: usize = 8;
/// Bytes of a request.
const REQUEST_MAX: usize = 4096;
/// Time limit of a connection in nanoseconds.
const PATIENCE_NS: u64 = 5_000_000_000;
/// Answers with counters in a second.
const ANSWERS: u32 = 50;

/// A connection.
struct Client {
    fd: OwnedFd,
    /// Its address, as a GID.
    peer: [u8; 16],
    since: u64,
    request: Vec<u8>,
    /// Empty until the request is complete.
    answer: Vec<u8>,
    sent: usize,
}

/// The socket, and the connections by their tokens.
pub(super) struct Metrics {
    listener: OwnedFd,
    at: SocketAddr,
    clients: BTreeMap<u64, Client>,
    rate: Rate,
}

/// The meaning of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// It is incomplete.
    More,
    Counters,
    /// Whether the router lives.
    Health,
    /// Whether it is ready for sessions.
    Ready,
    /// Another path.
    Unknown,
    /// Another method than GET, or a malformed request.
    Other,
}

fn asked(request: &[u8]) -> Asked {
    let has = |end: &[u8]| request.windows(end.len()).any(|w| w == end);
    if !has(b"\r\n\r\n") && !has(b"\n\n") {
        return Asked::More;
    }
    let line = request.split(|&b| b == b'\r' || b == b'\n').next().unwrap_or_default();
    let mut words = line.split(|&b| b == b' ');
    let path = match (words.next(), words.next(), words.next()) {
        (Some(b"GET"), Some(path), Some(version)) if version.starts_with(b"HTTP/1.") => path,
        _ => return Asked::Other,
    };
    match path {
        b"/metrics" => Asked::Counters,
        b"/healthz" => Asked::Health,
        b"/readyz" => Asked::Ready,
        _ => Asked::Unknown,
    }
}

fn answer(status: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

impl Metrics {
    /// Listens.
    ///
    /// # Errors
    /// In words.
    pub(super) fn open(
        at: SocketAddr,
        now: u64,
        epoll: &Epoll,
        token: u64,
    ) -> Result<Self, String> {
        let said = |e: io::Error| format!("metrics {at}: {e}");
        let listener = TcpListener::bind(at).map_err(said)?;
        listener.set_nonblocking(true).map_err(said)?;
        let listener = OwnedFd::from(listener);
        epoll.add(listener.as_fd(), token).map_err(said)?;
        Ok(Metrics { listener, at, clients: BTreeMap::new(), rate: Rate::new(now, ANSWERS) })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.at
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Adds a connection, if its address is one of `from`. Tokens grow, so the first is the
    /// oldest's.
    pub(super) fn let_in(
        &mut self,
        fd: OwnedFd,
        from: &[Cidr],
        now: u64,
        token: u64,
        epoll: &Epoll,
    ) {
        let stream = TcpStream::from(fd);
        let Ok(peer) = stream.peer_addr().map(|at| gid_of(at.ip())) else { return };
        if !from.iter().any(|range| range.contains(&peer)) {
            return;
        }
        if self.clients.len() >= CLIENTS {
            let oldest = oldest(self.clients.iter().map(|(&token, c)| (token, c.peer)), peer);
            oldest.map(|token| self.clients.remove(&token));
        }
        let fd = OwnedFd::from(stream);
        if epoll.add(fd.as_fd(), token).is_ok() {
            let (request, answer) = (Vec::new(), Vec::new());
            self.clients.insert(token, Client { fd, peer, since: now, request, answer, sent: 0 });
        }
    }

    /// Reads and writes without blocking. `text` makes the counters' text; `ready`: why the router
    /// takes no session, if it takes none.
    pub(super) fn serve(
        &mut self,
        r: &Ready,
        now: u64,
        epoll: &Epoll,
        text: impl Fn() -> String,
        ready: Result<(), &str>,
    ) {
        let Some(mut client) = self.clients.remove(&r.token) else { return };
        // Also reads bytes after the request: otherwise epoll would report them again and again.
        if r.read && !client.read() {
            return;
        }
        if client.answer.is_empty() {
            client.answer = match asked(&client.request) {
                Asked::More => Vec::new(),
                // Without a limit: a supervisor ends what does not answer, and answers are short.
                Asked::Health => answer("200 OK", "ok\n"),
                Asked::Ready => match ready {
                    Ok(()) => answer("200 OK", "ready\n"),
                    Err(why) => answer("503 Service Unavailable", &format!("{why}\n")),
                },
                Asked::Counters if !self.rate.take(now) => answer("429 Too Many Requests", ""),
                Asked::Counters => answer("200 OK", &text()),
                Asked::Unknown => answer("404 Not Found", "/metrics, /healthz, /readyz\n"),
                Asked::Other => answer("405 Method Not Allowed", ""),
            };
        }
        let waits = !client.answer.is_empty();
        if client.write() && epoll.want_write(client.fd.as_fd(), r.token, waits).is_ok() {
            self.clients.insert(r.token, client);
        }
    }

    /// The time at which the next connection has taken too long.
    pub(super) fn deadline(&self) -> Option<u64> {
        self.clients.values().map(|c| c.since.saturating_add(PATIENCE_NS)).min()
    }

    /// Ends connections that have taken too long.
    pub(super) fn tick(&mut self, now: u64) {
        self.clients.retain(|_, c| now.saturating_sub(c.since) < PATIENCE_NS);
    }
}

/// The connection that makes room for one of `newcomer`: the oldest of the address that has most,
/// the newcomer counted in. `all`: tokens and addresses, the oldest first.
fn oldest(all: impl Iterator<Item = (u64, [u8; 16])> + Clone, newcomer: [u8; 16]) -> Option<u64> {
    let count =
        |peer| all.clone().filter(|(_, p)| *p == peer).count() + usize::from(peer == newcomer);
    let most = all.clone().map(|(_, peer)| count(peer)).max()?;
    all.clone().find(|(_, peer)| count(*peer) == most).map(|(token, _)| token)
}

impl Client {
    /// False: it is over.
    fn read(&mut self) -> bool {
        let mut bytes = [0; REQUEST_MAX];
        match sys::read(&self.fd, &mut bytes) {
            Ok(n @ 1..) => self.request.extend_from_slice(&bytes[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            _ => return false,
        }
        self.request.len() <= REQUEST_MAX
    }

    /// False: it is over.
    fn write(&mut self) -> bool {
        while self.sent < self.answer.len() {
            match sys::write(&self.fd, &self.answer[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        self.answer.is_empty()
    }
}

/// The text: sessions, limits and counters of each tenant. Names of tenants and networks have no
/// character that a label must escape.
pub(super) fn text(all: &[(Tenant, usize, Option<&Counters>)]) -> String {
    let mut out = String::new();
    let mut family = |name: &str, kind: &str, help: &str, rows: Vec<(String, u64)>| {
        let _ = writeln!(out, "# HELP gdrcore_router_{name} {help}");
        let _ = writeln!(out, "# TYPE gdrcore_router_{name} {kind}");
        for (labels, n) in rows {
            let _ = writeln!(out, "gdrcore_router_{name}{{{labels}}} {n}");
        }
    };
    let who = |t: &Tenant| format!("tenant=\"{}\",network=\"{}\"", t.name, t.network);
    let rows = |value: &dyn Fn(&Tenant, usize) -> Option<u64>| {
        let row = |(t, n, _): &(Tenant, usize, _)| Some((who(t), value(t, *n)?));
        all.iter().filter_map(row).collect::<Vec<_>>()
    };
    family("sessions", "gauge", "Sessions.", rows(&|_, n| Some(n as u64)));
    let help = "Bytes a second that it may send; absent: any.";
    family("tx_rate_bytes", "gauge", help, rows(&|t, _| t.limits.tx_rate));
    let help = "Bytes a second that it may be sent; absent: any.";
    family("rx_rate_bytes", "gauge", help, rows(&|t, _| t.limits.rx_rate));
    let count = |of: &dyn Fn(&Counters) -> &AtomicU64, more: &str| {
        let row = |(t, _, c): &(Tenant, usize, Option<&Counters>)| {
            Some((format!("{}{more}", who(t)), of((*c)?).load(Ordering::Relaxed)))
        };
        all.iter().filter_map(row).collect::<Vec<_>>()
    };
    for (name, help, of) in Counters::NAMED {
        family(&format!("{name}_total"), "counter", help, count(&of, ""));
    }
    let refused = Refused::ALL.iter().flat_map(|&why| {
        count(&|c| &c.refused[why as usize], &format!(",reason=\"{}\"", why.name()))
    });
    family("refused_total", "counter", "Packets refused.", refused.collect());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{tenant_of_uid, Limits};
    use crate::relay::Slots;

    #[test]
    fn requests_are_to_read_one_path() {
        assert_eq!(asked(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"), Asked::Counters);
        assert_eq!(asked(b"GET /metrics HTTP/1.0\n\n"), Asked::Counters);
        for whole in [&b""[..], b"GET", b"GET /metrics HTTP/1.1\r\n", b"\r\n\r"] {
            assert_eq!(asked(whole), Asked::More);
        }
        assert_eq!(asked(b"GET /healthz HTTP/1.1\r\n\r\n"), Asked::Health);
        assert_eq!(asked(b"GET /readyz HTTP/1.1\r\n\r\n"), Asked::Ready);
        assert_eq!(asked(b"GET / HTTP/1.1\r\n\r\n"), Asked::Unknown);
        for other in [&b"\n\n"[..], b"POST /metrics HTTP/1.1\n\n", b"GET /metrics\n\n", b"\xff\n\n"]
        {
            assert_eq!(asked(other), Asked::Other);
        }
        let text = String::from_utf8(answer("200 OK", "body")).unwrap();
        assert!(text.contains("Content-Length: 4\r\n") && text.ends_with("\r\n\r\nbody"));
    }

    #[test]
    fn who_has_most_connections_makes_room() {
        let oldest = |peers: &[u8], newcomer: u8| {
            let all = peers.iter().enumerate().map(|(k, &p)| (k as u64, [p; 16]));
            super::oldest(all, [newcomer; 16])
        };
        assert_eq!(oldest(&[1, 2, 2, 2, 3], 1), Some(1));
        assert_eq!(oldest(&[1, 2, 2, 2, 3], 2), Some(1));
        assert_eq!(oldest(&[9, 1, 2, 1, 2], 1), Some(1), "the newcomer counts");
        assert_eq!(oldest(&[1, 2, 3], 4), Some(0), "the oldest of equals");
        assert_eq!(oldest(&[], 4), None);
    }

    #[test]
    fn the_text_has_a_line_for_each_number_of_a_tenant() {
        let slots = Slots::default();
        slots.tenant(3).tx.1.store(77, Ordering::Relaxed);
        slots.tenant(3).refused[Refused::Policy as usize].store(5, Ordering::Relaxed);
        let limits = Limits { tx_rate: Some(1000), ..Limits::NONE };
        let limited = Tenant { limits, ..tenant_of_uid(7) };
        let all = [(limited, 2, Some(slots.tenant(3))), (tenant_of_uid(8), 0, None)];
        let text = text(&all);
        let label = "tenant=\"uid-7\",network=\"default\"";
        for line in [
            format!("gdrcore_router_sessions{{{label}}} 2"),
            "gdrcore_router_sessions{tenant=\"uid-8\",network=\"default\"} 0".into(),
            format!("gdrcore_router_tx_rate_bytes{{{label}}} 1000"),
            format!("gdrcore_router_tx_bytes_total{{{label}}} 77"),
            format!("gdrcore_router_refused_total{{{label},reason=\"policy\"}} 5"),
        ] {
            assert_eq!(text.lines().filter(|l| *l == line).count(), 1, "{line}\n{text}");
        }
        // A tenant that never had a session has no counters.
        assert!(!text.contains("tx_bytes_total{tenant=\"uid-8\""));
        for line in text.lines() {
            let number = || line.rsplit(' ').next().is_some_and(|n| n.parse::<u64>().is_ok());
            assert!(line.starts_with("# ") || number(), "{line}");
        }
    }
}
