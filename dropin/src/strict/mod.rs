//! `GDRC_STRICT`: reports what the program does though the specification forbids it or leaves it
//! undefined, as a sanitizer does: what, of which object, where, and the rule. The layer calls
//! [`around`] for each call.
//!
//! Low to high: `rules`: their names, words and sources. `sites`: call stacks. `report`: what is
//! printed, once for each place. `like`: limits of NICs. `memory`: regions and bytes. `requests`,
//! `queues`: what is outstanding. `objects`: what lives. `attributes`: of queue pairs. `garbage`:
//! undefined fields of completions. `state`: all of it, and what each call changes in it.
//!
//! A request counts as outstanding until the program has polled a completion that tells of its end,
//! whatever the device knows: that is what the program may rely on with any device.
//!
//! # Thread rule
//! Any thread. One lock around all of it, for the time before and after a call, not during it.
//! Memory is bounded: places, objects, requests and reports have limits, beyond which there are
//! fewer reports.

mod attributes;
mod garbage;
mod like;
mod memory;
mod objects;
mod queues;
mod report;
mod requests;
mod rules;
mod sites;
mod state;

use crate::env;
use crate::fork_verbs::around_forks_and_in_child;
use crate::inside::{is_inside, Inside};
use crate::thread_lock::ForkLock;
use crate::verb_result::{errno, set_errno};
use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use gdrcore_calls::{Args, Call, CALLS};
use gdrcore_net::inject::is_privileged;
use gdrcore_net::{fault, reason};
use like::Nic;
use report::{Mode, Reports};
use state::{missing_acks, Seen, State};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time in which a thread that has taken an event acknowledges it.
const ACK_PATIENCE: Duration = Duration::from_secs(1);

static STATE: OnceLock<ForkLock<State>> = OnceLock::new();

/// A signal handler has forked this process while its thread held the lock, for ever.
static IS_LOST: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The thread forks, and holds the lock.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// Reads the environment; whether it requests that calls are checked. Once, when the library is
/// loaded. Not for a program with the rights of another user.
pub fn install() -> bool {
    let Some(value) = env::strict().filter(|_| !is_privileged()) else { return false };
    let Some(mode) = Mode::parse(&value) else {
        let wanted = "report, abort or exit=N, N from 1 to 255";
        env::say(&format!("GDRC_STRICT={value} is not {wanted}; nothing is checked"));
        return false;
    };
    let nic = env::like().and_then(|name| {
        let nic = Nic::of(&name);
        if nic.is_none() {
            env::say(&format!("GDRC_LIKE={name} is not mlx5, rxe, efa or hns; it is ignored"));
        }
        nic
    });
    reason::install();
    if let Err(e) = fault::install() {
        // Without it a bad pointer of the program would end it here.
        env::say(&format!("GDRC_STRICT: {e}; nothing is checked"));
        return false;
    }
    let _ = STATE.set(ForkLock::new(State::new(Reports::new(mode), nic, env::seed())));
    around_forks_and_in_child(hold, release, in_child);
    stay_loaded();
    true
}

/// Makes a call of the program, and checks it before and after. errno is the call's.
/// `call`: makes it with arguments that may be others than the program's.
pub fn around(row: usize, args: &Args, call: impl FnOnce(&Args) -> usize) -> usize {
    // A handler of fork may call while the thread holds the lock.
    let is_free = || !IS_LOST.load(Ordering::Relaxed) && !HOLDS.get();
    let Some(state) = STATE.get().filter(|_| is_free()) else {
        return call(args);
    };
    let before = errno();
    let seen = Inside::enter().map(|_inside| {
        let late = late_acks(&CALLS[row], args[0]);
        let mut state = state.lock();
        if let Some(late) = late {
            state.unacknowledged(late);
        }
        state.before(&CALLS[row], args)
    });
    set_errno(before);
    let (result, seen) = match seen {
        // A signal handler above this module.
        None => return call(args),
        Some(Seen::Refused(e)) => {
            set_errno(e);
            return e as usize;
        }
        Some(seen) => (call(&seen.args(args)), seen),
    };
    let after = errno();
    let mut result = result;
    let mut code = after;
    if let Some(_inside) = Inside::enter() {
        if let Some(e) = state.lock().after(&CALLS[row], args, seen, (result, after)) {
            (result, code) = (e as usize, e);
        }
    }
    set_errno(code);
    result
}

/// The events of an object that a call ends which are not acknowledged for long: another thread may
/// be between taking one and acknowledging it.
fn late_acks(call: &Call, object: usize) -> Option<(&'static str, u32)> {
    let mut missing = missing_acks(call, object)?;
    let begun = Instant::now();
    while begun.elapsed() < ACK_PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
        missing = missing_acks(call, object)?;
    }
    Some(missing)
}

extern "C" fn hold() {
    let Some(state) = STATE.get().filter(|_| !is_inside()) else { return };
    let _inside = Inside::enter();
    state.lock().forking();
    HOLDS.set(true);
    state.hold();
}

extern "C" fn release() {
    if let Some(state) = STATE.get().filter(|_| HOLDS.replace(false)) {
        state.release();
    }
}

extern "C" fn in_child() {
    let Some(state) = STATE.get() else { return };
    if HOLDS.replace(false) {
        state.release();
        state.lock().forget();
    } else {
        IS_LOST.store(true, Ordering::Relaxed);
    }
}

/// Keeps this library until the process ends, so that its end is that of the process.
fn stay_loaded() {
    let here = core::ptr::from_ref(&STATE).cast();
    let flags = libc::RTLD_NOW | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
    // SAFETY: zeroes are a value of the struct, which the call fills; the name is a static text.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(here, &mut info) != 0 && !info.dli_fname.is_null() {
            libc::dlopen(info.dli_fname, flags);
        }
    }
}

/// At the end of the process: after the handlers of `atexit` and the destructors of the libraries
/// that use this one, which may destroy objects.
extern "C" fn at_end() {
    let (Some(state), Some(inside)) = (STATE.get(), Inside::enter()) else { return };
    if IS_LOST.load(Ordering::Relaxed) {
        return;
    }
    let code = state.lock().ending();
    drop(inside);
    if let Some(code) = code {
        end_by(code);
    }
}

/// Ends the process in its end, with another status.
fn end_by(code: c_int) {
    // SAFETY: null means all streams; ends the process.
    unsafe {
        if cfg!(target_env = "musl") {
            // Its `exit` cannot be called in `exit`.
            libc::fflush(core::ptr::null_mut());
            libc::_exit(code);
        }
        libc::exit(code);
    }
}

#[cfg(not(test))]
#[used]
#[link_section = ".fini_array"]
static AT_END: extern "C" fn() = at_end;
