//! Whether a device is one of mlx5dv, and its attributes.

use crate::abi::*;
use crate::env::{self, Identity};
use crate::open_context::Context;
use crate::verb_result::Verb;
use crate::{open_devices, open_verbs, query_verbs};
use core::ffi::c_int;
use gdrcore_core::refuse;

/// `mlx5dv_context_comp_mask`: the attributes that the device answers. Some answers are only 0:
/// programs ask for these attributes without a look at the answer's mask.
const CQE_COMPRESSION: u64 = 1 << 0;
const SWP: u64 = 1 << 1;
const STRIDING_RQ: u64 = 1 << 2;
const TUNNEL_OFFLOADS: u64 = 1 << 3;
const DYN_BFREGS: u64 = 1 << 4;
const DC_ODP_CAPS: u64 = 1 << 7;
const DCI_STREAMS: u64 = 1 << 11;

/// `mlx5dv_is_supported`: whether a device has mlx5dv. Under gdrcore's own identity it has not, so
/// that programs which know several kinds of NICs take it for none of them.
pub unsafe extern "C" fn is_supported(device: *const ibv_device) -> bool {
    open_devices::is_listed(device) && env::identity() == Identity::Mlx5
}

/// `mlx5dv_open_device`: as `ibv_open_device`, without DevX.
pub unsafe extern "C" fn open_device(
    device: *mut ibv_device,
    attr: *const mlx5dv_context_attr,
) -> *mut ibv_context {
    // SAFETY: the program's pointer, or null.
    if let Some(a) = unsafe { attr.as_ref() } {
        let (flags, mask) = (a.flags, a.comp_mask);
        if flags != 0 || mask != 0 {
            return Verb("mlx5dv_open_device").pointer(Err(refuse!(
                Unsupported,
                "flags {flags:#x}, comp_mask {mask:#x}: both must be 0 (there is no DevX)"
            )));
        }
    }
    // SAFETY: the program's pointer.
    unsafe { open_verbs::open_device(device) }
}

/// `mlx5dv_query_device`: writes the requested attributes that the device knows. It writes only
/// fields that the mask names, because structs of older releases are shorter.
pub unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    attributes: *mut mlx5dv_context,
) -> c_int {
    // SAFETY: the program's pointer.
    Verb("mlx5dv_query_device").code(unsafe { Context::of_anybody(context) }.and_then(|_| {
        if attributes.is_null() {
            return Err(refuse!(Invalid, "attrs_out: NULL"));
        }
        let a = attributes;
        // SAFETY: the program's struct holds the first three fields, and those that its mask names.
        unsafe {
            let asked = (&raw const (*a).comp_mask).read();
            let mut answered = 0;
            macro_rules! answer {
                ($($bit:ident => $field:ident = $value:expr;)*) => {$(
                    if asked & $bit != 0 {
                        (&raw mut (*a).$field).write($value);
                        answered |= $bit;
                    }
                )*};
            }
            answer! {
                CQE_COMPRESSION => cqe_comp_caps = [0; 2];
                SWP => sw_parsing_caps = [0; 2];
                STRIDING_RQ => striding_rq_caps = [0; 5];
                TUNNEL_OFFLOADS => tunnel_offloads_caps = 0;
                DYN_BFREGS => max_dynamic_bfregs = 0;
                DC_ODP_CAPS => dc_odp_caps = query_verbs::ODP_RC;
                DCI_STREAMS => dci_streams_caps = [0; 2];
            }
            (&raw mut (*a).version).write(0);
            (&raw mut (*a).flags).write(0);
            (&raw mut (*a).comp_mask).write(answered);
        }
        Ok(())
    }))
}
