//! Structs of the fast handles.

use core::ffi::c_int;
use gdrcore_core::verbs::types::{RecvWr, SendWr, Wc};

/// A queue pair for posts without a look-up: see gdrc_qp_fast_get. Bytes behind `ops` are the
/// library's.
#[repr(C)]
pub struct gdrc_qp_fast {
    /// Called by gdrc_qp_fast_post_send and gdrc_qp_fast_post_recv.
    pub ops: *const gdrc_qp_fast_ops,
}

/// The functions of a queue pair's device. Later versions may append some.
#[repr(C)]
pub struct gdrc_qp_fast_ops {
    /// As gdrc_post_send.
    pub post_send:
        unsafe extern "C" fn(*mut gdrc_qp_fast, *const SendWr, *mut *const SendWr) -> c_int,
    /// As gdrc_post_recv.
    pub post_recv:
        unsafe extern "C" fn(*mut gdrc_qp_fast, *const RecvWr, *mut *const RecvWr) -> c_int,
}

/// A CQ for polls without a look-up: see gdrc_cq_fast_get. Bytes behind `ops` are the library's.
#[repr(C)]
pub struct gdrc_cq_fast {
    /// Called by gdrc_cq_fast_poll.
    pub ops: *const gdrc_cq_fast_ops,
}

/// The functions of a CQ's device. Later versions may append some.
#[repr(C)]
pub struct gdrc_cq_fast_ops {
    /// As gdrc_poll_cq.
    pub poll: unsafe extern "C" fn(*mut gdrc_cq_fast, c_int, *mut Wc) -> c_int,
}
