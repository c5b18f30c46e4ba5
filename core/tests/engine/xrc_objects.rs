//! XRC's objects: domains, SRQs and both kinds of queue pairs, what holds them, and what their end
//! leaves.

use gdrcore_core::config::config_flags;
use gdrcore_core::device::SrqAttr;
use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;

use crate::packet_loss::all_but_first_of;
use crate::util::*;

fn xrc() -> Opts {
    Opts { kind: qp_type::XRC_SEND, ..Opts::default() }
}

const ATTR: SrqAttr = SrqAttr { max_wr: 8, max_sge: 1, srq_limit: 0 };

#[test]
fn domains_srqs_and_cqs_are_held_by_what_uses_them() {
    let (net, _, b) = Net::pair(xrc());
    let mut g = net.lock(&b);
    assert_eq!(err(g.xrcd_dealloc(b.xrcd)), Error::Busy);
    assert_eq!(err(g.cq_destroy(b.rcq)), Error::Busy);
    assert_eq!(err(g.pd_dealloc(b.pd)), Error::Busy);
    g.srq_destroy(net.now, b.srq).unwrap();
    assert_eq!(err(g.xrcd_dealloc(b.xrcd)), Error::Busy, "the target is in it");
    g.cq_destroy(b.rcq).unwrap();
    g.mr_dereg(b.mr_handle).unwrap();
    g.pd_dealloc(b.pd).unwrap();
    g.qp_destroy(net.now, b.qp).unwrap();
    g.xrcd_dealloc(b.xrcd).unwrap();
    assert_eq!(err(g.xrcd_dealloc(b.xrcd)), Error::StaleHandle);
    assert_eq!(err(g.srq_create_xrc(0, [b.pd, b.xrcd, b.rcq], &ATTR)), Error::StaleHandle);
}

#[test]
fn what_was_made_is_given_back() {
    let net = Net::new(1, &xrc());
    let free = |net: &Net| net.hosts[0].lock().free_bytes();
    let before = free(&net);
    for _ in 0..3 {
        let mut g = net.hosts[0].lock();
        let (pd, xrcd) = (g.pd_alloc().unwrap(), g.xrcd_alloc().unwrap());
        let (cq, _) = g.cq_create(8).unwrap();
        let (srq, _) = g.srq_create_xrc(0, [pd, xrcd, cq], &ATTR).unwrap();
        assert_eq!(g.srq_resize(srq, 64, None), Ok(64));
        let ini = QpInit { pd, send_cq: cq, qp_type: qp_type::XRC_SEND, ..QpInit::default() };
        let tgt = QpInit { xrcd, qp_type: qp_type::XRC_RECV, ..QpInit::default() };
        let qps = [ini, tgt].map(|init| g.qp_create(0, &init).unwrap().0);
        for qp in qps {
            g.qp_destroy(0, qp).unwrap();
        }
        g.srq_destroy(0, srq).unwrap();
        g.cq_destroy(cq).unwrap();
        g.xrcd_dealloc(xrcd).unwrap();
        g.pd_dealloc(pd).unwrap();
    }
    assert_eq!(free(&net), before);
    let leaks = net.hosts[0].lock().leaks();
    assert_eq!((leaks.pd, leaks.cq, leaks.qp, leaks.srq), (0, 0, 0, 0));
}

#[test]
fn queue_pairs_get_what_their_kind_has() {
    let (net, a, b) = Net::pair(xrc());
    let recv = recv_wr(1, &[]);
    for e in [&a, &b] {
        let mut bad = std::ptr::null();
        let engine = &net.hosts[e.host].engine;
        // SAFETY: the request lives through the call.
        assert_eq!(unsafe { engine.post_recv(e.qp, &recv, &mut bad) }, Err(Error::Invalid));
    }
    for op in 0..10 {
        let refused = net.try_post(&b, Wr::new(op).local(&b, 0, 8));
        assert_eq!(refused, Err(Error::Invalid), "a target sends nothing: {op}");
    }
    let cap = |e: &End| net.lock(e).qp_query(e.qp).unwrap().1.cap;
    assert_eq!((cap(&a).max_send_wr, cap(&a).max_recv_wr), (64, 0));
    assert_eq!(cap(&b), QpCap::default());
    // An SRQ of a domain serves its targets alone.
    let init = queue_pair(qp_type::RC, b.pd, [b.scq; 2], QpCap::default());
    let init = QpInit { srq: b.srq, ..init };
    assert_eq!(err(net.lock(&b).qp_create(0, &init)), Error::Invalid);
    let tgt = QpInit { xrcd: b.pd, qp_type: qp_type::XRC_RECV, ..QpInit::default() };
    assert_eq!(err(net.lock(&b).qp_create(0, &tgt)), Error::StaleHandle);
}

#[test]
fn an_srq_ends_under_a_message_and_its_cq_has_all_its_entries_again() {
    let (mut net, a, b) = Net::pair(Opts { cqe: 4, rq: 4, ..xrc() });
    for id in 1..4 {
        net.recv(&b, id, &[(0, 4096)]);
    }
    // Two completions stay in the CQ.
    net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 8));
    net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 8));
    // The rest of the message is lost, and comes when the SRQ is gone.
    net.tap = Some(Box::new(all_but_first_of(0)));
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 3000));
    net.settle();
    net.tap = None;
    net.lock(&b).srq_destroy(net.now, b.srq).unwrap();
    let wc = net.wait(a.host, a.scq, 1)[0];
    assert_eq!(wc.status, wc_status::REM_INV_REQ_ERR);
    assert_eq!(net.state(&b), qp_state::ERR);
    // Nothing of the CQ stays promised: it may be as small as what is in it.
    assert_eq!(net.lock(&b).cq_resize(b.rcq, 2), Ok(2));
    assert_eq!(net.poll(b.host, b.rcq).len(), 2);
    let mut g = net.lock(&b);
    g.cq_destroy(b.rcq).unwrap();
    g.qp_destroy(net.now, b.qp).unwrap();
    g.xrcd_dealloc(b.xrcd).unwrap();
}

#[test]
fn a_target_that_fails_flushes_the_receive_in_use() {
    let (mut net, a, b) = Net::pair(xrc());
    net.recv(&b, 7, &[(0, 4096)]);
    net.recv(&b, 8, &[(0, 4096)]);
    net.tap = Some(Box::new(all_but_first_of(0)));
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 3000));
    net.settle();
    net.to_state(&b, qp_state::ERR).unwrap();
    let wc = net.wait(b.host, b.rcq, 1)[0];
    assert_eq!((wc.wr_id, wc.status, wc.qp_num), (7, wc_status::WR_FLUSH_ERR, b.qpn));
    net.settle();
    assert!(net.poll(b.host, b.rcq).is_empty(), "the other one stays in the SRQ");
}

#[test]
fn a_reset_and_another_life() {
    let o = xrc();
    let (mut net, a, b) = Net::pair(o);
    for round in 0..3 {
        net.recv(&b, round, &[(0, 100)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 100));
        assert_eq!(net.wait(b.host, b.rcq, 1)[0].wr_id, round);
        for e in [&a, &b] {
            net.to_state(e, qp_state::RESET).unwrap();
        }
        net.connect(&a, &b, &o);
        net.connect(&b, &a, &o);
    }
}

#[test]
fn in_strict_mode_the_cq_of_an_srq_holds_its_requests_once() {
    let mut o = xrc();
    o.config.flags |= config_flags::STRICT_CQ;
    let net = Net::new(1, &o);
    let mut g = net.hosts[0].lock();
    let (pd, xrcd) = (g.pd_alloc().unwrap(), g.xrcd_alloc().unwrap());
    let (cq, _) = g.cq_create(16).unwrap();
    let (srq, _) = g.srq_create_xrc(0, [pd, xrcd, cq], &ATTR).unwrap();
    assert_eq!(g.srq_resize(srq, 32, None), Err(Error::Invalid));
    assert_eq!(g.srq_resize(srq, 16, None), Ok(16));
    assert_eq!(err(g.srq_create_xrc(0, [pd, xrcd, cq], &ATTR)), Error::Invalid);
    // Targets take no more of it, however many there are.
    let tgt = QpInit { xrcd, qp_type: qp_type::XRC_RECV, ..QpInit::default() };
    for _ in 0..3 {
        g.qp_create(0, &tgt).unwrap();
    }
    g.srq_destroy(0, srq).unwrap();
    g.srq_create_xrc(0, [pd, xrcd, cq], &SrqAttr { max_wr: 16, ..ATTR }).unwrap();
}
