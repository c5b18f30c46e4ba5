//! Names of verbs devices: `verbs:<device>[:port][:gid-index]`.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;

use crate::abi::NAME_MAX;

/// Prefix of the names of verbs devices.
pub const PREFIX: &str = "verbs:";

/// Which NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which<'a> {
    /// By the name that `ibv_devices` prints: `rxe0`, `mlx5_0`.
    Name(&'a str),
    /// The device that has this address as a RoCE v2 GID (IPv4 as `::ffff:a.b.c.d`).
    Address([u8; 16]),
}

/// A parsed name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicName<'a> {
    /// Which NIC.
    pub which: Which<'a>,
    /// The port; `None`: the first one that is up and has a suitable GID.
    pub port: Option<u32>,
    /// The index of the port's GID; `None`: the best RoCE v2 one.
    pub gid_index: Option<u32>,
}

impl<'a> NicName<'a> {
    /// Parses `verbs:rxe0`, `verbs:mlx5_0:1:3`, `verbs:10.0.0.1`, `verbs:[2001:db8::1]:1`.
    ///
    /// # Errors
    /// [`Error::NoDevice`]: it does not begin with `verbs:`; [`Error::Invalid`]: the rest is
    /// malformed.
    pub fn parse(name: &'a str) -> Result<NicName<'a>> {
        let rest = name.strip_prefix(PREFIX).ok_or(Error::NoDevice)?;
        let (which, rest) = match rest.strip_prefix('[') {
            Some(rest) => {
                let parts = rest.split_once(']');
                let (address, rest) =
                    parts.ok_or_else(|| refuse!(Invalid, "address '[{rest}': ']' is missing"))?;
                let address: Ipv6Addr = address
                    .parse()
                    .map_err(|_| refuse!(Invalid, "address '[{address}]': not an IPv6 address"))?;
                if !(rest.is_empty() || rest.starts_with(':')) {
                    return Err(refuse!(
                        Invalid,
                        "'{rest}' after the address: ':' and a port, or nothing"
                    ));
                }
                (Which::Address(address.octets()), rest.strip_prefix(':'))
            }
            None => {
                let (device, rest) = match rest.split_once(':') {
                    Some((device, rest)) => (device, Some(rest)),
                    None => (rest, None),
                };
                (Self::device(device)?, rest)
            }
        };
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let n = digits.then(|| text.parse().ok()).flatten();
            n.ok_or_else(|| {
                refuse!(Invalid, "'{text}' after the NIC: [:port][:gid-index], both numbers")
            })
        };
        let (port, gid_index) = match rest.map(|r| r.split_once(':').ok_or(r)) {
            None => (None, None),
            Some(Err(port)) => (Some(number(port)?), None),
            Some(Ok((port, gid))) => (Some(number(port)?), Some(number(gid)?)),
        };
        // Port numbers of InfiniBand have 8 bits, and so have GID indexes of an address vector.
        if let Some(port) = port.filter(|p| !(1..=255).contains(p)) {
            return Err(refuse!(Invalid, "port {port}: 1 to 255"));
        }
        if let Some(index) = gid_index.filter(|g| *g > 255) {
            return Err(refuse!(Invalid, "gid-index {index}: 0 to 255"));
        }
        Ok(NicName { which, port, gid_index })
    }

    fn device(text: &'a str) -> Result<Which<'a>> {
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Which::Address(address.to_ipv6_mapped().octets()));
        }
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
        if text.is_empty() || text.len() >= NAME_MAX || !text.bytes().all(fits) {
            return Err(refuse!(
                Invalid,
                "NIC '{text}': no name that one can have; `ibv_devices` lists them"
            ));
        }
        Ok(Which::Name(text))
    }
}

/// A GID as an IP address; IPv4 if it is mapped.
pub fn address(gid: [u8; 16]) -> IpAddr {
    Ipv6Addr::from(gid).to_canonical()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_and_without_port_and_gid_index() {
        let at = |port, gid_index| NicName { which: Which::Name("rxe0"), port, gid_index };
        assert_eq!(NicName::parse("verbs:rxe0"), Ok(at(None, None)));
        assert_eq!(NicName::parse("verbs:rxe0:1"), Ok(at(Some(1), None)));
        assert_eq!(NicName::parse("verbs:rxe0:2:15"), Ok(at(Some(2), Some(15))));
    }

    #[test]
    fn addresses_choose_the_device() {
        let v4 = NicName::parse("verbs:10.0.0.1:1").unwrap();
        assert_eq!(v4.which, Which::Address([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]));
        assert_eq!(v4.port, Some(1));
        let v6 = NicName::parse("verbs:[2001:db8::1]:1:3").unwrap();
        assert!(matches!(v6.which, Which::Address(a) if a[..4] == [0x20, 1, 0xd, 0xb8]));
        assert_eq!((v6.port, v6.gid_index), (Some(1), Some(3)));
        assert_eq!(NicName::parse("verbs:[::1]").unwrap().port, None);
    }

    #[test]
    fn other_names_are_refused() {
        assert_eq!(NicName::parse("soft:127.0.0.1"), Err(Error::NoDevice));
        for bad in [
            "verbs:",
            "verbs::1",
            "verbs:rxe0:",
            "verbs:rxe0:0",
            "verbs:rxe0:256",
            "verbs:rxe0:1:",
            "verbs:rxe0:1:256",
            "verbs:rxe0:1:2:3",
            "verbs:rxe0:x",
            "verbs:rxe0:+1",
            "verbs:../x",
            "verbs:a b",
            "verbs:[::1",
            "verbs:[::1]x",
            "verbs:[rxe0]",
            "verbs:rxe0:99999999999",
        ] {
            assert_eq!(NicName::parse(bad), Err(Error::Invalid), "{bad}");
        }
        assert_eq!(NicName::parse(&format!("verbs:{}", "x".repeat(64))), Err(Error::Invalid));
    }
}
