//! A session's objects, and the sockets and memory by which it is served.

use super::gpu::GpuRegion;
use super::guard::Guard;
use super::shared_device::SharedDevice;
use super::shares::UnderWay;
use gdrcore_core::cm::types::CmEvent;
use gdrcore_core::counters::Counters;
use gdrcore_core::device::{async_event, Device};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::pool::tag;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{
    qp_attr_mask, qp_state, wc_opcode, wc_status, AhAttr, Handle, QpAttr, QpInit, Wc,
};
use gdrcore_core::verbs::wqe::{RecvWqe, SendWqe};
use gdrcore_net::remote::call::QueueShape;
use gdrcore_net::remote::limits;
use gdrcore_net::remote::pages::{File, Pages};
use gdrcore_net::remote::queue::{Broken, Doorbell, DoorbellPage, QueueMap};
use gdrcore_net::remote::table::Table;
use gdrcore_net::rights::{self, Foreign};
use gdrcore_net::via::wire;
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// Bytes of a session's queues, at most: the device has about as much memory for the same ones.
const QUEUES: u64 = 64 << 20;
/// Polls of a CQ that find nothing, before the device is asked for an event instead; and looks at
/// all queues of a kind, before they are left to their bells.
pub(super) const IDLE: u32 = 1024;
/// Completions that are moved at a time.
const BATCH: usize = 16;

/// A region: its handle on the device, and its memory, which ends after it.
pub(super) struct Mr {
    pub(super) device: Handle,
    pub(super) memory: MrMemory,
}

/// The memory of a region, as the router has it open.
pub(super) enum MrMemory {
    Host(Pages),
    Gpu(GpuRegion),
    /// Of a NIC, by its bytes: the NIC has it open.
    DmaBuf(u64),
}

impl MrMemory {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            MrMemory::Host(pages) => pages.bytes(),
            MrMemory::Gpu(gpu) => gpu.bytes(),
            MrMemory::DmaBuf(bytes) => *bytes,
        }
    }

    pub(super) fn pieces(&self) -> usize {
        match self {
            MrMemory::Host(pages) => pages.pieces(),
            MrMemory::Gpu(_) | MrMemory::DmaBuf(_) => 0,
        }
    }
}

/// A CQ.
pub(super) struct Cq {
    pub(super) device: Handle,
    pub(super) map: QueueMap,
    /// Memory of another size, until the tenant has mapped it.
    pub(super) next: Option<QueueMap>,
    pub(super) tail: u32,
    /// The channel of its events; 0: those of the session.
    pub(super) channel: Handle,
    /// Polls without a completion since the last one; from [`IDLE`] on it waits for an event of
    /// the device.
    pub(super) idle: u32,
    /// Armed for its next solicited completion, as is the device's CQ.
    pub(super) solicited: bool,
    /// An event that is not sent yet: the tenant's socket had no room for it, or the events of
    /// sends go first ([`Session::tell_owed`]).
    pub(super) owed: bool,
    /// A completion of the router's own found no room: as on a NIC, no other comes any more.
    pub(super) has_failed: bool,
}

impl Cq {
    /// Free entries of its memory, as [`QueueMap::room`]; none where the tenant's head is broken.
    /// One that has failed loses all that comes, so it always has room.
    pub(super) fn room(&self, is_broken: &mut bool) -> u32 {
        if self.has_failed {
            return self.map.capacity();
        }
        self.map.room(self.tail).unwrap_or_else(|Broken| {
            *is_broken = true;
            0
        })
    }
}

/// A queue pair.
pub(super) struct Qp {
    pub(super) device: Handle,
    pub(super) number: u32,
    /// As the tenant asked for it, by its handles.
    pub(super) init: QpInit,
    pub(super) map: QueueMap,
    pub(super) heads: [u32; 2],
    /// Its multicast groups: a QP that has one is not destroyed.
    pub(super) groups: Vec<[u8; 16]>,
    /// What it has under way, while its tenant has a limit.
    pub(super) under_way: UnderWay,
    /// It is in ERR, so that its requests are flushed.
    pub(super) flushes: bool,
}

impl Qp {
    /// Moves it to ERR, if it is not in RESET: what waits in its rings is flushed.
    pub(super) fn fail(&mut self, device: &dyn Device) {
        let attr = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
        self.flushes |= device.qp_modify(self.device, &attr, qp_attr_mask::STATE).is_ok();
    }

    /// How many requests wait in its rings.
    pub(super) fn waiting(&self) -> [u32; 2] {
        let [send, receive] = self.heads;
        let map = &self.map;
        [map.waiting::<SendWqe>(0, send, u32::MAX), map.waiting::<RecvWqe>(1, receive, u32::MAX)]
    }

    /// Notes those completions that are its own: a failed one is of a queue pair that has failed.
    fn note_completions(&mut self, all: &[Wc]) {
        for wc in all.iter().filter(|wc| wc.qp_num == self.number) {
            match wc.status {
                wc_status::SUCCESS if wc.opcode & wc_opcode::RECV == 0 => {
                    self.under_way.completed()
                }
                wc_status::SUCCESS => {}
                status => {
                    self.under_way.clear();
                    self.flushes |= status == wc_status::WR_FLUSH_ERR;
                }
            }
        }
    }
}

/// An address handle.
pub(super) struct Ah {
    pub(super) device: Handle,
    pub(super) to: AhAttr,
}

/// An SRQ.
pub(super) struct Srq {
    pub(super) device: Handle,
    pub(super) map: QueueMap,
    /// Memory of another size, until the tenant has mapped it.
    pub(super) next: Option<QueueMap>,
    pub(super) head: u32,
}

/// A queue that is looked at without a bell.
pub(super) struct Watched {
    pub(super) bell: u32,
    /// Its tail, when requests waited last.
    pub(super) tail: Option<u32>,
    /// Looks in a row that found nothing.
    pub(super) idle: u32,
}

/// Whose an object of the device is: the session's number and its handle there.
pub type Owners = HashMap<Handle, (u32, Handle)>;

/// What a session's requests came to.
#[derive(Debug, Default)]
pub struct Counts {
    /// Work requests posted to the device.
    pub posted: AtomicU64,
    /// Work requests that were refused: by the checks here, or by the device.
    pub refused: AtomicU64,
    /// Completions.
    pub completed: AtomicU64,
    /// Bytes of requests that were charged to a tenant, while one of the device has a limit.
    pub charged: AtomicU64,
}

/// Adds to a counter. The thread that serves the session alone writes it.
#[inline]
pub(super) fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// A session.
pub struct Session {
    /// Its number among the sessions of the router.
    pub(super) number: u32,
    /// Its tenant and its slot on the device.
    pub(super) tenant: u16,
    pub(super) slot: u16,
    /// Whom it may reach.
    pub(super) guard: Arc<Guard>,
    /// A tenant of the device has a limit: what is under way is counted.
    pub(super) is_metered: bool,
    /// Most bytes of its regions.
    pub(super) memory: u64,
    pub(super) calls: Foreign,
    pub(super) events: Foreign,
    pub(super) asyncs: Foreign,
    pub(super) door: DoorbellPage,
    pub(super) file: Option<File>,
    /// Bytes of its queues.
    pub(super) queues: u64,
    pub(super) pds: Table<Handle>,
    pub(super) xrcds: Table<Handle>,
    pub(super) mrs: Table<Mr>,
    pub(super) mws: Table<Handle>,
    pub(super) ahs: Table<Ah>,
    pub(super) cqs: Table<Cq>,
    pub(super) srqs: Table<Srq>,
    pub(super) qps: Table<Qp>,
    pub(super) channels: Table<Foreign>,
    /// The device's ids of the connection manager.
    pub(super) ids: Table<Handle>,
    /// Tells of its events, once the session has opened it.
    pub(super) cm_bell: Option<Foreign>,
    /// Its events that the tenant has not taken.
    pub(super) cm_events: VecDeque<CmEvent>,
    /// Send queues of this round: their bells, and how many requests waited when it began.
    pub(super) sends: Vec<(u32, u32)>,
    /// The same for receive queues.
    pub(super) receives: Vec<(u32, u32)>,
    /// Queues that it looks at in each round, send queues first; and by bell whether it does.
    pub(super) watched: [Vec<Watched>; 2],
    pub(super) is_watched: Vec<bool>,
    /// CQs that are polled.
    pub(super) polled: Vec<Handle>,
    /// One of them owes an event.
    pub(super) owes: bool,
    /// Where completions are on their way.
    batch: [Wc; BATCH],
    /// The tenant has written what no program of ours writes: the session must end.
    pub(super) is_broken: bool,
    /// Counters of queue pairs that are gone.
    pub(super) past: Counters,
    /// Its counts.
    pub counts: Arc<Counts>,
}

/// The sessions of a device, in the order of their numbers. A round walks over them several times.
#[derive(Default)]
pub(super) struct Sessions(Vec<Session>);

impl Sessions {
    fn place(&self, number: u32) -> core::result::Result<usize, usize> {
        self.0.binary_search_by_key(&number, |s| s.number)
    }

    /// Adds a session. Its number is unique.
    pub(super) fn add(&mut self, session: Session) {
        let (Ok(at) | Err(at)) = self.place(session.number);
        self.0.insert(at, session);
    }

    /// Removes the session of a number.
    pub(super) fn remove(&mut self, number: u32) -> Option<Session> {
        self.place(number).ok().map(|at| self.0.remove(at))
    }

    /// The session of a number.
    pub(super) fn get(&mut self, number: u32) -> Option<&mut Session> {
        let at = self.place(number).ok()?;
        Some(&mut self.0[at])
    }

    /// All sessions.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.0.iter()
    }

    /// All sessions.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Session> {
        self.0.iter_mut()
    }

    /// All numbers.
    pub(super) fn numbers(&self) -> Vec<u32> {
        self.iter().map(|s| s.number).collect()
    }
}

/// The tenant's ends of a new session, in the order of the WELCOME.
pub struct TenantEnds(pub [OwnedFd; 4]);

impl Session {
    /// A session without objects, and the tenant's ends of its sockets and of its page of bells.
    /// `number`: unique in the router's life.
    ///
    /// # Errors
    /// Descriptors or memory are missing.
    pub fn new(number: u32) -> Result<(Session, TenantEnds)> {
        let [calls, their_calls] = rights::pair()?;
        let [events, their_events] = rights::pair()?;
        let [asyncs, their_asyncs] = rights::pair()?;
        let (door, their_door) = DoorbellPage::create()?;
        // Generations of different sessions are far apart.
        let first = number.wrapping_mul(0x9e37_79b9) | 1;
        let session = Session {
            number,
            tenant: 0,
            slot: 0,
            guard: Arc::default(),
            is_metered: false,
            memory: u64::MAX,
            // Over this one a descriptor may come.
            calls: Foreign::accepted(calls),
            events: Foreign::fresh(events),
            asyncs: Foreign::fresh(asyncs),
            door,
            file: None,
            queues: 0,
            pds: Table::new(tag::PD, limits::OTHER, first),
            xrcds: Table::new(tag::XRCD, limits::OTHER, first),
            mrs: Table::new(tag::MR, limits::MR, first),
            mws: Table::new(tag::MW, limits::MR, first),
            ahs: Table::new(tag::AH, limits::OTHER, first),
            cqs: Table::new(tag::CQ, limits::CQ, first),
            srqs: Table::new(tag::SRQ, limits::SRQ, first),
            qps: Table::new(tag::QP, limits::QP, first),
            channels: Table::new(tag::CHANNEL, 64, first),
            ids: Table::new(tag::CM_ID, limits::ID, first),
            cm_bell: None,
            cm_events: VecDeque::new(),
            sends: Vec::with_capacity(Doorbell::COUNT),
            receives: Vec::with_capacity(Doorbell::COUNT),
            watched: [Vec::with_capacity(Doorbell::COUNT), Vec::with_capacity(Doorbell::COUNT)],
            is_watched: vec![false; Doorbell::COUNT],
            polled: Vec::with_capacity(limits::CQ as usize),
            owes: false,
            batch: [Wc::default(); BATCH],
            is_broken: false,
            past: Counters::ZERO,
            counts: Arc::default(),
        };
        Ok((session, TenantEnds([their_calls, their_events, their_asyncs, their_door])))
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The socket of its calls.
    pub fn calls(&self) -> BorrowedFd<'_> {
        self.calls.as_fd()
    }

    /// Counts the memory of new queues.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: the session would have more than its most. [`Error::Invalid`]: a queue
    /// is too large.
    pub(super) fn take_room(&mut self, shapes: [QueueShape; 2]) -> Result<()> {
        let bytes = QueueMap::bytes(shapes)? as u64;
        if self.queues + bytes > QUEUES {
            let n = self.queues;
            return Err(refuse!(
                NoMemory,
                "{bytes} bytes of queues: the session has {n}, and {QUEUES} at most"
            ));
        }
        self.queues += bytes;
        Ok(())
    }

    /// The memory of queues is gone.
    pub(super) fn give_room(&mut self, shapes: [QueueShape; 2]) {
        self.queues -= QueueMap::bytes(shapes).unwrap_or(0) as u64;
    }

    /// A CQ is polled from now on.
    pub(super) fn start_polling(&mut self, cq: Handle) {
        if let Ok(c) = self.cqs.get_mut(cq) {
            c.idle = 0;
            if !self.polled.contains(&cq) && self.polled.len() < self.polled.capacity() {
                self.polled.push(cq);
            }
        }
    }

    /// Moves completions of the CQs that are polled, and leaves those to the device's events that
    /// had none for `idle` calls. The events of receives are owed until [`Session::tell_owed`].
    /// True: there was a completion.
    pub(super) fn complete(&mut self, device: &dyn Device, idle: u32) -> bool {
        let mut found = false;
        let mut i = 0;
        while let Some(&cq) = self.polled.get(i) {
            let n = self.move_completions(device, cq, BATCH);
            found |= n > 0;
            let Session { cqs, is_broken, .. } = self;
            match cqs.get_mut(cq) {
                // The tenant frees entries without a bell, so a full CQ stays polled.
                Ok(c) if n > 0 || c.solicited || c.owed || c.room(is_broken) == 0 => c.idle = 0,
                Ok(c) if c.idle < idle => c.idle += 1,
                Ok(c) => {
                    // What came before the arm has no event.
                    let _ = device.cq_arm(c.device, false);
                    if self.move_completions(device, cq, BATCH) == 0 {
                        self.polled.swap_remove(i);
                        continue;
                    }
                    found = true;
                }
                Err(_) => {
                    self.polled.swap_remove(i);
                    continue;
                }
            }
            i += 1;
        }
        found
    }

    /// Moves up to `most` completions of a CQ into its memory, as far as that has room: what has
    /// none stays on the device. Returns how many.
    pub(super) fn move_completions(
        &mut self,
        device: &dyn Device,
        cq: Handle,
        most: usize,
    ) -> usize {
        let Session { cqs, qps, batch, counts, is_metered, is_broken, .. } = self;
        let Ok(c) = cqs.get_mut(cq) else { return 0 };
        // The tenant may make room as fast as there are completions.
        let most = most.min(c.map.capacity() as usize);
        let (mut moved, mut opcodes) = (0, 0);
        while moved < most {
            let room = (c.room(is_broken) as usize).min(BATCH).min(most - moved);
            let n = device.take_completions(c.device, &mut batch[..room]).unwrap_or(0);
            let kept = if c.has_failed { 0 } else { n };
            for wc in &batch[..kept] {
                c.map.put(c.tail, wc);
                c.tail = c.tail.wrapping_add(1);
                opcodes |= wc.opcode;
            }
            if *is_metered && n > 0 {
                qps.iter_mut().for_each(|q| q.note_completions(&batch[..n]));
            }
            moved += n;
            if n < room || room == 0 {
                break;
            }
        }
        count(&counts.completed, moved as u64);
        if moved > 0 && !c.has_failed && c.map.must_tell() {
            match opcodes & wc_opcode::RECV {
                0 => self.tell(cq),
                _ => (c.owed, self.owes) = (true, true),
            }
        }
        moved
    }

    /// A completion has found no room in a CQ: it fails as a NIC's does, and its queue pairs with
    /// it.
    #[cold]
    pub(super) fn fail_cq(&mut self, device: &dyn Device, cq: Handle) {
        let Ok(c) = self.cqs.get_mut(cq) else { return };
        c.has_failed = true;
        let is_of_it = |q: &&mut Qp| [q.init.send_cq, q.init.recv_cq].contains(&cq);
        self.qps.iter_mut().filter(is_of_it).for_each(|q| q.fail(device));
        self.tell_async(async_event::CQ_ERR, cq);
    }

    /// Sends the event of a CQ. A socket without room gets it later.
    pub(super) fn tell(&mut self, cq: Handle) {
        let Ok(c) = self.cqs.get_mut(cq) else { return };
        let to = match c.channel {
            0 => &self.events,
            channel => self.channels.get(channel).unwrap_or(&self.events),
        };
        c.owed = wire::send_bytes(to.as_fd(), &cq.to_le_bytes(), None) == Err(Error::Again);
        self.owes |= c.owed;
    }

    /// Sends the events that are owed.
    ///
    /// A peer acknowledges a SEND before it answers it. A program that takes the events of its send
    /// and its receive CQ from one channel may count on that order, but a look at one CQ after the
    /// other may find the answer and miss the acknowledgement. So the event of a receive waits for
    /// this second look, which finds what was before it.
    pub(super) fn tell_owed(&mut self, device: &dyn Device) {
        self.complete(device, u32::MAX);
        self.owes = false;
        for i in 0..self.polled.len() {
            let cq = self.polled[i];
            if self.cqs.get_mut(cq).is_ok_and(|c| c.owed) {
                self.tell(cq);
            }
        }
    }

    /// Whether it waits for events of the device.
    pub(super) fn awaits_events(&self) -> bool {
        self.cqs.len() > self.polled.len()
    }

    /// Whether it must be looked at without a bell or an event of the device.
    pub(super) fn has_more(&self) -> bool {
        !self.polled.is_empty() || self.watched.iter().any(|some| !some.is_empty())
    }

    /// Begins or ends the count of what is under way. What completed in between was not counted.
    pub(super) fn meter(&mut self, on: bool) {
        if core::mem::replace(&mut self.is_metered, on) != on {
            self.qps.iter_mut().for_each(|q| q.under_way.clear());
        }
    }

    /// Bytes of its queue pairs under way, while a tenant has a limit.
    pub(super) fn under_way(&self) -> u64 {
        self.qps.iter().map(|q| q.under_way.bytes()).sum()
    }

    /// Discards what waits in the rings of a queue pair: the device has discarded what was before.
    pub(super) fn discard(&mut self, qp: Handle) {
        let Ok(q) = self.qps.get_mut(qp) else { return };
        for (k, waiting) in q.waiting().into_iter().enumerate() {
            q.heads[k] = q.heads[k].wrapping_add(waiting);
            q.map.release(k, q.heads[k]);
        }
    }

    /// The device has an event for a CQ.
    pub(super) fn note_event(&mut self, device: &dyn Device, cq: Handle) {
        self.start_polling(cq);
        let solicited = self.cqs.get_mut(cq).is_ok_and(|c| {
            c.owed |= c.solicited;
            core::mem::take(&mut c.solicited)
        });
        if solicited {
            self.owes = true;
            self.move_completions(device, cq, usize::MAX);
        }
    }

    /// Sends an asynchronous event. One that finds no room is lost, as with a program that reads
    /// none.
    pub(super) fn tell_async(&self, event: u32, handle: Handle) {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&u64::from(event).to_le_bytes());
        bytes[8..].copy_from_slice(&handle.to_le_bytes());
        let _ = wire::send_bytes(self.asyncs.as_fd(), &bytes, None);
    }

    /// Destroys all that the session has made.
    pub(super) fn end(mut self, shared: &mut SharedDevice, owners: &mut Owners) {
        let device = shared.device();
        // Peers learn the ends of connections from ids, so these are first.
        for h in self.ids.handles() {
            let _ = self.destroy_id(device, owners, h);
        }
        for h in self.qps.handles() {
            // Nobody detaches it any more.
            if let Ok(q) = self.qps.get(h) {
                q.groups.iter().for_each(|gid| _ = device.mcast_detach(q.device, gid));
            }
            let _ = self.destroy_qp(device, h, owners);
        }
        for h in self.mws.handles() {
            let _ = self.mws.remove(h).map(|mw| device.mw_dealloc(mw));
        }
        for h in self.srqs.handles() {
            let _ = self.destroy_srq(device, h, owners);
        }
        for h in self.cqs.handles() {
            let _ = self.destroy_cq(device, h, owners);
        }
        for h in self.mrs.handles() {
            let Ok(mr) = self.mrs.remove(h) else { continue };
            // The memory goes after the region. If that stays, it stays, so that its keys never
            // reach other memory.
            if device.mr_dereg(mr.device).is_err() {
                std::mem::forget(mr.memory);
            }
        }
        for h in self.ahs.handles() {
            let _ = self.ahs.remove(h).map(|ah| device.ah_destroy(ah.device));
        }
        for h in self.xrcds.handles() {
            let _ = self.xrcds.remove(h).map(|xrcd| device.xrcd_dealloc(xrcd));
        }
        for h in self.pds.handles() {
            let _ = self.pds.remove(h).map(|pd| device.pd_dealloc(pd));
        }
    }
}
