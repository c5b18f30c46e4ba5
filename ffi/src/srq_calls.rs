//! C calls of shared receive queues: gdrc_srq_. Posting to them is in `data_calls`.

use crate::c_result::call;
use crate::c_types::*;
use crate::context_slots::device;
use crate::ptr::{out, out_optional, sized_in, sized_out, zeroed};
use core::ffi::c_int;
use gdrcore_core::device::SrqAttr;

/// Attributes as C has them.
pub(crate) fn srq_attr(a: &SrqAttr) -> gdrc_srq_attr {
    gdrc_srq_attr { max_wr: a.max_wr, max_sge: a.max_sge, srq_limit: a.srq_limit, ..zeroed() }
}

/// Attributes as the device has them.
pub(crate) fn srq_attr_in(a: &gdrc_srq_attr) -> SrqAttr {
    SrqAttr { max_wr: a.max_wr, max_sge: a.max_sge, srq_limit: a.srq_limit }
}

/// Creates a shared receive queue of the size in `inout` (struct_size set), which at return holds
/// the granted size.
///
/// Errors: -ENOMEM: max_srq or ring_bytes are in use; -EINVAL: a size is 0 or over the device's,
/// stale pd, a NULL pointer. Threads: any. Cost: no system call. Source: IBTA verb Create Shared
/// Receive Queue; ibv_create_srq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_create(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    inout: *mut gdrc_srq_attr,
    out: *mut gdrc_srq,
) -> c_int {
    call(|| {
        let out = out!(out);
        let asked = srq_attr_in(&sized_in!(inout.cast_const()));
        let given = sized_out!(inout);
        let (handle, a) = device(ctx)?.srq_create(pd.handle, &asked)?;
        out.write(gdrc_srq { handle });
        given.write(&srq_attr(&a));
        Ok(())
    })
}

/// Arms the SRQ's limit: GDRC_EVENT_SRQ_LIMIT_REACHED is raised once when fewer requests are left;
/// 0 disarms.
///
/// Errors: -EINVAL: limit is over max_wr, stale handle. Threads: any. Cost: none.
/// Source: IBTA verb Modify Shared Receive Queue; ibv_modify_srq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_modify(
    ctx: *mut gdrc_context,
    srq: gdrc_srq,
    limit: u32,
) -> c_int {
    call(|| device(ctx)?.srq_modify(srq.handle, limit))
}

/// Gives an SRQ another size; what is posted stays in its order. `granted` receives the new size,
/// and may be NULL.
///
/// Errors: -ENOMEM: ring_bytes are in use; -EINVAL: fewer than are posted or than the limit, max_wr
/// is 0 or over the device's, stale handle; -EBUSY: another thread posts to it; in all cases the
/// SRQ keeps its size; -EOPNOTSUPP: the device cannot. Threads: one at a time per SRQ. Cost: copies
/// what is posted. Source: IBTA verb Modify Shared Receive Queue; ibv_modify_srq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_resize(
    ctx: *mut gdrc_context,
    srq: gdrc_srq,
    max_wr: u32,
    granted: *mut u32,
) -> c_int {
    call(|| {
        let granted = out_optional!(granted);
        let room = device(ctx)?.srq_resize(srq.handle, max_wr, None)?;
        if let Some(granted) = granted {
            granted.write(room);
        }
        Ok(())
    })
}

/// Writes the SRQ's number, 24 bits. It is unique among the QPs and SRQs of the device's address.
///
/// Errors: -EINVAL: stale handle, a NULL pointer; -EOPNOTSUPP: the device has none. Threads: any.
/// Cost: none. Source: ibv_get_srq_num(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_number(
    ctx: *mut gdrc_context,
    srq: gdrc_srq,
    number: *mut u32,
) -> c_int {
    call(|| {
        let out = out!(number);
        out.write(device(ctx)?.srq_number(srq.handle)?);
        Ok(())
    })
}

/// Fills `attr` (struct_size set) with the SRQ's sizes and its limit, 0 once the limit was reached.
///
/// Errors: -EINVAL: stale handle, attr is NULL or its struct_size 0. Threads: any. Cost: none.
/// Source: IBTA verb Query Shared Receive Queue; ibv_query_srq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_query(
    ctx: *mut gdrc_context,
    srq: gdrc_srq,
    attr: *mut gdrc_srq_attr,
) -> c_int {
    call(|| {
        let out = sized_out!(attr);
        out.write(&srq_attr(&device(ctx)?.srq_query(srq.handle)?));
        Ok(())
    })
}

/// Destroys an SRQ; requests in it end without completion.
///
/// Errors: -EBUSY: a QP uses it; -EINVAL: stale handle.
/// Threads: any. Cost: none. Source: IBTA verb Destroy Shared Receive Queue; ibv_destroy_srq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_destroy(ctx: *mut gdrc_context, srq: gdrc_srq) -> c_int {
    call(|| device(ctx)?.srq_destroy(srq.handle))
}
