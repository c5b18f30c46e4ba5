//! Marks of congestion, the notifications that answer them, and the sender that heeds them.

use std::cell::Cell;
use std::rc::Rc;

use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::dcqcn::RATE_MIN;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Bth, IcrcFlow, Opcode};

use crate::util::*;

/// 10 Gb/s.
const LINE: u64 = 1_250_000_000;

fn opts() -> Opts {
    let config = Config {
        flags: config_flags::DCQCN,
        line_rate_bytes_per_s: LINE,
        ..Opts::default().config
    };
    Opts { config, mtu: mtu::MTU_4096, ..Opts::default() }
}

fn write(a: &End, b: &End, len: usize) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, len).remote(b, 0)
}

/// A notification for `to`'s QP, as host `from` would send it.
fn cnp(net: &Net, from: usize, to: &End) -> Vec<u8> {
    let mut p = vec![0x81, 0, 0xff, 0xff, 0x40];
    p.extend_from_slice(&to.qpn.to_be_bytes()[1..]);
    p.resize(12 + 16 + 4, 0);
    let (x, y) = (net.hosts[from].addr, net.hosts[to.host].addr);
    IcrcFlow::from_gids(&x.gid, &y.gid, x.port, y.port).append_icrc(0, &mut p);
    p
}

/// Time that one WRITE of `len` bytes takes.
fn time_of(net: &mut Net, a: &End, b: &End, len: usize) -> u64 {
    let start = net.now;
    net.ok(a, write(a, b, len));
    net.now - start
}

// IBTA CA17-44
// IBTA A17.9.3
#[test]
fn marks_are_answered_by_one_notification_in_fifty_microseconds() {
    for kind in [qp_type::RC, qp_type::UC] {
        let (mut net, a, b) = Net::pair(Opts { kind, ..opts() });
        let seen = Rc::new(Cell::new(0));
        let marked = Rc::new(Cell::new(0));
        let (count, qpn, marks) = (seen.clone(), a.qpn, marked.clone());
        net.tap = Some(Box::new(move |from, p| {
            marks.set(marks.get() + u64::from(from == 0));
            if p[0] == 0x81 {
                let bth = Bth::parse(p[..12].try_into().unwrap());
                assert_eq!(
                    (from, p.len(), bth.dest_qp.get(), bth.psn.get()),
                    (1, 12 + 16 + 4, qpn, 0)
                );
                assert!(bth.becn && !bth.fecn && !bth.ack_req && p[12..28].iter().all(|&x| x == 0));
                count.set(count.get() + 1);
            }
            Fate::Deliver
        }));
        net.marks = Some(0);
        for (round, ns) in [(1, 0), (1, 20_000), (1, 29_999), (2, 1), (2, 100), (3, 50_000)] {
            net.now += ns;
            net.post(&a, write(&a, &b, 9000).flags(0));
            (0..4).for_each(|_| _ = net.exchange());
            assert_eq!(seen.get(), round, "at {ns}");
        }
        let c = net.lock(&b).counters();
        assert_eq!((c.np_cnp_sent, seen.get()), (3, 3));
        assert!(c.np_ecn_marked > c.np_cnp_sent);
        assert_eq!(c.np_ecn_marked, marked.get(), "each packet once");
        assert_eq!(net.lock(&a).counters().rp_cnp_handled, 3);
        let own = net.lock(&b).qp_counters(b.qp).unwrap();
        assert_eq!((own.np_cnp_sent, own.np_ecn_marked), (3, marked.get()));
    }
}

// IBTA CA17-45
#[test]
fn a_notified_sender_slows_down_and_comes_back() {
    let (mut net, a, b) = Net::pair(opts());
    assert_eq!(time_of(&mut net, &a, &b, 1 << 20), 0, "the test's wire has no bounds of its own");
    for i in 1..=6 {
        net.now += 50_000;
        let p = cnp(&net, 1, &a);
        net.inject(1, 0, &p);
        assert_eq!(net.lock(&a).qp_counters(a.qp).unwrap().rp_cnp_handled, i);
    }
    // 2^-6 of the line at first, and a thousandth of the line more every 55 µs.
    let took = time_of(&mut net, &a, &b, 1 << 20);
    let rate = (1u64 << 20) * 1_000_000_000 / took;
    assert!((LINE / 64..LINE / 8).contains(&rate), "{rate}");
    assert!(b.buf.read(0, 1 << 20) == a.buf.read(0, 1 << 20));
    net.run(500_000_000);
    assert_eq!(time_of(&mut net, &a, &b, 1 << 20), 0, "nobody complained for half a second");
}

#[test]
fn who_answers_a_read_slows_down_too() {
    let (mut net, a, b) = Net::pair(opts());
    let read = || Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 1 << 20).remote(&b, 0);
    b.buf.write(0, &pattern(5, 1 << 20));
    // What it sent before is what the notifications may be about.
    net.ok(&a, read());
    for _ in 0..6 {
        net.now += 50_000;
        let p = cnp(&net, 0, &b);
        net.inject(0, 1, &p);
    }
    let start = net.now;
    let said = net.note(|from, p| (from == 1).then(|| Bth::parse(p.first_chunk().unwrap()).opcode));
    net.ok(&a, read());
    let rate = (1u64 << 20) * 1_000_000_000 / (net.now - start);
    assert!((LINE / 64..LINE / 8).contains(&rate), "{rate}");
    assert!(a.buf.read(0, 1 << 20) == pattern(5, 1 << 20));
    // However it is cut, the answer to each request has one FIRST and one LAST packet.
    let said = said.borrow();
    let piece = (64 << 10) / 4096;
    let (firsts, lasts) = [Opcode::RC_READ_RESPONSE_FIRST, Opcode::RC_READ_RESPONSE_LAST]
        .map(|op| (0..said.len()).filter(|&i| said[i] == op).collect::<Vec<_>>())
        .into();
    assert_eq!(said.len(), 256);
    assert!(
        lasts.iter().all(|at| (at + 1) % piece == 0) && lasts.last() == Some(&255),
        "{lasts:?}"
    );
    let behind: Vec<_> = [0].into_iter().chain(lasts.iter().map(|at| at + 1)).collect();
    assert_eq!(firsts, behind[..firsts.len()], "{lasts:?}");
    assert_eq!(firsts.len(), lasts.len());
}

#[test]
fn the_programs_own_limit_stands_beside_it() {
    let (mut net, a, b) = Net::pair(opts());
    let limit = QpAttr { rate_limit_bytes_per_s: 10_000_000, ..QpAttr::default() };
    net.ok(&a, write(&a, &b, 100));
    net.modify(&a, &limit, qp_attr_mask::RATE_LIMIT).unwrap();
    let p = cnp(&net, 1, &a);
    net.inject(1, 0, &p);
    let took = time_of(&mut net, &a, &b, 1 << 20);
    assert!((85_000_000..115_000_000).contains(&took), "{took}: 10 MB/s, less the first burst");
}

#[test]
fn notifications_at_the_pace_of_the_standard_slow_and_never_stop() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 14, ..opts() });
    let p = cnp(&net, 1, &a);
    net.ok(&a, write(&a, &b, 1 << 20));
    let start = net.now;
    net.post(&a, write(&a, &b, 1 << 20));
    let mut done = Vec::new();
    while done.is_empty() {
        net.inject(1, 0, &p);
        net.run(50_000);
        done = net.poll(a.host, a.scq);
        let least = (1u64 << 20) * 1_000_000_000 / RATE_MIN;
        assert!(net.now - start < least + least / 10, "slower than the least rate");
    }
    assert_eq!((done[0].status, net.state(&a)), (0, qp_state::RTS));
    assert!(net.now > start, "the first of them were heeded");
}

#[test]
fn more_notifications_than_packets_are_forged_and_none_is_heeded() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 14, ..opts() });
    let p = cnp(&net, 1, &a);
    // Half a second, in steps in which one WRITE of 64 KiB is done where nothing holds it up.
    let (steps, mut under_way, mut done) = (5_000, false, 0);
    for _ in 0..steps {
        (0..40).for_each(|_| net.inject(1, 0, &p));
        if !under_way {
            net.post(&a, write(&a, &b, 1 << 16));
        }
        net.run(100_000);
        let ended = net.poll(a.host, a.scq);
        assert!(ended.iter().all(|wc| wc.status == wc_status::SUCCESS), "{ended:?}");
        under_way = ended.is_empty();
        done += ended.len();
    }
    let c = net.lock(&a).counters();
    assert!(c.rp_cnp_ignored > 100 * c.rp_cnp_handled, "{c:?}");
    assert!(done > steps / 2, "{done} of {steps}: {c:?}");
}

#[test]
fn strangers_are_not_heard() {
    for flags in [0, config_flags::DCQCN] {
        let config = Config { flags, ..opts().config };
        let o = Opts { config, ..opts() };
        let mut net = Net::new(3, &o);
        let (a, b) = (net.end(0, &o), net.end(1, &o));
        net.connect(&a, &b, &o);
        net.connect(&b, &a, &o);
        for _ in 0..100 {
            net.now += 200_000;
            let p = cnp(&net, 2, &a);
            net.inject(2, 0, &p);
        }
        let c = net.lock(&a).counters();
        // So many of them that the rest is dropped before anybody looks what it is.
        assert_eq!((c.rp_cnp_handled, c.rp_cnp_ignored, c.rcvd_throttled), (0, 64, 36));
        assert_eq!(time_of(&mut net, &a, &b, 1 << 20), 0);
        // Nor are their marks told to anybody, once they come one at a time.
        net.now += 1_000_000_000;
        net.marks = Some(2);
        let (x, y) = (net.hosts[2].addr, net.hosts[0].addr);
        let mut p = cnp(&net, 2, &a);
        p[0] = 0x0a;
        IcrcFlow::from_gids(&x.gid, &y.gid, x.port, y.port).append_icrc(0, &mut p);
        net.inject(2, 0, &p);
        net.settle();
        let c = net.lock(&a).counters();
        assert_eq!((c.np_ecn_marked, c.np_cnp_sent), (1, 0));
    }
}

#[test]
fn without_the_option_no_packet_was_marked_and_no_notification_is_heeded() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let size = |net: &Net| net.lock(&a).transport.peers[0].tx.size();
    net.ok(&a, write(&a, &b, 1 << 20));
    let before = size(&net);
    for _ in 0..100 {
        net.now += 200_000;
        let p = cnp(&net, 1, &a);
        net.inject(1, 0, &p);
    }
    let c = net.lock(&a).counters();
    assert_eq!((size(&net), c.rp_cnp_handled, c.rp_cnp_ignored), (before, 0, 100));
    assert_eq!(time_of(&mut net, &a, &b, 1 << 20), 0);
}

#[test]
fn a_notification_that_is_owed_ends_with_its_queue_pair() {
    type Ending<'e> = &'e dyn Fn(&mut Net, &End);
    let ends: [Ending<'_>; 3] = [
        &|net, b| net.lock(b).qp_destroy(net.now, b.qp).unwrap(),
        &|net, b| net.to_state(b, qp_state::ERR).unwrap(),
        // What it is reached by now carries no notifications.
        &|net, b| {
            let peer = net.lock(b).transport.qps[index(b.qp)].conn.peer;
            net.lock(b).transport.peers[peer as usize].path =
                gdrcore_core::roce::peer::Path::Link(1);
        },
    ];
    for end in ends {
        let (mut net, a, b) = Net::pair(opts());
        net.marks = Some(0);
        net.post(&a, write(&a, &b, 100).flags(0));
        net.send_from(0);
        let now = net.now;
        assert!(!net.lock(&b).transport.common.cnp_owed.is_empty());
        end(&mut net, &b);
        let mut buf = vec![0; 65_536];
        while net.lock(&b).poll_transmit(now, &mut buf).is_some() {}
        let g = net.lock(&b);
        assert!(g.transport.common.cnp_owed.is_empty(), "a look at it would never end");
        assert_eq!(g.counters().np_cnp_sent, 0);
    }
}

#[test]
fn a_marked_notification_is_not_answered_and_a_reset_forgets() {
    let (mut net, a, b) = Net::pair(opts());
    net.ok(&a, write(&a, &b, 100));
    net.marks = Some(1);
    let p = cnp(&net, 1, &a);
    net.inject(1, 0, &p);
    net.settle();
    let c = net.lock(&a).counters();
    assert_eq!((c.np_ecn_marked, c.np_cnp_sent, c.rp_cnp_handled), (1, 0, 1));
    net.marks = None;
    for e in [&a, &b] {
        net.lock(e).qp_reset(net.now, e.qp).unwrap();
    }
    net.connect(&a, &b, &opts());
    net.connect(&b, &a, &opts());
    assert_eq!(time_of(&mut net, &a, &b, 1 << 20), 0, "another path, no limit");
}

#[test]
fn reads_go_on_where_requests_and_responses_are_marked() {
    let (mut net, a, b) = Net::pair(opts());
    net.marks = Some(BOTH);
    let len = 500_000;
    b.buf.write(0, &pattern(3, len));
    for i in 0..8 {
        net.post(&a, Wr::new(wr_opcode::RDMA_READ).id(i).local(&a, 0, len).remote(&b, 0));
    }
    let done = net.wait(a.host, a.scq, 8);
    assert!(done.iter().all(|wc| wc.status == wc_status::SUCCESS), "{done:?}");
    assert!(a.buf.read(0, len) == pattern(3, len));
    let limit = QpAttr { rate_limit_bytes_per_s: 10_000_000, ..QpAttr::default() };
    net.marks = None;
    net.modify(&a, &limit, qp_attr_mask::RATE_LIMIT).unwrap();
    net.ok(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 3 << 20).remote(&b, 0));
}
