//! Sends forged packets to a router: `forger FROM TO QPN COUNT [bad]`, FROM and TO with ports. The
//! packets are RC SENDs with a valid ICRC, or with a wrong one (`bad`).

use gdrcore_core::wire::{IcrcFlow, ICRC_LEN};
use gdrcore_tests::forge::{bth, octets};
use std::net::{SocketAddr, UdpSocket};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (from, to): (SocketAddr, SocketAddr) =
        (words[0].parse().expect("an address"), words[1].parse().expect("an address"));
    let (qpn, count): (u32, u32) =
        (words[2].parse().expect("a number"), words[3].parse().expect("a number"));
    let socket = UdpSocket::bind(from).expect("an address of this host");
    let flow = IcrcFlow::v4(octets(from), octets(to), from.port(), to.port());
    for psn in 0..count {
        let mut packet = bth(4, 0, qpn, false, psn & 0xff_ffff);
        packet.resize(packet.len() + 1000 + ICRC_LEN, 7);
        flow.append_icrc(0, &mut packet);
        if words.len() > 4 {
            packet[500] ^= 1;
        }
        // A packet without room in the queue is lost, as on a network.
        let _ = socket.send_to(&packet, to);
    }
}
