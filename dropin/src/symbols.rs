//! The exported names: a jump for each line of `symbols/*.txt`, made by `build.rs`, and the
//! functions of names that do nothing here.
//!
//! Some names have no function of their own. `old`: the verbs in the ABI of libibverbs 1.0, whose
//! structs no program of the last fifteen years uses. `refuse` (an errno), `none` (a null pointer)
//! and `minus` (−1 in place of a descriptor): what the device cannot do, and libibverbs' private
//! interface to hardware drivers, which come along with programs that are linked to them (perftest
//! with libmlx5) and have nothing to drive. `data`: a variable of one byte, zero.

use core::ffi::{c_int, c_void};

/// Refuses by errno.
pub unsafe extern "C" fn refuse() -> c_int {
    crate::verb_result::set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Refuses by a null pointer; for a function without a result, does nothing.
pub unsafe extern "C" fn none() -> *mut c_void {
    crate::verb_result::set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// Refuses where a descriptor is expected.
pub unsafe extern "C" fn minus() -> c_int {
    crate::verb_result::set_errno(libc::EOPNOTSUPP);
    -1
}

#[cfg(not(test))]
include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
