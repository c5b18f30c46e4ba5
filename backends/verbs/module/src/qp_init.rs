//! What a queue pair is created by, whichever call creates it.

use core::ffi::c_int;
use core::mem::zeroed;

use crate::convert::cap;
use crate::events::pointer;
use gdrcore_core::verbs::types::wr_opcode;
use gdrcore_verbs::abi::QpMake;
use rdma_sys::{ibv_qp, ibv_qp_cap, ibv_qp_init_attr_ex};

/// A queue pair, its extended opcodes, and its sizes.
pub type Made = Result<(*mut ibv_qp, u32, ibv_qp_cap), c_int>;

/// `ibv_qp_create_send_ops_flags` of RC's operations that `ibv_post_send` takes, too.
pub const RC_OPS: u64 = 0x3ff;
/// Those of FLUSH, which headers have since release 45, and of ATOMIC WRITE, since 44.
const OP_FLUSH: u64 = 1 << 11;
const OP_ATOMIC_WRITE: u64 = 1 << 12;

/// The flags of extended opcodes, which are bits.
pub fn extended_ops(opcodes: u32) -> u64 {
    let flag = |opcode: u32, flag| if opcodes >> opcode & 1 == 1 { flag } else { 0 };
    flag(wr_opcode::FLUSH, OP_FLUSH) | flag(wr_opcode::ATOMIC_WRITE, OP_ATOMIC_WRITE)
}

/// What to try for, most first: a driver refuses a queue pair with an operation that it does not
/// know.
pub fn tries(wanted: u32) -> impl Iterator<Item = u32> {
    let each = [wanted, wanted & 1 << wr_opcode::FLUSH, wanted & 1 << wr_opcode::ATOMIC_WRITE];
    each.into_iter().filter(|&ops| ops != 0)
}

/// Whether a driver that returns this may know fewer operations than it was asked for.
pub fn may_know_fewer(errno: c_int) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)
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
