//! Requests without an ACK timeout (code 0), on a device without a deadline of its own. As on a NIC
//! they wait for ever, unless this host knows that the peer's process has ended. It knows that if
//! the link to the process has ended, or if the kernel says that nobody has the peer's UDP port and
//! the witness says that the peer's address is this host's. Probes go on, so that losses are
//! repaired.

use super::conn::Conn;
use super::Transport;
use crate::verbs::cause::CauseCode;
use crate::verbs::objects::Qp;
use crate::verbs::shared::Shared;

/// The ACK timeout of such a request: 146 years, which do not overflow when they are added to the
/// time.
pub(crate) const NEVER_NS: u64 = 1 << 62;
/// Least time between two questions to the witness.
const ASK_NS: u64 = 50_000_000;

impl Qp {
    /// Whether silence alone ends no request of the QP.
    pub(crate) fn is_endless(&self) -> bool {
        self.conn.timeout_ns == NEVER_NS && self.kind.is_reliable()
    }

    pub(super) fn waits_for_peer(&self) -> bool {
        self.conn.req.una_psn != self.conn.req.max_psn
    }
}

impl Transport {
    /// Notes that the process at the other end of a queue pair's link has ended, or that the way to
    /// it has ended for good.
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

    /// Asks the witness, because the network says that nothing listens at the peer's address. That
    /// message may be forged. The witness answers by [`Transport::testify`].
    pub(crate) fn suspect_end(&mut self, now: u64) {
        let cause = &self.qp.cause;
        let asked = cause.code == CauseCode::PeerUnreachable as u32
            && now.saturating_sub(cause.time_ns) < ASK_NS;
        if self.qp.is_endless() && self.common.has_witness && !asked {
            self.common.suspects.set(self.qi);
        }
    }
}
