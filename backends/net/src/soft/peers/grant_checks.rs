//! Checks of grants under the engine's lock: whether other processes may still write the regions.
//! Receipts of ended connections are checked with them.

use crate::soft::PortState;
use gdrcore_core::device::MrAttr;
use gdrcore_core::engine::EngineGuard;

/// Checks all grants if anything that they depend on has changed.
#[inline]
pub(in crate::soft) fn check_grants_if_changed(g: &EngineGuard<'_>, port: &mut PortState) {
    if g.changes() != port.seen.changes {
        check_grants(g, port);
    }
}

#[cold]
pub(in crate::soft) fn check_grants(g: &EngineGuard<'_>, port: &mut PortState) {
    port.seen.changes = g.changes();
    let Some(shm) = &mut port.shm else { return };
    if g.connections_begun() != port.seen.connections_begun {
        port.seen.connections_begun = g.connections_begun();
        shm.retain_receipts(|qpn, psn| g.is_receipt(qpn, psn));
    }
    shm.check_grants(|from, request, region: &MrAttr| {
        g.mappable_region(request.qpn, request.from_qpn, &from.ip, request.rkey)
            .is_some_and(|now| now == *region)
    });
}
