//! WRITEs by process_vm_writev(2): the kernel copies from one process into another. They have the
//! same effect as WRITEs through the ring, and happen only while both ends allow them and the keys
//! are valid.

use gdrcore_core::device::MrReg;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags, PathChoice, SoftConfig};
use gdrcore_tests::ends::{complete, connected, pattern, succeed, Buffer, End, Op, Shape};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::library;
use gdrcore_tests::patience::{self, deadline};
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
    let end = deadline(60);
    let mut n = 1 << 40;
    while carried(x) == before {
        n += 1;
        x.post(n, Op::Write(0, None), 0, LEAST as u32).expect("post_send");
        while x.take(n).is_none() {
            x.poll();
            others();
            assert!(Instant::now() < end, "no completion; cause {:?}", x.dev.qp_cause(x.qp));
        }
        assert!(Instant::now() < end, "never carried");
    }
}

/// Two ends; `x` has a grant by address of `y`'s memory.
fn lent(devices: &[Soft; 2]) -> (End<'_>, End<'_>) {
    let (mut x, mut y) = ends(devices);
    until_carried(&mut x, || {
        y.poll();
    });
    (x, y)
}

/// Runs only `x` until `wr_id` has completed.
fn alone(x: &mut End, wr_id: u64) -> Wc {
    let end = deadline(60);
    loop {
        x.poll();
        if let Some(wc) = x.take(wr_id) {
            return wc;
        }
        assert!(Instant::now() < end, "no completion; cause {:?}", x.dev.qp_cause(x.qp));
    }
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
        assert_eq!(alone(&mut x, seed).status, wc_status::SUCCESS);
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
    assert_eq!(alone(&mut x, 9).status, wc_status::SUCCESS);
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
            assert_eq!(alone(&mut x, round).status, wc_status::SUCCESS);
            spin_until(|| seen.load(Ordering::Acquire) >= round);
        }
        assert_eq!(carried(&x) - before, rounds);
    });
}

/// A name, and the action that ends the key.
type Ending<'a> = (&'a str, &'a dyn Fn(&End));

#[test]
fn a_key_that_has_ended_writes_nothing() {
    let modify =
        |end: &End, attr: QpAttr, mask| end.dev.qp_modify(end.qp, &attr, mask).expect("qp_modify");
    let ends: [Ending; 5] = [
        ("deregistered", &|y| y.dev.mr_dereg(y.mr).expect("mr_dereg")),
        ("no longer writable", &|y| {
            let attr = QpAttr { qp_access_flags: access::REMOTE_READ, ..QpAttr::default() };
            modify(y, attr, qp_attr_mask::ACCESS_FLAGS);
        }),
        ("in ERR", &|y| {
            modify(y, QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() }, qp_attr_mask::STATE)
        }),
        ("reset", &|y| while y.dev.qp_reset(y.qp) == Err(Error::Again) {}),
        ("destroyed", &|y| y.dev.qp_destroy(y.qp).expect("qp_destroy")),
    ];
    for (what, end) in ends {
        let devices = pair();
        let shape = Shape { buffer: BYTES, timeout: 8, retry_cnt: 1, ..Shape::default() };
        let (mut x, mut y) =
            connected(devices[0].dev(), devices[1].dev(), shape).expect("connected ends");
        until_carried(&mut x, || {
            y.poll();
        });
        let before = y.buffer.read(0, BYTES);
        x.buffer.write(0, &vec![0xa5; BYTES]);
        end(&y);
        // The key must be refused from the moment at which the call returns.
        x.post(9, Op::Write(0, None), 0, 300_000).expect("post_send");
        let wc = complete(&mut x, &mut y, 9, Duration::from_secs(20));
        assert_ne!(wc.status, wc_status::SUCCESS, "{what}");
        assert!(y.buffer.read(0, BYTES) == before, "{what}");
    }
}

#[test]
fn a_key_of_another_region_opens_only_that() {
    let devices = pair();
    let (mut x, mut y) = lent(&devices);
    let other = Buffer::new(BYTES);
    // The same key and addresses, with other memory.
    let reg = MrReg {
        pd: y.pd,
        addr: other.addr(),
        length: BYTES as u64,
        iova: y.attr.iova,
        access: y.shape.access,
        provider: 0,
        cookie: 0,
    };
    y.dev.mr_rereg(y.mr, &reg).expect("mr_rereg");
    let before = y.buffer.read(0, BYTES);
    x.buffer.write(0, &pattern(3, BYTES));
    x.post(1, Op::Write(0, None), 0, 100_000).expect("post_send");
    succeed(&mut x, &mut y, 1);
    assert!(other.read(0, 100_000) == pattern(3, 100_000));
    until_carried(&mut x, || {
        y.poll();
    });
    x.post(2, Op::Write(9, None), 9, 1 << 20).expect("post_send");
    succeed(&mut x, &mut y, 2);
    assert!(other.read(9, 1 << 20) == pattern(3, 9 + (1 << 20))[9..]);
    assert!(y.buffer.read(0, BYTES) == before);
    // Beyond the region nothing is written, whether one byte or all are outside: the responder
    // refuses.
    x.post(3, Op::Write((BYTES - LEAST + 1) as u64, None), 0, LEAST as u32).expect("post_send");
    assert_eq!(
        complete(&mut x, &mut y, 3, Duration::from_secs(20)).status,
        wc_status::REM_ACCESS_ERR
    );
    y.dev.mr_dereg(y.mr).expect("mr_dereg");
}

#[test]
fn a_context_that_was_closed_is_not_written() {
    let [near, far] = pair();
    let shape = Shape { buffer: BYTES, ..Shape::default() };
    let mut x = End::new(near.dev(), shape).expect("an end");
    let memory = {
        let mut y = End::new(far.dev(), shape).expect("an end");
        x.connect(y.own).and(y.connect(x.own)).expect("connected ends");
        until_carried(&mut x, || {
            y.poll();
        });
        y.buffer
    };
    let before = memory.read(0, BYTES);
    x.buffer.write(0, &vec![0xa5; BYTES]);
    // Drops the device with all of its objects.
    drop(far);
    x.post(9, Op::Write(0, None), 0, 300_000).expect("post_send");
    assert_ne!(alone(&mut x, 9).status, wc_status::SUCCESS);
    assert!(memory.read(0, BYTES) == before);
}

#[test]
fn memory_that_the_program_shares_is_mapped_instead() {
    let devices = pair();
    let (mut x, mut y) = ends(&devices);
    // SAFETY: a C string, no other pointers, a new descriptor, and a new mapping that lives as long
    // as the process.
    let (fd, addr) = unsafe {
        let fd =
            libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let fd = OwnedFd::from_raw_fd(fd);
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), BYTES as libc::off_t), 0);
        assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        let rw = libc::PROT_READ | libc::PROT_WRITE;
        let addr = libc::mmap(std::ptr::null_mut(), BYTES, rw, libc::MAP_SHARED, fd.as_raw_fd(), 0);
        assert_ne!(addr, libc::MAP_FAILED);
        (fd, addr.expose_provenance() as u64)
    };
    let access = y.shape.access;
    let reg =
        MrReg { pd: y.pd, addr, length: BYTES as u64, iova: addr, access, provider: 0, cookie: 0 };
    let (mr, attr) = y.dev.mr_reg(&reg).expect("mr_reg");
    (x.peer.addr, x.peer.rkey) = (attr.iova, attr.rkey);
    until_carried(&mut x, || {
        y.poll();
    });
    y.dev.mr_share(mr, fd.as_raw_fd(), 0).expect("mr_share");
    let (mapped, end) = (|x: &End| x.dev.counters().unwrap().mapped_writes, deadline(60));
    let before = carried(&x);
    while mapped(&x) == 0 {
        x.post(1, Op::Write(0, None), 0, LEAST as u32).expect("post_send");
        succeed(&mut x, &mut y, 1);
        assert!(Instant::now() < end, "never mapped");
    }
    x.post(2, Op::Write(0, None), 0, MIB).expect("post_send");
    succeed(&mut x, &mut y, 2);
    assert_eq!((mapped(&x), carried(&x)), (2, before));
}

/// Removes access to all pages of a buffer but the first, or restores it.
fn protect(buffer: &Buffer, from: usize, access: i32) {
    // SAFETY: whole pages of the buffer, whose bytes are only read by copies that mind faults.
    let rc = unsafe { libc::mprotect(buffer.as_ptr().add(from).cast(), BYTES - from, access) };
    assert_eq!(rc, 0);
}

#[test]
fn memory_that_vanishes_is_the_error_that_it_is_through_the_ring() {
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    for (of_target, gone) in [(true, 4096), (true, 1 << 20), (false, 4096), (false, 1 << 20)] {
        let statuses = [false, true].map(|cma| {
            let devices = [open(1, cma), open(2, cma)];
            let (mut x, mut y) = ends(&devices);
            if cma {
                until_carried(&mut x, || {
                    y.poll();
                });
            }
            protect(if of_target { &y.buffer } else { &x.buffer }, gone, libc::PROT_NONE);
            let before = carried(&x);
            x.post(1, Op::Write(0, None), 0, 2 << 20).expect("post_send");
            let wc = complete(&mut x, &mut y, 1, Duration::from_secs(20));
            protect(if of_target { &y.buffer } else { &x.buffer }, gone, rw);
            assert_eq!(carried(&x), before);
            (wc.status, wc.vendor_err)
        });
        assert_ne!(statuses[0].0, wc_status::SUCCESS, "{of_target} {gone}");
        assert_eq!(statuses[0], statuses[1], "{of_target} {gone}");
    }
}

const OPTIONS: [&str; 3] = ["path=shm", "cma=1", "buffer=4194304"];

/// An end here and one in another process, whose memory this one may write.
fn across<'d>(here: &'d Soft, far: &mut Far) -> End<'d> {
    let mut x = End::new(here.dev(), Shape { buffer: BYTES, ..Shape::default() }).expect("an end");
    far.connect(&mut x);
    until_carried(&mut x, || {});
    x
}

#[test]
fn another_process_is_written_also_while_it_is_stopped() {
    let (here, there) = (open(1, true), address(2));
    let mut far = Far::start(FAR, &there, &OPTIONS);
    let mut x = across(&here, &mut far);
    let read_back = |x: &mut End, seed: u64, len: usize| {
        x.post(2, Op::Read(3), 0, len as u32).expect("post_send");
        assert_eq!(alone(x, 2).status, wc_status::SUCCESS);
        assert!(x.buffer.read(0, len) == pattern(seed, len), "{seed}");
    };
    for (seed, len) in [(1, LEAST), (2, 100_001), (3, 3 << 20)] {
        let before = carried(&x);
        x.buffer.write(0, &pattern(seed, len));
        x.post(1, Op::Write(3, None), 0, len as u32).expect("post_send");
        assert_eq!(alone(&mut x, 1).status, wc_status::SUCCESS);
        assert_eq!(carried(&x), before + 1);
        read_back(&mut x, seed, len);
    }
    far.stop();
    let before = carried(&x);
    x.buffer.write(0, &pattern(4, MIB as usize));
    for _ in 0..100 {
        x.post(1, Op::Write(3, None), 0, MIB).expect("post_send");
        assert_eq!(alone(&mut x, 1).status, wc_status::SUCCESS);
    }
    assert_eq!(carried(&x), before + 100);
    far.signal(libc::SIGCONT);
    read_back(&mut x, 4, MIB as usize);
    assert!(far.finish(), "the far end did not close cleanly");
}

#[test]
fn a_process_that_is_killed_while_it_is_written_is_a_lost_path() {
    let (here, there) = (open(1, true), address(2));
    for _ in 0..3 {
        let mut far = Far::start(FAR, &there, &OPTIONS);
        let mut x = across(&here, &mut far);
        let (mut posted, mut moved, end) = (0u64, 0u64, deadline(60));
        let failed = 'stream: loop {
            while posted < moved + 8 && x.post(posted, Op::Write(0, None), 0, MIB).is_ok() {
                posted += 1;
            }
            x.poll();
            for wc in std::mem::take(&mut x.done) {
                if wc.status != wc_status::SUCCESS {
                    break 'stream wc;
                }
                moved += 1;
                if moved == 200 {
                    far.kill();
                }
            }
            assert!(Instant::now() < end, "the stream did not end");
        };
        assert!(moved >= 200, "the stream failed before the kill: {failed:?}");
        assert_eq!(failed.status, wc_status::RETRY_EXC_ERR);
        let cause = CauseCode::from_u32(x.dev.qp_cause(x.qp).expect("qp_cause").code);
        assert_eq!(cause, Some(CauseCode::PathLost));
    }
}

#[test]
fn a_stopped_writer_blocks_no_control_call() {
    let (here, there) = (open(1, true), address(2));
    for _ in 0..5 {
        let mut far = Far::start(FAR, &there, &[&OPTIONS[..], &["stream=write"]].concat());
        let mut x =
            End::new(here.dev(), Shape { buffer: BYTES, ..Shape::default() }).expect("an end");
        far.connect(&mut x);
        let end = deadline(60);
        // Waits until it has written some.
        let mut moved = 0;
        while moved < 8 {
            x.poll();
            moved += u32::from(far.said().is_some_and(|line| line.starts_with("moved")));
            assert!(Instant::now() < end, "nothing moves");
        }
        assert!(told(&mut far) > 0, "no WRITE bypassed the ring");
        far.stop();
        // Must return although the writer continues only later.
        let watch = patience::watch(60, "mr_dereg beside a writer that is stopped");
        x.dev.mr_dereg(x.mr).expect("mr_dereg");
        drop(watch);
        // A copy that the writer had begun may land before it, or not at all; the same for later
        // ones.
        std::thread::sleep(Duration::from_millis(20));
        let before = x.buffer.read(0, BYTES);
        x.buffer.write(0, &vec![0x5a; BYTES]);
        far.signal(libc::SIGCONT);
        while far.line(Duration::from_secs(20)).is_some_and(|line| !line.starts_with("failed")) {
            x.poll();
        }
        assert!(before.len() == BYTES && x.buffer.read(0, BYTES).iter().all(|&b| b == 0x5a));
    }
}

#[test]
fn perf_writes_so_and_finds_every_byte() {
    let perf = library::examples().join("perf/perf");
    let name = |n| format!("soft:{},path=auto,cma", loopback(76, n));
    let to = loopback(76, 1);
    let start = |args: &[&str]| Running::start(Command::new(&perf).args(args));
    let server = start(&["-k", "-d", &name(1), "-p", "19963"]);
    for test in [
        &["write", "bw", "-s", "300000", "-n", "500", "-C"][..],
        &["write", "bw", "-s", "65536", "-n", "3000", "-C", "-q", "4"],
        &["write", "bw", "-s", "5000000", "-n", "40", "-C", "-t", "4"],
        &["write", "lat", "-s", "100000", "-n", "500"],
        &["send", "bw", "-s", "100000", "-n", "500", "-C"],
        &["read", "bw", "-s", "300000", "-n", "50", "-C"],
    ] {
        let done = start(&[test, &["-d", &name(2), "-p", "19963", &to]].concat())
            .finish(Duration::from_secs(60));
        assert!(done.ok(), "{test:?}: {:?} {}", done.status, done.output);
    }
    drop(server);
    let done = start(&["-d", "127.0.0.1,path=udp,cma", "write", "bw", "127.0.0.1"])
        .finish(Duration::from_secs(60));
    assert!(!done.ok() && done.output.contains("',cma'"), "{}", done.output);
}

/// Number of WRITEs of another process that bypassed the ring so far.
fn told(far: &mut Far) -> u64 {
    far.say("tell");
    let end = deadline(60);
    loop {
        let said = far.line(Duration::from_secs(20)).expect("counters");
        if let Some(counters) = said.strip_prefix("counters ") {
            return counters.split(' ').nth(2).expect("three").parse().expect("a number");
        }
        assert!(Instant::now() < end);
    }
}

/// Runs two processes of another user; `dumpable` says whether others of that user may trace the
/// target. Returns how many of more than a thousand WRITEs bypassed the ring; more are made until
/// `wanted` of them did.
fn strangers(dumpable: &str, wanted: u64) -> u64 {
    let [mut from, mut to] = ["stream=write", "stream=read"].map(|stream| {
        let n = if stream == "stream=write" { 1 } else { 2 };
        // Only one of them streams, so only that one is started.
        Far::start(FAR, &address(n), &[&OPTIONS[..], &["user=65534", dumpable, stream]].concat())
    });
    from.connect_far(&mut to);
    from.say("go");
    let (mut lines, end) = (0, deadline(60));
    loop {
        let said = from.line(Duration::from_secs(60)).expect("it moves");
        assert!(said.starts_with("moved"), "{said}");
        lines += 1;
        if lines >= 20 {
            let carried = told(&mut from);
            if carried >= wanted || Instant::now() > end {
                return carried;
            }
        }
    }
}

#[test]
fn writes_that_the_kernel_forbids_use_the_ring() {
    // SAFETY: no pointers.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: only root can start processes of another user");
        return;
    }
    assert_eq!(
        strangers("dumpable=0", 0),
        0,
        "WRITEs that bypassed the ring, of more than a thousand"
    );
    let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if yama.is_empty() || yama.trim() == "0" {
        assert!(strangers("dumpable=1", 500) >= 500);
    } else {
        println!("skipped: Yama forbids a user's processes to write each other");
    }
}
