//! Structs of the objects to which programs hold pointers.

use super::{ibv_context, ibv_sge};
use core::ffi::{c_int, c_uint, c_void};

/// A protection domain.
#[repr(C)]
pub struct ibv_pd {
    pub context: *mut ibv_context,
    pub handle: u32,
}

/// A thread domain.
#[repr(C)]
pub struct ibv_td {
    pub context: *mut ibv_context,
}

/// A memory region.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mr {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub addr: *mut c_void,
    pub length: usize,
    pub handle: u32,
    pub lkey: u32,
    pub rkey: u32,
}

/// A memory window.
#[repr(C)]
pub struct ibv_mw {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub rkey: u32,
    pub handle: u32,
    pub r#type: u32,
}

/// The range that a window is bound to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mw_bind_info {
    pub mr: *mut ibv_mr,
    pub addr: u64,
    pub length: u64,
    pub mw_access_flags: c_uint,
}

/// The argument of `ibv_bind_mw`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_mw_bind {
    pub wr_id: u64,
    pub send_flags: c_uint,
    pub bind_info: ibv_mw_bind_info,
}

/// Device memory.
#[repr(C)]
pub struct ibv_dm {
    pub context: *mut ibv_context,
    pub memcpy_to_dm: call!(*mut ibv_dm, u64, *const c_void, usize => c_int),
    pub memcpy_from_dm: call!(*mut c_void, *mut ibv_dm, u64, usize => c_int),
    pub comp_mask: u32,
    pub handle: u32,
}

/// An address handle.
#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}

/// A completion channel.
#[repr(C)]
pub struct ibv_comp_channel {
    pub context: *mut ibv_context,
    pub fd: c_int,
    pub refcnt: c_int,
}

/// A completion queue.
#[repr(C)]
pub struct ibv_cq {
    pub context: *mut ibv_context,
    pub channel: *mut ibv_comp_channel,
    pub cq_context: *mut c_void,
    pub handle: u32,
    pub cqe: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub comp_events_completed: u32,
    pub async_events_completed: u32,
}

/// The argument of `ibv_start_poll`.
#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

type Read<T> = call!(*mut ibv_cq_ex => T);

/// A completion queue with its functions for reading; begins as [`ibv_cq`].
#[repr(C)]
pub struct ibv_cq_ex {
    pub base: ibv_cq,
    pub comp_mask: u32,
    pub status: u32,
    pub wr_id: u64,
    pub start_poll: call!(*mut ibv_cq_ex, *mut ibv_poll_cq_attr => c_int),
    pub next_poll: Read<c_int>,
    pub end_poll: Read<()>,
    pub read_opcode: Read<u32>,
    pub read_vendor_err: Read<u32>,
    pub read_byte_len: Read<u32>,
    pub read_imm_data: Read<u32>,
    pub read_qp_num: Read<u32>,
    pub read_src_qp: Read<u32>,
    pub read_wc_flags: Read<c_uint>,
    pub read_slid: Read<u32>,
    pub read_sl: Read<u8>,
    pub read_dlid_path_bits: Read<u8>,
    pub read_completion_ts: Read<u64>,
    pub read_cvlan: Read<u16>,
    pub read_flow_tag: Read<u32>,
    pub read_tm_info: call!(*mut ibv_cq_ex, *mut c_void),
    pub read_completion_wallclock_ns: Read<u64>,
}

/// An XRC domain.
#[repr(C)]
pub struct ibv_xrcd {
    pub context: *mut ibv_context,
}

/// A shared receive queue.
#[repr(C)]
pub struct ibv_srq {
    pub context: *mut ibv_context,
    pub srq_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub handle: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

/// A queue pair.
#[repr(C)]
pub struct ibv_qp {
    pub context: *mut ibv_context,
    pub qp_context: *mut c_void,
    pub pd: *mut ibv_pd,
    pub send_cq: *mut ibv_cq,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub handle: u32,
    pub qp_num: u32,
    pub state: u32,
    pub qp_type: u32,
    pub mutex: libc::pthread_mutex_t,
    pub cond: libc::pthread_cond_t,
    pub events_completed: u32,
}

/// An entry of inline data.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_data_buf {
    pub addr: *mut c_void,
    pub length: usize,
}

/// A queue pair with its functions for posting; begins as [`ibv_qp`].
#[repr(C)]
pub struct ibv_qp_ex {
    pub qp_base: ibv_qp,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    pub wr_atomic_cmp_swp: call!(*mut ibv_qp_ex, u32, u64, u64, u64),
    pub wr_atomic_fetch_add: call!(*mut ibv_qp_ex, u32, u64, u64),
    pub wr_bind_mw: call!(*mut ibv_qp_ex, *mut ibv_mw, u32, *const ibv_mw_bind_info),
    pub wr_local_inv: call!(*mut ibv_qp_ex, u32),
    pub wr_rdma_read: call!(*mut ibv_qp_ex, u32, u64),
    pub wr_rdma_write: call!(*mut ibv_qp_ex, u32, u64),
    pub wr_rdma_write_imm: call!(*mut ibv_qp_ex, u32, u64, u32),
    pub wr_send: call!(*mut ibv_qp_ex),
    pub wr_send_imm: call!(*mut ibv_qp_ex, u32),
    pub wr_send_inv: call!(*mut ibv_qp_ex, u32),
    pub wr_send_tso: call!(*mut ibv_qp_ex, *mut c_void, u16, u16),
    pub wr_set_ud_addr: call!(*mut ibv_qp_ex, *mut ibv_ah, u32, u32),
    pub wr_set_xrc_srqn: call!(*mut ibv_qp_ex, u32),
    pub wr_set_inline_data: call!(*mut ibv_qp_ex, *mut c_void, usize),
    pub wr_set_inline_data_list: call!(*mut ibv_qp_ex, usize, *const ibv_data_buf),
    pub wr_set_sge: call!(*mut ibv_qp_ex, u32, u64, u32),
    pub wr_set_sge_list: call!(*mut ibv_qp_ex, usize, *const ibv_sge),
    pub wr_start: call!(*mut ibv_qp_ex),
    pub wr_complete: call!(*mut ibv_qp_ex => c_int),
    pub wr_abort: call!(*mut ibv_qp_ex),
    pub wr_atomic_write: call!(*mut ibv_qp_ex, u32, u64, *const c_void),
    /// Of rdma-core 45 and newer.
    pub wr_flush: call!(*mut ibv_qp_ex, u32, u64, usize, u8, u8),
}
