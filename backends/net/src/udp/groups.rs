//! Multicast groups: one socket for each group that a queue pair has joined.
//!
//! The port's own socket is bound to one address and receives no multicast. A socket that is bound
//! to the group receives nothing else. The kernel copies each packet to every such socket of the
//! host, so members in several processes need no distributor.

use super::UdpPort;
use crate::addr::Endpoint;
use crate::port::GROUPS;
use crate::sys::{check, set_option, Fd};
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use std::os::fd::RawFd;

/// IP_MULTICAST_ALL and IPV6_MULTICAST_ALL of the kernel's headers: 0 = only groups that this
/// socket has joined.
const IP_MULTICAST_ALL: i32 = 49;
const IPV6_MULTICAST_ALL: i32 = 29;

pub(super) struct Group {
    gid: [u8; 16],
    fd: Fd,
}

pub(super) type Groups = heapless::Vec<Group, GROUPS>;

/// Sets the interface by which multicast leaves. Without one, a send fails.
pub(super) fn set_multicast_interface(fd: RawFd, local: &Endpoint, interface: u32) {
    let _ = match local.to_v4() {
        Some(b) => set_option(fd, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, u32::from_ne_bytes(b)),
        None => set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_IF, interface),
    };
}

fn open(gid: &[u8; 16], local: &Endpoint, interface: u32) -> Result<Fd> {
    let group = Endpoint {
        ip: *gid,
        scope_id: if local.is_v4() { 0 } else { interface },
        port: local.port,
    };
    let family = if local.is_v4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers.
    let fd = Fd::from_call(unsafe { libc::socket(family, kind, 0) })?;
    let raw = fd.raw();
    // Members in other processes bind the same address.
    set_option(raw, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1i32)?;
    super::rx::show_class(raw, local.is_v4());
    let (sa, len) = group.to_sockaddr();
    // SAFETY: `sa` is a socket address of `len` bytes.
    check(unsafe { libc::bind(raw, (&raw const sa).cast(), len) })?;
    let _ = match local.is_v4() {
        true => set_option(raw, libc::IPPROTO_IP, IP_MULTICAST_ALL, 0i32),
        false => set_option(raw, libc::IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0i32),
    };
    join(raw, &group, local, interface)?;
    // Only datagrams come by this socket.
    super::rx::show_headers(raw, local.is_v4());
    Ok(fd)
}

/// Joins a group on the interface of the own address.
fn join(raw: RawFd, group: &Endpoint, local: &Endpoint, interface: u32) -> Result<()> {
    match (group.to_v4(), local.to_v4()) {
        (Some(group), Some(local)) => {
            let request = libc::ip_mreq {
                imr_multiaddr: libc::in_addr { s_addr: u32::from_ne_bytes(group) },
                imr_interface: libc::in_addr { s_addr: u32::from_ne_bytes(local) },
            };
            set_option(raw, libc::IPPROTO_IP, libc::IP_ADD_MEMBERSHIP, request)
        }
        (None, None) => {
            let request = libc::ipv6_mreq {
                ipv6mr_multiaddr: libc::in6_addr { s6_addr: group.ip },
                ipv6mr_interface: interface,
            };
            set_option(raw, libc::IPPROTO_IPV6, libc::IPV6_ADD_MEMBERSHIP, request)
        }
        _ => Err(refuse!(Invalid, "gid: IPv4 and IPv6, the group's and the device's, do not mix")),
    }
}

impl UdpPort {
    /// Begins to receive a group. Returns the descriptor, which must be watched like the port's
    /// own; `None`: the group is received already.
    ///
    /// # Errors
    /// `NoMemory`: [`GROUPS`] are received; `NoDevice`, other errors of the
    /// system: the interface has no multicast, or no room for more groups.
    pub fn group_join(&mut self, gid: &[u8; 16]) -> Result<Option<RawFd>> {
        if self.groups.iter().any(|g| g.gid == *gid) {
            return Ok(None);
        }
        let full = || refuse!(NoMemory, "gid: {GROUPS} groups are joined, the most of a device");
        if self.groups.is_full() {
            return Err(full());
        }
        let fd = open(gid, &self.local, self.interface)?;
        let raw = fd.raw();
        let joined = self.groups.push(Group { gid: *gid, fd });
        joined.map(|()| Some(raw)).map_err(|_| full())
    }

    /// Makes multicast leave and arrive by another interface, which has the address now.
    pub(super) fn groups_follow(&self) {
        set_multicast_interface(self.fd.raw(), &self.local, self.interface);
        for Group { gid, fd } in &self.groups {
            let group = Endpoint { ip: *gid, ..Endpoint::default() };
            // The membership of the former interface has ended with the interface, or does no harm.
            let _ = join(fd.raw(), &group, &self.local, self.interface);
        }
    }

    /// Closes the sockets of groups for which `keep` is false.
    pub fn groups_retain(&mut self, keep: impl Fn(&[u8; 16]) -> bool) {
        self.groups.retain(|g| keep(&g.gid));
    }

    /// Whether any group is received.
    #[inline]
    pub fn has_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// Receives one datagram of the `k`-th group as [`UdpPort::rx_get`]`(0)`; the packets of the
    /// previous poll are gone. `None`: nothing waits, or no such group.
    pub fn group_poll(&mut self, k: usize) -> Option<[u8; 16]> {
        let g = self.groups.get(k)?;
        let (gid, fd) = (g.gid, g.fd.raw());
        self.rx_one(fd).then_some(gid)
    }
}
