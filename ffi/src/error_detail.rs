//! gdrc_error_detail: the reason of this thread's last refused call.

use crate::ptr;
use core::ffi::{c_char, c_int};
use gdrcore_net::reason;

/// Copies the reason of this thread's last failed gdrc_ call into `buf`, like snprintf:
/// NUL-terminated, cut at `len`. It names the argument or attribute with its value, and the limit,
/// rule or state that forbids it, or the resource that is exhausted: "INIT to RTR: attr_mask lacks
/// PATH_MTU". Reasons are for people, and change between versions; programs check the error number.
///
/// A call that succeeds leaves it unchanged, as with errno. If an error needs no further words
/// (-EAGAIN: a full queue) it is the text of its number. Empty: no call of this thread has failed
/// yet.
/// Returns the length of the whole text without the NUL, at most 511; `buf` may be NULL when `len`
/// is 0.
/// Errors: -EINVAL: buf is NULL and len is not 0 (the text stays that of the failure before).
/// Threads: any; each has its own. Cost: no system call, no allocation.
#[no_mangle]
pub unsafe extern "C" fn gdrc_error_detail(buf: *mut c_char, len: usize) -> c_int {
    copy(buf, len)
}

pub(crate) fn copy(buf: *mut c_char, len: usize) -> c_int {
    if buf.is_null() && len != 0 {
        return -libc::EINVAL;
    }
    // SAFETY: the header's contract: buf is NULL or writable for len bytes; it is not our thread's
    // record, which C never sees.
    let n = reason::with_text(|words| unsafe { ptr::format(buf, len, words) });
    // It fails only for a NULL buffer.
    n.unwrap_or(-libc::EINVAL)
}
