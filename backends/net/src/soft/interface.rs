//! Events of the interface of a device's port: its link, its address. A device over a router, and
//! one in a sandbox without netlink, has a port that is always active.

use super::{PortState, SoftEngine};
use crate::interface_state::{InterfaceEvent, InterfaceWatch};
use gdrcore_core::cm::types::cm_event;
use gdrcore_core::device::async_event;
use gdrcore_core::engine::EngineGuard;

/// Control: events of the port's interface.
impl SoftEngine {
    /// Begins to raise events of the port, for one of the engines of a device.
    #[inline(never)]
    pub(super) fn watch_interface(&self) {
        let Some(watch) = InterfaceWatch::open(&self.local) else { return };
        let mut held = self.lock_control();
        let PortState { net: Some(_), member: Some(member), interface, .. } = held.port() else {
            return;
        };
        if member.poll_interface(watch.fd()).is_ok() {
            *interface = Some(watch);
        }
    }
}

impl PortState {
    /// Follows a change of the interface or of its addresses, if there was one.
    #[cold]
    pub(super) fn follow_interface(&mut self, g: &mut EngineGuard<'_>) {
        let Some(interface) = &mut self.interface else { return };
        interface.read(|event| match event {
            InterfaceEvent::Up => g.raise_port(async_event::PORT_ACTIVE),
            InterfaceEvent::Down => g.raise_port(async_event::PORT_ERR),
            InterfaceEvent::Address => g.raise_port(async_event::GID_CHANGE),
            InterfaceEvent::Hardware => g.cm_interface_changed(cm_event::ADDR_CHANGE),
            InterfaceEvent::Removed => {
                g.raise_port(async_event::DEVICE_FATAL);
                g.cm_interface_changed(cm_event::DEVICE_REMOVAL);
            }
        });
        if let Some(net) = &mut self.net {
            net.set_interface(interface.index());
        }
    }
}
