//! DC: associations of initiators with targets, one at a time, and what RC's rules make of them.

use gdrcore_core::config::Config;
use gdrcore_core::device::async_event;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::dceth::{DcEth, DcMessage};
use gdrcore_core::wire::{Class, PacketKind};
use gdrcore_testkit::packet::View;

use crate::operations::{all_three, sizes, MTUS};
use crate::packet_loss::mixture;
use crate::util::*;

pub fn dc() -> Opts {
    Opts { kind: qp_type::DCI, ..Opts::default() }
}

pub fn with_contexts(n: u32) -> Opts {
    let o = dc();
    Opts { config: Config { max_dc_context: n, ..o.config }, ..o }
}

/// The control message that a packet holds.
pub fn control_of(packet: &[u8]) -> Option<DcEth> {
    let view = View::parse(&packet[..packet.len() - 4]).ok()?;
    (view.opcode().kind() == PacketKind::DcControl).then(|| DcEth::parse(view.payload()))?
}

fn cause(net: &Net, e: &End) -> (u32, u64, u64) {
    let cause = net.lock(e).qp_cause(e.qp).unwrap();
    (cause.code, cause.arg0, cause.arg1)
}

/// What a target has of these.
pub fn target_of(o: Opts) -> Opts {
    Opts { kind: qp_type::DCT, ..o }
}

/// A new end of a host, as it is after [`Net::start_dc`].
pub fn started(net: &mut Net, host: usize, o: &Opts) -> End {
    let e = net.end(host, o);
    net.start_dc(&e, o);
    e
}

/// Another initiator on the host of the first, and its way to a target.
pub fn another(net: &mut Net, b: &End, o: &Opts) -> (End, DcWr) {
    let c = started(net, 0, o);
    let to = net.target(&c, b);
    (c, to)
}

pub fn write(a: &End, b: &End, at: usize, len: usize) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, at, len).remote(b, at)
}

#[test]
fn send_write_read_of_all_sizes_over_every_way() {
    for way in WAYS {
        for (code, v6) in MTUS.into_iter().zip([false, true, false, true, false]) {
            let o = Opts { mtu: code, bytes: 210_000, way, v6, ..dc() };
            let (mut net, a, b) = Net::pair(o);
            for len in sizes(code) {
                all_three(&mut net, &a, &b, len);
            }
            net.assert_faultless();
            let c = net.lock(&a).counters();
            assert_eq!((c.dc_opened, c.dc_closed), (1, 0));
        }
    }
}

#[test]
fn completions_name_the_target_and_its_initiator() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..dc() });
        net.recv(&b, 4, &[(0, 8192)]);
        let sent = net.ok(&a, Wr::new(wr_opcode::SEND_WITH_IMM).imm(7).local(&a, 0, 5000));
        assert_eq!((sent.qp_num, sent.src_qp), (a.qpn, 0));
        let wc = net.wait(b.host, b.rcq, 1)[0];
        assert_eq!((wc.wr_id, wc.qp_num, wc.src_qp, wc.imm_data), (4, b.qpn, a.qpn, 7));
        assert_eq!(wc.wc_flags, wc_flags::WITH_IMM);
    }
}

#[test]
fn all_operations_with_losses_duplicates_and_late_packets() {
    for fate in [Fate::Drop, Fate::Twice, Fate::Later] {
        for every in [3, 7, 10] {
            let (mut net, a, b) = Net::pair(dc());
            let mut rng = Rng(77);
            let fate = fate.clone();
            net.tap =
                Some(Box::new(
                    move |_, _| {
                        if rng.below(every) == 0 {
                            fate.clone()
                        } else {
                            Fate::Deliver
                        }
                    },
                ));
            mixture(&mut net, &a, &b);
        }
    }
}

#[test]
fn packets_of_dc_have_its_opcodes_and_go_to_the_context() {
    let (mut net, a, b) = Net::pair(dc());
    let seen = net.note(move |from, packet| {
        let view = View::parse(&packet[..packet.len() - 4]).unwrap();
        Some((from, view.opcode(), view.bth().dest_qp.get()))
    });
    net.ok(&a, write(&a, &b, 0, 3000));
    let seen = seen.borrow();
    assert!(seen.iter().all(|(_, op, _)| op.class() == Class::Dc), "{seen:?}");
    assert_eq!((seen[0].1.kind(), seen[0].2), (PacketKind::DcControl, b.qpn), "the OPEN");
    assert_eq!((seen[1].1.kind(), seen[1].2), (PacketKind::DcControl, a.qpn), "the ACCEPT");
    let data: Vec<_> =
        seen.iter().filter(|(from, op, _)| *from == 0 && op.kind() == PacketKind::Write).collect();
    assert_eq!(data.len(), 3);
    assert!(data.iter().all(|(.., to)| *to != b.qpn && *to == data[0].2));
}

/// An initiator and some targets, each on a host of its own.
fn star(targets: usize, o: &Opts) -> (Net, End, Vec<End>) {
    let hosts = if o.way == Way::Loopback { 1 } else { targets + 1 };
    let mut net = Net::new(hosts, o);
    let a = started(&mut net, 0, o);
    let other = Opts { kind: qp_type::DCT, ..*o };
    let ends: Vec<End> = (0..targets)
        .map(|i| {
            let host = if hosts == 1 { 0 } else { i + 1 };
            started(&mut net, host, &other)
        })
        .collect();
    (net, a, ends)
}

#[test]
fn one_initiator_and_many_targets_in_the_order_of_the_requests() {
    for way in WAYS {
        let o = Opts { way, bytes: 200_000, ..dc() };
        let (mut net, a, ends) = star(5, &o);
        let to: Vec<DcWr> = ends.iter().map(|b| net.target(&a, b)).collect();
        a.buf.write(0, &pattern(3, 100_000));
        let mut order = Vec::new();
        for i in 0..40usize {
            // Some in a row for one target, then another.
            let k = (i / 3) % ends.len();
            let (at, len) = (i * 1000, 700 + i);
            let w = write(&a, &ends[k], at, len).id(i as u64).dc(to[k]);
            net.post(&a, w);
            order.push((i as u64, k, at, len));
        }
        let wc = net.wait(0, a.scq, 40);
        assert!(wc.iter().enumerate().all(|(i, w)| (w.wr_id, w.status) == (i as u64, 0)), "{wc:?}");
        for (_, k, at, len) in order {
            assert!(ends[k].buf.read(at, len) == a.buf.read(at, len), "{way:?} {k} {at}");
        }
        let c = net.lock(&a).counters();
        assert_eq!(c.dc_opened, 14, "one for each change of the target");
        assert_eq!(c.dc_closed, 13);
        net.assert_faultless();
    }
}

#[test]
fn many_initiators_and_one_target() {
    for contexts in [64, 4, 1] {
        let o = Opts { bytes: 40_000, rq: 64, ..with_contexts(contexts) };
        let mut net = Net::new(9, &o);
        let b = net.end(0, &Opts { kind: qp_type::DCT, bytes: 3 << 20, ..o });
        net.start_dc(&b, &o);
        let mut ends = Vec::new();
        for i in 0..16 {
            let e = started(&mut net, 1 + i % 8, &o);
            let to = net.target(&e, &b);
            e.buf.write(0, &pattern(i as u64, 30_000));
            ends.push((e, to));
        }
        for round in 0..4usize {
            for (i, (e, to)) in ends.iter().enumerate() {
                net.recv(&b, i as u64, &[((round * 16 + i) * 3000, 3000)]);
                let w = Wr::new(wr_opcode::SEND_WITH_IMM).imm(i as u32);
                net.post(e, w.dc(*to).local(e, 0, 2900));
            }
            let mut got = Vec::new();
            for (e, _) in &ends {
                let wc = net.wait(e.host, e.scq, 1)[0];
                assert_eq!(wc.status, 0, "{contexts} {:?}", cause(&net, e));
            }
            got.extend(net.wait(0, b.rcq, 16));
            let mut from: Vec<_> = got.iter().map(|wc| wc.imm_data).collect();
            for wc in &got {
                let (e, _) = &ends[wc.imm_data as usize];
                assert_eq!((wc.status, wc.src_qp, wc.qp_num), (0, e.qpn, b.qpn));
                let at = (round * 16 + wc.wr_id as usize) * 3000;
                assert!(b.buf.read(at, 2900) == e.buf.read(0, 2900));
            }
            from.sort_unstable();
            assert_eq!(from, (0..16).collect::<Vec<_>>());
        }
        let c = net.lock(&b).counters();
        assert!((c.dc_busy > 0) == (contexts < 16), "{contexts}: {c:?}");
    }
}

#[test]
fn a_wrong_key_ends_the_initiator_alone() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..dc() });
        let wrong = DcWr { dc_key: DC_KEY + 1, ..net.dc };
        let wc = net.run_one(&a, write(&a, &b, 0, 100).dc(wrong));
        assert_eq!(wc.status, wc_status::REM_ACCESS_ERR);
        assert_eq!(cause(&net, &a), (CauseCode::DcKey as u32, b.qpn.into(), 0));
        assert_eq!((net.state(&a), net.state(&b)), (qp_state::ERR, qp_state::RTR));
        net.only_events(&[(&a, None), (&b, None)]);
        // The next goes on in place.
        net.to_state(&a, qp_state::RESET).unwrap();
        net.start_dc(&a, &dc());
        a.buf.write(0, b"right");
        net.ok(&a, write(&a, &b, 0, 5));
        assert_eq!(b.buf.read(0, 5), b"right");
    }
}

#[test]
fn a_target_that_is_not_there_draws_nothing() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, timeout: 8, retry: 2, ..dc() });
        let unknown = DcWr { dctn: b.qpn ^ 0x2000, ..net.dc };
        let wc = net.run_one(&a, write(&a, &b, 0, 100).dc(unknown));
        assert_eq!(wc.status, wc_status::RETRY_EXC_ERR);
        assert_eq!(cause(&net, &a).0, CauseCode::RetryExceeded as u32);
        // A DCT that has not come to RTR is as silent.
        net.to_state(&b, qp_state::RESET).unwrap();
        net.to_state(&a, qp_state::RESET).unwrap();
        net.start_dc(&a, &Opts { timeout: 8, retry: 2, ..dc() });
        let wc = net.run_one(&a, write(&a, &b, 0, 100));
        assert_eq!(wc.status, wc_status::RETRY_EXC_ERR);
    }
}

#[test]
fn an_icmp_error_explains_why_no_target_answers() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 8, retry: 1, ..dc() });
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    net.post(&a, write(&a, &b, 0, 100));
    net.settle();
    let (now, to) = (net.now, net.hosts[1].addr);
    net.hosts[0].lock().peer_unreachable(now, &to, 111);
    let wc = net.wait(0, a.scq, 1)[0];
    assert_eq!(wc.status, wc_status::RETRY_EXC_ERR);
    assert_eq!(cause(&net, &a), (CauseCode::PeerUnreachable as u32, 111, 0));
}

#[test]
fn a_target_that_ends_under_an_association_is_gone() {
    for restarts in [false, true] {
        let (mut net, a, b) = Net::pair(dc());
        net.ok(&a, write(&a, &b, 0, 100));
        // The contexts go with the DCT's state; its number and key are there again at once.
        net.to_state(&b, qp_state::RESET).unwrap();
        net.start_dc(&b, &dc());
        let before = net.now;
        if restarts {
            net.hosts[1].lock().transport.dc.incarnation = 77;
        }
        let wc = net.run_one(&a, write(&a, &b, 0, 100));
        assert_eq!(wc.status, wc_status::RETRY_EXC_ERR);
        let gone = (CauseCode::DcTargetGone as u32, u64::from(b.qpn), u64::from(restarts));
        assert_eq!(cause(&net, &a), gone);
        assert!(net.now - before < 10_000_000, "not by the timeouts: {} ns", net.now - before);
        assert_eq!(net.lock(&b).counters().dc_gone, 1);
    }
}

#[test]
fn requests_under_way_at_another_target_go_first() {
    // A READ to the first target is still being answered when one for the second is posted.
    let o = Opts { bytes: 300_000, ..dc() };
    let (mut net, a, ends) = star(2, &o);
    let to: Vec<DcWr> = ends.iter().map(|b| net.target(&a, b)).collect();
    ends[0].buf.write(0, &pattern(9, 200_000));
    let read = Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 200_000).remote(&ends[0], 0);
    net.post(&a, read.id(1).dc(to[0]));
    net.post(&a, write(&a, &ends[1], 0, 200_000).id(2).dc(to[1]));
    let wc = net.wait(0, a.scq, 2);
    assert_eq!(wc.iter().map(|w| (w.wr_id, w.status)).collect::<Vec<_>>(), [(1, 0), (2, 0)]);
    assert!(ends[1].buf.read(0, 200_000) == pattern(9, 200_000), "the WRITE sent what was read");
}

/// Round trips of the initiator on host 0 before the first packet of a READ leaves: each is some
/// packets of its own and the answers to them.
fn trips_before_a_read(seen: &[(usize, PacketKind)]) -> usize {
    let before = seen.iter().take_while(|(_, kind)| *kind != PacketKind::ReadRequest);
    let sides: Vec<bool> = before.map(|(from, _)| *from == 0).collect();
    sides.windows(2).filter(|pair| pair[0] && !pair[1]).count()
}

// A change of the target takes a round trip for what is under way and one for the OPEN, however
// many packets they have.
#[test]
fn a_change_of_the_target_takes_two_round_trips_at_most() {
    for (under_way, most) in [(0, 1), (100, 2), (30_000, 2)] {
        let (mut net, a, ends) = star(2, &dc());
        let to: Vec<DcWr> = ends.iter().map(|b| net.target(&a, b)).collect();
        net.ok(&a, write(&a, &ends[0], 0, 100).dc(to[0]));
        let seen = net.note(move |from, packet| {
            let view = View::parse(&packet[..packet.len() - 4]).unwrap();
            Some((from, view.opcode().kind()))
        });
        for round in 0..6 {
            let (old, new) = (round % 2, 1 - round % 2);
            seen.borrow_mut().clear();
            let mut requests = 1;
            if under_way > 0 {
                net.post(&a, write(&a, &ends[old], 0, under_way).dc(to[old]));
                requests += 1;
            }
            let read = Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 64).remote(&ends[new], 0);
            net.post(&a, read.dc(to[new]));
            let wc = net.wait(0, a.scq, requests);
            assert!(wc.iter().all(|w| w.status == wc_status::SUCCESS), "{wc:?}");
            let trips = trips_before_a_read(&seen.borrow());
            assert!((1..=most).contains(&trips), "{under_way} bytes under way: {:?}", seen);
        }
        assert_eq!(net.lock(&a).counters().dc_opened, 7);
    }
}

#[test]
fn local_requests_need_no_target() {
    let (mut net, a, b) = Net::pair(dc());
    let (mw, key) = net.lock(&a).mw_alloc(a.pd, 2).unwrap();
    let key = (key & !0xff) | (key.wrapping_add(1) & 0xff);
    let rights = access::REMOTE_WRITE;
    let info = a.window(64, rights);
    net.ok(&a, Wr::new(wr_opcode::BIND_MW).bind(mw, key, info));
    assert_eq!(net.lock(&a).counters().dc_opened, 0);
    net.ok(&a, write(&a, &b, 0, 100));
    let mut invalidate = Wr::new(wr_opcode::LOCAL_INV);
    invalidate.raw.imm_data = key;
    net.ok(&a, invalidate);
    net.ok(&a, write(&a, &b, 0, 100));
    assert_eq!(net.lock(&a).counters().dc_opened, 1);
}

#[test]
fn a_stale_address_handle_fails_its_request_alone_in_order() {
    let (mut net, a, b) = Net::pair(dc());
    let bad = DcWr { ah: 0x1234, ..net.dc };
    net.post(&a, write(&a, &b, 0, 50_000).id(1));
    net.post(&a, write(&a, &b, 0, 100).id(2).dc(bad));
    net.post(&a, write(&a, &b, 0, 100).id(3));
    let wc = net.wait(0, a.scq, 3);
    let got: Vec<_> = wc.iter().map(|w| (w.wr_id, w.status)).collect();
    let (op, flush) = (wc_status::LOC_QP_OP_ERR, wc_status::WR_FLUSH_ERR);
    assert_eq!(got, [(1, 0), (2, op), (3, flush)]);
    assert_eq!(cause(&net, &a).0, CauseCode::BadAddressHandle as u32);
}

#[test]
fn posts_in_err_flush_whatever_they_name() {
    let (mut net, a, b) = Net::pair(dc());
    net.ok(&a, write(&a, &b, 0, 100));
    net.to_state(&a, qp_state::ERR).unwrap();
    let nothing = DcWr { ah: 1, dc_key: 0, dctn: 0 };
    let marker = Wr::new(wr_opcode::RDMA_WRITE).sge(Sge { addr: 0, length: 0, lkey: 0 });
    let wc = net.run_one(&a, marker.dc(nothing));
    assert_eq!(wc.status, wc_status::WR_FLUSH_ERR);
    net.settle();
    // The target was told, and has its context back.
    let busy = net.hosts[1].lock().transport.dc.in_use();
    assert_eq!(busy, 0);
}

#[test]
fn psns_of_an_initiator_go_on_over_resets() {
    let (mut net, a, b) = Net::pair(dc());
    net.ok(&a, write(&a, &b, 0, 100));
    let (attr, _) = net.lock(&a).qp_query(a.qp).unwrap();
    net.to_state(&a, qp_state::RESET).unwrap();
    net.start_dc(&a, &dc());
    let (again, _) = net.lock(&a).qp_query(a.qp).unwrap();
    assert_eq!(again.sq_psn, attr.sq_psn, "not where the program would begin");
    net.ok(&a, write(&a, &b, 0, 100));
}

#[test]
fn an_empty_srq_holds_its_own_initiator_alone() {
    let (mut net, a, b) = Net::pair(Opts { rnr: 1, ..dc() });
    let (c, of_c) = another(&mut net, &b, &dc());
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 10));
    net.ok(&c, write(&c, &b, 0, 5000).dc(of_c));
    let wc = net.wait(0, a.scq, 1)[0];
    assert_eq!(wc.status, wc_status::RNR_RETRY_EXC_ERR);
    net.ok(&c, write(&c, &b, 0, 5000).dc(of_c));
}

#[test]
fn a_fault_of_one_initiator_ends_neither_the_target_nor_another() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..dc() });
        let (c, of_c) = another(&mut net, &b, &dc());
        let bad = Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).key(b.mr.iova, b.mr.rkey ^ 1);
        net.ok(&c, write(&c, &b, 0, 5000).dc(of_c));
        assert_eq!(net.run_one(&a, bad).status, wc_status::REM_ACCESS_ERR);
        net.ok(&c, write(&c, &b, 0, 5000).dc(of_c));
        net.recv(&b, 1, &[(0, 4)]);
        let wc = net.run_one(&c, Wr::new(wr_opcode::SEND).local(&c, 0, 5).dc(of_c));
        assert_eq!(wc.status, wc_status::REM_INV_REQ_ERR, "too long");
        let got = net.wait(b.host, b.rcq, 1)[0];
        assert_eq!((got.status, got.qp_num), (wc_status::LOC_LEN_ERR, b.qpn));
        // Contexts have no events: no program knows them.
        net.only_events(&[(&a, None), (&b, None), (&c, None)]);
        net.settle();
        assert_eq!(net.hosts[b.host].lock().transport.dc.in_use(), 0, "both have closed");
    }
}

#[test]
fn a_context_of_a_silent_initiator_is_given_to_another_after_its_lease() {
    let (mut net, a, b) = Net::pair(with_contexts(1));
    let (c, of_c) = another(&mut net, &b, &Opts { timeout: 17, ..dc() });
    net.ok(&a, write(&a, &b, 0, 100));
    // All that `a` would say from now on is lost.
    let silent = a.qpn;
    net.tap = Some(Box::new(move |from, packet| {
        let to_a = View::parse(&packet[..packet.len() - 4]).unwrap().bth().dest_qp.get() == silent;
        let of_a = control_of(packet).is_some_and(|eth| eth.qpn == silent);
        Fate::drop_if(to_a || from == 0 && of_a)
    }));
    net.ok(&c, write(&c, &b, 0, 100).dc(of_c));
    net.tap = None;
    // What `a` sends next finds its context gone: not executed by another's.
    b.buf.write(0, &[0; 8]);
    a.buf.write(0, &[9; 8]);
    let wc = net.run_one(&a, write(&a, &b, 0, 8));
    if wc.status == 0 {
        assert_eq!(b.buf.read(0, 8), [9; 8], "it has begun anew");
    } else {
        assert_eq!((wc.status, b.buf.read(0, 8)), (wc_status::RETRY_EXC_ERR, vec![0; 8]));
    }
}

#[test]
fn idle_initiators_give_their_contexts_back_when_asked() {
    let (mut net, a, b) = Net::pair(with_contexts(1));
    let (c, of_c) = another(&mut net, &b, &dc());
    for i in 0..20 {
        let (e, to) = if i % 2 == 0 { (&a, net.dc) } else { (&c, of_c) };
        let before = net.now;
        net.ok(e, write(e, &b, 0, 100).dc(to));
        assert!(net.now - before < 30_000_000, "asked, not waited for");
    }
    let counters = net.lock(&b).counters();
    assert!(counters.dc_reclaimed >= 19, "{counters:?}");
    assert_eq!(counters.retry_exceeded_err, 0);
}

#[test]
fn where_no_context_becomes_free_the_request_fails_by_its_deadline() {
    let o = Opts { timeout: 10, retry: 1, rnr: 7, ..with_contexts(1) };
    let (mut net, a, b) = Net::pair(o);
    let (c, of_c) = another(&mut net, &b, &o);
    // The only context is in the middle of a message that waits for a receive request.
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 10));
    net.settle();
    let wc = net.run_one(&c, write(&c, &b, 0, 100).dc(of_c));
    assert_eq!(wc.status, wc_status::RETRY_EXC_ERR);
    assert_eq!(cause(&net, &c).0, CauseCode::DcNoContext as u32);
    net.recv(&b, 1, &[(0, 100)]);
    assert_eq!(net.wait(0, a.scq, 1)[0].status, 0);
}

#[test]
fn late_control_packets_change_nothing() {
    let (mut net, a, ends) = star(2, &dc());
    let to: Vec<DcWr> = ends.iter().map(|b| net.target(&a, b)).collect();
    let kept =
        net.note(move |from, packet| control_of(packet).is_some().then(|| (from, packet.to_vec())));
    for i in 0..6usize {
        net.ok(&a, write(&a, &ends[i % 2], 0, 100).dc(to[i % 2]));
    }
    net.tap = None;
    let kept = std::mem::take(&mut *kept.borrow_mut());
    assert!(kept.len() >= 16, "{}", kept.len());
    for (from, packet) in &kept {
        // To every host that could have been meant.
        let hosts = if *from == 0 { 1..3 } else { 0..1 };
        for to in hosts {
            net.inject(*from, to, packet);
            net.settle();
        }
    }
    for i in 0..4usize {
        a.buf.write(0, &[i as u8 + 1; 16]);
        net.ok(&a, write(&a, &ends[i % 2], 0, 16).dc(to[i % 2]));
        assert_eq!(ends[i % 2].buf.read(0, 16), [i as u8 + 1; 16]);
    }
    assert_eq!(net.state(&a), qp_state::RTS);
}

#[test]
fn forged_control_packets_change_nothing() {
    // From another address, with all else right; and with any field wrong.
    let mut o = dc();
    o.bytes = 20_000;
    let mut net = Net::new(3, &o);
    let a = started(&mut net, 0, &o);
    let b = started(&mut net, 1, &target_of(o));
    net.dc = net.target(&a, &b);
    let kept =
        net.note(move |from, packet| control_of(packet).is_some().then(|| (from, packet.to_vec())));
    net.ok(&a, write(&a, &b, 0, 100));
    net.tap = None;
    let kept = std::mem::take(&mut *kept.borrow_mut());
    for (from, packet) in kept {
        let to = 1 - from;
        for message in 1..=6u8 {
            let mut other = packet.clone();
            other[12] = message;
            sign(&net, 2, to, &mut other);
            net.inject(2, to, &other);
        }
        let mut other = packet.clone();
        other[12 + 15] ^= 1;
        for message in [3, 4, 5, 6u8] {
            other[12] = message;
            sign(&net, from, to, &mut other);
            net.inject(from, to, &other);
        }
    }
    net.settle();
    a.buf.write(0, b"still there");
    net.ok(&a, write(&a, &b, 0, 11));
    assert_eq!(b.buf.read(0, 11), b"still there");
    assert_eq!(net.lock(&a).counters().dc_opened, 1);
}

#[test]
fn wrong_keys_draw_few_answers() {
    let (mut net, a, b) = Net::pair(dc());
    let mut packet = vec![0; 12 + DcEth::LEN + 4];
    packet[0] = 0xDE;
    packet[2..4].copy_from_slice(&[0xff, 0xff]);
    packet[4..8].copy_from_slice(&b.qpn.to_be_bytes());
    for i in 0..1000u64 {
        let eth = DcEth { word: i, time: 1000, mtu: 3, ..DcEth::new(DcMessage::Open, a.qpn, i) };
        packet[12..56].copy_from_slice(&eth.bytes());
        sign(&net, 0, 1, &mut packet);
        net.inject(0, 1, &packet);
        net.settle();
    }
    let c = net.lock(&b).counters();
    assert_eq!(c.dc_refused_key, 1000);
    assert!((1..=20).contains(&c.sent_pkts), "{}", c.sent_pkts);
    assert_eq!(net.hosts[1].lock().transport.dc.in_use(), 0);
}

#[test]
fn contexts_change_their_numbers() {
    let (mut net, a, b) = Net::pair(with_contexts(1));
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let log = seen.clone();
    net.tap = Some(Box::new(move |from, packet| {
        let eth = control_of(packet).filter(|eth| eth.message == DcMessage::Accept);
        if let Some(eth) = eth.filter(|_| from == 1) {
            log.borrow_mut().push(eth.qpn);
        }
        Fate::Deliver
    }));
    for _ in 0..32 {
        net.ok(&a, write(&a, &b, 0, 100));
        net.to_state(&a, qp_state::ERR).unwrap();
        net.settle();
        net.to_state(&a, qp_state::RESET).unwrap();
        net.start_dc(&a, &dc());
    }
    let mut numbers = std::mem::take(&mut *seen.borrow_mut());
    assert_eq!(numbers.len(), 32);
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 32, "none comes again so soon");
    assert!(!numbers.contains(&b.qpn));
}

#[test]
fn targets_and_initiators_come_and_go_without_a_trace() {
    let o = Opts { bytes: 4096, ..with_contexts(8) };
    let (mut net, a, b) = Net::pair(o);
    net.ok(&a, write(&a, &b, 0, 100));
    let mut free = None;
    for _ in 0..50 {
        let d = started(&mut net, 1, &target_of(o));
        let e = started(&mut net, 0, &o);
        let to = net.target(&e, &d);
        net.ok(&e, write(&e, &d, 0, 100).dc(to));
        net.recv(&d, 1, &[(0, 100)]);
        let now = net.now;
        for (x, host) in [(&d, 1), (&e, 0)] {
            let mut g = net.hosts[host].lock();
            g.qp_destroy(now, x.qp).unwrap();
            if x.srq != 0 {
                g.srq_destroy(now, x.srq).unwrap();
            }
            g.cq_destroy(x.scq).unwrap();
            g.cq_destroy(x.rcq).unwrap();
            g.mr_dereg(x.mr_handle).unwrap();
        }
        net.lock(&e).ah_destroy(to.ah).unwrap();
        for (x, host) in [(&d, 1), (&e, 0)] {
            net.hosts[host].lock().pd_dealloc(x.pd).unwrap();
        }
        let now_free: Vec<_> = net.hosts.iter().map(|h| h.lock().free_bytes()).collect();
        let used: Vec<_> = (0..2)
            .map(|i| {
                let g = net.hosts[i].lock();
                (0..g.transport.peers.len()).filter(|&p| g.transport.peers[p].refs > 0).count()
            })
            .collect();
        let state = (now_free, used);
        match &free {
            None => free = Some(state),
            Some(first) => assert_eq!(*first, state),
        }
    }
    net.ok(&a, write(&a, &b, 0, 100));
    let _ = async_event::QP_FATAL;
}

#[test]
fn what_dc_cannot_have_is_refused() {
    let o = dc();
    let mut net = Net::new(1, &o);
    let e = net.end(0, &o);
    let base = queue_pair(qp_type::DCT, e.pd, [e.scq, e.rcq], QpCap::default());
    let now = net.now;
    assert!(net.lock(&e).qp_create(now, &base).is_err(), "a DCT without an SRQ");
    let d = started(&mut net, 0, &target_of(o));
    assert!(net.try_post(&d, Wr::new(wr_opcode::SEND)).is_err(), "a DCT sends nothing");
    let rts = net.to_state(&d, qp_state::RTS);
    assert!(rts.is_err(), "a DCT has no RTS");
    // A handle of a context, which no program was given.
    let g = net.hosts[0].lock();
    let live: Vec<_> =
        (0..512u64).filter(|&i| g.transport.qps.get(i as usize).is_some_and(|q| q.live)).collect();
    assert!(live.len() > 200, "{}", live.len());
    drop(g);
    for i in live {
        for generation in [1u64, 3] {
            for tag in 0..16u64 {
                let handle = generation << 32 | tag << 24 | i;
                if handle != e.qp && handle != d.qp {
                    assert!(net.lock(&e).qp_destroy(now, handle).is_err(), "{handle:#x}");
                }
            }
        }
    }
}
