//! Why requests failed, once for each connection of a queue pair: later requests fail for the same
//! reason, and flushed ones have no reason of their own. GDRC_VERBOSE prints it when the completion
//! is polled, GDRC_STATS when the process ends.
//!
//! Contexts and CQs choose between the explaining poll and the silent one when they are made. So
//! polls check for failures only if the environment requests it.

use crate::abi::ibv_wc;
use crate::env;
use crate::hca::{EventTarget, Hca};
use crate::string_verbs::wc_status_str;
use core::ffi::CStr;
use core::fmt;
use gdrcore_calls::options;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{wc_status, Handle};
use gdrcore_net::fork::around_forks;
use gdrcore_net::reason;
use gdrcore_net::thread_lock::ForkLock;
use std::sync::OnceLock;

/// Most causes that are kept for the end of the process.
const KEPT_MAX: usize = 64;

/// The causes for the end of the process, and how many there were beyond those.
static KEPT: ForkLock<(Vec<String>, u64)> = ForkLock::new((Vec::new(), 0));

fork_handlers!(KEPT);

/// Whether someone wants failures explained.
pub fn are_wanted() -> bool {
    static WANTED: OnceLock<bool> = OnceLock::new();
    *WANTED.get_or_init(|| {
        // Before anything is kept, as a child of fork could wait for ever for a thread that it
        // does not have.
        around_forks(hold, release);
        reason::is_verbose() || env::is_on(&options::STATS)
    })
}

/// Prints or keeps the causes of the completions that failed.
#[cold]
pub fn explain(hca: &Hca, completions: &[ibv_wc]) {
    let has_none = |wc: &&ibv_wc| matches!(wc.status, wc_status::SUCCESS | wc_status::WR_FLUSH_ERR);
    for wc in completions.iter().filter(|wc| !has_none(wc)) {
        if find(hca, |target| target.is_first_failure(wc.qp_num)) != Some(true) {
            continue;
        }
        // SAFETY: a static text.
        let status = unsafe { CStr::from_ptr(wc_status_str(wc.status)) }.to_string_lossy();
        let line = with_cause(Some(hca), wc, |why| format!("QP {:#x}: {status}: {why}", wc.qp_num));
        match reason::is_verbose() {
            true => env::say(&line),
            false => keep(line),
        }
    }
}

fn keep(line: String) {
    let (kept, more) = &mut *KEPT.lock();
    match kept.len() {
        KEPT_MAX => *more += 1,
        _ => kept.push(line),
    }
}

/// The causes that were kept, a line for each.
pub fn kept() -> Vec<String> {
    let (kept, more) = &*KEPT.lock();
    let rest = (*more > 0).then(|| format!("{more} queue pairs more failed"));
    kept.iter().cloned().chain(rest).collect()
}

/// Passes the cause of a failed completion to `f`. It has the numbers of the case if the QP is on
/// the device `hca` and has no newer cause.
pub fn with_cause<T>(hca: Option<&Hca>, wc: &ibv_wc, f: impl FnOnce(fmt::Arguments<'_>) -> T) -> T {
    // Flushed requests are many, and have no numbers.
    let hca = hca.filter(|_| wc.status != wc_status::WR_FLUSH_ERR);
    let cause = hca.and_then(|hca| {
        let qp: Handle = find(hca, |target| target.handle_of(wc.qp_num))?;
        hca.device.qp_cause(qp).ok().filter(|cause| cause.code == wc.vendor_err)
    });
    match cause {
        Some(cause) => f(format_args!("{cause}")),
        None => {
            f(format_args!("{}", CauseCode::from_u32(wc.vendor_err).unwrap_or_default().text()))
        }
    }
}

/// What the first object that has an answer answers.
fn find<T>(hca: &Hca, ask: impl Fn(&dyn EventTarget) -> Option<T>) -> Option<T> {
    let objects = hca.objects();
    // SAFETY: what is in the table, which is locked, lives.
    let mut all = objects.by_handle.values().map(|target| unsafe { &**target });
    all.find_map(ask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_causes_are_held_during_fork() {
        hold();
        let other = std::thread::spawn(|| keep("a cause".into()));
        // The pause need not be exact: the other thread has most likely released the lock by now.
        std::thread::sleep(core::time::Duration::from_millis(20));
        let was_done = other.is_finished();
        release();
        other.join().unwrap();
        assert!(!was_done);
        assert_eq!(kept(), ["a cause"]);
    }
}
