//! mlx5dv on the soft device: the table of functions that `libmlx5.so.1` of the `mlx5` crate looks
//! up. The table has the part of mlx5dv that DC needs; that library refuses the rest.
//!
//! `device`: support and attributes. `queues`: queue pairs and completion queues. `requests`: the
//! target of each request.

mod device;
mod queues;
pub mod requests;

use crate::abi::*;
use core::ffi::c_int;

/// The functions that `libmlx5.so.1` calls; it declares the same layout.
#[repr(C)]
pub struct Table {
    is_supported: unsafe extern "C" fn(*const ibv_device) -> bool,
    open_device:
        unsafe extern "C" fn(*mut ibv_device, *const mlx5dv_context_attr) -> *mut ibv_context,
    query_device: unsafe extern "C" fn(*mut ibv_context, *mut mlx5dv_context) -> c_int,
    create_qp: unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_qp_init_attr_ex,
        *const mlx5dv_qp_init_attr,
    ) -> *mut ibv_qp,
    create_cq: unsafe extern "C" fn(
        *mut ibv_context,
        *mut ibv_cq_init_attr_ex,
        *const mlx5dv_cq_init_attr,
    ) -> *mut ibv_cq_ex,
    qp_ex_from_ibv_qp_ex: unsafe extern "C" fn(*mut ibv_qp_ex) -> *mut mlx5dv_qp_ex,
}

/// The table of version 1.
#[cfg_attr(not(test), export_name = "gdrc_mlx5_1")]
pub static MLX5_1: Table = Table {
    is_supported: device::is_supported,
    open_device: device::open_device,
    query_device: device::query_device,
    create_qp: queues::create_qp,
    create_cq: queues::create_cq,
    qp_ex_from_ibv_qp_ex: requests::qp_ex_from_ibv_qp_ex,
};
