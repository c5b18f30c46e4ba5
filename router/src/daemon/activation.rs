//! Sockets that a supervisor has opened and holds, by the protocol of sd_listen_fds(3): LISTEN_FDS
//! descriptors from 3 on, for the process LISTEN_PID. While the router restarts, connections wait
//! in the listener's backlog, and packets of other hosts cause no ICMP error.
//!
//! A socket is identified by the path or address to which it is bound. Its name in LISTEN_FDNAMES
//! is only for messages.

use super::listener::Listener;
use super::note;
use super::sys::{self, Bound, SocketKind};
use gdrcore_net::addr::Endpoint;
use std::os::fd::{OwnedFd, RawFd};
use std::path::Path;

/// The first descriptor.
const FIRST: RawFd = 3;
/// More descriptors than any unit has.
const MOST: RawFd = 4096;

/// The sockets that are not taken yet.
#[derive(Default)]
pub(super) struct Activation(Vec<(Bound, OwnedFd, String)>);

impl Activation {
    /// Takes the sockets of the environment. To be called once, before this process opens any
    /// descriptor of its own.
    pub(super) fn from_environment() -> Activation {
        let of = |name: &str| std::env::var(name).ok()?.parse::<RawFd>().ok();
        let own = of("LISTEN_PID") == i32::try_from(std::process::id()).ok();
        let count = of("LISTEN_FDS").filter(|n| own && (1..=MOST).contains(n)).unwrap_or(0);
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let mut names = names.split(':');
        let mut all = Vec::new();
        for raw in FIRST..FIRST + count {
            let name = names.next().unwrap_or_default().to_string();
            let Some(fd) = sys::given(raw) else {
                note(format_args!("LISTEN_FDS={count}: descriptor {raw} is not open"));
                continue;
            };
            match sys::bound(&fd) {
                Some(bound) => all.push((bound, fd, name)),
                None => note(format_args!(
                    "the socket {name} (descriptor {raw}) is neither a listener of SEQPACKET or \
                     STREAM with a path, nor a UDP socket with an address: it is not used"
                )),
            }
        }
        Activation(all)
    }

    fn take(&mut self, is: impl Fn(&Bound) -> bool) -> Option<OwnedFd> {
        let at = self.0.iter().position(|(bound, ..)| is(bound))?;
        Some(self.0.swap_remove(at).1)
    }

    /// The supervisor's listener at a path, or else a new one ([`Listener::open`]).
    pub(super) fn listen(
        &mut self,
        path: &Path,
        kind: SocketKind,
        mode: u32,
        identifies: bool,
    ) -> Result<Listener, String> {
        match self.take(|bound| matches!(bound, Bound::Path(p, k) if p == path && *k == kind)) {
            Some(fd) => Listener::adopt(path, fd),
            None => Listener::open(path, kind, mode, identifies),
        }
    }

    pub(super) fn udp(&mut self, at: &Endpoint) -> Option<OwnedFd> {
        self.take(|bound| matches!(bound, Bound::Udp(e) if e == at))
    }

    /// Logs the sockets that the policy does not name.
    pub(super) fn complain(&self) {
        for (bound, _, name) in &self.0 {
            note(format_args!(
                "the socket {name} ({bound}) is none of the policy's: it is not used"
            ));
        }
    }
}
