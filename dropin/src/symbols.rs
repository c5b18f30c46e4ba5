//! The exported names: a jump for each version of a name in `symbols/ibverbs.txt`, made by
//! `build.rs`, and the functions of names that are not implemented.
//!
//! Some names have no function of their own. `old`: verbs in the ABI of libibverbs 1.0, whose
//! structs no program of the last fifteen years uses. `refuse` (an errno), `none` (a null pointer)
//! and `minus` (−1 in place of a descriptor): features that the device lacks, and libibverbs'
//! private interface to hardware drivers. Programs that are linked to drivers (perftest to libmlx5)
//! need these names, but have no such hardware. `data`: a variable of one byte, zero.

use core::ffi::{c_int, c_void};

/// Returns an errno.
pub unsafe extern "C" fn refuse() -> c_int {
    crate::verb_result::set_errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// Returns a null pointer; as a function without a result, does nothing.
pub unsafe extern "C" fn none() -> *mut c_void {
    crate::verb_result::set_errno(libc::EOPNOTSUPP);
    core::ptr::null_mut()
}

/// Returns −1 where a descriptor is expected.
pub unsafe extern "C" fn minus() -> c_int {
    crate::verb_result::set_errno(libc::EOPNOTSUPP);
    -1
}

/// The exported names that jump through the table, each with its place there: the address of the
/// function to call.
#[cfg(not(test))]
pub fn slots() -> impl Iterator<Item = (&'static str, &'static core::sync::atomic::AtomicUsize)> {
    // SAFETY: `build.rs` makes the table, of as many words as there are names.
    let places = unsafe { &gdrc_ibverbs_slots };
    SLOT_NAMES.iter().copied().zip(places)
}

#[cfg(not(test))]
include!(concat!(env!("OUT_DIR"), "/symbols.rs"));
