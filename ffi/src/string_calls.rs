//! C calls that turn numbers into text. All strings are static and never freed.

use crate::c_consts::*;
use core::ffi::{c_char, c_int, CStr};

const VERSION: &CStr =
    match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
        Ok(s) => s,
        Err(_) => c"",
    };

/// The meaning of an errno in this library, where it is a special one.
pub(crate) fn describe(errno: c_int) -> &'static CStr {
    match errno {
        0 => c"success",
        libc::EINVAL => c"invalid argument, or stale handle",
        libc::ENOMEM => {
            c"a bound of gdrc_config or the arena is exhausted (gdrc_error_detail names it): raise \
              it, or gdrc_arena_add"
        }
        libc::EAGAIN => c"queue full: poll, then try again",
        libc::EBUSY => {
            c"object in use: by another thread, or by objects that depend on it (gdrc_error_detail)"
        }
        libc::EACCES => c"access not allowed by the memory, key or protection domain",
        libc::EFAULT => c"memory cannot be read or written (gdrc_error_detail names the argument)",
        libc::EOPNOTSUPP => c"not supported by this device",
        libc::E2BIG => c"struct is from a newer header than this library",
        libc::EMSGSIZE => c"message or work request too large",
        libc::ENODEV => c"no such device",
        libc::EADDRNOTAVAIL => c"address is not one of this machine's",
        libc::EADDRINUSE => c"address and UDP port in use",
        libc::ETIMEDOUT => c"timed out",
        libc::EOWNERDEAD => c"context belongs to the parent of this fork: open a new one",
        libc::EPROTO => c"not a gdrcore endpoint descriptor, or damaged",
        libc::EPROTONOSUPPORT => {
            c"endpoint descriptor of a version that this library does not know"
        }
        libc::EPERM => c"operation not permitted",
        libc::ENOENT => c"no such file or directory",
        libc::EINTR => c"interrupted by a signal",
        libc::EIO => c"input/output error",
        libc::EMFILE => c"too many open files or contexts in this process",
        libc::ENFILE => c"too many open files in the system",
        libc::ENOSPC => c"no space left on device",
        libc::ENETDOWN => c"network is down",
        libc::ENETUNREACH => c"network is unreachable",
        libc::EHOSTUNREACH => c"no route to host",
        libc::ECONNREFUSED => c"connection refused",
        libc::ENOBUFS => c"no buffer space",
        libc::EAFNOSUPPORT => c"address family not supported (is IPv6 off?)",
        libc::ENOSYS => c"system call missing in this kernel",
        _ => c"error of the operating system",
    }
}

/// The text of an error number, negative or positive. Static; never NULL.
/// Threads: any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_strerror(err: c_int) -> *const c_char {
    describe(err.checked_abs().unwrap_or(c_int::MAX)).as_ptr()
}

/// The library's version as text, "major.minor.patch". Static. Threads: any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_version() -> *const c_char {
    VERSION.as_ptr()
}

/// The library's version as (major << 16) | (minor << 8) | patch; compare with GDRC_VERSION of the
/// header.
/// Threads: any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_version_number() -> u32 {
    GDRC_VERSION
}

/// The text of a call that names a number.
pub(crate) fn text(name: Option<&'static CStr>) -> *const c_char {
    name.unwrap_or(c"UNKNOWN").as_ptr()
}

/// The name of a completion status (GDRC_WC_), without prefix. Static; never NULL. Threads: any.
/// Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_wc_status_str(status: u32) -> *const c_char {
    text(wc_status::c_name(status))
}

/// The name of a completion opcode (GDRC_WC_OP_), without prefix. Static; never NULL. Threads: any.
/// Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_wc_opcode_str(opcode: u32) -> *const c_char {
    text(wc_opcode::c_name(opcode))
}

/// The name of a QP state (GDRC_QPS_), without prefix. Static; never NULL. Threads: any. Cost:
/// none.
#[no_mangle]
pub extern "C" fn gdrc_qp_state_str(state: u32) -> *const c_char {
    text(qp_state::c_name(state))
}

/// The name of an asynchronous event (GDRC_EVENT_), without prefix. Static; never NULL. Threads:
/// any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_event_str(event: u32) -> *const c_char {
    text(async_event::c_name(event))
}
