//! Why a peer is silent, as the caller of the engine says it.

use gdrcore_core::roce::witness::Suspect;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;

use crate::util::*;

fn silent() -> (Net, End, End) {
    silent_for(8, 2)
}

fn silent_for(timeout: u8, retry: u8) -> (Net, End, End) {
    let (mut net, a, b) = Net::pair(Opts { timeout, retry, ..Opts::default() });
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    net.lock(&a).set_witness();
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(1).local(&a, 0, 100).remote(&b, 0));
    (net, a, b)
}

/// Runs until the request has ended; `say` is asked at each look.
fn until_failed(
    net: &mut Net,
    a: &End,
    mut say: impl FnMut(u32) -> Option<CauseCode>,
) -> (Wc, u32) {
    let mut looks = 0;
    for _ in 0..100_000 {
        net.run(100_000);
        let now = net.now;
        loop {
            let Some(Suspect { qi, peer, .. }) = net.lock(a).next_suspect() else { break };
            assert_eq!(peer.gid, net.hosts[1].addr.gid);
            looks += 1;
            let code = say(looks);
            net.lock(a).testify(now, qi, code);
        }
        if let Some(wc) = net.poll(a.host, a.scq).pop() {
            return (wc, looks);
        }
    }
    panic!("it does not end");
}

#[test]
fn who_never_reads_is_named_after_ten_looks() {
    let (mut net, a, _) = silent();
    let start = net.now;
    let (wc, looks) = until_failed(&mut net, &a, |_| Some(CauseCode::NotPolled));
    assert_eq!(
        (wc.status, wc.vendor_err, looks),
        (wc_status::RETRY_EXC_ERR, CauseCode::NotPolled as u32, 10)
    );
    assert!(net.now - start >= 3 * (4096 << 8) + 500_000_000, "{}", net.now - start);
    // As many timeouts as tries.
    assert_eq!(net.lock(&a).qp_counters(a.qp).unwrap().retry_timeouts, 3);
}

/// A NIC answers for a process that has no CPU. So the process of a peer that is known to live has
/// ten times as long as all tries of a request take, five seconds at most.
#[test]
fn a_peer_whose_process_lives_has_ten_times_as_long() {
    for (timeout, retry, looks_ns) in
        [(14, 7, 5_000_000_000u64), (13, 3, 10 * 4 * (4096 << 13)), (16, 7, 5_000_000_000)]
    {
        let (mut net, a, _) = silent_for(timeout, retry);
        let start = net.now;
        let (wc, looks) = until_failed(&mut net, &a, |_| Some(CauseCode::NotPolled));
        assert_eq!((wc.status, looks), (wc_status::RETRY_EXC_ERR, 10), "{timeout} {retry}");
        let tries = (u64::from(retry) + 1) * (4096 << timeout);
        let took = net.now - start;
        let all = tries + looks_ns;
        assert!((all..all + all / 50 + 1_000_000).contains(&took), "{timeout} {retry}: {took}");
    }
}

#[test]
fn who_is_known_otherwise_is_named_at_once() {
    for (at, code, expected) in [
        (1, Some(CauseCode::Unanswered), CauseCode::Unanswered),
        (3, Some(CauseCode::Unanswered), CauseCode::Unanswered),
        (1, None, CauseCode::RetryExceeded),
    ] {
        let (mut net, a, _) = silent();
        let say = |look| if look < at { Some(CauseCode::NotPolled) } else { code };
        let (wc, looks) = until_failed(&mut net, &a, say);
        assert_eq!(
            (wc.status, wc.vendor_err, looks),
            (wc_status::RETRY_EXC_ERR, expected as u32, at)
        );
    }
}

#[test]
fn a_witness_that_says_nothing_delays_the_end_and_no_more() {
    let (mut net, a, _) = silent();
    let start = net.now;
    let wc = net.wait(a.host, a.scq, 1)[0];
    assert_eq!(
        (wc.status, wc.vendor_err),
        (wc_status::RETRY_EXC_ERR, CauseCode::RetryExceeded as u32)
    );
    assert!(net.now - start < 3 * (4096 << 8) + 510_000_000);
}

#[test]
fn what_the_network_says_stands_against_the_witness() {
    let (mut net, a, _) = silent();
    // Once, before it is asked for the last time.
    net.run(1_200_000);
    let (now, to) = (net.now, net.hosts[1].addr);
    net.lock(&a).peer_unreachable(now, &to, 111);
    let (wc, looks) = until_failed(&mut net, &a, |_| Some(CauseCode::NotPolled));
    assert_eq!((wc.vendor_err, looks), (CauseCode::PeerUnreachable as u32, 1));
}

#[test]
fn a_suspect_that_is_heard_of_or_gone_is_none() {
    let (mut net, a, b) = silent();
    while !net.lock(&a).has_suspects() {
        net.run(100_000);
    }
    // The last answer was under way all the time.
    net.tap = None;
    net.lock(&a).next_suspect().expect("one");
    let now = net.now;
    net.lock(&a).testify(now, index(a.qp), Some(CauseCode::NotPolled));
    net.post(&b, Wr::new(wr_opcode::RDMA_WRITE).id(2).local(&b, 0, 100).remote(&a, 0));
    assert_eq!(net.wait(b.host, b.scq, 1)[0].status, wc_status::SUCCESS);
    let (mut net, a, _) = silent();
    while !net.lock(&a).has_suspects() {
        net.run(100_000);
    }
    net.lock(&a).qp_destroy(net.now, a.qp).unwrap();
    assert!(net.lock(&a).next_suspect().is_none() && !net.lock(&a).has_suspects());
}
