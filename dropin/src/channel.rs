//! Completion channels.

use crate::abi::*;
use crate::context::{Acks, Context};
use crate::cq::Cq;
use crate::queue::EventQueue;
use crate::result::{object, out, Verb};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use gdrcore_core::{refuse, Result};

/// A completion channel.
#[repr(C)]
pub struct Channel {
    ibv: ibv_comp_channel,
    /// CQs whose arming was met.
    pub events: EventQueue<*mut Cq>,
    /// CQs that use it.
    pub users: AtomicU32,
}

impl Channel {
    /// The channel that a program's pointer belongs to.
    ///
    /// # Errors
    /// [`Error::Invalid`]: null.
    ///
    /// # Safety
    /// `p` is null or a live channel of ours.
    pub unsafe fn of<'a>(p: *const ibv_comp_channel) -> Result<&'a Channel> {
        // SAFETY: the caller's promise; the program's struct is the first field.
        unsafe { object(p.cast::<Channel>()) }
    }
}

/// `ibv_create_comp_channel`.
pub unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    Verb("ibv_create_comp_channel").pointer((|| {
        // SAFETY: the program's pointer.
        unsafe { Context::of(context)? };
        let events = EventQueue::new()?;
        let ibv = ibv_comp_channel { context, fd: events.fd(), refcnt: 0 };
        Ok(Box::into_raw(Box::new(Channel { ibv, events, users: AtomicU32::new(0) })).cast())
    })())
}

/// `ibv_destroy_comp_channel`.
pub unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    Verb("ibv_destroy_comp_channel").code((|| {
        // SAFETY: the program's pointer.
        if unsafe { Channel::of(channel)? }.users.load(Ordering::Relaxed) != 0 {
            return Err(refuse!(Busy, "channel: a CQ uses it"));
        }
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
        Ok(())
    })())
}

/// `ibv_get_cq_event`: sleeps, unless the program made the descriptor non-blocking.
pub unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    Verb("ibv_get_cq_event").number((|| {
        // SAFETY: the program's pointers.
        let (channel, cq, cq_context) = unsafe { (Channel::of(channel)?, out(cq)?, out(cq_context)?) };
        channel.events.take(|c| {
            // SAFETY: a CQ removes its events from the list before it is freed, under the list's lock.
            let c_ref = unsafe { &*c };
            c_ref.event_taken();
            *cq = c.cast();
            *cq_context = c_ref.program_context();
        })?;
        Ok(0)
    })())
}

/// `ibv_ack_cq_events`: lets the destruction of the CQ go on.
pub unsafe extern "C" fn ack_cq_events(cq: *mut ibv_cq, n: c_uint) {
    if !cq.is_null() {
        // SAFETY: the program's CQ, which is not destroyed before its events are acknowledged.
        unsafe { Acks::new(cq).acknowledge(n, false) };
    }
}
