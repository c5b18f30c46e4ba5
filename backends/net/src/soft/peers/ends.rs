//! Peers of the connection manager that are processes of this host. They are watched: when one
//! ends, its connections end at once.

use crate::addr_group::Member;
use crate::soft::{endpoint, peer_addr, PortState};
use gdrcore_core::config::qpn_block;
use gdrcore_core::engine::EngineGuard;

impl PortState {
    /// Watches the processes to which there are connections now; others are asked now and then.
    /// Cost: two comparisons if no connection has begun or ended.
    pub(in crate::soft) fn watch_peers(&mut self, g: &mut EngineGuard<'_>, now: u64) {
        // Handles ended processes first, because a new one may have the same block.
        if self.has_gone_peers() {
            return;
        }
        while let Some((peer, qpn, own_qpn)) = g.cm().next_unwatched() {
            let block = qpn_block(qpn);
            let watch = |member: &mut Member| member.watch_peer(&endpoint(&peer), block);
            if !self.member.as_mut().is_some_and(watch) {
                g.cm_begin_keepalive(now, own_qpn);
            }
        }
        let Some(member) = &mut self.member else { return };
        if g.cm().take_ended() {
            let cm = g.cm();
            member.retain_peers(|at, block| cm.is_connected_to(&peer_addr(at), block));
        }
    }

    /// Ends the connections of processes that had ended before the round, in a round that received
    /// nothing. The packets of such a process are handled first, which is why its link is already
    /// closed.
    #[inline]
    pub(in crate::soft) fn end_peers(&mut self, g: &mut EngineGuard<'_>, now: u64) {
        if self.has_gone_peers() {
            self.end_peers_gone(g, now);
        }
    }

    #[cold]
    fn end_peers_gone(&mut self, g: &mut EngineGuard<'_>, now: u64) {
        let PortState { member, shm, schedule, .. } = self;
        let Some(member) = member else { return };
        let is_closed =
            |at: &_, listener| !shm.as_ref().is_some_and(|shm| shm.leads_to(at, listener));
        while let Some((at, block)) = member.take_gone(is_closed) {
            if let Some(receipts) = member.receipts_of(&at, block, true) {
                g.take_port_receipts(now, &peer_addr(&at), &receipts);
            }
            g.cm_peer_ended(now, &peer_addr(&at), block);
        }
        // Links of the other ended processes end when the links are maintained.
        schedule.look_at_links();
    }

    /// Whether a process has ended whose connections have not ended yet.
    pub(in crate::soft) fn has_gone_peers(&self) -> bool {
        self.member.as_ref().is_some_and(Member::has_gone)
    }
}
