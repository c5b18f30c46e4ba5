//! Verbs that create and destroy completion channels. `event_verbs` takes their events.

use crate::abi::*;
use crate::event_queue::EventQueue;
use crate::open_context::Context;
use crate::verb_result::{object, Verb};
use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};
use gdrcore_core::{refuse, Result};

/// A completion channel.
#[repr(C)]
pub struct Channel {
    ibv: ibv_comp_channel,
    /// CQs with a completion event.
    pub events: EventQueue<*mut ibv_cq>,
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
    pub unsafe fn from_ptr<'a>(p: *const ibv_comp_channel) -> Result<&'a Channel> {
        // SAFETY: the caller's promise; the program's struct is the first field.
        unsafe { object(p.cast::<Channel>()) }
    }
}

/// `ibv_create_comp_channel`.
pub unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    Verb("ibv_create_comp_channel").pointer((|| {
        // SAFETY: the program's pointer.
        unsafe { Context::from_ptr(context)? };
        let events = EventQueue::new()?;
        let ibv = ibv_comp_channel { context, fd: events.fd(), refcnt: 0 };
        Ok(Box::into_raw(Box::new(Channel { ibv, events, users: AtomicU32::new(0) })).cast())
    })())
}

/// `ibv_destroy_comp_channel`.
pub unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    Verb("ibv_destroy_comp_channel").code((|| {
        // SAFETY: the program's pointer.
        if unsafe { Channel::from_ptr(channel)? }.users.load(Ordering::Relaxed) != 0 {
            return Err(refuse!(Busy, "channel: a CQ uses it"));
        }
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(channel.cast::<Channel>()) });
        Ok(())
    })())
}
