//! The user of a UDP port, and that user's ports.

use super::udp_list::{each, Socket, V4, V6};
use crate::addr::Endpoint;
use gdrcore_core::roce::peer::LANES;

/// The user whose socket is bound to an address and port of this network namespace, or to that port
/// of all addresses. `None`: there is none, or procfs is not readable.
///
/// Cost: reads the kernel's list of IPv4 or IPv6 sockets, or both. No allocation.
pub fn port_owner(at: &Endpoint) -> Option<u32> {
    let mut user = None;
    // A socket of all IPv6 addresses occupies the port of all IPv4 addresses as well.
    let files: &[_] = if at.is_v4() { &[V4, V6] } else { &[V6] };
    for file in files {
        each(file, |s: &Socket| {
            if s.has(at) {
                user.get_or_insert(s.user);
            }
        });
    }
    user
}

/// The ports of an address that is of this network namespace, whose sockets are connected to `to`
/// and belong to the user of `from`, its port included; as many as a peer may have.
///
/// Cost: as [`port_owner`], and one list more. No allocation.
pub fn ports_towards(from: &Endpoint, to: &Endpoint) -> heapless::Vec<u16, LANES> {
    let mut ports = heapless::Vec::new();
    let Some(user) = port_owner(from) else { return ports };
    each(if from.is_v4() { V4 } else { V6 }, |s: &Socket| {
        if s.user == user && s.leads(from, to) {
            // There may be more.
            let _ = ports.push(s.port);
        }
    });
    ports
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_testkit::descriptors::keep;
    use gdrcore_testkit::place::loopback;
    use std::net::UdpSocket;

    #[test]
    fn the_user_of_a_port_is_found() {
        let _kept = keep();
        let (own, beside) = (loopback(8, 4), loopback(8, 5));
        // SAFETY: no precondition.
        let me = unsafe { libc::geteuid() };
        // Many other sockets, so that lines cross the buffer's end.
        let _others: Vec<UdpSocket> =
            (0..100).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let v4 = UdpSocket::bind((std::net::Ipv4Addr::from(own), 0)).unwrap();
        let port = v4.local_addr().unwrap().port();
        assert_eq!(port_owner(&Endpoint::v4(own, port)), Some(me));
        let any = UdpSocket::bind("0.0.0.0:0").unwrap();
        assert_eq!(port_owner(&Endpoint::v4(own, any.local_addr().unwrap().port())), Some(me));
        let mut localhost = [0; 16];
        localhost[15] = 1;
        if let Ok(v6) = UdpSocket::bind("[::1]:0") {
            assert_eq!(
                port_owner(&Endpoint::new(localhost, 0, v6.local_addr().unwrap().port())),
                Some(me)
            );
        }
        assert_eq!(port_owner(&Endpoint::v4(beside, port)), None);
        drop(v4);
        assert_eq!(port_owner(&Endpoint::v4(own, port)), None);
    }

    #[test]
    fn ports_of_sockets_that_are_connected_to_an_address_are_found() {
        let _kept = keep();
        let (own, other) = (loopback(8, 6), loopback(8, 7));
        let bind = |ip: [u8; 4]| UdpSocket::bind((std::net::Ipv4Addr::from(ip), 0)).unwrap();
        let port = |s: &UdpSocket| s.local_addr().unwrap().port();
        let (from, to, beside) = (bind(own), bind(other), bind(other));
        let at = |ip, s: &UdpSocket| Endpoint::v4(ip, port(s));
        let found = || ports_towards(&at(own, &from), &at(other, &to));
        assert!(found().is_empty());
        // Of another address, to another port, and without a peer.
        let others = [bind(other), bind(own), bind(own)];
        others[0].connect(to.local_addr().unwrap()).unwrap();
        others[1].connect(beside.local_addr().unwrap()).unwrap();
        assert!(found().is_empty());
        let lanes: Vec<UdpSocket> = (0..LANES + 1).map(|_| bind(own)).collect();
        for (n, lane) in lanes.iter().enumerate() {
            lane.connect(to.local_addr().unwrap()).unwrap();
            // The kernel's list may lack a line while other sockets open and close.
            let whole = || found().len() == (n + 1).min(LANES);
            assert!((0..1000).any(|_| whole()), "{n}: {:?}", found());
        }
        let ports: Vec<u16> = lanes.iter().map(port).collect();
        assert!(found().iter().all(|p| ports.contains(p)));
        // The user of the address and port is nobody.
        let (from, to) = (at(own, &from), at(other, &to));
        assert!(ports_towards(&Endpoint { port: 1, ..from }, &to).is_empty());
    }
}
