//! CQs that fail: those that are found full on a device that is strict about it, and what waits for
//! room in them.

use gdrcore_core::config::{Config, LoweredLimits};
use gdrcore_core::device::async_event;
use gdrcore_core::verbs::types::*;

use crate::util::*;

/// CQs of four entries, and receive queues of as many.
fn strict(kind: u32) -> (Net, End, End) {
    let o = Opts::default();
    let limits = LoweredLimits { cq_overrun: true, ..LoweredLimits::NONE };
    Net::pair(Opts { kind, cqe: 4, rq: 4, config: Config { limits, ..o.config }, ..o })
}

/// A message without a receive request completes nothing.
#[test]
fn only_a_completion_overruns_a_cq() {
    for kind in [qp_type::RC, qp_type::UD] {
        let (mut net, a, b) = strict(kind);
        let ah = net.ah(&a, &b);
        let send = || match kind {
            qp_type::UD => Wr::new(wr_opcode::SEND).local(&a, 0, 64).ud(ah, b.qpn, 0x1111),
            _ => Wr::new(wr_opcode::SEND).local(&a, 0, 64),
        };
        for id in 0..4 {
            net.recv(&b, id, &[(128 * id as usize, 128)]);
            net.ok(&a, send());
        }
        net.post(&a, send());
        net.run(1_000_000);
        assert_eq!(net.lock(&b).take_async_event(), None, "{kind}");
        assert_eq!(net.poll(b.host, b.rcq).len(), 4);
        net.recv(&b, 4, &[(0, 128)]);
        if kind == qp_type::UD {
            // The fifth one was dropped.
            net.post(&a, send());
        }
        let came = net.wait(b.host, b.rcq, 1);
        assert_eq!((came.len(), came[0].status), (1, wc_status::SUCCESS), "{kind}");
        net.poll(a.host, a.scq);
        // Four that are not polled, and one more.
        for id in 0..4 {
            net.recv(&b, id, &[(128 * id as usize, 128)]);
            net.ok(&a, send());
        }
        net.recv(&b, 4, &[(0, 128)]);
        net.post(&a, send());
        net.run(1_000_000);
        let event = net.lock(&b).take_async_event().expect("an event");
        assert_eq!((event.event, event.handle), (async_event::CQ_ERR, b.rcq), "{kind}");
    }
}

#[test]
fn a_flush_that_waits_for_a_cq_ends_when_that_fails() {
    let (mut net, a, _b) = Net::pair(Opts { cqe: 4, sq: 8, ..Opts::default() });
    net.to_state(&a, qp_state::ERR).unwrap();
    let is_posted = |net: &Net| net.try_post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 8)).is_ok();
    for _ in 0..4 + 8 {
        assert!(is_posted(&net));
        net.exchange();
    }
    assert!(!is_posted(&net), "the CQ is full, and the send queue");
    net.lock(&a).fail_cq_of(net.now, index(a.qp), 1);
    net.exchange();
    assert!(is_posted(&net));
    assert_eq!(net.poll(a.host, a.scq).len(), 4);
}
