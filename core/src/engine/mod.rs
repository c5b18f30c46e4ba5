//! The engine: a NIC in software. Programs share only rings with it; this module owns the rest.
//!
//! Sans-IO. The caller brings packets ([`EngineGuard::handle_packets`]), takes bursts
//! ([`EngineGuard::poll_transmit`]), passes the time, and asks for the time of the next call
//! ([`EngineGuard::next_timeout`]). Time is in nanoseconds and never goes back. The engine does
//! nothing of the system by itself: the clock (an argument or a closure), the port (`Packets`,
//! `Links`) and memory of peers (`PeerMemory`) are passed in, and random numbers follow from the
//! seed.
//!
//! Order of a round: everything that arrived; [`EngineGuard::run_loopback`]; only when nothing
//! arrived, [`EngineGuard::handle_timeout`]; [`EngineGuard::poll_memory`]; then `poll_transmit`
//! until it gives nothing.
//!
//! Data-plane calls need no lock: [`post`] has those of sends, [`Engine`] those of receives and
//! polls. Everything else is a method of [`EngineGuard`], which is the engine's lock. Each `impl`
//! of it names its role: data (a round calls it, or a post) or control (a call of the program).

mod adopt;
pub mod cm;
pub mod cm_qps;
mod control;
mod dc;
mod due;
pub mod injected;
mod layout;
mod outage;
mod paths;
mod ports;
mod qp;
mod qpn;
mod report;
mod rx;
mod srq;
mod tx;
mod witness;

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::Ordering;

use crate::arena::{Heap, RawSlice, Walk};
use crate::cm::Cm;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::pool::{index_of, stale, tag};
use crate::reason::refuse;
use crate::roce::peer::PeerAddr;
use crate::roce::txbuf::Handed;
use crate::roce::Transport;
use crate::turns::TurnLock;
use crate::verbs::post::{self, Single};
use crate::verbs::shared::{polled, slotless, CqShared, QpShared, Shared};
use crate::verbs::types::{wr_opcode, Handle, RecvWr, Wc};
use crate::wire::IcrcFlow;

pub use report::QpReport;
pub use rx::Arrival;
pub use tx::Burst;

/// Bounds that no configuration exceeds.
pub mod limits {
    pub use super::control::{MAX_CQE, MAX_DEPTH};
    pub use crate::verbs::post::MAX_MESSAGE;
}

/// State that only the holder of the lock reaches.
pub struct Inner {
    /// The transport and its tables.
    pub transport: Transport,
    /// The connection manager.
    cm: Cm,
    heap: Heap,
    qpns: qpn::Qpns,
    local: PeerAddr,
    /// Payload of the runs that one QP hands to others of this engine.
    scratch: RawSlice<u8>,
    /// Headers of those runs.
    handed: RawSlice<Handed>,
    /// For the ICRC of arriving packets: the last sender, and its flow.
    rx_flow: (PeerAddr, IcrcFlow),
    /// The IPv4 identification with which its next burst should begin; 0 while all began with 0.
    rx_ident: u16,
    /// The last long packet had the identification that was expected.
    rx_expected: bool,
    /// Where the next round of sending begins.
    cursor: usize,
    /// The link to peers that control calls name from now on.
    link_of_new_peers: Option<u16>,
    /// Peers at the engine's own address that are named from now on are other engines.
    own_address_is_remote: bool,
    /// Other engines may have this address too: packets for their QPNs leave through the port.
    address_is_shared: bool,
    /// Packets for the port all have the identification 0.
    idents_are_zero: bool,
}

/// A soft device without its port. `Sync`: any thread may call anything.
pub struct Engine {
    shared: Shared,
    lock: TurnLock,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached only through `EngineGuard`, which exists once at a time (`lock`);
// `shared` is atomics.
unsafe impl Sync for Engine {}
// SAFETY: nothing in it belongs to a thread.
unsafe impl Send for Engine {}

/// The engine's lock, held. Dropping it unlocks.
pub struct EngineGuard<'e> {
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
    /// [`Error::Invalid`]: a bound is out of range. [`Error::NoMemory`]: the memory is smaller than
    /// [`Engine::memsize`].
    ///
    /// # Safety
    /// The memory is used by nobody else, and lives as long as the engine.
    pub unsafe fn init(
        memory: *mut u8,
        bytes: usize,
        config: &Config,
        local: PeerAddr,
    ) -> Result<Engine> {
        let mut engine = core::mem::MaybeUninit::uninit();
        // SAFETY: the caller's promise; the engine is written unless an error returns.
        unsafe {
            Engine::init_at(engine.as_mut_ptr(), memory, bytes, config, local)?;
            Ok(engine.assume_init())
        }
    }

    /// As [`Engine::init`], at a place, without a copy of the engine on the stack.
    ///
    /// # Errors
    /// As [`Engine::init`]; nothing is written then.
    ///
    /// # Safety
    /// As for [`Engine::init`]; the place is aligned for an engine and may be written.
    pub unsafe fn init_at(
        place: *mut Engine,
        memory: *mut u8,
        bytes: usize,
        config: &Config,
        local: PeerAddr,
    ) -> Result<()> {
        let config = config.resolve()?;
        // SAFETY: the caller's promise.
        let mut walk = unsafe { Walk::carve(memory, bytes)? };
        match layout::walk(&mut walk, &config) {
            // SAFETY: the region was carved for the heap alone; the caller's promise.
            Ok(parts) => unsafe { layout::finish(place, parts, &config, local) },
            Err(e) => Err(e),
        }
    }

    /// State that program threads reach without the lock.
    #[inline]
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The lock's words, for the turns of threads.
    #[inline(always)]
    pub fn turns(&self) -> &TurnLock {
        &self.lock
    }

    /// Takes the lock if it is free.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<EngineGuard<'_>> {
        self.lock.try_lock().then(|| EngineGuard { engine: self })
    }

    /// Takes the lock if it is free. For a thread that has failed to take it, and has then left a
    /// mark in [`Shared::active`]. `None`: the holder sees the mark
    /// ([`TurnLock::try_lock_marked`]).
    #[inline]
    pub fn try_lock_marked(&self) -> Option<EngineGuard<'_>> {
        self.lock.try_lock_marked().then(|| EngineGuard { engine: self })
    }

    /// A QP for posting: its index, and its shared half.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    #[inline(always)]
    pub fn qp(&self, qp: Handle) -> Result<(usize, &QpShared)> {
        let i = index_of(qp);
        match self.shared.qps.get(i) {
            Some(q) if q.name.is(qp) => Ok((i, q)),
            _ => Err(stale(tag::QP, qp)),
        }
    }

    /// Posts a list of receive requests. Requests before `bad` are posted all the same.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: state or pieces not allowed; [`Error::Again`]:
    /// ring full; [`Error::Busy`]: another thread posts here.
    ///
    /// # Safety
    /// `wr`, every `next` and every `sg_list` are null or point to readable, initialised structs.
    #[inline(always)]
    pub unsafe fn post_recv(
        &self,
        qp: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        *bad = wr;
        let (qi, q) = self.qp(qp)?;
        // SAFETY: the caller's promise.
        unsafe { self.post_recv_to(qi, q, wr, bad) }
    }

    /// [`Engine::post_recv`] to the QP at an index, which was looked up.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    #[inline(always)]
    pub unsafe fn post_recv_to(
        &self,
        qi: usize,
        q: &QpShared,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        use crate::verbs::types::qp_state;
        let state = q.state.load(Ordering::Relaxed);
        // IBTA C10-97.2.1: Receives are taken from INIT on.
        if state == qp_state::RESET || q.rq.capacity() == 0 {
            return Err(takes_no_receives(state));
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
    /// As [`Engine::post_recv`].
    ///
    /// # Safety
    /// As [`Engine::post_recv`].
    #[inline]
    pub unsafe fn post_srq_recv(
        &self,
        srq: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
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
    #[inline(always)]
    pub fn poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        Self::take_completions(self.cq(cq)?.1, wc).map(|n| n as usize).ok_or_else(polled)
    }

    /// A CQ for polling: its index, and its shared half.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    #[inline(always)]
    pub fn cq(&self, cq: Handle) -> Result<(usize, &CqShared)> {
        let i = index_of(cq);
        match self.shared.cqs.get(i) {
            Some(q) if q.ring.name.is(cq) => Ok((i, q)),
            _ => Err(stale(tag::CQ, cq)),
        }
    }

    /// [`Engine::poll_cq`] of a CQ. One that was destroyed meanwhile is empty. `None`: another
    /// thread polls this CQ ([`polled`]).
    #[inline(always)]
    pub fn take_completions(cq: &CqShared, wc: &mut [Wc]) -> Option<u32> {
        // Most polls find nothing. They need no exclusive end, whose flag takes a locked
        // instruction.
        match cq.ring.is_empty() {
            true => Some(0),
            false => Self::take_waiting(cq, wc),
        }
    }

    /// [`Engine::take_completions`] of a CQ that was just seen to have some.
    #[inline(always)]
    pub fn take_waiting(cq: &CqShared, wc: &mut [Wc]) -> Option<u32> {
        // An engine that waits for room looks for it in its next round.
        Some(cq.ring.consumer()?.take_headers(wc) as u32)
    }
}

/// Data: what a post does at once.
impl EngineGuard<'_> {
    /// The shared half.
    #[inline]
    pub fn shared(&self) -> &Shared {
        &self.engine.shared
    }

    /// The doorbell: the QP at this index may have something to send. False: the request may wait
    /// for the next doorbell or poll, because much is in flight and little waits. Several requests
    /// then leave as one burst.
    #[inline]
    pub fn wake(&mut self, qi: usize) -> bool {
        let (inner, s) = self.split();
        inner.transport.common.ready.set(qi);
        !inner.transport.may_gather(s, qi)
    }

    /// Executes what was just posted to the QP at this index, if one step is enough: only for one
    /// SEND, WRITE or READ of one packet to a QP of this engine. `opcode`: of the last request.
    /// `DC`: the QP is a DCI; else it is RC. False: nothing has changed; [`EngineGuard::wake`] is
    /// next.
    #[inline(always)]
    pub fn try_local<const DC: bool>(&mut self, qi: usize, opcode: u32) -> bool {
        let (inner, s) = self.split();
        let Inner { transport: t, scratch, .. } = inner;
        match opcode {
            wr_opcode::RDMA_WRITE => t.try_local::<DC, true>(s, qi, scratch),
            wr_opcode::RDMA_READ => t.try_local_read::<DC>(s, qi, scratch),
            _ => t.try_local::<DC, false>(s, qi, scratch),
        }
    }

    /// Executes one SEND or WRITE to a QP of this engine, without a slot of the send queue. False:
    /// the request must be posted. No state has changed then, but its bytes may be written already.
    #[inline(always)]
    pub fn pass_single(&mut self, qi: usize, request: &Single) -> bool {
        let (inner, s) = self.split();
        let Inner { transport: t, scratch, .. } = inner;
        let done = match request.opcode {
            wr_opcode::RDMA_WRITE => t.pass_single::<true>(s, qi, request, scratch),
            _ => t.pass_send(s, qi, request, scratch),
        };
        if !done {
            self.stop_slotless(qi);
        }
        done
    }

    /// Stops offering this way; [`Transport::try_local`] offers it again.
    #[cold]
    fn stop_slotless(&mut self, qi: usize) {
        if let Some(q) = self.split().1.qps.get(qi) {
            q.slotless.store(slotless::NO, Ordering::Relaxed);
        }
    }

    /// Both halves at once.
    #[inline]
    pub(crate) fn split(&mut self) -> (&mut Inner, &Shared) {
        // SAFETY: this guard is the only one (`lock`), and `&mut self` excludes a second borrow
        // through it.
        (unsafe { &mut *self.engine.inner.get() }, &self.engine.shared)
    }
}

impl Deref for EngineGuard<'_> {
    type Target = Inner;
    #[inline]
    fn deref(&self) -> &Inner {
        // SAFETY: this guard is the only one, and `&self` allows no mutable borrow through it.
        unsafe { &*self.engine.inner.get() }
    }
}

impl DerefMut for EngineGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Inner {
        self.split().0
    }
}

impl Drop for EngineGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.engine.lock.unlock();
    }
}

#[cold]
#[inline(never)]
fn takes_no_receives(state: u32) -> Error {
    match state {
        crate::verbs::types::qp_state::RESET => {
            refuse!(Invalid, "qp: it is in RESET, and receives are taken from INIT on")
        }
        _ => refuse!(Invalid, "qp: its receives are taken by an SRQ, post them there"),
    }
}
