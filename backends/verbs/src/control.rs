//! Implements the [`Device`] trait: checks each object here and makes it by libibverbs.

use core::ffi::c_int;
use core::ptr::null_mut;
use core::sync::atomic::Ordering::Relaxed;

use crate::abi::{caps, Memory, Port};
use crate::device::{made, VerbsDevice, ROCE_PORT};
use crate::objects::lock;
use crate::sys::is_mapped;
use crate::{errno, stats};
use gdrcore_core::counters::Counters;
use gdrcore_core::device::{
    port_state, AsyncEvent, CmDevice, Device, DeviceAttr, Leaks, MrAttr, MrReg, SrqAttr,
};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::pool::{stale, tag};
use gdrcore_core::refuse;
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::types::{
    access, AhAttr, Flags, Handle, QpAttr, QpCap, QpInit, RecvWr, SendWr, Wc, ACCESS_ALL,
    ACCESS_REMOTE_CHANGE,
};

impl Device for VerbsDevice {
    fn query(&self) -> Result<DeviceAttr> {
        let (o, c) = (&self.opened, &self.config);
        let mut now = Port::default();
        // SAFETY: an open context and a writable struct.
        let rc = unsafe { (self.module.port)(o.context, self.source.port, &mut now) };
        let is_up = rc == 0 && now.active != 0;
        Ok(DeviceAttr {
            max_msg_size: self.port.max_msg_size,
            node_guid: o.node_guid,
            max_pd: c.max_pd.min(o.max_pd),
            max_mr: c.max_mr.min(o.max_mr),
            max_mr_size: u64::MAX,
            max_cq: c.max_cq.min(o.max_cq),
            max_qp: c.max_qp.min(o.max_qp),
            max_srq: c.max_srq.min(o.max_srq),
            // Many providers manage address handles themselves and report no bound.
            max_ah: if o.max_ah == 0 { c.max_ah } else { c.max_ah.min(o.max_ah) },
            max_qp_wr: o.max_qp_wr,
            max_cqe: o.max_cqe,
            max_sge: c.max_sge.min(o.max_sge),
            max_inline: self.inline,
            max_rd_atomic: c.max_rd_atomic.min(o.max_rd_atomic),
            active_mtu: self.port.active_mtu,
            udp_port: u32::from(ROCE_PORT),
            qpn_base: 0,
            gid: self.gid,
            scope_id: self.scope_id,
            own_port: 0,
            port_state: if is_up { port_state::ACTIVE } else { port_state::DOWN },
            has_gid: 1,
        })
    }

    fn counters(&self) -> Result<Counters> {
        Ok(stats::counters(&self.name, self.source.port))
    }

    fn qp_counters(&self, qp: Handle) -> Result<Counters> {
        self.qps.enter(qp)?;
        Err(refuse!(Unsupported, "qp: a NIC counts for its port only; gdrc_counters"))
    }

    fn last_cause(&self) -> Result<Cause> {
        Ok(*lock(&self.last))
    }

    fn qp_cause(&self, qp: Handle) -> Result<Cause> {
        let held = self.qps.enter(qp)?;
        let cause = lock(&held.more().facts).cause;
        Ok(cause)
    }

    fn pd_alloc(&self) -> Result<Handle> {
        self.add(&self.pds, |_, ()| {
            // SAFETY: an open context, a writable result.
            made(|pd| unsafe { (self.module.pd_alloc)(self.opened.context, pd) })
        })
    }

    fn pd_dealloc(&self, pd: Handle) -> Result<()> {
        self.end(&self.pds, pd, self.module.pd_dealloc)
    }

    fn xrcd_alloc(&self) -> Result<Handle> {
        self.do_xrcd_alloc()
    }

    fn xrcd_dealloc(&self, xrcd: Handle) -> Result<()> {
        self.end(&self.xrcds, xrcd, self.module.xrcd_close)
    }

    fn mr_reg(&self, reg: &MrReg) -> Result<(Handle, MrAttr)> {
        self.check_access(reg.access)?;
        if reg.length == 0 {
            return Err(refuse!(Invalid, "length 0: a region has at least one byte"));
        }
        if reg.provider != 0 {
            return Err(refuse!(
                Unsupported,
                "memory->kind: the NIC takes GPU memory by dma-buf or nvidia_peermem only"
            ));
        }
        let odp = reg.access & access::ON_DEMAND != 0;
        if odp && self.opened.caps & caps::ODP == 0 {
            return Err(refuse!(Unsupported, "access ON_DEMAND: this NIC has no on-demand paging"));
        }
        self.register(reg, -1)
    }

    fn mr_query(&self, mr: Handle) -> Result<MrAttr> {
        let held = self.mrs.enter(mr)?;
        let m = held.more();
        Ok(MrAttr {
            addr: m.addr.load(Relaxed),
            length: m.length.load(Relaxed),
            iova: m.iova.load(Relaxed),
            lkey: m.lkey.load(Relaxed),
            rkey: m.rkey.load(Relaxed),
            access: m.access.load(Relaxed),
            provider: m.provider.load(Relaxed),
        })
    }

    fn mr_dereg(&self, mr: Handle) -> Result<()> {
        self.end_of_pd(&self.mrs, mr, |more| &more.pd, self.module.mr_dereg)
    }

    fn mw_alloc(&self, pd: Handle, mw_type: u32) -> Result<(Handle, u32)> {
        let needed = match mw_type {
            1 => caps::MW_1,
            2 => caps::MW_2,
            _ => return Err(refuse!(Invalid, "mw_type {mw_type}: 1 or 2")),
        };
        let parent = self.pds.enter(pd)?;
        if self.opened.caps & needed == 0 {
            return Err(refuse!(Unsupported, "mw_type {mw_type}: this NIC has no such windows"));
        }
        let mut rkey = 0;
        let handle = self.add(&self.mws, |_, more| {
            let alloc = self.module.mw_alloc;
            // SAFETY: a live PD, writable results.
            let mw = made(|mw| unsafe { alloc(parent.object(), mw_type, mw, &mut rkey) })?;
            more.pd.store(pd, Relaxed);
            parent.adopt();
            Ok(mw)
        })?;
        Ok((handle, rkey))
    }

    fn mw_dealloc(&self, mw: Handle) -> Result<()> {
        self.end_of_pd(&self.mws, mw, |more| &more.pd, self.module.mw_dealloc)
    }

    fn ah_create(&self, pd: Handle, attr: &AhAttr) -> Result<Handle> {
        let parent = self.pds.enter(pd)?;
        self.reachable(attr)?;
        self.add(&self.ahs, |_, more| {
            let create = self.module.ah_create;
            // SAFETY: a live PD, readable attributes, a writable result.
            let ah = made(|ah| unsafe { create(parent.object(), attr, &self.source, ah) })?;
            more.pd.store(pd, Relaxed);
            parent.adopt();
            Ok(ah)
        })
    }

    fn ah_destroy(&self, ah: Handle) -> Result<()> {
        self.end_of_pd(&self.ahs, ah, |more| &more.pd, self.module.ah_destroy)
    }

    fn mcast_attach(&self, qp: Handle, gid: &[u8; 16]) -> Result<()> {
        let qp = self.qps.enter(qp)?;
        // SAFETY: a live QP, 16 readable bytes.
        errno(unsafe { (self.module.mcast_attach)(qp.object(), gid) })
    }

    fn mcast_detach(&self, qp: Handle, gid: &[u8; 16]) -> Result<()> {
        let qp = self.qps.enter(qp)?;
        // SAFETY: as above.
        errno(unsafe { (self.module.mcast_detach)(qp.object(), gid) })
    }

    fn cq_create(&self, cqe: u32) -> Result<(Handle, u32)> {
        self.cq_with(cqe, 0, self.opened.channel)
    }

    fn cq_create_on(&self, cqe: u32, channel: Handle) -> Result<(Handle, u32)> {
        let parent = self.channels.enter(channel)?;
        let made = self.cq_with(cqe, channel, parent.object())?;
        parent.adopt();
        Ok(made)
    }

    fn channel_create(&self) -> Result<Handle> {
        self.add(&self.channels, |_, more| {
            let (create, mut fd) = (self.module.channel_create, -1);
            // SAFETY: an open context, writable results.
            let channel = made(|channel| unsafe { create(self.opened.context, channel, &mut fd) })?;
            more.fd.store(fd, Relaxed);
            Ok(channel)
        })
    }

    fn channel_destroy(&self, channel: Handle) -> Result<()> {
        self.end(&self.channels, channel, self.module.channel_destroy)
    }

    fn channel_fd(&self, channel: Handle) -> Result<i32> {
        Ok(self.channels.enter(channel)?.more().fd.load(Relaxed))
    }

    fn channel_event(&self, channel: Handle) -> Result<Option<Handle>> {
        let held = self.channels.enter(channel)?;
        self.take_event_of(held.object())
    }

    fn channel_wait(&self, channel: Handle, timeout_ms: i32) -> Result<Option<Handle>> {
        // The channel counts as used during the sleep, so no thread destroys it.
        let held = self.channels.enter(channel)?;
        self.wait_for_event_of(held.object(), held.more().fd.load(Relaxed), timeout_ms)
    }

    fn cq_resize(&self, cq: Handle, cqe: u32) -> Result<u32> {
        let held = self.cqs.enter(cq)?;
        self.check_cqe(cqe)?;
        let mut given = cqe;
        // SAFETY: a live CQ, a readable and writable number.
        errno(unsafe { (self.module.cq_resize)(held.object(), &mut given) })?;
        Ok(given)
    }

    /// A NIC's driver has done it: this looks at the handle alone.
    fn cq_purge(&self, cq: Handle, _qpn: u32) -> Result<()> {
        self.cqs.enter(cq).map(drop)
    }

    fn cq_destroy(&self, cq: Handle) -> Result<()> {
        let slot = self.cqs.slot(cq)?;
        if !slot.is(cq) {
            return Err(stale(tag::CQ, cq));
        }
        slot.more.poll.enter()?;
        let channel = slot.more.channel.load(Relaxed);
        let outcome = self.end(&self.cqs, cq, self.module.cq_destroy);
        slot.more.poll.leave();
        if outcome.is_ok() {
            self.channels.disown(channel);
        }
        outcome
    }

    fn srq_create(&self, pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        let (parent, create) = (self.pds.enter(pd)?, self.module.srq_create);
        self.add_srq([pd, 0, 0], attr, |cookie, given| {
            // SAFETY: a live PD, readable and writable attributes, a writable result.
            let srq = made(|srq| unsafe { create(parent.object(), cookie, given, srq) })?;
            parent.adopt();
            Ok(srq)
        })
    }

    fn srq_create_xrc(&self, of: [Handle; 3], attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        self.do_srq_create_xrc(of, attr)
    }

    fn srq_resize(&self, srq: Handle, max_wr: u32, limit: Option<u32>) -> Result<u32> {
        self.do_srq_resize(srq, max_wr, limit)
    }

    fn srq_number(&self, srq: Handle) -> Result<u32> {
        self.do_srq_number(srq)
    }

    fn srq_modify(&self, srq: Handle, limit: u32) -> Result<()> {
        let held = self.srqs.enter(srq)?;
        // SAFETY: a live SRQ.
        errno(unsafe { (self.module.srq_modify)(held.object(), limit) })
    }

    fn srq_query(&self, srq: Handle) -> Result<SrqAttr> {
        let held = self.srqs.enter(srq)?;
        let mut attr = SrqAttr::default();
        // SAFETY: a live SRQ, a writable result.
        errno(unsafe { (self.module.srq_query)(held.object(), &mut attr) })?;
        Ok(attr)
    }

    fn srq_destroy(&self, srq: Handle) -> Result<()> {
        let slot = self.srqs.slot(srq)?;
        if !slot.is(srq) {
            return Err(stale(tag::SRQ, srq));
        }
        let of = [&slot.more.pd, &slot.more.xrcd, &slot.more.cq].map(|p| p.load(Relaxed));
        slot.more.post.enter()?;
        let outcome = self.end(&self.srqs, srq, self.module.srq_destroy);
        slot.more.post.leave();
        outcome?;
        let [pd, xrcd, cq] = of;
        self.pds.disown(pd);
        self.xrcds.disown(xrcd);
        self.cqs.disown(cq);
        Ok(())
    }

    fn qp_create(&self, init: &QpInit) -> Result<(Handle, u32, QpCap)> {
        self.do_qp_create(init)
    }

    fn qp_modify(&self, qp: Handle, attr: &QpAttr, set: u32) -> Result<()> {
        self.do_qp_modify(qp, attr, set)
    }

    fn qp_reset(&self, qp: Handle) -> Result<()> {
        self.do_qp_reset(qp)
    }

    fn qp_query(&self, qp: Handle) -> Result<(QpAttr, QpInit)> {
        self.do_qp_query(qp)
    }

    fn qp_destroy(&self, qp: Handle) -> Result<()> {
        self.do_qp_destroy(qp)
    }

    fn qp_pin(&self, qp: Handle) -> Result<()> {
        self.qps.enter(qp)?.adopt();
        Ok(())
    }

    fn qp_unpin(&self, qp: Handle) -> Result<()> {
        // No lookup: while another thread tries to destroy the object, its handle is stale for a
        // moment.
        self.qps.disown(qp);
        Ok(())
    }

    fn cq_pin(&self, cq: Handle) -> Result<()> {
        self.cqs.enter(cq)?.adopt();
        Ok(())
    }

    fn cq_unpin(&self, cq: Handle) -> Result<()> {
        // No lookup: while another thread tries to destroy the object, its handle is stale for a
        // moment.
        self.cqs.disown(cq);
        Ok(())
    }

    fn qp_num(&self, qp: Handle) -> Result<u32> {
        Ok(self.qps.enter(qp)?.more().qpn.load(Relaxed))
    }

    #[inline]
    unsafe fn post_send(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.do_post_send(qp, wr, bad) }
    }

    #[inline]
    unsafe fn post_recv(
        &self,
        qp: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.do_post_recv(qp, wr, bad) }
    }

    #[inline]
    unsafe fn post_srq_recv(
        &self,
        srq: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.do_post_srq_recv(srq, wr, bad) }
    }

    #[inline]
    fn poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        self.do_poll_cq(cq, wc)
    }

    fn cq_arm(&self, cq: Handle, solicited_only: bool) -> Result<()> {
        let held = self.cqs.enter(cq)?;
        // SAFETY: a live CQ of this provider.
        errno(unsafe { (self.opened.data.req_notify_cq)(held.object(), i32::from(solicited_only)) })
    }

    fn cq_event(&self) -> Result<Option<Handle>> {
        self.take_cq_event()
    }

    fn async_event(&self) -> Result<Option<AsyncEvent>> {
        Ok(self.take_async_event())
    }

    /// A NIC progresses without the program; this checks whether it still exists.
    fn progress(&self) -> Result<usize> {
        self.look();
        if self.gone.load(Relaxed) {
            return Err(Error::NoDevice);
        }
        Ok(0)
    }

    fn fd(&self) -> Result<i32> {
        Ok(self.events.fd())
    }

    fn arm(&self) -> Result<bool> {
        self.events.sleep(0)
    }

    fn wait(&self, timeout_ms: i32) -> Result<bool> {
        self.events.sleep(timeout_ms)
    }

    /// A NIC needs no helper.
    fn helper(&self, _: bool) -> Result<()> {
        Ok(())
    }

    /// The tables keep the configuration's sizes; libibverbs owns the memory of its objects.
    unsafe fn arena_add(&self, _: *mut u8, _: usize) -> Result<()> {
        Err(refuse!(Unsupported, "ctx: a NIC's tables are as large as gdrc_config set them"))
    }

    fn leaks(&self) -> Result<Leaks> {
        Ok(self.left())
    }

    fn cm(&self) -> Result<&dyn CmDevice> {
        self.open_cm()
    }
}

impl VerbsDevice {
    /// Registers a dma-buf, or a part of it: device memory that the NIC reaches without the host's
    /// memory.
    ///
    /// `reg.addr` is the offset in it, `reg.provider` the kind of memory.
    ///
    /// # Errors
    /// As for `mr_reg`; [`Error::Unsupported`]: the NIC or its driver supports no dma-buf.
    pub fn mr_reg_dmabuf(&self, reg: &MrReg, fd: i32) -> Result<(Handle, MrAttr)> {
        self.check_access(reg.access)?;
        if reg.length == 0 || fd < 0 || reg.addr.checked_add(reg.length).is_none() {
            let (length, at) = (reg.length, reg.addr);
            return Err(refuse!(
                Invalid,
                "dmabuf_fd {fd}, offset {at:#x}, length {length:#x}: not a range of a dma-buf"
            ));
        }
        self.register(reg, fd)
    }

    /// Refuses unknown access flags, forbidden combinations, and flags that the NIC lacks.
    fn check_access(&self, flags: u32) -> Result<()> {
        let needs_local_write = flags & ACCESS_REMOTE_CHANGE != 0;
        if flags & !ACCESS_ALL != 0 {
            let unknown = Flags(flags & !ACCESS_ALL, access::name);
            return Err(refuse!(Invalid, "access {flags:#x}: a region takes no {unknown}"));
        }
        let lacking = flags & self.unknown_rights();
        if lacking != 0 {
            let named = Flags(lacking, access::name);
            return Err(refuse!(Unsupported, "access {named}: this NIC does not know these flags"));
        }
        if needs_local_write && flags & access::LOCAL_WRITE == 0 {
            let named = Flags(flags, access::name);
            return Err(refuse!(
                Invalid,
                "access {named}: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE"
            ));
        }
        Ok(())
    }

    /// `dmabuf`: the descriptor of a dma-buf, or -1.
    fn register(&self, reg: &MrReg, dmabuf: c_int) -> Result<(Handle, MrAttr)> {
        let parent = self.pds.enter(reg.pd)?;
        let MrReg { addr, length, iova, .. } = *reg;
        // A zero-based region is one whose iova is 0; not every kernel knows the flag.
        let memory =
            Memory { addr, length, iova, access: reg.access & !access::ZERO_BASED, dmabuf };
        let mut attr = MrAttr {
            addr,
            length,
            iova,
            access: reg.access,
            provider: reg.provider,
            ..MrAttr::default()
        };
        let handle = self.add(&self.mrs, |_, more| {
            let mut mr = null_mut();
            let register = self.module.mr_reg;
            // SAFETY: a live PD, writable results. The memory itself is only pinned, and may be
            // anything.
            let made = errno(unsafe {
                register(parent.object(), &memory, &mut mr, &mut attr.lkey, &mut attr.rkey)
            });
            // No words here: the caller compares the error.
            if made == Err(Error::NoMemory) && dmabuf < 0 && !is_mapped(addr, length) {
                // Some drivers return this for unmapped memory.
                return Err(refuse!(
                    Fault,
                    "addr {addr:#x}: of {length:#x} bytes some are not mapped"
                ));
            }
            made?;
            more.pd.store(reg.pd, Relaxed);
            more.addr.store(attr.addr, Relaxed);
            more.length.store(attr.length, Relaxed);
            more.iova.store(attr.iova, Relaxed);
            more.lkey.store(attr.lkey, Relaxed);
            more.rkey.store(attr.rkey, Relaxed);
            more.access.store(attr.access, Relaxed);
            more.provider.store(attr.provider, Relaxed);
            parent.adopt();
            Ok(mr)
        })?;
        Ok((handle, attr))
    }
}
