//! Notifies a supervisor such as systemd by the protocol of sd_notify(3): ready, watchdog,
//! stopping. Each is a datagram of text to the socket that NOTIFY_SOCKET names.

use gdrcore_net::clock::now_ns;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The supervisor, if there is one.
pub(super) struct Supervised {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// Interval of watchdog messages, and the time of the next; 0: none are wanted.
    every: u64,
    next: u64,
}

/// The address of a name: a path, or after '@' an abstract name.
fn address(name: &[u8]) -> Option<SocketAddr> {
    match name.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name).ok(),
        None => SocketAddr::from_pathname(std::ffi::OsStr::from_bytes(name)).ok(),
    }
}

impl Supervised {
    pub(super) fn from_environment() -> Supervised {
        let name = std::env::var_os("NOTIFY_SOCKET").map(OsStringExt::into_vec);
        let of = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let own = of("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
        let us = of("WATCHDOG_USEC").filter(|_| own).unwrap_or(0);
        Supervised::new(name.as_deref(), us)
    }

    /// `us`: the time in microseconds after which the supervisor regards a silent router as dead.
    fn new(name: Option<&[u8]>, us: u64) -> Supervised {
        let to = name.filter(|name| !name.is_empty()).and_then(address);
        let socket = UnixDatagram::unbound().ok().zip(to).filter(|(socket, _)| {
            // So that the router does not wait for a supervisor that does not read.
            socket.set_nonblocking(true).is_ok()
        });
        let every = if socket.is_some() { us.saturating_mul(1000) / 2 } else { 0 };
        Supervised { socket, every, next: 0 }
    }

    fn say(&self, text: &str) {
        if let Some((socket, to)) = &self.socket {
            let _ = socket.send_to_addr(text.as_bytes(), to);
        }
    }

    /// The router serves.
    pub(super) fn ready(&mut self) {
        self.say("READY=1");
        self.tick(now_ns());
    }

    /// The router is about to end.
    pub(super) fn stopping(&self) {
        self.say("STOPPING=1");
    }

    /// Sends a watchdog message, if it is due.
    pub(super) fn tick(&mut self, now: u64) {
        if self.every > 0 && now >= self.next {
            self.next = now.saturating_add(self.every);
            self.say("WATCHDOG=1");
        }
    }

    /// The time of the next [`Supervised::tick`].
    pub(super) fn deadline(&self) -> Option<u64> {
        (self.every > 0).then_some(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(socket: &UnixDatagram) -> Vec<String> {
        socket.set_nonblocking(true).unwrap();
        let mut all = Vec::new();
        let mut buffer = [0; 64];
        while let Ok(n) = socket.recv(&mut buffer) {
            all.push(String::from_utf8(buffer[..n].to_vec()).unwrap());
        }
        all
    }

    #[test]
    fn a_supervisor_is_told_by_path_and_by_abstract_name() {
        let path = std::env::temp_dir().join(format!("gdrc-notify-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let at_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("gdrc-notify-{}", std::process::id());
        let at_name =
            UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, name) in
            [(&at_path, path.to_str().unwrap().to_string()), (&at_name, format!("@{name}"))]
        {
            let mut s = Supervised::new(Some(name.as_bytes()), 2_000_000);
            s.ready();
            assert_eq!(lines(socket), ["READY=1", "WATCHDOG=1"]);
            let next = s.deadline().unwrap();
            s.tick(next - 1);
            assert!(lines(socket).is_empty());
            s.tick(next);
            assert_eq!(
                (lines(socket), s.deadline()),
                (vec!["WATCHDOG=1".into()], Some(next + 1_000_000_000))
            );
            s.stopping();
            assert_eq!(lines(socket), ["STOPPING=1"]);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn without_a_supervisor_nothing_is_due() {
        for name in [None, Some(&b""[..]), Some(b"/nowhere/at/all")] {
            let mut s = Supervised::new(name, 0);
            s.ready();
            s.tick(1);
            s.stopping();
            assert_eq!(s.deadline(), None);
        }
    }
}
