//! Verbs of shared receive queues.
use crate::abi::*;
use crate::cq_verbs::Cq;
use crate::event_acks::{AckCounters, EventKind};
use crate::hca::{EventTarget, Hca};
use crate::hca_kinds::Called;
use crate::object_numbers::{ObjectKind, ObjectNumber};
use crate::open_context::{end_events, Context};
use crate::pd_verbs::Pd;
use crate::verb_result::{object, out, Verb};
use crate::xrcd_verbs::Xrcd;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use gdrcore_core::device::{Device, SrqAttr};
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::{refuse, Result};
use gdrcore_net::thread_lock::retry_while_busy;

/// A shared receive queue.
#[repr(C)]
pub struct Srq {
    ibv: ibv_srq,
    /// `ibv.handle`.
    _number: ObjectNumber,
    pub device: &'static dyn Device,
    hca: &'static Hca,
    pub handle: Handle,
    domain: &'static Pd,
    /// The CQ of an XRC SRQ.
    cq: *mut ibv_cq,
    async_taken: AtomicU32,
}

/// `ibv_srq_attr_mask`.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;
/// `ibv_srq_init_attr_mask` and `ibv_srq_type`.
const INIT_TYPE: u32 = 1;
const INIT_PD: u32 = 2;
const INIT_XRCD: u32 = 4;
const INIT_CQ: u32 = 8;
const BASIC: u32 = 0;
const XRC: u32 = 1;

/// Whether a new SRQ is for queue pairs of XRC.
pub fn is_of_xrc(init: &ibv_srq_init_attr_ex) -> bool {
    init.comp_mask & INIT_TYPE != 0 && init.srq_type == XRC
}

impl Srq {
    /// The SRQ that a program's pointer belongs to.
    ///
    /// # Errors
    /// [`Error::Invalid`]: null.
    ///
    /// # Safety
    /// `p` is null or a live SRQ of ours.
    pub unsafe fn from_ptr<'a>(p: *const ibv_srq) -> Result<&'a Srq> {
        // SAFETY: the caller's promise; the program's struct is the first field.
        unsafe { object(p.cast::<Srq>()) }
    }
}

impl EventTarget for Srq {
    fn kind(&self) -> EventKind {
        EventKind::Srq
    }

    fn context(&self) -> *mut ibv_context {
        self.ibv.context
    }

    fn element(&self) -> ibv_async_element {
        ibv_async_element { srq: (&raw const self.ibv).cast_mut() }
    }

    fn acks(&self) -> AckCounters {
        AckCounters::new(&raw const self.ibv)
    }

    fn async_taken(&self) -> &AtomicU32 {
        &self.async_taken
    }
}

/// Approximate size of an SRQ's ring, for growing the device's memory.
fn ring_bytes(max_wr: u32, max_sge: u32) -> usize {
    max_wr as usize * (32 + max_sge.min(32) as usize * 16)
}

/// `ibv_create_srq`.
pub unsafe extern "C" fn create_srq(pd: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    // SAFETY: the program's pointers.
    Verb("ibv_create_srq").pointer(unsafe { make(pd, init, None) })
}

/// # Safety
/// The program's pointers.
unsafe fn make(
    pd: *mut ibv_pd,
    init: *mut ibv_srq_init_attr,
    xrc: Option<(*mut ibv_xrcd, *mut ibv_cq)>,
) -> Result<*mut ibv_srq> {
    // SAFETY: the program's pointers.
    let (p, init) = unsafe { (Pd::from_ptr(pd)?, out(init)?) };
    let wanted = SrqAttr { max_wr: init.attr.max_wr, max_sge: init.attr.max_sge, srq_limit: 0 };
    let bytes = ring_bytes(wanted.max_wr, wanted.max_sge);
    let (handle, given) = match xrc {
        None => p.hca.make(bytes, |d| match p.thread_domain() {
            Some(domain) => d.srq_create_in(domain, p.handle, &wanted),
            None => d.srq_create(p.handle, &wanted),
        })?,
        Some((xrcd, cq)) => {
            // SAFETY: the caller's promise.
            let (xrcd, cq) = unsafe { (Xrcd::from_ptr(xrcd)?, Cq::from_ptr(cq)?) };
            let of = [p.handle, xrcd.handle, cq.handle];
            let made = p.hca.make(bytes, |d| d.srq_create_xrc(of, &wanted))?;
            cq.users.fetch_add(1, Ordering::Relaxed);
            made
        }
    };
    let domain = p.hold();
    let number = ObjectNumber::new(ObjectKind::Srq, p.hca);
    let srq = Box::into_raw(Box::new(Srq {
        ibv: ibv_srq {
            // SAFETY: checked above.
            context: unsafe { (*pd).context },
            srq_context: init.srq_context,
            pd,
            handle: number.get(),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            cond: libc::PTHREAD_COND_INITIALIZER,
            events_completed: 0,
        },
        _number: number,
        device: p.hca.device,
        hca: p.hca,
        handle,
        domain,
        cq: xrc.map_or(core::ptr::null_mut(), |(_, cq)| cq),
        async_taken: AtomicU32::new(0),
    }));
    p.hca.objects().by_handle.insert(handle, srq);
    init.attr.max_wr = given.max_wr;
    init.attr.max_sge = given.max_sge;
    Ok(srq.cast())
}

/// The operation behind `ibv_create_srq_ex`: basic SRQs and those of XRC, without tag matching.
pub unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    Verb("ibv_create_srq_ex").pointer((|| {
        // SAFETY: the program's pointers.
        let (_, i) = unsafe { (Context::from_ptr(context)?, out(init)?) };
        let (mask, srq_type) =
            (i.comp_mask, if i.comp_mask & INIT_TYPE != 0 { i.srq_type } else { BASIC });
        let needed = match srq_type {
            BASIC => INIT_PD,
            XRC => INIT_PD | INIT_XRCD | INIT_CQ,
            _ => {
                return Err(refuse!(
                    Unsupported,
                    "srq_type {srq_type}: the device has basic and XRC SRQs only"
                ))
            }
        };
        if mask & !(INIT_TYPE | INIT_PD | INIT_XRCD | INIT_CQ) != 0 {
            return Err(refuse!(Unsupported, "comp_mask {mask:#x}: the device knows 0xf"));
        }
        if mask & needed != needed {
            return Err(refuse!(
                Invalid,
                "comp_mask {mask:#x}: an SRQ of type {srq_type} needs {needed:#x}"
            ));
        }
        let xrc = (srq_type == XRC).then_some((i.xrcd, i.cq));
        // SAFETY: the extended struct begins as the plain one.
        unsafe { make(i.pd, init.cast(), xrc) }
    })())
}

/// `ibv_modify_srq`: sets the size, the limit, or both in one step.
pub unsafe extern "C" fn modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    Verb("ibv_modify_srq").code((|| {
        // SAFETY: the program's pointers.
        let (s, attr) = unsafe { (Srq::from_ptr(srq)?, object(attr)?) };
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(refuse!(
                Invalid,
                "srq_attr_mask {mask:#x}: IBV_SRQ_MAX_WR ({MAX_WR}) and IBV_SRQ_LIMIT ({LIMIT})"
            ));
        }
        let limit = (mask & LIMIT != 0).then_some(attr.srq_limit);
        if mask & MAX_WR != 0 {
            let max_wr = attr.max_wr;
            let bytes = ring_bytes(max_wr, s.device.srq_query(s.handle)?.max_sge);
            s.hca.make(bytes, |d| retry_while_busy(|| d.srq_resize(s.handle, max_wr, limit)))?;
        } else if let Some(limit) = limit {
            s.device.srq_modify(s.handle, limit)?;
        }
        Ok(())
    })())
}

/// The operation behind `ibv_get_srq_num`. It works for any SRQ, because perftest also calls it for
/// basic ones.
pub unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    Verb("ibv_get_srq_num").code((|| {
        // SAFETY: the program's pointers.
        let (s, number) = unsafe { (Srq::from_ptr(srq)?, out(number)?) };
        *number = s.device.srq_number(s.handle)?;
        Ok(())
    })())
}

/// `ibv_query_srq`.
pub unsafe extern "C" fn query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    Verb("ibv_query_srq").code((|| {
        // SAFETY: the program's pointers.
        let (s, attr) = unsafe { (Srq::from_ptr(srq)?, out(attr)?) };
        let a = s.device.srq_query(s.handle)?;
        *attr = ibv_srq_attr { max_wr: a.max_wr, max_sge: a.max_sge, srq_limit: a.srq_limit };
        Ok(())
    })())
}

/// `ibv_destroy_srq`.
pub unsafe extern "C" fn destroy_srq(srq: *mut ibv_srq) -> c_int {
    Verb("ibv_destroy_srq").code((|| {
        // SAFETY: the program's pointer.
        let s = unsafe { Srq::from_ptr(srq)? };
        // The device refuses while QPs use it. Busy because another thread posts is the program's
        // error.
        s.device.srq_destroy(s.handle)?;
        s.hca.objects().by_handle.remove(&s.handle);
        // SAFETY: domain and context outlive their objects.
        unsafe {
            s.domain.release();
            if let Ok(cq) = Cq::from_ptr(s.cq) {
                cq.users.fetch_sub(1, Ordering::Relaxed);
            }
            end_events(s, 0);
            // Made by Box::into_raw; the program may not use it any more.
            drop(Box::from_raw(srq.cast::<Srq>()));
        }
        Ok(())
    })())
}

/// Posts to an SRQ; concurrent threads wait for each other.
///
/// # Safety
/// As for [`gdrcore_core::device::Device::post_srq_recv`]. Its device is a `D`.
pub unsafe fn post<D: Called + ?Sized>(
    s: &Srq,
    wr: *const ibv_recv_wr,
    bad: &mut *const ibv_recv_wr,
) -> Result<()> {
    // SAFETY: the caller's promise.
    retry_while_busy(|| unsafe { D::cast(s.device).post_srq_recv(s.handle, wr, bad) })
}
