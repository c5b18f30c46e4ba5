//! Whether what is lent to other processes may still be written by them, asked by whoever holds the
//! engine's lock.

use super::PortState;
use gdrcore_core::device::MrAttr;
use gdrcore_core::engine::Guard;

/// Takes back what is lent and no longer stands: after whatever may have changed that.
#[inline]
pub(super) fn check_grants_if_changed(g: &Guard<'_>, port: &mut PortState) {
    if g.changes() != port.changes {
        check_grants(g, port);
    }
}

#[cold]
pub(super) fn check_grants(g: &Guard<'_>, port: &mut PortState) {
    port.changes = g.changes();
    let Some(shm) = &mut port.shm else { return };
    shm.check_grants(|from, request, region: &MrAttr| {
        g.mappable(request.qpn, request.from_qpn, &from.ip, request.rkey)
            .is_some_and(|now| now == *region)
    });
}
