//! Control calls under traffic: objects are created and destroyed, queues are resized, keys
//! revoked, helpers started and stopped.

use gdrcore_core::device::MrReg;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{qp_attr_mask, qp_state, wc_status, QpAttr};
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags as flags, SoftConfig};
use gdrcore_tests::ends::{
    complete, connect_both, connected, connected_pair, pattern, succeed, End, Op, Shape,
};
use gdrcore_tests::patience::{self, deadline, limit_ms, run_until};
use gdrcore_tests::soft::{address, over_each, Soft};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(60);

#[test]
fn everything_changes_while_a_stream_goes_on() {
    let (dx, dy) = (Soft::new(&address(1)), Soft::new(&address(2)));
    let (x, y) = (dx.dev(), dy.dev());
    let stop = AtomicBool::new(false);
    let counts = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        let stop = &stop;
        let [streamed, cycles, turns] = &counts;
        // Two streams, every byte checked.
        for thread in 0..2u64 {
            let (a, b) = connected_pair(x, y);
            scope.spawn(move || {
                let (mut a, mut b) = (a, b);
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    let bytes = pattern(round * 2 + thread, 100_000);
                    a.buffer.write(0, &bytes);
                    a.post(round, Op::Write(0, None), 0, 100_000).expect("post_send");
                    succeed(&mut a, &mut b, round);
                    assert!(b.buffer.read(0, 100_000) == bytes, "round {round}");
                    streamed.fetch_add(1, Ordering::Relaxed);
                    round += 1;
                }
                a.destroy().expect("destroy");
                b.destroy().expect("destroy");
            });
        }
        // Connections that are made and destroyed.
        scope.spawn(move || {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                let shape = Shape { buffer: 8192, depth: 8, cqe: 16, ..Shape::default() };
                let (mut a, mut b) = match connected(x, y, shape) {
                    Ok(ends) => ends,
                    // The QPNs of the latest ones rest.
                    Err(Error::NoMemory) => {
                        std::thread::sleep(Duration::from_millis(5));
                        continue;
                    }
                    Err(e) => panic!("{e}"),
                };
                a.post(n, Op::Read(0), 0, 4096).expect("post_send");
                if n % 3 > 0 {
                    succeed(&mut a, &mut b, n);
                }
                a.dev.cq_resize(a.cq, 64).expect("cq_resize");
                destroy(a);
                destroy(b);
                cycles.fetch_add(1, Ordering::Relaxed);
                n += 1;
            }
        });
        // Helper threads that start and stop, regions, events.
        scope.spawn(move || {
            let memory = gdrcore_tests::ends::Buffer::new(1 << 16);
            while !stop.load(Ordering::Relaxed) {
                for dev in [x, y] {
                    dev.helper(true).expect("helper");
                    let pd = dev.pd_alloc().expect("pd");
                    let addr = memory.addr();
                    let reg = MrReg {
                        pd,
                        addr,
                        length: 1 << 16,
                        iova: addr,
                        access: 1,
                        provider: 0,
                        cookie: 0,
                    };
                    let (mr, _) = dev.mr_reg(&reg).expect("mr_reg");
                    let _ = dev.arm().expect("arm");
                    while dev.cq_event().expect("cq_event").is_some() {}
                    while dev.async_event().expect("async_event").is_some() {}
                    dev.counters().expect("counters");
                    dev.mr_dereg(mr).expect("mr_dereg");
                    dev.pd_dealloc(pd).expect("pd_dealloc");
                    std::thread::sleep(Duration::from_micros(300));
                    dev.helper(false).expect("helper");
                }
                turns.fetch_add(1, Ordering::Relaxed);
            }
        });
        // Runs until each thread has done enough.
        let moved = || [streamed, cycles, turns].map(|n| n.load(Ordering::Relaxed));
        let watch = patience::watch(60, "streams, connections and helpers make progress");
        while moved().iter().any(|&n| n <= 200) {
            std::thread::sleep(Duration::from_millis(10));
        }
        drop(watch);
        stop.store(true, Ordering::Relaxed);
        println!("(streamed, cycles, turns) = {:?}", moved());
    });
    assert_eq!((x.leaks(), y.leaks()), (Ok(Default::default()), Ok(Default::default())));
}

/// As `End::destroy`, retried while another thread is inside an object.
fn destroy(e: End) {
    run_until(60, "the object stayed busy", || e.dev.qp_destroy(e.qp) != Err(Error::Busy));
    e.dev.cq_destroy(e.cq).expect("cq_destroy");
    e.dev.mr_dereg(e.mr).expect("mr_dereg");
    e.dev.pd_dealloc(e.pd).expect("pd_dealloc");
}

#[test]
fn a_qp_reset_and_connected_again_ignores_packets_of_its_past() {
    over_each(|x, y| {
        let (mut a, mut b) = connected_pair(x, y);
        let to_reset = QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() };
        for round in 0..60u64 {
            // Reset in the middle of a stream, whose packets and answers are still on their way.
            for n in 0..4 {
                let op = [Op::Write(0, None), Op::Read(0)][(round % 2) as usize];
                a.post(1000 + n, op, 0, 200_000).expect("post_send");
            }
            for _ in 0..round % 7 {
                b.dev.progress().expect("progress");
                a.dev.progress().expect("progress");
            }
            a.dev.qp_modify(a.qp, &to_reset, qp_attr_mask::STATE).expect("to RESET");
            b.dev.qp_modify(b.qp, &to_reset, qp_attr_mask::STATE).expect("to RESET");
            a.poll();
            a.done.clear();
            // A program chooses new PSNs each time, as the helper of the C API does.
            a.own.psn = (a.own.psn + 0x31_0007) & 0xFF_FFFF;
            b.own.psn = (b.own.psn + 0x47_0003) & 0xFF_FFFF;
            connect_both(&mut a, &mut b);
            let bytes = pattern(round, 50_000);
            a.buffer.write(500_000, &bytes);
            a.post(round, Op::Write(500_000, None), 500_000, 50_000).expect("post_send");
            succeed(&mut a, &mut b, round);
            assert!(b.buffer.read(500_000, 50_000) == bytes, "round {round}");
            assert!(
                a.done.is_empty() && b.done.is_empty(),
                "round {round}: {:?} {:?}",
                a.done,
                b.done
            );
        }
    });
}

#[test]
fn a_region_taken_back_under_traffic_ends_it_with_an_access_error() {
    for op in [Op::Write(0, None), Op::Read(0)] {
        over_each(|x, y| {
            let (mut a, mut b) =
                connected(x, y, Shape { depth: 8, ..Shape::default() }).expect("connected ends");
            let (mut c, mut d) = connected_pair(x, y);
            for n in 0..8 {
                a.post(n, op, 0, 500_000).expect("post_send");
            }
            b.dev.progress().expect("progress");
            b.dev.mr_dereg(b.mr).expect("mr_dereg");
            let end = deadline(60);
            let mut posted = 8;
            while a.done.len() < posted as usize
                || a.done.iter().all(|wc| wc.status == wc_status::SUCCESS)
            {
                // Between QPs of one device all requests may have completed before the
                // deregistration.
                if a.done.len() == posted as usize {
                    a.post(posted, op, 0, 500_000).expect("post_send");
                    posted += 1;
                }
                a.poll();
                b.poll();
                assert!(Instant::now() < end, "{:?}", a.done);
            }
            let failed = a
                .done
                .iter()
                .position(|wc| wc.status != wc_status::SUCCESS)
                .expect("one request must fail");
            assert_eq!(a.done[failed].status, wc_status::REM_ACCESS_ERR, "{op:?}");
            assert!(
                a.done[failed + 1..].iter().all(|wc| wc.status == wc_status::WR_FLUSH_ERR),
                "{op:?}"
            );
            assert_eq!(
                CauseCode::from_u32(b.dev.qp_cause(b.qp).expect("cause").code),
                Some(CauseCode::PeerUsedBadKey)
            );
            c.post(1, Op::Write(0, None), 0, 1000).expect("post_send");
            succeed(&mut c, &mut d, 1);
        });
    }
}

#[test]
fn a_sleeper_is_woken_when_its_peer_dies() {
    for flags in [0, flags::HELPER] {
        let config = SoftConfig { flags, ..SoftConfig::default() };
        let x = Soft::open(&address(1), &config).expect("a device");
        let shape = Shape { timeout: 12, retry_cnt: 2, ..Shape::default() };
        // A peer whose QP is destroyed, so that it is silent; and a peer whose device is closed, so
        // that the kernel refuses packets.
        for device_gone in [false, true] {
            let y = Soft::open(&address(2), &config).expect("a device");
            let mut a = End::new(x.dev(), shape).expect("an end");
            {
                let mut b = End::new(y.dev(), shape).expect("an end");
                connect_both(&mut a, &mut b);
                b.dev.qp_destroy(b.qp).expect("qp_destroy");
            }
            let y = Some(y).filter(|_| !device_gone);
            a.dev.cq_arm(a.cq, false).expect("cq_arm");
            a.post(1, Op::Write(0, None), 0, 100_000).expect("post_send");
            assert_eq!(
                a.dev.wait(limit_ms(60)),
                Ok(true),
                "flags {flags}, device gone {device_gone}"
            );
            // The asynchronous event of the QP may wake the sleeper before the completion event.
            run_until(60, "no event of the CQ", || {
                while a.dev.async_event().expect("async_event").is_some() {}
                a.dev.wait(100).expect("wait");
                a.dev.cq_event() == Ok(Some(a.cq))
            });
            a.poll();
            let wc = a.take(1).expect("a completion");
            assert_eq!(wc.status, wc_status::RETRY_EXC_ERR);
            // If a helper thread runs the peer's device, the packets for the missing QP are read.
            let causes: &[CauseCode] = match device_gone {
                true => &[CauseCode::PeerUnreachable],
                false => &[CauseCode::NotPolled, CauseCode::Unanswered],
            };
            let cause = CauseCode::from_u32(wc.vendor_err).expect("a cause");
            assert!(
                causes.contains(&cause),
                "flags {flags}: {:?} {:?}",
                a.dev.qp_cause(a.qp),
                a.dev.counters()
            );
            drop(y);
        }
    }
}

#[test]
fn a_receiver_that_died_and_came_back_in_error_flushes_once() {
    over_each(|x, y| {
        let (mut a, mut b) =
            connected(x, y, Shape { depth: 16, ..Shape::default() }).expect("connected ends");
        for n in 0..16 {
            b.post_recv(n, 0, 64).expect("post_recv");
        }
        a.post(1, Op::Send(None), 0, 64).expect("post_send");
        a.post(2, Op::Send(None), 0, 100).expect("post_send");
        succeed(&mut a, &mut b, 1);
        assert_eq!(complete(&mut a, &mut b, 2, SOON).status, wc_status::REM_INV_REQ_ERR);
        run_until(60, "not all receives have ended", || {
            b.poll();
            b.done.len() >= 16
        });
        let ids: Vec<u64> = b.done.iter().map(|wc| wc.wr_id).collect();
        assert_eq!(ids, (0..16).collect::<Vec<u64>>());
        let statuses: Vec<u32> = b.done.iter().map(|wc| wc.status).collect();
        assert_eq!(statuses[..2], [wc_status::SUCCESS, wc_status::LOC_LEN_ERR]);
        assert!(statuses[2..].iter().all(|&s| s == wc_status::WR_FLUSH_ERR), "{statuses:?}");
    });
}
