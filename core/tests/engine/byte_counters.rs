//! Counters of packets and bytes: what one end counts as sent is what was on the wire, and what the
//! other end counts as received.

use std::cell::Cell;
use std::rc::Rc;

use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::counters::Counters;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{packet_bytes, Opcode};

use crate::packet_loss::mixture;
use crate::util::*;

/// Packets and bytes, by host.
type Totals = Rc<[Cell<(u64, u64)>; 2]>;

fn add(totals: &Totals, host: usize, times: u64, len: usize) {
    let (packets, bytes) = totals[host].get();
    totals[host].set((packets + times, bytes + times * len as u64));
}

/// Lets `fate` decide about each packet, and counts: packets that a host has sent, and packets that
/// have come to a host.
fn counted(
    net: &mut Net,
    mut fate: impl FnMut(usize, &[u8]) -> Fate + 'static,
) -> (Totals, Totals) {
    let (sent, come) = (Totals::default(), Totals::default());
    let totals = (sent.clone(), come.clone());
    net.tap = Some(Box::new(move |from, p| {
        let fate = fate(from, p);
        add(&sent, from, 1, p.len());
        let arrivals = match fate {
            Fate::Drop => 0,
            Fate::Twice => 2,
            Fate::Deliver | Fate::Later => 1,
        };
        add(&come, 1 - from, arrivals, p.len());
        fate
    }));
    totals
}

fn sent(c: &Counters) -> (u64, u64) {
    (c.sent_pkts, c.sent_bytes)
}

fn received(c: &Counters) -> (u64, u64) {
    (c.rcvd_pkts, c.rcvd_bytes)
}

/// The counters of an end's QP, which are those of its host: it has no other.
fn counters(net: &Net, e: &End) -> Counters {
    let g = net.lock(e);
    let (qp, host) = (g.qp_counters(e.qp).unwrap(), g.counters());
    assert_eq!((sent(&qp), received(&qp)), (sent(&host), received(&host)), "queue pair and device");
    qp
}

/// Both ends count the same, where nothing was lost.
fn assert_equal(net: &Net, a: &End, b: &End, what: &dyn std::fmt::Debug) {
    let (a, b) = if a.host == b.host {
        let of = |e: &End| net.lock(e).qp_counters(e.qp).unwrap();
        (of(a), of(b))
    } else {
        (counters(net, a), counters(net, b))
    };
    assert_eq!(sent(&a), received(&b), "{what:?}: from the first end to the second");
    assert_eq!(sent(&b), received(&a), "{what:?}: from the second end to the first");
    assert!(a.sent_pkts > 0 && b.rcvd_bytes > 0, "{what:?}");
}

/// The counters are those of the wire.
fn assert_wire(net: &Net, ends: [&End; 2], totals: &(Totals, Totals), what: &dyn std::fmt::Debug) {
    for (host, e) in ends.iter().enumerate() {
        let c = counters(net, e);
        assert_eq!(sent(&c), totals.0[host].get(), "{what:?}: sent by host {host}");
        assert_eq!(received(&c), totals.1[host].get(), "{what:?}: received by host {host}");
    }
}

/// One request of each opcode and size: all headers, all paddings, one packet and several.
fn all_requests(net: &mut Net, a: &End, b: &End, rc: bool) {
    for len in [0usize, 1, 2, 3, 4, 8, 255, 1024, 1025, 4096, 5003] {
        for opcode in [
            wr_opcode::SEND,
            wr_opcode::SEND_WITH_IMM,
            wr_opcode::RDMA_WRITE,
            wr_opcode::RDMA_WRITE_WITH_IMM,
        ] {
            net.recv(b, 1, &[(0, 6000)]);
            net.ok(a, Wr::new(opcode).imm(7).local(a, 0, len).remote(b, 8192));
        }
        if rc {
            net.ok(a, Wr::new(wr_opcode::RDMA_READ).local(a, 0, len).remote(b, 8192));
        }
    }
    if rc {
        net.ok(a, Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(a, 0, 8).atomic(b, 8192, 1, 0));
        net.ok(a, Wr::new(wr_opcode::ATOMIC_CMP_AND_SWP).local(a, 0, 8).atomic(b, 8192, 1, 2));
    }
}

#[test]
fn both_ends_count_the_same_for_every_request() {
    for (kind, rc) in [(qp_type::RC, true), (qp_type::UC, false)] {
        for way in WAYS {
            let (mut net, a, b) = Net::pair(Opts { kind, way, ..Opts::default() });
            let totals = counted(&mut net, |_, _| Fate::Deliver);
            all_requests(&mut net, &a, &b, rc);
            all_requests(&mut net, &b, &a, rc);
            net.settle();
            assert_equal(&net, &a, &b, &(kind, way));
            if way == Way::Wire {
                assert_wire(&net, [&a, &b], &totals, &(kind, way));
            }
        }
    }
}

#[test]
fn key_invalidation_counts_its_header() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..Opts::default() });
        let totals = counted(&mut net, |_, _| Fate::Deliver);
        let key = net.window(&b, 64, access::REMOTE_WRITE);
        net.recv(&b, 1, &[(0, 100)]);
        net.ok(&a, Wr::new(wr_opcode::SEND_WITH_INV).imm(key).local(&a, 0, 33));
        net.settle();
        assert_equal(&net, &a, &b, &way);
        if way == Way::Wire {
            assert_wire(&net, [&a, &b], &totals, &way);
            assert_eq!(totals.0[0].get().1, packet_bytes(Opcode::RC_SEND_ONLY_INV, 33) as u64);
        }
    }
}

#[test]
fn losses_repetitions_probes_and_naks_count_what_was_on_the_wire() {
    /// Fate of a packet, by its number.
    type Wire = fn(u32) -> Fate;
    let cases: [(&str, Wire); 3] = [
        ("a seventh lost", |n| Fate::drop_if(n % 7 == 3)),
        ("a fifth twice", |n| if n % 5 == 0 { Fate::Twice } else { Fate::Deliver }),
        ("some late", |n| if n % 11 == 5 { Fate::Later } else { Fate::Deliver }),
    ];
    for (what, fate) in cases {
        let (mut net, a, b) = Net::pair(Opts::default());
        let mut n = 0;
        let totals = counted(&mut net, move |_, _| {
            n += 1;
            fate(n)
        });
        mixture(&mut net, &a, &b);
        net.run(1_000_000_000);
        assert_wire(&net, [&a, &b], &totals, &what);
    }
    // The last packet of a message is lost: a probe finds it.
    let (mut net, a, b) = Net::pair(Opts::default());
    let mut lost = false;
    let totals = counted(&mut net, move |from, p| {
        let last =
            from == 0 && p[0] == Opcode::RC_WRITE_LAST.0 && !std::mem::replace(&mut lost, true);
        Fate::drop_if(last)
    });
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 5003).remote(&b, 0));
    net.run(1_000_000_000);
    assert_wire(&net, [&a, &b], &totals, &"probe");
    assert!(counters(&net, &a).retransmitted_pkts > 0);
    // A receive request is missing: RNR NAKs, until it is posted.
    let (mut net, a, b) = Net::pair(Opts::default());
    let totals = counted(&mut net, |_, _| Fate::Deliver);
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 1500));
    net.run(1_000_000);
    net.recv(&b, 1, &[(0, 2000)]);
    net.wait(a.host, a.scq, 1);
    net.run(1_000_000_000);
    assert_wire(&net, [&a, &b], &totals, &"receiver not ready");
    assert!(counters(&net, &a).rcvd_rnr_err > 0);
    // An unknown key: a NAK that ends the connection.
    let (mut net, a, b) = Net::pair(Opts::default());
    let totals = counted(&mut net, |_, _| Fate::Deliver);
    net.run_one(
        &a,
        Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 9).key(b.mr.iova, b.mr.rkey ^ 0x55),
    );
    assert_wire(&net, [&a, &b], &totals, &"refused key");
}

#[test]
fn questions_of_keepalive_count() {
    for way in [Way::Wire, Way::Link] {
        let config = Config { keepalive_ns: 1_000_000_000, ..Opts::default().config };
        let (mut net, a, b) = Net::pair(Opts { way, config, ..Opts::default() });
        let totals = counted(&mut net, |_, _| Fate::Deliver);
        net.run(10_000_000_000);
        assert_equal(&net, &a, &b, &way);
        if way == Way::Wire {
            assert_wire(&net, [&a, &b], &totals, &way);
        }
    }
}

#[test]
fn notifications_of_congestion_count() {
    let config = Config {
        flags: config_flags::DCQCN,
        line_rate_bytes_per_s: 1 << 30,
        ..Opts::default().config
    };
    let (mut net, a, b) = Net::pair(Opts { config, ..Opts::default() });
    net.marks = Some(0);
    let totals = counted(&mut net, |_, _| Fate::Deliver);
    for _ in 0..5 {
        net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 5003).remote(&b, 0));
        net.run(1_000_000);
    }
    assert!(counters(&net, &a).rp_cnp_handled > 0);
    assert_wire(&net, [&a, &b], &totals, &"notifications");
    assert_equal(&net, &a, &b, &"notifications");
}

// rxe rxe_recv.c rxe_rcv_mcast_pkt
#[test]
fn datagrams_count_alike_at_both_ends_alone_and_by_multicast() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { kind: qp_type::UD, way, ..Opts::default() });
        let totals = counted(&mut net, |_, _| Fate::Deliver);
        let ah = net.ah(&a, &b);
        for len in [0usize, 1, 2, 3, 4, 500, 1024] {
            for opcode in [wr_opcode::SEND, wr_opcode::SEND_WITH_IMM] {
                net.recv(&b, 1, &[(0, 2000)]);
                net.ok(&a, Wr::new(opcode).imm(1).local(&a, 0, len).ud(ah, b.qpn, 0x1111));
            }
        }
        net.settle();
        assert_equal(&net, &a, &b, &way);
        if way == Way::Wire {
            assert_wire(&net, [&a, &b], &totals, &way);
        }
    }
    // To a group of two members: each receives what the sender has sent once.
    let o = Opts { kind: qp_type::UD, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    let c = net.end(1, &o);
    net.connect(&c, &a, &o);
    let group = {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 239, 1, 2, 3]);
        gid
    };
    for e in [&b, &c] {
        net.lock(e).mcast_attach(e.qp, &group).unwrap();
        net.recv(e, 1, &[(0, 2000)]);
    }
    let ah = net.lock(&a).ah_create(a.pd, &AhAttr { dgid: group, ..AhAttr::default() }).unwrap();
    net.post(
        &a,
        Wr::new(wr_opcode::SEND_WITH_IMM).imm(1).local(&a, 0, 77).ud(ah, 0xff_ffff, 0x1111),
    );
    let mut buf = vec![0; 65_536];
    let burst = net.lock(&a).poll_transmit(net.now, &mut buf).expect("the datagram");
    let src = net.hosts[0].addr;
    net.lock(&b).handle_multicast(net.now, &src, &group, burst.seg, &buf[..burst.len]);
    let count = |e: &End| net.lock(e).qp_counters(e.qp).unwrap();
    assert_eq!(sent(&count(&a)), (1, burst.len as u64));
    for e in [&b, &c] {
        assert_eq!(received(&count(e)), (1, burst.len as u64));
    }
}

#[test]
fn a_device_keeps_the_counts_of_queue_pairs_that_have_ended() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let count = |net: &Net| [&a, &b].map(|e| net.lock(e).counters());
    all_requests(&mut net, &a, &b, true);
    let before = count(&net);
    assert!(before.iter().all(|c| c.sent_pkts > 50 && c.rcvd_bytes > 1_000), "{before:?}");
    for e in [&a, &b] {
        net.lock(e).qp_destroy(net.now, e.qp).unwrap();
    }
    assert_eq!(count(&net), before, "after the end");
    // Queue pairs in their places begin at nothing.
    let opts = Opts::default();
    let (c, d) = (net.end(a.host, &opts), net.end(b.host, &opts));
    assert_eq!(net.lock(&c).qp_counters(c.qp).unwrap(), Counters::ZERO);
    assert_eq!(count(&net), before, "with new queue pairs");
    net.connect(&c, &d, &opts);
    net.connect(&d, &c, &opts);
    net.recv(&d, 1, &[(0, 64)]);
    net.ok(&c, Wr::new(wr_opcode::SEND).local(&c, 0, 8));
    let after = count(&net);
    assert_eq!(
        (after[0].rdma_sends, after[1].rdma_recvs),
        (before[0].rdma_sends + 1, before[1].rdma_recvs + 1)
    );
}
