//! The one state of the process: it begins with the first program's setting, is held over forks,
//! and reports what is left when the process ends.

use crate::inside::{is_inside, Inside};
use crate::like::Nic;
use crate::report::Reports;
use crate::state::State;
use crate::Id;
use core::cell::Cell;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};
use gdrcore_calls::options::{Mode, Setting, LIKE, SEED, STRICT};
use gdrcore_core::{refuse, Result};
use gdrcore_net::fork::around_forks_and_in_child;
use gdrcore_net::inject::is_privileged;
use gdrcore_net::thread_lock::ForkLock;
use gdrcore_net::{fault, reason};
use std::sync::{Mutex, OnceLock, PoisonError};

static STATE: OnceLock<ForkLock<State>> = OnceLock::new();

/// What the process has begun with.
static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// CQs that have failed and are not reported yet. While it is locked no other lock is taken.
static FAILED: Mutex<Vec<Id>> = Mutex::new(Vec::new());

/// A signal handler has forked this process while its thread held the lock, for ever.
static IS_LOST: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The thread forks, and holds the lock.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    mode: Mode,
    /// The NIC whose limits count.
    nic: Option<&'static Nic>,
}

/// The text of a setting in the environment.
fn text(setting: &Setting) -> Option<String> {
    setting.value(|words| reason::say(format_args!("{words}")))?.into_string().ok()
}

impl Settings {
    /// Those of the environment. None in a program with the rights of another user.
    pub fn of_environment() -> Option<Settings> {
        let mode = text(&STRICT).and_then(|value| Mode::parse(&value));
        let mode = mode.filter(|_| !is_privileged())?;
        Some(Settings { mode, nic: text(&LIKE).and_then(|name| Nic::find(&name)) })
    }

    /// Those of words: a mode, and perhaps a comma and the name of a NIC, such as `exit=66,mlx5`.
    pub fn parse(words: &str) -> Option<Settings> {
        let (mode, nic) = words.split_once(',').map_or((words, None), |(m, n)| (m, Some(n)));
        let mode = Mode::parse(mode)?;
        match nic {
            Some(name) => Some(Settings { mode, nic: Some(Nic::find(name)?) }),
            None => Some(Settings { mode, nic: None }),
        }
    }
}

/// Begins, unless that was done with the same settings. Any thread.
///
/// # Errors
/// [`gdrcore_core::Error::Invalid`]: the process has begun with others. Else the system's: no
/// handler of faults, without which a bad pointer of the program would end it here.
pub fn install(settings: Settings) -> Result<()> {
    reason::install();
    fault::install()?;
    let begun = SETTINGS.get_or_init(|| settings);
    if *begun != settings {
        return Err(refuse!(Invalid, "strict: this process has other settings already"));
    }
    STATE.get_or_init(|| {
        let seed = text(&SEED).and_then(|n| n.parse().ok()).unwrap_or(0);
        around_forks_and_in_child(hold, release, in_child);
        stay_loaded();
        ForkLock::new(State::new(Reports::new(settings.mode), settings.nic, seed))
    });
    Ok(())
}

/// The state, if this thread may look at it: a handler of fork may call while it holds the lock.
fn state() -> Option<&'static ForkLock<State>> {
    STATE.get().filter(|_| !IS_LOST.load(Ordering::Relaxed) && !HOLDS.get())
}

/// Whether a call of this thread is looked at.
pub fn is_watched() -> bool {
    state().is_some() && !is_inside()
}

/// Tells the state of a call, before or after it. errno stays. `None`: it is not there, or this is
/// a signal handler above a thread that is here.
pub fn watch<T>(f: impl FnOnce(&mut State) -> T) -> Option<T> {
    let state = state()?;
    let code = errno();
    let inside = Inside::enter()?;
    let mut held = state.lock();
    failed_cqs(&mut held);
    let result = f(&mut held);
    drop(held);
    drop(inside);
    set_errno(code);
    Some(result)
}

/// Notes that a CQ has failed, which the next call reports. A thread with locks may call it.
pub fn note_failed_cq(cq: Id) {
    FAILED.lock().unwrap_or_else(PoisonError::into_inner).push(cq);
}

/// Reports the CQs that have failed since the last call.
fn failed_cqs(state: &mut State) {
    let failed = core::mem::take(&mut *FAILED.lock().unwrap_or_else(PoisonError::into_inner));
    failed.into_iter().for_each(|cq| state.cq_failed(cq));
}

fn errno() -> c_int {
    // SAFETY: the thread's own errno, valid as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

fn set_errno(code: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = code };
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
/// that use this one, which may destroy objects. Each library has it in its `.fini_array`.
pub extern "C" fn at_end() {
    let (Some(state), Some(inside)) = (STATE.get(), Inside::enter()) else { return };
    if IS_LOST.load(Ordering::Relaxed) {
        return;
    }
    let mut state = state.lock();
    failed_cqs(&mut state);
    let code = state.ending_process();
    drop(state);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_a_mode_and_perhaps_a_nic() {
        let of = |mode, name: &str| Some(Settings { mode, nic: Nic::find(name) });
        assert_eq!(Settings::parse("report"), of(Mode::Report, ""));
        assert_eq!(Settings::parse("exit=66,mlx5"), of(Mode::Exit(66), "mlx5"));
        for wrong in ["", ",mlx5", "report,", "report,mlx4", "exit", "abort mlx5"] {
            assert_eq!(Settings::parse(wrong), None, "{wrong}");
        }
    }
}
