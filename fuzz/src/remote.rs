//! Fuzzes a router's device: tenants with any calls, any bytes in their queues, and any doorbells,
//! beside one that keeps to the rules.

use crate::bytes::Bytes;
use crate::coverage::counts;
use gdrcore_core::cm::types::{port_space, ConnParam};
use gdrcore_core::device::{Leaks, SrqAttr};
use gdrcore_core::mem::host;
use gdrcore_core::pool::index_of;
use gdrcore_core::ring::SlotRing;
use gdrcore_core::verbs::types::{
    access, qp_type, send_flags, wc_status, wr_opcode, Handle, QpCap, QpInit, Wc,
};
use gdrcore_core::verbs::wqe::{RecvWqe, SendWqe};
use gdrcore_net::map::Map;
use gdrcore_net::remote::adopt::Adopter;
use gdrcore_net::remote::call::{
    self, parse_answer, request, Call, GpuMemory, NewRegion, NewSrq, QueueShape,
};
use gdrcore_net::remote::limits;
use gdrcore_net::remote::queue::{Doorbell, DoorbellPage, QueueMap};
use gdrcore_net::via::wire::{receive, send_bytes, ReadOutcome};
use gdrcore_router::policy::tenant_of_uid;
use gdrcore_router::remote::server::Server;
use gdrcore_router::remote::session::{Counts, Session};
use gdrcore_router::remote::shared_device::SharedDevice;
use gdrcore_testkit::connection::Connection;
use gdrcore_testkit::memory::Buffer;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

counts! {
    Served {
        /// Calls that succeeded.
        executed: u64,
        /// Calls that were refused.
        refused: u64,
        /// Requests that were posted to the device.
        posted: u64,
        /// Requests that were refused.
        failed: u64,
        /// Completions.
        completed: u64,
        /// Sessions that the server has ended.
        expelled: u64,
        /// Events of connection managers.
        managed: u64,
    }
}

/// The memory of all tenants of the process: its address, and its pieces in their file.
type Memory = (Arc<Adopter>, Buffer, Vec<(u64, u64)>);

/// Bytes of the memory.
const BYTES: usize = 4 * 4096;

struct Shared(Memory);
// SAFETY: the buffer is accessed by the device's copies alone.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

fn memory() -> &'static Memory {
    static ONCE: OnceLock<Shared> = OnceLock::new();
    &ONCE
        .get_or_init(|| {
            let (adopter, buffer) = (Adopter::of_process(), Buffer::new(BYTES));
            let adopter = adopter.expect("a file");
            let pieces = adopter.adopt(buffer.addr(), BYTES as u64, true).expect("pages");
            Shared((adopter, buffer, pieces))
        })
        .0
}

/// The queues of a queue pair, a CQ or an SRQ, as its tenant has them.
struct Queues {
    bell: u32,
    map: QueueMap,
    /// The same memory.
    raw: Map,
    sends: SlotRing<SendWqe>,
    receives: SlotRing<RecvWqe>,
}

struct Tenant {
    number: u32,
    calls: OwnedFd,
    _others: [OwnedFd; 2],
    door: DoorbellPage,
    counts: Arc<Counts>,
    asked: u32,
    /// Handles, newest last.
    known: Vec<Handle>,
    /// Those of CM ids, again.
    ids: Vec<Handle>,
    /// Numbers of queue pairs.
    qpns: Vec<u64>,
    keys: Vec<u64>,
    queues: Vec<Queues>,
}

impl Tenant {
    fn join(server: &mut Server, number: u32) -> Tenant {
        let (session, ends) = Session::new(number).expect("a session");
        let counts = session.counts.clone();
        server.join(session, &tenant_of_uid(number));
        let [calls, events, asyncs, door] = ends.0;
        let door = DoorbellPage::open(door.as_fd()).expect("the page of bells");
        Tenant {
            number,
            calls,
            _others: [events, asyncs],
            door,
            counts,
            asked: 0,
            known: Vec::new(),
            ids: Vec::new(),
            qpns: Vec::new(),
            keys: Vec::new(),
            queues: Vec::new(),
        }
    }

    /// Makes a call. `None`: it was refused, or the session is gone.
    fn ask<C: Call>(
        &mut self,
        server: &mut Server,
        arguments: &C::In,
        fd: Option<BorrowedFd<'_>>,
        seen: &mut Served,
    ) -> Option<(C::Out, Option<OwnedFd>)> {
        self.asked += 1;
        send_bytes(self.calls.as_fd(), &request::<C>(self.asked, arguments), fd).ok()?;
        // What was said before may have to be heard first.
        for _ in 0..8 {
            server.hear(self.number);
            while let Some((bytes, fd)) = self.next_answer() {
                match parse_answer::<C::Out>(&bytes) {
                    Some((n, Ok(out))) if n == self.asked => {
                        seen.executed += 1;
                        return Some((out, fd));
                    }
                    Some((n, Err(_))) if n == self.asked => {
                        seen.refused += 1;
                        return None;
                    }
                    _ => {}
                }
            }
        }
        None
    }

    fn next_answer(&self) -> Option<(Vec<u8>, Option<OwnedFd>)> {
        let mut buffer = [0; call::MESSAGE_MAX + 1];
        match receive(self.calls.as_fd(), &mut buffer) {
            ReadOutcome::Message(mut m) => {
                let fd = m.fds[0].take().map(|fd| fd.trusted());
                Some((buffer[..m.len].to_vec(), fd))
            }
            ReadOutcome::Nothing | ReadOutcome::Gone => None,
        }
    }

    fn add_queues(&mut self, bell: u32, fd: Option<OwnedFd>, shapes: [QueueShape; 2]) {
        let fd = fd.expect("an answer with a descriptor");
        let map = QueueMap::open(fd.as_fd(), shapes).expect("queues");
        let bytes = QueueMap::bytes(shapes).expect("legal shapes");
        let raw = Map::shared(fd.as_raw_fd(), 0, bytes, true).expect("their memory");
        let queues = Queues { bell, map, raw, sends: SlotRing::new(), receives: SlotRing::new() };
        match shapes[0].capacity {
            0 => {}
            _ if bell == u32::MAX => {}
            _ if matches!(Doorbell::of(bell), Doorbell::Srq(_)) => {
                queues.map.install(0, &queues.receives)
            }
            _ => queues.map.install(0, &queues.sends),
        }
        if shapes[1].capacity > 0 {
            queues.map.install(1, &queues.receives);
        }
        self.queues.push(queues);
    }

    /// Makes an object, mostly one that may be made.
    fn make(&mut self, server: &mut Server, input: &mut Bytes<'_>, seen: &mut Served) {
        let sizes = |input: &mut Bytes<'_>| if input.one_in(8) { input.word() } else { 8 };
        match input.below(7) {
            0 => {
                let made = self.ask::<call::PdAlloc>(server, &(), None, seen);
                self.known.extend(made.map(|(pd, _)| pd));
            }
            1 => {
                let (adopter, buffer, pieces) = memory();
                self.ask::<call::File>(server, &(), Some(adopter.fd()), seen);
                let region = NewRegion {
                    pd: input.pick(&self.known),
                    addr: buffer.addr(),
                    length: BYTES as u64,
                    iova: buffer.addr(),
                    access: access::LOCAL_WRITE | access::REMOTE_WRITE | input.word(),
                    pieces: if input.one_in(8) {
                        vec![(input.u64(), input.u64())]
                    } else {
                        pieces.clone()
                    },
                };
                // Any descriptor may come with it.
                let beside = input.one_in(4).then(|| adopter.fd());
                if input.one_in(8) {
                    let of = (region.clone(), GpuMemory::default());
                    self.ask::<call::GpuMrReg>(server, &of, beside, seen);
                }
                let made = self.ask::<call::MrReg>(server, &region, beside, seen);
                if let Some(((mr, attr), _)) = made {
                    self.known.push(mr);
                    self.keys.push(attr.rkey.into());
                }
            }
            2 => {
                let arguments = (sizes(input), 0);
                let made = self.ask::<call::CqCreate>(server, &arguments, None, seen);
                if let Some(((cq, _, shape), fd)) = made {
                    self.known.push(cq);
                    self.add_queues(u32::MAX, fd, shape.alone());
                }
            }
            3 => {
                let attr = SrqAttr { max_wr: sizes(input), max_sge: 1, srq_limit: 0 };
                let new = NewSrq { pd: input.pick(&self.known), attr, ..NewSrq::default() };
                let made = self.ask::<call::SrqCreate>(server, &new, None, seen);
                if let Some(((srq, _, shape), fd)) = made {
                    self.known.push(srq);
                    let bell = Doorbell::Srq(index_of(srq) as u32).number();
                    self.add_queues(bell, fd, shape.alone());
                    if input.one_in(2) {
                        let other = (srq, sizes(input), None);
                        let made = self.ask::<call::SrqResize>(server, &other, None, seen);
                        if let Some(((_, shape), fd)) = made {
                            self.add_queues(bell, fd, shape.alone());
                        }
                        self.ask::<call::SrqSwitch>(server, &srq, None, seen);
                    }
                }
            }
            4 => self.manage(server, input, seen),
            _ => {
                let kinds = [qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD];
                let cap = QpCap {
                    max_send_wr: sizes(input),
                    max_recv_wr: sizes(input),
                    max_send_sge: 2,
                    max_recv_sge: 2,
                    max_inline_data: 64,
                };
                let cq = input.pick(&self.known);
                let init = QpInit {
                    pd: input.pick(&self.known),
                    send_cq: cq,
                    recv_cq: cq,
                    qp_type: kinds[input.below(4)],
                    cap,
                    ..QpInit::default()
                };
                self.queue_pair(server, &init, seen);
            }
        }
    }

    /// Calls of the connection manager, which may connect tenants, and their events.
    fn manage(&mut self, server: &mut Server, input: &mut Bytes<'_>, seen: &mut Served) {
        self.ask::<call::CmOpen>(server, &(), None, seen);
        let spaces = [port_space::TCP, port_space::TCP, port_space::UDP, input.word() as u16];
        let new = (spaces[input.below(4)], input.u64());
        let made = self.ask::<call::CmCreate>(server, &new, None, seen);
        if let Some((id, _)) = made {
            self.known.push(id);
            self.ids.push(id);
        }
        if self.qpns.is_empty() {
            let pd = self.ask::<call::PdAlloc>(server, &(), None, seen).map_or(0, |(pd, _)| pd);
            let cq = self.ask::<call::CqCreate>(server, &(8, 0), None, seen);
            let cq = cq.map_or(0, |((cq, ..), _)| cq);
            let cap = QpCap { max_send_wr: 1, ..QpCap::default() };
            let init = QpInit {
                pd,
                send_cq: cq,
                recv_cq: cq,
                qp_type: qp_type::RC,
                cap,
                ..QpInit::default()
            };
            self.queue_pair(server, &init, seen);
        }
        for _ in 0..=input.below(4) {
            self.manage_one(server, input, seen);
        }
    }

    fn manage_one(&mut self, server: &mut Server, input: &mut Bytes<'_>, seen: &mut Served) {
        let ids = if input.one_in(4) { &self.known } else { &self.ids };
        let (id, port) = (input.pick(ids), 7000 + input.below(2) as u16);
        let qp = if input.one_in(2) { 0 } else { input.pick(&self.known) };
        let param = ConnParam {
            qpn: input.pick(&self.qpns) as u32,
            qp_type: if input.one_in(8) { qp_type::UD } else { qp_type::RC },
            response_timeout: 1,
            retry_count: input.u8() % 9,
            rnr_retry: 7,
            ..ConnParam::default()
        };
        let param = (param, input.take(8).to_vec());
        match input.below(4) {
            0 => {
                self.ask::<call::CmBind>(server, &(id, port), None, seen);
                self.ask::<call::CmListen>(server, &(id, input.word()), None, seen);
            }
            1 => {
                let Some((own, _)) = self.ask::<call::Query>(server, &(), None, seen) else {
                    return;
                };
                let to = (id, own.ah(), port);
                self.ask::<call::CmConnect>(server, &(to, qp, param), None, seen);
            }
            2 => drop(self.ask::<call::CmAccept>(server, &(id, qp, param), None, seen)),
            _ => drop(self.ask::<call::CmDestroy>(server, &id, None, seen)),
        }
        server.round();
        while let Some((Some(e), _)) = self.ask::<call::CmTakeEvent>(server, &(), None, seen) {
            seen.managed += 1;
            self.known.push(e.id);
            self.ids.push(e.id);
        }
    }

    /// A queue pair that is connected to itself.
    fn queue_pair(&mut self, server: &mut Server, init: &QpInit, seen: &mut Served) {
        let Some((made, fd)) = self.ask::<call::QpCreate>(server, init, None, seen) else { return };
        self.known.push(made.handle);
        self.qpns.push(made.qpn.into());
        let bell = Doorbell::Send(index_of(made.handle) as u32).number();
        self.add_queues(bell, fd, [made.sq, made.rq]);
        let Some((own, _)) = self.ask::<call::Query>(server, &(), None, seen) else { return };
        let connection = Connection {
            qp_type: init.qp_type,
            access: access::REMOTE_WRITE,
            qkey: 0,
            mtu: 3,
            ah: own.ah(),
            dest_qpn: made.qpn,
            psn: (5, 5),
            rd_atomic: 1,
            min_rnr_timer: 1,
            timeout: 1,
            retry_cnt: 1,
            rnr_retry: 1,
            peer_is_soft: false,
        };
        for (attr, mask) in connection.steps() {
            self.ask::<call::QpModify>(server, &(made.handle, attr, mask), None, seen);
        }
    }

    /// Any call, with any arguments.
    fn call(&mut self, input: &mut Bytes<'_>) {
        let number = call::NUMBERS[input.below(call::NUMBERS.len())];
        self.asked += 1;
        let head = u64::from(self.asked) << 32 | u64::from(number);
        let words = (0..input.below(6)).map(|_| match input.u8() % 4 {
            0 => input.word().into(),
            _ => input.pick(&self.known),
        });
        let message: Vec<u8> =
            std::iter::once(head).chain(words).flat_map(u64::to_le_bytes).collect();
        let _ = send_bytes(self.calls.as_fd(), &message, None);
    }

    /// Posts any request, mostly one that could be carried out.
    fn post(&self, input: &mut Bytes<'_>) {
        if self.queues.is_empty() {
            return;
        }
        let queues = &self.queues[input.below(self.queues.len())];
        let address = memory().1.addr() + u64::from(input.u8());
        let key = input.pick(&self.keys) as u32;
        let (length, pieces) = (input.word(), input.below(4) as u16);
        let piece = [&address.to_ne_bytes()[..], &length.to_ne_bytes(), &key.to_ne_bytes()];
        let piece = piece.concat().repeat(2);
        let QueueShape { capacity, stride } = queues.map.shapes()[0];
        let fits = |head: usize| piece.len().min((stride as usize).saturating_sub(head));
        if queues.bell < 2 * limits::QP && capacity > 0 && !input.one_in(4) {
            let _ = queues.map.reclaim(0, &mut queues.sends.consumer().unwrap(), false);
            if let Some(mut end) = queues.sends.producer().filter(|end| end.free() > 0) {
                let opcodes = [
                    wr_opcode::RDMA_WRITE,
                    wr_opcode::SEND,
                    wr_opcode::RDMA_READ,
                    wr_opcode::ATOMIC_FETCH_AND_ADD,
                    wr_opcode::BIND_MW,
                    wr_opcode::LOCAL_INV,
                    input.word(),
                ];
                let mut slot = end.slot(0);
                *slot.header_mut() = SendWqe {
                    wr_id: input.u8().into(),
                    opcode: opcodes[input.below(opcodes.len())] as u16,
                    flags: send_flags::SIGNALED as u16 | input.u8() as u16,
                    num_sge: pieces,
                    inline: u8::from(input.one_in(6)),
                    length: length.into(),
                    remote_addr: address,
                    rkey: key,
                    a: input.pick(&self.known),
                    b: input.pick(&self.known),
                    ..SendWqe::default()
                };
                let n = fits(size_of::<SendWqe>());
                slot.tail_mut()[..n].copy_from_slice(&piece[..n]);
                end.publish(1);
            }
            queues.map.submit(0, &queues.sends);
        } else if queues.bell != u32::MAX {
            let k = usize::from(queues.bell < 2 * limits::QP);
            if queues.map.shapes()[k].capacity == 0 {
                return;
            }
            let _ = queues.map.reclaim(k, &mut queues.receives.consumer().unwrap(), false);
            if let Some(mut end) = queues.receives.producer().filter(|end| end.free() > 0) {
                let mut slot = end.slot(0);
                *slot.header_mut() =
                    RecvWqe { wr_id: 1, num_sge: pieces, length, ..RecvWqe::default() };
                let n = piece.len().min(slot.tail_mut().len());
                slot.tail_mut()[..n].copy_from_slice(&piece[..n]);
                end.publish(1);
            }
            queues.map.submit(k, &queues.receives);
        }
        let side = u32::from(queues.bell < 2 * limits::QP && input.one_in(2));
        self.door.ring(if queues.bell == u32::MAX { 0 } else { queues.bell + side });
    }

    /// Writes any bytes anywhere into a queue's memory, mostly over its cursors.
    fn corrupt(&self, input: &mut Bytes<'_>) {
        if self.queues.is_empty() {
            return;
        }
        let queues = &self.queues[input.below(self.queues.len())];
        let at = match input.u8() % 4 {
            0 => input.below(queues.raw.len() - 8),
            _ => 128 * input.below(5),
        };
        let bytes = if input.one_in(2) { input.u64() } else { input.u8().into() };
        host::place(queues.raw.as_ptr() as u64 + at as u64, &bytes.to_ne_bytes()).expect("mapped");
        self.door.ring(if queues.bell == u32::MAX { input.word() } else { queues.bell });
    }

    /// Takes completions, as far as the queue holds what a router writes.
    fn poll(&self) {
        for queues in self.queues.iter().filter(|q| q.bell == u32::MAX) {
            let _ = queues.map.poll(&mut [Wc::default(); 4]);
        }
    }
}

/// The string selects the tenants, their calls, and what they write into the memory that they share
/// with the router. Afterwards the tenant that keeps to the rules is served as before, and once all
/// have left nothing is on the device.
pub fn remote(data: &[u8]) -> Served {
    let mut input = Bytes::new(data);
    let mut seen = Served::default();
    let mut server = Server::new(SharedDevice::open("loopback").expect("a loopback device"));
    let mut good = Tenant::join(&mut server, 1);
    let mut last = 1;
    let mut tenants: Vec<Tenant> = Vec::new();
    for _ in 0..400 {
        if input.is_empty() {
            break;
        }
        if tenants.is_empty() || tenants.len() < 3 && input.one_in(32) {
            last += 1;
            tenants.push(Tenant::join(&mut server, last));
        }
        let which = input.below(tenants.len());
        let tenant = &mut tenants[which];
        match input.u8() % 16 {
            0..5 => tenant.make(&mut server, &mut input, &mut seen),
            5 => tenant.call(&mut input),
            6..11 => tenant.post(&mut input),
            11 if input.one_in(3) => tenant.corrupt(&mut input),
            12 if input.one_in(16) => {
                let len = input.below(40);
                let _ = send_bytes(tenant.calls.as_fd(), input.take(len), None);
            }
            13 if input.one_in(16) => drop(tenants.swap_remove(which)),
            14 => tenant.poll(),
            _ => {}
        }
        server.hear_all();
        server.round();
        for number in server.take_broken() {
            seen.expelled += u64::from(tenants.iter().any(|t| t.number == number));
            tenants.retain(|t| t.number != number);
        }
        for Tenant { counts, .. } in &tenants {
            let take = |n: &core::sync::atomic::AtomicU64| n.swap(0, Ordering::Relaxed);
            seen.posted += take(&counts.posted);
            seen.failed += take(&counts.refused);
            seen.completed += take(&counts.completed);
        }
    }
    serves(&mut server, &mut good);
    for tenant in tenants.iter().chain([&good]) {
        server.leave(tenant.number);
    }
    assert_eq!(server.leaks(), Leaks::default(), "objects are left on the device");
    seen
}

/// A WRITE of no bytes of the tenant that keeps to the rules succeeds.
fn serves(server: &mut Server, good: &mut Tenant) {
    let seen = &mut Served::default();
    let (pd, _) = good.ask::<call::PdAlloc>(server, &(), None, seen).expect("a PD");
    let ((cq, _, shape), fd) =
        good.ask::<call::CqCreate>(server, &(8, 0), None, seen).expect("a CQ");
    good.add_queues(u32::MAX, fd, shape.alone());
    let cap = QpCap { max_send_wr: 4, max_send_sge: 1, ..QpCap::default() };
    let init =
        QpInit { pd, send_cq: cq, recv_cq: cq, qp_type: qp_type::RC, cap, ..QpInit::default() };
    good.queue_pair(server, &init, seen);
    let [completions, queues] = &good.queues[..] else { panic!("its queues") };
    {
        let mut end = queues.sends.producer().expect("its own ring");
        let (opcode, flags) = (wr_opcode::RDMA_WRITE as u16, send_flags::SIGNALED as u16);
        *end.slot(0).header_mut() = SendWqe { wr_id: 9, opcode, flags, ..SendWqe::default() };
        end.publish(1);
    }
    queues.map.submit(0, &queues.sends);
    good.door.ring(queues.bell);
    let mut wc = [Wc::default()];
    let polled = (0..100_000).any(|_| {
        server.hear_all();
        server.round();
        completions.map.poll(&mut wc) == 1
    });
    assert!(polled, "no completion");
    assert_eq!((wc[0].wr_id, wc[0].status), (9, wc_status::SUCCESS));
}
