//! Handles, pools, rings and queues at their limits: an error or a wait, never a wrong object,
//! never a lost completion.

use gdrcore_core::device::{Device, MrReg, SrqAttr};
use gdrcore_core::verbs::types::{
    access, qp_type, send_flags, wc_status, AhAttr, QpAttr, QpCap, QpInit, Wc,
};
use gdrcore_core::Error;
use gdrcore_net::map::Map;
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::ends::{connected, connected_pair, pattern, succeed, End, Op, Shape};
use gdrcore_tests::patience::deadline;
use gdrcore_tests::soft::{address, over_each, over_each_with, Soft};
use std::time::Instant;

#[test]
fn stale_and_foreign_handles_are_errors_everywhere() {
    let soft = Soft::new("loopback");
    let dev = soft.dev();
    let (live, gone) = connected_pair(dev, dev);
    let (pd, cq, qp, mr) = (gone.pd, gone.cq, gone.qp, gone.mr);
    gone.destroy().expect("nothing in use");
    // Stale, of another type, with a flipped generation, and invented.
    let wrong = |good: u64, other: u64| {
        [good ^ 1 << 32, other, 0, u64::MAX, 0xDEAD_BEEF, good.wrapping_add(1)]
    };
    fn refused<T: std::fmt::Debug>(what: &str, handle: u64, result: Result<T, Error>) {
        let e = result.expect_err(what);
        assert_eq!(e.errno(), 22, "{what} of {handle:#x}: {e}");
    }
    for h in wrong(live.pd, live.cq).into_iter().chain([pd]) {
        refused("pd_dealloc", h, dev.pd_dealloc(h));
        let reg = MrReg {
            pd: h,
            addr: live.buffer.addr(),
            length: 64,
            iova: 0,
            access: 1,
            provider: 0,
            cookie: 0,
        };
        refused("mr_reg", h, dev.mr_reg(&reg));
        refused("ah_create", h, dev.ah_create(h, &AhAttr::default()));
        refused(
            "srq_create",
            h,
            dev.srq_create(h, &SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 }),
        );
        refused("mw_alloc", h, dev.mw_alloc(h, 2));
    }
    for h in wrong(live.mr, live.pd).into_iter().chain([mr]) {
        refused("mr_dereg", h, dev.mr_dereg(h));
        refused("mr_query", h, dev.mr_query(h));
        refused("mw_dealloc", h, dev.mw_dealloc(h));
    }
    let mut wc = [Wc::default()];
    for h in wrong(live.cq, live.qp).into_iter().chain([cq]) {
        refused("cq_destroy", h, dev.cq_destroy(h));
        refused("cq_resize", h, dev.cq_resize(h, 16));
        refused("poll_cq", h, dev.poll_cq(h, &mut wc));
        refused("cq_arm", h, dev.cq_arm(h, false));
    }
    for h in wrong(live.qp, live.cq).into_iter().chain([qp]) {
        refused("qp_destroy", h, dev.qp_destroy(h));
        refused("qp_query", h, dev.qp_query(h));
        refused("qp_modify", h, dev.qp_modify(h, &QpAttr::default(), 1));
        refused("qp_cause", h, dev.qp_cause(h));
        let wr = live.request(1, Op::Send(None), &[]);
        let (mut bad, mut bad_recv) = (std::ptr::null(), std::ptr::null());
        // SAFETY: `wr` is a live request without pieces and without a successor.
        refused("post_send", h, unsafe { dev.post_send(h, &wr, &mut bad) });
        // SAFETY: a null list is allowed.
        refused("post_recv", h, unsafe { dev.post_recv(h, std::ptr::null(), &mut bad_recv) });
        refused("srq_destroy", h, dev.srq_destroy(h));
        refused("ah_destroy", h, dev.ah_destroy(h));
    }
    live.destroy().expect("the live end can be destroyed");
    assert_eq!(dev.leaks().expect("leaks"), Default::default());
}

#[test]
fn an_exhausted_pool_is_an_error_and_recovers() {
    let mut config = SoftConfig::default();
    (config.core.max_pd, config.core.max_cq, config.core.max_mr) = (3, 3, 3);
    let soft = Soft::open("loopback", &config).expect("loopback");
    let dev = soft.dev();
    let memory = [0u8; 64];
    for _ in 0..100 {
        let mut pds = Vec::new();
        let e = loop {
            match dev.pd_alloc() {
                Ok(pd) => pds.push(pd),
                Err(e) => break e,
            }
        };
        assert_eq!(e, Error::NoMemory);
        assert!(pds.len() >= 3, "{} domains", pds.len());
        let reg = MrReg {
            pd: pds[0],
            addr: memory.as_ptr() as u64,
            length: 64,
            iova: 0,
            access: 0,
            provider: 0,
            cookie: 0,
        };
        let mut mrs = Vec::new();
        while let Ok((mr, _)) = dev.mr_reg(&reg) {
            mrs.push(mr);
            assert!(mrs.len() < 100_000);
        }
        assert!(mrs.len() >= 3);
        mrs.into_iter().for_each(|mr| dev.mr_dereg(mr).expect("mr_dereg"));
        pds.into_iter().for_each(|pd| dev.pd_dealloc(pd).expect("pd_dealloc"));
    }
    assert_eq!(dev.leaks().expect("leaks"), Default::default());
}

#[test]
fn objects_in_use_are_not_destroyed() {
    let soft = Soft::new("loopback");
    let end = End::new(soft.dev(), Shape::default()).expect("an end");
    assert_eq!(soft.dev().pd_dealloc(end.pd), Err(Error::Busy));
    assert_eq!(soft.dev().cq_destroy(end.cq), Err(Error::Busy));
    end.destroy().expect("the order in which nothing is in use");
}

#[test]
fn a_full_send_queue_returns_again_and_loses_nothing() {
    over_each(|x, y| {
        let shape = Shape { depth: 8, ..Shape::default() };
        let (mut a, mut b) = connected(x, y, shape).expect("connected ends");
        let total = 5000u64;
        let (mut posted, mut completed, mut refused) = (0u64, 0u64, 0u64);
        let end = deadline(60);
        while completed < total {
            while posted < total {
                match a.post(posted, Op::Write(posted % 1000 * 8, None), 0, 8) {
                    Ok(()) => posted += 1,
                    Err(e) => {
                        assert_eq!(e, Error::Again);
                        refused += 1;
                        break;
                    }
                }
            }
            a.poll();
            b.poll();
            for wc in a.done.drain(..) {
                assert_eq!((wc.wr_id, wc.status), (completed, wc_status::SUCCESS));
                completed += 1;
            }
            assert!(Instant::now() < end, "{completed} of {total}");
        }
        assert!(refused > 0, "the queue never was full");
    });
}

#[test]
fn unsignalled_requests_free_their_slots() {
    over_each(|x, y| {
        let (mut a, mut b) =
            connected(x, y, Shape { depth: 8, ..Shape::default() }).expect("connected ends");
        let piece = [a.piece(0, 8)];
        let end = deadline(60);
        let mut posted = 0;
        while posted < 2000 {
            let mut wr = a.request(posted, Op::Write(0, None), &piece);
            if posted < 1999 {
                wr.send_flags &= !send_flags::SIGNALED;
            }
            match a.post_wr(&wr) {
                Ok(()) => posted += 1,
                Err(e) => {
                    assert_eq!(e, Error::Again);
                    a.poll();
                    b.poll();
                }
            }
            assert!(Instant::now() < end, "{posted} posted");
        }
        succeed(&mut a, &mut b, 1999);
        assert!(a.done.is_empty(), "only the last request was signalled: {:?}", a.done);
    });
}

#[test]
fn a_cq_smaller_than_its_queues_never_loses_a_completion() {
    over_each(|x, y| {
        let shape = Shape { depth: 32, cqe: 1, ..Shape::default() };
        let (mut a, mut b) = connected(x, y, shape).expect("connected ends");
        for n in 0..32 {
            b.post_recv(n, n * 64, 64).expect("post_recv");
        }
        for n in 0..32u64 {
            a.buffer.write(0, &pattern(n, 64));
            a.post(n, Op::Send(None), 0, 64).expect("post_send");
        }
        // One side at a time: the other's CQ stays full for a while.
        let end = deadline(60);
        while a.done.len() < 32 || b.done.len() < 32 {
            b.poll();
            if b.done.len() >= 8 {
                a.poll();
            } else {
                a.dev.progress().expect("progress");
            }
            assert!(Instant::now() < end, "{} sent, {} received", a.done.len(), b.done.len());
        }
        for end in [&a, &b] {
            let ids: Vec<u64> = end.done.iter().map(|wc| wc.wr_id).collect();
            assert_eq!(ids, (0..32).collect::<Vec<u64>>());
            assert!(end.done.iter().all(|wc| wc.status == wc_status::SUCCESS), "{:?}", end.done);
        }
    });
}

#[test]
fn a_qp_cycle_leaves_nothing_behind() {
    let mut config = SoftConfig::default();
    config.core.max_qp = 4;
    over_each_with(&config, |x, y| {
        let before = (x.leaks().expect("leaks"), y.leaks().expect("leaks"));
        for n in 0..300u64 {
            let shape = Shape { buffer: 4096, depth: 4, cqe: 8, ..Shape::default() };
            let (mut a, mut b) =
                connected(x, y, shape).unwrap_or_else(|e| panic!("round {n}: {e}"));
            a.buffer.write(0, &n.to_ne_bytes());
            a.post(n, Op::Write(64, None), 0, 8).expect("post_send");
            succeed(&mut a, &mut b, n);
            assert_eq!(b.buffer.read(64, 8), n.to_ne_bytes());
            a.destroy().expect("destroy");
            b.destroy().expect("destroy");
        }
        assert_eq!((x.leaks().expect("leaks"), y.leaks().expect("leaks")), before);
    });
}

/// A device reports its own limits, whatever other devices of its address have; where its block of
/// QPNs is the lower limit, it reports that.
#[test]
fn the_device_reports_its_number_of_queue_pairs() {
    let mut config = SoftConfig::default();
    (config.core.max_qp, config.core.qpn_count) = (64, 256);
    let two =
        [(); 2].map(|()| Soft::open(&address(5), &config).expect("two devices of one address"));
    let mut made = Vec::new();
    for soft in &two {
        let dev = soft.dev();
        let said = dev.query().expect("query").max_qp;
        assert_eq!(said, 256, "a table of 64 grows to 1024, but there are 256 numbers");
        let memory = Map::new(64 << 20).expect("memory");
        // SAFETY: fresh memory, which nobody gives back.
        unsafe { dev.arena_add(memory.as_ptr(), memory.len()).expect("arena_add") };
        std::mem::forget(memory);
        let pd = dev.pd_alloc().expect("pd");
        let cq = dev.cq_create(16).expect("cq").0;
        let cap = QpCap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let init =
            QpInit { pd, send_cq: cq, recv_cq: cq, qp_type: qp_type::RC, cap, ..QpInit::default() };
        for n in 0..said {
            made.push((
                dev,
                dev.qp_create(&init).unwrap_or_else(|e| panic!("{n} of {said}: {e}")).0,
            ));
        }
        assert_eq!(dev.qp_create(&init).err(), Some(Error::NoMemory));
    }
    for (dev, qp) in made {
        dev.qp_destroy(qp).expect("destroy");
    }
}

#[test]
fn bad_registrations_are_refused() {
    let soft = Soft::new("loopback");
    let dev: &dyn Device = soft.dev();
    let pd = dev.pd_alloc().expect("pd");
    let memory = vec![0u8; 4096];
    let at = memory.as_ptr() as u64;
    let reg = |addr, length, access| {
        dev.mr_reg(&MrReg { pd, addr, length, iova: addr, access, provider: 0, cookie: 0 })
    };
    assert!(reg(at, 4096, access::REMOTE_WRITE).is_err(), "remote write without local write");
    assert!(reg(at, 4096, access::REMOTE_ATOMIC).is_err(), "remote atomic without local write");
    assert!(reg(at, u64::MAX, access::LOCAL_WRITE).is_err(), "longer than the address space");
    assert!(
        reg(u64::MAX - 10, 4096, access::LOCAL_WRITE).is_err(),
        "past the end of the address space"
    );
    assert!(reg(4096, 4096, access::LOCAL_WRITE).is_err(), "memory that is not mapped");
    assert!(reg(at, 4096, 1 << 31).is_err(), "an unknown access flag");
    let bad = dev.mr_reg(&MrReg {
        pd,
        addr: at,
        length: 64,
        iova: at,
        access: 1,
        provider: 99,
        cookie: 0,
    });
    assert!(bad.is_err(), "an unknown provider");
    dev.pd_dealloc(pd).expect("nothing was registered");
}
