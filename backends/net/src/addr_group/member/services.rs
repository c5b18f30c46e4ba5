//! Services of the connection manager: the ports that this member listens at, and those of others.

use super::super::group_msg::{self, GroupMsg, GroupSocket, Packets};
use super::super::table::Table;
use super::{Member, Service};
use crate::local::{Holder, Role, SocketPath};
use crate::wait::watch;
use gdrcore_core::cm::LISTENER_GRACE_NS;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;

impl Member {
    /// Forwards a message of the connection manager to the member that listens. Returns false if no
    /// member listens.
    pub fn forward_to_service(
        &mut self,
        port_space: u16,
        port: u16,
        packets: &Packets<'_>,
    ) -> bool {
        let name = SocketPath::new(
            &self.socket_dir,
            &self.local,
            Holder::Service(port_space, port),
            Role::Messages,
        );
        let delivery =
            group_msg::send_to(self.send_fd(), self.block, &name, &GroupMsg::Packets(*packets));
        self.count_forwarded(delivery, packets)
    }

    /// Remembers services that the newer table lacks.
    pub(super) fn note_former(&mut self, now: u64, newer: &Table) {
        for &(name, block) in self.table.services() {
            if newer.index_of(block).is_some() && !newer.services().iter().any(|s| s.0 == name) {
                let port = name as u16;
                self.former.write((block, port, now.saturating_add(LISTENER_GRACE_NS)));
            }
        }
    }

    /// Whether a living member listened at a port a moment ago. A request for it may reach any
    /// member. Only that member's engine would drop it, so that its sender repeats the request.
    pub fn is_former(&self, now: u64, port: u16) -> bool {
        let counts = |&(block, at, until): &(u16, u16, u64)| {
            at == port && now < until && self.table.index_of(block).is_some()
        };
        self.former.iter().any(counts)
    }

    /// Listens for a service among all devices of the address: the kernel then steers its requests
    /// here. No effect for an id that listens already.
    ///
    /// # Errors
    /// `AddressInUse`: another device listens; `NoMemory`: this device has
    /// [`SERVICES`](super::SERVICES) listeners; `Os`.
    pub fn offer(&mut self, id: u64, port_space: u16, port: u16) -> Result<()> {
        if self.services.iter().flatten().any(|s| s.id == id) {
            return Ok(());
        }
        let most = self.services.len();
        let slot = self.services.iter_mut().find(|s| s.is_none()).ok_or_else(|| {
            refuse!(NoMemory, "max_cm_ids: {most} ids listen, and there is no room for more")
        })?;
        let group_socket =
            GroupSocket::open(&self.socket_dir, &self.local, Holder::Service(port_space, port))?;
        watch(self.set.raw(), group_socket.fd())?;
        *slot = Some(Service {
            id,
            name: u32::from(port_space) << 16 | u32::from(port),
            _socket: group_socket,
        });
        self.publish_services();
        Ok(())
    }

    /// Withdraws the service of an id, if it offers one.
    pub fn withdraw(&mut self, id: u64) {
        let offers = |s: &Option<Service>| s.as_ref().is_some_and(|s| s.id == id);
        // Closing takes it out of the set.
        if let Some(slot) = self.services.iter_mut().find(|s| offers(s)) {
            *slot = None;
            self.publish_services();
        }
    }

    /// Publishes the changed services. While the own index is unknown, they are published together
    /// with it.
    fn publish_services(&mut self) {
        if self.lists_own_blocks() {
            self.publish();
        }
    }
}
