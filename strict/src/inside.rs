//! A thread's presence in what looks at the calls of the program: `trace` and `strict`.

use core::cell::Cell;
use core::ffi::c_int;

thread_local! {
    // Const and without drop: no allocation, no destructor to register.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

extern "C" {
    /// pthread_setcancelstate(3).
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}
/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: c_int = 1;

/// The thread's presence, perhaps with locks. A signal handler that interrupts it, and makes calls,
/// ends the program or forks, must not wait for the thread's own locks. Nor may another thread
/// cancel it here: a verb is no cancellation point, but a write is.
pub struct Inside {
    /// The thread's cancelability before.
    cancel: c_int,
}

/// Whether this thread is present; then the caller is a signal handler above it.
pub fn is_inside() -> bool {
    INSIDE.get()
}

impl Inside {
    /// `None`: it is a signal handler above such a thread.
    pub fn enter() -> Option<Inside> {
        // Made only if it was not there: its drop says that it has gone.
        if INSIDE.replace(true) {
            return None;
        }
        let mut inside = Inside { cancel: 0 };
        // SAFETY: the place of a number, which lives through the call.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut inside.cancel) };
        Some(inside)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // SAFETY: the old state may be null.
        unsafe { pthread_setcancelstate(self.cancel, core::ptr::null_mut()) };
        INSIDE.set(false);
    }
}
