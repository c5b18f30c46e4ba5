//! Memory that is freed, contexts that are lost, calls of the driver that fail.

use super::*;

#[test]
fn memory_that_is_freed_and_given_again_is_refused() {
    let (_alone, _) = alone();
    over_each(|x, y, port| {
        for op in [Op::Write(0, None), Op::Read(0), Op::FetchAdd(0, 1)] {
            let (mut a, mut b) = connected_pair(x.soft.dev(), y.soft.dev());
            let (mut c, mut d) = connected_pair(x.soft.dev(), y.soft.dev());
            let there = y.alloc(&b, 70_000);
            let beside = y.alloc(&d, 70_000);
            aim(&mut a, &there);
            aim(&mut c, &beside);
            let len = if matches!(op, Op::FetchAdd(..)) { 8 } else { 70_000 };
            a.post(1, op, 0, len).unwrap();
            succeed(&mut a, &mut b, 1);
            memory::free(there.at).unwrap();
            let again =
                memory::alloc(Device::get(0).unwrap(), 70_000, AllocationKind::Plain).unwrap();
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
        let (mut a, mut b) = connected_pair(x.soft.dev(), y.soft.dev());
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
    let (mut a, mut b) = connected_pair(x.soft.dev(), y.soft.dev());
    let (mut c, mut d) = connected_pair(x.soft.dev(), y.soft.dev());
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
            let (mut a, mut b) = connected_pair(x.soft.dev(), x.soft.dev());
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
        let failed = memory::alloc(device, 100_000, AllocationKind::Shareable).expect_err(call);
        assert_eq!((failed.call, failed.error()), (call, Error::NoMemory));
    }
    assert_eq!(cuda::stat(Stat::Blocks), blocks);
    for after in 0..2 {
        let s = Staging::new(device).unwrap();
        let at = memory::alloc(device, 4096, AllocationKind::Plain).unwrap();
        let span = Span::look_up(at, 4096).unwrap();
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
        let (mut a, mut b) = connected_pair(x.soft.dev(), y.soft.dev());
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
