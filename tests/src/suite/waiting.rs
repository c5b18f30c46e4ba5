//! Behaviour cases of waiting: sleep on the descriptor, events of CQs and SRQs.

use super::{until, Bench, DeviceKind, End as Outcome};
use crate::cpu;
use crate::ends::{connect_both, connected_pair, succeed, End, Op, Shape};
use gdrcore_core::device::{async_event, SrqAttr};
use gdrcore_core::verbs::types::{qp_type, send_flags, QpCap, QpInit, RecvWr};
use gdrcore_core::Error;
use std::time::{Duration, Instant};

type Run = fn(Bench<'_>) -> Outcome;

/// The cases of this file.
pub const CASES: &[(&str, Run)] = &[
    ("waiting ends at its timeout", timeout),
    ("an armed CQ wakes a sleeper", armed),
    ("a CQ armed for solicited completions ignores others", solicited),
    ("an SRQ raises its limit event", srq_limit),
    ("progress never waits", progress),
    ("a completion channel gets the events of its own CQs", channel),
];

fn timeout(t: Bench<'_>) -> Outcome {
    // Events that earlier cases left: their queue pairs failed.
    while t.a.async_event().unwrap().is_some() || t.a.cq_event().unwrap().is_some() {}
    let start = Instant::now();
    assert_eq!(t.a.wait(60), Ok(false));
    assert!(start.elapsed() >= Duration::from_millis(55), "{:?}", start.elapsed());
    assert_eq!(t.a.wait(0), Ok(false));
    assert_eq!(t.a.cq_event(), Ok(None));
    assert_eq!(t.a.async_event(), Ok(None));
    Outcome::Passed
}

/// Whether the device's descriptor is readable now.
fn readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&mut poll, 1, 0) == 1 }
}

fn armed(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    for round in 0..5 {
        b.post_recv(100, 0, 64).unwrap();
        t.b.cq_arm(b.cq, false).unwrap();
        assert_eq!(t.b.cq_event(), Ok(None), "round {round}");
        a.post(1, Op::Send(None), 0, 64).unwrap();
        let mut woken = None;
        until("the event", || {
            // Both soft devices belong to this thread: the other one has to be run, too.
            a.poll();
            if t.b.wait(20) == Ok(true) {
                woken = t.b.cq_event().unwrap();
            }
            woken.is_some()
        });
        assert_eq!(woken, Some(b.cq));
        succeed(&mut b, &mut a, 100);
        succeed(&mut a, &mut b, 1);
    }
    // Completions of a CQ that is not armed wake no sleeper.
    b.post_recv(101, 0, 64).unwrap();
    a.post(2, Op::Send(None), 0, 64).unwrap();
    succeed(&mut a, &mut b, 2);
    succeed(&mut b, &mut a, 101);
    assert_eq!(t.b.cq_event(), Ok(None));
    t.b.cq_arm(b.cq, false).unwrap();
    b.post_recv(102, 0, 64).unwrap();
    a.post(3, Op::Send(None), 0, 64).unwrap();
    let fd = t.b.fd().unwrap();
    until("the descriptor", || {
        a.poll();
        t.b.arm().unwrap() || readable(fd)
    });
    // "Work" and a readable descriptor may both be about another packet than the SEND.
    until("the event", || {
        a.poll();
        t.b.progress().unwrap();
        t.b.cq_event().unwrap() == Some(b.cq)
    });
    succeed(&mut b, &mut a, 102);
    succeed(&mut a, &mut b, 3);
    a.destroy().unwrap();
    b.destroy().unwrap();
    Outcome::Passed
}

fn solicited(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    t.b.cq_arm(b.cq, true).unwrap();
    b.post_recv(100, 0, 64).unwrap();
    b.post_recv(101, 0, 64).unwrap();
    a.post(1, Op::Send(None), 0, 8).unwrap();
    until("the first SEND", || {
        a.poll();
        let _ = t.b.wait(5);
        !a.done.is_empty()
    });
    // A router arms a CQ for what its tenant does not sleep for, and a NIC's stays armed so.
    let early = t.kind == DeviceKind::RoutersNic && t.b.cq_event() == Ok(Some(b.cq));
    if early {
        t.b.cq_arm(b.cq, true).unwrap();
    }
    assert_eq!(t.b.cq_event(), Ok(None), "an unsolicited completion");
    let pieces = [a.piece(0, 8)];
    let mut wr = a.request(2, Op::Send(None), &pieces);
    wr.send_flags |= send_flags::SOLICITED;
    a.post_wr(&wr).unwrap();
    until("the event", || {
        a.poll();
        t.b.wait(20) == Ok(true) && t.b.cq_event().unwrap() == Some(b.cq)
    });
    succeed(&mut b, &mut a, 100);
    succeed(&mut b, &mut a, 101);
    succeed(&mut a, &mut b, 2);
    a.destroy().unwrap();
    b.destroy().unwrap();
    Outcome::Passed
}

fn srq_limit(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    let (srq, _) = t.b.srq_create(b.pd, &SrqAttr { max_wr: 16, max_sge: 1, srq_limit: 0 }).unwrap();
    t.b.qp_destroy(b.qp).unwrap();
    let cap = QpCap {
        max_send_wr: 4,
        max_recv_wr: 0,
        max_send_sge: 1,
        max_recv_sge: 0,
        max_inline_data: 0,
    };
    let init = QpInit {
        xrcd: 0,
        dc_key: 0,
        pd: b.pd,
        send_cq: b.cq,
        recv_cq: b.cq,
        srq,
        qp_type: qp_type::RC,
        sq_sig_all: 0,
        cap,
    };
    (b.qp, b.own.qpn, _) = t.b.qp_create(&init).unwrap();
    t.a.qp_modify(a.qp, &Default::default(), gdrcore_core::verbs::types::qp_attr_mask::STATE)
        .unwrap();
    connect_both(&mut b, &mut a);
    for i in 0..6u64 {
        let wr = RecvWr {
            wr_id: 100 + i,
            next: std::ptr::null(),
            sg_list: std::ptr::null(),
            num_sge: 0,
        };
        let mut bad = std::ptr::null();
        // SAFETY: a list of one on this stack frame.
        unsafe { t.b.post_srq_recv(srq, &wr, &mut bad) }.unwrap();
    }
    t.b.srq_modify(srq, 4).unwrap();
    let mut event = None;
    for i in 0..4 {
        a.post(i, Op::Send(None), 0, 0).unwrap();
        succeed(&mut a, &mut b, i);
        succeed(&mut b, &mut a, 100 + i);
        event = event.or(t.b.async_event().unwrap());
    }
    until("the event", || {
        event = event.or(t.b.async_event().unwrap());
        event.is_some()
    });
    let event = event.unwrap();
    assert_eq!((event.event, event.handle), (async_event::SRQ_LIMIT_REACHED, srq));
    a.destroy().unwrap();
    t.b.qp_destroy(b.qp).unwrap();
    t.b.srq_destroy(srq).unwrap();
    t.b.cq_destroy(b.cq).unwrap();
    t.b.mr_dereg(b.mr).unwrap();
    t.b.pd_dealloc(b.pd).unwrap();
    Outcome::Passed
}

fn progress(t: Bench<'_>) -> Outcome {
    let before = cpu::sleeps_of_thread();
    for _ in 0..1000 {
        t.a.progress().unwrap();
    }
    let slept = cpu::sleeps_of_thread() - before;
    assert!(slept < 100, "it slept {slept} times in 1000 calls");
    Outcome::Passed
}

fn channel(t: Bench<'_>) -> Outcome {
    let channels = [0, 1].map(|_| t.b.channel_create().unwrap());
    let mut a = End::new(t.a, Shape::default()).unwrap();
    let mut b = End::on_channel(t.b, Shape::default(), channels[0]).unwrap();
    let (to_a, to_b) = (a.own, b.own);
    a.connect(to_b).unwrap();
    b.connect(to_a).unwrap();
    for round in 0..5 {
        b.post_recv(100, 0, 64).unwrap();
        t.b.cq_arm(b.cq, false).unwrap();
        assert_eq!(t.b.channel_event(channels[0]), Ok(None), "round {round}");
        a.post(1, Op::Send(None), 0, 64).unwrap();
        let mut woken = None;
        until("the event", || {
            // Both soft devices belong to this thread: the other one has to be run, too.
            a.poll();
            woken = t.b.channel_wait(channels[0], 20).unwrap();
            woken.is_some()
        });
        assert_eq!(woken, Some(b.cq));
        assert!(!readable(t.b.channel_fd(channels[0]).unwrap()), "the event was taken");
        assert_eq!(
            (t.b.channel_event(channels[1]), t.b.cq_event()),
            (Ok(None), Ok(None)),
            "nobody else's"
        );
        succeed(&mut b, &mut a, 100);
        succeed(&mut a, &mut b, 1);
    }
    assert_eq!(t.b.channel_destroy(channels[0]), Err(Error::Busy));
    a.destroy().unwrap();
    b.destroy().unwrap();
    for channel in channels {
        t.b.channel_destroy(channel).unwrap();
        assert!(t.b.channel_event(channel).is_err(), "the channel is gone");
    }
    Outcome::Passed
}
