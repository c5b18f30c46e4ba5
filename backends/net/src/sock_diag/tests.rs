use super::*;
use crate::sys::set_option;
use gdrcore_testkit::descriptors::keep;
use gdrcore_testkit::place::loopback;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;

fn endpoint(s: &UdpSocket) -> Endpoint {
    let at = s.local_addr().unwrap();
    match at.ip() {
        IpAddr::V4(ip) => Endpoint::v4(ip.octets(), at.port()),
        IpAddr::V6(ip) => Endpoint::new(ip.octets(), 0, at.port()),
    }
}

fn bind(ip: [u8; 4]) -> UdpSocket {
    UdpSocket::bind((std::net::Ipv4Addr::from(ip), 0)).unwrap()
}

fn me() -> u32 {
    // SAFETY: no precondition.
    unsafe { libc::geteuid() }
}

#[test]
fn the_user_of_a_port_is_found() {
    let _kept = keep();
    let (own, beside) = (loopback(8, 4), loopback(8, 5));
    let v4 = bind(own);
    let at = endpoint(&v4);
    assert_eq!(port_owner(&at), Some(me()));
    for everywhere in ["0.0.0.0:0", "[::]:0"] {
        let Ok(any) = UdpSocket::bind(everywhere) else { continue };
        let port = endpoint(&any).port;
        assert_eq!(port_owner(&Endpoint::v4(own, port)), Some(me()), "{everywhere}");
        // The socket is bound to no address, so it is no soft device's.
        let at = Endpoint::v4(own, port);
        assert_eq!(receiving_user(&Endpoint::v4(beside, 1), &at), None, "{everywhere}");
    }
    let mut localhost = [0; 16];
    localhost[15] = 1;
    if let Ok(v6) = UdpSocket::bind("[::1]:0") {
        assert_eq!(port_owner(&Endpoint::new(localhost, 0, endpoint(&v6).port)), Some(me()));
    }
    assert_eq!(port_owner(&Endpoint::v4(beside, at.port)), None);
    drop(v4);
    assert_eq!(port_owner(&at), None);
}

#[test]
fn the_socket_that_is_connected_to_an_address_receives_its_packets_alone() {
    let _kept = keep();
    let (own, other) = (loopback(8, 6), loopback(8, 7));
    let (to, beside) = (bind(other), bind(other));
    let connected = bind(own);
    connected.connect(to.local_addr().unwrap()).unwrap();
    let at = endpoint(&connected);
    assert_eq!(receiving_user(&endpoint(&to), &at), Some(me()));
    assert_eq!(receiving_user(&endpoint(&beside), &at), None);
    // In the other order the kernel finds the other end.
    assert_eq!(receiving_user(&at, &endpoint(&to)), Some(me()));
    assert_eq!(receiving_user(&endpoint(&to), &Endpoint { port: at.port, ..endpoint(&to) }), None);
    assert_eq!(unread(&at), Unread::Nobody, "a connected socket is no device's own");
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
            assert_eq!(unread(&at), Unread::Nobody, "{bound}");
        }
    }
}

#[test]
fn the_sockets_of_another_host_are_unknown() {
    // An address of TEST-NET-1.
    assert_eq!(unread(&Endpoint::v4([192, 0, 2, 77], 4791)), Unread::Unknown);
}

/// Of two sockets that share a port, one that holds a packet says nothing about the other.
#[test]
fn sockets_that_share_a_port_are_all_looked_at() {
    let _kept = keep();
    let ip = loopback(8, 8);
    let first = crate::udp::unconnected(&Endpoint::v4(ip, 0)).unwrap();
    set_option(first.raw(), libc::SOL_SOCKET, libc::SO_REUSEPORT, 1i32).unwrap();
    let mut sa = crate::addr::SockAddr::zeroed();
    let mut len = crate::addr::SockAddr::LEN;
    // SAFETY: `sa` has room for `len` bytes, and both live through the call.
    unsafe { libc::getsockname(first.raw(), (&raw mut sa).cast(), &mut len) };
    let at = Endpoint::from_sockaddr(&sa).unwrap();
    // SAFETY: socket takes no pointers; `sa` is an address of `len` bytes.
    let second = unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        let second = crate::sys::Fd::from_call(fd).unwrap();
        set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1i32).unwrap();
        assert_eq!(libc::bind(fd, (&raw const sa).cast(), len), 0);
        second
    };
    assert_eq!(unread(&at), Unread::Taken);
    let senders: Vec<UdpSocket> = (0..64).map(|_| bind(ip)).collect();
    let to = (std::net::Ipv4Addr::from(ip), at.port);
    senders[0].send_to(&[0; 100], to).unwrap();
    assert_eq!(unread(&at), Unread::Unknown, "one of both holds a packet");
    for sender in &senders {
        sender.send_to(&[0; 100], to).unwrap();
    }
    assert_eq!(unread(&at), Unread::Waits);
    let _ = (second, senders[0].as_raw_fd());
}

#[test]
fn short_or_strange_answers_are_no_socket() {
    let at = Endpoint::v4([127, 0, 0, 1], 4791);
    let mut told = [0u8; INODE + 4];
    told[0] = libc::AF_INET as u8;
    told[PORT..PORT + 2].copy_from_slice(&4791u16.to_be_bytes());
    told[IP..IP + 4].copy_from_slice(&[127, 0, 0, 1]);
    told[USER..INODE].copy_from_slice(&7u32.to_ne_bytes());
    told[INODE..].copy_from_slice(&9u32.to_ne_bytes());
    let found = Socket { exact: true, connected: false, unread: 0, user: 7, inode: 9 };
    assert_eq!(parse(&told, &at), Some(found));
    assert_eq!(parse(&told, &Endpoint { port: 4792, ..at }), None);
    for n in 0..told.len() {
        assert_eq!(parse(&told[..n], &at), None);
    }
    told[REMOTE_PORT] = 1;
    told[IP] = 126;
    assert_eq!(parse(&told, &at), Some(Socket { exact: false, connected: true, ..found }));
}

/// On a busy machine a packet comes, or is read, between two looks.
#[test]
fn looks_at_one_socket_are_one_socket() {
    let look = |(inode, unread)| Socket { exact: true, connected: false, unread, user: 0, inode };
    let told = |looks: &[(u32, u32)]| said(looks.iter().copied().map(look));
    assert_eq!(told(&[(7, 0), (7, 100)]), Unread::Taken);
    assert_eq!(told(&[(7, 100), (7, 0), (7, 100)]), Unread::Taken);
    assert_eq!(told(&[(7, 100), (7, 200)]), Unread::Waits);
    assert_eq!(told(&[(7, 100), (8, 200)]), Unread::Waits);
    assert_eq!(told(&[(7, 100), (8, 0), (7, 100)]), Unread::Unknown);
    assert_eq!(told(&[]), Unread::Nobody);
}
