//! Asserts that C structs have core's layout: same size, same offset of every field, so that hot
//! structs are cast and not copied.

use crate::c_types::*;
use core::mem::{align_of, offset_of, size_of};
use gdrcore_core::device::AsyncEvent;
use gdrcore_core::verbs::cause::Cause;
use gdrcore_core::verbs::types::{AhAttr, QpCap, RecvWr, SendWr, Sge, Wc};

/// Asserts one layout for a C struct and core's.
macro_rules! same {
    ($($c:ty = $core:ty { $($f:ident),* $(,)? })*) => {
        $(const _: () = {
            assert!(size_of::<$c>() == size_of::<$core>());
            assert!(align_of::<$c>() == align_of::<$core>());
            $(assert!(offset_of!($c, $f) == offset_of!($core, $f));)*
        };)*
    };
}

same! {
    gdrc_sge = Sge { addr, length, lkey }
    gdrc_send_wr = SendWr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, remote_srqn, ext,
    }
    gdrc_rdma_wr = gdrcore_core::verbs::types::RdmaWr { remote_addr, rkey }
    gdrc_atomic_wr = gdrcore_core::verbs::types::AtomicWr { remote_addr, compare_add, swap, rkey }
    gdrc_ud_wr = gdrcore_core::verbs::types::UdWr { ah, remote_qpn, remote_qkey }
    gdrc_flush_wr = gdrcore_core::verbs::types::FlushWr {
        remote_addr, rkey, placement, length, level,
    }
    gdrc_wr_op = gdrcore_core::verbs::types::WrOp { rdma, atomic, ud, flush }
    gdrc_mw_bind_info = gdrcore_core::verbs::types::MwBindInfo { mr, addr, length, mw_access_flags }
    gdrc_dc_wr = gdrcore_core::verbs::types::DcWr { ah, dc_key, dctn }
    gdrc_wr_ext = gdrcore_core::verbs::types::WrExt { bind_mw, dc }
    gdrc_bind_mw_wr = gdrcore_core::verbs::types::BindMwWr { mw, rkey, bind_info }
    gdrc_recv_wr = RecvWr { wr_id, next, sg_list, num_sge }
    gdrc_wc = Wc {
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index,
        slid, sl, dlid_path_bits,
    }
}

/// Copies between a C struct and core's, field by field; since both have one layout, that is a copy
/// of memory.
macro_rules! converts {
    ($($c:ident = $core:ident { $($f:ident),* $(,)? })*) => {
        same! { $($c = $core { $($f),* })* }
        $(
            impl From<$c> for $core {
                fn from(a: $c) -> $core {
                    $core { $($f: a.$f),* }
                }
            }

            impl From<$core> for $c {
                fn from(a: $core) -> $c {
                    $c { $($f: a.$f),* }
                }
            }
        )*
    };
}

converts! {
    gdrc_qp_cap = QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
    gdrc_async_event = AsyncEvent { event, reserved, handle }
    gdrc_cause = Cause { code, wc_status, peer, qpn, remote_qpn, psn, counter, arg0, arg1, time_ns }
}

// The flow label is beside the frozen struct.
impl From<gdrc_ah_attr> for AhAttr {
    fn from(a: gdrc_ah_attr) -> AhAttr {
        let gdrc_ah_attr { dgid, scope_id, udp_port, hop_limit, traffic_class } = a;
        AhAttr { dgid, scope_id, udp_port, hop_limit, traffic_class, flow_label: 0 }
    }
}

impl From<AhAttr> for gdrc_ah_attr {
    fn from(a: AhAttr) -> gdrc_ah_attr {
        let AhAttr { dgid, scope_id, udp_port, hop_limit, traffic_class, .. } = a;
        gdrc_ah_attr { dgid, scope_id, udp_port, hop_limit, traffic_class }
    }
}

// First published sizes of the attribute structs: they may grow, never shrink.
const _: () = {
    assert!(size_of::<gdrc_config>() == 120);
    assert!(size_of::<gdrc_device_attr>() == 104);
    // 48 in the first version.
    assert!(size_of::<gdrc_mr_attr>() == 80);
    assert!(size_of::<gdrc_memory>() == 48);
    assert!(size_of::<gdrc_cuda_attr>() == 96);
    assert!(size_of::<gdrc_cuda_handle>() == 104);
    assert!(size_of::<gdrc_topology_pair>() == 136);
    assert!(size_of::<gdrc_srq_attr>() == 16);
    // 64 in the first version.
    assert!(size_of::<gdrc_qp_init>() == 80);
    assert!(size_of::<gdrc_qp_attr>() == 104);
    assert!(size_of::<gdrc_leaks>() == 32);
    assert!(size_of::<gdrc_endpoint>() == 80);
    assert!(size_of::<gdrc_qp_connect_opts>() == 56);
};
