//! Devices for tests of the session: real ones, and one that cannot be opened.

use std::ops::Deref;
use std::sync::Arc;

use gdrcore_core::device::{CmDevice, Device, Leaks};
use gdrcore_core::verbs::types::AhAttr;
use gdrcore_core::{Error, Result};
use gdrcore_testkit::soft::Soft;

use crate::session::{DeviceInfo, Devices, Manage, Manager};

/// Devices of a test: the first ones are real, the last one cannot be opened.
pub(crate) struct Lab {
    list: Vec<DeviceInfo>,
    opened: Vec<Arc<Soft>>,
}

/// The device, while a reference exists.
struct HeldDevice(Arc<Soft>);

impl Deref for HeldDevice {
    type Target = dyn CmDevice;
    fn deref(&self) -> &Self::Target {
        self.0.soft()
    }
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
        let opened = self.opened.get(device).ok_or(Error::NoDevice)?;
        Ok(Arc::new(HeldDevice(opened.clone())))
    }
}

/// Opens one real device, 127.0.0.1.
pub(crate) fn open() -> Lab {
    open_so_many(1)
}

/// Opens real devices, 127.0.0.1, 127.0.0.2, ...
pub(crate) fn open_so_many(n: u8) -> Lab {
    let gid = |last| std::net::Ipv4Addr::new(127, 0, 0, last).to_ipv6_mapped().octets();
    let info = |n: u8| DeviceInfo {
        node_guid: n.into(),
        index: 2 + u32::from(n),
        gid: gid(n),
        gid_index: 1,
        scope_id: 0,
    };
    let mut list: Vec<_> = (1..=n).map(info).collect();
    let mut dead = info(n + 1);
    dead.gid = [0; 16];
    dead.gid[0] = 0xfd;
    list.push(dead);
    Lab { list, opened: (0..n).map(|_| Arc::new(Soft::new("loopback"))).collect() }
}

impl Lab {
    /// The objects left on the first device.
    pub(crate) fn leaks(&self) -> Leaks {
        self.opened[0].soft().leaks().unwrap()
    }
}
