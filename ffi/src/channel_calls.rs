//! C calls of completion channels: gdrc_channel_.

use crate::c_result::call;
use crate::c_types::{gdrc_channel, gdrc_context, gdrc_cq};
use crate::context_slots::device;
use crate::ptr::out;
use core::ffi::c_int;

/// Creates a completion channel: a descriptor of its own for the events of the CQs that are created
/// with it (gdrc_cq_create_on). Each thread that sleeps on completions has a channel of its own;
/// the events of CQs without one are the context's, which is enough for one thread.
///
/// Errors: -ENOMEM: the context has 64; -EMFILE: no descriptor; -EINVAL: not an open context, out
/// is NULL; -EOPNOTSUPP.
/// Threads: any. Cost: system calls. Source: ibv_create_comp_channel(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_channel_create(
    ctx: *mut gdrc_context,
    out: *mut gdrc_channel,
) -> c_int {
    call(|| {
        let out = out!(out);
        out.write(gdrc_channel { handle: device(ctx)?.channel_create()? });
        Ok(())
    })
}

/// Destroys a completion channel, and closes its descriptor.
///
/// Errors: -EBUSY: a CQ has it, or a thread sleeps on it; -EINVAL: stale channel.
/// Threads: any. Cost: system calls. Source: ibv_destroy_comp_channel(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_channel_destroy(
    ctx: *mut gdrc_context,
    channel: gdrc_channel,
) -> c_int {
    call(|| device(ctx)?.channel_destroy(channel.handle))
}

/// The channel's descriptor for poll, select or epoll: readable while the channel has an event. On
/// the soft device a thread must run the engine meanwhile: the helper thread (gdrc_helper_start),
/// or one in gdrc_channel_wait, gdrc_wait, gdrc_progress or a poll. The descriptor stays the
/// library's: do not read, write or close it.
///
/// Returns the descriptor.
/// Errors: -EINVAL: stale channel. Threads: any. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_channel_fd(ctx: *mut gdrc_context, channel: gdrc_channel) -> c_int {
    call(|| device(ctx)?.channel_fd(channel.handle))
}

/// Takes one armed CQ of a channel that has an event. Arm it again, and then poll it, before the
/// next sleep.
///
/// Returns 1 and writes `out`, or 0 when there is none.
/// Errors: -EINVAL: stale channel, out is NULL. Threads: any. Cost: a system call where it was the
/// last event.
/// Source: ibv_get_cq_event(3), without sleep.
#[no_mangle]
pub unsafe extern "C" fn gdrc_channel_get_event(
    ctx: *mut gdrc_context,
    channel: gdrc_channel,
    out: *mut gdrc_cq,
) -> c_int {
    call(|| {
        let out = out!(out);
        let event = device(ctx)?.channel_event(channel.handle)?;
        Ok(out.write_if(event.map(|handle| gdrc_cq { handle })))
    })
}

/// Sleeps until a channel has an event and takes it, at most `timeout_ms` milliseconds (0: checks
/// once, negative: without limit). Any number of threads may sleep, each on a channel of its own:
/// one of them runs the engine for all, unless there is a helper thread.
///
/// Returns 1 and writes `out`, or 0 when the time is over.
/// Errors: -EINVAL: stale channel, out is NULL; -EINTR: a signal came; -ENODEV: the NIC was
/// removed. Threads: any; each event wakes one of those that wait for the channel. Cost: sleeps; no
/// allocation. Source: ibv_get_cq_event(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_channel_wait(
    ctx: *mut gdrc_context,
    channel: gdrc_channel,
    timeout_ms: c_int,
    out: *mut gdrc_cq,
) -> c_int {
    call(|| {
        let out = out!(out);
        let event = device(ctx)?.channel_wait(channel.handle, timeout_ms)?;
        Ok(out.write_if(event.map(|handle| gdrc_cq { handle })))
    })
}
