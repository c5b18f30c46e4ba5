//! C calls of fast handles: a queue pair or CQ is looked up once, for posts and polls without a
//! look-up.

use crate::c_result::call;
use crate::c_types::*;
use crate::context_device::ContextDevice;
use crate::context_slots::{device, fast, FastDevice};
use crate::fast_ops::{insert_cq, insert_qp, CqTarget, QpTarget, CQS, QPS};
use crate::fast_table::FastObject;
use crate::ptr::out;
use core::ffi::c_int;
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::Result;
use gdrcore_net::fork::ForkGuard;

/// Writes to `*out` a handle of a queue pair for gdrc_qp_fast_post_send and gdrc_qp_fast_post_recv,
/// inline functions that look up neither context nor queue pair. Until gdrc_qp_fast_put the queue
/// pair cannot be destroyed (-EBUSY). It may have several such handles, and be posted to by
/// gdrc_post_send as well. gdrc_close releases the remaining ones.
///
/// Errors: -EINVAL: stale handle, out is NULL; -ENOMEM: no memory for more; -EOPNOTSUPP: the device
/// does not support it. Threads: any. Cost: none; an allocation if the process has more than 1024
/// at once.
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_fast_get(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    out: *mut *mut gdrc_qp_fast,
) -> c_int {
    call(|| {
        let handle = qp.handle;
        let out = out!(out);
        let device = device(ctx)?;
        device.qp_pin(handle)?;
        let made = qp_target(ctx, handle)
            .and_then(|target| insert_qp(ctx, object(device, handle, target)));
        if made.is_err() {
            device.qp_unpin(handle)?;
        }
        out.write(made?);
        Ok(())
    })
}

fn qp_target(ctx: *mut gdrc_context, handle: Handle) -> Result<QpTarget> {
    Ok(match fast(ctx) {
        FastDevice::Nic(nic) => QpTarget::Nic(nic, nic.pinned_qp(handle)?),
        FastDevice::Engine(soft) => QpTarget::Soft(soft.pinned_qp(handle)?),
        FastDevice::Engines(set) => {
            let (soft, handle) = set.engine_of(handle)?;
            QpTarget::Soft(soft.pinned_qp(handle)?)
        }
        FastDevice::None => QpTarget::Checked,
    })
}

fn object<T>(device: &'static dyn ContextDevice, handle: Handle, target: T) -> FastObject<T> {
    FastObject { device, owner: ForkGuard::new(), handle, target }
}

/// Releases a handle. No other call with it may run; later ones get -EINVAL until the process has
/// made a thousand more.
///
/// Errors: -EINVAL: not a fast handle, or already released; -EOWNERDEAD: made by the parent of this
/// fork. Threads: one per handle. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_fast_put(qp: *mut gdrc_qp_fast) -> c_int {
    call(|| QPS.vacate(QPS.find(qp)?, |o| o.device.qp_unpin(o.handle)))
}

/// Writes to `*out` a handle of a CQ for gdrc_cq_fast_poll; otherwise as gdrc_qp_fast_get.
///
/// Errors: as gdrc_qp_fast_get. Threads: any. Cost: as gdrc_qp_fast_get.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_fast_get(
    ctx: *mut gdrc_context,
    cq: gdrc_cq,
    out: *mut *mut gdrc_cq_fast,
) -> c_int {
    call(|| {
        let handle = cq.handle;
        let out = out!(out);
        let device = device(ctx)?;
        device.cq_pin(handle)?;
        let made = cq_target(ctx, handle)
            .and_then(|target| insert_cq(ctx, object(device, handle, target)));
        if made.is_err() {
            device.cq_unpin(handle)?;
        }
        out.write(made?);
        Ok(())
    })
}

fn cq_target(ctx: *mut gdrc_context, handle: Handle) -> Result<CqTarget> {
    Ok(match fast(ctx) {
        FastDevice::Nic(nic) => CqTarget::Nic(nic, nic.pinned_cq(handle)?),
        FastDevice::Engine(soft) => CqTarget::Soft(soft.pinned_cq(handle)?),
        FastDevice::Engines(set) => CqTarget::Set(set.pinned_cq(handle)?),
        FastDevice::None => CqTarget::Checked,
    })
}

/// Releases a handle, as gdrc_qp_fast_put.
///
/// Errors: as gdrc_qp_fast_put. Threads: one per handle. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_fast_put(cq: *mut gdrc_cq_fast) -> c_int {
    call(|| CQS.vacate(CQS.find(cq)?, |o| o.device.cq_unpin(o.handle)))
}
