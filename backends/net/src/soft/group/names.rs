//! The names by which the other devices of an address find this one and its listeners.

use crate::clock::now_ns;
use crate::soft::lock::EngineLock;
use crate::soft::PortState;
use crate::wait::Waiter;
use gdrcore_core::error::Result;
use gdrcore_core::verbs::types::Handle;

impl EngineLock<'_> {
    /// Listens at an id's port: one listener for each port among all devices of the address.
    pub(in crate::soft) fn listen(&mut self, id: Handle, backlog: u32) -> Result<()> {
        let (port_space, port) = self.cm().bound(id)?;
        if let Some(member) = &mut self.port().member {
            member.offer(id, port_space, port)?;
        }
        self.cm_listen(now_ns(), id, backlog)
    }

    /// Takes the name of an id's port before it listens, so that requests for it come to this
    /// device and no other device refuses them.
    pub(in crate::soft) fn announce(&mut self, id: Handle, soon: bool) -> Result<()> {
        let (port_space, port) = self.cm().bound(id)?;
        if let Some(member) = &mut self.port().member {
            if soon {
                member.offer(id, port_space, port)?;
            } else {
                member.withdraw(id);
            }
        }
        self.cm().announce(id, soon)
    }

    /// Withdraws the service of an id that has ended.
    pub(in crate::soft) fn withdraw(&mut self, id: Handle) {
        if let Some(member) = &mut self.port().member {
            member.withdraw(id);
        }
    }
}

impl PortState {
    /// Takes the device's names again after their directory was removed.
    #[cold]
    pub(in crate::soft) fn renew_names(&mut self, waiter: &Waiter) {
        let Some(member) = &mut self.member else { return };
        if member.renew().is_ok() {
            if let Some(shm) = &mut self.shm {
                let _ = shm.renew(member.socket_dir(), member.locks().next(), waiter);
            }
        }
    }
}
