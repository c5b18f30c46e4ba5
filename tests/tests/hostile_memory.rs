//! Program memory that vanishes or changes while operations of every kind use it, beside traffic
//! that must not be affected.

use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{wc_opcode, wc_status, RecvWr, Sge};
use gdrcore_core::Error;
use gdrcore_tests::ends::{connected, connected_pair, pattern, succeed, End, Op, Shape};
use gdrcore_tests::map::{register, Map};
use gdrcore_tests::patience::deadline;
use gdrcore_tests::soft::{address, over_each, Soft};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;

fn receive_into(end: &End, wr_id: u64, piece: Sge) -> Result<(), Error> {
    let wr = RecvWr { wr_id, next: std::ptr::null(), sg_list: &piece, num_sge: 1 };
    let mut bad = std::ptr::null();
    // SAFETY: request and piece live on this stack frame until the call returns.
    unsafe { end.dev.post_recv(end.qp, &wr, &mut bad) }
}

/// The side whose memory vanishes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Whose {
    Requester,
    Responder,
}

/// The way in which it vanishes.
#[derive(Clone, Copy, Debug)]
enum How {
    Unmapped,
    Truncated,
}

/// Streams `op` through a mapping of one side, removes the mapping, and returns the first failures
/// of both ends.
fn stream_until_gone(
    x: &dyn Device,
    y: &dyn Device,
    op: Op,
    whose: Whose,
    how: How,
) -> (u32, Option<u32>) {
    const PIECE: u32 = 200_000;
    let shape = Shape { depth: 8, ..Shape::default() };
    let (mut a, mut b) = connected(x, y, shape).expect("connected ends");
    let (mut c, mut d) = connected_pair(x, y);
    let map = Map::new(LEN);
    let (mr, key) = register(if whose == Whose::Requester { &a } else { &b }, &map);
    let gone_piece = Sge { addr: map.addr() + 1000, length: PIECE, lkey: key };
    let local = if whose == Whose::Requester { gone_piece } else { a.piece(0, PIECE) };
    let remote = if whose == Whose::Responder { gone_piece } else { b.piece(0, PIECE) };
    if whose == Whose::Responder && !matches!(op, Op::Send(_)) {
        (a.peer.addr, a.peer.rkey) = (map.addr() + 1000, key);
    }
    let beside = pattern(1, 30_000);
    c.buffer.write(0, &beside);
    let end = deadline(60);
    let gone_at = Instant::now() + Duration::from_millis(15);
    let (mut posted, mut gone, mut rounds) = (0u64, false, 0u64);
    let (mut here, mut there) = (None, None);
    while here.is_none() {
        if matches!(op, Op::Send(_)) {
            while receive_into(&b, 7, remote).is_ok() {}
        }
        if a.post_wr(&a.request(posted, op, &[local])).is_ok() {
            posted += 1;
        }
        a.poll();
        b.poll();
        here = a.done.drain(..).map(|wc| wc.status).find(|&s| s != wc_status::SUCCESS);
        there = there.or(b.done.drain(..).map(|wc| wc.status).find(|&s| s != wc_status::SUCCESS));
        if c.done.is_empty() && rounds % 4 == 0 {
            // The pair beside must work meanwhile.
            c.post(rounds, Op::Write(0, None), 0, 30_000).expect("post_send");
            succeed(&mut c, &mut d, rounds);
        }
        rounds += 1;
        if !gone && Instant::now() > gone_at && posted > 4 {
            gone = true;
            match how {
                How::Unmapped => map.vanish(),
                How::Truncated => map.truncate(4096),
            }
        }
        assert!(Instant::now() < end, "{op:?} {whose:?} {how:?}: {posted} posted, no error");
    }
    assert!(gone, "{op:?} {whose:?}: failed before the memory vanished, with {here:?}");
    if here == Some(wc_status::RETRY_EXC_ERR) {
        // No caller expects this; both ends are at hand here for the message.
        println!(
            "{op:?} {whose:?} {how:?}: {:?} {:?}",
            a.dev.qp_counters(a.qp),
            a.dev.qp_query(a.qp)
        );
        println!(
            "{:?} {:?} {:?}",
            b.dev.qp_cause(b.qp),
            b.dev.qp_counters(b.qp),
            b.dev.qp_query(b.qp)
        );
    }
    for _ in 0..50 {
        a.poll();
        b.poll();
    }
    there = there.or(b.done.drain(..).map(|wc| wc.status).find(|&s| s != wc_status::SUCCESS));
    c.post(9, Op::Write(40_000, None), 0, 30_000).expect("post_send");
    succeed(&mut c, &mut d, 9);
    assert!(d.buffer.read(40_000, 30_000) == beside);
    let owner = if whose == Whose::Requester { &a } else { &b };
    owner.dev.mr_dereg(mr).expect("a region without memory can be deregistered");
    for e in [a, b, c, d] {
        e.destroy().expect("destroy");
    }
    (here.expect("an error"), there)
}

#[test]
fn memory_that_goes_under_traffic_is_an_error_of_that_qp() {
    for how in [How::Unmapped, How::Truncated] {
        for op in [Op::Write(0, None), Op::Read(0), Op::Send(None)] {
            over_each(|x, y| {
                let (here, _) = stream_until_gone(x, y, op, Whose::Requester, how);
                assert!(
                    [wc_status::LOC_PROT_ERR, wc_status::LOC_ACCESS_ERR].contains(&here),
                    "{op:?} {how:?}: {here}"
                );
                let (here, there) = stream_until_gone(x, y, op, Whose::Responder, how);
                assert!(
                    [wc_status::REM_OP_ERR, wc_status::REM_ACCESS_ERR].contains(&here),
                    "{op:?} {how:?}: {here} {there:?}"
                );
                if matches!(op, Op::Send(_)) {
                    // The owner of the buffer gets an error as well.
                    assert_eq!(there, Some(wc_status::LOC_PROT_ERR), "{op:?} {how:?}");
                }
            });
        }
    }
}

#[test]
fn memory_unmapped_for_good_is_an_error_too() {
    // munmap leaves a hole, not a page without access. No other test may map memory there
    // meanwhile.
    over_each(|x, y| {
        let (mut a, mut b) = connected_pair(x, y);
        let map = Map::apart(0, LEN);
        let (_, key) = register(&b, &map);
        (a.peer.addr, a.peer.rkey) = (map.addr(), key);
        a.post(1, Op::Write(0, None), 0, 300_000).expect("post_send");
        succeed(&mut a, &mut b, 1);
        drop(map);
        a.post(2, Op::FetchAdd(64, 1), 0, 8).expect("post_send");
        let wc = gdrcore_tests::ends::complete(&mut a, &mut b, 2, Duration::from_secs(10));
        assert!([wc_status::REM_OP_ERR, wc_status::REM_ACCESS_ERR].contains(&wc.status), "{wc:?}");
    });
}

fn byte<'e>(end: &'e End, offset: usize) -> &'e AtomicU8 {
    // SAFETY: inside the buffer, which lives as long as the end; the device writes with
    // atomic-sized stores, and this only loads.
    unsafe { AtomicU8::from_ptr(end.buffer.as_ptr().add(offset)) }
}

/// `op` writes into `into`, while a thread polls the last byte: when that has changed, all earlier
/// bytes must be there.
fn last_byte(x: &dyn Device, y: &dyn Device, op: Op) {
    let (mut a, mut b) = connected_pair(x, y);
    let end = deadline(60);
    for len in
        [1usize, 2, 5, 8, 9, 63, 64, 257, 1023, 1024, 1025, 4096, 5003, 65_536, 100_001, 1 << 20]
    {
        let rounds = if len > 50_000 { 4 } else { 30 };
        let value = |round: u64| round as u8 + 1;
        let (into, from) = if matches!(op, Op::Read(_)) { (&a, &b) } else { (&b, &a) };
        into.buffer.write(0, &vec![0; len]);
        let seen = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let seen = &seen;
            let watch = scope.spawn(move || {
                for round in 0..rounds {
                    while byte(into, len - 1).load(Ordering::Acquire) != value(round) {
                        assert!(Instant::now() < end, "length {len}, round {round}: nothing came");
                        std::thread::yield_now();
                    }
                    let missing = (0..len)
                        .rev()
                        .find(|&i| byte(into, i).load(Ordering::Relaxed) != value(round));
                    assert_eq!(missing, None, "{op:?}: length {len}, round {round}");
                    seen.store(round + 1, Ordering::Release);
                }
            });
            for round in 0..rounds {
                from.buffer.write(0, &vec![value(round); len]);
                if matches!(op, Op::Send(_)) {
                    b.post_recv(1000 + round, 0, len as u32).expect("post_recv");
                }
                a.post(round, op, 0, len as u32).expect("post_send");
                while seen.load(Ordering::Acquire) <= round && !watch.is_finished() {
                    a.dev.progress().expect("progress");
                    b.dev.progress().expect("progress");
                    std::thread::yield_now();
                }
            }
        });
        for round in 0..rounds {
            succeed(&mut a, &mut b, round);
        }
    }
}

#[test]
fn a_poller_of_the_last_byte_of_a_read_or_a_send_sees_all_earlier_ones() {
    for op in [Op::Read(0), Op::Send(None), Op::Write(0, None)] {
        over_each(|x, y| last_byte(x, y, op));
    }
}

#[test]
fn buffers_that_change_at_both_ends_never_cost_an_icrc_or_a_packet() {
    let (x, y) = (Soft::new(&address(1)), Soft::new(&address(2)));
    for op in [Op::Send(None), Op::Write(0, Some(1)), Op::Read(0), Op::FetchAdd(64, 1)] {
        let (mut a, mut b) = connected_pair(x.dev(), y.dev());
        let len = if matches!(op, Op::FetchAdd(..)) { 8 } else { 256 << 10 };
        let stop = AtomicBool::new(false);
        let bases = [a.buffer.addr() as usize, b.buffer.addr() as usize];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    n = n.wrapping_add(0x0101_0101);
                    for offset in (0..LEN).step_by(128) {
                        for base in bases {
                            // SAFETY: inside buffers of LEN bytes that outlive this scope; the
                            // device expects changes.
                            unsafe { std::ptr::write_volatile((base + offset) as *mut u64, n) };
                        }
                    }
                }
            });
            for round in 0..60 {
                let receives = matches!(op, Op::Send(_) | Op::Write(..));
                if receives {
                    b.post_recv(5000 + round, 0, 256 << 10).expect("post_recv");
                }
                a.post(round, op, 0, len).expect("post_send");
                succeed(&mut a, &mut b, round);
                assert!(b
                    .done
                    .drain(..)
                    .all(|wc| wc.status == wc_status::SUCCESS && wc.opcode & wc_opcode::RECV != 0));
            }
            stop.store(true, Ordering::Relaxed);
        });
        for dev in [x.dev(), y.dev()] {
            let c = dev.counters().expect("counters");
            assert_eq!((c.rcvd_icrc_err, c.rcvd_malformed, c.rcvd_refused), (0, 0, 0), "{op:?}");
        }
    }
}
