//! UDP ports from which peers may send.

use super::EngineGuard;
use crate::roce::peer::{Path, PeerAddr};

/// Data: the ports of peers.
impl EngineGuard<'_> {
    /// Sets whether queue pairs that get a peer from now on refuse packets from UDP ports other
    /// than the peer's own and those that were allowed for it. That holds for peers that are known
    /// to be soft devices, by [`QpAttr::peer_is_soft`](crate::verbs::types::QpAttr) or by the
    /// messages of the connection manager; other peers may send from any port. Another user of the
    /// peer's host can send from its address, but not from a port that is taken.
    pub fn check_ports(&mut self, on: bool) {
        self.transport.common.check_ports = on;
    }

    /// Whether a port was refused since the last [`EngineGuard::take_refused_port`].
    #[inline]
    pub fn has_refused_port(&self) -> bool {
        self.transport.common.refused_port.is_some()
    }

    /// Takes the latest refused port, and the peer in whose name it sent. The caller may find out
    /// who owns the port.
    pub fn take_refused_port(&mut self) -> Option<(PeerAddr, u16)> {
        self.transport.common.refused_port.take()
    }

    /// Packets of a peer may also come from this UDP port, which replaces the oldest of four.
    /// False: no QP is connected to that peer.
    pub fn allow_port(&mut self, peer: &PeerAddr, port: u16) -> bool {
        let mut found = false;
        let t = &mut self.split().0.transport;
        for i in 0..t.peers.len() {
            let p = &mut t.peers[i];
            if p.refs > 0
                && p.addr.gid == peer.gid
                && p.addr.port == peer.port
                && p.path != Path::Loopback
            {
                found = true;
                if !p.extra_ports.contains(&port) {
                    p.extra_ports.rotate_right(1);
                    p.extra_ports[0] = port;
                }
            }
        }
        found
    }

    /// Undoes [`EngineGuard::allow_port`]: another process may have the port by now.
    pub fn forbid_port(&mut self, peer: &PeerAddr, port: u16) {
        let t = &mut self.split().0.transport;
        for i in 0..t.peers.len() {
            let p = &mut t.peers[i];
            if p.addr.gid == peer.gid && p.addr.port == peer.port {
                p.extra_ports.iter_mut().filter(|l| **l == port).for_each(|l| *l = 0);
            }
        }
    }

    /// The number of ACK timeouts and of requests that came again. If it grows, the peer may refuse
    /// the second port, by which packets left.
    #[inline]
    pub fn loss_signs(&self) -> u32 {
        self.transport.common.loss_signs
    }
}
