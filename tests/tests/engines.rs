//! A device of several engines: threads of different engines work beside each other, and what
//! belongs to the whole device is valid in all engines, and ends in all.

use gdrcore_core::config::{Config, QPN_UNIT};
use gdrcore_core::device::{MrReg, SrqAttr};
use gdrcore_core::verbs::types::{qp_type, wc_opcode, wc_status, Handle, QpInit};
use gdrcore_core::Error;
use gdrcore_net::reason;
use gdrcore_net::soft::{soft_flags, EngineCount, PathChoice, SoftConfig};
use gdrcore_tests::ends::{connected, Buffer, End, Op, Shape};
use gdrcore_tests::patience::deadline;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::workers::{
    await_one, block, comes, elsewhere, exchange, register, shape, words, write, LEN,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const ROUNDS: u64 = 2_000;

fn loopback(engines: u32) -> Soft {
    Soft::open_with("loopback", &SoftConfig::default(), EngineCount::all(engines)).expect("open")
}

fn on_path(last: u8, path: PathChoice) -> Soft {
    let config = SoftConfig { path, flags: soft_flags::HELPER, ..SoftConfig::default() };
    Soft::open_with(&address(last), &config, EngineCount::all(2)).expect("open")
}

#[test]
fn threads_of_all_engines_work_beside_each_other() {
    for path in [None, Some(PathChoice::Shm), Some(PathChoice::Udp)] {
        let (x, y) = match path {
            None => (loopback(2), None),
            Some(path) => (on_path(1, path), Some(on_path(2, path))),
        };
        let (x, y) = (x.dev(), y.as_ref().map_or(x.dev(), Soft::dev));
        let pairs: Vec<_> = (0..2)
            .map(|n| match n {
                0 => connected(x, y, shape()).expect("ends of the first engine"),
                _ => elsewhere(|| connected(x, y, shape()).expect("ends of the second engine")),
            })
            .collect();
        assert_ne!(block(&pairs[0].0), block(&pairs[1].0), "{path:?}");
        std::thread::scope(|scope| {
            for (n, (mut a, b)) in pairs.into_iter().enumerate() {
                scope.spawn(move || {
                    write(&mut a, &b, (n as u64) << 40, ROUNDS);
                    a.destroy().expect("destroy");
                    b.destroy().expect("destroy");
                });
            }
        });
        assert_eq!(x.leaks().unwrap(), Default::default());
        // Each engine counts its own.
        assert_eq!(x.counters().unwrap().rdma_writes, 2 * ROUNDS);
    }
}

#[test]
fn queue_pairs_of_two_engines_of_a_device_reach_each_other() {
    for path in [None, Some(PathChoice::Shm), Some(PathChoice::Udp), Some(PathChoice::Auto)] {
        for qp_type in [qp_type::RC, qp_type::UD] {
            let set = path.map_or_else(|| loopback(2), |path| on_path(1, path));
            let dev = set.dev();
            let shape = Shape { qp_type, ..shape() };
            let mut a = End::new(dev, shape).expect("end");
            let mut b = elsewhere(|| End::new(dev, shape).expect("end"));
            assert_ne!(block(&a), block(&b));
            a.connect(b.own).expect("connect");
            b.connect(a.own).expect("connect");
            if qp_type == qp_type::RC {
                std::thread::scope(|scope| {
                    scope.spawn(|| exchange(&mut a, 1 << 40, true, ROUNDS / 4));
                    scope.spawn(|| exchange(&mut b, 1 << 40, false, ROUNDS / 4));
                });
                continue;
            }
            // A datagram that finds no request is lost: one at a time, behind its request.
            for round in 0..20 {
                let (from, to) = if round % 2 == 0 { (&mut a, &mut b) } else { (&mut b, &mut a) };
                to.post_recv(round, 4096, LEN + 40).expect("post_recv");
                // And one may be lost on its way: it is sent again until it has come.
                let limit = deadline(60);
                loop {
                    from.post(round, Op::Send(None), 0, LEN).expect("post_send");
                    await_one(from, wc_opcode::SEND);
                    if comes(to, wc_opcode::RECV, deadline(2)) {
                        break;
                    }
                    assert!(Instant::now() < limit, "no datagram has come; round {round}");
                }
            }
        }
    }
}

#[test]
fn what_several_engines_exclude_is_refused_with_words() {
    reason::install();
    let set = loopback(2);
    let dev = set.dev();
    let a = End::new(dev, shape()).expect("end");
    let (c, cq, srq) = elsewhere(|| {
        let c = End::new(dev, shape()).expect("end");
        let attr = SrqAttr { max_wr: 8, max_sge: 1, ..SrqAttr::default() };
        let srq = dev.srq_create(c.pd, &attr).expect("SRQ").0;
        (c, dev.cq_create(16).expect("CQ").0, srq)
    });
    let init = dev.qp_query(a.qp).unwrap().1;
    // The queue pair is of its CQs' engine, whichever thread makes it.
    let (qp, qpn, _) =
        dev.qp_create(&QpInit { pd: c.pd, send_cq: cq, recv_cq: cq, srq, ..init }).unwrap();
    assert_eq!(qpn / QPN_UNIT, block(&c));
    let made = dev.qp_query(qp).unwrap().1;
    assert_eq!([made.send_cq, made.recv_cq, made.srq], [cq, cq, srq]);
    dev.qp_destroy(qp).unwrap();

    for (engines, name, qpn_base, error) in [
        (0, "loopback", 0, Error::Invalid),
        (65, "loopback", 0, Error::Invalid),
        (2, "loopback", 1 << 16, Error::Unsupported),
    ] {
        let config =
            SoftConfig { core: Config { qpn_base, ..Config::default() }, ..Default::default() };
        assert_eq!(
            Soft::open_with(name, &config, EngineCount::all(engines)).err(),
            Some(error),
            "{engines} {name}"
        );
        assert!(words().contains("engines"), "{}", words());
    }
}

#[test]
fn handles_of_other_engines_are_stale() {
    let set = loopback(2);
    let dev = set.dev();
    let a = End::new(dev, shape()).expect("end");
    let channel = dev.channel_create().expect("channel");
    // The second engine has no such objects, and there is no third.
    for k in 1..=255u64 {
        let moved = |h: Handle| h | k << 16;
        assert_eq!(dev.qp_query(moved(a.qp)).err(), Some(Error::StaleHandle), "{k}");
        assert_eq!(dev.cq_resize(moved(a.cq), 64).err(), Some(Error::StaleHandle), "{k}");
        assert_eq!(dev.channel_fd(moved(channel)).err(), Some(Error::StaleHandle), "{k}");
        assert_eq!(dev.pd_dealloc(moved(a.pd)).err(), Some(Error::StaleHandle), "{k}");
        assert_eq!(dev.mr_query(moved(a.mr)).err(), Some(Error::StaleHandle), "{k}");
    }
}

#[test]
fn a_region_serves_all_engines_until_its_end() {
    let set = loopback(3);
    let dev = set.dev();
    let buffer = Buffer::new(4096);
    let pd = dev.pd_alloc().unwrap();
    let first = connected(dev, dev, shape()).expect("ends");
    let second = elsewhere(|| connected(dev, dev, shape()).expect("ends"));
    assert_ne!(block(&first.0), block(&second.0));
    for round in 0..20u8 {
        // Targets of each engine in the region's own PD.
        let (mr, rkey) = register(dev, first.1.pd, &buffer, 4096);
        let (other, other_key) = register(dev, second.1.pd, &buffer, 4096);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut writers = Vec::new();
            for (pair, rkey) in [(&first, rkey), (&second, other_key)] {
                let over = &over;
                let addr = buffer.addr();
                writers.push(scope.spawn(move || {
                    let (limit, (a, _)) = (deadline(60), pair);
                    let mut a = Writer { end: a, to: (addr, rkey) };
                    // Until the key is refused.
                    while a.write() {
                        assert!(Instant::now() < limit, "the key outlives its region");
                    }
                    assert!(over.load(Ordering::SeqCst), "refused before the end");
                }));
            }
            let limit = deadline(60);
            while buffer.read(0, 1)[0] != 1 {
                assert!(Instant::now() < limit, "no WRITE");
                std::thread::yield_now();
            }
            over.store(true, Ordering::SeqCst);
            dev.mr_dereg(mr).unwrap();
            dev.mr_dereg(other).unwrap();
            // From here on nothing is written.
            let mark = [0x80 | round; 64];
            buffer.write(0, &mark);
            for writer in writers {
                writer.join().expect("the writer");
            }
            assert_eq!(buffer.read(0, 64), mark);
        });
        for (a, b) in [&first, &second] {
            for (end, peer) in [(a, b), (b, a)] {
                reconnect(end, peer);
            }
        }
    }
    dev.pd_dealloc(pd).unwrap();
}

/// WRITEs of ones to a place outside of the peer's buffer.
struct Writer<'e, 'd> {
    end: &'e End<'d>,
    to: (u64, u32),
}

impl Writer<'_, '_> {
    /// One WRITE; whether it succeeded.
    fn write(&mut self) -> bool {
        let piece = [self.end.piece(0, 64)];
        let mut wr = self.end.request(1, Op::Write(0, None), &piece);
        wr.wr.rdma = gdrcore_core::verbs::types::RdmaWr { remote_addr: self.to.0, rkey: self.to.1 };
        self.end.buffer.write(0, &[1; 64]);
        self.end.post_wr(&wr).expect("post_send");
        loop {
            let mut wc = [Default::default(); 1];
            if self.end.dev.poll_cq(self.end.cq, &mut wc).expect("poll_cq") == 1 {
                return wc[0].status == wc_status::SUCCESS;
            }
        }
    }
}

/// Takes an end out of an error, towards the same peer.
fn reconnect(end: &End, peer: &End) {
    let limit = deadline(60);
    while let Err(e) = end.dev.qp_reset(end.qp) {
        assert!(e == Error::Again && Instant::now() < limit, "{e}");
        let mut wc = [Default::default(); 8];
        end.dev.poll_cq(end.cq, &mut wc).expect("poll_cq");
    }
    let mut again = End { buffer: Buffer::new(4096), done: Vec::new(), ..*end };
    again.connect(peer.own).expect("connect");
    // Its objects are `end`'s.
    again.leave();
}

#[test]
fn a_pd_ends_when_no_engine_uses_it() {
    let set = loopback(2);
    let dev = set.dev();
    let pd = dev.pd_alloc().unwrap();
    dev.cq_create(2).unwrap();
    let (mut second, srq) = elsewhere(|| {
        let cq = dev.cq_create(16).unwrap().0;
        let attr = SrqAttr { max_wr: 8, max_sge: 1, ..SrqAttr::default() };
        (cq, dev.srq_create(pd, &attr).unwrap().0)
    });
    assert_eq!(dev.pd_dealloc(pd), Err(Error::Busy), "an SRQ of the second engine");
    dev.srq_destroy(srq).unwrap();
    dev.cq_destroy(std::mem::take(&mut second)).unwrap();
    let (mw, _) = dev.mw_alloc(pd, 2).unwrap();
    assert_eq!(dev.pd_dealloc(pd), Err(Error::Busy));
    dev.mw_dealloc(mw).unwrap();
    let buffer = Buffer::new(4096);
    let (mr, _) = register(dev, pd, &buffer, 4096);
    assert_eq!(dev.pd_dealloc(pd), Err(Error::Busy));
    dev.mr_dereg(mr).unwrap();
    dev.pd_dealloc(pd).unwrap();
    assert_eq!(dev.pd_dealloc(pd), Err(Error::StaleHandle));
}

#[test]
fn what_one_engine_has_no_room_for_no_engine_keeps() {
    let core = Config { max_mr: 64, ring_bytes: 256 << 10, ..Config::default() };
    let set = Soft::open_with(
        "loopback",
        &SoftConfig { core, ..Default::default() },
        EngineCount::all(2),
    )
    .unwrap();
    let dev = set.dev();
    let pd = dev.pd_alloc().unwrap();
    dev.cq_create(2).unwrap();
    let buffer = Buffer::new(4096);
    for _ in 0..64 {
        register(dev, pd, &buffer, 64);
    }
    // The second engine has no memory left for more slots.
    let cqs: Vec<Handle> =
        elsewhere(|| std::iter::from_fn(|| dev.cq_create(64).ok().map(|(cq, _)| cq)).collect());
    assert!(cqs.len() > 10, "{}", cqs.len());
    let reg = MrReg {
        pd,
        addr: buffer.addr(),
        length: 64,
        iova: buffer.addr(),
        access: shape().access,
        provider: 0,
        cookie: 0,
    };
    assert_eq!(dev.mr_reg(&reg).unwrap_err(), Error::NoMemory);
    assert_eq!((dev.leaks().unwrap().mr, dev.mw_alloc(pd, 2).err()), (64, Some(Error::NoMemory)));
    assert_eq!(dev.leaks().unwrap().mw, 0);
    for cq in cqs {
        dev.cq_destroy(cq).unwrap();
    }
    let (mr, attr) = dev.mr_reg(&reg).unwrap();
    assert_eq!((dev.mr_query(mr).unwrap(), dev.leaks().unwrap().mr), (attr, 65));
}

#[test]
fn events_of_all_engines_come_to_the_device() {
    let set = loopback(2);
    let dev = set.dev();
    let first = connected(dev, dev, shape()).expect("ends");
    let second = elsewhere(|| connected(dev, dev, shape()).expect("ends"));
    // SAFETY: no pointers.
    let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
    let mut ready = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
    // SAFETY: the event lives through the call.
    let added =
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, dev.fd().unwrap(), &mut ready) };
    assert_eq!(added, 0, "the descriptor may be in a program's own set");
    for round in 0..4u64 {
        for (a, b) in [&first, &second] {
            b.post_recv(round, 0, LEN).unwrap();
            dev.cq_arm(b.cq, false).unwrap();
            assert!(!dev.wait(0).unwrap() && dev.cq_event().unwrap().is_none());
            a.post(round, Op::Send(None), 0, LEN).unwrap();
            if round % 2 == 0 {
                assert!(dev.wait(60_000).unwrap());
            } else {
                // SAFETY: room for one event.
                assert_eq!(unsafe { libc::epoll_wait(epoll, &mut ready, 1, 60_000) }, 1);
            }
            assert_eq!(dev.cq_event().unwrap(), Some(b.cq));
            for end in [a, b] {
                let mut wc = [Default::default(); 4];
                assert_eq!(dev.poll_cq(end.cq, &mut wc).unwrap(), 1);
            }
        }
    }
    // SAFETY: ours, and not used any more.
    unsafe { libc::close(epoll) };
}
