//! From which UDP ports a peer of our kind may send.
//!
//! A soft device sends from the port that it has, which nobody else on its host can send from; and
//! to peers of its own host also from the port of a second socket ([`crate::udp`]'s lane). The
//! engine refuses other ports for peers that it knows to be soft devices, and reports one that it
//! has refused. The kernel says whose it is: that of a user who also has the peer's own port is
//! allowed. Only for peers of this host and network namespace, so where no such socket is found
//! nothing is allowed.

use super::endpoint;
use crate::clock::now_ns;
use crate::proc_net::port_owner;
use gdrcore_core::engine::Guard;
use gdrcore_core::roce::peer::PeerAddr;

/// PeerPorts that are asked about at most so often: whoever sends from wrong ports must not keep this
/// process busy.
const ASK_NS: u64 = 10_000_000;
/// Allowed ports are asked about again this often: a port may have been given back, and be
/// another's.
const AGAIN_NS: u64 = 1_000_000_000;
/// PeerPorts that are remembered; the oldest is forbidden when there are more.
const ALLOWED: usize = 8;

/// What is allowed, and when it is looked at next.
#[derive(Default)]
pub(super) struct PeerPorts {
    allowed: [Option<(PeerAddr, u16)>; ALLOWED],
    any: bool,
    ask_at: u64,
    again_at: u64,
}

/// Whether a port of the peer's address belongs to the user who has the peer's own port. Asked
/// twice: the kernel's list is read in pieces, and where sockets come and go between two of them a
/// line may be missing.
fn is_peers(peer: &PeerAddr, port: u16) -> bool {
    let own = endpoint(peer);
    let asked = || {
        port_owner(&own)
            .is_some_and(|user| port_owner(&crate::addr::Endpoint { port, ..own }) == Some(user))
    };
    asked() || asked()
}

impl PeerPorts {
    /// After packets have come: now and then looks again into the ports that are allowed.
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

    /// Looks into the port that was refused. True: it is the peer's, and allowed from here on.
    ///
    /// Cost: that of [`port_owner`], at most once in [`ASK_NS`].
    #[cold]
    pub(super) fn vet(&mut self, g: &mut Guard<'_>) -> bool {
        // The time that the engine goes by may be that of a poll long ago.
        let now = now_ns();
        let Some((peer, port)) = g.refused_port().filter(|_| now >= self.ask_at) else {
            return false;
        };
        self.ask_at = now + ASK_NS;
        if !is_peers(&peer, port) || !g.allow_port(&peer, port) {
            return false;
        }
        if let Some((peer, port)) = self.allowed[ALLOWED - 1] {
            g.forbid_port(&peer, port);
        }
        self.allowed.rotate_right(1);
        self.allowed[0] = Some((peer, port));
        self.any = true;
        true
    }
}
