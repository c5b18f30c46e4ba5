//! The engine: a NIC in software. What programs share with it are rings; this module owns the rest.
//!
//! Sans-IO. The caller brings packets ([`Guard::handle_packets`]), takes bursts ([`Guard::poll_transmit`]),
//! tells the time, and asks when it is wanted again ([`Guard::next_timeout`]). Time is in nanoseconds and
//! never goes back; no call reads a clock, draws a random number or makes a system call.
//!
//! Order of a round: everything that arrived, then [`Guard::run_loopback`], then `poll_transmit` until it
//! gives nothing, then, only when nothing arrived, [`Guard::handle_timeout`].
//!
//! Data-plane calls that need no lock are methods of [`Engine`] (post, poll, arm); everything else is a
//! method of [`Guard`], which is the engine's lock.

mod control;
mod layout;
mod qp;
mod qpn;
mod report;
mod rx;
mod tx;

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{fence, AtomicBool, Ordering};

use crate::arena::{Heap, RawSlice, Walk};
use crate::config::Config;
use crate::error::{Error, Result};
use crate::roce::peer::PeerAddr;
use crate::roce::Transport;
use crate::verbs::post;
use crate::verbs::shared::Shared;
use crate::verbs::types::{Handle, RecvWr, SendWr, Wc};
use crate::wire::Flow;

pub use tx::Burst;

/// Bounds that no configuration exceeds.
pub mod limits {
    pub use super::control::{MAX_CQE, MAX_DEPTH};
    pub use super::layout::limit as table;
    pub use crate::verbs::post::MAX_MESSAGE;
}

/// What is reachable only inside the lock.
pub struct Inner {
    /// The transport and its tables.
    pub transport: Transport,
    heap: Heap,
    qpns: qpn::Qpns,
    local: PeerAddr,
    /// Where bursts between QPs of this engine are built.
    scratch: RawSlice<u8>,
    /// For the ICRC of what arrives: the last sender, and its flow.
    rx_flow: (PeerAddr, Flow),
    /// Where the next round of sending begins.
    cursor: usize,
}

/// A soft device without its port. `Sync`: any thread may call anything.
pub struct Engine {
    shared: Shared,
    locked: AtomicBool,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached only through `Guard`, which exists once at a time (`locked`); `shared` is atomics.
unsafe impl Sync for Engine {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Engine {}

/// The engine's lock, held. Dropping it unlocks.
pub struct Guard<'e> {
    engine: &'e Engine,
}

impl Engine {
    /// Bytes of memory that [`Engine::init`] needs for a configuration, aligned to a page.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a bound is out of range.
    pub fn memsize(config: &Config) -> Result<usize> {
        let config = config.resolve()?;
        let mut walk = Walk::size_query();
        layout::walk(&mut walk, &config)?;
        Ok(walk.offset())
    }

    /// Makes an engine in the given memory, for a device with this address.
    ///
    /// # Errors
    /// [`Error::Invalid`]: a bound is out of range. [`Error::NoMemory`]: the memory is smaller than [`Engine::memsize`].
    ///
    /// # Safety
    /// The memory is used by nobody else, and lives as long as the engine.
    pub unsafe fn init(memory: *mut u8, bytes: usize, config: &Config, local: PeerAddr) -> Result<Engine> {
        let config = config.resolve()?;
        // SAFETY: the caller's promise.
        let mut walk = unsafe { Walk::carve(memory, bytes)? };
        let parts = layout::walk(&mut walk, &config)?;
        // SAFETY: the region was carved for the heap alone.
        unsafe { layout::finish(parts, &config, local) }
    }

    /// What program threads reach without the lock.
    #[inline]
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self) -> Option<Guard<'_>> {
        if self.locked.load(Ordering::Relaxed) || self.locked.swap(true, Ordering::Acquire) {
            None
        } else {
            Some(Guard { engine: self })
        }
    }

    /// Posts a list of send requests. The doorbell is the caller's: take the lock and send.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: state, opcode or pieces not allowed; [`Error::Again`]: ring full;
    /// [`Error::MessageSize`]; [`Error::Fault`]: inline data cannot be read; [`Error::Busy`]: another thread posts here.
    /// Requests before `bad` are posted all the same.
    ///
    /// # Safety
    /// `wr`, every `next` and every `sg_list` are null or point to readable, initialised structs.
    #[inline]
    pub unsafe fn post_send(&self, qp: Handle, wr: *const SendWr, bad: &mut *const SendWr) -> Result<post::Posted> {
        *bad = wr;
        let qi = self.shared.qp_pool.check(qp)?;
        // SAFETY: the caller's promise.
        let (posted, outcome) = unsafe { post::send(&self.shared.qps[qi], wr, bad) };
        if posted.count > 0 {
            self.shared.active.set(qi);
        }
        outcome.map(|()| posted)
    }

    /// Posts a list of receive requests.
    ///
    /// # Errors
    /// As [`Engine::post_send`].
    ///
    /// # Safety
    /// As [`Engine::post_send`].
    #[inline]
    pub unsafe fn post_recv(&self, qp: Handle, wr: *const RecvWr, bad: &mut *const RecvWr) -> Result<()> {
        use crate::verbs::types::qp_state;
        *bad = wr;
        let qi = self.shared.qp_pool.check(qp)?;
        let q = &self.shared.qps[qi];
        let state = q.state.load(Ordering::Relaxed);
        if state == qp_state::RESET || q.rq.capacity() == 0 {
            return Err(Error::Invalid);
        }
        let max_sge = q.max_recv_sge.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        let outcome = unsafe { post::recv(&q.rq, max_sge, wr, bad) };
        if state == qp_state::ERR {
            // To be flushed.
            self.shared.active.set(qi);
        }
        outcome.map(|_| ())
    }

    /// Posts a list of receive requests to an SRQ.
    ///
    /// # Errors
    /// As [`Engine::post_send`].
    ///
    /// # Safety
    /// As [`Engine::post_send`].
    #[inline]
    pub unsafe fn post_srq_recv(&self, srq: Handle, wr: *const RecvWr, bad: &mut *const RecvWr) -> Result<()> {
        *bad = wr;
        let i = self.shared.srq_pool.check(srq)?;
        let q = &self.shared.srqs[i];
        let max_sge = q.max_sge.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { post::recv(&q.rq, max_sge, wr, bad).map(|_| ()) }
    }

    /// Takes completions that are there already; the engine does not run.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`]: another thread polls this CQ.
    #[inline]
    pub fn poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        let i = self.shared.cq_pool.check(cq)?;
        let c = &self.shared.cqs[i];
        let mut side = c.ring.consumer().ok_or(Error::Busy)?;
        let mut n = 0;
        while n < wc.len() {
            match side.pop() {
                Some(w) => wc[n] = w,
                None => break,
            }
            n += 1;
        }
        if n > 0 {
            // Pairs with `starve`: it stores the flag, then looks at the room.
            fence(Ordering::SeqCst);
            if c.starved.load(Ordering::Relaxed) {
                c.starved.store(false, Ordering::Relaxed);
                self.shared.room.store(true, Ordering::SeqCst);
            }
        }
        Ok(n)
    }

    /// Arms a CQ: its next completion (`solicited_only`: its next solicited or failed one) raises an event.
    /// True: completions are there already, which raise none.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    #[inline]
    pub fn arm_cq(&self, cq: Handle, solicited_only: bool) -> Result<bool> {
        let i = self.shared.cq_pool.check(cq)?;
        let c = &self.shared.cqs[i];
        let level = if solicited_only { 1 } else { 2 };
        // Never weaken an arming that is under way.
        c.armed.fetch_max(level, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Ok(!c.ring.is_empty())
    }
}

impl Guard<'_> {
    /// The shared half.
    #[inline]
    pub fn shared(&self) -> &Shared {
        &self.engine.shared
    }

    /// Both halves at once.
    #[inline]
    pub(crate) fn split(&mut self) -> (&mut Inner, &Shared) {
        // SAFETY: this guard is the only one (`locked`), and `&mut self` excludes a second borrow through it.
        (unsafe { &mut *self.engine.inner.get() }, &self.engine.shared)
    }
}

impl Deref for Guard<'_> {
    type Target = Inner;
    #[inline]
    fn deref(&self) -> &Inner {
        // SAFETY: this guard is the only one, and `&self` allows no mutable borrow through it.
        unsafe { &*self.engine.inner.get() }
    }
}

impl DerefMut for Guard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inner {
        self.split().0
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.engine.locked.store(false, Ordering::Release);
    }
}
