//! The module's functions for objects of an open device: one call of libibverbs each.

use core::ffi::c_int;
use core::mem::zeroed;

use crate::convert::{ah_attr, cap, cap_of, qp_attr, qp_attr_of};
use crate::events::pointer;
use crate::{code, last_errno};
use gdrcore_core::device::SrqAttr;
use gdrcore_core::verbs::types::{AhAttr, QpAttr};
use gdrcore_verbs::abi::{Memory, Object, QpMade, QpMake, Source};
use rdma_sys::*;

/// Writes a new object, or returns the errno.
///
/// # Safety
/// `out` is writable.
unsafe fn made<T>(object: *mut T, out: *mut Object) -> c_int {
    if object.is_null() {
        return last_errno();
    }
    // SAFETY: our contract.
    unsafe { out.write(object.cast()) };
    0
}

/// # Safety
/// Here and below: as documented for the table (`gdrcore_verbs::abi::Module`).
pub unsafe extern "C" fn pd_alloc(context: Object, out: *mut Object) -> c_int {
    // SAFETY: the table's contract.
    unsafe { made(ibv_alloc_pd(context.cast()), out) }
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn pd_dealloc(pd: Object) -> c_int {
    // SAFETY: the table's contract.
    code(unsafe { ibv_dealloc_pd(pd.cast()) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn mr_reg(
    pd: Object,
    memory: *const Memory,
    out: *mut Object,
    lkey: *mut u32,
    rkey: *mut u32,
) -> c_int {
    // SAFETY: the table's contract.
    let m = unsafe { *memory };
    let length = m.length as usize;
    let mr = if m.dmabuf < 0 {
        let addr = core::ptr::with_exposed_provenance_mut(m.addr as usize);
        // SAFETY: a live PD. Any range may be asked for: what is not mapped is refused.
        unsafe { ibv_reg_mr_iova2(pd.cast(), addr, length, m.iova, m.access) }
    } else {
        // SAFETY: as above; a descriptor that is none is refused.
        unsafe { ibv_reg_dmabuf_mr(pd.cast(), m.addr, length, m.iova, m.dmabuf, m.access as c_int) }
    };
    // SAFETY: the table's contract.
    let rc = unsafe { made(mr, out) };
    if rc == 0 {
        // SAFETY: a new region, and the table's contract for the results.
        unsafe {
            lkey.write((*mr).lkey);
            rkey.write((*mr).rkey);
        }
    }
    rc
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn mr_dereg(mr: Object) -> c_int {
    // SAFETY: the table's contract.
    code(unsafe { ibv_dereg_mr(mr.cast()) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn mw_alloc(
    pd: Object,
    mw_type: u32,
    out: *mut Object,
    rkey: *mut u32,
) -> c_int {
    // SAFETY: the table's contract.
    let Some(mw) = (unsafe { ibv_alloc_mw(pd.cast(), mw_type as _) }) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: the table's contract.
    let rc = unsafe { made(mw, out) };
    if rc == 0 {
        // SAFETY: a new window, and the table's contract for the result.
        unsafe { rkey.write((*mw).rkey) };
    }
    rc
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn mw_dealloc(mw: Object) -> c_int {
    // SAFETY: the table's contract.
    code(unsafe { ibv_dealloc_mw(mw.cast()) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn ah_create(
    pd: Object,
    attr: *const AhAttr,
    source: *const Source,
    out: *mut Object,
) -> c_int {
    // SAFETY: the table's contract, for both.
    let (attr, source) = unsafe { (&*attr, &*source) };
    let mut attr = ah_attr(attr, source);
    // SAFETY: a live PD, our own attributes; the table's contract for the result.
    unsafe { made(ibv_create_ah(pd.cast(), &mut attr), out) }
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn ah_destroy(ah: Object) -> c_int {
    // SAFETY: the table's contract.
    code(unsafe { ibv_destroy_ah(ah.cast()) })
}

/// # Safety
/// The table's; `channel` may be null.
pub unsafe extern "C" fn cq_create(
    context: Object,
    channel: Object,
    cookie: u64,
    cqe: *mut u32,
    out: *mut Object,
) -> c_int {
    // SAFETY: the table's contract.
    let entries = unsafe { *cqe } as c_int;
    // SAFETY: an open context and its channel or none.
    let cq = unsafe { ibv_create_cq(context.cast(), entries, pointer(cookie), channel.cast(), 0) };
    // SAFETY: the table's contract.
    let rc = unsafe { made(cq, out) };
    if rc == 0 {
        // SAFETY: a new CQ, and the table's contract for the result.
        unsafe { cqe.write((*cq).cqe as u32) };
    }
    rc
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn cq_resize(cq: Object, cqe: *mut u32) -> c_int {
    let cq: *mut ibv_cq = cq.cast();
    // SAFETY: the table's contract.
    let rc = code(unsafe { ibv_resize_cq(cq, *cqe as c_int) });
    if rc == 0 {
        // SAFETY: a live CQ, and the table's contract for the result.
        unsafe { cqe.write((*cq).cqe as u32) };
    }
    rc
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn cq_destroy(cq: Object) -> c_int {
    // SAFETY: the table's contract.
    code(unsafe { ibv_destroy_cq(cq.cast()) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn srq_create(
    pd: Object,
    cookie: u64,
    attr: *mut SrqAttr,
    out: *mut Object,
) -> c_int {
    // SAFETY: the table's contract.
    let wanted = unsafe { *attr };
    let attributes = ibv_srq_attr { max_wr: wanted.max_wr, max_sge: wanted.max_sge, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { srq_context: pointer(cookie), attr: attributes };
    // SAFETY: a live PD, our own attributes; the table's contract for the result.
    let rc = unsafe { made(ibv_create_srq(pd.cast(), &mut init), out) };
    if rc == 0 {
        let given = SrqAttr { max_wr: init.attr.max_wr, max_sge: init.attr.max_sge, srq_limit: 0 };
        // SAFETY: the table's contract.
        unsafe { attr.write(given) };
    }
    rc
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn srq_modify(srq: Object, limit: u32) -> c_int {
    let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: limit };
    // SAFETY: the table's contract; our own attributes.
    code(unsafe {
        ibv_modify_srq(srq.cast(), &mut attr, ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as c_int)
    })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn srq_query(srq: Object, out: *mut SrqAttr) -> c_int {
    let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 0 };
    // SAFETY: the table's contract; our own attributes.
    let rc = code(unsafe { ibv_query_srq(srq.cast(), &mut attr) });
    if rc == 0 {
        // SAFETY: the table's contract.
        unsafe {
            out.write(SrqAttr {
                max_wr: attr.max_wr,
                max_sge: attr.max_sge,
                srq_limit: attr.srq_limit,
            })
        };
    }
    rc
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn srq_destroy(srq: Object) -> c_int {
    // SAFETY: the table's contract.
    code(unsafe { ibv_destroy_srq(srq.cast()) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn qp_create(make: *const QpMake, out: *mut QpMade) -> c_int {
    // SAFETY: the table's contract.
    let m = unsafe { &*make };
    let mut init = ibv_qp_init_attr {
        qp_context: pointer(m.cookie),
        send_cq: m.send_cq.cast(),
        recv_cq: m.recv_cq.cast(),
        srq: m.srq.cast(),
        cap: cap(&m.cap),
        qp_type: m.qp_type as _,
        sq_sig_all: m.sq_sig_all as c_int,
    };
    // SAFETY: live objects, our own attributes.
    let qp = unsafe { ibv_create_qp(m.pd.cast(), &mut init) };
    if qp.is_null() {
        return last_errno();
    }
    // SAFETY: a new QP, and the table's contract for the result.
    unsafe { out.write(QpMade { qp: qp.cast(), qpn: (*qp).qp_num, cap: cap_of(&init.cap) }) };
    0
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn qp_modify(
    qp: Object,
    attr: *const QpAttr,
    mask: u32,
    source: *const Source,
) -> c_int {
    // SAFETY: the table's contract, for both.
    let (attr, source) = unsafe { (&*attr, &*source) };
    let mut attr = qp_attr(attr, mask, source);
    // SAFETY: a live QP, our own attributes.
    code(unsafe { ibv_modify_qp(qp.cast(), &mut attr, mask as c_int) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn qp_query(qp: Object, out: *mut QpAttr) -> c_int {
    // SAFETY: plain data, all-zero is valid.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { (zeroed(), zeroed()) };
    // All attributes that a query can return for an RC QP; those that do not apply to the type are
    // missing in the result.
    let all = ((1 << 21) - 1) as c_int;
    // SAFETY: a live QP, our own structs.
    let rc = code(unsafe { ibv_query_qp(qp.cast(), &mut attr, all, &mut init) });
    if rc == 0 {
        let mut found = qp_attr_of(&attr);
        found.cap = cap_of(&init.cap);
        // SAFETY: the table's contract.
        unsafe { out.write(found) };
    }
    rc
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn qp_destroy(qp: Object) -> c_int {
    // SAFETY: the table's contract.
    code(unsafe { ibv_destroy_qp(qp.cast()) })
}
