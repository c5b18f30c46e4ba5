//! Keepalive of idle RC queue pairs.

use std::cell::Cell;
use std::rc::Rc;

use gdrcore_core::device::async_event;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::Config;

use crate::util::*;

const EVERY: u64 = 1_000_000_000;

fn watched(way: Way) -> Opts {
    let o = Opts::default();
    Opts { way, config: Config { keepalive_ns: EVERY, ..o.config }, ..o }
}

fn write(a: &End, b: &End) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 3000).remote(b, 0)
}

/// Questions that an end has asked.
fn asked(net: &Net, e: &End) -> u64 {
    net.lock(e).qp_counters(e.qp).unwrap().keepalives
}

#[test]
fn an_idle_connection_is_asked_about_and_nothing_of_it_changes() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(watched(way));
        net.recv(&b, 9, &[(0, 100)]);
        net.run(100 * EVERY);
        let questions = asked(&net, &a) + asked(&net, &b);
        // A question is a sign of life, too: a side that is asked before its own time need not ask.
        let expected = if way == Way::Loopback { 0..=0 } else { 90..=200 };
        assert!(expected.contains(&questions), "{way:?}: {questions}");
        net.only_events(&[(&a, None), (&b, None)]);
        for e in [&a, &b] {
            assert_eq!(net.state(e), qp_state::RTS, "{way:?}");
            assert!(net.poll(e.host, e.scq).is_empty() && net.poll(e.host, e.rcq).is_empty());
        }
        let counters = |e: &End| net.lock(e).qp_counters(e.qp).unwrap();
        let (x, y) = (counters(&a), counters(&b));
        assert_eq!(
            x.duplicate_request + y.duplicate_request,
            questions,
            "what the other side takes a question for"
        );
        assert_eq!((x.retry_timeouts + y.retry_timeouts, x.send_nak_err + y.send_nak_err), (0, 0));
        // The next messages are the first ones that count.
        a.buf.write(0, &pattern(1, 3000));
        net.ok(&a, write(&a, &b));
        assert!(b.buf.read(0, 3000) == pattern(1, 3000));
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 100));
        assert_eq!(net.wait(b.host, b.rcq, 1)[0].wr_id, 9);
        net.run(3 * EVERY);
        net.ok(&b, write(&b, &a));
    }
}

#[test]
fn psns_that_begin_at_zero_are_asked_about_by_the_last_one() {
    let o = watched(Way::Wire);
    let mut net = Net::new(2, &o);
    let (a, b) = (net.end(0, &o), net.end(1, &o));
    for (x, y) in [(&a, &b), (&b, &a)] {
        net.connect_at(x, y, &o, 0, 0);
    }
    net.run(10 * EVERY);
    assert!(asked(&net, &a) + asked(&net, &b) >= 9);
    net.ok(&a, write(&a, &b));
    net.ok(&b, write(&b, &a));
}

#[test]
fn a_peer_that_answers_nothing_ends_the_connection_with_a_cause() {
    for way in [Way::Wire, Way::Link] {
        let (mut net, a, b) = Net::pair(watched(way));
        net.recv(&a, 7, &[(0, 10)]);
        net.ok(&a, write(&a, &b));
        // Nobody there knows the queue pair any more.
        let began = net.now;
        net.lock(&b).qp_destroy(began, b.qp).unwrap();
        net.run(EVERY / 2);
        assert_eq!(net.state(&a), qp_state::RTS);
        let wc = net.wait(a.host, a.rcq, 1);
        assert_eq!((wc[0].wr_id, wc[0].status), (7, wc_status::WR_FLUSH_ERR), "{way:?}");
        // The interval, and eight ACK timeouts for eight questions.
        let took = net.now - began;
        let timeout = 4096u64 << Opts::default().timeout;
        assert!((EVERY..2 * EVERY + 16 * timeout).contains(&took), "{took}");
        let cause = net.lock(&a).qp_cause(a.qp).unwrap();
        assert_eq!((cause.code, cause.arg0, cause.arg1), (CauseCode::Keepalive as u32, EVERY, 8));
        assert_eq!(asked(&net, &a), 8);
        net.only_events(&[(&a, Some(async_event::QP_FATAL))]);
        assert!(!net.lock(&a).has_work());
        net.run(100 * EVERY);
        assert_eq!(asked(&net, &a), 8, "it is over");
    }
}

#[test]
fn lost_questions_and_answers_are_asked_again() {
    // The peer knows nothing of it.
    let o = watched(Way::Wire);
    let mut net = Net::new(1, &o);
    net.add(Host::new(&Opts::default().config, false, 2));
    let (a, b) = (net.end(0, &o), net.end(1, &o));
    net.connect(&a, &b, &o);
    net.connect(&b, &a, &o);
    let lost = Rc::new(Cell::new(0));
    let count = lost.clone();
    // Three of four questions, and then one of two answers.
    let mut sent = [0, 0];
    net.tap = Some(Box::new(move |from, _| {
        sent[from] += 1;
        if sent[from] % [4, 2][from] == 0 {
            return Fate::Deliver;
        }
        count.set(count.get() + 1);
        Fate::Drop
    }));
    net.run(30 * EVERY);
    assert!(lost.get() > 150 && asked(&net, &b) == 0, "{}", lost.get());
    net.tap = None;
    assert_eq!((net.state(&a), net.state(&b)), (qp_state::RTS, qp_state::RTS));
    net.ok(&a, write(&a, &b));
}

#[test]
fn without_the_option_nothing_is_sent() {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.run(10_000 * EVERY);
    assert_eq!(net.packets, 0);
    assert_eq!((net.state(&a), net.state(&b)), (qp_state::RTS, qp_state::RTS));
}

#[test]
fn what_is_busy_is_not_asked_about() {
    // 10 ms between two RNR NAKs: at the shortest wait their number would take minutes.
    let (mut net, a, b) = Net::pair(Opts { rnr_timer: 20, ..watched(Way::Wire) });
    for _ in 0..20 {
        net.ok(&a, write(&a, &b));
        net.run(EVERY / 2);
    }
    assert_eq!((asked(&net, &a), asked(&net, &b)), (0, 0));
    // A receiver that is not ready, for as long as it likes.
    net.post(&a, Wr::new(wr_opcode::SEND).id(5).local(&a, 0, 10));
    net.run(50 * EVERY);
    assert_eq!(asked(&net, &a), 0);
    net.recv(&b, 6, &[(0, 10)]);
    assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);
}

#[test]
fn what_the_network_says_meanwhile_is_the_cause() {
    let (mut net, a, b) = Net::pair(watched(Way::Wire));
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    let peer: PeerAddr = net.hosts[b.host].addr;
    // Said before anything was asked it is no explanation.
    let now = net.now;
    net.lock(&a).peer_unreachable(now, &peer, 111);
    net.run(EVERY + EVERY / 100);
    let now = net.now;
    assert!(asked(&net, &a) > 0 && net.state(&a) == qp_state::RTS);
    net.lock(&a).peer_unreachable(now, &peer, 113);
    net.run(EVERY);
    assert_eq!(net.state(&a), qp_state::ERR);
    let cause = net.lock(&a).qp_cause(a.qp).unwrap();
    assert_eq!((cause.code, cause.arg0), (CauseCode::PeerUnreachable as u32, 113));
    let other = net.lock(&b).qp_cause(b.qp).unwrap();
    assert_eq!(other.code, CauseCode::Keepalive as u32);
}

#[test]
fn a_connection_that_is_made_anew_is_watched_anew() {
    let o = watched(Way::Wire);
    let (mut net, a, b) = Net::pair(o);
    for _ in 0..3 {
        net.tap = Some(Box::new(|_, _| Fate::Drop));
        net.run(3 * EVERY);
        assert_eq!((net.state(&a), net.state(&b)), (qp_state::ERR, qp_state::ERR));
        net.tap = None;
        for e in [&a, &b] {
            net.to_state(e, qp_state::RESET).unwrap();
        }
        let before = asked(&net, &a) + asked(&net, &b);
        net.run(10 * EVERY);
        assert_eq!(asked(&net, &a) + asked(&net, &b), before, "in RESET nobody asks");
        net.connect(&a, &b, &o);
        net.connect(&b, &a, &o);
        net.ok(&a, write(&a, &b));
        net.run(10 * EVERY);
        assert!(asked(&net, &a) + asked(&net, &b) > before);
        assert_eq!((net.state(&a), net.state(&b)), (qp_state::RTS, qp_state::RTS));
    }
}
