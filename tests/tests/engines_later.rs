//! Engines that are made when a thread first needs one: they have all that the device had before.

use gdrcore_core::device::{AsyncEvent, CqPlace};
use gdrcore_core::verbs::types::{
    qp_type, wc_opcode, wc_status, AhAttr, Handle, QpInit, RdmaWr, SendWr, Sge, UdWr, Wc,
};
use gdrcore_core::{Config, Error};
use gdrcore_net::reason;
use gdrcore_net::soft::{soft_flags, EngineCount, EventSink, PathChoice, SoftConfig};
use gdrcore_tests::ends::{connect_both, connected, pattern, succeed, Buffer, End, Op, Shape};
use gdrcore_tests::patience::{deadline, limit_ms, run_until};
use gdrcore_tests::process::descriptors;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::workers::{
    await_one, await_sleep, block, comes, elsewhere, engine_of, register, remake, shape, sleeping,
    write, LEN,
};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// One test at a time: they count descriptors of the process.
fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    reason::install();
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device(last: u8, path: PathChoice, most: u32) -> Soft {
    let config = SoftConfig { path, flags: soft_flags::HELPER, ..SoftConfig::default() };
    Soft::open_with(&address(last), &config, EngineCount::up_to(most)).expect("open")
}

#[test]
fn an_engine_is_made_for_the_thread_that_needs_it() {
    let _alone = alone();
    for path in [PathChoice::Shm, PathChoice::Udp] {
        let before = descriptors(std::process::id());
        let (x, y) = (device(1, path, 2), device(2, path, 2));
        let (x, y) = (x.dev(), y.dev());
        let one = device(3, path, 1).dev().query().unwrap();
        assert_eq!((x.vectors(), x.query().unwrap().max_qp), (2, one.max_qp));
        let opened = descriptors(std::process::id()) - before;
        let first = connected(x, y, shape()).expect("ends");
        assert_eq!(engine_of(first.0.cq), 0);
        let fewer = descriptors(std::process::id()) - before;
        let second = elsewhere(|| {
            let ends = connected(x, y, shape()).expect("ends");
            let cq = x.cq_create_at(4, CqPlace::Domain(2)).expect("CQ").0;
            assert_eq!(engine_of(cq), 0, "of its thread domain");
            ends
        });
        assert_eq!((engine_of(second.0.cq), engine_of(second.1.cq)), (1, 1));
        assert_ne!(block(&first.0), block(&second.0));
        assert!(
            descriptors(std::process::id()) - before >= fewer + opened / 2,
            "two engines have more descriptors"
        );
        std::thread::scope(|scope| {
            for (n, (mut a, b)) in [first, second].into_iter().enumerate() {
                scope.spawn(move || {
                    write(&mut a, &b, (n as u64) << 40, 500);
                    a.destroy().expect("destroy");
                    b.destroy().expect("destroy");
                });
            }
        });
        // A vector names its engine, and the first one that of the thread.
        let cq = |vector| x.cq_create_at(4, CqPlace::Vector(vector)).expect("CQ").0;
        assert_eq!([0, 1, 2, 3].map(|vector| engine_of(cq(vector))), [0, 1, 0, 1]);
        // A thread domain names it, whichever thread this is.
        let cq = |n| elsewhere(|| x.cq_create_at(4, CqPlace::Domain(n)).expect("CQ").0);
        assert_eq!([0, 1, 2, 3].map(|number| engine_of(cq(number))), [0, 1, 0, 1]);
    }
}

/// The status of a WRITE from a place to another, each an address and a key.
fn write_between(end: &End, (from, lkey): (u64, u32), (to, rkey): (u64, u32)) -> u32 {
    let piece = [Sge { addr: from, length: LEN, lkey }];
    let mut wr = end.request(1, Op::Write(0, None), &piece);
    wr.wr.rdma = RdmaWr { remote_addr: to, rkey };
    end.post_wr(&wr).expect("post_send");
    let mut wc = [Wc::default()];
    run_until(60, "no completion", || end.dev.poll_cq(end.cq, &mut wc).unwrap() == 1);
    wc[0].status
}

#[test]
fn an_engine_has_what_the_device_had_before_it() {
    let _alone = alone();
    for path in [PathChoice::Shm, PathChoice::Udp] {
        let set = device(1, path, 3);
        let dev = set.dev();
        let ud = Shape { qp_type: qp_type::UD, ..shape() };
        let mut target = End::new(dev, ud).expect("end");
        let pd = dev.pd_alloc().unwrap();
        // The tables are in disorder: of ten objects of each kind every second one has ended.
        let buffers: Vec<Buffer> = (0..10).map(|_| Buffer::new(4096)).collect();
        let regions: Vec<_> =
            buffers.iter().map(|buffer| register(dev, pd, buffer, 4096)).collect();
        let windows: Vec<_> = (0..10).map(|_| dev.mw_alloc(pd, 2).unwrap().0).collect();
        let to = AhAttr { dgid: dev.query().unwrap().gid, ..AhAttr::default() };
        let ahs: Vec<_> = (0..10).map(|_| dev.ah_create(pd, &to).unwrap()).collect();
        let pds: Vec<_> = (0..10).map(|_| dev.pd_alloc().unwrap()).collect();
        for i in [2, 0, 6, 4, 8] {
            dev.mr_dereg(regions[i].0).unwrap();
            dev.mw_dealloc(windows[i]).unwrap();
            dev.ah_destroy(ahs[i]).unwrap();
            dev.pd_dealloc(pds[i]).unwrap();
        }
        let mut ends = [shape(), ud].map(|shape| {
            let mut end = elsewhere(|| End::new(dev, shape).expect("end"));
            remake(&mut end, |init| QpInit { pd, ..init });
            end
        });
        assert!(ends.iter().all(|end| engine_of(end.cq) > 0));
        let [rc, datagrams] = &mut ends;

        // Regions: as source and target of a WRITE between queue pairs of the second engine.
        let mut peer = elsewhere(|| End::new(dev, shape()).expect("end"));
        remake(&mut peer, |init| QpInit { pd, ..init });
        connect_both(rc, &mut peer);
        let at = |i: usize| (buffers[i].addr(), regions[i].1);
        let data = pattern(7, LEN as usize);
        buffers[1].write(0, &data);
        for i in [3, 5, 7, 9] {
            assert_eq!(write_between(rc, at(1), at(i)), wc_status::SUCCESS);
            assert_eq!(buffers[i].read(0, LEN as usize), data);
        }
        // One that ended before the engine was made has no key there.
        assert_eq!(write_between(rc, at(1), at(4)), wc_status::REM_ACCESS_ERR);
        assert_eq!(buffers[4].read(0, LEN as usize), vec![0; LEN as usize]);

        // Address handles: a datagram from the second engine to the first.
        connect_both(&mut target, datagrams);
        for i in [1, 9] {
            target.post_recv(1, 4096, LEN + 40).expect("post_recv");
            let limit = deadline(60);
            loop {
                let piece = [Sge { addr: buffers[1].addr(), length: LEN, lkey: regions[1].1 }];
                let mut wr: SendWr = datagrams.request(1, Op::Send(None), &piece);
                wr.wr.ud =
                    UdWr { ah: ahs[i], remote_qpn: target.own.qpn, remote_qkey: target.qkey };
                datagrams.post_wr(&wr).expect("post_send");
                await_one(datagrams, wc_opcode::SEND);
                if comes(&mut target, wc_opcode::RECV, deadline(2)) {
                    break;
                }
                assert!(Instant::now() < limit, "no datagram has come");
            }
            assert_eq!(target.buffer.read(4096 + 40, LEN as usize), data);
        }

        // New objects have one handle in all engines, and old ones end in all.
        for _ in 0..12 {
            let (mr, _) = register(dev, pd, &buffers[0], 4096);
            let (mw, ah) = (dev.mw_alloc(pd, 2).unwrap().0, dev.ah_create(pd, &to).unwrap());
            let other = dev.pd_alloc().unwrap();
            dev.pd_dealloc(other).unwrap();
            dev.mr_dereg(mr).unwrap();
            dev.mw_dealloc(mw).unwrap();
            dev.ah_destroy(ah).unwrap();
        }
        assert_eq!(dev.pd_dealloc(pd), Err(Error::Busy));
        for end in ends.into_iter().chain([peer, target]) {
            end.destroy().expect("destroy");
        }
        for i in [1, 3, 5, 7, 9] {
            dev.mr_dereg(regions[i].0).unwrap();
            dev.mw_dealloc(windows[i]).unwrap();
            dev.ah_destroy(ahs[i]).unwrap();
            dev.pd_dealloc(pds[i]).unwrap();
        }
        dev.pd_dealloc(pd).unwrap();
        assert_eq!(dev.leaks().unwrap(), Default::default());
    }
}

#[test]
fn who_sleeps_on_the_device_hears_an_engine_that_is_made_meanwhile() {
    let _alone = alone();
    for path in [PathChoice::Shm, PathChoice::Udp] {
        let config = SoftConfig { path, ..SoftConfig::default() };
        let [x, y] = [1, 2].map(|last| {
            Soft::open_with(&address(last), &config, EngineCount::up_to(2)).expect("open")
        });
        let (x, y) = (x.dev(), y.dev());
        let first = End::new(x, shape()).expect("end");
        assert_eq!(engine_of(first.cq), 0);
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| loop {
                if x.wait(limit_ms(60)).unwrap() {
                    return x.cq_event().unwrap();
                }
            });
            let awaited = scope.spawn(|| {
                let (a, b) = connected(y, x, shape()).expect("ends");
                assert_eq!(engine_of(b.cq), 1);
                b.post_recv(1, 0, LEN).unwrap();
                x.cq_arm(b.cq, false).unwrap();
                a.post(1, Op::Send(None), 0, LEN).unwrap();
                (a, b)
            });
            let (mut a, mut b) = awaited.join().expect("the thread");
            // The peer's engine is run by nobody else; the other one by who sleeps on it.
            while !sleeper.is_finished() {
                a.poll();
            }
            assert_eq!(sleeper.join().expect("the sleeper"), Some(b.cq));
            assert_eq!(succeed(&mut a, &mut b, 1).opcode, wc_opcode::SEND);
            assert_eq!(b.take(1).map(|wc| wc.opcode), Some(wc_opcode::RECV));
        });
        // It comes to rest again: the news was heard once.
        let mut fd = libc::pollfd { fd: x.fd().unwrap(), events: libc::POLLIN, revents: 0 };
        run_until(60, "it is never at rest", || {
            // SAFETY: one entry, which lives through the call.
            !x.arm().unwrap() && unsafe { libc::poll(&mut fd, 1, 0) } == 0
        });
    }
}

#[test]
fn who_sleeps_on_the_device_runs_the_timers_of_the_others_requests() {
    let _alone = alone();
    // It has no sockets, whose messages would wake who sleeps. The other thread's engine is the
    // sleeper's, or is made meanwhile.
    for engines in [1, 2] {
        let count = EngineCount::up_to(engines);
        let set = Soft::open_with("loopback", &SoftConfig::default(), count).expect("open");
        let dev = set.dev();
        dev.cq_create(4).expect("a CQ of the first engine");
        std::thread::scope(|scope| {
            let (tell, told) = std::sync::mpsc::channel();
            let sleeper = scope.spawn(move || {
                tell.send(sleeping()).unwrap();
                // The end of the wait runs the engine, too, but is later.
                let limit = deadline(60);
                assert!(dev.wait(limit_ms(120)).unwrap(), "no event");
                assert!(Instant::now() < limit, "at the end of the wait");
                dev.cq_event().unwrap()
            });
            await_sleep(told.recv().unwrap());
            // The sender stays, whose region is read once more.
            let (_a, b) = elsewhere(|| {
                let (a, b) = connected(dev, dev, shape()).expect("ends");
                assert_eq!(engine_of(b.cq), u64::from(engines) - 1);
                dev.cq_arm(b.cq, false).unwrap();
                // It is not ready to receive; then it is, and the sleeper alone runs the engine.
                a.post(1, Op::Send(None), 0, LEN).unwrap();
                b.post_recv(1, 0, LEN).unwrap();
                (a, b)
            });
            assert_eq!(sleeper.join().expect("the sleeper"), Some(b.cq));
        });
    }
}

/// Notes the CQs whose events it is given.
#[derive(Default)]
struct Receiver(Mutex<Vec<Handle>>);

impl EventSink for Receiver {
    fn cq_event(&self, cq: Handle) {
        self.0.lock().unwrap().push(cq);
    }

    fn async_event(&self, _: AsyncEvent) {}

    fn cm_event(&self) {}
}

#[test]
fn events_of_an_engine_that_is_made_later_reach_their_receiver() {
    let _alone = alone();
    for path in [PathChoice::Shm, PathChoice::Udp] {
        let config = SoftConfig { path, ..SoftConfig::default() };
        let set = Soft::open_with(&address(1), &config, EngineCount::up_to(2)).expect("open");
        let (x, y) = (set.dev(), device(2, path, 1));
        let receiver: &Receiver = Box::leak(Box::default());
        set.soft().deliver_to(receiver);
        x.helper(true).expect("helper");
        x.cq_create(4).expect("a CQ of the first engine");
        let (mut a, b) = elsewhere(|| connected(y.dev(), x, shape()).expect("ends"));
        assert_eq!(engine_of(b.cq), 1);
        b.post_recv(1, 0, LEN).unwrap();
        x.cq_arm(b.cq, false).unwrap();
        a.post(1, Op::Send(None), 0, LEN).unwrap();
        // Nobody but the helper runs the engine.
        run_until(60, "no event", || {
            a.poll();
            !receiver.0.lock().unwrap().is_empty()
        });
        assert_eq!(*receiver.0.lock().unwrap(), [b.cq]);
    }
}

#[test]
fn a_thread_shares_an_engine_where_none_can_be_made() {
    let _alone = alone();
    let set = device(1, PathChoice::Shm, 2);
    let dev = set.dev();
    dev.cq_create(4).unwrap();
    let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it lives through the call.
    assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut before) }, 0);
    let bound = |n| {
        let limit = libc::rlimit { rlim_cur: n, ..before };
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    };
    let open = descriptors(std::process::id());
    // An engine needs more than three.
    bound(open as u64 + 2);
    let cqs = [0, 1].map(|_| elsewhere(|| dev.cq_create(4).map(|(cq, _)| cq)));
    bound(before.rlim_cur);
    assert_eq!(cqs.map(|cq| engine_of(cq.unwrap())), [0, 0]);
    assert_eq!(descriptors(std::process::id()), open, "what was begun has ended");
    assert_eq!(engine_of(dev.cq_create_at(4, CqPlace::Vector(1)).unwrap().0), 1);
}

#[test]
fn memory_that_was_given_before_serves_an_engine_that_is_made_later() {
    let _alone = alone();
    let core = Config { max_mr: 64, ring_bytes: 256 << 10, ..Config::default() };
    let config = SoftConfig { core, path: PathChoice::Shm, ..SoftConfig::default() };
    let memory = Buffer::new(8 << 20);
    let set = Soft::open_with(&address(1), &config, EngineCount::up_to(2)).unwrap();
    let dev = set.dev();
    // SAFETY: fresh memory, which outlives the device.
    unsafe { dev.arena_add(memory.as_ptr(), 8 << 20).unwrap() };
    let (pd, buffer) = (dev.pd_alloc().unwrap(), Buffer::new(4096));
    let regions: Vec<_> = (0..1000).map(|_| register(dev, pd, &buffer, 4096)).collect();
    dev.cq_create(4).unwrap();
    let mut cqs = Vec::new();
    for _ in 0..10 {
        cqs.push(dev.cq_create_at(4096, CqPlace::Vector(1)).expect("room").0);
    }
    assert!(cqs.iter().all(|cq| engine_of(*cq) == 1), "{cqs:x?}");
    for (mr, _) in regions {
        dev.mr_dereg(mr).unwrap();
    }
}
