//! Address handles and address vectors.

use crate::abi::*;
use crate::context::Context;
use crate::hca::Hca;
use crate::pd::{small, Pd};
use crate::qp::Qp;
use crate::result::{code, number, object, out, pointer};
use core::ffi::{c_int, c_void};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{wc_flags, AhAttr, Handle};
use gdrcore_core::wire::grh;
use gdrcore_core::{Error, Result};

/// An address handle.
#[repr(C)]
pub struct Ah {
    ibv: ibv_ah,
    hca: &'static Hca,
    pub handle: Handle,
    domain: &'static Pd,
}

/// The device's form of an address vector.
///
/// # Errors
/// [`Error::Invalid`]: no GRH (RoCE has no other addresses), another port or source GID than the only one.
pub fn vector(a: &ibv_ah_attr) -> Result<AhAttr> {
    if a.is_global == 0 || a.port_num > 1 || a.grh.sgid_index != 0 {
        return Err(Error::Invalid);
    }
    Ok(AhAttr {
        dgid: a.grh.dgid.raw,
        scope_id: 0,
        udp_port: 0,
        hop_limit: a.grh.hop_limit,
        traffic_class: a.grh.traffic_class,
    })
}

/// The program's form of an address vector.
pub fn attr(v: &AhAttr) -> ibv_ah_attr {
    let set = v.dgid != [0; 16];
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: v.dgid },
            hop_limit: v.hop_limit,
            traffic_class: v.traffic_class,
            ..ibv_global_route::default()
        },
        is_global: set.into(),
        port_num: set.into(),
        ..ibv_ah_attr::default()
    }
}

/// `ibv_create_ah`.
pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    pointer((|| {
        // SAFETY: the program's pointers.
        let (p, attr) = unsafe { (Pd::of(pd)?, object(attr)?) };
        let to = vector(attr)?;
        let handle = p.hca.make(0, |d| d.ah_create(p.handle, &to))?;
        let domain = p.hold();
        // SAFETY: checked above.
        let context = unsafe { (*pd).context };
        let ibv = ibv_ah { context, pd, handle: small(handle) };
        Ok(Box::into_raw(Box::new(Ah { ibv, hca: p.hca, handle, domain })).cast())
    })())
}

/// `ibv_destroy_ah`.
pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    code((|| {
        // SAFETY: the program's pointer, one of ours.
        let a = unsafe { object(ah.cast::<Ah>())? };
        a.hca.device.ah_destroy(a.handle)?;
        a.domain.release();
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(ah.cast::<Ah>()) });
        Ok(())
    })())
}

/// The way back to the sender of a datagram.
///
/// # Safety
/// The program's pointers; `grh` has the 40 bytes that the datagram's buffer began with.
unsafe fn answer(port: u8, wc: *const ibv_wc, header: *const ibv_grh) -> Result<ibv_ah_attr> {
    // SAFETY: the caller's promise.
    let wc = unsafe { object(wc)? };
    if port != 1 || wc.wc_flags & wc_flags::GRH == 0 || header.is_null() {
        return Err(Error::Invalid);
    }
    // SAFETY: as above; 40 bytes of any alignment.
    let bytes = unsafe { header.cast::<[u8; grh::BYTES]>().read_unaligned() };
    let from = grh::parse(&bytes).ok_or(Error::Invalid)?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.source },
            hop_limit: 0xff,
            traffic_class: from.traffic_class,
            ..ibv_global_route::default()
        },
        dlid: wc.slid,
        is_global: 1,
        port_num: port,
        ..ibv_ah_attr::default()
    })
}

/// `ibv_init_ah_from_wc`.
pub unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    header: *mut ibv_grh,
    attr: *mut ibv_ah_attr,
) -> c_int {
    number((|| {
        // SAFETY: the program's pointers.
        unsafe {
            Context::of(context)?;
            *out(attr)? = answer(port, wc, header)?;
        }
        Ok(0)
    })())
}

/// `ibv_create_ah_from_wc`.
pub unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    header: *mut ibv_grh,
    port: u8,
) -> *mut ibv_ah {
    // SAFETY: the program's pointers.
    match unsafe { answer(port, wc, header) } {
        // SAFETY: as above.
        Ok(mut attr) => unsafe { create_ah(pd, &mut attr) },
        Err(e) => pointer(Err(e)),
    }
}

/// `ibv_resolve_eth_l2_from_gid`: a software device has no use for MAC addresses, and the system resolves them.
pub unsafe extern "C" fn resolve_eth_l2(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    number((|| {
        // SAFETY: the program's pointers.
        let (_, attr) = unsafe { (Context::of(context)?, object(attr)?) };
        vector(attr)?;
        // SAFETY: as above.
        unsafe {
            *out(mac)? = [0; 6];
            // No VLAN.
            *out(vlan)? = 0xffff;
        }
        Ok(0)
    })())
}

/// The QP and group of the calls below.
///
/// # Safety
/// The program's pointers; the GID may be less aligned than ours.
unsafe fn member<'a>(qp: *mut ibv_qp, gid: *const c_void) -> Result<(&'a Qp, [u8; 16])> {
    if gid.is_null() {
        return Err(Error::Invalid);
    }
    // SAFETY: the caller's promise.
    unsafe { Ok((Qp::of(qp)?, gid.cast::<[u8; 16]>().read_unaligned())) }
}

/// `ibv_attach_mcast`. The LID says nothing on Ethernet.
pub unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const c_void, _lid: u16) -> c_int {
    // SAFETY: the program's pointers.
    code(unsafe { member(qp, gid) }.and_then(|(qp, gid)| qp.device.mcast_attach(qp.handle, &gid)))
}

/// `ibv_detach_mcast`.
pub unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const c_void, _lid: u16) -> c_int {
    // SAFETY: the program's pointers.
    code(unsafe { member(qp, gid) }.and_then(|(qp, gid)| qp.device.mcast_detach(qp.handle, &gid)))
}
