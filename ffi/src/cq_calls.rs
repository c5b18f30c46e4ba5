//! C calls of completion queues: gdrc_cq_. Polling and arming are in `data_calls`.

use crate::c_result::call;
use crate::c_types::*;
use crate::context_slots::device;
use crate::ptr::{out, out_optional};
use core::ffi::c_int;
use gdrcore_core::Result;

/// Creates a completion queue with room for at least `cqe` completions. On a soft device it never
/// overflows: a send keeps its queue slot, and a receive is not begun, until there is room
/// (GDRC_CONFIG_STRICT_CQ refuses at QP creation instead). A NIC's does, and so does any under
/// `strict`. `granted` receives the actual size, and may be NULL.
///
/// Errors: -ENOMEM: max_cq or ring_bytes are in use; -EINVAL: cqe is 0 or over max_cqe, out is
/// NULL. Threads: any. Cost: no system call. Source: IBTA verb Create Completion Queue;
/// ibv_create_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_create(
    ctx: *mut gdrc_context,
    cqe: u32,
    out: *mut gdrc_cq,
    granted: *mut u32,
) -> c_int {
    call(|| cq_create(ctx, cqe, None, out, granted))
}

fn cq_create(
    ctx: *mut gdrc_context,
    cqe: u32,
    channel: Option<gdrc_channel>,
    out: *mut gdrc_cq,
    granted: *mut u32,
) -> Result<()> {
    let out = out!(out);
    let granted = out_optional!(granted);
    let device = device(ctx)?;
    let (handle, room) = match channel {
        None => device.cq_create(cqe)?,
        Some(channel) => device.cq_create_on(cqe, channel.handle)?,
    };
    out.write(gdrc_cq { handle });
    if let Some(granted) = granted {
        granted.write(room);
    }
    Ok(())
}

/// Creates a completion queue as gdrc_cq_create does, whose events go to a completion channel:
/// gdrc_cq_arm then makes the channel's descriptor readable, not the context's, and
/// gdrc_channel_get_event or gdrc_channel_wait takes the event, not gdrc_get_cq_event.
///
/// Errors: as gdrc_cq_create; -EINVAL: stale channel.
/// Threads: any. Cost: no system call. Source: IBTA verb Create Completion Queue; ibv_create_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_create_on(
    ctx: *mut gdrc_context,
    cqe: u32,
    channel: gdrc_channel,
    out: *mut gdrc_cq,
    granted: *mut u32,
) -> c_int {
    call(|| cq_create(ctx, cqe, Some(channel), out, granted))
}

/// Changes a CQ's size; completions in it stay, in order. `granted` receives the new size, and may
/// be NULL.
///
/// Errors: -ENOMEM: ring_bytes are in use (the CQ keeps its size); -EINVAL: it holds more
/// completions than would fit, cqe is 0 or over max_cqe, stale handle; -EBUSY: another thread polls
/// it. Threads: one per CQ. Cost: copies its completions. Source: IBTA verb Resize Completion
/// Queue; ibv_resize_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_resize(
    ctx: *mut gdrc_context,
    cq: gdrc_cq,
    cqe: u32,
    granted: *mut u32,
) -> c_int {
    call(|| {
        let granted = out_optional!(granted);
        let room = device(ctx)?.cq_resize(cq.handle, cqe)?;
        if let Some(granted) = granted {
            granted.write(room);
        }
        Ok(())
    })
}

/// Destroys a CQ with the completions in it.
///
/// Errors: -EBUSY: a QP uses it, or it has a fast handle; -EINVAL: stale handle.
/// Threads: any. Cost: none. Source: IBTA verb Destroy Completion Queue; ibv_destroy_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_destroy(ctx: *mut gdrc_context, cq: gdrc_cq) -> c_int {
    call(|| device(ctx)?.cq_destroy(cq.handle))
}
