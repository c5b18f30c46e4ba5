//! Shared receive queues and XRC domains: create, resize, query, destroy.

use core::sync::atomic::Ordering;

use super::control::MAX_DEPTH;
use super::qpn::LIFETIME_NS;
use super::{EngineGuard, Inner};
use crate::config::{config_flags, lowered, Config};
use crate::device::SrqAttr;
use crate::error::Result;
use crate::pool::Pool;
use crate::reason::refuse;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::{Srq, Xrcd};
use crate::verbs::resp::Landing;
use crate::verbs::shared::SrqShared;
use crate::verbs::types::Handle;
use crate::verbs::wqe::{recv_stride, RecvWqe};
use crate::verbs::NONE;

/// The depth of a ring that holds `max_wr` requests.
fn depth(max_wr: u32, config: &Config) -> Result<u32> {
    let most = lowered(MAX_DEPTH, config.limits.max_qp_wr);
    if max_wr == 0 || max_wr > most {
        return Err(refuse!(Invalid, "max_wr {max_wr}: 1 to {most}"));
    }
    Ok(max_wr.next_power_of_two())
}

/// Control: SRQs and XRC domains.
impl EngineGuard<'_> {
    /// Makes a shared receive queue. Returns the sizes given.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`], [`crate::Error::Invalid`], [`crate::Error::NoMemory`].
    pub fn srq_create(
        &mut self,
        now: u64,
        pd: Handle,
        attr: &SrqAttr,
    ) -> Result<(Handle, SrqAttr)> {
        let pd = self.pd(pd)?;
        self.make_srq(now, pd, None, attr)
    }

    /// As [`EngineGuard::srq_create`], for an SRQ of an XRC domain, which has a CQ of its own for
    /// its receives.
    ///
    /// # Errors
    /// As there. In strict mode [`crate::Error::Invalid`] too: the CQ does not hold its requests.
    pub fn srq_create_xrc(
        &mut self,
        now: u64,
        [pd, xrcd, cq]: [Handle; 3],
        attr: &SrqAttr,
    ) -> Result<(Handle, SrqAttr)> {
        let pd = self.pd(pd)?;
        let xrcd = self.transport.common.xrcd_pool.check(xrcd)? as u32;
        let cq = self.shared().cq_pool.check(cq)? as u32;
        self.check_srq_room(cq, 0, depth(attr.max_wr, &self.transport.common.config)?)?;
        self.make_srq(now, pd, Some((xrcd, cq)), attr)
    }

    /// Strict mode: whether the CQ of an XRC SRQ has room for `more` requests of the SRQ in place
    /// of `less`.
    fn check_srq_room(&self, cq: u32, less: u32, more: u32) -> Result<()> {
        let common = &self.transport.common;
        if common.config.flags & config_flags::STRICT_CQ == 0 {
            return Ok(());
        }
        let sum = common.cqs[cq as usize].depth_sum - less + more;
        let room = self.shared().cqs[cq as usize].ring.capacity();
        if sum > room {
            return Err(refuse!(
                Invalid,
                "cq: it holds {room} completions, and with GDRC_CONFIG_STRICT_CQ the requests of \
                 all that completes into it count, {sum}"
            ));
        }
        Ok(())
    }

    fn make_srq(
        &mut self,
        now: u64,
        pd: usize,
        xrc: Option<(u32, u32)>,
        attr: &SrqAttr,
    ) -> Result<(Handle, SrqAttr)> {
        let (inner, s) = self.split();
        let max_sge = attr.max_sge.max(1);
        let capacity = depth(attr.max_wr, &inner.transport.common.config)?;
        let most = inner.transport.common.config.max_sge;
        if max_sge > most {
            return Err(refuse!(Invalid, "max_sge {max_sge}: at most {most}"));
        }
        let stride = recv_stride(max_sge);
        let mem = inner.ring::<RecvWqe>(capacity, stride)?;
        let srqs = &inner.transport.common.srqs;
        let made = s.srq_pool.growing(&mut inner.heap, Pool::alloc, |have, heap| {
            s.srqs.grow_past(have, heap, |_| SrqShared::default())?;
            srqs.grow_past(have, heap, |_| Srq::default())
        });
        let (h, i) = made.inspect_err(|_| inner.heap.free(mem))?;
        let (number, _) = inner.qpns.alloc(now).inspect_err(|_| {
            s.srq_pool.free(i);
            inner.heap.free(mem);
        })?;
        let common = &mut inner.transport.common;
        s.install(|s| &s.srqs[i].rq, Some((mem, capacity, stride)), &common.key);
        s.srqs[i].max_sge.store(max_sge, Ordering::Relaxed);
        common.srqs[i] = Srq {
            live: true,
            mem: Some(mem),
            pd: pd as u32,
            number,
            xrc,
            limit: attr.srq_limit,
            max_sge,
            ..Srq::default()
        };
        common.pds[pd].users += 1;
        common.by_srqn[(number - common.qpn_base) as usize] = i as u32 + 1;
        if let Some((xrcd, cq)) = xrc {
            common.xrcds[xrcd as usize].users += 1;
            common.cqs[cq as usize].users += 1;
            common.cqs[cq as usize].depth_sum += capacity;
        }
        Ok((h, SrqAttr { max_wr: capacity, max_sge, srq_limit: attr.srq_limit }))
    }

    /// Sets the limit below which SRQ_LIMIT_REACHED is raised once; 0 turns it off.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`]; [`crate::Error::Invalid`]: more than the queue holds.
    pub fn srq_modify(&mut self, srq: Handle, new_limit: u32) -> Result<()> {
        let (inner, s) = self.split();
        let i = s.srq_pool.check(srq)?;
        let most = s.srqs[i].rq.capacity();
        if new_limit > most {
            return Err(refuse!(Invalid, "limit {new_limit}: the SRQ holds {most} requests"));
        }
        inner.transport.common.srqs[i].limit = new_limit;
        Ok(())
    }

    /// Gives an SRQ another size, and with `new_limit` another limit in the same step. A new ring
    /// takes the requests of the old one in their order. Returns the size given.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`]; [`crate::Error::Invalid`]: fewer than are posted, or than the
    /// limit; [`crate::Error::Busy`]: a thread posts to it right now; [`crate::Error::NoMemory`].
    /// Nothing has changed then.
    pub fn srq_resize(&mut self, srq: Handle, max_wr: u32, new_limit: Option<u32>) -> Result<u32> {
        let (inner, s) = self.split();
        let i = s.srq_pool.check(srq)?;
        let capacity = depth(max_wr, &inner.transport.common.config)?;
        let limit = new_limit.unwrap_or(inner.transport.common.srqs[i].limit);
        // rxe rxe_srq.c rxe_srq_chk_attr: An SRQ is not made smaller than its limit.
        if limit > max_wr {
            return Err(refuse!(Invalid, "max_wr {max_wr}: less than the limit, which is {limit}"));
        }
        let (before, stride) = (s.srqs[i].rq.capacity(), s.srqs[i].rq.stride());
        let xrc = inner.transport.common.srqs[i].xrc;
        if let Some((_, cq)) = xrc {
            self.check_srq_room(cq, before, capacity)?;
        }
        let (inner, s) = self.split();
        let mem = inner.ring::<RecvWqe>(capacity, stride)?;
        if let Err(e) = s.swap_srq(i, mem, [max_wr, capacity], &inner.transport.common.key) {
            inner.heap.free(mem);
            return Err(e);
        }
        if let Some((_, cq)) = xrc {
            let sum = &mut inner.transport.common.cqs[cq as usize].depth_sum;
            *sum = *sum - before + capacity;
        }
        let q = &mut inner.transport.common.srqs[i];
        q.limit = limit;
        if let Some(old) = q.mem.replace(mem) {
            inner.heap.free(old);
        }
        Ok(capacity)
    }

    /// # Errors
    /// [`crate::Error::StaleHandle`].
    pub fn srq_query(&self, srq: Handle) -> Result<SrqAttr> {
        let i = self.shared().srq_pool.check(srq)?;
        let q = &self.transport.common.srqs[i];
        Ok(SrqAttr {
            max_wr: self.shared().srqs[i].rq.capacity(),
            max_sge: q.max_sge,
            srq_limit: q.limit,
        })
    }

    /// The number of an SRQ, out of the QPNs of the engine.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`].
    pub fn srq_number(&self, srq: Handle) -> Result<u32> {
        let i = self.shared().srq_pool.check(srq)?;
        Ok(self.transport.common.srqs[i].number)
    }

    /// Ends an SRQ. XRC targets that have named it forget it. A request that peers still send for
    /// it is invalid.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`]; [`crate::Error::Busy`]: QPs use it, a message of it is still
    /// on its way into slow memory, or a thread posts to it.
    pub fn srq_destroy(&mut self, now: u64, srq: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let i = s.srq_pool.check(srq)?;
        let (users, xrc) =
            (inner.transport.common.srqs[i].users, inner.transport.common.srqs[i].xrc);
        if users > 0 {
            let first = inner.first_user(|qp| qp.srq == i as u32);
            return Err(refuse!(Busy, "srq: {users} QPs use it{first}"));
        }
        if xrc.is_some_and(|(_, cq)| inner.has_landing_of(cq)) {
            return Err(refuse!(Busy, "srq: a message is on its way into slow memory"));
        }
        let capacity = s.srqs[i].rq.capacity();
        s.remove_srq(i, &inner.transport.common.key)?;
        s.srq_pool.free(i);
        if xrc.is_some() {
            inner.forget_srq(i as u32);
        }
        inner.transport.forget_requests_of(i as u32);
        let common = &mut inner.transport.common;
        let q = core::mem::take(&mut common.srqs[i]);
        if let Some(mem) = q.mem {
            inner.heap.free(mem);
        }
        common.by_srqn[(q.number - common.qpn_base) as usize] = 0;
        if let Some((xrcd, cq)) = q.xrc {
            common.xrcds[xrcd as usize].users -= 1;
            let cq = &mut common.cqs[cq as usize];
            cq.users -= 1;
            cq.depth_sum -= capacity;
        }
        // Only requests of XRC name the number of an SRQ.
        let rest = if q.xrc.is_some() { LIFETIME_NS } else { 0 };
        inner.qpns.free(q.number, now, rest);
        let pd = &mut inner.transport.common.pds[q.pd as usize];
        pd.users = pd.users.saturating_sub(1);
        Ok(())
    }

    /// Makes an XRC domain.
    ///
    /// # Errors
    /// [`crate::Error::NoMemory`].
    pub fn xrcd_alloc(&mut self) -> Result<Handle> {
        let (inner, _) = self.split();
        let common = &mut inner.transport.common;
        let (h, i) = common.xrcd_pool.growing(&mut inner.heap, Pool::alloc, |have, heap| {
            common.xrcds.grow_past(have, heap, |_| Xrcd::default())
        })?;
        common.xrcds[i] = Xrcd::default();
        Ok(h)
    }

    /// # Errors
    /// [`crate::Error::StaleHandle`]; [`crate::Error::Busy`]: SRQs or queue pairs are in it.
    pub fn xrcd_dealloc(&mut self, xrcd: Handle) -> Result<()> {
        let (inner, _) = self.split();
        let i = inner.transport.common.xrcd_pool.check(xrcd)?;
        let users = inner.transport.common.xrcds[i].users;
        if users > 0 {
            let first = inner.first_user(|qp| qp.xrcd == i as u32);
            return Err(refuse!(Busy, "xrcd: {users} SRQs and queue pairs are in it{first}"));
        }
        inner.transport.common.xrcd_pool.free(i);
        Ok(())
    }
}

impl Inner {
    /// Whether a receive of an XRC target that completes in a CQ waits for slow memory.
    fn has_landing_of(&self, cq: u32) -> bool {
        let qps = &self.transport.qps;
        (0..qps.len()).filter_map(|qi| qps.get(qi)).any(|qp| {
            let waits = |f: &Landing| f.wc.is_some() && f.cq == cq;
            qp.live && qp.kind == QpKind::XrcTgt && qp.conn.resp.landings().any(waits)
        })
    }

    /// Forgets an SRQ that ends, and the receive requests that XRC targets have taken from it.
    fn forget_srq(&mut self, srq: u32) {
        let t = &mut self.transport;
        for qi in 0..t.qps.len() {
            let qp = &mut t.qps[qi];
            if !qp.live || qp.kind != QpKind::XrcTgt || qp.srq != srq {
                continue;
            }
            let promised = core::mem::take(&mut qp.conn.resp.recv).reserved;
            let rcq = core::mem::replace(&mut qp.rcq, NONE);
            (qp.srq, qp.pd, qp.recv_pd) = (NONE, NONE, NONE);
            if promised {
                t.common.unreserve(rcq);
            }
        }
    }
}
