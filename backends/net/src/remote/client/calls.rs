//! The calls of a remote device.

use super::super::call::{self, GpuMemory, GpuRoute, NewRegion, NewSrq};
use super::super::queue::Doorbell;
use super::*;
use crate::map::{is_mapping_of, page_size, Map};
use crate::memfd::sealed_len;
use gdrcore_core::counters::Counters;
use gdrcore_core::device::{AsyncEvent, CmDevice, CqPlace, Device, Leaks, MrReg, SrqAttr};
use gdrcore_core::pool::index_of;
use gdrcore_core::sleep::ANY;
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::post::{self, Take};
use gdrcore_core::verbs::shared::{polled, posted};
use gdrcore_core::verbs::types::{
    access, qp_attr_mask, qp_state, AhAttr, QpAttr, QpCap, QpInit, RecvWr, SendWr, Wc,
};

impl RemoteDevice {
    fn make_cq(&self, cqe: u32, channel: Handle) -> Result<(Handle, u32)> {
        let ((cq, given, _), map) = self.ask_fd::<call::CqCreate, _>(
            &(cqe, channel),
            |&(.., shape), fd| QueueMap::open(fd.as_fd(), shape.alone()),
            |(cq, ..)| _ = self.ask::<call::CqDestroy>(cq),
        )?;
        let map = Arc::new(map);
        let (polling, queues) = (Mutex::new(map.clone()), Mutex::new([map].into()));
        let (empty, pins) = (AtomicU32::new(0), AtomicU32::new(0));
        add(&self.cqs, cq, Cq { polling, queues, empty, pins });
        Ok((cq, given))
    }

    /// Adopts the memory of a region, which `ask` registers.
    fn register(
        &self,
        reg: &MrReg,
        ask: impl FnOnce(&NewRegion) -> Result<(Handle, MrAttr)>,
    ) -> Result<(Handle, Mr)> {
        if reg.provider != 0 {
            return Err(refuse!(Unsupported, "a router's device reaches host memory alone"));
        }
        let writable = reg.access & access::LOCAL_WRITE != 0;
        let pieces = self.adopter.adopt(reg.addr, reg.length, writable)?;
        let region = NewRegion::of(reg, pieces);
        let (mr, attr) = ask(&region).inspect_err(|_| self.adopter.release(&region.pieces))?;
        Ok((mr, Mr { attr: MrAttr { addr: reg.addr, ..attr }, pieces: region.pieces }))
    }

    /// Registers memory that the program shares otherwise: a mapping of a descriptor's memory from
    /// `offset` on, which stays the program's file. The file must have the seal F_SEAL_SHRINK.
    ///
    /// # Errors
    /// As [`Device::mr_reg`]; [`Error::Invalid`]: it is no such mapping. [`Error::Access`]: the
    /// file may become shorter.
    pub fn mr_reg_file(&self, reg: &MrReg, fd: RawFd, offset: u64) -> Result<(Handle, MrAttr)> {
        let MrReg { addr, length, access: rights, .. } = *reg;
        if !is_mapping_of(addr, length, fd, offset)? {
            return Err(refuse!(
                Invalid,
                "fd {fd}: the region is no shared mapping of it from fd_offset {offset:#x} on"
            ));
        }
        let (first, bytes) = whole_pages(addr, length)?;
        // The router takes no pages that are not there yet.
        crate::fault::probe(addr - first, bytes, rights & access::LOCAL_WRITE != 0)?;
        let region = NewRegion::of(reg, vec![(offset - first, bytes)]);
        // SAFETY: a descriptor of the program, as `is_mapping_of` has found.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let (made, _) = self.exchange::<call::MrReg>(&region, Some(fd))?;
        Ok(self.note_shared(made, addr))
    }

    /// Registers a dma-buf of the program: `reg`, whose address is the offset in it. The descriptor
    /// stays the program's.
    ///
    /// # Errors
    /// As [`Device::mr_reg`]; `EBADF`: no descriptor. [`Error::Access`]: it is neither a dma-buf
    /// nor memory that cannot shrink.
    pub fn mr_reg_dmabuf(&self, reg: &MrReg, fd: RawFd) -> Result<(Handle, MrAttr)> {
        let MrReg { addr, length, .. } = *reg;
        // SAFETY: no pointers.
        check(unsafe { libc::fcntl(fd, libc::F_GETFD) })?;
        let (first, bytes) = whole_pages(addr, length)?;
        populate(fd, addr - first, bytes)?;
        let region = NewRegion::of(reg, vec![(addr - first, bytes)]);
        // SAFETY: a descriptor of the program, as was found above.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let (made, _) = self.exchange::<call::DmaBufMrReg>(&region, Some(fd))?;
        Ok(self.note_shared(made, addr))
    }

    /// Registers memory of a GPU: `reg`, whose address is the program's, in the allocation of a
    /// descriptor, which stays the caller's.
    ///
    /// # Errors
    /// As [`Device::mr_reg`]; the router has no such GPU, or does not open the descriptor.
    pub fn mr_reg_gpu(
        &self,
        reg: &MrReg,
        memory: GpuMemory,
        fd: BorrowedFd<'_>,
    ) -> Result<((Handle, MrAttr), GpuRoute)> {
        let region = NewRegion::of(reg, Vec::new());
        let ((made, route), _) = self.exchange::<call::GpuMrReg>(&(region, memory), Some(fd))?;
        Ok((self.note_shared(made, reg.addr), route))
    }

    /// Notes a region in memory of a descriptor: it has the program's address, and no page of the
    /// session's file.
    fn note_shared(&self, (mr, made): (Handle, MrAttr), addr: u64) -> (Handle, MrAttr) {
        let attr = MrAttr { addr, ..made };
        self.note_region(mr, Mr { attr, pieces: Vec::new() });
        (mr, attr)
    }

    /// Notes a region. What it replaces the router has no more.
    fn note_region(&self, mr: Handle, made: Mr) {
        if let Some(before) = add(&self.mrs, mr, made) {
            self.adopter.release(&before.pieces);
        }
    }

    fn make_srq(&self, new: NewSrq) -> Result<(Handle, SrqAttr)> {
        let ((srq, attr, _), map) = self.ask_fd::<call::SrqCreate, _>(
            &new,
            |&(.., shape), fd| QueueMap::open(fd.as_fd(), shape.alone()),
            |(srq, ..)| _ = self.ask::<call::SrqDestroy>(srq),
        )?;
        let bell = Doorbell::Srq(index_of(srq) as u32).number();
        let queue = Mutex::new(SrqQueue::new(map));
        add(&self.srqs, srq, Arc::new(Srq { queue, max_sge: attr.max_sge, bell }));
        Ok((srq, attr))
    }

    /// Posts sends; the words of `post` say which.
    ///
    /// # Safety
    /// As [`Device::post_send`].
    unsafe fn send(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
        take: Take,
    ) -> Result<()> {
        *bad = wr;
        self.fork.check()?;
        let qps = read(&self.qps);
        let q = qps.get(qp)?;
        let mut taken = q.shared.sq.consumer().ok_or_else(|| posted("qp"))?;
        // SAFETY: the caller's promise.
        let one = unsafe { wr.as_ref() }.is_some_and(|wr| wr.next.is_null());
        q.map.reclaim(0, &mut taken, one).map_err(|e| self.broken(e))?;
        // SAFETY: the caller's promise.
        let (posted, outcome) = unsafe {
            match take {
                Take::Some => post::send(&q.shared, wr, bad),
                Take::AllOrNone => post::send_list(&q.shared, wr, bad, take),
            }
        };
        if posted.count > 0 && q.map.submit(0, &q.shared.sq) {
            self.ring(q.bells[0]);
        }
        outcome
    }

    /// Posts receives to a queue: its map, its number there, its bell. `of`: what has the queue.
    ///
    /// # Safety
    /// As [`Device::post_recv`].
    unsafe fn receive(
        &self,
        of: &str,
        (map, k, bell): (&QueueMap, usize, u32),
        ring: &SlotRing<RecvWqe>,
        max_sge: u32,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        let mut taken = ring.consumer().ok_or_else(|| posted(of))?;
        // SAFETY: the caller's promise.
        let one = unsafe { wr.as_ref() }.is_some_and(|wr| wr.next.is_null());
        map.reclaim(k, &mut taken, one).map_err(|e| self.broken(e))?;
        // SAFETY: the caller's promise.
        let outcome = unsafe { post::recv(ring, max_sge, wr, bad) };
        if map.submit(k, ring) {
            self.ring(bell);
        }
        outcome.map(drop)
    }

    /// The CQ of the next event at a socket. Events of CQs that are gone are dropped.
    fn next_cq(&self, fd: BorrowedFd<'_>) -> Result<Option<Handle>> {
        while let Some([cq, ..]) = self.event(fd)? {
            if read(&self.cqs).has(cq) {
                return Ok(Some(cq));
            }
        }
        Ok(None)
    }

    /// Whether an asynchronous event is about an object that lives, or the port.
    fn is_of_living(&self, e: &AsyncEvent) -> bool {
        let h = e.handle;
        h == 0 || read(&self.qps).has(h) || read(&self.cqs).has(h) || read(&self.srqs).has(h)
    }

    pub(super) fn note_state(&self, qp: Handle, state: u32) {
        if let Ok(q) = read(&self.qps).get(qp) {
            q.shared.set_state(state);
        }
    }

    fn pins<T>(
        &self,
        lock: &RwLock<ClientTable<T>>,
        h: Handle,
        pins: impl Fn(&T) -> &AtomicU32,
        change: impl Fn(u32) -> Option<u32>,
    ) -> Result<()> {
        let objects = read(lock);
        let pins = pins(objects.get(h)?);
        pins.fetch_update(Ordering::AcqRel, Ordering::Acquire, change)
            .map(drop)
            .map_err(|_| refuse!(Invalid, "handle {h:#x}: it is not pinned"))
    }
}

/// The pages that hold `length` bytes at `addr`: the place of the first byte in the first of them,
/// and their bytes.
fn whole_pages(addr: u64, length: u64) -> Result<(u64, u64)> {
    let page = page_size() as u64;
    let first = addr % page;
    let bytes = first.checked_add(length).and_then(|n| n.checked_next_multiple_of(page));
    let bytes = bytes
        .ok_or_else(|| refuse!(Invalid, "length {length:#x}: more than the address space has"))?;
    Ok((first, bytes))
}

/// Brings the pages of a range of memory that cannot shrink into being: the router takes no others,
/// and a page that fallocate(2) has reserved is none yet (lseek(2), SEEK_HOLE). Anything else is
/// the router's to judge.
fn populate(fd: RawFd, at: u64, bytes: u64) -> Result<()> {
    let Some(len) = sealed_len(fd, libc::F_SEAL_SHRINK) else { return Ok(()) };
    let len = len.next_multiple_of(page_size() as u64);
    if at.checked_add(bytes).is_none_or(|end| end > len) {
        return Ok(());
    }
    let map = Map::shared(fd, at, bytes as usize, false)?;
    crate::fault::probe(map.as_ptr() as u64, bytes, false)
}

fn busy_if_pinned(pins: &AtomicU32, what: &str) -> Result<()> {
    match pins.load(Ordering::Acquire) {
        0 => Ok(()),
        n => Err(refuse!(Busy, "{what}: it is pinned {n} times")),
    }
}

impl Device for RemoteDevice {
    asked! {
        fn query() -> DeviceAttr = Query(&());
        fn path_mtu(to: &AhAttr) -> u32 = PathMtu(to);
        fn counters() -> Counters = ReadCounters(&());
        fn qp_counters(qp: Handle) -> Counters = QpCounters(&qp);
        fn last_cause() -> Cause = LastCause(&());
        fn qp_cause(qp: Handle) -> Cause = QpCause(&qp);
        fn pd_alloc() -> Handle = PdAlloc(&());
        fn pd_dealloc(pd: Handle) -> () = PdDealloc(&pd);
        fn xrcd_alloc() -> Handle = XrcdAlloc(&());
        fn xrcd_dealloc(xrcd: Handle) -> () = XrcdDealloc(&xrcd);
        fn mw_alloc(pd: Handle, mw_type: u32) -> (Handle, u32) = MwAlloc(&(pd, mw_type));
        fn mw_dealloc(mw: Handle) -> () = MwDealloc(&mw);
        fn ah_create(pd: Handle, attr: &AhAttr) -> Handle = AhCreate(&(pd, *attr));
        fn ah_destroy(ah: Handle) -> () = AhDestroy(&ah);
        fn mcast_attach(qp: Handle, gid: &[u8; 16]) -> () = McastAttach(&(qp, *gid));
        fn mcast_detach(qp: Handle, gid: &[u8; 16]) -> () = McastDetach(&(qp, *gid));
        fn srq_modify(srq: Handle, limit: u32) -> () = SrqModify(&(srq, limit));
        fn srq_query(srq: Handle) -> SrqAttr = SrqQuery(&srq);
        fn srq_number(srq: Handle) -> u32 = SrqNumber(&srq);
        fn qp_query(qp: Handle) -> (QpAttr, QpInit) = QpQuery(&qp);
        fn leaks() -> Leaks = CountLeaks(&());
    }

    fn facts(&self) -> Result<DeviceAttr> {
        self.fork.check().map(|()| self.attr)
    }

    fn mr_reg(&self, reg: &MrReg) -> Result<(Handle, MrAttr)> {
        let (mr, made) = self.register(reg, |region| self.ask::<call::MrReg>(region))?;
        let attr = made.attr;
        self.note_region(mr, made);
        Ok((mr, attr))
    }
    fn mr_rereg(&self, mr: Handle, reg: &MrReg) -> Result<MrAttr> {
        read(&self.mrs).get(mr)?;
        let ask = |region: &NewRegion| {
            // Cloned for the message alone.
            self.ask::<call::MrRereg>(&(mr, region.clone())).map(|attr| (mr, attr))
        };
        let (_, made) = self.register(reg, ask)?;
        let attr = made.attr;
        self.note_region(mr, made);
        Ok(attr)
    }
    fn mr_query(&self, mr: Handle) -> Result<MrAttr> {
        read(&self.mrs).get(mr).map(|mr| mr.attr)
    }
    fn mr_dereg(&self, mr: Handle) -> Result<()> {
        let done = self.ask::<call::MrDereg>(&mr);
        // A router closes the session when all that the session has made is gone.
        if done.is_ok() || self.gone.load(Ordering::Relaxed) {
            if let Some(ended) = remove(&self.mrs, mr) {
                self.adopter.release(&ended.pieces);
            }
        }
        done
    }

    fn cq_create(&self, cqe: u32) -> Result<(Handle, u32)> {
        self.make_cq(cqe, 0)
    }
    fn cq_create_at(&self, cqe: u32, _place: CqPlace) -> Result<(Handle, u32)> {
        self.make_cq(cqe, 0)
    }
    fn cq_create_on(&self, cqe: u32, channel: Handle) -> Result<(Handle, u32)> {
        read(&self.channels).get(channel)?;
        self.make_cq(cqe, channel)
    }
    fn cq_resize(&self, cq: Handle, cqe: u32) -> Result<u32> {
        let _one = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        // The new memory is mapped before the router is told to switch to it. Until then the router
        // fills the old one.
        let ((given, _), map) = self.ask_fd::<call::CqResize, _>(
            &(cq, cqe),
            |&(_, shape), fd| QueueMap::open(fd.as_fd(), shape.alone()),
            |_| (),
        )?;
        self.ask::<call::CqSwitch>(&cq)?;
        read(&self.cqs).get(cq)?.queues().push_back(Arc::new(map));
        Ok(given)
    }
    fn cq_purge(&self, cq: Handle, qpn: u32) -> Result<()> {
        // What the router has not moved by now never comes.
        self.ask::<call::CqPurge>(&(cq, qpn))?;
        let cqs = read(&self.cqs);
        let c = cqs.get(cq)?;
        let _side = c.polling.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = c.queues();
        queues.iter().for_each(|map| map.purge(qpn));
        Ok(())
    }
    fn cq_destroy(&self, cq: Handle) -> Result<()> {
        read(&self.cqs).get(cq).and_then(|c| busy_if_pinned(&c.pins, "cq"))?;
        self.ask::<call::CqDestroy>(&cq)?;
        remove(&self.cqs, cq);
        Ok(())
    }
    fn srq_create(&self, pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        self.make_srq(NewSrq { pd, attr: *attr, ..NewSrq::default() })
    }
    fn srq_create_xrc(&self, of: [Handle; 3], attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        let [pd, xrcd, cq] = of;
        self.make_srq(NewSrq { pd, xrcd, cq, attr: *attr })
    }
    fn srq_resize(&self, srq: Handle, max_wr: u32, limit: Option<u32>) -> Result<u32> {
        // The table is not held: who posts to another SRQ would wait for the router.
        let s = read(&self.srqs).get(srq)?.clone();
        let mut queue = try_hold(&s.queue, || posted("srq"))?;
        // Nobody posts from here on, so the router finds the old memory empty, or refuses.
        let ((given, _), new) = self.ask_fd::<call::SrqResize, _>(
            &(srq, max_wr, limit),
            |&(_, shape), fd| QueueMap::open(fd.as_fd(), shape.alone()),
            |_| (),
        )?;
        self.ask::<call::SrqSwitch>(&srq)?;
        *queue = SrqQueue::new(new);
        Ok(given)
    }
    fn srq_destroy(&self, srq: Handle) -> Result<()> {
        self.ask::<call::SrqDestroy>(&srq)?;
        remove(&self.srqs, srq);
        Ok(())
    }
    fn qp_create(&self, init: &QpInit) -> Result<(Handle, u32, QpCap)> {
        let (made, map) = self.ask_fd::<call::QpCreate, _>(
            init,
            |made, fd| QueueMap::open(fd.as_fd(), [made.sq, made.rq]),
            |made| _ = self.ask::<call::QpDestroy>(&made.handle),
        )?;
        let shared = QpShared::default();
        let set = |word: &AtomicU32, value| word.store(value, Ordering::Relaxed);
        set(&shared.state, qp_state::RESET);
        set(&shared.kind, init.qp_type);
        set(&shared.sig_all, init.sq_sig_all);
        set(&shared.max_send_sge, made.cap.max_send_sge);
        set(&shared.max_recv_sge, made.cap.max_recv_sge);
        set(&shared.max_inline, made.cap.max_inline_data);
        if made.sq.capacity > 0 {
            map.install(0, &shared.sq);
        }
        if made.rq.capacity > 0 {
            map.install(1, &shared.rq);
        }
        let index = index_of(made.handle) as u32;
        let bells = [Doorbell::Send(index), Doorbell::Receive(index)].map(Doorbell::number);
        let pins = AtomicU32::new(0);
        let qp = Qp { shared, map, qpn: made.qpn, bells, pins };
        add(&self.qps, made.handle, qp);
        Ok((made.handle, made.qpn, made.cap))
    }
    fn qp_modify(&self, qp: Handle, attr: &QpAttr, mask: u32) -> Result<()> {
        self.ask::<call::QpModify>(&(qp, *attr, mask))?;
        if mask & qp_attr_mask::STATE != 0 {
            self.note_state(qp, attr.qp_state);
        }
        Ok(())
    }
    fn qp_reset(&self, qp: Handle) -> Result<()> {
        self.ask::<call::QpReset>(&qp)?;
        self.note_state(qp, qp_state::RESET);
        Ok(())
    }
    fn qp_destroy(&self, qp: Handle) -> Result<()> {
        read(&self.qps).get(qp).and_then(|q| busy_if_pinned(&q.pins, "qp"))?;
        self.ask::<call::QpDestroy>(&qp)?;
        remove(&self.qps, qp);
        Ok(())
    }
    fn qp_pin(&self, qp: Handle) -> Result<()> {
        self.pins(&self.qps, qp, |q| &q.pins, |n| n.checked_add(1))
    }
    fn qp_unpin(&self, qp: Handle) -> Result<()> {
        self.pins(&self.qps, qp, |q| &q.pins, |n| n.checked_sub(1))
    }
    fn cq_pin(&self, cq: Handle) -> Result<()> {
        self.pins(&self.cqs, cq, |c| &c.pins, |n| n.checked_add(1))
    }
    fn cq_unpin(&self, cq: Handle) -> Result<()> {
        self.pins(&self.cqs, cq, |c| &c.pins, |n| n.checked_sub(1))
    }
    fn qp_num(&self, qp: Handle) -> Result<u32> {
        read(&self.qps).get(qp).map(|q| q.qpn)
    }

    unsafe fn post_send(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.send(qp, wr, bad, Take::Some) }
    }
    unsafe fn post_send_all(&self, qp: Handle, wr: *const SendWr) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.send(qp, wr, &mut core::ptr::null(), Take::AllOrNone) }
    }
    unsafe fn post_recv(
        &self,
        qp: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        *bad = wr;
        self.fork.check()?;
        let qps = read(&self.qps);
        let q = qps.get(qp)?;
        if q.shared.state.load(Ordering::Relaxed) == qp_state::RESET || q.shared.rq.capacity() == 0
        {
            return Err(refuse!(
                Invalid,
                "qp: in state RESET, or with an SRQ, it takes no receives"
            ));
        }
        let max_sge = q.shared.max_recv_sge.load(Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { self.receive("qp", (&q.map, 1, q.bells[1]), &q.shared.rq, max_sge, wr, bad) }
    }
    unsafe fn post_srq_recv(
        &self,
        srq: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        *bad = wr;
        self.fork.check()?;
        let srqs = read(&self.srqs);
        let s = srqs.get(srq)?;
        let queue = try_hold(&s.queue, || posted("srq"))?;
        // SAFETY: the caller's promise.
        unsafe { self.receive("srq", (&queue.map, 0, s.bell), &queue.ring, s.max_sge, wr, bad) }
    }
    fn poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        self.fork.check()?;
        let cqs = read(&self.cqs);
        let c = cqs.get(cq)?;
        let mut polling = try_hold(&c.polling, polled)?;
        loop {
            match polling.poll(wc) {
                0 => {}
                n => return Ok(n),
            }
            let mut queues = c.queues();
            // The router had gone on in the next one, before that was made known.
            let Some(next) = queues.get(1).cloned() else { break };
            queues.pop_front();
            *polling = next;
        }
        drop(polling);
        self.note_empty(c).map(|()| 0)
    }
    fn cq_arm(&self, cq: Handle, solicited_only: bool) -> Result<()> {
        if solicited_only {
            return self.ask::<call::CqArmSolicited>(&cq);
        }
        self.fork.check()?;
        if self.gone.load(Ordering::Relaxed) {
            return Err(self.lost());
        }
        let _one = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = read(&self.cqs).get(cq)?.queues().back() {
            last.armed(0).announce(ANY);
        }
        Ok(())
    }
    fn channel_create(&self) -> Result<Handle> {
        let (channel, fd) = self.ask_fd::<call::ChannelCreate, _>(
            &(),
            |_, fd| Ok(fd),
            |channel| _ = self.ask::<call::ChannelDestroy>(channel),
        )?;
        add(&self.channels, channel, fd);
        Ok(channel)
    }
    fn channel_destroy(&self, channel: Handle) -> Result<()> {
        self.ask::<call::ChannelDestroy>(&channel)?;
        remove(&self.channels, channel);
        Ok(())
    }
    fn channel_fd(&self, channel: Handle) -> Result<i32> {
        read(&self.channels).get(channel).map(|fd| fd.as_raw_fd())
    }
    fn channel_event(&self, channel: Handle) -> Result<Option<Handle>> {
        let channels = read(&self.channels);
        let fd = channels.get(channel)?;
        self.next_cq(fd.as_fd())
    }
    fn channel_wait(&self, channel: Handle, timeout_ms: i32) -> Result<Option<Handle>> {
        // A copy, so that the table is not held meanwhile.
        let fd = Fd::copy_of(self.channel_fd(channel)?)?;
        wait_ready(fd.raw(), libc::POLLIN, timeout_ms);
        self.next_cq(fd.as_fd())
    }
    fn cq_event(&self) -> Result<Option<Handle>> {
        self.fork.check()?;
        self.next_cq(self.events.as_fd())
    }
    fn async_event(&self) -> Result<Option<AsyncEvent>> {
        self.fork.check()?;
        while let Some([event, handle, _]) = self.event(self.asyncs.as_fd())? {
            let event = AsyncEvent { event: event as u32, reserved: 0, handle };
            if self.is_of_living(&event) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn progress(&self) -> Result<usize> {
        self.fork.check().map(|()| 0)
    }
    fn fd(&self) -> Result<i32> {
        self.fork.check().map(|()| self.any.raw())
    }
    fn arm(&self) -> Result<bool> {
        self.fork.check().map(|()| wait_ready(self.any.raw(), libc::POLLIN, 0))
    }
    fn wait(&self, timeout_ms: i32) -> Result<bool> {
        self.fork.check().map(|()| wait_ready(self.any.raw(), libc::POLLIN, timeout_ms))
    }
    fn helper(&self, _on: bool) -> Result<()> {
        self.fork.check()
    }
    unsafe fn arena_add(&self, _memory: *mut u8, _bytes: usize) -> Result<()> {
        Err(refuse!(Unsupported, "a router's device has its memory there, up to the quotas"))
    }
    fn cm(&self) -> Result<&dyn CmDevice> {
        self.open_cm()?;
        Ok(self)
    }
}
