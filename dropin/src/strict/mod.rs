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
use core::sync::atomic::{AtomicBool, Ordering};
use gdrcore_calls::{Args, CALLS};
use gdrcore_net::inject::is_privileged;
use gdrcore_net::{fault, reason};
use like::Nic;
use report::{Mode, Reports};
use state::{Seen, State};
use std::sync::OnceLock;

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
    // SAFETY: a function of this library, which the program keeps loaded.
    unsafe { libc::atexit(at_exit) };
    true
}

/// Makes a call of the program, and checks it before and after. errno is the call's.
pub fn around(row: usize, args: &Args, call: impl FnOnce() -> usize) -> usize {
    let Some(state) = STATE.get().filter(|_| !IS_LOST.load(Ordering::Relaxed)) else {
        return call();
    };
    let before = errno();
    let seen = Inside::enter().map(|_inside| state.lock().before(&CALLS[row], args));
    set_errno(before);
    let (result, seen) = match seen {
        // A signal handler above this module.
        None => return call(),
        Some(Seen::Refused(e)) => {
            set_errno(e);
            return e as usize;
        }
        Some(seen) => (call(), seen),
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

extern "C" fn at_exit() {
    let (Some(state), Some(_inside)) = (STATE.get(), Inside::enter()) else { return };
    if IS_LOST.load(Ordering::Relaxed) {
        return;
    }
    let Some(code) = state.lock().ending() else { return };
    // SAFETY: null means all streams; ends the process.
    unsafe {
        libc::fflush(core::ptr::null_mut());
        libc::_exit(code);
    }
}
