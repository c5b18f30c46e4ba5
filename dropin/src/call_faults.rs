//! Injected faults of calls (`call NAME errno E` of docs/using/TESTING.md): the layer asks for an
//! answer before it makes a call of the program. A call that a rule hits is not made, and returns
//! the errno in the form that its row of [`gdrcore_calls::CALLS`] says. For `gdrcore-run
//! --search-faults` all calls are counted, too.
//!
//! # Thread rule
//! Any thread. The order in which calls come here is the order of the process's calls.

use crate::env;
use crate::verb_result::Verb;
use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use gdrcore_calls::options;
use gdrcore_calls::{is_named, Args, Outcome, Row, CALLS};
use gdrcore_core::inject::{Faults, RULES_MAX};
use gdrcore_core::refuse;
use gdrcore_net::fork::around_forks_and_in_child;
use gdrcore_net::inject::{report, tell_of_call};
use gdrcore_net::map::Map;
use gdrcore_net::reason;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// The faults of the process's calls.
struct CallFaults {
    /// The words of the rules.
    words: String,
    rules: Faults,
    seed: u64,
}

static FAULTS: OnceLock<CallFaults> = OnceLock::new();

/// The calls of each row, in a file: of all processes of the program.
static MADE: OnceLock<&'static [AtomicU64]> = OnceLock::new();

/// What each rule has counted.
static COUNTS: [AtomicU64; RULES_MAX] = [const { AtomicU64::new(0) }; RULES_MAX];

/// Reads the environment; whether it requests that calls fail or are counted. Once, when the
/// library is loaded.
pub fn install() -> bool {
    read_rules() | map_counts()
}

/// Maps the file that `GDRC_CALL_COUNTS` names, if it has room for a number of each row.
fn map_counts() -> bool {
    let len = size_of::<AtomicU64>() * CALLS.len();
    let file = env::unprivileged(&options::CALL_COUNTS).and_then(|path| {
        let file = File::options().read(true).write(true).open(path).ok()?;
        (file.metadata().ok()?.len() >= len as u64).then_some(file)
    });
    let Some(map) = file.and_then(|f| Map::shared(f.as_raw_fd(), 0, len, true).ok()) else {
        return false;
    };
    // It stays until the process ends.
    let at = map.as_ptr().cast::<AtomicU64>();
    core::mem::forget(map);
    // SAFETY: a whole page or more, which stays; other processes count in it, too.
    let _ = MADE.set(unsafe { core::slice::from_raw_parts(at, CALLS.len()) });
    true
}

/// Wrong rules are ignored here, because no device opens with them.
fn read_rules() -> bool {
    let Some(words) = env::faults() else { return false };
    let spec = env::fault_spec(&words);
    let Some(rules) = spec.read().ok().filter(Faults::hits_calls) else { return false };
    let Ok(seed) = spec.drawn_seed() else { return false };
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
    if let Some(made) = MADE.get() {
        made[row].fetch_add(1, Ordering::Relaxed);
    }
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

/// Does the part of a refused call that is done in any case.
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
    if row == Row::ibv_get_device_list as usize && args[0] != 0 {
        // SAFETY: the program's int, which the call writes also if it fails.
        unsafe { (args[0] as *mut c_int).write(0) };
    }
    if row == Row::ibv_wr_complete as usize {
        // Nothing of it is posted, and another thread may begin.
        abort();
    }
}
