//! Calls by which the device reports its port, its links and its peers: paths, losses, errors.

use super::cm_qps::local_refusal;
use super::EngineGuard;
use crate::config::config_flags;
use crate::roce::peer::{Path, PeerAddr};
use crate::roce::Transport;
use crate::verbs::association::DcPhase;
use crate::verbs::cause::CauseCode;
use crate::verbs::types::wc_status;
use crate::verbs::NONE;

/// Gives the peers behind a link another path.
fn move_peers(t: &mut Transport, link: u16, to: Path) {
    for i in 0..t.peers.len() {
        if t.peers[i].path == Path::Link(link) {
            t.peers[i].path = to;
        }
    }
}

/// Data: paths to peers, and their ends.
impl EngineGuard<'_> {
    /// Lets peers answer through the port what they received over a link, and the other way round:
    /// either side may have failed to get a link.
    pub fn set_mixed_paths(&mut self) {
        self.split().0.transport.common.mixed_paths = true;
    }

    /// Sets the link to the peers that later control calls under this lock name; `None`: the port.
    pub fn set_link(&mut self, link: Option<u16>) {
        self.split().0.link_of_new_peers = link;
    }

    /// Says whether a peer at the engine's own address, in later control calls under this lock, is
    /// another engine. Another engine is reached over the link, or through the port.
    pub fn set_own_address_remote(&mut self, remote: bool) {
        self.split().0.own_address_is_remote = remote;
    }

    /// Sets whether other engines share this one's address. Datagrams to their QPNs, and messages
    /// of the connection manager for them, then leave through the port.
    pub fn set_address_shared(&mut self, shared: bool) {
        self.split().0.address_is_shared = shared;
    }

    /// Sets whether a WRITE of few packets leaves the port as a WRITE for each packet, which makes
    /// a long burst of them. For a port that segments bursts.
    pub fn divide_writes(&mut self, on: bool) {
        self.transport.common.divides_writes = on;
    }

    /// Notes that the port sends even the packets of a burst one by one, each with the IPv4
    /// identification 0. Without this call the packets of a burst count from 0 on.
    pub fn set_idents_zero(&mut self) {
        self.split().0.idents_are_zero = true;
    }

    /// Whether a QPN is of this engine's block.
    #[inline]
    pub fn owns(&self, qpn: u32) -> bool {
        self.transport.common.owns(qpn)
    }

    /// Gives up a link that is gone: its connected QPs fail with [`CauseCode::PathLost`], and
    /// datagrams to it are lost. The link's number may be used again. With
    /// [`config_flags::SILENT_LOSS`] it does what [`EngineGuard::link_ended`] does.
    pub fn link_lost(&mut self, now: u64, link: u16) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        if t.common.config.flags & config_flags::SILENT_LOSS != 0 {
            for qi in 0..t.qps.len() {
                let peer = t.peers.get(t.qps[qi].conn.peer as usize);
                if t.qps[qi].live && peer.is_some_and(|p| p.path == Path::Link(link)) {
                    t.note_end(s, qi, now);
                }
            }
            return self.link_ended(link);
        }
        move_peers(t, link, Path::Lost);
        for qi in 0..t.qps.len() {
            let qp = &t.qps[qi];
            if qp.live && qp.conn.peer != NONE && t.peers[qp.conn.peer as usize].path == Path::Lost
            {
                t.conn(s, qi).fail_path(now, CauseCode::PathLost, 0);
            }
            t.note_path(s, qi);
            t.common.ready.set(qi);
        }
    }

    /// The link that [`EngineGuard::set_link`] has set.
    pub fn link(&self) -> Option<u16> {
        self.link_of_new_peers
    }

    /// Moves the traffic of a link that is gone to the port. If no process answers there, requests
    /// end by their timers. The link's number may be used again.
    pub fn link_ended(&mut self, link: u16) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        move_peers(t, link, Path::Port);
        for qi in 0..t.qps.len() {
            t.note_path(s, qi);
            t.common.ready.set(qi);
        }
    }

    /// Notes that the port cannot reach an address, as the cause of its QPs with requests in
    /// flight, whose retry counters end them. `errno`: the system's. Only for refusals that last
    /// (no socket there, no route).
    pub fn peer_unreachable(&mut self, now: u64, dst: &PeerAddr, errno: i32) {
        self.note_peer_error(now, dst, CauseCode::PeerUnreachable, errno as u64, 0);
        self.cm_refused(dst, errno, false);
    }

    /// As [`EngineGuard::peer_unreachable`], but the peer's socket exists on this host: a firewall
    /// of this host rejects packets in its name.
    pub fn peer_rejected(&mut self, now: u64, dst: &PeerAddr, errno: i32) {
        self.note_peer_error(now, dst, CauseCode::Firewall, errno as u64, 0);
        self.cm_refused(dst, errno, false);
    }

    /// Notes that the kernel refuses to send to an address, as [`EngineGuard::peer_unreachable`]
    /// does. If the refusal lasts, a connection attempt to the address ends at once.
    pub fn port_error(&mut self, now: u64, dst: &PeerAddr, errno: i32) {
        let code = local_refusal(errno);
        self.note_peer_error(now, dst, code, errno as u64, 0);
        if code != CauseCode::Socket {
            self.cm_refused(dst, errno, true);
        }
    }

    /// Notes that a packet to an address was larger than its path carries.
    pub fn peer_mtu_exceeded(&mut self, now: u64, dst: &PeerAddr, link_mtu: u32) {
        self.note_peer_error(now, dst, CauseCode::MtuExceeded, 0, u64::from(link_mtu));
    }

    fn note_peer_error(&mut self, now: u64, dst: &PeerAddr, code: CauseCode, arg0: u64, arg1: u64) {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        for qi in 0..t.qps.len() {
            let qp = &t.qps[qi];
            if !qp.live || !qp.kind.is_connected() || qp.conn.peer == NONE {
                continue;
            }
            let addr = t.peers[qp.conn.peer as usize].addr;
            let opens = qp.dci.first().is_some_and(|a| a.phase == DcPhase::Opening);
            let waits =
                qp.conn.req.una_psn != qp.conn.req.max_psn || qp.conn.keep.tries > 0 || opens;
            if addr.gid != dst.gid || addr.port != dst.port || !waits {
                continue;
            }
            // The cause is a hint only, because the peer may be starting. The retry counter ends
            // the operation, and the cause explains it.
            let arg0 = if code == CauseCode::MtuExceeded { u64::from(qp.conn.mtu) } else { arg0 };
            let mut c = t.conn(s, qi);
            if code == CauseCode::PeerUnreachable {
                // A firewall of this host that rejects outgoing packets causes the same error.
                let since = c.qp.conn.req.silent_since;
                if matches!(c.explanation(since), Some((CauseCode::Firewall, ..))) {
                    continue;
                }
                c.suspect_end(now);
            }
            c.note(now, code, wc_status::RETRY_EXC_ERR, arg0, arg1);
        }
    }

    /// Sets the most segments per burst to an address (1 where the link refuses segmentation
    /// offload).
    pub fn limit_segments(&mut self, dst: &PeerAddr, max_seg: u16) {
        let t = &mut self.split().0.transport;
        for i in 0..t.peers.len() {
            let p = &mut t.peers[i];
            if p.refs > 0 && p.addr.gid == dst.gid && p.addr.port == dst.port {
                p.max_seg = max_seg.max(1);
            }
        }
    }
}
