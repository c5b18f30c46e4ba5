//! The UDP ports from which a soft device as peer may send.
//!
//! A soft device sends from its own port, from which no other process of its host can send. To
//! peers of its own host it may also send from the port of a connected socket ([`crate::udp`]). The
//! engine refuses other ports of peers that are known to be soft devices, and reports the refused
//! port. Such a port is allowed if its user, by the kernel's list, also has the peer's own port.
//! The list covers this host and network namespace only; every other port stays refused.
//!
//! Strangers who send from many ports must not keep the peer's from being asked about. So where the
//! refused port is not the peer's, the list is searched for sockets of the peer's user that are
//! connected to this device.

use super::endpoint;
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::proc_net::{port_owner, ports_towards};
use gdrcore_core::engine::Guard;
use gdrcore_core::roce::peer::PeerAddr;

/// Least time between two reads of the kernel's list, so that packets from wrong ports do not keep
/// this process busy.
const ASK_NS: u64 = 10_000_000;
/// Allowed ports are checked again this often: a port may have another user by now.
const AGAIN_NS: u64 = 1_000_000_000;
/// Allowed ports that are remembered; a further one replaces the oldest.
const ALLOWED: usize = 8;

/// Allowed ports, and when they are checked next.
#[derive(Default)]
pub(super) struct PeerPorts {
    allowed: [Option<(PeerAddr, u16)>; ALLOWED],
    any: bool,
    ask_at: u64,
    again_at: u64,
}

/// Whether a port of the peer's address belongs to the user of the peer's own port. Reads twice:
/// the kernel returns its list in parts, and a line may be missing while sockets open and close.
fn is_peers(peer: &PeerAddr, port: u16) -> bool {
    let own = endpoint(peer);
    let asked =
        || port_owner(&own).is_some_and(|user| port_owner(&Endpoint { port, ..own }) == Some(user));
    asked() || asked()
}

impl PeerPorts {
    /// After packets came: checks the allowed ports again at intervals.
    #[inline]
    pub(super) fn review(&mut self, g: &mut Guard<'_>, now: u64) {
        if self.any && now >= self.again_at {
            self.look_again(g, now);
        }
    }

    #[cold]
    fn look_again(&mut self, g: &mut Guard<'_>, now: u64) {
        self.again_at = now + AGAIN_NS;
        for slot in &mut self.allowed {
            if let Some((peer, port)) = slot.filter(|(peer, port)| !is_peers(peer, *port)) {
                g.forbid_port(&peer, port);
                *slot = None;
            }
        }
        self.any = self.allowed.iter().any(Option::is_some);
    }

    /// After packets came to the device at `local`: checks the port that the engine refused, if
    /// there is one. Returns true if it is the peer's; it is allowed from now on, and the packets
    /// are to be handled again, because the peer may never repeat them.
    #[inline]
    pub(super) fn vet_refused(&mut self, g: &mut Guard<'_>, local: &Endpoint) -> bool {
        g.has_refused_port() && self.vet(g, local)
    }

    /// Cost: that of [`port_owner`], at most once in [`ASK_NS`], for a port that is not allowed
    /// yet.
    #[cold]
    fn vet(&mut self, g: &mut Guard<'_>, local: &Endpoint) -> bool {
        // The engine's time may be that of an earlier poll.
        let now = now_ns();
        let Some((peer, port)) = g.refused_port() else { return false };
        // It was checked in the last second. The engine knows the ports of a peer only as long as
        // queue pairs are connected to it.
        if self.is_allowed(&peer, port) {
            return g.allow_port(&peer, port);
        }
        if now < self.ask_at {
            return false;
        }
        self.ask_at = now + ASK_NS;
        if is_peers(&peer, port) {
            return self.allow(g, &peer, port);
        }
        for port in ports_towards(&endpoint(&peer), local) {
            if !self.is_allowed(&peer, port) {
                self.allow(g, &peer, port);
            }
        }
        false
    }

    fn is_allowed(&self, peer: &PeerAddr, port: u16) -> bool {
        let is = |(p, of): &(PeerAddr, u16)| (p.gid, p.port, *of) == (peer.gid, peer.port, port);
        self.allowed.iter().flatten().any(is)
    }

    /// False: no queue pair is connected to the peer.
    fn allow(&mut self, g: &mut Guard<'_>, peer: &PeerAddr, port: u16) -> bool {
        if !g.allow_port(peer, port) {
            return false;
        }
        if let Some((peer, port)) = self.allowed[ALLOWED - 1] {
            g.forbid_port(&peer, port);
        }
        self.allowed.rotate_right(1);
        self.allowed[0] = Some((*peer, port));
        self.any = true;
        true
    }
}
