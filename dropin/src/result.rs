//! How verbs report: a positive errno, or a null pointer and errno.

use core::ffi::c_int;
use gdrcore_core::{Error, Result};

/// Sets the thread's errno.
pub fn set_errno(errno: i32) {
    // SAFETY: the pointer is the thread's own errno, valid as long as the thread lives.
    unsafe { *libc::__errno_location() = errno };
}

/// The thread's errno.
pub fn errno() -> i32 {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() }
}

/// The error of the last failed call of libc.
pub fn last_error() -> Error {
    Error::from_errno(errno())
}

/// 0 or a positive errno, which is also stored: programs look at either.
pub fn code(r: Result<()>) -> c_int {
    match r {
        Ok(()) => 0,
        Err(e) => {
            set_errno(e.errno());
            e.errno()
        }
    }
}

/// The pointer, or null and errno.
pub fn pointer<T>(r: Result<*mut T>) -> *mut T {
    r.unwrap_or_else(|e| {
        set_errno(e.errno());
        core::ptr::null_mut()
    })
}

/// The number, or −1 and errno.
pub fn number(r: Result<c_int>) -> c_int {
    r.unwrap_or_else(|e| {
        set_errno(e.errno());
        -1
    })
}

/// The object that a C program names, where it is not null.
///
/// # Errors
/// [`Error::Invalid`].
///
/// # Safety
/// A pointer that is not null points to a live `T` that nobody holds exclusively.
pub unsafe fn object<'a, T>(p: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { p.as_ref() }.ok_or(Error::Invalid)
}

/// As [`object`], for what the program lets us write.
///
/// # Errors
/// [`Error::Invalid`].
///
/// # Safety
/// As for [`object`], and nobody else uses it during the call.
pub unsafe fn out<'a, T>(p: *mut T) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { p.as_mut() }.ok_or(Error::Invalid)
}
