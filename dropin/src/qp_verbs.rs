//! Verbs that create, modify, query and destroy queue pairs.
use crate::abi::*;
use crate::adapter::Adapter;
use crate::ah_verbs;
use crate::cq_verbs::Cq;
use crate::event_acks::{AckCounters, EventKind};
use crate::hca::{EventTarget, Hca};
use crate::object_numbers::{ObjectKind, ObjectNumber};
use crate::open_context::{end_events, Context};
use crate::pd_verbs::Pd;
use crate::query_verbs::vendor;
use crate::send_batch::SendBatch;
use crate::srq_verbs::Srq;
use crate::verb_result::{object, out, Verb};
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{
    qp_attr_mask as mask, qp_state, qp_type, Handle, QpAttr, QpInit, ACCESS_ALL,
};
use gdrcore_core::{copy_qp_attr, refuse, Result};
use gdrcore_net::reason;
use gdrcore_net::thread_lock::{retry_while_busy, ThreadLock};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A queue pair.
#[repr(C)]
pub struct Qp {
    /// The public part; for a QP that is not extended, its beginning.
    pub ex: ibv_qp_ex,
    /// The functions that mlx5dv adds to it.
    pub dv: mlx5dv_qp_ex,
    /// Its `handle`.
    _object_number: ObjectNumber,
    pub device: &'static dyn Device,
    pub hca: &'static Hca,
    pub handle: Handle,
    /// Its type for the device. Programs see `IBV_QPT_DRIVER` for both types of DC.
    pub kind: u32,
    /// Its number. Programs see the number of a DCT only from RTR on.
    pub number: u32,
    pub cap: ibv_qp_cap,
    /// The domain that counts it as a user; an XRC target has none.
    domain: Option<&'static Pd>,
    /// The XRC domain of an XRC target, else 0.
    pub xrcd: Handle,
    sq_sig_all: bool,
    async_taken: AtomicU32,
    /// A failure of the present connection was reported.
    explained: AtomicBool,
    /// [`ah_verbs::VectorExtras`] of the program's latest address vector.
    extras: AtomicU32,
    /// Extended: held by the thread that builds requests.
    pub lock: ThreadLock,
    /// Extended: the requests between `ibv_wr_start` and `ibv_wr_complete`.
    pub batch: Option<Box<SendBatch>>,
    /// The multicast groups that it is a member of.
    pub groups: Mutex<Vec<[u8; 16]>>,
}

/// Attributes of a query that the device does not have. This is a copy, so another thread may
/// destroy the QP meanwhile.
#[derive(Clone, Copy)]
pub struct QpSnapshot {
    handle: Handle,
    cap: ibv_qp_cap,
    extras: ah_verbs::VectorExtras,
    pub sq_sig_all: bool,
}

/// `IBV_QPT_DRIVER`: a type that the driver defines, which is DC here.
pub const DRIVER: u32 = 0xff;
/// Bits of a PSN.
const MAX_24: u32 = 0x00ff_ffff;
/// kb/s to bytes per second.
const KBPS: u64 = 125;
impl Qp {
    /// The QP that a program's pointer belongs to.
    ///
    /// # Errors
    /// [`Error::Invalid`](gdrcore_core::Error::Invalid): null.
    ///
    /// # Safety
    /// `p` is null or a live QP of ours.
    #[inline]
    pub unsafe fn from_ptr<'a>(p: *const ibv_qp) -> Result<&'a Qp> {
        // SAFETY: the caller's promise; the program's struct is the first field.
        unsafe { object(p.cast::<Qp>()) }
    }

    /// The requests between `ibv_wr_start` and `ibv_wr_complete`; `None`: it is not extended.
    ///
    /// # Safety
    /// A live QP, and this thread is between its start and its complete or abort.
    pub unsafe fn batch_of<'a>(qp: *mut Qp) -> Option<&'a mut SendBatch> {
        // SAFETY: the caller's promise: no other thread uses the batch.
        unsafe { (*qp).batch.as_deref_mut() }
    }

    /// The requests that `ibv_wr_` calls have built on a QP.
    ///
    /// # Safety
    /// The program's QP, and this thread is between its start and its complete.
    pub unsafe fn built<'a>(qp: *mut Qp) -> &'a [ibv_send_wr] {
        // SAFETY: the caller's promise.
        let batch = unsafe { Qp::batch_of(qp) };
        batch.map(|b| b.wrs.as_slice()).unwrap_or_default()
    }

    /// Removes the completions of a QP that is reset or destroyed from its CQs, as drivers do. The
    /// program may no longer know the QP's number.
    fn forget_completions(&self) {
        let base = &self.ex.qp_base;
        let receives = (base.recv_cq != base.send_cq).then_some(base.recv_cq);
        for cq in [base.send_cq].into_iter().chain(receives) {
            // SAFETY: CQs outlive their QPs.
            if let Ok(cq) = unsafe { Cq::from_ptr(cq) } {
                // It fails only in the child of a fork, which has no completions, and when the
                // router has ended.
                let _ = retry_while_busy(|| self.device.cq_purge(cq.handle, self.number));
            }
        }
    }

    /// The attributes that the device does not have.
    pub fn snapshot(&self) -> QpSnapshot {
        let extras = ah_verbs::VectorExtras::unpack(self.extras.load(Ordering::Relaxed));
        QpSnapshot { handle: self.handle, cap: self.cap, extras, sq_sig_all: self.sq_sig_all }
    }

    /// The multicast groups that it is a member of.
    pub fn joined(&self) -> MutexGuard<'_, Vec<[u8; 16]>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventTarget for Qp {
    fn kind(&self) -> EventKind {
        EventKind::Qp
    }

    fn context(&self) -> *mut ibv_context {
        self.ex.qp_base.context
    }

    fn element(&self) -> ibv_async_element {
        ibv_async_element { qp: (&raw const self.ex.qp_base).cast_mut() }
    }

    fn acks(&self) -> AckCounters {
        AckCounters::new(&raw const self.ex.qp_base)
    }

    fn async_taken(&self) -> &AtomicU32 {
        &self.async_taken
    }

    fn groups(&self) -> Vec<[u8; 16]> {
        self.joined().clone()
    }

    fn handle_of(&self, number: u32) -> Option<Handle> {
        (self.number == number).then_some(self.handle)
    }

    fn is_first_failure(&self, number: u32) -> Option<bool> {
        (self.number == number).then(|| !self.explained.swap(true, Ordering::Relaxed))
    }
}

impl QpSnapshot {
    /// All attributes, whatever the mask.
    ///
    /// # Errors
    /// Those of the device.
    pub fn query(&self, device: &dyn Device) -> Result<ibv_qp_attr> {
        let (a, _) = device.qp_query(self.handle)?;
        let mut attr = ibv_qp_attr {
            cap: self.cap,
            ah_attr: ah_verbs::attr(&a.ah, self.extras),
            rate_limit: u32::try_from(a.rate_limit_bytes_per_s / KBPS).unwrap_or(u32::MAX),
            ..ibv_qp_attr::default()
        };
        copy_qp_attr!(a => attr);
        Ok(attr)
    }
}

/// Approximate size of a QP's rings, for growing the device's memory.
fn ring_bytes(cap: &ibv_qp_cap) -> usize {
    let n = |x: u32| x as usize;
    let send = 128 + (n(cap.max_send_sge.min(64)) * 16).max(n(cap.max_inline_data.min(4096))) + 64;
    let recv = 64 + n(cap.max_recv_sge.min(64)) * 16;
    (n(cap.max_send_wr) + 1) * send + (n(cap.max_recv_wr) + 1) * recv + (64 << 10)
}

/// Bytes of the responder contexts that the device makes with its first DCT.
const DC_CONTEXTS: usize = 8 << 20;

/// Makes a QP with attributes of libibverbs, which is in no table yet. Writes the granted sizes to
/// `cap`.
///
/// # Errors
/// `Unsupported`: no such type; `Invalid`: XRC_RECV; those of [`make_as`].
///
/// # Safety
/// The program's pointers.
pub unsafe fn make(
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    cap: &mut ibv_qp_cap,
) -> Result<*mut Qp> {
    if !matches!(init.qp_type, qp_type::RC | qp_type::UC | qp_type::UD | qp_type::XRC_SEND) {
        let word = "an XRC_RECV is created by ibv_create_qp_ex with IBV_QP_INIT_ATTR_XRCD";
        return Err(match init.qp_type {
            qp_type::XRC_RECV => refuse!(Invalid, "qp_type 10: {word}"),
            DRIVER => refuse!(
                Unsupported,
                "qp_type 255: a DCI or DCT is created by mlx5dv_create_qp with \
                 MLX5DV_QP_INIT_ATTR_MASK_DC"
            ),
            other => refuse!(
                Unsupported,
                "qp_type {other}: the device has RC (2), UC (3), UD (4) and XRC (9 and 10)"
            ),
        });
    }
    // SAFETY: the caller's promise.
    unsafe { make_as((init.qp_type, 0), pd, init, cap) }
}

/// Makes a QP of one of the device's types, a DCT with an access key. It is in no table yet. Writes
/// the granted sizes to `cap`.
///
/// # Errors
/// `Invalid`: an object that the type needs is missing, or a size is too large; `NoMemory`.
///
/// # Safety
/// The program's pointers.
pub unsafe fn make_as(
    (kind, dc_key): (u32, u64),
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    cap: &mut ibv_qp_cap,
) -> Result<*mut Qp> {
    // SAFETY: the caller's promise.
    let p = unsafe { Pd::from_ptr(pd)? };
    let mut init = *init;
    match kind {
        // These types receive nothing, and drivers ignore the CQ and the SRQ.
        qp_type::XRC_SEND | qp_type::DCI => {
            (init.recv_cq, init.srq) = (core::ptr::null_mut(), core::ptr::null_mut());
        }
        // A DCT sends nothing, and drivers ignore all its sizes.
        qp_type::DCT => (init.send_cq, init.cap) = (core::ptr::null_mut(), ibv_qp_cap::default()),
        _ => {}
    }
    if kind == qp_type::XRC_SEND || kind == qp_type::DCI || !init.srq.is_null() {
        // Drivers ignore the sizes of a receive queue that the QP does not have.
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (0, 0);
    }
    let send_cq = match kind {
        qp_type::DCT => 0,
        // SAFETY: the caller's promise.
        _ => unsafe { Cq::from_ptr(init.send_cq)? }.handle,
    };
    let recv_cq = match kind {
        qp_type::XRC_SEND | qp_type::DCI => 0,
        // SAFETY: the caller's promise.
        _ => unsafe { Cq::from_ptr(init.recv_cq)? }.handle,
    };
    let srq = match init.srq.is_null() {
        true => 0,
        // SAFETY: the caller's promise.
        false => unsafe { Srq::from_ptr(init.srq)? }.handle,
    };
    let wanted = QpInit {
        pd: p.handle,
        send_cq,
        recv_cq,
        srq,
        xrcd: 0,
        dc_key,
        qp_type: kind,
        sq_sig_all: u32::from(init.sq_sig_all != 0),
        cap: init.cap,
    };
    let contexts = if kind == qp_type::DCT { DC_CONTEXTS } else { 0 };
    let made = p.hca.make(ring_bytes(&init.cap) + contexts, |d| d.qp_create(&wanted))?;
    let domain = p.hold();
    for cq in [init.send_cq, init.recv_cq] {
        // SAFETY: the caller's promise.
        if let Ok(cq) = unsafe { Cq::from_ptr(cq) } {
            cq.users.fetch_add(1, Ordering::Relaxed);
        }
    }
    if kind != qp_type::DCT {
        *cap = made.2;
    }
    // SAFETY: checked above.
    let context = unsafe { (*pd).context };
    Ok(boxed(
        QpParents { context, hca: p.hca, pd, domain: Some(domain), xrcd: 0, kind },
        &init,
        made,
    ))
}

/// An XRC target that is in no table yet; or with `made` one more handle of an existing one.
///
/// # Safety
/// As for [`make`].
pub unsafe fn make_target(
    context: *mut ibv_context,
    xrcd: Handle,
    qp_context: *mut c_void,
    made: Option<(Handle, u32, ibv_qp_cap)>,
) -> Result<*mut Qp> {
    // SAFETY: the caller's promise.
    let hca = unsafe { Context::from_ptr(context)? }.hca;
    let wanted = QpInit { xrcd, qp_type: qp_type::XRC_RECV, ..QpInit::default() };
    let made = match made {
        Some(made) => made,
        None => hca.make(ring_bytes(&ibv_qp_cap::default()), |d| d.qp_create(&wanted))?,
    };
    let init = ibv_qp_init_attr {
        qp_context,
        send_cq: core::ptr::null_mut(),
        recv_cq: core::ptr::null_mut(),
        srq: core::ptr::null_mut(),
        cap: made.2,
        qp_type: qp_type::XRC_RECV,
        sq_sig_all: 0,
    };
    let kind = qp_type::XRC_RECV;
    let place = QpParents { context, hca, pd: core::ptr::null_mut(), domain: None, xrcd, kind };
    Ok(boxed(place, &init, made))
}

/// The objects that a QP is made on.
struct QpParents {
    context: *mut ibv_context,
    hca: &'static Hca,
    pd: *mut ibv_pd,
    domain: Option<&'static Pd>,
    xrcd: Handle,
    /// The QP's type for the device.
    kind: u32,
}

/// The object of a QP: its handle, its number and its sizes.
fn boxed(
    place: QpParents,
    init: &ibv_qp_init_attr,
    (handle, number, cap): (Handle, u32, ibv_qp_cap),
) -> *mut Qp {
    let QpParents { context, hca, pd, domain, xrcd, kind } = place;
    let object_number = ObjectNumber::new(ObjectKind::Qp, hca);
    Box::into_raw(Box::new(Qp {
        ex: ibv_qp_ex {
            qp_base: ibv_qp {
                context,
                qp_context: init.qp_context,
                pd,
                send_cq: init.send_cq,
                recv_cq: init.recv_cq,
                srq: init.srq,
                handle: object_number.get(),
                // Programs use a DCT's number from RTR on, and drivers do not know it earlier.
                qp_num: if kind == qp_type::DCT { 0 } else { number },
                state: 0,
                qp_type: init.qp_type,
                mutex: libc::PTHREAD_MUTEX_INITIALIZER,
                cond: libc::PTHREAD_COND_INITIALIZER,
                events_completed: 0,
            },
            // SAFETY: zeroes are a value of each other field: numbers, and no functions.
            ..unsafe { core::mem::zeroed() }
        },
        // SAFETY: as above.
        dv: unsafe { core::mem::zeroed() },
        _object_number: object_number,
        device: hca.device,
        hca,
        handle,
        kind,
        number,
        cap,
        domain,
        xrcd,
        sq_sig_all: init.sq_sig_all != 0,
        async_taken: AtomicU32::new(0),
        explained: AtomicBool::new(false),
        extras: AtomicU32::new(0),
        lock: ThreadLock::default(),
        batch: None,
        groups: Mutex::default(),
    }))
}

/// Adds the QP to its device's table, so that events reach it.
pub fn publish(qp: *mut Qp) -> *mut ibv_qp {
    // SAFETY: just made.
    let q = unsafe { &*qp };
    q.hca.objects().by_handle.insert(q.handle, qp);
    qp.cast()
}

/// `ibv_create_qp`.
pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    Verb("ibv_create_qp").pointer((|| {
        // SAFETY: the program's pointers.
        let init = unsafe { out(init)? };
        let copy = *init;
        // SAFETY: as above.
        unsafe { make(pd, &copy, &mut init.cap) }.map(publish)
    })())
}

/// The device's form of the attributes that `m` names.
fn attributes(a: &ibv_qp_attr, m: u32, own: &Adapter) -> Result<QpAttr> {
    let mut attr = QpAttr {
        ah: if m & mask::AV != 0 { ah_verbs::vector(&a.ah_attr, own)? } else { Default::default() },
        cap: a.cap,
        rate_limit_bytes_per_s: u64::from(a.rate_limit) * KBPS,
        ..QpAttr::default()
    };
    copy_qp_attr!(a => attr);
    attr.rq_psn &= MAX_24;
    attr.sq_psn &= MAX_24;
    attr.sq_draining = 0;
    // Drivers check only these bits, so programs set others, too, whether or not the device has the
    // feature. A memory region with such a bit is refused.
    attr.qp_access_flags &= ACCESS_ALL;
    Ok(attr)
}

/// `ibv_modify_qp`.
pub unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    attr_mask: c_int,
) -> c_int {
    Verb("ibv_modify_qp").code((|| {
        // SAFETY: the program's pointers.
        let (q, attr) = unsafe { (Qp::from_ptr(qp)?, object(attr)?) };
        let m = attr_mask as u32;
        // SAFETY: a context outlives its objects.
        let own = unsafe { Context::from_ptr(q.ex.qp_base.context)? }.adapter;
        let to = (m & mask::STATE != 0).then_some(attr.qp_state);
        attributes(attr, m, own)
            .and_then(|a| q.device.qp_modify(q.handle, &a, m))
            .map_err(|e| reason::prefix_transition(e, q.device, q.handle, to))?;
        if m & mask::AV != 0 {
            q.extras
                .store(ah_verbs::VectorExtras::from_attr(&attr.ah_attr).pack(), Ordering::Relaxed);
        }
        if m & mask::STATE != 0 {
            if attr.qp_state == qp_state::RESET {
                q.forget_completions();
                q.explained.store(false, Ordering::Relaxed);
            }
            // SAFETY: libibverbs' own copy of the state; programs read it only between their calls.
            unsafe { (*qp).state = attr.qp_state };
            let number = match (q.kind, attr.qp_state) {
                (qp_type::DCT, qp_state::RESET) => Some(0),
                (qp_type::DCT, qp_state::RTR) => Some(q.number),
                _ => None,
            };
            if let Some(number) = number {
                // SAFETY: as above.
                unsafe { (*qp).qp_num = number };
            }
        }
        Ok(())
    })())
}

/// The operation behind `ibv_modify_qp_rate_limit`. The device chooses the length of bursts.
pub unsafe extern "C" fn modify_qp_rate_limit(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_rate_limit_attr,
) -> c_int {
    Verb("ibv_modify_qp_rate_limit").code((|| {
        // SAFETY: the program's pointers.
        let (q, attr) = unsafe { (Qp::from_ptr(qp)?, object(attr)?) };
        if attr.comp_mask != 0 {
            return Err(refuse!(Invalid, "comp_mask {:#x}: no field is behind it", attr.comp_mask));
        }
        let wanted = QpAttr {
            rate_limit_bytes_per_s: u64::from(attr.rate_limit) * KBPS,
            ..QpAttr::default()
        };
        q.device.qp_modify(q.handle, &wanted, mask::RATE_LIMIT)
    })())
}

/// `ibv_query_qp`: returns all attributes, whatever the mask.
pub unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _attr_mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    Verb("ibv_query_qp").code((|| {
        // SAFETY: the program's pointers.
        let (q, attr, init) = unsafe { (Qp::from_ptr(qp)?, out(attr)?, out(init)?) };
        let known = q.snapshot();
        *attr = known.query(q.device)?;
        let base = &q.ex.qp_base;
        *init = ibv_qp_init_attr {
            qp_context: base.qp_context,
            send_cq: base.send_cq,
            recv_cq: base.recv_cq,
            srq: base.srq,
            cap: known.cap,
            qp_type: base.qp_type,
            sq_sig_all: known.sq_sig_all.into(),
        };
        // SAFETY: as in `modify_qp`.
        unsafe { (*qp).state = attr.qp_state };
        Ok(())
    })())
}

/// `ibv_destroy_qp`.
pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    Verb("ibv_destroy_qp").code((|| {
        // SAFETY: the program's pointer.
        let q = unsafe { Qp::from_ptr(qp)? };
        // The device refuses this, too. This check comes first because a busy device is asked
        // repeatedly.
        let groups = q.joined().len();
        if groups > 0 {
            return Err(refuse!(Busy, "qp: it is attached to {groups} multicast groups"));
        }
        if !q.hca.objects().remove_one_of_several(q.handle, q) {
            retry_while_busy(|| q.device.qp_destroy(q.handle))?;
            q.forget_completions();
            q.hca.objects().by_handle.remove(&q.handle);
        }
        let base = &q.ex.qp_base;
        // SAFETY: domain, CQs and context outlive their QPs.
        unsafe {
            if let Some(domain) = q.domain {
                domain.release();
            }
            for cq in [base.send_cq, base.recv_cq] {
                if let Ok(cq) = Cq::from_ptr(cq) {
                    cq.users.fetch_sub(1, Ordering::Relaxed);
                }
            }
            end_events(q, 0);
            // Made by Box::into_raw; the program may not use it any more.
            drop(Box::from_raw(qp.cast::<Qp>()));
        }
        Ok(())
    })())
}

/// `ibv_qp_to_qp_ex`.
pub unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the program's pointer.
    match unsafe { Qp::from_ptr(qp) } {
        Ok(q) if q.ex.wr_start.is_some() => qp.cast(),
        _ => core::ptr::null_mut(),
    }
}

/// `ibv_query_ece`: no options, and a vendor, which librdmacm needs.
pub unsafe extern "C" fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    Verb("ibv_query_ece").code((|| {
        // SAFETY: the program's pointers.
        unsafe {
            Qp::from_ptr(qp)?;
            *out(ece)? = ibv_ece { vendor_id: vendor(), ..ibv_ece::default() };
        }
        Ok(())
    })())
}

/// `ibv_set_ece`: accepts and ignores the options of the peer's NIC.
pub unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    Verb("ibv_set_ece").code((|| {
        // SAFETY: the program's pointers.
        let (_, ece) = unsafe { (Qp::from_ptr(qp)?, object(ece)?) };
        if ece.comp_mask == 0 {
            Ok(())
        } else {
            Err(refuse!(Invalid, "comp_mask {:#x}: must be 0", ece.comp_mask))
        }
    })())
}

/// `ibv_query_qp_data_in_order`: whether a program that polls memory may rely on the last byte
/// being written last. The device places packets in order, and the last aligned word of each packet
/// last. But the CPU copies the rest of a packet in any order.
pub unsafe extern "C" fn query_qp_data_in_order(_qp: *mut ibv_qp, _op: u32, _flags: u32) -> c_int {
    0
}

/// A symbol that old libraries export, but no program calls.
pub unsafe extern "C" fn register_driver(_name: *const c_void, _init: *const c_void) {}
