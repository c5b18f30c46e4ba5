//! GPU memory in remote mode: the router opens what a tenant exports by descriptor. Uses the
//! machine's GPU where there is one, else the fake driver.

use gdrcore_core::device::{Device, MrReg};
use gdrcore_core::verbs::types::{access, Handle};
use gdrcore_core::Error;
use gdrcore_cuda::device::Device as GpuDevice;
use gdrcore_cuda::memory::{self, AllocationKind, Shared};
use gdrcore_cuda::route::Route;
use gdrcore_net::reason;
use gdrcore_net::remote::call::GpuMemory;
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_tests::cuda::{self, alone, Driver};
use gdrcore_tests::ends::{connected, pattern, succeed, End, Op, Shape};
use gdrcore_tests::library;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::remote::{open, pair_on, wait_until_empty};
use gdrcore_tests::router::{words, Router};
use gdrcore_tests::skip;
use gdrcore_tests::soft::address;
use gdrcore_tests::tools::loopback;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;

const ALL: u32 = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
const LEN: usize = 1 << 20;

fn gpu() -> &'static GpuDevice {
    GpuDevice::get(0).expect("the first GPU")
}

fn name() -> String {
    gpu().bdf().expect("a PCI address").to_string()
}

/// Two tenants on a device of the router, which has `more` in its table. `folders`: further ones of
/// libraries.
fn start_on(device: &str, more: &str, folders: &[&Path], environment: &[(&str, &str)]) -> Router {
    let fake = (cuda::driver() == Driver::Fake).then(cuda::fake);
    let folders = std::env::join_paths(folders.iter().copied().chain(fake)).expect("plain paths");
    let mut all = vec![
        ("FAKECUDA_DEVICES", "0000:b7:00.0,0001:3b:00.0"),
        ("LD_LIBRARY_PATH", folders.to_str().expect("a plain path")),
    ];
    all.extend(environment);
    let policy = format!("[router]\n{more}\n{}", pair_on(device));
    Router::start_in(&policy, &[], &all)
}

fn start(last: u8, more: &str) -> Router {
    start_on(&address(last), more, &[], &[])
}

fn with_gpu() -> String {
    format!("gpus = [\"{}\"]", name())
}

fn start_with_gpu(last: u8) -> Router {
    start(last, &with_gpu())
}

/// GPU memory of this process, and what names it elsewhere.
struct Buffer {
    at: u64,
    fd: OwnedFd,
    of: GpuMemory,
}

impl Buffer {
    fn new() -> Buffer {
        let at = memory::alloc(gpu(), LEN, AllocationKind::Shareable).expect("GPU memory");
        let Ok(Shared::Descriptor { fd, offset, size }) = memory::export(at, LEN as u64) else {
            panic!("it is not exported by descriptor")
        };
        let mut bdf = [0; 16];
        bdf[..name().len()].copy_from_slice(name().as_bytes());
        // SAFETY: just exported, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Buffer { at, fd, of: GpuMemory { bdf, offset, size } }
    }

    fn reg(&self, pd: Handle) -> MrReg {
        let (addr, length) = (self.at, LEN as u64);
        MrReg { pd, addr, length, iova: addr, access: ALL, provider: 0, cookie: 0 }
    }

    fn register_by(&self, dev: &RemoteDevice, pd: Handle, by: Route) -> (Handle, u32) {
        let made = dev.mr_reg_gpu(&self.reg(pd), self.of, self.fd.as_fd());
        let ((mr, attr), route) = made.expect("a region of GPU memory");
        assert_eq!(Route::from_u32(route.route), Some(by));
        (mr, attr.rkey)
    }

    fn register(&self, dev: &RemoteDevice, pd: Handle) -> (Handle, u32) {
        self.register_by(dev, pd, Route::Staged)
    }

    fn read(&self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        memory::copy_out(self.at, &mut bytes).expect("copy_out");
        bytes
    }
}

/// Bytes go to GPU memory of the other tenant and back.
fn there_and_back(a: &mut End, b: &mut End, gpu: &Buffer, rkey: u32, n: u64) {
    let bytes = pattern(n, LEN);
    a.buffer.write(0, &bytes);
    (a.peer.addr, a.peer.rkey) = (gpu.at, rkey);
    a.post(2 * n, Op::Write(0, None), 0, LEN as u32).expect("post_send");
    succeed(a, b, 2 * n);
    assert!(gpu.read(LEN) == bytes, "round {n}: other bytes in the GPU's memory");
    // As a client does that has the memory by its descriptor.
    let answer = pattern(n + 99, LEN);
    memory::copy_in(gpu.at, &answer).expect("copy_in");
    a.post(2 * n + 1, Op::Read(0), 0, LEN as u32).expect("post_send");
    succeed(a, b, 2 * n + 1);
    assert!(a.buffer.read(0, LEN) == answer, "round {n}: other bytes than the GPU had");
}

#[test]
fn peers_reach_gpu_memory_that_the_router_has_by_descriptor() {
    let (_alone, _) = alone();
    let router = start_with_gpu(1);
    assert!(router.ask("status").output.contains("which refuses other calls"));
    let (x, y) = (open(&router, "a"), open(&router, "b"));
    let shape = Shape { buffer: LEN, ..Shape::default() };
    let (mut a, mut b) = connected(&x, &y, shape).expect("connected ends");
    let gpu = Buffer::new();
    let (mr, rkey) = gpu.register(&y, b.pd);
    (0..5).for_each(|n| there_and_back(&mut a, &mut b, &gpu, rkey, n));
    // What the tenant frees stays while the region has it.
    y.mr_dereg(mr).expect("mr_dereg");
    let freed = Buffer::new();
    let (mr, rkey) = freed.register(&y, b.pd);
    memory::free(freed.at).expect("free");
    (a.peer.addr, a.peer.rkey) = (freed.at, rkey);
    a.post(100, Op::Write(0, None), 0, LEN as u32).expect("post_send");
    succeed(&mut a, &mut b, 100);
    y.mr_dereg(mr).expect("mr_dereg");
    // A tenant that goes leaves nothing, and the next finds all as before.
    let (_, rkey) = gpu.register(&y, b.pd);
    there_and_back(&mut a, &mut b, &gpu, rkey, 7);
    drop((a, b));
    drop((x, y));
    wait_until_empty(&router);
    memory::free(gpu.at).expect("free");
}

/// The drop-in's libibverbs is the NIC. It takes a dma-buf that the CPU can map, as the fake
/// driver's.
#[test]
fn a_nic_of_the_router_reaches_gpu_memory_by_its_dma_buf() {
    let (_alone, driver) = alone();
    if driver == Driver::Real {
        skip!("NVIDIA's driver lets no CPU map its dma-buf, so the drop-in takes none");
    }
    let built = library::build();
    if !built.join("libgdrcore_verbs.so").exists() {
        skip!("libgdrcore_verbs.so is not built (make verbs)");
    }
    let start = |last: u8, dma_buf: &str| {
        let nic = [
            ("GDRC_ADDRESS", &*loopback(164, last.into())),
            ("GDRC_VERBS_ON_DROPIN", "1"),
            ("GDRC_ENGINES", "1"),
            ("FAKECUDA_DMABUF", dma_buf),
        ];
        start_on("verbs:gdrc0", &with_gpu(), &[&library::dropin(), &built], &nic)
    };
    let router = start(1, "2");
    let (x, y) = (open(&router, "a"), open(&router, "b"));
    let shape = Shape { buffer: LEN, ..Shape::default() };
    let (mut a, mut b) = connected(&x, &y, shape).expect("connected ends");
    let gpu = Buffer::new();
    for n in 0..5 {
        let (mr, rkey) = gpu.register_by(&y, b.pd, Route::Dmabuf);
        there_and_back(&mut a, &mut b, &gpu, rkey, n);
        y.mr_dereg(mr).expect("mr_dereg");
    }
    // A tenant that goes leaves nothing.
    gpu.register_by(&y, b.pd, Route::Dmabuf);
    drop((a, b));
    drop((x, y));
    wait_until_empty(&router);
    // Neither a dma-buf nor nvidia_peermem: no route, and what was opened is closed.
    reason::install();
    let router = start(2, "0");
    let device = open(&router, "a");
    let pd = device.pd_alloc().expect("a protection domain");
    let (e, said) = words(device.mr_reg_gpu(&gpu.reg(pd), gpu.of, gpu.fd.as_fd()));
    let reasons = ["exports no dma-buf", "nvidia_peermem is not loaded"];
    assert!(e == Error::Unsupported && reasons.iter().all(|r| said.contains(r)), "{e}: {said}");
    device.pd_dealloc(pd).expect("an end");
    wait_until_empty(&router);
    memory::free(gpu.at).expect("free");
}

#[test]
fn what_is_no_memory_of_the_routers_gpus_is_refused() {
    let (_alone, _) = alone();
    reason::install();
    let router = start_with_gpu(2);
    let device = open(&router, "a");
    let (gpu, pd) = (Buffer::new(), device.pd_alloc().expect("a protection domain"));
    let (reg, fd) = (gpu.reg(pd), gpu.fd.as_fd());
    let refused = |reg: MrReg, of: GpuMemory, fd: BorrowedFd<'_>, expected: Error, why: &str| {
        let (e, said) = words(device.mr_reg_gpu(&reg, of, fd));
        assert!(e == expected && said.contains(why), "{e}: {said}");
    };
    for bdf in [*b"0001:3b:00.0\0\0\0\0", [0; 16], [b'x'; 16], *b"0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"]
    {
        refused(reg, GpuMemory { bdf, ..gpu.of }, fd, Error::NoDevice, "no such GPU");
    }
    // A file could be one whose server never answers.
    for path in ["/etc/passwd", "/proc/self/status"] {
        let file = std::fs::File::open(path).expect("a file");
        refused(reg, gpu.of, file.as_fd(), Error::Access, "of no GPU memory");
    }
    let null = std::fs::File::open("/dev/null").expect("a device");
    refused(reg, gpu.of, null.as_fd(), Error::Invalid, "the router's GPU");
    let more = GpuMemory { offset: gpu.of.size - LEN as u64 + 1, ..gpu.of };
    for of in
        [more, GpuMemory { offset: u64::MAX, ..gpu.of }, GpuMemory { size: 1 << 60, ..gpu.of }]
    {
        let (e, said) = words(device.mr_reg_gpu(&reg, of, fd));
        assert!(said.contains("the router's GPU"), "{e}: {said}");
    }
    refused(MrReg { pd: 5, ..reg }, gpu.of, fd, Error::StaleHandle, "");
    let long = MrReg { length: 1 << 41, ..reg };
    refused(long, gpu.of, fd, Error::NoMemory, "its most");
    // It is served as before.
    let (mr, _) = gpu.register(&device, pd);
    device.mr_dereg(mr).and(device.pd_dealloc(pd)).expect("an end");
    wait_until_empty(&router);
    // Without a GPU in the policy there is none.
    let (e, said) = {
        let router = start(3, "");
        let device = open(&router, "a");
        let pd = device.pd_alloc().expect("a protection domain");
        words(device.mr_reg_gpu(&gpu.reg(pd), gpu.of, fd))
    };
    assert!(e == Error::Unsupported && said.contains("has no `gpus`"), "{e}: {said}");
    memory::free(gpu.at).expect("free");
}

#[test]
fn a_router_without_the_gpu_of_its_policy_does_not_start() {
    let (_alone, _) = alone();
    let router = gdrcore_tests::library::router().join("gdrcore-routerd");
    let dir = gdrcore_tests::tools::scratch("router-remote-no-gpu");
    let file = dir.join("policy.toml");
    let device = address(4);
    std::fs::write(
        &file,
        format!(
            "[router]\ngpus = [\"00ff:00:1f.7\"]\n[tenant.a]\nlisten = \"{}\"\ndevice = \
             \"{device}\"\n",
            dir.join("a").display()
        ),
    )
    .expect("a policy");
    let mut command = std::process::Command::new(router);
    if cuda::driver() == Driver::Fake {
        command.env("LD_LIBRARY_PATH", cuda::fake());
    }
    let done = gdrcore_tests::tools::run(command.arg(&file), 60);
    assert!(!done.ok() && done.output.contains("the router's GPU: "), "{}", done.output);
}

#[test]
fn nothing_of_a_region_stays_in_the_router() {
    let (_alone, _) = alone();
    let mut router = start_with_gpu(5);
    let device = open(&router, "a");
    let pd = device.pd_alloc().expect("a protection domain");
    let gpu = Buffer::new();
    let of = format!("/proc/{}", router.running().pid());
    let count = || {
        let maps = std::fs::read_to_string(format!("{of}/maps")).expect("its mappings");
        (
            std::fs::read_dir(format!("{of}/fd")).expect("its descriptors").count(),
            maps.lines().count(),
        )
    };
    let again = |n: usize| {
        for _ in 0..n {
            let (mr, _) = gpu.register(&device, pd);
            device.mr_dereg(mr).expect("mr_dereg");
        }
    };
    again(10);
    let (fds, maps) = count();
    again(100);
    // Descriptors are closed by another thread; malloc may have a mapping more.
    wait_for(60, "memory stays with the router", || count().0 <= fds && count().1 < maps + 20);
    memory::free(gpu.at).expect("free");
}
