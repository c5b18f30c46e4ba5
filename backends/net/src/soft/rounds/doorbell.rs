//! The doorbell: sends the request of a post at once, in the turn of its thread.

use core::sync::atomic::Ordering;

use crate::clock::now_ns;
use crate::soft::lock::EngineLock;
use crate::soft::peers::grant_checks::check_grants_if_changed;
use crate::soft::rounds::limits::Round;
use crate::soft::{PortState, SoftEngine};
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::verbs::post::{self, Posted};
use gdrcore_core::verbs::shared::{qp_path, QpShared};
use gdrcore_core::verbs::types::{wr_opcode, SendWr};

/// Attempts of a post at a taken lock: as long as a short round takes, a microsecond or two.
const POST_TRIES: u32 = 64;

/// Data: posts.
impl SoftEngine {
    /// Rings the doorbell of the QP at an index, to which this thread has posted.
    #[inline(always)]
    pub(in crate::soft) fn doorbell(&self, qi: usize, q: &QpShared, posted: Posted) {
        // Requests within the device are executed one by one, at once: that is cheaper than a
        // round.
        if posted.more && q.path.load(Ordering::Relaxed) != qp_path::LOOPBACK {
            self.engine.shared().active.set(qi);
            return;
        }
        let token = self.before_turn();
        match self.try_lock() {
            Some(held) => self.doorbell_with_lock(held, qi, q, posted),
            None => self.doorbell_without_lock(qi, q),
        }
        self.after_turn(token, false);
    }

    /// Executes a request of a QP without a post, in a turn of this thread. `execute` returns
    /// whether it has done so. False: the request must be posted, for example because another
    /// thread has the lock.
    #[inline(always)]
    pub(in crate::soft) fn try_unposted(
        &self,
        qi: usize,
        execute: impl FnOnce(&mut EngineLock<'_>) -> bool,
    ) -> bool {
        let token = self.before_turn();
        let Some(mut held) = self.try_lock() else { return false };
        let done = execute(&mut held);
        self.leave(held, qi, true);
        self.after_turn(token, false);
        done
    }

    #[inline(always)]
    fn doorbell_with_lock<'d>(
        &'d self,
        mut held: EngineLock<'d>,
        qi: usize,
        q: &QpShared,
        posted: Posted,
    ) {
        let (g, port) = held.parts();
        let path = q.path.load(Ordering::Relaxed);
        let sent = match posted.dc {
            true => self.send_by_path::<true>(g, port, qi, path, posted.opcode),
            false => self.send_by_path::<false>(g, port, qi, path, posted.opcode),
        };
        self.leave(held, qi, sent);
    }

    /// Ends a post and releases the lock. `sent`: its request was the only work.
    #[inline(always)]
    fn leave<'d>(&'d self, held: EngineLock<'d>, qi: usize, sent: bool) {
        // The round that follows delivers an event that the send has raised.
        if !sent || held.shared().notify.load(Ordering::Relaxed) {
            return self.send_with_others(held, qi);
        }
        drop(held);
        self.after_release(Round::Send);
    }

    /// Rings the doorbell while another thread has the lock in this one's turn.
    ///
    /// * A post that passes through memory waits for the lock. A mark would keep the holder at the
    ///   engine, and each of the next posts would find the lock taken, too.
    /// * A post over the network leaves a mark, which the holder serves after its release: a wait
    ///   would be for system calls, and marked requests leave together. If the lock is free by
    ///   then, this thread runs the round.
    #[cold]
    #[inline(never)]
    fn doorbell_without_lock(&self, qi: usize, q: &QpShared) {
        if q.path.load(Ordering::Relaxed) >= qp_path::LOOPBACK {
            if let Some(held) = self.lock_within(POST_TRIES) {
                return self.send_with_others(held, qi);
            }
        }
        self.engine.shared().active.set(qi);
        if let Some(guard) = self.engine.try_lock_marked() {
            self.round_and_release(self.engine_lock(guard), Round::Send, None);
        }
    }

    /// Continues after a post whose request was not the only work.
    #[cold]
    #[inline(never)]
    fn send_with_others(&self, mut held: EngineLock<'_>, qi: usize) {
        if held.wake(qi) {
            self.round_and_release(held, Round::Send, None);
        } else {
            drop(held);
            self.after_release(Round::Send);
        }
    }

    /// Sends what was just posted to a QP by the path to its peer ([`QpShared::path`]), and looks
    /// for no other work. Returns false if there is more to do. `opcode`: of the last request.
    /// `DC`: the QP is a DCI.
    #[inline(always)]
    fn send_by_path<const DC: bool>(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        qi: usize,
        path: u32,
        opcode: u32,
    ) -> bool {
        if path & qp_path::LINK != 0 {
            let is_plain = opcode <= wr_opcode::SEND_WITH_IMM;
            let may_copy = !DC && opcode == wr_opcode::RDMA_WRITE;
            return may_copy && Self::write_peer(g, port, qi)
                || self.send_to_link::<DC>(g, port, qi, is_plain);
        }
        match path {
            qp_path::LOOPBACK
                if opcode <= wr_opcode::RDMA_READ && g.try_local::<DC>(qi, opcode) =>
            {
                true
            }
            qp_path::LOOPBACK => self.send_within(g, port, qi),
            qp_path::PORT => self.send_to_port::<DC>(g, port, qi),
            _ => false,
        }
    }

    /// Executes a single request that is not posted, to a queue pair of this engine. Returns false
    /// if it must be posted.
    ///
    /// # Safety
    /// As for [`post::send`].
    #[inline(never)]
    pub(in crate::soft) unsafe fn pass_single(
        &self,
        qi: usize,
        q: &QpShared,
        wr: *const SendWr,
    ) -> bool {
        // SAFETY: our contract.
        let Some(request) = (unsafe { post::single(q, wr) }) else { return false };
        self.try_unposted(qi, |held| held.pass_single(qi, &request))
    }

    #[inline(never)]
    fn send_to_port<const DC: bool>(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        qi: usize,
    ) -> bool {
        let sent = port.send_just_posted::<DC>(self, g, qi);
        self.end_send(g, port, sent)
    }

    /// Moves what was just posted to a QP to its peer in this engine.
    #[cold]
    #[inline(never)]
    fn send_within(&self, g: &mut EngineGuard<'_>, port: &mut PortState, qi: usize) -> bool {
        let now = now_ns();
        port.schedule.set_time(now);
        g.wake(qi);
        g.run_loopback(now);
        self.end_send(g, port, Some(now))
    }

    /// Ends a send as a round would end. Checks the grants, because the send may have failed the
    /// queue pair, which then takes no more WRITEs. `sent`: its time; `None`: nothing was sent.
    /// Returns whether no work is left.
    #[inline(always)]
    pub(in crate::soft) fn end_send(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        sent: Option<u64>,
    ) -> bool {
        let Some(now) = sent else { return false };
        self.notify_helper(g, now, Round::Send);
        check_grants_if_changed(g, port);
        !g.has_known_work()
    }
}
