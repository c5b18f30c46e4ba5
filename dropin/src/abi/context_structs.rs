//! Devices and contexts: the structs whose function pointers the inline verbs call.

use super::*;
use core::ffi::{c_char, c_int, c_uint, c_void};

/// A slot of an operations table that no program calls.
pub type Unused = *const c_void;

/// A device of the list.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_device {
    pub ops: [Unused; 2],
    pub node_type: c_int,
    pub transport_type: c_int,
    pub name: [c_char; 64],
    pub dev_name: [c_char; 64],
    pub dev_path: [c_char; 256],
    pub ibdev_path: [c_char; 256],
}

/// The operations of the first inline verbs.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_context_ops {
    pub compat_query_device: Unused,
    pub compat_query_port: Unused,
    pub compat_pd_mr: [Unused; 5],
    pub alloc_mw: call!(*mut ibv_pd, u32 => *mut ibv_mw),
    pub bind_mw: call!(*mut ibv_qp, *mut ibv_mw, *mut ibv_mw_bind => c_int),
    pub dealloc_mw: call!(*mut ibv_mw => c_int),
    pub compat_create_cq: Unused,
    pub poll_cq: call!(*mut ibv_cq, c_int, *mut ibv_wc => c_int),
    pub req_notify_cq: call!(*mut ibv_cq, c_int => c_int),
    pub compat_cq_srq: [Unused; 7],
    pub post_srq_recv: call!(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr => c_int),
    pub compat_qp: [Unused; 4],
    pub post_send: call!(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr => c_int),
    pub post_recv: call!(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr => c_int),
    pub compat_ah_mcast: [Unused; 5],
}

/// An open device.
#[repr(C)]
pub struct ibv_context {
    pub device: *mut ibv_device,
    pub ops: ibv_context_ops,
    pub cmd_fd: c_int,
    pub async_fd: c_int,
    pub num_comp_vectors: c_int,
    pub mutex: libc::pthread_mutex_t,
    pub abi_compat: *mut c_void,
}

/// The operations of the later inline verbs. The struct is in front of its context and grows
/// towards lower addresses; `sz` is its size. A null pointer is an operation that the device lacks:
/// programs see EOPNOTSUPP.
#[repr(C)]
pub struct verbs_context {
    pub query_port: call!(*mut ibv_context, u8, *mut ibv_port_attr, usize => c_int),
    pub advise_mr: call!(*mut ibv_pd, u32, u32, *mut ibv_sge, u32 => c_int),
    pub alloc_null_mr: call!(*mut ibv_pd => *mut ibv_mr),
    pub read_counters: Unused,
    pub attach_counters_point_flow: Unused,
    pub create_counters: Unused,
    pub destroy_counters: Unused,
    pub reg_dm_mr: call!(*mut ibv_pd, *mut ibv_dm, u64, usize, c_uint => *mut ibv_mr),
    pub alloc_dm: call!(*mut ibv_context, *mut ibv_alloc_dm_attr => *mut ibv_dm),
    pub free_dm: call!(*mut ibv_dm => c_int),
    pub modify_flow_action_esp: Unused,
    pub destroy_flow_action: Unused,
    pub create_flow_action_esp: Unused,
    pub modify_qp_rate_limit: call!(*mut ibv_qp, *mut ibv_qp_rate_limit_attr => c_int),
    pub alloc_parent_domain: call! {
        *mut ibv_context, *mut ibv_parent_domain_init_attr => *mut ibv_pd
    },
    pub dealloc_td: call!(*mut ibv_td => c_int),
    pub alloc_td: call!(*mut ibv_context, *mut ibv_td_init_attr => *mut ibv_td),
    pub modify_cq: call!(*mut ibv_cq, *mut ibv_modify_cq_attr => c_int),
    pub post_srq_ops: Unused,
    pub destroy_rwq_ind_table: Unused,
    pub create_rwq_ind_table: Unused,
    pub destroy_wq: Unused,
    pub modify_wq: Unused,
    pub create_wq: Unused,
    pub query_rt_values: call!(*mut ibv_context, *mut ibv_values_ex => c_int),
    pub create_cq_ex: call!(*mut ibv_context, *mut ibv_cq_init_attr_ex => *mut ibv_cq_ex),
    pub private: Unused,
    pub query_device_ex: call! {
        *mut ibv_context, *const c_void, *mut ibv_device_attr_ex, usize => c_int
    },
    pub destroy_flow: Unused,
    pub placeholder2: Unused,
    pub create_flow: Unused,
    pub placeholder1: Unused,
    pub open_qp: call!(*mut ibv_context, *mut ibv_qp_open_attr => *mut ibv_qp),
    pub create_qp_ex: call!(*mut ibv_context, *mut ibv_qp_init_attr_ex => *mut ibv_qp),
    pub get_srq_num: call!(*mut ibv_srq, *mut u32 => c_int),
    pub create_srq_ex: call!(*mut ibv_context, *mut ibv_srq_init_attr_ex => *mut ibv_srq),
    pub open_xrcd: call!(*mut ibv_context, *mut ibv_xrcd_init_attr => *mut ibv_xrcd),
    pub close_xrcd: call!(*mut ibv_xrcd => c_int),
    pub placeholder3: u64,
    pub sz: usize,
    pub context: ibv_context,
}
