//! Errors between two well-behaved ends: each error completes with its status, has a cause, and
//! affects no other queue pair.

use gdrcore_core::device::Device;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{access, qp_attr_mask, qp_state, wc_status, QpAttr, Wc};
use gdrcore_core::Error;
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::ends::{complete, connected, connected_pair, pattern, succeed, End, Op, Shape};
use gdrcore_tests::patience::run_until;
use gdrcore_tests::soft::{over_each, over_each_with};
use gdrcore_tests::traffic::received;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

/// Runs a test on two connected ends over each path, with a second pair beside them that must not
/// be affected.
fn beside_others(shape: Shape, test: impl Fn(&mut End, &mut End)) {
    over_each(|x, y| {
        let (mut a, mut b) = connected(x, y, shape).expect("connected ends");
        let (mut c, mut d) = connected_pair(x, y);
        test(&mut a, &mut b);
        let bytes = pattern(9, 5000);
        c.buffer.write(0, &bytes);
        c.post(1, Op::Write(0, None), 0, 5000).expect("post_send");
        succeed(&mut c, &mut d, 1);
        assert!(d.buffer.read(0, 5000) == bytes, "the pair beside was affected");
    });
}

/// `op` must fail with one of `statuses`; the requests behind it are flushed and the QP is in ERR.
fn fails(a: &mut End, b: &mut End, op: Op, len: u32, statuses: &[u32]) -> Wc {
    let before = b.buffer.read(0, b.shape.buffer);
    a.post(1, op, 0, len).expect("post_send");
    a.post(2, Op::Write(0, None), 0, 8).expect("post_send");
    let wc = complete(a, b, 1, SOON);
    assert!(statuses.contains(&wc.status), "{op:?}: {wc:?}, cause {:?}", a.cause());
    let flushed = complete(a, b, 2, SOON);
    assert_eq!(flushed.status, wc_status::WR_FLUSH_ERR, "{op:?}");
    assert_eq!(a.state(), qp_state::ERR, "{op:?}");
    assert!(a.cause() != CauseCode::None, "{op:?} left no cause");
    assert!(b.buffer.read(0, b.shape.buffer) == before, "{op:?} changed the target");
    wc
}

#[test]
fn a_wrong_rkey_is_refused() {
    beside_others(Shape::default(), |a, b| {
        a.peer.rkey ^= 0x5A;
        fails(a, b, Op::Write(0, None), 64, &[wc_status::REM_ACCESS_ERR]);
        assert_eq!(a.cause(), CauseCode::RemoteAccess);
        assert_eq!(b.cause(), CauseCode::PeerUsedBadKey);
    });
    beside_others(Shape::default(), |a, b| {
        a.peer.rkey = 0;
        fails(a, b, Op::Read(0), 64, &[wc_status::REM_ACCESS_ERR]);
    });
}

#[test]
fn a_range_outside_of_the_region_is_refused() {
    for offset in [(1 << 20) - 63, 1 << 20, u64::MAX - 7, 1 << 63, (-1i64) as u64] {
        beside_others(Shape::default(), |a, b| {
            fails(a, b, Op::Write(offset, None), 64, &[wc_status::REM_ACCESS_ERR]);
            assert_eq!(b.cause(), CauseCode::PeerLeftRange, "offset {offset:#x}");
        });
    }
}

#[test]
fn an_access_that_was_not_granted_is_refused() {
    let grants = [
        (Op::Write(0, None), access::LOCAL_WRITE | access::REMOTE_READ),
        (Op::Read(0), access::LOCAL_WRITE | access::REMOTE_WRITE),
        (Op::FetchAdd(0, 1), access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ),
        (Op::AtomicWrite(0), access::LOCAL_WRITE | access::REMOTE_ATOMIC | access::REMOTE_READ),
    ];
    for (op, access) in grants {
        beside_others(Shape { access, ..Shape::default() }, |a, b| {
            // The QP's flags refuse the operation, the region's flags the access.
            fails(a, b, op, 8, &[wc_status::REM_ACCESS_ERR, wc_status::REM_INV_REQ_ERR]);
        });
    }
}

#[test]
fn a_key_that_was_given_back_is_refused() {
    beside_others(Shape::default(), |a, b| {
        b.dev.mr_dereg(b.mr).expect("mr_dereg");
        fails(a, b, Op::Write(0, None), 64, &[wc_status::REM_ACCESS_ERR]);
    });
}

#[test]
fn a_key_of_another_protection_domain_is_refused() {
    beside_others(Shape::default(), |a, b| {
        // `a`'s own region, named to `b`, in whose protection domain it is not.
        (a.peer.addr, a.peer.rkey) = (a.own.addr, a.own.rkey);
        fails(a, b, Op::Write(0, None), 64, &[wc_status::REM_ACCESS_ERR]);
    });
}

#[test]
fn a_misaligned_atomic_is_refused() {
    for op in [Op::FetchAdd(4, 1), Op::CmpSwap(1, 0, 1), Op::AtomicWrite(4)] {
        beside_others(Shape::default(), |a, b| {
            fails(a, b, op, 8, &[wc_status::REM_INV_REQ_ERR, wc_status::REM_ACCESS_ERR]);
        });
    }
}

#[test]
fn a_message_longer_than_its_receive_buffer_fails_on_both_sides() {
    for length in [65, 4096, 100_000] {
        beside_others(Shape::default(), |a, b| {
            b.post_recv(7, 0, 64).expect("post_recv");
            a.post(1, Op::Send(None), 0, length).expect("post_send");
            assert_eq!(
                complete(a, b, 1, SOON).status,
                wc_status::REM_INV_REQ_ERR,
                "{length} bytes"
            );
            assert_eq!(complete(b, a, 7, SOON).status, wc_status::LOC_LEN_ERR, "{length} bytes");
            assert_eq!(b.cause(), CauseCode::MessageTooLong);
            assert_eq!((a.state(), b.state()), (qp_state::ERR, qp_state::ERR));
        });
    }
}

#[test]
fn without_a_receive_request_the_sender_waits_or_gives_up() {
    beside_others(Shape { rnr_retry: 2, min_rnr_timer: 5, ..Shape::default() }, |a, b| {
        fails(a, b, Op::Send(None), 64, &[wc_status::RNR_RETRY_EXC_ERR]);
        assert_eq!(a.cause(), CauseCode::RnrRetryExceeded);
        assert!(b.dev.qp_counters(b.qp).expect("counters").send_rnr_err >= 1);
    });
    beside_others(Shape { rnr_retry: 7, min_rnr_timer: 5, ..Shape::default() }, |a, b| {
        let bytes = pattern(4, 3000);
        a.buffer.write(0, &bytes);
        a.post(1, Op::Send(None), 0, 3000).expect("post_send");
        // More often than any retry count allows.
        run_until(60, "the receiver is not asked again", || {
            a.poll();
            b.poll();
            assert!(a.done.is_empty(), "{:?}", a.done);
            b.dev.qp_counters(b.qp).expect("counters").send_rnr_err >= 20
        });
        b.post_recv(7, 8192, 4096).expect("post_recv");
        assert_eq!(received(a, b, 7).byte_len, 3000);
        succeed(a, b, 1);
        assert!(b.buffer.read(8192, 3000) == bytes);
    });
}

#[test]
fn wrong_local_memory_fails_the_request_and_sends_nothing() {
    beside_others(Shape::default(), |a, b| {
        let mut piece = a.piece(0, 64);
        piece.lkey ^= 0x77;
        let wr = a.request(1, Op::Write(0, None), std::slice::from_ref(&piece));
        a.post_wr(&wr).expect("post_send");
        assert_eq!(complete(a, b, 1, SOON).status, wc_status::LOC_PROT_ERR);
        assert_eq!((a.cause(), a.state()), (CauseCode::LocalKey, qp_state::ERR));
    });
    beside_others(Shape::default(), |a, b| {
        let piece = a.piece(a.shape.buffer as u64 - 8, 64);
        let wr = a.request(1, Op::Send(None), std::slice::from_ref(&piece));
        a.post_wr(&wr).expect("post_send");
        let status = complete(a, b, 1, SOON).status;
        assert!([wc_status::LOC_PROT_ERR, wc_status::LOC_ACCESS_ERR].contains(&status), "{status}");
        assert_eq!(a.cause(), CauseCode::LocalRange);
    });
}

#[test]
fn a_message_longer_than_two_gibibytes_is_not_taken() {
    beside_others(Shape::default(), |a, b| {
        let pieces = [a.piece(0, u32::MAX), a.piece(0, u32::MAX)];
        let wr = a.request(1, Op::Write(0, None), &pieces);
        match a.post_wr(&wr) {
            Err(e) => assert!(matches!(e, Error::MessageSize | Error::Invalid), "{e}"),
            Ok(()) => {
                let status = complete(a, b, 1, SOON).status;
                assert!(
                    [wc_status::LOC_LEN_ERR, wc_status::LOC_PROT_ERR].contains(&status),
                    "{status}"
                );
            }
        }
    });
}

#[test]
fn a_peer_that_is_gone_costs_the_retries_and_no_more() {
    beside_others(Shape { timeout: 8, retry_cnt: 3, ..Shape::default() }, |a, b| {
        b.dev.qp_destroy(b.qp).expect("qp_destroy");
        a.post(1, Op::Write(0, None), 0, 64).expect("post_send");
        a.post(2, Op::Send(None), 0, 64).expect("post_send");
        assert_eq!(complete(a, b, 1, SOON).status, wc_status::RETRY_EXC_ERR);
        assert_eq!(complete(a, b, 2, SOON).status, wc_status::WR_FLUSH_ERR);
        // A device of the same process is known to be alive, except for a loopback device, which
        // has no peers.
        assert!(
            matches!(a.cause(), CauseCode::RetryExceeded | CauseCode::Unanswered),
            "{:?}",
            a.cause()
        );
        // One timeout for each try, and none for the requests behind.
        assert_eq!(a.dev.qp_counters(a.qp).expect("counters").retry_timeouts, 4);
        assert!(b.dev.counters().expect("counters").rcvd_no_qp >= 1);
    });
}

#[test]
fn without_an_ack_timeout_the_deadline_ends_the_operation() {
    let mut config = SoftConfig::default();
    config.core.deadline_ns = 300_000_000;
    over_each_with(&config, |x: &dyn Device, y: &dyn Device| {
        let (mut a, mut b) =
            connected(x, y, Shape { timeout: 0, ..Shape::default() }).expect("connected ends");
        b.dev.qp_destroy(b.qp).expect("qp_destroy");
        a.post(1, Op::Read(0), 0, 64).expect("post_send");
        // Without a deadline it would never end.
        let wc = complete(&mut a, &mut b, 1, SOON);
        assert!(
            [wc_status::RETRY_EXC_ERR, wc_status::RESP_TIMEOUT_ERR].contains(&wc.status),
            "{wc:?}"
        );
    });
}

#[test]
fn the_error_state_flushes_and_reset_discards() {
    beside_others(Shape::default(), |a, b| {
        for n in 0..5 {
            a.post_recv(n, 0, 64).expect("post_recv");
        }
        let to = |s| QpAttr { qp_state: s, ..QpAttr::default() };
        a.dev.qp_modify(a.qp, &to(qp_state::ERR), qp_attr_mask::STATE).expect("to ERR");
        for n in 0..5 {
            assert_eq!(complete(a, b, n, SOON).status, wc_status::WR_FLUSH_ERR);
        }
        a.post_recv(9, 0, 64).expect("a receive is taken in ERR, and flushed");
        assert_eq!(complete(a, b, 9, SOON).status, wc_status::WR_FLUSH_ERR);
        b.post_recv(1, 0, 64).expect("post_recv");
        b.dev.qp_modify(b.qp, &to(qp_state::RESET), qp_attr_mask::STATE).expect("to RESET");
        for _ in 0..100 {
            b.poll();
        }
        assert!(b.done.is_empty(), "RESET must not complete requests: {:?}", b.done);
    });
}
