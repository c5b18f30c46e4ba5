//! Takes the kernel's events. Each event is acknowledged at once, so the destruction of an object
//! never waits for another thread.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{null_mut, NonNull};

use crate::last_errno;
use gdrcore_verbs::abi::{Event, Object};
use rdma_sys::{
    ibv_ack_async_event, ibv_ack_cq_events, ibv_async_event, ibv_cq, ibv_get_async_event,
    ibv_get_cq_event,
};

/// A cookie as the pointer that libibverbs keeps for us.
pub fn pointer(cookie: u64) -> *mut c_void {
    core::ptr::without_provenance_mut(cookie as usize)
}

/// # Safety
/// `channel` is an open, non-blocking channel; `cookie` is writable.
pub unsafe extern "C" fn cq_event(channel: Object, cookie: *mut u64) -> c_int {
    let mut cq: *mut ibv_cq = null_mut();
    let mut context: *mut c_void = null_mut();
    // SAFETY: our contract; both results are writable.
    if unsafe { ibv_get_cq_event(channel.cast(), &mut cq, &mut context) } != 0 {
        return last_errno();
    }
    // SAFETY: the event's own CQ, which cannot be destroyed before this.
    unsafe { ibv_ack_cq_events(cq, 1) };
    // SAFETY: our contract.
    unsafe { cookie.write(context.addr() as u64) };
    0
}

/// Offset of an event's type: behind a pointer.
const TYPE_AT: usize = core::mem::offset_of!(ibv_async_event, event_type);

/// # Safety
/// `context` is open, its `async_fd` non-blocking; `out` is writable.
pub unsafe extern "C" fn async_event(context: Object, out: *mut Event) -> c_int {
    // The event is not read as rdma-sys' struct: there its type is a Rust enum, and newer kernels
    // have more events.
    let mut event = MaybeUninit::<ibv_async_event>::zeroed();
    // SAFETY: our contract; the event is writable.
    if unsafe { ibv_get_async_event(context.cast(), event.as_mut_ptr()) } != 0 {
        return last_errno();
    }
    let at: *const u8 = event.as_ptr().cast();
    // SAFETY: the element comes first and is a pointer or an int in the low half of zeroes.
    let element = unsafe { at.cast::<*mut c_void>().read() };
    // SAFETY: inside the event, an int there.
    let kind = unsafe { at.add(TYPE_AT).cast::<u32>().read() };
    let cookie = match kind {
        // IBV_EVENT_CQ_ERR
        // SAFETY: the event's own CQ, which cannot be destroyed before the acknowledgement.
        0 => NonNull::new(element).map(|cq| unsafe { (*cq.as_ptr().cast::<ibv_cq>()).cq_context }),
        // QP_FATAL to PATH_MIG_ERR, QP_LAST_WQE_REACHED
        // SAFETY: as above, a QP.
        1..=7 | 16 => NonNull::new(element)
            .map(|qp| unsafe { (*qp.as_ptr().cast::<rdma_sys::ibv_qp>()).qp_context }),
        // SRQ_ERR, SRQ_LIMIT_REACHED
        // SAFETY: as above, an SRQ.
        14 | 15 => NonNull::new(element)
            .map(|srq| unsafe { (*srq.as_ptr().cast::<rdma_sys::ibv_srq>()).srq_context }),
        _ => None,
    };
    // SAFETY: taken above, once.
    unsafe { ibv_ack_async_event(event.as_mut_ptr()) };
    let cookie_of_port = element.addr() as u64 & 0xFFFF_FFFF;
    let event = Event {
        kind,
        object: u32::from(cookie.is_some()),
        cookie: cookie.map_or(cookie_of_port, |c| c.addr() as u64),
    };
    // SAFETY: our contract.
    unsafe { out.write(event) };
    0
}
