//! The results of verbs: a positive errno, or a null pointer and errno.

use core::ffi::c_int;
use gdrcore_core::{inject, refuse, Error, Result};
use gdrcore_net::reason;

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

/// fstat(2) of a descriptor.
///
/// # Errors
/// The system's.
pub fn stat(fd: c_int) -> Result<libc::stat> {
    // SAFETY: zeroes are a valid stat, which lives through the call.
    let mut st: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: as above.
    match unsafe { libc::fstat(fd, &mut st) } {
        0 => Ok(st),
        _ => Err(last_error()),
    }
}

/// The name of an errno, as in `<errno.h>`.
pub fn errno_name(errno: i32) -> String {
    inject::errno_name(errno).map_or_else(|| format!("errno {errno}"), str::to_string)
}

/// The name of a verb, and the conversions to its result.
pub struct Verb(pub &'static str);

impl Verb {
    /// 0, or a positive errno. errno is set, too, because programs check either.
    #[inline]
    pub fn code(&self, r: Result<()>) -> c_int {
        match r {
            Ok(()) => 0,
            Err(e) => {
                self.refused(e);
                e.errno()
            }
        }
    }

    /// The pointer, or null and errno.
    pub fn pointer<T>(&self, r: Result<*mut T>) -> *mut T {
        r.unwrap_or_else(|e| {
            self.refused(e);
            core::ptr::null_mut()
        })
    }

    /// The number, or −1 and errno.
    pub fn number(&self, r: Result<c_int>) -> c_int {
        r.unwrap_or_else(|e| {
            self.refused(e);
            -1
        })
    }

    /// Sets errno; with GDRC_VERBOSE prints the reason to standard error. EAGAIN and EINTR are not
    /// printed: an empty or full queue and an interrupted sleep are normal.
    #[cold]
    #[inline(never)]
    pub fn refused(&self, e: Error) {
        reason::note_returned(e);
        if reason::is_verbose() && !matches!(e, Error::Again | Error::Os(libc::EINTR)) {
            reason::with_text(|why| {
                crate::env::say(&format!("{}: {why}: {}", self.0, errno_name(e.errno())))
            });
        }
        set_errno(e.errno());
    }
}

/// The error for a pointer that is null.
#[cold]
#[inline(never)]
fn null<T>() -> Error {
    let name = core::any::type_name::<T>().rsplit("::").next().unwrap_or("");
    match name.starts_with("ibv_") {
        true => refuse!(Invalid, "a pointer to a {name} is NULL"),
        false => refuse!(Invalid, "the pointer to the {} is NULL", name.to_ascii_lowercase()),
    }
}

/// The object that a C program names, if it is not null.
///
/// # Errors
/// [`Error::Invalid`].
///
/// # Safety
/// A pointer that is not null points to a live `T` to which no exclusive reference exists.
#[inline]
pub unsafe fn object<'a, T>(p: *const T) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { p.as_ref() }.ok_or_else(null::<T>)
}

/// As [`object`], for an object that the program allows us to write.
///
/// # Errors
/// [`Error::Invalid`].
///
/// # Safety
/// As for [`object`], and no other thread uses it during the call.
pub unsafe fn out<'a, T>(p: *mut T) -> Result<&'a mut T> {
    // SAFETY: the caller's promise.
    unsafe { p.as_mut() }.ok_or_else(null::<T>)
}
