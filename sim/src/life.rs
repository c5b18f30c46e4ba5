//! The life of a link: its QPs are made, fail, drain, are checked and made anew.

use gdrcore_core::verbs::types::*;
use gdrcore_testkit::connection::Connection;
use gdrcore_testkit::requests::queues;
use gdrcore_testkit::rng::Rng;

use crate::host::Host;
use crate::link::{dc_key, index, Drain, Link, GAP, GRH};
use crate::numbers::Numbers;

impl Link {
    /// Makes both QPs and takes them to RTS. False: all QPNs of a host rest; try again later.
    pub fn connect(&mut self, hosts: &[Host], rng: &mut Rng, now: u64) -> bool {
        for i in 0..2 {
            if !self.create(hosts, i, now) {
                return false;
            }
        }
        for e in &mut self.ends {
            let h = &hosts[e.host];
            let (mw, key) = h.window();
            (e.mw, e.mw_key) = ((mw, key, false), None);
        }
        self.down = false;
        let psn = [rng.next() as u32 & 0xff_ffff, rng.next() as u32 & 0xff_ffff];
        for i in 0..2 {
            self.rise(hosts, i, psn, now);
        }
        self.initiator = self.ends[0].qpn;
        for e in &mut self.ends {
            e.word = 0;
        }
        for i in 0..2 {
            let at = self.word_at();
            self.ends[i].win.buf.put(at, &0u64.to_ne_bytes());
        }
        true
    }

    /// Makes the QPs of an end. False: all QPNs of its host rest.
    fn create(&mut self, hosts: &[Host], i: usize, now: u64) -> bool {
        let plan = self.plan;
        let e = &mut self.ends[i];
        let h = &hosts[e.host];
        // Some may be there: an earlier call made them before it failed, or they have only been
        // reset.
        for k in e.qps().count()..plan.qps(i) {
            let mut g = h.lock();
            let sends = queues(plan.depth as u32, plan.sge, 128);
            let cap = QpCap { max_recv_wr: plan.recvs as u32, ..sends };
            let srq = match &h.shared {
                Some(shared) if plan.srq[i] => shared.srq,
                _ => 0,
            };
            let (send_cq, recv_cq) = (h.cqs[e.cqs[0]], h.cqs[e.cqs[1]]);
            let init = QpInit {
                pd: h.pd,
                send_cq,
                recv_cq,
                srq: if plan.xrc { 0 } else { srq },
                xrcd: h.shared.as_ref().and_then(|s| s.xrc).map_or(0, |(xrcd, ..)| xrcd),
                dc_key: dc_key(k),
                qp_type: plan.qp_type(i),
                sq_sig_all: 0,
                cap,
            };
            match g.qp_create(h.time(now), &init) {
                Ok((qp, qpn, _)) if k == 0 => (e.qp, e.qpn) = (qp, qpn),
                Ok((qp, qpn, _)) => e.more.push((qp, qpn)),
                Err(err) => {
                    assert_eq!(err, gdrcore_core::Error::NoMemory, "qp_create");
                    return false;
                }
            }
        }
        true
    }

    fn rise(&mut self, hosts: &[Host], i: usize, psn: [u32; 2], now: u64) {
        let plan = self.plan;
        let to = &hosts[self.ends[1 - i].host];
        let connection = Connection {
            qp_type: plan.qp_type(i),
            access: crate::host::ALL,
            qkey: 0x2222,
            mtu: plan.mtu,
            ah: AhAttr { dgid: to.addr.gid, ..AhAttr::default() },
            dest_qpn: self.ends[1 - i].qpn,
            psn: (psn[i], psn[1 - i]),
            rd_atomic: plan.rd_atomic,
            min_rnr_timer: 1,
            timeout: plan.timeout,
            retry_cnt: plan.retry,
            rnr_retry: plan.rnr,
            peer_is_soft: false,
        };
        let other = self.ends[1 - i].host;
        let e = &mut self.ends[i];
        let h = &hosts[e.host];
        let mut g = h.lock();
        // Another engine of the same device is reached as another process at this address is.
        g.set_own_address_remote(to.addr.gid == h.addr.gid && e.host != other);
        for (qp, _) in e.qps() {
            for (attr, mask) in connection.steps() {
                g.qp_modify(h.time(now), qp, &attr, mask).expect("a legal transition");
            }
        }
        g.set_own_address_remote(false);
        drop(g);
        if (plan.kind == qp_type::UD || plan.targets > 0) && e.ah == 0 {
            e.ah = h.address_handle(&connection.ah);
        }
    }

    /// The initiator of a DC link ends, maybe in the middle of a message.
    fn tear(&self, hosts: &[Host]) {
        if let (1.., Some(shared)) = (self.plan.targets, &hosts[self.ends[1].host].shared) {
            shared.torn.set(true);
        }
    }

    /// Moves both QPs to ERR, so that outstanding requests flush.
    pub fn begin_end(&mut self, hosts: &[Host], now: u64) -> Result<(), String> {
        self.ending = true;
        self.tear(hosts);
        for e in self.ends.iter_mut().filter(|e| !e.dead) {
            e.failed = true;
            let attr = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
            let h = &hosts[e.host];
            for (qp, _) in e.qps() {
                let done = h.lock().qp_modify(h.time(now), qp, &attr, qp_attr_mask::STATE);
                done.map_err(|err| format!("to ERR: {err:?}"))?;
            }
        }
        Ok(())
    }

    /// Once everything has flushed: checks what is left and destroys both QPs. False before that.
    pub fn finish_end(
        &mut self,
        hosts: &[Host],
        numbers: &mut Numbers,
        now: u64,
    ) -> Result<bool, String> {
        for i in 0..2 {
            let e = &self.ends[i];
            if e.dead {
                continue;
            }
            let h = &hosts[e.host];
            let shared = h.engine.shared();
            let drained = |c: usize| shared.cqs[index(h.cqs[c])].ring.is_empty();
            // Contexts of DC targets keep the receives that they have taken.
            let shares = self.plan.srq[i] && self.plan.targets == 0;
            let received = if shares { e.last_wqe } else { e.posted.is_empty() };
            if !received
                || !e.cqs.iter().all(|&c| drained(c))
                || !shared.qps[index(e.qp)].sq.is_empty()
            {
                return Ok(false);
            }
            // The requests that are left succeeded unsignalled before the failure.
            if e.ops.iter().any(|op| op.signaled || e.broken) {
                return Err(format!("end {i}: {:?} was never completed", e.ops));
            }
            while let Some(op) = self.ends[i].ops.pop_front() {
                self.ends[i].ended[0] += 1;
                self.check_op(i, &op)?;
            }
        }
        for i in (0..2).filter(|&i| !self.ends[i].dead) {
            numbers.release(self, i, &hosts[self.ends[i].host], now);
        }
        self.destroy(hosts, now)?;
        self.restore(hosts)?;
        let slots = self.slots;
        for i in 0..2 {
            let stride = self.stride;
            let e = &mut self.ends[i];
            hosts[e.host].flush_memory();
            for s in 0..slots {
                let at = s * stride;
                let most = stride - GAP - GRH;
                if let Some(x) = e.win.buf.touched(at + most, GAP + GRH) {
                    return Err(format!("slot {s}: byte {x} behind it was touched"));
                }
            }
            for area in [&e.src, &e.win, &e.rcv] {
                area.buf.fill(0, area.buf.len(), crate::buf::BACKGROUND);
                if area.mr.provider != 0 {
                    hosts[e.host].slow.forget(area.buf.addr(), area.buf.len());
                }
            }
            e.expected.clear();
            (e.got, e.sent) = (0, 0);
            (e.failed, e.broken, e.last_wqe, e.dead) = (false, false, false, false);
            (e.drain, e.mute_at) = (Drain::No, 0);
        }
        (self.ending, self.down, self.doomed) = (false, true, false);
        self.remade += 1;
        Ok(true)
    }

    /// Destroys both QPs and their objects.
    pub fn destroy(&mut self, hosts: &[Host], now: u64) -> Result<(), String> {
        for e in self.ends.iter_mut().filter(|e| !e.dead && e.qpn != 0) {
            let h = &hosts[e.host];
            let mut g = h.lock();
            let qps: Vec<_> = e.qps().collect();
            for (qp, _) in qps {
                g.qp_destroy(h.time(now), qp).map_err(|err| format!("qp_destroy: {err:?}"))?;
            }
            e.more.clear();
            drop(g);
            h.end_window(e.mw.0)?;
            (e.qp, e.qpn) = (0, 0);
        }
        Ok(())
    }

    /// The engine of an end has died with all its objects; its memory is new.
    pub fn die(&mut self, hosts: &[Host], rng: &mut Rng, i: usize) {
        if self.gone.is_some_and(|gone| gone.0 == i) {
            self.gone = None;
        }
        let e = &mut self.ends[i];
        let h = &hosts[e.host];
        for area in [&mut e.src, &mut e.win, &mut e.rcv] {
            let slow = area.mr.provider != 0;
            *area = h.area(area.buf.len(), slow);
        }
        e.cqs = self.plan.draw_cqs(i, h, rng);
        e.ended[1] += e.ops.len() as u64;
        e.ops.clear();
        e.posted.clear();
        e.free = (0..self.plan.recvs).collect();
        (e.qp, e.qpn, e.ah, e.mw_key) = (0, 0, 0, None);
        e.more.clear();
        // If the QPs are destroyed already, the next ones use the new engine.
        e.dead = !self.down;
        self.tear(hosts);
    }

    /// The program of a DC initiator ends it under traffic, by destroying it or by RESET: nothing
    /// says what has become of its requests.
    pub fn abandon(
        &mut self,
        hosts: &[Host],
        rng: &mut Rng,
        numbers: &mut Numbers,
        now: u64,
    ) -> Result<(), String> {
        let resets = rng.coin();
        if !resets {
            numbers.release(self, 0, &hosts[self.ends[0].host], now);
        }
        let e = &mut self.ends[0];
        let h = &hosts[e.host];
        let mut g = h.lock();
        let done = if resets {
            let attr = QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() };
            g.qp_modify(h.time(now), e.qp, &attr, qp_attr_mask::STATE)
        } else {
            g.qp_destroy(h.time(now), e.qp)
        };
        done.map_err(|err| format!("abandon: {err:?}"))?;
        drop(g);
        h.end_window(e.mw.0)?;
        let mut g = h.lock();
        for c in e.cqs {
            g.cq_purge(h.cqs[c], e.qpn).map_err(|err| format!("cq_purge: {err:?}"))?;
        }
        if !resets {
            (e.qp, e.qpn) = (0, 0);
        }
        e.ended[1] += e.ops.len() as u64;
        e.ops.clear();
        e.dead = true;
        self.tear(hosts);
        Ok(())
    }

    /// Deregisters memory under traffic.
    pub fn dereg(&mut self, hosts: &[Host], rng: &mut Rng) -> Result<(), String> {
        let (i, n) = (rng.below(2) as usize, rng.below(3) as usize);
        let e = &mut self.ends[i];
        let h = &hosts[e.host];
        // Accesses that slow memory has accepted complete.
        h.flush_memory();
        let area = e.areas()[n];
        match h.dereg(area.handle) {
            // A window is bound to it, or its invalidation is queued.
            Err(gdrcore_core::Error::Busy) if n == 1 => return Ok(()),
            other => other.map_err(|err| format!("mr_dereg: {err:?}"))?,
        }
        self.gone = Some((i, n, area.buf.sum()));
        self.doomed = true;
        Ok(())
    }

    /// Checks that deregistered memory has not been written, and registers it again.
    fn restore(&mut self, hosts: &[Host]) -> Result<(), String> {
        if let Some((i, n, sum)) = self.gone.take() {
            let e = &mut self.ends[i];
            let h = &hosts[e.host];
            let area = match n {
                0 => &mut e.src,
                1 => &mut e.win,
                _ => &mut e.rcv,
            };
            if area.buf.sum() != sum {
                return Err(format!("end {i}: area {n} was touched after its deregistration"));
            }
            *area = h.area(area.buf.len(), area.mr.provider != 0);
        }
        Ok(())
    }

    /// Moves a send queue to SQD, and back to RTS when it has drained.
    pub fn drain(
        &mut self,
        hosts: &[Host],
        rng: &mut Rng,
        now: u64,
        i: usize,
    ) -> Result<(), String> {
        let e = &mut self.ends[i];
        let h = &hosts[e.host];
        let (state, mask, next) = match e.drain {
            Drain::No if rng.chance(3000) => {
                (qp_state::SQD, qp_attr_mask::EN_SQD_ASYNC_NOTIFY, Drain::Begun)
            }
            Drain::Done(at) if at <= h.time(now) => (qp_state::RTS, 0, Drain::No),
            _ => return Ok(()),
        };
        let attr = QpAttr { qp_state: state, en_sqd_async_notify: 1, ..QpAttr::default() };
        let mut g = h.lock();
        let (was, _) = g.qp_query(e.qp).map_err(|err| format!("qp_query: {err:?}"))?;
        if was.qp_state == qp_state::ERR {
            // It has failed; its completions report that.
            return Ok(());
        }
        g.qp_modify(h.time(now), e.qp, &attr, qp_attr_mask::STATE | mask)
            .map_err(|err| format!("SQD: {err:?}"))?;
        (e.drain, e.ready_at) = (next, h.time(now));
        Ok(())
    }
}
