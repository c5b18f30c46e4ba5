//! One bounded round of the engine, and when it runs: the thread that polls runs it.
//!
//! * `doorbell`: the part of a post that sends.
//! * `drain`: the rounds before an end.
//! * `limits`: the bounds of a round.
//! * `productive_polls`: polls that find completions, and run no round for most of the time.
//! * `rest`: polls that need no round.
//! * `schedule`: the inputs that a round reads, and when.

pub(super) mod doorbell;
pub(super) mod drain;
pub(super) mod limits;
pub(super) mod productive_polls;
pub(super) mod rest;
pub(super) mod schedule;

use core::sync::atomic::Ordering;

use super::lock::EngineLock;
use super::peers::grant_checks::check_grants_if_changed;
use super::peers::witness;
use super::router::relayed;
use super::router::routed::discard;
use super::{PortState, SoftEngine};
use crate::addr_group::Member;
use crate::clock::now_ns;
use crate::port::Port;
use crate::shm::ShmPort;
use gdrcore_core::engine::EngineGuard;
use limits::{Round, GROUP_POLL_NS};

impl<P: Port> PortState<P> {
    /// Whether the socket or a ring had no room: the work that is left waits for an event.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked || self.rings_full
    }

    /// Returns the round's time: `read` if there is one; else the last time, or that of the clock
    /// if reading it is worth its cost. The last time is used only while no owed ACK is delayed:
    ///
    /// * With links, of several rounds in vain one reads the clock: that is half of such a round's
    ///   cost.
    /// * With the socket alone, the clock is read after the socket was polled: a waiting packet
    ///   would be delayed.
    /// * With neither, of several rounds one reads it.
    ///
    /// A caller that needs the exact time reads the clock itself.
    #[inline(always)]
    fn time(&mut self, g: &mut EngineGuard<'_>, round: Round, read: Option<u64>) -> u64 {
        let may_keep = round == Round::Full && read.is_none() && self.schedule.may_keep_time();
        if may_keep
            && (self.has_links() || self.tap.is_none() && self.router.relay.is_none())
            && g.delays_no_ack()
        {
            self.schedule.keep_time();
        } else {
            self.schedule.set_time(read.unwrap_or_else(now_ns));
            g.arm_deferred_timer(self.schedule.now());
        }
        self.schedule.now()
    }

    /// Doubts the second port after a retransmission, because the peer may refuse packets from it.
    #[inline]
    fn doubt_second_port(&mut self, g: &EngineGuard<'_>) {
        if self.seen.loss_signs != g.loss_signs() {
            self.seen.loss_signs = g.loss_signs();
            if let Some(net) = &mut self.net {
                net.doubt_connected();
            }
        }
    }

    #[inline]
    fn has_links(&self) -> bool {
        self.shm.as_ref().is_some_and(ShmPort::has_links)
    }
}

impl PortState {
    /// The next time at which the group or the links need a round.
    pub(super) fn deadline(&self) -> Option<u64> {
        let member = self.member.as_ref().and_then(Member::deadline);
        let shm = self.shm.as_ref().and_then(ShmPort::deadline);
        let tap = self.tap.as_ref().and_then(|tap| tap.due());
        member.into_iter().chain(shm).chain(self.router.outage.deadline()).chain(tap).min()
    }
}

/// Data: rounds.
impl SoftEngine {
    /// Sends all work that waits, unless another thread has the engine.
    pub(super) fn try_send(&self) {
        if let Some(held) = self.try_lock() {
            self.round_and_release(held, Round::Send, None);
        }
    }

    /// Runs a full round, at the time `now` if it was read, unless another thread has the engine.
    #[inline(always)]
    pub(super) fn try_round(&self, now: Option<u64>) -> usize {
        self.try_lock().map_or(0, |held| self.round_and_release(held, Round::Full, now))
    }

    /// As [`SoftEngine::round`], and releases the lock.
    #[inline]
    pub(super) fn round_and_release<'d>(
        &'d self,
        mut held: EngineLock<'d>,
        round: Round,
        now: Option<u64>,
    ) -> usize {
        let handled = self.round_apart(&mut held, round, now);
        drop(held);
        handled + self.after_release(round)
    }

    /// [`SoftEngine::round`], not inlined.
    #[inline(never)]
    pub(super) fn round_apart(
        &self,
        held: &mut EngineLock<'_>,
        round: Round,
        now: Option<u64>,
    ) -> usize {
        self.round(held, round, now)
    }

    /// After the release of the lock: wakes the helper if it is due, and runs the rounds of posts
    /// that found the lock taken.
    #[inline(always)]
    pub(super) fn after_release(&self, round: Round) -> usize {
        self.wake_helper_if_due();
        // A post that finds the lock taken leaves a mark and tries the lock once more. Either its
        // thread has the lock now, or its mark is visible here (`Engine::try_lock_marked`), and
        // this thread runs its round. So every holder checks the marks after its release.
        match self.engine.shared().active.any() {
            true => self.serve_marks(round),
            false => 0,
        }
    }

    #[inline(never)]
    fn serve_marks(&self, round: Round) -> usize {
        let mut handled = 0;
        while self.engine.shared().active.any() {
            let Some(mut held) = self.try_lock() else { break };
            handled += self.round_apart(&mut held, round, None);
            drop(held);
            self.wake_helper_if_due();
        }
        handled
    }

    /// One bounded round under the lock, at the time `now` if it was read. Returns packets and runs
    /// handled.
    #[inline(always)]
    pub(super) fn round(&self, held: &mut EngineLock<'_>, round: Round, now: Option<u64>) -> usize {
        if round == Round::Full {
            self.engine.turns().note_round();
        }
        let (g, port) = held.parts();
        let now = port.time(g, round, now);
        let mut handled = 0;
        if round == Round::Full {
            handled = self.read_links(g, port, now);
            // Most rounds that read frames have nothing else to do. A round in vain has nothing to
            // do before the next tick.
            if port.schedule.is_short(now) && self.is_quiet(g, port, now) {
                if handled > 0 {
                    port.schedule.note(true);
                    return handled;
                }
                if port.schedule.is_done(now) {
                    port.schedule.note(false);
                    return 0;
                }
            }
        }
        self.rest_of_round(held, now, round, handled)
    }

    /// Whether no work, no event and no check of grants is due, except timers.
    #[inline(always)]
    pub(super) fn is_quiet(&self, g: &EngineGuard<'_>, port: &PortState, now: u64) -> bool {
        !(port.is_blocked() | g.has_due_work(now) | g.shared().notify.load(Ordering::Relaxed))
            && self.is_helper_awake()
            && g.changes() == port.seen.changes
    }

    /// The rest of a round whose links were read; `handled`: the frames read.
    #[inline(never)]
    fn rest_of_round(
        &self,
        held: &mut EngineLock<'_>,
        mut now: u64,
        round: Round,
        mut handled: usize,
    ) -> usize {
        let (g, port) = held.parts();
        if g.wants_links() {
            self.link_contexts(g, port);
        }
        let mut socket_polled = false;
        if round == Round::Full {
            handled += self.maintain_if_due(g, port, now, handled);
            socket_polled = port.schedule.polls_socket(now, port.has_links());
            if socket_polled {
                (now, handled) = self.receive_by_port(g, port, now, handled);
            }
            // Without links every round polls the socket, or a router's ring, if there is one.
            let polls = !port.has_links() && (port.net.is_some() || port.router.relay.is_some());
            port.schedule.plan_full(now, polls);
            // Mostly nothing is to be sent: most input is an ACK, or a message that causes no
            // packet now. If nothing came, timers and due ACKs are checked once per tick.
            let sends = port.is_blocked() || g.has_due_work(now) || port.has_due(now);
            if !sends && (handled > 0 || port.schedule.note_tick(now, socket_polled)) {
                port.schedule.note(handled > 0);
                self.end_round(g, port, now, round);
                return handled;
            }
        }
        now = port.schedule.refresh(now, now_ns);
        handled += g.run_loopback(now);
        if round == Round::Full {
            port.schedule.note(handled > 0);
            if handled == 0 {
                Self::run_timers(g, port, now, socket_polled);
                handled = g.run_loopback(now);
            }
            g.poll_memory(now);
        }
        self.send_waiting(g, port, now);
        self.end_round(g, port, now, round);
        handled
    }

    /// Receives from the socket, from a router's ring and from the sockets of the group. `handled`:
    /// what this round has handled before. Returns the time, and what it has handled by now.
    #[inline(always)]
    fn receive_by_port(
        &self,
        g: &mut EngineGuard<'_>,
        port: &mut PortState,
        mut now: u64,
        mut handled: usize,
    ) -> (u64, usize) {
        if port.has_links() {
            now = port.schedule.refresh(now, now_ns);
        }
        port.schedule.note_poll(now);
        handled += port.receive(self, g, now);
        handled += relayed::receive(g, port, now);
        if handled == 0 {
            now = port.schedule.refresh(now, now_ns);
        }
        handled += port.receive_groups(g, now);
        if port.member.as_ref().is_some_and(|s| s.is_poll_due(now, GROUP_POLL_NS)) {
            handled += port.maintain_group(g, now);
            if port.member.as_ref().is_some_and(Member::has_lost_names) {
                port.renew_names(&self.waiter);
            }
        }
        (now, handled)
    }

    /// Runs the timers and lets due ACKs leave, in a round that received nothing. Timers run only
    /// after a poll of the socket, so that a process that was stopped reads its peers' packets
    /// before it declares the peers silent.
    #[inline(always)]
    fn run_timers(g: &mut EngineGuard<'_>, port: &mut PortState, now: u64, socket_polled: bool) {
        if socket_polled {
            port.end_peers(g, now);
            g.handle_timeout(now);
            port.doubt_second_port(g);
            witness::testify(g, port, now);
        }
        g.flush_acks();
    }

    /// Sends all waiting packets and frames: over links, and by the socket or a router's ring.
    #[inline(always)]
    fn send_waiting(&self, g: &mut EngineGuard<'_>, port: &mut PortState, now: u64) {
        self.send_links(g, port, now);
        if port.net.is_some() {
            port.send(self, g, now);
        } else if port.router.relay.is_some() {
            relayed::send(g, port, now);
        } else if port.discards {
            discard(g, now);
        }
    }

    /// Ends a round: tells the helper when the next one is due, delivers events, and checks the
    /// grants.
    #[inline(always)]
    fn end_round(&self, g: &mut EngineGuard<'_>, port: &mut PortState, now: u64, round: Round) {
        self.notify_helper(g, now, round);
        self.notify(g);
        check_grants_if_changed(g, port);
    }
}
