//! fork: the parent keeps its devices; the child sees `EOWNERDEAD` on them and may open them anew.
//!
//! Registered memory needs no care (the CPU copies it, so copy-on-write does no harm), hence `ibv_fork_init` has nothing
//! to do and `ibv_is_fork_initialized` says that it is not needed.

use crate::adapter::STATE;
use crate::ucma;
use core::ffi::{c_int, c_void};

/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: u32 = 2;

/// Takes the list of devices around every fork of this process from now on.
pub fn install() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handlers take and give back a lock and stay loaded as long as their code does.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) };
    });
}

extern "C" fn before() {
    ucma::PROCESS.hold();
    STATE.hold();
}

extern "C" fn after() {
    STATE.release();
    ucma::PROCESS.release();
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
