//! Device names and endpoints: an IP address, its zone and a UDP port.

use crate::via::find::{of_device, SocketPath};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::wire::grh::is_link_local;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// RoCEv2's UDP port (IANA: roce).
pub const ROCE_PORT: u16 = 4791;

/// The known forms of device names.
const KNOWN: &str = "a device is \"soft:<address>[:port]\" (IPv6 in brackets), \
     \"verbs:<NIC>[:port][:gid-index]\", \"router:[path]\" or \"loopback\"";

/// The device that a program opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceName {
    /// `soft:<address>[:port]`; IPv6 in brackets with an optional zone: `soft:[fe80::1%eth0]:4791`.
    Soft(Endpoint),
    /// `loopback`: QPs of one engine, no network.
    Loopback,
    /// `router:<path>`, or `router:` for the router that the environment names: a router gives
    /// queue pairs, an address and links.
    Router(SocketPath),
}

impl DeviceName {
    /// Reads a device name. The port is 4791 if not given; port 0 lets the kernel choose one.
    ///
    /// # Errors
    /// `Invalid`: not of a known form, no unicast address, or a link-local address without zone.
    /// `NoDevice`: no interface has the zone's name, or no router is known.
    pub fn parse(name: &str) -> Result<DeviceName> {
        if name == "loopback" {
            return Ok(DeviceName::Loopback);
        }
        match name.split_once(':') {
            Some(("soft", at)) => Endpoint::parse(at).map(DeviceName::Soft),
            Some(("router", at)) => of_device(at).map(DeviceName::Router),
            Some((kind, _)) => Err(refuse!(Invalid, "device type '{kind}': {KNOWN}")),
            None => Err(refuse!(Invalid, "no device type before a ':': {KNOWN}")),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceName::Soft(e) => write!(f, "soft:{e}"),
            DeviceName::Loopback => f.write_str("loopback"),
            DeviceName::Router(at) => write!(f, "router:{at}"),
        }
    }
}

/// An address and a UDP port. IPv4 addresses are v4-mapped, as in GIDs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Network byte order; `::ffff:a.b.c.d` for IPv4.
    pub ip: [u8; 16],
    /// Interface index of a link-local address, else 0.
    pub scope_id: u32,
    /// UDP port in host order.
    pub port: u16,
}

impl Endpoint {
    /// An IPv4 endpoint.
    pub const fn v4(ip: [u8; 4], port: u16) -> Endpoint {
        let [a, b, c, d] = ip;
        Endpoint { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d], scope_id: 0, port }
    }

    /// Makes an endpoint of a GID. `scope_id` counts only for link-local addresses.
    pub const fn new(ip: [u8; 16], scope_id: u32, port: u16) -> Endpoint {
        let scope_id = if ip[0] == 0xfe && ip[1] & 0xc0 == 0x80 { scope_id } else { 0 };
        Endpoint { ip, scope_id, port }
    }

    /// The four bytes of an IPv4 address.
    #[inline]
    pub const fn to_v4(&self) -> Option<[u8; 4]> {
        match self.ip {
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] => Some([a, b, c, d]),
            _ => None,
        }
    }

    /// Whether it is an IPv4 address.
    #[inline]
    pub const fn is_v4(&self) -> bool {
        self.to_v4().is_some()
    }

    /// Whether both name one host, whatever the ports.
    #[inline]
    pub fn same_host(&self, other: &Endpoint) -> bool {
        self.ip == other.ip && self.scope_id == other.scope_id
    }

    /// Whether it can be the address of a peer or of this host: neither unspecified nor multicast
    /// nor broadcast.
    pub const fn is_unicast(&self) -> bool {
        match self.to_v4() {
            Some(b) => {
                let a = Ipv4Addr::new(b[0], b[1], b[2], b[3]);
                !a.is_unspecified() && !a.is_multicast() && !a.is_broadcast()
            }
            None => {
                let a = u128::from_be_bytes(self.ip);
                a != 0 && self.ip[0] != 0xff
            }
        }
    }

    /// Reads `address`, `address:port`, `[v6%zone]` or `[v6%zone]:port`. No allocation, no name
    /// service.
    ///
    /// # Errors
    /// As [`DeviceName::parse`].
    pub fn parse(text: &str) -> Result<Endpoint> {
        let (host, zone, port) = split(text)?;
        let port = match port {
            Some(p) => parse_port(p)?,
            None => ROCE_PORT,
        };
        let ip = match host.parse::<Ipv4Addr>() {
            Ok(v4) => v4.to_ipv6_mapped(),
            Err(_) => host.parse::<Ipv6Addr>().map_err(|_| no_address(host))?,
        };
        let scope_id = match zone {
            Some(z) => parse_zone(z)?,
            None => 0,
        };
        let ep = Endpoint { ip: ip.octets(), scope_id, port };
        if !ep.is_unicast() {
            return Err(refuse!(
                Invalid,
                "address '{host}': one that an interface has, not one of a group, of all or of none"
            ));
        }
        // Without a zone the kernel cannot know the link of a link-local address. With any other
        // address a zone would be ignored silently.
        match (is_link_local(&ep.ip), scope_id != 0) {
            (true, false) => Err(refuse!(
                Invalid,
                "address '{host}': link-local, so its interface must follow: [{host}%<interface>]"
            )),
            (false, true) => {
                let zone = zone.unwrap_or_default();
                Err(refuse!(
                    Invalid,
                    "interface '%{zone}': only a link-local \
                     address (fe80::/10) has one, not '{host}'"
                ))
            }
            _ => Ok(ep),
        }
    }

    /// The socket address, and its length.
    #[inline]
    pub(crate) fn to_sockaddr(self) -> (SockAddr, libc::socklen_t) {
        match self.to_v4() {
            Some(b) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: self.port.to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(b) },
                    sin_zero: [0; 8],
                };
                (SockAddr { v4 }, core::mem::size_of::<libc::sockaddr_in>() as libc::socklen_t)
            }
            None => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: self.port.to_be(),
                    sin6_flowinfo: 0,
                    sin6_addr: libc::in6_addr { s6_addr: self.ip },
                    sin6_scope_id: self.scope_id,
                };
                (SockAddr { v6 }, core::mem::size_of::<libc::sockaddr_in6>() as libc::socklen_t)
            }
        }
    }

    /// As [`Endpoint::to_sockaddr`], for packets with this flow label, which only IPv6 has. The
    /// socket must have IPV6_FLOWINFO_SEND.
    pub(crate) fn to_labelled(self, flow_label: u32) -> (SockAddr, libc::socklen_t) {
        let (mut sa, len) = self.to_sockaddr();
        if !self.is_v4() {
            sa.v6.sin6_flowinfo = flow_label.to_be();
        }
        (sa, len)
    }

    /// The endpoint of a socket address that the kernel filled in, `None` if of another family.
    #[inline]
    pub(crate) fn from_sockaddr(a: &SockAddr) -> Option<Endpoint> {
        match i32::from(a.family()) {
            libc::AF_INET => {
                // SAFETY: every byte of the union is initialised (it starts as zeroes) and any
                // value is valid.
                let v4 = unsafe { a.v4 };
                Some(Endpoint::v4(v4.sin_addr.s_addr.to_ne_bytes(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 => {
                // SAFETY: as above.
                let v6 = unsafe { a.v6 };
                Some(Endpoint::new(
                    v6.sin6_addr.s6_addr,
                    v6.sin6_scope_id,
                    u16::from_be(v6.sin6_port),
                ))
            }
            _ => None,
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.to_v4() {
            Some([a, b, c, d]) => write!(f, "{a}.{b}.{c}.{d}:{}", self.port),
            None if self.scope_id != 0 => {
                write!(f, "[{}%{}]:{}", Ipv6Addr::from(self.ip), self.scope_id, self.port)
            }
            None => write!(f, "[{}]:{}", Ipv6Addr::from(self.ip), self.port),
        }
    }
}

/// A place for a socket address of either family.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union SockAddr {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl SockAddr {
    /// All zeroes: family AF_UNSPEC.
    pub(crate) const fn zeroed() -> SockAddr {
        SockAddr {
            v6: libc::sockaddr_in6 {
                sin6_family: 0,
                sin6_port: 0,
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr { s6_addr: [0; 16] },
                sin6_scope_id: 0,
            },
        }
    }

    #[inline]
    fn family(&self) -> libc::sa_family_t {
        // SAFETY: both variants begin with the family, and every byte is initialised.
        unsafe { self.v4.sin_family }
    }

    /// Bytes of the union: room for either family.
    pub(crate) const LEN: libc::socklen_t = core::mem::size_of::<SockAddr>() as libc::socklen_t;
}

/// Why `host` is no address.
#[cold]
fn no_address(host: &str) -> Error {
    if let Some((before, option)) = host.split_once(',') {
        return refuse!(
            Invalid,
            "',{option}' after '{before}': a device name has no options; gdrc_config has"
        );
    }
    match host {
        "" => refuse!(Invalid, "address '': it is missing"),
        _ => {
            refuse!(
                Invalid,
                "address '{host}': neither an IPv4 nor an IPv6 \
                 address (names of hosts are not looked up)"
            )
        }
    }
}

/// Host, zone and port of the text.
fn split(text: &str) -> Result<(&str, Option<&str>, Option<&str>)> {
    let (host, port) = if let Some(rest) = text.strip_prefix('[') {
        let inside = rest.split_once(']');
        let (inside, after) =
            inside.ok_or_else(|| refuse!(Invalid, "address '{text}': ']' is missing"))?;
        let port = match after {
            "" => None,
            _ => {
                let port = after.strip_prefix(':');
                Some(port.ok_or_else(|| {
                    refuse!(Invalid, "'{after}' after the address: ':' and a port, or nothing")
                })?)
            }
        };
        if inside.parse::<Ipv4Addr>().is_ok() {
            return Err(refuse!(
                Invalid,
                "address '[{inside}]': brackets are for IPv6, write {inside}"
            ));
        }
        (inside, port)
    } else {
        match text.split_once(':') {
            // More than one colon: an IPv6 address without port.
            Some((_, rest)) if rest.contains(':') => (text, None),
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        }
    };
    match host.split_once('%') {
        Some((host, zone)) => Ok((host, Some(zone), port)),
        None => Ok((host, None, port)),
    }
}

fn parse_port(text: &str) -> Result<u16> {
    // parse::<u16> would take a sign.
    let digits = text.bytes().all(|b| b.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .ok_or_else(|| refuse!(Invalid, "port '{text}': a number from 0 to 65535"))
}

/// The engine's form of an address, with the system's class, hop limit and flow label.
pub fn peer_addr(e: &Endpoint) -> PeerAddr {
    PeerAddr { gid: e.ip, scope_id: e.scope_id, port: e.port, ..PeerAddr::default() }
}

/// The port's form of an address.
#[inline]
pub fn endpoint(p: &PeerAddr) -> Endpoint {
    Endpoint { ip: p.gid, scope_id: p.scope_id, port: p.port }
}

/// An interface index by number or name.
fn parse_zone(text: &str) -> Result<u32> {
    if text.bytes().all(|b| b.is_ascii_digit()) {
        let n = text.parse().ok().filter(|&n| n != 0);
        return n
            .ok_or_else(|| refuse!(Invalid, "interface '%{text}': a name, or an index from 1 on"));
    }
    let mut name = [0u8; libc::IF_NAMESIZE];
    if text.len() >= name.len() || text.contains('\0') {
        return Err(refuse!(NoDevice, "interface '%{text}': no name that an interface can have"));
    }
    name[..text.len()].copy_from_slice(text.as_bytes());
    // SAFETY: `name` ends with a zero byte, because the text is shorter than it.
    let index = unsafe { libc::if_nametoindex(name.as_ptr().cast()) };
    if index == 0 {
        return Err(refuse!(
            NoDevice,
            "interface '%{text}': there is none of this name; `ip link` lists them"
        ));
    }
    Ok(index)
}

#[cfg(test)]
mod tests;
