//! Hostile packets: garbage, forgeries, truncated packets. They are dropped and counted; the
//! traffic beside them continues.

use gdrcore_core::verbs::types::{qp_type, wc_status};
use gdrcore_tests::ends::{connected, connected_pair, pattern, succeed, End, Op, Shape, QKEY};
use gdrcore_tests::forge::{self, plain, send_valid, still_works};
use gdrcore_tests::soft::{address, Soft};
use std::net::{SocketAddr, UdpSocket};

/// Two devices over UDP, and a socket at the second one's address that sends forged packets.
struct Scene {
    a: Soft,
    b: Soft,
    liar: UdpSocket,
    target: SocketAddr,
}

fn scene() -> Scene {
    let (x, y) = (address(1), address(2));
    let (a, b) = (Soft::new(&x), Soft::new(&y));
    let liar = UdpSocket::bind((plain(&y).ip(), 0)).expect("a socket at b's address");
    Scene { a, b, liar, target: plain(&x) }
}

impl Scene {
    /// Sends `packet` with a valid ICRC.
    fn send_valid(&self, packet: &mut Vec<u8>) {
        send_valid(&self.liar, self.target, packet);
    }

    /// Lets both devices handle the packets that arrived.
    fn settle(&self) {
        for _ in 0..2000 {
            self.a.dev().progress().expect("progress");
            self.b.dev().progress().expect("progress");
        }
    }
}

/// A BTH with the fields that an honest peer of `end` would use.
fn bth(opcode: u8, end: &End, psn: u32) -> Vec<u8> {
    forge::bth(opcode, 0x40, end.own.qpn, true, psn)
}

#[test]
fn random_bytes_are_dropped_and_counted() {
    let s = scene();
    let (mut a, mut b) = connected_pair(s.a.dev(), s.b.dev());
    let before = s.a.dev().counters().expect("counters");
    for n in 0..400u64 {
        let length = (n * 37 % 1400) as usize;
        s.liar.send_to(&pattern(n, length), s.target).expect("send_to");
        if n % 10 == 0 {
            s.settle();
        }
    }
    s.settle();
    still_works(&mut a, &mut b);
    let after = s.a.dev().counters().expect("counters");
    let dropped = |c: &gdrcore_core::counters::Counters| {
        c.rcvd_malformed + c.rcvd_icrc_err + c.rcvd_no_qp + c.rcvd_refused
    };
    assert!(dropped(&after) >= dropped(&before) + 100, "{after:?}");
}

#[test]
fn every_opcode_with_a_valid_icrc_and_random_bytes_is_harmless() {
    let s = scene();
    let (mut a, mut b) = connected_pair(s.a.dev(), s.b.dev());
    let secret = pattern(8, a.shape.buffer);
    a.buffer.write(0, &secret);
    for opcode in 0..=255u8 {
        for length in [0usize, 1, 4, 15, 16, 28, 40, 1024, 1030] {
            // Far ahead of the expected PSN, so that not even a well-formed request may be
            // executed.
            let mut packet = bth(opcode, &a, b.own.psn.wrapping_add(0x1000) & 0xFF_FFFF);
            packet[1] |= (length as u8 & 3) << 4;
            packet.extend_from_slice(&pattern(u64::from(opcode), length));
            s.send_valid(&mut packet);
        }
        s.settle();
    }
    assert!(a.buffer.read(0, a.shape.buffer) == secret, "a forged packet changed memory");
    still_works(&mut a, &mut b);
}

#[test]
fn a_foreign_p_key_is_refused_silently() {
    let s = scene();
    let (mut a, mut b) = connected_pair(s.a.dev(), s.b.dev());
    a.post_recv(1, 0, 64).expect("post_recv");
    let refused = || s.a.dev().counters().expect("counters").rcvd_refused;
    let before = refused();
    let mut packet = bth(0x04, &a, b.own.psn); // RC SEND ONLY
    (packet[2], packet[3]) = (0x12, 0x34);
    s.send_valid(&mut packet);
    s.settle();
    assert_eq!(refused(), before + 1);
    a.poll();
    assert!(a.done.is_empty(), "{:?}", a.done);
    still_works(&mut a, &mut b);
}

#[test]
fn packets_of_another_address_are_refused() {
    let s = scene();
    let (mut a, mut b) = connected_pair(s.a.dev(), s.b.dev());
    a.post_recv(1, 0, 64).expect("post_recv");
    let before = s.a.dev().counters().expect("counters").rcvd_refused;
    let third = plain(&address(3));
    let stranger = UdpSocket::bind((third.ip(), 0)).expect("a socket");
    send_valid(&stranger, s.target, &mut bth(0x04, &a, b.own.psn));
    s.settle();
    assert_eq!(s.a.dev().counters().expect("counters").rcvd_refused, before + 1);
    a.poll();
    assert!(a.done.is_empty(), "{:?}", a.done);
    still_works(&mut a, &mut b);
}

#[test]
fn a_wrong_icrc_is_dropped_before_anything_changes() {
    let s = scene();
    let (mut a, mut b) = connected_pair(s.a.dev(), s.b.dev());
    a.post_recv(1, 0, 64).expect("post_recv");
    let mut packet = bth(0x04, &a, b.own.psn);
    packet.extend_from_slice(&[0xAB; 64]);
    let before = s.a.dev().counters().expect("counters").rcvd_icrc_err;
    packet.extend_from_slice(&[1, 2, 3, 4]);
    s.liar.send_to(&packet, s.target).expect("send_to");
    s.settle();
    assert_eq!(s.a.dev().counters().expect("counters").rcvd_icrc_err, before + 1);
    a.poll();
    assert!(a.done.is_empty(), "{:?}", a.done);
    still_works(&mut a, &mut b);
}

#[test]
fn a_foreign_q_key_is_refused_silently() {
    let s = scene();
    let shape = Shape { qp_type: qp_type::UD, ..Shape::default() };
    let (mut a, mut b) = connected(s.a.dev(), s.b.dev(), shape).expect("connected ends");
    a.post_recv(1, 0, 128).expect("post_recv");
    let piece = [b.piece(0, 16)];
    let mut wr = b.request(5, Op::Send(None), &piece);
    wr.wr.ud.remote_qkey = QKEY ^ 1;
    let refused = || s.a.dev().counters().expect("counters").rcvd_refused;
    let before = refused();
    b.post_wr(&wr).expect("post_send");
    assert_eq!(succeed(&mut b, &mut a, 5).status, wc_status::SUCCESS);
    s.settle();
    a.poll();
    assert_eq!(refused(), before + 1);
    assert!(a.done.is_empty(), "{:?}", a.done);
}

#[test]
fn truncated_and_extended_packets_of_the_peer_are_harmless() {
    let s = scene();
    let (mut a, mut b) = connected_pair(s.a.dev(), s.b.dev());
    let secret = pattern(8, a.shape.buffer);
    a.buffer.write(0, &secret);
    for opcode in [0x06u8, 0x07, 0x08, 0x0A, 0x0C, 0x13, 0x14, 0x10, 0x11, 0x12] {
        for cut in 0..44 {
            let mut packet = bth(opcode, &a, b.own.psn);
            packet.extend_from_slice(&a.own.addr.to_be_bytes());
            packet.extend_from_slice(&(a.own.rkey ^ 1).to_be_bytes());
            packet.extend_from_slice(&u32::MAX.to_be_bytes());
            packet.extend_from_slice(&[0; 16]);
            packet.truncate(packet.len() - cut);
            s.send_valid(&mut packet);
        }
        s.settle();
    }
    assert!(a.buffer.read(0, a.shape.buffer) == secret, "a forged packet changed memory");
    // Forged requests with a wrong key may have ended this connection, as a real peer's would. A
    // new one must work.
    let (mut c, mut d) = connected_pair(s.a.dev(), s.b.dev());
    still_works(&mut c, &mut d);
    a.poll();
    b.poll();
}
