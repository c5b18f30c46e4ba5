//! C calls of counters and causes.

use crate::c_result::{call, count};
use crate::c_types::*;
use crate::context_slots::device;
use crate::ptr::{self, out, plain_in};
use core::ffi::{c_char, c_int};
use gdrcore_core::counters::Counters;
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::Result;

/// Copies the context's counters into `values`, at most `n`, in the order of gdrc_counter_name.
/// They only grow (modulo 2^64).
///
/// Returns the number written.
/// Errors: -EINVAL: not an open context, values is NULL. Threads: any. Cost: sums over QPs.
#[no_mangle]
pub unsafe extern "C" fn gdrc_counters(ctx: *mut gdrc_context, values: *mut u64, n: u32) -> c_int {
    // SAFETY: the header's contract: values has n numbers.
    call(|| unsafe { copy(values, n, || device(ctx)?.counters()) })
}

/// Copies a QP's counters; otherwise as gdrc_counters.
///
/// Returns the number written.
/// Errors: -EINVAL: stale handle, values is NULL. Threads: any. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_counters(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    values: *mut u64,
    n: u32,
) -> c_int {
    // SAFETY: the header's contract: values has n numbers.
    call(|| unsafe { copy(values, n, || device(ctx)?.qp_counters(qp.handle)) })
}

/// # Safety
/// `values` is null, misaligned or writable for `n` numbers.
unsafe fn copy(values: *mut u64, n: u32, get: impl FnOnce() -> Result<Counters>) -> Result<c_int> {
    crate::ptr::check(values, "values")?;
    let all = get()?.values();
    let n = all.len().min(n as usize);
    // SAFETY: n is at most the array's length and at most what `values` has room for; the array is
    // a local.
    unsafe { core::ptr::copy_nonoverlapping(all.as_ptr(), values, n) };
    Ok(count(n))
}

/// The number of counters in this version of the library; later versions only append. Threads: any.
/// Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_counter_count() -> u32 {
    Counters::NAMES.len() as u32
}

/// The name of counter `i`, or NULL if there is none. Static. Threads: any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_counter_name(i: u32) -> *const c_char {
    Counters::C_NAMES.get(i as usize).map_or(core::ptr::null(), |name| name.as_ptr())
}

/// The last error on this context, with its likely cause; code GDRC_CAUSE_NONE if there was none.
///
/// Errors: -EINVAL: not an open context, out is NULL. Threads: any. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_last_cause(ctx: *mut gdrc_context, out: *mut Cause) -> c_int {
    call(|| {
        let out = out!(out);
        out.write(device(ctx)?.last_cause()?);
        Ok(())
    })
}

/// The last error on this QP; otherwise as gdrc_last_cause.
///
/// Errors: -EINVAL: stale handle, out is NULL. Threads: any. Cost: none.
#[no_mangle]
pub unsafe extern "C" fn gdrc_qp_cause(
    ctx: *mut gdrc_context,
    qp: gdrc_qp,
    out: *mut Cause,
) -> c_int {
    call(|| {
        let out = out!(out);
        out.write(device(ctx)?.qp_cause(qp.handle)?);
        Ok(())
    })
}

/// Writes a cause as text into `buf`, like snprintf: NUL-terminated, cut at `len`.
///
/// Returns the length of the whole text without the NUL; `buf` may be NULL when `len` is 0.
/// Errors: -EINVAL: cause is NULL, or buf is NULL and len is not 0. Threads: any. Cost: no
/// allocation.
#[no_mangle]
pub unsafe extern "C" fn gdrc_cause_str(
    cause: *const Cause,
    buf: *mut c_char,
    len: usize,
) -> c_int {
    call(|| {
        let cause = plain_in!(cause);
        // SAFETY: the header's contract: buf is NULL or writable for len bytes.
        unsafe { ptr::format(buf, len, format_args!("{cause}")) }
    })
}
