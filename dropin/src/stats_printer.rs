//! `GDRC_STATS`: prints the counters of a process to standard error, under rxe's names, and why
//! requests failed; `GDRC_TRACE_COUNT`: prints a table of its calls. It prints
//! once at the end, by `exit` or by a signal that ends programs, and at each SIGUSR2. It leaves
//! signals alone that the program handles or ignores.

use crate::worker::{HelperThread, Sleep, Wakeup};
use crate::{env, failed_requests, trace, verb_result as result};
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use core::time::Duration;
use gdrcore_calls::options;
use gdrcore_core::counters::Counters;
use gdrcore_net::signals::without_signals;
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::Once;

static PRINTER: HelperThread = HelperThread::new();

/// The signal that ends the process when the counters are printed; 0: none.
static ENDING: AtomicI32 = AtomicI32::new(0);

/// Whether the last printing was done.
static DONE: AtomicBool = AtomicBool::new(false);

/// Whether printing failed: then the process must not end as a success.
static LOST: AtomicBool = AtomicBool::new(false);

/// Installs the handlers, if the environment requests the counters. One caller at a time. A thread
/// of this module calls `total`.
pub fn install(total: fn() -> Counters) {
    static ONCE: Once = Once::new();
    let print = move |why: &Wakeup<'_>| {
        work(why.last, total);
        Sleep::default()
    };
    let is_wanted = env::is_on(&options::STATS) || trace::is_counting();
    if !is_wanted || PRINTER.is_started() || PRINTER.start("gdrc-stats", print).is_err() {
        return;
    }
    ONCE.call_once(|| {
        // SAFETY: a function of this library, which stays loaded as long as the program's libraries
        // need it.
        unsafe { libc::atexit(at_exit) };
        handle(libc::SIGUSR2, on_request);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            handle(signal, on_end);
        }
    });
}

/// Handles a signal, unless the program handles or ignores it.
fn handle(signal: c_int, handler: extern "C" fn(c_int)) {
    // SAFETY: zeroes are valid for the structs, which live through the calls; the handlers are of
    // this library, as above.
    unsafe {
        let mut now: libc::sigaction = core::mem::zeroed();
        if libc::sigaction(signal, core::ptr::null(), &mut now) == 0
            && now.sa_sigaction == libc::SIG_DFL
        {
            let mut ours: libc::sigaction = core::mem::zeroed();
            ours.sa_sigaction = handler as usize;
            ours.sa_flags = libc::SA_RESTART;
            libc::sigaction(signal, &ours, core::ptr::null_mut());
        }
    }
}

extern "C" fn on_request(_signal: c_int) {
    let errno = result::errno();
    PRINTER.wake();
    result::set_errno(errno);
}

/// The program goes on until the counters are printed, because it may hold locks that printing
/// needs. Then the signal ends it.
extern "C" fn on_end(signal: c_int) {
    let errno = result::errno();
    if PRINTER.is_started() {
        ENDING.store(signal, Ordering::Release);
        PRINTER.wake();
    } else {
        // A child of fork has no such thread. The signal ends it when this handler returns.
        end_by(signal, libc::raise);
    }
    result::set_errno(errno);
}

/// Restores a signal's default action, and sends the signal.
fn end_by(signal: c_int, send: unsafe extern "C" fn(c_int) -> c_int) {
    // SAFETY: zeroes are valid for the struct, which lives through the call; no other pointers.
    unsafe {
        let mut default: libc::sigaction = core::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &default, core::ptr::null_mut());
        send(signal);
    }
}

/// Sends the signal to the process, because this thread blocks all signals.
unsafe extern "C" fn send_to_process(signal: c_int) -> c_int {
    // SAFETY: takes no pointers.
    unsafe { libc::kill(libc::getpid(), signal) }
}

/// One run of the thread: prints.
fn work(last: bool, total: fn() -> Counters) {
    let ending = ENDING.load(Ordering::Acquire);
    if !last && ending == 0 {
        let _ = print(&total());
    } else if !DONE.swap(true, Ordering::Relaxed) && print(&total()).is_err() {
        LOST.store(true, Ordering::Release);
    }
    if ending != 0 {
        end_by(ending, send_to_process);
        // A thread that accepts the signal handles it now. If all threads block it, the process
        // ends here.
        std::thread::sleep(Duration::from_secs(1));
        // SAFETY: ends the process.
        unsafe { libc::_exit(128 + ending) };
    }
}

extern "C" fn at_exit() {
    PRINTER.finish();
}

/// Runs after the handlers that the program gave to `atexit`.
extern "C" fn at_last() {
    if LOST.load(Ordering::Acquire) {
        // SAFETY: null means all streams; ends the process.
        unsafe {
            libc::fflush(core::ptr::null_mut());
            libc::_exit(1);
        }
    }
}

#[used]
#[link_section = ".fini_array"]
static AT_LAST: extern "C" fn() = at_last;

/// Prints the counters that are not 0, causes of failures and the table of calls, as requested,
/// with one write.
fn print(all: &Counters) -> std::io::Result<()> {
    let mut text = String::new();
    if env::is_on(&options::STATS) {
        for (name, value) in Counters::NAMES.iter().zip(all.values()).filter(|(_, v)| *v != 0) {
            let _ = writeln!(text, "gdrcore: {name} {value}");
        }
        for cause in failed_requests::kept() {
            let _ = writeln!(text, "gdrcore: {cause}");
        }
    }
    if trace::is_counting() {
        trace::counts(&mut text);
    }
    without_signals(|| std::io::stderr().write_all(text.as_bytes()))
}
