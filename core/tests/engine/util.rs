//! Engines under a virtual clock, with a wire between them that a test can tap.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use gdrcore_core::config::Config;
use gdrcore_core::device::{MrAttr, MrReg, SrqAttr};
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::receipt::Receipts;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::roce::peer_memory::PeerMemory;
use gdrcore_core::verbs::kind::QpKind;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::grh::{Fields, HOP_LIMIT};
use gdrcore_core::wire::IcrcFlow;
use gdrcore_core::{Error, Result};
pub use gdrcore_testkit::connection::Connection;
use gdrcore_testkit::engine::{address, OwnedEngine};
pub use gdrcore_testkit::memory::Buffer;
pub use gdrcore_testkit::requests::{queue_pair, queues, recv_wr, region};
use gdrcore_testkit::weak::WeakMemory;

pub use crate::buf_and_wr::*;

/// Everything a peer may do.
pub const ALL: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
/// Access key of every DCT.
pub const DC_KEY: u64 = 0xffee_ddcc_0102_0304;
/// What the IP header of a packet has if nothing else was asked for.
pub const DEFAULT: Fields = Fields { flow_label: 0, traffic_class: 0, hop_limit: HOP_LIMIT };
/// First PSN of every QP, close to the wrap.
pub const PSN: u32 = 0xff_fff0;

/// One engine and its address.
pub struct Host {
    pub engine: OwnedEngine,
    pub addr: PeerAddr,
    /// What this host has accepted over links.
    pub receipts: Receipts,
    /// In place of host memory. Behind the engine, which ends first.
    pub weak: Option<Box<WeakMemory>>,
}

impl Host {
    pub fn new(config: &Config, v6: bool, n: u8) -> Host {
        let addr = address(v6, n);
        let engine = OwnedEngine::new(config, addr);
        Host { engine, addr, receipts: Receipts::default(), weak: None }
    }
    /// Places what arrives in any order from here on; for regions that are registered from here on.
    fn weaken(&mut self) {
        let memory: Box<WeakMemory> = Box::new(WeakMemory::new(0));
        let place: *const WeakMemory = &*memory;
        // SAFETY: the box lives as long as the host, whose engine is dropped first.
        self.lock().set_host_memory(unsafe { &*place });
        self.weak = Some(memory);
    }
    pub fn lock(&self) -> EngineGuard<'_> {
        self.engine.lock()
    }
}

/// What becomes of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    Deliver,
    Drop,
    /// Arrives twice.
    Twice,
    /// Arrives after the next packet of the same direction.
    Later,
}

impl Fate {
    pub fn drop_if(lost: bool) -> Fate {
        if lost {
            Fate::Drop
        } else {
            Fate::Deliver
        }
    }
}

/// Looks at each packet: sender's host, bytes; may change them.
pub type Tap = Box<dyn FnMut(usize, &mut Vec<u8>) -> Fate>;

/// What was found in packets: [`Net::note`].
pub type Notes<T> = Rc<RefCell<Vec<T>>>;

/// The hosts, the wire and the clock.
pub struct Net {
    pub now: u64,
    pub hosts: Vec<Host>,
    pub tap: Option<Tap>,
    pub packets: u64,
    /// Packets of this host arrive with a congestion mark.
    pub marks: Option<usize>,
    held: Vec<VecDeque<(usize, Vec<u8>)>>,
    /// Peers that are named from now on are reached over links: the number of a link is its host's.
    pub links: bool,
    /// The SRQ that requests of XRC name which name none.
    pub srqn: u32,
    /// The target that requests of DCIs name which name none.
    pub dc: DcWr,
    /// Memory of the peer that host 0 has mapped.
    pub memory: Option<Box<dyn PeerMemory>>,
    buf: Vec<u8>,
    /// What address vectors have beside the address.
    pub vector: AhAttr,
    /// Senders of bursts through ports, and what the IP headers of their packets have.
    pub headers: Vec<(usize, Fields)>,
}

/// [`Net::marks`]: packets of every host.
pub const BOTH: usize = usize::MAX;

/// What lies between two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Two engines that exchange packets.
    Wire,
    /// Both ends on one engine.
    Loopback,
    /// Two engines that exchange runs, as processes of one host do.
    Link,
}

/// Every way: what holds on one holds on all.
pub const WAYS: [Way; 3] = [Way::Wire, Way::Loopback, Way::Link];

/// How a test wants its pair.
#[derive(Clone, Copy)]
pub struct Opts {
    /// XRC_SEND: the other end is an XRC_RECV with one SRQ. DCI: it is a DCT.
    pub kind: u32,
    pub v6: bool,
    /// MTU code.
    pub mtu: u32,
    pub sq: u32,
    pub rq: u32,
    pub cqe: u32,
    pub sge: u32,
    pub inline: u32,
    pub srq: bool,
    /// The SRQ, and the memory of its receives, are in a PD of their own.
    pub srq_apart: bool,
    pub way: Way,
    pub timeout: u8,
    pub retry: u8,
    pub rnr: u8,
    pub rnr_timer: u8,
    pub rd_atomic: u8,
    pub access: u32,
    pub sig_all: bool,
    /// Both queues of an end have one CQ.
    pub one_cq: bool,
    pub bytes: usize,
    /// Host memory is placed in any order.
    pub weak: bool,
    pub config: Config,
}

impl Default for Opts {
    fn default() -> Opts {
        Opts {
            kind: qp_type::RC,
            v6: false,
            mtu: mtu::MTU_1024,
            sq: 64,
            rq: 64,
            cqe: 256,
            sge: 8,
            inline: 128,
            srq: false,
            srq_apart: false,
            way: Way::Wire,
            timeout: 10,
            retry: 7,
            rnr: 7,
            rnr_timer: 1,
            rd_atomic: 16,
            access: ALL | ACCESS_FLUSH,
            sig_all: false,
            one_cq: false,
            bytes: 3 << 20,
            weak: false,
            config: Config { max_qp: 64, max_mr: 256, seed: 7, ..Config::default() },
        }
    }
}

/// The kind of the end that an end of a kind is connected to.
fn other_end(kind: u32) -> u32 {
    match kind {
        qp_type::XRC_SEND => qp_type::XRC_RECV,
        qp_type::DCI => qp_type::DCT,
        _ => kind,
    }
}

/// One QP with a CQ for each queue and a buffer that is one MR.
pub struct End {
    pub host: usize,
    pub kind: u32,
    pub pd: Handle,
    pub xrcd: Handle,
    pub scq: Handle,
    pub rcq: Handle,
    pub srq: Handle,
    pub qp: Handle,
    pub qpn: u32,
    pub mr_handle: Handle,
    pub mr: MrAttr,
    /// Key of the same memory for receives.
    pub recv_lkey: u32,
    pub buf: Buffer,
}

impl End {
    /// What binds a window to the first bytes of its memory.
    pub fn window(&self, length: u64, mw_access_flags: u32) -> MwBindInfo {
        MwBindInfo { mr: self.mr_handle, addr: self.mr.iova, length, mw_access_flags }
    }
}

/// A small generator, so that a failure is repeated by its seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What every end's connection has, whatever its peer.
fn connection(e: &End, o: &Opts) -> Connection {
    Connection {
        qp_type: e.kind,
        access: o.access,
        qkey: 0x1111,
        mtu: o.mtu,
        rd_atomic: o.rd_atomic,
        min_rnr_timer: o.rnr_timer,
        timeout: o.timeout,
        retry_cnt: o.retry,
        rnr_retry: o.rnr,
        ..Connection::default()
    }
}

impl Net {
    pub fn new(n: usize, o: &Opts) -> Net {
        let host = |i: usize| {
            let config = Config { seed: o.config.seed + 1000 * i as u64, ..o.config };
            let mut host = Host::new(&config, o.v6, i as u8 + 1);
            if o.weak {
                host.weaken();
            }
            host
        };
        Net {
            now: 1_000_000,
            hosts: (0..n).map(host).collect(),
            tap: None,
            packets: 0,
            marks: None,
            held: vec![VecDeque::new(); n],
            links: o.way == Way::Link,
            srqn: 0,
            dc: DcWr::default(),
            memory: None,
            buf: vec![0; 65_536],
            vector: AhAttr::default(),
            headers: Vec::new(),
        }
    }

    /// Two connected ends: on two engines, or on one.
    pub fn pair(o: Opts) -> (Net, End, End) {
        let mut net = Net::new(if o.way == Way::Loopback { 1 } else { 2 }, &o);
        let a = net.end(0, &o);
        let other = Opts { kind: other_end(o.kind), ..o };
        let b = net.end(if o.way == Way::Loopback { 0 } else { 1 }, &other);
        if o.kind == qp_type::DCI {
            net.start_dc(&a, &o);
            net.start_dc(&b, &o);
            net.dc = net.target(&a, &b);
            return (net, a, b);
        }
        net.srqn = net.srqn_of(&b);
        net.connect(&a, &b, &o);
        net.connect(&b, &a, &o);
        (net, a, b)
    }

    /// The number of an end's SRQ; 0: it has none.
    pub fn srqn_of(&self, e: &End) -> u32 {
        if e.srq == 0 {
            return 0;
        }
        self.lock(e).srq_number(e.srq).unwrap()
    }

    /// One more host.
    pub fn add(&mut self, host: Host) {
        self.hosts.push(host);
        self.held.push(VecDeque::new());
    }

    /// From here on delivers all packets, and notes what is found in each: by the sender's host and
    /// the bytes.
    pub fn note<T: 'static>(
        &mut self,
        mut find: impl FnMut(usize, &[u8]) -> Option<T> + 'static,
    ) -> Notes<T> {
        let notes = Notes::default();
        let all = notes.clone();
        self.tap = Some(Box::new(move |from, packet| {
            all.borrow_mut().extend(find(from, packet));
            Fate::Deliver
        }));
        notes
    }

    pub fn lock(&self, e: &End) -> EngineGuard<'_> {
        self.hosts[e.host].lock()
    }

    /// Registers memory in an end's PD.
    pub fn reg(&self, e: &End, buf: &Buffer, flags: u32) -> (Handle, MrAttr) {
        let reg = region(e.pd, buf.addr(), buf.len() as u64, flags);
        self.lock(e).mr_reg(&reg).unwrap()
    }

    /// An end in RESET.
    pub fn end(&mut self, host: usize, o: &Opts) -> End {
        let now = self.now;
        let mut g = self.hosts[host].lock();
        let pd = g.pd_alloc().unwrap();
        let (scq, _) = g.cq_create(o.cqe).unwrap();
        let rcq = if o.one_cq { scq } else { g.cq_create(o.cqe).unwrap().0 };
        let srq_pd = if o.srq_apart { g.pd_alloc().unwrap() } else { pd };
        let srq_attr = SrqAttr { max_wr: o.rq, max_sge: o.sge, srq_limit: 0 };
        let xrc = o.kind == qp_type::XRC_RECV;
        let xrcd = if xrc { g.xrcd_alloc().unwrap() } else { 0 };
        let srq = match () {
            () if xrc => g.srq_create_xrc(now, [srq_pd, xrcd, rcq], &srq_attr).unwrap().0,
            () if o.srq || o.kind == qp_type::DCT => {
                g.srq_create(now, srq_pd, &srq_attr).unwrap().0
            }
            () => 0,
        };
        let cap = QpCap { max_recv_wr: o.rq, ..queues(o.sq, o.sge, o.inline) };
        let init = QpInit {
            xrcd,
            pd,
            send_cq: scq,
            recv_cq: rcq,
            srq: if xrc { 0 } else { srq },
            dc_key: DC_KEY,
            qp_type: o.kind,
            sq_sig_all: o.sig_all.into(),
            cap,
        };
        let (qp, qpn, _) = g.qp_create(self.now, &init).unwrap();
        let buf = Buffer::new(o.bytes);
        let reg =
            region(pd, buf.addr(), buf.len() as u64, ALL | access::MW_BIND | access::FLUSH_GLOBAL);
        let (mr_handle, mr) = g.mr_reg(&reg).unwrap();
        let recv_lkey = match o.srq_apart {
            true => g.mr_reg(&MrReg { pd: srq_pd, ..reg }).unwrap().1.lkey,
            false => mr.lkey,
        };
        let kind = o.kind;
        End { host, kind, pd, xrcd, scq, rcq, srq, qp, qpn, mr_handle, mr, recv_lkey, buf }
    }

    pub fn modify(&self, e: &End, attr: &QpAttr, mask: u32) -> Result<()> {
        self.lock(e).qp_modify(self.now, e.qp, attr, mask)
    }

    pub fn to_state(&self, e: &End, state: u32) -> Result<()> {
        self.modify(e, &QpAttr { qp_state: state, ..QpAttr::default() }, qp_attr_mask::STATE)
    }

    /// What a device does before a call that names a peer: it says over which link that peer is
    /// reached.
    fn name(&self, from: usize, to: usize) {
        self.hosts[from].lock().set_link(self.links.then_some(to as u16));
    }

    /// Takes `a` from RESET to RTS, towards `b`.
    pub fn connect(&mut self, a: &End, b: &End, o: &Opts) {
        self.connect_at(a, b, o, PSN, PSN);
    }

    /// The same; the first PSNs of `a`, and of `b`.
    pub fn connect_at(&mut self, a: &End, b: &End, o: &Opts, sq_psn: u32, rq_psn: u32) {
        let ah = AhAttr { dgid: self.hosts[b.host].addr.gid, ..self.vector };
        self.name(a.host, b.host);
        let (dest_qpn, psn) = (b.qpn, (sq_psn, rq_psn));
        self.start(a, &Connection { ah, dest_qpn, psn, ..connection(a, o) });
    }

    /// Takes a DCI to RTS, a DCT to RTR: by an address vector without an address, as programs do.
    pub fn start_dc(&mut self, e: &End, o: &Opts) {
        self.start(e, &Connection { psn: (PSN, 0), ..connection(e, o) });
    }

    fn start(&self, e: &End, connection: &Connection) {
        for (attr, mask) in connection.steps() {
            self.modify(e, &attr, mask).unwrap();
        }
    }

    /// What requests of `a` name to reach the DCT `b`.
    pub fn target(&self, a: &End, b: &End) -> DcWr {
        DcWr { ah: self.ah(a, b), dc_key: DC_KEY, dctn: b.qpn }
    }

    /// Binds a type 2 window with these rights to the first bytes of an end's region. Returns its
    /// key.
    pub fn window(&mut self, e: &End, length: u64, rights: u32) -> u32 {
        let (mw, key) = self.lock(e).mw_alloc(e.pd, 2).unwrap();
        let key = (key & !0xff) | (key.wrapping_add(1) & 0xff);
        let info = e.window(length, rights);
        self.ok(e, Wr::new(wr_opcode::BIND_MW).bind(mw, key, info));
        key
    }

    /// An AH of `a`'s that leads to `b`'s host.
    pub fn ah(&self, a: &End, b: &End) -> Handle {
        self.name(a.host, b.host);
        let attr = AhAttr { dgid: self.hosts[b.host].addr.gid, ..self.vector };
        self.lock(a).ah_create(a.pd, &attr).unwrap()
    }

    pub fn try_post(&self, e: &End, mut w: Wr) -> Result<()> {
        w.raw.sg_list = w.sges.as_ptr();
        w.raw.num_sge = w.sges.len() as i32;
        if w.raw.remote_srqn == 0 {
            w.raw.remote_srqn = self.srqn;
        }
        // SAFETY: plain integers.
        if e.kind == qp_type::DCI && unsafe { w.raw.ext.dc.ah } == 0 {
            w.raw.ext.dc = self.dc;
        }
        let mut bad = std::ptr::null();
        // SAFETY: the request and its list live through the call.
        unsafe { self.hosts[e.host].engine.post_send(e.qp, &w.raw, &mut bad).map(|_| ()) }
    }

    pub fn post(&self, e: &End, w: Wr) {
        self.try_post(e, w).unwrap();
    }

    /// Posts a receive of pieces of the end's buffer, to its SRQ if it has one.
    pub fn try_recv(&self, e: &End, id: u64, pieces: &[(usize, usize)]) -> Result<()> {
        let at = |&(at, len): &(usize, usize)| Sge {
            addr: e.mr.iova + at as u64,
            length: len as u32,
            lkey: e.recv_lkey,
        };
        let sges: Vec<Sge> = pieces.iter().map(at).collect();
        self.try_recv_sges(e, id, &sges)
    }

    pub fn try_recv_sges(&self, e: &End, id: u64, sges: &[Sge]) -> Result<()> {
        let wr = recv_wr(id, sges);
        let mut bad = std::ptr::null();
        let engine = &self.hosts[e.host].engine;
        // SAFETY: the request and its list live through the call.
        unsafe {
            if e.srq != 0 {
                engine.post_srq_recv(e.srq, &wr, &mut bad)
            } else {
                engine.post_recv(e.qp, &wr, &mut bad)
            }
        }
    }

    /// Posts a receive of a piece of the end's buffer to an SRQ.
    pub fn try_recv_of(&self, e: &End, srq: Handle, id: u64, piece: (usize, usize)) -> Result<()> {
        let (addr, length) = (e.mr.iova + piece.0 as u64, piece.1 as u32);
        self.try_recv_sge(e.host, srq, id, Sge { addr, length, lkey: e.recv_lkey })
    }

    /// Posts a receive of one piece to an SRQ.
    pub fn try_recv_sge(&self, host: usize, srq: Handle, id: u64, sge: Sge) -> Result<()> {
        let wr = recv_wr(id, std::slice::from_ref(&sge));
        let mut bad = std::ptr::null();
        // SAFETY: the request and its list live through the call.
        unsafe { self.hosts[host].engine.post_srq_recv(srq, &wr, &mut bad) }
    }

    pub fn recv(&self, e: &End, id: u64, pieces: &[(usize, usize)]) {
        self.try_recv(e, id, pieces).unwrap();
    }

    pub fn poll(&self, host: usize, cq: Handle) -> Vec<Wc> {
        let mut out = Vec::new();
        let mut wc = [Wc::default(); 16];
        loop {
            let n = self.hosts[host].engine.poll_cq(cq, &mut wc).unwrap();
            out.extend_from_slice(&wc[..n]);
            if n < wc.len() {
                return out;
            }
        }
    }

    fn deliver(&mut self, from: usize, to: usize, seg: usize, data: &[u8]) {
        let header = self.headers.iter().rev().find(|(host, _)| *host == from);
        let Fields { flow_label, traffic_class, hop_limit } = header.map_or(DEFAULT, |h| h.1);
        let src = self.hosts[from].addr;
        let src = PeerAddr { flow_label, traffic_class, hop_limit, ..src };
        let (to, mark) = (&self.hosts[to], self.marks.is_some_and(|m| m == from || m == BOTH));
        let Some(weak) = &to.weak else {
            to.lock().handle_packets(self.now, &src, seg, data, mark);
            return;
        };
        weak.set_now(self.now);
        for packet in data.chunks(seg) {
            weak.see(packet);
            to.lock().handle_packets(self.now, &src, packet.len(), packet, mark);
        }
    }

    fn route(&self, dst: &PeerAddr) -> Option<usize> {
        self.hosts.iter().position(|h| h.addr.gid == dst.gid && h.addr.port == dst.port)
    }

    /// Puts bytes on the wire as if `from` had sent them, past the tap.
    pub fn inject(&mut self, from: usize, to: usize, data: &[u8]) {
        self.deliver(from, to, data.len(), data);
    }

    /// All that one host has to send through its port, past the tap.
    pub fn send_from(&mut self, from: usize) {
        let mut buf = vec![0; 65_536];
        loop {
            let burst = self.hosts[from].lock().poll_transmit(self.now, &mut buf);
            let Some(b) = burst else { return };
            if let Some(to) = self.route(&b.dst) {
                self.deliver(from, to, b.seg, &buf[..b.len]);
            }
        }
    }

    /// One exchange: all that every host has to send. True: something moved.
    pub fn exchange(&mut self) -> bool {
        let mut moved = false;
        for i in 0..self.hosts.len() {
            moved |= self.hosts[i].lock().run_loopback(self.now) > 0;
            moved |= self.exchange_links(i);
            let mut bursts = 0;
            loop {
                let mut buf = std::mem::take(&mut self.buf);
                let burst = self.hosts[i].lock().poll_transmit(self.now, &mut buf);
                let Some(b) = burst else {
                    self.buf = buf;
                    break;
                };
                bursts += 1;
                assert!(bursts < 100_000, "a host sends without end");
                moved = true;
                assert!(b.len > 0 && b.seg > 0 && b.len <= 65_000, "{b:?}");
                self.headers.push((i, b.dst.grh().sent()));
                self.packets += b.len.div_ceil(b.seg) as u64;
                let to = self.route(&b.dst);
                match (to, &mut self.tap) {
                    (None, _) => {}
                    (Some(to), None) => self.deliver(i, to, b.seg, &buf[..b.len]),
                    (Some(to), Some(_)) => self.tapped(i, to, b.seg, &buf[..b.len]),
                }
                self.buf = buf;
            }
        }
        moved
    }

    /// What a host has for its links, at most a small ring's worth at a time.
    fn exchange_links(&mut self, from: usize) -> bool {
        let mut moved = false;
        let mut buf = std::mem::take(&mut self.buf);
        let mut idle = None;
        for _ in 0..100_000 {
            let link = self.hosts[from].lock().next_link(self.now, |k| idle == Some(k));
            let Some(link) = link else { break };
            let memory: &mut dyn PeerMemory = match &mut self.memory {
                Some(memory) if from == 0 => &mut **memory,
                _ => &mut (),
            };
            let len = self.hosts[from].lock().poll_transmit_link(
                self.now,
                link,
                &mut buf[..20_000],
                memory,
            );
            if len == 0 {
                idle = Some(link);
                continue;
            }
            moved = true;
            let src = self.hosts[from].addr;
            let to = &self.hosts[usize::from(link)];
            to.lock().handle_records(self.now, &src, &buf[..len], &to.receipts);
        }
        self.buf = buf;
        moved
    }

    fn tapped(&mut self, from: usize, to: usize, seg: usize, data: &[u8]) {
        for p in data.chunks(seg) {
            let mut p = p.to_vec();
            let Some(mut tap) = self.tap.take() else { return };
            let fate = tap(from, &mut p);
            self.tap = Some(tap);
            match fate {
                Fate::Drop => continue,
                Fate::Later => {
                    self.held[from].push_back((to, p));
                    continue;
                }
                Fate::Deliver => self.deliver(from, to, p.len(), &p),
                Fate::Twice => {
                    self.deliver(from, to, p.len(), &p);
                    self.deliver(from, to, p.len(), &p);
                }
            }
            while let Some((to, p)) = self.held[from].pop_front() {
                self.deliver(from, to, p.len(), &p);
            }
        }
    }

    /// Moves everything that moves without time passing.
    pub fn settle(&mut self) {
        for round in 0.. {
            assert!(round < 200_000, "never settles");
            if self.exchange() {
                continue;
            }
            for i in 0..self.hosts.len() {
                while let Some((to, p)) = self.held[i].pop_front() {
                    self.deliver(i, to, p.len(), &p);
                }
            }
            for h in &self.hosts {
                let mut g = h.lock();
                g.handle_timeout(self.now);
                g.flush_acks();
            }
            if !self.exchange() {
                return;
            }
        }
    }

    /// Lets the clock run for a while.
    pub fn run(&mut self, ns: u64) {
        let end = self.now + ns;
        loop {
            self.settle();
            let next = self.hosts.iter().filter_map(|h| h.lock().next_timeout(self.now)).min();
            match next {
                Some(t) if t <= end => self.now = t.max(self.now + 1),
                _ => break,
            }
        }
        self.now = end;
        self.settle();
    }

    /// Runs until a CQ has given `n` completions, at most 400 s of virtual time.
    pub fn wait(&mut self, host: usize, cq: Handle, n: usize) -> Vec<Wc> {
        let end = self.now + 400_000_000_000;
        let mut out = Vec::new();
        loop {
            self.settle();
            out.extend(self.poll(host, cq));
            if out.len() >= n {
                return out;
            }
            let next = self.hosts.iter().filter_map(|h| h.lock().next_timeout(self.now)).min();
            match next {
                Some(t) if t <= end => self.now = t.max(self.now + 1),
                _ => {
                    let why: Vec<_> =
                        self.hosts.iter().map(|h| h.lock().last_cause().to_string()).collect();
                    panic!("{} of {n} completions: {out:?}; {why:?}", out.len());
                }
            }
        }
    }

    /// Posts a signalled request and waits for its completion.
    pub fn run_one(&mut self, e: &End, w: Wr) -> Wc {
        self.post(e, w);
        let wc = self.wait(e.host, e.scq, 1);
        assert_eq!(wc.len(), 1, "{wc:?}");
        wc[0]
    }

    /// The same, and it must succeed.
    pub fn ok(&mut self, e: &End, w: Wr) -> Wc {
        let wc = self.run_one(e, w);
        let cause = self.lock(e).qp_cause(e.qp).unwrap();
        assert_eq!(wc.status, wc_status::SUCCESS, "{wc:?} {cause}");
        wc
    }

    /// Over a wire without faults nothing was damaged, refused, or sent twice. Takes all
    /// asynchronous events of the ends' engines: of each end this one, or none, and of others none.
    pub fn only_events(&self, ends: &[(&End, Option<u32>)]) {
        let mut told = Vec::new();
        for (e, _) in ends {
            while let Some(x) = self.lock(e).take_async_event() {
                told.push((e.host, x.handle, x.event));
            }
        }
        let mut wanted: Vec<_> =
            ends.iter().filter_map(|(e, x)| Some((e.host, e.qp, (*x)?))).collect();
        told.sort();
        wanted.sort();
        assert_eq!(told, wanted);
    }

    pub fn assert_faultless(&self) {
        for h in &self.hosts {
            let c = h.lock().counters();
            let bad = [
                c.rcvd_icrc_err,
                c.rcvd_malformed,
                c.rcvd_no_qp,
                c.rcvd_refused,
                c.retry_timeouts,
                c.retransmitted_pkts,
                c.out_of_seq_request,
                c.duplicate_request,
            ];
            assert_eq!(bad, [0; 8], "{c:?}");
        }
    }

    pub fn state(&self, e: &End) -> u32 {
        self.lock(e).qp_query(e.qp).unwrap().0.qp_state
    }
}

/// The index of an object in its table, by its handle.
pub fn index(handle: Handle) -> usize {
    handle as usize & 0xff_ffff
}

/// The flow from one host to another.
pub fn flow(net: &Net, from: usize, to: usize) -> IcrcFlow {
    let (src, dst) = (net.hosts[from].addr, net.hosts[to].addr);
    IcrcFlow::from_gids(&src.gid, &dst.gid, src.port, dst.port)
}

/// A packet as the peer's host would sign it.
pub fn sign(net: &Net, from: usize, to: usize, packet: &mut [u8]) {
    flow(net, from, to).append_icrc(0, packet);
}

/// The error of a call that must fail.
pub fn err<T>(r: Result<T>) -> Error {
    match r {
        Ok(_) => panic!("succeeded"),
        Err(e) => e,
    }
}

/// Fields that say when something happened.
const TIMES: [&str; 3] = ["silent_since: ", "probe_wait: ", "armed_at: "];
/// Fields that each world has of its own: addresses, keys and what the memory held.
const MEMORY: [&str; 4] = ["addr: ", "va: ", "rkey: ", "value: "];
/// Positions in the send ring: a request without a slot moves none. They are shown one to another.
const POSITIONS: [&str; 3] = ["released: ", "acked: ", "next: "];

/// A struct that was formatted with `{:?}` without fields of these names.
fn without(names: &[&str], text: &str) -> String {
    text.split(", ")
        .filter(|field| !names.iter().any(|name| field.contains(name)))
        .collect::<Vec<_>>()
        .join(", ")
}

/// All that two ways of the same requests could leave behind differently at an end, as text; the
/// times where both `timed` them.
pub fn end_state(net: &Net, i: usize, e: &End, timed: bool) -> String {
    let mut out = String::new();
    let g = net.lock(e);
    let t = &g.transport;
    let qi = index(e.qp);
    let q = &t.qps[qi];
    let conn = without(&POSITIONS, &without(&MEMORY, &format!("{:?}", q.conn)));
    let oldest = q.conn.req.released;
    let positions = [q.conn.req.acked, q.conn.req.next].map(|at| at.wrapping_sub(oldest));
    out += &format!(
        "{i}: state {} blocks {:x} events {:x} {positions:?} {}\n",
        q.state,
        q.holds(),
        q.events,
        if timed { conn } else { without(&TIMES, &conn) }
    );
    for k in 0..q.wqes.len() as u32 {
        out += &format!("  wqe {:?}\n", q.wqes[q.wqe_at(oldest.wrapping_add(k))]);
    }
    out += &format!("  cause {} counters {:?}\n", q.cause.code, q.counters);
    if let Some(peer) = t.peers.get(q.conn.peer as usize) {
        out += &format!("  windows {:?} {:?}\n", peer.tx, peer.rx);
    }
    if let Some(association) = q.dci.first() {
        let association = format!("{association:?}");
        let shown = if timed { association } else { without(&["used_at"], &association) };
        out += &format!("  association {shown}\n");
    }
    // Those of a DCT have the connections in its place.
    for q in (0..t.qps.len()).map(|i| &t.qps[i]).filter(|q| q.kind == QpKind::DcContext) {
        if q.state == qp_state::RESET {
            continue;
        }
        let conn = without(&MEMORY, &format!("{:?}", q.conn));
        out += &format!("  context {} {conn} {:?}\n", q.state, q.counters);
    }
    let bits = [
        &t.common.ready,
        &t.common.cq_wait,
        &t.common.full_cqs,
        &t.common.win_wait,
        &t.common.event_qps,
    ]
    .map(|b| b.next_from(0));
    out += &format!("  bits {bits:?} {:?}\n", t.common.acks);
    for cq in [e.scq, e.rcq] {
        let c = &t.common.cqs[index(cq)];
        out +=
            &format!("  cq {:?} {}\n", (c.reserved, c.armed), g.shared().cqs[index(cq)].ring.len());
    }
    if e.srq != 0 {
        let (at, srq) = (index(e.srq), &t.common.srqs[index(e.srq)]);
        let left = g.shared().srqs[at].rq.len();
        out += &format!("  srq {left} limit {} events {}\n", srq.limit, srq.events);
    }
    let shared = &g.shared().qps[qi];
    out += &format!("  queues {} {}\n", shared.sq.len(), shared.rq.len());
    out += &format!("  device {:?} {}\n", g.counters(), t.common.cause.code);
    out
}
