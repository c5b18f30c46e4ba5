//! `ibv_copy_*`: conversions between the kernel's structs and libibverbs', for librdmacm.

use crate::abi::*;
use gdrcore_core::{copy_fields, copy_qp_attr, copy_qp_cap};

/// `ibv_copy_ah_attr_from_kern`.
pub unsafe extern "C" fn copy_ah_attr_from_kern(
    to: *mut ibv_ah_attr,
    from: *const ib_uverbs_ah_attr,
) {
    // SAFETY: librdmacm's structs, both whole.
    unsafe { to.write(from.read_unaligned()) };
}

/// `ibv_copy_qp_attr_from_kern`.
pub unsafe extern "C" fn copy_qp_attr_from_kern(
    to: *mut ibv_qp_attr,
    from: *const ib_uverbs_qp_attr,
) {
    // SAFETY: librdmacm's structs, both whole.
    let k = unsafe { from.read_unaligned() };
    let mut attr = ibv_qp_attr::default();
    copy_qp_attr!(k => attr);
    copy_qp_cap!(k => attr.cap);
    copy_fields! { k => attr;
        path_mig_state ah_attr alt_ah_attr alt_pkey_index alt_port_num alt_timeout
    }
    // SAFETY: as above.
    unsafe { to.write(attr) };
}

/// Copies the fields of path records that have one type in both structs.
macro_rules! copy_path_rec {
    ($from:expr => $to:expr) => {
        copy_fields! { $from => $to;
            dlid slid raw_traffic flow_label reversible pkey hop_limit traffic_class numb_path sl
            mtu_selector rate_selector rate packet_life_time_selector packet_life_time preference
        }
    };
}

/// `ibv_copy_path_rec_from_kern`.
pub unsafe extern "C" fn copy_path_rec_from_kern(
    to: *mut ibv_sa_path_rec,
    from: *const ib_user_path_rec,
) {
    // SAFETY: librdmacm's structs, both whole.
    let k = unsafe { from.read_unaligned() };
    let mut rec = ibv_sa_path_rec {
        dgid: ibv_gid { raw: k.dgid },
        sgid: ibv_gid { raw: k.sgid },
        mtu: k.mtu as u8,
        ..ibv_sa_path_rec::default()
    };
    copy_path_rec!(k => rec);
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
    let mut k = ib_user_path_rec {
        dgid: r.dgid.raw,
        sgid: r.sgid.raw,
        mtu: r.mtu.into(),
        ..ib_user_path_rec::default()
    };
    copy_path_rec!(r => k);
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
