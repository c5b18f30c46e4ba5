//! The functions behind fast handles, a table for each kind of device, and the two tables of
//! handles.
//!
//! A NIC's functions decide whether a request may be passed to its provider unchanged, and call the
//! provider; they are counted in instructions (docs/records/PERFORMANCE.md, "The verbs device").
//! Decisions that need more than the request itself are out of line.

use crate::c_consts::wc_status;
use crate::c_result::{count, ret};
use crate::c_types::*;
use crate::data_calls::{gdrc_poll_cq, gdrc_post_recv, gdrc_post_send, refused};
use crate::fast_table::{FastEntry, FastObject, FastTable};
use crate::ptr::{posted, report_bad, wc_slice};
use core::ffi::c_int;
use core::sync::atomic::AtomicBool;
use gdrcore_core::verbs::types::{wr_opcode, RecvWr, SendWr};
use gdrcore_core::Result;
use gdrcore_net::fork;
use gdrcore_net::soft::{PinnedCq as SoftCq, PinnedQp as SoftQp, PinnedRings as SetCq};
use gdrcore_verbs::pinned::{is_usual_list, PinnedCq as NicCq, PinnedQp as NicQp};
use gdrcore_verbs::{all_succeeded, VerbsDevice};

/// The target of a queue pair's functions.
#[derive(Clone, Copy)]
pub(crate) enum QpTarget {
    Nic(&'static VerbsDevice, NicQp),
    Soft(SoftQp),
    /// The device has no fast path: calls go by context and handle.
    Checked,
}

/// The target of a CQ's functions.
#[derive(Clone, Copy)]
pub(crate) enum CqTarget {
    Nic(&'static VerbsDevice, NicCq),
    Soft(SoftCq),
    Set(SetCq),
    Checked,
}

type QpEntry = FastEntry<gdrc_qp_fast_ops, QpTarget>;
type CqEntry = FastEntry<gdrc_cq_fast_ops, CqTarget>;

static SHUT_QP: gdrc_qp_fast_ops = gdrc_qp_fast_ops { post_send: shut_send, post_recv: shut_recv };
static CHECKED_QP: gdrc_qp_fast_ops =
    gdrc_qp_fast_ops { post_send: checked_send, post_recv: checked_recv };
static SOFT_QP: gdrc_qp_fast_ops = gdrc_qp_fast_ops { post_send: soft_send, post_recv: soft_recv };
/// Indexed by whether common send requests, and common receive requests, are passed to the provider
/// unchanged (`refused_bits` of [`NicQp`] are known). Otherwise every list is judged.
static NIC_QP: [[gdrc_qp_fast_ops; 2]; 2] = [
    [
        gdrc_qp_fast_ops { post_send: nic_send_judged, post_recv: nic_recv_judged },
        gdrc_qp_fast_ops { post_send: nic_send_judged, post_recv: nic_recv },
    ],
    [
        gdrc_qp_fast_ops { post_send: nic_send, post_recv: nic_recv_judged },
        gdrc_qp_fast_ops { post_send: nic_send, post_recv: nic_recv },
    ],
];
static SHUT_CQ: gdrc_cq_fast_ops = gdrc_cq_fast_ops { poll: shut_poll };
static CHECKED_CQ: gdrc_cq_fast_ops = gdrc_cq_fast_ops { poll: checked_poll };
static SOFT_CQ: gdrc_cq_fast_ops = gdrc_cq_fast_ops { poll: soft_poll };
static SET_CQ: gdrc_cq_fast_ops = gdrc_cq_fast_ops { poll: set_poll };
static NIC_CQ: gdrc_cq_fast_ops = gdrc_cq_fast_ops { poll: nic_poll };

pub(crate) static QPS: FastTable<gdrc_qp_fast_ops, QpTarget> = FastTable::new(&SHUT_QP);
pub(crate) static CQS: FastTable<gdrc_cq_fast_ops, CqTarget> = FastTable::new(&SHUT_CQ);

/// Whether fork() runs [`disown`].
static HANDLER: AtomicBool = AtomicBool::new(false);

extern "C" fn disown() {
    QPS.disown();
    CQS.disown();
}

/// Makes a fast handle of a queue pair that its device has pinned.
pub(crate) fn insert_qp(
    ctx: *mut gdrc_context,
    object: FastObject<QpTarget>,
) -> Result<*mut gdrc_qp_fast> {
    // SAFETY: it stores to atomics of tables that are never freed.
    unsafe { fork::call_in_children(disown, &HANDLER) };
    let ops = match &object.target {
        QpTarget::Nic(_, qp) => {
            let of = &NIC_QP[usize::from(qp.refused_bits.is_some())];
            &of[usize::from(qp.recv_refused_bits.is_some())]
        }
        QpTarget::Soft(_) => &SOFT_QP,
        QpTarget::Checked => &CHECKED_QP,
    };
    Ok((&raw const *QPS.insert(ctx, object, ops)?).cast_mut().cast())
}

/// Makes a fast handle of a CQ that its device has pinned.
pub(crate) fn insert_cq(
    ctx: *mut gdrc_context,
    object: FastObject<CqTarget>,
) -> Result<*mut gdrc_cq_fast> {
    // SAFETY: as in `insert_qp`.
    unsafe { fork::call_in_children(disown, &HANDLER) };
    let ops = match &object.target {
        CqTarget::Nic(..) => &NIC_CQ,
        CqTarget::Soft(_) => &SOFT_CQ,
        CqTarget::Set(_) => &SET_CQ,
        CqTarget::Checked => &CHECKED_CQ,
    };
    Ok((&raw const *CQS.insert(ctx, object, ops)?).cast_mut().cast())
}

/// Releases the fast handles of a context that is about to be closed.
pub(crate) fn forget(ctx: *const gdrc_context) {
    QPS.forget(ctx);
    CQS.forget(ctx);
}

/// The entry of a handle.
///
/// # Safety
/// The header's contract: a handle that was made once, so an entry, which is never freed.
#[inline(always)]
unsafe fn qp_entry(qp: *mut gdrc_qp_fast) -> &'static QpEntry {
    // SAFETY: our contract.
    unsafe { &*qp.cast() }
}

/// As [`qp_entry`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn cq_entry(cq: *mut gdrc_cq_fast) -> &'static CqEntry {
    // SAFETY: our contract.
    unsafe { &*cq.cast() }
}

/// The posts of send requests, and those of receive requests, which differ in their types alone.
macro_rules! posts {
    (
        $wr:ty, $call:ident, $post:ident, $pinned:ident:
        $shut:ident, $checked:ident, $soft:ident, $judged:ident
    ) => {
        unsafe extern "C" fn $shut(
            qp: *mut gdrc_qp_fast,
            wr: *const $wr,
            bad: *mut *const $wr,
        ) -> c_int {
            // SAFETY: the header's contract.
            unsafe { report_bad(qp_entry(qp).refusal(), bad, wr) }
        }

        unsafe extern "C" fn $checked(
            qp: *mut gdrc_qp_fast,
            wr: *const $wr,
            bad: *mut *const $wr,
        ) -> c_int {
            // SAFETY: the header's contract; this function is that of a handle in use.
            unsafe {
                let entry = qp_entry(qp);
                let handle = entry.object_in_use().handle;
                $call(entry.context(), gdrc_qp { handle }, wr, bad)
            }
        }

        unsafe extern "C" fn $soft(
            qp: *mut gdrc_qp_fast,
            wr: *const $wr,
            bad: *mut *const $wr,
        ) -> c_int {
            // SAFETY: the header's contract; it is pinned.
            unsafe { posted(wr, bad, |first| soft_qp(qp)?.$post(wr, first)) }
        }

        /// Any other list is checked request by request.
        #[inline(never)]
        unsafe extern "C" fn $judged(
            qp: *mut gdrc_qp_fast,
            wr: *const $wr,
            bad: *mut *const $wr,
        ) -> c_int {
            // SAFETY: the header's contract: a handle in use, so pinned; a readable list.
            unsafe {
                posted(wr, bad, |first| {
                    let (object, nic, _) = nic_qp(qp);
                    nic.$pinned(object.handle, wr, first)
                })
            }
        }
    };
}
posts! {
    SendWr, gdrc_post_send, post_send, pinned_post_send:
    shut_send, checked_send, soft_send, nic_send_judged
}
posts! {
    RecvWr, gdrc_post_recv, post_recv, pinned_post_recv:
    shut_recv, checked_recv, soft_recv, nic_recv_judged
}

unsafe extern "C" fn shut_poll(cq: *mut gdrc_cq_fast, _: c_int, _: *mut Wc) -> c_int {
    // SAFETY: the header's contract.
    ret(Err(unsafe { cq_entry(cq) }.refusal()))
}

unsafe extern "C" fn checked_poll(cq: *mut gdrc_cq_fast, n: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: as in `checked_send`.
    unsafe {
        let entry = cq_entry(cq);
        let handle = entry.object_in_use().handle;
        gdrc_poll_cq(entry.context(), gdrc_cq { handle }, n, wc)
    }
}

/// The soft device's object of a handle, in the process that made it.
///
/// # Safety
/// The header's contract; the handle's functions are a soft device's.
#[inline(always)]
unsafe fn soft_qp(qp: *mut gdrc_qp_fast) -> Result<&'static SoftQp> {
    // SAFETY: our contract.
    let object = unsafe { qp_entry(qp).object_in_use() };
    // A child of clone(2), for which no handler of fork has run.
    object.owner.check()?;
    match &object.target {
        QpTarget::Soft(to) => Ok(to),
        // SAFETY: `insert_qp` gives these functions to targets of a soft device alone.
        _ => unsafe { core::hint::unreachable_unchecked() },
    }
}

macro_rules! polls {
    ($($poll:ident $target:ident;)*) => {$(
        unsafe extern "C" fn $poll(cq: *mut gdrc_cq_fast, n: c_int, wc: *mut Wc) -> c_int {
            // SAFETY: as in `soft_qp`.
            let object = unsafe { cq_entry(cq).object_in_use() };
            let CqTarget::$target(of) = &object.target else {
                // SAFETY: `insert_cq` gives this function to targets of this kind alone.
                unsafe { core::hint::unreachable_unchecked() }
            };
            // SAFETY: the header's contract: `wc` has n structs; it is pinned.
            let polled = object.owner.check().and_then(|()| unsafe { of.poll(wc_slice(wc, n)?) });
            ret(polled.map(count))
        }
    )*};
}
polls! {
    soft_poll Soft;
    set_poll Set;
}

/// A NIC's object of a handle.
///
/// # Safety
/// The header's contract; the handle's functions are a NIC's.
#[inline(always)]
unsafe fn nic_qp(
    qp: *mut gdrc_qp_fast,
) -> (&'static FastObject<QpTarget>, &'static VerbsDevice, &'static NicQp) {
    // SAFETY: our contract.
    let object = unsafe { qp_entry(qp).object_in_use() };
    match &object.target {
        QpTarget::Nic(device, to) => (object, device, to),
        // SAFETY: `insert_qp` gives these functions to targets of a NIC alone.
        _ => unsafe { core::hint::unreachable_unchecked() },
    }
}

/// One request that names no object of this library is passed to the provider unchanged. Its
/// pointers are the caller's responsibility, and the provider checks its numbers.
unsafe extern "C" fn nic_send(
    qp: *mut gdrc_qp_fast,
    wr: *const SendWr,
    bad: *mut *const SendWr,
) -> c_int {
    // SAFETY: the header's contract: a handle in use, a readable request, which need not be
    // aligned, and a writable `bad`.
    unsafe {
        let is_one = (&raw const (*wr).next).read_unaligned().is_null();
        let opcode = (&raw const (*wr).opcode).read_unaligned();
        if is_one && opcode <= wr_opcode::ATOMIC_FETCH_AND_ADD {
            let (_, _, to) = nic_qp(qp);
            // Loaded first, before the object takes the register of the handle: otherwise the
            // handle is moved once more.
            let post_send = (&raw const to.post_send).read_volatile();
            return match post_send(to.object, wr, bad) {
                0 => 0,
                rc => refused(rc),
            };
        }
        nic_send_list(qp, wr, bad)
    }
}

/// A list of such requests is passed to the provider as well.
#[inline(never)]
unsafe extern "C" fn nic_send_list(
    qp: *mut gdrc_qp_fast,
    wr: *const SendWr,
    bad: *mut *const SendWr,
) -> c_int {
    // SAFETY: the header's contract: a readable list.
    unsafe {
        let (_, _, to) = nic_qp(qp);
        let pairs = to.depth.div_ceil(2).into();
        if is_usual_list(wr, to.refused_bits.unwrap_unchecked(), pairs) {
            return match (to.post_send)(to.object, wr, bad) {
                0 => 0,
                rc => refused(rc),
            };
        }
        nic_send_judged(qp, wr, bad)
    }
}

/// As [`nic_send`].
unsafe extern "C" fn nic_recv(
    qp: *mut gdrc_qp_fast,
    wr: *const RecvWr,
    bad: *mut *const RecvWr,
) -> c_int {
    // SAFETY: as in `nic_send`.
    unsafe {
        let (_, _, to) = nic_qp(qp);
        let is_one = (&raw const (*wr).next).read_unaligned().is_null();
        let num_sge = u64::from((&raw const (*wr).num_sge).read_unaligned() as u32);
        let has_list = !(&raw const (*wr).sg_list).read_unaligned().is_null();
        if is_one && has_list && num_sge & to.recv_refused_bits.unwrap_unchecked() == 0 {
            return match (to.post_recv)(to.object, wr, bad) {
                0 => 0,
                rc => refused(rc),
            };
        }
        nic_recv_judged(qp, wr, bad)
    }
}

/// One completion with status success needs no further look.
unsafe extern "C" fn nic_poll(cq: *mut gdrc_cq_fast, n: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: the header's contract: a handle in use, so pinned; `wc` has n structs.
    unsafe {
        let CqTarget::Nic(_, of) = &cq_entry(cq).object_in_use().target else {
            // `insert_cq` gives this function to targets of a NIC only.
            core::hint::unreachable_unchecked()
        };
        let got = (of.poll_cq)(of.object, n, wc);
        // One completion with status 0: checked first.
        let status = (&raw const (*wc).status).read_unaligned();
        if (got as u32 ^ 1) | (status ^ wc_status::SUCCESS) == 0 {
            return got;
        }
        nic_polled(cq, got, wc)
    }
}

/// The result of a poll that returned several completions, a failed one or none, or that failed.
#[inline(never)]
unsafe extern "C" fn nic_polled(cq: *mut gdrc_cq_fast, n: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: the provider wrote n of the caller's entries.
    if n > 0 && unsafe { all_succeeded(wc, n) } {
        return n;
    }
    // SAFETY: as in `nic_poll`.
    let object = unsafe { cq_entry(cq).object_in_use() };
    let CqTarget::Nic(nic, _) = &object.target else { return n };
    if n <= 0 {
        return ret(nic.pinned_polled_nothing(object.handle, n).map(count));
    }
    // SAFETY: the provider wrote n of the caller's entries.
    ret(unsafe { wc_slice(wc, n) }.map(|wc| count(nic.explain_all(wc, wc.len()))))
}
