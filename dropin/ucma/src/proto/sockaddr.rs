//! Socket addresses that programs bind and resolve, and the GIDs that correspond to them.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use gdrcore_core::refuse;
use gdrcore_core::Result;

/// Bytes of `sockaddr_in6`, the largest address of the IP commands.
pub(super) const SOCKADDR_IN6: usize = 28;
/// Bytes of `sockaddr_storage`.
pub(super) const SOCKADDR_STORAGE: usize = 128;
const SOCKADDR_IN: usize = 16;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// An IP address and a port (host order), with the zone of a link-local IPv6 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addr {
    /// Address.
    pub ip: IpAddr,
    /// Port in host order.
    pub port: u16,
    /// `sin6_scope_id`, 0 for IPv4.
    pub scope_id: u32,
}

impl Addr {
    /// Reads a socket address; `None` is `AF_UNSPEC`.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Invalid`]: another family (`AF_IB` too: a port here is Ethernet), or
    /// too short for its own.
    pub fn parse(bytes: &[u8]) -> Result<Option<Addr>> {
        let f = super::Fields(bytes);
        let port = |f: &super::Fields<'_>| Ok(u16::from_be_bytes(f.array(2)?));
        match f.u16(0)? {
            0 => Ok(None),
            AF_INET => {
                f.bytes(0, SOCKADDR_IN)?;
                Ok(Some(Addr {
                    ip: IpAddr::V4(Ipv4Addr::from(f.array::<4>(4)?)),
                    port: port(&f)?,
                    scope_id: 0,
                }))
            }
            AF_INET6 => {
                f.bytes(0, SOCKADDR_IN6)?;
                let ip = IpAddr::V6(Ipv6Addr::from(f.array::<16>(8)?));
                Ok(Some(Addr { ip, port: port(&f)?, scope_id: f.u32(24)? }))
            }
            other => Err(refuse!(Invalid, "sa_family {other}: AF_INET (2) or AF_INET6 (10)")),
        }
    }

    /// Writes the `sockaddr_in` or `sockaddr_in6` to the front of `to` and returns its length; the
    /// rest of `to` is unchanged.
    pub(super) fn emit(&self, to: &mut [u8; SOCKADDR_STORAGE]) -> u16 {
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(to) = to.get_mut(at..at + bytes.len()) {
                to.copy_from_slice(bytes);
            }
        };
        put(2, &self.port.to_be_bytes());
        match self.ip {
            IpAddr::V4(ip) => {
                put(0, &AF_INET.to_ne_bytes());
                put(4, &ip.octets());
                SOCKADDR_IN as u16
            }
            IpAddr::V6(ip) => {
                put(0, &AF_INET6.to_ne_bytes());
                put(8, &ip.octets());
                put(24, &self.scope_id.to_ne_bytes());
                SOCKADDR_IN6 as u16
            }
        }
    }

    /// The address of a GID: IPv4 if it is IPv4-mapped.
    pub fn from_gid(gid: &[u8; 16], scope_id: u32, port: u16) -> Addr {
        let v6 = Ipv6Addr::from(*gid);
        match v6.to_ipv4_mapped() {
            Some(v4) => Addr { ip: IpAddr::V4(v4), port, scope_id: 0 },
            None => Addr { ip: IpAddr::V6(v6), port, scope_id },
        }
    }

    /// The GID of the address, for RoCE v2: IPv4 as `::ffff:a.b.c.d`, multicast too.
    pub fn gid(&self) -> [u8; 16] {
        match self.ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        }
    }

    /// The IPv4 address, also if it is IPv4-mapped.
    pub fn v4(&self) -> Option<Ipv4Addr> {
        match self.ip {
            IpAddr::V4(ip) => Some(ip),
            IpAddr::V6(ip) => ip.to_ipv4_mapped(),
        }
    }

    /// The loopback network, in either family.
    pub fn is_loopback(&self) -> bool {
        self.v4().map_or(self.ip.is_loopback(), |v4| v4.is_loopback())
    }

    /// The "any" address.
    pub fn is_any(&self) -> bool {
        self.ip.is_unspecified() || self.v4().is_some_and(|v4| v4.is_unspecified())
    }

    /// A multicast group.
    pub fn is_multicast(&self) -> bool {
        self.v4().map_or(self.ip.is_multicast(), |v4| v4.is_multicast())
    }
}
