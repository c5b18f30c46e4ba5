//! Why a peer is silent. The transport knows only that nothing has come; the caller of the engine
//! may know more, such as that the peer's process is of the same host, lives, and does not poll. So
//! it is asked before a request fails for want of an answer.

use super::conn::Conn;
use super::peer::{Path, PeerAddr};
use super::Transport;
use crate::verbs::cause::CauseCode;
use crate::verbs::shared::Shared;
use crate::verbs::types::{wc_status, QpAttr};

/// How often the witness is asked, and the shortest and the longest time between two questions.
/// Unread packets may be read soon: on a busy machine a process may have no CPU for a while, and a
/// reader of shared memory reports its position late.
const QUESTIONS: u8 = 10;
const QUESTION_GAP_NS: (u64, u64) = (50_000_000, 500_000_000);

/// A queue pair whose request is about to fail because its peer is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suspect {
    /// Its index.
    pub qi: usize,
    /// The peer.
    pub peer: PeerAddr,
    /// The path to it.
    pub path: Path,
    /// The peer's queue pair, which may have left a receipt; `None`: there is none now.
    pub dest_qpn: Option<u32>,
}

impl Transport {
    /// The next QP whose request is about to fail.
    pub(crate) fn next_suspect(&mut self) -> Option<Suspect> {
        loop {
            let qi = self.common.suspects.next_from(0)?;
            self.common.suspects.clear(qi);
            if !self.is_suspect(qi) {
                continue;
            }
            let qp = &self.qps[qi];
            if let Some(peer) = self.peers.get(qp.conn.peer as usize) {
                let (peer, path) = (peer.addr, peer.path);
                return Some(Suspect { qi, peer, path, dest_qpn: qp.responder_qpn() });
            }
        }
    }

    /// Whether a suspect still waits for an answer. A packet of its peer may have come, or the QP
    /// may have another peer.
    fn is_suspect(&self, qi: usize) -> bool {
        let qp = &self.qps[qi];
        let req = &qp.conn.req;
        let times_out = req.witness_since == req.silent_since && req.ack_deadline != 0;
        let waits = qp.is_endless() && qp.waits_for_peer();
        qp.live && qp.can_send() && (times_out || waits)
    }

    /// Takes the answer about a suspect: the meaning of its silence, if known. The request fails
    /// now; with [`CauseCode::NotPolled`] only after the last check; without an ACK timeout only
    /// with [`CauseCode::PeerUnreachable`].
    pub(crate) fn testify(&mut self, s: &Shared, qi: usize, now: u64, code: Option<CauseCode>) {
        if !self.is_suspect(qi) {
            return;
        }
        if self.qps[qi].is_endless() {
            if code == Some(CauseCode::PeerUnreachable) {
                self.conn(s, qi).fail_path(now, CauseCode::PeerUnreachable, 0);
            }
            return;
        }
        // Who listens at an address may change, so the end of a process does not explain a timeout.
        // A message of the network explains it already, and needs no word of the witness.
        use CauseCode::{NotPolled, PeerUnreachable, Unanswered};
        let since = self.qps[qi].mute_since();
        let known = self.conn(s, qi).explanation(since).map(|(code, ..)| code);
        let said = known.is_some_and(|code| !matches!(code, NotPolled | Unanswered));
        let code = code.filter(|code| !said && *code != PeerUnreachable);
        if let Some(code) = code {
            let qp = &self.qps[qi];
            let (timeout, retries) = (qp.conn.timeout_ns, u64::from(qp.attr.retry_cnt));
            self.conn(s, qi).note(now, code, wc_status::RETRY_EXC_ERR, timeout, retries);
        }
        if code != Some(CauseCode::NotPolled) {
            self.qps[qi].conn.req.witness_looks = QUESTIONS;
            self.conn(s, qi).on_ack_timeout(now);
        }
    }
}

/// The time between two looks: that of all tries of a request, within bounds. A NIC would answer
/// for a process that has no CPU, so a peer whose process lives has ten times as long as a peer of
/// which nothing is known. Without an ACK timeout the device's deadline is the limit.
fn look_ns(timeout_ns: u64, attr: &QpAttr) -> u64 {
    let (least, most) = QUESTION_GAP_NS;
    if attr.timeout == 0 {
        return least;
    }
    timeout_ns.saturating_mul(u64::from(attr.retry_cnt) + 1).clamp(least, most)
}

impl Conn<'_> {
    /// Asks the caller of the engine about a silent peer, before a request fails. The caller
    /// answers by [`Transport::testify`]. False: the caller is not asked, and the timeout goes on.
    #[cold]
    pub(super) fn ask_witness(&mut self, now: u64) -> bool {
        let req = &self.qp.conn.req;
        let last = self.qp.attr.timeout == 0 || req.retry_left == 0;
        let since = req.silent_since;
        let is_new = req.witness_since != since;
        if !last || self.qp.doubts().is_some() {
            return false;
        }
        let wait = look_ns(self.qp.conn.timeout_ns, &self.qp.attr);
        let req = &mut self.qp.conn.req;
        if is_new {
            (req.witness_since, req.witness_looks) = (since, 0);
        }
        if req.witness_looks >= QUESTIONS {
            return false;
        }
        req.witness_looks += 1;
        req.ack_deadline = now.saturating_add(wait);
        self.common.suspects.set(self.qi);
        true
    }
}
