//! One queue pair with all that its rules need. It is looked up once, and the transport's functions
//! pass the borrow along.

use super::peer::{Path, Peer};
use super::{Common, Transport};
use crate::counters::Counters;
use crate::verbs::objects::Qp;
use crate::verbs::shared::{QpShared, Shared};

/// A queue pair, its peer, and the state that all queue pairs of the engine share.
///
/// The state machines of RC and UC are its methods, and reach no other queue pair. They note in
/// [`Common`] which others may go on (QPs that wait for a CQ or a window), and the engine takes
/// them from there.
pub(crate) struct Conn<'t> {
    /// Index of the queue pair.
    pub(crate) qi: usize,
    /// The engine's half of it.
    pub(crate) qp: &'t mut Qp,
    /// The half that the program sees.
    pub(crate) q: &'t QpShared,
    /// The record of its peer's address. Without a peer (UD, before RTR): a record that names
    /// nobody and is reached by no path.
    pub(crate) peer: &'t mut Peer,
    /// The half of the engine that the program reaches.
    pub(crate) s: &'t Shared,
    /// State that the queue pairs of the engine share.
    pub(crate) common: &'t mut Common,
}

impl Conn<'_> {
    /// The same borrows for a rare call that is not inlined. The callee gets a value of its own, so
    /// this one may stay in registers.
    #[inline(always)]
    pub(crate) fn reborrow(&mut self) -> Conn<'_> {
        let Conn { qi, qp, q, peer, s, common } = self;
        Conn { qi: *qi, qp, q, peer, s, common }
    }

    /// Whether the peer's silence is no sign of a failure: the port carries nothing, or did not
    /// until recently.
    pub(super) fn is_excused(&self, now: u64) -> bool {
        now < self.common.port_excused && self.peer.path == Path::Port
    }

    /// Counts something once.
    #[inline(always)]
    pub(super) fn count(&mut self, field: impl Fn(&mut Counters) -> &mut u64) {
        *field(&mut self.qp.counters) += 1;
    }
}

impl Transport {
    /// The QP at an index, if it has a peer.
    #[inline(always)]
    pub(crate) fn connected<'t>(&'t mut self, s: &'t Shared, qi: usize) -> Option<Conn<'t>> {
        let Transport { qps, peers, common, .. } = self;
        let (qp, q) = (qps.get_mut(qi)?, s.qps.get(qi)?);
        let peer = peers.get_mut(qp.conn.peer as usize)?;
        debug_assert!(qp.holds_are_true());
        Some(Conn { qi, qp, q, peer, s, common })
    }

    /// The QP at an index, whose peer is a QP of this engine. No window applies between them.
    #[inline(always)]
    pub(super) fn loopback_conn<'t>(&'t mut self, s: &'t Shared, qi: usize) -> Option<Conn<'t>> {
        let Transport { qps, nobody: peer, common, .. } = self;
        let (qp, q) = (qps.get_mut(qi)?, s.qps.get(qi)?);
        Some(Conn { qi, qp, q, peer, s, common })
    }

    /// The QP at an index that is the engine's own: of a table, a bitmap, a timer.
    pub(crate) fn conn<'t>(&'t mut self, s: &'t Shared, qi: usize) -> Conn<'t> {
        let Transport { qps, peers, nobody, common, .. } = self;
        let (qp, q) = (&mut qps[qi], &s.qps[qi]);
        let peer = peers.get_mut(qp.conn.peer as usize).unwrap_or(nobody);
        debug_assert!(qp.holds_are_true() || !qp.live);
        Conn { qi, qp, q, peer, s, common }
    }
}
