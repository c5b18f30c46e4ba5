//! DC: what the contexts of targets hold and owe, and the order in which initiators leave them.

use gdrcore_core::config::Config;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::dceth::{DcEth, DcMessage};
use gdrcore_core::wire::PacketKind;
use gdrcore_testkit::packet::View;

use crate::dc::{another, control_of, dc, started, target_of, with_contexts, write};
use crate::util::*;

/// Drops all but the first packet of every SEND of a host.
fn only_first_of_sends(host: usize) -> Option<Tap> {
    Some(Box::new(move |from, packet| {
        let op = View::parse(&packet[..packet.len() - 4]).unwrap().opcode();
        Fate::drop_if(op.kind() == PacketKind::Send && !op.is_first() && from == host)
    }))
}

/// One more target with the SRQ of an end, and CQs of its own.
fn target_beside(net: &mut Net, b: &End, o: &Opts) -> End {
    let e = net.end(b.host, &Opts { kind: qp_type::DCT, ..*o });
    let mut g = net.lock(&e);
    let now = 1_000_000;
    g.qp_destroy(now, e.qp).unwrap();
    g.srq_destroy(now, e.srq).unwrap();
    let init = queue_pair(qp_type::DCT, b.pd, [e.scq, e.rcq], QpCap::default());
    let init = QpInit { srq: b.srq, dc_key: DC_KEY, ..init };
    let (qp, qpn, _) = g.qp_create(now, &init).unwrap();
    drop(g);
    let e = End { srq: b.srq, qp, qpn, ..e };
    net.start_dc(&e, o);
    e
}

/// Receives of an SRQ that wait in it, and that contexts hold.
fn receives(net: &Net, b: &End) -> [usize; 2] {
    let g = net.lock(b);
    let qps = (0..g.transport.qps.len()).map(|i| &g.transport.qps[i]);
    let srq = index(b.srq);
    let held = qps.filter(|q| q.srq == srq as u32 && q.conn.resp.recv.taken).count();
    [g.shared().srqs[srq].rq.len() as usize, held]
}

/// Entries of a CQ that are promised.
fn promised(net: &Net, host: usize, cq: Handle) -> u32 {
    net.hosts[host].lock().transport.common.cqs[index(cq)].reserved
}

/// An initiator dies in the middle of a message, after the target took a receive for it.
fn torn(o: Opts) -> (Net, End, End) {
    let (mut net, a, b) = Net::pair(o);
    for id in 0..4 {
        net.recv(&b, id, &[(0, 8000)]);
    }
    net.tap = only_first_of_sends(a.host);
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 5000));
    net.settle();
    net.tap = None;
    assert_eq!((receives(&net, &b), promised(&net, b.host, b.rcq)), ([3, 1], 1));
    (net, a, b)
}

#[test]
fn a_receive_of_a_message_that_was_cut_short_serves_the_next() {
    let (mut net, a, b) = torn(dc());
    net.to_state(&a, qp_state::ERR).unwrap();
    net.settle();
    // The context is free: the completion that was promised is given back, the receive is not lost.
    assert_eq!(net.hosts[b.host].lock().transport.dc.in_use(), 0);
    assert_eq!((receives(&net, &b), promised(&net, b.host, b.rcq)), ([3, 1], 0));
    net.to_state(&a, qp_state::RESET).unwrap();
    net.start_dc(&a, &dc());
    net.poll(a.host, a.scq);
    for id in 0..4 {
        a.buf.write(0, &pattern(id, 300));
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 300));
        let wc = net.wait(b.host, b.rcq, 1)[0];
        assert_eq!((wc.status, wc.wr_id, wc.byte_len), (0, id, 300), "in order, none is missing");
        assert!(b.buf.read(0, 300) == pattern(id, 300));
    }
    assert_eq!(receives(&net, &b), [0, 0]);
}

#[test]
fn receives_that_contexts_hold_outlive_their_target() {
    for way_out in [qp_state::RESET, qp_state::ERR, u32::MAX] {
        let (mut net, a, b) = torn(dc());
        let other = target_beside(&mut net, &b, &dc());
        let to_other = net.target(&a, &other);
        let now = net.now;
        match way_out {
            u32::MAX => net.lock(&b).qp_destroy(now, b.qp).unwrap(),
            state => net.to_state(&b, state).unwrap(),
        }
        // In ERR it completes as flushed; else the program is not told, so it serves the next.
        let flushed = net.poll(b.host, b.rcq);
        match way_out {
            qp_state::ERR => {
                assert_eq!(flushed.len(), 1);
                let wc = flushed[0];
                let want = (wc_status::WR_FLUSH_ERR, 0, b.qpn);
                assert_eq!((wc.status, wc.wr_id, wc.qp_num), want);
                assert_eq!(receives(&net, &b), [3, 0]);
            }
            _ => assert_eq!((flushed.len(), receives(&net, &b)), (0, [3, 1])),
        }
        assert_eq!(promised(&net, b.host, b.rcq), 0);
        if way_out == u32::MAX {
            // Nothing of the context depends on it any more.
            net.lock(&b).cq_destroy(b.rcq).unwrap();
        }
        net.to_state(&a, qp_state::RESET).unwrap();
        net.start_dc(&a, &dc());
        let left: Vec<u64> =
            if way_out == qp_state::ERR { vec![1, 2, 3] } else { (0..4).collect() };
        for id in left {
            net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 300).dc(to_other));
            let wc = net.wait(other.host, other.rcq, 1)[0];
            assert_eq!((wc.status, wc.wr_id, wc.qp_num), (0, id, other.qpn));
        }
    }
}

#[test]
fn a_context_that_goes_to_another_srq_takes_no_receive_with_it() {
    // The completion of the receive that it holds goes nowhere but to the CQ of its own target.
    for target_lives in [true, false] {
        let (mut net, a, b) = torn(with_contexts(1));
        let c = started(&mut net, b.host, &target_of(dc()));
        let to_c = net.target(&a, &c);
        net.to_state(&a, qp_state::ERR).unwrap();
        net.settle();
        assert_eq!(receives(&net, &b), [3, 1]);
        if !target_lives {
            let now = net.now;
            net.lock(&b).qp_destroy(now, b.qp).unwrap();
            net.lock(&b).cq_destroy(b.rcq).unwrap();
        }
        // A CQ that has the place of the one that is gone.
        let (next, _) = net.lock(&b).cq_create(16).unwrap();
        net.to_state(&a, qp_state::RESET).unwrap();
        net.start_dc(&a, &dc());
        net.poll(a.host, a.scq);
        net.recv(&c, 77, &[(0, 1000)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 300).dc(to_c));
        let wc = net.wait(c.host, c.rcq, 1)[0];
        assert_eq!((wc.status, wc.wr_id, wc.qp_num), (0, 77, c.qpn));
        assert_eq!((receives(&net, &b), net.poll(b.host, next)), ([3, 0], vec![]));
        if target_lives {
            let wc = net.wait(b.host, b.rcq, 1)[0];
            let want = (wc_status::WR_FLUSH_ERR, 0, b.qpn);
            assert_eq!((wc.status, wc.wr_id, wc.qp_num), want);
        }
    }
}

#[test]
fn a_request_that_has_begun_without_a_packet_goes_before_a_change() {
    // The second READ has its PSNs, and waits for the first to end, when the context is wanted
    // back, or when the request behind it is for another target.
    let o = Opts { rd_atomic: 1, ..with_contexts(1) };
    let (mut net, a, b) = Net::pair(o);
    let c = started(&mut net, 0, &o);
    let to = net.target(&c, &b);
    for _ in 0..3 {
        for id in 0..4 {
            let read = Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 60_000).remote(&b, 0);
            net.post(&a, read.id(id));
        }
        net.send_from(0);
        net.post(&c, write(&c, &b, 0, 100).dc(to));
        let wc = net.wait(0, a.scq, 4);
        assert!(wc.iter().all(|wc| wc.status == 0), "{wc:?}");
        assert_eq!(net.wait(0, c.scq, 1)[0].status, 0);
    }
    let d = started(&mut net, 1, &target_of(o));
    let to_d = net.target(&a, &d);
    for id in 0..4 {
        let read = Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 60_000).remote(&b, 0);
        net.post(&a, read.id(id));
    }
    net.post(&a, write(&a, &d, 0, 100).id(4).dc(to_d));
    let wc = net.wait(0, a.scq, 5);
    let got: Vec<_> = wc.iter().map(|w| (w.wr_id, w.status)).collect();
    assert_eq!(got, (0..5).map(|id| (id, 0)).collect::<Vec<_>>());
}

#[test]
fn an_engine_with_the_same_numbers_executes_nothing_of_its_former_life() {
    // The target's engine dies in the middle of a message, and another one has the same QPNs.
    let o = with_contexts(1);
    let o = Opts { config: Config { qpn_base: 1 << 14, ..o.config }, ..o };
    let (mut net, a, b) = Net::pair(o);
    net.recv(&b, 1, &[(0, 8000)]);
    net.tap = only_first_of_sends(a.host);
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 5000).id(1));
    net.settle();
    net.tap = None;
    let config = Config { seed: o.config.seed + 1000, ..o.config };
    let restarted = Host::new(&config, o.v6, 2);
    drop(std::mem::replace(&mut net.hosts[1], restarted));
    let again = net.end(1, &Opts { kind: qp_type::DCT, ..o });
    assert_eq!(again.qpn, b.qpn, "as the seed has it");
    // As another engine would have it: the seed gave this one the old number.
    net.hosts[1].lock().transport.dc.incarnation = 4711;
    net.start_dc(&again, &o);
    net.recv(&again, 9, &[(0, 8000)]);
    let wc = net.wait(0, a.scq, 1)[0];
    assert_eq!((wc.wr_id, wc.status), (1, wc_status::RETRY_EXC_ERR));
    net.settle();
    assert_eq!(net.poll(1, again.rcq), vec![], "nothing was received");
    assert!(net.lock(&again).counters().dc_gone > 0);
}

#[test]
fn a_context_is_not_given_away_before_its_lease_is_over() {
    // `idle`: between two requests; else in the middle of a message, for which there is twice the
    // time.
    for (idle, after_ms) in [(true, 400), (true, 900), (false, 900), (false, 1700)] {
        let (mut net, a, b) = Net::pair(Opts { rnr: 7, timeout: 15, ..with_contexts(1) });
        let o = Opts { timeout: 8, retry: 1, ..dc() };
        let c = started(&mut net, 0, &o);
        let to = net.target(&c, &b);
        net.recv(&b, 1, &[(0, 8000)]);
        if idle {
            net.ok(&a, write(&a, &b, 0, 100));
        } else {
            net.tap = only_first_of_sends(0);
            net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 5000));
            net.settle();
        }
        let lease = net.lock(&a).transport.qps[index(a.qp)].dci[0].lease_ns;
        // Nothing of `a` arrives for a while.
        let before = net.now;
        let silent = a.qpn;
        net.tap = Some(Box::new(move |from, packet| {
            let to = View::parse(&packet[..packet.len() - 4]).unwrap().bth().dest_qp.get();
            let of_a = from == 0 && control_of(packet).is_none();
            let of_a = of_a || control_of(packet).is_some_and(|eth| eth.qpn == silent);
            Fate::drop_if(of_a || to == silent)
        }));
        // A silence counts from the first time that somebody else asks.
        for at_ms in [0, after_ms] {
            net.now = net.now.max(before + lease * at_ms / 1000);
            let wc = net.run_one(&c, write(&c, &b, 0, 100).dc(to));
            assert_eq!(wc.status, wc_status::RETRY_EXC_ERR, "{idle} {at_ms}");
            let busy = net.lock(&c).qp_cause(c.qp).unwrap().code;
            assert_eq!(busy, CauseCode::DcNoContext as u32, "{idle} {at_ms}");
            net.to_state(&c, qp_state::RESET).unwrap();
            net.start_dc(&c, &o);
        }
        assert_eq!(net.lock(&b).transport.dc.in_use(), 1);
    }
}

#[test]
fn late_acks_of_an_earlier_association_end_no_request() {
    // Both targets are on one host, so only the PSN tells whose ACK it is.
    let (mut net, a, b) = Net::pair(dc());
    let d = started(&mut net, 1, &target_of(dc()));
    let to_d = net.target(&a, &d);
    let acks = net.note(move |from, packet| {
        (from == 1 && control_of(packet).is_none()).then(|| packet.to_vec())
    });
    for _ in 0..3 {
        net.ok(&a, write(&a, &b, 0, 5000));
    }
    net.tap =
        Some(Box::new(|from, packet| Fate::drop_if(from == 0 && control_of(packet).is_none())));
    net.post(&a, write(&a, &d, 0, 5000).dc(to_d));
    net.settle();
    let acks = std::mem::take(&mut *acks.borrow_mut());
    assert!(!acks.is_empty());
    for ack in &acks {
        net.inject(1, 0, ack);
    }
    net.settle();
    assert_eq!(net.poll(0, a.scq), vec![], "nothing of it has arrived");
    net.tap = None;
    assert_eq!(net.wait(0, a.scq, 1)[0].status, 0);
}

#[test]
fn an_association_that_is_wanted_back_ends_its_requests_first() {
    // The RECLAIM comes while WRITEs and a READ are under way, some of which are lost.
    let (mut net, a, b) = Net::pair(with_contexts(1));
    let (c, to) = another(&mut net, &b, &dc());
    a.buf.write(0, &pattern(5, 200_000));
    let mut rng = Rng(9);
    net.tap = Some(Box::new(move |_, packet| {
        Fate::drop_if(control_of(packet).is_none() && rng.below(10) == 0)
    }));
    for round in 0..4 {
        for i in 0..8usize {
            net.post(&a, write(&a, &b, i * 20_000, 20_000).id(i as u64));
        }
        net.send_from(0);
        net.post(&c, write(&c, &b, 300_000, 100).dc(to));
        let wc = net.wait(0, a.scq, 8);
        assert!(wc.iter().all(|wc| wc.status == 0), "{round}: {wc:?}");
        assert!(b.buf.read(0, 160_000) == a.buf.read(0, 160_000));
        assert_eq!(net.wait(0, c.scq, 1)[0].status, 0);
        b.buf.write(0, &[0; 160_000]);
    }
    assert!(net.lock(&b).counters().dc_reclaimed > 0);
}

#[test]
fn a_target_is_another_one_by_its_key_or_its_host_alone() {
    let (mut net, a, b) = Net::pair(dc());
    net.ok(&a, write(&a, &b, 0, 100));
    // The same number with another key: asked anew, and refused.
    let other_key = DcWr { dc_key: DC_KEY ^ 1, ..net.dc };
    let wc = net.run_one(&a, write(&a, &b, 0, 100).dc(other_key));
    assert_eq!(wc.status, wc_status::REM_ACCESS_ERR);
    // The same number and key at another address, where nobody is: silence.
    net.to_state(&a, qp_state::RESET).unwrap();
    net.start_dc(&a, &Opts { timeout: 8, retry: 1, ..dc() });
    net.ok(&a, write(&a, &b, 0, 100));
    let mut attr = AhAttr { dgid: net.hosts[1].addr.gid, ..AhAttr::default() };
    attr.dgid[15] = 77;
    let ah = net.lock(&a).ah_create(a.pd, &attr).unwrap();
    let elsewhere = DcWr { ah, ..net.dc };
    let wc = net.run_one(&a, write(&a, &b, 0, 100).dc(elsewhere));
    assert_eq!(wc.status, wc_status::RETRY_EXC_ERR);
}

/// An OPEN as `a` would send it, with an id of its own, at the target's host.
fn open(net: &mut Net, a: &End, b: &End, id: u64) {
    let mut packet = vec![0; 12 + DcEth::LEN + 4];
    packet[0] = 0xDE;
    packet[2..4].copy_from_slice(&[0xff, 0xff]);
    packet[4..8].copy_from_slice(&b.qpn.to_be_bytes());
    let eth = DcEth { word: DC_KEY, time: 1000, ..DcEth::new(DcMessage::Open, a.qpn, id) };
    packet[12..56].copy_from_slice(&DcEth { mtu: 3, depth: 1, ..eth }.bytes());
    sign(net, a.host, b.host, &mut packet);
    net.inject(a.host, b.host, &packet);
}

#[test]
fn one_initiator_has_few_contexts_and_says_which_are_over() {
    let (mut net, a, b) = Net::pair(with_contexts(4));
    net.ok(&a, write(&a, &b, 0, 100));
    for id in 1..20 {
        open(&mut net, &a, &b, id);
    }
    assert_eq!(net.lock(&b).transport.dc.in_use(), 2, "that of a late OPEN beside its own");
    net.settle();
    // Where others want them, `a` tells at once that the late one is over.
    let mut others = Vec::new();
    for _ in 0..3 {
        let (c, to) = another(&mut net, &b, &dc());
        let before = net.now;
        net.ok(&c, write(&c, &b, 0, 100).dc(to));
        assert!(net.now - before < 30_000_000, "{} ns", net.now - before);
        others.push(c);
    }
    net.ok(&a, write(&a, &b, 0, 100));
}

#[test]
fn an_association_that_was_idle_for_half_its_lease_begins_anew() {
    let (mut net, a, b) = Net::pair(dc());
    for (after_ms, opened) in [(0, 1), (400, 1), (600, 2), (400, 2), (5000, 3)] {
        net.run(after_ms * 1_000_000);
        net.ok(&a, write(&a, &b, 0, 100));
        assert_eq!(net.lock(&a).counters().dc_opened, opened, "after {after_ms} ms");
    }
    // The new one is not taken for a third.
    assert!(net.lock(&b).transport.dc.in_use() <= 2);
}

#[test]
fn a_close_that_is_lost_holds_no_context() {
    // The initiator has nothing to say to the target any more, and is asked again.
    let o = Opts { timeout: 12, retry: 7, ..with_contexts(1) };
    let (mut net, a, b) = Net::pair(o);
    let d = started(&mut net, 1, &target_of(o));
    let to_d = net.target(&a, &d);
    let (c, to) = another(&mut net, &b, &o);
    net.tap = Some(Box::new(|_, packet| {
        Fate::drop_if(control_of(packet).is_some_and(|eth| eth.message == DcMessage::Close))
    }));
    net.ok(&a, write(&a, &b, 0, 100));
    // It closes, because its context is wanted; that is lost.
    net.post(&c, write(&c, &b, 0, 100).dc(to));
    net.settle();
    net.run(1_500_000);
    net.tap = None;
    let before = net.now;
    assert_eq!(net.wait(0, c.scq, 1)[0].status, 0);
    assert!(net.now - before < 10_000_000, "asked, not waited for: {} ns", net.now - before);
    net.ok(&a, write(&a, &d, 0, 100).dc(to_d));
    let used = |net: &Net, host: usize| {
        let g = net.hosts[host].lock();
        (0..g.transport.peers.len()).map(|p| g.transport.peers[p].refs).sum::<u32>()
    };
    let initiators = used(&net, 0);
    // What it still owes ends with it.
    let now = net.now;
    net.lock(&a).qp_destroy(now, a.qp).unwrap();
    net.settle();
    assert!(used(&net, 0) < initiators);
}

#[test]
fn a_late_accept_of_an_earlier_association_opens_nothing() {
    let (mut net, a, b) = Net::pair(dc());
    let d = started(&mut net, 1, &target_of(dc()));
    let to_d = net.target(&a, &d);
    let accepts = net.note(move |from, packet| {
        (from == 1 && control_of(packet).is_some()).then(|| packet.to_vec())
    });
    net.ok(&a, write(&a, &b, 0, 100));
    // The OPEN to the other target is lost.
    net.tap = Some(Box::new(|from, _| Fate::drop_if(from == 0)));
    net.post(&a, write(&a, &d, 0, 100).dc(to_d));
    net.settle();
    for accept in std::mem::take(&mut *accepts.borrow_mut()) {
        net.inject(1, 0, &accept);
    }
    net.settle();
    assert_eq!(net.lock(&a).counters().dc_opened, 1);
    net.tap = None;
    assert_eq!(net.wait(0, a.scq, 1)[0].status, 0);
    assert_eq!(net.lock(&a).counters().dc_opened, 2);
}

#[test]
fn a_close_counts_from_the_address_of_its_initiator_alone() {
    let o = dc();
    let mut net = Net::new(3, &o);
    let a = started(&mut net, 0, &o);
    let b = started(&mut net, 1, &target_of(o));
    net.dc = net.target(&a, &b);
    net.ok(&a, write(&a, &b, 0, 100));
    let (context, id) = {
        let g = net.lock(&a);
        let qp = &g.transport.qps[index(a.qp)];
        (qp.attr.dest_qp_num, qp.dci[0].id)
    };
    for (from, id, left) in [(2, id, 1), (0, id ^ 1, 1), (0, id, 0)] {
        let mut packet = vec![0; 12 + DcEth::LEN + 4];
        packet[0] = 0xDE;
        packet[2..4].copy_from_slice(&[0xff, 0xff]);
        packet[4..8].copy_from_slice(&context.to_be_bytes());
        packet[12..56].copy_from_slice(&DcEth::new(DcMessage::Close, a.qpn, id).bytes());
        sign(&net, from, 1, &mut packet);
        net.inject(from, 1, &packet);
        assert_eq!(net.lock(&b).transport.dc.in_use(), left, "from {from}, id {id:#x}");
    }
}
