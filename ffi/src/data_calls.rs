//! C calls of the data plane: post, poll, progress, arm, wait. Each is the check of the context and
//! one call of the device.

use crate::c_result::{call, count, errno, ret};
use crate::c_types::*;
use crate::context_slots::{device, fast, FastDevice};
use crate::ptr::{out, posted, report_bad, wc_slice};
use core::ffi::c_int;
use gdrcore_core::verbs::shared::polled;
use gdrcore_core::verbs::types::{RecvWr, SendWr};
use gdrcore_core::Result;
use gdrcore_net::soft::{SoftDevice, SoftEngine};
use gdrcore_verbs::{Empty, Polled, Posted, VerbsDevice};

/// Posts a list of send requests, in order, and sends at once as much as the windows allow: the
/// post is the doorbell. While eight or more requests of an RC QP are unacknowledged, or one if it
/// sends long messages, up to sixteen further ones may wait for the next post, poll or progress, or
/// for the helper thread, so that they leave by UDP together. The list and its scatter/gather lists
/// may be reused at return; the memory of their entries belongs to the device until the completion
/// (inline data: until return). On failure `*bad` (may be NULL) is the first request that was not
/// posted; those before it were.
///
/// Errors: -EAGAIN: the send queue is full: poll, post again from *bad; -EINVAL: num_sge or opcode
/// is out of range, the QP's state or type does not allow it, stale handle, wr is NULL; -EMSGSIZE:
/// more inline data than the QP has; -EBUSY: another thread posts to this QP; -EOPNOTSUPP: the
/// device has no ATOMIC WRITE, or no FLUSH. A local protection error, and every error of the peer,
/// comes as a completion. Threads: one at a time per QP. Cost: bounded; no allocation; spins up to
/// 16 us while other threads use the engine; a system call if packets leave by UDP. Source: IBTA
/// verb Post Send Request; ibv_post_send(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_post_send(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    wr: *const SendWr,
    bad: *mut *const SendWr,
) -> c_int {
    match fast(ctx) {
        FastDevice::Nic(nic) if !bad.is_null() => {
            // SAFETY: the header's contract: the list is readable, bad writable.
            match unsafe { nic.quick_post_send(qp.handle, wr, bad) } {
                Posted::Done => return 0,
                Posted::Declined => {}
                Posted::Refused(rc) => return refused(rc),
            }
        }
        // SAFETY: our contract.
        FastDevice::Engine(soft) => return unsafe { engine_post_send(soft, qp, wr, bad) },
        // SAFETY: our contract.
        FastDevice::Engines(device) => return unsafe { engines_post_send(device, qp, wr, bad) },
        _ => {}
    }
    // SAFETY: our contract.
    unsafe { post_send(ctx, qp, wr, bad) }
}

/// The result of a post that the provider refused. The provider has written the request to `bad`.
#[cold]
#[inline(never)]
pub(crate) extern "C" fn refused(rc: c_int) -> c_int {
    ret(Err(gdrcore_verbs::refused(rc)))
}

/// A post to a soft device. Not inlined, and with the same arguments in the same registers, so that
/// the path of a NIC has no additional instructions.
/// # Safety
/// That of [`gdrc_post_send`].
#[inline(never)]
unsafe extern "C" fn engine_post_send(
    soft: &SoftEngine,
    qp: gdrc_qp,
    wr: *const SendWr,
    bad: *mut *const SendWr,
) -> c_int {
    // SAFETY: the header's contract: the list is readable, bad NULL or writable.
    unsafe { posted(wr, bad, |first| soft.quick_post_send(qp.handle, wr, first)) }
}

/// A post to a soft device of several engines; as [`engine_post_send`].
/// # Safety
/// That of [`gdrc_post_send`].
#[inline(never)]
unsafe extern "C" fn engines_post_send(
    device: &SoftDevice,
    qp: gdrc_qp,
    wr: *const SendWr,
    bad: *mut *const SendWr,
) -> c_int {
    match device.engine_of(qp.handle) {
        // SAFETY: our contract.
        Ok((soft, handle)) => unsafe { engine_post_send(soft, gdrc_qp { handle }, wr, bad) },
        // SAFETY: the header's contract: bad is NULL or writable.
        Err(e) => unsafe { report_bad(e, bad, wr) },
    }
}

/// A post through the trait of devices; as [`engine_post_send`].
/// # Safety
/// That of [`gdrc_post_send`].
#[inline(never)]
unsafe extern "C" fn post_send(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    wr: *const SendWr,
    bad: *mut *const SendWr,
) -> c_int {
    // SAFETY: the header's contract: the list is readable, bad NULL or writable.
    unsafe { posted(wr, bad, |first| device(ctx)?.post_send(qp.handle, wr, first)) }
}

/// Posts a list of receive requests, in order. On failure `*bad` (may be NULL) is the first request
/// that was not posted; those before it were. The memory belongs to the device until the
/// completion.
///
/// Errors: -EAGAIN: the receive queue is full; -EINVAL: num_sge is out of range, the QP is in RESET
/// or has an SRQ, stale handle, wr is NULL; -EBUSY: another thread posts receives to this QP.
/// Threads: one at a time per QP. Cost: bounded; no allocation, waits for no lock, no system call.
/// Source: IBTA verb Post Receive Request; ibv_post_recv(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_post_recv(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    wr: *const RecvWr,
    bad: *mut *const RecvWr,
) -> c_int {
    // SAFETY: the header's contract: the list is readable, bad NULL or writable.
    unsafe {
        posted(wr, bad, |first| match fast(ctx) {
            FastDevice::Engine(soft) => soft.quick_post_recv(qp.handle, wr, first),
            FastDevice::Engines(device) => engines_post_recv(device, qp, wr, first),
            _ => device(ctx)?.post_recv(qp.handle, wr, first),
        })
    }
}

/// A post of receives to a soft device of several engines; as [`engine_post_send`].
/// # Safety
/// That of [`gdrc_post_recv`].
#[inline(never)]
unsafe fn engines_post_recv(
    device: &SoftDevice,
    qp: gdrc_qp,
    wr: *const RecvWr,
    first: &mut *const RecvWr,
) -> Result<()> {
    let (soft, handle) = device.engine_of(qp.handle)?;
    // SAFETY: our contract.
    unsafe { soft.quick_post_recv(handle, wr, first) }
}

/// Posts a list of receive requests to an SRQ; otherwise as gdrc_post_recv.
///
/// Errors: as gdrc_post_recv. Threads: one at a time per SRQ. Cost: as gdrc_post_recv. Source: IBTA
/// verb Post Receive Request; ibv_post_srq_recv(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_post_srq_recv(
    ctx: *mut gdrc_context,
    srq: gdrc_srq,
    wr: *const RecvWr,
    bad: *mut *const RecvWr,
) -> c_int {
    // SAFETY: the header's contract: the list is readable, bad NULL or writable.
    unsafe { posted(wr, bad, |first| device(ctx)?.post_srq_recv(srq.handle, wr, first)) }
}

/// Takes up to `num_entries` completions into `wc`. If there is none it runs one round of the
/// engine first, so a program that polls needs no other thread.
///
/// Returns the number taken, 0 when there is none. Errors: -EINVAL: num_entries is negative, wc is
/// NULL, stale handle; -EBUSY: another thread polls this CQ. Threads: one at a time per CQ. Cost:
/// bounded; no allocation, waits for no lock; system calls if the socket is checked. Source: IBTA
/// verb Poll for Completion; ibv_poll_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_poll_cq(
    ctx: *mut gdrc_context,
    cq: gdrc_cq,
    num_entries: c_int,
    wc: *mut Wc,
) -> c_int {
    // Nested, not combined: the compiler would compute combined conditions without branches.
    if num_entries > 0 {
        match fast(ctx) {
            FastDevice::Nic(nic) if !wc.is_null() => {
                // SAFETY: the header's contract: wc has num_entries structs.
                match unsafe { nic.quick_poll_cq(cq.handle, num_entries, wc) } {
                    Polled::Done(n) => return n,
                    Polled::Failed(n) => return explained(nic, n, wc),
                    Polled::Nothing(cq, n) => return nothing(nic, cq, n),
                    Polled::Declined => {}
                }
            }
            FastDevice::Engine(soft) => {
                // SAFETY: our contract.
                return unsafe { engine_poll_cq(soft, cq, num_entries, wc) };
            }
            FastDevice::Engines(device) => {
                // SAFETY: our contract.
                return unsafe { engines_poll_cq(device, cq, num_entries, wc) };
            }
            _ => {}
        }
    }
    // SAFETY: our contract.
    unsafe { poll_cq(ctx, cq, num_entries, wc) }
}

/// A poll of a soft device; as [`engine_post_send`].
/// # Safety
/// That of [`gdrc_poll_cq`].
#[inline(never)]
unsafe extern "C" fn engine_poll_cq(
    soft: &SoftEngine,
    cq: gdrc_cq,
    num_entries: c_int,
    wc: *mut Wc,
) -> c_int {
    // SAFETY: the header's contract: wc has num_entries structs that are this call's alone.
    let wc = match unsafe { wc_slice(wc, num_entries) } {
        Ok(wc) => wc,
        Err(e) => return errno(e),
    };
    let (index, cq) = match soft.resolve_cq(cq.handle) {
        Ok(found) => found,
        Err(e) => return errno(e),
    };
    match soft.poll_cq_at(index, cq, wc) {
        // Not more than `num_entries`, so it fits.
        Some(n) => n as c_int,
        None => errno(polled()),
    }
}

/// A poll of a soft device of several engines; as [`engine_post_send`].
/// # Safety
/// That of [`gdrc_poll_cq`].
#[inline(never)]
unsafe extern "C" fn engines_poll_cq(
    device: &SoftDevice,
    cq: gdrc_cq,
    num_entries: c_int,
    wc: *mut Wc,
) -> c_int {
    // SAFETY: the header's contract: wc has num_entries structs that are this call's alone.
    let wc = unsafe { wc_slice(wc, num_entries) };
    ret(wc.and_then(|wc| device.quick_poll_cq(cq.handle, wc)).map(count))
}

/// A poll through the trait of devices; as [`engine_post_send`].
/// # Safety
/// That of [`gdrc_poll_cq`].
#[inline(never)]
unsafe extern "C" fn poll_cq(
    ctx: *mut gdrc_context,
    cq: gdrc_cq,
    num_entries: c_int,
    wc: *mut Wc,
) -> c_int {
    ret(device(ctx).and_then(|dev| {
        // SAFETY: the header's contract: wc has num_entries structs that are this call's alone.
        let wc = unsafe { wc_slice(wc, num_entries) }?;
        dev.poll_cq(cq.handle, wc).map(count)
    }))
}

/// The result of a poll that found nothing.
#[inline(never)]
fn nothing(nic: &VerbsDevice, cq: Empty<'_>, n: c_int) -> c_int {
    ret(nic.polled_nothing(cq, n).map(count))
}

/// The result of a poll that found failed operations.
#[cold]
#[inline(never)]
fn explained(nic: &VerbsDevice, n: c_int, wc: *mut Wc) -> c_int {
    // SAFETY: the provider wrote n of the caller's entries.
    ret(unsafe { wc_slice(wc, n) }.map(|wc| count(nic.explain_all(wc, wc.len()))))
}

/// Runs one bounded round of the engine: receive, send, timers. For programs that wait on memory
/// instead of a CQ.
///
/// Returns the number of packets handled; 0: nothing to do, or another thread is in the engine now.
/// Errors: -EINVAL: not an open context. Threads: any. Cost: bounded; no allocation; system calls
/// of the socket.
#[no_mangle]
pub unsafe extern "C" fn gdrc_progress(ctx: *mut gdrc_context) -> c_int {
    if let FastDevice::Engine(soft) = fast(ctx) {
        return count(soft.program_round());
    }
    call(|| device(ctx)?.progress().map(count))
}

/// Arms a CQ: the next completion, or with solicited_only the next solicited or failed one, makes
/// the context's descriptor readable and queues an event for gdrc_get_cq_event. Poll once more
/// after arming: earlier completions raise no event.
///
/// Errors: -EINVAL: stale handle. Threads: any. Cost: waits for a round of the engine that another
/// thread runs. Source: IBTA verb Request Completion Notification; ibv_req_notify_cq(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_arm(
    ctx: *mut gdrc_context,
    cq: gdrc_cq,
    solicited_only: c_int,
) -> c_int {
    call(|| device(ctx)?.cq_arm(cq.handle, solicited_only != 0))
}

/// Takes one armed CQ that has an event.
///
/// Returns 1 and writes `out`, or 0 when there is none.
/// Errors: -EINVAL: not an open context, out is NULL. Threads: any. Cost: none. Source:
/// ibv_get_cq_event(3), without sleep.
#[no_mangle]
pub unsafe extern "C" fn gdrc_get_cq_event(ctx: *mut gdrc_context, out: *mut gdrc_cq) -> c_int {
    call(|| {
        let out = out!(out);
        Ok(out.write_if(device(ctx)?.cq_event()?.map(|handle| gdrc_cq { handle })))
    })
}

/// Takes one asynchronous event (GDRC_EVENT_).
///
/// Returns 1 and writes `out`, or 0 when there is none.
/// Errors: -EINVAL: not an open context, out is NULL. Threads: any. Cost: none. Source:
/// ibv_get_async_event(3), without sleep.
#[no_mangle]
pub unsafe extern "C" fn gdrc_get_async_event(
    ctx: *mut gdrc_context,
    out: *mut AsyncEvent,
) -> c_int {
    call(|| {
        let out = out!(out);
        Ok(out.write_if(device(ctx)?.async_event()?))
    })
}

/// The context's descriptor for poll, select or epoll: readable when gdrc_progress has work, an
/// armed CQ has an event, or there is an asynchronous event. Call gdrc_arm before each sleep. The
/// descriptor stays the library's: do not read, write or close it.
///
/// Returns the descriptor.
/// Errors: -EINVAL: not an open context; -EOPNOTSUPP: the device has none. Threads: any. Cost:
/// none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_fd(ctx: *mut gdrc_context) -> c_int {
    call(|| device(ctx)?.fd())
}

/// Prepares the descriptor for sleeping on it: sets its timer to the engine's next deadline.
///
/// Returns 1: there is work already, do not sleep, call gdrc_progress or poll; 0: armed.
/// Errors: -EINVAL: not an open context. Threads: any. Cost: a round of the
/// engine, some system calls, and some for each link.
#[no_mangle]
pub unsafe extern "C" fn gdrc_arm(ctx: *mut gdrc_context) -> c_int {
    call(|| device(ctx)?.arm().map(c_int::from))
}

/// Sleeps until an armed CQ has an event or there is an asynchronous event, at most `timeout_ms`
/// milliseconds (0: checks once, negative: without limit), and runs the engine meanwhile.
///
/// Returns 1 when there is an event, 0 when the time is over.
/// Errors: -EINVAL: not an open context; -EINTR: a signal came. Threads: any. Cost: sleeps; no
/// allocation.
#[no_mangle]
pub unsafe extern "C" fn gdrc_wait(ctx: *mut gdrc_context, timeout_ms: c_int) -> c_int {
    call(|| device(ctx)?.wait(timeout_ms).map(c_int::from))
}

/// Starts the helper thread, which runs the engine while the program does not poll: for targets of
/// WRITE, READ and atomics that do something else. It sleeps while a thread polls. Starting it
/// twice is harmless.
///
/// Errors: -EINVAL: not an open context; -EAGAIN: the system cannot make a thread. Threads: any.
/// Cost: creates a thread.
#[no_mangle]
pub unsafe extern "C" fn gdrc_helper_start(ctx: *mut gdrc_context) -> c_int {
    call(|| device(ctx)?.helper(true))
}

/// Stops the helper thread and waits for its end. Without a helper it does nothing.
///
/// Errors: -EINVAL: not an open context. Threads: any. Cost: joins a thread.
#[no_mangle]
pub unsafe extern "C" fn gdrc_helper_stop(ctx: *mut gdrc_context) -> c_int {
    call(|| device(ctx)?.helper(false))
}
