//! The module's functions for objects of an open device, except queue pairs. Each is one call of
//! libibverbs.

use core::ffi::c_int;
use core::mem::zeroed;

use crate::code;
use crate::context_ops::operation;
use crate::convert::ah_attr;
use crate::events::pointer;
use crate::last_errno;
use gdrcore_core::device::SrqAttr;
use gdrcore_core::verbs::types::AhAttr;
use gdrcore_verbs::abi::{Memory, Object, Source, XrcSrqMake};
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

macro_rules! ends {
    ($($name:ident $call:ident;)*) => {$(
        /// # Safety
        /// The table's.
        pub unsafe extern "C" fn $name(object: Object) -> c_int {
            // SAFETY: the table's contract.
            code(unsafe { $call(object.cast()) })
        }
    )*};
}

ends! {
    pd_dealloc ibv_dealloc_pd;
    mr_dereg ibv_dereg_mr;
    mw_dealloc ibv_dealloc_mw;
    ah_destroy ibv_destroy_ah;
    cq_destroy ibv_destroy_cq;
    srq_destroy ibv_destroy_srq;
    channel_destroy ibv_destroy_comp_channel;
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

/// The sizes of a new SRQ. Providers ignore a limit.
fn srq_attr(a: &SrqAttr) -> ibv_srq_attr {
    ibv_srq_attr { max_wr: a.max_wr, max_sge: a.max_sge, srq_limit: 0 }
}

/// Writes a new SRQ and the granted sizes, or returns the errno.
///
/// # Safety
/// Both destinations are writable.
unsafe fn made_srq(
    srq: *mut ibv_srq,
    given: &ibv_srq_attr,
    attr: *mut SrqAttr,
    out: *mut Object,
) -> c_int {
    // SAFETY: our contract.
    let rc = unsafe { made(srq, out) };
    if rc == 0 {
        // SAFETY: our contract.
        unsafe {
            attr.write(SrqAttr { max_wr: given.max_wr, max_sge: given.max_sge, srq_limit: 0 })
        };
    }
    rc
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
    let mut init = ibv_srq_init_attr { srq_context: pointer(cookie), attr: srq_attr(&wanted) };
    // SAFETY: a live PD, our own attributes; the table's contract for the result.
    unsafe { made_srq(ibv_create_srq(pd.cast(), &mut init), &init.attr, attr, out) }
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
pub unsafe extern "C" fn srq_resize(srq: Object, max_wr: u32, limit: i64) -> c_int {
    let mut mask = ibv_srq_attr_mask::IBV_SRQ_MAX_WR;
    let mut attr = ibv_srq_attr { max_wr, max_sge: 0, srq_limit: 0 };
    if let Ok(limit) = u32::try_from(limit) {
        mask |= ibv_srq_attr_mask::IBV_SRQ_LIMIT;
        attr.srq_limit = limit;
    }
    // SAFETY: the table's contract; our own attributes.
    code(unsafe { ibv_modify_srq(srq.cast(), &mut attr, mask.0 as c_int) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn srq_number(srq: Object, out: *mut u32) -> c_int {
    let srq: *mut ibv_srq = srq.cast();
    // SAFETY: the table's contract: a live SRQ, of an open context.
    let Some(number) = (unsafe { operation!((*srq).context, get_srq_num) }) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: as above, and a writable result.
    code(unsafe { number(srq, out) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn xrcd_open(context: Object, out: *mut Object) -> c_int {
    let context: *mut ibv_context = context.cast();
    // SAFETY: the table's contract.
    let Some(open) = (unsafe { operation!(context, open_xrcd) }) else {
        return libc::EOPNOTSUPP;
    };
    let mask = ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD
        | ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS;
    // No file: the domain is this process's only.
    let mut init = ibv_xrcd_init_attr { comp_mask: mask.0, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: the table's contract; our own attributes.
    unsafe { made(open(context, &mut init), out) }
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn xrcd_close(xrcd: Object) -> c_int {
    let xrcd: *mut ibv_xrcd = xrcd.cast();
    // SAFETY: the table's contract: a live domain, of an open context.
    let Some(close) = (unsafe { operation!((*xrcd).context, close_xrcd) }) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: as above.
    code(unsafe { close(xrcd) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn srq_create_xrc(
    make: *const XrcSrqMake,
    attr: *mut SrqAttr,
    out: *mut Object,
) -> c_int {
    // SAFETY: the table's contract, for both.
    let (m, wanted) = unsafe { (&*make, *attr) };
    let pd: *mut ibv_pd = m.pd.cast();
    // SAFETY: a live PD, of an open context.
    let context = unsafe { (*pd).context };
    // SAFETY: as above.
    let Some(create) = (unsafe { operation!(context, create_srq_ex) }) else {
        return libc::EOPNOTSUPP;
    };
    // SAFETY: plain data, all-zero is valid.
    let mut init: ibv_srq_init_attr_ex = unsafe { zeroed() };
    let mask = ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE
        | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD
        | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_XRCD
        | ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_CQ;
    init.srq_context = pointer(m.cookie);
    init.attr = srq_attr(&wanted);
    init.comp_mask = mask.0;
    init.srq_type = ibv_srq_type::IBV_SRQT_XRC;
    init.pd = pd;
    init.xrcd = m.xrcd.cast();
    init.cq = m.cq.cast();
    // SAFETY: live objects, our own attributes; the table's contract for the result.
    unsafe { made_srq(create(context, &mut init), &init.attr, attr, out) }
}
