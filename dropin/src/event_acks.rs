//! Acknowledgement of asynchronous events. An object's destruction waits until programs have
//! acknowledged its events. Counters in the object show that.

use crate::abi::*;
use gdrcore_core::device::async_event;

/// The kind of object that an event is about.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EventKind {
    Cq,
    Qp,
    Srq,
    Port,
}

/// The kind of object that an event of this type is about.
pub fn event_kind(event_type: u32) -> EventKind {
    match event_type {
        async_event::CQ_ERR => EventKind::Cq,
        async_event::QP_FATAL
        | async_event::QP_REQ_ERR
        | async_event::QP_ACCESS_ERR
        | async_event::COMM_EST
        | async_event::SQ_DRAINED
        | async_event::PATH_MIG
        | async_event::PATH_MIG_ERR
        | async_event::QP_LAST_WQE_REACHED => EventKind::Qp,
        async_event::SRQ_ERR | async_event::SRQ_LIMIT_REACHED => EventKind::Srq,
        _ => EventKind::Port,
    }
}

/// The mutex, condition and counters that every object with events has in its ABI struct.
pub struct AckCounters {
    mutex: *mut libc::pthread_mutex_t,
    cond: *mut libc::pthread_cond_t,
    /// Completion events that were acknowledged, or null.
    completion: *mut u32,
    /// Asynchronous events that were acknowledged.
    asynchronous: *mut u32,
}

/// An object with events.
pub trait HasEvents {
    /// Pointers to the fields of the object.
    fn ack_counters(this: *mut Self) -> AckCounters;
}

macro_rules! has_events {
    ($($t:ty: $asynchronous:ident $($completion:ident)?;)*) => {$(
        impl HasEvents for $t {
            fn ack_counters(p: *mut Self) -> AckCounters {
                // SAFETY: only addresses are formed, of fields of a live object.
                unsafe {
                    AckCounters {
                        mutex: &raw mut (*p).mutex,
                        cond: &raw mut (*p).cond,
                        completion: [$(&raw mut (*p).$completion,)? core::ptr::null_mut()][0],
                        asynchronous: &raw mut (*p).$asynchronous,
                    }
                }
            }
        }
    )*};
}
has_events! {
    ibv_cq: async_events_completed comp_events_completed;
    ibv_qp: events_completed;
    ibv_srq: events_completed;
}

impl AckCounters {
    /// The fields of an object, which lives for as long as they are used.
    pub fn new<T: HasEvents>(object: *const T) -> AckCounters {
        T::ack_counters(object.cast_mut())
    }

    /// Counts events that the program has acknowledged.
    ///
    /// # Safety
    /// The object of [`AckCounters::new`] lives.
    pub unsafe fn acknowledge(&self, n: u32, asynchronous: bool) {
        let counter = if asynchronous { self.asynchronous } else { self.completion };
        // SAFETY: mutex and condition were initialised with the object, and the mutex protects the
        // counters.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            *counter = (*counter).wrapping_add(n);
            libc::pthread_cond_broadcast(self.cond);
            libc::pthread_mutex_unlock(self.mutex);
        }
    }

    /// Events that were taken and are not acknowledged.
    ///
    /// # Safety
    /// The object of [`AckCounters::new`] lives.
    pub unsafe fn missing(&self, completion_taken: u32, asynchronous_taken: u32) -> u32 {
        // SAFETY: as in `acknowledge`.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            let mut n = asynchronous_taken.wrapping_sub(*self.asynchronous);
            if !self.completion.is_null() {
                n += completion_taken.wrapping_sub(*self.completion);
            }
            libc::pthread_mutex_unlock(self.mutex);
            n
        }
    }

    /// Sleeps until the program has acknowledged as many events as it has taken.
    ///
    /// # Safety
    /// The object of [`AckCounters::new`] lives.
    pub unsafe fn wait(&self, completion_taken: u32, asynchronous_taken: u32) {
        // SAFETY: as in `acknowledge`.
        unsafe {
            libc::pthread_mutex_lock(self.mutex);
            while *self.asynchronous != asynchronous_taken
                || (!self.completion.is_null() && *self.completion != completion_taken)
            {
                libc::pthread_cond_wait(self.cond, self.mutex);
            }
            libc::pthread_mutex_unlock(self.mutex);
        }
    }
}
