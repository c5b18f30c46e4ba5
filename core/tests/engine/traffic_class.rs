//! Traffic class, hop limit and flow label of queue pairs and address handles.

use crate::util::*;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::grh::Fields;
use gdrcore_core::wire::ip::{V4, V6};

/// An address vector's part, and what packets have by it.
const ASKED: AhAttr = AhAttr {
    dgid: [0; 16],
    scope_id: 0,
    udp_port: 0,
    hop_limit: 9,
    traffic_class: 0xbb,
    flow_label: 0xa_bcde,
};
const SENT: Fields = Fields { flow_label: 0xa_bcde, traffic_class: 0xb8, hop_limit: 9 };

/// What the GRH of a received datagram has.
fn header(grh: &[u8], v6: bool) -> Fields {
    if v6 {
        let h = V6::parse(grh.try_into().unwrap()).expect("IPv6");
        return Fields {
            flow_label: h.flow_label,
            traffic_class: h.traffic_class,
            hop_limit: h.hop_limit,
        };
    }
    let h = V4::parse(grh[20..].try_into().unwrap()).expect("IPv4");
    Fields { flow_label: 0, traffic_class: h.tos, hop_limit: h.ttl }
}

// IBTA A17.4.5.2
#[test]
fn a_datagram_has_the_header_of_its_address_handle_on_every_way() {
    for way in WAYS {
        for v6 in [false, true] {
            let (mut net, a, b) = Net::pair(Opts { kind: qp_type::UD, v6, way, ..Opts::default() });
            let plain = net.ah(&a, &b);
            // 1 is what programs of InfiniBand say, not that no router may pass it on.
            net.vector = AhAttr { hop_limit: 1, ..AhAttr::default() };
            let near = net.ah(&a, &b);
            net.vector = ASKED;
            let asked = net.ah(&a, &b);
            let sent = if v6 { SENT } else { Fields { flow_label: 0, ..SENT } };
            // One after the other, and all in one round.
            let order = [(asked, sent), (plain, DEFAULT), (near, DEFAULT), (asked, sent)];
            for (k, (ah, _)) in order.iter().enumerate() {
                net.recv(&b, k as u64, &[(1000 * k, 100)]);
                let send = Wr::new(wr_opcode::SEND).local(&a, 0, 10).ud(*ah, b.qpn, 0x1111);
                net.post(&a, send.id(k as u64));
            }
            net.settle();
            assert_eq!(net.poll(b.host, b.rcq).len(), order.len());
            for (k, (_, sent)) in order.iter().enumerate() {
                assert_eq!(header(&b.buf.read(1000 * k, 40), v6), *sent, "{way:?} {v6} {k}");
            }
        }
    }
}

#[test]
fn requests_and_answers_have_the_class_of_their_own_queue_pair() {
    for v6 in [false, true] {
        let o = Opts { v6, ..Opts::default() };
        let mut net = Net::new(2, &o);
        let (a, b) = (net.end(0, &o), net.end(1, &o));
        net.vector = ASKED;
        net.connect(&a, &b, &o);
        let other = AhAttr { traffic_class: 0x20, hop_limit: 0, flow_label: 0, ..ASKED };
        net.vector = other;
        net.connect(&b, &a, &o);
        let dgid = net.hosts[1].addr.gid;
        assert_eq!(net.lock(&a).qp_query(a.qp).unwrap().0.ah, AhAttr { dgid, ..ASKED });
        let dgid = net.hosts[0].addr.gid;
        assert_eq!(net.lock(&b).qp_query(b.qp).unwrap().0.ah, AhAttr { dgid, ..other });
        for opcode in [wr_opcode::RDMA_WRITE, wr_opcode::RDMA_READ] {
            net.ok(&a, Wr::new(opcode).local(&a, 0, 100_000).remote(&b, 0));
        }
        net.recv(&b, 0, &[(0, 100)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 10));
        assert!([0, 1].iter().all(|host| net.headers.iter().any(|(from, _)| from == host)));
        for (from, header) in &net.headers {
            let ours = if v6 { SENT } else { Fields { flow_label: 0, ..SENT } };
            let theirs = Fields { traffic_class: 0x20, ..DEFAULT };
            assert_eq!(*header, if *from == 0 { ours } else { theirs });
        }
    }
}

#[test]
fn bursts_of_one_class_stay_whole_and_none_has_two() {
    let o = Opts::default();
    let mut net = Net::new(2, &o);
    let ends: Vec<_> = (0..4).map(|_| (net.end(0, &o), net.end(1, &o))).collect();
    for (k, (a, b)) in ends.iter().enumerate() {
        net.vector = if k < 2 { AhAttr::default() } else { ASKED };
        net.connect(a, b, &o);
        net.connect(b, a, &o);
    }
    for (a, b) in &ends {
        for k in 0..4 {
            net.post(a, Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 8).remote(b, 8 * k).flags(0));
        }
    }
    let mut buf = vec![0; 65_536];
    let mut bursts = Vec::new();
    while let Some(burst) = net.hosts[0].lock().poll_transmit(net.now, &mut buf) {
        bursts.push((burst.dst.traffic_class, burst.len.div_ceil(burst.seg)));
    }
    // Those of both queue pairs of a class leave together, as without classes.
    bursts.sort_unstable();
    assert_eq!(bursts, [(0, 8), (0xb8, 8)]);
}
