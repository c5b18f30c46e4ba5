//! The exported names: a jump for each line of `symbols/*.txt`, made by `build.rs`, and what stands behind those that
//! do nothing here.
//!
//! Three kinds have no home of their own. `old`: the same verbs in the ABI of libibverbs 1.0, whose structs no program
//! of the last fifteen years has. `refuse` and `none`: libibverbs' private interface to hardware drivers, which come along
//! with programs that are linked to them (perftest with libmlx5) and have nothing to drive.

use core::ffi::{c_int, c_void};

/// Refuses by errno.
pub unsafe extern "C" fn refuse() -> c_int {
    crate::result::set_errno(libc::ENOSYS);
    libc::ENOSYS
}

/// Refuses by a null pointer; for a function without a result, does nothing.
pub unsafe extern "C" fn none() -> *mut c_void {
    crate::result::set_errno(libc::ENOSYS);
    core::ptr::null_mut()
}

#[cfg(not(test))]
include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
