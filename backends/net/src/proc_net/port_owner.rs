//! The user of a UDP port.

use super::udp_list::{each, Socket, V4, V6};
use crate::addr::Endpoint;

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
}
