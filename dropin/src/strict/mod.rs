//! `GDRC_STRICT`, for programs of libibverbs: tells [`gdrcore_strict`] of their calls, in core's
//! terms. The layer calls [`call_checked`] for each call.
//!
//! `calls`: what each call tells. `program_objects`: the program's objects behind its pointers.
//!
//! # Thread rule
//! Any thread.

mod calls;
mod program_objects;

use crate::hca::ON_CQ_ERROR;
use crate::verb_result::set_errno;
use crate::{env, verb_result};
use calls::Seen;
use gdrcore_calls::{Args, Call, CALLS};
use gdrcore_strict::inside::Inside;
use gdrcore_strict::process::{self, is_watched, watch, Settings};
use program_objects::{id, missing_acks};
use std::time::{Duration, Instant};

/// Time in which a thread that has taken an event acknowledges it.
const ACK_PATIENCE: Duration = Duration::from_secs(1);

/// Reads the environment; whether it requests that calls are checked. Once, when the library is
/// loaded. Not for a program with the rights of another user.
pub fn install() -> bool {
    let Some(settings) = Settings::of_environment() else { return false };
    if let Err(e) = process::install(settings) {
        // Without it a bad pointer of the program would end it here.
        env::say(&format!("GDRC_STRICT: {e}; nothing is checked"));
        return false;
    }
    let is_set = |name: &&str| std::env::var_os(name).is_some();
    let is_fork_ready = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"].iter().any(is_set);
    watch(|state| state.is_fork_ready = is_fork_ready);
    // An injected error is no mistake of the program.
    if !env::faults().is_some_and(|rules| rules.contains("CQ_ERR")) {
        let _ = ON_CQ_ERROR.set(|cq| process::note_failed_cq(id(cq)));
    }
    true
}

/// Makes a call of the program, and checks it before and after. errno is the call's.
/// `call`: makes it with arguments that may be others than the program's.
pub fn call_checked(row: usize, args: &Args, call: impl FnOnce(&Args) -> usize) -> usize {
    let of_call = &CALLS[row];
    let late = is_watched().then(|| late_acks(of_call, args[0])).flatten();
    let seen = watch(|state| {
        if let Some(late) = late {
            state.unacknowledged(late);
        }
        calls::note_call(state, of_call, args)
    });
    let seen = match seen {
        // A signal handler above one who looks, or nobody does.
        None => return call(args),
        Some(Seen::Refused(e)) => {
            set_errno(e);
            return e as usize;
        }
        Some(seen) => seen,
    };
    let result = call(&seen.args(args));
    let code = verb_result::errno();
    match watch(|state| calls::note_result(state, of_call, args, seen, (result, code))).flatten() {
        Some(e) => {
            set_errno(e);
            e as usize
        }
        None => result,
    }
}

/// The events of an object that a call ends, if they stay unacknowledged for a while. Another
/// thread may have just taken one and be about to acknowledge it.
fn late_acks(call: &Call, object: usize) -> Option<(&'static str, u32)> {
    let mut missing = missing_acks(call, object)?;
    let _inside = Inside::enter()?;
    let begun = Instant::now();
    while begun.elapsed() < ACK_PATIENCE {
        std::thread::sleep(Duration::from_millis(1));
        missing = missing_acks(call, object)?;
    }
    Some(missing)
}

#[cfg(not(test))]
#[used]
#[link_section = ".fini_array"]
static AT_END: extern "C" fn() = process::at_end;
