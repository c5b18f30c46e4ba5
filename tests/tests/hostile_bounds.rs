//! Limits: memory for rings, pools, CQs of one entry. Each gives an error or a wait, and work
//! continues.

use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{wc_opcode, wc_status, QpCap, QpInit};
use gdrcore_core::Error;
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::ends::{
    complete, connect_both, connected, pattern, succeed, Buffer, End, Op, Shape,
};
use gdrcore_tests::patience::{deadline, run_until};
use gdrcore_tests::soft::{over_each, Soft};
use std::time::{Duration, Instant};

#[test]
fn exhausted_ring_memory_is_refused_and_more_memory_lets_it_go_on() {
    let mut config = SoftConfig::default();
    (config.core.ring_bytes, config.core.max_qp, config.core.max_cq) = (64 << 10, 2, 2);
    // The device is dropped before the memory that it was given.
    let more: Vec<Buffer> = (0..3).map(|_| Buffer::new(1 << 20)).collect();
    let soft = Soft::open("loopback", &config).expect("loopback");
    let dev = soft.dev();
    let shape = Shape { depth: 64, cqe: 64, buffer: 4096, ..Shape::default() };
    let mut ends: Vec<End> = Vec::new();
    let mut given = more.iter();
    for _ in 0..40 {
        match End::new(dev, shape) {
            Ok(end) => ends.push(end),
            Err(e) => {
                assert_eq!(e, Error::NoMemory);
                // The failed creation has released everything; the existing ends still work.
                if let [a, b, ..] = &mut ends[..] {
                    let _ = a.connect(b.own).and_then(|()| b.connect(a.own));
                    a.post(1, Op::Write(0, None), 0, 100).expect("post_send");
                    succeed(a, b, 1);
                }
                let Some(memory) = given.next() else { break };
                // SAFETY: fresh memory that outlives the device.
                unsafe { dev.arena_add(memory.as_ptr(), 1 << 20) }.expect("arena_add");
                let end = End::new(dev, shape).expect("with more memory a creation must succeed");
                ends.push(end);
            }
        }
    }
    assert!(ends.len() > 8, "{} ends", ends.len());
    assert!(given.len() < 3, "the memory was never exhausted");
    let last = ends.len() - 1;
    let (left, right) = ends.split_at_mut(last);
    let (a, b) = (&mut left[last - 1], &mut right[0]);
    connect_both(a, b);
    a.post(2, Op::Write(0, None), 0, 100).expect("post_send");
    succeed(a, b, 2);
    ends.into_iter().for_each(|e| e.destroy().expect("destroy"));
    // SAFETY: refused before anything is done with it.
    assert!(unsafe { dev.arena_add(std::ptr::null_mut(), 1 << 20) }.is_err());
    // SAFETY: ten bytes of live memory, too few to be of use.
    assert!(unsafe { dev.arena_add(more[0].as_ptr(), 10) }.is_err());
}

#[test]
fn a_creation_that_fails_half_way_leaves_nothing_behind() {
    let mut config = SoftConfig::default();
    config.core.ring_bytes = 256 << 10;
    let soft = Soft::open("loopback", &config).expect("loopback");
    let dev = soft.dev();
    let pd = dev.pd_alloc().expect("pd");
    let (cq, _) = dev.cq_create(16).expect("cq");
    let before = dev.leaks().expect("leaks");
    let cap = |n| QpCap {
        max_send_wr: n,
        max_recv_wr: n,
        max_send_sge: 4,
        max_recv_sge: 4,
        max_inline_data: 64,
    };
    let init =
        |n| QpInit { pd, send_cq: cq, recv_cq: cq, qp_type: 2, cap: cap(n), ..QpInit::default() };
    for round in 0..500 {
        for depth in [8192, 1024, 1 << 16] {
            assert_eq!(
                dev.qp_create(&init(depth)).err(),
                Some(Error::NoMemory),
                "round {round}, depth {depth}"
            );
        }
        assert_eq!(dev.cq_create(1 << 20).err(), Some(Error::NoMemory));
        assert_eq!(dev.cq_resize(cq, 1 << 20).err(), Some(Error::NoMemory));
    }
    assert_eq!(dev.leaks().expect("leaks"), before);
    let (qp, ..) =
        dev.qp_create(&init(64)).expect("a queue pair that fits, after all the failures");
    dev.qp_destroy(qp).expect("qp_destroy");
    dev.cq_destroy(cq).expect("cq_destroy");
    dev.pd_dealloc(pd).expect("pd_dealloc");
}

#[test]
fn cqs_of_one_entry_carry_a_load_in_both_directions() {
    over_each(|x, y| {
        let shape = Shape { depth: 16, cqe: 1, buffer: 1 << 18, ..Shape::default() };
        let (mut a, mut b) = connected(x, y, shape).expect("connected ends");
        const TOTAL: u64 = 400;
        let mut posted = [0u64; 2];
        let mut received = [0u64; 2];
        let mut completed = [0u64; 2];
        for n in 0..8 {
            a.post_recv(1000 + n, 100_000, 50_000).expect("post_recv");
            b.post_recv(1000 + n, 100_000, 50_000).expect("post_recv");
        }
        let end = deadline(60);
        while received[0] < TOTAL
            || received[1] < TOTAL
            || completed[0] < TOTAL
            || completed[1] < TOTAL
        {
            for (side, e) in [&mut a, &mut b].into_iter().enumerate() {
                let len = [8, 1000, 40_000][(posted[side] % 3) as usize];
                if posted[side] < TOTAL && e.post(posted[side], Op::Send(None), 0, len).is_ok() {
                    posted[side] += 1;
                }
                e.poll();
                for wc in std::mem::take(&mut e.done) {
                    assert_eq!(wc.status, wc_status::SUCCESS, "{wc:?}, {:?}", e.dev.qp_cause(e.qp));
                    if wc.opcode & wc_opcode::RECV != 0 {
                        received[side] += 1;
                        e.post_recv(wc.wr_id, 100_000, 50_000).expect("post_recv");
                    } else {
                        assert_eq!(
                            wc.wr_id, completed[side],
                            "completions must come in order, each once"
                        );
                        completed[side] += 1;
                    }
                }
            }
            assert!(Instant::now() < end, "sent {completed:?}, received {received:?} of {TOTAL}");
        }
    });
}

/// Lets `b` receive the beginning of a message whose sender then disappears.
fn half_received(a: &End, b: &mut End) {
    b.post_recv(50, 0, 500_000).expect("post_recv");
    a.post(1, Op::Send(None), 0, 500_000).expect("post_send");
    run_until(60, "nothing arrived", || {
        b.dev.progress().expect("progress");
        b.dev.qp_counters(b.qp).expect("counters").rcvd_pkts != 0
    });
    a.dev.qp_destroy(a.qp).expect("qp_destroy");
}

#[test]
fn a_message_that_never_ends_does_not_keep_the_cq_from_others() {
    let (x, y) =
        (Soft::new(&gdrcore_tests::soft::address(1)), Soft::new(&gdrcore_tests::soft::address(2)));
    let shape = Shape { cqe: 1, timeout: 8, retry_cnt: 2, ..Shape::default() };
    let (a, mut b) = connected(x.dev(), y.dev(), shape).expect("connected ends");
    half_received(&a, &mut b);
    // The message's CQ entry stays reserved. The completion of a request of the same QP must still
    // be delivered.
    b.post(2, Op::Write(0, None), 0, 64).expect("post_send");
    assert_eq!(b.alone(2).status, wc_status::RETRY_EXC_ERR);
    assert_eq!(b.cause(), CauseCode::NotPolled);
    b.alone(50);
}

#[test]
fn a_message_that_never_ends_does_not_keep_the_cq_from_other_qps() {
    let (x, y) =
        (Soft::new(&gdrcore_tests::soft::address(1)), Soft::new(&gdrcore_tests::soft::address(2)));
    let shape = Shape { cqe: 1, ..Shape::default() };
    let (a, mut b) = connected(x.dev(), y.dev(), shape).expect("connected ends");
    // A second QP that uses the CQ of the first.
    let (mut c, mut d) =
        connected(x.dev(), y.dev(), Shape { cqe: 8, ..Shape::default() }).expect("connected ends");
    d.dev.qp_destroy(d.qp).expect("qp_destroy");
    let cap = QpCap {
        max_send_wr: 8,
        max_recv_wr: 8,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 0,
    };
    let init =
        QpInit { pd: d.pd, send_cq: b.cq, recv_cq: b.cq, qp_type: 2, cap, ..QpInit::default() };
    let (qp, qpn, _) = d.dev.qp_create(&init).expect("qp_create");
    (d.qp, d.own.qpn) = (qp, qpn);
    let shape = c.shape;
    drop(c);
    c = End::new(x.dev(), shape).expect("an end");
    connect_both(&mut c, &mut d);
    half_received(&a, &mut b);
    let bytes = pattern(4, 5000);
    d.buffer.write(0, &bytes);
    d.post(9, Op::Write(0, None), 0, 5000).expect("post_send");
    run_until(60, "the completion of the other QP was not delivered", || {
        b.poll();
        c.dev.progress().expect("progress");
        b.take(9).is_some()
    });
    assert!(c.buffer.read(0, 5000) == bytes);
}

#[test]
fn a_full_cq_delays_completions_of_errors_and_loses_none() {
    over_each(|x, y| {
        let shape = Shape { depth: 16, cqe: 1, ..Shape::default() };
        let (mut a, mut b) = connected(x, y, shape).expect("connected ends");
        for n in 0..16 {
            a.post_recv(100 + n, 0, 64).expect("post_recv");
        }
        a.peer.rkey ^= 1;
        for n in 0..16 {
            a.post(n, Op::Write(0, None), 0, 64).expect("post_send");
        }
        let first = complete(&mut a, &mut b, 0, Duration::from_secs(10));
        assert_eq!(first.status, wc_status::REM_ACCESS_ERR);
        for n in (1..16).chain(100..116) {
            assert_eq!(
                complete(&mut a, &mut b, n, Duration::from_secs(10)).status,
                wc_status::WR_FLUSH_ERR,
                "{n}"
            );
        }
        assert!(a.done.is_empty(), "{:?}", a.done);
    });
}
