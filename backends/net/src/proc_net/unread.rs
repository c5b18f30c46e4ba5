//! Unread packets in the UDP sockets of this host.
//!
//! A silent peer may be of this host. Then its socket shows whether its process still exists, and
//! whether it receives.

use super::udp_list::{each, V4, V6};
use crate::addr::Endpoint;
use std::net::{SocketAddrV4, SocketAddrV6, UdpSocket};

/// The sockets that receive a peer's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The address is of another host or namespace, or it is unknown.
    Unknown,
    /// The address is this namespace's, and no socket has the port.
    Nobody,
    /// All of them hold packets.
    Waits,
    /// None of them holds a packet.
    Taken,
}

/// Reads the state of the unconnected sockets bound to an address and port of this host. Cost: a
/// read of the kernel's list, some 0.1 ms, so only for peers that have been silent for long.
/// Allocates nothing.
pub fn unread(at: &Endpoint) -> Unread {
    let (mut waiting, mut empty, mut all) = (0u32, 0u32, 0u32);
    each(if at.is_v4() { V4 } else { V6 }, |s| {
        all += 1;
        if s.has(at) && !s.is_connected() {
            *if s.unread == 0 { &mut empty } else { &mut waiting } += 1;
        }
    });
    match (waiting, empty) {
        (1.., 0) => Unread::Waits,
        (0, 1..) => Unread::Taken,
        // A list without any socket was not readable: a device has one itself.
        (0, 0) if all > 0 && is_own(at) => Unread::Nobody,
        _ => Unread::Unknown,
    }
}

/// Whether an address is this namespace's: then a socket can be bound to it.
fn is_own(at: &Endpoint) -> bool {
    let bound = match at.to_v4() {
        Some(ip) => UdpSocket::bind(SocketAddrV4::new(ip.into(), 0)),
        None => UdpSocket::bind(SocketAddrV6::new(at.ip.into(), 0, 0, at.scope_id)),
    };
    bound.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(s: &UdpSocket) -> Endpoint {
        let at = s.local_addr().unwrap();
        match at.ip() {
            std::net::IpAddr::V4(ip) => Endpoint::v4(ip.octets(), at.port()),
            std::net::IpAddr::V6(ip) => Endpoint::new(ip.octets(), 0, at.port()),
        }
    }

    #[test]
    fn a_sockets_unread_packets_show_whether_it_is_read() {
        for (own, everywhere) in [("127.0.0.1:0", "0.0.0.0:0"), ("[::1]:0", "[::]:0")] {
            for bound in [own, everywhere] {
                let reader = UdpSocket::bind(bound).unwrap();
                let to = (
                    own.rsplit_once(':').unwrap().0.trim_matches(['[', ']']),
                    reader.local_addr().unwrap().port(),
                );
                let at = endpoint(&UdpSocket::bind((to.0, 0)).unwrap());
                let at = Endpoint { port: to.1, ..at };
                assert_eq!(unread(&at), Unread::Taken, "{bound}");
                let sender = UdpSocket::bind(own).unwrap();
                sender.connect(to).unwrap();
                sender.send(&[0; 100]).unwrap();
                assert_eq!(unread(&at), Unread::Waits, "{bound}");
                reader.recv(&mut [0; 100]).unwrap();
                assert_eq!(unread(&at), Unread::Taken, "{bound}");
                drop(reader);
                let other = UdpSocket::bind(own).unwrap();
                assert_eq!(unread(&at), Unread::Nobody, "{bound}");
                drop(other);
            }
        }
    }
    #[test]
    fn an_address_of_another_host_is_unknown() {
        let _own = UdpSocket::bind("127.0.0.1:0").unwrap();
        // Of TEST-NET-1.
        assert_eq!(unread(&Endpoint::v4([192, 0, 2, 77], 4791)), Unread::Unknown);
    }
}
