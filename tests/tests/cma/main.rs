//! WRITEs by process_vm_writev(2): the kernel copies from one process into another. They have the
//! same effect as WRITEs through the ring, and happen only while both ends allow them and the keys
//! are valid.

mod permissions;
mod processes;

use gdrcore_core::device::MrReg;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags, PathChoice, SoftConfig};
use gdrcore_tests::ends::{complete, connected, pattern, succeed, Buffer, End, Op, Shape};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::library;
use gdrcore_tests::patience::{self, deadline, run_until, until};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{loopback, Running};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
/// The shortest WRITE that is copied by address.
const LEAST: usize = 64 << 10;
const BYTES: usize = 4 << 20;
const MIB: u32 = 1 << 20;

fn config(cma: bool) -> SoftConfig<'static> {
    let flags = if cma { soft_flags::CMA } else { 0 };
    SoftConfig { path: PathChoice::Shm, flags, ..SoftConfig::default() }
}

fn open(n: u8, cma: bool) -> Soft {
    Soft::open(&address(n), &config(cma)).unwrap_or_else(|e| panic!("{e}"))
}

fn pair() -> [Soft; 2] {
    [open(1, true), open(2, true)]
}

fn ends(devices: &[Soft; 2]) -> (End<'_>, End<'_>) {
    let shape = Shape { buffer: BYTES, ..Shape::default() };
    connected(devices[0].dev(), devices[1].dev(), shape).expect("connected ends")
}

fn carried(end: &End) -> u64 {
    end.dev.counters().expect("counters").carried_writes
}

/// Posts WRITEs of the least length until one bypasses the ring: the initiator requests the grant
/// beside the first of them.
fn until_carried(x: &mut End, mut others: impl FnMut()) {
    let before = carried(x);
    let mut n = 1 << 40;
    run_until(60, "never carried", || {
        n += 1;
        x.post(n, Op::Write(0, None), 0, LEAST as u32).expect("post_send");
        run_until(60, "no completion", || {
            x.poll();
            others();
            x.take(n).is_some()
        });
        carried(x) != before
    });
}

/// Two ends; `x` has a grant by address of `y`'s memory.
fn lent(devices: &[Soft; 2]) -> (End<'_>, End<'_>) {
    let (mut x, mut y) = ends(devices);
    until_carried(&mut x, || {
        y.poll();
    });
    (x, y)
}

#[test]
fn bytes_land_where_they_should_with_neither_a_packet_nor_the_target() {
    let devices = pair();
    let (mut x, y) = lent(&devices);
    for (seed, from, to, len) in [
        (1, 0, 0, LEAST),
        (2, 1, 3, LEAST + 1),
        (3, 7, 9, LEAST + 6),
        (4, 4093, 1, 100_003),
        (5, 3, 8, (256 << 10) + 3),
        (6, 0, 4095, 1 << 20),
        (7, 11, 5, (3 << 20) + 17),
        (8, 0, BYTES - LEAST, LEAST),
    ] {
        let count = |c: fn(&gdrcore_core::counters::Counters) -> u64, end: &End| {
            c(&end.dev.counters().unwrap())
        };
        let before = (count(|c| c.sent_pkts, &x), count(|c| c.rcvd_pkts, &y), carried(&x));
        y.buffer.write(0, &vec![0xa5; BYTES]);
        x.buffer.write(from, &pattern(seed, len));
        x.post(seed, Op::Write(to as u64, None), from as u64, len as u32).expect("post_send");
        assert_eq!(x.alone(seed).status, wc_status::SUCCESS);
        assert!(y.buffer.read(to, len) == pattern(seed, len), "{seed}");
        assert!(y.buffer.read(0, to).iter().all(|&b| b == 0xa5), "before {seed}");
        assert!(
            y.buffer.read(to + len, BYTES - to - len).iter().all(|&b| b == 0xa5),
            "behind {seed}"
        );
        let after = (count(|c| c.sent_pkts, &x), count(|c| c.rcvd_pkts, &y), carried(&x));
        assert_eq!(after, (before.0, before.1, before.2 + 1), "{seed}");
    }
    // Several scatter/gather entries, one of them empty.
    let pieces = [x.piece(5, 7), x.piece(100_000, 0), x.piece(200_001, 300_000), x.piece(1, 5)];
    x.buffer.write(0, &pattern(9, 1 << 20));
    let before = carried(&x);
    x.post_wr(&x.request(9, Op::Write(77, None), &pieces)).expect("post_send");
    assert_eq!(x.alone(9).status, wc_status::SUCCESS);
    let all = [x.buffer.read(5, 7), x.buffer.read(200_001, 300_000), x.buffer.read(1, 5)].concat();
    assert!(y.buffer.read(77, all.len()) == all);
    assert_eq!(carried(&x), before + 1);
    assert_eq!(x.dev.qp_counters(x.qp).unwrap().carried_writes, before + 1);
    assert_eq!(x.dev.counters().unwrap().mapped_writes, 0);
}

#[test]
fn shorter_ones_and_other_requests_go_through_the_ring() {
    let devices = pair();
    let (mut x, mut y) = lent(&devices);
    let before = carried(&x);
    x.buffer.write(0, &pattern(1, LEAST));
    y.post_recv(7, MIB.into(), MIB).expect("post_recv");
    for op in [Op::Write(5, None), Op::Write(5, Some(1)), Op::Read(0)] {
        let len = if matches!(op, Op::Write(_, None)) { LEAST - 1 } else { LEAST };
        x.post(1, op, 0, len as u32).expect("post_send");
        succeed(&mut x, &mut y, 1);
    }
    assert_eq!(carried(&x), before);
    assert!(y.buffer.read(5, LEAST - 1) == pattern(1, LEAST)[..LEAST - 1]);
}

#[test]
fn both_ends_choose() {
    for (near, far) in [(false, false), (true, false), (false, true), (true, true)] {
        let devices = [open(1, near), open(2, far)];
        let (mut x, mut y) = ends(&devices);
        let (end, wanted) = (deadline(60), near && far);
        let mut rounds = 0;
        // Long enough for several requests of a grant, and until one is made.
        while rounds < 1000 || wanted && (carried(&x) == 0 || carried(&y) == 0) {
            assert!(Instant::now() < end, "{} and {} carried", carried(&x), carried(&y));
            rounds += 1;
            x.post(1, Op::Write(0, None), 0, LEAST as u32).expect("post_send");
            succeed(&mut x, &mut y, 1);
            y.post(2, Op::Write(0, None), 0, LEAST as u32).expect("post_send");
            succeed(&mut y, &mut x, 2);
        }
        assert_eq!((carried(&x) > 0, carried(&y) > 0), (wanted, wanted), "{near} {far}");
    }
}

#[test]
fn later_requests_arrive_after_the_write() {
    let devices = pair();
    let (mut x, mut y) = lent(&devices);
    let before = carried(&x);
    for round in 0..500u64 {
        let len = LEAST + (round as usize * 7919) % 90_000;
        x.buffer.write(0, &pattern(round, len));
        y.post_recv(round, 1 << 20, 64).expect("post_recv");
        x.post(round, Op::Write(0, None), 0, len as u32).expect("post_send");
        x.post(round | 1 << 32, Op::Send(None), 0, 8).expect("post_send");
        succeed(&mut y, &mut x, round);
        assert!(y.buffer.read(0, len) == pattern(round, len), "round {round}");
        succeed(&mut x, &mut y, round | 1 << 32);
        x.take(round);
    }
    assert!(carried(&x) - before > 250, "{} of 500", carried(&x) - before);
}

/// Polls without a pause, as a program does; yields after a while, since the other thread may need
/// this CPU.
fn spin_until(mut is: impl FnMut() -> bool) {
    let mut looks = 0u32;
    while !is() {
        looks += 1;
        if looks % 4096 == 0 {
            std::thread::yield_now();
        }
    }
}

/// A program that polls the last byte must then see all bytes.
#[test]
fn the_last_word_is_stored_last() {
    let devices = pair();
    let (mut x, y) = lent(&devices);
    // Address and length differ in alignment, so that the last word is cut differently each time.
    let place = |round: u64| ((round % 11) as usize, LEAST + (round as usize * 1237) % 70_000);
    let (told, seen) = (AtomicU64::new(0), AtomicU64::new(0));
    let at = y.buffer.as_ptr().expose_provenance();
    let rounds = 3000;
    std::thread::scope(|scope| {
        let (told, seen) = (&told, &seen);
        scope.spawn(move || {
            let byte = |i: usize| {
                // SAFETY: inside the buffer, which lives longer than this thread; volatile, since
                // other threads write there.
                unsafe { std::ptr::with_exposed_provenance::<u8>(at + i).read_volatile() }
            };
            for round in 1..=rounds {
                spin_until(|| told.load(Ordering::Acquire) >= round);
                let (to, len) = place(round);
                let value = round as u8 | 1;
                let end = deadline(60);
                spin_until(|| {
                    assert!(Instant::now() < end, "round {round} never arrives");
                    byte(to + len - 1) == value
                });
                // Backwards: bytes that might come too late are next to the last one.
                let late = (0..len).rev().filter(|&i| byte(to + i) != value).count();
                // On a failure the writer is released as well, so that this thread's panic is
                // reported.
                seen.store(if late == 0 { round } else { u64::MAX }, Ordering::Release);
                assert_eq!(late, 0, "round {round}: bytes that came after the last one");
            }
        });
        let before = carried(&x);
        for round in 1..=rounds {
            let (to, len) = place(round);
            // The buffer holds no byte that this round will write.
            y.buffer.write(0, &vec![0; len + 16]);
            x.buffer.write(0, &vec![round as u8 | 1; len]);
            told.store(round, Ordering::Release);
            x.post(round, Op::Write(to as u64, None), 0, len as u32).expect("post_send");
            assert_eq!(x.alone(round).status, wc_status::SUCCESS);
            spin_until(|| seen.load(Ordering::Acquire) >= round);
        }
        assert_eq!(carried(&x) - before, rounds);
    });
}

/// A name, and the action that ends the key.
type Ending<'a> = (&'a str, &'a dyn Fn(&End));
