//! Verbs that take and acknowledge events: completion events of channels, asynchronous events of
//! contexts.

use crate::abi::*;
use crate::channel_verbs::Channel;
use crate::cq_verbs::Cq;
use crate::event_acks::{event_kind, AckCounters, EventKind};
use crate::hca::EventTarget;
use crate::open_context::Context;
use crate::qp_verbs::Qp;
use crate::srq_verbs::Srq;
use crate::verb_result::{object, out, Verb};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering;

/// `ibv_get_cq_event`: waits, unless the program made the descriptor non-blocking.
pub unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    Verb("ibv_get_cq_event").number((|| {
        // SAFETY: the program's pointers.
        let (channel, cq, cq_context) =
            unsafe { (Channel::from_ptr(channel)?, out(cq)?, out(cq_context)?) };
        channel.events.take(|c| {
            // SAFETY: a CQ removes its events from the list before it is freed, under the list's
            // lock.
            let of = unsafe { &*c.cast::<Cq>() };
            of.event_taken();
            *cq = c;
            *cq_context = of.program_context();
        })?;
        Ok(0)
    })())
}

/// `ibv_ack_cq_events`: lets the CQ's destruction continue.
pub unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, n: c_uint) {
    if !cq.is_null() {
        // SAFETY: the program's CQ, which is not destroyed before its events are acknowledged.
        unsafe { AckCounters::new(cq).acknowledge(n, false) };
    }
}

/// `ibv_get_async_event`.
pub unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    Verb("ibv_get_async_event").number((|| {
        // SAFETY: the program's pointers.
        let (c, event) = unsafe { (Context::from_ptr(context)?, out(event)?) };
        *event = c.events.take(|e| {
            // SAFETY: an object removes its events from the list before it is freed, under the
            // list's lock.
            if let Some(object) = unsafe { target(&e) } {
                object.async_taken().fetch_add(1, Ordering::Relaxed);
            }
            e
        })?;
        Ok(0)
    })())
}

/// The object of an event; `None`: a port.
///
/// # Safety
/// It lives.
unsafe fn target(e: &ibv_async_event) -> Option<&dyn EventTarget> {
    // SAFETY: the caller's promise; which field of the union is valid follows from the type.
    unsafe {
        Some(match event_kind(e.event_type) {
            EventKind::Cq => &*e.element.cq.cast::<Cq>(),
            EventKind::Qp => &*e.element.qp.cast::<Qp>(),
            EventKind::Srq => &*e.element.srq.cast::<Srq>(),
            EventKind::Port => return None,
        })
    }
}

/// `ibv_ack_async_event`: lets the object's destruction continue.
pub unsafe extern "C" fn ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: an event from ibv_get_async_event that was not acknowledged: its object lives.
    unsafe {
        if let Some(object) = object(event).ok().and_then(|e| target(e)) {
            object.acks().acknowledge(1, true);
        }
    }
}
