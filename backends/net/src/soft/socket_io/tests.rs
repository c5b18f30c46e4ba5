//! Tests of the packet path over a port in memory that loses packets and runs out of room, without
//! a UDP socket.

use super::tap::Tap;
use super::*;
use crate::map::Map;
use crate::pcap::{Earlier, Pcap};
use crate::port::{PortCounters, PortError, RxPacket};
use crate::soft::layout::PCAP_BUFFER;
use gdrcore_core::config::Config;
use gdrcore_core::device::MrAttr;
use gdrcore_core::error::Result;
use gdrcore_core::roce::peer::ConnectedFlow;
use gdrcore_core::verbs::cause::{Cause, CauseCode};
use gdrcore_core::verbs::types::{
    access, qp_type, wc_status, wr_opcode, AhAttr, Handle, QpInit, RdmaWr, Sge, Wc,
};
use gdrcore_core::wire::{Bth, IcrcFlow, Opcode, Psn, Qpn, Reth};
use gdrcore_testkit::connection::Connection;
use gdrcore_testkit::engine::OwnedEngine;
use gdrcore_testkit::patience::limit_ms;
use gdrcore_testkit::requests::{queue_pair, queues, recv_wr, region, send_wr};
use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::{Arc, Mutex};

mod faults;

/// Packets in flight: the sender of each and its bytes.
type Packets = Arc<Mutex<VecDeque<(Endpoint, Vec<u8>)>>>;

/// Bytes of one burst.
const SPACE: usize = 32 << 10;
/// Bursts of one batch.
const BATCH: usize = 3;

/// A port whose packets lie in memory. A packet for which `loses` returns true is lost.
struct MemoryPort {
    local: Endpoint,
    to: Packets,
    from: Packets,
    space: Vec<u8>,
    batch: Vec<(Burst, Vec<u8>)>,
    received: Vec<(Endpoint, Vec<u8>)>,
    loses: fn(u64) -> bool,
    sent: u64,
    lost: u64,
    /// Flushes that still find no room.
    full: u32,
    /// The flow of a connected socket, and the bursts that it still takes.
    own: Option<(ConnectedFlow, u32)>,
    /// Bursts that left by the connected socket.
    own_sent: u32,
    errors: VecDeque<PortError>,
    counters: PortCounters,
    /// The descriptor for the epoll set.
    socket: UnixDatagram,
}

impl MemoryPort {
    fn transmit(&mut self, bytes: &[u8], seg: usize) {
        for packet in bytes.chunks(seg) {
            self.sent += 1;
            if (self.loses)(self.sent) {
                self.lost += 1;
            } else {
                self.to.lock().unwrap().push_back((self.local, packet.to_vec()));
            }
        }
    }

    /// Sends a burst by the connected socket, which ends when it has taken its last one.
    fn tx_own(&mut self, b: &Burst) -> bool {
        let (own, left) = self.own.as_mut().expect("a connected socket");
        assert!(own.leads_to(&b.dst) && self.batch.is_empty());
        let port = IcrcFlow::from_gids(&self.local.ip, &b.dst.gid, self.local.port, b.dst.port);
        let ends = *left == 0;
        for (k, packet) in (0u16..).zip(self.space[..b.len].chunks_mut(b.seg.into())) {
            let accepted = own.flow.check(own.ident.wrapping_add(k), packet).expect("its ICRC");
            assert!(accepted.exact, "packet {k} of {}", b.len.div_ceil(b.seg.into()));
            // As the receiver gets the packet: all packets here have one address.
            port.append_icrc(if ends { k } else { 0 }, packet);
        }
        if ends {
            self.own = None;
            return false;
        }
        (*left, own.ident) = (*left - 1, own.ident.wrapping_add(1));
        self.own_sent += 1;
        let bytes = self.space[..b.len].to_vec();
        self.transmit(&bytes, b.seg.into());
        true
    }
}

impl Port for MemoryPort {
    fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
    fn local(&self) -> &Endpoint {
        &self.local
    }
    fn link_mtu(&self) -> u32 {
        1500
    }
    fn route_mtu(&self, _: &Endpoint) -> Option<u32> {
        None
    }
    fn counters(&self) -> PortCounters {
        self.counters
    }
    fn tx_space(&mut self) -> Option<(&mut [u8], Option<&ConnectedFlow>)> {
        let own = self.own.as_ref().map(|(own, _)| own).filter(|_| self.batch.is_empty());
        (self.batch.len() < BATCH).then_some((&mut self.space[..], own))
    }
    fn tx_commit(&mut self, b: Burst) {
        self.batch.push((b, self.space[..b.len].to_vec()));
    }
    fn tx_flush(&mut self) -> TxOutcome {
        if self.full > 0 {
            self.full -= 1;
            self.counters.tx_full += 1;
            return TxOutcome::Full;
        }
        for (b, bytes) in core::mem::take(&mut self.batch) {
            self.transmit(&bytes, b.seg.into());
        }
        TxOutcome::Sent
    }
    fn max_segments(&self, _: &Endpoint) -> u16 {
        64
    }
    fn tx_single(&mut self, b: &Burst, for_connected: bool) -> bool {
        if for_connected {
            return self.tx_own(b);
        }
        if !self.batch.is_empty() || self.full > 0 {
            return false;
        }
        let bytes = self.space[..b.len].to_vec();
        self.transmit(&bytes, b.seg.into());
        true
    }
    fn doubt_connected(&mut self) {}
    fn rx_poll(&mut self) -> usize {
        self.received = self.from.lock().unwrap().drain(..).collect();
        self.received.len()
    }
    fn rx_get(&self, i: usize) -> RxPacket<'_> {
        let (src, data) = &self.received[i];
        RxPacket { src: peer_addr(src), seg: data.len() as u16, data }
    }
    fn show_headers(&mut self) {}

    fn has_error(&self) -> bool {
        !self.errors.is_empty()
    }
    fn take_error(&mut self) -> Option<PortError> {
        self.errors.pop_front()
    }
    fn drain_errors(&mut self) -> usize {
        0
    }
    fn group_join(&mut self, _: &[u8; 16]) -> Result<Option<RawFd>> {
        Ok(None)
    }
    fn groups_retain(&mut self, _: impl Fn(&[u8; 16]) -> bool) {}
    fn has_groups(&self) -> bool {
        false
    }
    fn group_poll(&mut self, _: usize) -> Option<[u8; 16]> {
        None
    }
}

/// A device with only an address and its epoll sets.
struct Bare {
    address: Endpoint,
    waiter: Waiter,
    sleeps: bool,
}

impl Host for Bare {
    fn address(&self) -> &Endpoint {
        &self.address
    }
    fn waiter(&self) -> &Waiter {
        &self.waiter
    }
    fn may_sleep(&self) -> bool {
        self.sleeps
    }
    fn due_at(&self, _: u64) {}
}

/// One engine with an RC queue pair, a region, and its port.
struct End {
    port: PortState<MemoryPort>,
    host: Bare,
    engine: OwnedEngine,
    cq: Handle,
    qp: Handle,
    qpn: u32,
    mr: MrAttr,
    bytes: Map,
}

/// Bytes of each end's region.
const REGION: usize = 1 << 20;

fn end(n: u8, to: &Packets, from: &Packets, loses: fn(u64) -> bool) -> End {
    let mut ip = [0; 16];
    (ip[0], ip[15]) = (0xfd, n);
    let address = Endpoint::new(ip, 0, 4791);
    let socket = UnixDatagram::unbound().unwrap();
    let waiter = Waiter::new().unwrap();
    waiter.add_socket(socket.as_raw_fd()).unwrap();
    let port = MemoryPort {
        local: address,
        to: to.clone(),
        from: from.clone(),
        space: vec![0; SPACE],
        batch: Vec::new(),
        received: Vec::new(),
        loses,
        sent: 0,
        lost: 0,
        full: 0,
        own: None,
        own_sent: 0,
        errors: VecDeque::new(),
        counters: PortCounters::default(),
        socket,
    };
    let config = Config { max_qp: 4, seed: n.into(), ..Config::default() };
    let engine = OwnedEngine::new(&config, peer_addr(&address));
    let bytes = Map::new(REGION).unwrap();
    let mut g = engine.lock();
    let pd = g.pd_alloc().unwrap();
    let (cq, _) = g.cq_create(256).unwrap();
    let at = bytes.as_ptr() as u64;
    let access = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    let (_, mr) = g.mr_reg(&region(pd, at, REGION as u64, access)).unwrap();
    let init = queue_pair(qp_type::RC, pd, [cq; 2], queues(64, 1, 0));
    let init = QpInit { sq_sig_all: 1, ..init };
    let (qp, qpn, _) = g.qp_create(now_ns(), &init).unwrap();
    drop(g);
    End {
        port: PortState::with_port(port),
        host: Bare { address, waiter, sleeps: false },
        engine,
        cq,
        qp,
        qpn,
        mr,
        bytes,
    }
}

impl End {
    fn connect(&mut self, to: &End) {
        let connection = Connection {
            access: access::REMOTE_WRITE | access::REMOTE_READ,
            ah: AhAttr { dgid: to.host.address.ip, ..AhAttr::default() },
            dest_qpn: to.qpn,
            min_rnr_timer: 1,
            ..Connection::default()
        };
        for (attr, mask) in connection.steps() {
            self.engine.lock().qp_modify(now_ns(), self.qp, &attr, mask).unwrap();
        }
    }

    fn sge(&self, at: usize, len: usize) -> Sge {
        Sge { addr: self.mr.iova + at as u64, length: len as u32, lkey: self.mr.lkey }
    }

    fn post_recv(&self, id: u64, at: usize, len: usize) {
        let sge = self.sge(at, len);
        let wr = recv_wr(id, std::slice::from_ref(&sge));
        let mut bad = core::ptr::null();
        // SAFETY: the request and its list live through the call.
        unsafe { self.engine.post_recv(self.qp, &wr, &mut bad).unwrap() };
    }

    /// Posts a SEND. `single`: it is then sent as a doorbell sends it; returns true if that took
    /// the single path.
    fn post_send(&mut self, id: u64, at: usize, len: usize, single: bool) -> bool {
        let sge = self.sge(at, len);
        let rdma = RdmaWr { remote_addr: 0, rkey: 0 };
        let wr = send_wr(id, wr_opcode::SEND, std::slice::from_ref(&sge), rdma);
        let mut bad = core::ptr::null();
        // SAFETY: the request and its list live through the call.
        unsafe { self.engine.post_send(self.qp, &wr, &mut bad).unwrap() };
        let (qi, _) = self.engine.qp(self.qp).unwrap();
        let mut g = self.engine.lock();
        if !single {
            self.engine.shared().active.set(qi);
            return false;
        }
        let port = &mut self.port;
        let sent = port.send_single_packet::<false>(&self.host, &mut g, qi).is_some();
        if !sent && port.send_posted(&self.host, &mut g, qi).is_none() {
            g.wake(qi);
        }
        sent
    }

    /// Runs a round as a poll does, and returns the completions.
    fn round(&mut self) -> Vec<Wc> {
        let mut g = self.engine.lock();
        let now = now_ns();
        self.port.schedule.set_time(now);
        if self.port.receive(&self.host, &mut g, now) == 0 {
            g.handle_timeout(now);
            g.flush_acks();
        }
        self.port.send(&self.host, &mut g, now_ns());
        drop(g);
        let mut wc = [Wc::default(); 32];
        let n = self.engine.poll_cq(self.cq, &mut wc).unwrap();
        wc[..n].to_vec()
    }

    fn net(&mut self) -> &mut MemoryPort {
        self.port.net.as_mut().unwrap()
    }
}

/// Two connected ends; packets of the first for which `loses` returns true are lost.
fn pair(loses: fn(u64) -> bool) -> (End, End) {
    let (there, back) = (Packets::default(), Packets::default());
    let mut a = end(1, &there, &back, loses);
    let mut b = end(2, &back, &there, |n| n % 11 == 0);
    a.connect(&b);
    b.connect(&a);
    // A round looks once at a queue pair that has just come to RTS.
    assert!(a.round().is_empty() && b.round().is_empty());
    (a, b)
}

/// Moves `n` messages of `len` bytes from one end to the other, and returns how many took the
/// single path.
fn exchange(a: &mut End, b: &mut End, n: usize, len: usize) -> usize {
    // SAFETY: the whole of a's own map; its engine only reads it.
    let sent = unsafe { core::slice::from_raw_parts_mut(a.bytes.as_ptr(), n * len) };
    for (i, byte) in sent.iter_mut().enumerate() {
        *byte = (i / len * 31 + i % 251) as u8;
    }
    let (mut done, mut posted, mut single) = ([0; 2], 0, 0);
    let end = now_ns() + limit_ms(60) as u64 * 1_000_000;
    while done != [n; 2] {
        assert!(now_ns() < end, "{done:?} of {n} messages");
        if posted < n && posted - done[0].min(done[1]) < 32 {
            b.post_recv(posted as u64, posted * len, len);
            single += usize::from(a.post_send(posted as u64, posted * len, len, posted % 3 != 0));
            posted += 1;
        }
        for (k, e) in [&mut *a, &mut *b].into_iter().enumerate() {
            for wc in e.round() {
                assert_eq!((wc.status, wc.wr_id), (wc_status::SUCCESS, done[k] as u64));
                done[k] += 1;
            }
        }
    }
    // SAFETY: the whole of b's own map; no engine runs meanwhile.
    let came = unsafe { core::slice::from_raw_parts(b.bytes.as_ptr(), n * len) };
    assert!(came == sent, "other bytes");
    single
}

#[test]
fn messages_arrive_over_a_port_that_loses_packets() {
    let (mut a, mut b) = pair(|n| n % 7 == 0);
    assert!(exchange(&mut a, &mut b, 300, 200) > 0, "none took the single path");
    exchange(&mut a, &mut b, 40, 20_000);
    assert!(a.net().lost > 10 && b.net().lost > 0, "{} {}", a.net().lost, b.net().lost);
}

#[test]
fn a_connected_socket_carries_what_its_peer_is_sent() {
    for takes in [0, 1, 25, u32::MAX] {
        let (mut a, mut b) = pair(|n| n % 97 == 0);
        // The numbers of the connected socket wrap.
        let connect = |from: &mut End, to: &End| {
            let (src, dst) = (from.host.address, to.host.address);
            let flow = IcrcFlow::from_gids(&src.ip, &dst.ip, 40_000, dst.port);
            let own = ConnectedFlow { dst: peer_addr(&dst), flow, ident: 0xfff0 };
            from.net().own = Some((own, takes));
        };
        connect(&mut a, &b);
        connect(&mut b, &a);
        exchange(&mut a, &mut b, 20, 50_000);
        exchange(&mut a, &mut b, 100, 200);
        for e in [&mut a, &mut b] {
            let (sent, own) = (e.net().own_sent, e.net().own.is_some());
            assert_eq!((sent.min(25), own), (takes.min(25), takes > 25), "{sent} of {takes}");
        }
    }
}

/// A capture shows the address and numbers of the port's own socket.
#[test]
fn with_a_capture_the_connected_socket_is_not_used() {
    let name = format!("gdrcore-own-flow-{}.pcap", std::process::id());
    let file = std::env::temp_dir().join(name);
    let path = CString::new(file.to_str().unwrap()).unwrap();
    let mut room = vec![0; PCAP_BUFFER];
    let (mut a, mut b) = pair(|_| false);
    // SAFETY: the memory outlives the port, and nothing else uses it.
    let tee = unsafe { Pcap::open(&path, Earlier::Replace, room.as_mut_ptr(), room.len()) };
    a.port.tap = Some(Box::new(Tap { pcap: Some(tee.unwrap()), faults: None }));
    let (src, dst) = (a.host.address, b.host.address);
    let flow = IcrcFlow::from_gids(&src.ip, &dst.ip, 40_000, dst.port);
    a.net().own = Some((ConnectedFlow { dst: peer_addr(&dst), flow, ident: 0 }, u32::MAX));
    exchange(&mut a, &mut b, 20, 50_000);
    exchange(&mut a, &mut b, 20, 200);
    assert_eq!(a.net().own_sent, 0);
    drop((a, b));
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_connected_socket_of_another_peer_is_not_used() {
    let (mut a, mut b) = pair(|_| false);
    let src = a.host.address;
    let dst = Endpoint { port: 4792, ..b.host.address };
    let flow = IcrcFlow::from_gids(&src.ip, &dst.ip, 40_000, dst.port);
    a.net().own = Some((ConnectedFlow { dst: peer_addr(&dst), flow, ident: 0 }, u32::MAX));
    exchange(&mut a, &mut b, 20, 50_000);
    exchange(&mut a, &mut b, 20, 200);
    assert_eq!(a.net().own_sent, 0);
}

#[test]
fn a_port_without_room_keeps_the_batch_and_wakes_when_there_is_some() {
    let (mut a, mut b) = pair(|_| false);
    a.net().full = 3;
    b.post_recv(0, 0, 9000);
    a.post_send(0, 0, 9000, true);
    assert!(a.port.blocked && a.port.watched && !a.net().batch.is_empty());
    // The descriptor is watched for room now, and an idle socket has room.
    assert!(a.host.waiter.attach_io(true).is_ok() && a.host.waiter.sleep(0));
    let end = now_ns() + limit_ms(60) as u64 * 1_000_000;
    let mut done = 0;
    while done < 2 {
        assert!(now_ns() < end);
        done += a.round().len() + b.round().len();
    }
    assert!(!a.port.blocked && !a.host.waiter.sleep(0));
    assert_eq!(a.net().counters.tx_full, 3);
}

#[test]
fn a_busy_descriptor_wakes_no_thread_until_one_sleeps() {
    let (mut a, mut b) = pair(|_| false);
    b.host.sleeps = true;
    let end = now_ns() + limit_ms(60) as u64 * 1_000_000;
    while a.port.watched || !b.port.schedule.is_busy() {
        assert!(now_ns() < end);
        exchange(&mut a, &mut b, 100, 64);
    }
    assert!(b.port.watched, "a thread may sleep");
    a.port.watch(&a.host);
    assert!(a.port.watched && !a.port.schedule.is_busy());
    let fd = a.net().fd();
    assert!(a.host.waiter.add_socket(fd).is_err(), "it is in the set");
}

#[test]
fn an_error_of_a_destination_is_the_cause_of_its_queue_pair() {
    let (mut a, b) = pair(|_| true);
    assert!(a.post_send(0, 0, 64, true) && a.net().lost == 1);
    let cause = |a: &End| a.engine.lock().qp_cause(a.qp).unwrap().code;
    assert_eq!(cause(&a), Cause::default().code);
    let (dst, errno) = (b.host.address, libc::ECONNREFUSED);
    a.net().errors.push_back(PortError { dst, errno, kind: ErrorKind::Icmp, mtu: 0 });
    a.round();
    assert!(a.net().errors.is_empty());
    assert_eq!(cause(&a), CauseCode::PeerUnreachable as u32);
}

#[test]
fn a_round_receives_again_before_it_has_sent_all_that_a_peer_asks_for() {
    let (mut a, mut b) = pair(|_| false);
    // A READ of the whole region, in one request.
    let mut request = vec![0; Bth::LEN + Reth::LEN];
    let bth = Bth::new(Opcode::RC_READ_REQUEST, Qpn::new(a.qpn), Psn::new(0));
    bth.emit(request.first_chunk_mut().unwrap());
    let reth = Reth { va: a.mr.iova, rkey: a.mr.rkey, len: REGION as u32 };
    reth.emit(request.last_chunk_mut().unwrap());
    request.extend_from_slice(&[0; 4]);
    let (from, to) = (b.host.address, a.host.address);
    let flow = IcrcFlow::from_gids(&from.ip, &to.ip, from.port, to.port);
    flow.append_icrc(0, &mut request);
    b.port.net.as_mut().unwrap().transmit(&request, request.len());
    let mut rounds = Vec::new();
    while rounds.iter().sum::<u64>() < (REGION / 1024) as u64 {
        let before = a.port.net.as_ref().unwrap().sent;
        a.round();
        rounds.push(a.port.net.as_ref().unwrap().sent - before);
        assert!(rounds.len() < 100, "{rounds:?}");
    }
    let most = (BURSTS / LONG_BURST * SPACE / 1024) as u64;
    assert!(rounds.iter().all(|&n| n <= most) && rounds[0] > most / 2, "{rounds:?}");
}
