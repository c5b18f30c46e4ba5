//! Timers of queue pairs, and the queue pairs that wait for slow memory.

use super::conn::Conn;
use super::peer::PROBE_MAX_NS;
use super::Transport;
use crate::mem::Access;
use crate::verbs::kind::QpKind;
use crate::verbs::req::{tx_block, SendBlock};
use crate::verbs::shared::Shared;
use crate::verbs::NONE;

impl Transport {
    /// Starts the timers of the request that left without a read of the clock.
    #[inline(always)]
    pub(crate) fn arm_deferred_timer(&mut self, s: &Shared, now: u64) {
        if self.common.timer_deferred != NONE {
            self.arm_deferred_timer_of(s, now);
        }
    }

    #[inline(never)]
    fn arm_deferred_timer_of(&mut self, s: &Shared, now: u64) {
        let qi = core::mem::replace(&mut self.common.timer_deferred, NONE) as usize;
        let Some(mut c) = self.connected(s, qi) else { return };
        let under_way = c.qp.conn.req.una_psn != c.qp.conn.req.max_psn
            && c.qp.conn.req.next_psn == c.qp.conn.req.max_psn;
        // While packets wait to be sent again no timer runs: their sending starts it.
        if c.qp.live
            && c.qp.can_send()
            && under_way
            && !matches!(c.qp.conn.req.send_block(), SendBlock::Rnr(_))
        {
            c.start_timers(now);
            c.arm_timer();
        }
    }

    /// Asks slow memory whether the accesses that QPs wait for have ended. O(waiting QPs).
    pub fn poll_memory(&mut self, s: &Shared, now: u64) {
        let mut from = 0;
        while let Some(qi) = self.common.mem_wait.at_or_after(from) {
            from = qi + 1;
            if !self.conn(s, qi).poll_memory(now) {
                self.common.mem_wait.clear(qi);
            }
        }
    }
}

impl Conn<'_> {
    /// As [`Transport::poll_memory`], for one QP. True: the QP still waits.
    fn poll_memory(&mut self, now: u64) -> bool {
        let mut waits = false;
        if let SendBlock::Memory(provider, token) = self.qp.conn.req.send_block() {
            if matches!(
                self.common.memory.providers.poll(u32::from(provider), token),
                Access::Pending(_)
            ) {
                waits = true;
            } else {
                // The access is ready, or has failed: the next fetch reports the failure.
                self.qp.go_on();
                self.common.ready.set(self.qi);
            }
        }
        waits |= self.poll_placing();
        waits |= self.pass_landings(now);
        waits |= self.complete(now);
        if self.qp.conn.resp.job_len() > 0 {
            self.common.ready.set(self.qi);
            waits = true;
        }
        waits
    }

    /// Asks for the bytes of the message under way, because its sender may be gone, and memory may
    /// place bytes only when it is asked. True: they have not landed.
    fn poll_placing(&mut self) -> bool {
        let Some((provider, token)) = self.qp.conn.resp.placing() else { return false };
        match self.common.memory.providers.poll(provider.into(), token) {
            Access::Ready => false,
            Access::Pending(_) | Access::Busy => true,
            Access::Fault => {
                // The landing fails, because host memory knows no token.
                self.qp.conn.resp.set_placing(Some((0, token)));
                false
            }
        }
    }

    /// Runs the timer of a QP that the wheel gave back.
    pub fn on_timer(&mut self, now: u64) {
        self.qp.conn.req.armed_at = 0;
        match self.qp.conn.req.send_block() {
            SendBlock::Rnr(at) | SendBlock::Until(at) if at <= now => {
                self.qp.go_on();
                self.common.ready.set(self.qi);
            }
            _ => {}
        }
        if self.qp.conn.resp.job_len() > 0 {
            // An answer that waited for its rate.
            self.common.ready.set(self.qi);
        }
        let req = &mut self.qp.conn.req;
        if req.probe_at != 0 && req.probe_at <= now {
            req.probe_wait = req.probe_wait.saturating_mul(2).min(PROBE_MAX_NS);
            req.probe_at = now.saturating_add(req.probe_wait);
            req.set(tx_block::PROBE, true);
            self.common.ready.set(self.qi);
            self.doubt_association();
            self.end_if_alone(now);
        }
        let deadline = self.qp.conn.req.ack_deadline;
        if deadline != 0 && deadline <= now {
            self.on_ack_timeout(now);
        }
        self.arm_timer();
        if self.qp.kind == QpKind::Dci {
            self.on_dc_timer(now);
        }
        if self.qp.conn.keep.at != 0 {
            if self.qp.conn.keep.at <= now {
                self.keep_alive(now);
            }
            let at = self.qp.conn.keep.at;
            self.wake_at(if at == 0 { u64::MAX } else { at });
        }
    }

    /// Makes sure that the wheel wakes the QP for its earliest deadline. An armed timer that is too
    /// early is left alone: it fires, finds nothing due and is armed again.
    #[inline(always)]
    pub(crate) fn arm_timer(&mut self) {
        let at = self.qp.conn.req.next_deadline();
        self.wake_at(at);
    }

    /// Makes the QP's timer run at this time at the latest. `u64::MAX`: it need not run.
    #[inline(always)]
    pub(crate) fn wake_at(&mut self, at: u64) {
        let req = &mut self.qp.conn.req;
        // The wheel has the time, too, but a look at it takes another two cache lines.
        if at != u64::MAX && (req.armed_at == 0 || req.armed_at > at) {
            self.reborrow().wake_earlier(at);
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_earlier(self, at: u64) {
        self.qp.conn.req.armed_at = at;
        self.common.wheel.arm(self.qi, at);
    }

    /// Starts the timers now, for a request that has left.
    #[cold]
    #[inline(never)]
    pub(super) fn start_timers_now(mut self, now: u64) {
        self.start_timers(now);
        self.arm_timer();
    }
}
