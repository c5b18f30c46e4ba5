//! Queue pairs without an ACK timeout, on devices without a deadline: silence alone ends nothing.

use std::cell::Cell;
use std::rc::Rc;

use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::roce::witness::Suspect;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;

use crate::util::*;

const HOUR: u64 = 3_600_000_000_000;

fn endless(o: Opts) -> Opts {
    Opts { timeout: 0, retry: 0, ..o }
}

/// A WRITE to a peer from which nothing comes, until `cut` is false.
fn unanswered(o: Opts) -> (Net, End, End, Rc<Cell<bool>>) {
    let (mut net, a, b) = Net::pair(endless(o));
    let cut = Rc::new(Cell::new(true));
    let is_cut = cut.clone();
    net.tap = Some(Box::new(move |_, _| Fate::drop_if(is_cut.get())));
    net.lock(&a).set_witness();
    a.buf.write(0, &pattern(1, 100));
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(1).local(&a, 0, 100).remote(&b, 0));
    (net, a, b, cut)
}

fn expect_end(net: &mut Net, a: &End, code: CauseCode) {
    let wc = net.wait(a.host, a.scq, 1)[0];
    assert_eq!((wc.status, wc.vendor_err), (wc_status::RETRY_EXC_ERR, code as u32));
}

#[test]
fn a_request_waits_for_ever_and_ends_when_the_peer_is_back() {
    let (mut net, a, b, cut) = unanswered(Opts::default());
    for _ in 0..24 {
        net.run(HOUR);
        assert!(net.poll(a.host, a.scq).is_empty());
    }
    assert_eq!(net.state(&a), qp_state::RTS);
    cut.set(false);
    // Within the time between two probes, which does not grow for ever.
    net.run(20_000_000_000);
    let wc = net.poll(a.host, a.scq);
    assert_eq!((wc.len(), wc[0].status), (1, wc_status::SUCCESS));
    assert!(b.buf.read(0, 100) == pattern(1, 100));
}

#[test]
fn losses_are_repaired_without_a_timeout() {
    for op in [wr_opcode::RDMA_WRITE, wr_opcode::RDMA_READ, wr_opcode::SEND] {
        let (mut net, a, b) = Net::pair(endless(Opts::default()));
        let mut rng = Rng(5);
        net.tap = Some(Box::new(move |_, _| Fate::drop_if(rng.below(4) == 0)));
        for n in 0..20 {
            net.recv(&b, n, &[(0, 60_000)]);
            net.ok(&a, Wr::new(op).id(n).local(&a, 0, 50_000).remote(&b, 0));
        }
    }
}

#[test]
fn what_the_network_says_ends_a_request_only_if_the_witness_knows_it_too() {
    for (says, ends) in [
        (None, false),
        (Some(CauseCode::NotPolled), false),
        (Some(CauseCode::Unanswered), false),
        (Some(CauseCode::PeerUnreachable), true),
    ] {
        let (mut net, a, _, _cut) = unanswered(Opts::default());
        let to = net.hosts[1].addr;
        for _ in 0..3 {
            net.run(100_000_000);
            let now = net.now;
            net.lock(&a).peer_unreachable(now, &to, 111);
            let suspect = net.lock(&a).next_suspect();
            let Some(Suspect { qi, peer, .. }) = suspect else { break };
            assert_eq!(peer.gid, to.gid);
            net.lock(&a).testify(now, qi, says);
            // A flood of such messages asks the witness no more often.
            net.lock(&a).peer_unreachable(now, &to, 111);
            assert!(net.lock(&a).next_suspect().is_none());
        }
        if ends {
            expect_end(&mut net, &a, CauseCode::PeerUnreachable);
        } else {
            net.run(HOUR);
            assert_eq!(net.state(&a), qp_state::RTS);
        }
    }
}

/// Two ends over a link, whose loss is as silent as a cut wire.
fn silent_link(timeout: u8) -> (Net, End, End) {
    let config = Config { flags: config_flags::SILENT_LOSS, ..Opts::default().config };
    let o = Opts { way: Way::Link, config, ..Opts::default() };
    let (mut net, a, b) = Net::pair(Opts { timeout, ..endless(o) });
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    (net, a, b)
}

fn lose_link(net: &mut Net, a: &End) {
    let now = net.now;
    // Its number is that of the other host.
    net.lock(a).link_lost(now, 1);
}

#[test]
fn a_process_that_has_ended_is_not_waited_for() {
    // Before the request, or while it waits.
    for before in [true, false] {
        let (mut net, a, b) = silent_link(0);
        if before {
            lose_link(&mut net, &a);
            net.run(HOUR);
            assert_eq!(net.state(&a), qp_state::RTS, "idle: as on a NIC");
        }
        // Without a receive, so that it waits.
        net.post(&a, Wr::new(wr_opcode::SEND).id(1).local(&a, 0, 100));
        if !before {
            net.run(1_000_000);
            lose_link(&mut net, &a);
        }
        expect_end(&mut net, &a, CauseCode::PathLost);
        drop(b);
    }
}

#[test]
fn with_a_timeout_such_a_process_is_silent_until_that() {
    let (mut net, a, _b) = silent_link(14);
    lose_link(&mut net, &a);
    net.post(&a, Wr::new(wr_opcode::SEND).id(1).local(&a, 0, 100));
    net.run(60_000_000);
    assert!(net.poll(a.host, a.scq).is_empty());
    expect_end(&mut net, &a, CauseCode::RetryExceeded);
}

#[test]
fn the_keepalive_judges_a_peer_where_no_timeout_does() {
    let config = Config { keepalive_ns: 1_000_000_000, ..Opts::default().config };
    let (mut net, a, _, _cut) = unanswered(Opts { config, ..Opts::default() });
    net.run(10_000_000_000);
    assert_eq!(net.state(&a), qp_state::ERR);
    assert_eq!(net.lock(&a).qp_cause(a.qp).unwrap().code, CauseCode::Keepalive as u32);
}

#[test]
fn a_dc_initiator_waits_for_its_target_for_ever() {
    let (mut net, a, b) = Net::pair(endless(Opts { kind: qp_type::DCI, ..Opts::default() }));
    let cut = Rc::new(Cell::new(true));
    let is_cut = cut.clone();
    net.tap = Some(Box::new(move |_, _| Fate::drop_if(is_cut.get())));
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(1).local(&a, 0, 100).remote(&b, 0));
    net.run(HOUR);
    assert!(net.poll(a.host, a.scq).is_empty());
    cut.set(false);
    net.run(30_000_000_000);
    assert_eq!(net.poll(a.host, a.scq)[0].status, wc_status::SUCCESS);
}
