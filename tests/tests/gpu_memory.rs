//! GPU memory on the soft device: every operation over every path, with slow copies, and every
//! failure. Uses the machine's GPU where there is one, else the fake driver, whose device memory
//! the CPU cannot access.

use gdrcore_core::device::MrReg;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{access, qp_type, wc_opcode, wc_status, Handle, RecvWr, Sge};
use gdrcore_core::Error;
use gdrcore_cuda::device::Device;
use gdrcore_cuda::memory::{self, Kind};
use gdrcore_cuda::span::Span;
use gdrcore_cuda::staging::Staging;
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::cuda::{self, Driver, Stat};
use gdrcore_tests::ends::{complete, connected, pattern, succeed, End, Op, Shape};
use gdrcore_tests::skip;
use gdrcore_tests::soft::{address, Soft};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const ALL: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// One test at a time: a failure set in the fake driver affects all tests.
fn alone() -> (MutexGuard<'static, ()>, Driver) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = cuda::driver();
    if driver == Driver::Fake {
        cuda::lose(0);
        cuda::option("FAKECUDA_DELAY_US", 20);
        cuda::option("FAKECUDA_DMABUF", 1);
        cuda::option("FAKECUDA_VMM", 1);
    }
    (guard, driver)
}

/// A soft device with a GPU memory provider.
struct Gpu {
    soft: Soft,
    staging: &'static Staging,
}

impl Gpu {
    fn new(soft: Soft) -> Gpu {
        let device = Device::get(0).expect("the first GPU");
        let staging: &'static Staging =
            Box::leak(Box::new(Staging::new(device).expect("pinned memory")));
        soft.soft().memory_add(1, staging).expect("the first kind of memory");
        Gpu { soft, staging }
    }

    fn register(&self, end: &End, at: u64, length: u64) -> Region {
        let span = Span::of(at, length).expect("device memory");
        let cookie = self.staging.register(&span).expect("a region");
        let reg =
            MrReg { pd: end.pd, addr: at, length, iova: at, access: ALL, provider: 1, cookie };
        let (mr, attr) = end.dev.mr_reg(&reg).expect("mr_reg");
        Region { at, mr, key: attr.lkey, cookie }
    }

    fn alloc(&self, end: &End, length: usize) -> Region {
        let at = memory::alloc(Device::get(0).unwrap(), length, Kind::Plain).expect("GPU memory");
        self.register(end, at, length as u64)
    }

    fn forget(&self, end: &End, region: &Region) {
        end.dev.mr_dereg(region.mr).expect("mr_dereg");
        self.staging.release(region.cookie);
    }
}

struct Region {
    at: u64,
    mr: Handle,
    key: u32,
    cookie: u64,
}

impl Region {
    fn piece(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.at + offset, length, lkey: self.key }
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        memory::copy_in(self.at + offset as u64, bytes).expect("copy_in");
    }

    fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        memory::copy_out(self.at + offset as u64, &mut bytes).expect("copy_out");
        bytes
    }
}

fn aim(end: &mut End, region: &Region) {
    (end.peer.addr, end.peer.rkey) = (region.at, region.key);
}

/// Runs `test` with both ends on loopback, over UDP and over shared memory.
fn over_each(test: impl Fn(&Gpu, &Gpu, &str)) {
    let one = Gpu::new(Soft::new("loopback"));
    test(&one, &one, "loopback");
    let (a, b) = (Gpu::new(Soft::new(&address(1))), Gpu::new(Soft::new(&address(2))));
    test(&a, &b, "udp");
    drop((a, b));
    let config = SoftConfig { path: PathChoice::Shm, ..SoftConfig::default() };
    let open = |n| Gpu::new(Soft::open(&address(n), &config).expect("a device over shared memory"));
    let (a, b) = (open(3), open(4));
    test(&a, &b, "shm");
}

#[test]
fn every_operation_moves_every_byte_between_gpus() {
    let (_alone, driver) = alone();
    over_each(|x, y, port| {
        let (mut a, mut b) =
            connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
        const LEN: usize = 3 << 20;
        let (here, there) = (x.alloc(&a, LEN), y.alloc(&b, LEN));
        aim(&mut a, &there);
        let mut id = 0;
        for (round, len) in [1usize, 7, 8, 1024, 4097, 65_536, 131_072, 131_073, 1_000_003, LEN]
            .into_iter()
            .enumerate()
        {
            let bytes = pattern(round as u64 + 1, len);
            let at = (LEN - len) / 3;
            here.write(at, &bytes);
            a.post_wr(&a.request(
                id,
                Op::Write(at as u64, None),
                &[here.piece(at as u64, len as u32)],
            ))
            .unwrap();
            succeed(&mut a, &mut b, id);
            assert!(there.read(at, len) == bytes, "{port}: WRITE of {len}");
            memory::fill(here.at, 0xEE, LEN).unwrap();
            a.post_wr(&a.request(
                id + 1,
                Op::Read(at as u64),
                &[here.piece(at as u64, len as u32)],
            ))
            .unwrap();
            succeed(&mut a, &mut b, id + 1);
            assert!(here.read(at, len) == bytes, "{port}: READ of {len}");
            assert!(
                at == 0 || here.read(at - 1, 1) == [0xEE],
                "{port}: READ wrote before its buffer"
            );
            memory::fill(there.at, 0xDD, LEN).unwrap();
            b.buffer.write(0, &[0; 8]);
            receive(&b, id, there.piece(0, LEN as u32));
            a.post_wr(&a.request(id + 2, Op::Send(Some(7)), &[here.piece(at as u64, len as u32)]))
                .unwrap();
            succeed(&mut a, &mut b, id + 2);
            let wc = complete(&mut b, &mut a, id, Duration::from_secs(20));
            assert_eq!(
                (wc.status, wc.byte_len as usize, wc.opcode),
                (0, len, wc_opcode::RECV),
                "{port}"
            );
            assert!(there.read(0, len) == bytes, "{port}: SEND of {len}");
            id += 3;
        }
        there.write(64, &5u64.to_ne_bytes());
        for (op, before, after) in [
            (Op::FetchAdd(64, 3), 5u64, 8u64),
            (Op::CmpSwap(64, 8, 1 << 40), 8, 1 << 40),
            (Op::CmpSwap(64, 8, 9), 1 << 40, 1 << 40),
        ] {
            a.post_wr(&a.request(id, op, &[here.piece(8, 8)])).unwrap();
            succeed(&mut a, &mut b, id);
            assert_eq!(here.read(8, 8), before.to_ne_bytes(), "{port}: {op:?}");
            assert_eq!(there.read(64, 8), after.to_ne_bytes(), "{port}: {op:?}");
            id += 1;
        }
        x.forget(&a, &here);
        y.forget(&b, &there);
        for r in [here, there] {
            memory::free(r.at).unwrap();
        }
        for e in [a, b] {
            e.destroy().expect("destroy");
        }
    });
    if driver == Driver::Fake {
        assert_eq!(cuda::stat(Stat::Pageable), 0, "a copy from or to memory that is not pinned");
        assert!(cuda::stat(Stat::Copies) > 100);
    }
}

fn receive(end: &End, wr_id: u64, piece: Sge) {
    receive_all(end, wr_id, &[piece]);
}

fn receive_all(end: &End, wr_id: u64, pieces: &[Sge]) {
    let wr = RecvWr {
        wr_id,
        next: std::ptr::null(),
        sg_list: pieces.as_ptr(),
        num_sge: pieces.len() as i32,
    };
    let mut bad = std::ptr::null();
    // SAFETY: request and pieces live on this stack frame until the call returns.
    unsafe { end.dev.post_recv(end.qp, &wr, &mut bad) }.expect("post_recv");
}

/// Data that is read ahead for one message must not be sent for another.
#[test]
fn a_message_sends_the_bytes_of_the_time_of_its_posting() {
    let (_alone, _) = alone();
    over_each(|x, y, port| {
        let (mut a, mut b) =
            connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
        const LEN: usize = 600_000;
        let (here, there) = (x.alloc(&a, LEN), y.alloc(&b, LEN));
        aim(&mut a, &there);
        for round in 0..40u64 {
            // The same addresses, other bytes; lengths that end within chunks.
            let len = LEN - (round as usize % 7) * 1000;
            let bytes = pattern(round, len);
            here.write(0, &bytes);
            a.post_wr(&a.request(round, Op::Write(0, None), &[here.piece(0, len as u32)])).unwrap();
            succeed(&mut a, &mut b, round);
            assert!(there.read(0, len) == bytes, "{port}: round {round}");
        }
        // The other direction: the responder's memory changes between READs.
        for round in 100..130u64 {
            let bytes = pattern(round, LEN);
            there.write(0, &bytes);
            a.post_wr(&a.request(round, Op::Read(0), &[here.piece(0, LEN as u32)])).unwrap();
            succeed(&mut a, &mut b, round);
            assert!(here.read(0, LEN) == bytes, "{port}: round {round}");
        }
        for (e, g, r) in [(a, x, here), (b, y, there)] {
            g.forget(&e, &r);
            memory::free(r.at).unwrap();
            e.destroy().expect("destroy");
        }
    });
}

#[test]
fn unreliable_messages_and_the_header_before_a_datagram_land_too() {
    let (_alone, driver) = alone();
    over_each(|x, y, port| {
        for qp_type in [qp_type::UC, qp_type::UD] {
            let shape = Shape { qp_type, ..Shape::default() };
            let (mut a, mut b) =
                connected(x.soft.dev(), y.soft.dev(), shape).expect("connected ends");
            let (here, there) = (x.alloc(&a, 8192), y.alloc(&b, 8192));
            let header = if qp_type == qp_type::UD { 40 } else { 0 };
            for round in 0..20u64 {
                let bytes = pattern(round, 1000);
                here.write(0, &bytes);
                // In turn: everything into the GPU; only the header (or the first bytes); only the
                // rest.
                let into = match round % 3 {
                    0 => vec![there.piece(0, header + 1000)],
                    1 => vec![there.piece(0, 40), b.piece(0, header + 960)],
                    _ => vec![b.piece(0, 40), there.piece(0, header + 960)],
                };
                let before = if driver == Driver::Fake { cuda::stat(Stat::Bytes) } else { 0 };
                receive_all(&b, round, &into);
                a.post_wr(&a.request(round, Op::Send(None), &[here.piece(0, 1000)])).unwrap();
                let wc = complete(&mut b, &mut a, round, Duration::from_secs(20));
                assert_eq!((wc.status, wc.byte_len), (0, header + 1000), "{port}");
                let gpu: u64 =
                    into.iter().filter(|p| p.lkey == there.key).map(|p| u64::from(p.length)).sum();
                if driver == Driver::Fake {
                    let moved = cuda::stat(Stat::Bytes) - before;
                    assert!(
                        moved >= 1000 + gpu,
                        "{port} {qp_type} {round}: received after {moved} bytes"
                    );
                }
                let got: Vec<u8> = into
                    .iter()
                    .flat_map(|p| {
                        let n = p.length as usize;
                        if p.lkey == there.key {
                            there.read(0, n)
                        } else {
                            b.buffer.read(0, n)
                        }
                    })
                    .collect();
                assert!(got[header as usize..] == bytes, "{port} {qp_type} {round}");
                succeed(&mut a, &mut b, round);
            }
            for (e, g, r) in [(a, x, here), (b, y, there)] {
                g.forget(&e, &r);
                memory::free(r.at).unwrap();
                e.destroy().expect("destroy");
            }
        }
    });
}

/// Copies into and out of GPU memory use two streams. An atomic does both, and the ACK of the WRITE
/// does not hold it back.
#[test]
fn an_atomic_sees_the_write_before_it() {
    let (_alone, driver) = alone();
    if driver == Driver::Real {
        skip!("a real GPU's copies take the time that they take");
    }
    over_each(|x, y, port| {
        let (mut a, mut b) =
            connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
        let there = y.alloc(&b, 4096);
        aim(&mut a, &there);
        there.write(0, &[0; 16]);
        a.buffer.write(0, &5u64.to_ne_bytes());
        // The WRITE's copy takes long, those of the atomic do not.
        cuda::option("FAKECUDA_DELAY_US", 60_000);
        a.post(1, Op::Write(0, None), 0, 8).unwrap();
        for _ in 0..2000 {
            a.poll();
            b.poll();
        }
        cuda::option("FAKECUDA_DELAY_US", 20);
        a.post(2, Op::FetchAdd(0, 3), 8, 8).unwrap();
        succeed(&mut a, &mut b, 2);
        assert_eq!(a.buffer.read(8, 8), 5u64.to_ne_bytes(), "{port}");
        assert_eq!(there.read(0, 8), 8u64.to_ne_bytes(), "{port}");
        y.forget(&b, &there);
        memory::free(there.at).unwrap();
        for e in [a, b] {
            e.destroy().expect("destroy");
        }
    });
}

/// One message gathered from two GPUs and the host, and scattered over the same; its ACK waits for
/// all copies.
#[test]
fn a_message_crosses_gpus() {
    let (_alone, driver) = alone();
    if Device::count() == Ok(1) {
        skip!("one GPU");
    }
    over_each(|x, y, port| {
        let (mut a, mut b) =
            connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
        const LEN: usize = 200_001;
        let on = |g: &Gpu, e: &End, n: u32| {
            let at = memory::alloc(Device::get(n).unwrap(), LEN, Kind::Plain).expect("GPU memory");
            assert_eq!(Span::of(at, 1).unwrap().device.ordinal, n);
            g.register(e, at, LEN as u64)
        };
        let here = [on(x, &a, 0), on(x, &a, 1)];
        let there = [on(y, &b, 1), on(y, &b, 0)];
        for round in 0..8u64 {
            let bytes = pattern(round, 2 * LEN + 5000);
            here[0].write(0, &bytes[..LEN]);
            a.buffer.write(0, &bytes[LEN..LEN + 5000]);
            here[1].write(0, &bytes[LEN + 5000..]);
            let length = LEN as u32;
            let into = [there[0].piece(0, length), there[1].piece(0, length), b.piece(0, 5000)];
            receive_all(&b, round, &into);
            let before = if driver == Driver::Fake { cuda::stat(Stat::Bytes) } else { 0 };
            let from = [here[0].piece(0, length), a.piece(0, 5000), here[1].piece(0, length)];
            a.post_wr(&a.request(round, Op::Send(None), &from)).unwrap();
            succeed(&mut a, &mut b, round);
            if driver == Driver::Fake {
                let moved = cuda::stat(Stat::Bytes) - before;
                assert!(moved >= 4 * LEN as u64, "{port}: acknowledged after {moved} bytes");
            }
            assert_eq!(complete(&mut b, &mut a, round, Duration::from_secs(20)).status, 0);
            assert!(
                there[0].read(0, LEN) == bytes[..LEN]
                    && there[1].read(0, LEN) == bytes[LEN..2 * LEN],
                "{port}"
            );
            assert!(b.buffer.read(0, 5000) == bytes[2 * LEN..], "{port}");
        }
        for (e, g, regions) in [(a, x, here), (b, y, there)] {
            for r in regions {
                g.forget(&e, &r);
                memory::free(r.at).unwrap();
            }
            e.destroy().expect("destroy");
        }
    });
}

#[test]
fn nothing_is_acknowledged_before_it_has_landed() {
    let (_alone, driver) = alone();
    if driver == Driver::Real {
        skip!("a real GPU does not tell when its copies end");
    }
    cuda::option("FAKECUDA_DELAY_US", 30_000);
    over_each(|x, y, port| {
        let (mut a, mut b) =
            connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
        let there = y.alloc(&b, 1 << 20);
        aim(&mut a, &there);
        for (id, len) in [(0u64, 8u32), (1, 50_000)] {
            let before = cuda::stat(Stat::Bytes);
            a.post(id, Op::Write(0, None), 0, len).unwrap();
            succeed(&mut a, &mut b, id);
            // Reads counters only: a look at the memory would wait for the copies.
            assert!(
                cuda::stat(Stat::Bytes) >= before + u64::from(len),
                "{port}: acknowledged before the copy of {len} bytes"
            );
        }
        let before = cuda::stat(Stat::Bytes);
        receive(&b, 9, there.piece(0, 4096));
        a.post(2, Op::Send(None), 0, 1000).unwrap();
        let wc = complete(&mut b, &mut a, 9, Duration::from_secs(20));
        assert!(
            wc.status == 0 && cuda::stat(Stat::Bytes) >= before + 1000,
            "{port}: received before the copy"
        );
        y.forget(&b, &there);
        memory::free(there.at).unwrap();
        for e in [a, b] {
            e.destroy().expect("destroy");
        }
    });
}

#[test]
fn more_queue_pairs_than_chunks_all_complete() {
    let (_alone, _) = alone();
    let x = Gpu::new(Soft::new("loopback"));
    const PAIRS: usize = 48;
    let shape = Shape { buffer: 4096, ..Shape::default() };
    let mut pairs: Vec<_> = (0..PAIRS)
        .map(|_| connected(x.soft.dev(), x.soft.dev(), shape).expect("connected ends"))
        .collect();
    const LEN: usize = 300_000;
    let regions: Vec<_> = pairs.iter().map(|(a, b)| (x.alloc(a, LEN), x.alloc(b, LEN))).collect();
    for (i, ((a, _), (here, there))) in pairs.iter_mut().zip(&regions).enumerate() {
        aim(a, there);
        here.write(0, &pattern(i as u64, LEN));
        a.post_wr(&a.request(1, Op::Write(0, None), &[here.piece(0, LEN as u32)])).unwrap();
    }
    for (i, ((a, b), (_, there))) in pairs.iter_mut().zip(&regions).enumerate() {
        succeed(a, b, 1);
        assert!(there.read(0, LEN) == pattern(i as u64, LEN), "pair {i}");
    }
    for ((a, b), (here, there)) in pairs.into_iter().zip(regions) {
        x.forget(&a, &here);
        x.forget(&b, &there);
        memory::free(here.at).unwrap();
        memory::free(there.at).unwrap();
        a.destroy().and(b.destroy()).expect("destroy");
    }
}

#[test]
fn memory_that_is_freed_and_given_again_is_refused() {
    let (_alone, _) = alone();
    over_each(|x, y, port| {
        for op in [Op::Write(0, None), Op::Read(0), Op::FetchAdd(0, 1)] {
            let (mut a, mut b) =
                connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
            let (mut c, mut d) =
                connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
            let there = y.alloc(&b, 70_000);
            let beside = y.alloc(&d, 70_000);
            aim(&mut a, &there);
            aim(&mut c, &beside);
            let len = if matches!(op, Op::FetchAdd(..)) { 8 } else { 70_000 };
            a.post(1, op, 0, len).unwrap();
            succeed(&mut a, &mut b, 1);
            memory::free(there.at).unwrap();
            let again = memory::alloc(Device::get(0).unwrap(), 70_000, Kind::Plain).unwrap();
            memory::fill(again, 0x77, 70_000).unwrap();
            a.post(2, op, 0, len).unwrap();
            let wc = complete(&mut a, &mut b, 2, Duration::from_secs(20));
            assert_eq!(wc.status, wc_status::REM_OP_ERR, "{port}: {op:?}");
            let cause = b.dev.qp_cause(b.qp).unwrap();
            assert_eq!(cause.code, CauseCode::LocalMemoryGone as u32, "{port}: {op:?}");
            let mut bytes = vec![0; 70_000];
            memory::copy_out(again, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&b| b == 0x77), "{port}: {op:?} wrote into another's memory");
            // The pair beside is not affected.
            c.post(3, Op::Write(0, None), 0, 70_000).unwrap();
            succeed(&mut c, &mut d, 3);
            memory::free(again).unwrap();
            y.forget(&b, &there);
            y.forget(&d, &beside);
            memory::free(beside.at).unwrap();
            for e in [a, b, c, d] {
                e.destroy().expect("destroy");
            }
        }
        // The requester's own memory.
        let (mut a, mut b) =
            connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
        let here = x.alloc(&a, 70_000);
        memory::free(here.at).unwrap();
        a.post_wr(&a.request(1, Op::Write(0, None), &[here.piece(0, 70_000)])).unwrap();
        let wc = complete(&mut a, &mut b, 1, Duration::from_secs(20));
        assert_eq!(wc.status, wc_status::LOC_PROT_ERR, "{port}");
        x.forget(&a, &here);
        for e in [a, b] {
            e.destroy().expect("destroy");
        }
    });
}

#[test]
fn a_lost_context_fails_only_the_operations_that_use_it() {
    let (_alone, driver) = alone();
    if driver == Driver::Real {
        skip!("a real GPU's context is lost for the whole process");
    }
    let (x, y) = (Gpu::new(Soft::new(&address(1))), Gpu::new(Soft::new(&address(2))));
    let (mut a, mut b) =
        connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
    let (mut c, mut d) =
        connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
    let there = y.alloc(&b, 1 << 20);
    aim(&mut a, &there);
    a.post(1, Op::Write(0, None), 0, 500_000).unwrap();
    succeed(&mut a, &mut b, 1);
    cuda::option("FAKECUDA_DELAY_US", 5000);
    a.post(2, Op::Write(0, None), 0, 1 << 20).unwrap();
    for _ in 0..50 {
        a.poll();
        b.poll();
    }
    cuda::lose(700);
    let wc = complete(&mut a, &mut b, 2, Duration::from_secs(20));
    assert_eq!(wc.status, wc_status::REM_OP_ERR);
    c.post(3, Op::Write(0, None), 0, 100_000).unwrap();
    succeed(&mut c, &mut d, 3);
    y.forget(&b, &there);
    for e in [a, b, c, d] {
        e.destroy().expect("destroy");
    }
    drop((x, y));
    cuda::lose(0);
    memory::free(there.at).unwrap();
}

#[test]
fn every_call_that_fails_is_an_error_of_one_operation() {
    let (_alone, driver) = alone();
    if driver == Driver::Real {
        skip!("a real driver does not fail on demand");
    }
    // Each call of the data plane fails once, with an error that leaves the context intact.
    for call in
        ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuEventRecord", "cuPointerGetAttribute"]
    {
        for op in [Op::Write(0, None), Op::Read(0), Op::FetchAdd(0, 1)] {
            let x = Gpu::new(Soft::new("loopback"));
            let (mut a, mut b) =
                connected(x.soft.dev(), x.soft.dev(), Shape::default()).expect("connected ends");
            let there = x.alloc(&b, 70_000);
            aim(&mut a, &there);
            let uses = match op {
                Op::Write(..) => call != "cuMemcpyDtoHAsync_v2",
                Op::Read(_) => call != "cuMemcpyHtoDAsync_v2",
                _ => true,
            };
            cuda::fail(call, 1, 0, 1);
            let len = if matches!(op, Op::FetchAdd(..)) { 8 } else { 70_000 };
            a.post(1, op, 0, len).unwrap();
            let wc = complete(&mut a, &mut b, 1, Duration::from_secs(20));
            cuda::fail(call, 0, 0, 0);
            let want = if uses { wc_status::REM_OP_ERR } else { wc_status::SUCCESS };
            assert_eq!(wc.status, want, "{call} under {op:?}: {wc:?}");
            x.forget(&b, &there);
            memory::free(there.at).unwrap();
            for e in [a, b] {
                e.destroy().expect("destroy");
            }
        }
    }
    // Each call of the control plane fails once; no object is left half made.
    let device = Device::get(0).unwrap();
    let blocks = cuda::stat(Stat::Blocks);
    cuda::fail("cuMemHostAlloc", 2, 0, 1);
    assert_eq!(Staging::new(device).err().map(|e| e.error()), Some(Error::NoMemory));
    for call in ["cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"] {
        cuda::fail(call, 2, 0, 1);
        let failed = memory::alloc(device, 100_000, Kind::Shareable).expect_err(call);
        assert_eq!((failed.call, failed.error()), (call, Error::NoMemory));
    }
    assert_eq!(cuda::stat(Stat::Blocks), blocks);
    for after in 0..2 {
        let s = Staging::new(device).unwrap();
        let at = memory::alloc(device, 4096, Kind::Plain).unwrap();
        let span = Span::of(at, 4096).unwrap();
        for call in ["cuStreamCreate", "cuEventCreate"] {
            cuda::fail(call, 2, after, 1);
            assert!(s.register(&span).is_err(), "{call}");
            cuda::fail(call, 0, 0, 0);
        }
        let cookie = s.register(&span).expect("works afterwards");
        s.release(cookie);
        s.release(cookie);
        memory::free(at).unwrap();
    }
}

#[test]
fn a_region_goes_while_its_copies_are_under_way() {
    let (_alone, driver) = alone();
    if driver == Driver::Fake {
        cuda::option("FAKECUDA_DELAY_US", 2000);
    }
    let (x, y) = (Gpu::new(Soft::new(&address(1))), Gpu::new(Soft::new(&address(2))));
    for round in 0..12u64 {
        let (mut a, mut b) =
            connected(x.soft.dev(), y.soft.dev(), Shape::default()).expect("connected ends");
        let there = y.alloc(&b, 1 << 20);
        aim(&mut a, &there);
        let op = if round % 2 == 0 { Op::Write(0, None) } else { Op::Read(0) };
        a.post(1, op, 0, 1 << 20).unwrap();
        let until = Instant::now() + Duration::from_millis(round);
        while Instant::now() < until {
            a.poll();
            b.poll();
        }
        y.forget(&b, &there);
        memory::free(there.at).unwrap();
        let wc = complete(&mut a, &mut b, 1, Duration::from_secs(20));
        let fair = [wc_status::SUCCESS, wc_status::REM_ACCESS_ERR, wc_status::REM_OP_ERR];
        assert!(fair.contains(&wc.status), "round {round}: {wc:?}");
        for e in [a, b] {
            e.destroy().expect("destroy");
        }
    }
}

#[test]
fn small_accesses_use_a_mapped_view_where_the_driver_offers_one() {
    let (_alone, driver) = alone();
    if driver == Driver::Real {
        skip!("whether a real driver maps its memory is its own affair");
    }
    for (kind, mapped) in [(2, true), (1, false), (0, false)] {
        cuda::option("FAKECUDA_DMABUF", kind);
        let x = Gpu::new(Soft::new("loopback"));
        let (mut a, mut b) =
            connected(x.soft.dev(), x.soft.dev(), Shape::default()).expect("connected ends");
        let there = x.alloc(&b, 1 << 20);
        assert_eq!(x.staging.has_view(there.cookie), mapped);
        aim(&mut a, &there);
        let copies = cuda::stat(Stat::Copies);
        for round in 0..50u64 {
            let bytes = pattern(round, 64);
            a.buffer.write(0, &bytes);
            a.post(round, Op::Write(round * 64, None), 0, 64).unwrap();
            succeed(&mut a, &mut b, round);
            a.post(1000 + round, Op::Read(round * 64), 64, 64).unwrap();
            succeed(&mut a, &mut b, 1000 + round);
            assert!(
                a.buffer.read(64, 64) == bytes && there.read(round as usize * 64, 64) == bytes,
                "{round}"
            );
        }
        assert_eq!(cuda::stat(Stat::Copies) == copies, mapped, "copies, with mapping {mapped}");
        // Large accesses are copied by the GPU, in order with small ones.
        let large = pattern(77, 1 << 20);
        a.buffer.write(0, &large);
        a.post(1, Op::Write(0, None), 0, 1 << 20).unwrap();
        a.post(2, Op::Write(100, None), 5, 64).unwrap();
        succeed(&mut a, &mut b, 2);
        assert!(there.read(100, 64) == large[5..69] && there.read(164, 1000) == large[164..1164]);
        // Freed while a view maps it.
        memory::free(there.at).unwrap();
        a.post(3, Op::Write(0, None), 0, 64).unwrap();
        assert_eq!(
            complete(&mut a, &mut b, 3, Duration::from_secs(20)).status,
            wc_status::REM_OP_ERR
        );
        x.forget(&b, &there);
        for e in [a, b] {
            e.destroy().expect("destroy");
        }
    }
}
