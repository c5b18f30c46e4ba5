//! Verbs for fork: the parent keeps its devices; the child gets `EOWNERDEAD` on them and may open
//! its own.
//!
//! Registered memory needs no care: the CPU copies it, so copy-on-write does no harm. So
//! `ibv_fork_init` does nothing, and `ibv_is_fork_initialized` returns that it is not needed.

use core::ffi::{c_int, c_void};

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: u32 = 2;

/// Calls `hold` before every later fork of this process, and `release` afterwards in parent and
/// child. A lock is held in between, so the child finds the protected data consistent. The pair
/// registered last holds first.
pub fn around_forks(hold: extern "C" fn(), release: extern "C" fn()) {
    around_forks_and_in_child(hold, release, release);
}

/// As [`around_forks`], with another function in place of `release` in the child.
pub fn around_forks_and_in_child(
    hold: extern "C" fn(),
    release: extern "C" fn(),
    in_child: extern "C" fn(),
) {
    let [before, after, child]: [unsafe extern "C" fn(); 3] = [hold, release, in_child];
    // SAFETY: the handlers take and give back a lock and stay loaded as long as their code does.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(child)) };
}

/// `ibv_fork_init`.
pub unsafe extern "C" fn fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
pub unsafe extern "C" fn is_fork_initialized() -> u32 {
    UNNEEDED
}

/// `ibv_dontfork_range`, `ibv_dofork_range`.
pub unsafe extern "C" fn fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
