//! Structs of `<infiniband/mlx5dv.h>`.

use super::ibv_ah;

/// The argument of `mlx5dv_open_device`.
#[repr(C)]
pub struct mlx5dv_context_attr {
    pub flags: u32,
    pub comp_mask: u64,
}

/// The attributes that `mlx5dv_query_device` returns.
#[repr(C)]
pub struct mlx5dv_context {
    pub version: u8,
    pub flags: u64,
    pub comp_mask: u64,
    pub cqe_comp_caps: [u32; 2],
    pub sw_parsing_caps: [u32; 2],
    pub striding_rq_caps: [u32; 5],
    pub tunnel_offloads_caps: u32,
    pub max_dynamic_bfregs: u32,
    pub max_clock_info_update_nsec: u64,
    pub flow_action_flags: u32,
    pub dc_odp_caps: u32,
    pub hca_core_clock: usize,
    pub num_lag_ports: u8,
    pub sig_caps: [u64; 2],
    pub dci_streams_caps: [u8; 2],
    pub max_wr_memcpy_length: usize,
    pub crypto_caps: [u32; 3],
}

/// The attributes of `mlx5dv_create_cq` beside the usual ones.
#[repr(C)]
pub struct mlx5dv_cq_init_attr {
    pub comp_mask: u64,
    pub cqe_comp_res_format: u8,
    pub flags: u32,
    pub cqe_size: u16,
}

/// Kind and parameter of a QP of DC.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mlx5dv_dc_init_attr {
    pub dc_type: u32,
    /// DCT: its access key. DCI: two bytes of streams at the front.
    pub dct_access_key: u64,
}

/// The attributes of `mlx5dv_create_qp` beside the usual ones.
#[repr(C)]
pub struct mlx5dv_qp_init_attr {
    pub comp_mask: u64,
    pub create_flags: u32,
    pub dc_init_attr: mlx5dv_dc_init_attr,
    pub send_ops_flags: u64,
}

/// A function of [`mlx5dv_qp_ex`] that reads only its first argument.
type Other = call!(*mut mlx5dv_qp_ex);

/// The functions of an extended QP that mlx5dv adds.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct mlx5dv_qp_ex {
    pub comp_mask: u64,
    pub wr_set_dc_addr: call!(*mut mlx5dv_qp_ex, *mut ibv_ah, u32, u64),
    pub wr_mr_interleaved: Other,
    pub wr_mr_list: Other,
    pub wr_mkey_configure: Other,
    pub wr_set_mkey_access_flags: Other,
    pub wr_set_mkey_layout_list: Other,
    pub wr_set_mkey_layout_interleaved: Other,
    pub wr_set_mkey_sig_block: Other,
    pub wr_raw_wqe: Other,
    pub wr_set_dc_addr_stream: call!(*mut mlx5dv_qp_ex, *mut ibv_ah, u32, u64, u16),
    pub wr_memcpy: Other,
    pub wr_set_mkey_crypto: Other,
}
