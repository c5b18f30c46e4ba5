//! Order of posts, calls, completions and events; what a failure or an end leaves.

use super::super::posts::SENDS_PER_ROUND;
use super::*;
use gdrcore_core::device::async_event;
use std::sync::atomic::AtomicU64;

#[test]
fn what_a_tenant_cannot_map_is_gone_and_a_cq_stays_in_use() {
    let running = Running::start();
    let lose = Arc::new(AtomicBool::new(false));
    let (x, y) = (running.tenant_without(1, &lose), running.tenant(2));
    let (mut a, mut b) = connected_pair(&x, &y);
    let before = x.leaks();
    lose.store(true, Ordering::Release);
    let refused = Some(Error::Os(libc::EMFILE));
    let attr = SrqAttr { max_wr: 4, max_sge: 1, ..SrqAttr::default() };
    let init = QpInit {
        pd: a.pd,
        send_cq: a.cq,
        recv_cq: a.cq,
        qp_type: qp_type::RC,
        ..QpInit::default()
    };
    assert_eq!(x.cq_create(16).err(), refused);
    assert_eq!(x.srq_create(a.pd, &attr).err(), refused);
    assert_eq!(x.qp_create(&init).err(), refused);
    for _ in 0..100 {
        assert_eq!(x.channel_create().err(), refused);
    }
    assert_eq!(x.leaks(), before);
    for (wr_id, cqe) in [(1, 1 << 18), (2, 64)] {
        assert_eq!(x.cq_resize(a.cq, cqe).err(), refused);
        a.post(wr_id, Op::Write(0, None), 0, 64).unwrap();
        succeed(&mut a, &mut b, wr_id);
    }
    lose.store(false, Ordering::Release);
    let (srq, _) = x.srq_create(a.pd, &attr).unwrap();
    lose.store(true, Ordering::Release);
    assert_eq!(x.srq_resize(srq, 64, None).err(), refused);
    lose.store(false, Ordering::Release);
    x.srq_destroy(srq).unwrap();
    x.channel_create().unwrap();
    assert!(x.cq_resize(a.cq, 64).unwrap() >= 64);
    a.post(3, Op::Write(0, None), 0, 64).unwrap();
    succeed(&mut a, &mut b, 3);
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn a_cq_goes_on_in_new_memory_once_that_is_mapped() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let mut raw = tenant.queue_pair(pd);
    let nothing = SendWqe { num_sge: 0, length: 0, ..write(0, 0, 0, 0).0 };
    let cq = raw.cq_handle;
    assert_eq!(tenant.try_ask::<call::CqSwitch>(&cq).err(), Some(Error::Invalid), "to what?");
    // The device's memory grows with it.
    for cqe in [1 << 18, 64, 32] {
        let ((_, shape), fd) = tenant.try_ask::<call::CqResize>(&(cq, cqe)).unwrap();
        tenant.post(&raw, nothing, &[]);
        assert_eq!(tenant.completion(&raw).status, wc_status::SUCCESS, "{cqe}");
        if cqe == 64 {
            // This one is not mapped.
            continue;
        }
        let map = QueueMap::open(fd.unwrap().as_fd(), shape.alone()).unwrap();
        raw.cq_map.armed(0).announce(ANY);
        tenant.ask::<call::CqSwitch>(&cq);
        assert!(map.armed(0).is_asleep(ANY), "what was armed stays armed");
        raw.cq_map = map;
        tenant.post(&raw, nothing, &[]);
        assert_eq!(tenant.completion(&raw).status, wc_status::SUCCESS, "{cqe}");
    }
    tenant.try_ask::<call::CqResize>(&(cq, 64)).unwrap();
    tenant.ask::<call::QpDestroy>(&raw.qp);
    tenant.ask::<call::CqDestroy>(&cq);
    let counted = running.server().sessions.iter().map(|s| s.queues).sum::<u64>();
    assert_eq!(counted, 0, "memory that was never mapped");
}

/// An SRQ of a tenant without a library.
struct RawSrq {
    handle: Handle,
    map: QueueMap,
    ring: SlotRing<RecvWqe>,
}

impl RawSrq {
    fn over(handle: Handle, shape: QueueShape, fd: Option<OwnedFd>) -> RawSrq {
        let map = QueueMap::open(fd.unwrap().as_fd(), shape.alone()).unwrap();
        let ring = SlotRing::new();
        map.install(0, &ring);
        RawSrq { handle, map, ring }
    }

    fn new(tenant: &mut ByHand, pd: Handle, max_wr: u32) -> RawSrq {
        let attr = SrqAttr { max_wr, max_sge: 1, ..SrqAttr::default() };
        let new = call::NewSrq { pd, attr, ..call::NewSrq::default() };
        let ((handle, _, shape), fd) = tenant.try_ask::<call::SrqCreate>(&new).unwrap();
        RawSrq::over(handle, shape, fd)
    }

    /// The same in memory of another size, which the router does not fill yet.
    fn resized(&self, tenant: &mut ByHand, max_wr: u32) -> Result<RawSrq> {
        let asked = (self.handle, max_wr, None);
        let ((given, shape), fd) = tenant.try_ask::<call::SrqResize>(&asked)?;
        assert!(given >= max_wr && shape.capacity >= max_wr);
        Ok(RawSrq::over(self.handle, shape, fd))
    }

    fn post(&self, tenant: &ByHand, n: u32) {
        self.map.reclaim(0, &mut self.ring.consumer().unwrap(), false).unwrap();
        let mut end = self.ring.producer().unwrap();
        (0..n).for_each(|_| end.push(RecvWqe { wr_id: 7, ..RecvWqe::default() }).unwrap());
        drop(end);
        self.map.submit(0, &self.ring);
        tenant.door.ring(Doorbell::Srq(index_of(self.handle) as u32).number());
    }
}

#[test]
fn an_srq_goes_on_in_new_memory_once_that_is_mapped() {
    let running = Running::start();
    let (mut tenant, mut other) = (ByHand::new(&running, 1), ByHand::new(&running, 2));
    let pd = tenant.ask::<call::PdAlloc>(&());
    let posted = |tenant: &ByHand, n| {
        let posted = || tenant.counts.posted.load(Ordering::Relaxed);
        wait_for(60, "it is not posted", || posted() == n);
    };
    let first = RawSrq::new(&mut tenant, pd, 4);
    let srq = first.handle;
    assert_eq!(tenant.try_ask::<call::SrqSwitch>(&srq).err(), Some(Error::Invalid), "to what?");
    // Neither is another session's, or of another kind.
    other.ask::<call::PdAlloc>(&());
    for h in [srq, pd, 0, u64::MAX] {
        let stale = Some(Error::StaleHandle);
        assert_eq!(other.try_ask::<call::SrqResize>(&(h, 64, None)).err(), stale, "{h:#x}");
        assert_eq!(other.try_ask::<call::SrqSwitch>(&h).err(), stale, "{h:#x}");
    }
    for wrong in [0, u32::MAX, 1 << 21] {
        assert_eq!(first.resized(&mut tenant, wrong).err(), Some(Error::Invalid), "{wrong}");
    }
    // More than the device has room for, and no more room: those that wait are not lost.
    first.post(&tenant, 4);
    posted(&tenant, 4);
    first.post(&tenant, 3);
    first.resized(&mut tenant, 4).unwrap();
    assert_eq!(tenant.try_ask::<call::SrqSwitch>(&srq).err(), Some(Error::Invalid), "3 wait");
    assert_eq!(tenant.counts.posted.load(Ordering::Relaxed), 4);
    // Memory that is never mapped, and the old one in use meanwhile.
    first.resized(&mut tenant, 1 << 16).unwrap();
    posted(&tenant, 7);
    first.post(&tenant, 1);
    posted(&tenant, 8);
    let second = first.resized(&mut tenant, 64).unwrap();
    tenant.ask::<call::SrqSwitch>(&srq);
    second.post(&tenant, 5);
    posted(&tenant, 13);
    first.post(&tenant, 4);
    second.post(&tenant, 3);
    posted(&tenant, 16);
    second.resized(&mut tenant, 128).unwrap();
    tenant.ask::<call::SrqDestroy>(&srq);
    let counted = running.server().sessions.iter().map(|s| s.queues).sum::<u64>();
    assert_eq!(counted, 0, "memory that was never mapped");
}

#[test]
fn receives_in_the_new_memory_of_an_srq_are_news() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let first = RawSrq::new(&mut tenant, pd, 4);
    // The router has seen a tail of 1, which the new memory has as well.
    first.post(&tenant, 1);
    let second = first.resized(&mut tenant, 4).unwrap();
    tenant.ask::<call::SrqSwitch>(&first.handle);
    let mut server = running.server();
    second.post(&tenant, 1);
    let session = server.sessions.get(1).unwrap();
    // It hears the bell, if the router has left the queue to it meanwhile.
    session.begin(1);
    assert!(session.rest());
}

#[test]
fn who_arms_or_resizes_a_cq_makes_no_poll_fail_and_loses_no_event() {
    let running = Running::start();
    let (x, y) = (running.tenant(1), running.tenant(2));
    let (mut a, mut b) = connected_pair(&x, &y);
    let (cq, stop) = (a.cq, AtomicBool::new(false));
    std::thread::scope(|s| {
        let _stops = Stop(&stop);
        s.spawn(|| {
            for cqe in [64, 128].into_iter().cycle() {
                if stop.load(Ordering::Acquire) {
                    break;
                }
                x.cq_resize(cq, cqe).unwrap();
            }
        });
        for round in 0..300 {
            x.cq_arm(cq, false).unwrap();
            a.post(round, Op::Write(0, None), 0, 64).unwrap();
            wait_for(60, "the event is lost", || x.cq_event().unwrap() == Some(cq));
            succeed(&mut a, &mut b, round);
        }
        s.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                x.cq_arm(cq, false).unwrap();
            }
        });
        for _ in 0..100_000 {
            assert_eq!(x.poll_cq(cq, &mut [Wc::default()]), Ok(0));
        }
    });
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn a_bell_that_rings_again_gives_no_second_turn() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let raw = tenant.queue_pair(pd);
    let nothing = SendWqe { num_sge: 0, length: 0, ..write(0, 0, 0, 0).0 };
    let mut server = running.server();
    let session = server.sessions.get(1).unwrap();
    for n in 1..3 {
        tenant.post(&raw, nothing, &[]);
        assert!(session.begin(SENDS_PER_ROUND));
        // A receive that this one needs may be posted meanwhile.
        assert_eq!(session.sends.drain(..).map(|(_, n)| n).collect::<Vec<_>>(), [n]);
    }
}

#[test]
fn a_queue_that_rests_is_left_to_its_bell_and_one_with_requests_is_not() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let raw = tenant.queue_pair(pd);
    let nothing = SendWqe { num_sge: 0, length: 0, ..write(0, 0, 0, 0).0 };
    let mut server = running.server();
    let session = server.sessions.get(1).unwrap();
    assert_eq!((session.rest(), session.rest()), (false, false));
    assert!(session.watched.iter().all(Vec::is_empty) && raw.map.armed(0).is_asleep(ANY));
    tenant.post(&raw, nothing, &[]);
    assert!(!raw.map.armed(0).is_asleep(ANY), "it has rung");
    for _ in 0..3 {
        assert!(session.begin(SENDS_PER_ROUND), "the device has no room");
        session.sends.clear();
        assert!(!session.rest(), "nothing new");
    }
    tenant.post(&raw, nothing, &[]);
    assert!(session.rest());
}

#[test]
fn a_region_holds_its_pages_until_the_router_has_ended_it() {
    let running = Running::start();
    let adopter = Adopter::of_process().unwrap();
    let memory = gdrcore_testkit::memory::Buffer::new(4096);
    let addr = memory.addr();
    let piece = adopter.adopt(addr, 4096, true).unwrap();
    adopter.release(&piece);
    let held = || format!("{adopter:?}").contains(&format!("{:?}", piece[0]));
    let register = |device: &RemoteDevice| {
        let pd = device.pd_alloc().unwrap();
        let access = access::LOCAL_WRITE;
        let reg = MrReg { pd, addr, length: 4096, iova: addr, access, provider: 0, cookie: 0 };
        let (mr, _) = device.mr_reg(&reg).unwrap();
        assert!(held());
        (mr, reg)
    };
    let device = running.tenant(1);
    let (mr, reg) = register(&device);
    device.mr_rereg(mr, &reg).unwrap();
    device.mr_dereg(mr).unwrap();
    assert!(!held(), "both are released");
    register(&device);
    drop(device);
    assert!(!held(), "of a device that is closed");
    let device = running.tenant(2);
    let (mr, _) = register(&device);
    drop(running);
    assert_eq!(device.mr_dereg(mr), Err(Error::Os(libc::ENOTCONN)));
    assert!(!held(), "of a router that is gone");
    assert_eq!(device.mr_query(mr).err(), Some(Error::StaleHandle));
}

#[test]
fn all_sessions_that_break_in_a_round_end() {
    let running = Running::start();
    let mut all: Vec<_> = (1..4).map(|number| ByHand::new(&running, number)).collect();
    let mut raws = Vec::new();
    for tenant in &mut all {
        let pd = tenant.ask::<call::PdAlloc>(&());
        let raw = tenant.queue_pair(pd);
        tenant.fill_cq(&raw);
        raws.push(raw);
    }
    let mut server = running.server();
    raws.iter().for_each(|raw| raw.cq_map.release(0, 1 << 31));
    server.round();
    assert_eq!(server.take_broken(), [1, 2, 3]);
}

#[test]
fn what_was_posted_before_a_call_is_on_the_device_before_it() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let raw = tenant.queue_pair_of(pd, 128);
    let nothing = SendWqe { flags: 0, num_sge: 0, length: 0, ..write(0, 0, 0, 0).0 };
    let mut server = running.server();
    for _ in 0..100 {
        tenant.post(&raw, nothing, &[]);
    }
    tenant.send(&request::<call::QpQuery>(9, &raw.qp)).unwrap();
    assert!(server.hear(1));
    assert_eq!(tenant.counts.posted.load(Ordering::Relaxed), 100);
}

#[test]
fn a_refused_request_completes_after_those_before_it() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let raw = tenant.queue_pair(pd);
    let server = running.server();
    // It waits for a receive.
    let (good, _) = write(0, 0, 0, 0);
    let send = SendWqe { opcode: wr_opcode::SEND as u16, num_sge: 0, wr_id: 1, ..good };
    for wqe in [send, SendWqe { wr_id: 2, ..send }, SendWqe { wr_id: 3, opcode: 200, ..send }] {
        tenant.post(&raw, wqe, &[]);
    }
    drop(server);
    let done = [1, 2, 3].map(|_| tenant.completion(&raw));
    assert_eq!(done.map(|wc| wc.wr_id), [1, 2, 3]);
    let (flushed, refused) = (wc_status::WR_FLUSH_ERR, wc_status::LOC_QP_OP_ERR);
    assert_eq!(done.map(|wc| wc.status), [flushed, flushed, refused]);
}

#[test]
fn a_receive_is_on_the_device_before_a_send_that_was_posted_after_it() {
    let running = Running::start();
    let (x, y) = (running.tenant(1), running.tenant(2));
    let unreliable = Shape { qp_type: qp_type::UC, ..Shape::default() };
    let (mut a, mut b) = connected(&x, &x, unreliable).unwrap();
    // Queues that stay full make a round's look at receives long: from `b`'s on, it takes longer
    // than the two posts.
    let deep = Shape { depth: 256, ..Shape::default() };
    let full: Vec<_> = (0..32).map(|_| connected(&y, &y, deep).unwrap().0).collect();
    wait_for(60, "the device takes any number of receives", || {
        running.server().round();
        let is_full = |end: &End| (0..1024).any(|n| end.post_recv(n, 0, 8).is_err());
        full.iter().all(|end| is_full(end) && end.post_recv(0, 0, 8).is_err())
    });
    for n in 0..10_000 {
        b.post_recv(n, 0, 8).unwrap();
        a.post(n, Op::Send(None), 0, 8).unwrap();
        succeed(&mut a, &mut b, n);
        wait_for(60, "the message found no receive", || {
            b.poll();
            b.take(n).is_some()
        });
    }
}

#[test]
fn a_cq_without_room_for_a_refused_request_fails_as_on_a_nic() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let (raw, other) = (tenant.queue_pair(pd), tenant.queue_pair(pd));
    let cq = raw.cq_handle;
    let init = QpInit { pd, send_cq: cq, recv_cq: cq, qp_type: qp_type::RC, ..QpInit::default() };
    let cap = QpCap { max_send_wr: 4, max_recv_wr: 4, ..QpCap::default() };
    let neighbour = tenant.ask::<call::QpCreate>(&QpInit { cap, ..init });
    tenant.connect(&neighbour);
    tenant.fill_cq(&raw);
    let (good, _) = write(0, 0, 0, 0);
    let refused = SendWqe { opcode: 200, ..good };
    tenant.post(&raw, refused, &[]);
    let mut event = [0; call::MESSAGE_MAX + 1];
    wait_for(60, "no event", || {
        matches!(wire::receive(tenant.asyncs.as_fd(), &mut event), wire::ReadOutcome::Message(_))
    });
    let [kind, of] = [0, 8].map(|at| u64::from_le_bytes(event[at..at + 8].try_into().unwrap()));
    assert_eq!((kind, of), (async_event::CQ_ERR.into(), cq));
    let mut state = |qp| tenant.ask::<call::QpQuery>(&qp).0.qp_state;
    assert_eq!([raw.qp, neighbour.handle].map(&mut state), [qp_state::ERR; 2]);
    assert_eq!(state(other.qp), qp_state::RTS, "of another CQ");
    // Nothing more comes, not even where there is room.
    for _ in 0..raw.cq_map.capacity() {
        assert_eq!(tenant.completion(&raw).status, wc_status::SUCCESS);
    }
    let judged = || {
        let of = |n: &AtomicU64| n.load(Ordering::Relaxed);
        of(&tenant.counts.posted) + of(&tenant.counts.refused)
    };
    for wqe in [good, refused, good] {
        let before = judged();
        tenant.post(&raw, wqe, &[]);
        wait_for(60, "it is not judged", || judged() > before);
    }
    wait_for(60, "what waits counts as work", || !running.server().round());
    assert_eq!(raw.cq_map.poll(&mut [Wc::default()]), 0);
    let told = wire::receive(tenant.asyncs.as_fd(), &mut event);
    assert!(matches!(told, wire::ReadOutcome::Nothing), "one event");
    tenant.post(&other, SendWqe { num_sge: 0, ..good }, &[]);
    assert_eq!(tenant.completion(&other).status, wc_status::SUCCESS);
}

#[test]
fn the_event_of_an_acknowledgement_goes_before_that_of_the_answer() {
    let running = Running::start();
    let x = running.tenant(1);
    let (mut a, mut b) = connected_pair(&x, &x);
    let polled = [vec![b.cq], vec![b.cq, a.cq], vec![a.cq, b.cq], vec![]];
    for (round, polled) in polled.into_iter().enumerate() {
        let (round, solicited) = (round as u64, polled.is_empty());
        b.post_recv(round, 0, 64).unwrap();
        running.wait_until_it_sleeps(-1);
        x.cq_arm(a.cq, false).unwrap();
        x.cq_arm(b.cq, solicited).unwrap();
        {
            let mut server = running.server();
            let session = server.sessions.get(1).unwrap();
            polled.iter().for_each(|cq| session.start_polling(*cq));
            let mut wr = a.request(round, Op::Send(None), &[]);
            wr.send_flags |= send_flags::SOLICITED;
            a.post_wr(&wr).unwrap();
            // What is left to the device's events is found by the end of the second round.
            server.round();
            server.round();
        }
        let told = [(); 3].map(|()| x.cq_event().unwrap());
        assert_eq!(told, [Some(a.cq), Some(b.cq), None], "polled before: {polled:?}");
        succeed(&mut a, &mut b, round);
        succeed(&mut b, &mut a, round);
    }
    a.destroy().unwrap();
    b.destroy().unwrap();
}
