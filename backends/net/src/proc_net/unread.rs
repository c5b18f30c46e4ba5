//! Unread packets in the UDP sockets of this host.
//!
//! A silent peer may be of this host. Then its socket shows whether its process still exists, and
//! whether it receives.

use super::udp_list::{each, V4, V6};
use crate::addr::Endpoint;

/// The sockets that receive a peer's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// There is no such socket in this namespace, or it is unknown.
    Unknown,
    /// All of them hold packets.
    Waits,
    /// None of them holds a packet.
    Taken,
}

/// Reads the state of the unconnected sockets bound to an address and port of this host. Cost: a
/// read of the kernel's list, some 0.1 ms, so only for peers that have been silent for long.
/// Allocates nothing.
pub fn unread(at: &Endpoint) -> Unread {
    let (mut waiting, mut empty) = (0u32, 0u32);
    each(if at.is_v4() { V4 } else { V6 }, |s| {
        if s.has(at) && !s.is_connected() {
            *if s.unread == 0 { &mut empty } else { &mut waiting } += 1;
        }
    });
    match (waiting, empty) {
        (1.., 0) => Unread::Waits,
        (0, 1..) => Unread::Taken,
        _ => Unread::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

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
                assert_eq!(unread(&at), Unread::Unknown, "{bound}");
            }
        }
    }
}
