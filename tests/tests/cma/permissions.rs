//! Keys, contexts and memory that end: a copy by address happens only while the target allows it.

use super::*;

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
        y.leave()
    };
    let before = memory.read(0, BYTES);
    x.buffer.write(0, &vec![0xa5; BYTES]);
    // Drops the device with all of its objects.
    drop(far);
    x.post(9, Op::Write(0, None), 0, 300_000).expect("post_send");
    assert_ne!(x.alone(9).status, wc_status::SUCCESS);
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
    let mapped = |x: &End| x.dev.counters().unwrap().mapped_writes;
    let before = carried(&x);
    run_until(60, "never mapped", || {
        x.post(1, Op::Write(0, None), 0, LEAST as u32).expect("post_send");
        succeed(&mut x, &mut y, 1);
        mapped(&x) > 0
    });
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
