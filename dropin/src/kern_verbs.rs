//! `ibv_copy_*`: conversions between the kernel's structs and libibverbs', for librdmacm.

use crate::abi::*;

fn ah_attr(k: &ib_uverbs_ah_attr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: k.grh.dgid },
            flow_label: k.grh.flow_label,
            sgid_index: k.grh.sgid_index,
            hop_limit: k.grh.hop_limit,
            traffic_class: k.grh.traffic_class,
        },
        dlid: k.dlid,
        sl: k.sl,
        src_path_bits: k.src_path_bits,
        static_rate: k.static_rate,
        is_global: k.is_global,
        port_num: k.port_num,
    }
}

/// `ibv_copy_ah_attr_from_kern`.
pub unsafe extern "C" fn copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const ib_uverbs_ah_attr,
) {
    // SAFETY: librdmacm's structs, both whole.
    unsafe { to.write(ah_attr(&from.read_unaligned())) };
}

/// `ibv_copy_qp_attr_from_kern`.
pub unsafe extern "C" fn copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const ib_uverbs_qp_attr,
) {
    // SAFETY: librdmacm's structs, both whole.
    let k = unsafe { from.read_unaligned() };
    let attr = ibv_qp_attr {
        qp_state: k.qp_state,
        cur_qp_state: k.cur_qp_state,
        path_mtu: k.path_mtu,
        path_mig_state: k.path_mig_state,
        qkey: k.qkey,
        rq_psn: k.rq_psn,
        sq_psn: k.sq_psn,
        dest_qp_num: k.dest_qp_num,
        qp_access_flags: k.qp_access_flags,
        cap: ibv_qp_cap {
            max_send_wr: k.max_send_wr,
            max_recv_wr: k.max_recv_wr,
            max_send_sge: k.max_send_sge,
            max_recv_sge: k.max_recv_sge,
            max_inline_data: k.max_inline_data,
        },
        ah_attr: ah_attr(&k.ah_attr),
        alt_ah_attr: ah_attr(&k.alt_ah_attr),
        pkey_index: k.pkey_index,
        alt_pkey_index: k.alt_pkey_index,
        en_sqd_async_notify: k.en_sqd_async_notify,
        sq_draining: k.sq_draining,
        max_rd_atomic: k.max_rd_atomic,
        max_dest_rd_atomic: k.max_dest_rd_atomic,
        min_rnr_timer: k.min_rnr_timer,
        port_num: k.port_num,
        timeout: k.timeout,
        retry_cnt: k.retry_cnt,
        rnr_retry: k.rnr_retry,
        alt_port_num: k.alt_port_num,
        alt_timeout: k.alt_timeout,
        rate_limit: 0,
    };
    // SAFETY: as above.
    unsafe { to.write(attr) };
}

/// `ibv_copy_path_rec_from_kern`.
pub unsafe extern "C" fn copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: librdmacm's structs, both whole.
    let k = unsafe { from.read_unaligned() };
    let rec = ibv_sa_path_rec {
        dgid: ibv_gid { raw: k.dgid },
        sgid: ibv_gid { raw: k.sgid },
        dlid: k.dlid,
        slid: k.slid,
        raw_traffic: k.raw_traffic as i32,
        flow_label: k.flow_label,
        hop_limit: k.hop_limit,
        traffic_class: k.traffic_class,
        reversible: k.reversible as i32,
        numb_path: k.numb_path,
        pkey: k.pkey,
        sl: k.sl,
        mtu_selector: k.mtu_selector,
        mtu: k.mtu as u8,
        rate_selector: k.rate_selector,
        rate: k.rate,
        packet_life_time_selector: k.packet_life_time_selector,
        packet_life_time: k.packet_life_time,
        preference: k.preference,
    };
    // SAFETY: as above.
    unsafe { to.write(rec) };
}

/// `ibv_copy_path_rec_to_kern`.
pub unsafe extern "C" fn copy_path_rec_to_kern(
    to: *mut ib_user_path_rec,
    from: *const ibv_sa_path_rec,
) {
    // SAFETY: librdmacm's structs, both whole.
    let r = unsafe { from.read_unaligned() };
    let k = ib_user_path_rec {
        dgid: r.dgid.raw,
        sgid: r.sgid.raw,
        dlid: r.dlid,
        slid: r.slid,
        raw_traffic: r.raw_traffic as u32,
        flow_label: r.flow_label,
        reversible: r.reversible as u32,
        mtu: r.mtu.into(),
        pkey: r.pkey,
        hop_limit: r.hop_limit,
        traffic_class: r.traffic_class,
        numb_path: r.numb_path,
        sl: r.sl,
        mtu_selector: r.mtu_selector,
        rate_selector: r.rate_selector,
        rate: r.rate,
        packet_life_time_selector: r.packet_life_time_selector,
        packet_life_time: r.packet_life_time,
        preference: r.preference,
    };
    // SAFETY: as above.
    unsafe { to.write(k) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_record_comes_back_as_it_went() {
        let k = ib_user_path_rec {
            dgid: [1; 16],
            sgid: [2; 16],
            dlid: 3,
            slid: 4,
            flow_label: 5,
            reversible: 1,
            mtu: 5,
            pkey: 0xffff,
            hop_limit: 64,
            traffic_class: 7,
            numb_path: 1,
            sl: 2,
            mtu_selector: 2,
            rate_selector: 2,
            rate: 3,
            packet_life_time_selector: 2,
            packet_life_time: 14,
            preference: 9,
            ..ib_user_path_rec::default()
        };
        let (mut rec, mut back) = (ibv_sa_path_rec::default(), ib_user_path_rec::default());
        // SAFETY: live structs.
        unsafe {
            copy_path_rec_from_kern(&mut rec, &k);
            copy_path_rec_to_kern(&mut back, &rec);
        }
        assert_eq!(rec.mtu, 5);
        assert_eq!(rec.packet_life_time, 14);
        // SAFETY: plain bytes without padding.
        let bytes = |k: &ib_user_path_rec| unsafe {
            core::mem::transmute::<ib_user_path_rec, [u8; 64]>(*k)
        };
        assert_eq!(bytes(&k), bytes(&back));
    }
}
