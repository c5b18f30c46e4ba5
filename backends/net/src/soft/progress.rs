//! One bounded round of the engine, and when it runs: the thread that polls runs it.

use core::sync::atomic::Ordering;

use super::grant_checks::check_grants_if_changed;
use super::lock::{ControlGuard, EngineLock};
use super::relayed;
use super::round_limits::{
    Round, DRAIN_ROUNDS, GROUP_POLL_NS, LAST_ACK_NS, LAST_READ_NS, ROOM_POLL,
};
use super::routed::discard;
use super::witness;
use super::{PortState, SoftEngine};
use crate::addr_group::Member;
use crate::clock::now_ns;
use crate::port::Port;
use crate::shm::relay::Relay;
use crate::shm::ShmPort;
use gdrcore_core::engine::Guard;
use gdrcore_core::sleep;
use gdrcore_core::verbs::post::{self, Posted};
use gdrcore_core::verbs::shared::{qp_path, QpShared};
use gdrcore_core::verbs::types::{wr_opcode, Handle, SendWr};

/// Most runs between QPs of this device in one round.
const LOOPBACK_RUNS: usize = 64;
/// Attempts of a post at a taken lock: as long as a short round takes, a microsecond or two.
const POST_TRIES: u32 = 64;

/// Consecutive empty polls after which a spinning program yields: some 20 µs with a socket, 2 µs
/// with links.
pub(super) const IDLE_POLLS: u32 = 64;

/// Empty polls after which the program yields once if some peers are processes of this host, which
/// may wait for this core: some 0.7 µs. An answer from another core takes half of that. The program
/// does not yield more often: a thread that yields may get little time on a busy machine.
const IDLE_POLLS_LOCAL: u32 = 32;

/// Empty polls after which the program yields, again and again, if it reaches all peers over a
/// router: some 0.5 µs. The router's worker has to run before anything can come, and where cores
/// are few it waits for this one.
const IDLE_POLLS_RELAYED: u32 = 4;

impl<P: Port> PortState<P> {
    /// Whether the socket or a ring had no room: the work that is left waits for an event.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked || self.rings_full
    }

    /// The time of a round: `read`, or the clock. While links are used and no ACK is due, the clock
    /// is not read for each round in vain, because that is half of such a round's cost. With the
    /// socket alone it is not read before the socket was polled, because a waiting packet would be
    /// delayed. A device with neither does not read it for each round. A caller that needs the
    /// exact time reads the clock itself.
    #[inline(always)]
    fn time(&mut self, g: &mut Guard<'_>, round: Round, read: Option<u64>) -> u64 {
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

    /// After a retransmission, doubts the second port: the peer may refuse packets from it.
    #[inline]
    fn note_repeats(&mut self, g: &Guard<'_>) {
        if self.seen.repeats != g.repeats() {
            self.seen.repeats = g.repeats();
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

/// Data: rounds, doorbells and events.
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
    fn round_and_release<'d>(
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
    fn round_apart(&self, held: &mut EngineLock<'_>, round: Round, now: Option<u64>) -> usize {
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

    /// Rings the doorbell of the QP at an index, to which this thread has posted.
    #[inline(always)]
    pub(super) fn doorbell(&self, qi: usize, q: &QpShared, posted: Posted) {
        if posted.more {
            self.engine.shared().active.set(qi);
            return;
        }
        let token = self.before_turn();
        match self.try_lock() {
            Some(held) => self.send_in_turn(held, qi, q, posted),
            None => self.send_beside(qi, q),
        }
        self.after_turn(token, false);
    }

    /// Executes a request of a QP without a post, in a turn of this thread. `execute` returns
    /// whether it has done so. False: the request must be posted, for example because another
    /// thread has the lock.
    #[inline(always)]
    pub(super) fn execute_in_turn(
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
    fn send_in_turn<'d>(
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
        if !sent || held.guard.shared().notify.load(Ordering::Relaxed) {
            return self.send_with_others(held, qi);
        }
        drop(held);
        self.after_release(Round::Send);
    }

    /// Rings the doorbell while another thread has the lock in this one's turn. If the post passes
    /// through memory, waits for the end of that thread's round. A mark would keep that thread at
    /// the engine: the next posts of this thread would find the lock taken, too, and each would
    /// take the long way. Over the network a mark is better: the wait would be for system calls,
    /// and marked requests leave together. The lock's holder checks the marks after its release. If
    /// the lock is free by now, runs the round here.
    #[inline(never)]
    fn send_beside(&self, qi: usize, q: &QpShared) {
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
    #[inline(never)]
    fn send_with_others(&self, mut held: EngineLock<'_>, qi: usize) {
        if held.guard.wake(qi) {
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
        g: &mut Guard<'_>,
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
    pub(super) unsafe fn pass_single(&self, qi: usize, q: &QpShared, wr: *const SendWr) -> bool {
        // SAFETY: our contract.
        let Some(request) = (unsafe { post::single(q, wr) }) else { return false };
        self.execute_in_turn(qi, |held| held.guard.pass_single(qi, &request))
    }

    #[inline(never)]
    fn send_to_port<const DC: bool>(
        &self,
        g: &mut Guard<'_>,
        port: &mut PortState,
        qi: usize,
    ) -> bool {
        let sent = port.send_to_port::<DC>(self, g, qi);
        self.ends_send(g, port, sent)
    }

    /// Moves what was just posted to a QP to its peer in this engine.
    #[inline(never)]
    fn send_within(&self, g: &mut Guard<'_>, port: &mut PortState, qi: usize) -> bool {
        let now = now_ns();
        port.schedule.set_time(now);
        g.wake(qi);
        g.run_loopback(now, LOOPBACK_RUNS);
        self.ends_send(g, port, Some(now))
    }

    /// Ends a send, as the end of a round does: a queue pair that failed in it takes no more
    /// WRITEs. `sent`: its time; `None`: nothing was sent. Returns whether no work is left.
    #[inline(always)]
    pub(super) fn ends_send(
        &self,
        g: &mut Guard<'_>,
        port: &mut PortState,
        sent: Option<u64>,
    ) -> bool {
        let Some(now) = sent else { return false };
        self.notify_helper(g, now, Round::Send);
        check_grants_if_changed(g, port);
        !g.has_known_work()
    }

    /// Notes a poll of the program. After work, the program drives the engine again. After many
    /// polls in vain it yields now and then: it may spin on the very core that its peer needs.
    #[inline(always)]
    pub(super) fn note_poll(&self, worked: bool) {
        if worked {
            self.polls.idle.store(0, Ordering::Relaxed);
            if self.helper_on.load(Ordering::Relaxed) {
                self.helper.sticky.store(false, Ordering::Relaxed);
            }
            return;
        }
        self.note_vain_poll();
    }

    /// [`SoftEngine::note_poll`] in vain.
    #[inline(always)]
    pub(super) fn note_vain_poll(&self) {
        let idle = self.polls.idle.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.idle.store(idle, Ordering::Relaxed);
        if idle.is_multiple_of(IDLE_POLLS)
            || idle == IDLE_POLLS_LOCAL && self.has_local_peers.load(Ordering::Relaxed)
        {
            self.polls.aside.stand();
        } else if idle.is_multiple_of(IDLE_POLLS_RELAYED) && self.is_relayed.load(Ordering::Relaxed)
        {
            std::thread::yield_now();
        }
    }

    /// Receives and answers everything that has arrived, as a NIC would have, before a queue pair
    /// ends. `None`: before a process or a connection ends; then it does not wait for the long
    /// answer of a READ, which any peer could request. Bounded, because peers may continue to send,
    /// and a ring without room may stay so.
    pub(super) fn drain_and_ack(&self, qp: Option<Handle>) {
        self.drain_and_ack_locked(self.lock_control(), qp);
    }

    /// Packets of a queue pair, or of all, that wait by injected faults leave and arrive now.
    pub(super) fn hasten(&self, held: &mut EngineLock<'_>, qp: Option<Handle>) {
        let (g, port) = held.parts();
        let index = qp.map(|qp| g.shared().qp_pool.check(qp));
        if !matches!(index, Some(Err(_))) {
            port.hasten(self, g, index.and_then(Result::ok));
        }
    }

    pub(super) fn drain_and_ack_locked<'d>(
        &'d self,
        mut held: ControlGuard<'d>,
        qp: Option<Handle>,
    ) {
        let mut rounds = DRAIN_ROUNDS;
        let mut end = None;
        if let Some(qp) = qp {
            self.hasten(&mut held, Some(qp));
        }
        // Includes links that were made since the last maintenance.
        held.port().schedule.look_at_links();
        while rounds > 0 {
            let now = now_ns();
            held.guard.flush_acks();
            // The socket too, even beside links: packets of other devices in it must not be lost.
            held.port().schedule.look_at_socket();
            let handled = self.round_apart(&mut held, Round::Full, Some(now));
            let port = held.port();
            port.gave_up_room &= port.is_blocked();
            let is_blocked = port.is_blocked();
            if handled > 0 {
                rounds -= 1;
                continue;
            }
            // With room, only the answer of a READ takes more than a round: it may be long, or its
            // rate limited.
            let has_more = match qp {
                Some(qp) if !is_blocked => held.guard.has_answer(qp),
                _ => is_blocked && held.guard.owes_answer(qp),
            };
            if held.port().gave_up_room || !has_more {
                break;
            }
            let patience = if is_blocked { LAST_ACK_NS } else { LAST_READ_NS };
            if now > *end.get_or_insert(now + patience) {
                held.port().gave_up_room = is_blocked;
                break;
            }
            // Other threads have their turn meanwhile.
            drop(held);
            if is_blocked {
                std::thread::sleep(ROOM_POLL);
            }
            held = self.lock_control();
        }
        if let Some(member) = &mut held.port().member {
            member.forward_pending(LAST_ACK_NS);
        }
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
    pub(super) fn is_quiet(&self, g: &mut Guard<'_>, port: &PortState, now: u64) -> bool {
        !(port.is_blocked() | g.waits(now) | g.shared().notify.load(Ordering::Relaxed))
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
            }
            // Without links every round polls the socket, or a router's ring, if there is one.
            let polls = !port.has_links() && (port.net.is_some() || port.router.relay.is_some());
            port.schedule.plan_full(now, polls);
        }
        if round == Round::Full && !port.is_blocked() && !g.waits(now) && !port.has_due(now) {
            // Nothing is to be sent: most input is an ACK, or a message that causes no packet now.
            // If nothing came, timers and due ACKs are checked once per tick.
            if handled > 0 || port.schedule.note_tick(now, socket_polled) {
                port.schedule.note(handled > 0);
                self.notify_helper(g, now, round);
                self.notify(g);
                check_grants_if_changed(g, port);
                return handled;
            }
        }
        now = port.schedule.refresh(now, now_ns);
        handled += g.run_loopback(now, LOOPBACK_RUNS);
        if round == Round::Full {
            port.schedule.note(handled > 0);
            if handled == 0 {
                // Nothing came: timers run, and due ACKs leave. Timers run only after a poll of the
                // socket, so that a process that was stopped reads its peers' packets before it
                // declares the peers silent.
                if socket_polled {
                    port.end_peers(g, now);
                    g.handle_timeout(now);
                    port.note_repeats(g);
                    witness::testify(g, port, now);
                }
                g.flush_acks();
                handled += g.run_loopback(now, LOOPBACK_RUNS);
            }
            g.poll_memory(now);
        }
        self.send_links(g, port, now);
        if port.net.is_some() {
            port.send(self, g, now);
        } else if port.router.relay.is_some() {
            relayed::send(g, port, now);
        } else if port.discards {
            discard(g, now);
        }
        self.notify_helper(g, now, round);
        self.notify(g);
        check_grants_if_changed(g, port);
        handled
    }

    /// Delivers events that were raised: to the sink, to channels, or by a wake-up of threads that
    /// sleep on the program's descriptor.
    #[inline]
    pub(super) fn notify(&self, g: &mut Guard<'_>) {
        if g.shared().notify.load(Ordering::Relaxed) {
            self.notify_all(g);
        }
    }

    #[inline(never)]
    fn notify_all(&self, g: &mut Guard<'_>) {
        if self.sink.get().is_some() {
            return self.deliver_all(g);
        }
        self.notify_channels(g);
        if !g.has_events() {
            g.shared().notify.store(false, Ordering::Relaxed);
            return;
        }
        // A thread sleeps on the descriptor, or may; with a helper, only this makes it readable.
        let wake = self.sleeping.must_wake(sleep::ANY) || self.helper_on.load(Ordering::Relaxed);
        if wake && g.shared().notify.swap(false, Ordering::AcqRel) {
            self.waiter.notify();
        }
    }

    #[cold]
    fn deliver_all(&self, g: &mut Guard<'_>) {
        let Some(sink) = self.sink.get() else { return };
        g.shared().notify.store(false, Ordering::Relaxed);
        while let Some(cq) = g.take_cq_event() {
            sink.cq_event(cq);
        }
        while let Some(event) = g.take_async_event() {
            sink.async_event(event);
        }
        if g.has_cm_events() || g.cm().has_refusals() {
            sink.cm_event();
        }
        if g.cm().has_general() {
            sink.general_event();
        }
    }

    /// Before a thread sleeps: accepts links, and announces the sleep on all rings. Returns true if
    /// input has come meanwhile.
    pub(super) fn announce(&self, held: &mut EngineLock<'_>) -> bool {
        let (g, port) = held.parts();
        if let Some(member) = &mut port.member {
            member.poll_soon();
        }
        port.watch(self);
        port.watch_peers(g, now_ns());
        let gone = port.has_gone_peers();
        if port.shm.is_none() {
            return gone;
        }
        self.maintain_links(g, port, now_ns());
        // The first round after the sleep polls the socket.
        port.schedule.look_at_socket();
        let relayed = port.router.relay.as_mut().is_some_and(Relay::announce_sleep);
        let changed = port.router.outage.take_change();
        port.shm.as_mut().is_some_and(ShmPort::announce_sleep) || relayed || changed || gone
    }

    /// As [`SoftEngine::announce`], for a thread of the program. Also returns true if a post found
    /// the lock taken meanwhile.
    pub(super) fn announce_sleep(&self) -> bool {
        let mut held = self.lock_control();
        // Checked under the lock: its release runs the round of such a post, which may complete
        // something.
        self.announce(&mut held) || self.engine.shared().active.any()
    }
}
