//! A port that carries nothing for a while.

use gdrcore_core::config::config_flags;
use gdrcore_core::device::async_event;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;

use crate::util::*;

/// Longer than all retries of [`brief`].
const LONG: u64 = 2_000_000_000;

fn brief() -> Opts {
    Opts { timeout: 8, retry: 2, ..Opts::default() }
}

fn write(a: &End, b: &End) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 100).remote(b, 0)
}

/// A pair whose port is away while a write of the first end waits.
fn away(o: Opts) -> (Net, End, End) {
    let (mut net, a, b) = Net::pair(o);
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    net.lock(&a).begin_outage();
    net.post(&a, write(&a, &b).id(1));
    net.run(LONG);
    assert!(net.poll(a.host, a.scq).is_empty(), "silence cost a retry");
    (net, a, b)
}

#[test]
fn an_outage_costs_no_retry_and_all_is_sent_again_after_it() {
    let (mut net, a, _b) = away(brief());
    net.tap = None;
    let now = net.now;
    net.lock(&a).end_outage(now, now + LONG);
    net.settle();
    // Without a timer in between.
    let wc = net.poll(a.host, a.scq);
    assert_eq!((wc.len(), wc[0].wr_id, wc[0].status), (1, 1, wc_status::SUCCESS));
    assert_eq!(net.state(&a), qp_state::RTS);
}

#[test]
fn a_peer_that_comes_back_later_is_waited_for_and_no_longer() {
    let (mut net, a, _b) = away(brief());
    let now = net.now;
    net.lock(&a).end_outage(now, now + LONG);
    net.run(LONG - 1);
    assert!(net.poll(a.host, a.scq).is_empty(), "it is excused");
    let wc = net.wait(a.host, a.scq, 1)[0];
    assert_eq!(
        (wc.status, wc.vendor_err),
        (wc_status::RETRY_EXC_ERR, CauseCode::RetryExceeded as u32)
    );
    // All retries count again.
    assert!(net.now >= now + LONG + 2 * (4096 << 8));
}

#[test]
fn what_is_still_open_is_sent_again_by_each_call() {
    let (mut net, a, _b) = away(Opts { timeout: 20, ..brief() });
    let now = net.now;
    net.lock(&a).end_outage(now, now + LONG);
    net.settle();
    assert!(net.poll(a.host, a.scq).is_empty());
    net.tap = None;
    // Its own timer is seconds away.
    net.lock(&a).end_outage(now, now + LONG);
    net.settle();
    assert_eq!(net.poll(a.host, a.scq).len(), 1);
}

#[test]
fn a_port_that_stays_away_ends_requests_and_idle_queue_pairs_with_the_cause() {
    let (net, a, b) = away(brief());
    net.lock(&b).begin_outage();
    let now = net.now;
    net.lock(&a).fail_port(now, LONG);
    net.lock(&b).fail_port(now, LONG);
    let wc = net.poll(a.host, a.scq)[0];
    assert_eq!(
        (wc.status, wc.vendor_err),
        (wc_status::RETRY_EXC_ERR, CauseCode::RouterLost as u32)
    );
    let cause = net.lock(&a).qp_cause(a.qp).unwrap();
    assert_eq!((cause.code, cause.arg0), (CauseCode::RouterLost as u32, LONG));
    assert!(cause.to_string().contains("waited 2000 ms"), "{cause}");
    let event = net.lock(&b).take_async_event().unwrap();
    assert_eq!((event.event, event.handle), (async_event::QP_FATAL, b.qp));
}

#[test]
fn a_silent_loss_of_the_port_ends_requests_by_their_timers_with_the_cause() {
    let mut o = brief();
    o.config.flags |= config_flags::SILENT_LOSS;
    let (mut net, a, b) = away(o);
    let now = net.now;
    net.lock(&a).fail_port(now, LONG);
    net.lock(&b).fail_port(now, LONG);
    net.settle();
    assert!(net.poll(a.host, a.scq).is_empty() && net.lock(&b).take_async_event().is_none());
    let wc = net.wait(a.host, a.scq, 1)[0];
    assert_eq!(
        (wc.status, wc.vendor_err),
        (wc_status::RETRY_EXC_ERR, CauseCode::RouterLost as u32)
    );
}

#[test]
fn links_take_no_part_in_an_outage_of_the_port() {
    let (mut net, a, b) = Net::pair(Opts { way: Way::Link, ..brief() });
    net.lock(&a).begin_outage();
    net.ok(&a, write(&a, &b));
    let now = net.now;
    net.lock(&a).fail_port(now, LONG);
    net.ok(&a, write(&a, &b));
    assert!(net.lock(&a).take_async_event().is_none());
}
