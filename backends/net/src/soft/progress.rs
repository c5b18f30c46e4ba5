//! Whoever polls is the engine: one bounded round, and who runs it when.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;

use super::sharing::{pass_run, take, MAIL_NS};
use super::{endpoint, peer_addr, PathChoice, Port, SoftDevice};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::shm::ShmPort;
use crate::udp::{Burst, ErrorKind, TxOutcome, GROUPS};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::engine::cm::ChoosePath;
use gdrcore_core::engine::Guard;
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::sleep;
use gdrcore_core::verbs::post::Posted;
use gdrcore_core::verbs::types::AhAttr;

/// After its last packet the socket counts as hot for this long.
const UDP_HOT_NS: u64 = 50_000;
/// Runs between QPs of this device in one round.
const LOOPBACK_ROUNDS: usize = 64;
/// Bursts that one round sends; more follow in the next.
const BURSTS: usize = 32;
/// A burst, sent or received, that takes so long that the other end should not wait for what follows it: microseconds, much more than
/// the system call that it saves to handle several at once.
const LONG: usize = 16 << 10;

/// How often the sockets of the links are looked at while somebody polls: a new peer waits so long, and a dead one
/// is noticed so late. It costs a system call per link.
const TEND_NS: u64 = 100_000;

/// Looks at the rings before a lost link is told: as many as a ring full of the smallest frames takes.
const LAST_WORDS: usize = 256;

/// Empty polls in a row after which a spinning program gives way: some 20 µs.
const IDLE_POLLS: u32 = 64;

/// Which parts of a round to run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Round {
    /// A doorbell: send only.
    Send,
    /// A poll: receive, send, and what is due when nothing came.
    Full,
}

/// The lock, and what it protects besides the engine.
pub(super) struct Held<'d> {
    pub(super) guard: Guard<'d>,
    device: &'d SoftDevice,
}

impl Held<'_> {
    /// The engine and the port at once.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut Guard<'_>, &mut Port) {
        // SAFETY: the port belongs to the holder of the engine's lock, and `&mut self` is the only way to it.
        // The guard's own lifetime is only shortened.
        let (guard, port) = unsafe {
            let g: *mut Guard<'_> = (&raw mut self.guard).cast();
            (&mut *g, &mut *self.device.port.get())
        };
        (guard, port)
    }

    pub(super) fn port(&mut self) -> &mut Port {
        self.parts().1
    }

    /// When a round is wanted next; `None`: only after something else has happened.
    pub(super) fn next_timeout(&mut self, now: u64) -> Option<u64> {
        let (g, port) = self.parts();
        match (g.next_timeout(now), port.share_deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

impl Port {
    /// Whether there may be work that cannot be done before something else has happened, which wakes.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked || self.rings_full
    }

    /// Whether this round looks at the socket: an empty look costs more than a message through memory, so with links it is only
    /// done while the socket is hot, and every 64th time.
    #[inline]
    fn listens(&self, now: u64) -> bool {
        !self.shm.as_ref().is_some_and(ShmPort::has_links)
            || self.empty % 64 == 0
            || now.saturating_sub(self.udp_hot_ns) < UDP_HOT_NS
    }
}

/// The engine during a control call. Who posted meanwhile found the lock taken and left a mark: at its end the
/// doorbell is rung for them, as they may never poll.
pub(super) struct Control<'d> {
    guard: ManuallyDrop<Guard<'d>>,
    device: &'d SoftDevice,
}

impl<'d> Control<'d> {
    /// What holds the lock already.
    pub(super) fn of(held: Held<'d>) -> Control<'d> {
        Control { guard: ManuallyDrop::new(held.guard), device: held.device }
    }
}

impl<'d> Deref for Control<'d> {
    type Target = Guard<'d>;
    fn deref(&self) -> &Guard<'d> {
        &self.guard
    }
}

impl<'d> DerefMut for Control<'d> {
    fn deref_mut(&mut self) -> &mut Guard<'d> {
        &mut self.guard
    }
}

impl Drop for Control<'_> {
    fn drop(&mut self) {
        // What the call itself raised (flushed completions, a QP in error) waits for no round.
        self.device.deliver(&mut self.guard);
        // SAFETY: dropped here and nowhere else, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        if self.device.engine.shared().active.any() {
            self.device.run(Round::Send);
        }
    }
}

impl SoftDevice {
    /// Takes the lock if it is free.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Held<'_>> {
        self.engine.try_lock().map(|guard| Held { guard, device: self })
    }

    /// Takes the lock for a control call. Its holder does bounded work; on a machine with few cores the
    /// holder may not be running, so the wait gives way.
    pub(super) fn lock_held(&self) -> Held<'_> {
        let mut tries = 0u32;
        loop {
            if let Some(h) = self.try_lock() {
                return h;
            }
            tries += 1;
            if tries.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// The engine alone, for a control call.
    pub(super) fn lock(&self) -> Control<'_> {
        Control::of(self.lock_held())
    }

    /// Runs a round if nobody else does, and again while posts came in that found the lock taken.
    #[inline]
    pub(super) fn run(&self, round: Round) -> usize {
        match self.try_lock() {
            Some(held) => self.run_held(held, round),
            None => 0,
        }
    }

    /// Rounds under a lock that is taken already, and again while posts came in that found it so.
    #[inline]
    fn run_held<'d>(&'d self, mut held: Held<'d>, round: Round) -> usize {
        let mut handled = 0;
        loop {
            let now = now_ns();
            handled += self.round(&mut held, now, round);
            drop(held);
            // Whoever posted meanwhile found the lock taken, left a mark and looked at the lock once more: either he has
            // it now, or his mark is to be seen here (`Engine::try_lock_marked`) and his doorbell is ours to ring.
            if !self.engine.shared().active.any() {
                return handled;
            }
            held = match self.try_lock() {
                Some(held) => held,
                None => return handled,
            };
        }
    }

    /// Rings the doorbell of the QP at an index, to which this thread has posted.
    #[inline]
    pub(super) fn doorbell(&self, qi: usize, posted: Posted) {
        if !posted.more {
            if let Some(mut held) = self.try_lock() {
                // An event that it has raised is told by the round that follows.
                let sent = posted.write && held.guard.pass(qi) || self.send_to_link(&mut held, qi);
                let done = sent && !held.guard.shared().notify.load(Ordering::Relaxed);
                if !done && held.guard.wake(qi) {
                    self.run_held(held, Round::Send);
                    return;
                }
                drop(held);
                // Who holds the lock, however shortly, looks at the marks afterwards.
                if self.engine.shared().active.any() {
                    self.run(Round::Send);
                }
                return;
            }
        }
        self.engine.shared().active.set(qi);
        if !posted.more {
            if let Some(guard) = self.engine.try_lock_marked() {
                self.run_held(Held { guard, device: self }, Round::Send);
            }
        }
    }

    /// Writes what a QP was just posted into the ring of its link. False: it goes another way, or something is left to do.
    #[inline]
    fn send_to_link(&self, held: &mut Held<'_>, qi: usize) -> bool {
        let (g, port) = held.parts();
        let Some(shm) = &mut port.shm else { return false };
        let Some(link) = g.link_of(qi) else { return false };
        let Some(room) = shm.room(link) else { return false };
        let now = now_ns();
        let len = g.transmit_to_link(now, qi, link, room);
        if len > 0 {
            shm.commit(link, len);
        }
        self.tell_helper(g, now, Round::Send);
        !g.has_work()
    }

    /// What a poll of the program found. Work: the program drives the engine itself again. Nothing, many times
    /// over: it spins, maybe on the very core that the peer needs to answer, so it gives way now and then.
    #[inline]
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
        if idle.is_multiple_of(IDLE_POLLS) {
            std::thread::yield_now();
        }
    }

    /// Sends every owed ACK now.
    pub(super) fn flush_owed(&self) {
        let mut held = self.lock_held();
        let now = now_ns();
        held.guard.flush_acks();
        self.round(&mut held, now, Round::Send);
    }

    /// One bounded round under the lock. Returns packets and runs handled.
    #[inline]
    pub(super) fn round(&self, held: &mut Held<'_>, now: u64, round: Round) -> usize {
        let (g, port) = held.parts();
        let mut handled = 0;
        let mut listened = false;
        if round == Round::Full {
            handled += self.receive_links(g, port, now);
            listened = port.listens(now);
            if listened {
                handled += self.receive(g, port, now);
                handled += receive_groups(g, port, now);
                if port.share.as_ref().is_some_and(|s| s.listens(now, MAIL_NS)) {
                    handled += port.tend_share(g, now);
                }
            }
        }
        if handled > 0 && port.shm.is_some() && !port.is_blocked() && !g.waits() {
            // What came over links, an ACK or a message that asks for nothing now, is most of what they carry.
            port.empty = 0;
            self.tell_helper(g, now, round);
            self.tell(g);
            return handled;
        }
        handled += g.run_loopback(now, LOOPBACK_ROUNDS);
        if round == Round::Full {
            if handled == 0 {
                // Nothing came: timers may run, and owed ACKs have waited long enough for company. Timers only where the socket
                // was looked at too: a process that was stopped hears its peers before it declares them silent.
                if listened {
                    g.handle_timeout(now);
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
        }
        self.tell_helper(g, now, round);
        self.tell(g);
        handled
    }

    /// Hands events that have been raised to the sink; where there is none, makes the descriptor readable.
    #[inline]
    fn tell(&self, g: &mut Guard<'_>) {
        if self.sink.get().is_some() {
            self.deliver(g);
        } else if g.shared().notify.load(Ordering::Relaxed) {
            // A thread sleeps on the descriptor, or may: with a helper, only the event makes it readable.
            let wake = self.sleeping.must_wake(sleep::ANY) || self.helper_on.load(Ordering::Relaxed);
            if wake && g.shared().notify.swap(false, Ordering::AcqRel) {
                self.waiter.notify();
            }
        }
    }

    /// Hands events to the sink, if there is one.
    #[inline]
    fn deliver(&self, g: &mut Guard<'_>) {
        if g.shared().notify.load(Ordering::Relaxed) {
            self.deliver_all(g);
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
        if g.has_cm_events() {
            sink.cm_event();
        }
    }

    /// Takes what other processes have put into our rings, and looks after the links now and then.
    #[inline]
    fn receive_links(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
        let handled = self.read_links(g, port, now);
        if handled == 0 && now.saturating_sub(port.tended_ns) >= TEND_NS {
            self.tend(g, port, now);
        }
        handled
    }

    #[inline]
    fn read_links(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
        let Port { shm, share, .. } = port;
        let Some(shm) = shm else { return 0 };
        shm.poll(|from, run| match run {
            Ok((run, payload)) if g.owns(run.dest_qpn) => g.handle_run(now, &peer_addr(from), run, payload),
            Ok((run, payload)) => pass_run(share, &self.local, from, run, payload),
            Err(_) => g.count_malformed(),
        })
    }

    /// New links, bells, links that are gone. Some system calls.
    #[cold]
    fn tend(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) {
        let Some(shm) = &mut port.shm else { return };
        port.tended_ns = now;
        shm.tend(now, &self.waiter);
        if shm.has_lost() {
            // Who is gone may have said something before: the last ACK counts. Bounded, since others may go on writing.
            for _ in 0..LAST_WORDS {
                if self.read_links(g, port, now) == 0 {
                    break;
                }
            }
        }
        if let Some(shm) = &mut port.shm {
            self.lose_links(g, shm, now);
        }
    }

    /// Tells the engine of links that are gone. Those of datagrams lead to an address, which may have other owners: they go through
    /// the network from then on, unless only shared memory is wanted.
    fn lose_links(&self, g: &mut Guard<'_>, shm: &mut ShmPort, now: u64) {
        while let Some((link, of_address)) = shm.take_lost() {
            if of_address && self.path == PathChoice::Auto {
                g.link_ended(link);
            } else {
                g.link_lost(now, link);
            }
        }
    }

    /// Writes what the engine has for other processes into their rings.
    #[inline]
    fn send_links(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) {
        let Some(shm) = &mut port.shm else { return };
        port.rings_full = false;
        let mut full = [u16::MAX; 4];
        let mut n_full = 0;
        for _ in 0..BURSTS {
            let Some(link) = g.next_link(now, |k| full.contains(&k)) else { break };
            let len = match shm.room(link) {
                Some(room) => g.poll_transmit_link(now, link, room),
                None => {
                    port.rings_full = true;
                    0
                }
            };
            if len > 0 {
                shm.commit(link, len);
                continue;
            }
            // No room, or nothing after all: the others have their turn.
            full[n_full] = link;
            n_full += 1;
            if n_full == full.len() {
                break;
            }
        }
        self.lose_links(g, shm, now);
    }

    /// Before a thread sleeps: new links are let in, and the rings are told. True: something has come meanwhile.
    pub(super) fn announce(&self, held: &mut Held<'_>) -> bool {
        let (g, port) = held.parts();
        if let Some(share) = &mut port.share {
            share.look_soon();
        }
        if port.shm.is_none() {
            return false;
        }
        self.tend(g, port, now_ns());
        // Whoever wakes looks at the socket first.
        port.empty = 0;
        port.shm.as_mut().is_some_and(ShmPort::announce_sleep)
    }

    /// The same for a thread of the program. True also: somebody posted while the lock was held here.
    pub(super) fn announce_sleep(&self) -> bool {
        let mut held = self.lock_held();
        let input = self.announce(&mut held);
        drop(held);
        input || self.engine.shared().active.any()
    }

    /// A call of the connection manager that may move QPs; the peers that it names are reached by the path that is chosen then.
    pub(super) fn manage_paths<R>(&self, call: impl FnOnce(&mut Guard<'_>, u64, ChoosePath<'_>) -> R) -> R {
        let mut held = self.lock_held();
        let (g, port) = held.parts();
        let done = call(g, now_ns(), &mut |g, ah, qpn| self.choose_path_of(g, port, ah, Some(qpn)));
        drop(held);
        self.run(Round::Send);
        done
    }

    /// Decides how the peer of an address vector is reached, and tells the engine, under the lock that the control call which
    /// names the peer will use. `dest_qpn`: the QP there, for a connected one; the address alone, for datagrams.
    ///
    /// # Errors
    /// Only where nothing but shared memory is wanted: [`Error::NoDevice`]: no process of this host offers it
    /// under that address; [`Error::Access`]: one of another user does; [`Error::NoMemory`].
    pub(super) fn choose_path(&self, held: &mut Held<'_>, ah: &AhAttr, dest_qpn: Option<u32>) -> Result<()> {
        let (g, port) = held.parts();
        self.choose_path_of(g, port, ah, dest_qpn)
    }

    /// As [`SoftDevice::choose_path`], of the two halves.
    fn choose_path_of(&self, g: &mut Guard<'_>, port: &mut Port, ah: &AhAttr, dest_qpn: Option<u32>) -> Result<()> {
        g.set_link(None);
        g.set_elsewhere(false);
        let to = PeerAddr::from_ah(ah, self.local.port);
        let to = Endpoint::new(to.gid, if to.scope_id == 0 { self.local.scope_id } else { to.scope_id }, to.port);
        if to == self.local {
            // A datagram decides for itself.
            if port.share.is_none() || dest_qpn.is_none_or(|qpn| g.owns(qpn)) {
                return Ok(());
            }
            g.set_elsewhere(true);
        }
        let Some(shm) = &mut port.shm else { return Ok(()) };
        match shm.connect(&to, dest_qpn.map(|qpn| (qpn / QPN_UNIT) as u16), &self.waiter) {
            Ok(link) => g.set_link(Some(link)),
            Err(_) if self.path == PathChoice::Auto => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Receives once. Returns the packets.
    #[inline]
    fn receive(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
        let Some(udp) = &mut port.udp else { return 0 };
        let n = udp.rx_poll();
        if n == 0 {
            if let Some(share) = &mut port.share {
                share.drained(now);
            }
        }
        let local = *udp.local();
        let mut handled = 0;
        for i in 0..n {
            let Port { udp: Some(udp), pcap, share, .. } = port else { break };
            let r = udp.rx_get(i);
            if r.data.is_empty() {
                continue;
            }
            if let Some(tee) = pcap {
                tee.burst(now, &r.src, &local, 0, r.seg, r.data);
            }
            handled += match share {
                Some(share) => take(g, share, now, &r),
                None => g.handle_packets(now, &peer_addr(&r.src), usize::from(r.seg), r.data, r.ecn == 3),
            };
            if r.data.len() >= LONG && i + 1 < n {
                // Its ACK opens the sender's window while the rest is handled here.
                self.send(g, port, now);
            }
        }
        let Port { udp: Some(udp), empty, .. } = port else { return handled };
        if handled > 0 {
            port.udp_hot_ns = now;
        }
        // An ICMP error is told instead of data, and read by `rx_poll`. Records of errors that a send has reported
        // already only keep the descriptor readable: they are looked for now and then.
        if *empty % 64 == 32 {
            udp.drain_errors();
        }
        if udp.has_error() {
            report_errors(g, port, now);
        }
        handled
    }

    /// Sends what the engine has, in batches of bursts.
    fn send(&self, g: &mut Guard<'_>, port: &mut Port, now: u64) {
        let Port { udp, pcap, blocked, send_err, .. } = port;
        let Some(udp) = udp else { return };
        if *blocked {
            if udp.tx_flush() == TxOutcome::Full {
                return;
            }
            *blocked = false;
            let _ = self.waiter.want_write(udp.fd(), false);
        }
        let mut sent = 0;
        while sent < BURSTS {
            let mut more = false;
            let mut any = false;
            while sent < BURSTS && !more {
                let Some(space) = udp.tx_space() else {
                    more = true;
                    break;
                };
                let Some(burst) = g.poll_transmit(now, space) else { break };
                let dst = endpoint(&burst.dst);
                if let Some(tee) = pcap {
                    tee.burst(now, &self.local, &dst, 0, burst.seg as u16, &space[..burst.len]);
                }
                if burst.len > burst.seg && udp.max_segments(&dst) == 1 {
                    g.limit_segments(&burst.dst, 1);
                }
                udp.tx_commit(Burst { dst, len: burst.len, seg: burst.seg as u16 });
                sent += 1;
                any = true;
                // A long one leaves by itself: the receiver works on it while the next is made.
                more = burst.len >= LONG;
            }
            if any && udp.tx_flush() == TxOutcome::Full {
                *blocked = true;
                let _ = self.waiter.want_write(udp.fd(), true);
                return;
            }
            if !more {
                break;
            }
        }
        let c = udp.counters();
        let failures = c.send_err + c.icmp_err + c.gso_refused;
        if failures != *send_err {
            *send_err = failures;
            report_errors(g, port, now);
        }
    }
}

/// Datagrams that one round takes of each group.
const GROUP_BATCH: usize = 8;

/// Receives what came to groups. Returns the packets.
#[inline]
fn receive_groups(g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
    match &port.udp {
        Some(udp) if udp.has_groups() => receive_all_groups(g, port, now),
        _ => 0,
    }
}

#[cold]
fn receive_all_groups(g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
    let Port { udp: Some(udp), pcap, .. } = port else { return 0 };
    let mut handled = 0;
    for k in 0..GROUPS {
        for _ in 0..GROUP_BATCH {
            let Some(group) = udp.group_poll(k) else { break };
            let to = Endpoint { ip: group, port: udp.local().port, ..Endpoint::default() };
            let r = udp.rx_get(0);
            if let Some(tee) = pcap {
                tee.burst(now, &r.src, &to, 0, r.seg, r.data);
            }
            handled += g.handle_multicast(now, &peer_addr(&r.src), &group, usize::from(r.seg), r.data);
        }
    }
    handled
}

/// Hands what the kernel said about single destinations to the engine.
fn report_errors(g: &mut Guard<'_>, port: &mut Port, now: u64) {
    let Some(udp) = &mut port.udp else { return };
    while let Some(e) = udp.take_error() {
        let dst = peer_addr(&e.dst);
        match e.kind {
            ErrorKind::Icmp => {
                g.peer_unreachable(now, &dst, e.errno);
                if let Some(share) = port.share.as_mut().filter(|s| s.has_company()) {
                    share.tell_refusal(&e.dst, e.errno);
                }
            }
            ErrorKind::Mtu => g.peer_mtu_exceeded(now, &dst, e.mtu),
            ErrorKind::Send => g.port_error(now, &dst, e.errno),
        }
    }
}
