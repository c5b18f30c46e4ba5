//! An engine with a registered buffer between guards, for the fuzz targets.

use gdrcore_core::config::Config;
use gdrcore_core::counters::Counters;
use gdrcore_core::device::SrqAttr;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::kind::QpKind;
use gdrcore_core::verbs::objects::Qp;
use gdrcore_core::verbs::types::*;
use gdrcore_testkit::connection::Connection;
use gdrcore_testkit::engine::{address, OwnedEngine};
use gdrcore_testkit::requests::{queue_pair, queues, recv_wr, region, send_wr};

/// Bytes that peers may access.
const BUFFER: usize = 16 << 10;
/// Bytes before and behind them that must not change.
const GUARD: usize = 4096;
const FILL: u8 = 0xa5;
const PSN: u32 = 0xff_fff0;
const ALL: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::FLUSH_GLOBAL;
const QKEY: u32 = 0x1111;
/// Access key of DC targets.
pub(crate) const DC_KEY: u64 = 0xffee_ddcc_0102_0304;
/// Responder contexts: fewer than the initiators that ask for them.
const CONTEXTS: u32 = 2;

/// An engine and its objects.
pub(crate) struct Host {
    pub(crate) addr: PeerAddr,
    engine: OwnedEngine,
    buffer: Box<[u8]>,
    pd: Handle,
    cq: Handle,
    lkey: u32,
    rkey: u32,
    tx: Vec<u8>,
    /// The target that requests of DC initiators name.
    dc: DcWr,
}

impl Host {
    pub(crate) fn peer_addr(n: u8) -> PeerAddr {
        address(false, 3 - n)
    }

    pub(crate) fn new(n: u8) -> Host {
        let config = Config {
            max_pd: 2,
            max_mr: 8,
            max_cq: 2,
            max_qp: 24,
            max_dc_context: CONTEXTS,
            max_srq: 2,
            max_ah: 8,
            max_peer: 4,
            ring_bytes: 1 << 20,
            qpn_count: 256,
            seed: 7,
            ..Config::default()
        };
        let addr = address(false, n);
        let engine = OwnedEngine::new(&config, addr);
        let buffer = vec![FILL; BUFFER + 2 * GUARD].into_boxed_slice();
        let (pd, cq, mr) = {
            let mut g = engine.lock();
            let pd = g.pd_alloc().expect("pd");
            let (cq, _) = g.cq_create(16).expect("cq");
            let at = buffer.as_ptr() as u64 + GUARD as u64;
            let reg = region(pd, at, BUFFER as u64, ALL);
            (pd, cq, g.mr_reg(&reg).expect("mr").1)
        };
        let tx = vec![0; 65_536];
        Host { addr, engine, buffer, pd, cq, lkey: mr.lkey, rkey: mr.rkey, tx, dc: DcWr::default() }
    }

    /// The engine's lock, for calls without a method here.
    pub(crate) fn guard(&self) -> EngineGuard<'_> {
        self.engine.lock()
    }

    /// The packets that leave at this time, without timers.
    pub(crate) fn sent_now(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut g = self.engine.lock();
        let mut out = Vec::new();
        while let Some(b) = g.poll_transmit(now, &mut self.tx) {
            out.extend(self.tx[..b.len].chunks(b.seg).map(<[u8]>::to_vec));
        }
        out
    }

    pub(crate) fn target(&self) -> (u64, u32) {
        (self.buffer.as_ptr() as u64 + GUARD as u64, self.rkey)
    }

    /// A QP in a given state; its peer is the other host.
    pub(crate) fn qp(&mut self, kind: u32, state: u32) -> (Handle, u32) {
        let cap = queues(8, 2, 32);
        let (pd, cq) = (self.pd, self.cq);
        let init = QpInit { pd, send_cq: cq, recv_cq: cq, qp_type: kind, cap, ..QpInit::default() };
        let (qp, qpn, _) = self.engine.lock().qp_create(0, &init).expect("qp");
        if state == qp_state::RESET {
            return (qp, qpn);
        }
        self.step(qp, kind, qp_state::INIT, 0x55);
        let path: &[u32] = match state {
            qp_state::RTR => &[qp_state::RTR],
            qp_state::RTS => &[qp_state::RTR, qp_state::RTS],
            qp_state::SQD => &[qp_state::RTR, qp_state::RTS, qp_state::SQD],
            qp_state::ERR => &[qp_state::RTR, qp_state::RTS, qp_state::ERR],
            _ => &[],
        };
        for &s in path {
            self.step(qp, kind, s, 0x55);
        }
        (qp, qpn)
    }

    /// An XRC target in a given state, and the number of an SRQ of its domain, in which some
    /// requests are posted.
    pub(crate) fn xrc_target(&mut self, state: u32) -> ((Handle, u32), u32) {
        let (addr, _) = self.target();
        let sge = Sge { addr, length: BUFFER as u32, lkey: self.lkey };
        let wr = recv_wr(1, std::slice::from_ref(&sge));
        let (qp, number, srq) = {
            let mut g = self.engine.lock();
            let xrcd = g.xrcd_alloc().expect("xrcd");
            let attr = SrqAttr { max_wr: 8, max_sge: 2, srq_limit: 0 };
            let srq = g.srq_create_xrc(0, [self.pd, xrcd, self.cq], &attr).expect("srq").0;
            let number = g.srq_number(srq).expect("number");
            let init = QpInit { xrcd, qp_type: qp_type::XRC_RECV, ..QpInit::default() };
            let (qp, qpn, _) = g.qp_create(0, &init).expect("qp");
            ((qp, qpn), number, srq)
        };
        for _ in 0..4 {
            let mut bad = core::ptr::null();
            // SAFETY: request and list live through the call.
            unsafe { self.engine.post_srq_recv(srq, &wr, &mut bad) }.expect("room");
        }
        for to in [qp_state::INIT, qp_state::RTR, qp_state::RTS] {
            if to <= state {
                self.step(qp.0, qp_type::XRC_RECV, to, 0x55);
            }
        }
        (qp, number)
    }

    /// A DC target in a given state, with an SRQ in which some requests are posted.
    pub(crate) fn dc_target(&mut self, state: u32) -> (Handle, u32) {
        let (addr, _) = self.target();
        let sge = Sge { addr, length: BUFFER as u32, lkey: self.lkey };
        let wr = recv_wr(1, std::slice::from_ref(&sge));
        let (qp, srq) = {
            let mut g = self.engine.lock();
            let attr = SrqAttr { max_wr: 8, max_sge: 2, srq_limit: 0 };
            let srq = g.srq_create(0, self.pd, &attr).expect("srq").0;
            let init = queue_pair(qp_type::DCT, self.pd, [self.cq; 2], QpCap::default());
            let init = QpInit { srq, dc_key: DC_KEY, ..init };
            let (qp, qpn, _) = g.qp_create(0, &init).expect("qp");
            ((qp, qpn), srq)
        };
        for _ in 0..8 {
            let mut bad = core::ptr::null();
            // SAFETY: request and list live through the call.
            let _ = unsafe { self.engine.post_srq_recv(srq, &wr, &mut bad) };
        }
        for to in [qp_state::INIT, qp_state::RTR] {
            if to <= state {
                self.step(qp.0, qp_type::DCT, to, 0);
            }
        }
        qp
    }

    /// Requests of DC initiators are from now on for this target of the other host.
    pub(crate) fn aim(&mut self, dctn: u32) {
        let dgid = Host::peer_addr(self.addr.gid[15]).gid;
        let attr = AhAttr { dgid, ..AhAttr::default() };
        let ah = self.engine.lock().ah_create(self.pd, &attr).expect("ah");
        self.dc = DcWr { ah, dc_key: DC_KEY, dctn };
    }

    /// The association of a DC initiator: its id.
    pub(crate) fn association(&self, qp: Handle) -> u64 {
        let g = self.engine.lock();
        g.transport.qps[(qp & 0xff_ffff) as usize].dci.first().map_or(0, |a| a.id)
    }

    /// QPNs of the contexts that are in use, and the PSNs that they expect.
    pub(crate) fn contexts(&self) -> Vec<(u32, u32)> {
        let g = self.engine.lock();
        let qps = (0..g.transport.qps.len()).map(|i| &g.transport.qps[i]);
        let used = |q: &&Qp| q.kind == QpKind::DcContext && q.state != qp_state::RESET;
        qps.filter(used).map(|q| (q.qpn, q.conn.resp.epsn.get())).collect()
    }

    pub(crate) fn connect(&mut self, qp: (Handle, u32), _peer: &Host, dest: u32) {
        let kind = self.engine.lock().qp_query(qp.0).expect("query").1.qp_type;
        self.step(qp.0, kind, qp_state::RTR, dest);
        self.step(qp.0, kind, qp_state::RTS, dest);
    }

    /// Moves a QP one state on, to a state of the path from INIT to RTS, or to SQD or ERR.
    fn step(&mut self, qp: Handle, kind: u32, to: u32, dest: u32) {
        let dgid = Host::peer_addr(self.addr.gid[15]).gid;
        let connection = Connection {
            qp_type: kind,
            access: ALL,
            qkey: QKEY,
            ah: AhAttr { dgid, ..AhAttr::default() },
            dest_qpn: dest,
            psn: (PSN, PSN),
            rd_atomic: 4,
            min_rnr_timer: 1,
            timeout: 10,
            retry_cnt: 2,
            rnr_retry: 2,
            ..Connection::default()
        };
        let (attr, mask) = match to {
            qp_state::INIT => connection.to_init(),
            qp_state::RTR => connection.to_rtr(),
            qp_state::RTS => connection.to_rts(),
            _ => (QpAttr { qp_state: to, ..QpAttr::default() }, qp_attr_mask::STATE),
        };
        let mut g = self.engine.lock();
        g.qp_modify(0, qp, &attr, mask).expect("a transition of the standard");
    }

    /// A modify call, valid or not.
    pub(crate) fn modify_any(&mut self, qp: Handle, arg: u8) {
        let attr = QpAttr { qp_state: u32::from(arg & 7), ..QpAttr::default() };
        let mask = qp_attr_mask::STATE | if arg & 0x80 != 0 { u32::from(arg) << 4 } else { 0 };
        let _ = self.engine.lock().qp_modify(0, qp, &attr, mask);
    }

    pub(crate) fn post_some(&mut self, qp: Handle) {
        for n in 0..4 {
            self.post_recv(qp, 1000 * n + 40);
        }
        let (va, rkey) = self.target();
        for op in [
            wr_opcode::SEND,
            wr_opcode::RDMA_WRITE,
            wr_opcode::RDMA_READ,
            wr_opcode::ATOMIC_CMP_AND_SWP,
        ] {
            self.send(qp, op, 2000, va, rkey);
        }
    }

    pub(crate) fn post_recv(&mut self, qp: Handle, len: u32) {
        let (addr, _) = self.target();
        let sge = Sge { addr, length: len.min(BUFFER as u32), lkey: self.lkey };
        let wr = recv_wr(1, std::slice::from_ref(&sge));
        let mut bad = core::ptr::null();
        // SAFETY: request and list live through the call.
        let _ = unsafe { self.engine.post_recv(qp, &wr, &mut bad) };
    }

    pub(crate) fn post_send(&mut self, qp: Handle, op: u32, len: u32, peer: &Host) {
        let (va, rkey) = peer.target();
        self.send(qp, op, len, va, rkey);
    }

    fn send(&mut self, qp: Handle, op: u32, len: u32, va: u64, rkey: u32) {
        let atomic = matches!(op, wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD);
        let (addr, _) = self.target();
        let word = atomic || op == wr_opcode::ATOMIC_WRITE;
        let length = if word { 8 } else { len.min(BUFFER as u32) };
        let sge = Sge { addr, length, lkey: self.lkey };
        let rdma = RdmaWr { remote_addr: va, rkey };
        let mut wr = send_wr(2, op, std::slice::from_ref(&sge), rdma);
        if self.dc.ah != 0 {
            // Of other types it is not read.
            wr.ext = WrExt { dc: self.dc };
        }
        if op == wr_opcode::FLUSH {
            // The level: the range, the region, or one that does not exist.
            let (placement, length, level) = (flush_type::GLOBAL, len.into(), len % 3);
            let flush = FlushWr { remote_addr: va, rkey, placement, length, level };
            wr.wr = WrOp { flush };
        } else if atomic {
            wr.wr = WrOp { atomic: AtomicWr { remote_addr: va, compare_add: 1, swap: 2, rkey } };
        }
        let mut bad = core::ptr::null();
        // SAFETY: request and list live through the call.
        let posted = unsafe { self.engine.post_send(qp, &wr, &mut bad) };
        if posted.is_ok() && len & 1 == 0 {
            let (mut g, qi) = (self.engine.lock(), (qp & 0xff_ffff) as usize);
            let _ = g.try_local::<false>(qi, op) || g.try_local::<true>(qi, op);
        }
    }

    /// The PSN that a QP expects as responder, or with which it began as requester.
    pub(crate) fn expected_psn(&self, qp: Handle, requester: bool) -> u32 {
        let g = self.engine.lock();
        match g.qp_query(qp) {
            Ok(_) if requester => PSN,
            Ok((attr, _)) => attr.rq_psn,
            Err(_) => 0,
        }
    }

    pub(crate) fn receive(&mut self, now: u64, from: &PeerAddr, packet: &[u8]) {
        self.engine.lock().handle_packets(now, from, packet.len(), packet, false);
    }

    /// Runs timers; returns the packets that leave.
    pub(crate) fn round(&mut self, now: u64) -> Vec<Vec<u8>> {
        let mut g = self.engine.lock();
        g.run_loopback(now);
        g.handle_timeout(now);
        g.flush_acks();
        let mut out = Vec::new();
        for _ in 0..64 {
            let Some(b) = g.poll_transmit(now, &mut self.tx) else { break };
            out.extend(self.tx[..b.len].chunks(b.seg).map(<[u8]>::to_vec));
        }
        out
    }

    /// Checks that nothing outside the registered bytes has changed, and that completions are well
    /// formed.
    pub(crate) fn check(&mut self) {
        let guards = self.buffer[..GUARD].iter().chain(&self.buffer[GUARD + BUFFER..]);
        assert!(guards.into_iter().all(|&b| b == FILL), "a byte outside the memory region changed");
        let mut wc = [Wc::default(); 16];
        let n = self.engine.poll_cq(self.cq, &mut wc).expect("poll");
        for w in &wc[..n] {
            assert!(w.wr_id == 1 || w.wr_id == 2, "a completion without a request: {w:?}");
            assert!(w.status <= 22);
        }
    }

    /// Checks that every send request ends once the peer is silent.
    pub(crate) fn finish(&mut self, mut now: u64) -> Counters {
        for _ in 0..200 {
            now += 400_000_000;
            self.round(now);
            self.check();
        }
        let g = self.engine.lock();
        let left = g.leaks();
        assert!(left.qp > 0 && left.cq == 1);
        for i in 0..g.transport.peers.len() {
            assert!(g.transport.peers[i].refs < 100, "records of addresses leak");
        }
        g.counters()
    }
}
