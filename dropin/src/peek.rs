//! Structs of libibverbs that are read where a program's pointers lead.

use crate::abi::*;
pub use gdrcore_strict::peek::{list, peek, text, Bits};

macro_rules! bits {
    ($($t:ty),* $(,)?) => {
        $(
            // SAFETY: integers, raw pointers and arrays, structs and unions of them.
            unsafe impl Bits for $t {}
        )*
    };
}
bits! {
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_ah_attr, ibv_srq_attr,
    ibv_srq_init_attr, ibv_srq_init_attr_ex, ibv_cq_init_attr_ex, ibv_async_event, ibv_port_attr,
    DeviceLimits, ibv_mw_bind, ibv_mw_bind_info,
}
