//! Shared receive queues: create, resize, query, destroy.

use core::sync::atomic::Ordering;

use super::control::MAX_DEPTH;
use super::Guard;
use crate::device::SrqAttr;
use crate::error::Result;
use crate::reason::refuse;
use crate::verbs::objects::Srq;
use crate::verbs::shared::SrqShared;
use crate::verbs::types::Handle;
use crate::verbs::wqe::{recv_stride, RecvWqe};

/// The ring that holds `max_wr` requests.
fn depth(max_wr: u32) -> Result<u32> {
    if max_wr == 0 || max_wr > MAX_DEPTH {
        return Err(refuse!(Invalid, "max_wr {max_wr}: 1 to {MAX_DEPTH}"));
    }
    Ok(max_wr.next_power_of_two())
}

impl Guard<'_> {
    /// A shared receive queue; returns the sizes given.
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
        let (inner, s) = self.split();
        let max_sge = attr.max_sge.max(1);
        let capacity = depth(attr.max_wr)?;
        let most = inner.transport.common.config.max_sge;
        if max_sge > most {
            return Err(refuse!(Invalid, "max_sge {max_sge}: at most {most}"));
        }
        let stride = recv_stride(max_sge);
        let mem = inner.ring::<RecvWqe>(capacity, stride)?;
        let made = (|| {
            let have = s.srq_pool.capacity();
            if s.srq_pool.live() == have {
                s.srqs.grow_past(have, &mut inner.heap, |_| SrqShared::default())?;
                inner.transport.common.srqs.grow_past(have, &mut inner.heap, |_| Srq::default())?;
                s.srq_pool.grow(&mut inner.heap)?;
            }
            let (number, _) = inner.qpns.alloc(now)?;
            match s.srq_pool.alloc() {
                Ok((h, i)) => Ok((h, i, number)),
                Err(e) => {
                    inner.qpns.free(number, now, 0);
                    Err(e)
                }
            }
        })();
        let (h, i, number) = match made {
            Ok(x) => x,
            Err(e) => {
                inner.heap.free(mem);
                return Err(e);
            }
        };
        s.install_srq(i, mem, capacity, stride, &inner.transport.common.key);
        s.srqs[i].max_sge.store(max_sge, Ordering::Relaxed);
        inner.transport.common.srqs[i] = Srq {
            live: true,
            mem: Some(mem),
            pd: pd as u32,
            number,
            limit: attr.srq_limit,
            max_sge,
            ..Srq::default()
        };
        inner.transport.common.pds[pd].users += 1;
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

    /// Gives an SRQ another size, and with `new_limit` another limit in the same step: a new ring
    /// that takes the requests of the old one in their order. Returns what was given.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`]; [`crate::Error::Invalid`]: fewer than are posted, or than the
    /// limit; [`crate::Error::Busy`]: a thread posts to it right now; [`crate::Error::NoMemory`].
    /// Nothing has changed then.
    pub fn srq_resize(&mut self, srq: Handle, max_wr: u32, new_limit: Option<u32>) -> Result<u32> {
        let (inner, s) = self.split();
        let i = s.srq_pool.check(srq)?;
        let capacity = depth(max_wr)?;
        let limit = new_limit.unwrap_or(inner.transport.common.srqs[i].limit);
        // rxe rxe_srq.c rxe_srq_chk_attr: An SRQ is not made smaller than its limit.
        if limit > max_wr {
            return Err(refuse!(Invalid, "max_wr {max_wr}: less than the limit, which is {limit}"));
        }
        let stride = s.srqs[i].rq.stride();
        let mem = inner.ring::<RecvWqe>(capacity, stride)?;
        if let Err(e) = s.swap_srq(i, mem, [max_wr, capacity], &inner.transport.common.key) {
            inner.heap.free(mem);
            return Err(e);
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

    /// # Errors
    /// [`crate::Error::StaleHandle`]; [`crate::Error::Busy`]: QPs use it, or a thread posts to it.
    pub fn srq_destroy(&mut self, now: u64, srq: Handle) -> Result<()> {
        let (inner, s) = self.split();
        let i = s.srq_pool.check(srq)?;
        let users = inner.transport.common.srqs[i].users;
        if users > 0 {
            return Err(refuse!(Busy, "srq: {users} QPs use it"));
        }
        s.remove_srq(i, &inner.transport.common.key)?;
        s.srq_pool.free(i);
        let q = core::mem::take(&mut inner.transport.common.srqs[i]);
        if let Some(mem) = q.mem {
            inner.heap.free(mem);
        }
        // No packet names it, so its number needs no rest.
        inner.qpns.free(q.number, now, 0);
        let pd = &mut inner.transport.common.pds[q.pd as usize];
        pd.users = pd.users.saturating_sub(1);
        Ok(())
    }
}
