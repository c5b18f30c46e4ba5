//! Control calls of a session, executed on the device.

use super::session::{Ah, Cq, Mr, MrMemory, Owners, Qp, Session, Srq};
use super::shared_device::SharedDevice;
use super::shares::UnderWay;
use gdrcore_core::counters::Counters;
use gdrcore_core::device::{async_event, Device, DeviceAttr, Leaks, MrAttr, MrReg};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::pool::index_of;
use gdrcore_core::refuse;
use gdrcore_core::sleep::ANY;
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::types::{
    access, qp_attr_mask, qp_state, qp_type, AhAttr, Handle, QpAttr, QpCap, QpInit, Wc,
};
use gdrcore_core::verbs::wqe::{recv_stride, send_stride, RecvWqe};
use gdrcore_net::map::page_size;
use gdrcore_net::remote::call::{
    self, whole, Call, GpuMemory, GpuRoute, MadeQp, NewRegion, NewSrq, QueueShape, Words,
};
use gdrcore_net::remote::limits;
use gdrcore_net::remote::pages::{File, Pages};
use gdrcore_net::remote::queue::{Doorbell, QueueMap, SLOTS_MAX, STRIDE_MAX};
use gdrcore_net::rights::{self, Foreign};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The bit of controlled Q_Keys, those of management among them.
const CONTROLLED_QKEY: u32 = 1 << 31;

/// The result of a call: its words, and a descriptor.
pub(super) type CallResult = Result<(Vec<u64>, Option<OwnedFd>)>;

/// What a call needs besides the session.
pub(super) struct CallContext<'s> {
    pub(super) shared: &'s mut SharedDevice,
    pub(super) owners: &'s mut Owners,
}

/// The descriptor of a region's memory, which must have come with the call.
fn there(fd: Option<Foreign>) -> Result<Foreign> {
    fd.ok_or_else(|| refuse!(Invalid, "the descriptor of the memory is missing"))
}

fn arguments<C: Call>(words: &[u64]) -> Result<C::In> {
    whole(words).ok_or_else(|| refuse!(Invalid, "call {}: other arguments than it has", C::NUMBER))
}

fn words<C: Call>(out: &C::Out) -> Vec<u64> {
    let mut words = Vec::new();
    out.put(&mut words);
    words
}

/// A plain call: arguments in, result out.
fn plain<C: Call>(from: &[u64], call: impl FnOnce(C::In) -> Result<C::Out>) -> CallResult {
    call(arguments::<C>(from)?).map(|out| (words::<C>(&out), None))
}

/// A call whose answer has a descriptor.
fn with_fd<C: Call>(
    from: &[u64],
    call: impl FnOnce(C::In) -> Result<(C::Out, OwnedFd)>,
) -> CallResult {
    call(arguments::<C>(from)?).map(|(out, fd)| (words::<C>(&out), Some(fd)))
}

/// A queue of at least so many slots.
fn shape(slots: u32, stride: u32) -> Result<QueueShape> {
    if slots > SLOTS_MAX || stride > STRIDE_MAX {
        return Err(refuse!(Invalid, "{slots} requests of {stride} bytes: more than a queue has"));
    }
    Ok(QueueShape::of_slots(slots.next_power_of_two(), stride))
}

fn cq_shape(cqe: u32) -> Result<[QueueShape; 2]> {
    Ok(shape(cqe, size_of::<Wc>() as u32)?.alone())
}

/// Answers the call of a number: whether the answer is `plain` or `with_fd`, its name, its
/// arguments, and what executes it.
macro_rules! answer_call {
    ($number:expr, $from:expr; $($how:ident $name:ident($arguments:pat) => $execute:expr;)*) => {
        match $number {
            $(call::$name::NUMBER => $how::<call::$name>($from, |$arguments| $execute),)*
            other => Err(refuse!(Unsupported, "call {other}: this router knows no such call")),
        }
    };
}

impl Session {
    /// Executes a call. What the tenant posted before has been posted to the device
    /// (`Server::post`), so calls and posts keep their order. Only requests that the device
    /// has no room for ([`Error::Again`]), or that wait for credit, are posted after the call.
    pub(super) fn call(
        &mut self,
        number: u32,
        from: &[u64],
        fd: Option<Foreign>,
        s: &mut CallContext<'_>,
    ) -> CallResult {
        let CallContext { shared, owners } = s;
        let d = shared.device();
        answer_call! { number, from;
            plain Query(()) => Ok(within_quota(d.query()?, self.memory));
            plain PathMtu(to) => d.path_mtu(&to);
            plain ReadCounters(()) => Ok(self.counters(d));
            plain QpCounters(qp) => d.qp_counters(self.qps.get(qp)?.device);
            plain LastCause(()) => Ok(self.last_cause(d));
            plain QpCause(qp) => d.qp_cause(self.qps.get(qp)?.device);
            plain CountLeaks(()) => Ok(self.leaks());

            plain PdAlloc(()) => self.pds.make(|| shared.make(|d| d.pd_alloc()));
            plain PdDealloc(pd) => self.pds.end(pd, |pd| d.pd_dealloc(*pd)).map(drop);
            plain XrcdAlloc(()) => self.xrcds.make(|| shared.make(|d| d.xrcd_alloc()));
            plain XrcdDealloc(xrcd) => self.xrcds.end(xrcd, |xrcd| d.xrcd_dealloc(*xrcd)).map(drop);
            plain File(()) => self.take_file(fd);
            plain MrReg(region) => self.register(shared, &region, fd);
            plain GpuMrReg((region, memory)) => self.register_gpu(shared, &region, &memory, fd);
            plain DmaBufMrReg(region) => self.register_dma_buf(shared, &region, fd);
            plain MrRereg((mr, region)) => self.register_anew(shared, mr, &region);
            plain MrDereg(mr) => self.deregister(d, mr);
            plain MwAlloc((pd, kind)) => self.make_mw(shared, pd, kind);
            plain MwDealloc(mw) => self.mws.end(mw, |mw| d.mw_dealloc(*mw)).map(drop);
            plain AhCreate((pd, attr)) => self.make_ah(shared, pd, &attr);
            plain AhDestroy(ah) => self.ahs.end(ah, |ah| d.ah_destroy(ah.device)).map(drop);

            with_fd CqCreate((cqe, channel)) => self.make_cq(shared, owners, cqe, channel);
            with_fd CqResize((cq, cqe)) => self.resize_cq(shared, cq, cqe);
            plain CqSwitch(cq) => self.switch_cq(cq);
            plain CqDestroy(cq) => self.destroy_cq(d, cq, owners);
            plain CqPurge((cq, qpn)) => d.cq_purge(self.cqs.get(cq)?.device, qpn);
            plain CqArmSolicited(cq) => self.arm_solicited(shared, cq);
            with_fd ChannelCreate(()) => self.make_channel();
            plain ChannelDestroy(channel) => self.destroy_channel(channel);

            with_fd SrqCreate(new) => self.make_srq(shared, owners, &new);
            with_fd SrqResize((srq, max_wr, limit)) => self.resize_srq(shared, srq, max_wr, limit);
            plain SrqSwitch(srq) => self.switch_srq(srq);
            plain SrqModify((srq, limit)) => d.srq_modify(self.srqs.get(srq)?.device, limit);
            plain SrqQuery(srq) => d.srq_query(self.srqs.get(srq)?.device);
            plain SrqNumber(srq) => d.srq_number(self.srqs.get(srq)?.device);
            plain SrqDestroy(srq) => self.destroy_srq(d, srq, owners);

            with_fd QpCreate(init) => self.make_qp(shared, owners, &init);
            plain QpModify((qp, attr, mask)) => self.modify(d, qp, &attr, mask);
            plain QpReset(qp) => self.reset(d, qp);
            plain QpQuery(qp) => self.query_qp(d, qp);
            plain QpDestroy(qp) => self.destroy_qp(d, qp, owners);
            plain McastAttach((qp, gid)) => self.attach(d, qp, gid);
            plain McastDetach((qp, gid)) => self.detach(d, qp, gid);

            with_fd CmOpen(()) => self.open_cm(d);
            plain CmCreate((space, context)) => self.make_id(d, owners, space, context);
            plain CmSetContext((id, context)) => d.cm()?.set_context(*self.ids.get(id)?, context);
            plain CmBind((id, port)) => d.cm()?.bind(*self.ids.get(id)?, port);
            plain CmAnnounce((id, soon)) => d.cm()?.announce(*self.ids.get(id)?, soon);
            plain CmListen((id, backlog)) => d.cm()?.listen(*self.ids.get(id)?, backlog);
            plain CmConnect(request) => self.connect(d, request);
            plain CmAccept(request) => self.accept(d, request);
            plain CmEstablish(id) => d.cm()?.establish(*self.ids.get(id)?);
            plain CmReject((id, data)) => d.cm()?.reject(*self.ids.get(id)?, &data);
            plain CmDisconnect(id) => d.cm()?.disconnect(*self.ids.get(id)?);
            plain CmDestroy(id) => self.destroy_id(d, owners, id);
            plain CmQpAttr((id, state)) => d.cm()?.qp_attr(*self.ids.get(id)?, state);
            plain CmTakeEvent(()) => Ok(self.take_cm_event());
        }
    }

    fn take_file(&mut self, fd: Option<Foreign>) -> Result<()> {
        let fd =
            fd.ok_or_else(|| refuse!(Invalid, "the file of the session's memory is missing"))?;
        if self.file.is_some() {
            return Err(refuse!(Busy, "the session has a file of its memory"));
        }
        self.file = Some(File::new(fd)?);
        Ok(())
    }

    /// The pages of a region, and its request to the device. `fd`: the file of its pieces, if that
    /// is not the session's.
    fn pages_of(
        &self,
        shared: &SharedDevice,
        region: &NewRegion,
        other: Option<File>,
    ) -> Result<(Pages, MrReg)> {
        let pd = *self.pds.get(region.pd)?;
        let file = other.as_ref().or(self.file.as_ref());
        let file = file.ok_or_else(|| refuse!(Invalid, "the session has no file"))?;
        // Linux before 6.2 pins the pages of any region for writing, so a NIC would refuse those of
        // a shared mapping without that right. What the NIC may do is up to the region's access.
        let pins_for_writing = shared.is_nic() && other.is_none();
        let writable = region.access & access::LOCAL_WRITE != 0 || pins_for_writing;
        let n: usize = self.mrs.iter().map(|mr| mr.memory.pieces()).sum();
        if n + region.pieces.len() > limits::MR as usize {
            return Err(refuse!(
                NoMemory,
                "the session's regions have {n} pieces, and {} at most",
                limits::MR
            ));
        }
        let pages = Pages::map(file, &region.pieces, writable)?;
        let first = region.addr % page_size() as u64;
        let inside = region.length.checked_add(first).is_some_and(|end| end <= pages.bytes());
        if !inside {
            let n = region.length;
            return Err(refuse!(Invalid, "a region of {n} bytes, and its pieces have fewer"));
        }
        self.check_memory(pages.bytes())?;
        let reg = MrReg {
            pd,
            addr: pages.addr() + first,
            length: region.length,
            iova: region.iova,
            access: region.access | shared.access(),
            provider: 0,
            cookie: 0,
        };
        Ok((pages, reg))
    }

    /// Whether the session may register so many bytes more.
    fn check_memory(&self, bytes: u64) -> Result<()> {
        let registered: u64 = self.mrs.iter().map(|mr| mr.memory.bytes()).sum();
        let most = self.memory;
        if registered.saturating_add(bytes) > most {
            return Err(refuse!(
                NoMemory,
                "a region of {bytes} bytes: the session has {registered}, and its most is {most}"
            ));
        }
        Ok(())
    }

    fn register(
        &mut self,
        shared: &mut SharedDevice,
        region: &NewRegion,
        fd: Option<Foreign>,
    ) -> Result<(Handle, MrAttr)> {
        self.mrs.next_handle()?;
        let other = fd.map(File::new).transpose()?;
        let (pages, reg) = self.pages_of(shared, region, other)?;
        self.register_pages(shared, region.access, pages, &reg)
    }

    fn register_pages(
        &mut self,
        shared: &mut SharedDevice,
        access: u32,
        pages: Pages,
        reg: &MrReg,
    ) -> Result<(Handle, MrAttr)> {
        let (device, attr) = shared.make(|d| d.mr_reg(reg))?;
        let mr = self.mrs.add(Mr { device, memory: MrMemory::Host(pages) })?;
        // Without the flags of the device's kind.
        Ok((mr, MrAttr { access, ..attr }))
    }

    /// A NIC reaches a dma-buf by itself, a soft device by the router's mapping.
    fn register_dma_buf(
        &mut self,
        shared: &mut SharedDevice,
        region: &NewRegion,
        fd: Option<Foreign>,
    ) -> Result<(Handle, MrAttr)> {
        self.mrs.next_handle()?;
        let fd = there(fd)?;
        let Some(nic) = shared.nic() else {
            let (pages, reg) = self.pages_of(shared, region, Some(File::of_buffer(fd)?))?;
            return self.register_pages(shared, region.access, pages, &reg);
        };
        let pd = *self.pds.get(region.pd)?;
        self.check_memory(region.length)?;
        let NewRegion { addr, length, iova, access, .. } = *region;
        let reg = MrReg { pd, addr, length, iova, access, provider: 0, cookie: 0 };
        let (device, attr) = nic.mr_reg_dmabuf(&reg, fd.as_fd().as_raw_fd())?;
        let mr = self.mrs.add(Mr { device, memory: MrMemory::DmaBuf(length) })?;
        Ok((mr, attr))
    }

    fn register_gpu(
        &mut self,
        shared: &mut SharedDevice,
        region: &NewRegion,
        memory: &GpuMemory,
        fd: Option<Foreign>,
    ) -> Result<((Handle, MrAttr), GpuRoute)> {
        self.mrs.next_handle()?;
        let pd = *self.pds.get(region.pd)?;
        self.check_memory(region.length)?;
        let fd = there(fd)?;
        let gpus = shared.gpus().ok_or_else(|| {
            refuse!(Unsupported, "the policy has no `gpus`: the router opens no memory of a GPU")
        })?;
        let (gpu, span) = gpus.import((pd, region), memory, &fd)?;
        let ((device, attr), route) = shared.register_gpu(gpu.request(), &span)?;
        let mr = self.mrs.add(Mr { device, memory: MrMemory::Gpu(gpu) })?;
        Ok(((mr, attr), route))
    }

    fn register_anew(
        &mut self,
        shared: &SharedDevice,
        mr: Handle,
        region: &NewRegion,
    ) -> Result<MrAttr> {
        // Until the device has changed over, both have their pages.
        let (pages, reg) = self.pages_of(shared, region, None)?;
        let before = self.mrs.get(mr)?.device;
        let (device, attr) = match shared.nic() {
            None => (before, shared.device().mr_rereg(before, &reg)?),
            Some(nic) => {
                // ibv_rereg_mr has no `iova`: a region has the address where the router has it.
                let (made, attr) = nic.mr_reg(&reg)?;
                if let Err(e) = nic.mr_dereg(before) {
                    if nic.mr_dereg(made).is_err() {
                        std::mem::forget(pages);
                    }
                    return Err(e);
                }
                (made, attr)
            }
        };
        *self.mrs.get_mut(mr)? = Mr { device, memory: MrMemory::Host(pages) };
        Ok(MrAttr { access: region.access, ..attr })
    }

    fn deregister(&mut self, d: &dyn Device, mr: Handle) -> Result<()> {
        self.mrs.end(mr, |mr| d.mr_dereg(mr.device)).map(drop)
    }

    fn make_mw(
        &mut self,
        shared: &mut SharedDevice,
        pd: Handle,
        kind: u32,
    ) -> Result<(Handle, u32)> {
        let pd = *self.pds.get(pd)?;
        self.mws.next_handle()?;
        let (mw, rkey) = shared.make(|d| d.mw_alloc(pd, kind))?;
        Ok((self.mws.add(mw)?, rkey))
    }

    /// A datagram to this device is looked at when it is sent, as it names a queue pair.
    fn make_ah(&mut self, shared: &mut SharedDevice, pd: Handle, to: &AhAttr) -> Result<Handle> {
        let pd = *self.pds.get(pd)?;
        if !self.guard.is_here(to) {
            self.guard.check(self.tenant, to, 0)?;
        }
        let make = || Ok(Ah { device: shared.make(|d| d.ah_create(pd, to))?, to: *to });
        self.ahs.make(make)
    }

    fn make_cq(
        &mut self,
        shared: &mut SharedDevice,
        owners: &mut Owners,
        cqe: u32,
        channel: Handle,
    ) -> Result<((Handle, u32, QueueShape), OwnedFd)> {
        if channel != 0 {
            self.channels.get(channel)?;
        }
        let handle = self.cqs.next_handle()?;
        self.check_room(cq_shape(cqe)?)?;
        let (device, given) = shared.make(|d| d.cq_create(cqe))?;
        let made = cq_shape(given).and_then(|shapes| self.make_queues(shapes));
        let (map, fd) = made.inspect_err(|_| _ = shared.device().cq_destroy(device))?;
        let shape = map.shapes()[0];
        let (next, idle, solicited, owed, has_failed) = (None, 0, false, false, false);
        let cq = Cq { device, map, next, tail: 0, channel, idle, solicited, owed, has_failed };
        self.cqs.add(cq)?;
        owners.insert(device, (self.number, handle));
        self.start_polling(handle);
        Ok(((handle, given, shape), fd))
    }

    /// Resizes the device's CQ, and makes the memory in which [`Session::switch_cq`] goes on. Until
    /// then the CQ goes on in the memory that the tenant has.
    fn resize_cq(
        &mut self,
        shared: &mut SharedDevice,
        cq: Handle,
        cqe: u32,
    ) -> Result<((u32, QueueShape), OwnedFd)> {
        let device = self.cqs.get(cq)?.device;
        self.check_room(cq_shape(cqe)?)?;
        let given = shared.make(|d| d.cq_resize(device, cqe))?;
        let (map, fd) = self.make_queues(cq_shape(given)?)?;
        let shape = map.shapes()[0];
        let unused = self.cqs.get_mut(cq)?.next.replace(map);
        unused.iter().for_each(|map| self.give_room(map.shapes()));
        Ok(((given, shape), fd))
    }

    fn switch_cq(&mut self, cq: Handle) -> Result<()> {
        let c = self.cqs.get_mut(cq)?;
        let map = c.next.take().ok_or_else(|| refuse!(Invalid, "cq: it was not resized"))?;
        // What the tenant has armed in the old memory it finds in the new one.
        if c.map.armed(0).is_asleep(ANY) {
            map.armed(0).announce(ANY);
        }
        let old = core::mem::replace(&mut c.map, map);
        c.tail = 0;
        self.give_room(old.shapes());
        Ok(())
    }

    /// Makes the memory of queues.
    fn make_queues(&mut self, shapes: [QueueShape; 2]) -> Result<(QueueMap, OwnedFd)> {
        self.take_room(shapes)?;
        QueueMap::create(shapes).inspect_err(|_| self.give_room(shapes))
    }

    /// Whether there is room for queues as they are asked for, before the device makes them.
    fn check_room(&mut self, shapes: [QueueShape; 2]) -> Result<()> {
        self.take_room(shapes)?;
        self.give_room(shapes);
        Ok(())
    }

    pub(super) fn destroy_cq(
        &mut self,
        d: &dyn Device,
        cq: Handle,
        owners: &mut Owners,
    ) -> Result<()> {
        let ended = self.cqs.end(cq, |c| d.cq_destroy(c.device))?;
        owners.remove(&ended.device);
        self.polled.retain(|known| *known != cq);
        ended.next.iter().chain([&ended.map]).for_each(|map| self.give_room(map.shapes()));
        Ok(())
    }

    fn arm_solicited(&mut self, shared: &SharedDevice, cq: Handle) -> Result<()> {
        let c = self.cqs.get_mut(cq)?;
        // The device may be armed for any completion, of a CQ that is not polled.
        shared.arm_solicited(c.device)?;
        c.solicited = true;
        self.start_polling(cq);
        Ok(())
    }

    fn make_channel(&mut self) -> Result<(Handle, OwnedFd)> {
        self.channels.next_handle()?;
        let [ours, theirs] = rights::pair()?;
        Ok((self.channels.add(Foreign::fresh(ours))?, theirs))
    }

    fn destroy_channel(&mut self, channel: Handle) -> Result<()> {
        self.channels.get(channel)?;
        if self.cqs.iter().any(|c| c.channel == channel) {
            return Err(refuse!(Busy, "channel: a CQ has it"));
        }
        self.channels.remove(channel).map(drop)
    }

    fn make_srq(
        &mut self,
        shared: &mut SharedDevice,
        owners: &mut Owners,
        new: &NewSrq,
    ) -> Result<((Handle, gdrcore_core::device::SrqAttr, QueueShape), OwnedFd)> {
        let pd = *self.pds.get(new.pd)?;
        let handle = self.srqs.next_handle()?;
        let asked = shape(new.attr.max_wr, recv_stride(new.attr.max_sge.min(STRIDE_MAX)))?;
        self.check_room(asked.alone())?;
        let (device, attr) = match (new.xrcd, new.cq) {
            (0, 0) => shared.make(|d| d.srq_create(pd, &new.attr))?,
            (xrcd, cq) => {
                let of = [pd, *self.xrcds.get(xrcd)?, self.cqs.get(cq)?.device];
                shared.make(|d| d.srq_create_xrc(of, &new.attr))?
            }
        };
        let made = shape(attr.max_wr, recv_stride(attr.max_sge))
            .and_then(|queue| self.make_queues(queue.alone()));
        let (map, fd) = made.inspect_err(|_| _ = shared.device().srq_destroy(device))?;
        let queue = map.shapes()[0];
        self.srqs.add(Srq { device, map, next: None, head: 0 })?;
        self.watch(Doorbell::Srq(index_of(handle) as u32));
        owners.insert(device, (self.number, handle));
        Ok(((handle, attr, queue), fd))
    }

    /// As [`Session::resize_cq`].
    fn resize_srq(
        &mut self,
        shared: &mut SharedDevice,
        srq: Handle,
        max_wr: u32,
        limit: Option<u32>,
    ) -> Result<((u32, QueueShape), OwnedFd)> {
        let s = self.srqs.get(srq)?;
        let (device, stride) = (s.device, s.map.shapes()[0].stride);
        self.check_room(shape(max_wr, stride)?.alone())?;
        let given = shared.make(|d| d.srq_resize(device, max_wr, limit))?;
        let (map, fd) = self.make_queues(shape(given, stride)?.alone())?;
        let shape = map.shapes()[0];
        let unused = self.srqs.get_mut(srq)?.next.replace(map);
        unused.iter().for_each(|map| self.give_room(map.shapes()));
        Ok(((given, shape), fd))
    }

    fn switch_srq(&mut self, srq: Handle) -> Result<()> {
        let s = self.srqs.get_mut(srq)?;
        let map = s.next.take().ok_or_else(|| refuse!(Invalid, "srq: it was not resized"))?;
        // Those that the device has room for are there.
        let waiting = s.map.waiting::<RecvWqe>(0, s.head, u32::MAX);
        let unused = match waiting {
            0 => core::mem::replace(&mut s.map, map),
            _ => map,
        };
        self.give_room(unused.shapes());
        if waiting > 0 {
            return Err(refuse!(Invalid, "srq: {waiting} requests wait that it has no room for"));
        }
        self.srqs.get_mut(srq)?.head = 0;
        self.watch_anew(Doorbell::Srq(index_of(srq) as u32));
        Ok(())
    }

    pub(super) fn destroy_srq(
        &mut self,
        d: &dyn Device,
        srq: Handle,
        owners: &mut Owners,
    ) -> Result<()> {
        let ended = self.srqs.end(srq, |s| d.srq_destroy(s.device))?;
        owners.remove(&ended.device);
        ended.next.iter().chain([&ended.map]).for_each(|map| self.give_room(map.shapes()));
        Ok(())
    }

    /// A new queue pair's attributes, in the device's handles.
    fn init_of(&self, init: &QpInit) -> Result<QpInit> {
        if matches!(init.qp_type, qp_type::DCI | qp_type::DCT) {
            return Err(refuse!(
                Unsupported,
                "qp_type {}: a router does not carry DC",
                init.qp_type
            ));
        }
        /// 0: none.
        fn or_none(h: Handle, of: impl FnOnce() -> Result<Handle>) -> Result<Handle> {
            if h == 0 {
                return Ok(0);
            }
            of()
        }
        let cq = |h| or_none(h, || Ok(self.cqs.get(h)?.device));
        Ok(QpInit {
            pd: or_none(init.pd, || self.pds.get(init.pd).copied())?,
            send_cq: cq(init.send_cq)?,
            recv_cq: cq(init.recv_cq)?,
            srq: or_none(init.srq, || Ok(self.srqs.get(init.srq)?.device))?,
            xrcd: or_none(init.xrcd, || self.xrcds.get(init.xrcd).copied())?,
            ..*init
        })
    }

    fn make_qp(
        &mut self,
        shared: &mut SharedDevice,
        owners: &mut Owners,
        init: &QpInit,
    ) -> Result<(MadeQp, OwnedFd)> {
        let on_device = self.init_of(init)?;
        let handle = self.qps.next_handle()?;
        self.check_room(queues_of(init, &init.cap)?)?;
        let (device, number, cap) = shared.make(|d| d.qp_create(&on_device))?;
        let made = queues_of(init, &cap).and_then(|of| self.make_queues(of));
        let (map, fd) = made.inspect_err(|_| _ = shared.device().qp_destroy(device))?;
        let [sq, rq] = map.shapes();
        self.qps.add(Qp {
            device,
            number,
            init: *init,
            map,
            heads: [0; 2],
            groups: Vec::new(),
            under_way: UnderWay::default(),
            flushes: false,
        })?;
        let index = index_of(handle) as u32;
        self.watch(Doorbell::Send(index));
        self.watch(Doorbell::Receive(index));
        self.guard.made(number, self.tenant);
        owners.insert(device, (self.number, handle));
        Ok((MadeQp { handle, qpn: number, cap, sq, rq }, fd))
    }

    fn modify(&mut self, d: &dyn Device, qp: Handle, attr: &QpAttr, mask: u32) -> Result<()> {
        if mask & qp_attr_mask::QKEY != 0 && attr.qkey & CONTROLLED_QKEY != 0 {
            // The kernel gives them to privileged processes alone, and the router may be one.
            let qkey = attr.qkey;
            return Err(refuse!(Access, "qkey {qkey:#x}: a controlled one, which no tenant has"));
        }
        let q = self.qps.get_mut(qp)?;
        if mask & qp_attr_mask::AV != 0 {
            let names_qp = mask & qp_attr_mask::DEST_QPN != 0;
            self.guard.check(self.tenant, &attr.ah, if names_qp { attr.dest_qp_num } else { 0 })?;
        }
        d.qp_modify(q.device, attr, mask)?;
        if mask & qp_attr_mask::STATE == 0 {
            return Ok(());
        }
        q.flushes = attr.qp_state == qp_state::ERR;
        if attr.qp_state == qp_state::RESET {
            q.under_way.clear();
            self.discard(qp);
        }
        Ok(())
    }

    /// Brings the queue pairs into ERR whose peers the tenant may no longer reach.
    pub(super) fn part(&mut self, d: &dyn Device) {
        if !self.guard.has_rules() {
            return;
        }
        for h in self.qps.handles() {
            let Ok(q) = self.qps.get_mut(h) else { continue };
            let Ok((attr, _)) = d.qp_query(q.device) else { continue };
            let is_connected = q.init.qp_type != qp_type::UD
                && matches!(attr.qp_state, qp_state::RTR | qp_state::RTS);
            if is_connected && self.guard.check(self.tenant, &attr.ah, attr.dest_qp_num).is_err() {
                q.fail(d);
                self.tell_async(async_event::QP_FATAL, h);
            }
        }
    }

    fn query_qp(&self, d: &dyn Device, qp: Handle) -> Result<(QpAttr, QpInit)> {
        let q = self.qps.get(qp)?;
        let (attr, of_device) = d.qp_query(q.device)?;
        Ok((attr, QpInit { cap: of_device.cap, ..q.init }))
    }

    fn attach(&mut self, d: &dyn Device, qp: Handle, gid: [u8; 16]) -> Result<()> {
        self.guard.check(self.tenant, &AhAttr { dgid: gid, ..AhAttr::default() }, 0)?;
        let q = self.qps.get_mut(qp)?;
        d.mcast_attach(q.device, &gid)?;
        if !q.groups.contains(&gid) {
            q.groups.push(gid);
        }
        Ok(())
    }

    fn detach(&mut self, d: &dyn Device, qp: Handle, gid: [u8; 16]) -> Result<()> {
        let q = self.qps.get_mut(qp)?;
        d.mcast_detach(q.device, &gid)?;
        q.groups.retain(|known| *known != gid);
        Ok(())
    }

    pub(super) fn destroy_qp(
        &mut self,
        d: &dyn Device,
        qp: Handle,
        owners: &mut Owners,
    ) -> Result<()> {
        let counted = d.qp_counters(self.qps.get(qp)?.device).unwrap_or(Counters::ZERO);
        let ended = self.qps.end(qp, |q| d.qp_destroy(q.device))?;
        self.past.add(&counted);
        self.guard.ended(ended.number);
        owners.remove(&ended.device);
        self.give_room(ended.map.shapes());
        Ok(())
    }

    /// `Device::qp_reset`: what was posted goes to the device before, and what has completed to the
    /// tenant before the answer.
    fn reset(&mut self, d: &dyn Device, qp: Handle) -> Result<()> {
        let q = self.qps.get(qp)?;
        let (device, cqs) = (q.device, [q.init.send_cq, q.init.recv_cq]);
        let waits = |q: &Qp| q.waiting() != [0, 0];
        let done = match self.qps.get(qp).is_ok_and(waits) {
            true => {
                // The device takes them when it has completed what is before.
                let _ = self.qps.get_mut(qp).map(|q| q.fail(d));
                Err(Error::Again)
            }
            false => d.qp_reset(device),
        };
        if done.is_ok() {
            let _ = self.qps.get_mut(qp).map(|q| {
                q.under_way.clear();
                q.flushes = false;
            });
            self.discard(qp);
        }
        for cq in cqs {
            self.start_polling(cq);
            self.move_completions(d, cq, usize::MAX);
        }
        done
    }

    /// What the session's queue pairs have counted, those that are gone included.
    /// Of a NIC nothing: that counts for its port, which is not a tenant's alone.
    fn counters(&self, d: &dyn Device) -> Counters {
        let mut all = self.past;
        self.qps.iter().filter_map(|q| d.qp_counters(q.device).ok()).for_each(|c| all.add(&c));
        all
    }

    /// The latest cause of the session's queue pairs.
    fn last_cause(&self, d: &dyn Device) -> Cause {
        let all = self.qps.iter().filter_map(|q| d.qp_cause(q.device).ok());
        // Of two at one time the one that a request has failed for is later.
        all.max_by_key(|cause| (cause.time_ns, cause.wc_status != 0)).unwrap_or_default()
    }

    fn leaks(&self) -> Leaks {
        let n = |len: usize| len as u32;
        Leaks {
            pd: n(self.pds.len()),
            mr: n(self.mrs.len()),
            mw: n(self.mws.len()),
            cq: n(self.cqs.len()),
            qp: n(self.qps.len()),
            srq: n(self.srqs.len()),
            ah: n(self.ahs.len()),
        }
    }
}

/// The queues of a queue pair with these sizes. An XRC initiator has no RQ; an XRC target has no
/// queues.
fn queues_of(init: &QpInit, cap: &QpCap) -> Result<[QueueShape; 2]> {
    let none = QueueShape::default();
    let sends = init.qp_type != qp_type::XRC_RECV && cap.max_send_wr > 0;
    let has_rq = !matches!(init.qp_type, qp_type::XRC_RECV | qp_type::XRC_SEND) && init.srq == 0;
    let sq = match sends {
        true => shape(
            cap.max_send_wr,
            send_stride(cap.max_send_sge.min(STRIDE_MAX), cap.max_inline_data.min(2 * STRIDE_MAX)),
        )?,
        false => none,
    };
    let rq = match has_rq && cap.max_recv_wr > 0 {
        true => shape(cap.max_recv_wr, recv_stride(cap.max_recv_sge.min(STRIDE_MAX)))?,
        false => none,
    };
    Ok([sq, rq])
}

/// The device's facts, cut to what a session may have.
fn within_quota(attr: DeviceAttr, memory: u64) -> DeviceAttr {
    DeviceAttr {
        max_pd: attr.max_pd.min(limits::OTHER),
        max_mr: attr.max_mr.min(limits::MR),
        max_cq: attr.max_cq.min(limits::CQ),
        max_qp: attr.max_qp.min(limits::QP),
        max_srq: attr.max_srq.min(limits::SRQ),
        max_ah: attr.max_ah.min(limits::OTHER),
        max_mr_size: attr.max_mr_size.min(memory),
        max_qp_wr: attr.max_qp_wr.min(SLOTS_MAX),
        max_cqe: attr.max_cqe.min(SLOTS_MAX),
        ..attr
    }
}
