//! Bursts that are signed for the flow of the port's connected socket.

use gdrcore_core::engine::Burst;
use gdrcore_core::roce::peer::ConnectedFlow;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{IcrcFlow, Opcode};

use crate::util::*;

/// The flow of a connected socket from one host to another.
fn own(net: &Net, from: usize, to: usize) -> ConnectedFlow {
    let (src, dst) = (net.hosts[from].addr, net.hosts[to].addr);
    let flow = IcrcFlow::from_gids(&src.gid, &dst.gid, 40_000, dst.port);
    ConnectedFlow { dst, flow, ident: 0xfffd }
}

/// All that a host has to send through a port with a connected socket.
fn bursts(net: &Net, from: usize, own: &mut ConnectedFlow) -> Vec<(Burst, Vec<u8>)> {
    let mut all = Vec::new();
    let mut buf = vec![0; 65_536];
    while let Some(b) = net.hosts[from].lock().poll_transmit_over(net.now, &mut buf, Some(&*own)) {
        check(&b, &buf[..b.len], own, &flow(net, from, 1 - from));
        own.ident = own.ident.wrapping_add(u16::from(b.for_connected));
        all.push((b, buf[..b.len].to_vec()));
    }
    all
}

/// Checks that each packet is signed as its burst says.
fn check(b: &Burst, bytes: &[u8], own: &ConnectedFlow, of_port: &IcrcFlow) {
    for (k, packet) in (0u16..).zip(bytes.chunks(b.seg)) {
        let (flow, ident) =
            if b.for_connected { (&own.flow, own.ident.wrapping_add(k)) } else { (of_port, k) };
        assert!(flow.check(ident, packet).unwrap().exact, "packet {k} of {b:?}");
    }
}

#[test]
fn what_connected_qps_send_is_signed_for_the_flow_to_their_peer() {
    for (v6, kind) in [(false, qp_type::RC), (true, qp_type::RC), (false, qp_type::UC)] {
        let (mut net, a, b) = Net::pair(Opts { v6, kind, ..Opts::default() });
        let mut flows = [own(&net, 0, 1), own(&net, 1, 0)];
        let bytes = pattern(3, 200_001);
        a.buf.write(0, &bytes);
        net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, bytes.len()).remote(&b, 0));
        let mut sent = [0; 2];
        loop {
            let before = sent;
            for from in 0..2 {
                for (burst, bytes) in bursts(&net, from, &mut flows[from]) {
                    assert!(burst.for_connected);
                    sent[from] += 1;
                    // The receiver knows the packets by the one address that they have here.
                    let mut bytes = bytes;
                    let of_port = flow(&net, from, 1 - from);
                    for (k, packet) in (0..).zip(bytes.chunks_mut(burst.seg)) {
                        of_port.append_icrc(k, packet);
                    }
                    let src = net.hosts[from].addr;
                    net.hosts[1 - from]
                        .lock()
                        .handle_packets(net.now, &src, burst.seg, &bytes, false);
                }
            }
            if sent == before {
                break;
            }
        }
        assert!(sent[0] > 3 && (sent[1] > 0) == (kind == qp_type::RC), "{sent:?}");
        assert_eq!(net.poll(0, a.scq).len(), 1);
        assert!(b.buf.read(0, bytes.len()) == bytes);
        net.settle();
    }
}

#[test]
fn bursts_to_others_are_signed_for_the_address_of_the_port() {
    let (mut net, a, b) = Net::pair(Opts::default());
    // Another port of the same address, and another address.
    for (to, port) in [(1, 4792), (0, 4791)] {
        let mut other = own(&net, 0, to);
        other.dst.port = port;
        net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 20_000).remote(&b, 0));
        let sent = bursts(&net, 0, &mut other);
        assert!(!sent.is_empty() && sent.iter().all(|(burst, _)| !burst.for_connected));
        for (burst, bytes) in sent {
            let src = net.hosts[0].addr;
            net.hosts[1].lock().handle_packets(net.now, &src, burst.seg, &bytes, false);
        }
        net.settle();
        assert_eq!(net.poll(0, a.scq).len(), 1);
    }
}

#[test]
fn datagrams_are_signed_for_the_address_of_the_port() {
    let (mut net, a, b) = Net::pair(Opts { kind: qp_type::UD, ..Opts::default() });
    let ah = net.ah(&a, &b);
    let mut own = own(&net, 0, 1);
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 100).ud(ah, b.qpn, 0x1111));
    let sent = bursts(&net, 0, &mut own);
    assert!(matches!(&sent[..], [(burst, _)] if !burst.for_connected));
    net.settle();
}

/// Those behind a burst of a connected QP to the same peer do not join it.
#[test]
fn a_datagram_leaves_apart_from_what_connected_qps_send() {
    let (mut net, a, _b) = Net::pair(Opts::default());
    let o = Opts { kind: qp_type::UD, ..Opts::default() };
    let (c, d) = (net.end(0, &o), net.end(1, &o));
    net.connect(&c, &d, &o);
    let ah = net.ah(&c, &d);
    let mut own = own(&net, 0, 1);
    // Whichever comes first.
    for order in 0..2 {
        for k in [order, 1 - order] {
            match k {
                // The longer one: a datagram would fit behind it.
                0 => net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 300)),
                _ => net.post(&c, Wr::new(wr_opcode::SEND).local(&c, 0, 100).ud(ah, d.qpn, 0x1111)),
            }
        }
        let sent = bursts(&net, 0, &mut own);
        let of_ud = |bytes: &[u8]| bytes[0] == Opcode::UD_SEND_ONLY.0;
        assert_eq!(sent.len(), 2);
        assert!(sent.iter().all(|(burst, bytes)| burst.for_connected != of_ud(bytes)), "{order}");
        net.settle();
    }
}
