//! Packets made by tests, sent from plain sockets.

use crate::ends::{pattern, succeed, End, Op};
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::{Class, IcrcFlow, PacketKind, Psn, ICRC_LEN};
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// The address and port that a device's name contains.
pub fn plain(name: &str) -> SocketAddr {
    name.trim_start_matches("soft:").parse().expect("address:port")
}

/// The bytes of an IPv4 address.
pub fn octets(a: SocketAddr) -> [u8; 4] {
    match a.ip() {
        IpAddr::V4(ip) => ip.octets(),
        IpAddr::V6(_) => unreachable!("tests of this file use IPv4 addresses"),
    }
}

/// Sends `packet` from `socket` to `target` with a valid ICRC.
///
/// The kernel gives packets of such a socket an IPv4 identification that the sender does not know.
/// The receiver solves for it, so the ICRC may be computed with any.
pub fn send_valid(socket: &UdpSocket, target: SocketAddr, packet: &mut Vec<u8>) {
    packet.extend_from_slice(&[0; 4]);
    let from = socket.local_addr().expect("bound");
    IcrcFlow::v4(octets(from), octets(target), from.port(), target.port()).append_icrc(0, packet);
    socket.send_to(packet, target).expect("send_to");
}

/// A BTH with the default P_Key. `flags`: solicited, migration, pad count and version.
pub fn bth(opcode: u8, flags: u8, qpn: u32, ack: bool, psn: u32) -> Vec<u8> {
    let mut h = vec![opcode, flags, 0xFF, 0xFF, 0];
    h.extend_from_slice(&qpn.to_be_bytes()[1..]);
    h.push(if ack { 0x80 } else { 0 });
    h.extend_from_slice(&psn.to_be_bytes()[1..]);
    h
}

/// Checks that a connection, after forged packets, still carries data both ways.
pub fn still_works(a: &mut End, b: &mut End) {
    let bytes = pattern(3, 50_000);
    b.buffer.write(0, &bytes);
    b.post(77, Op::Write(100_000, None), 0, 50_000).expect("post_send");
    succeed(b, a, 77);
    assert!(a.buffer.read(100_000, 50_000) == bytes);
    a.post(78, Op::Read(0), 200_000, 50_000).expect("post_send");
    succeed(a, b, 78);
    assert!(a.buffer.read(200_000, 50_000) == bytes);
}

/// A datagram between queue pairs in the form of the relay's rings: its ICRC is not computed.
pub fn datagram(from: u32, to: u32, payload: usize) -> Vec<u8> {
    let mut run = Run::new(Class::Ud, PacketKind::Send, to, Psn::new(1));
    run.src_qpn = from;
    let opcode = run.opcode(true, true);
    let mut bytes = vec![0; opcode.header_len()];
    run.emit_headers(opcode, run.psn, false, 0, &mut bytes);
    bytes.resize(bytes.len() + payload + ICRC_LEN, 7);
    bytes
}
