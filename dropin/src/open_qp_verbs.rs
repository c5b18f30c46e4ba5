//! `ibv_open_qp`: further handles of this process's XRC targets. Each handle of a target gets its
//! events, and the end of the last handle ends the target.

use crate::abi::*;
use crate::event_acks::EventKind;
use crate::open_context::Context;
use crate::qp_verbs::{make_target, Qp};
use crate::verb_result::{out, Verb};
use crate::xrcd_verbs::Xrcd;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::qp_type;

/// `ibv_qp_open_attr_mask`.
const OPEN_NUM: u32 = 1;
const OPEN_XRCD: u32 = 2;
const OPEN_CONTEXT: u32 = 4;
const OPEN_TYPE: u32 = 8;

/// The operation behind `ibv_open_qp`.
pub unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    Verb("ibv_open_qp").pointer((|| {
        // SAFETY: the program's pointers.
        let (c, a) = unsafe { (Context::from_ptr(context)?, out(attr)?) };
        let needed = OPEN_NUM | OPEN_XRCD | OPEN_TYPE;
        let mask = a.comp_mask;
        if mask & needed != needed || mask & !(needed | OPEN_CONTEXT) != 0 {
            return Err(refuse!(
                Invalid,
                "comp_mask {mask:#x}: IBV_QP_OPEN_ATTR_NUM, _XRCD and _TYPE ({needed:#x})"
            ));
        }
        if a.qp_type != qp_type::XRC_RECV {
            return Err(refuse!(Invalid, "qp_type {}: XRC_RECV (10)", a.qp_type));
        }
        // SAFETY: the program's pointer.
        let xrcd = unsafe { Xrcd::from_ptr(a.xrcd)? }.handle;
        let context_of_qp =
            if mask & OPEN_CONTEXT != 0 { a.qp_context } else { core::ptr::null_mut() };
        let mut objects = c.hca.objects();
        let found = objects.by_handle.values().find_map(|target| {
            // SAFETY: what is in the table, which is locked, lives.
            let target = unsafe { &**target };
            if !matches!(target.kind(), EventKind::Qp) {
                return None;
            }
            // SAFETY: as above; of a QP this field of the union is valid.
            let q = unsafe { Qp::from_ptr(target.element().qp) }.ok()?;
            let same = q.ex.qp_base.qp_num == a.qp_num && q.xrcd == xrcd;
            same.then_some((q.handle, a.qp_num, q.cap))
        });
        let Some(made) = found else {
            return Err(refuse!(
                Os(libc::ENOENT),
                "qp_num {}: no XRC_RECV of this process in the domain; a domain is not shared \
                 among processes, even if they name it by one file",
                a.qp_num
            ));
        };
        // SAFETY: the program's context.
        let qp = unsafe { make_target(context, xrcd, context_of_qp, Some(made))? };
        objects.opened.entry(made.0).or_default().push(qp);
        Ok(qp.cast())
    })())
}
