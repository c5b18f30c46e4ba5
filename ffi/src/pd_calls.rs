//! C calls of protection domains: gdrc_pd_.

use crate::c_result::call;
use crate::c_types::*;
use crate::context_slots::device;
use crate::ptr::out;
use core::ffi::c_int;

/// Allocates a protection domain.
///
/// Errors: -ENOMEM: max_pd are in use; -EINVAL: not an open context, or out is NULL.
/// Threads: any. Cost: no allocation, no system call. Source: IBTA verb Allocate Protection Domain;
/// ibv_alloc_pd(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_pd_alloc(ctx: *mut gdrc_context, out: *mut gdrc_pd) -> c_int {
    call(|| {
        let out = out!(out);
        out.write(gdrc_pd { handle: device(ctx)?.pd_alloc()? });
        Ok(())
    })
}

/// Deallocates a protection domain.
///
/// Errors: -EBUSY: a region, window, address handle, SRQ or QP is still in it; -EINVAL: stale
/// handle. Threads: any. Cost: none. Source: IBTA verb Deallocate Protection Domain;
/// ibv_dealloc_pd(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_pd_dealloc(ctx: *mut gdrc_context, pd: gdrc_pd) -> c_int {
    call(|| device(ctx)?.pd_dealloc(pd.handle))
}
