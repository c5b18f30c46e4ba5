//! Queue pairs of DC, and CQs that programs create by mlx5dv.

use crate::abi::*;
use crate::qp_verbs::DRIVER;
use crate::verb_result::{object, Verb};
use crate::{cq_ex_verbs, qp_ex_verbs};
use gdrcore_core::verbs::types::qp_type;
use gdrcore_core::{refuse, Result};

/// `mlx5dv_qp_init_attr_mask`.
const QP_CREATE_FLAGS: u64 = 1 << 0;
const QP_DC: u64 = 1 << 1;
const QP_SEND_OPS: u64 = 1 << 2;
const QP_DCI_STREAMS: u64 = 1 << 3;
/// `mlx5dv_qp_create_flags`: where a NIC puts short answers. They have no effect here.
const DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;
const ALLOW_SCATTER_TO_CQE: u32 = 1 << 4;
/// `mlx5dv_dc_type`.
const TYPE_DCT: u32 = 1;
const TYPE_DCI: u32 = 2;
/// `mlx5dv_cq_init_attr_mask`.
const CQ_COMPRESSED: u64 = 1 << 0;
const CQ_FLAGS: u64 = 1 << 1;
const CQ_SIZE: u64 = 1 << 2;
/// Sizes of a CQ entry in bytes.
const CQE_SIZES: [u16; 2] = [64, 128];

/// `mlx5dv_create_qp`.
pub unsafe extern "C" fn create_qp(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
    more: *const mlx5dv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the program's pointers.
    Verb("mlx5dv_create_qp").pointer(unsafe {
        wanted(init, more).and_then(|dc| qp_ex_verbs::create(context, init, dc))
    })
}

/// The type of DC that a program wants, with the access key of a DCT; `None`: a QP of another type.
/// Reads only fields that the mask names, because older structs are shorter.
///
/// # Safety
/// The program's pointers.
unsafe fn wanted(
    init: *const ibv_qp_init_attr_ex,
    more: *const mlx5dv_qp_init_attr,
) -> Result<Option<(u32, u64)>> {
    // SAFETY: the caller's promise.
    let i = unsafe { object(init)? };
    let mut dc = None;
    if !more.is_null() {
        // SAFETY: the caller's promise.
        let mask = unsafe { (*more).comp_mask };
        let known = QP_CREATE_FLAGS | QP_DC | QP_SEND_OPS | QP_DCI_STREAMS;
        if mask & !known != 0 {
            return Err(refuse!(Invalid, "mlx5 comp_mask {mask:#x}: the device knows {known:#x}"));
        }
        if mask & QP_CREATE_FLAGS != 0 {
            // SAFETY: the mask names the field.
            check_flags(unsafe { (*more).create_flags })?;
        }
        if mask & QP_SEND_OPS != 0 {
            // SAFETY: the mask names the field.
            let ops = unsafe { (*more).send_ops_flags };
            if ops != 0 {
                return Err(refuse!(Unsupported, "mlx5 send_ops_flags {ops:#x}: there are none"));
            }
        }
        if mask & QP_DC != 0 {
            // SAFETY: the mask names the field.
            let attr = unsafe { (*more).dc_init_attr };
            dc = Some(of_dc(&attr, i, mask)?);
        }
    }
    match (i.qp_type, dc) {
        (DRIVER, Some(_)) | (0..DRIVER, None) => Ok(dc),
        (DRIVER, None) => Err(refuse!(
            Invalid,
            "qp_type 255 (DRIVER): needs MLX5DV_QP_INIT_ATTR_MASK_DC, for a DCI or a DCT"
        )),
        (other, _) => Err(refuse!(Invalid, "qp_type {other}: DC is of type 255 (DRIVER)")),
    }
}

fn check_flags(flags: u32) -> Result<()> {
    let both = DISABLE_SCATTER_TO_CQE | ALLOW_SCATTER_TO_CQE;
    if flags & !both != 0 {
        return Err(refuse!(Unsupported, "mlx5 create_flags {flags:#x}: at most {both:#x}"));
    }
    if flags == both {
        return Err(refuse!(
            Invalid,
            "mlx5 create_flags {flags:#x}: DISABLE_ and ALLOW_SCATTER_TO_CQE exclude each other"
        ));
    }
    Ok(())
}

/// The type of DC in the attributes, with the key of a DCT.
fn of_dc(attr: &mlx5dv_dc_init_attr, i: &ibv_qp_init_attr_ex, mask: u64) -> Result<(u32, u64)> {
    match attr.dc_type {
        TYPE_DCT => {
            if i.comp_mask != qp_ex_verbs::INIT_PD {
                return Err(refuse!(
                    Invalid,
                    "comp_mask {:#x}: a DCT has IBV_QP_INIT_ATTR_PD (1) alone, since it sends \
                     nothing",
                    i.comp_mask
                ));
            }
            Ok((qp_type::DCT, attr.dct_access_key))
        }
        TYPE_DCI => {
            let [concurrent, errored, ..] = attr.dct_access_key.to_ne_bytes();
            if mask & QP_DCI_STREAMS != 0 && (concurrent, errored) != (0, 0) {
                return Err(refuse!(
                    Invalid,
                    "dci_streams {concurrent}, {errored}: the device has none (0, 0)"
                ));
            }
            Ok((qp_type::DCI, 0))
        }
        other => Err(refuse!(Invalid, "dc_type {other}: DCT (1) or DCI (2)")),
    }
}

/// `mlx5dv_create_cq`.
pub unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
    more: *const mlx5dv_cq_init_attr,
) -> *mut ibv_cq_ex {
    // SAFETY: the program's pointers.
    Verb("mlx5dv_create_cq")
        .pointer(unsafe { check_cq(more).and_then(|()| cq_ex_verbs::create(context, init)) })
}

/// Checks the size of an entry. It has no effect, since programs do not see entries, but must be
/// one that NICs have.
///
/// # Safety
/// Null or the program's pointer.
unsafe fn check_cq(more: *const mlx5dv_cq_init_attr) -> Result<()> {
    if more.is_null() {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let mask = unsafe { (*more).comp_mask };
    if mask & !(CQ_COMPRESSED | CQ_FLAGS | CQ_SIZE) != 0 {
        return Err(refuse!(Invalid, "mlx5 comp_mask {mask:#x}: 1, 2 and 4"));
    }
    // SAFETY: read only if the mask names it.
    let flags = if mask & CQ_FLAGS != 0 { unsafe { (*more).flags } } else { 0 };
    if mask & CQ_COMPRESSED != 0 || flags != 0 {
        return Err(refuse!(
            Unsupported,
            "mlx5 comp_mask {mask:#x}, flags {flags:#x}: completions are neither compressed nor \
             padded"
        ));
    }
    // SAFETY: read only if the mask names it.
    let size = if mask & CQ_SIZE != 0 { unsafe { (*more).cqe_size } } else { CQE_SIZES[0] };
    if !CQE_SIZES.contains(&size) {
        return Err(refuse!(Invalid, "cqe_size {size}: 64 or 128"));
    }
    Ok(())
}
