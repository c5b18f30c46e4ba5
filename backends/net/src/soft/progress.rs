//! One bounded round of the engine, and when it runs: the thread that polls runs it.

use core::sync::atomic::Ordering;

use super::budget::{Round, DRAIN_ROUNDS, GROUP_POLL_NS, LAST_ACK_NS, MAINTAIN_MAX_NS, ROOM_POLL};
use super::grant_checks::check_grants_if_changed;
use super::lock::EngineLock;
use super::relayed;
use super::routed::discard;
use super::witness;
use super::{PortState, SoftDevice};
use crate::addr_group::Member;
use crate::clock::now_ns;
use crate::port::Port;
use crate::shm::relay::Relay;
use crate::shm::ShmPort;
use gdrcore_core::engine::Guard;
use gdrcore_core::sleep;
use gdrcore_core::verbs::post::Posted;
use gdrcore_core::verbs::shared::{qp_path, QpShared};
use gdrcore_core::verbs::types::{wr_opcode, Handle};

/// The socket counts as hot for this long after a packet.
const UDP_HOT_NS: u64 = 50_000;
/// Interval of polls of the socket beside busy links.
const SOCKET_POLL_NS: u64 = 50_000;
/// Runs between QPs of this device in one round.
const LOOPBACK_ROUNDS: usize = 64;
/// Granularity of timers in rounds that find nothing.
const IDLE_TICK_NS: u64 = 4096;

/// Attempts of a post at a taken lock: as long as a short round takes, a microsecond or two.
const POST_TRIES: u32 = 64;

/// Consecutive rounds that may use the time of an earlier one. The timers of a program that polls
/// rarely are late by as many polls.
const STALE_ROUNDS: u8 = 3;

/// Consecutive empty polls after which a spinning program yields: some 20 µs with a socket, 2 µs
/// with links.
const IDLE_POLLS: u32 = 64;

/// Empty polls after which it yields once if some peers are processes of this host, which may wait
/// for this core: some 0.7 µs. An answer from another core takes half of that. It yields no more
/// often, because a thread that yields may get little time on a busy machine.
const IDLE_POLLS_LOCAL: u32 = 32;

/// Empty polls after which it yields, again and again, if its peers are reached by way of a router
/// alone: some 0.5 µs. The router's worker has to run before anything can come, and where cores are
/// few it waits for this one.
const IDLE_POLLS_RELAYED: u32 = 4;

impl<P: Port> PortState<P> {
    /// Whether the socket or a ring had no room: the work that is left waits for an event.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked || self.rings_full
    }

    /// The time of a round: `read`, or the clock. While links are used and no ACK is due, the clock
    /// is not read for each round in vain, because that is half of such a round's cost. With the
    /// socket alone it is not read before the socket was polled, because a waiting packet would be
    /// delayed. Nor is it read for each round of a device with neither. [`PortState::stale`] counts
    /// such rounds; a caller that needs the exact time reads it then.
    #[inline]
    fn time(&mut self, g: &mut Guard<'_>, round: Round, read: Option<u64>) -> u64 {
        let may_skip = round == Round::Full && self.stale < STALE_ROUNDS && read.is_none();
        if may_skip
            && (self.has_links() || self.pcap.is_none() && self.relay.is_none())
            && g.owes_nothing()
        {
            self.stale += 1;
        } else {
            self.set_time(read.unwrap_or_else(now_ns));
            g.arm_deferred_timer(self.now);
        }
        self.now
    }

    /// Sets the time that was read.
    #[inline]
    pub(super) fn set_time(&mut self, now: u64) {
        self.now = now;
        self.stale = 0;
    }

    /// After something had to be sent again: the peer may refuse what comes from a second port.
    #[inline]
    fn note_repeats(&mut self, g: &Guard<'_>) {
        if self.repeats != g.repeats() {
            self.repeats = g.repeats();
            if let Some(net) = &mut self.net {
                net.doubt_connected();
            }
        }
    }

    #[inline]
    fn has_links(&self) -> bool {
        self.shm.as_ref().is_some_and(ShmPort::has_links)
    }

    /// The time of this round; reads the clock unless the round has done so.
    #[inline]
    pub(super) fn refresh(&mut self, now: u64) -> u64 {
        if self.stale == 0 {
            return self.now.max(now);
        }
        self.set_time(now_ns());
        self.now
    }

    /// Whether this round polls the socket. An empty poll costs more than a message through memory.
    /// So with links the socket is polled only while it is hot, every 64th time in vain, and after
    /// [`SOCKET_POLL_NS`], since busy links leave no round in vain.
    #[inline]
    fn polls_socket(&self, now: u64) -> bool {
        !self.has_links() || self.empty_enough() || now >= self.poll_socket_at || self.is_hot(now)
    }

    /// Whether this round is the 64th in vain.
    #[inline]
    fn empty_enough(&self) -> bool {
        self.empty % 64 == 63
    }

    /// Whether the socket received something a short while ago.
    #[inline]
    fn is_hot(&self, now: u64) -> bool {
        now.saturating_sub(self.udp_hot_ns) < UDP_HOT_NS
    }
}

impl SoftDevice {
    /// Runs a round if no other thread does, and again while posts found the lock taken.
    #[inline]
    pub(super) fn run(&self, round: Round) -> usize {
        self.run_at(round, None)
    }

    /// As [`SoftDevice::run`], with the time just read.
    #[inline(always)]
    pub(super) fn run_at(&self, round: Round, now: Option<u64>) -> usize {
        match self.try_lock() {
            Some(held) => self.run_locked(held, round, now),
            None => 0,
        }
    }

    /// Runs rounds under a lock that is held, and again while posts found it taken.
    #[inline]
    fn run_locked<'d>(&'d self, mut held: EngineLock<'d>, round: Round, now: Option<u64>) -> usize {
        let handled = self.round_apart(&mut held, round, now);
        drop(held);
        handled + self.after_round(round)
    }

    /// [`SoftDevice::one_round`], not inlined.
    #[inline(never)]
    fn round_apart(&self, held: &mut EngineLock<'_>, round: Round, now: Option<u64>) -> usize {
        self.one_round(held, round, now)
    }

    /// Runs one round, at the time `now` if it is given.
    #[inline(always)]
    pub(super) fn one_round(
        &self,
        held: &mut EngineLock<'_>,
        round: Round,
        now: Option<u64>,
    ) -> usize {
        if round == Round::Full {
            self.engine.turns().note_round();
        }
        let (g, port) = held.parts();
        let time = port.time(g, round, now);
        self.round(held, time, round)
    }

    /// After a round, with the lock free: wakes the helper if it must, and runs further rounds
    /// while posts found the lock taken.
    #[inline(always)]
    pub(super) fn after_round(&self, round: Round) -> usize {
        self.wake_helper_if_due();
        // A post meanwhile found the lock taken, left a mark and tried the lock once more. Either
        // its thread has the lock now, or its mark is visible here (`Engine::try_lock_marked`), and
        // this thread runs its round.
        if self.engine.shared().active.any() {
            self.run_marked(round)
        } else {
            0
        }
    }

    #[inline(never)]
    fn run_marked(&self, round: Round) -> usize {
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

    /// Executes a request of a QP that is not posted, in a turn of this thread, by `execute`, which
    /// returns whether it has. False: it is to be posted; maybe another thread has the lock.
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

    /// Ends a post: the lock is released. `sent`: its request was the only work.
    #[inline(always)]
    fn leave<'d>(&'d self, held: EngineLock<'d>, qi: usize, sent: bool) {
        // The round that follows delivers an event that the send has raised.
        if !sent || held.guard.shared().notify.load(Ordering::Relaxed) {
            return self.send_with_others(held, qi);
        }
        drop(held);
        self.wake_helper_if_due();
        // Every holder of the lock checks the marks afterwards.
        if self.engine.shared().active.any() {
            self.run_marked(Round::Send);
        }
    }

    /// Another thread has the lock in this one's turn. Waits for the end of its round if this post
    /// passes through memory: a mark would keep that thread at the engine in the way of this one's
    /// next posts, which would leave marks again, and each would take the long way. Over the
    /// network a mark is better: the wait is for system calls, and marked requests leave together.
    /// The lock's holder checks the marks after its release; if the lock is free by now, runs the
    /// round here.
    #[inline(never)]
    fn send_beside(&self, qi: usize, q: &QpShared) {
        if q.path.load(Ordering::Relaxed) >= qp_path::LOOPBACK {
            if let Some(held) = self.lock_within(POST_TRIES) {
                return self.send_with_others(held, qi);
            }
        }
        self.engine.shared().active.set(qi);
        if let Some(guard) = self.engine.try_lock_marked() {
            self.run_locked(self.engine_lock(guard), Round::Send, None);
        }
    }

    /// Continues after a post whose request was not the only work.
    #[inline(never)]
    fn send_with_others(&self, mut held: EngineLock<'_>, qi: usize) {
        if held.guard.wake(qi) {
            self.run_locked(held, Round::Send, None);
        } else {
            drop(held);
            self.after_round(Round::Send);
        }
    }

    /// Sends what was just posted to a QP by the path to its peer ([`QpShared::path`]), and looks
    /// for no other work. Returns false if there is more to do. `opcode`: that of the last request.
    /// `DC`: it is a DCI.
    #[inline(always)]
    fn send_by_path<const DC: bool>(
        &self,
        g: &mut Guard<'_>,
        port: &mut PortState,
        qi: usize,
        path: u32,
        opcode: u32,
    ) -> bool {
        let is_plain = opcode <= wr_opcode::SEND_WITH_IMM;
        let may_copy = !DC && opcode == wr_opcode::RDMA_WRITE;
        match path {
            qp_path::LINK if may_copy && Self::write_peer(g, port, qi) => true,
            qp_path::LINK => self.send_to_link::<DC>(g, port, qi, is_plain),
            qp_path::LOOPBACK if is_plain && g.try_local::<DC>(qi, opcode) => true,
            qp_path::LOOPBACK => self.send_within(g, port, qi),
            qp_path::PORT => self.send_to_port::<DC>(g, port, qi),
            _ => false,
        }
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
        port.set_time(now);
        g.wake(qi);
        g.run_loopback(now, LOOPBACK_ROUNDS);
        self.ends_send(g, port, Some(now))
    }

    /// After a send at a time, as at the end of a round: a queue pair that has failed by it takes
    /// no more WRITEs. `None`: nothing was sent. Returns whether nothing is left to do.
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

    /// Receives and acknowledges everything that has arrived, as a NIC would have, before a queue
    /// pair ends (`None`: all). Bounded, because peers may continue to send, and a ring without
    /// room may stay so.
    pub(super) fn drain_and_ack(&self, qp: Option<Handle>) {
        self.drain_and_ack_locked(self.lock_engine(), qp);
    }

    pub(super) fn drain_and_ack_locked<'d>(&'d self, mut held: EngineLock<'d>, qp: Option<Handle>) {
        let mut rounds = DRAIN_ROUNDS;
        let mut end = None;
        while rounds > 0 {
            let now = now_ns();
            held.guard.flush_acks();
            // The socket too, even beside links: packets of other devices in it must not be lost.
            let port = held.port();
            (port.poll_socket_at, port.full_round_at) = (0, 0);
            let handled = self.round_apart(&mut held, Round::Full, Some(now));
            let port = held.port();
            port.gave_up_room &= port.is_blocked();
            if handled > 0 {
                rounds -= 1;
                continue;
            }
            if !port.is_blocked() || port.gave_up_room || !held.guard.owes_answer(qp) {
                break;
            }
            if now > *end.get_or_insert(now + LAST_ACK_NS) {
                held.port().gave_up_room = true;
                break;
            }
            drop(held);
            std::thread::sleep(ROOM_POLL);
            held = self.lock_engine();
        }
        if let Some(member) = &mut held.port().member {
            member.forward_pending(LAST_ACK_NS);
        }
        drop(held);
        self.wake_helper_if_due();
    }

    /// One bounded round under the lock. Returns packets and runs handled.
    #[inline(always)]
    pub(super) fn round(&self, held: &mut EngineLock<'_>, now: u64, round: Round) -> usize {
        let (g, port) = held.parts();
        let mut handled = 0;
        if round == Round::Full {
            handled = self.read_links(g, port, now);
            // Most rounds that read frames have nothing else to do. A round in vain has nothing to
            // do before the next tick.
            if now < port.full_round_at && self.is_quiet(g, port, now) {
                if handled > 0 {
                    port.empty = 0;
                    return handled;
                }
                if now < port.maintain_at
                    && now / IDLE_TICK_NS == port.idle_tick.0
                    && !port.empty_enough()
                {
                    port.empty += 1;
                    return 0;
                }
            }
        }
        self.rest_of_round(held, now, round, handled)
    }

    /// Whether no work, no event and no check of grants is due, except timers.
    #[inline(always)]
    fn is_quiet(&self, g: &mut Guard<'_>, port: &PortState, now: u64) -> bool {
        !(port.is_blocked() | g.waits(now) | g.shared().notify.load(Ordering::Relaxed))
            && self.is_helper_awake()
            && g.changes() == port.changes
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
            self.maintain_if_due(g, port, now, handled);
            socket_polled = port.polls_socket(now);
            if socket_polled {
                if port.has_links() {
                    now = port.refresh(now);
                }
                port.poll_socket_at = now + SOCKET_POLL_NS;
                handled += port.receive(self, g, now);
                handled += relayed::receive(g, port, now);
                if handled == 0 {
                    now = port.refresh(now);
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
            let polls = !port.has_links() && (port.net.is_some() || port.relay.is_some());
            let at_once = port.is_hot(now) || polls;
            port.full_round_at = if at_once {
                0
            } else {
                port.poll_socket_at.min(port.maintain_at + MAINTAIN_MAX_NS)
            };
        }
        if round == Round::Full && !port.is_blocked() && !g.waits(now) {
            // Nothing is to be sent: most input is an ACK, or a message that causes no packet now.
            // If nothing came, timers and due ACKs are checked once per tick.
            let tick = (now / IDLE_TICK_NS, socket_polled);
            let done = tick == port.idle_tick || tick == (port.idle_tick.0, false);
            if handled > 0 || done {
                port.empty = if handled > 0 { 0 } else { port.empty.saturating_add(1) };
                self.notify_helper(g, now, round);
                self.notify(g);
                check_grants_if_changed(g, port);
                return handled;
            }
            port.idle_tick = tick;
        }
        now = port.refresh(now);
        handled += g.run_loopback(now, LOOPBACK_ROUNDS);
        if round == Round::Full {
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
                port.empty = port.empty.saturating_add(1);
                handled += g.run_loopback(now, LOOPBACK_ROUNDS);
            } else {
                port.empty = 0;
            }
            g.poll_memory(now);
        }
        self.send_links(g, port, now);
        if port.net.is_some() {
            port.send(self, g, now);
        } else if port.relay.is_some() {
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
        port.poll_socket_at = 0;
        port.full_round_at = 0;
        let relayed = port.relay.as_mut().is_some_and(Relay::announce_sleep);
        let changed = port.outage.take_change();
        port.shm.as_mut().is_some_and(ShmPort::announce_sleep) || relayed || changed || gone
    }

    /// As [`SoftDevice::announce`], for a thread of the program. Returns true also after a post
    /// that found the lock taken here.
    pub(super) fn announce_sleep(&self) -> bool {
        let mut held = self.lock_engine();
        let input = self.announce(&mut held);
        drop(held);
        input || self.engine.shared().active.any()
    }
}
