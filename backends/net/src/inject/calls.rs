//! A device whose calls fail by rules (`call gdrc_mr_reg nth 3 errno ENOMEM`), and whose polls end
//! early (`few`), for programs of the C API. A context has it in place of its device if rules say
//! so; other contexts do not know of it.
//!
//! A rule names a call of gdrcore.h. Here it is the device's call behind that; the C call has
//! checked its pointers by then. Calls that say what happened (counters, causes) do not fail.

use super::{fault_log, FaultSpec};
use crate::soft::SoftDevice;
use core::sync::atomic::{AtomicU64, Ordering};
use gdrcore_core::cm::types::{CmEvent, ConnParam};
use gdrcore_core::counters::Counters;
use gdrcore_core::device::*;
use gdrcore_core::error::Result;
use gdrcore_core::inject::{Faults, RULES_MAX};
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::types::{AhAttr, Handle, QpAttr, QpCap, QpInit, RecvWr, SendWr, Wc};
use gdrcore_core::{forward_calls, refuse};
use std::sync::{Arc, Mutex};

/// A CQ, and what was polled from it.
struct Polled {
    cq: Handle,
    /// Its number among those that were made.
    number: u64,
    polled: AtomicU64,
}

/// The CQs of a device.
#[derive(Default)]
struct Cqs {
    made: u64,
    live: Vec<Arc<Polled>>,
}

/// A device with faults of calls.
pub struct FaultyDevice {
    device: &'static SoftDevice,
    words: String,
    rules: Faults,
    seed: u64,
    counts: [AtomicU64; RULES_MAX],
    cqs: Mutex<Cqs>,
}

impl FaultyDevice {
    /// The device with faults. `spec` has a seed, and was read as `rules`.
    pub fn new(device: &'static SoftDevice, spec: &FaultSpec<'_>, rules: Faults) -> FaultyDevice {
        fault_log::note_repeat(spec, spec.seed);
        FaultyDevice {
            device,
            words: spec.rules.to_string(),
            rules,
            seed: spec.seed,
            counts: [const { AtomicU64::new(0) }; RULES_MAX],
            cqs: Mutex::default(),
        }
    }

    /// The device itself.
    pub fn device(&self) -> &'static SoftDevice {
        self.device
    }

    /// Fails if a rule hits this call, which then is not made.
    fn begin(&self, call: &str) -> Result<()> {
        let count = |rule: usize| 1 + self.counts[rule].fetch_add(1, Ordering::Relaxed);
        let hit = self.rules.call(self.seed, |name| name == call, count);
        let Some(hit) = hit else { return Ok(()) };
        let spec = FaultSpec { rules: &self.words, seed: self.seed, launched: None };
        fault_log::tell_of_call(&spec, self.seed, &hit);
        Err(refuse!(Os(hit.errno), "fault: {hit}"))
    }

    /// Notes a new CQ.
    fn made<T>(&self, made: Result<(Handle, T)>) -> Result<(Handle, T)> {
        if let (Ok((cq, _)), Ok(mut cqs)) = (&made, self.cqs.lock()) {
            cqs.made += 1;
            let number = cqs.made;
            cqs.live.push(Arc::new(Polled { cq: *cq, number, polled: AtomicU64::new(0) }));
        }
        made
    }

    /// What is known of a CQ. The lock is held for the search alone. The child of a fork, in which
    /// it may be held for ever, is refused before it comes here.
    fn of_cq(&self, cq: Handle) -> Option<Arc<Polled>> {
        let cqs = self.cqs.lock().ok()?;
        cqs.live.iter().find(|polled| polled.cq == cq).cloned()
    }
}

/// Calls that go to the device as they are, those with a name if no rule hits them. Also makes the
/// list of the names.
macro_rules! calls {
    ($names:ident: impl $of:ident, |$own:ident| $to:expr;
     $($([$name:ident])? fn $method:ident($($arg:ident: $type:ty),*) -> $out:ty;)*
     { $($rest:tt)* }) => {
        const $names: &[&str] = &[$($(stringify!($name),)?)*];

        forward_calls! { [impl $of for FaultyDevice], |$own| $to;
            $($([$own.begin(stringify!($name))?;])? fn $method($($arg: $type),*) -> $out;)*
            { $($rest)* }
        }
    };
}

calls! { DEVICE_CALLS: impl Device, |own| own.device;
    [gdrc_device_query] fn query() -> Result<DeviceAttr>;
    fn facts() -> Result<DeviceAttr>;
    [gdrc_path_mtu] fn path_mtu(to: &AhAttr) -> Result<u32>;
    fn counters() -> Result<Counters>;
    fn qp_counters(qp: Handle) -> Result<Counters>;
    fn last_cause() -> Result<Cause>;
    fn qp_cause(qp: Handle) -> Result<Cause>;
    [gdrc_pd_alloc] fn pd_alloc() -> Result<Handle>;
    [gdrc_pd_dealloc] fn pd_dealloc(pd: Handle) -> Result<()>;
    [gdrc_xrcd_alloc] fn xrcd_alloc() -> Result<Handle>;
    [gdrc_xrcd_dealloc] fn xrcd_dealloc(xrcd: Handle) -> Result<()>;
    [gdrc_mr_reg] fn mr_reg(reg: &MrReg) -> Result<(Handle, MrAttr)>;
    fn mr_rereg(mr: Handle, reg: &MrReg) -> Result<MrAttr>;
    fn mr_share(mr: Handle, fd: i32, offset: u64) -> Result<()>;
    [gdrc_mr_query] fn mr_query(mr: Handle) -> Result<MrAttr>;
    [gdrc_mr_dereg] fn mr_dereg(mr: Handle) -> Result<()>;
    [gdrc_mw_alloc] fn mw_alloc(pd: Handle, mw_type: u32) -> Result<(Handle, u32)>;
    [gdrc_mw_dealloc] fn mw_dealloc(mw: Handle) -> Result<()>;
    [gdrc_ah_create] fn ah_create(pd: Handle, attr: &AhAttr) -> Result<Handle>;
    [gdrc_ah_destroy] fn ah_destroy(ah: Handle) -> Result<()>;
    [gdrc_qp_attach_mcast] fn mcast_attach(qp: Handle, gid: &[u8; 16]) -> Result<()>;
    [gdrc_qp_detach_mcast] fn mcast_detach(qp: Handle, gid: &[u8; 16]) -> Result<()>;
    fn vectors() -> u32;
    [gdrc_cq_resize] fn cq_resize(cq: Handle, cqe: u32) -> Result<u32>;
    fn cq_purge(cq: Handle, qpn: u32) -> Result<()>;
    [gdrc_srq_create] fn srq_create(pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)>;
    fn srq_create_in(domain: u32, pd: Handle, attr: &SrqAttr) -> Result<(Handle, SrqAttr)>;
    [gdrc_srq_create_xrc] fn srq_create_xrc(of: [Handle; 3], attr: &SrqAttr)
        -> Result<(Handle, SrqAttr)>;
    [gdrc_srq_modify] fn srq_modify(srq: Handle, limit: u32) -> Result<()>;
    [gdrc_srq_resize] fn srq_resize(srq: Handle, max_wr: u32, limit: Option<u32>) -> Result<u32>;
    [gdrc_srq_query] fn srq_query(srq: Handle) -> Result<SrqAttr>;
    [gdrc_srq_number] fn srq_number(srq: Handle) -> Result<u32>;
    [gdrc_srq_destroy] fn srq_destroy(srq: Handle) -> Result<()>;
    [gdrc_qp_create] fn qp_create(init: &QpInit) -> Result<(Handle, u32, QpCap)>;
    [gdrc_qp_modify] fn qp_modify(qp: Handle, attr: &QpAttr, mask: u32) -> Result<()>;
    [gdrc_qp_query] fn qp_query(qp: Handle) -> Result<(QpAttr, QpInit)>;
    [gdrc_qp_reset] fn qp_reset(qp: Handle) -> Result<()>;
    [gdrc_qp_destroy] fn qp_destroy(qp: Handle) -> Result<()>;
    fn qp_pin(qp: Handle) -> Result<()>;
    fn qp_unpin(qp: Handle) -> Result<()>;
    fn cq_pin(cq: Handle) -> Result<()>;
    fn cq_unpin(cq: Handle) -> Result<()>;
    fn qp_num(qp: Handle) -> Result<u32>;
    [gdrc_cq_arm] fn cq_arm(cq: Handle, solicited_only: bool) -> Result<()>;
    [gdrc_channel_create] fn channel_create() -> Result<Handle>;
    [gdrc_channel_destroy] fn channel_destroy(channel: Handle) -> Result<()>;
    [gdrc_channel_fd] fn channel_fd(channel: Handle) -> Result<i32>;
    [gdrc_channel_get_event] fn channel_event(channel: Handle) -> Result<Option<Handle>>;
    [gdrc_channel_wait] fn channel_wait(channel: Handle, timeout_ms: i32)
        -> Result<Option<Handle>>;
    [gdrc_get_cq_event] fn cq_event() -> Result<Option<Handle>>;
    [gdrc_get_async_event] fn async_event() -> Result<Option<AsyncEvent>>;
    [gdrc_progress] fn progress() -> Result<usize>;
    [gdrc_fd] fn fd() -> Result<i32>;
    [gdrc_arm] fn arm() -> Result<bool>;
    [gdrc_wait] fn wait(timeout_ms: i32) -> Result<bool>;
    fn helper(on: bool) -> Result<()>;
    fn leaks() -> Result<Leaks>;
    {
        fn cq_create(&self, cqe: u32) -> Result<(Handle, u32)> {
            self.begin("gdrc_cq_create")?;
            self.made(self.device.cq_create(cqe))
        }

        fn cq_create_at(&self, cqe: u32, place: CqPlace) -> Result<(Handle, u32)> {
            self.begin("gdrc_cq_create")?;
            self.made(self.device.cq_create_at(cqe, place))
        }

        fn cq_create_on(&self, cqe: u32, channel: Handle) -> Result<(Handle, u32)> {
            self.begin("gdrc_cq_create_on")?;
            self.made(self.device.cq_create_on(cqe, channel))
        }

        fn cq_destroy(&self, cq: Handle) -> Result<()> {
            self.begin("gdrc_cq_destroy")?;
            self.device.cq_destroy(cq)?;
            if let Ok(mut cqs) = self.cqs.lock() {
                cqs.live.retain(|polled| polled.cq != cq);
            }
            Ok(())
        }

        unsafe fn post_send(
            &self,
            qp: Handle,
            wr: *const SendWr,
            bad: &mut *const SendWr,
        ) -> Result<()> {
            *bad = wr;
            self.begin("gdrc_post_send")?;
            // SAFETY: the caller's promise.
            unsafe { self.device.post_send(qp, wr, bad) }
        }

        unsafe fn post_send_all(&self, qp: Handle, wr: *const SendWr) -> Result<()> {
            // SAFETY: the caller's promise.
            unsafe { self.device.post_send_all(qp, wr) }
        }

        unsafe fn post_recv(
            &self,
            qp: Handle,
            wr: *const RecvWr,
            bad: &mut *const RecvWr,
        ) -> Result<()> {
            *bad = wr;
            self.begin("gdrc_post_recv")?;
            // SAFETY: the caller's promise.
            unsafe { self.device.post_recv(qp, wr, bad) }
        }

        unsafe fn post_srq_recv(
            &self,
            srq: Handle,
            wr: *const RecvWr,
            bad: &mut *const RecvWr,
        ) -> Result<()> {
            *bad = wr;
            self.begin("gdrc_post_srq_recv")?;
            // SAFETY: the caller's promise.
            unsafe { self.device.post_srq_recv(srq, wr, bad) }
        }

        /// As the poll of [`gdrcore_core::inject::Faults::few`]: what is left counts as completed
        /// just behind it.
        fn poll_cq(&self, cq: Handle, wc: &mut [Wc]) -> Result<usize> {
            self.begin("gdrc_poll_cq")?;
            let n = wc.len();
            let own = if self.rules.shortens_polls() { self.of_cq(cq) } else { None };
            let Some(own) = own else { return self.device.poll_cq(cq, wc) };
            let polled = own.polled.load(Ordering::Relaxed);
            let most = self.rules.few(self.seed, own.number, polled, n as u64) as usize;
            let got = self.device.poll_cq(cq, &mut wc[..most])?;
            own.polled.fetch_add(got as u64, Ordering::Relaxed);
            if got == most && most < n {
                fault_log::count_one();
                self.device.cq_raise_pending(cq)?;
            }
            Ok(got)
        }

        unsafe fn arena_add(&self, memory: *mut u8, bytes: usize) -> Result<()> {
            self.begin("gdrc_arena_add")?;
            // SAFETY: the caller's promise.
            unsafe { self.device.arena_add(memory, bytes) }
        }

        fn cm(&self) -> Result<&dyn CmDevice> {
            self.device.cm()?;
            Ok(self)
        }
    }
}

calls! { CM_CALLS: impl CmDevice, |own| own.device.cm()?;
    fn create(port_space: u16, context: u64) -> Result<Handle>;
    fn set_context(id: Handle, context: u64) -> Result<()>;
    fn bind(id: Handle, port: u16) -> Result<u16>;
    fn announce(id: Handle, soon: bool) -> Result<()>;
    [gdrc_cm_listen] fn listen(id: Handle, backlog: u32) -> Result<()>;
    [gdrc_cm_connect] fn connect(
        id: Handle, to: &AhAttr, port: u16, qp: Handle, param: &ConnParam<'_>) -> Result<()>;
    [gdrc_cm_accept] fn accept(id: Handle, qp: Handle, param: &ConnParam<'_>) -> Result<()>;
    [gdrc_cm_establish] fn establish(id: Handle) -> Result<()>;
    [gdrc_cm_reject] fn reject(id: Handle, private_data: &[u8]) -> Result<()>;
    [gdrc_cm_disconnect] fn disconnect(id: Handle) -> Result<()>;
    [gdrc_cm_destroy] fn destroy(id: Handle) -> Result<()>;
    [gdrc_cm_qp_attr] fn qp_attr(id: Handle, state: u32) -> Result<(QpAttr, u32)>;
    [gdrc_cm_get_event] fn event() -> Result<Option<CmEvent>>;
    {}
}

/// Calls that are not one of the device's, or take pointers.
const OTHER_CALLS: &[&str] = &[
    "gdrc_arena_add",
    "gdrc_cq_create",
    "gdrc_cq_create_on",
    "gdrc_cq_destroy",
    "gdrc_poll_cq",
    "gdrc_post_recv",
    "gdrc_post_send",
    "gdrc_post_srq_recv",
];

/// The calls of the C API that can fail by a rule.
pub fn calls_that_may_fail() -> impl Iterator<Item = &'static str> {
    [DEVICE_CALLS, CM_CALLS, OTHER_CALLS].into_iter().flatten().copied()
}

/// Whether a call can; else why not.
///
/// # Errors
/// The words.
pub(super) fn may_fail(name: &str) -> core::result::Result<(), &'static str> {
    let is_known = calls_that_may_fail().any(|call| call == name);
    is_known.then_some(()).ok_or("no call of gdrcore.h that can fail, such as gdrc_mr_reg")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soft::SoftConfig;
    use gdrcore_testkit::memory::Buffer;

    #[test]
    fn the_counts_of_a_cq_end_with_it() {
        let (name, config) = ("loopback", SoftConfig::default());
        let bytes = SoftDevice::memsize(name, &config).unwrap();
        let memory = Buffer::new(bytes);
        // SAFETY: fresh memory, page-aligned, which stays until the device is closed.
        let device = unsafe { SoftDevice::init(memory.as_ptr(), bytes, name, &config) }.unwrap();
        let spec = FaultSpec {
            rules: "few; call gdrc_cq_destroy nth 1 errno EBUSY",
            seed: 1,
            launched: None,
        };
        let faulty = FaultyDevice::new(device, &spec, spec.read().unwrap());
        let known = || faulty.cqs.lock().unwrap().live.iter().map(|c| c.number).collect::<Vec<_>>();
        let (first, _) = faulty.cq_create(16).unwrap();
        let (second, _) = faulty.cq_create(16).unwrap();
        assert!(faulty.cq_destroy(first).is_err(), "by the rule");
        assert_eq!(known(), [1, 2]);
        assert!(faulty.cq_destroy(first).is_ok() && faulty.cq_destroy(first).is_err());
        assert_eq!(known(), [2]);
        // What another thread does at the same time hides nothing.
        let lock = faulty.cqs.lock().unwrap();
        std::thread::scope(|s| {
            let own = s.spawn(|| faulty.of_cq(second).map(|own| own.number));
            std::thread::sleep(core::time::Duration::from_millis(50));
            drop(lock);
            assert_eq!(own.join().unwrap(), Some(2));
        });
        faulty.cq_destroy(second).unwrap();
        assert!(faulty.cq_create(0).is_err());
        assert_eq!(known(), [0; 0]);
        // SAFETY: nobody uses it any more.
        unsafe { device.close() };
    }
}
