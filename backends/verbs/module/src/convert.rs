//! Attributes between the table's form and libibverbs'.

use core::mem::zeroed;
use gdrcore_core::verbs::types::{qp_attr_mask as mask, AhAttr, QpAttr, QpCap};
use gdrcore_verbs::abi::Source;
use rdma_sys::{ibv_ah_attr, ibv_gid, ibv_global_route, ibv_qp_attr, ibv_qp_cap};

/// Hop limit where the program names none: what the kernel gives unicast packets.
const HOP_LIMIT: u8 = 64;

/// An address vector.
pub fn ah_attr(a: &AhAttr, source: &Source) -> ibv_ah_attr {
    let grh = ibv_global_route {
        dgid: ibv_gid { raw: a.dgid },
        flow_label: 0,
        sgid_index: source.gid_index as u8,
        hop_limit: if a.hop_limit == 0 { HOP_LIMIT } else { a.hop_limit },
        traffic_class: a.traffic_class,
    };
    ibv_ah_attr { grh, dlid: 0, sl: 0, src_path_bits: 0, static_rate: 0, is_global: 1, port_num: source.port as u8 }
}

/// Queue sizes.
pub fn cap(c: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: c.max_send_wr,
        max_recv_wr: c.max_recv_wr,
        max_send_sge: c.max_send_sge,
        max_recv_sge: c.max_recv_sge,
        max_inline_data: c.max_inline_data,
    }
}

/// Queue sizes as libibverbs gave them.
pub fn cap_of(c: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: c.max_send_wr,
        max_recv_wr: c.max_recv_wr,
        max_send_sge: c.max_send_sge,
        max_recv_sge: c.max_recv_sge,
        max_inline_data: c.max_inline_data,
    }
}

/// QP attributes; only those of `set` count.
pub fn qp_attr(a: &QpAttr, set: u32, source: &Source) -> ibv_qp_attr {
    // SAFETY: plain data, all-zero is valid.
    let mut t: ibv_qp_attr = unsafe { zeroed() };
    t.qp_state = a.qp_state as _;
    t.cur_qp_state = a.cur_qp_state as _;
    t.path_mtu = a.path_mtu as _;
    t.qkey = a.qkey;
    t.rq_psn = a.rq_psn;
    t.sq_psn = a.sq_psn;
    t.dest_qp_num = a.dest_qp_num;
    t.qp_access_flags = a.qp_access_flags;
    t.cap = cap(&a.cap);
    if set & mask::AV != 0 {
        t.ah_attr = ah_attr(&a.ah, source);
    }
    t.pkey_index = a.pkey_index;
    t.en_sqd_async_notify = a.en_sqd_async_notify;
    t.max_rd_atomic = a.max_rd_atomic;
    t.max_dest_rd_atomic = a.max_dest_rd_atomic;
    t.min_rnr_timer = a.min_rnr_timer;
    t.port_num = source.port as u8;
    t.timeout = a.timeout;
    t.retry_cnt = a.retry_cnt;
    t.rnr_retry = a.rnr_retry;
    t
}

/// QP attributes as libibverbs gave them.
pub fn qp_attr_of(t: &ibv_qp_attr) -> QpAttr {
    let grh = &t.ah_attr.grh;
    QpAttr {
        qp_state: t.qp_state,
        cur_qp_state: t.cur_qp_state,
        path_mtu: t.path_mtu,
        qkey: t.qkey,
        rq_psn: t.rq_psn,
        sq_psn: t.sq_psn,
        dest_qp_num: t.dest_qp_num,
        qp_access_flags: t.qp_access_flags,
        ah: AhAttr {
            // SAFETY: a union of bytes: every reading is a value.
            dgid: unsafe { grh.dgid.raw },
            scope_id: 0,
            udp_port: 0,
            hop_limit: grh.hop_limit,
            traffic_class: grh.traffic_class,
        },
        cap: cap_of(&t.cap),
        pkey_index: t.pkey_index,
        port_num: t.port_num,
        en_sqd_async_notify: t.en_sqd_async_notify,
        sq_draining: t.sq_draining,
        max_rd_atomic: t.max_rd_atomic,
        max_dest_rd_atomic: t.max_dest_rd_atomic,
        min_rnr_timer: t.min_rnr_timer,
        timeout: t.timeout,
        retry_cnt: t.retry_cnt,
        rnr_retry: t.rnr_retry,
        kin: 0,
        rate_limit_bps: 0,
    }
}
