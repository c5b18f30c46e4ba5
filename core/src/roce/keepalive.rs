//! Keepalive: an RC queue pair on which nothing happens asks its peer, now and then, whether it is
//! still there.
//!
//! The question is a WRITE of no bytes with the PSN before the next one. Every receiver of the
//! standard takes it for a duplicate, executes nothing and acknowledges again (IBTA C9-105), so
//! neither side's PSNs, queues or memory take part. Any packet of the peer is an answer. Packets
//! pay nothing for the keepalive: a timer compares a counter.

use super::conn::Conn;
use super::peer::Path;
use super::run::Run;
use super::txbuf::TxBuf;
use crate::cm::types::{MAX_RETRIES, RESPONSE_TIMEOUT};
use crate::device::async_event;
use crate::verbs::cause::CauseCode;
use crate::verbs::connection::{Keep, KeepPlan};
use crate::verbs::req::tx_block;
use crate::verbs::types::wc_status;
use crate::verbs::NONE;
use crate::wire::PacketKind;

/// The plan for connections of the connection manager: silence may last as long as its own messages
/// are repeated.
const OF_CM: KeepPlan = KeepPlan {
    first: 1_000_000_000,
    most: 15_000_000_000,
    wait: 4096 << RESPONSE_TIMEOUT,
    tries: MAX_RETRIES as u32 + 1,
    tries_refused: 4,
};

impl Conn<'_> {
    /// Begins to watch a queue pair that has come to RTS, where the configuration asks for it. A
    /// peer in this engine needs no watch.
    pub(crate) fn begin_keepalive(&mut self, now: u64) {
        let every = self.common.config.keepalive_ns;
        let wait = self.qp.conn.timeout_ns.min(every);
        let tries = u32::from(self.qp.attr.retry_cnt) + 1;
        self.watch_by(
            now,
            KeepPlan { first: every, most: every, wait, tries, tries_refused: tries },
        );
    }

    /// Begins to watch the queue pair of a connection of the connection manager, unless it is
    /// watched already.
    pub(crate) fn begin_keepalive_of_cm(&mut self, now: u64) {
        if self.qp.conn.keep.at == 0 && self.qp.can_send() && self.peer.path == Path::Port {
            self.watch_by(now, OF_CM);
        }
    }

    fn watch_by(&mut self, now: u64, plan: KeepPlan) {
        let qp = &mut *self.qp;
        let asks = qp.kind.is_reliable() && qp.kind.has_requester();
        if plan.first != 0 && asks && !qp.conn.loopback && qp.conn.peer != NONE {
            qp.conn.keep = Keep { every: plan.first, plan, ..Keep::default() };
            self.keep_watch(now);
            self.wake_at(self.qp.conn.keep.at);
        }
    }

    /// Sets the time of the next check of a peer that is alive.
    fn keep_watch(&mut self, now: u64) {
        let seen = self.qp.counters.rcvd_pkts;
        let Keep { every, plan, .. } = self.qp.conn.keep;
        let at = now.saturating_add(every);
        self.qp.conn.keep = Keep { at, seen, every, plan, ..Keep::default() };
    }

    /// Checks the peer, at the time `Keep::at`.
    #[cold]
    pub(crate) fn keep_alive(&mut self, now: u64) {
        let qp = &mut *self.qp;
        if !qp.can_send() || qp.conn.req.is(tx_block::FAILED) {
            qp.conn.keep = Keep::default();
            return;
        }
        let heard = qp.counters.rcvd_pkts != qp.conn.keep.seen;
        // While something is unacknowledged the ACK timer judges the peer, if there is one.
        let asks = qp.conn.req.una_psn == qp.conn.req.max_psn;
        if heard || !asks && !qp.is_endless() {
            let Keep { every, plan, tries, .. } = qp.conn.keep;
            // An answer or other traffic has come.
            qp.conn.keep.every = if tries > 0 { (2 * every).min(plan.most) } else { plan.first };
            return self.keep_watch(now);
        }
        if self.is_excused(now) {
            self.qp.conn.keep.tries = 0;
        }
        let Keep { tries, plan, since, every, .. } = self.qp.conn.keep;
        let told = if tries > 0 { self.explanation(since) } else { None };
        let refused = matches!(told, Some((CauseCode::PeerUnreachable, ..)));
        let most = if refused { plan.tries_refused } else { plan.tries };
        if tries >= most {
            let tries = u64::from(tries);
            self.qp.conn.keep = Keep::default();
            let status = wc_status::RETRY_EXC_ERR;
            self.common.silent.set(self.qi);
            match told {
                Some((known, a, b)) => self.note(now, known, status, a, b),
                None => self.note(now, CauseCode::Keepalive, status, every, tries),
            }
            return self.enter_error(Some(async_event::QP_FATAL));
        }
        let qp = &mut *self.qp;
        if tries == 0 {
            qp.conn.keep.since = now;
        }
        qp.conn.keep.tries += 1;
        // A probe asks the same question: both carry the PSN of the newest packet.
        qp.conn.keep.ask = asks;
        qp.conn.keep.at = now.saturating_add(plan.wait.min(every));
        qp.conn.req.set(tx_block::PROBE, true);
        self.common.ready.set(self.qi);
    }

    /// Sends the question. False: the burst had no room.
    #[cold]
    pub(crate) fn transmit_keepalive(&mut self, tx: &mut TxBuf<'_>) -> bool {
        self.qp.conn.keep.ask = false;
        let (to, psn) = (self.qp.attr.dest_qp_num, self.qp.conn.req.next_psn.prev());
        let class = self.qp.kind.class();
        let run = Run { ack_req: true, ..Run::new(class, PacketKind::Write, to, psn) };
        if !tx.emit_bare(&run) {
            self.qp.conn.keep.ask = true;
            return false;
        }
        self.count_sent(1, run.wire_bytes(1, 0));
        self.count(|c| &mut c.keepalives);
        true
    }
}
