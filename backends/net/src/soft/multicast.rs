//! [`SoftEngine`]'s multicast: the engine knows the members of each group, the port knows the
//! groups that have members.

use super::lock::EngineLock;
use super::{PortState, SoftEngine};
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::Handle;

/// Control: multicast.
impl SoftEngine {
    pub(super) fn mcast_attach(&self, qp: Handle, gid: &[u8; 16]) -> Result<()> {
        let mut held = self.lock()?;
        held.mcast_attach(qp, gid)?;
        let PortState { net, router, .. } = held.port();
        let joined = match net {
            Some(net) => net.group_join(gid),
            None if router.relay.is_some() => Err(refuse!(
                Unsupported,
                "gid: a device over a router has no multicast; a device with an address of its own \
                 has (\"soft:<address>\")"
            )),
            None => Err(refuse!(
                Unsupported,
                "gid: loopback has no multicast; a device with an address has (\"soft:<address>\")"
            )),
        };
        let watched = joined.and_then(|fd| fd.map_or(Ok(()), |fd| self.waiter.add_socket(fd)));
        if watched.is_err() {
            let _ = held.mcast_detach(qp, gid);
            Self::leave_empty_groups(&mut held);
        }
        watched
    }

    pub(super) fn mcast_detach(&self, qp: Handle, gid: &[u8; 16]) -> Result<()> {
        let mut held = self.lock()?;
        held.mcast_detach(qp, gid)?;
        Self::leave_empty_groups(&mut held);
        Ok(())
    }

    pub(super) fn leave_empty_groups(held: &mut EngineLock<'_>) {
        let (guard, port) = held.parts();
        if let Some(net) = port.net.as_mut().filter(|net| net.has_groups()) {
            net.groups_retain(|gid| guard.has_members(gid));
        }
    }
}
