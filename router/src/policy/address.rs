//! Addresses and ranges of them, as GIDs: IPv4 ones are v4-mapped.

use gdrcore_core::wire::grh::is_link_local;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    base: u128,
    /// Bits, of 128.
    len: u32,
    is_v4: bool,
}

/// Parses an address; `None`: it is not one that a tenant can have.
pub fn parse(text: &str) -> Option<[u8; 16]> {
    let ip: IpAddr = text.parse().ok()?;
    let usable = match ip {
        IpAddr::V4(a) => {
            !(a.is_unspecified() || a.is_multicast() || a.is_broadcast() || a.is_loopback())
        }
        // A mapped address would be a second text for an IPv4 one.
        IpAddr::V6(a) => {
            !(a.is_unspecified()
                || a.is_multicast()
                || a.is_loopback()
                || is_link_local(&a.octets())
                || a.to_ipv4_mapped().is_some())
        }
    };
    usable.then(|| gid_of(ip))
}

/// The GID of an address.
pub fn gid_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// A GID in the notation of addresses.
pub fn show(gid: &[u8; 16]) -> String {
    Ipv6Addr::from(*gid).to_canonical().to_string()
}

impl Cidr {
    /// The range of a text such as `10.99.0.0/16` or `fd99::/64`, or of one address.
    pub fn parse(text: &str) -> Option<Cidr> {
        let (address, len) = match text.split_once('/') {
            Some((address, len)) if len.bytes().all(|b| b.is_ascii_digit()) => {
                (address, Some(len.parse::<u32>().ok()?))
            }
            Some(_) => return None,
            None => (text, None),
        };
        let (base, before, is_v4) = match address.parse().ok()? {
            IpAddr::V4(a) => (a.to_ipv6_mapped(), 96, true),
            IpAddr::V6(a) => (a, 0, false),
        };
        let len = before + len.unwrap_or(128 - before);
        let base = u128::from(base);
        let inside = (len <= 128).then(|| base & !mask(len))?;
        (inside == 0).then_some(Cidr { base, len, is_v4 })
    }

    /// Whether the range has an address.
    pub fn contains(&self, gid: &[u8; 16]) -> bool {
        u128::from_be_bytes(*gid) & mask(self.len) == self.base
    }

    /// The addresses that a host can have: without the first and, of IPv4, the last; at most 2^32
    /// of them.
    pub fn hosts(&self) -> impl Iterator<Item = [u8; 16]> {
        let bits = (128 - self.len).min(32);
        let count = 1u64 << bits;
        let last = if self.is_v4 && count > 2 { count - 1 } else { count };
        let first = u64::from(count > 1);
        let base = self.base;
        (first..last).map(move |n| (base | u128::from(n)).to_be_bytes())
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = if self.is_v4 { self.len - 96 } else { self.len };
        write!(f, "{}/{len}", show(&self.base.to_be_bytes()))
    }
}

fn mask(len: u32) -> u128 {
    u128::MAX.checked_shl(128 - len).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_hold_what_begins_as_they_do() {
        let range = Cidr::parse("10.99.0.0/16").unwrap();
        assert!(
            range.contains(&parse("10.99.255.1").unwrap())
                && !range.contains(&parse("10.98.0.1").unwrap())
        );
        assert_eq!(range.to_string(), "10.99.0.0/16");
        let hosts: Vec<_> = Cidr::parse("10.0.0.0/30").unwrap().hosts().map(|g| show(&g)).collect();
        assert_eq!(hosts, ["10.0.0.1", "10.0.0.2"]);
        assert_eq!(
            Cidr::parse("fd99::/64").unwrap().hosts().next().map(|g| show(&g)).unwrap(),
            "fd99::1"
        );
        assert_eq!(Cidr::parse("10.1.1.1").unwrap().hosts().count(), 1);
        assert!(Cidr::parse("::/0").unwrap().contains(&[0xff; 16]));
        for bad in [
            "10.99.0.1/16",
            "10.0.0.0/33",
            "fd99::/129",
            "x/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "",
            "10.0.0.0/8/8",
        ] {
            assert_eq!(Cidr::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn some_addresses_are_nobodys() {
        for bad in [
            "0.0.0.0",
            "224.0.0.1",
            "127.0.0.1",
            "255.255.255.255",
            "::",
            "ff02::1",
            "::1",
            "fe80::1",
            "::ffff:1.2.3.4",
            "x",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
        assert_eq!(show(&parse("1.2.3.4").unwrap()), "1.2.3.4");
        assert_eq!(show(&parse("fd00::1").unwrap()), "fd00::1");
    }
}
