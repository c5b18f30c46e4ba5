//! Verbs of multicast groups.

use crate::abi::ibv_qp;
use crate::qp_verbs::Qp;
use crate::verb_result::Verb;
use core::ffi::{c_int, c_void};
use gdrcore_core::{refuse, Result};

/// The QP and group of the calls below.
///
/// # Safety
/// The program's pointers; the GID may be less aligned than ours.
unsafe fn member<'a>(qp: *mut ibv_qp, gid: *const c_void) -> Result<(&'a Qp, [u8; 16])> {
    if gid.is_null() {
        return Err(refuse!(Invalid, "gid: NULL"));
    }
    // SAFETY: the caller's promise.
    unsafe { Ok((Qp::from_ptr(qp)?, gid.cast::<[u8; 16]>().read_unaligned())) }
}

/// `ibv_attach_mcast`. The LID has no meaning on Ethernet.
pub unsafe extern "C" fn attach_mcast(qp: *mut ibv_qp, gid: *const c_void, _lid: u16) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_attach_mcast").code(unsafe { member(qp, gid) }.and_then(|(qp, gid)| {
        let mut groups = qp.joined();
        qp.device.mcast_attach(qp.handle, &gid)?;
        if !groups.contains(&gid) {
            groups.push(gid);
        }
        Ok(())
    }))
}

/// `ibv_detach_mcast`.
pub unsafe extern "C" fn detach_mcast(qp: *mut ibv_qp, gid: *const c_void, _lid: u16) -> c_int {
    // SAFETY: the program's pointers.
    Verb("ibv_detach_mcast").code(unsafe { member(qp, gid) }.and_then(|(qp, gid)| {
        let mut groups = qp.joined();
        qp.device.mcast_detach(qp.handle, &gid)?;
        groups.retain(|g| *g != gid);
        Ok(())
    }))
}
