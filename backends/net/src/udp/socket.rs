//! Opens the socket, and finds the MTU of its link.

use super::rx::show_class;
use super::tx::header::send_labels;
use super::{udp_flags, UdpConfig};
use crate::addr::{Endpoint, SockAddr};
use crate::netlink::{self, attributes, messages, word};
use crate::sys::{check, set_filter, set_option, Fd};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use std::os::fd::{IntoRawFd, OwnedFd, RawFd};

/// UDP_NO_CHECK6_RX of linux/udp.h: accept the zero checksums that RoCE NICs and rxe send over
/// IPv6.
const UDP_NO_CHECK6_RX: i32 = 102;

/// Opens a UDP socket at an address, with a port of the kernel's choice.
///
/// # Errors
/// As [`super::UdpPort::open`].
pub(crate) fn unconnected(at: &Endpoint) -> Result<Fd> {
    let family = if at.is_v4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers.
    let fd = Fd::from_call(unsafe { libc::socket(family, kind, 0) })?;
    let (sa, len) = Endpoint { port: 0, ..*at }.to_sockaddr();
    // SAFETY: `sa` is a socket address of `len` bytes.
    check(unsafe { libc::bind(fd.raw(), (&raw const sa).cast(), len) })?;
    Ok(fd)
}

/// A bound socket, without the buffers of a port.
#[derive(Debug)]
pub struct UdpSocket {
    pub(super) fd: Fd,
    pub(super) local: Endpoint,
    pub(super) interface: u32,
    pub(super) gso: bool,
    pub(super) gro: bool,
}

/// Makes a socket send its packets whole, with DF and so with IPv4 identification 0 (see the
/// module's head), up to the MTU of the link. PROBE, not DO: with DO one forged ICMP "fragmentation
/// needed" makes the kernel refuse every packet above the MTU that it names, for ten minutes and
/// for each socket of the host. A narrower path drops the packets; in both modes its refusal
/// arrives as an error and becomes the cause of the failure (ip(7), IP_MTU_DISCOVER).
pub(super) fn forbid_fragments(socket: RawFd, v4: bool) -> Result<()> {
    if v4 {
        set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)
    } else {
        set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)
    }
}

/// Sets the class of a new socket's packets.
pub(super) fn set_class(socket: RawFd, v4: bool, class: u8) -> Result<()> {
    match (class, v4) {
        (0, _) => Ok(()),
        (_, true) => set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, i32::from(class)),
        (_, false) => set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, i32::from(class)),
    }
}

impl UdpSocket {
    /// Opens and binds a socket. Port 0 takes a free port.
    ///
    /// # Errors
    /// As [`super::UdpPort::open`], except those of its memory.
    pub fn open(ep: &Endpoint, cfg: &UdpConfig) -> Result<UdpSocket> {
        open(ep, &cfg.resolved())
    }

    /// Takes a socket that another program has opened and bound, such as a supervisor that holds
    /// it while this program is restarted. Its options become those of [`UdpSocket::open`].
    ///
    /// # Errors
    /// `Error::Invalid`: the socket is bound to another address. Those of setsockopt(2).
    pub fn adopt(fd: OwnedFd, ep: &Endpoint, cfg: &UdpConfig) -> Result<UdpSocket> {
        let fd = Fd::from_call(fd.into_raw_fd())?;
        let flags = libc::O_NONBLOCK;
        // SAFETY: F_SETFL takes no pointers.
        check(unsafe { libc::fcntl(fd.raw(), libc::F_SETFL, flags) })?;
        let socket = configure(fd, ep, &cfg.resolved(), true)?;
        if socket.local != *ep {
            return Err(refuse!(Invalid, "socket: it is bound to {}, not to {ep}", socket.local));
        }
        Ok(socket)
    }

    /// See [`super::UdpPort::allow_reuse_port`].
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn allow_reuse_port(&self) -> Result<()> {
        allow_reuse_port(self.fd.raw())
    }

    /// MTU of the socket's interface, in bytes of IP packet; see [`super::UdpPort::link_mtu`].
    pub fn link_mtu(&self) -> u32 {
        link_mtu(self.interface, self.fd.raw())
    }

    /// Receives nothing from here on, so that packets to its port cost no memory. Errors of the
    /// network about the socket's own packets still arrive.
    ///
    /// # Errors
    /// Those of setsockopt(2).
    pub fn refuse_input(&self) -> Result<()> {
        let nothing =
            libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
        set_filter(self.fd.raw(), libc::SO_ATTACH_FILTER, &[nothing])
    }
}

fn open(ep: &Endpoint, cfg: &UdpConfig) -> Result<UdpSocket> {
    if !ep.is_unicast() {
        return Err(refuse!(Invalid, "address: not one that an interface can have"));
    }
    let family = if ep.is_v4() { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: socket takes no pointers.
    let fd = match Fd::from_call(unsafe { libc::socket(family, kind, 0) }) {
        Err(Error::Os(libc::EAFNOSUPPORT)) => {
            return Err(refuse!(
                Unsupported,
                "address: the kernel has no sockets of its family (IPv6 is off?)"
            ))
        }
        other => other?,
    };
    configure(fd, ep, cfg, false)
}

/// Sets the options of a socket, and binds it unless it `is_bound`.
fn configure(fd: Fd, ep: &Endpoint, cfg: &UdpConfig, is_bound: bool) -> Result<UdpSocket> {
    let raw = fd.raw();
    let family = if ep.is_v4() { libc::AF_INET } else { libc::AF_INET6 };
    forbid_fragments(raw, family == libc::AF_INET)?;
    if family == libc::AF_INET {
        // The port needs this option to learn of refused packets, so the caller cannot switch it
        // off.
        set_option(raw, libc::IPPROTO_IP, libc::IP_RECVERR, 1i32)?;
    } else {
        if !is_bound {
            set_option(raw, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1i32)?;
        }
        set_option(raw, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1i32)?;
        let _ = set_option(raw, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1i32);
        send_labels(raw);
    }
    show_class(raw, family == libc::AF_INET);
    set_class(raw, family == libc::AF_INET, cfg.traffic_class)?;
    for (name, bytes) in [(libc::SO_RCVBUF, cfg.rcvbuf), (libc::SO_SNDBUF, cfg.sndbuf)] {
        if bytes != 0 {
            // The kernel clamps to its own limit and never refuses.
            set_option(raw, libc::SOL_SOCKET, name, i32::try_from(bytes).unwrap_or(i32::MAX))?;
        }
    }
    if cfg.busy_poll_us != 0 {
        let us = i32::try_from(cfg.busy_poll_us).unwrap_or(i32::MAX);
        let _ = set_option(raw, libc::SOL_SOCKET, libc::SO_BUSY_POLL, us);
    }
    if cfg.flags & udp_flags::REUSE_PORT != 0 {
        set_option(raw, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1i32)?;
    }
    // 0 is "no segmentation for the whole socket" and succeeds exactly where the kernel knows the
    // option.
    let gso = cfg.flags & udp_flags::NO_GSO == 0
        && set_option(raw, libc::SOL_UDP, libc::UDP_SEGMENT, 0i32).is_ok();
    let gro = cfg.flags & udp_flags::NO_GRO == 0
        && set_option(raw, libc::SOL_UDP, libc::UDP_GRO, 1i32).is_ok();

    if !is_bound {
        bind(raw, ep)?;
    }
    let mut bound = SockAddr::zeroed();
    let mut bound_len = SockAddr::LEN;
    // SAFETY: `bound` has room for `bound_len` bytes, and both live through the call.
    check(unsafe { libc::getsockname(raw, (&raw mut bound).cast(), &mut bound_len) })?;
    let local = Endpoint::from_sockaddr(&bound);
    let local = local.ok_or_else(|| {
        refuse!(Unsupported, "the socket's address is of no family that is known")
    })?;
    let interface = interface_of(&local).unwrap_or(0);
    super::groups::set_multicast_interface(raw, &local, interface);
    Ok(UdpSocket { fd, local, interface, gso, gro })
}

fn bind(socket: RawFd, ep: &Endpoint) -> Result<()> {
    let (sa, sa_len) = ep.to_sockaddr();
    // SAFETY: `sa` is a socket address of `sa_len` bytes.
    match check(unsafe { libc::bind(socket, (&raw const sa).cast(), sa_len) }) {
        // The interface of the zone is gone, or does not fit the address.
        Err(Error::Invalid | Error::NoDevice) => Err(Error::AddressNotLocal),
        other => other.map(drop),
    }
}

/// Allows later sockets of this user to bind the same port, if they set the option too. The first
/// of a group is bound without the option.
pub(super) fn allow_reuse_port(socket: RawFd) -> Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1i32)
}

/// MTU assumed of an address that no interface owns (nonlocal bind, or no netlink in this sandbox).
const MTU_UNKNOWN: u32 = 1500;

/// MTU of an interface, by any socket of its namespace.
pub(super) fn link_mtu(interface: u32, socket: RawFd) -> u32 {
    interface_mtu(socket, interface).unwrap_or(MTU_UNKNOWN)
}

pub(super) fn interface_mtu(socket: RawFd, index: u32) -> Option<u32> {
    // SAFETY: ifreq is plain data for which zeroes are valid.
    let mut req: libc::ifreq = unsafe { core::mem::zeroed() };
    req.ifr_ifru.ifru_ifindex = i32::try_from(index).ok()?;
    // SAFETY: SIOCGIFNAME reads the index and writes the name, both inside `req`.
    check(unsafe { libc::ioctl(socket, libc::SIOCGIFNAME as _, &mut req) }).ok()?;
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU, both inside `req`.
    check(unsafe { libc::ioctl(socket, libc::SIOCGIFMTU as _, &mut req) }).ok()?;
    // SAFETY: the call above wrote this variant.
    u32::try_from(unsafe { req.ifr_ifru.ifru_mtu }).ok().filter(|&m| m > 0)
}

/// Index of the interface whose address is `local`, or the one with the narrowest network that
/// contains it: 127.0.0.2 belongs to 127.0.0.1/8. Uses netlink, because getifaddrs allocates.
pub(crate) fn interface_of(local: &Endpoint) -> Option<u32> {
    if local.scope_id != 0 {
        return Some(local.scope_id);
    }
    let v4 = local.to_v4();
    let own: &[u8] = match &v4 {
        Some(b) => b,
        None => &local.ip,
    };
    let nl = netlink::socket(libc::NETLINK_ROUTE)?;
    // nlmsghdr (16 bytes) and ifaddrmsg (8 bytes): RTM_GETADDR, a dump of one family.
    let mut request = [0u8; 24];
    request[16] = if v4.is_some() { libc::AF_INET as u8 } else { libc::AF_INET6 as u8 };
    netlink::send(&nl, libc::RTM_GETADDR, libc::NLM_F_DUMP, &mut request)?;
    let mut best: Option<(u8, u32)> = None;
    // The kernel sends lists in parts of at most this size.
    let mut answer = [0u8; 8 << 10];
    loop {
        // SAFETY: pointer and length are those of `answer`.
        let n = unsafe { libc::recv(nl.raw(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        let Some(all) =
            usize::try_from(n).ok().and_then(|n| answer.get(..n)).filter(|r| !r.is_empty())
        else {
            return best.map(|(_, index)| index);
        };
        for (kind, message) in messages(all) {
            if kind == libc::NLMSG_DONE as u16 || kind == libc::NLMSG_ERROR as u16 {
                return best.map(|(_, index)| index);
            }
            if let Some((prefix, index)) = owner(message, own) {
                best = match best {
                    Some((narrower, _)) if narrower > prefix => best,
                    _ => Some((prefix, index)),
                };
            }
        }
    }
}

/// Reads one RTM_NEWADDR. Prefix length and interface if the address covers `own`; an exact match
/// counts most.
pub(crate) fn owner(message: &[u8], own: &[u8]) -> Option<(u8, u32)> {
    let prefix = *message.get(1)?;
    let index = word(message.get(4..8)?, 0);
    let (mut address, mut local) = (None, None);
    for (kind, value) in attributes(message.get(8..)?) {
        match kind {
            libc::IFA_ADDRESS => address = Some(value),
            libc::IFA_LOCAL => local = Some(value),
            _ => {}
        }
    }
    // On point-to-point links IFA_ADDRESS is the peer's.
    let theirs = local.or(address)?;
    if theirs == own {
        return Some((u8::MAX, index));
    }
    let covered = theirs.len() == own.len() && same_prefix(theirs, own, prefix);
    covered.then_some((prefix, index))
}

fn same_prefix(a: &[u8], b: &[u8], bits: u8) -> bool {
    let (whole, part) = (usize::from(bits / 8), bits % 8);
    let mask = !(0xffu16 >> part) as u8;
    a.get(..whole) == b.get(..whole)
        && (part == 0 || a.get(whole).zip(b.get(whole)).is_some_and(|(x, y)| (x ^ y) & mask == 0))
}
