//! Requests as most tests post them, and sizes of queues as most ask for them.

use gdrcore_core::device::MrReg;
use gdrcore_core::verbs::types::{
    send_flags, Handle, QpCap, QpInit, RdmaWr, RecvWr, SendWr, Sge, WrExt, WrOp,
};

/// Memory of the host whose requests use its own addresses.
pub fn region(pd: Handle, addr: u64, length: u64, access: u32) -> MrReg {
    MrReg { pd, addr, length, iova: addr, access, provider: 0, cookie: 0 }
}

/// Queues of `wr` requests of `sge` pieces in either direction.
pub fn queues(wr: u32, sge: u32, max_inline_data: u32) -> QpCap {
    QpCap {
        max_send_wr: wr,
        max_recv_wr: wr,
        max_send_sge: sge,
        max_recv_sge: sge,
        max_inline_data,
    }
}

/// A queue pair whose completions go to `cqs`: those of sends to the first one.
pub fn queue_pair(qp_type: u32, pd: Handle, cqs: [Handle; 2], cap: QpCap) -> QpInit {
    QpInit { pd, send_cq: cqs[0], recv_cq: cqs[1], qp_type, cap, ..QpInit::default() }
}

/// One receive request into `pieces`, which must outlive the post.
pub fn recv_wr(wr_id: u64, pieces: &[Sge]) -> RecvWr {
    let num_sge = pieces.len() as i32;
    RecvWr { wr_id, next: std::ptr::null(), sg_list: pieces.as_ptr(), num_sge }
}

/// One signalled request about `pieces`, which must outlive the post, and about a peer's memory.
pub fn send_wr(wr_id: u64, opcode: u32, pieces: &[Sge], rdma: RdmaWr) -> SendWr {
    SendWr {
        wr_id,
        next: std::ptr::null(),
        sg_list: pieces.as_ptr(),
        num_sge: pieces.len() as i32,
        opcode,
        send_flags: send_flags::SIGNALED,
        imm_data: 0,
        wr: WrOp { rdma },
        remote_srqn: 0,
        ext: WrExt::default(),
    }
}
