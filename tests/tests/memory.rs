//! Program memory at its worst: gone, cut, changing meanwhile, watched byte by byte.

use gdrcore_core::device::{Device, MrReg};
use gdrcore_core::verbs::types::{access, wc_status, Sge};
use gdrcore_tests::ends::{complete, connected, succeed, End, Op, Shape};
use gdrcore_tests::map::Map;
use gdrcore_tests::soft::{address, over_each, Soft};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::time::{Duration, Instant};

const LEN: usize = 1 << 20;
const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// What an access to vanished memory may end as, at the requester.
const REMOTE: [u32; 2] = [wc_status::REM_OP_ERR, wc_status::REM_ACCESS_ERR];
const LOCAL: [u32; 2] = [wc_status::LOC_PROT_ERR, wc_status::LOC_ACCESS_ERR];

/// Registers a mapping beside the end's own buffer; returns its key.
fn register(end: &End, map: &Map) -> (u64, u32) {
    let reg = MrReg {
        pd: end.pd,
        addr: map.addr(),
        length: LEN as u64,
        iova: map.addr(),
        access: ALL,
        provider: 0,
        cookie: 0,
    };
    let (mr, attr) = end.dev.mr_reg(&reg).expect("mr_reg");
    (mr, attr.rkey)
}

/// Lets `end` speak to a mapping of `peer` as if it were the peer's buffer.
fn aim(end: &mut End, map: &Map, key: u32) {
    end.peer.addr = map.addr();
    end.peer.rkey = key;
}

fn after(seconds: u64) -> Instant {
    Instant::now() + Duration::from_secs(seconds)
}

#[test]
fn an_unmapped_target_is_an_access_error_of_that_qp_only() {
    for (op, len) in [(Op::Write(0, None), 100_000), (Op::Read(0), 100_000), (Op::FetchAdd(0, 1), 8)] {
        over_each(|x, y| {
            let (mut a, mut b) = connected(x, y, Shape::default()).expect("connected ends");
            let (mut c, mut d) = connected(x, y, Shape::default()).expect("connected ends");
            let map = Map::new(LEN);
            let (mr, key) = register(&b, &map);
            aim(&mut a, &map, key);
            a.post(1, op, 0, len).expect("post_send");
            succeed(&mut a, &mut b, 1);
            map.vanish();
            a.post(2, op, 0, len).expect("post_send");
            let status = complete(&mut a, &mut b, 2, Duration::from_secs(10)).status;
            assert!(REMOTE.contains(&status), "{op:?}: {status}");
            c.post(3, Op::Write(0, None), 0, 5000).expect("post_send");
            succeed(&mut c, &mut d, 3);
            y.mr_dereg(mr).expect("a region without memory is given back like any other");
        });
    }
}

#[test]
fn unmapped_local_memory_is_an_error_of_that_request() {
    for op in [Op::Send(None), Op::Write(0, None), Op::Read(0)] {
        over_each(|x, y| {
            let (mut a, mut b) = connected(x, y, Shape::default()).expect("connected ends");
            let map = Map::new(LEN);
            let (_, key) = register(&a, &map);
            map.vanish();
            b.post_recv(9, 0, 100_000).expect("post_recv");
            let piece = [Sge { addr: map.addr(), length: 50_000, lkey: key }];
            a.post_wr(&a.request(1, op, &piece)).expect("post_send");
            let status = complete(&mut a, &mut b, 1, Duration::from_secs(10)).status;
            assert!(LOCAL.contains(&status), "{op:?}: {status}");
        });
    }
}

#[test]
fn a_truncated_file_under_a_region_is_an_error_not_sigbus() {
    over_each(|x, y| {
        let (mut a, mut b) = connected(x, y, Shape::default()).expect("connected ends");
        let map = Map::new(LEN);
        let (_, key) = register(&b, &map);
        aim(&mut a, &map, key);
        map.truncate(64 << 10);
        a.post(1, Op::Write(0, None), 0, 32 << 10).expect("post_send");
        succeed(&mut a, &mut b, 1);
        a.post(2, Op::Write(0, None), 0, 128 << 10).expect("post_send");
        let status = complete(&mut a, &mut b, 2, Duration::from_secs(10)).status;
        assert!(REMOTE.contains(&status), "{status}");
    });
}

#[test]
fn memory_that_vanishes_under_traffic_ends_in_an_error() {
    over_each(|x, y| {
        let (mut a, mut b) = connected(x, y, Shape { depth: 16, ..Shape::default() }).expect("connected ends");
        let map = Map::new(LEN);
        let (_, key) = register(&b, &map);
        aim(&mut a, &map, key);
        let end = after(20);
        let vanish_at = Instant::now() + Duration::from_millis(50);
        let (mut posted, mut gone) = (0u64, false);
        let failed = 'run: loop {
            if a.post(posted, Op::Write(0, None), 0, 256 << 10).is_ok() {
                posted += 1;
            }
            a.poll();
            b.poll();
            for wc in a.done.drain(..) {
                if wc.status != wc_status::SUCCESS {
                    break 'run wc;
                }
            }
            if !gone && Instant::now() > vanish_at {
                gone = true;
                map.vanish();
            }
            assert!(Instant::now() < end, "{posted} posted, no error");
        };
        assert!(gone && REMOTE.contains(&failed.status), "{failed:?}");
    });
}

/// One byte of memory that a device writes, as an atomic.
fn byte<'e>(end: &'e End, offset: usize) -> &'e AtomicU8 {
    // SAFETY: inside the buffer, which lives as long as the end; the device stores to it with atomic-sized stores and
    // this is never used but for loads.
    unsafe { AtomicU8::from_ptr(end.buffer.as_ptr().add(offset)) }
}

#[test]
fn who_polls_the_last_byte_sees_all_earlier_ones() {
    let loopback = Soft::new("loopback");
    last_byte(loopback.dev(), loopback.dev());
    let (x, y) = (Soft::new(&address(1)), Soft::new(&address(2)));
    last_byte(x.dev(), y.dev());
}

fn last_byte(x: &dyn Device, y: &dyn Device) {
    let (mut a, mut b) = connected(x, y, Shape::default()).expect("connected ends");
    let end = after(60);
    for len in [1usize, 2, 3, 7, 8, 9, 63, 64, 65, 1000, 1024, 1025, 4096, 5000, 65_536, 100_001, 512 << 10] {
        let rounds = if len > 50_000 { 10 } else { 60 };
        let value = |round: u64| round as u8 + 1;
        b.buffer.write(0, &vec![0; len]);
        let seen = AtomicU64::new(0);
        let (watched, seen) = (&b, &seen);
        std::thread::scope(|scope| {
            // The reader knows nothing of completions: it looks at the last byte, then at all others.
            let watch = scope.spawn(move || {
                for round in 0..rounds {
                    while byte(watched, len - 1).load(Ordering::Acquire) != value(round) {
                        assert!(Instant::now() < end, "length {len}, round {round}: nothing came");
                        std::thread::yield_now();
                    }
                    let missing = (0..len).rev().find(|&i| byte(watched, i).load(Ordering::Relaxed) != value(round));
                    assert_eq!(missing, None, "length {len}, round {round}");
                    seen.store(round + 1, Ordering::Release);
                }
            });
            for round in 0..rounds {
                a.buffer.write(0, &vec![value(round); len]);
                a.post(round, Op::Write(0, None), 0, len as u32).expect("post_send");
                while seen.load(Ordering::Acquire) <= round && !watch.is_finished() {
                    a.poll();
                    watched.dev.progress().expect("progress");
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
fn a_buffer_that_changes_while_it_travels_never_costs_an_icrc() {
    for op in [Op::Write(0, None), Op::Read(0)] {
        let (x, y) = (Soft::new(&address(1)), Soft::new(&address(2)));
        let (mut a, mut b) = connected(x.dev(), y.dev(), Shape::default()).expect("connected ends");
        let stop = AtomicBool::new(false);
        let (source_a, source_b) = (a.buffer.addr() as usize, b.buffer.addr() as usize);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut n = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    n = n.wrapping_add(1);
                    for offset in (0..LEN).step_by(256) {
                        for base in [source_a, source_b] {
                            // SAFETY: inside buffers of LEN bytes that outlive this scope; the device expects changes.
                            unsafe { std::ptr::write_volatile((base + offset) as *mut u64, n) };
                        }
                    }
                }
            });
            for round in 0..100 {
                a.post(round, op, 0, 256 << 10).expect("post_send");
                succeed(&mut a, &mut b, round);
            }
            stop.store(true, Ordering::Relaxed);
        });
        for dev in [x.dev(), y.dev()] {
            let c = dev.counters().expect("counters");
            assert_eq!((c.rcvd_icrc_err, c.rcvd_malformed), (0, 0), "{op:?}");
        }
    }
}
