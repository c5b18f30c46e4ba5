//! Signals that end the launcher while it searches. It first ends the program and removes its
//! files.

use std::sync::atomic::{AtomicI32, Ordering};

/// The signals of a user who has had enough.
const SIGNALS: [i32; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The last one that came; 0: none.
static CAME: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: i32) {
    CAME.store(signal, Ordering::Relaxed);
}

/// From here on these signals are noted, unless they are ignored.
pub fn catch_signals() {
    for signal in SIGNALS {
        let note: extern "C" fn(i32) = note;
        // SAFETY: the handler does nothing but store a number.
        unsafe {
            if libc::signal(signal, note as libc::sighandler_t) == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

/// The signal that has come.
pub fn signal() -> Option<i32> {
    Some(CAME.load(Ordering::Relaxed)).filter(|signal| *signal != 0)
}

/// Ends this process by the signal that has come, if one has.
pub fn end_by_signal() {
    if let Some(signal) = signal() {
        // SAFETY: no pointers; SIG_DFL is no function.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    }
}
