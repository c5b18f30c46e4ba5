//! [`SoftDevice`] as a [`Device`]: a call goes to the engine of its object, or, for objects of the
//! whole device, to all engines.

use super::{all_leaks, program_handle, SoftDevice};
use crate::clock::now_ns;
use crate::fault;
use crate::soft::SoftEngine;
use crate::wait::PreSleepCheck;
use core::sync::atomic::Ordering;
use gdrcore_core::counters::Counters;
use gdrcore_core::device::{
    AsyncEvent, CmDevice, CqPlace, Device, DeviceAttr, Leaks, MrAttr, MrReg, SrqAttr,
};
use gdrcore_core::error::Result;
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::types::{
    access, qp_attr_mask, AhAttr, Handle, QpAttr, QpCap, QpInit, RecvWr, SendWr, Wc,
};

impl SoftDevice {
    /// The first event that an engine has, and the engine's number. Each call begins at another
    /// engine, so that no engine is always last.
    fn first_event<T>(
        &self,
        take: impl Fn(&SoftEngine) -> Result<Option<T>>,
    ) -> Result<Option<(usize, T)>> {
        let (from, n) = (self.next_event.fetch_add(1, Ordering::Relaxed), self.engines.most());
        for k in (0..n).map(|i| from.wrapping_add(i) % n) {
            let Some(engine) = self.engines.get(k) else { continue };
            if let Some(event) = take(engine)? {
                return Ok(Some((k, event)));
            }
        }
        Ok(None)
    }

    /// The number of the engine that serves a completion vector or a thread domain.
    fn engine_number(&self, n: u32) -> usize {
        n as usize % self.engines.most()
    }

    /// An SRQ of an engine.
    fn srq_make(
        &self,
        (k, engine): (usize, &'static SoftEngine),
        pd: Handle,
        attr: &SrqAttr,
    ) -> Result<(Handle, SrqAttr)> {
        let _control = self.control()?;
        let made = engine.lock()?.srq_create(now_ns(), pd, attr);
        made.map(|(srq, given)| (program_handle(k, srq), given))
    }

    /// The attributes of the device, computed from those of an engine.
    fn sum_engines(&self, one: DeviceAttr) -> DeviceAttr {
        // A program gets at least this much if one thread makes all objects.
        let all = |of_one: u32| of_one.saturating_mul(self.plan.config.engines.at_open);
        DeviceAttr {
            max_cq: all(one.max_cq),
            max_qp: all(one.max_qp),
            max_srq: all(one.max_srq),
            ..one
        }
    }

    /// Makes an object in the first engine, then in the others. If an engine fails, those before it
    /// end the object again. The caller holds [`SoftDevice::control`].
    fn make_in_all<T>(
        &self,
        make: impl FnOnce(&SoftEngine) -> Result<T>,
        adopt: impl Fn(&SoftEngine, &T) -> Result<()>,
        end: impl Fn(&SoftEngine, &T) -> Result<()>,
    ) -> Result<T> {
        let made = make(self.engines.first())?;
        for (k, engine) in self.engines.numbered().skip(1) {
            if let Err(e) = adopt(engine, &made) {
                for (_, before) in self.engines.numbered().take_while(|(of, _)| *of < k) {
                    // The object was made just now, and nothing uses it.
                    let _ = end(before, &made);
                }
                return Err(e);
            }
        }
        Ok(made)
    }

    /// Ends the sharing of a region in all engines.
    fn unshare(&self, rkey: u32) {
        for engine in self.engines.iter() {
            SoftEngine::unshare_region(&mut engine.lock_control(), rkey);
        }
    }
}

/// Checks that the program's memory is mapped, and installs the fault handlers. Called without the
/// lock, because populating gigabytes takes a while.
fn check_mapped(reg: &MrReg) -> Result<()> {
    fault::install()?;
    if reg.provider == 0 && reg.length > 0 && reg.access & access::ON_DEMAND == 0 {
        fault::probe(reg.addr, reg.length, reg.access & access::LOCAL_WRITE != 0)?;
    }
    Ok(())
}

/// Calls of [`Device`] that go to the engine of the object that they name first, or run under its
/// lock.
macro_rules! by_handle {
    ($engine:ident => $at:expr,
     $(fn $call:ident($object:ident $(, $arg:ident: $type:ty)*) -> $result:ty;)*) => {$(
        fn $call(&self, $object: Handle $(, $arg: $type)*) -> Result<$result> {
            let (_, $engine, $object) = self.resolve($object)?;
            $at.$call($object $(, $arg)*)
        }
    )*};
}

impl Device for SoftDevice {
    by_handle! {
        engine => engine,
        fn mcast_attach(qp, gid: &[u8; 16]) -> ();
        fn mcast_detach(qp, gid: &[u8; 16]) -> ();
        fn qp_reset(qp) -> ();
        fn qp_destroy(qp) -> ();
    }

    by_handle! {
        engine => engine.lock()?,
        fn qp_counters(qp) -> Counters;
        fn qp_cause(qp) -> Cause;
        fn xrcd_dealloc(xrcd) -> ();
        fn srq_modify(srq, limit: u32) -> ();
        fn srq_resize(srq, max_wr: u32, limit: Option<u32>) -> u32;
        fn srq_query(srq) -> SrqAttr;
        fn srq_number(srq) -> u32;
        fn qp_pin(qp) -> ();
        fn qp_unpin(qp) -> ();
        fn cq_pin(cq) -> ();
        fn cq_unpin(cq) -> ();
    }

    fn query(&self) -> Result<DeviceAttr> {
        Ok(self.sum_engines(self.engines.first().query()?))
    }

    fn facts(&self) -> Result<DeviceAttr> {
        Ok(self.sum_engines(self.engines.first().facts()?))
    }

    fn path_mtu(&self, to: &AhAttr) -> Result<u32> {
        self.engines.first().path_mtu(to)
    }

    fn counters(&self) -> Result<Counters> {
        let mut sum = Counters::ZERO;
        for engine in self.engines.iter() {
            sum.add(&engine.counters()?);
        }
        sum.qps_of_two_engines = self.crossing_qps.load(Ordering::Relaxed);
        Ok(sum)
    }

    fn last_cause(&self) -> Result<Cause> {
        let mut last = Cause::default();
        for engine in self.engines.iter() {
            let cause = engine.lock()?.last_cause();
            if cause.time_ns > last.time_ns {
                last = cause;
            }
        }
        Ok(last)
    }

    fn pd_alloc(&self) -> Result<Handle> {
        let _control = self.control()?;
        self.make_in_all(
            |engine| engine.lock()?.pd_alloc(),
            |engine, pd| engine.lock()?.pd_adopt(*pd),
            |engine, pd| engine.lock()?.pd_dealloc(*pd),
        )
    }

    fn pd_dealloc(&self, pd: Handle) -> Result<()> {
        let _control = self.control()?;
        for engine in self.engines.iter() {
            engine.lock()?.pd_may_end(pd)?;
        }
        self.engines.iter().try_for_each(|engine| engine.lock()?.pd_dealloc(pd))
    }

    fn xrcd_alloc(&self) -> Result<Handle> {
        let (k, engine) = self.thread_engine()?;
        engine.lock()?.xrcd_alloc().map(|xrcd| program_handle(k, xrcd))
    }

    fn mr_reg(&self, reg: &MrReg) -> Result<(Handle, MrAttr)> {
        self.fork.check()?;
        check_mapped(reg)?;
        let _control = self.control()?;
        self.make_in_all(
            |engine| engine.lock()?.mr_reg(reg),
            |engine, (mr, attr)| engine.lock()?.mr_adopt(*mr, attr.rkey, reg),
            |engine, (mr, _)| engine.lock()?.mr_dereg(*mr),
        )
    }

    /// The range changes for all engines in one step.
    fn mr_rereg(&self, mr: Handle, reg: &MrReg) -> Result<MrAttr> {
        self.fork.check()?;
        check_mapped(reg)?;
        let _control = self.control()?;
        let attr = self.with_all_locked(|all| {
            for held in &*all {
                held.mr_may_end(mr)?;
            }
            // The first engine checks the request for all.
            let attr = all[0].mr_rereg(mr, reg)?;
            for held in &mut all[1..] {
                held.mr_rereg(mr, reg)?;
            }
            Ok(attr)
        })?;
        self.unshare(attr.rkey);
        Ok(attr)
    }

    fn mr_share(&self, mr: Handle, fd: i32, offset: u64) -> Result<()> {
        let _control = self.control()?;
        for (k, engine) in self.engines.numbered() {
            if let Err(e) = engine.share_region(mr, fd, offset) {
                if k > 0 {
                    self.unshare(self.mr_query(mr)?.rkey);
                }
                return Err(e);
            }
        }
        Ok(())
    }

    fn mr_query(&self, mr: Handle) -> Result<MrAttr> {
        self.engines.first().lock()?.mr_query(mr)
    }

    /// No engine uses the memory afterwards, because each was locked once.
    fn mr_dereg(&self, mr: Handle) -> Result<()> {
        let _control = self.control()?;
        let rkey = self.with_all_locked(|all| {
            // While all locks are held, no queue pair of an engine binds a window.
            for held in &*all {
                held.mr_may_end(mr)?;
            }
            let rkey = all[0].mr_query(mr)?.rkey;
            for held in all {
                held.mr_dereg(mr)?;
            }
            Ok(rkey)
        })?;
        self.unshare(rkey);
        Ok(())
    }

    fn mw_alloc(&self, pd: Handle, mw_type: u32) -> Result<(Handle, u32)> {
        let _control = self.control()?;
        self.make_in_all(
            |engine| engine.lock()?.mw_alloc(pd, mw_type),
            |engine, (mw, key)| engine.lock()?.mw_adopt(*mw, *key, pd, mw_type),
            |engine, (mw, _)| engine.lock()?.mw_dealloc(*mw),
        )
    }

    fn mw_dealloc(&self, mw: Handle) -> Result<()> {
        let _control = self.control()?;
        // All engines change in one step, so that no engine binds the window in only some of them.
        self.with_all_locked(|all| all.iter_mut().try_for_each(|held| held.mw_dealloc(mw)))
    }

    fn ah_create(&self, pd: Handle, attr: &AhAttr) -> Result<Handle> {
        let mut control = self.control()?;
        self.link_all(&mut control)?;
        self.make_in_all(
            |engine| engine.with_path(attr, |g| g.ah_create(pd, attr)),
            |engine, ah| engine.with_path(attr, |g| g.ah_adopt(*ah, pd, attr)),
            |engine, ah| engine.lock()?.ah_destroy(*ah),
        )
    }

    fn ah_destroy(&self, ah: Handle) -> Result<()> {
        let _control = self.control()?;
        self.engines.iter().try_for_each(|engine| engine.lock()?.ah_destroy(ah))
    }

    fn cq_create(&self, cqe: u32) -> Result<(Handle, u32)> {
        self.cq_create_at(cqe, CqPlace::Vector(0))
    }

    fn vectors(&self) -> u32 {
        self.engines.most() as u32
    }

    /// Creates a CQ in the engine with the vector's or domain's number. Vector 0: in the calling
    /// thread's engine.
    fn cq_create_at(&self, cqe: u32, place: CqPlace) -> Result<(Handle, u32)> {
        let (k, engine) = match place {
            CqPlace::Vector(vector) if self.engine_number(vector) == 0 => self.thread_engine()?,
            CqPlace::Vector(n) | CqPlace::Domain(n) => self.engine_at(self.engine_number(n))?,
        };
        engine.lock()?.cq_create(cqe).map(|(cq, given)| (program_handle(k, cq), given))
    }

    fn cq_resize(&self, cq: Handle, cqe: u32) -> Result<u32> {
        self.resize_rings(cq, cqe)
    }

    fn cq_purge(&self, cq: Handle, qpn: u32) -> Result<()> {
        self.for_each_ring(cq, |engine, ring| engine.lock()?.cq_purge(ring, qpn))
    }

    fn cq_destroy(&self, cq: Handle) -> Result<()> {
        self.destroy_rings(cq)
    }

    fn cq_create_on(&self, cqe: u32, channel: Handle) -> Result<(Handle, u32)> {
        let (k, engine, channel) = self.resolve(channel)?;
        engine.cq_create_on(cqe, channel).map(|(cq, given)| (program_handle(k, cq), given))
    }

    fn channel_create(&self) -> Result<Handle> {
        let (k, engine) = self.thread_engine()?;
        engine.channel_create().map(|channel| program_handle(k, channel))
    }

    fn channel_destroy(&self, channel: Handle) -> Result<()> {
        self.end_channel(channel)
    }

    fn channel_event(&self, channel: Handle) -> Result<Option<Handle>> {
        self.take_event(channel)
    }

    fn channel_wait(&self, channel: Handle, timeout_ms: i32) -> Result<Option<Handle>> {
        self.wait_for_event(channel, timeout_ms)
    }

    fn srq_create(&self, pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        self.srq_make(self.thread_engine()?, pd, attr)
    }

    fn srq_create_in(&self, domain: u32, pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        self.srq_make(self.engine_at(self.engine_number(domain))?, pd, attr)
    }

    fn srq_create_xrc(&self, of: [Handle; 3], attr: &SrqAttr) -> Result<(Handle, SrqAttr)> {
        let _control = self.control()?;
        let [pd, xrcd, cq] = of;
        let ((k, engine, ring), xrcd) = self.xrc_ring(xrcd, cq)?;
        let made = engine.lock()?.srq_create_xrc(now_ns(), [pd, xrcd, ring], attr);
        made.map(|(srq, given)| (program_handle(k, srq), given))
    }

    fn qp_create(&self, init: &QpInit) -> Result<(Handle, u32, QpCap)> {
        self.qp_make(init)
    }

    fn qp_num(&self, qp: Handle) -> Result<u32> {
        let (_, engine, qp) = self.resolve(qp)?;
        engine.lock()?.qp_number(qp)
    }

    fn srq_destroy(&self, srq: Handle) -> Result<()> {
        let (_, engine, srq) = self.resolve(srq)?;
        engine.lock()?.srq_destroy(now_ns(), srq)
    }

    fn channel_fd(&self, channel: Handle) -> Result<i32> {
        self.fork.check()?;
        let (_, engine, channel) = self.resolve(channel)?;
        engine.channel_fd(channel)
    }

    fn qp_modify(&self, qp: Handle, attr: &QpAttr, mask: u32) -> Result<()> {
        let (k, engine, qp) = self.resolve(qp)?;
        if mask & qp_attr_mask::DEST_QPN != 0 {
            self.link_to(k, attr.dest_qp_num)?;
        }
        engine.qp_modify(qp, attr, mask)
    }

    fn qp_query(&self, qp: Handle) -> Result<(QpAttr, QpInit)> {
        let (k, engine, qp) = self.resolve(qp)?;
        let (attr, init) = engine.lock()?.qp_query(qp)?;
        let of_device = |h: Handle| if h == 0 { 0 } else { program_handle(k, h) };
        let of_cq = |h: Handle| if h == 0 { 0 } else { self.home_of(k, h) };
        let init = QpInit {
            send_cq: of_cq(init.send_cq),
            recv_cq: of_cq(init.recv_cq),
            srq: of_device(init.srq),
            xrcd: of_device(init.xrcd),
            ..init
        };
        Ok((attr, init))
    }

    #[inline]
    unsafe fn post_send(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        *bad = wr;
        self.fork.check()?;
        let (_, engine, qp) = self.resolve(qp)?;
        // SAFETY: the caller's promise.
        unsafe { engine.quick_post_send(qp, wr, bad) }
    }

    unsafe fn post_send_all(&self, qp: Handle, wr: *const SendWr) -> Result<()> {
        self.fork.check()?;
        let (_, engine, qp) = self.resolve(qp)?;
        // SAFETY: the caller's promise.
        unsafe { engine.post_send_all(qp, wr) }
    }

    #[inline]
    unsafe fn post_recv(
        &self,
        qp: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        *bad = wr;
        self.fork.check()?;
        let (_, engine, qp) = self.resolve(qp)?;
        // SAFETY: the caller's promise.
        unsafe { engine.quick_post_recv(qp, wr, bad) }
    }

    #[inline]
    unsafe fn post_srq_recv(
        &self,
        srq: Handle,
        wr: *const RecvWr,
        bad: &mut *const RecvWr,
    ) -> Result<()> {
        *bad = wr;
        self.fork.check()?;
        let (_, engine, srq) = self.resolve(srq)?;
        // SAFETY: the caller's promise.
        unsafe { engine.engine.post_srq_recv(srq, wr, bad) }
    }

    #[inline]
    fn poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        self.fork.check()?;
        self.quick_poll_cq(cq, wc)
    }
    fn take_completions(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
        self.fork.check()?;
        self.take_waiting(cq, wc)
    }

    fn cq_arm(&self, cq: Handle, solicited_only: bool) -> Result<()> {
        self.for_each_ring(cq, |engine, ring| engine.cq_arm(ring, solicited_only))
    }

    fn cq_event(&self) -> Result<Option<Handle>> {
        Ok(self
            .first_event(|engine| Ok(engine.lock()?.take_cq_event()))?
            .map(|(k, cq)| self.home_of(k, cq)))
    }

    fn async_event(&self) -> Result<Option<AsyncEvent>> {
        let found = self.first_event(|engine| Ok(engine.lock()?.take_async_event()))?;
        Ok(found.map(|(k, event)| self.outer_event(k, event)))
    }

    fn progress(&self) -> Result<usize> {
        self.fork.check()?;
        Ok(self.engines.iter().map(SoftEngine::program_round).sum())
    }

    fn fd(&self) -> Result<i32> {
        self.fork.check()?;
        Ok(self.waiter.as_ref().unwrap_or(&self.engines.first().waiter).user_fd())
    }

    fn arm(&self) -> Result<bool> {
        if let Some(waiter) = &self.waiter {
            // Pairs with the maker's Release: a thread that sees this sees the new engine and arms
            // it.
            if self.has_unarmed_engine.swap(false, Ordering::Acquire) {
                waiter.drain();
            }
        }
        let mut work = false;
        for engine in self.engines.iter() {
            work |= engine.arm()?;
        }
        Ok(work)
    }

    fn wait(&self, timeout_ms: i32) -> Result<bool> {
        let Some(waiter) = &self.waiter else { return self.engines.first().wait(timeout_ms) };
        waiter.sleep_until(timeout_ms, || {
            let (work, mut found) = (self.arm()?, false);
            for engine in self.engines.iter() {
                found = found || engine.lock()?.has_events();
            }
            Ok(PreSleepCheck { found, work })
        })
    }

    fn helper(&self, on: bool) -> Result<()> {
        self.all_helpers(on)
    }

    unsafe fn arena_add(&self, memory: *mut u8, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.give_room(memory, bytes) }
    }

    fn leaks(&self) -> Result<Leaks> {
        let mut leaks = heapless::Vec::<Leaks, { super::MAX_ENGINES }>::new();
        for engine in self.engines.iter().rev() {
            // There is room for each.
            let _ = leaks.push(engine.lock()?.leaks());
        }
        Ok(all_leaks(leaks.into_iter()))
    }

    fn cm(&self) -> Result<&dyn CmDevice> {
        self.fork.check()?;
        Ok(self)
    }
}
