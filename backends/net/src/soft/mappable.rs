//! Whether what is lent to other processes may still be written by them, asked by whoever holds the
//! engine's lock.

use super::Port;
use gdrcore_core::device::MrAttr;
use gdrcore_core::engine::Guard;

/// Takes back what is lent and no longer stands: after whatever may have changed that.
#[inline]
pub(super) fn look_after_loans(g: &Guard<'_>, port: &mut Port) {
    if g.changes() != port.changes {
        check_loans(g, port);
    }
}

#[cold]
pub(super) fn check_loans(g: &Guard<'_>, port: &mut Port) {
    port.changes = g.changes();
    let Some(shm) = &mut port.shm else { return };
    shm.check_loans(|from, ask, region: &MrAttr| {
        g.mappable(ask.qpn, ask.from_qpn, &from.ip, ask.rkey).is_some_and(|now| now == *region)
    });
}
