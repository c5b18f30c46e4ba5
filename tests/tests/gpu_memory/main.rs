//! GPU memory on the soft device: every operation over every path, with slow copies, and every
//! failure. Uses the machine's GPU where there is one, else the fake driver, whose device memory
//! the CPU cannot access.

mod engines;
mod failures;
mod operations;

use gdrcore_core::device::MrReg;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{access, qp_type, wc_opcode, wc_status, Handle, RecvWr, Sge};
use gdrcore_core::Error;
use gdrcore_cuda::device::Device;
use gdrcore_cuda::memory::{self, AllocationKind};
use gdrcore_cuda::span::Span;
use gdrcore_cuda::staging::Staging;
use gdrcore_net::soft::{PathChoice, SoftConfig};
use gdrcore_tests::cuda::{self, alone, Driver, Stat};
use gdrcore_tests::ends::{complete, connected, connected_pair, pattern, succeed, End, Op, Shape};
use gdrcore_tests::skip;
use gdrcore_tests::soft::{address, Soft};
use std::time::{Duration, Instant};

const ALL: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// A soft device with a GPU memory provider.
struct Gpu<D = Soft> {
    soft: D,
    staging: &'static Staging,
}

impl Gpu {
    fn new(soft: Soft) -> Gpu {
        let staging = staging();
        soft.soft().memory_add(1, staging).expect("the first kind of memory");
        Gpu { soft, staging }
    }
}

/// A kind of memory: that of the first GPU.
fn staging() -> &'static Staging {
    let device = Device::get(0).expect("the first GPU");
    Box::leak(Box::new(Staging::new(device).expect("pinned memory")))
}

impl<D> Gpu<D> {
    fn register(&self, end: &End, at: u64, length: u64) -> Region {
        let span = Span::look_up(at, length).expect("device memory");
        let cookie = self.staging.register(&span).expect("a region");
        let reg =
            MrReg { pd: end.pd, addr: at, length, iova: at, access: ALL, provider: 1, cookie };
        let (mr, attr) = end.dev.mr_reg(&reg).expect("mr_reg");
        Region { at, mr, key: attr.lkey, cookie }
    }

    fn alloc(&self, end: &End, length: usize) -> Region {
        let at = memory::alloc(Device::get(0).unwrap(), length, AllocationKind::Plain)
            .expect("GPU memory");
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

/// Destroys an end, and its memory of a GPU.
fn end(end: End<'_>, gpu: &Gpu, region: Option<Region>) {
    if let Some(region) = region {
        gpu.forget(&end, &region);
        memory::free(region.at).unwrap();
    }
    end.destroy().expect("destroy");
}

#[test]
fn nothing_is_acknowledged_before_it_has_landed() {
    let (_alone, driver) = alone();
    if driver == Driver::Real {
        skip!("a real GPU does not tell when its copies end");
    }
    cuda::option("FAKECUDA_DELAY_US", 30_000);
    over_each(|x, y, port| {
        let (mut a, mut b) = connected_pair(x.soft.dev(), y.soft.dev());
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
        end(b, y, Some(there));
        end(a, x, None);
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
