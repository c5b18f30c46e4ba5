//! A context: the object that `ibv_open_device` returns.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::event_acks::event_kind;
use crate::event_queue::EventQueue;
use crate::hca::{EventTarget, Hca, OpenContext};
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use gdrcore_core::{refuse, Result};

/// An open device.
#[repr(C)]
pub struct Context {
    /// The public part. Programs hold a pointer to its last field.
    pub verbs: verbs_context,
    pub hca: &'static Hca,
    pub adapter: &'static Adapter,
    /// Asynchronous events.
    pub events: EventQueue<ibv_async_event>,
}

impl Context {
    /// The context that a program's pointer belongs to.
    ///
    /// # Errors
    /// `Error::Invalid`: null. `Error::OwnerDead`: it is a parent process's.
    ///
    /// # Safety
    /// `p` is null or came from [`Context::publish`] and is not closed.
    pub unsafe fn from_ptr<'a>(p: *const ibv_context) -> Result<&'a Context> {
        // SAFETY: the caller's promise.
        let c = unsafe { Context::of_anybody(p)? };
        c.hca.check()?;
        Ok(c)
    }

    /// As [`Context::from_ptr`], but also accepts a parent process's context, for queries that need
    /// no device.
    ///
    /// # Errors
    /// [`Error::Invalid`]: null.
    ///
    /// # Safety
    /// As for [`Context::from_ptr`].
    pub unsafe fn of_anybody<'a>(p: *const ibv_context) -> Result<&'a Context> {
        if p.is_null() {
            return Err(refuse!(Invalid, "context: NULL"));
        }
        // SAFETY: the pointer is to the field of a Context, as the caller promises.
        Ok(unsafe { &*p.byte_sub(offset_of!(verbs_context, context)).cast::<Context>() })
    }

    /// Adds the context to its device's table, so that events reach it. Of a device that is lost it
    /// has IBV_EVENT_DEVICE_FATAL at once.
    pub fn publish(self) -> *mut ibv_context {
        // SAFETY: just made, and freed only by `ibv_close_device`.
        let c = unsafe { &*Box::into_raw(Box::new(self)) };
        c.hca.add_context(OpenContext { ibv: c.as_ibv(), events: &raw const c.events });
        c.as_ibv()
    }

    /// The pointer that programs have.
    pub fn as_ibv(&self) -> *mut ibv_context {
        (&raw const self.verbs.context).cast_mut()
    }
}

/// Removes the asynchronous events of an ended object that the program has not taken, and waits
/// until the program has acknowledged all others. `completions`: the completion events of a CQ that
/// the program has taken.
///
/// # Safety
/// Its context lives.
pub unsafe fn end_events(target: &dyn EventTarget, completions: u32) {
    // SAFETY: the caller's promise.
    if let Ok(c) = unsafe { Context::from_ptr(target.context()) } {
        // SAFETY: of an event about an object the pointer to it is valid, by any name.
        let own = unsafe { target.element().qp };
        c.events.remove(|e| {
            // SAFETY: as above.
            event_kind(e.event_type) == target.kind() && unsafe { e.element.qp } == own
        });
    }
    // SAFETY: its own fields.
    unsafe { target.acks().wait(completions, target.async_taken().load(Ordering::Relaxed)) };
}
