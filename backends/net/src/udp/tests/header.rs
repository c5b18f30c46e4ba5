//! Traffic class, hop limit and flow label on the wire.

use super::network::Namespace;
use super::*;
use crate::sys::set_option;
use crate::udp::connected::CONNECT_AFTER;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::wire::grh::Fields;

/// The system's hop limit.
const SYSTEM: u8 = 64;

fn of(traffic_class: u8, hop_limit: u8, flow_label: u32) -> Fields {
    Fields { flow_label, traffic_class, hop_limit }
}

fn to(dst: &Endpoint, grh: Fields) -> PeerAddr {
    let Fields { flow_label, traffic_class, hop_limit } = grh;
    PeerAddr { flow_label, traffic_class, hop_limit, ..peer_addr(dst) }
}

fn commit(a: &mut Rig, dst: PeerAddr, len: usize, seg: usize) {
    let flow = flow(&a.port, &crate::addr::endpoint(&dst));
    fill(a.port.tx_space().expect("room"), len, seg, &flow);
    a.port.tx_commit(Burst { dst, len, seg: seg as u16 });
}

/// The header of the next datagrams, of which `n` must come.
fn headers(b: &mut Rig, n: usize) -> Vec<Fields> {
    let mut all = Vec::new();
    while all.len() < n {
        let came = poll(&mut b.port);
        all.extend((0..came).map(|i| b.port.rx_get(i).src.grh()));
    }
    all
}

/// The fields that arrive if a program asks for `asked`. For an IPv6 packet without a label the
/// kernel chooses one, which is taken from `came`.
fn arrives(asked: Fields, ecn: u8, v4: bool, came: Fields) -> Fields {
    let hop_limit = if asked.hop_limit <= 1 { SYSTEM } else { asked.hop_limit };
    let flow_label = match (v4, asked.flow_label) {
        (true, _) => 0,
        (false, 0) => came.flow_label,
        (false, label) => label,
    };
    of(asked.traffic_class & 0xfc | ecn, hop_limit, flow_label)
}

fn pairs(ecn: u8) -> [(Rig, Rig); 2] {
    let cfg = UdpConfig { traffic_class: ecn, ..UdpConfig::DEFAULT };
    let six = Endpoint::new(std::net::Ipv6Addr::LOCALHOST.octets(), 0, 0);
    let mut all = [
        (open(Endpoint::v4([127, 0, 0, 1], 0), &cfg).unwrap(), v4(2)),
        (open(six, &cfg).unwrap(), v6()),
    ];
    all.iter_mut().for_each(|(_, b)| b.port.show_headers());
    all
}

#[test]
fn each_burst_of_a_batch_has_its_class_and_bursts_of_one_leave_together() {
    let asked = [
        of(0, 0, 0),
        of(0xbb, 9, 0xf_edcb),
        of(0xb8, 9, 1),
        of(0x60, 255, 0),
        of(0x63, 255, 2),
        of(0x63, 1, 2),
        of(0, 0, 0),
    ];
    for ecn in [0, 2] {
        for (mut a, mut b) in pairs(ecn) {
            let dst = *b.port.local();
            for grh in asked {
                commit(&mut a, to(&dst, grh), 300, 60);
            }
            let before = a.port.counters().tx_calls;
            assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
            // ECN bits and labels divide nothing.
            assert_eq!(a.port.counters().tx_calls - before, 5);
            let came = headers(&mut b, asked.len());
            for (&came, asked) in came.iter().zip(asked) {
                assert_eq!(came, arrives(asked, ecn, dst.is_v4(), came));
            }
            assert!(a.port.take_error().is_none());
        }
    }
}

#[test]
fn a_burst_that_leaves_alone_has_its_class_whatever_left_before_it() {
    let kinds =
        [of(0, 0, 0), of(0x28, 0, 0), of(0x28, 17, 0xa_bcde), of(0x28, 17, 7), of(0, 17, 0)];
    for (mut a, mut b) in pairs(2) {
        let dst = *b.port.local();
        let mut alone = 0;
        // Each kind follows each, twice: without a msghdr where possible, and in batches.
        for round in 0..4 * kinds.len() * kinds.len() {
            let (first, then) =
                (kinds[round % kinds.len()], kinds[round / kinds.len() % kinds.len()]);
            let asked = if round % 3 == 0 { vec![first, then] } else { vec![then] };
            for _ in 0..2 {
                if let [grh] = asked[..] {
                    let flow = flow(&a.port, &dst);
                    fill(a.port.tx_space().unwrap(), 64, 64, &flow);
                    let burst = Burst { dst: to(&dst, grh), len: 64, seg: 64 };
                    if a.port.tx_now(&burst) {
                        alone += 1;
                    } else {
                        a.port.tx_commit(burst);
                    }
                } else {
                    asked.iter().for_each(|grh| commit(&mut a, to(&dst, *grh), 64, 64));
                }
                assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
                let came = headers(&mut b, asked.len());
                for (&came, &asked) in came.iter().zip(&asked) {
                    assert_eq!(came, arrives(asked, 2, dst.is_v4(), came), "round {round}");
                }
            }
        }
        assert!(alone > kinds.len(), "a class has the short way too: {alone}");
    }
}

#[test]
fn a_connected_socket_is_of_one_class() {
    for (mut a, mut b) in pairs(2) {
        let dst = *b.port.local();
        let [one, other] = [of(0xb8, 33, 0x1_2345), of(0x20, 33, 0x1_2345)];
        for _ in 0..=CONNECT_AFTER {
            let burst = Burst { dst: to(&dst, one), len: 64, seg: 64 };
            if !a.port.tx_now(&burst) {
                a.port.tx_commit(burst);
                a.port.tx_flush();
            }
            headers(&mut b, 1);
        }
        let own = a.port.space_and_flow().and_then(|(_, own)| own.copied()).expect("connected");
        assert!(own.leads_to(&to(&dst, one)));
        assert!(!own.leads_to(&to(&dst, other)) && !own.leads_to(&peer_addr(&dst)));
        let burst = Burst { dst: to(&dst, one), len: 64, seg: 64 };
        assert!(a.port.tx_connected(&burst));
        let came = headers(&mut b, 1)[0];
        assert_eq!(came, arrives(one, 2, dst.is_v4(), came));
        // A burst of another class closes the connected socket, and leaves by the port's own.
        let burst = Burst { dst: to(&dst, other), ..burst };
        assert!(!a.port.tx_connected(&burst));
        a.port.tx_commit(burst);
        a.port.tx_flush();
        let came = headers(&mut b, 1)[0];
        assert_eq!(came, arrives(other, 2, dst.is_v4(), came));
    }
}

#[test]
fn groups_have_a_hop_limit_of_their_own() {
    let (mut a, mut b) = (v4(1), v4(2));
    b.port.show_headers();
    let group = Endpoint { port: b.port.local().port, ..Endpoint::v4([239, 101, 7, 7], 0) };
    b.port.group_join(&group.ip).unwrap();
    let host = *b.port.local();
    for (hops, wanted) in [(0, 1), (5, 5), (1, 1)] {
        commit(&mut a, to(&group, of(0x48, hops, 0)), 64, 64);
        commit(&mut a, to(&host, of(0x48, 0, 0)), 64, 64);
        a.port.tx_flush();
        assert_eq!(headers(&mut b, 1), [of(0x48, SYSTEM, 0)]);
        until(60, || "nothing came to the group".into(), || b.port.group_poll(0));
        assert_eq!(b.port.rx_get(0).src.grh(), of(0x48, wanted, 0));
    }
}

/// A process may take a flow label for itself alone, and from then on the kernel refuses labels
/// that a sender has not taken.
#[test]
fn labels_that_the_kernel_refuses_are_left_out() {
    /// in6_flowlabel_req of linux/in6.h: 32 bytes.
    #[repr(C)]
    #[derive(Clone, Copy)]
    struct Request {
        dst: [u8; 16],
        label: u32,
        action: u8,
        share: u8,
        flags: u16,
        expires: u16,
        linger: u16,
        pad: u32,
    }
    const IPV6_FLOWLABEL_MGR: i32 = 32;
    let Some(namespace) = Namespace::new() else { return };
    let (mut a, mut b) = namespace.run(|| (v6(), v6()));
    b.port.show_headers();
    let dst = *b.port.local();
    let asked = of(0x40, 0, 0x5_4321);
    commit(&mut a, to(&dst, asked), 120, 60);
    a.port.tx_flush();
    assert_eq!(headers(&mut b, 1), [of(0x40, SYSTEM, 0x5_4321)]);
    let other = namespace.run(|| crate::udp::unconnected(&dst).unwrap());
    let request = Request {
        dst: dst.ip,
        label: 0x777u32.to_be(),
        action: 0,
        share: 1,
        flags: 1,
        expires: 60,
        linger: 0,
        pad: 0,
    };
    set_option(other.raw(), libc::IPPROTO_IPV6, IPV6_FLOWLABEL_MGR, request).unwrap();
    for _ in 0..2 {
        commit(&mut a, to(&dst, asked), 120, 60);
        commit(&mut a, to(&dst, of(0x40, 0, 3)), 60, 60);
        assert_eq!(a.port.tx_flush(), TxOutcome::Sent);
        let came = headers(&mut b, 2);
        assert!(came.iter().all(|c| (c.traffic_class, c.hop_limit) == (0x40, SYSTEM)), "{came:?}");
        assert!(a.port.take_error().is_none());
    }
}
