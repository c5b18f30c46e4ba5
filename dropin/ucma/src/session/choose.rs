//! Chooses the device of an address.

use core::net::IpAddr;

use super::{CmSession, DeviceInfo, Devices};
use crate::proto::Addr;

fn address(d: &DeviceInfo) -> Addr {
    Addr::from_gid(&d.gid, d.scope_id, 0)
}

/// Whether packets to `to` can leave from `own`: IPv4 and IPv6 do not mix.
fn same_family(own: &Addr, to: &Addr) -> bool {
    own.v4().is_some() == to.v4().is_some()
}

impl<D: Devices> CmSession<D> {
    /// The device of an address. For a loopback address that no device has, a device of its family
    /// on another network stands in.
    pub(super) fn device_with(&self, addr: &Addr) -> Option<usize> {
        let list = self.devices.list();
        let exact = list.iter().position(|d| d.gid == addr.gid());
        exact.or_else(|| {
            let fits = |d: &DeviceInfo| !address(d).is_loopback() && same_family(&address(d), addr);
            addr.is_loopback().then(|| list.iter().position(fits)).flatten()
        })
    }

    /// The device from which `to` is reached: the one that has it; otherwise one of its family, on
    /// the loopback network if `to` is.
    pub(super) fn device_towards(&self, to: &Addr) -> Option<usize> {
        let list = self.devices.list();
        let own = list.iter().position(|d| d.gid == to.gid());
        let near = list.iter().position(|d| {
            let a = address(d);
            same_family(&a, to) && a.is_loopback() == to.is_loopback()
        });
        own.or(near).or_else(|| list.iter().position(|d| same_family(&address(d), to)))
    }

    /// The devices of an address's family. An IPv4-mapped address counts as IPv6 here: the family
    /// of the socket decides.
    pub(super) fn devices_of_family(&self, addr: &Addr) -> Vec<usize> {
        let list = self.devices.list().iter().enumerate();
        list.filter_map(|(n, d)| (address(d).ip.is_ipv4() == addr.ip.is_ipv4()).then_some(n))
            .collect()
    }

    /// The address of a device, as an id of this family sees it.
    pub(super) fn own_address(&self, device: usize, port: u16, like: &Addr) -> Addr {
        let own = self
            .devices
            .list()
            .get(device)
            .map_or(Addr::from_gid(&[0; 16], 0, port), |d| Addr { port, ..address(d) });
        match (own.ip, like.ip) {
            // An IPv6 program that uses IPv4 sees IPv4-mapped addresses.
            (IpAddr::V4(v4), IpAddr::V6(_)) => Addr { ip: IpAddr::V6(v4.to_ipv6_mapped()), ..own },
            _ => own,
        }
    }

    /// The destination of packets. A loopback address means this host's device, unless the device
    /// itself is on that network; the "any" address means this host too.
    pub(super) fn destination(&self, device: usize, to: Addr) -> Addr {
        let own = self.own_address(device, to.port, &to);
        if to.is_any() || to.is_loopback() && !own.is_loopback() {
            own
        } else {
            to
        }
    }
}
