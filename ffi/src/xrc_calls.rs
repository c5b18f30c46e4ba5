//! C calls of XRC: its domains and their SRQs. Its queue pairs are in `qp_calls`.

use crate::c_result::call;
use crate::c_types::*;
use crate::context_slots::device;
use crate::ptr::{out, sized_in, sized_out};
use crate::srq_calls::{srq_attr, srq_attr_in};
use core::ffi::c_int;

/// Allocates an XRC domain: its SRQs serve the GDRC_QPT_XRC_RECV queue pairs that are created with
/// it. A domain is of one context.
///
/// Errors: -ENOMEM: as many as max_pd are in use; -EINVAL: not an open context, or out is NULL;
/// -EOPNOTSUPP: the device has no XRC. Threads: any. Cost: no allocation, no system call. Source:
/// IBTA annex A14; ibv_open_xrcd(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_xrcd_alloc(ctx: *mut gdrc_context, out: *mut gdrc_xrcd) -> c_int {
    call(|| {
        let out = out!(out);
        out.write(gdrc_xrcd { handle: device(ctx)?.xrcd_alloc()? });
        Ok(())
    })
}

/// Deallocates an XRC domain.
///
/// Errors: -EBUSY: an SRQ or a QP is still in it; -EINVAL: stale handle. Threads: any. Cost: none.
/// Source: IBTA annex A14; ibv_close_xrcd(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_xrcd_dealloc(ctx: *mut gdrc_context, xrcd: gdrc_xrcd) -> c_int {
    call(|| device(ctx)?.xrcd_dealloc(xrcd.handle))
}

/// As gdrc_srq_create, for an SRQ of an XRC domain. A request of a peer's GDRC_QPT_XRC_SEND names
/// it by its number (gdrc_srq_number). Receives complete in `cq`, with the number of the
/// GDRC_QPT_XRC_RECV that received; the keys of any request for the SRQ count in `pd`.
///
/// Errors: as gdrc_srq_create; -EINVAL: stale xrcd or cq, with GDRC_CONFIG_STRICT_CQ a CQ that is
/// too small; -EOPNOTSUPP: the device has no XRC. Threads: any. Cost: no system call. Source: IBTA
/// annex A14; ibv_create_srq_ex(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_srq_create_xrc(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    xrcd: gdrc_xrcd,
    cq: gdrc_cq,
    inout: *mut gdrc_srq_attr,
    out: *mut gdrc_srq,
) -> c_int {
    call(|| {
        let out = out!(out);
        let asked = srq_attr_in(&sized_in!(inout.cast_const()));
        let given = sized_out!(inout);
        let of = [pd.handle, xrcd.handle, cq.handle];
        let (handle, a) = device(ctx)?.srq_create_xrc(of, &asked)?;
        out.write(gdrc_srq { handle });
        given.write(&srq_attr(&a));
        Ok(())
    })
}
