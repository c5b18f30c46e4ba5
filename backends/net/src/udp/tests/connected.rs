//! Tests of the connected socket to a peer of this host: whole packets with the right numbers, and
//! no loss when it ends.

use super::network::Namespace;
use super::*;
use crate::addr::{endpoint, peer_addr};
use crate::sys::{check, Fd};
use crate::udp::connected::{CONNECT_AFTER, CONNECT_AFTER_MAX, TRUSTED_AFTER};
use gdrcore_core::roce::peer::ConnectedFlow;
use gdrcore_testkit::icrc::check_exact;

/// The flow of the connected socket.
fn connected_flow(a: &mut Rig) -> Option<ConnectedFlow> {
    a.port.space_and_flow().and_then(|(_, own)| own.copied())
}

/// Sends bursts of a request and an ACK until the peer has a connected socket.
fn make_connected(a: &mut Rig, b: &mut Rig) {
    for _ in 0..100 + u32::from(CONNECT_AFTER) {
        if connected_flow(a).is_some() {
            return;
        }
        send_by_port(a, b, 100, 80, true);
    }
    panic!("no connected socket");
}

/// Sends a burst by the port's own socket. `now`: at once if possible.
fn send_by_port(a: &mut Rig, b: &mut Rig, len: usize, seg: usize, now: bool) {
    let dst = *b.port.local();
    let flow = flow(&a.port, &dst);
    fill(a.port.tx_space().unwrap(), len, seg, &flow);
    let burst = Burst { dst: peer_addr(&dst), len, seg: seg as u16 };
    if !now || !a.port.tx_now(&burst) {
        a.port.tx_commit(burst);
        assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
    }
    assert_eq!(receive(&mut b.port, &a.port, len, seg), 1);
}

/// Writes a burst for the connected socket and sends it; returns whether it left, and its bytes.
fn send_connected(a: &mut Rig, len: usize, seg: usize) -> (bool, Vec<u8>) {
    let ConnectedFlow { dst, flow, ident } = connected_flow(a).expect("a connected socket");
    let space = a.port.tx_space().unwrap();
    for (k, packet) in space[..len].chunks_mut(seg).enumerate() {
        packet.iter_mut().enumerate().for_each(|(j, b)| *b = (k * 31 + j) as u8);
        flow.append_icrc(ident.wrapping_add(k as u16), packet);
    }
    let written = space[..len].to_vec();
    (a.port.tx_connected(&Burst { dst, len, seg: seg as u16 }), written)
}

#[test]
fn many_bursts_to_one_peer_give_it_a_connected_socket() {
    let (mut a, mut b, mut c) = (v4(1), v4(2), v4(3));
    for k in 0..CONNECT_AFTER {
        assert!(connected_flow(&mut a).is_none(), "after {k} bursts");
        send_by_port(&mut a, &mut b, 61_680, 4112, false);
    }
    let leads_to = |a: &mut Rig, to: &Rig| {
        connected_flow(a).is_some_and(|own| own.leads_to(&peer_addr(to.port.local())))
    };
    assert!(leads_to(&mut a, &b));
    // The bursts alternate between the peers, so none of them takes the connected socket from the
    // first.
    for k in 0..3 * CONNECT_AFTER {
        let to = if k % 3 == 0 { &mut b } else { &mut c };
        send_by_port(&mut a, to, 9000, 4112, false);
    }
    assert!(leads_to(&mut a, &b));
    for _ in 0..CONNECT_AFTER {
        send_by_port(&mut a, &mut c, 9000, 4112, false);
    }
    assert!(leads_to(&mut a, &c));
}

#[test]
fn a_burst_that_waits_in_the_batch_leaves_before_those_of_a_connected_socket() {
    let (mut a, mut b) = (v4(1), v4(2));
    make_connected(&mut a, &mut b);
    let dst = *b.port.local();
    let flow = flow(&a.port, &dst);
    fill(a.port.tx_space().unwrap(), 100, 80, &flow);
    a.port.tx_commit(Burst { dst: peer_addr(&dst), len: 100, seg: 80 });
    assert!(connected_flow(&mut a).is_none());
    assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
    assert!(connected_flow(&mut a).is_some());
    assert_eq!(receive(&mut b.port, &a.port, 100, 80), 1);
}

#[test]
fn a_connected_socket_carries_bursts_of_any_kind() {
    for (mut a, mut b) in [(v4(1), v4(2)), (v6(), v6())] {
        make_connected(&mut a, &mut b);
        for (len, seg) in [
            (100, 80),
            (80, 80),
            (20, 20),
            (4124, 4124),
            (100, 80),
            (9000, 4124),
            (60, 40),
            (60_000, 60_000),
        ] {
            let (left, written) = send_connected(&mut a, len, seg);
            assert!(left, "{len} bytes in packets of {seg}");
            assert_eq!(poll(&mut b.port), 1);
            let p = b.port.rx_get(0);
            assert_eq!((p.data, usize::from(p.seg)), (&written[..], seg.min(len)));
            let src = endpoint(&p.src);
            assert!(src.same_host(a.port.local()) && src.port != a.port.local().port);
            let flow =
                IcrcFlow::from_gids(&src.ip, &b.port.local().ip, src.port, b.port.local().port);
            assert!(p.data.chunks(seg).all(|packet| flow.check(0, packet).is_ok()));
        }
        assert!(a.port.take_error().is_none());
    }
}

#[test]
fn the_numbers_of_a_connected_socket_are_those_of_its_packets() {
    // In a namespace without other traffic, which would fill the packet socket.
    let Some(inside) = Namespace::new() else { return };
    inside.run(compare_numbers_with_packets);
}

fn compare_numbers_with_packets() {
    // The packets as sent. SAFETY: socket takes no pointers.
    let tap = Fd::from_call(unsafe {
        libc::socket(
            libc::AF_PACKET,
            libc::SOCK_DGRAM | libc::SOCK_NONBLOCK,
            i32::from((libc::ETH_P_IP as u16).to_be()),
        )
    });
    let tap = tap.expect("a packet socket for the owner of the namespace");
    let (mut a, mut b) = (v4(1), v4(2));
    make_connected(&mut a, &mut b);
    let port = b.port.local().port;
    let mut packet = vec![0u8; 70_000];
    let mut read = || {
        // SAFETY: pointer and length are those of `packet`.
        let n =
            check(unsafe { libc::recv(tap.raw(), packet.as_mut_ptr().cast(), packet.len(), 0) }
                as i32);
        n.ok().map(|n| packet[..n as usize].to_vec())
    };
    while read().is_some() {}
    let (mut seen, mut numbers) = (0, Vec::new());
    for k in 0..300 {
        // The IP header of a single packet shows its number; that of a burst shows the first
        // packet's.
        let (len, seg) = if k % 3 == 2 { (100, 80) } else { (80, 80) };
        let ident = connected_flow(&mut a).unwrap().ident;
        assert!(send_connected(&mut a, len, seg).0);
        while let Some(ip) = read() {
            if ip.len() < 28 || ip[9] != 17 || ip[22..24] != port.to_be_bytes() {
                continue;
            }
            seen += 1;
            numbers.push(u16::from_be_bytes([ip[4], ip[5]]));
            assert_eq!(numbers.last(), Some(&ident), "burst {k}");
            if len == seg {
                check_exact(&ip).expect("ICRC as any NIC would have it");
            }
        }
        assert_eq!(poll(&mut b.port), 1);
    }
    assert!(seen >= 300, "{seen}");
}

#[test]
fn a_refused_connected_socket_ends_and_its_burst_leaves_by_the_port() {
    let (mut a, mut b) = (v4(1), v4(2));
    make_connected(&mut a, &mut b);
    let dst = *b.port.local();
    drop(b);
    // The first send finds no socket there; the next one reports that, once the ICMP answer has
    // come.
    assert!(send_connected(&mut a, 100, 80).0);
    until(
        60,
        || "the connected socket still sends".into(),
        || (!send_connected(&mut a, 100, 80).0).then_some(()),
    );
    assert!(connected_flow(&mut a).is_none());
    // The burst is now signed for the port's own socket.
    let flow = flow(&a.port, &dst);
    let burst = a.port.tx_space().unwrap()[..100].to_vec();
    assert!(burst.chunks(80).enumerate().all(|(k, p)| flow.check(k as u16, p).unwrap().exact));
    let mut b = open(dst, &UdpConfig::DEFAULT).unwrap();
    a.port.tx_commit(Burst { dst: peer_addr(&dst), len: 100, seg: 80 });
    assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
    assert_eq!(receive(&mut b.port, &a.port, 100, 80), 1);
    // The peer may get another connected socket.
    make_connected(&mut a, &mut b);
    assert!(send_connected(&mut a, 100, 80).0);
    assert_eq!(poll(&mut b.port), 1);
}

/// The peer may have refused packets that are lost. So the connected socket rests, longer each
/// time, unless the peer has accepted many bursts. Afterwards the same socket is used again.
#[test]
fn a_doubted_connected_socket_rests_and_comes_back() {
    let (mut a, mut b) = (v4(1), v4(2));
    make_connected(&mut a, &mut b);
    let port = connected_flow(&mut a).unwrap().flow;
    let mut rests = CONNECT_AFTER;
    for _ in 0..10 {
        a.port.doubt_connected();
        // There is nothing to doubt now.
        a.port.doubt_connected();
        rests = (2 * rests).min(CONNECT_AFTER_MAX);
        for k in 0..rests {
            assert!(connected_flow(&mut a).is_none(), "after {k} bursts of {rests}");
            send_by_port(&mut a, &mut b, 100, 80, true);
        }
        let again = connected_flow(&mut a).expect("a connected socket").flow;
        assert_eq!(again.icrc(0, &[0; 16]), port.icrc(0, &[0; 16]), "another socket");
        assert!(send_connected(&mut a, 80, 80).0);
        assert_eq!(poll(&mut b.port), 1);
    }
    for _ in 0..TRUSTED_AFTER {
        assert!(send_connected(&mut a, 80, 80).0);
        assert_eq!(poll(&mut b.port), 1);
    }
    a.port.doubt_connected();
    for _ in 0..CONNECT_AFTER {
        assert!(connected_flow(&mut a).is_none());
        send_by_port(&mut a, &mut b, 100, 80, true);
    }
    assert!(connected_flow(&mut a).is_some());
}

#[test]
fn peers_of_other_hosts_have_no_connected_socket() {
    let a = v4(1);
    let far = Endpoint::v4([192, 0, 2, 1], 4791);
    assert!(
        crate::udp::connected::ConnectedSocket::open(a.port.local(), &peer_addr(&far), 0).is_none()
    );
    let near = crate::udp::connected::ConnectedSocket::open(
        a.port.local(),
        &peer_addr(&Endpoint::v4([127, 0, 0, 3], 4791)),
        2,
    )
    .expect("a connected socket");
    assert!(endpoint(&near.flow.dst).to_v4() == Some([127, 0, 0, 3]));
}
