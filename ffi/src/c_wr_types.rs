//! Structs of the data path: work requests, completions, fast handles.

use crate::c_handles::*;
use core::ffi::c_int;

/// A scatter/gather element: 16 bytes, layout of ibv_sge. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_sge {
    /// Address of the first byte, in the MR's terms (its iova).
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// Local key of the MR that holds the range; ignored for inline data.
    pub lkey: u32,
}

/// Remote side of WRITE, READ and ATOMIC WRITE.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_rdma_wr {
    /// Remote address.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Operands of CMP_SWAP and FETCH_ADD.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_atomic_wr {
    /// Remote address, a multiple of 8.
    pub remote_addr: u64,
    /// Compared with (CMP_SWAP) or added (FETCH_ADD).
    pub compare_add: u64,
    /// Stored where the comparison holds.
    pub swap: u64,
    /// Remote key.
    pub rkey: u32,
}

/// Remote side of FLUSH. remote_addr and rkey stand where gdrc_rdma_wr has them.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_flush_wr {
    /// First byte of the range; not looked at with GDRC_FLUSH_MR.
    pub remote_addr: u64,
    /// Remote key.
    pub rkey: u32,
    /// GDRC_FLUSH_GLOBAL, GDRC_FLUSH_PERSISTENT or both.
    pub placement: u32,
    /// Length of the range in bytes, at most 2^31; 0 flushes nothing, and its key must be valid all
    /// the same. Not looked at with GDRC_FLUSH_MR.
    pub length: u64,
    /// GDRC_FLUSH_RANGE or GDRC_FLUSH_MR.
    pub level: u32,
}

/// Destination of a UD SEND.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_ud_wr {
    /// Address handle.
    pub ah: gdrc_ah,
    /// Destination QPN.
    pub remote_qpn: u32,
    /// Q_Key to send; with bit 31 set the QP's own is sent.
    pub remote_qkey: u32,
}

/// The transport-specific part of gdrc_send_wr; the opcode chooses.
#[repr(C)]
#[derive(Clone, Copy)]
pub union gdrc_wr_op {
    /// WRITE, READ and ATOMIC WRITE.
    pub rdma: gdrc_rdma_wr,
    /// CMP_SWAP and FETCH_ADD.
    pub atomic: gdrc_atomic_wr,
    /// UD SEND.
    pub ud: gdrc_ud_wr,
    /// FLUSH.
    pub flush: gdrc_flush_wr,
}

/// The range that BIND_MW binds a window to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_mw_bind_info {
    /// The region that the window gives access to; registered with GDRC_ACCESS_MW_BIND.
    pub mr: gdrc_mr,
    /// First byte.
    pub addr: u64,
    /// Length in bytes; 0 with a type 1 window closes it.
    pub length: u64,
    /// GDRC_ACCESS_ flags of the window.
    pub mw_access_flags: u32,
}

/// The bind part of gdrc_send_wr.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_bind_mw_wr {
    /// The window.
    pub mw: gdrc_mw,
    /// The new rkey of the window, of which the low 8 bits count; the others stay.
    pub rkey: u32,
    /// The range.
    pub bind_info: gdrc_mw_bind_info,
}

/// Target of a request of a DCI.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_dc_wr {
    /// Address handle of the target's device.
    pub ah: gdrc_ah,
    /// Access key of the DCT.
    pub dc_key: u64,
    /// Number of the DCT.
    pub dctn: u32,
}

/// The last part of gdrc_send_wr; opcode and transport choose.
#[repr(C)]
#[derive(Clone, Copy)]
pub union gdrc_wr_ext {
    /// BIND_MW.
    pub bind_mw: gdrc_bind_mw_wr,
    /// All other requests of a DCI.
    pub dc: gdrc_dc_wr,
}

/// A send work request: 128 bytes, layout of ibv_send_wr. Frozen. The struct and its sg_list may be
/// reused when gdrc_post_send returns; the memory of its entries belongs to the device until the
/// completion.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_send_wr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Next request, or NULL.
    pub next: *mut gdrc_send_wr,
    /// `num_sge` pieces; may be NULL when there are none.
    pub sg_list: *mut gdrc_sge,
    /// Number of pieces, 0 to cap.max_send_sge.
    pub num_sge: i32,
    /// GDRC_WR_.
    pub opcode: u32,
    /// GDRC_SEND_ flags.
    pub send_flags: u32,
    /// Immediate data in network byte order; for SEND_WITH_INV and LOCAL_INV the rkey to
    /// invalidate, host order.
    pub imm_data: u32,
    /// By opcode.
    pub wr: gdrc_wr_op,
    /// GDRC_QPT_XRC_SEND: the number of the peer's SRQ that the request is for (gdrc_srq_number).
    pub remote_srqn: u32,
    /// For BIND_MW, and for DCIs.
    pub ext: gdrc_wr_ext,
}

/// A receive work request: 32 bytes, layout of ibv_recv_wr. Frozen.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct gdrc_recv_wr {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Next request, or NULL.
    pub next: *mut gdrc_recv_wr,
    /// `num_sge` pieces. On UD the first 40 bytes receive the GRH.
    pub sg_list: *mut gdrc_sge,
    /// Number of pieces, 0 to cap.max_recv_sge.
    pub num_sge: i32,
}

/// A work completion: 48 bytes, layout of ibv_wc. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct gdrc_wc {
    /// wr_id of the work request.
    pub wr_id: u64,
    /// GDRC_WC_; everything but wr_id, status, vendor_err and qp_num is valid only on success.
    pub status: u32,
    /// GDRC_WC_OP_.
    pub opcode: u32,
    /// On an error a GDRC_CAUSE_ number, else 0.
    pub vendor_err: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in network byte order (GDRC_WC_FLAG_WITH_IMM), or the rkey invalidated
    /// (GDRC_WC_FLAG_WITH_INV).
    pub imm_data: u32,
    /// The local QPN.
    pub qp_num: u32,
    /// The sender's QPN (UD).
    pub src_qp: u32,
    /// GDRC_WC_FLAG_.
    pub wc_flags: u32,
    /// P_Key index.
    pub pkey_index: u16,
    /// Not used on RoCE.
    pub slid: u16,
    /// Service level.
    pub sl: u8,
    /// Not used on RoCE.
    pub dlid_path_bits: u8,
}

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
    pub post_send: unsafe extern "C" fn(
        *mut gdrc_qp_fast,
        *const gdrc_send_wr,
        *mut *const gdrc_send_wr,
    ) -> c_int,
    /// As gdrc_post_recv.
    pub post_recv: unsafe extern "C" fn(
        *mut gdrc_qp_fast,
        *const gdrc_recv_wr,
        *mut *const gdrc_recv_wr,
    ) -> c_int,
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
    pub poll: unsafe extern "C" fn(*mut gdrc_cq_fast, c_int, *mut gdrc_wc) -> c_int,
}
