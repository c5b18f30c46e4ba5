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

/// The name of a completion status (GDRC_WC_), without prefix. Static; never NULL. Threads: any.
/// Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_wc_status_str(status: u32) -> *const c_char {
    match status {
        GDRC_WC_SUCCESS => c"SUCCESS",
        GDRC_WC_LOC_LEN_ERR => c"LOC_LEN_ERR",
        GDRC_WC_LOC_QP_OP_ERR => c"LOC_QP_OP_ERR",
        GDRC_WC_LOC_PROT_ERR => c"LOC_PROT_ERR",
        GDRC_WC_WR_FLUSH_ERR => c"WR_FLUSH_ERR",
        GDRC_WC_MW_BIND_ERR => c"MW_BIND_ERR",
        GDRC_WC_BAD_RESP_ERR => c"BAD_RESP_ERR",
        GDRC_WC_LOC_ACCESS_ERR => c"LOC_ACCESS_ERR",
        GDRC_WC_REM_INV_REQ_ERR => c"REM_INV_REQ_ERR",
        GDRC_WC_REM_ACCESS_ERR => c"REM_ACCESS_ERR",
        GDRC_WC_REM_OP_ERR => c"REM_OP_ERR",
        GDRC_WC_RETRY_EXC_ERR => c"RETRY_EXC_ERR",
        GDRC_WC_RNR_RETRY_EXC_ERR => c"RNR_RETRY_EXC_ERR",
        GDRC_WC_FATAL_ERR => c"FATAL_ERR",
        GDRC_WC_RESP_TIMEOUT_ERR => c"RESP_TIMEOUT_ERR",
        GDRC_WC_GENERAL_ERR => c"GENERAL_ERR",
        _ => c"UNKNOWN",
    }
    .as_ptr()
}

/// The name of a completion opcode (GDRC_WC_OP_), without prefix. Static; never NULL. Threads: any.
/// Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_wc_opcode_str(opcode: u32) -> *const c_char {
    match opcode {
        GDRC_WC_OP_SEND => c"SEND",
        GDRC_WC_OP_RDMA_WRITE => c"RDMA_WRITE",
        GDRC_WC_OP_RDMA_READ => c"RDMA_READ",
        GDRC_WC_OP_COMP_SWAP => c"COMP_SWAP",
        GDRC_WC_OP_FETCH_ADD => c"FETCH_ADD",
        GDRC_WC_OP_BIND_MW => c"BIND_MW",
        GDRC_WC_OP_LOCAL_INV => c"LOCAL_INV",
        GDRC_WC_OP_FLUSH => c"FLUSH",
        GDRC_WC_OP_ATOMIC_WRITE => c"ATOMIC_WRITE",
        GDRC_WC_OP_RECV => c"RECV",
        GDRC_WC_OP_RECV_RDMA_WITH_IMM => c"RECV_RDMA_WITH_IMM",
        _ => c"UNKNOWN",
    }
    .as_ptr()
}

/// The name of a QP state (GDRC_QPS_), without prefix. Static; never NULL. Threads: any. Cost:
/// none.
#[no_mangle]
pub extern "C" fn gdrc_qp_state_str(state: u32) -> *const c_char {
    match state {
        GDRC_QPS_RESET => c"RESET",
        GDRC_QPS_INIT => c"INIT",
        GDRC_QPS_RTR => c"RTR",
        GDRC_QPS_RTS => c"RTS",
        GDRC_QPS_SQD => c"SQD",
        GDRC_QPS_SQE => c"SQE",
        GDRC_QPS_ERR => c"ERR",
        _ => c"UNKNOWN",
    }
    .as_ptr()
}

/// The name of an asynchronous event (GDRC_EVENT_), without prefix. Static; never NULL. Threads:
/// any. Cost: none.
#[no_mangle]
pub extern "C" fn gdrc_event_str(event: u32) -> *const c_char {
    match event {
        GDRC_EVENT_CQ_ERR => c"CQ_ERR",
        GDRC_EVENT_QP_FATAL => c"QP_FATAL",
        GDRC_EVENT_QP_REQ_ERR => c"QP_REQ_ERR",
        GDRC_EVENT_QP_ACCESS_ERR => c"QP_ACCESS_ERR",
        GDRC_EVENT_COMM_EST => c"COMM_EST",
        GDRC_EVENT_SQ_DRAINED => c"SQ_DRAINED",
        GDRC_EVENT_SRQ_LIMIT_REACHED => c"SRQ_LIMIT_REACHED",
        GDRC_EVENT_QP_LAST_WQE_REACHED => c"QP_LAST_WQE_REACHED",
        GDRC_EVENT_DEVICE_FATAL => c"DEVICE_FATAL",
        GDRC_EVENT_PORT_ACTIVE => c"PORT_ACTIVE",
        GDRC_EVENT_PORT_ERR => c"PORT_ERR",
        GDRC_EVENT_SRQ_ERR => c"SRQ_ERR",
        GDRC_EVENT_GID_CHANGE => c"GID_CHANGE",
        _ => c"UNKNOWN",
    }
    .as_ptr()
}
