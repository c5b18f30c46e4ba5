//! [`SoftDevice`]'s multicast: the engine knows the members of groups, the port the groups that
//! have some.

use super::lock::EngineLock;
use super::SoftDevice;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::Handle;

impl SoftDevice {
    pub(super) fn group_attach(&self, qp: Handle, gid: &[u8; 16]) -> Result<()> {
        let mut held = self.lock_owned()?;
        held.guard.mcast_attach(qp, gid)?;
        let joined = match &mut held.port().net {
            Some(net) => net.group_join(gid),
            None => Err(refuse!(
                Unsupported,
                "device: loopback and devices over a router have no multicast"
            )),
        };
        let watched = joined.and_then(|fd| fd.map_or(Ok(()), |fd| self.waiter.add_socket(fd)));
        if watched.is_err() {
            let _ = held.guard.mcast_detach(qp, gid);
            Self::leave_empty_groups(&mut held);
        }
        watched
    }

    pub(super) fn group_detach(&self, qp: Handle, gid: &[u8; 16]) -> Result<()> {
        let mut held = self.lock_owned()?;
        held.guard.mcast_detach(qp, gid)?;
        Self::leave_empty_groups(&mut held);
        Ok(())
    }

    /// Closes the sockets of groups without members.
    pub(super) fn leave_empty_groups(held: &mut EngineLock<'_>) {
        let (guard, port) = held.parts();
        if let Some(net) = port.net.as_mut().filter(|net| net.has_groups()) {
            net.groups_retain(|gid| guard.has_members(gid));
        }
    }
}
