//! Routes of a NIC to GPU memory, tested with a fake NIC that accepts or refuses as told.

use gdrcore_core::{reason, Error, Result};
use gdrcore_cuda::device::Device;
use gdrcore_cuda::memory::{self, AllocationKind, Shared};
use gdrcore_cuda::route::{self, Route, RouteChoice, SkipReason};
use gdrcore_cuda::span::Span;
use gdrcore_tests::cuda::{self, alone, Driver, Stat};
use gdrcore_tests::process::descriptors;
use gdrcore_tests::router::words;
use gdrcore_tests::skip;
use gdrcore_tests::tools::scratch;
use std::cell::Cell;
use std::path::Path;

/// A registration as the fake NIC gets it: route, descriptor, offset.
type Made = (Route, i32, u64);

/// The NIC's own words.
const NO_DMA_BUF: &str = "this NIC takes no dma-buf today";

struct Nic {
    dma_buf: Result<()>,
    address: Result<()>,
    asked: u32,
}

impl Nic {
    fn register(
        &mut self,
        span: &Span,
        own: Option<(i32, u64)>,
        sysfs: &Path,
    ) -> Result<(Made, RouteChoice)> {
        let (dma_buf, address, asked) =
            (self.dma_buf, self.address, Cell::from_mut(&mut self.asked));
        let by_dma_buf = |fd, offset| {
            asked.set(asked.get() + 1);
            // SAFETY: takes no pointers.
            let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
            assert!(flags & libc::FD_CLOEXEC != 0, "it must be open and close-on-exec");
            let made = dma_buf.map_err(|e| reason::refused(e, format_args!("{NO_DMA_BUF}")));
            made.map(|()| (Route::Dmabuf, fd, offset))
        };
        let by_address = || {
            asked.set(asked.get() + 1);
            address.map(|()| (Route::Peermem, -1, 0))
        };
        route::register(span, own, || route::has_peermem(sysfs), by_dma_buf, by_address)
    }
}

fn nic(dma_buf: Result<()>, address: Result<()>) -> Nic {
    Nic { dma_buf, address, asked: 0 }
}

/// The route and the reasons of a result.
fn gist(made: Result<(Made, RouteChoice)>) -> Result<(Route, SkipReason, SkipReason)> {
    made.map(|(_, r)| (r.route, r.no_dma_buf, r.no_peermem))
}

#[test]
fn the_first_way_that_works_is_taken_and_the_others_are_explained() {
    let (_alone, driver) = alone();
    if driver == Driver::Real {
        skip!("a real driver does not refuse on demand");
    }
    gdrcore_net::reason::install();
    let device = Device::get(0).unwrap();
    let at = memory::alloc(device, 1 << 20, AllocationKind::Plain).unwrap();
    let span = Span::look_up(at + 5000, 10_000).unwrap();
    let dir = scratch("gpu-routes");
    let with = dir.join("with");
    std::fs::create_dir_all(with.join("module/nvidia_peermem")).unwrap();
    let without = dir.join("without");
    let open = descriptors(std::process::id());
    let take = |nic: &mut Nic, sysfs: &Path| nic.register(&span, None, sysfs);

    let mut n = nic(Ok(()), Ok(()));
    let (made, record) = take(&mut n, &with).unwrap();
    // The range is widened to whole host pages; the offset is the range's place in them.
    assert_eq!((made.0, made.2, n.asked), (Route::Dmabuf, 5000 % 4096, 1));
    assert_eq!(record, RouteChoice { route: Route::Dmabuf, ..RouteChoice::default() });

    let refused = Err(Error::Unsupported);
    let fault = Err(Error::Fault);
    assert_eq!(
        gist(take(&mut nic(refused, Ok(())), &with)),
        Ok((Route::Peermem, SkipReason::NotTaken, SkipReason::None))
    );
    assert_eq!(
        gist(take(&mut nic(refused, Ok(())), &without)),
        Err(Error::Unsupported),
        "without the module its route must not be tried"
    );
    let (_, said) = words(take(&mut nic(refused, Ok(())), &without));
    assert!(said.contains(NO_DMA_BUF), "{said}");
    assert_eq!(gist(take(&mut nic(refused, fault), &with)), Err(Error::Fault), "the last reason");
    // An error that no other route can mend ends the search.
    let mut full = nic(Err(Error::NoMemory), Ok(()));
    assert_eq!((gist(take(&mut full, &with)), full.asked), (Err(Error::NoMemory), 1));

    cuda::option("FAKECUDA_DMABUF", 0);
    let (_, record) = take(&mut nic(Ok(()), Ok(())), &with).unwrap();
    assert_eq!(
        (record.route, record.no_dma_buf, record.code),
        (Route::Peermem, SkipReason::NotExported, 801)
    );
    cuda::option("FAKECUDA_DMABUF", 1);
    cuda::fail("cuMemGetHandleForAddressRange", 2, 0, 1);
    assert_eq!(take(&mut nic(Ok(()), Ok(())), &with).unwrap().1.code, 2);

    // A descriptor that the program gave is used, and stays the program's.
    let (own, _) = span.dma_buf().unwrap();
    let mut n = nic(Ok(()), Ok(()));
    assert_eq!(n.register(&span, Some((own, 77)), &with).unwrap().0, (Route::Dmabuf, own, 77));
    let mut n = nic(fault, Ok(()));
    assert_eq!((gist(n.register(&span, Some((own, 77)), &with)), n.asked), (Err(Error::Fault), 1));
    // SAFETY: ours; it must still be open.
    assert_eq!(unsafe { libc::close(own) }, 0);
    assert_eq!(descriptors(std::process::id()), open);
    memory::free(at).unwrap();
}

/// Whether NVIDIA's driver exports a dma-buf depends on the GPU and on the kernel; either way a
/// NIC's registration takes the route that is there.
#[test]
fn a_nic_gets_the_dma_buf_that_the_driver_exports_or_the_reason_why_there_is_none() {
    let (_alone, _) = alone();
    let at = memory::alloc(Device::get(0).unwrap(), 1 << 20, AllocationKind::Plain).unwrap();
    let span = Span::look_up(at + 5000, 10_000).unwrap();
    let dir = scratch("gpu-routes-driver");
    std::fs::create_dir_all(dir.join("module/nvidia_peermem")).unwrap();
    let (_, record) = nic(Ok(()), Ok(())).register(&span, None, &dir).unwrap();
    match span.dma_buf() {
        Ok((fd, offset)) => {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap();
            println!("cuda: a dma-buf, offset {offset}: {}", info.replace('\n', " "));
            // SAFETY: ours, used for the last time.
            unsafe { libc::close(fd) };
            assert_eq!((record.route, offset), (Route::Dmabuf, 5000 % 4096));
        }
        Err(why) => {
            println!("cuda: no dma-buf: {why}");
            assert_eq!(
                (record.route, record.no_dma_buf),
                (Route::Peermem, SkipReason::NotExported)
            );
        }
    }
    memory::free(at).unwrap();
}

#[test]
fn a_hundred_thousand_registrations_leave_no_descriptor() {
    let (_alone, driver) = alone();
    let is_fake = driver == Driver::Fake;
    // A real driver takes a system call and more for each.
    let times = if is_fake { 100_000 } else { 2_000 };
    let exported = || if is_fake { cuda::stat(Stat::Descriptors) } else { 0 };
    let at = memory::alloc(Device::get(0).unwrap(), 1 << 20, AllocationKind::Plain).unwrap();
    let span = Span::look_up(at, 1 << 20).unwrap();
    let (open, before) = (descriptors(std::process::id()), exported());
    let sysfs = Path::new("/nonexistent");
    for i in 0..times {
        let outcome = [Ok(()), Err(Error::Unsupported), Err(Error::NoMemory)][i % 3];
        let _ = nic(outcome, Ok(())).register(&span, None, sysfs);
    }
    if is_fake {
        assert_eq!(exported() - before, 100_000, "each registration needs a descriptor");
    }
    assert_eq!(descriptors(std::process::id()), open);
    memory::free(at).unwrap();
}

#[test]
fn exports_are_found_again_and_freed_memory_is_another_allocation() {
    let (_alone, driver) = alone();
    let is_fake = driver == Driver::Fake;
    let blocks_of_it = || if is_fake { cuda::stat(Stat::Blocks) } else { 0 };
    let device = Device::get(0).unwrap();
    let at = memory::alloc(device, 100_000, AllocationKind::Plain).unwrap();
    let span = Span::look_up(at + 10, 99_000).unwrap();
    assert_eq!((span.base, span.at, span.size), (at, at + 10, 100_000));
    assert!(span.is_same() && span.sync_memops);
    for (begin, length) in
        [(at + 10, 100_000), (at - 1, 10), (at + 100_000, 1), (0, 1), (u64::MAX, 1), (at, 0)]
    {
        assert!(Span::look_up(begin, length).is_err(), "{begin:#x} + {length}");
    }
    memory::free(at).unwrap();
    assert!(!span.is_same(), "freed");
    let again = memory::alloc(device, 100_000, AllocationKind::Plain).unwrap();
    if is_fake {
        assert_eq!(again, at, "the fake driver reuses the address");
    }
    assert!(!span.is_same(), "a new allocation at the address counts as the same");
    memory::free(again).unwrap();

    let at = memory::alloc(device, 100_000, AllocationKind::Shareable).unwrap();
    assert!(!Span::look_up(at, 1).unwrap().sync_memops, "such memory has no sync_memops");
    let Ok(Shared::Descriptor { fd, offset, size }) = memory::export(at + 4096, 1000) else {
        panic!("no descriptor")
    };
    let view = memory::import(device, Shared::Descriptor { fd, offset, size }, 1000).unwrap();
    memory::copy_in(at + 4096, b"from here to there").unwrap();
    let mut back = [0; 18];
    memory::copy_out(view, &mut back).unwrap();
    assert_eq!(&back, b"from here to there");
    // Attributes that the descriptor's sender states are checked.
    let blocks = blocks_of_it();
    for (offset, size) in
        [(1 << 40, size), (u64::MAX, size), (0, 0), (0, 1), (0, 2 * size), (0, u64::MAX)]
    {
        assert!(
            memory::import(device, Shared::Descriptor { fd, offset, size }, 1000).is_err(),
            "{offset} {size}"
        );
    }
    assert_eq!(blocks_of_it(), blocks, "a refused import left a block");
    memory::free(view).unwrap();
    memory::free(at).unwrap();
    // SAFETY: ours, used for the last time.
    unsafe { libc::close(fd) };
}
