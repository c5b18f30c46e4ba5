//! Sessions over a loopback device: by the tenant's library, and by hand.

use super::server::Server;
use super::session::{Counts, Session};
use super::shared_device::SharedDevice;
use crate::policy::{tenant_of_uid, Tenant};
use gdrcore_core::device::{Device, Leaks, MrAttr, MrReg, SrqAttr};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::pool::index_of;
use gdrcore_core::ring::SlotRing;
use gdrcore_core::sleep::ANY;
use gdrcore_core::verbs::types::{
    access, qp_attr_mask, qp_state, qp_type, send_flags, wc_status, wr_opcode, Handle, QpAttr,
    QpCap, QpInit, Wc,
};
use gdrcore_core::verbs::wqe::{RecvWqe, SendWqe};
use gdrcore_net::remote::adopt::Adopter;
use gdrcore_net::remote::call::{self, parse_answer, request, Call, NewRegion, QueueShape};
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_net::remote::limits;
use gdrcore_net::remote::pages::PIECES_MAX;
use gdrcore_net::remote::queue::{Doorbell, DoorbellPage, QueueMap};
use gdrcore_net::rights;
use gdrcore_net::via::wire;
use gdrcore_testkit::ends::{connected, connected_pair, pattern, succeed, End, Op, Shape};
use gdrcore_testkit::patience::wait_for;
use gdrcore_testkit::rng::Rng;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

mod cm;
mod descriptors;
mod kills;
mod order;
mod shares;

/// A server and the thread that runs it.
struct Running {
    server: Arc<Mutex<Server>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start() -> Running {
        let server = Arc::new(Mutex::new(Server::new(SharedDevice::open("loopback").unwrap())));
        let stop = Arc::new(AtomicBool::new(false));
        let (mine, stops) = (server.clone(), stop.clone());
        let serve = move || {
            while !stops.load(Ordering::Acquire) {
                let mut server = mine.lock().unwrap();
                let busy = server.hear_all();
                if !server.round() && !busy {
                    drop(server);
                    std::thread::yield_now();
                }
            }
        };
        Running { server, stop, thread: Some(std::thread::spawn(serve)) }
    }

    fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock().unwrap()
    }

    fn join(&self, number: u32) -> ([OwnedFd; 4], Arc<Counts>) {
        self.join_as(number, &tenant_of_uid(number))
    }

    fn join_as(&self, number: u32, tenant: &Tenant) -> ([OwnedFd; 4], Arc<Counts>) {
        let (session, ends) = Session::new(number).unwrap();
        let counts = session.counts.clone();
        self.server().join(session, tenant);
        (ends.0, counts)
    }

    fn tenant(&self, number: u32) -> RemoteDevice {
        RemoteDevice::over(self.join(number).0, None).unwrap()
    }

    /// A tenant whose messages go through `pass`, from the tenant (true) and to it, each with its
    /// descriptor: when it returns false, the tenant is gone.
    fn tenant_through(
        &self,
        number: u32,
        mut pass: impl FnMut(bool, &mut Option<OwnedFd>) -> bool + Send + 'static,
    ) -> Result<RemoteDevice> {
        let ([calls, events, asyncs, door], _) = self.join(number);
        let [outer, inner] = rights::pair().unwrap();
        let inner = rights::Foreign::accepted(inner);
        std::thread::spawn(move || {
            let mut buffer = [0; call::MESSAGE_MAX + 1];
            loop {
                let ways = [(inner.as_fd(), calls.as_fd()), (calls.as_fd(), inner.as_fd())];
                for (from_tenant, (from, to)) in [true, false].into_iter().zip(ways) {
                    let mut came = match wire::receive(from, &mut buffer) {
                        wire::ReadOutcome::Message(came) => came,
                        wire::ReadOutcome::Nothing => continue,
                        wire::ReadOutcome::Gone => return,
                    };
                    let mut fd = came.fds[0].take().map(rights::Foreign::trusted);
                    if !pass(from_tenant, &mut fd) {
                        return;
                    }
                    let _ = wire::send_bytes(to, &buffer[..came.len], fd.as_ref().map(AsFd::as_fd));
                }
                std::thread::yield_now();
            }
        });
        RemoteDevice::over([outer, events, asyncs, door], None)
    }

    /// A tenant whose answers bring no descriptor while `lose` says so, as where its process may
    /// have no more of them.
    fn tenant_without(&self, number: u32, lose: &Arc<AtomicBool>) -> RemoteDevice {
        let lose = lose.clone();
        let pass = move |_, fd: &mut Option<OwnedFd>| {
            *fd = fd.take().filter(|_| !lose.load(Ordering::Acquire));
            true
        };
        self.tenant_through(number, pass).unwrap()
    }

    /// Waits until it would sleep for `ms`: it polls no CQ and watches no queue, if that is -1.
    fn wait_until_it_sleeps(&self, ms: i32) {
        wait_for(60, "it never sleeps", || {
            let mut server = self.server();
            server.round();
            let slept = server.prepare_sleep();
            server.withdraw_sleep();
            slept == Some(ms)
        });
    }

    fn is_clean(&self) -> bool {
        self.server().leaks() == Leaks::default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the server's thread");
    }
}

/// Stops the threads of a test, that of a failure too.
struct Stop<'t>(&'t AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A tenant without a library.
struct ByHand {
    calls: OwnedFd,
    door: DoorbellPage,
    events: OwnedFd,
    asyncs: OwnedFd,
    number: u32,
    counts: Arc<Counts>,
}

/// A queue pair of one: its queues, and those of its CQ.
struct Raw {
    qp: Handle,
    made: call::MadeQp,
    map: QueueMap,
    sq: SlotRing<SendWqe>,
    cq_handle: Handle,
    cq_map: QueueMap,
}

impl ByHand {
    fn new(running: &Running, number: u32) -> ByHand {
        let ([calls, events, asyncs, door], counts) = running.join(number);
        let door = DoorbellPage::open(door.as_fd()).unwrap();
        ByHand { calls, door, events, asyncs, number: 0, counts }
    }

    fn send(&self, bytes: &[u8]) -> Result<()> {
        wire::send_bytes(self.calls.as_fd(), bytes, None)
    }

    /// The next answer; `None`: the session was ended.
    fn receive(&self) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        let mut buffer = [0; call::MESSAGE_MAX + 1];
        let mut result = None;
        wait_for(60, "no answer", || match wire::receive(self.calls.as_fd(), &mut buffer) {
            wire::ReadOutcome::Message(mut m) => {
                let fd = m.fds[0].take().map(|fd| fd.trusted());
                result = Some((buffer[..m.len].to_vec(), fd));
                true
            }
            wire::ReadOutcome::Nothing => false,
            wire::ReadOutcome::Gone => true,
        });
        result
    }

    fn try_ask<C: Call>(&mut self, arguments: &C::In) -> Result<(C::Out, Option<OwnedFd>)> {
        self.try_ask_with::<C>(arguments, None)
    }

    /// A call that a descriptor comes with.
    fn try_ask_with<C: Call>(
        &mut self,
        arguments: &C::In,
        fd: Option<BorrowedFd<'_>>,
    ) -> Result<(C::Out, Option<OwnedFd>)> {
        self.number += 1;
        let bytes = request::<C>(self.number, arguments);
        wire::send_bytes(self.calls.as_fd(), &bytes, fd).unwrap();
        let (bytes, fd) = self.receive().expect("an answer");
        let (number, out) = parse_answer::<C::Out>(&bytes).unwrap();
        assert_eq!(number, self.number);
        out.map(|out| (out, fd)).map_err(|(e, _)| e)
    }

    fn ask<C: Call>(&mut self, arguments: &C::In) -> C::Out {
        self.try_ask::<C>(arguments).unwrap().0
    }

    /// A queue pair that is connected to itself.
    fn queue_pair(&mut self, pd: Handle) -> Raw {
        self.queue_pair_of(pd, 8)
    }

    fn queue_pair_of(&mut self, pd: Handle, max_send_wr: u32) -> Raw {
        let ((cq, _, shape), fd) = self.try_ask::<call::CqCreate>(&(16, 0)).unwrap();
        let cq_map = QueueMap::open(fd.unwrap().as_fd(), shape.alone()).unwrap();
        let cap = QpCap {
            max_send_wr,
            max_recv_wr: 8,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 16,
        };
        let init =
            QpInit { pd, send_cq: cq, recv_cq: cq, qp_type: qp_type::RC, cap, ..QpInit::default() };
        let (made, fd) = self.try_ask::<call::QpCreate>(&init).unwrap();
        let map = QueueMap::open(fd.unwrap().as_fd(), [made.sq, made.rq]).unwrap();
        self.connect(&made);
        let sq = SlotRing::new();
        map.install(0, &sq);
        Raw { qp: made.handle, made, map, sq, cq_handle: cq, cq_map }
    }

    /// Connects a queue pair to itself.
    fn connect(&mut self, made: &call::MadeQp) {
        let own = self.ask::<call::Query>(&()).ah();
        let connection = gdrcore_testkit::connection::Connection {
            qp_type: qp_type::RC,
            access: access::REMOTE_WRITE,
            qkey: 0,
            mtu: 3,
            ah: own,
            dest_qpn: made.qpn,
            psn: (5, 5),
            rd_atomic: 1,
            min_rnr_timer: 12,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            peer_is_soft: false,
        };
        for (attr, mask) in connection.steps() {
            self.ask::<call::QpModify>(&(made.handle, attr, mask));
        }
    }

    /// Posts sends that find no receive, until some wait because the device has no room.
    fn fill(&self, raw: &Raw) {
        let send = SendWqe { opcode: wr_opcode::SEND as u16, num_sge: 0, ..write(0, 0, 0, 0).0 };
        let before = self.counts.posted.load(Ordering::Relaxed);
        for n in 0..raw.made.cap.max_send_wr {
            self.post(raw, send, &[]);
            let posted = || self.counts.posted.load(Ordering::Relaxed) - before;
            wait_for(60, "it is not posted", || posted() > n.into());
        }
        for _ in 0..raw.sq.capacity() {
            self.post(raw, send, &[]);
        }
    }

    /// Posts as many writes as the CQ has room for, so that the router looks at its head.
    fn fill_cq(&self, raw: &Raw) {
        let before = self.counts.completed.load(Ordering::Relaxed);
        for n in 1..=u64::from(raw.cq_map.capacity()) {
            self.post(raw, SendWqe { num_sge: 0, length: 0, ..write(0, 0, 0, 0).0 }, &[]);
            let completed = || self.counts.completed.load(Ordering::Relaxed) - before;
            wait_for(60, "it has not completed", || completed() == n);
        }
    }

    /// Posts a request as it is, with these bytes behind its head.
    fn post(&self, raw: &Raw, wqe: SendWqe, tail: &[u8]) {
        raw.map.reclaim(0, &mut raw.sq.consumer().unwrap(), false).unwrap();
        {
            let mut end = raw.sq.producer().unwrap();
            let mut slot = end.slot(0);
            *slot.header_mut() = wqe;
            slot.tail_mut()[..tail.len()].copy_from_slice(tail);
            end.publish(1);
        }
        raw.map.submit(0, &raw.sq);
        self.door.ring(Doorbell::Send(index_of(raw.qp) as u32).number());
    }

    fn completion(&self, raw: &Raw) -> Wc {
        let mut wc = [Wc::default()];
        wait_for(60, "no completion", || raw.cq_map.poll(&mut wc) == 1);
        wc[0]
    }

    /// Asks once more: whether the session is there.
    fn still_answers(&mut self) -> bool {
        self.number += 1;
        self.send(&request::<call::Query>(self.number, &())).is_ok() && self.receive().is_some()
    }
}

/// A write of `length` bytes of a key at an address, to the same place.
fn write(lkey: u32, rkey: u32, addr: u64, length: u32) -> (SendWqe, Vec<u8>) {
    let wqe = SendWqe {
        wr_id: 7,
        opcode: wr_opcode::RDMA_WRITE as u16,
        flags: send_flags::SIGNALED as u16,
        num_sge: 1,
        length: length.into(),
        remote_addr: addr,
        rkey,
        ..SendWqe::default()
    };
    let tail = [&addr.to_ne_bytes()[..], &length.to_ne_bytes(), &lkey.to_ne_bytes()].concat();
    (wqe, tail)
}

/// A page of registered memory: its file, and its attributes.
fn region(tenant: &mut ByHand, pd: Handle, adopter: &Adopter, addr: u64) -> (Handle, MrAttr) {
    let pieces = adopter.adopt(addr, 4096, true).unwrap();
    let access = access::LOCAL_WRITE | access::REMOTE_WRITE;
    tenant.ask::<call::MrReg>(&NewRegion { pd, addr, length: 4096, iova: addr, access, pieces })
}

fn give_file(tenant: &mut ByHand, adopter: &Adopter) {
    tenant.try_ask_with::<call::File>(&(), Some(adopter.fd())).unwrap();
}

#[test]
fn two_tenants_exchange_messages_and_leave_nothing() {
    let running = Running::start();
    {
        let (x, y) = (running.tenant(1), running.tenant(2));
        let (mut a, mut b) = connected_pair(&x, &y);
        for (i, len) in [1usize, 4096, 300_000].into_iter().enumerate() {
            let bytes = pattern(i as u64, len);
            a.buffer.write(0, &bytes);
            b.post_recv(100, 0, 1 << 20).unwrap();
            a.post(1, Op::Send(None), 0, len as u32).unwrap();
            succeed(&mut a, &mut b, 1);
            assert_eq!(succeed(&mut b, &mut a, 100).byte_len as usize, len);
            assert!(b.buffer.read(0, len) == bytes, "a SEND of {len}");
            a.post(2, Op::Write(7, None), 0, len as u32).unwrap();
            succeed(&mut a, &mut b, 2);
            assert!(b.buffer.read(7, len) == bytes, "a WRITE of {len}");
            b.buffer.write(0, &pattern(99, len));
            a.post(3, Op::Read(0), 0, len as u32).unwrap();
            succeed(&mut a, &mut b, 3);
            assert!(a.buffer.read(0, len) == pattern(99, len), "a READ of {len}");
        }
        let counters = x.counters().unwrap();
        assert!(counters.rdma_writes == 3 && counters.rdma_sends == 3, "its own: {counters:?}");
        a.destroy().unwrap();
        assert_eq!((x.leaks(), running.is_clean()), (Ok(Leaks::default()), false));
        // The other one leaves everything behind.
        drop(b.leave());
    }
    wait_for(60, "objects stay on the device", || running.is_clean());
}

#[test]
fn completions_of_a_queue_pair_are_taken_out_wherever_they_are() {
    let running = Running::start();
    let (x, y) = (running.tenant(1), running.tenant(2));
    let (mut a, mut b) = connected_pair(&x, &y);
    let qpn = x.qp_num(a.qp).unwrap();
    b.post(9, Op::Write(0, None), 0, 64).unwrap();
    // Those of others stay.
    y.cq_purge(b.cq, qpn).unwrap();
    succeed(&mut b, &mut a, 9);
    for wr_id in 0..8 {
        a.post(wr_id, Op::Write(0, None), 0, 64).unwrap();
    }
    // Each has a completion before the answer.
    wait_for(60, "the queue pair is not reset", || x.qp_reset(a.qp).is_ok());
    x.cq_purge(a.cq, qpn).unwrap();
    assert_eq!(x.poll_cq(a.cq, &mut [Wc::default(); 16]), Ok(0));
    assert_eq!(x.cq_purge(a.cq + 1, qpn), Err(Error::StaleHandle));
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn receives_that_were_posted_before_a_send_are_there_for_it() {
    let running = Running::start();
    // The sender's session is looked at first.
    let (x, y) = (running.tenant(1), running.tenant(2));
    let uc = Shape { qp_type: qp_type::UC, ..Shape::default() };
    let (mut a, mut b) = connected(&x, &y, uc).unwrap();
    for round in 0..500 {
        // What finds no receive is lost.
        b.post_recv(round, 0, 64).unwrap();
        a.post(round, Op::Send(None), 0, 64).unwrap();
        succeed(&mut a, &mut b, round);
        succeed(&mut b, &mut a, round);
    }
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn a_receive_that_comes_while_others_are_posted_is_there_for_a_later_send() {
    let running = Running::start();
    // Receives of the receiver's session are looked at first, then those of a busy one.
    let y = running.tenant(1);
    let (ends, counts) = running.join(2);
    let (z, x) = (RemoteDevice::over(ends, None).unwrap(), running.tenant(3));
    let uc = Shape { qp_type: qp_type::UC, ..Shape::default() };
    let (mut a, mut b) = connected(&x, &y, uc).unwrap();
    let deep = Shape { depth: 1024, buffer: 4096, ..Shape::default() };
    for round in 0..30 {
        let mut busy: Vec<_> = (0..8).map(|_| End::new(&z, deep).unwrap()).collect();
        busy.iter_mut().for_each(|end| end.to_init().unwrap());
        let before = {
            let _stops = running.server();
            busy.iter().for_each(|end| (0..1024).for_each(|n| end.post_recv(n, 0, 64).unwrap()));
            counts.posted.load(Ordering::Relaxed)
        };
        // Those of the first queue pair are posted, the others will be.
        while counts.posted.load(Ordering::Relaxed) == before {
            std::hint::spin_loop();
        }
        b.post_recv(round, 0, 64).unwrap();
        a.post(round, Op::Send(None), 0, 64).unwrap();
        succeed(&mut a, &mut b, round);
        succeed(&mut b, &mut a, round);
        busy.into_iter().for_each(|end| end.destroy().unwrap());
    }
    a.destroy().unwrap();
    b.destroy().unwrap();
}

#[test]
fn memory_that_one_session_has_adopted_may_be_another_ones_next() {
    let running = Running::start();
    let memory = gdrcore_testkit::memory::Buffer::new(3 * 4096);
    for number in 1..4 {
        let device = running.tenant(number);
        let pd = device.pd_alloc().unwrap();
        let addr = memory.addr() + 4096 * u64::from(number % 2);
        let access = access::LOCAL_WRITE;
        let reg = MrReg { pd, addr, length: 8192, iova: addr, access, provider: 0, cookie: 0 };
        let (mr, attr) = device.mr_reg(&reg).unwrap();
        assert_eq!((attr.addr, attr.length), (addr, 8192));
        device.mr_dereg(mr).unwrap();
        device.pd_dealloc(pd).unwrap();
    }
}

#[test]
fn the_end_of_the_router_is_told_to_who_waits_for_events() {
    let running = Running::start();
    let device = running.tenant(1);
    let channel = device.channel_create().unwrap();
    assert_eq!((device.cq_event(), device.channel_event(channel)), (Ok(None), Ok(None)));
    assert_eq!(device.async_event().map(|e| e.is_none()), Ok(true));
    drop(running);
    let gone = Some(Error::Os(libc::ENOTCONN));
    wait_for(60, "events of CQs", || device.cq_event().err() == gone);
    wait_for(60, "of a channel", || device.channel_event(channel).err() == gone);
    wait_for(60, "a sleeper", || device.channel_wait(channel, 1000).err() == gone);
    wait_for(60, "asynchronous events", || device.async_event().err() == gone);
}

#[test]
fn objects_of_another_session_are_nobodys() {
    let running = Running::start();
    let (x, y) = (running.tenant(1), running.tenant(2));
    let a = End::new(&x, Shape::default()).unwrap();
    let stale = Some(Error::StaleHandle);
    for h in [a.pd, a.mr, a.cq, a.qp, 0, u64::MAX] {
        assert_eq!(y.pd_dealloc(h).err(), stale, "{h:#x}");
        assert_eq!(y.mr_dereg(h).err(), stale, "{h:#x}");
        assert_eq!(y.cq_destroy(h).err(), stale, "{h:#x}");
        assert_eq!(y.qp_destroy(h).err(), stale, "{h:#x}");
        assert_eq!(y.qp_query(h).err(), stale, "{h:#x}");
    }
    let pd = y.pd_alloc().unwrap();
    let init =
        QpInit { pd, send_cq: a.cq, recv_cq: a.cq, qp_type: qp_type::RC, ..QpInit::default() };
    assert_eq!(y.qp_create(&init).err(), stale, "a CQ of another session");
    // Nor does the device's own handle of an object lead there.
    let (cq, of_pd) = {
        let mut server = running.server();
        let session = server.sessions.get(1).unwrap();
        (session.cqs.get(a.cq).unwrap().device, *session.pds.get(a.pd).unwrap())
    };
    let by_device = QpInit { send_cq: cq, recv_cq: cq, ..init };
    assert_eq!(y.qp_create(&by_device).err(), stale, "the device's handle of a CQ");
    assert_eq!(y.pd_dealloc(of_pd).err(), stale, "the device's handle of a PD");
    let reg = MrReg { pd: a.pd, addr: 0, length: 0, iova: 0, access: 0, provider: 0, cookie: 0 };
    assert!(y.mr_reg(&reg).is_err(), "a PD of another session");
    let refused = y.qp_create(&QpInit { qp_type: qp_type::DCI, ..init }).err();
    assert_eq!(refused, Some(Error::Unsupported));
    a.destroy().unwrap();
    y.pd_dealloc(pd).unwrap();
}

#[test]
fn keys_and_ranges_of_another_session_are_refused_and_harm_nobody() {
    let running = Running::start();
    let victim = running.tenant(1);
    let (mut a, mut b) = connected_pair(&victim, &victim);
    let mut evil = ByHand::new(&running, 2);
    let pd = evil.ask::<call::PdAlloc>(&());
    let adopter = Adopter::of_process().unwrap();
    give_file(&mut evil, &adopter);
    let memory = gdrcore_testkit::memory::Buffer::new(8192);
    let (_, own) = region(&mut evil, pd, &adopter, memory.addr());
    let other_pd = evil.ask::<call::PdAlloc>(&());
    let (_, other) = region(&mut evil, other_pd, &adopter, memory.addr() + 4096);
    let at = memory.addr();
    let cases = [
        ("a foreign lkey", a.attr.lkey, own.rkey, a.attr.iova, 8, wc_status::LOC_PROT_ERR),
        // Its own responder refuses it, and fails the queue pair before the NAK is there.
        ("a foreign rkey", own.lkey, a.attr.rkey, at, 8, wc_status::WR_FLUSH_ERR),
        ("a key of another PD", other.lkey, own.rkey, at + 4096, 8, wc_status::LOC_PROT_ERR),
        ("a range beyond its region", own.lkey, own.rkey, at + 4090, 8, wc_status::LOC_PROT_ERR),
        ("a range that wraps", own.lkey, own.rkey, u64::MAX - 3, 8, wc_status::LOC_PROT_ERR),
    ];
    for (what, lkey, rkey, addr, length, status) in cases {
        let raw = evil.queue_pair(pd);
        let (wqe, tail) = write(lkey, rkey, addr, length);
        evil.post(&raw, wqe, &tail);
        let wc = evil.completion(&raw);
        assert_eq!((wc.status, wc.wr_id), (status, 7), "{what}");
        a.post(1, Op::Write(0, None), 0, 64).unwrap();
        succeed(&mut a, &mut b, 1);
    }
    // And what is right works, so the cases above failed for what they say.
    let raw = evil.queue_pair(pd);
    let (wqe, tail) = write(own.lkey, own.rkey, at, 8);
    evil.post(&raw, wqe, &tail);
    assert_eq!(evil.completion(&raw).status, wc_status::SUCCESS);
}

#[test]
fn a_reset_ends_requests_that_the_device_had_no_room_for() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let raw = tenant.queue_pair(pd);
    tenant.fill(&raw);
    let reset = QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() };
    tenant.ask::<call::QpModify>(&(raw.qp, reset, qp_attr_mask::STATE));
    tenant.connect(&raw.made);
    let nothing = SendWqe { wr_id: 9, num_sge: 0, length: 0, ..write(0, 0, 0, 0).0 };
    tenant.post(&raw, nothing, &[]);
    let wc = tenant.completion(&raw);
    assert_eq!((wc.wr_id, wc.status), (9, wc_status::SUCCESS), "one of the last connection");
    // The other reset waits until all have their completions.
    let raw = tenant.queue_pair(pd);
    tenant.fill(&raw);
    let mut flushed = 0;
    wait_for(60, "it is never reset", || {
        let done = tenant.try_ask::<call::QpReset>(&raw.qp).map(drop);
        while raw.cq_map.poll(&mut [Wc::default()]) == 1 {
            flushed += 1;
        }
        assert!(matches!(done, Ok(()) | Err(Error::Again)), "{done:?}");
        done.is_ok()
    });
    assert_eq!(flushed, raw.made.cap.max_send_wr + raw.sq.capacity());
}

#[test]
fn completions_that_had_no_room_come_when_there_is_some() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let raw = tenant.queue_pair(pd);
    let nothing = SendWqe { num_sge: 0, length: 0, ..write(0, 0, 0, 0).0 };
    let all = raw.cq_map.capacity() + 4;
    let posted = || tenant.counts.posted.load(Ordering::Relaxed) as u32;
    for n in 1..=all {
        tenant.post(&raw, nothing, &[]);
        wait_for(60, "it is not posted", || posted() == n);
    }
    for _ in 0..200 {
        running.server().round();
    }
    assert_eq!(tenant.counts.completed.load(Ordering::Relaxed) as u32, raw.cq_map.capacity());
    for n in 0..all {
        assert_eq!(tenant.completion(&raw).status, wc_status::SUCCESS, "completion {n}");
    }
}

#[test]
fn a_queue_armed_for_solicited_completions_has_no_event_of_another() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let nothing = SendWqe { num_sge: 0, length: 0, ..write(0, 0, 0, 0).0 };
    let (keyless, tail) = write(1, 1, 0, 8);
    let has_event = |tenant: &ByHand| match wire::receive(
        tenant.events.as_fd(),
        &mut [0; call::MESSAGE_MAX + 1],
    ) {
        wire::ReadOutcome::Message(_) => true,
        wire::ReadOutcome::Nothing => false,
        wire::ReadOutcome::Gone => panic!("the session has ended"),
    };
    for before in [true, false] {
        let raw = tenant.queue_pair(pd);
        // The router polls the queue no more: the device is armed for any completion.
        running.wait_until_it_sleeps(-1);
        if before {
            tenant.post(&raw, nothing, &[]);
        }
        tenant.ask::<call::CqArmSolicited>(&raw.cq_handle);
        if !before {
            tenant.post(&raw, nothing, &[]);
        }
        assert_eq!(tenant.completion(&raw).status, wc_status::SUCCESS);
        for _ in 0..200 {
            running.server().round();
        }
        assert!(!has_event(&tenant), "of a send; posted before the call: {before}");
        tenant.post(&raw, keyless, &tail);
        wait_for(60, "no event of a failure", || has_event(&tenant));
        assert_eq!(tenant.completion(&raw).status, wc_status::LOC_PROT_ERR);
    }
}

#[test]
fn a_server_sleeps_whatever_its_sessions_wait_for() {
    let running = Running::start();
    let sleeps = |ms| running.wait_until_it_sleeps(ms);
    let mut tenant = ByHand::new(&running, 1);
    sleeps(-1);
    let ((cq, ..), _) = tenant.try_ask::<call::CqCreate>(&(16, 0)).unwrap();
    sleeps(-1);
    tenant.ask::<call::CqArmSolicited>(&cq);
    sleeps(1);
    tenant.ask::<call::CqDestroy>(&cq);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let raw = tenant.queue_pair(pd);
    tenant.fill(&raw);
    // Requests wait for room on the device, and nothing happens meanwhile.
    wait_for(60, "what waits counts as work", || !running.server().round());
    sleeps(1);
}

#[test]
fn regions_are_of_pages_that_are_there_and_in_few_pieces() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let pd = tenant.ask::<call::PdAlloc>(&());
    let adopter = Adopter::of_process().unwrap();
    give_file(&mut tenant, &adopter);
    let memory = gdrcore_testkit::memory::Buffer::new(4096);
    let addr = memory.addr();
    let piece = adopter.adopt(addr, 4096, true).unwrap()[0];
    let access = access::LOCAL_WRITE;
    let pieces = vec![piece; PIECES_MAX];
    let region = NewRegion { pd, addr, length: 4096, iova: addr, access, pieces };
    let mut made = Vec::new();
    let refused = loop {
        match tenant.try_ask::<call::MrReg>(&region) {
            Ok(((mr, attr), _)) => {
                assert_eq!(attr.access, access, "as it was asked for");
                made.push(mr);
            }
            Err(e) => break e,
        }
    };
    let most = limits::MR as usize / PIECES_MAX;
    assert_eq!((refused, made.len()), (Error::NoMemory, most));
    tenant.ask::<call::MrDereg>(&made[0]);
    tenant.ask::<call::MrReg>(&region);
    tenant.ask::<call::MrDereg>(&made[1]);
    // The session's file is none.
    let refused = tenant.try_ask::<call::DmaBufMrReg>(&region).err();
    assert_eq!(refused, Some(Error::Invalid), "a dma-buf without its descriptor");
    // SAFETY: our own page, which `memory` keeps; a hole reads as zeroes.
    let punched = unsafe { libc::madvise(memory.as_ptr().cast(), 4096, libc::MADV_REMOVE) };
    assert_eq!(punched, 0);
    let refused = tenant.try_ask::<call::MrReg>(&region).err();
    assert_eq!(refused, Some(Error::Invalid), "a hole");
}

#[test]
fn a_device_gets_as_much_memory_as_an_object_needs() {
    let mut shared = SharedDevice::open("loopback").unwrap();
    let (cq, given) = shared.make(|d| d.cq_create(1 << 18)).unwrap();
    assert!(given >= 1 << 18);
    shared.device().cq_destroy(cq).unwrap();
}

#[test]
fn queues_beyond_a_sessions_most_are_refused_before_the_device_grows() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let growths = || running.server().shared.growths();
    let before = growths();
    let refused = tenant.try_ask::<call::CqCreate>(&(1 << 20, 0)).err();
    assert_eq!((refused, growths()), (Some(Error::NoMemory), before));
    tenant.try_ask::<call::CqCreate>(&(1 << 18, 0)).unwrap();
    assert!(growths() > before);
}

#[test]
fn requests_that_no_library_writes_fail_their_queue_pair_alone() {
    let running = Running::start();
    let mut evil = ByHand::new(&running, 1);
    let pd = evil.ask::<call::PdAlloc>(&());
    let good = write(0, 0, 0, 0).0;
    type Spoil = fn(SendWqe, u64) -> SendWqe;
    // By the bytes of a slot behind its head.
    let cases: [(&str, Spoil); 7] = [
        ("an opcode", |good, _| SendWqe { opcode: 200, ..good }),
        ("an opcode of TCP offload", |good, _| SendWqe { opcode: 10, ..good }),
        ("more pieces than a slot has", |good, n| SendWqe { num_sge: n as u16 / 16 + 1, ..good }),
        ("the most pieces", |good, _| SendWqe { num_sge: u16::MAX, ..good }),
        ("more inline bytes than a slot has", |good, n| SendWqe {
            inline: 1,
            length: n + 1,
            ..good
        }),
        ("a length that wraps", |good, _| SendWqe { inline: 1, length: u64::MAX, ..good }),
        ("a window that is not there", |good, _| SendWqe {
            opcode: wr_opcode::BIND_MW as u16,
            ..good
        }),
    ];
    let innocent = evil.queue_pair(pd);
    for (n, (what, spoil)) in cases.into_iter().enumerate() {
        let raw = evil.queue_pair(pd);
        let tail = raw.map.shapes()[0].stride as usize - size_of::<SendWqe>();
        evil.post(&raw, spoil(good, tail as u64), &[]);
        let wc = evil.completion(&raw);
        assert_eq!((wc.status, wc.wr_id), (wc_status::LOC_QP_OP_ERR, 7), "{what}");
        let state = evil.ask::<call::QpQuery>(&raw.qp).0.qp_state;
        assert_eq!(state, qp_state::ERR, "{what}");
        assert_eq!(evil.counts.refused.load(Ordering::Relaxed), n as u64 + 1, "{what}");
    }
    evil.post(&innocent, SendWqe { num_sge: 0, length: 0, ..good }, &[]);
    assert_eq!(evil.completion(&innocent).status, wc_status::SUCCESS);
}

#[test]
fn a_session_with_a_broken_head_ends_and_leaves_nothing() {
    let running = Running::start();
    let neighbour = running.tenant(100);
    let (mut a, mut b) = connected_pair(&neighbour, &neighbour);
    let before = running.server().leaks();
    let mut evil = ByHand::new(&running, 1);
    let pd = evil.ask::<call::PdAlloc>(&());
    let raw = evil.queue_pair(pd);
    evil.fill_cq(&raw);
    raw.cq_map.release(0, 1 << 31);
    wait_for(60, "it goes on", || running.server().take_broken() == [1]);
    assert!(!evil.still_answers());
    assert_eq!(running.server().leaks(), before);
    a.post(1, Op::Write(0, None), 0, 64).unwrap();
    succeed(&mut a, &mut b, 1);
}

#[test]
fn bytes_that_are_no_request_end_the_session_and_wrong_arguments_do_not() {
    let running = Running::start();
    let mut evil = ByHand::new(&running, 1);
    for &number in call::NUMBERS {
        // A word too many for any call.
        let words: Vec<u8> = std::iter::once(u64::from(number))
            .chain([u64::MAX; 200])
            .flat_map(u64::to_le_bytes)
            .collect();
        evil.send(&words).unwrap();
        let (bytes, _) = evil.receive().expect("an answer");
        assert!(parse_answer::<()>(&bytes).unwrap().1.is_err(), "call {number}");
    }
    assert!(evil.still_answers());
    evil.send(&[1, 2, 3]).unwrap();
    wait_for(60, "it goes on", || running.server().take_broken() == [1]);
}

#[test]
fn nothing_that_a_tenant_writes_makes_the_router_panic() {
    let running = Running::start();
    let neighbour = running.tenant(1000);
    let (mut a, mut b) = connected_pair(&neighbour, &neighbour);
    let mut rng = Rng::new(4848);
    for number in 1..20 {
        let mut evil = ByHand::new(&running, number);
        let pd = evil.ask::<call::PdAlloc>(&());
        let raw = evil.queue_pair(pd);
        for _ in 0..50 {
            match rng.below(4) {
                0 => {
                    let kind = rng.pick(call::NUMBERS);
                    let words = rng.below(40) as usize;
                    let mut bytes = u64::from(kind).to_le_bytes().to_vec();
                    (0..words).for_each(|_| {
                        let word = rng.pick(&[0, 1, pd, raw.qp, u64::MAX, 1 << 20, 4096]);
                        bytes.extend(word.to_le_bytes());
                    });
                    let _ = evil.send(&bytes);
                }
                1 => {
                    _ = evil.door.ring(rng.below(Doorbell::COUNT as u64) as u32);
                }
                _ => {
                    let [wr_id, remote_addr, a, b, length] = [(); 5].map(|()| rng.next());
                    let [rkey, imm, access, srqn] = [(); 4].map(|()| rng.next() as u32);
                    let [opcode, flags, num_sge] = [(); 3].map(|()| rng.next() as u16);
                    let inline = rng.coin().into();
                    let mut wqe = SendWqe {
                        wr_id,
                        remote_addr,
                        a,
                        b,
                        length,
                        rkey,
                        imm,
                        opcode,
                        flags,
                        num_sge,
                        inline,
                        owner: 0,
                        access,
                        srqn,
                    };
                    if rng.coin() {
                        wqe.opcode %= 16;
                        wqe.num_sge %= 4;
                    }
                    if raw.map.reclaim(0, &mut raw.sq.consumer().unwrap(), false).is_ok()
                        && raw.sq.len() < raw.sq.capacity()
                    {
                        evil.post(&raw, wqe, &rng.bytes(48));
                    }
                }
            }
        }
        drop((raw, evil));
        a.post(1, Op::Write(0, None), 0, 64).unwrap();
        succeed(&mut a, &mut b, 1);
    }
    a.destroy().unwrap();
    b.destroy().unwrap();
    wait_for(60, "objects stay on the device", || running.is_clean());
}
