//! The initial attributes of a queue pair, for both calls that create one.

use core::ffi::c_int;
use core::mem::zeroed;

use crate::convert::cap;
use crate::events::pointer;
use crate::last_errno;
use gdrcore_verbs::abi::QpMake;
use gdrcore_verbs::extended::EXTENDED;
use rdma_sys::{ibv_qp, ibv_qp_cap, ibv_qp_init_attr_ex};

/// A queue pair, its extended opcodes, and its sizes.
pub type Made = Result<(*mut ibv_qp, u32, ibv_qp_cap), c_int>;

/// `ibv_qp_create_send_ops_flags` of RC's operations that `ibv_post_send` takes, too.
const RC_OPS: u64 = 0x3ff;

/// The flags of extended opcodes, which are bits.
fn extended_ops(opcodes: u32) -> u64 {
    let those = EXTENDED.iter().filter(|e| opcodes >> e.opcode & 1 == 1);
    those.map(|e| e.send_ops_flag).sum()
}

/// The sets of operations to try, the largest first: a driver refuses a queue pair with an
/// operation that it does not know.
pub fn tries(wanted: u32) -> impl Iterator<Item = u32> {
    let each = EXTENDED.iter().map(move |e| wanted & 1 << e.opcode);
    core::iter::once(wanted).chain(each).filter(|&ops| ops != 0)
}

/// Whether a driver that returns this errno may know fewer operations than were requested.
fn may_know_fewer(errno: c_int) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)
}

/// Makes a queue pair by `create`, with the largest set of extended opcodes that the driver knows.
/// `None`: it knows none of the sets.
pub fn with_most(
    sets: impl Iterator<Item = u32>,
    init: &ibv_qp_init_attr_ex,
    mut create: impl FnMut(&mut ibv_qp_init_attr_ex) -> *mut ibv_qp,
) -> Option<Made> {
    for extended in sets {
        let send_ops_flags = RC_OPS | extended_ops(extended);
        let mut init = ibv_qp_init_attr_ex { send_ops_flags, ..*init };
        let qp = create(&mut init);
        if !qp.is_null() {
            return Some(Ok((qp, extended, init.cap)));
        }
        let e = last_errno();
        if !may_know_fewer(e) {
            return Some(Err(e));
        }
    }
    None
}

/// Attributes without type and operations.
pub fn attributes(m: &QpMake) -> ibv_qp_init_attr_ex {
    // SAFETY: plain data, all-zero is valid.
    let mut init: ibv_qp_init_attr_ex = unsafe { zeroed() };
    init.qp_context = pointer(m.cookie);
    init.send_cq = m.send_cq.cast();
    init.recv_cq = m.recv_cq.cast();
    init.srq = m.srq.cast();
    init.cap = cap(&m.cap);
    init.sq_sig_all = m.sq_sig_all as c_int;
    init.pd = m.pd.cast();
    init.xrcd = m.xrcd.cast();
    init
}
