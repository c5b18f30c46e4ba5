//! Recovery in place: a QP that fails ten thousand times keeps its handle and number, leaks
//! nothing, and never affects its neighbours on the same devices.

use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{qp_attr_mask, qp_state, wc_status, QpAttr};
use gdrcore_core::Error;
use gdrcore_tests::ends::{complete, connect_both, connected, pattern, succeed, End, Op, Shape};
use gdrcore_tests::patience::run_until;
use gdrcore_tests::process::descriptors;
use gdrcore_tests::soft::over_each;
use std::time::{Duration, Instant};

/// Number of times that the QP is connected and fails.
const LIVES: u64 = 10_000;
/// Bytes of every WRITE.
const BYTES: usize = 3000;
/// Requests that are outstanding when it fails.
const LEFT: u64 = 6;

/// Resets an end; discards its completions and returns their number.
fn reset(end: &mut End) -> usize {
    let mut taken = 0;
    run_until(60, "the completions did not come", || {
        let done = end.dev.qp_reset(end.qp);
        while end.poll() > 0 {}
        taken += end.done.len();
        end.done.clear();
        assert!(matches!(done, Ok(()) | Err(Error::Again)), "{done:?}");
        done.is_ok()
    });
    taken
}

/// Connects two ends that are in RESET; their new PSNs are ahead of the former ones.
fn connect_again<'d>(a: &mut End<'d>, b: &mut End<'d>) {
    for end in [&mut *a, &mut *b] {
        let former = end.dev.qp_query(end.qp).expect("query").0.sq_psn;
        end.own.psn = (former + (1 << 16)) & 0xFF_FFFF;
    }
    connect_both(a, b);
}

fn write(a: &mut End, b: &mut End, id: u64, to: usize) {
    let bytes = pattern(id, BYTES);
    a.buffer.write(0, &bytes);
    a.post(id, Op::Write(to as u64, None), 0, BYTES as u32).expect("post_send");
    succeed(a, b, id);
    assert!(b.buffer.read(to, BYTES) == bytes, "WRITE {id}");
}

/// Makes the connection fail with requests outstanding on both sides, in one of several ways.
fn break_it(a: &mut End, b: &mut End, life: u64) {
    for i in 0..LEFT / 2 {
        a.post_recv(100 + i, 8192, 64).expect("post_recv");
    }
    let (op, len) = match life % 4 {
        // A key that never existed: both ends fail.
        0 => {
            a.peer.rkey ^= 0x5A00;
            (Op::Write(0, None), BYTES as u32)
        }
        // No receive is posted: the RNR retries run out.
        1 => (Op::Send(None), BYTES as u32),
        // Only the peer fails.
        2 => {
            let to_err = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
            b.dev.qp_modify(b.qp, &to_err, qp_attr_mask::STATE).expect("to ERR");
            (Op::Read(0), BYTES as u32)
        }
        // No failure.
        _ => (Op::FetchAdd(0, 1), 8),
    };
    for i in 0..LEFT / 2 {
        a.post(i, op, 4096, len).expect("post_send");
    }
    a.peer.rkey = b.own.rkey;
}

fn ten_thousand_lives<'d>(da: &'d dyn Device, db: &'d dyn Device) {
    let shape = Shape { depth: 8, cqe: 16, buffer: 16 << 10, ..Shape::default() };
    let (mut a, mut b) = connected(da, db, shape).expect("connected ends");
    let mut beside: Vec<_> =
        (0..2).map(|_| connected(da, db, shape).expect("connected ends")).collect();
    let (qp, qpn, leaks, mut open) = (a.qp, a.own.qpn, da.leaks().expect("leaks"), 0);
    let began = Instant::now();
    for life in 0..LIVES {
        break_it(&mut a, &mut b, life);
        let near = &mut beside[(life % 2) as usize];
        write(&mut near.0, &mut near.1, life, 8192);
        assert_eq!(reset(&mut a) as u64, LEFT, "life {life}: a completion for every request");
        assert_eq!(reset(&mut b), 0, "life {life}");
        connect_again(&mut a, &mut b);
        write(&mut a, &mut b, life, 8192);
        if life == LIVES / 10 {
            // By now each device has the connected socket to its peer that many bursts give it.
            open = descriptors(std::process::id());
        }
    }
    println!("{LIVES} lives in {:?}", began.elapsed());
    assert_eq!((a.qp, da.qp_num(a.qp).expect("number")), (qp, qpn));
    assert_eq!((da.leaks().expect("leaks"), descriptors(std::process::id())), (leaks, open));
    // Every slot of queues and CQ is usable: as many requests as fit complete without a poll.
    for i in 0..8 {
        a.post(i, Op::Write(8192, None), 0, BYTES as u32).expect("room in the send queue");
        a.post_recv(100 + i, 0, 64).expect("room in the receive queue");
    }
    assert_eq!(reset(&mut a), 16);
    for (near, far) in &mut beside {
        for end in [&mut *near, &mut *far] {
            assert_eq!(end.dev.qp_query(end.qp).expect("query").0.qp_state, qp_state::RTS);
            assert_eq!(end.dev.qp_counters(end.qp).expect("counters").rcvd_seq_err, 0);
        }
        write(near, far, 1, 0);
    }
    // No object was lost: as many QPs as the device supports can still be made.
    let count = |dev: &dyn Device| dev.leaks().expect("leaks").qp;
    let before = count(da);
    let more: Vec<End> = (0..20).map(|_| End::new(da, shape).expect("room for a QP")).collect();
    assert_eq!(count(da), before + 20);
    more.into_iter().chain([a, b]).chain(beside.into_iter().flat_map(|(x, y)| [x, y])).for_each(
        |end| {
            end.destroy().expect("destroy");
        },
    );
    assert_eq!((count(da), count(db)), (0, 0));
}

fn a_reset_qp_does_not_answer_until_it_is_connected(da: &dyn Device, db: &dyn Device) {
    let (mut a, mut b) =
        connected(da, db, Shape { timeout: 8, retry_cnt: 1, ..Shape::default() }).expect("ends");
    write(&mut a, &mut b, 1, 0);
    b.dev.qp_reset(b.qp).expect("nothing is outstanding");
    a.post(2, Op::Write(0, None), 0, 8).expect("post_send");
    assert_eq!(
        complete(&mut a, &mut b, 2, Duration::from_secs(10)).status,
        wc_status::RETRY_EXC_ERR
    );
    reset(&mut a);
    connect_again(&mut a, &mut b);
    write(&mut a, &mut b, 3, 0);
    a.destroy().and(b.destroy()).expect("destroy");
}

/// One test of its own, since descriptors are counted.
#[test]
fn a_qp_breaks_and_is_rebuilt() {
    over_each(|da, db| {
        a_reset_qp_does_not_answer_until_it_is_connected(da, db);
        ten_thousand_lives(da, db);
    });
}
