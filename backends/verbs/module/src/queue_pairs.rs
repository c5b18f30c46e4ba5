//! The module's functions for queue pairs.

use core::ffi::c_int;
use core::mem::zeroed;

use crate::context_ops::operation;
use crate::convert::{cap_of, qp_attr, qp_attr_of};
use crate::qp_init::{attributes, tries, with_most, Made};
use crate::{code, last_errno, mlx5};
use gdrcore_core::verbs::types::{qp_type, QpAttr};
use gdrcore_verbs::abi::{Object, QpMade, QpMake, Source, Text};
use rdma_sys::*;

/// # Safety
/// Here and below: as documented for the table (`gdrcore_verbs::abi::Module`).
pub unsafe extern "C" fn qp_create(
    context: Object,
    make: *const QpMake,
    out: *mut QpMade,
    why: *mut Text,
) -> c_int {
    // SAFETY: the table's contract.
    let (m, why) = unsafe { (&*make, &mut *why) };
    let made = match m.qp_type {
        // SAFETY: the table's contract.
        qp_type::DCI | qp_type::DCT => unsafe { mlx5::create(context.cast(), m, why) },
        // SAFETY: as above.
        _ => unsafe { create(context.cast(), m) },
    };
    match made {
        Ok((qp, extended, cap)) => {
            // SAFETY: a new QP, and the table's contract for the result.
            unsafe {
                let qpn = (*qp).qp_num;
                out.write(QpMade { qp: qp.cast(), qpn, extended, cap: cap_of(&cap) });
            }
            0
        }
        Err(e) => e,
    }
}

/// A queue pair of libibverbs' own types.
///
/// # Safety
/// An open context, and objects of it.
unsafe fn create(context: *mut ibv_context, m: &QpMake) -> Made {
    let mut init = attributes(m);
    init.qp_type = m.qp_type as _;
    let pd = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
    // SAFETY: our contract.
    let create_ex = unsafe { operation!(context, create_qp_ex) };
    if m.qp_type == qp_type::XRC_RECV {
        init.comp_mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
        let create_ex = create_ex.ok_or(libc::EOPNOTSUPP)?;
        // SAFETY: our contract, our own attributes.
        let qp = unsafe { create_ex(context, &mut init) };
        return if qp.is_null() { Err(last_errno()) } else { Ok((qp, 0, init.cap)) };
    }
    if let Some(create_ex) = create_ex {
        let ops = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        let init = ibv_qp_init_attr_ex { comp_mask: pd | ops, ..init };
        // SAFETY: our contract, our own attributes.
        let made = with_most(tries(m.extended), &init, |init| unsafe { create_ex(context, init) });
        if let Some(made) = made {
            return made;
        }
    }
    // SAFETY: our contract. The extended attributes begin as the plain ones.
    let qp = unsafe { ibv_create_qp(init.pd, (&raw mut init).cast()) };
    if qp.is_null() {
        return Err(last_errno());
    }
    Ok((qp, 0, init.cap))
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn qp_modify(
    qp: Object,
    attr: *const QpAttr,
    mask: u32,
    source: *const Source,
) -> c_int {
    // SAFETY: the table's contract, for both.
    let (attr, source) = unsafe { (&*attr, &*source) };
    let mut attr = qp_attr(attr, mask, source);
    // SAFETY: a live QP, our own attributes.
    code(unsafe { ibv_modify_qp(qp.cast(), &mut attr, mask as c_int) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn qp_query(qp: Object, kind: u32, out: *mut QpAttr) -> c_int {
    let qp: *mut ibv_qp = qp.cast();
    // SAFETY: plain data, all-zero is valid.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { (zeroed(), zeroed()) };
    // All attributes that a query can return for an RC QP. The result lacks those that do not apply
    // to the type.
    let mut mask = (1 << 21) - 1;
    if kind == qp_type::DCT {
        // mlx5 refuses a query for any other attribute.
        mask = mlx5::DCT_ATTRIBUTES;
    }
    // SAFETY: a live QP, our own structs.
    let mut rc = code(unsafe { ibv_query_qp(qp, &mut attr, mask as c_int, &mut init) });
    if kind == qp_type::DCT && rc == libc::EINVAL {
        // It has none before RTR; libibverbs notes the state of every QP.
        // SAFETY: a live QP.
        attr.qp_state = unsafe { (*qp).state };
        rc = 0;
    }
    if rc == 0 {
        let mut found = qp_attr_of(&attr);
        found.cap = cap_of(&init.cap);
        // SAFETY: the table's contract.
        unsafe { out.write(found) };
    }
    rc
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn qp_number(qp: Object) -> u32 {
    // SAFETY: the table's contract.
    unsafe { (*qp.cast::<ibv_qp>()).qp_num }
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn mcast_attach(qp: Object, gid: *const [u8; 16]) -> c_int {
    // SAFETY: the table's contract.
    let gid = ibv_gid { raw: unsafe { *gid } };
    // SAFETY: a live QP, our own GID.
    code(unsafe { ibv_attach_mcast(qp.cast(), &gid, 0) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn mcast_detach(qp: Object, gid: *const [u8; 16]) -> c_int {
    // SAFETY: the table's contract.
    let gid = ibv_gid { raw: unsafe { *gid } };
    // SAFETY: a live QP, our own GID.
    code(unsafe { ibv_detach_mcast(qp.cast(), &gid, 0) })
}

/// # Safety
/// The table's.
pub unsafe extern "C" fn qp_destroy(qp: Object) -> c_int {
    // SAFETY: the table's contract.
    code(unsafe { ibv_destroy_qp(qp.cast()) })
}
