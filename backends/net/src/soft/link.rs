//! Events of the link and the address of a device's port. A device over a router, and one in a
//! sandbox without netlink, has a port that is always active.

use super::{PortState, SoftEngine};
use crate::link_state::{LinkEvent, LinkWatch};
use gdrcore_core::cm::types::cm_event;
use gdrcore_core::device::async_event;
use gdrcore_core::engine::Guard;

/// Control: events of the port's link.
impl SoftEngine {
    /// Raises events of the port from now on; one of the engines of a device does this.
    #[inline(never)]
    pub(super) fn watch_link(&self) {
        let Some(watch) = LinkWatch::open(&self.local) else { return };
        let mut held = self.lock_control();
        let PortState { net: Some(_), member: Some(member), link, .. } = held.port() else {
            return;
        };
        if member.watch_beside(watch.fd()).is_ok() {
            *link = Some(watch);
        }
    }
}

impl PortState {
    /// Called when the interface or its addresses may have changed.
    #[cold]
    pub(super) fn follow_link(&mut self, g: &mut Guard<'_>) {
        let Some(link) = &mut self.link else { return };
        link.read(|event| match event {
            LinkEvent::Up => g.raise_port(async_event::PORT_ACTIVE),
            LinkEvent::Down => g.raise_port(async_event::PORT_ERR),
            LinkEvent::Address => g.raise_port(async_event::GID_CHANGE),
            LinkEvent::Hardware => g.cm_interface_changed(cm_event::ADDR_CHANGE),
            LinkEvent::Removed => {
                g.raise_port(async_event::DEVICE_FATAL);
                g.cm_interface_changed(cm_event::DEVICE_REMOVAL);
            }
        });
        if let Some(net) = &mut self.net {
            net.set_interface(link.interface());
        }
    }
}
