//! Deadlines, retries, states of QPs, events.

use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::device::async_event;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;

use crate::flush::range;
use crate::util::*;

fn write(a: &End, b: &End) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 100).remote(b, 0)
}

// IBTA 9.7.6.1.3
#[test]
fn a_silent_peer_ends_every_operation_in_time() {
    for (timeout, retry) in [(8u8, 0u8), (8, 7), (14, 3)] {
        for opcode in [wr_opcode::SEND, wr_opcode::RDMA_WRITE, wr_opcode::RDMA_READ] {
            let (mut net, a, b) = Net::pair(Opts { timeout, retry, ..Opts::default() });
            net.tap = Some(Box::new(|_, _| Fate::Drop));
            let start = net.now;
            net.post(&a, Wr::new(opcode).id(1).local(&a, 0, 100_000).remote(&b, 0));
            net.post(&a, write(&a, &b).id(2));
            let wc = net.wait(a.host, a.scq, 2);
            assert_eq!((wc[0].wr_id, wc[0].status), (1, wc_status::RETRY_EXC_ERR));
            assert_eq!((wc[1].wr_id, wc[1].status), (2, wc_status::WR_FLUSH_ERR));
            let spent = net.now - start;
            let least = (4096u64 << timeout) * (u64::from(retry) + 1);
            assert!(spent >= least && spent < least + least / 10 + 1_000_000, "{spent} of {least}");
            let cause = net.lock(&a).qp_cause(a.qp).unwrap();
            assert_eq!((cause.code, cause.arg1), (CauseCode::RetryExceeded as u32, retry.into()));
        }
    }
}

// IBTA 9.7.6.1.3
#[test]
fn a_window_that_others_keep_shut_delays_no_retry() {
    for opcode in [wr_opcode::RDMA_WRITE, wr_opcode::RDMA_READ] {
        let brief = Opts { timeout: 10, retry: 3, ..Opts::default() };
        let (mut net, a, b) = Net::pair(brief);
        // Code 22 is 17 seconds.
        let patient = Opts { timeout: 22, ..brief };
        let (c, d) = (net.end(a.host, &patient), net.end(b.host, &patient));
        net.connect(&c, &d, &patient);
        net.connect(&d, &c, &patient);
        net.tap = Some(Box::new(|_, _| Fate::Drop));
        let start = net.now;
        net.post(&a, Wr::new(opcode).local(&a, 0, 100).remote(&b, 0));
        net.settle();
        net.post(&c, Wr::new(opcode).local(&c, 0, 1 << 20).remote(&d, 0));
        let wc = net.wait(a.host, a.scq, 1);
        assert_eq!(wc[0].status, wc_status::RETRY_EXC_ERR);
        let spent = net.now - start;
        let own = (4096u64 << brief.timeout) * (u64::from(brief.retry) + 1);
        assert!(spent < own + own / 10 + 1_000_000, "{spent} of {own} ns");
    }
}

#[test]
fn long_timeouts_are_four_times_those_of_their_codes_up_to_half_a_second() {
    const LONG: u32 = config_flags::LONG_TIMEOUTS;
    for (flags, code, times) in [(0, 10, 1), (LONG, 10, 4), (LONG, 16, 2), (LONG, 18, 1)] {
        let config = Config { flags, ..Opts::default().config };
        let o = Opts { timeout: code, retry: 2, config, ..Opts::default() };
        let (mut net, a, b) = Net::pair(o);
        net.tap = Some(Box::new(|_, _| Fate::Drop));
        let start = net.now;
        assert_eq!(net.run_one(&a, write(&a, &b)).status, wc_status::RETRY_EXC_ERR);
        let (spent, own) = (net.now - start, 3 * times * (4096u64 << code));
        assert!((own..own + own / 10 + 1_000_000).contains(&spent), "{spent} of {own} ns");
        // What the program set is what it reads.
        let (attr, _) = net.lock(&a).qp_query(a.qp).expect("qp_query");
        assert_eq!(attr.timeout, code);
    }
}

#[test]
fn without_a_timeout_the_configured_deadline_ends_it() {
    let config = Config { deadline_ns: 30_000_000_000, ..Opts::default().config };
    let (mut net, a, b) = Net::pair(Opts { timeout: 0, config, ..Opts::default() });
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    let start = net.now;
    let wc = net.run_one(&a, write(&a, &b));
    assert_eq!((wc.status, wc.vendor_err), (wc_status::RETRY_EXC_ERR, CauseCode::Deadline as u32));
    let spent = net.now - start;
    assert!((30_000_000_000..31_000_000_000).contains(&spent), "{spent}");
}

// rxe rxe_comp.c rxe_completer
// rxe rxe_resp.c check_resource, RNR
#[test]
fn no_receive_ends_by_the_rnr_counter_or_waits_for_ever() {
    let (mut net, a, b) = Net::pair(Opts { rnr: 2, ..Opts::default() });
    let wc = net.run_one(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 10));
    assert_eq!(wc.status, wc_status::RNR_RETRY_EXC_ERR);
    assert_eq!(net.lock(&b).counters().send_rnr_err, 3);
    assert_eq!(net.state(&b), qp_state::RTS);

    let (mut net, a, b) = Net::pair(Opts { rnr: 7, rnr_timer: 20, ..Opts::default() });
    a.buf.write(0, b"at last");
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 7));
    net.run(60_000_000_000);
    assert!(net.poll(0, a.scq).is_empty() && net.state(&a) == qp_state::RTS);
    net.recv(&b, 1, &[(0, 10)]);
    assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);
    assert!(b.buf.read(0, 7) == b"at last");
    net.wait(b.host, b.rcq, 1);
}

// It sends none, so who waits for its last answers would wait in vain.
#[test]
fn a_queue_pair_in_error_owes_no_ack() {
    let (mut net, a, b) = Net::pair(Opts { way: Way::Link, ..Opts::default() });
    net.recv(&b, 1, &[(0, 100)]);
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 100));
    net.exchange();
    let owes = |net: &Net| [None, Some(b.qp)].map(|qp| net.lock(&b).owes_answer(qp));
    assert_eq!(owes(&net), [true; 2]);
    net.to_state(&b, qp_state::ERR).unwrap();
    assert_eq!(owes(&net), [false; 2]);
}

// IBTA C10-96
// IBTA 10.7.3.1
#[test]
fn to_err_flushes_both_queues_in_order_and_later_posts_too() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..Opts::default() });
        net.tap = Some(Box::new(|_, _| Fate::Drop));
        for i in 0..10 {
            net.post(&a, write(&a, &b).id(i).flags(0));
            net.recv(&a, 100 + i, &[(0, 10)]);
        }
        if way == Way::Wire {
            net.exchange();
        }
        net.to_state(&a, qp_state::ERR).unwrap();
        net.post(&a, write(&a, &b).id(10));
        net.recv(&a, 110, &[(0, 10)]);
        net.settle();
        for (cq, first) in [(a.scq, 0), (a.rcq, 100)] {
            let wc = net.poll(a.host, cq);
            let ids: Vec<u64> = wc.iter().map(|w| w.wr_id).collect();
            assert_eq!(ids, (first..=first + 10).collect::<Vec<u64>>());
            assert!(wc.iter().all(|w| w.status == wc_status::WR_FLUSH_ERR && w.qp_num == a.qpn));
        }
        // No fatal event for what the program asked for.
        assert!(net.lock(&a).take_async_event().is_none());
        net.to_state(&a, qp_state::RESET).unwrap();
        assert_eq!(err(net.try_post(&a, write(&a, &b))), Error::Invalid);
    }
}

// rxe rxe_qp.c rxe_qp_reset
#[test]
fn a_qp_works_again_after_reset() {
    let o = Opts { timeout: 8, retry: 1, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    for round in 0..5 {
        net.tap = Some(Box::new(|_, _| Fate::Drop));
        assert_eq!(net.run_one(&a, write(&a, &b)).status, wc_status::RETRY_EXC_ERR);
        net.only_events(&[(&a, None), (&b, None)]);
        net.tap = None;
        net.to_state(&a, qp_state::RESET).unwrap();
        net.to_state(&b, qp_state::RESET).unwrap();
        net.connect(&a, &b, &o);
        net.connect(&b, &a, &o);
        a.buf.write(0, &pattern(round, 100));
        net.ok(&a, write(&a, &b));
        assert!(b.buf.read(0, 100) == pattern(round, 100));
    }
}

// rxe rxe_req.c req_next_wqe
// rxe rxe_comp.c complete_ack
#[test]
fn sqd_drains_tells_and_goes_on() {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    net.post(&a, write(&a, &b).id(1));
    net.exchange();
    net.tap = None;
    let attr = QpAttr { qp_state: qp_state::SQD, en_sqd_async_notify: 1, ..QpAttr::default() };
    net.modify(&a, &attr, qp_attr_mask::STATE | qp_attr_mask::EN_SQD_ASYNC_NOTIFY).unwrap();
    net.post(&a, write(&a, &b).id(2));
    assert_eq!(net.lock(&a).qp_query(a.qp).unwrap().0.sq_draining, 1);
    assert!(net.lock(&a).take_async_event().is_none());
    net.run(100_000_000);
    let wc = net.poll(0, a.scq);
    assert_eq!(
        (wc.len(), wc[0].wr_id, wc[0].status),
        (1, 1, 0),
        "what had begun ends, nothing new begins"
    );
    let event = net.lock(&a).take_async_event().unwrap();
    assert_eq!((event.event, event.handle), (async_event::SQ_DRAINED, a.qp));
    assert_eq!(net.lock(&a).qp_query(a.qp).unwrap().0.sq_draining, 0);
    net.to_state(&a, qp_state::RTS).unwrap();
    assert_eq!(net.wait(0, a.scq, 1)[0].wr_id, 2);
}

// rxe rxe_comp.c complete_ack
#[test]
fn a_queue_that_ends_with_a_local_operation_drains_too() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let (mw, key) = net.lock(&a).mw_alloc(a.pd, 2).unwrap();
    let info = a.window(64, access::REMOTE_WRITE);
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    net.post(&a, Wr::new(wr_opcode::RDMA_READ).id(1).local(&a, 0, 100).remote(&b, 0));
    net.post(&a, Wr::new(wr_opcode::BIND_MW).id(2).bind(mw, key + 1, info));
    net.exchange();
    net.tap = None;
    let attr = QpAttr { qp_state: qp_state::SQD, en_sqd_async_notify: 1, ..QpAttr::default() };
    net.modify(&a, &attr, qp_attr_mask::STATE | qp_attr_mask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert!(net.lock(&a).take_async_event().is_none(), "the READ is under way");
    net.run(100_000_000);
    assert_eq!(net.poll(0, a.scq).len(), 2);
    let event = net.lock(&a).take_async_event().expect("the queue has drained");
    assert_eq!((event.event, event.handle), (async_event::SQ_DRAINED, a.qp));
}

// rxe rxe_req.c rxe_requester, UD
// IBTA 10.3.1, SQE
#[test]
fn a_failed_datagram_leaves_the_receive_side_alive() {
    let o = Opts { kind: qp_type::UD, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    let ah = net.ah(&a, &b);
    let send = |ah, len| Wr::new(wr_opcode::SEND).local(&a, 0, len).ud(ah, b.qpn, 0x1111);
    net.post(&a, send(ah, 10).id(1));
    net.post(&a, send(ah ^ (1 << 40), 10).id(2));
    net.post(&a, send(ah, 10).id(3));
    let wc = net.wait(0, a.scq, 3);
    let got: Vec<_> = wc.iter().map(|w| (w.wr_id, w.status)).collect();
    assert_eq!(got, [(1, 0), (2, wc_status::LOC_QP_OP_ERR), (3, wc_status::WR_FLUSH_ERR)]);
    assert_eq!(net.state(&a), qp_state::SQE);
    // It still receives.
    let back = net.ah(&b, &a);
    net.recv(&a, 9, &[(0, 100)]);
    net.ok(&b, Wr::new(wr_opcode::SEND).local(&b, 0, 10).ud(back, a.qpn, 0x1111));
    assert_eq!(net.wait(0, a.rcq, 1)[0].wr_id, 9);
    // And it sends again after SQE to RTS.
    net.to_state(&a, qp_state::RTS).unwrap();
    net.recv(&b, 1, &[(0, 100)]);
    net.ok(&a, send(ah, 10));
    let long = net.run_one(&a, send(ah, 4097));
    assert_eq!(long.status, wc_status::LOC_LEN_ERR);
    net.only_events(&[(&a, None), (&b, None)]);
}

// rxe rxe_cq.c rxe_cq_post
#[test]
fn armed_queues_raise_once_and_solicited_only_for_solicited() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let send = |net: &mut Net, flags| {
        net.recv(&b, 1, &[(0, 10)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 1).add_flags(flags));
        let event = net.lock(&b).take_cq_event();
        (event, net.poll(1, b.rcq).len())
    };
    assert_eq!(send(&mut net, 0), (None, 1));
    assert!(!net.lock(&b).arm_cq(b.rcq, false).unwrap());
    assert_eq!(send(&mut net, 0), (Some(b.rcq), 1));
    assert_eq!(send(&mut net, 0), (None, 1));
    net.lock(&b).arm_cq(b.rcq, true).unwrap();
    assert_eq!(send(&mut net, 0), (None, 1));
    assert_eq!(send(&mut net, send_flags::SOLICITED), (Some(b.rcq), 1));
    // An error counts as solicited. Arming with completions there says so.
    net.lock(&b).arm_cq(b.rcq, true).unwrap();
    net.recv(&b, 2, &[(0, 10)]);
    net.to_state(&b, qp_state::ERR).unwrap();
    assert_eq!(net.lock(&b).take_cq_event(), Some(b.rcq));
    assert!(net.lock(&b).arm_cq(b.rcq, false).unwrap());
}

#[test]
fn an_event_is_taken_back_with_its_arming_and_with_its_queue() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let send = |net: &mut Net, flags| {
        net.recv(&b, 1, &[(0, 10)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 1).add_flags(flags));
        net.poll(1, b.rcq);
    };
    let take = |net: &mut Net| net.lock(&b).take_cq_event();
    for raised in [false, true] {
        net.lock(&b).arm_cq(b.rcq, false).unwrap();
        if raised {
            send(&mut net, 0);
        }
        net.lock(&b).disarm_cq(b.rcq).unwrap();
        send(&mut net, send_flags::SOLICITED);
        assert_eq!(take(&mut net), None, "raised before: {raised}");
        net.lock(&b).arm_cq(b.rcq, true).unwrap();
        send(&mut net, 0);
        assert_eq!(take(&mut net), None, "armed for any before");
        send(&mut net, send_flags::SOLICITED);
        assert_eq!(take(&mut net), Some(b.rcq));
    }
    net.lock(&b).arm_cq(b.rcq, false).unwrap();
    send(&mut net, 0);
    let mut g = net.lock(&b);
    g.qp_destroy(0, b.qp).unwrap();
    g.cq_destroy(b.rcq).unwrap();
    assert_eq!(g.disarm_cq(b.rcq), Err(Error::StaleHandle));
    // One in its place.
    while index(g.cq_create(1).unwrap().0) != index(b.rcq) {}
    assert_eq!(g.take_cq_event(), None);
}

#[test]
fn small_queues_wait_and_lose_nothing() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { cqe: 1, way, rnr_timer: 1, ..Opts::default() });
        for i in 0..40 {
            net.recv(&b, i, &[(0, 2000)]);
            net.post(&a, Wr::new(wr_opcode::SEND).id(i).local(&a, 0, 2000));
        }
        let (mut sent, mut got) = (0, 0);
        for _ in 0..10_000 {
            net.run(20_000);
            for w in net.poll(a.host, a.scq) {
                assert_eq!((w.wr_id, w.status), (sent, 0));
                sent += 1;
            }
            for w in net.poll(b.host, b.rcq) {
                assert_eq!((w.wr_id, w.status), (got, 0));
                got += 1;
            }
        }
        assert_eq!((sent, got), (40, 40));
    }
}

#[test]
fn a_cq_can_be_resized_while_it_holds_completions() {
    let (mut net, a, b) = Net::pair(Opts { cqe: 4, ..Opts::default() });
    for i in 0..20 {
        net.post(&a, write(&a, &b).id(i));
    }
    net.run(1_000_000);
    assert_eq!(err(net.lock(&a).cq_resize(a.scq, 2)), Error::Invalid);
    assert_eq!(net.lock(&a).cq_resize(a.scq, 32).unwrap(), 32);
    net.run(1_000_000);
    let ids: Vec<u64> = net.poll(0, a.scq).iter().map(|w| w.wr_id).collect();
    assert_eq!(ids, (0..20).collect::<Vec<u64>>());
}

#[test]
fn a_purged_cq_has_only_the_others_completions_in_their_order() {
    // Two queue pairs complete into one CQ, which holds as many as fit.
    let (mut net, a, b) = Net::pair(Opts { cqe: 8, ..Opts::default() });
    for i in 0..12 {
        net.post(&a, write(&a, &b).id(i));
    }
    net.run(1_000_000);
    let other = a.qpn + 1;
    net.lock(&a).cq_purge(a.scq, other).unwrap();
    assert_eq!(
        net.poll(0, a.scq).iter().map(|w| w.wr_id).collect::<Vec<_>>(),
        (0..8).collect::<Vec<u64>>()
    );
    net.run(1_000_000);
    net.lock(&a).cq_purge(a.scq, a.qpn).unwrap();
    assert!(net.poll(0, a.scq).is_empty());
    net.ok(&a, write(&a, &b));
    assert_eq!(err(net.lock(&a).cq_purge(a.qp, a.qpn)), Error::StaleHandle);
}

// A NAK ends the connection, so what was answered before it must have left.
#[test]
fn requests_before_a_refused_one_have_their_answers() {
    for way in WAYS {
        for first in 0..4 {
            let (mut net, a, b) = Net::pair(Opts { way, ..Opts::default() });
            let before = match first {
                0 => Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 50_000).remote(&b, 0),
                1 => Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, 0, 8).atomic(&b, 0, 1, 0),
                2 => Wr::new(wr_opcode::ATOMIC_WRITE).local(&a, 0, 8).remote(&b, 0),
                _ => {
                    let mut wr = Wr::new(wr_opcode::FLUSH);
                    wr.raw.wr = WrOp { flush: range(b.mr.iova, b.mr.rkey, 8) };
                    wr
                }
            };
            net.post(&a, before.id(1));
            net.post(&a, write(&a, &b).key(b.mr.iova, b.mr.rkey ^ 0x55).id(2));
            let wc = net.wait(a.host, a.scq, 2);
            let got: Vec<_> = wc.iter().map(|w| (w.wr_id, w.status)).collect();
            let expected = [(1, wc_status::SUCCESS), (2, wc_status::REM_ACCESS_ERR)];
            assert_eq!(got, expected, "{way:?}, {first}");
            assert_eq!([net.state(&a), net.state(&b)], [qp_state::ERR; 2]);
        }
    }
}
