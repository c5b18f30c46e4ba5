//! The result of a C call: a count, or the negative errno of an error whose reason the thread
//! keeps.

use core::ffi::c_int;
use gdrcore_core::{Error, Result};
use gdrcore_net::reason;

/// The C result of a call: a count, or the negative errno.
#[inline(always)]
pub(crate) fn ret(r: Result<c_int>) -> c_int {
    match r {
        Ok(n) => n,
        Err(e) => errno(e),
    }
}

/// The result of a call that succeeds, as C has it.
pub(crate) trait Code {
    fn code(self) -> c_int;
}

impl Code for () {
    fn code(self) -> c_int {
        0
    }
}

impl Code for c_int {
    fn code(self) -> c_int {
        self
    }
}

/// The C result of a call whose body is `f`: `?` leaves it with the negative errno.
pub(crate) fn call<T: Code>(f: impl FnOnce() -> Result<T>) -> c_int {
    ret(f().map(T::code))
}

/// Out of line, so that the path of successful hot calls stays short.
#[cold]
#[inline(never)]
pub(crate) fn errno(e: Error) -> c_int {
    reason::note_returned(e);
    match e.errno() {
        n @ 1..=4095 => -n,
        // An `Os` error without an errno is a bug of a lower layer. The result must be negative
        // even so.
        _ => -libc::EIO,
    }
}

/// A count as a C result.
#[inline(always)]
pub(crate) fn count(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

/// As `gdrcore_core::refuse!`, in a call that may be the first of the process: it installs the
/// record of reasons.
macro_rules! refuse {
    ($($words:tt)+) => {{
        gdrcore_net::reason::install();
        gdrcore_core::refuse!($($words)+)
    }};
}
pub(crate) use refuse;
