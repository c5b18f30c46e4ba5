//! Acknowledgements: when the responder owes and sends one, and which state of the requester one
//! resets.

use crate::bitmap::{Bitmap, Few};
use crate::receipt::Receipts;
use crate::roce::conn::Conn;
use crate::roce::peer::{Path, Peer, PROBE_NS};
use crate::roce::{Common, ACK_DELAY_NS, ACK_PACKETS};
use crate::verbs::objects::Qp;
use crate::verbs::req::{PeerReady, Req};
use crate::verbs::resp::rx_block;

/// QPs of an engine that owe an ACK, and when the ACKs leave.
#[derive(Debug)]
pub struct AckQueue {
    /// QPs whose ACK may wait for a packet to leave with.
    pending: Few,
    /// When the first of them must leave, ns; `u64::MAX`: none is pending.
    flush_at: u64,
    /// The QP that owes an ACK to another QP of this engine. The sender looks for it a few
    /// instructions later, so this ACK does not go through `ready`.
    local: Option<usize>,
    /// Where pending ACKs to peers behind the port leave their receipts, if this process can leave
    /// any. Links have receipts of their own.
    pub(crate) receipts: Option<&'static Receipts>,
}

impl AckQueue {
    /// A queue without ACKs.
    pub(crate) fn new(pending: Bitmap) -> AckQueue {
        AckQueue { pending: Few::new(pending), flush_at: u64::MAX, local: None, receipts: None }
    }

    /// When pending ACKs must leave, ns; `u64::MAX`: none is pending.
    #[inline(always)]
    pub(crate) fn flush_at(&self) -> u64 {
        self.flush_at
    }

    /// Whether the ACK of a QP may still wait for a packet to leave with.
    #[inline(always)]
    pub(in crate::roce) fn is_pending(&self, qi: usize) -> bool {
        self.pending.get(qi)
    }

    /// Removes a QP from the pending ones. When none is left, clears `flush_at`, because the next
    /// ACK would inherit the old deadline and leave ahead of the program's reply.
    #[inline(always)]
    pub(in crate::roce) fn forget(&mut self, qi: usize) {
        self.pending.clear(qi);
        if self.pending.is_empty() {
            self.flush_at = u64::MAX;
        }
    }

    /// Lets every pending ACK leave with the next bursts.
    pub(crate) fn flush(&mut self, ready: &mut Bitmap) {
        self.flush_at = u64::MAX;
        while let Some(qi) = self.pending.any() {
            self.pending.clear(qi);
            ready.set(qi);
        }
    }

    /// Takes the QP noted in `local`.
    #[inline(always)]
    pub(crate) fn take_local(&mut self) -> Option<usize> {
        self.local.take()
    }
}

impl Conn<'_> {
    /// Owes an ACK for `packets` packets of the peer that the responder has accepted. `asked`: the
    /// last of them asks for an ACK. The ACK leaves after [`ACK_DELAY_NS`] or `ack_after` packets,
    /// which are bounds of our own. Within the engine it leaves at once: it takes no packet, so
    /// that waiting saves nothing.
    #[inline(always)]
    pub(in crate::roce) fn owe_ack(&mut self, now: u64, packets: u32, asked: bool) {
        let (resp, qi) = (&mut self.qp.conn.resp, self.qi);
        let Common { acks, ready, .. } = &mut *self.common;
        resp.pkts_since_ack = resp.pkts_since_ack.saturating_add(packets);
        if !asked {
            return;
        }
        // rxe rxe_resp.c acknowledge: A packet that asks for an ACK is acknowledged.
        resp.ack_owed = true;
        if self.qp.conn.loopback {
            resp.ack_now = true;
            match acks.local.replace(qi) {
                Some(earlier) if earlier != qi => ready.set(earlier),
                _ => {}
            }
        } else if resp.pkts_since_ack >= resp.ack_after {
            resp.ack_now = true;
            ready.set(qi);
        } else {
            acks.pending.set(qi);
            acks.flush_at = acks.flush_at.min(now + ACK_DELAY_NS);
            if let (Some(receipts), Path::Port) = (acks.receipts, self.peer.path) {
                let former = receipts.leave(self.qp.qpn, resp.ack_psn);
                if former != 0 {
                    self.common.flush_ack_of(former);
                }
            }
        }
    }

    /// Sets when ACKs of a connection that begins may wait. Over a link an ACK may wait, because a
    /// receipt outlives this process. Through the port it waits only if the program is known to
    /// reply. Otherwise it leaves in the round that took the message, before the program has its
    /// completion, because the program may end next, and a peer on another host cannot read the
    /// receipt.
    pub(crate) fn begin_acks(&mut self) {
        if let Some(receipts) = self.common.acks.receipts {
            receipts.forget(self.qp.qpn);
        }
        let waits = matches!(self.peer.path, Path::Link(_));
        self.qp.conn.resp.ack_after = if waits { ACK_PACKETS } else { 1 };
        self.qp.conn.resp.acked_alone = false;
    }

    /// Notes that an ACK leaves without a request of the program.
    pub(in crate::roce) fn note_ack_alone(&mut self) {
        if self.peer.path == Path::Port {
            let resp = &mut self.qp.conn.resp;
            (resp.ack_after, resp.acked_alone) = (1, true);
            // A receipt left here would look valid again after the PSNs wrap.
            if let Some(receipts) = self.common.acks.receipts {
                receipts.forget(self.qp.qpn);
            }
        }
    }

    /// Notes that a request of the program leaves. If an ACK has left alone before it, that ACK
    /// could have waited for the request, so the next ACK waits.
    #[inline(always)]
    pub(in crate::roce) fn note_reply(&mut self) {
        let resp = &mut self.qp.conn.resp;
        if resp.acked_alone {
            (resp.ack_after, resp.acked_alone) = (ACK_PACKETS, false);
        }
    }

    /// Notes that an ACK, or an answer that acknowledges as much, has left. Messages that wait for
    /// slow memory are acknowledged when they have landed.
    #[inline(always)]
    pub(in crate::roce) fn note_ack_left(&mut self) {
        let resp = &mut self.qp.conn.resp;
        resp.ack_owed = resp.is(rx_block::LANDINGS);
        (resp.ack_now, resp.pkts_since_ack) = (false, 0);
        self.common.acks.forget(self.qi);
    }
}

/// Refills the retry counters, and forgets NAKs and rewinds before the oldest unacknowledged PSN of
/// a requester, which has moved.
#[inline(always)]
pub(in crate::roce) fn refill_retries(qp: &mut Qp) {
    // rxe rxe_comp.c reset_retry_counters: Progress refills the counters of retries.
    qp.conn.req.retry_left = qp.attr.retry_cnt;
    qp.conn.req.rnr_left = qp.attr.rnr_retry;
    qp.conn.req.naks = 0;
    qp.conn.req.rewound = None;
    if qp.conn.peer_ready != PeerReady::Yes {
        qp.note_accepted();
    }
}

/// Stops the timers and releases the window of requests, when all sent packets are acknowledged.
/// The caller releases the window of READ responses.
#[inline(always)]
fn release_all(req: &mut Req, peer: &mut Peer) {
    req.ack_deadline = 0;
    req.probe_at = 0;
    // A READ request that the rate limit has cut does not end at a piece's end, and was never
    // subtracted.
    req.rd_out = 0;
    // Packets that were not sent again after a rewind do not count any more.
    peer.tx.on_acked(core::mem::take(&mut req.inflight));
}

/// As [`progress`], when all sent packets are acknowledged and none of them was of a READ.
#[inline(always)]
pub(in crate::roce) fn single_progress(qp: &mut Qp, peer: &mut Peer, now: u64) {
    refill_retries(qp);
    let req = &mut qp.conn.req;
    req.una_psn = req.max_psn;
    req.silent_since = now;
    req.probe_wait = PROBE_NS;
    release_all(req, peer);
}

/// Does [`refill_retries`], and restarts the timers, or stops them if nothing is in flight. `freed`
/// bytes of requests and `read_freed` bytes of READ responses leave the windows. The caller wakes
/// QPs that wait for a window.
#[inline(always)]
pub(in crate::roce) fn progress(
    qp: &mut Qp,
    peer: &mut Peer,
    now: u64,
    freed: u32,
    read_freed: u32,
) {
    refill_retries(qp);
    let req = &mut qp.conn.req;
    req.silent_since = now;
    req.probe_wait = PROBE_NS;
    // Each case releases its windows by itself, because one common release costs a hop 7
    // instructions.
    if req.una_psn == req.max_psn {
        release_all(req, peer);
        let read_freed = core::mem::take(&mut req.read_inflight);
        if read_freed > 0 {
            peer.rx.on_acked(read_freed);
        }
    } else {
        req.ack_deadline = now + qp.conn.timeout_ns;
        req.probe_at = peer.probe_at(now);
        let freed = freed.min(req.inflight);
        let read_freed = read_freed.min(req.read_inflight);
        req.inflight -= freed;
        req.read_inflight -= read_freed;
        peer.tx.on_acked(freed);
        if read_freed > 0 {
            peer.rx.on_acked(read_freed);
        }
    }
}
