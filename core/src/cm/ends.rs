//! Peers whose process has ended. A kernel would send DREQs in its place. Here nobody does: a
//! caller that can watch the process notices its end, or the keepalive of the connection's QP does.

use super::conn::State;
use super::Cm;
use crate::config::qpn_block;
use crate::error::Error;
use crate::roce::peer::PeerAddr;

/// What a program hears of a peer that said nothing.
pub(super) const SILENT: i32 = -Error::TimedOut.errno();

impl Cm {
    /// Takes a connection whose peer's process may be watched: its address, and the QPNs there and
    /// here.
    pub fn next_unwatched(&mut self) -> Option<(PeerAddr, u32, u32)> {
        let i = self.unwatched.next_from(0)?;
        self.unwatched.clear(i);
        let id = &self.ids[i];
        Some((id.peer, id.remote_qpn, id.local_qpn))
    }

    /// The peer of a QP was silent until the QP failed. `gone`: it was silent for as long as a DREQ
    /// would be repeated. Otherwise it may live, and is told that the connection is over.
    pub fn peer_silent(&mut self, now: u64, qpn: u32, gone: bool) {
        let is = |i: &usize| {
            let id = &self.ids[*i];
            id.state == State::Established && id.has_peer_qp() && id.local_qpn == qpn
        };
        let of_qp = self.pool.iter_live().find(is);
        match of_qp {
            Some(i) if gone => self.end_lost_peer(now, i),
            Some(i) => self.send_dreq(now, i),
            None => {}
        }
    }

    /// Whether connections have ended since the last call, so that some peers need not be watched
    /// any more.
    pub fn take_ended(&mut self) -> bool {
        core::mem::take(&mut self.has_ended)
    }

    /// Whether there is a connection to the owner of a block of QPNs at an address.
    pub fn is_connected_to(&self, at: &PeerAddr, block: u16) -> bool {
        self.pool.iter_live().any(|i| self.leads_to(i, at, block))
    }

    fn leads_to(&self, i: usize, at: &PeerAddr, block: u16) -> bool {
        let id = &self.ids[i];
        (id.has_peer_qp() || id.state == State::DreqSent)
            && (id.peer.gid, id.peer.port) == (at.gid, at.port)
            && qpn_block(id.remote_qpn) == block
    }

    /// Whether a QPN of this device belongs to a connection whose peer was to be watched.
    pub fn is_managed(&self, qpn: u32) -> bool {
        // A connection that waits to be watched is younger than the end of any watched process.
        let is = |i: usize| {
            !self.unwatched.get(i) && self.ids[i].has_peer_qp() && self.ids[i].local_qpn == qpn
        };
        self.pool.iter_live().any(is)
    }

    /// The owner of a block of QPNs at an address has ended: so have its connections. Connections
    /// that are not watched yet stay: they are those of the block's next owner.
    pub fn peer_ended(&mut self, now: u64, at: &PeerAddr, block: u16) {
        for i in 0..self.ids.len() {
            if self.pool.is_live(i) && !self.unwatched.get(i) && self.leads_to(i, at, block) {
                self.end_lost_peer(now, i);
            }
        }
    }

    /// Ends a connection whose peer is gone.
    pub(super) fn end_lost_peer(&mut self, now: u64, i: usize) {
        match self.ids[i].state {
            State::RepSent | State::RepRcvd => self.fail_exchange(i),
            _ => {
                self.drop_owed(i);
                self.enter_time_wait(now, i, SILENT);
            }
        }
    }
}
