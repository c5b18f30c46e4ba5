//! Devices for tests of the session: one that is real, and one that cannot be opened.

use std::sync::Arc;

use gdrcore_core::cm::types::ConnParam;
use gdrcore_core::device::{CmDevice, Device, Leaks};
use gdrcore_core::verbs::types::{AhAttr, Handle};
use gdrcore_core::{Error, Result};
use gdrcore_testkit::soft::Soft;

use super::{DeviceInfo, Devices, Manage, Manager};

/// Devices of a test: the first is real, a second cannot be opened.
pub(crate) struct Lab {
    list: Vec<DeviceInfo>,
    opened: Arc<Soft>,
}

/// The device, while a reference exists.
struct HeldDevice(Arc<Soft>);

macro_rules! held {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        impl CmDevice for HeldDevice {
            $(fn $name(&self, $($arg: $ty),*) -> Result<$ret> {
                self.0.soft().cm()?.$name($($arg),*)
            })*
        }
    };
}

held! {
    create(ps: u16, context: u64) -> Handle;
    set_context(id: Handle, context: u64) -> ();
    bind(id: Handle, port: u16) -> u16;
    announce(id: Handle, soon: bool) -> ();
    listen(id: Handle, backlog: u32) -> ();
    connect(id: Handle, to: &AhAttr, port: u16, qp: Handle, param: &ConnParam<'_>) -> ();
    accept(id: Handle, qp: Handle, param: &ConnParam<'_>) -> ();
    establish(id: Handle) -> ();
    reject(id: Handle, data: &[u8]) -> ();
    disconnect(id: Handle) -> ();
    destroy(id: Handle) -> ();
    qp_attr(id: Handle, state: u32) -> (gdrcore_core::verbs::types::QpAttr, u32);
    event() -> Option<gdrcore_core::cm::types::CmEvent>;
}

impl Manage for HeldDevice {
    fn path_mtu(&self, to: &AhAttr) -> u8 {
        self.0.soft().path_mtu(to).unwrap_or(0) as u8
    }
}

impl Devices for Lab {
    fn list(&self) -> &[DeviceInfo] {
        &self.list
    }

    fn manager(&self, device: usize) -> Result<Manager> {
        match device {
            0 => Ok(Arc::new(HeldDevice(self.opened.clone()))),
            _ => Err(Error::NoDevice),
        }
    }
}

/// Opens them.
pub(crate) fn open() -> Lab {
    let device = Soft::new("loopback");
    let attr = device.dev().query().unwrap();
    let real = DeviceInfo { node_guid: 1, index: 3, gid: attr.gid, gid_index: 1, scope_id: 0 };
    let mut gid = [0; 16];
    gid[0] = 0xfd;
    let dead = DeviceInfo { node_guid: 2, index: 4, gid, ..real };
    Lab { list: vec![real, dead], opened: Arc::new(device) }
}

impl Lab {
    /// The ids that are left on the device.
    pub(crate) fn leaks(&self) -> Leaks {
        self.opened.soft().leaks().unwrap()
    }
}
