//! Packets out, loopback, and time.

use core::sync::atomic::Ordering;

use super::{Guard, Inner};
use crate::roce::peer::PeerAddr;
use crate::roce::run::Run;
use crate::roce::txbuf::{Framing, TxBuf};
use crate::roce::{Origin, Sent};
use crate::verbs::cause::CauseCode;
use crate::verbs::objects::NONE;
use crate::verbs::shared::Shared;
use crate::verbs::types::{qp_state, qp_type, wc_status};

/// A burst that waits in the port's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Where it goes.
    pub dst: PeerAddr,
    /// Bytes.
    pub len: usize,
    /// Bytes of each packet but the last, which may be shorter.
    pub seg: usize,
}

impl Inner {
    /// Collects the QPs that posts have marked.
    #[inline]
    fn absorb(&mut self, s: &Shared, now: u64) {
        let t = &mut self.transport;
        if s.active.any() {
            s.active.drain(|qi| {
                t.ready.set(qi);
            });
        }
        if s.room.load(Ordering::Relaxed) && s.room.swap(false, Ordering::SeqCst) {
            t.retry_full(s, now);
        }
    }

    fn flush_acks(&mut self) {
        let t = &mut self.transport;
        t.ack_flush_at = u64::MAX;
        while let Some(qi) = t.ack_pending.next_from(0) {
            t.ack_pending.clear(qi);
            t.ready.set(qi);
        }
    }

    /// Posts on a QP in ERR or SQE are flushed, not sent. True: it was such a QP.
    #[inline]
    fn flush_if_failed(&mut self, s: &Shared, qi: usize) -> bool {
        let t = &mut self.transport;
        match t.qps[qi].state {
            qp_state::ERR => t.flush(s, qi),
            qp_state::SQE => t.flush_sq(s, qi),
            _ => return false,
        }
        true
    }
}

impl Guard<'_> {
    /// Writes the next burst into `buf`: headers, payload (copied once) and ICRC. `None`: nothing to send now.
    ///
    /// `buf` must hold one packet of the largest MTU (4,160 bytes); 65,000 bytes is as much as is used.
    pub fn poll_transmit(&mut self, now: u64, buf: &mut [u8]) -> Option<Burst> {
        let (inner, s) = self.split();
        inner.absorb(s, now);
        if now >= inner.transport.ack_flush_at {
            inner.flush_acks();
        }
        if inner.transport.ready.is_empty() {
            return None;
        }
        let mut tx = TxBuf::new(buf, Framing::Packets, inner.rx_flow.1);
        let mut seen_first = NONE as usize;
        let mut at = inner.cursor;
        while let Some(qi) = inner.transport.ready.next_from(at) {
            if qi == seen_first {
                break;
            }
            if seen_first == NONE as usize {
                seen_first = qi;
            }
            at = qi + 1;
            inner.transport.ready.clear(qi);
            match inner.transport.transmit(s, qi, &mut tx, now) {
                Sent::Idle => {
                    inner.flush_if_failed(s, qi);
                    if seen_first == qi {
                        seen_first = NONE as usize;
                    }
                }
                Sent::Full => {
                    inner.transport.ready.set(qi);
                    if !tx.is_empty() {
                        break;
                    }
                }
                Sent::OtherPath => inner.transport.ready.set(qi),
            }
        }
        inner.cursor = at;
        if tx.is_empty() {
            return None;
        }
        let peer = &inner.transport.peers[tx.peer() as usize];
        Some(Burst { dst: peer.addr, len: tx.len(), seg: tx.seg() })
    }

    /// Moves everything between QPs of this engine, until nothing moves or `rounds` runs were handled.
    /// Returns the runs handled.
    pub fn run_loopback(&mut self, now: u64, rounds: usize) -> usize {
        let (inner, s) = self.split();
        inner.absorb(s, now);
        let mut handled = 0;
        let mut scratch = core::mem::take(&mut inner.scratch);
        let from = Origin { gid: inner.local.gid, loopback: true };
        let mut at = 0;
        let mut skipped = NONE as usize;
        while let Some(qi) = inner.transport.ready.next_from(at) {
            let t = &mut inner.transport;
            if qi == skipped {
                break;
            }
            at = qi + 1;
            if t.qps[qi].kind != qp_type::UD && !t.is_loopback(qi) {
                if skipped == NONE as usize {
                    skipped = qi;
                }
                continue;
            }
            t.ready.clear(qi);
            let mut tx = TxBuf::new(&mut scratch, Framing::Records, inner.rx_flow.1);
            let sent = t.transmit(s, qi, &mut tx, now);
            if sent == Sent::Idle {
                inner.flush_if_failed(s, qi);
            } else {
                inner.transport.ready.set(qi);
            }
            if tx.is_empty() {
                if sent != Sent::Idle && skipped == NONE as usize {
                    skipped = qi;
                }
                continue;
            }
            skipped = NONE as usize;
            let mut data = tx.bytes();
            while let Ok((run, payload, rest)) = Run::parse_record(data) {
                inner.transport.handle_run(s, now, &from, &run, payload);
                handled += 1;
                data = rest;
            }
            if handled >= rounds {
                break;
            }
        }
        inner.scratch = scratch;
        handled
    }

    /// Lets every owed ACK leave with the next bursts: the caller found nothing else to do.
    pub fn flush_acks(&mut self) {
        self.split().0.flush_acks();
    }

    /// Whether `poll_transmit` or `run_loopback` may have something.
    pub fn has_work(&mut self) -> bool {
        let (inner, s) = self.split();
        s.active.any() || s.room.load(Ordering::Relaxed) || !inner.transport.ready.is_empty()
    }

    /// Runs the timers that are due. Call it only when nothing is waiting to be received: a process that
    /// was stopped must hear its peers before it declares them silent.
    pub fn handle_timeout(&mut self, now: u64) {
        let (inner, s) = self.split();
        while let Some(qi) = inner.transport.wheel.pop_expired(now) {
            inner.transport.on_timer(s, qi, now);
        }
        if now >= inner.transport.ack_flush_at {
            inner.flush_acks();
        }
        if !inner.transport.mem_wait.is_empty() {
            inner.transport.poll_memory(s, now);
        }
    }

    /// Asks slow memory after what QPs wait for.
    pub fn poll_memory(&mut self, now: u64) {
        let (inner, s) = self.split();
        if !inner.transport.mem_wait.is_empty() {
            inner.transport.poll_memory(s, now);
        }
    }

    /// When `handle_timeout` is wanted next; `None`: only after something else has happened.
    pub fn next_timeout(&mut self, now: u64) -> Option<u64> {
        let t = &self.split().0.transport;
        let mut at = t.wheel.next_deadline().unwrap_or(u64::MAX).min(t.ack_flush_at);
        if !t.mem_wait.is_empty() {
            // Slow memory has no interrupt: look again soon.
            at = at.min(now + 20_000);
        }
        (at != u64::MAX).then_some(at)
    }

    /// The port could not reach an address: its QPs with requests under way fail with the cause.
    /// `errno` as the system gave it. Only for refusals that last (nothing listens, no route).
    pub fn peer_unreachable(&mut self, now: u64, dst: &PeerAddr, errno: i32) {
        self.fail_peer(now, dst, CauseCode::PeerUnreachable, errno as u64, 0);
    }

    /// The port could not send to an address at all; noted as the last cause, the retry counters do the rest.
    pub fn port_error(&mut self, now: u64, dst: &PeerAddr, errno: i32) {
        self.fail_peer(now, dst, CauseCode::Socket, errno as u64, 0);
    }

    /// Whether an armed CQ has an event or an asynchronous event waits.
    pub fn has_events(&mut self) -> bool {
        let (inner, s) = self.split();
        let t = &inner.transport;
        s.cq_events.any() || !t.event_qps.is_empty() || (0..t.srqs.len()).any(|i| t.srqs[i].events != 0)
    }

    /// A packet to an address was larger than its path carries.
    pub fn peer_mtu_exceeded(&mut self, now: u64, dst: &PeerAddr, link_mtu: u32) {
        self.fail_peer(now, dst, CauseCode::MtuExceeded, 0, u64::from(link_mtu));
    }

    fn fail_peer(&mut self, now: u64, dst: &PeerAddr, code: CauseCode, arg0: u64, arg1: u64) {
        let (inner, _) = self.split();
        let t = &mut inner.transport;
        for qi in 0..t.qps.len() {
            let qp = &t.qps[qi];
            if !qp.live || qp.kind == qp_type::UD || qp.peer == NONE {
                continue;
            }
            let addr = t.peers[qp.peer as usize].addr;
            if addr.gid != dst.gid || addr.port != dst.port || qp.req.una_psn == qp.req.max_psn {
                continue;
            }
            // A hint, not a verdict: the peer may be starting. The retry counter ends the operation;
            // this says why.
            let arg0 = if code == CauseCode::MtuExceeded { u64::from(qp.mtu) } else { arg0 };
            t.note(qi, now, code, wc_status::RETRY_EXC_ERR, arg0, arg1);
        }
    }

    /// Segments per burst to an address from now on (1 where the link refuses segmentation offload).
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
