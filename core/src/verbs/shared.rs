//! Rings and flags that program threads and the engine share. Everything here is atomic.
//!
//! A program thread reaches a ring through its guarded side (`producer()`, `consumer()`: one thread
//! at a time, a second one gets [`Error::Busy`]); the engine through [`EngineKey`], which exists
//! once per engine and lives behind its lock.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use crate::arena::{RawBytes, Table, Walk};
use crate::bitmap::AtomicBitmap;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::mem::host;
use crate::pool::{tag, LiveHandle, Pool};
use crate::reason::refuse;
use crate::ring::{EngineConsumer, EngineProducer, Producer, SlotRing};
use crate::verbs::kind::QpKind;
use crate::verbs::types::{qp_state, send_flags, Handle, Wc};
use crate::verbs::wqe::{RecvWqe, SendWqe};

/// Proof that the holder is inside the engine's lock. One per engine; not `Clone`.
pub struct EngineKey(());

impl EngineKey {
    /// Makes the key.
    ///
    /// # Safety
    /// At most one key per engine, and it is only reachable by the holder of the engine's lock.
    #[allow(unsafe_code)]
    pub unsafe fn new() -> Self {
        EngineKey(())
    }
}

/// The shared half of a QP.
#[derive(Default)]
pub struct QpShared {
    /// Its handle.
    pub name: LiveHandle,
    /// What a post of one plain request asks, in one word ([`plain`]): the queue pair's state and
    /// kind, and its limits. Written by [`QpShared::set_state`].
    pub plain: AtomicU64,
    /// Send queue.
    pub sq: SlotRing<SendWqe>,
    /// Receive queue; not installed when the QP uses an SRQ.
    pub rq: SlotRing<RecvWqe>,
    /// Snapshot of the state (`qp_state`), written by the engine.
    pub state: AtomicU32,
    /// Number of its [`QpKind`].
    pub kind: AtomicU32,
    /// 1: every request is signalled.
    pub sig_all: AtomicU32,
    /// Pieces of a send request.
    pub max_send_sge: AtomicU32,
    /// Pieces of a receive request.
    pub max_recv_sge: AtomicU32,
    /// Inline bytes.
    pub max_inline: AtomicU32,
    /// How its requests travel ([`qp_path`]): it selects the function that sends them. The engine
    /// writes it when the path to the peer is chosen or ends. It is a guess, and that function
    /// checks it.
    pub path: AtomicU32,
    /// The way by which its last request passed, or could have passed, without a slot of the send
    /// queue ([`slotless`]). The next single request is offered this way before it gets a slot.
    /// Written by the engine.
    pub slotless: AtomicU32,
    /// The place of that WRITE in this process, less the address that it named. It predicts the
    /// place of the next WRITE, for [`crate::mem::host::expect_write`] alone.
    pub peer_offset: AtomicU64,
    /// Address in this process of the place for the next frame of its link, as its last single
    /// request left it; 0: none, an address that does as little harm. A guess as well.
    pub next_frame: AtomicU64,
}

/// Parts of [`QpShared::plain`]. The lower half is the most inline bytes of a request; all is 0
/// while the queue pair takes no sends of one piece.
pub mod plain {
    /// It is RC or UC.
    pub const TO_PEER: u64 = 1 << 63;
    /// It is a DCI: each request names its target.
    pub const TO_TARGET: u64 = 1 << 62;
    /// Where the flags are that each of its requests gets.
    pub const FLAGS_AT: u32 = 32;
}

const _: () = assert!(
    qp_state::RESET < qp_state::RTR
        && qp_state::INIT < qp_state::RTR
        && qp_state::RTS > qp_state::RTR
);

/// Numbers of paths in [`QpShared::path`].
pub mod qp_path {
    /// Not known: no peer, or each request names one; or the path is lost.
    pub const UNKNOWN: u32 = 0;
    /// As packets through the port, by system calls.
    pub const PORT: u32 = 1;
    /// Within the engine.
    pub const LOOPBACK: u32 = 2;
    /// Through the memory of a link. A bit of its own, so that a post asks for it first.
    pub const LINK: u32 = 4;
}

/// Numbers of ways in [`QpShared::slotless`].
pub mod slotless {
    /// None: the last request needed its slot.
    pub const NO: u32 = 0;
    /// A WRITE, into memory of the peer's process, which is mapped
    /// ([`crate::engine::EngineGuard::write_peer_single`]).
    pub const MAPPED: u32 = 1;
    /// A SEND or WRITE, to a queue pair of this engine
    /// ([`crate::engine::EngineGuard::pass_single`]).
    pub const WITHIN: u32 = 2;
}

impl QpShared {
    /// Its transport service.
    #[inline(always)]
    pub fn kind(&self) -> QpKind {
        QpKind::from_number(self.kind.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Writes the state, and with it [`QpShared::plain`].
    pub fn set_state(&self, state: u32) {
        self.state.store(state, Ordering::Release);
        let get = |word: &AtomicU32| word.load(Ordering::Relaxed);
        let to = match self.kind() {
            kind if kind.sends_plainly() => plain::TO_PEER,
            QpKind::Dci => plain::TO_TARGET,
            _ => 0,
        };
        let flags = if get(&self.sig_all) != 0 { send_flags::SIGNALED } else { 0 };
        let takes = get(&self.state) > qp_state::RTR && get(&self.max_send_sge) > 0;
        let limits = u64::from(flags) << plain::FLAGS_AT | u64::from(get(&self.max_inline));
        self.plain.store(if takes && to != 0 { to | limits } else { 0 }, Ordering::Relaxed);
    }

    /// Asks for the cache line to which a WRITE to this address probably goes: it is on its way
    /// while the WRITE is checked. Its address in this process may be any, see
    /// [`host::expect_write`].
    #[inline(always)]
    pub fn expect_peer_write(&self, remote_addr: u64) {
        host::expect_write(remote_addr.wrapping_add(self.peer_offset.load(Ordering::Relaxed)));
    }

    /// As [`QpShared::expect_peer_write`], for a request that probably passes through a link.
    #[inline(always)]
    pub fn expect_frame(&self) {
        let at = self.next_frame.load(Ordering::Relaxed);
        // A prefetch of address 0 is a walk through the page tables each time.
        if at != 0 {
            host::expect_write(at);
        }
    }

    /// Notes where in this process a WRITE to `remote_addr` went.
    #[inline(always)]
    pub fn note_peer_write(&self, remote_addr: u64, to: u64) {
        let offset = to.wrapping_sub(remote_addr);
        if self.peer_offset.load(Ordering::Relaxed) != offset {
            self.peer_offset.store(offset, Ordering::Relaxed);
        }
    }

    /// The engine's view of the send queue.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn engine_sq(&self, _key: &EngineKey) -> EngineConsumer<'_, SendWqe> {
        // SAFETY: the key exists once and only inside the engine's lock, so no other engine side is
        // in use.
        unsafe { self.sq.engine_consumer() }
    }

    /// The engine's view of the receive queue.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn engine_rq(&self, _key: &EngineKey) -> EngineConsumer<'_, RecvWqe> {
        // SAFETY: as for `engine_sq`.
        unsafe { self.rq.engine_consumer() }
    }
}

/// Completion channels that an engine can have.
pub const CHANNELS: usize = u64::BITS as usize;

/// The shared half of a CQ.
#[derive(Default)]
pub struct CqShared {
    /// Completions. Its name is the CQ's handle.
    pub ring: SlotRing<Wc>,
    /// What most polls do not touch.
    pub beside: CachePadded<BesideRing>,
}

/// What a CQ has beside its ring.
#[derive(Default)]
pub struct BesideRing {
    /// For polls that find completions.
    pub found: FoundPolls,
    /// For polls while another thread runs the engine.
    pub vain: VainPolls,
    /// Rings in other engines of its device.
    pub branches: Branches,
}

/// Where else an object is. A CQ or a completion channel may be in several engines of a device: in
/// its own, and as a **branch** in each other one. A branch of a CQ is a ring
/// ([`crate::engine::EngineGuard::cq_branch`]). The object and its branches are a list, linked by
/// handles that the device gives.
#[derive(Default)]
pub struct Branches {
    /// The next one of the list, or 0.
    next: AtomicU64,
    /// Of a branch: the object that the program knows. Of an object: 0.
    home: AtomicU64,
    /// How many polls have looked at the list; each begins one ring further.
    looks: AtomicU32,
}

impl Branches {
    /// Those of an object that has none.
    #[cfg(not(loom))]
    pub const fn none() -> Branches {
        Branches { next: AtomicU64::new(0), home: AtomicU64::new(0), looks: AtomicU32::new(0) }
    }

    /// The one behind this in the list, or 0. A thread that reads its handle sees all of it.
    #[inline(always)]
    pub fn next(&self) -> Handle {
        self.next.load(Ordering::Acquire)
    }

    /// Puts one behind this in the list (0: none). One thread at a time.
    pub fn set_next(&self, next: Handle) {
        self.next.store(next, Ordering::Release);
    }

    /// The object of which this is a branch, or 0.
    pub fn home(&self) -> Handle {
        self.home.load(Ordering::Relaxed)
    }

    /// The number of this look among those of all threads.
    pub fn next_look(&self) -> usize {
        self.looks.fetch_add(1, Ordering::Relaxed) as usize
    }

    /// Whether the object is in several engines.
    pub fn is_one_of_several(&self) -> bool {
        self.next() != 0 || self.home() != 0
    }

    /// Begins as an object without branches (0), or as a branch of `home`; before anybody knows its
    /// handle.
    pub fn begin(&self, home: Handle) {
        self.next.store(0, Ordering::Relaxed);
        self.home.store(home, Ordering::Relaxed);
        self.looks.store(0, Ordering::Relaxed);
    }
}

/// Notes of polls that find nothing while another thread runs the engine. Relaxed: two threads that
/// poll one CQ disturb only each other's notes.
#[derive(Default)]
pub struct VainPolls {
    /// Epoch of the lock at the last look ([`crate::turns::TurnLock::epoch`]).
    pub epoch: AtomicU32,
    /// Rounds of the engine at the last look.
    pub rounds: AtomicU32,
    /// When the next look is due.
    pub look_at_ns: AtomicU64,
    /// The interval of looks.
    pub wait_ns: AtomicU64,
    /// When these polls need a full round.
    pub round_at_ns: AtomicU64,
    /// They have asked the runner for it.
    pub asked: AtomicBool,
}

/// Notes of polls that find completions. Relaxed, as [`VainPolls`].
#[derive(Default)]
pub struct FoundPolls {
    /// Polls until one looks at the clock.
    pub left: AtomicU32,
    /// Polls between two looks.
    pub every: AtomicU32,
    /// Full rounds of the engine at the last look that saw some.
    pub rounds: AtomicU32,
    /// When they last looked.
    pub looked_ns: AtomicU64,
    /// When the engine needs a full round.
    pub round_at_ns: AtomicU64,
}

impl CqShared {
    /// The engine's view of the completions.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn engine_ring(&self, _key: &EngineKey) -> EngineProducer<'_, Wc> {
        // SAFETY: as for `QpShared::engine_sq`.
        unsafe { self.ring.engine_producer() }
    }
}

/// The shared half of an SRQ.
#[derive(Default)]
pub struct SrqShared {
    /// Receive requests.
    pub rq: SlotRing<RecvWqe>,
    /// Pieces of a request.
    pub max_sge: AtomicU32,
}

/// All that program threads reach without the engine's lock.
pub struct Shared {
    /// By QP index.
    pub qps: Table<QpShared>,
    /// By CQ index.
    pub cqs: Table<CqShared>,
    /// By SRQ index.
    pub srqs: Table<SrqShared>,
    /// Handles of QPs.
    pub qp_pool: Pool,
    /// Handles of CQs.
    pub cq_pool: Pool,
    /// Handles of SRQs.
    pub srq_pool: Pool,
    /// QPs with new work.
    pub active: AtomicBitmap,
    /// Armed CQs without a channel that have an event, not yet taken by the program.
    pub cq_events: AtomicBitmap,
    /// By channel: its latest CQ with an event, plus one; the others are linked behind it. Only
    /// under the engine's lock.
    pub channel_events: [AtomicU32; CHANNELS],
    /// Channels with an event that their descriptors do not show yet, a bit each. Only under the
    /// engine's lock.
    pub channels_due: AtomicU64,
    /// Something for the program's descriptor: an armed CQ or an asynchronous event.
    pub notify: AtomicBool,
}

/// The error of the second thread that polls a CQ.
#[cold]
#[inline(never)]
pub fn polled() -> Error {
    refuse!(Busy, "cq: another thread polls it")
}

/// The error of the second thread that posts to a queue of this argument.
#[cold]
#[inline(never)]
pub fn posted(to: &str) -> Error {
    refuse!(Busy, "{to}: another thread posts to it")
}

/// What a slot of an object's ring holds: plain numbers, so that zeroes are a value.
pub(crate) trait Slot: Copy {}
impl Slot for SendWqe {}
impl Slot for RecvWqe {}
impl Slot for Wc {}

impl Shared {
    /// Lays out the shared tables.
    pub fn carve(w: &mut Walk, c: &Config) -> Result<Self> {
        let pool = |w: &mut Walk, tag: u8, initial: u32, most: Option<u64>| {
            Pool::carve(w, (tag, c.context), initial as usize, c.table(initial), most)
        };
        Ok(Shared {
            qps: Table::carve(w, c.max_qp as usize, c.table(c.max_qp), |_| QpShared::default())?,
            cqs: Table::carve(w, c.max_cq as usize, c.table(c.max_cq), |_| CqShared::default())?,
            srqs: Table::carve(w, c.max_srq as usize, c.table(c.max_srq), |_| {
                SrqShared::default()
            })?,
            qp_pool: pool(w, tag::QP, c.max_qp, c.limits.max_qp)?,
            cq_pool: pool(w, tag::CQ, c.max_cq, c.limits.max_cq)?,
            srq_pool: pool(w, tag::SRQ, c.max_srq, c.limits.max_srq)?,
            active: AtomicBitmap::carve(w, c.table(c.max_qp))?,
            cq_events: AtomicBitmap::carve(w, c.table(c.max_cq))?,
            channel_events: [const { AtomicU32::new(0) }; CHANNELS],
            channels_due: AtomicU64::new(0),
            notify: AtomicBool::new(false),
        })
    }

    /// The engine's view of a send queue.
    #[inline]
    pub fn sq(&self, qp: usize, key: &EngineKey) -> EngineConsumer<'_, SendWqe> {
        self.qps[qp].engine_sq(key)
    }

    /// The engine's view of a receive queue.
    #[inline]
    pub fn rq(&self, qp: usize, key: &EngineKey) -> EngineConsumer<'_, RecvWqe> {
        self.qps[qp].engine_rq(key)
    }

    /// The engine's view of a shared receive queue.
    #[inline]
    #[allow(unsafe_code)]
    pub fn srq(&self, srq: usize, _key: &EngineKey) -> EngineConsumer<'_, RecvWqe> {
        // SAFETY: as for `QpShared::engine_sq`.
        unsafe { self.srqs[srq].rq.engine_consumer() }
    }

    /// The engine's view of a CQ.
    #[inline]
    pub fn cq(&self, cq: usize, key: &EngineKey) -> EngineProducer<'_, Wc> {
        self.cqs[cq].engine_ring(key)
    }

    /// Marks an armed CQ without a channel as having an event and asks for the descriptor to be
    /// raised.
    #[inline]
    pub fn raise_cq(&self, cq: usize) {
        self.cq_events.set(cq);
        self.notify.store(true, Ordering::Release);
    }

    /// The same for a CQ with a channel: returns the one before it in the channel's list.
    #[cold]
    pub fn raise_on_channel(&self, cq: u32, channel: usize) -> u32 {
        let before = self.channel_events[channel].swap(cq + 1, Ordering::Relaxed);
        self.channels_due.fetch_or(1 << channel, Ordering::Relaxed);
        self.notify.store(true, Ordering::Release);
        before
    }

    /// Gives an object that no handle names yet its ring, one of this engine: memory, capacity and
    /// stride. `None`: it has none.
    #[allow(unsafe_code)]
    pub(crate) fn install<T: Slot>(
        &self,
        ring: impl for<'s> FnOnce(&'s Shared) -> &'s SlotRing<T>,
        made: Option<(RawBytes, u32, u32)>,
        _key: &EngineKey,
    ) {
        let ring = ring(self);
        match made {
            // SAFETY: the caller holds this engine's lock, which the key stands for, and the
            // object's index is free: no handle to it is valid, so no program thread is inside; the
            // region was allocated for this ring, with this capacity and stride. Zeroes are a valid
            // `T` (`Slot`).
            Some((mem, capacity, stride)) => unsafe { ring.install(mem, capacity, stride) },
            // SAFETY: as above.
            None => unsafe { ring.uninstall() },
        }
    }

    /// Moves the entries of a CQ into a new ring and swaps it in.
    ///
    /// # Errors
    /// [`Error::Busy`]: a thread polls the CQ. [`Error::Invalid`]: the entries do not fit.
    #[allow(unsafe_code)]
    pub fn swap_cq(
        &self,
        cq: usize,
        mem: RawBytes,
        capacity: u32,
        stride: u32,
        _key: &EngineKey,
    ) -> Result<()> {
        let ring = &self.cqs[cq].ring;
        let mut side = ring.consumer().ok_or_else(polled)?;
        if side.len() > capacity {
            return Err(refuse!(
                Invalid,
                "cqe {capacity}: {} completions wait in the CQ",
                side.len()
            ));
        }
        let fresh = SlotRing::<Wc>::default();
        // SAFETY: `fresh` is a local ring nobody else knows; the region was allocated for it.
        unsafe { fresh.install(mem, capacity, stride) };
        // SAFETY: the only producer of a local ring.
        let mut to = unsafe { fresh.engine_producer() };
        while let Some(wc) = side.pop() {
            to.push(wc)?;
        }
        // SAFETY: the consumer side is held (`side`), the producer side by the lock: nobody is
        // inside `ring`, and `fresh` is local.
        unsafe { ring.adopt(&fresh) };
        Ok(())
    }

    /// Moves the requests of an SRQ, in their order, into a new ring for `max_wr` requests, and
    /// swaps it in.
    ///
    /// # Errors
    /// [`Error::Busy`]: a thread posts to the SRQ. [`Error::Invalid`]: more than `max_wr` are in
    /// it.
    #[allow(unsafe_code)]
    pub fn swap_srq(
        &self,
        srq: usize,
        mem: RawBytes,
        [max_wr, capacity]: [u32; 2],
        key: &EngineKey,
    ) -> Result<()> {
        let ring = &self.srqs[srq].rq;
        let _side = ring.producer().ok_or_else(|| posted("srq"))?;
        let from = self.srq(srq, key);
        let waiting = from.len();
        if waiting > max_wr {
            return Err(refuse!(Invalid, "max_wr {max_wr}: {waiting} requests wait in the SRQ"));
        }
        let fresh = SlotRing::<RecvWqe>::default();
        // SAFETY: `fresh` is a local ring nobody else knows; the region was allocated for it.
        unsafe { fresh.install(mem, capacity, ring.stride()) };
        // SAFETY: the only producer of a local ring.
        let mut to = unsafe { fresh.engine_producer() };
        for k in 0..waiting {
            let (slot, mut copy) = (from.peek(k), to.slot(k));
            *copy.header_mut() = *slot.header();
            copy.tail_mut().copy_from_slice(slot.tail());
        }
        to.publish(waiting);
        // SAFETY: the producer side is held (`_side`), the consumer side by the lock: nobody is
        // inside `ring`, and `fresh` is local.
        unsafe { ring.adopt(&fresh) };
        Ok(())
    }

    /// Takes the completions of one QP out of a CQ; the others stay in their order.
    ///
    /// # Errors
    /// [`Error::Busy`]: a thread polls the CQ.
    pub fn purge_cq(&self, cq: usize, qpn: u32, key: &EngineKey) -> Result<()> {
        let mut side = self.cqs[cq].ring.consumer().ok_or_else(polled)?;
        for _ in 0..side.len() {
            let Some(wc) = side.pop() else { break };
            if wc.qp_num != qpn {
                // There is room: one was just taken.
                self.cq(cq, key).push(wc)?;
            }
        }
        Ok(())
    }

    /// Takes the ring of a CQ away.
    ///
    /// # Errors
    /// [`Error::Busy`]: a thread polls it.
    #[allow(unsafe_code)]
    pub fn remove_cq(&self, cq: usize, _key: &EngineKey) -> Result<()> {
        let ring = &self.cqs[cq].ring;
        let _side = ring.consumer().ok_or_else(polled)?;
        // SAFETY: both sides are held: the consumer by `_side`, the producer by the lock.
        unsafe { ring.uninstall() };
        Ok(())
    }

    /// Takes the ring of an SRQ away.
    ///
    /// # Errors
    /// [`Error::Busy`]: a thread posts to it.
    #[allow(unsafe_code)]
    pub fn remove_srq(&self, srq: usize, _key: &EngineKey) -> Result<()> {
        let ring = &self.srqs[srq].rq;
        let _side = ring.producer().ok_or_else(|| posted("srq"))?;
        // SAFETY: both sides are held: the producer by `_side`, the consumer by the lock.
        unsafe { ring.uninstall() };
        Ok(())
    }

    /// Keeps threads from posting to a QP for as long as the value lives: their posts are refused
    /// with [`Error::Busy`].
    ///
    /// # Errors
    /// [`Error::Busy`]: a thread posts to it right now.
    pub fn hold_posts(&self, qp: usize) -> Result<(Producer<'_, SendWqe>, Producer<'_, RecvWqe>)> {
        let q = &self.qps[qp];
        let busy = || posted("qp");
        Ok((q.sq.producer().ok_or_else(busy)?, q.rq.producer().ok_or_else(busy)?))
    }

    /// Runs `reset` while no thread can post to the QP, then takes its rings away.
    ///
    /// # Errors
    /// [`Error::Busy`]: a thread posts to it; `reset` did not run.
    #[allow(unsafe_code)]
    pub fn close_qp(&self, qp: usize, reset: impl FnOnce()) -> Result<()> {
        let q = &self.qps[qp];
        let _posts = self.hold_posts(qp)?;
        reset();
        // SAFETY: the producer sides are held here, the consumer sides by the engine's lock, which
        // `reset` needs too.
        unsafe { q.sq.uninstall() };
        // SAFETY: as above.
        unsafe { q.rq.uninstall() };
        Ok(())
    }
}
