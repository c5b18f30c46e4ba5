//! The calls of mlx5dv between `ibv_wr_start` and `ibv_wr_complete`. Those that name the target of
//! a DCI's request work; all others make `ibv_wr_complete` fail.

use crate::abi::*;
use crate::ah_verbs::Ah;
use crate::qp_verbs::Qp;
use crate::send_batch::SendBatch;
use crate::verb_result::object;
use core::mem::offset_of;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{wr_opcode, DcWr};

/// `mlx5dv_qp_ex_from_ibv_qp_ex`: null for null, because programs call it for DCTs too.
pub unsafe extern "C" fn qp_ex_from_ibv_qp_ex(qp: *mut ibv_qp_ex) -> *mut mlx5dv_qp_ex {
    if qp.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: the program's QP, which is a Qp.
    unsafe { &raw mut (*qp.cast::<Qp>()).dv }
}

/// The functions of a QP. Only the requests of a DCI have targets.
pub fn functions(dci: bool) -> mlx5dv_qp_ex {
    let mut all = mlx5dv_qp_ex {
        comp_mask: 0,
        wr_set_dc_addr: Some(no_target),
        wr_mr_interleaved: Some(refuse_other),
        wr_mr_list: Some(refuse_other),
        wr_mkey_configure: Some(refuse_other),
        wr_set_mkey_access_flags: Some(refuse_other),
        wr_set_mkey_layout_list: Some(refuse_other),
        wr_set_mkey_layout_interleaved: Some(refuse_other),
        wr_set_mkey_sig_block: Some(refuse_other),
        wr_raw_wqe: Some(refuse_other),
        wr_set_dc_addr_stream: Some(no_target_of_stream),
        wr_memcpy: Some(refuse_other),
        wr_set_mkey_crypto: Some(refuse_other),
    };
    if dci {
        all.wr_set_dc_addr = Some(wr_set_dc_addr);
        all.wr_set_dc_addr_stream = Some(wr_set_dc_addr_stream);
    }
    all
}

/// The batch of a QP.
///
/// # Safety
/// The program's QP, and this thread is between its start and its complete or abort.
unsafe fn batch<'a>(qp: *mut mlx5dv_qp_ex) -> Option<&'a mut SendBatch> {
    // SAFETY: the caller's promise; `qp` points to the field of a Qp.
    unsafe { Qp::batch_of(qp.byte_sub(offset_of!(Qp, dv)).cast()) }
}

fn is_local(opcode: u32) -> bool {
    matches!(opcode, wr_opcode::LOCAL_INV | wr_opcode::BIND_MW)
}

unsafe extern "C" fn wr_set_dc_addr(qp: *mut mlx5dv_qp_ex, ah: *mut ibv_ah, dctn: u32, key: u64) {
    // SAFETY: between start and complete.
    let Some(b) = (unsafe { batch(qp) }) else { return };
    // SAFETY: the program's pointer.
    let ah = match unsafe { object(ah.cast::<Ah>()) } {
        Ok(ah) => ah.handle,
        Err(e) => return b.fail(e),
    };
    let Some(wr) = b.last() else { return };
    if is_local(wr.opcode) {
        let opcode = wr.opcode;
        return b.fail(refuse!(
            Invalid,
            "mlx5dv_wr_set_dc_addr: operation {opcode} is of this QP alone and has no target"
        ));
    }
    wr.ext.dc = DcWr { ah, dc_key: key, dctn };
}

/// The device has no streams, so the stream is ignored.
unsafe extern "C" fn wr_set_dc_addr_stream(
    qp: *mut mlx5dv_qp_ex,
    ah: *mut ibv_ah,
    dctn: u32,
    key: u64,
    _stream: u16,
) {
    // SAFETY: the program's call, passed on.
    unsafe { wr_set_dc_addr(qp, ah, dctn, key) };
}

/// Fails the batch if a request of a DCI has no target.
pub fn check(batch: &mut SendBatch) {
    // The batch keeps the reason of its first error.
    if batch.error.is_some() {
        return;
    }
    let without = batch.wrs.iter().position(|wr| {
        // SAFETY: zeroes at first, and a DCI's request has no other part unless it is local.
        !is_local(wr.opcode) && unsafe { wr.ext.dc.ah } == 0
    });
    if let Some(k) = without {
        batch.fail(refuse!(Invalid, "request {k} of the batch: no mlx5dv_wr_set_dc_addr"));
    }
}

unsafe extern "C" fn refuse_other(qp: *mut mlx5dv_qp_ex) {
    // SAFETY: between start and complete.
    if let Some(b) = unsafe { batch(qp) } {
        b.fail(refuse!(
            Unsupported,
            "mlx5dv_wr_: of mlx5dv's requests the device knows mlx5dv_wr_set_dc_addr alone"
        ));
    }
}

unsafe extern "C" fn no_target(qp: *mut mlx5dv_qp_ex, _ah: *mut ibv_ah, _dctn: u32, _key: u64) {
    // SAFETY: between start and complete.
    if let Some(b) = unsafe { batch(qp) } {
        b.fail(refuse!(Unsupported, "mlx5dv_wr_set_dc_addr: the QP is no DCI"));
    }
}

unsafe extern "C" fn no_target_of_stream(
    qp: *mut mlx5dv_qp_ex,
    ah: *mut ibv_ah,
    dctn: u32,
    key: u64,
    _stream: u16,
) {
    // SAFETY: the program's call, passed on.
    unsafe { no_target(qp, ah, dctn, key) };
}
