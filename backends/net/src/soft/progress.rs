//! Whoever polls is the engine: one bounded round, and who runs it when.

use core::sync::atomic::Ordering;

use super::{endpoint, peer_addr, Port, SoftDevice};
use crate::clock::now_ns;
use crate::udp::{Burst, ErrorKind, TxOutcome};
use gdrcore_core::engine::Guard;

/// Runs between QPs of this device in one round.
const LOOPBACK_ROUNDS: usize = 64;
/// Bursts that one round sends; more follow in the next.
const BURSTS: usize = 32;

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
    fn parts(&mut self) -> (&mut Guard<'_>, &mut Port) {
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

    /// The engine alone.
    pub(super) fn lock(&self) -> Guard<'_> {
        self.lock_held().guard
    }

    /// Runs a round if nobody else does, and again while posts came in that found the lock taken.
    #[inline]
    pub(super) fn run(&self, round: Round) -> usize {
        let mut handled = 0;
        while let Some(mut held) = self.try_lock() {
            let now = now_ns();
            handled += self.round(&mut held, now, round);
            drop(held);
            // The unlocking store must be visible before the look at the marks: a poster sets his mark (a read-modify-write,
            // a full barrier where that matters) and then looks at the lock. One of the two sees the other.
            core::sync::atomic::fence(Ordering::SeqCst);
            // Whoever posted meanwhile found the lock taken and left: his doorbell is ours to ring.
            if !self.engine.shared().active.any() {
                break;
            }
        }
        handled
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

    /// Whether the socket's send buffer is full: there may be work that cannot be done now.
    pub(super) fn is_blocked(&self) -> bool {
        self.lock_held().port().blocked
    }

    /// One bounded round under the lock. Returns packets and runs handled.
    #[inline]
    pub(super) fn round(&self, held: &mut Held<'_>, now: u64, round: Round) -> usize {
        let (g, port) = held.parts();
        let mut handled = 0;
        if round == Round::Full {
            handled += receive(g, port, now);
        }
        handled += g.run_loopback(now, LOOPBACK_ROUNDS);
        if round == Round::Full {
            if handled == 0 {
                // Nothing came: timers may run, and owed ACKs have waited long enough for company.
                g.handle_timeout(now);
                g.flush_acks();
                port.empty = port.empty.saturating_add(1);
                handled += g.run_loopback(now, LOOPBACK_ROUNDS);
            } else {
                g.poll_memory(now);
                port.empty = 0;
            }
        }
        self.send(g, port, now);
        if g.shared().notify.load(Ordering::Relaxed)
            && (self.helper_on.load(Ordering::Relaxed) || self.sleeping.load(Ordering::Relaxed))
            && g.shared().notify.swap(false, Ordering::AcqRel)
        {
            // A thread sleeps on the descriptor, or may: with a helper, only the event makes it readable.
            self.sleeping.store(false, Ordering::Relaxed);
            self.waiter.notify();
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
            let mut full = false;
            let mut any = false;
            while sent < BURSTS {
                let Some(space) = udp.tx_space() else {
                    full = true;
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
            }
            if any && udp.tx_flush() == TxOutcome::Full {
                *blocked = true;
                let _ = self.waiter.want_write(udp.fd(), true);
                return;
            }
            if !full {
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

/// Receives once. Returns the packets.
#[inline]
fn receive(g: &mut Guard<'_>, port: &mut Port, now: u64) -> usize {
    let Port { udp, pcap, empty, .. } = port;
    let Some(udp) = udp else { return 0 };
    let n = udp.rx_poll();
    let local = *udp.local();
    let mut handled = 0;
    for i in 0..n {
        let r = udp.rx_get(i);
        if r.data.is_empty() {
            continue;
        }
        if let Some(tee) = pcap {
            tee.burst(now, &r.src, &local, 0, r.seg, r.data);
        }
        handled += g.handle_packets(now, &peer_addr(&r.src), usize::from(r.seg), r.data, r.ecn == 3);
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

/// Hands what the kernel said about single destinations to the engine.
fn report_errors(g: &mut Guard<'_>, port: &mut Port, now: u64) {
    let Some(udp) = &mut port.udp else { return };
    while let Some(e) = udp.take_error() {
        let dst = peer_addr(&e.dst);
        match e.kind {
            ErrorKind::Icmp => g.peer_unreachable(now, &dst, e.errno),
            ErrorKind::Mtu => g.peer_mtu_exceeded(now, &dst, e.mtu),
            ErrorKind::Send => g.port_error(now, &dst, e.errno),
        }
    }
}
