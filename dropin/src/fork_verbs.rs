//! Verbs for fork: the parent keeps its devices; the child gets `EOWNERDEAD` on them and may open
//! its own.
//!
//! Registered memory needs no care: the CPU copies it, so copy-on-write does no harm. The pages
//! that a router's device has adopted are in no child, without a call of the program's. So
//! `ibv_fork_init` does nothing. `ibv_is_fork_initialized` returns that it is not needed, or, once
//! the process has opened a router's device, that it was done.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};

/// `IBV_FORK_ENABLED`, `IBV_FORK_UNNEEDED`.
const ENABLED: u32 = 1;
const UNNEEDED: u32 = 2;

/// This process has opened a router's device, to which registered pages move. They outlive it.
pub static PAGES_MOVE: AtomicBool = AtomicBool::new(false);

/// `ibv_fork_init`.
pub unsafe extern "C" fn fork_init() -> c_int {
    0
}

/// `ibv_is_fork_initialized`.
pub unsafe extern "C" fn is_fork_initialized() -> u32 {
    if PAGES_MOVE.load(Ordering::Relaxed) {
        ENABLED
    } else {
        UNNEEDED
    }
}

/// `ibv_dontfork_range`, `ibv_dofork_range`.
pub unsafe extern "C" fn fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
