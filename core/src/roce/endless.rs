//! Requests without an ACK timeout (code 0), on a device without a deadline of its own. As on a NIC
//! they wait for ever, except where this host knows that the peer's process has ended: the link to
//! it has ended, or the kernel says that nobody has its UDP port, and the witness that its address
//! is this host's. Probes go on, so that a loss is repaired as ever.

use super::conn::Conn;
use super::Transport;
use crate::verbs::cause::CauseCode;
use crate::verbs::objects::Qp;
use crate::verbs::shared::Shared;

/// An ACK timeout that does not come: 146 years, so that a sum with the time does not overflow.
pub(crate) const NEVER_NS: u64 = 1 << 62;
/// Least time between two questions to the witness.
const ASK_NS: u64 = 50_000_000;

impl Qp {
    /// Whether silence alone never ends its requests.
    pub(crate) fn is_endless(&self) -> bool {
        self.conn.timeout_ns == NEVER_NS && self.kind.is_reliable()
    }

    pub(super) fn waits_for_peer(&self) -> bool {
        self.conn.req.una_psn != self.conn.req.max_psn
    }
}

impl Transport {
    /// The process at the other end of the link of a queue pair's peer has ended, or the way to it
    /// has for good.
    pub(crate) fn note_end(&mut self, s: &Shared, qi: usize, now: u64) {
        self.qps[qi].conn.peer_ended = true;
        self.conn(s, qi).end_if_alone(now);
    }
}

impl Conn<'_> {
    /// Fails a request without an ACK timeout whose peer's process has ended.
    pub(crate) fn end_if_alone(&mut self, now: u64) {
        if self.qp.conn.peer_ended && self.qp.is_endless() && self.qp.waits_for_peer() {
            self.fail_path(now, CauseCode::PathLost, 0);
        }
    }

    /// The network says that nothing listens at the peer's address. That may be forged, so the
    /// witness is asked, which answers by [`Transport::testify`].
    pub(crate) fn suspect_end(&mut self, now: u64) {
        let cause = &self.qp.cause;
        let asked = cause.code == CauseCode::PeerUnreachable as u32
            && now.saturating_sub(cause.time_ns) < ASK_NS;
        if self.qp.is_endless() && self.common.has_witness && !asked {
            self.common.suspects.set(self.qi);
        }
    }
}
