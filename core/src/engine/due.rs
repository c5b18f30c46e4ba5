//! What is to be done, and when: work that waits, timers, owed ACKs, slow memory.

use super::{EngineGuard, Inner};
use crate::bitmap::Bitmap;
use crate::roce::Common;

impl Inner {
    pub(super) fn flush_acks(&mut self) {
        self.transport.common.flush_acks();
    }
}

/// Data: whether something is to be done, and when the next call is due.
impl EngineGuard<'_> {
    /// Starts the timer of the request that was sent without a read of the clock.
    #[inline(always)]
    pub fn arm_deferred_timer(&mut self, now: u64) {
        let (inner, s) = self.split();
        inner.transport.arm_deferred_timer(s, now);
    }

    /// Lets every owed ACK leave with the next bursts, for a caller that has nothing else to do.
    pub fn flush_acks(&mut self) {
        self.split().0.flush_acks();
    }

    /// Whether `poll_transmit` or `run_loopback` may have something.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.has_known_work() || self.shared().active.any()
    }

    /// As [`EngineGuard::has_work`], without the QPs that posts have marked. For a caller that
    /// checks the marks once it has released the lock.
    #[inline(always)]
    pub fn has_known_work(&self) -> bool {
        let Inner { transport: t, cm, .. } = &**self;
        let idle = Bitmap::are_empty([&t.common.ready, &t.common.full_cqs]);
        (!idle || cm.is_ready())
            && (!t.common.ready.is_empty() || cm.is_ready() || t.common.may_go_on(self.shared()))
    }

    /// Whether there is work besides the timers of QPs: packets to send, or a wait for memory or a
    /// CQ.
    #[inline(always)]
    pub fn has_due_work(&self, now: u64) -> bool {
        let Inner { transport: t, cm, .. } = &**self;
        let Common { ready, full_cqs, mem_wait, cnp_owed, .. } = &t.common;
        let idle = Bitmap::are_empty([ready, full_cqs, mem_wait, cnp_owed]);
        !idle || cm.is_ready() || self.shared().active.any() || now >= t.common.acks.flush_at()
    }

    /// Whether no owed ACK is delayed.
    #[inline]
    pub fn delays_no_ack(&self) -> bool {
        self.transport.common.acks.flush_at() == u64::MAX
    }

    /// Runs the timers that are due. The caller has nothing left to receive; otherwise a process
    /// that was stopped would take its peers for silent before it reads their packets.
    pub fn handle_timeout(&mut self, now: u64) {
        let (inner, s) = self.split();
        inner.transport.arm_deferred_timer(s, now);
        while let Some(qi) = inner.transport.common.wheel.pop_expired(now) {
            inner.transport.conn(s, qi).on_timer(now);
        }
        if now >= inner.transport.common.acks.flush_at() {
            inner.flush_acks();
        }
        if !inner.transport.common.mem_wait.is_empty() {
            inner.transport.poll_memory(s, now);
        }
        if !inner.transport.common.silent.is_empty() {
            inner.end_silent(now);
        }
        inner.cm_timeout(s, now);
    }

    /// Asks slow memory whether the accesses that QPs wait for have ended.
    pub fn poll_memory(&mut self, now: u64) {
        let (inner, s) = self.split();
        if !inner.transport.common.mem_wait.is_empty() {
            inner.transport.poll_memory(s, now);
        }
    }

    /// When `handle_timeout` must run next; `None`: not before something else happens.
    pub fn next_timeout(&mut self, now: u64) -> Option<u64> {
        let (inner, s) = self.split();
        inner.transport.arm_deferred_timer(s, now);
        let t = &inner.transport;
        let mut at =
            t.common.wheel.next_deadline().unwrap_or(u64::MAX).min(t.common.acks.flush_at());
        at = at.min(inner.cm.next_timeout().unwrap_or(u64::MAX));
        if !t.common.mem_wait.is_empty() {
            // Slow memory has no interrupt: look again soon.
            at = at.min(now + 20_000);
        }
        (at != u64::MAX).then_some(at)
    }

    /// Whether an armed CQ without a channel, the connection manager, a QP, an SRQ or the port has
    /// an event.
    pub fn has_events(&self) -> bool {
        let Inner { transport: t, cm, .. } = &**self;
        self.shared().cq_events.any()
            || cm.has_events()
            || !t.common.event_qps.is_empty()
            || t.common.port_events.any()
            || (0..t.common.srqs.len()).any(|i| t.common.srqs[i].events != 0)
            || t.common.cq_errors > 0
    }
}
