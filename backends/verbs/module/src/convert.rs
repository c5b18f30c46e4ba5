//! Converts attributes between the table's form and libibverbs'.

use core::mem::zeroed;
use gdrcore_core::verbs::types::{qp_attr_mask as mask, AhAttr, QpAttr, QpCap};
use gdrcore_core::{copy_qp_attr, copy_qp_cap};
use gdrcore_verbs::abi::Source;
use rdma_sys::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap};

/// Hop limit if the program sets none: the kernel's default of unicast packets.
const HOP_LIMIT: u8 = 64;

/// An address vector.
pub fn ah_attr(a: &AhAttr, source: &Source) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: a.dgid },
        flow_label: a.flow_label,
        sgid_index: source.gid_index as u8,
        hop_limit: if a.hop_limit <= 1 { HOP_LIMIT } else { a.hop_limit },
        traffic_class: a.traffic_class,
    };
    ibv_ah_attr {
        grh,
        dlid: 0,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: source.port as u8,
    }
}

/// Queue sizes.
pub fn cap(c: &QpCap) -> ibv_qp_cap {
    // SAFETY: plain data, all-zero is valid.
    let mut t: ibv_qp_cap = unsafe { zeroed() };
    copy_qp_cap!(c => t);
    t
}

/// Queue sizes as libibverbs gave them.
pub fn cap_of(c: &ibv_qp_cap) -> QpCap {
    let mut to = QpCap::default();
    copy_qp_cap!(c => to);
    to
}

/// QP attributes; only those of `set` count.
pub fn qp_attr(a: &QpAttr, set: u32, source: &Source) -> ibv_qp_attr {
    // SAFETY: plain data, all-zero is valid.
    let mut t: ibv_qp_attr = unsafe { zeroed() };
    copy_qp_attr!(a => t);
    t.cap = cap(&a.cap);
    if set & mask::AV != 0 {
        t.ah_attr = ah_attr(&a.ah, source);
    }
    t.port_num = source.port as u8;
    t.sq_draining = 0;
    t
}

/// QP attributes as libibverbs gave them.
pub fn qp_attr_of(t: &ibv_qp_attr) -> QpAttr {
    let grh = &t.ah_attr.grh;
    let mut to = QpAttr {
        ah: AhAttr {
            // SAFETY: a union of bytes: every reading is a value.
            dgid: unsafe { grh.dgid.raw },
            scope_id: 0,
            udp_port: 0,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
            flow_label: grh.flow_label,
        },
        cap: cap_of(&t.cap),
        ..QpAttr::default()
    };
    copy_qp_attr!(t => to);
    to
}
