//! Pins: a queue pair or CQ looked up once, for posts and polls that look nothing up: gdrc_qp_pin,
//! gdrc_cq_pin, and the functions that the header's inline functions call.
//!
//! An entry that is wiped or shut passes every call on to the functions here, which ask
//! [`pin_table`](crate::pin_table).

use crate::c_result::{count, ret};
use crate::c_types::*;
use crate::context_device::ContextDevice;
use crate::context_slots::{device, fast, FastDevice};
use crate::data_calls::{gdrc_poll_cq, gdrc_post_recv, gdrc_post_send};
use crate::pin_entries::{CqEntry, QpEntry, ALL};
use crate::pin_table::{PinTarget, PinnedObject, CQS, QPS};
use crate::ptr::{check_list, out, report_bad, wc_slice};
use core::ffi::c_int;
use gdrcore_core::verbs::types::{Handle, RecvWr, SendWr};
use gdrcore_core::Result;
use gdrcore_net::fork::ForkGuard;
use gdrcore_verbs::pinned::is_usual_list;
use gdrcore_verbs::{all_succeeded, refused};

/// Pins a queue pair: writes to `*out` what gdrc_pinned_post_send and gdrc_pinned_post_recv take,
/// inline functions that look neither context nor handle up. While a queue pair is pinned it is not
/// destroyed (-EBUSY). One may be pinned several times, and posted to by gdrc_post_send as well.
/// The struct is the library's own: not to be written, nor to be read but by those functions.
/// gdrc_close gives back what the program did not.
///
/// Errors: -EINVAL: stale handle, out is NULL; -ENOMEM: the process has 8192 pinned queue pairs;
/// -EOPNOTSUPP: the device cannot.
/// Threads: any. Cost: one system call.
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_pin(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    out: *mut *const gdrc_pinned_qp,
) -> c_int {
    ret(qp_pin(ctx, qp.handle, out))
}

fn qp_pin(
    ctx: *mut gdrc_context,
    handle: Handle,
    out: *mut *const gdrc_pinned_qp,
) -> Result<c_int> {
    let out = out!(out);
    let device = device(ctx)?;
    device.qp_pin(handle)?;
    let pin = insert_qp(ctx, device, handle);
    if pin.is_err() {
        device.qp_unpin(handle)?;
    }
    out.write(pin?.cast());
    Ok(0)
}

/// A pin of a queue pair that the device has pinned.
fn insert_qp(
    ctx: *mut gdrc_context,
    device: &'static dyn ContextDevice,
    handle: Handle,
) -> Result<*const QpEntry> {
    let (target, nic) = match fast(ctx) {
        FastDevice::Nic(nic) => (PinTarget::Nic(nic), Some(nic.pinned_qp(handle)?)),
        FastDevice::Soft(soft) => (PinTarget::SoftQp(soft.pinned_qp(handle)?), None),
        FastDevice::None => (PinTarget::Checked, None),
    };
    QPS.insert(
        ctx,
        PinnedObject { device, target, owner: ForkGuard::new(), handle },
        |entry, target| match (target, nic) {
            (_, Some(nic)) => entry.open_nic(&nic),
            (PinTarget::SoftQp(to), _) => entry.open_soft(to),
            _ => {}
        },
    )
}

/// Gives a pin back. No other call with it may run; later ones get -EINVAL until 8192 more were
/// made.
///
/// Errors: -EINVAL: not a pin, or given back before; -EOWNERDEAD: made by the parent of this fork.
/// Threads: one per pin. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_unpin(pin: *const gdrc_pinned_qp) -> c_int {
    ret(QPS
        .index(pin.cast())
        .and_then(|i| QPS.vacate(i, |w| w.device.qp_unpin(w.handle)))
        .map(|()| 0))
}

/// Pins a CQ for gdrc_pinned_poll_cq; else as gdrc_qp_pin.
///
/// Errors: as gdrc_qp_pin. Threads: any. Cost: one system call.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_pin(
    ctx: *mut gdrc_context,
    cq: gdrc_cq,
    out: *mut *const gdrc_pinned_cq,
) -> c_int {
    ret(cq_pin(ctx, cq.handle, out))
}

fn cq_pin(
    ctx: *mut gdrc_context,
    handle: Handle,
    out: *mut *const gdrc_pinned_cq,
) -> Result<c_int> {
    let out = out!(out);
    let device = device(ctx)?;
    device.cq_pin(handle)?;
    let pin = insert_cq(ctx, device, handle);
    if pin.is_err() {
        device.cq_unpin(handle)?;
    }
    out.write(pin?.cast());
    Ok(0)
}

/// A pin of a CQ that the device has pinned.
fn insert_cq(
    ctx: *mut gdrc_context,
    device: &'static dyn ContextDevice,
    handle: Handle,
) -> Result<*const CqEntry> {
    let (target, nic) = match fast(ctx) {
        FastDevice::Nic(nic) => (PinTarget::Nic(nic), Some(nic.pinned_cq(handle)?)),
        FastDevice::Soft(soft) => (PinTarget::SoftCq(soft.pinned_cq(handle)?), None),
        FastDevice::None => (PinTarget::Checked, None),
    };
    CQS.insert(
        ctx,
        PinnedObject { device, target, owner: ForkGuard::new(), handle },
        |entry, target| match (target, nic) {
            (_, Some(nic)) => entry.open_nic(&nic),
            (PinTarget::SoftCq(of), _) => entry.open_soft(of),
            _ => {}
        },
    )
}

/// Gives a pin back, as gdrc_qp_unpin.
///
/// Errors: as gdrc_qp_unpin. Threads: one per pin. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cq_unpin(pin: *const gdrc_pinned_cq) -> c_int {
    ret(CQS
        .index(pin.cast())
        .and_then(|i| CQS.vacate(i, |w| w.device.cq_unpin(w.handle)))
        .map(|()| 0))
}

/// The part of gdrc_pinned_post_send that is not inline: lists, inline data and refusals. Not for
/// programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_send_rest(
    pin: *const gdrc_pinned_qp,
    wr: *const gdrc_send_wr,
    bad: *mut *const gdrc_send_wr,
) -> c_int {
    // SAFETY: the header's contract: a pin that was made once, which is for ever, or the caller's
    // own zeros.
    let entry = unsafe { &*pin };
    // SAFETY: the header's contract: the list is readable; c_layout.rs asserts that both structs
    // are one layout.
    if entry.pairs == ALL || unsafe { is_usual_list(wr.cast(), entry.unusual, entry.pairs) } {
        if let Some(post_send) = entry.post_send {
            let mut first = wr;
            // SAFETY: entries that let lists through are those of QPs that are pinned; the list is
            // checked, or the function does it.
            return match unsafe { post_send(entry.object, wr, &mut first) } {
                0 => 0,
                // SAFETY: our contract.
                rc => unsafe { report_bad(refused(rc), bad, first) },
            };
        }
    }
    // SAFETY: our contract.
    unsafe { send_rest(pin, wr, bad) }
}

/// A post of a list that needs more than the provider's checks.
///
/// # Safety
/// That of [`gdrc_pinned_send_rest`].
#[inline(never)]
unsafe extern "C" fn send_rest(
    pin: *const gdrc_pinned_qp,
    wr: *const gdrc_send_wr,
    bad: *mut *const gdrc_send_wr,
) -> c_int {
    let mut first: *const SendWr = wr.cast();
    let done = match QPS.object(pin.cast()) {
        Ok((PinnedObject { target: PinTarget::Nic(nic), handle, .. }, _)) => check_list(wr)
            // SAFETY: it is pinned; the header's contract: the list is readable.
            .and_then(|()| unsafe { nic.pinned_post_send(*handle, wr.cast(), &mut first) }),
        Ok((w, ctx)) => {
            // SAFETY: our contract.
            return unsafe { gdrc_post_send(ctx, gdrc_qp { handle: w.handle }, wr, bad) };
        }
        Err(e) => Err(e),
    };
    match done {
        Ok(()) => 0,
        // SAFETY: the header's contract: bad is NULL or writable.
        Err(e) => unsafe { report_bad(e, bad, first.cast()) },
    }
}

/// The part of gdrc_pinned_post_recv that is not inline. Not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_recv_rest(
    pin: *const gdrc_pinned_qp,
    wr: *const gdrc_recv_wr,
    bad: *mut *const gdrc_recv_wr,
) -> c_int {
    // SAFETY: as in gdrc_pinned_send_rest.
    let entry = unsafe { &*pin };
    if let (ALL, Some(post_recv)) = (entry.pairs, entry.post_recv) {
        // SAFETY: as in gdrc_pinned_send_rest; this one checks the list, and `bad`.
        return unsafe { post_recv(entry.object, wr, bad) };
    }
    let mut first: *const RecvWr = wr.cast();
    let done = match QPS.object(pin.cast()) {
        Ok((PinnedObject { target: PinTarget::Nic(nic), handle, .. }, _)) => check_list(wr)
            // SAFETY: it is pinned; the header's contract: the list is readable.
            .and_then(|()| unsafe { nic.pinned_post_recv(*handle, wr.cast(), &mut first) }),
        Ok((w, ctx)) => {
            // SAFETY: our contract.
            return unsafe { gdrc_post_recv(ctx, gdrc_qp { handle: w.handle }, wr, bad) };
        }
        Err(e) => Err(e),
    };
    match done {
        Ok(()) => 0,
        // SAFETY: the header's contract: bad is NULL or writable.
        Err(e) => unsafe { report_bad(e, bad, first.cast()) },
    }
}

/// The part of gdrc_pinned_poll_cq for a pin that passes no poll to a device. Not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_poll_rest(
    pin: *const gdrc_pinned_cq,
    num_entries: c_int,
    wc: *mut gdrc_wc,
) -> c_int {
    match CQS.object(pin.cast()) {
        // SAFETY: our contract.
        Ok((w, ctx)) => unsafe { gdrc_poll_cq(ctx, gdrc_cq { handle: w.handle }, num_entries, wc) },
        Err(e) => ret(Err(e)),
    }
}

/// The result of gdrc_pinned_post_send and gdrc_pinned_post_recv for a request that a device
/// refused with `rc`. Not for programs.
#[no_mangle]
#[cold]
pub extern "C" fn gdrc_pinned_refused(rc: c_int) -> c_int {
    ret(Err(refused(rc)))
}

/// The result of gdrc_pinned_poll_cq for a poll that a device ended with `n`: a number of
/// completions, or an error. Not for programs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_pinned_polled(
    pin: *const gdrc_pinned_cq,
    n: c_int,
    wc: *mut gdrc_wc,
) -> c_int {
    // SAFETY: the provider wrote n of the caller's entries.
    if n > 0 && unsafe { all_succeeded(wc.cast(), n) } {
        return n;
    }
    // SAFETY: as above.
    unsafe { polled_else(pin, n, wc) }
}

/// The result of a poll that found failed operations or nothing, or that failed.
///
/// # Safety
/// That of [`gdrc_pinned_polled`].
#[inline(never)]
unsafe fn polled_else(pin: *const gdrc_pinned_cq, n: c_int, wc: *mut gdrc_wc) -> c_int {
    // SAFETY: the header's contract: a pin that was made once, which is for ever.
    if unsafe { (*pin).as_is } != 0 {
        return n;
    }
    match CQS.object(pin.cast()) {
        Ok((PinnedObject { target: PinTarget::Nic(nic), handle, .. }, _)) if n <= 0 => {
            ret(nic.pinned_polled_nothing(*handle, n).map(count))
        }
        Ok((PinnedObject { target: PinTarget::Nic(nic), .. }, _)) => {
            // SAFETY: the provider wrote n of the caller's entries.
            ret(unsafe { wc_slice(wc, n) }.map(|wc| count(nic.explain_all(wc, wc.len()))))
        }
        Ok(_) => n,
        Err(e) => ret(Err(e)),
    }
}
