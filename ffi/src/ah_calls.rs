//! C calls of address handles: gdrc_ah_.

use crate::c_consts::wc_flags;
use crate::c_result::{call, refuse};
use crate::c_types::*;
use crate::context_slots::device;
use crate::ptr::{out, plain_in};
use core::ffi::{c_int, c_void};
use gdrcore_core::verbs::types::AhAttr;
use gdrcore_core::wire::grh;

/// Makes an address handle for UD sends.
///
/// Errors: -ENOMEM: max_ah or max_peer are in use; -EINVAL: the GID is no address that this device
/// can send to (IPv4 and IPv6 do not mix, link-local needs a zone), stale pd, a NULL pointer.
/// Threads: any. Cost: none. Source: IBTA verb Create Address Handle; ibv_create_ah(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_ah_create(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    attr: *const gdrc_ah_attr,
    out: *mut gdrc_ah,
) -> c_int {
    call(|| {
        let out = out!(out);
        let attr = plain_in!(attr);
        out.write(gdrc_ah { handle: device(ctx)?.ah_create(pd.handle, &attr.into())? });
        Ok(())
    })
}

/// Makes an address handle for an answer to the sender of a received UD message: `wc` is its
/// completion, `grh40` the first 40 bytes of the receive buffer. The answer goes to the device's
/// own UDP port number at that address.
///
/// Errors: -EINVAL: the completion has no GDRC_WC_FLAG_GRH, the 40 bytes are no IP header, a NULL
/// pointer; else as gdrc_ah_create. Threads: any. Cost: none. Source: ibv_create_ah_from_wc(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_ah_from_wc(
    ctx: *mut gdrc_context,
    pd: gdrc_pd,
    wc: *const Wc,
    grh40: *const c_void,
    out: *mut gdrc_ah,
) -> c_int {
    call(|| {
        let out = out!(out);
        let wc = plain_in!(wc);
        let bytes: [u8; grh::BYTES] = plain_in!(grh40.cast());
        let dev = device(ctx)?;
        if wc.wc_flags & wc_flags::GRH == 0 {
            return Err(refuse!(
                Invalid,
                "wc->wc_flags {:#x}: without GDRC_WC_FLAG_GRH there is no sender's address",
                wc.wc_flags
            ));
        }
        let from = grh::parse(&bytes)
            .ok_or_else(|| refuse!(Invalid, "grh40: these 40 bytes are no IP header"))?;
        // A link-local sender is on the link of the device's own address.
        let scope_id = if grh::is_link_local(&from.source) { dev.facts()?.scope_id } else { 0 };
        let attr = AhAttr {
            dgid: from.source,
            scope_id,
            traffic_class: from.traffic_class,
            flow_label: from.flow_label,
            ..AhAttr::default()
        };
        out.write(gdrc_ah { handle: dev.ah_create(pd.handle, &attr)? });
        Ok(())
    })
}

/// Destroys an address handle. Posted sends that name it and have not been sent fail with a
/// completion.
///
/// Errors: -EINVAL: stale handle. Threads: any. Cost: none. Source: IBTA verb Destroy Address
/// Handle; ibv_destroy_ah(3).
#[no_mangle]
pub unsafe extern "C" fn gdrc_ah_destroy(ctx: *mut gdrc_context, ah: gdrc_ah) -> c_int {
    call(|| device(ctx)?.ah_destroy(ah.handle))
}
