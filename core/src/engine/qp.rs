//! Queue pairs: create, modify, query, destroy.

use core::sync::atomic::Ordering;

use super::control::MAX_DEPTH;
use super::{qpn, EngineGuard, Inner};
use crate::arena::{Heap, RawBytes, RawSlice};
use crate::bucket::TokenBucket;
use crate::config::{config_flags, lowered, Config};
use crate::device::async_event;
use crate::error::{Error, Result};
use crate::pool::{stale, tag};
use crate::reason::refuse;
use crate::roce::endless::NEVER_NS;
use crate::roce::peer::Path;
use crate::verbs::association::Association;
use crate::verbs::cause::CauseCode;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::req::{tx_block, WqeState};
use crate::verbs::resp::Resource;
use crate::verbs::shared::{qp_path, slotless, QpShared, Shared};
use crate::verbs::transition;
use crate::verbs::types::{qp_attr_mask as mask, qp_state, Handle, QpAttr, QpCap, QpInit};
use crate::verbs::wqe::{recv_stride, send_stride, RecvWqe, SendWqe};
use crate::verbs::NONE;
use crate::wire::{ack_timeout_ns, mtu_bytes, Psn};

/// Bytes that a token bucket may send at once.
const RATE_BURST: u32 = 64 << 10;

impl Inner {
    /// The index of a QP that the program made. The contexts of DC targets have handles too, which
    /// no program was given.
    fn qp_of_program(&self, s: &Shared, qp: Handle) -> Result<usize> {
        let qi = s.qp_pool.check(qp)?;
        match self.transport.qps[qi].kind {
            QpKind::DcContext => Err(stale(tag::QP, qp)),
            _ => Ok(qi),
        }
    }

    /// Puts the queues and PSNs of a QP back to where RESET has them.
    fn reset_qp(&mut self, s: &Shared, qi: usize, now: u64) {
        let t = &mut self.transport;
        let mut c = t.conn(s, qi);
        c.stop();
        c.wait_for_nothing();
        // CQEs were reserved for the receives, which now end without completions.
        let qp = &mut t.qps[qi];
        let resp = &qp.conn.resp;
        let waiting = resp.landings().filter(|f| f.wc.is_some()).map(|f| f.cq);
        for cq in waiting.chain(resp.recv.reserved.then_some(qp.rcq)) {
            t.common.unreserve(cq);
        }
        let mut sq = s.sq(qi, &t.common.key);
        let n = sq.len();
        sq.release(n);
        let at = s.sq(qi, &t.common.key).head();
        if qp.srq == NONE {
            let mut rq = s.rq(qi, &t.common.key);
            let n = rq.len();
            rq.release(n);
        }
        qp.wqes.fill(WqeState::default());
        if qp.conn.req.max_psn != Psn::default() {
            qp.former_psn = qp.conn.req.max_psn;
        }
        qp.longest_ns = qp.longest_ns.max(qpn::longest_silence_ns(qp));
        let peer = qp.conn.end(at, qp.counters.sent_pkts);
        // Limits belong to the attributes and the path, both of which end.
        qp.bucket = TokenBucket::default();
        qp.set_paced(false);
        let qpn = qp.qpn;
        qp.events = 0;
        t.common.event_qps.clear(qi);
        if peer != NONE {
            self.transport.peer_leave(peer);
        }
        let t = &mut self.transport;
        t.common.memory.regions.unbind_qp(qpn);
        match t.qps[qi].kind {
            QpKind::Dct => t.free_contexts_of(s, qi, now, false),
            QpKind::Dci => t.drop_replies_of(qi),
            _ => {}
        }
    }

    /// Moves a QP to RESET. Only the PSN after the last one sent remains of the connection.
    fn enter_reset(&mut self, s: &Shared, qi: usize, now: u64) {
        // rxe rxe_qp.c rxe_qp_reset: RESET discards queued requests without completions.
        self.reset_qp(s, qi, now);
        if self.transport.qps[qi].kind == QpKind::Dci {
            self.renew_association(qi);
        }
        let q = &mut self.transport.qps[qi];
        q.attr = QpAttr {
            cap: q.init.cap,
            port_num: 1,
            sq_psn: q.former_psn.get(),
            ..QpAttr::default()
        };
        self.transport.conn(s, qi).set_state(qp_state::RESET);
    }

    /// Moves a QP to ERR on the program's request. Raises no event, and keeps the cause of an
    /// earlier failure.
    pub(super) fn enter_error_on_request(&mut self, s: &Shared, qi: usize, now: u64) {
        let t = &mut self.transport;
        let from = t.qps[qi].state;
        if from == qp_state::RESET {
            t.conn(s, qi).set_state(qp_state::ERR);
        } else {
            if from != qp_state::ERR && !t.qps[qi].conn.req.is(tx_block::FAILED) {
                t.conn(s, qi).note(now, CauseCode::Flushed, 0, 0, 0);
            }
            t.conn(s, qi).enter_error(None);
        }
        if t.qps[qi].kind == QpKind::Dct {
            t.free_contexts_of(s, qi, now, true);
        }
    }

    /// Whether every request that was posted to a QP has its completion. Requests in an SRQ are not
    /// the QP's.
    fn is_flushed(&self, s: &Shared, qi: usize) -> bool {
        let t = &self.transport;
        let q = &t.qps[qi];
        let received = q.srq != NONE || s.rq(qi, &t.common.key).is_empty();
        s.sq(qi, &t.common.key).is_empty()
            && received
            && !q.conn.resp.recv.taken
            && q.conn.resp.landing_count() == 0
    }
}

/// Checks type and sizes of a new queue pair. Returns its kind.
fn check_init(init: &QpInit, config: crate::Config) -> Result<QpKind> {
    let cap = init.cap;
    let Some(kind) = QpKind::from_number(init.qp_type) else {
        return Err(refuse!(
            Invalid,
            "qp_type {}: RC (2), UC (3), UD (4), XRC_SEND (9), XRC_RECV (10), DCI (257) \
             or DCT (258)",
            init.qp_type
        ));
    };
    // Sizes of queues that the kind does not have are ignored (ibv_create_qp(3)).
    let (sends, receives) = (kind.has_requester(), kind.has_receives() && init.srq == 0);
    let depth = lowered(MAX_DEPTH, config.limits.max_qp_wr);
    let sizes = [
        ("max_send_wr", sends, cap.max_send_wr, depth),
        ("max_recv_wr", receives, cap.max_recv_wr, depth),
        ("max_send_sge", sends, cap.max_send_sge, config.max_sge),
        ("max_recv_sge", receives, cap.max_recv_sge, config.max_sge),
        ("max_inline_data", sends, cap.max_inline_data, config.max_inline),
    ]
    .map(|(name, counts, size, most)| (name, if counts { size } else { 0 }, most));
    match sizes.iter().find(|(_, size, most)| size > most) {
        None => Ok(kind),
        Some((name, size, most)) => Err(refuse!(Invalid, "{name} {size}: at most {most}")),
    }
}

/// The objects that a queue pair uses, by index; [`NONE`] where its kind has none.
#[derive(Clone, Copy)]
pub(super) struct Uses {
    pd: u32,
    recv_pd: u32,
    scq: u32,
    rcq: u32,
    srq: u32,
    xrcd: u32,
}

impl Uses {
    pub(super) const NOTHING: Uses =
        Uses { pd: NONE, recv_pd: NONE, scq: NONE, rcq: NONE, srq: NONE, xrcd: NONE };

    fn install(&self, qp: &mut Qp) {
        (qp.pd, qp.recv_pd) = (self.pd, self.recv_pd);
        (qp.scq, qp.rcq, qp.srq, qp.xrcd) = (self.scq, self.rcq, self.srq, self.xrcd);
    }
}

/// The sizes that a queue pair gets, and the stride of its send ring. `own_rq`: the queue pair has
/// a receive queue of its own. `named`: each request names its target, at the end of its slot.
fn sizes(cap: &QpCap, own_rq: bool, named: bool, config: crate::Config) -> (QpCap, u32) {
    let mut given = QpCap {
        max_send_wr: cap.max_send_wr.max(1).next_power_of_two(),
        max_recv_wr: if own_rq { cap.max_recv_wr.max(1).next_power_of_two() } else { 0 },
        max_send_sge: cap.max_send_sge.max(1),
        max_recv_sge: if own_rq { cap.max_recv_sge.max(1) } else { 0 },
        max_inline_data: 0,
    };
    let stride = send_stride(given.max_send_sge, cap.max_inline_data);
    given.max_inline_data = (stride - 64).min(config.max_inline.max(cap.max_inline_data));
    (given, if named { stride + 64 } else { stride })
}

impl Inner {
    /// Strict mode: whether the CQs of a new queue pair hold all requests of all queues that
    /// complete into them.
    fn check_cq_room(&self, s: &Shared, [scq, rcq]: [u32; 2], given: &QpCap) -> Result<()> {
        let room = |i: u32, extra: u32| {
            let (cq, ring) = (self.transport.common.cqs.get(i as usize), s.cqs.get(i as usize));
            let sum = cq.map_or(0, |cq| cq.depth_sum.saturating_add(extra));
            ring.is_none_or(|cq| sum <= cq.ring.capacity())
        };
        let both = if scq == rcq { given.max_recv_wr } else { 0 };
        if !room(scq, given.max_send_wr + both) || !room(rcq, given.max_recv_wr) {
            return Err(refuse!(
                Invalid,
                "send_cq or recv_cq: with GDRC_CONFIG_STRICT_CQ it must hold \
                 max_send_wr and max_recv_wr ({} and {}) of all its QPs",
                given.max_send_wr,
                given.max_recv_wr
            ));
        }
        Ok(())
    }

    /// Looks up the objects that a new queue pair is to use.
    fn uses(&self, s: &Shared, kind: QpKind, init: &QpInit) -> Result<Uses> {
        let common = &self.transport.common;
        let pd = || common.pd_pool.check(init.pd).map(|i| i as u32);
        let cq = |h: Handle| s.cq_pool.check(h).map(|i| i as u32);
        match kind {
            QpKind::Rc | QpKind::Uc | QpKind::Ud => {
                let (pd, scq, rcq) = (pd()?, cq(init.send_cq)?, cq(init.recv_cq)?);
                let srq = if init.srq == 0 { NONE } else { s.srq_pool.check(init.srq)? as u32 };
                let Some(shared) = common.srqs.get(srq as usize) else {
                    return Ok(Uses { pd, recv_pd: pd, scq, rcq, ..Uses::NOTHING });
                };
                if shared.xrc.is_some() {
                    return Err(refuse!(Invalid, "srq: of an XRC domain, which serves XRC_RECV"));
                }
                // The PD of the SRQ may be another than the queue pair's.
                Ok(Uses { pd, recv_pd: shared.pd, scq, rcq, srq, ..Uses::NOTHING })
            }
            QpKind::XrcIni | QpKind::Dci => {
                Ok(Uses { pd: pd()?, scq: cq(init.send_cq)?, ..Uses::NOTHING })
            }
            QpKind::Dct if init.srq == 0 => {
                Err(refuse!(Invalid, "srq: a DCT receives into an SRQ, and there is none"))
            }
            QpKind::Dct => {
                let uses = self.uses(s, QpKind::Rc, &QpInit { send_cq: init.recv_cq, ..*init })?;
                Ok(Uses { scq: NONE, ..uses })
            }
            QpKind::DcContext => Ok(Uses::NOTHING),
            QpKind::XrcTgt => {
                let xrcd = common.xrcd_pool.check(init.xrcd)? as u32;
                Ok(Uses { xrcd, ..Uses::NOTHING })
            }
        }
    }

    /// Adds a queue pair to the users of its objects, or (`delta` −1) takes it away.
    fn count_user(&mut self, u: &Uses, cap: &QpCap, delta: i32) {
        let common = &mut self.transport.common;
        let add = |n: &mut u32, k: u32| {
            *n = if delta > 0 { n.saturating_add(k) } else { n.saturating_sub(k) };
        };
        for (cq, depth) in [(u.scq, cap.max_send_wr), (u.rcq, cap.max_recv_wr)] {
            if let Some(cq) = common.cqs.get_mut(cq as usize) {
                add(&mut cq.users, 1);
                add(&mut cq.depth_sum, depth);
            }
        }
        if let Some(cq) = common.cqs.get_mut(u.scq as usize) {
            add(&mut cq.senders, 1);
        }
        if let Some(pd) = common.pds.get_mut(u.pd as usize) {
            add(&mut pd.users, 1);
        }
        if let Some(srq) = common.srqs.get_mut(u.srq as usize) {
            add(&mut srq.users, 1);
        }
        if let Some(xrcd) = common.xrcds.get_mut(u.xrcd as usize) {
            add(&mut xrcd.users, 1);
        }
    }

    /// Makes a queue pair of a kind, in RESET. Returns its index, its handle and the sizes given.
    pub(super) fn make_qp(
        &mut self,
        s: &Shared,
        now: u64,
        kind: QpKind,
        init: &QpInit,
        u: &Uses,
    ) -> Result<(usize, Handle, QpCap)> {
        let inner = self;
        let config = inner.transport.common.config;
        // A target has no queues, so the requested sizes are ignored.
        let cap = if kind.has_requester() { init.cap } else { QpCap::default() };
        let own_rq = kind.has_receives() && u.srq == NONE;
        let (given, stride) = sizes(&cap, own_rq, kind == QpKind::Dci, config);
        if config.flags & config_flags::STRICT_CQ != 0 {
            inner.check_cq_room(s, [u.scq, u.rcq], &given)?;
        }
        let have = s.qp_pool.capacity();
        if s.qp_pool.live() == have {
            let t = &mut inner.transport;
            s.qps.grow_past(have, &mut inner.heap, |_| QpShared::default())?;
            t.qps.grow_past(have, &mut inner.heap, |_| Qp::default())?;
            t.common.wheel.grow_past(have, &mut inner.heap)?;
            s.qp_pool.grow(&mut inner.heap)?;
        }
        let depth = config.max_rd_atomic as usize;
        let sq_mem = inner.ring::<SendWqe>(given.max_send_wr, stride)?;
        let mut memory = QpMemory { sq: Some(sq_mem), ..QpMemory::default() };
        let made = (|| {
            if own_rq {
                let stride = recv_stride(given.max_recv_sge);
                memory.rq = Some(inner.ring::<RecvWqe>(given.max_recv_wr, stride)?);
            }
            memory.wqes = inner.heap.slice(given.max_send_wr as usize, WqeState::default())?;
            if kind == QpKind::Dci {
                memory.dci = inner.heap.slice(1, Association::default())?;
            }
            if kind.answers() {
                memory.resources = inner.heap.slice(depth, Resource::default())?;
                memory.jobs = inner.heap.slice(depth * 2, Resource::default())?;
            }
            let (qpn, early) = inner.qpns.alloc(now)?;
            match s.qp_pool.alloc() {
                Ok((h, qi)) => {
                    inner.transport.common.counters.qpn_reused_early += u64::from(early);
                    Ok((h, qi, qpn))
                }
                Err(e) => {
                    inner.qpns.free(qpn, now, 0);
                    Err(e)
                }
            }
        })();
        let (h, qi, qpn) = match made {
            Ok(x) => x,
            Err(e) => {
                memory.free(&mut inner.heap);
                return Err(e);
            }
        };
        let q = &s.qps[qi];
        let key = &inner.transport.common.key;
        s.install(|s| &s.qps[qi].sq, Some((sq_mem, given.max_send_wr, stride)), key);
        let rq = memory.rq.map(|mem| (mem, given.max_recv_wr, recv_stride(given.max_recv_sge)));
        s.install(|s| &s.qps[qi].rq, rq, key);
        q.kind.store(init.qp_type, Ordering::Relaxed);
        q.sig_all.store(init.sq_sig_all, Ordering::Relaxed);
        q.max_send_sge.store(given.max_send_sge, Ordering::Relaxed);
        q.max_recv_sge.store(given.max_recv_sge, Ordering::Relaxed);
        q.max_inline.store(given.max_inline_data, Ordering::Relaxed);
        q.path.store(qp_path::UNKNOWN, Ordering::Relaxed);
        q.slotless.store(slotless::NO, Ordering::Relaxed);
        q.next_frame.store(0, Ordering::Relaxed);
        let t = &mut inner.transport;
        let given = if kind.has_requester() { given } else { QpCap::default() };
        let mut qp = Qp::new(qpn, kind, QpInit { cap: given, ..*init });
        u.install(&mut qp);
        (qp.conn.mtu, qp.conn.timeout_ns) = (config.max_mtu, silence_ns(&config));
        memory.swap(&mut qp);
        t.qps[qi] = qp;
        t.conn(s, qi).set_state(qp_state::RESET);
        q.name.give(h);
        t.common.by_qpn[(qpn - t.common.qpn_base) as usize] = qi as u32 + 1;
        inner.count_user(u, &given, 1);
        if kind == QpKind::Dci {
            inner.renew_association(qi);
        }
        Ok((qi, h, given))
    }

    /// Gives a connected QP its peer, by the address in `attr`.
    fn set_peer(&mut self, s: &Shared, qi: usize, attr: &QpAttr, m: u32) -> Result<()> {
        let addr = self.address(&attr.ah)?;
        let q = &self.transport.qps[qi];
        if q.state == qp_state::SQD
            && self.transport.peers.get(q.conn.peer as usize).is_some_and(|p| p.addr != addr)
        {
            return Err(refuse!(Invalid, "dgid: the peer of a connected QP stays the same"));
        }
        if q.state == qp_state::SQD {
            // What is known of the peer stays the same, too.
            return Ok(());
        }
        let peer = self.peer_get(addr)?;
        let peer_is_soft = attr.peer_is_soft != 0
            || m & mask::DEST_QPN != 0
                && self.cm.peer_is_soft(self.transport.qps[qi].qpn, attr.dest_qp_num);
        let t = &mut self.transport;
        t.conn(s, qi).forget_inflight();
        let path = t.peers[peer as usize].path;
        t.qps[qi].conn.loopback = path == Path::Loopback;
        t.qps[qi].conn.own_port = t.common.check_ports && peer_is_soft;
        t.qps[qi].conn.siege = Default::default();
        let old = core::mem::replace(&mut t.qps[qi].conn.peer, peer);
        t.note_path(s, qi);
        t.conn(s, qi).begin_acks();
        if old != NONE {
            self.transport.peer_leave(old);
        }
        Ok(())
    }

    /// Moves a QP to SQD: it begins no new request. `tell`: SQ_DRAINED is raised once the begun
    /// requests have ended.
    fn begin_drain(&mut self, s: &Shared, qi: usize, tell: bool) {
        let t = &mut self.transport;
        t.conn(s, qi).set_state(qp_state::SQD);
        let q = &mut t.qps[qi];
        q.conn.req.set(tx_block::DRAINING, true);
        q.attr.sq_draining = 1;
        q.conn.req.set(tx_block::DRAIN_EVENT, true);
        t.conn(s, qi).check_drained();
        if !tell {
            t.qps[qi].events &= !(1 << async_event::SQ_DRAINED);
            t.qps[qi].conn.req.set(tx_block::DRAIN_EVENT, false);
            if t.qps[qi].conn.req.acked != t.qps[qi].conn.req.next {
                t.qps[qi].attr.sq_draining = 1;
            }
        }
    }
}

/// The ACK timeout of a queue pair that has none.
fn silence_ns(config: &Config) -> u64 {
    match config.deadline_ns {
        0 => NEVER_NS,
        ns => ns,
    }
}

/// Makes an ACK timeout longer, by [`config_flags::LONG_TIMEOUTS`].
fn lengthen(ns: u64) -> u64 {
    // By the standard a timeout is noticed after its time at the earliest, and after four times
    // that at the latest.
    const LONG_NS: u64 = 4096 << 17;
    ns.max(ns.saturating_mul(4).min(LONG_NS))
}

/// Takes over the attributes that a mask names.
fn take_attributes(q: &mut Qp, now: u64, attr: &QpAttr, m: u32, config: &Config) {
    macro_rules! take {
        ($($bit:ident => $field:ident),* $(,)?) => {
            $(if m & mask::$bit != 0 {
                q.attr.$field = attr.$field;
            })*
        };
    }
    take! {
        ACCESS_FLAGS => qp_access_flags, PKEY_INDEX => pkey_index, PORT => port_num, QKEY => qkey,
        AV => ah, PATH_MTU => path_mtu, TIMEOUT => timeout, RETRY_CNT => retry_cnt,
        RNR_RETRY => rnr_retry, RQ_PSN => rq_psn, SQ_PSN => sq_psn,
        MAX_QP_RD_ATOMIC => max_rd_atomic, MIN_RNR_TIMER => min_rnr_timer,
        MAX_DEST_RD_ATOMIC => max_dest_rd_atomic, DEST_QPN => dest_qp_num,
        RATE_LIMIT => rate_limit_bytes_per_s, EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
    }
    if m & mask::PATH_MTU != 0 {
        q.conn.mtu = mtu_bytes(attr.path_mtu).unwrap_or(256);
    }
    if m & mask::TIMEOUT != 0 {
        q.conn.timeout_ns = match ack_timeout_ns(attr.timeout) {
            Some(ns) if config.flags & config_flags::LONG_TIMEOUTS != 0 => lengthen(ns),
            other => other.unwrap_or(silence_ns(config)),
        };
    }
    if m & mask::RQ_PSN != 0 {
        q.conn.resp.epsn = Psn::new(attr.rq_psn);
        q.conn.resp.ack_psn = q.conn.resp.epsn.prev();
    }
    if m & mask::MAX_QP_RD_ATOMIC != 0 && q.kind == QpKind::Dci {
        q.association().max_rd_atomic = attr.max_rd_atomic;
    }
    if m & mask::SQ_PSN != 0 {
        q.conn.req.next_psn = Psn::new(attr.sq_psn);
        if q.kind == QpKind::Dci && q.former_psn != Psn::default() {
            // Its targets change and its PSNs go on, so a late answer of an earlier target is
            // behind them.
            q.conn.req.next_psn = q.former_psn;
        }
        q.conn.req.una_psn = q.conn.req.next_psn;
        q.conn.req.max_psn = q.conn.req.next_psn;
    }
    if m & mask::RETRY_CNT != 0 {
        q.conn.req.retry_left = attr.retry_cnt;
    }
    if m & mask::RNR_RETRY != 0 {
        q.conn.req.rnr_left = attr.rnr_retry;
    }
    if m & mask::RATE_LIMIT != 0 {
        q.bucket.set_rate(now, attr.rate_limit_bytes_per_s, RATE_BURST);
        q.set_paced(attr.rate_limit_bytes_per_s != 0 || q.conn.congestion.is_limiting());
    }
}

/// Control: queue pairs.
impl EngineGuard<'_> {
    /// Makes a queue pair in RESET. Returns its handle, its QPN and the sizes given.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]: PD, CQ or SRQ; [`Error::Invalid`]: type or sizes;
    /// [`Error::NoMemory`]: pool, heap, or every QPN in use or given back within the last 0.1 s.
    pub fn qp_create(&mut self, now: u64, init: &QpInit) -> Result<(Handle, u32, QpCap)> {
        let (inner, s) = self.split();
        let config = inner.transport.common.config;
        let kind = check_init(init, config)?;
        let u = inner.uses(s, kind, init)?;
        if kind == QpKind::Dct {
            inner.make_contexts(s, now)?;
        }
        let (qi, h, given) = inner.make_qp(s, now, kind, init, &u)?;
        Ok((h, inner.transport.qps[qi].qpn, given))
    }

    /// Changes attributes and state of a QP.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Invalid`]: the transition does not exist, an attribute is
    /// missing, not allowed or out of range; [`Error::NoMemory`]: no room for the peer. Nothing has
    /// changed then.
    pub fn qp_modify(&mut self, now: u64, qp: Handle, attr: &QpAttr, m: u32) -> Result<()> {
        let limits = self.limits();
        let (inner, s) = self.split();
        let qi = inner.qp_of_program(s, qp)?;
        let q = &inner.transport.qps[qi];
        let (from, kind) = (q.state, q.kind);
        let to = transition::modify(kind, from, attr, m, limits)?;
        if m & mask::AV != 0 && kind.has_fixed_peer() {
            inner.set_peer(s, qi, attr, m)?;
        }
        let t = &mut inner.transport;
        t.common.note_change();
        let q = &mut t.qps[qi];
        take_attributes(q, now, attr, m, &t.common.config);
        if m & mask::RQ_PSN != 0 {
            t.common.connections_begun = t.common.connections_begun.wrapping_add(1);
        }
        if to == from {
            return Ok(());
        }
        match to {
            qp_state::RESET => inner.enter_reset(s, qi, now),
            qp_state::ERR => inner.enter_error_on_request(s, qi, now),
            qp_state::SQD => {
                let tell = attr.en_sqd_async_notify != 0 && m & mask::EN_SQD_ASYNC_NOTIFY != 0;
                inner.begin_drain(s, qi, tell);
            }
            _ => {
                t.conn(s, qi).set_state(to);
                let q = &mut t.qps[qi];
                q.met |= to != qp_state::INIT && !q.conn.loopback;
                q.conn.req.set(tx_block::DRAINING, false);
                q.attr.sq_draining = 0;
                if from == qp_state::SQE {
                    q.conn.req.set_send_block(Default::default());
                    q.conn.req.set(tx_block::FAILED, false);
                    q.conn.req.set(tx_block::BROKEN, false);
                }
                if to == qp_state::RTS {
                    t.conn(s, qi).begin_keepalive(now);
                }
                t.common.ready.set(qi);
            }
        }
        Ok(())
    }

    /// Takes a QP back to RESET, whatever state it is in, so that it can be connected anew. Every
    /// posted request gets its completion first: those in flight and those that wait are flushed,
    /// as by a transition to ERR. The QP keeps its handle, QPN, queues and counters. `qp_query`
    /// then returns in `sq_psn` the PSN at which the old connection ended.
    ///
    /// The QP keeps its number, without the rest that the number of a destroyed QP has. Packets of
    /// the old connection may still be in flight, and only their PSNs distinguish them. So the next
    /// connection must begin a little ahead of where the last one ended. Old packets are then
    /// behind the PSNs that both ends expect: for 2^23 PSNs the responder takes them for duplicates
    /// and the requester drops them.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`]: a thread posts to it right now; [`Error::Again`]: a
    /// CQ has no room for all completions yet: the QP is in ERR, poll the CQ and call again.
    pub fn qp_reset(&mut self, now: u64, qp: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let qi = inner.qp_of_program(s, qp)?;
        // Otherwise a post that had seen the old state would vanish between the flush and RESET.
        let _posts = s.hold_posts(qi)?;
        match inner.transport.qps[qi].state {
            qp_state::RESET => return Ok(()),
            qp_state::ERR => inner.transport.conn(s, qi).flush(),
            _ => inner.enter_error_on_request(s, qi, now),
        }
        if !inner.is_flushed(s, qi) {
            return Err(Error::Again);
        }
        inner.enter_reset(s, qi, now);
        Ok(())
    }

    /// Attributes and creation parameters of a QP.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn qp_query(&self, qp: Handle) -> Result<(QpAttr, QpInit)> {
        let qi = self.qp_of_program(self.shared(), qp)?;
        let q = &self.transport.qps[qi];
        let mut attr = q.attr;
        attr.qp_state = q.state;
        attr.cur_qp_state = q.state;
        attr.cap = q.init.cap;
        // The present PSNs, so that a connection can be moved.
        if q.state >= qp_state::RTR {
            attr.rq_psn = q.conn.resp.epsn.get();
        }
        if q.state >= qp_state::RTS {
            attr.sq_psn = q.conn.req.next_psn.get();
        }
        if q.state == qp_state::SQD {
            attr.sq_draining = u8::from(q.conn.req.acked != q.conn.req.next);
        }
        Ok((attr, q.init))
    }

    /// The QPN of a QP.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn qp_number(&self, qp: Handle) -> Result<u32> {
        let qi = self.qp_of_program(self.shared(), qp)?;
        Ok(self.transport.qps[qi].qpn)
    }

    /// Whether a QP has a READ to answer; false of a handle that is stale.
    pub fn has_answer(&self, qp: Handle) -> bool {
        let has_job = |qi: usize| self.transport.qps[qi].conn.resp.job_len() > 0;
        self.shared().qp_pool.check(qp).is_ok_and(has_job)
    }

    /// Whether a QP owes its peer an ACK, a NAK or the answer of a READ; false of a handle that is
    /// stale. `None`: whether any owes an ACK or a NAK. A queue pair in error sends no ACK.
    pub fn owes_answer(&self, qp: Option<Handle>) -> bool {
        let qps = &self.transport.qps;
        let owes = |qi: usize| {
            let (q, resp) = (&qps[qi], &qps[qi].conn.resp);
            q.live && (resp.owes_nak() || resp.ack_owed && q.state != qp_state::ERR)
        };
        match qp {
            Some(qp) => self.has_answer(qp) || self.shared().qp_pool.check(qp).is_ok_and(owes),
            None => (0..qps.len()).any(owes),
        }
    }

    /// Keeps a QP from being destroyed until [`EngineGuard::qp_unpin`] was called as often.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn qp_pin(&mut self, qp: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let pins = &mut inner.transport.qps[s.qp_pool.check(qp)?].pins;
        *pins = pins.saturating_add(1);
        Ok(())
    }

    /// Undoes one [`EngineGuard::qp_pin`].
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn qp_unpin(&mut self, qp: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let pins = &mut inner.transport.qps[s.qp_pool.check(qp)?].pins;
        *pins = pins.saturating_sub(1);
        Ok(())
    }

    /// Ends a QP. Its outstanding requests get no completions; those in CQs stay.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; [`Error::Busy`]: a thread posts to it right now, it is pinned, or in
    /// a multicast group.
    pub fn qp_destroy(&mut self, now: u64, qp: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let qi = inner.qp_of_program(s, qp)?;
        let pins = inner.transport.qps[qi].pins;
        if pins > 0 {
            return Err(refuse!(Busy, "qp: {pins} fast handles of it are in use"));
        }
        // Linux uverbs_std_types_qp.c uverbs_free_qp: A queue pair that is in a multicast group is
        // not destroyed.
        let groups = inner.transport.common.members.memberships(qi);
        if groups > 0 {
            return Err(refuse!(
                Busy,
                "qp: a member of {groups} multicast groups; detach it first"
            ));
        }
        inner.end_qp(s, now, qi)
    }
}

impl Inner {
    /// Ends the queue pair at an index.
    ///
    /// # Errors
    /// [`Error::Busy`]: a thread posts to it right now; nothing has changed.
    pub(super) fn end_qp(&mut self, s: &Shared, now: u64, qi: usize) -> Result<()> {
        s.close_qp(qi, || self.reset_qp(s, qi, now))?;
        s.qps[qi].name.take();
        s.qp_pool.free(qi);
        let t = &mut self.transport;
        t.conn(s, qi).set_state(qp_state::RESET);
        let mut q = core::mem::take(&mut t.qps[qi]);
        t.common.counters.add(&q.counters);
        t.common.by_qpn[(q.qpn - t.common.qpn_base) as usize] = 0;
        // The objects to which a target is bound do not count it as a user.
        let bound = q.kind == QpKind::XrcTgt;
        let own = |i: u32| if bound { NONE } else { i };
        let (scq, xrcd) = (q.scq, q.xrcd);
        let (rcq, srq) = (own(q.rcq), own(q.srq));
        let u = Uses { pd: own(q.pd), recv_pd: NONE, scq, rcq, srq, xrcd };
        self.count_user(&u, &q.init.cap, -1);
        let mut memory = QpMemory::default();
        memory.swap(&mut q);
        memory.free(&mut self.heap);
        self.qpns.free(q.qpn, now, qpn::rest_ns(&q));
        Ok(())
    }
}

/// The memory of a queue pair. It is given back when the queue pair ends, or cannot be made.
#[derive(Default)]
struct QpMemory {
    sq: Option<RawBytes>,
    rq: Option<RawBytes>,
    wqes: RawSlice<WqeState>,
    resources: RawSlice<Resource>,
    jobs: RawSlice<Resource>,
    dci: RawSlice<Association>,
}

impl QpMemory {
    /// Exchanges this memory with that of a queue pair.
    fn swap(&mut self, q: &mut Qp) {
        use core::mem::swap;
        swap(&mut self.sq, &mut q.sq_mem);
        swap(&mut self.rq, &mut q.rq_mem);
        swap(&mut self.wqes, &mut q.wqes);
        swap(&mut self.resources, &mut q.conn.resp.resources);
        swap(&mut self.jobs, &mut q.conn.resp.jobs);
        swap(&mut self.dci, &mut q.dci);
    }

    fn free(self, heap: &mut Heap) {
        for mem in [self.sq, self.rq].into_iter().flatten() {
            heap.free(mem);
        }
        heap.free_slice(self.wqes);
        heap.free_slice(self.resources);
        heap.free_slice(self.jobs);
        heap.free_slice(self.dci);
    }
}
