//! A host of the world: one engine with its completion queues, its slow memory and its shared
//! receive queue. It is a device, or one of a device's engines.

use std::cell::Cell;
use std::rc::{Rc, Weak};

use gdrcore_core::config::Config;
use gdrcore_core::device::{Leaks, MrAttr, MrReg, SrqAttr};
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::mem::Memory as _;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::kind::QpKind;
use gdrcore_core::verbs::objects::Qp;
use gdrcore_core::verbs::types::{access, qp_type, AhAttr, Handle, QpCap, QpInit, SendWr, Sge};
use gdrcore_core::verbs::NONE;
use gdrcore_core::Error;
use gdrcore_testkit::engine::{address, OwnedEngine};
use gdrcore_testkit::requests::{queue_pair, recv_wr, region};
use gdrcore_testkit::rng::Rng;
use gdrcore_testkit::weak::WeakMemory;

use crate::buf::Buf;
use crate::scenario::{feature, Scenario};
use crate::slow::Slow;
use crate::trap::armed;

/// Local write, and all remote access rights.
pub const ALL: u32 = access::LOCAL_WRITE
    | access::REMOTE_WRITE
    | access::REMOTE_READ
    | access::REMOTE_ATOMIC
    | access::FLUSH_GLOBAL;

/// QPNs of an engine: few, so that they are reused.
const QPNS: u32 = 128;
/// QPNs of an engine with DC targets, whose contexts have half of them.
const QPNS_OF_TARGETS: u32 = 512;
/// QPNs of an engine whose clock jumps. Its time-waits may end before the packets that they wait
/// for, so there are enough that none is reused.
const QPNS_OF_JUMPERS: u32 = 4096;

/// A registered buffer.
pub struct Area {
    /// Its memory.
    pub buf: Buf,
    /// The MR over all of it.
    pub mr: MrAttr,
    /// Its handle, for deregistration.
    pub handle: Handle,
}

/// Receive requests that several QPs share.
pub struct SharedRecv {
    /// The SRQ.
    pub srq: Handle,
    /// XRC: its domain, the index of its CQ, and its number.
    pub xrc: Option<(Handle, usize, u32)>,
    /// The memory of its slots.
    pub area: Area,
    /// Bytes of a slot.
    pub stride: usize,
    /// Slots that are not posted.
    pub free: Vec<usize>,
    /// Posted: request id, slot.
    pub posted: Vec<(u64, usize)>,
    /// Whether a DC initiator has ended in the middle of a message: the request that the message
    /// had taken serves another one, beside bytes of the first.
    pub torn: Cell<bool>,
}

/// A host.
pub struct Host {
    /// The engine. Declared before its providers, so dropped first: nobody else holds it.
    pub engine: Rc<OwnedEngine>,
    /// The engines of its device, of which the first makes the device's objects.
    device: Vec<Weak<OwnedEngine>>,
    /// Its address.
    pub addr: PeerAddr,
    /// Its slow memory, provider 1.
    pub slow: Box<Slow>,
    /// In place of its host memory.
    pub weak: Option<Box<WeakMemory>>,
    /// Its protection domain.
    pub pd: Handle,
    /// Its CQs.
    pub cqs: Vec<Handle>,
    /// Its SRQ.
    pub shared: Option<SharedRecv>,
    /// Whether a packet has come since its timers last ran.
    pub heard: bool,
    /// Nanoseconds by which its clock is ahead of the world's.
    pub skew: u64,
    /// When it last jumped.
    pub jumped_at: u64,
    /// Which CQs are armed and have had no event.
    pub armed: Vec<bool>,
    /// Bytes of the heap that were free before anything was created.
    pub free_at_first: usize,
    /// What was there then: the contexts of DC targets.
    pub there_at_first: Leaks,
    /// Contexts of its DC targets; 0: it has no target.
    pub contexts: u32,
    /// The QPNs of its engine.
    qpns: core::ops::Range<u32>,
}

impl Host {
    /// Host number `n`; its engine is the `life`th of this number. Each one has other QPNs.
    fn new(rng: &mut Rng, n: usize, scenario: &Scenario, life: u64) -> Host {
        let addr = address(scenario.v6, scenario.device(n) as u8 + 1);
        let dc = scenario.has(feature::DC);
        let contexts = match dc && !is_of_xrc(n, scenario) {
            true => rng.pick(&[1, 1, 2, 2, 3, 4, 16]),
            false => 0,
        };
        let qpn_count = match () {
            () if scenario.has(feature::JUMP) => QPNS_OF_JUMPERS,
            () if dc => QPNS_OF_TARGETS,
            () => QPNS,
        };
        let config = Config {
            max_pd: 2,
            max_mr: 256,
            max_cq: 8,
            max_qp: if dc { 96 } else { 32 },
            max_dc_context: contexts.max(1),
            max_srq: 2,
            max_ah: 32,
            max_peer: 8,
            ring_bytes: 1 << 20,
            qpn_base: block(rng, n, life, qpn_count),
            qpn_count,
            seed: rng.next(),
            ..Config::default()
        };
        let qpns = config.qpn_base..config.qpn_base + config.qpn_count;
        let engine = OwnedEngine::in_used_memory(&config, addr);
        let busy = if rng.coin() { 0 } else { 20_000 };
        let delay =
            if scenario.has(feature::SLOW) { rng.pick(&[1, 5_000, 100_000, 1_000_000]) } else { 0 };
        let slow = Box::new(Slow::new(rng.next(), delay, busy));
        let provider: *const Slow = &*slow;
        let weak = scenario.has(feature::WEAK).then(|| Box::new(WeakMemory::new(rng.next())));
        let host_memory = weak.as_deref().map(|weak| weak as *const WeakMemory);
        if contexts > 0 {
            make_contexts(&mut engine.lock());
        }
        let (pd, free_at_first, there_at_first) = {
            let mut g = engine.lock();
            let (free, there) = (g.free_bytes(), g.leaks());
            // SAFETY: the box lives as long as the host, and the engine, declared first, is dropped
            // first.
            g.register_memory(1, unsafe { &*provider }).expect("a free number");
            if let Some(memory) = host_memory {
                // SAFETY: as above.
                g.set_host_memory(unsafe { &*memory });
            }
            g.divide_writes(scenario.has(feature::DIVIDE));
            (g.pd_alloc().expect("room"), free, there)
        };
        let engine = Rc::new(engine);
        let mut host = Host {
            device: vec![Rc::downgrade(&engine)],
            engine,
            addr,
            slow,
            weak,
            pd,
            cqs: Vec::new(),
            shared: None,
            heard: false,
            skew: 0,
            jumped_at: 0,
            armed: Vec::new(),
            free_at_first,
            there_at_first,
            contexts,
            qpns,
        };
        for _ in 0..rng.range(1, 3) {
            let dense = scenario.has(feature::DENSE);
            let cqe = if dense { 256 } else { rng.pick(&[1, 2, 4, 16, 256]) };
            let cq = host.lock().cq_create(cqe).expect("room").0;
            host.cqs.push(cq);
            host.armed.push(false);
        }
        host
    }

    /// Hosts of these numbers, which are engines of one device.
    pub fn of_device(
        rng: &mut Rng,
        engines: core::ops::Range<usize>,
        scenario: &Scenario,
        life: u64,
    ) -> Vec<Host> {
        let mut hosts: Vec<_> =
            engines.clone().map(|n| Host::new(rng, n, scenario, life)).collect();
        let device: Vec<_> = hosts.iter().map(|h| Rc::downgrade(&h.engine)).collect();
        let pd = hosts[0].pd;
        for (k, host) in hosts.iter_mut().enumerate() {
            let mut g = host.engine.lock();
            g.set_address_shared(device.len() > 1);
            if k > 0 {
                g.pd_dealloc(host.pd).expect("unused");
                g.pd_adopt(pd).expect("room");
            }
            drop(g);
            (host.pd, host.device) = (pd, device.clone());
        }
        if scenario.has(feature::SRQ) || scenario.has(feature::DC) {
            for (n, host) in engines.zip(&mut hosts) {
                host.shared = Some(host.share(rng, scenario, is_of_xrc(n, scenario)));
            }
        }
        hosts
    }

    /// The engines of its device, the first one first.
    fn engines(&self) -> impl Iterator<Item = Rc<OwnedEngine>> + '_ {
        self.device.iter().filter_map(Weak::upgrade)
    }

    /// Makes an object of the device: in its first engine, then in the others.
    fn in_all<T>(
        &self,
        make: impl FnOnce(&mut EngineGuard<'_>) -> T,
        adopt: impl Fn(&mut EngineGuard<'_>, &T) -> Result<(), Error>,
    ) -> T {
        let mut engines = self.engines();
        let first = engines.next().expect("the device lives");
        let made = make(&mut first.lock());
        for engine in engines {
            adopt(&mut engine.lock(), &made).expect("room");
        }
        made
    }

    /// Ends an object of the device in all its engines.
    fn end_in_all(
        &self,
        end: impl Fn(&mut EngineGuard<'_>) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.engines().try_for_each(|engine| end(&mut engine.lock()))
    }

    /// Deregisters a region of the device; [`Error::Busy`]: an engine has a window bound to it.
    pub fn dereg(&self, mr: Handle) -> Result<(), Error> {
        self.end_in_all(|g| g.mr_may_end(mr))?;
        self.end_in_all(|g| g.mr_dereg(mr))
    }

    /// A window of type 2 of the device: handle and key.
    pub fn window(&self) -> (Handle, u32) {
        self.in_all(
            |g| g.mw_alloc(self.pd, 2).expect("room for a window"),
            |g, (mw, key)| g.mw_adopt(*mw, *key, self.pd, 2),
        )
    }

    /// Ends a window.
    pub fn end_window(&self, mw: Handle) -> Result<(), String> {
        self.end_in_all(|g| g.mw_dealloc(mw)).map_err(|e| format!("mw_dealloc: {e:?}"))
    }

    /// An address handle of the device.
    pub fn address_handle(&self, attr: &AhAttr) -> Handle {
        self.in_all(
            |g| g.ah_create(self.pd, attr).expect("room for an AH"),
            |g, ah| g.ah_adopt(*ah, self.pd, attr),
        )
    }

    /// Ends an address handle.
    pub fn end_address_handle(&self, ah: Handle) -> Result<(), String> {
        self.end_in_all(|g| g.ah_destroy(ah)).map_err(|e| format!("ah_destroy: {e:?}"))
    }

    /// Whether a packet to a QPN at its address is for its engine.
    pub fn has_qpn(&self, qpn: u32) -> bool {
        self.qpns.contains(&qpn)
    }

    /// Makes its SRQ: of XRC, or for queue pairs of all other types.
    fn share(&self, rng: &mut Rng, scenario: &Scenario, of_xrc: bool) -> SharedRecv {
        let slots = rng.range(2, 24) as usize;
        let stride = 20_000 + 128;
        let attr = SrqAttr { max_wr: slots as u32, max_sge: 4, srq_limit: 0 };
        let (srq, xrc) = if !of_xrc {
            (self.lock().srq_create(0, self.pd, &attr).expect("room").0, None)
        } else {
            let cq = rng.below(self.cqs.len() as u64) as usize;
            let mut g = self.lock();
            let xrcd = g.xrcd_alloc().expect("room");
            let of = [self.pd, xrcd, self.cqs[cq]];
            let srq = g.srq_create_xrc(0, of, &attr).expect("room").0;
            (srq, Some((xrcd, cq, g.srq_number(srq).expect("an SRQ"))))
        };
        let area = self.area(slots * stride, scenario.has(feature::SLOW) && rng.coin());
        SharedRecv {
            srq,
            xrc,
            area,
            stride,
            free: (0..slots).collect(),
            posted: Vec::new(),
            torn: Cell::new(false),
        }
    }

    /// Receive requests of SRQs that queue pairs hold in the middle of a message, or for their next
    /// one; `contexts`: of DC targets alone.
    pub fn held(g: &EngineGuard<'_>, contexts: bool) -> usize {
        let is_one = |qp: &Qp| match contexts {
            true => qp.kind == QpKind::DcContext,
            false => qp.live && qp.srq != NONE,
        };
        // Some wait for slow memory, complete.
        let holds = |qp: &Qp| {
            let resp = &qp.conn.resp;
            usize::from(resp.recv.taken) + resp.landings().filter(|f| f.wc.is_some()).count()
        };
        let qps = (0..g.transport.qps.len()).map(|i| &g.transport.qps[i]);
        qps.filter(|qp| is_one(qp)).map(holds).sum()
    }

    /// Sets the time of its memory.
    pub fn set_memory_time(&self, now: u64) {
        self.slow.set_now(now);
        if let Some(weak) = &self.weak {
            weak.set_now(now);
        }
    }

    /// Takes packets of one sender.
    pub fn take(&self, now: u64, src: &PeerAddr, seg: usize, bytes: &[u8]) {
        self.set_memory_time(now);
        let mut g = self.engine.try_lock().expect("one thread");
        let Some(weak) = &self.weak else {
            armed(|| g.handle_packets(now, src, seg, bytes, false));
            return;
        };
        for packet in bytes.chunks(seg) {
            armed(|| {
                weak.see(packet);
                g.handle_packets(now, src, packet.len(), packet, false)
            });
        }
    }

    /// All that its memory has accepted is placed.
    pub fn flush_memory(&self) {
        self.slow.flush();
        if let Some(weak) = &self.weak {
            weak.finish();
        }
    }

    /// Its clock at a time of the world.
    pub fn time(&self, now: u64) -> u64 {
        now + self.skew
    }

    /// The engine's lock.
    pub fn lock(&self) -> EngineGuard<'_> {
        self.engine.lock()
    }

    /// Registers fresh memory.
    pub fn area(&self, len: usize, slow: bool) -> Area {
        let buf = Buf::new(len);
        if slow {
            self.slow.prepare();
        }
        let reg = MrReg {
            provider: slow.into(),
            ..region(self.pd, buf.addr(), len as u64, ALL | access::MW_BIND)
        };
        let (handle, mr) = self.in_all(
            |g| g.mr_reg(&reg).expect("room"),
            |g, (mr, attr)| g.mr_adopt(*mr, attr.rkey, &reg),
        );
        Area { buf, mr, handle }
    }

    /// Posts one send request.
    pub fn post_send(&self, qp: Handle, wr: &mut SendWr, sges: &[Sge]) -> Result<(), String> {
        wr.sg_list = sges.as_ptr();
        wr.num_sge = sges.len() as i32;
        let mut bad = std::ptr::null();
        // SAFETY: the request and its list live through the call.
        let posted = armed(|| unsafe { self.engine.post_send(qp, wr, &mut bad) });
        if wr.wr_id % 2 == 0 {
            // Half of the requests try the single-step path first, as a device does with all.
            armed(|| {
                let (mut g, qi) = (self.lock(), (qp & 0xff_ffff) as usize);
                g.try_local::<false>(qi, wr.opcode) || g.try_local::<true>(qi, wr.opcode)
            });
        }
        posted.map(|_| ()).map_err(|e| format!("post_send: {e:?}"))
    }

    /// Posts one receive request, to the QP or to the host's SRQ.
    pub fn post_recv(&self, qp: Option<Handle>, wr_id: u64, sges: &[Sge]) -> Result<(), String> {
        let wr = recv_wr(wr_id, sges);
        let mut bad = std::ptr::null();
        // SAFETY: the request and its list live through the call.
        let posted = armed(|| unsafe {
            match (qp, &self.shared) {
                (None, Some(shared)) => self.engine.post_srq_recv(shared.srq, &wr, &mut bad),
                (qp, _) => self.engine.post_recv(qp.unwrap_or(0), &wr, &mut bad),
            }
        });
        posted.map_err(|e| format!("post_recv: {e:?}"))
    }

    /// Posts receives to the SRQ, sometimes.
    pub fn refill(&mut self, rng: &mut Rng, next_id: &mut u64) -> Result<bool, String> {
        let Some(mut shared) = self.shared.take() else { return Ok(false) };
        let mut n = 0;
        if rng.below(3) == 0 {
            let most = rng.range(1, 8) as usize;
            while n < most {
                let Some(slot) = shared.free.pop() else { break };
                let sges = split(rng, &shared.area, slot * shared.stride, shared.stride - 128, 4);
                *next_id += 1;
                let id = *next_id;
                shared.posted.push((id, slot));
                self.shared = Some(shared);
                self.post_recv(None, id, &sges)?;
                shared = self.shared.take().ok_or("no SRQ")?;
                n += 1;
            }
        }
        self.shared = Some(shared);
        Ok(n > 0)
    }
}

/// A range of an area as a scatter/gather list of up to `max` entries, some of them empty.
pub fn split(rng: &mut Rng, area: &Area, at: usize, len: usize, max: usize) -> Vec<Sge> {
    let mut out = Vec::new();
    let (mut at, mut left) = (at, len);
    for _ in 1..rng.range(1, max as u64) {
        let n = rng.below(left as u64 + 1) as usize;
        out.push(Sge { addr: area.mr.iova + at as u64, length: n as u32, lkey: area.mr.lkey });
        at += n;
        left -= n;
    }
    if left > 0 || rng.coin() {
        out.push(Sge { addr: area.mr.iova + at as u64, length: left as u32, lkey: area.mr.lkey });
    }
    out
}

/// Whether a host's SRQ is of XRC: those of every second host are, also after a restart, unless
/// they are for DC alone.
fn is_of_xrc(n: usize, scenario: &Scenario) -> bool {
    n % 2 == 1 && scenario.has(feature::SRQ)
}

/// Makes and ends a DC target: the contexts that come with the first one stay.
fn make_contexts(g: &mut EngineGuard<'_>) {
    let pd = g.pd_alloc().expect("room");
    let cq = g.cq_create(1).expect("room").0;
    let attr = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
    let srq = g.srq_create(0, pd, &attr).expect("room").0;
    let init = queue_pair(qp_type::DCT, pd, [cq; 2], QpCap::default());
    let qp = g.qp_create(0, &QpInit { srq, ..init }).expect("room").0;
    g.qp_destroy(0, qp).expect("unused");
    g.srq_destroy(0, srq).expect("unused");
    g.cq_destroy(cq).expect("unused");
    g.pd_dealloc(pd).expect("unused");
}

/// A block of QPNs, other than that of the former engine of this address.
fn block(rng: &mut Rng, n: usize, life: u64, count: u32) -> u32 {
    let blocks = (1 << 24) / count - 2;
    let first = rng.below(u64::from(blocks) / 64) * 64;
    (1 + (first + (n as u64 * 8 + life) % 64) as u32 % blocks) * count
}
