//! Behaviour cases of failures: what fails, how it is reported, and that nothing else is harmed.

use super::{until, Bench, End as Outcome};
use crate::ends::{complete, connected, connected_pair, succeed, End, Op, Shape};
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{
    qp_attr_mask as mask, qp_state, qp_type, send_flags, wc_status, wr_opcode, QpAttr, SendWr, Wc,
};
use gdrcore_core::Error;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

type Run = fn(Bench<'_>) -> Outcome;

/// The cases of this file.
pub const CASES: &[(&str, Run)] = &[
    ("a wrong remote key is refused, with a cause", wrong_rkey),
    ("a READ beyond the region is refused", beyond_region),
    ("a wrong local key fails at the requester", wrong_lkey),
    ("a message too long for its receive fails at both ends", too_long),
    ("no receive: the RNR retries run out", no_receive),
    ("a silent peer: the retries run out", silent_peer),
    ("ERR flushes what is outstanding", flush),
    ("a full queue refuses, and accepts again after polling", full_queue),
    ("bad_wr names the invalid request of a list", bad_requests),
    ("a list without end is refused", endless_list),
    ("a stale address handle is refused", stale_ah),
    ("two threads on one queue: each post is done or refused", two_threads),
    ("destroying an object that another thread uses is safe", destroyed_in_use),
];

const LONG: Duration = Duration::from_secs(60);

/// Ends after a failure: destroys both without further traffic.
fn finish(a: End<'_>, b: End<'_>) -> Outcome {
    a.destroy().expect("destroy a");
    b.destroy().expect("destroy b");
    Outcome::Passed
}

fn fails(a: &mut End<'_>, b: &mut End<'_>, wr_id: u64, status: u32) -> Wc {
    let wc = complete(a, b, wr_id, LONG);
    assert_eq!(wc.status, status, "{wc:?}");
    assert_ne!(wc.vendor_err, 0, "no cause in {wc:?}");
    wc
}

fn cause_is(e: &End<'_>, code: CauseCode) {
    let cause = e.dev.qp_cause(e.qp).unwrap();
    assert_eq!(CauseCode::from_u32(cause.code), Some(code), "{cause}");
    assert_eq!(cause.qpn, e.own.qpn, "{cause}");
    // On one device its peer may have failed later: a NIC tells of that by an event.
    let last = e.dev.last_cause().unwrap();
    assert!(last.code == cause.code || last.qpn != cause.qpn, "{last}, {cause}");
}

fn wrong_rkey(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    a.peer.rkey ^= 0x55;
    a.post(1, Op::Write(0, None), 0, 100).unwrap();
    a.post(2, Op::Write(0, None), 0, 100).unwrap();
    fails(&mut a, &mut b, 1, wc_status::REM_ACCESS_ERR);
    cause_is(&a, CauseCode::RemoteAccess);
    fails(&mut a, &mut b, 2, wc_status::WR_FLUSH_ERR);
    finish(a, b)
}

fn beyond_region(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    a.post(1, Op::Read((1 << 20) - 50), 0, 100).unwrap();
    fails(&mut a, &mut b, 1, wc_status::REM_ACCESS_ERR);
    finish(a, b)
}

fn wrong_lkey(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    let mut piece = a.piece(0, 100);
    piece.lkey ^= 0x5500;
    let pieces = [piece];
    a.post_wr(&a.request(1, Op::Write(0, None), &pieces)).unwrap();
    let wc = complete(&mut a, &mut b, 1, LONG);
    // Linux 6.1's rxe reports LOC_QP_OP_ERR.
    let of_rxe = t.kind.is_nic() && wc.status == wc_status::LOC_QP_OP_ERR;
    assert!(wc.status == wc_status::LOC_PROT_ERR || of_rxe, "{wc:?}");
    assert_eq!(b.buffer.read(0, 100), [0; 100]);
    finish(a, b)
}

fn too_long(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    b.post_recv(100, 0, 500).unwrap();
    a.post(1, Op::Send(None), 0, 5000).unwrap();
    let wc = complete(&mut a, &mut b, 1, LONG);
    // Linux 6.1's rxe sends another NAK code than the standard requires.
    let allowed = [wc_status::REM_INV_REQ_ERR, wc_status::REM_OP_ERR, wc_status::RETRY_EXC_ERR];
    assert!(wc.status == allowed[0] || (t.kind.is_nic() && allowed.contains(&wc.status)), "{wc:?}");
    let wc = complete(&mut b, &mut a, 100, LONG);
    let of_rxe = t.kind.is_nic() && wc.status == wc_status::LOC_QP_OP_ERR;
    assert!(wc.status == wc_status::LOC_LEN_ERR || of_rxe, "{wc:?}");
    finish(a, b)
}

fn no_receive(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) =
        connected(t.a, t.b, Shape { rnr_retry: 2, min_rnr_timer: 1, ..Shape::default() }).unwrap();
    a.post(1, Op::Send(None), 0, 64).unwrap();
    fails(&mut a, &mut b, 1, wc_status::RNR_RETRY_EXC_ERR);
    cause_is(&a, CauseCode::RnrRetryExceeded);
    finish(a, b)
}

fn silent_peer(t: Bench<'_>) -> Outcome {
    let (mut a, b) =
        connected(t.a, t.b, Shape { timeout: 10, retry_cnt: 2, ..Shape::default() }).unwrap();
    b.dev
        .qp_modify(b.qp, &QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() }, mask::STATE)
        .unwrap();
    let mut b = b;
    a.post(1, Op::Write(0, None), 0, 64).unwrap();
    fails(&mut a, &mut b, 1, wc_status::RETRY_EXC_ERR);
    // The soft device detects that a peer of its host is alive.
    let cause = CauseCode::from_u32(a.dev.qp_cause(a.qp).unwrap().code);
    assert!(matches!(cause, Some(CauseCode::RetryExceeded | CauseCode::Unanswered)), "{cause:?}");
    let text = a.dev.qp_cause(a.qp).unwrap().to_string();
    assert!(text.contains("silent") && text.contains("2 retries"), "{text}");
    finish(a, b)
}

fn flush(t: Bench<'_>) -> Outcome {
    let (mut a, b) = connected_pair(t.a, t.b);
    for i in 0..5 {
        a.post_recv(100 + i, 0, 64).unwrap();
    }
    a.dev
        .qp_modify(a.qp, &QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() }, mask::STATE)
        .unwrap();
    a.post(1, Op::Write(0, None), 0, 64).unwrap();
    until("6 flushed", || {
        a.poll();
        a.done.len() == 6
    });
    for wc in &a.done {
        assert_eq!(
            (wc.status, wc.vendor_err),
            (wc_status::WR_FLUSH_ERR, CauseCode::Flushed as u32),
            "{wc:?}"
        );
    }
    let mut order: Vec<u64> = a.done.iter().map(|wc| wc.wr_id).filter(|id| *id >= 100).collect();
    assert_eq!(order.len(), 5);
    order.dedup();
    assert_eq!(order, [100, 101, 102, 103, 104]);
    finish(a, b)
}

fn full_queue(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) =
        connected(t.a, t.b, Shape { depth: 8, cqe: 4096, ..Shape::default() }).unwrap();
    let mut posted = 0u64;
    // The peer has no receives, so the requests wait; queues may hold a few more than requested.
    let refused = loop {
        match a.post(posted, Op::Send(None), 0, 64) {
            Ok(()) => posted += 1,
            Err(e) => break e,
        }
        assert!(posted < 100_000, "the send queue has no limit");
    };
    assert_eq!(refused, Error::Again);
    assert!(posted >= 8, "{posted}");
    for i in 0..posted {
        b.post_recv(i, 0, 64).unwrap();
        succeed(&mut b, &mut a, i);
        succeed(&mut a, &mut b, i);
    }
    a.post(posted, Op::Write(0, None), 0, 64).unwrap();
    succeed(&mut a, &mut b, posted);
    let mut received = 0u64;
    // One more could find room: a router takes receives meanwhile.
    let refused = loop {
        match b.post_recv(received, 0, 64) {
            Ok(()) => received += 1,
            Err(e) => break e,
        }
        assert!(received < 100_000, "the receive queue has no limit");
    };
    assert_eq!(refused, Error::Again);
    assert!(received >= 8);
    finish(a, b)
}

fn bad_requests(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected_pair(t.a, t.b);
    let pieces = [a.piece(0, 8); 4];
    let good = a.request(1, Op::Write(0, None), &pieces[..1]);
    type Spoil = fn(&mut SendWr);
    let spoil: [(&str, Spoil); 7] = [
        ("an opcode that does not exist", |w| w.opcode = 200),
        ("an opcode of another transport", |w| w.opcode = 31),
        ("a negative number of pieces", |w| w.num_sge = -1),
        ("more pieces than the queue has", |w| w.num_sge = 10_000),
        ("the largest number of pieces", |w| w.num_sge = i32::MAX),
        ("pieces without a list", |w| w.sg_list = std::ptr::null()),
        ("a type of TCP offload", |w| w.opcode = 10),
    ];
    for (what, spoil) in spoil {
        let (mut first, mut second, third) = (good, good, good);
        (first.wr_id, second.wr_id) = (10, 11);
        spoil(&mut second);
        second.next = &third;
        first.next = &second;
        let mut bad = std::ptr::null();
        // SAFETY: the three requests live on this stack frame; their pieces too, or are not there.
        let refused = unsafe { a.dev.post_send(a.qp, &first, &mut bad) };
        assert_eq!(refused, Err(Error::Invalid), "{what}");
        assert!(std::ptr::eq(bad, &second), "{what}: bad_wr names another request");
        succeed(&mut a, &mut b, 10);
        a.poll();
        assert!(a.done.is_empty(), "{what}: {:?}", a.done);
    }
    // Inline data beyond the queue's limit, whose sum of lengths exceeds 32 bits.
    let mut huge = pieces;
    huge[0].length = 1 << 31;
    huge[1].length = 1 << 31;
    let mut wr = a.request(2, Op::Write(0, None), &huge);
    wr.send_flags |= send_flags::INLINE;
    assert_eq!(a.post_wr(&wr), Err(Error::MessageSize));
    let mut recv = gdrcore_core::verbs::types::RecvWr {
        wr_id: 1,
        next: std::ptr::null(),
        sg_list: pieces.as_ptr(),
        num_sge: -5,
    };
    for (n, list) in [(-5, pieces.as_ptr()), (10_000, pieces.as_ptr()), (1, std::ptr::null())] {
        (recv.num_sge, recv.sg_list) = (n, list);
        let mut bad = std::ptr::null();
        // SAFETY: the request lives on this stack frame.
        let posted = unsafe { b.dev.post_recv(b.qp, &recv, &mut bad) };
        assert_eq!(posted, Err(Error::Invalid), "{n} pieces");
        assert!(std::ptr::eq(bad, &recv));
    }
    finish(a, b)
}

fn endless_list(t: Bench<'_>) -> Outcome {
    let (a, b) = connected(t.a, t.b, Shape { depth: 16, ..Shape::default() }).unwrap();
    // Nothing is polled, so the queue fills.
    let pieces = [a.piece(0, 8)];
    let mut wr = a.request(1, Op::Write(0, None), &pieces);
    let own: *const _ = &wr;
    wr.next = own;
    let mut bad = std::ptr::null();
    // SAFETY: a list of one that leads to itself.
    let refused = unsafe { a.dev.post_send(a.qp, &wr, &mut bad) };
    assert_eq!(refused, Err(Error::Again));
    let mut recv = gdrcore_core::verbs::types::RecvWr {
        wr_id: 1,
        next: std::ptr::null(),
        sg_list: std::ptr::null(),
        num_sge: 0,
    };
    let own: *const _ = &recv;
    recv.next = own;
    let mut bad = std::ptr::null();
    // SAFETY: as above.
    assert_eq!(unsafe { b.dev.post_recv(b.qp, &recv, &mut bad) }, Err(Error::Again));
    finish(a, b)
}

fn stale_ah(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) =
        connected(t.a, t.b, Shape { qp_type: qp_type::UD, ..Shape::default() }).unwrap();
    let good = a.ah;
    let extra = a.dev.ah_create(a.pd, &b.own.ah).unwrap();
    a.dev.ah_destroy(extra).unwrap();
    for bad in [extra, 0, u64::MAX, 0x1000, a.qp, a.buffer.addr()] {
        a.ah = bad;
        if a.post(1, Op::Send(None), 0, 8).is_ok() {
            // A device may accept the request and fail it later; the QP then sends nothing more.
            let wc = complete(&mut a, &mut b, 1, LONG);
            assert_ne!(wc.status, wc_status::SUCCESS, "sent by the address handle {bad:#x}");
        }
    }
    a.ah = good;
    finish(a, b)
}

fn two_threads(t: Bench<'_>) -> Outcome {
    let (mut a, mut b) = connected(t.a, t.b, Shape { depth: 64, ..Shape::default() }).unwrap();
    let (dev, qp) = (a.dev, a.qp);
    let post = |count: &mut u64| {
        let mut wr = a.request(1, Op::Write(0, None), &[]);
        wr.opcode = wr_opcode::RDMA_WRITE;
        let mut bad = std::ptr::null();
        // SAFETY: a list of one on this stack frame.
        match unsafe { dev.post_send(qp, &wr, &mut bad) } {
            Ok(()) => *count += 1,
            Err(Error::Busy | Error::Again) => std::thread::yield_now(),
            Err(e) => panic!("{e}"),
        }
    };
    // Each thread gets half of the queue, however often it meets EBUSY; then both go on beyond the
    // queue's room.
    let reached = AtomicU32::new(0);
    let mut counts = [0u64; 2];
    std::thread::scope(|s| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                s.spawn(|| {
                    let mut n = 0;
                    until("half of the queue", || {
                        post(&mut n);
                        n == 32
                    });
                    reached.fetch_add(1, Ordering::AcqRel);
                    until("the other half", || reached.load(Ordering::Acquire) == 2);
                    for _ in 0..100 {
                        post(&mut n);
                    }
                    n
                })
            })
            .collect();
        for (n, thread) in counts.iter_mut().zip(threads) {
            *n = thread.join().unwrap();
        }
    });
    let posted: u64 = counts.iter().sum();
    assert!(posted >= 64, "{posted}");
    until("all completions", || {
        a.poll();
        b.poll();
        a.done.len() as u64 == posted
    });
    assert!(a.done.iter().all(|wc| wc.status == wc_status::SUCCESS));
    finish(a, b)
}

fn destroyed_in_use(t: Bench<'_>) -> Outcome {
    for _ in 0..10 {
        let (a, b) =
            connected(t.a, t.b, Shape { depth: 16, buffer: 4096, ..Shape::default() }).unwrap();
        let (dev, qp, cq) = (a.dev, a.qp, a.cq);
        let stop = AtomicBool::new(false);
        let posts = || {
            let wr = a.request(1, Op::Write(0, None), &[]);
            let mut bad = std::ptr::null();
            let mut wc = [Wc::default(); 4];
            while !stop.load(Ordering::Acquire) {
                // SAFETY: a list of one on this stack frame.
                let _ = unsafe { dev.post_send(qp, &wr, &mut bad) };
                let _ = dev.poll_cq(cq, &mut wc);
                let _ = dev.qp_query(qp);
                let _ = dev.cq_arm(cq, false);
            }
        };
        std::thread::scope(|s| {
            s.spawn(posts);
            std::thread::sleep(Duration::from_millis(2));
            // EBUSY means that another thread is inside the object now.
            let insist = |what: &str, destroy: &dyn Fn() -> Result<(), Error>| {
                let mut result = Err(Error::Busy);
                until(what, || {
                    result = destroy();
                    result != Err(Error::Busy)
                });
                result
            };
            let outcome = insist("the queue pair", &|| dev.qp_destroy(qp))
                .and(insist("the CQ", &|| dev.cq_destroy(cq)));
            stop.store(true, Ordering::Release);
            outcome.unwrap();
        });
        assert_eq!(dev.qp_query(qp).err(), Some(Error::StaleHandle));
        dev.mr_dereg(a.mr).unwrap();
        dev.pd_dealloc(a.pd).unwrap();
        b.destroy().unwrap();
    }
    Outcome::Passed
}
