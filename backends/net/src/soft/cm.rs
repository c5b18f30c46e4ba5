//! The connection manager of an engine, under the lock, and a round that sends its messages.

use super::SoftEngine;
use crate::clock::now_ns;
use gdrcore_core::cm::mad::MAD_LEN;
use gdrcore_core::cm::other_mads::OtherMad;
use gdrcore_core::cm::types::ConnParam;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::Result;
use gdrcore_core::verbs::types::{AhAttr, Handle};

/// Control: the connection manager.
impl SoftEngine {
    /// Makes a change under the lock, then sends the messages that it caused.
    pub(super) fn manage<R>(
        &self,
        change: impl FnOnce(&mut EngineGuard<'_>, u64) -> Result<R>,
    ) -> Result<R> {
        let mut guard = self.lock()?;
        let done = change(&mut guard, now_ns());
        drop(guard);
        self.try_send();
        done
    }

    /// [`super::SoftDevice::send_other_mad`].
    pub(super) fn send_other_mad(&self, to: &AhAttr, mad: &[u8; MAD_LEN]) -> Result<()> {
        self.check_datagrams(to)?;
        self.manage(|g, _| {
            let peer = g.address(to)?;
            g.cm().send_other_mad(OtherMad { peer, mad: *mad })
        })
    }

    /// The parameters of a request for a connection: both ends use its path MTU.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Unsupported`]: a router that carries no datagrams; as
    /// `Device::path_mtu`.
    pub(super) fn request<'p>(&self, to: &AhAttr, p: &ConnParam<'p>) -> Result<ConnParam<'p>> {
        self.check_datagrams(to)?;
        let path_mtu = if p.path_mtu == 0 { self.path_mtu(to)? } else { p.path_mtu };
        Ok(ConnParam { path_mtu, ..*p })
    }

    /// `CmDevice::announce`.
    pub(super) fn announce_service(&self, id: Handle, soon: bool) -> Result<()> {
        self.fork.check()?;
        if soon {
            self.offer_service(id)?;
        }
        let done = self.lock_control().announce(id, soon);
        if !soon {
            self.withdraw_service(id);
        }
        done
    }

    /// `CmDevice::listen`.
    pub(super) fn listen(&self, id: Handle, backlog: u32) -> Result<()> {
        self.fork.check()?;
        self.offer_service(id)?;
        let listens = self.lock_control().listen(id, backlog);
        // Requests that waited for the listener may be refused now.
        self.try_send();
        listens
    }

    /// `CmDevice::destroy`.
    pub(super) fn destroy_id(&self, id: Handle) -> Result<()> {
        self.manage(|g, now| g.cm().destroy(now, id))?;
        self.lock_control().withdraw(id);
        self.withdraw_service(id);
        Ok(())
    }
}
