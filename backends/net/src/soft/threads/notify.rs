//! Events: to the program's sink, to channels, and to threads that sleep; and what a thread does
//! before it sleeps.

use core::sync::atomic::Ordering;

use crate::clock::now_ns;
use crate::shm::relay::Relay;
use crate::shm::ShmPort;
use crate::soft::lock::EngineLock;
use crate::soft::SoftEngine;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::sleep;

/// Data, under the lock: events that were raised.
impl SoftEngine {
    /// Delivers events that were raised: to the sink, to channels, or by a wake-up of threads that
    /// sleep on the program's descriptor.
    #[inline]
    pub(in crate::soft) fn notify(&self, g: &mut EngineGuard<'_>) {
        if g.shared().notify.load(Ordering::Relaxed) {
            self.notify_all(g);
        }
    }

    #[inline(never)]
    fn notify_all(&self, g: &mut EngineGuard<'_>) {
        if self.sink.get().is_some() {
            return self.deliver_all(g);
        }
        self.notify_channels(g);
        if !g.has_events() {
            g.shared().notify.store(false, Ordering::Relaxed);
            return;
        }
        // A thread sleeps on the descriptor, or is about to. With a helper the program may wait on
        // the descriptor by itself, so it becomes readable in any case.
        let wake = self.sleeping.must_wake(sleep::ANY) || self.helper_on.load(Ordering::Relaxed);
        if wake && g.shared().notify.swap(false, Ordering::AcqRel) {
            self.waiter.notify();
        }
    }

    #[cold]
    fn deliver_all(&self, g: &mut EngineGuard<'_>) {
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
        if g.cm().has_other_mads() {
            sink.other_mad_event();
        }
    }
}

/// Waiting: a sleep that begins.
impl SoftEngine {
    /// Before a thread sleeps: accepts links, and announces the sleep on all rings. Returns true if
    /// input has come meanwhile.
    pub(in crate::soft) fn announce(&self, held: &mut EngineLock<'_>) -> bool {
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
    pub(in crate::soft) fn announce_sleep(&self) -> bool {
        let mut held = self.lock_control();
        // Checked under the lock: its release runs the round of such a post, which may complete
        // something.
        self.announce(&mut held) || self.engine.shared().active.any()
    }
}
