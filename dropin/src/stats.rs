//! `GDRC_STATS`: the counters of every open device, under rxe's names, on standard error: when a device is closed, at exit, and
//! at SIGUSR2 unless the program has a handler of its own for that.

use crate::adapter::STATE;
use crate::env;
use crate::worker::Worker;
use core::ffi::c_int;
use std::sync::Once;

static PRINTER: Worker = Worker::new();

/// From here on the counters are printed, if the environment asks for it. Called when a device is opened, under the lock of the list.
pub fn install() {
    static ONCE: Once = Once::new();
    if !env::stats() || PRINTER.is_started() {
        return;
    }
    if PRINTER.start("gdrc-stats", |_| print()).is_err() {
        return;
    }
    ONCE.call_once(|| {
        // SAFETY: a function of this library, which stays loaded as long as the program's libraries need it; zeroes are valid
        // for the structs, which live through the calls.
        unsafe {
            libc::atexit(at_exit);
            let mut now: libc::sigaction = core::mem::zeroed();
            if libc::sigaction(libc::SIGUSR2, core::ptr::null(), &mut now) == 0 && now.sa_sigaction == libc::SIG_DFL {
                let mut ours: libc::sigaction = core::mem::zeroed();
                ours.sa_sigaction = on_signal as extern "C" fn(c_int) as usize;
                ours.sa_flags = libc::SA_RESTART;
                libc::sigaction(libc::SIGUSR2, &ours, core::ptr::null_mut());
            }
        }
    });
}

extern "C" fn on_signal(_signal: c_int) {
    let errno = crate::result::errno();
    PRINTER.wake();
    crate::result::set_errno(errno);
}

extern "C" fn at_exit() {
    PRINTER.finish();
}

fn print() {
    // Open devices stay while the list is locked.
    for open in &STATE.lock().open {
        open.hca.print_counters();
    }
}
