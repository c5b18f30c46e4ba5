//! Regions in shared memory: peers on the same host write them without the owner's CPU, only as
//! long as their keys allow it.

use gdrcore_core::device::{Device, MrAttr, MrReg};
use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags, EngineCount, PathChoice, SoftConfig};
use gdrcore_tests::cpu;
use gdrcore_tests::ends::{complete, connected, pattern, succeed, End, Op, Shape};
use gdrcore_tests::library;
use gdrcore_tests::patience::{deadline, run_until, wait_for};
use gdrcore_tests::router::Router;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{loopback, Running};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const BYTES: usize = 64 << 10;
/// Offset of the region in its memory.
const AT: u64 = 4096 + 64;
const LEN: usize = 40_000;
const ACCESS: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;

/// Memory of a file descriptor, mapped here.
struct Memory {
    fd: OwnedFd,
    addr: *mut u8,
}

impl Memory {
    fn new(seals: i32) -> Memory {
        // SAFETY: a C string and no other pointers; the descriptor is new.
        unsafe {
            let fd =
                libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0);
            let fd = OwnedFd::from_raw_fd(fd);
            assert_eq!(libc::ftruncate(fd.as_raw_fd(), BYTES as libc::off_t), 0);
            assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals), 0);
            let rw = libc::PROT_READ | libc::PROT_WRITE;
            let addr =
                libc::mmap(std::ptr::null_mut(), BYTES, rw, libc::MAP_SHARED, fd.as_raw_fd(), 0);
            assert_ne!(addr, libc::MAP_FAILED);
            Memory { fd, addr: addr.cast() }
        }
    }

    fn addr(&self) -> u64 {
        self.addr.expose_provenance() as u64
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        assert!(at as usize + len <= BYTES);
        // SAFETY: inside the mapping; volatile, since others write there.
        (0..len).map(|i| unsafe { self.addr.add(at as usize + i).read_volatile() }).collect()
    }

    /// Registers a region in it, in the end's protection domain.
    fn region(&self, end: &End) -> (Handle, MrAttr) {
        let addr = self.addr() + AT;
        let reg = MrReg {
            pd: end.pd,
            addr,
            length: LEN as u64,
            iova: addr,
            access: ACCESS,
            provider: 0,
            cookie: 0,
        };
        end.dev.mr_reg(&reg).expect("mr_reg")
    }

    fn share(&self, dev: &dyn Device, mr: Handle) -> gdrcore_core::Result<()> {
        dev.mr_share(mr, self.fd.as_raw_fd(), AT)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped; no region of it is left.
        unsafe { libc::munmap(self.addr.cast(), BYTES) };
    }
}

fn pair(n: u8) -> [Soft; 2] {
    let config = SoftConfig { path: PathChoice::Shm, ..SoftConfig::default() };
    [n, n + 1].map(|n| Soft::open(&address(n), &config).unwrap_or_else(|e| panic!("{e}")))
}

fn mapped(end: &End) -> u64 {
    end.dev.counters().expect("counters").mapped_writes
}

/// Posts WRITEs until the initiator has mapped the region, whose grant it requests beside the first
/// of them.
fn until_mapped(x: &mut End, y: &mut End) {
    let before = mapped(x);
    run_until(60, "never mapped", || {
        x.post(1, Op::Write(0, None), 0, 8).expect("post_send");
        succeed(x, y, 1);
        mapped(x) != before
    });
}

/// A region of `y` in shared memory that `x` has mapped and writes to.
fn lent(x: &mut End, y: &mut End, memory: &Memory) -> (Handle, MrAttr) {
    let (mr, attr) = memory.region(y);
    memory.share(y.dev, mr).expect("mr_share");
    (x.peer.addr, x.peer.rkey) = (attr.iova, attr.rkey);
    until_mapped(x, y);
    (mr, attr)
}

/// Two ends; `y` has a region in shared memory that `x` writes to.
fn sharing<'d>(devices: &'d [Soft; 2], memory: &Memory) -> (End<'d>, End<'d>, Handle, MrAttr) {
    let shape = Shape { buffer: BYTES, access: ACCESS, ..Shape::default() };
    let (mut x, mut y) =
        connected(devices[0].dev(), devices[1].dev(), shape).expect("connected ends");
    let (mr, attr) = lent(&mut x, &mut y, memory);
    (x, y, mr, attr)
}

#[test]
fn a_write_needs_neither_a_packet_nor_the_target() {
    let (devices, memory) = (pair(1), Memory::new(libc::F_SEAL_SHRINK));
    let (mut x, y, ..) = sharing(&devices, &memory);
    for (seed, at, len) in [(1, 0, LEN), (2, 1, 1), (3, 9, 7), (4, 100, 4096), (5, LEN - 1, 1)] {
        let (sent, received, before) =
            (x.dev.counters().unwrap().sent_pkts, y.dev.counters().unwrap().rcvd_pkts, mapped(&x));
        x.buffer.write(0, &pattern(seed, len));
        x.post(seed, Op::Write(at as u64, None), 0, len as u32).expect("post_send");
        // The completion is there although the other end has not run.
        assert_eq!(x.poll(), 1);
        assert_eq!(x.take(seed).map(|wc| wc.status), Some(wc_status::SUCCESS));
        assert!(memory.read(AT + at as u64, len) == pattern(seed, len));
        assert_eq!((x.dev.counters().unwrap().sent_pkts, mapped(&x)), (sent, before + 1));
        assert_eq!(y.dev.counters().unwrap().rcvd_pkts, received);
    }
    // Bytes outside of the region are unchanged.
    assert!(memory.read(0, AT as usize).iter().all(|&b| b == 0));
    assert!(memory.read(AT + LEN as u64, BYTES - LEN - AT as usize).iter().all(|&b| b == 0));
}

#[test]
fn a_router_allows_grants_within_a_tenant_only() {
    let router = Router::start("[tenant.a]\nlisten = \"DIR/a\"\n[tenant.b]\nlisten = \"DIR/b\"\n");
    // No grant by address: it requires that both ends are the same user.
    let config = SoftConfig { flags: soft_flags::CMA, ..SoftConfig::default() };
    let open =
        |name: &str| Soft::open(&router.device(name), &config).unwrap_or_else(|e| panic!("{e}"));
    let memory = Memory::new(libc::F_SEAL_SHRINK);
    let own = [open("a"), open("a")];
    sharing(&own, &memory);
    let others = [open("a"), open("b")];
    let shape = Shape { buffer: BYTES, access: ACCESS, ..Shape::default() };
    let (mut x, mut y) =
        connected(others[0].dev(), others[1].dev(), shape).expect("connected ends");
    let (mr, attr) = memory.region(&y);
    memory.share(y.dev, mr).expect("mr_share");
    (x.peer.addr, x.peer.rkey) = (attr.iova, attr.rkey);
    // Long after a link within a tenant gets its grant: a request takes a few looks.
    for n in 0..3000 {
        x.buffer.write(0, &pattern(n, 100));
        x.post(n, Op::Write(0, None), 0, 100).expect("post_send");
        succeed(&mut x, &mut y, n);
        assert!(memory.read(AT, 100) == pattern(n, 100));
    }
    assert_eq!((mapped(&x), x.dev.counters().expect("counters").carried_writes), (0, 0));
}

#[test]
fn later_requests_arrive_after_the_write() {
    let (devices, memory) = (pair(1), Memory::new(libc::F_SEAL_SHRINK));
    let (mut x, mut y, ..) = sharing(&devices, &memory);
    for round in 0..2000u64 {
        let len = 1 + (round as usize * 7919) % 9000;
        x.buffer.write(0, &pattern(round, len));
        y.post_recv(round, 0, 64).expect("post_recv");
        x.post(round, Op::Write(0, None), 0, len as u32).expect("post_send");
        x.post(round | 1 << 32, Op::Send(None), 0, 8).expect("post_send");
        succeed(&mut y, &mut x, round);
        assert!(memory.read(AT, len) == pattern(round, len), "round {round}");
        succeed(&mut x, &mut y, round | 1 << 32);
    }
    assert!(mapped(&x) > 1000, "{} of 2000", mapped(&x));
}

/// The bytes of an inline WRITE are read when it is posted, straight into the peer's memory.
#[test]
fn inline_bytes_that_cannot_be_read_are_refused() {
    let (devices, memory) = (pair(1), Memory::new(libc::F_SEAL_SHRINK));
    let (mut x, mut y, ..) = sharing(&devices, &memory);
    let before = (memory.read(AT, LEN), mapped(&x));
    for (addr, len) in [(8, 8), (8, 24), (usize::MAX as u64 - 7, 8), (1 << 63, 8)] {
        let pieces = [Sge { addr, length: len, lkey: 0 }];
        let mut wr = x.request(2, Op::Write(0, None), &pieces);
        wr.send_flags |= send_flags::INLINE;
        assert_eq!(x.post_wr(&wr), Err(Error::Fault), "{len} bytes at {addr:#x}");
    }
    assert!((memory.read(AT, LEN), mapped(&x)) == before);
    x.buffer.write(0, &pattern(3, 8));
    x.post(3, Op::Write(0, None), 0, 8).expect("post_send");
    succeed(&mut x, &mut y, 3);
    assert!(memory.read(AT, 8) == pattern(3, 8));
}

/// One queue pair, two threads: what either posts is done once, in its order, whether or not it
/// takes a slot.
#[test]
fn two_threads_write_by_one_queue_pair() {
    const EACH: u64 = 4000;
    let (devices, memory) = (pair(1), Memory::new(libc::F_SEAL_SHRINK));
    let (mut x, mut y, ..) = sharing(&devices, &memory);
    let before = mapped(&x);
    let (dev, qp) = (x.dev, x.qp);
    let word = |t: u64| {
        let bytes = memory.read(AT + 64 * t, 8);
        u64::from_ne_bytes(bytes.try_into().expect("8 bytes"))
    };
    let (lkey, to, peer, rkey) = (x.attr.lkey, x.attr.iova, x.peer.addr, x.peer.rkey);
    let post = |t: u64, n: u64| {
        // Each eighth request is a READ, which has a slot and an answer.
        let is_read = n.is_multiple_of(8);
        let source = [Sge { addr: (&raw const n).expose_provenance() as u64, length: 8, lkey: 0 }];
        let sink = [Sge { addr: to + 2048 * (t + 1), length: 8, lkey }];
        let (opcode, list, from, flag) = match is_read {
            true => (wr_opcode::RDMA_READ, &sink, 1024, 0),
            false => (wr_opcode::RDMA_WRITE, &source, 64 * t, send_flags::INLINE),
        };
        let wr = SendWr {
            wr_id: t << 32 | n,
            next: std::ptr::null(),
            sg_list: list.as_ptr(),
            num_sge: 1,
            opcode,
            send_flags: send_flags::SIGNALED | flag,
            imm_data: 0,
            wr: WrOp { rdma: RdmaWr { remote_addr: peer + from, rkey } },
            remote_srqn: 0,
            ext: Default::default(),
        };
        let end = deadline(60);
        let mut bad = std::ptr::null();
        // SAFETY: request and piece live on this stack frame until the call returns; inline bytes
        // are read in it.
        while let Err(e) = unsafe { dev.post_send(qp, &wr, &mut bad) } {
            // The send queue is full, or the other thread posts.
            assert!(matches!(e, Error::Again | Error::Busy) && Instant::now() < end, "{e:?}");
            std::thread::yield_now();
        }
    };
    std::thread::scope(|scope| {
        let post = &post;
        for t in 0..2 {
            scope.spawn(move || (1..=EACH).for_each(|n| post(t, n)));
        }
        let (end, mut last, mut seen) = (deadline(60), [0u64; 2], [0; 2]);
        while seen != [EACH; 2] {
            assert!(Instant::now() < end, "{seen:?}");
            y.poll();
            x.poll();
            for wc in x.done.drain(..) {
                let (t, n) = ((wc.wr_id >> 32) as usize, wc.wr_id & 0xffff_ffff);
                assert_eq!((wc.status, n), (wc_status::SUCCESS, seen[t] + 1), "thread {t}");
                seen[t] = n;
            }
            for (t, last) in last.iter_mut().enumerate() {
                let now = word(t as u64);
                assert!(now >= *last && now <= EACH, "thread {t}: {now} after {last}");
                *last = now;
            }
        }
    });
    // The last request of each is a READ.
    assert_eq!([word(0), word(1)], [EACH - 1; 2]);
    assert!(mapped(&x) > before, "some were placed");
}

/// A name, and the action that ends the key.
type Ending<'a> = (&'a str, &'a dyn Fn(&End, Handle));

#[test]
fn a_key_that_has_ended_writes_nothing() {
    let modify =
        |end: &End, attr: QpAttr, mask| end.dev.qp_modify(end.qp, &attr, mask).expect("qp_modify");
    let ends: [Ending; 5] = [
        ("deregistered", &|y, mr| y.dev.mr_dereg(mr).expect("mr_dereg")),
        ("no longer writable", &|y, _| {
            let attr = QpAttr { qp_access_flags: access::REMOTE_READ, ..QpAttr::default() };
            modify(y, attr, qp_attr_mask::ACCESS_FLAGS);
        }),
        ("in ERR", &|y, _| {
            modify(y, QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() }, qp_attr_mask::STATE);
        }),
        ("reset", &|y, _| while y.dev.qp_reset(y.qp) == Err(Error::Again) {}),
        ("destroyed", &|y, _| y.dev.qp_destroy(y.qp).expect("qp_destroy")),
    ];
    for (what, end) in ends {
        let (devices, memory) = (pair(1), Memory::new(libc::F_SEAL_SHRINK));
        let shape =
            Shape { buffer: BYTES, access: ACCESS, timeout: 8, retry_cnt: 1, ..Shape::default() };
        let (mut x, mut y) =
            connected(devices[0].dev(), devices[1].dev(), shape).expect("connected ends");
        let (mr, _) = lent(&mut x, &mut y, &memory);
        let before = memory.read(AT, LEN);
        x.buffer.write(0, &vec![0xa5; LEN]);
        end(&y, mr);
        // The key must be refused from the moment at which the call returns.
        x.post(9, Op::Write(0, None), 0, LEN as u32).expect("post_send");
        let wc = complete(&mut x, &mut y, 9, Duration::from_secs(20));
        assert_ne!(wc.status, wc_status::SUCCESS, "{what}");
        assert!(memory.read(AT, LEN) == before, "{what}");
    }
}

#[test]
fn a_context_that_was_closed_is_not_written() {
    let ([near, far], memory) = (pair(1), Memory::new(libc::F_SEAL_SHRINK));
    let shape = Shape { buffer: BYTES, access: ACCESS, ..Shape::default() };
    let mut x = End::new(near.dev(), shape).expect("an end");
    {
        let mut y = End::new(far.dev(), shape).expect("an end");
        x.connect(y.own).and(y.connect(x.own)).expect("connected ends");
        lent(&mut x, &mut y, &memory);
    }
    let before = memory.read(AT, LEN);
    x.buffer.write(0, &vec![0xa5; LEN]);
    // Drops the device with all of its objects.
    drop(far);
    x.post(9, Op::Write(0, None), 0, LEN as u32).expect("post_send");
    run_until(60, "the stream did not end", || x.poll() != 0);
    assert_ne!(x.take(9).map(|wc| wc.status), Some(wc_status::SUCCESS));
    assert!(memory.read(AT, LEN) == before);
}

#[test]
fn registered_anew_it_is_another_region() {
    let (devices, memory) = (pair(1), Memory::new(libc::F_SEAL_SHRINK));
    let (mut x, mut y, mr, attr) = sharing(&devices, &memory);
    let other = Memory::new(libc::F_SEAL_SHRINK);
    let addr = other.addr() + AT;
    let reg = MrReg {
        pd: y.pd,
        addr,
        length: LEN as u64,
        iova: attr.iova,
        access: ACCESS,
        provider: 0,
        cookie: 0,
    };
    y.dev.mr_rereg(mr, &reg).expect("mr_rereg");
    let count = mapped(&x);
    x.buffer.write(0, &[7; 100]);
    for _ in 0..100 {
        x.post(1, Op::Write(0, None), 0, 100).expect("post_send");
        succeed(&mut x, &mut y, 1);
    }
    assert_eq!(other.read(AT, 100), [7; 100]);
    assert_eq!((mapped(&x), memory.read(AT + 8, 92)), (count, vec![0; 92]));
    // It can be shared again.
    other.share(y.dev, mr).expect("mr_share");
    until_mapped(&mut x, &mut y);
}

#[test]
fn a_region_is_shared_by_all_engines_of_its_device() {
    let config = SoftConfig { path: PathChoice::Shm, ..SoftConfig::default() };
    let sets =
        [1, 2].map(|n| Soft::open_with(&address(n), &config, EngineCount::all(2)).expect("open"));
    let (x, y) = (sets[0].dev(), sets[1].dev());
    let shape = Shape { buffer: BYTES, access: ACCESS, ..Shape::default() };
    let make = || connected(x, y, shape).expect("connected ends");
    let first = make();
    let second = std::thread::scope(|scope| scope.spawn(make).join().expect("the thread"));
    let memory = Memory::new(libc::F_SEAL_SHRINK);
    for (mut a, mut b) in [first, second] {
        let (mr, attr) = lent(&mut a, &mut b, &memory);
        assert_eq!(memory.share(y, mr), Err(Error::Busy));
        let before = mapped(&a);
        a.buffer.write(0, &pattern(1, 100));
        a.post(7, Op::Write(0, None), 0, 100).expect("post_send");
        succeed(&mut a, &mut b, 7);
        assert_eq!((memory.read(AT, 100), mapped(&a)), (pattern(1, 100), before + 1));
        // The last change and the end hold for each engine.
        let fewer = MrReg {
            pd: b.pd,
            addr: attr.addr,
            length: 50,
            iova: attr.iova,
            access: ACCESS,
            provider: 0,
            cookie: 0,
        };
        assert_eq!(y.mr_rereg(mr, &fewer).expect("mr_rereg").rkey, attr.rkey);
        a.buffer.write(0, &pattern(2, 100));
        a.post(8, Op::Write(0, None), 0, 50).expect("post_send");
        succeed(&mut a, &mut b, 8);
        y.mr_dereg(mr).expect("mr_dereg");
        a.buffer.write(0, &pattern(3, 100));
        a.post(9, Op::Write(0, None), 0, 8).expect("post_send");
        let refused = complete(&mut a, &mut b, 9, LIMIT);
        assert_eq!(refused.status, wc_status::REM_ACCESS_ERR);
        let left = [&pattern(2, 100)[..50], &pattern(1, 100)[50..]].concat();
        assert_eq!(memory.read(AT, 100), left);
    }
}

#[test]
fn only_memory_of_the_descriptor_is_shared() {
    let (devices, memory, other) = (pair(1), Memory::new(libc::F_SEAL_SHRINK), Memory::new(0));
    let shape = Shape { buffer: BYTES, access: ACCESS, ..Shape::default() };
    let (_x, y) = connected(devices[0].dev(), devices[1].dev(), shape).expect("connected ends");
    let (mr, _) = memory.region(&y);
    let fd = memory.fd.as_raw_fd();
    assert_eq!(y.dev.mr_share(mr, other.fd.as_raw_fd(), AT), Err(Error::Invalid));
    for offset in [0, AT - 1, AT + 1, BYTES as u64, u64::MAX] {
        assert_eq!(y.dev.mr_share(mr, fd, offset), Err(Error::Invalid), "{offset}");
    }
    assert_eq!(y.dev.mr_share(y.mr, fd, 0), Err(Error::Invalid), "private memory");
    assert_eq!(y.dev.mr_share(mr, -1, AT), Err(Error::Os(libc::EBADF)));
    assert_eq!(y.dev.mr_share(mr + (1 << 32), fd, AT), Err(Error::StaleHandle));
    memory.share(y.dev, mr).expect("mr_share");
    assert_eq!(memory.share(y.dev, mr), Err(Error::Busy));
}

#[test]
fn memory_that_the_owner_could_truncate_is_not_mapped() {
    let (devices, memory) = (pair(1), Memory::new(0));
    let shape = Shape { buffer: BYTES, access: ACCESS, ..Shape::default() };
    let (mut x, mut y) =
        connected(devices[0].dev(), devices[1].dev(), shape).expect("connected ends");
    let (mr, attr) = memory.region(&y);
    memory.share(y.dev, mr).expect("mr_share");
    (x.peer.addr, x.peer.rkey) = (attr.iova, attr.rkey);
    // Long enough for several requests of a grant, which are made every 50 ms.
    for _ in 0..10 {
        for _ in 0..1000 {
            x.post(1, Op::Write(0, None), 0, 8).expect("post_send");
            succeed(&mut x, &mut y, 1);
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    assert_eq!(mapped(&x), 0);
}

#[test]
fn all_descriptors_and_mappings_are_released() {
    let held = || {
        let count = |path: &str, what: &str| {
            std::fs::read_to_string(path)
                .expect("procfs")
                .lines()
                .filter(|l| l.contains(what))
                .count()
        };
        let fds = std::fs::read_dir("/proc/self/fd").expect("procfs");
        let fds = fds.filter_map(|e| std::fs::read_link(e.ok()?.path()).ok());
        (
            fds.filter(|to| to.to_string_lossy().contains("memfd:left")).count(),
            count("/proc/self/maps", "memfd:left"),
        )
    };
    // SAFETY: a C string and no other pointers; the descriptor is new.
    let fd = unsafe {
        OwnedFd::from_raw_fd(libc::memfd_create(c"left".as_ptr(), libc::MFD_ALLOW_SEALING))
    };
    // SAFETY: no pointers.
    unsafe {
        assert_eq!(libc::ftruncate(fd.as_raw_fd(), BYTES as libc::off_t), 0);
        assert_eq!(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
    }
    let rw = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping.
    let addr =
        unsafe { libc::mmap(std::ptr::null_mut(), BYTES, rw, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
    let memory = Memory { fd, addr: addr.cast() };
    let before = held();
    assert_eq!(before, (1, 1));
    for round in 0..30 {
        let devices = pair(1);
        let (x, y, mr, _) = sharing(&devices, &memory);
        assert_eq!(held(), (2, 2), "the owner's descriptor and the initiator's mapping");
        if round % 2 == 0 {
            y.dev.mr_dereg(mr).expect("mr_dereg");
            assert_eq!(held().0, 1);
        }
        drop((x, y));
        drop(devices);
        // The initiator's mapping is unmapped by a thread that serves nobody.
        wait_for(60, "a descriptor or a mapping stays", || held() == before);
    }
}

#[test]
fn perf_writes_shared_memory_and_finds_every_byte() {
    let perf = library::examples().join("perf/perf");
    let name = |n| format!("soft:{},path=shm", loopback(75, n));
    let to = loopback(75, 1);
    let start = |args: &[&str]| Running::start(Command::new(&perf).args(args));
    let server = start(&["-k", "-d", &name(1), "-p", "19961", "--mem", "shared"]);
    for test in [
        &["write", "bw", "-s", "300000", "-n", "500", "-C"][..],
        &["write", "bw", "-s", "1000", "-n", "5000", "-C", "-q", "4"],
        &["write", "bw", "-s", "5000000", "-n", "40", "-C", "-t", "4"],
        &["write", "lat", "-s", "8", "-n", "2000"],
        &["write", "lat", "-s", "5000", "-n", "500"],
        &["send", "bw", "-s", "10000", "-n", "2000", "-C"],
        &["read", "bw", "-s", "300000", "-n", "50", "-C"],
    ] {
        for mem in ["shared", "host"] {
            let done = start(&[test, &["-d", &name(2), "-p", "19961", "--mem", mem, &to]].concat())
                .finish(LIMIT);
            assert!(done.ok(), "{test:?} {mem}: {done}");
        }
    }
    // The target is killed while it is written: the client must report that and end.
    let client = start(&[
        "write",
        "bw",
        "-s",
        "64k",
        "-n",
        "100000000",
        "-d",
        &name(2),
        "-p",
        "19961",
        "--mem",
        "shared",
        &to,
    ]);
    let at_work = || cpu::of(client.pid()).is_some_and(|used| used > Duration::from_millis(300));
    wait_for(60, "the client to be at work", at_work);
    drop(server);
    let done = client.finish(LIMIT);
    assert!(!done.ok() && done.code().is_some(), "{done}");
}
