//! Verbs of address handles, and conversions of address vectors.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::gids;
use crate::hca::Hca;
use crate::object_numbers::{ObjectKind, ObjectNumber};
use crate::open_context::Context;
use crate::pd_verbs::Pd;
use crate::verb_result::{object, out, Verb};
use core::ffi::c_int;
use gdrcore_core::verbs::types::{wc_flags, AhAttr, Handle};
use gdrcore_core::wire::grh;
use gdrcore_core::{refuse, Result};

/// An address handle.
#[repr(C)]
pub struct Ah {
    ibv: ibv_ah,
    /// `ibv.handle`.
    _number: ObjectNumber,
    hca: &'static Hca,
    pub handle: Handle,
    domain: &'static Pd,
}

/// The device's form of an address vector. If devices have LIDs, a vector without a GRH names the
/// peer by its LID.
///
/// # Errors
/// `Error::Invalid`: no GRH and no LID of a peer, a port other than 1, or no such source GID.
/// ENODATA: the entry of that source GID is unused.
pub fn vector(a: &ibv_ah_attr, own: &Adapter) -> Result<AhAttr> {
    if a.port_num > 1 {
        return Err(refuse!(Invalid, "port_num {}: the device has one port, 1", a.port_num));
    }
    if a.is_global == 0 {
        let dgid = own.gid_of_lid(a.dlid).ok_or_else(|| match own.lid {
            0 => refuse!(
                Invalid,
                "is_global 0: RoCE needs a GRH, so set is_global to \
                 1, grh.dgid and grh.sgid_index (LIDs: GDRC_LID=1)"
            ),
            _ => refuse!(
                Invalid,
                "is_global 0, dlid {}: no GRH, and no LID of a peer either",
                a.dlid
            ),
        })?;
        return Ok(AhAttr { dgid, ..AhAttr::default() });
    }
    gids::gid_type(a.grh.sgid_index.into())?;
    Ok(AhAttr {
        dgid: a.grh.dgid.raw,
        scope_id: 0,
        udp_port: 0,
        hop_limit: a.grh.hop_limit,
        traffic_class: a.grh.traffic_class,
        flow_label: a.grh.flow_label,
    })
}

/// Fields of an address vector that the device does not keep, and that a query returns to the
/// program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VectorExtras {
    pub sgid_index: u8,
    /// The LID in a vector without a GRH.
    pub dlid: Option<u16>,
}

impl VectorExtras {
    /// The fields of a vector that [`vector`] has accepted.
    pub fn from_attr(a: &ibv_ah_attr) -> VectorExtras {
        VectorExtras { sgid_index: a.grh.sgid_index, dlid: (a.is_global == 0).then_some(a.dlid) }
    }

    /// The fields as one number, for an atomic store. 0 in place of a LID means none.
    pub fn pack(self) -> u32 {
        u32::from(self.sgid_index) << 16 | u32::from(self.dlid.unwrap_or(0))
    }

    /// The inverse of [`VectorExtras::pack`].
    pub fn unpack(n: u32) -> VectorExtras {
        VectorExtras { sgid_index: (n >> 16) as u8, dlid: Some(n as u16).filter(|lid| *lid != 0) }
    }
}

/// An address vector in the program's form.
pub fn attr(v: &AhAttr, extras: VectorExtras) -> ibv_ah_attr {
    let set = v.dgid != [0; 16];
    if let Some(dlid) = extras.dlid.filter(|_| set) {
        return ibv_ah_attr { dlid, port_num: 1, ..ibv_ah_attr::default() };
    }
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: v.dgid },
            sgid_index: extras.sgid_index,
            hop_limit: v.hop_limit,
            traffic_class: v.traffic_class,
            flow_label: v.flow_label,
        },
        is_global: set.into(),
        port_num: set.into(),
        ..ibv_ah_attr::default()
    }
}

/// `ibv_create_ah`.
pub unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    Verb("ibv_create_ah").pointer((|| {
        // SAFETY: the program's pointers.
        let (p, attr) = unsafe { (Pd::from_ptr(pd)?, object(attr)?) };
        // SAFETY: a context outlives its domains.
        let to = vector(attr, unsafe { Context::from_ptr((*pd).context)? }.adapter)?;
        let handle = p.hca.make(0, |d| d.ah_create(p.handle, &to))?;
        let domain = p.hold();
        // SAFETY: checked above.
        let context = unsafe { (*pd).context };
        let number = ObjectNumber::new(ObjectKind::Ah, p.hca);
        let ibv = ibv_ah { context, pd, handle: number.get() };
        Ok(Box::into_raw(Box::new(Ah { ibv, _number: number, hca: p.hca, handle, domain })).cast())
    })())
}

/// `ibv_destroy_ah`.
pub unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    Verb("ibv_destroy_ah").code((|| {
        // SAFETY: the program's pointer, one of ours.
        let a = unsafe { object(ah.cast::<Ah>())? };
        a.hca.device.ah_destroy(a.handle)?;
        a.domain.release();
        // SAFETY: made by Box::into_raw; the program may not use it any more.
        drop(unsafe { Box::from_raw(ah.cast::<Ah>()) });
        Ok(())
    })())
}

/// The address vector that leads back to the sender of a datagram.
///
/// # Safety
/// The program's pointers; `grh` is the first 40 bytes of the datagram's buffer.
unsafe fn answer(port: u8, wc: *const ibv_wc, header: *const ibv_grh) -> Result<ibv_ah_attr> {
    // SAFETY: the caller's promise.
    let wc = unsafe { object(wc)? };
    if port != 1 {
        return Err(refuse!(Invalid, "port_num {port}: the device has one port, 1"));
    }
    if wc.wc_flags & wc_flags::GRH == 0 || header.is_null() {
        return Err(refuse!(
            Invalid,
            "wc, grh: a completion with IBV_WC_GRH, and the \
             40 bytes before its message, name the sender"
        ));
    }
    // SAFETY: as above; 40 bytes of any alignment.
    let bytes = unsafe { header.cast::<[u8; grh::BYTES]>().read_unaligned() };
    let from = grh::parse(&bytes)
        .ok_or_else(|| refuse!(Invalid, "grh: these 40 bytes are no IP header"))?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: from.source },
            sgid_index: gids::PREFERRED,
            hop_limit: 0xff,
            traffic_class: from.traffic_class,
            flow_label: from.flow_label,
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
    Verb("ibv_init_ah_from_wc").number((|| {
        // SAFETY: the program's pointers.
        unsafe {
            Context::from_ptr(context)?;
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
        Err(e) => Verb("ibv_create_ah_from_wc").pointer(Err(e)),
    }
}

/// `ibv_resolve_eth_l2_from_gid`: a software device needs no MAC addresses, because the system
/// resolves them.
pub unsafe extern "C" fn resolve_eth_l2(
    context: *mut ibv_context,
    attr: *mut ibv_ah_attr,
    mac: *mut [u8; 6],
    vlan: *mut u16,
) -> c_int {
    Verb("ibv_resolve_eth_l2").number((|| {
        // SAFETY: the program's pointers.
        let (c, attr) = unsafe { (Context::from_ptr(context)?, object(attr)?) };
        vector(attr, c.adapter)?;
        // SAFETY: as above.
        unsafe {
            *out(mac)? = [0; 6];
            // No VLAN.
            *out(vlan)? = 0xffff;
        }
        Ok(0)
    })())
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::Error;
    use gdrcore_net::addr::{Endpoint, ROCE_PORT};

    fn adapter(ip: [u8; 4], lid: u16) -> Adapter {
        Adapter { lid, ..Adapter::new(0, (Endpoint::v4(ip, ROCE_PORT), 1, None)) }
    }

    #[test]
    fn a_lid_stands_for_the_low_bits_of_an_address() {
        let own = adapter([10, 1, 2, 3], 0x0203);
        let to = |dlid| ibv_ah_attr { dlid, port_num: 1, ..ibv_ah_attr::default() };
        assert_eq!(
            vector(&to(0x0405), &own).unwrap().dgid,
            Endpoint::v4([10, 1, 4, 5], ROCE_PORT).ip
        );
        assert_eq!(vector(&to(0), &own), Err(Error::Invalid));
        // The environment does not request LIDs.
        assert_eq!(vector(&to(0x0405), &adapter([10, 1, 2, 3], 0)), Err(Error::Invalid));
    }

    #[test]
    fn a_query_returns_the_programs_address_vector() {
        for extras in [
            VectorExtras::default(),
            VectorExtras { sgid_index: 3, dlid: None },
            VectorExtras { sgid_index: 255, dlid: Some(0xffff) },
            VectorExtras { sgid_index: 0, dlid: Some(1) },
        ] {
            assert_eq!(VectorExtras::unpack(extras.pack()), extras);
        }
        let v = AhAttr { dgid: [7; 16], ..AhAttr::default() };
        let by_lid = attr(&v, VectorExtras { sgid_index: 0, dlid: Some(5) });
        assert_eq!((by_lid.is_global, by_lid.dlid, by_lid.port_num), (0, 5, 1));
        assert_eq!(attr(&v, VectorExtras { sgid_index: 2, dlid: None }).grh.sgid_index, 2);
    }
}
