//! Why a peer is silent. The transport knows that nothing has come; whoever runs the engine may
//! know more, such as that the peer's process is of the same host, lives, and does not poll. So it
//! is asked before a request fails for want of an answer.

use super::conn::Conn;
use super::peer::{Path, PeerAddr};
use super::Transport;
use crate::verbs::cause::CauseCode;
use crate::verbs::shared::Shared;
use crate::verbs::types::wc_status;

/// The witness is asked so often, and so long apart. What lies unread at one moment may be read at
/// the next: a process has no CPU for a while on a busy machine, and a reader of shared memory says
/// with some delay how far it is.
const LOOKS: u8 = 10;
const LOOK_NS: u64 = 50_000_000;

impl Transport {
    /// The next QP whose peer is about to be given up, its peer, and how that is reached.
    pub(crate) fn next_suspect(&mut self) -> Option<(usize, PeerAddr, Path)> {
        loop {
            let qi = self.common.suspects.next_from(0)?;
            self.common.suspects.clear(qi);
            let qp = &self.qps[qi];
            // Meanwhile it may have been heard of, or have another peer.
            let stands = qp.live
                && qp.can_send()
                && qp.conn.req.asked == qp.conn.req.silent_since
                && qp.conn.req.ack_deadline != 0;
            if let Some(peer) = self.peers.get(qp.conn.peer as usize).filter(|_| stands) {
                return Some((qi, peer.addr, peer.path));
            }
        }
    }

    /// The answer about a suspect: what its silence means, if that is known. It is given up; with
    /// [`CauseCode::NotPolled`] not before the last look says so, too.
    pub(crate) fn testify(&mut self, s: &Shared, qi: usize, now: u64, code: Option<CauseCode>) {
        if let Some(code) = code {
            let qp = &self.qps[qi];
            let (timeout, retries) = (qp.conn.timeout_ns, u64::from(qp.attr.retry_cnt));
            self.conn(s, qi).note(now, code, wc_status::RETRY_EXC_ERR, timeout, retries);
        }
        if code != Some(CauseCode::NotPolled) {
            self.qps[qi].conn.req.looks = LOOKS;
            self.conn(s, qi).on_ack_timeout(now);
        }
    }
}

impl Conn<'_> {
    /// A peer is about to be given up, and nothing but its silence speaks against it: whoever runs
    /// the engine is asked, and says why it is silent by [`Transport::testify`]. False: it is given
    /// up now.
    #[cold]
    pub(super) fn ask_witness(&mut self, now: u64) -> bool {
        let req = &self.qp.conn.req;
        let last = self.qp.attr.timeout == 0 || req.retry_left == 0;
        let since = req.silent_since;
        let is_new = req.asked != since;
        if !last
            || self.qp.doubts().is_some()
            || is_new && self.explanation(self.qp.mute_since()).is_some()
        {
            return false;
        }
        let req = &mut self.qp.conn.req;
        if is_new {
            (req.asked, req.looks) = (since, 0);
        }
        if req.looks >= LOOKS {
            return false;
        }
        req.looks += 1;
        req.ack_deadline = now.saturating_add(LOOK_NS);
        self.common.suspects.set(self.qi);
        true
    }
}
