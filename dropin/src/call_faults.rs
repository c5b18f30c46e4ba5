//! Injected faults of calls (`call NAME errno E` of docs/using/TESTING.md): the layer asks for an
//! answer before it makes a call of the program. A call that a rule hits is not made, and returns
//! the errno in the form that its row of [`gdrcore_calls::CALLS`] says.
//!
//! # Thread rule
//! Any thread. The calls of all threads of the process have one order, in which they come here.

use crate::env;
use crate::fork_verbs::around_forks_and_in_child;
use crate::verb_result::Verb;
use core::sync::atomic::{AtomicU64, Ordering};
use gdrcore_calls::{is_named, Args, Outcome, Row, CALLS};
use gdrcore_core::inject::{Faults, RULES_MAX};
use gdrcore_core::refuse;
use gdrcore_net::inject::{process_seed, report, tell_of_call};
use gdrcore_net::reason;
use std::sync::OnceLock;

/// The faults of the process's calls.
struct CallFaults {
    /// The words of the rules.
    words: String,
    rules: Faults,
    seed: u64,
}

static FAULTS: OnceLock<CallFaults> = OnceLock::new();

/// What each rule has counted.
static COUNTS: [AtomicU64; RULES_MAX] = [const { AtomicU64::new(0) }; RULES_MAX];

/// Reads the environment; whether it requests that calls fail. Once, when the library is loaded. Of
/// rules that are wrong nothing is done here: no device opens then.
pub fn install() -> bool {
    let Some(words) = env::faults() else { return false };
    let found = env::fault_spec(&words).read().ok().filter(Faults::hits_calls);
    let seed = || if env::seed() == 0 { process_seed().ok() } else { Some(env::seed()) };
    let Some((rules, seed)) = found.zip(seed()) else { return false };
    reason::install();
    let _ = FAULTS.set(CallFaults { words, rules, seed });
    // A child of fork is another process, and counts its own calls.
    around_forks_and_in_child(nothing, nothing, count_anew);
    // SAFETY: a function of this library, which the program keeps loaded.
    unsafe { libc::atexit(at_exit) };
    true
}

extern "C" fn nothing() {}

extern "C" fn count_anew() {
    COUNTS.iter().for_each(|count| count.store(0, Ordering::Relaxed));
}

/// Also if the program has opened no device.
extern "C" fn at_exit() {
    report();
}

/// The result of a call that fails by a rule, with errno set. `None`: the call is to be made.
/// `abort`: `ibv_wr_abort`, for the same queue pair.
pub fn answer(row: usize, args: &Args, abort: impl FnOnce()) -> Option<usize> {
    let faults = FAULTS.get()?;
    let count = |rule: usize| 1 + COUNTS[rule].fetch_add(1, Ordering::Relaxed);
    let hit = faults.rules.call(faults.seed, |name| is_named(row, args, name), count)?;
    tell_of_call(&env::fault_spec(&faults.words), faults.seed, &hit);
    Verb(CALLS[row].name).refused(refuse!(Os(hit.errno), "fault: {hit}"));
    leave_as_refused(row, args, abort);
    Some(match CALLS[row].outcome {
        Outcome::Status | Outcome::Polled => hit.errno as usize,
        Outcome::Count => -(hit.errno as isize) as usize,
        Outcome::Number => -1isize as usize,
        // Calls of the last two kinds are in no rule.
        Outcome::New(_) | Outcome::Plain(_) | Outcome::Void => 0,
    })
}

/// Does what a call that is refused does all the same.
fn leave_as_refused(row: usize, args: &Args, abort: impl FnOnce()) {
    const POSTS: [Row; 3] = [Row::ibv_post_send, Row::ibv_post_recv, Row::ibv_post_srq_recv];
    if POSTS.iter().any(|post| *post as usize == row) {
        let [_, first, bad, ..] = *args;
        if bad != 0 {
            // SAFETY: the program's pointer, which a failed post writes: nothing of the list was
            // posted.
            unsafe { (bad as *mut usize).write(first) };
        }
    }
    if row == Row::ibv_wr_complete as usize {
        // Nothing of it is posted, and another thread may begin.
        abort();
    }
}
