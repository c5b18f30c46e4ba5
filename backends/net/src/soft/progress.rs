//! Whoever polls is the engine: one bounded round, and who runs it when.

use core::sync::atomic::Ordering;

use super::budget::{Round, LAST_WORDS, MAIL_NS, OVERDUE_NS};
use super::lock::Held;
use super::mappable::look_after_loans;
use super::relayed;
use super::routed::discard;
use super::wire::receive_groups;
use super::witness;
use super::{Port, SoftDevice};
use crate::clock::now_ns;
use crate::share::Member;
use crate::shm::relay::Relay;
use crate::shm::ShmPort;
use gdrcore_core::engine::Guard;
use gdrcore_core::roce::peer::Path;
use gdrcore_core::sleep;
use gdrcore_core::verbs::post::Posted;

/// After its last packet the socket counts as hot for this long.
const UDP_HOT_NS: u64 = 50_000;
/// Beside busy links the socket is looked at as often as this.
const LISTEN_NS: u64 = 50_000;
/// Runs between QPs of this device in one round.
const LOOPBACK_ROUNDS: usize = 64;
/// Rounds that find nothing look at timers as often as this: as fine as the timers are.
const IDLE_TICK_NS: u64 = 4096;

/// Rounds in a row that may do with a time that was read before. A program that polls rarely has
/// its timers so many polls later.
const STALE_ROUNDS: u8 = 3;

/// Empty polls in a row after which a spinning program gives way: some 20 µs where they look at the
/// socket, 2 µs with links.
const IDLE_POLLS: u32 = 64;

/// Where peers are processes of this host, who may wait for this core, it gives way once before:
/// after 0.7 µs or so, since such polls are quick. Not while the answer of a peer on another core
/// is under way, which takes half of that. Not each time, as who gives way often gets little of a
/// busy machine.
const IDLE_POLLS_NEAR: u32 = 32;

impl Port {
    /// Whether there may be work that cannot be done before something else has happened, which
    /// wakes.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked || self.rings_full
    }

    /// The time of a round that begins: `read` just now, or else by the clock. While links are used
    /// and nothing is owed it is not read for each round in vain, since that is half of what such a
    /// round costs; with the socket alone not before it was looked at, since a message that is
    /// there would wait. [`Port::stale`] says so, and whoever needs it exact reads it then.
    #[inline]
    fn time(&mut self, g: &mut Guard<'_>, round: Round, read: Option<u64>) -> u64 {
        let may_skip = round == Round::Full && self.stale < STALE_ROUNDS && read.is_none();
        if may_skip
            && (self.has_links() || self.udp.is_some() && self.pcap.is_none())
            && g.owes_nothing()
        {
            self.stale += 1;
        } else {
            self.set_time(read.unwrap_or_else(now_ns));
            g.arm_deferred_timer(self.now);
        }
        self.now
    }

    /// The clock was read.
    #[inline]
    pub(super) fn set_time(&mut self, now: u64) {
        self.now = now;
        self.stale = 0;
    }

    #[inline]
    fn has_links(&self) -> bool {
        self.shm.as_ref().is_some_and(ShmPort::has_links)
    }

    /// A time that was not read for this round, read now if it must be.
    #[inline]
    pub(super) fn refresh(&mut self, now: u64) -> u64 {
        if self.stale == 0 {
            return self.now.max(now);
        }
        self.set_time(now_ns());
        self.now
    }

    /// Whether this round looks at the socket: an empty look costs more than a message through
    /// memory, so with links it is only done while the socket is hot, and every 64th time in vain;
    /// and after a while, since links that are busy leave no round in vain.
    #[inline]
    fn listens(&self, now: u64) -> bool {
        !self.has_links() || self.empty_enough() || now >= self.listen_at || self.is_hot(now)
    }

    /// Whether this round is the 64th in vain.
    #[inline]
    fn empty_enough(&self) -> bool {
        self.empty % 64 == 63
    }

    /// Whether the socket has brought something a short while ago.
    #[inline]
    fn is_hot(&self, now: u64) -> bool {
        now.saturating_sub(self.udp_hot_ns) < UDP_HOT_NS
    }
}

impl SoftDevice {
    /// Runs a round if nobody else does, and again while posts came in that found the lock taken.
    #[inline]
    pub(super) fn run(&self, round: Round) -> usize {
        self.run_at(round, None)
    }

    /// The same, where the clock has just been read.
    #[inline(always)]
    pub(super) fn run_at(&self, round: Round, now: Option<u64>) -> usize {
        match self.try_lock() {
            Some(held) => self.run_held(held, round, now),
            None => 0,
        }
    }

    /// Rounds under a lock that is taken already, and again while posts came in that found it so.
    #[inline]
    fn run_held<'d>(&'d self, mut held: Held<'d>, round: Round, now: Option<u64>) -> usize {
        let handled = self.round_apart(&mut held, round, now);
        drop(held);
        handled + self.run_owed(round)
    }

    /// [`SoftDevice::one_round`], where it is not the whole of a call.
    #[inline(never)]
    fn round_apart(&self, held: &mut Held<'_>, round: Round, now: Option<u64>) -> usize {
        self.one_round(held, round, now)
    }

    /// A round, at its time.
    #[inline(always)]
    pub(super) fn one_round(&self, held: &mut Held<'_>, round: Round, now: Option<u64>) -> usize {
        let (g, port) = held.parts();
        let time = port.time(g, round, now);
        self.round(held, time, round)
    }

    /// After a round, with the lock free again: wakes who must be woken, and runs further rounds
    /// while posts came in that found it taken.
    #[inline(always)]
    pub(super) fn run_owed(&self, round: Round) -> usize {
        self.wake_owed();
        // Whoever posted meanwhile found the lock taken, left a mark and looked at the lock once
        // more: either he has it now, or his mark is to be seen here (`Engine::try_lock_marked`)
        // and his doorbell is ours to ring.
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
            self.wake_owed();
        }
        handled
    }

    /// Rings the doorbell of the QP at an index, to which this thread has posted.
    #[inline(always)]
    pub(super) fn doorbell(&self, qi: usize, posted: Posted) {
        if posted.more {
            self.engine.shared().active.set(qi);
            return;
        }
        let Some(mut held) = self.try_lock() else { return self.leave_mark(qi) };
        let sent = posted.write
            && (held.guard.try_local_write(qi) || self.write_peer(&mut held, qi))
            || self.send_at_once(&mut held, qi);
        // An event that it has raised is told by the round that follows.
        if !sent || held.guard.shared().notify.load(Ordering::Relaxed) {
            return self.send_with_others(held, qi);
        }
        drop(held);
        self.wake_owed();
        // Who holds the lock, however shortly, looks at the marks afterwards.
        if self.engine.shared().active.any() {
            self.run_marked(Round::Send);
        }
    }

    /// The lock was taken: whoever holds it looks at the marks afterwards, unless he has just done
    /// so.
    #[inline(never)]
    fn leave_mark(&self, qi: usize) {
        self.engine.shared().active.set(qi);
        if let Some(guard) = self.engine.try_lock_marked() {
            self.run_held(self.held(guard), Round::Send, None);
        }
    }

    /// What a QP was just posted was not all there is to do.
    #[inline(never)]
    fn send_with_others(&self, mut held: Held<'_>, qi: usize) {
        if held.guard.wake(qi) {
            self.run_held(held, Round::Send, None);
        } else {
            drop(held);
            self.run_owed(Round::Send);
        }
    }

    /// Sends what a QP was just posted, and looks for no other. False: that is not all there is to
    /// do.
    #[inline(always)]
    fn send_at_once(&self, held: &mut Held<'_>, qi: usize) -> bool {
        let (g, port) = held.parts();
        if self.send_single(g, port, qi) {
            if !self.is_helper_awake() {
                self.tell_helper(g, now_ns(), Round::Send);
            }
            return !g.has_work();
        }
        self.send_by_path(g, port, qi)
    }

    #[inline(never)]
    fn send_by_path(&self, g: &mut Guard<'_>, port: &mut Port, qi: usize) -> bool {
        let now = self.send_lone_packet(g, port, qi).or_else(|| match g.path_of(qi) {
            Some(Path::Link(link)) => self.send_to_link(g, port, qi, link),
            Some(Path::Port) => self.send_to_port(g, port, qi),
            _ => None,
        });
        let Some(now) = now else { return false };
        self.tell_helper(g, now, Round::Send);
        !g.has_work()
    }

    /// What a poll of the program found. Work: the program drives the engine itself again. Nothing,
    /// many times over: it spins, maybe on the very core that the peer needs to answer, so it gives
    /// way now and then.
    #[inline(always)]
    pub(super) fn polled(&self, worked: bool) {
        if worked {
            self.idle.store(0, Ordering::Relaxed);
            if self.helper_on.load(Ordering::Relaxed) {
                self.helper.sticky.store(false, Ordering::Relaxed);
            }
            return;
        }
        let idle = self.idle.load(Ordering::Relaxed).wrapping_add(1);
        self.idle.store(idle, Ordering::Relaxed);
        if idle.is_multiple_of(IDLE_POLLS)
            || idle == IDLE_POLLS_NEAR && self.near.load(Ordering::Relaxed)
        {
            std::thread::yield_now();
        }
    }

    /// Acknowledges what has come so far: before a queue pair ends, whose peer a NIC would have
    /// answered by now. Bounded, since others may go on sending.
    pub(super) fn flush_owed(&self) {
        let mut held = self.lock_held();
        for _ in 0..LAST_WORDS {
            let now = now_ns();
            held.guard.flush_acks();
            // The socket as well, whatever links there are: what is there for others must not end
            // with it.
            let port = held.port();
            (port.listen_at, port.due_at) = (0, 0);
            if self.round_apart(&mut held, Round::Full, Some(now)) == 0 {
                break;
            }
        }
        if let Some(share) = &mut held.port().share {
            share.finish();
        }
        drop(held);
        self.wake_owed();
    }

    /// One bounded round under the lock. Returns packets and runs handled.
    #[inline(always)]
    pub(super) fn round(&self, held: &mut Held<'_>, now: u64, round: Round) -> usize {
        let (g, port) = held.parts();
        let mut handled = 0;
        if round == Round::Full {
            handled = self.read_links(g, port, now);
            // Most rounds leave nothing else to do; those in vain not before the next tick.
            if now < port.due_at && self.is_quiet(g, port, now) {
                if handled > 0 {
                    port.empty = 0;
                    return handled;
                }
                if now < port.tend_at
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

    /// Whether nothing is to be done now, told or looked after, but for what time alone brings.
    #[inline(always)]
    fn is_quiet(&self, g: &mut Guard<'_>, port: &Port, now: u64) -> bool {
        !(port.is_blocked() | g.waits(now) | g.shared().notify.load(Ordering::Relaxed))
            && self.is_helper_awake()
            && g.changes() == port.changes
    }

    /// A round whose links were read, and brought so much.
    #[inline(never)]
    fn rest_of_round(
        &self,
        held: &mut Held<'_>,
        mut now: u64,
        round: Round,
        mut handled: usize,
    ) -> usize {
        let (g, port) = held.parts();
        let mut listened = false;
        if round == Round::Full {
            self.tend_if_due(g, port, now, handled);
            listened = port.listens(now);
            if listened {
                if port.has_links() {
                    now = port.refresh(now);
                }
                port.listen_at = now + LISTEN_NS;
                handled += self.receive(g, port, now);
                handled += relayed::receive(g, port, now);
                if handled == 0 {
                    now = port.refresh(now);
                }
                handled += receive_groups(g, port, now);
                if port.share.as_ref().is_some_and(|s| s.listens(now, MAIL_NS)) {
                    handled += port.tend_share(g, now);
                    if port.share.as_ref().is_some_and(Member::has_lost_names) {
                        port.renew_names(&self.waiter);
                    }
                }
            }
            // Without links every round looks at the socket.
            let at_once = port.is_hot(now) || !port.has_links();
            port.due_at = if at_once { 0 } else { port.listen_at.min(port.tend_at + OVERDUE_NS) };
        }
        if round == Round::Full && !port.is_blocked() && !g.waits(now) {
            // Nothing is to be sent: an ACK, or a message that asks for nothing now, is most of
            // what comes. Where nothing came, timers and owed ACKs are looked at once in a few
            // microseconds, the socket meanwhile.
            let tick = (now / IDLE_TICK_NS, listened);
            let done = tick == port.idle_tick || tick == (port.idle_tick.0, false);
            if handled > 0 || done {
                port.empty = if handled > 0 { 0 } else { port.empty.saturating_add(1) };
                self.tell_helper(g, now, round);
                self.tell(g);
                look_after_loans(g, port);
                return handled;
            }
            port.idle_tick = tick;
        }
        now = port.refresh(now);
        handled += g.run_loopback(now, LOOPBACK_ROUNDS);
        if round == Round::Full {
            if handled == 0 {
                // Nothing came: timers may run, and owed ACKs have waited long enough for company.
                // Timers only where the socket was looked at too: a process that was stopped hears
                // its peers before it declares them silent.
                if listened {
                    g.handle_timeout(now);
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
        if port.udp.is_some() {
            self.send(g, port, now);
        } else if port.relay.is_some() {
            relayed::send(g, port, now);
        } else if port.discards {
            discard(g, now);
        }
        self.tell_helper(g, now, round);
        self.tell(g);
        look_after_loans(g, port);
        handled
    }

    /// Tells of events that have been raised: the sink, or the channels, or whoever sleeps on the
    /// program's descriptor.
    #[inline]
    pub(super) fn tell(&self, g: &mut Guard<'_>) {
        if g.shared().notify.load(Ordering::Relaxed) {
            self.tell_all(g);
        }
    }

    #[inline(never)]
    fn tell_all(&self, g: &mut Guard<'_>) {
        if self.sink.get().is_some() {
            return self.deliver_all(g);
        }
        self.tell_channels(g);
        if !g.has_events() {
            g.shared().notify.store(false, Ordering::Relaxed);
            return;
        }
        // A thread sleeps on the descriptor, or may: with a helper, only the event makes it
        // readable.
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
    }

    /// Before a thread sleeps: new links are let in, and the rings are told. True: something has
    /// come meanwhile.
    pub(super) fn announce(&self, held: &mut Held<'_>) -> bool {
        let (g, port) = held.parts();
        if let Some(share) = &mut port.share {
            share.look_soon();
        }
        self.watch(port);
        if port.shm.is_none() {
            return false;
        }
        self.tend(g, port, now_ns());
        // Whoever wakes looks at the socket first.
        port.listen_at = 0;
        port.due_at = 0;
        let relayed = port.relay.as_mut().is_some_and(Relay::announce_sleep);
        port.shm.as_mut().is_some_and(ShmPort::announce_sleep) || relayed
    }

    /// The same for a thread of the program. True also: somebody posted while the lock was held
    /// here.
    pub(super) fn announce_sleep(&self) -> bool {
        let mut held = self.lock_held();
        let input = self.announce(&mut held);
        drop(held);
        input || self.engine.shared().active.any()
    }
}
