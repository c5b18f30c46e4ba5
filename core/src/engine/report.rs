//! What an engine tells: counters, causes, events, and what is still allocated.

use super::Guard;
use crate::counters::Counters;
use crate::device::{AsyncEvent, Leaks};
use crate::error::Result;
use crate::verbs::cause::Cause;
use crate::verbs::types::Handle;

impl Guard<'_> {
    /// Counts of the device.
    pub fn counters(&self) -> Counters {
        let cm = self.cm.counters();
        Counters {
            cm_rcvd: cm.rcvd,
            cm_sent: cm.sent,
            cm_retries: cm.retries,
            cm_rejected: cm.rejected,
            cm_dropped: cm.dropped,
            ..self.transport.counters
        }
    }

    /// Counts of a QP.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn qp_counters(&self, qp: Handle) -> Result<Counters> {
        let qi = self.shared().qp_pool.check(qp)?;
        Ok(self.transport.qps[qi].counters)
    }

    /// The last cause on any QP.
    pub fn last_cause(&self) -> Cause {
        self.transport.cause
    }

    /// The last cause on a QP.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub fn qp_cause(&self, qp: Handle) -> Result<Cause> {
        let qi = self.shared().qp_pool.check(qp)?;
        Ok(self.transport.qps[qi].cause)
    }

    /// Takes a CQ whose arming was met.
    pub fn take_cq_event(&mut self) -> Option<Handle> {
        let (_, s) = self.split();
        while let Some(i) = s.cq_events.take_one() {
            if s.cq_pool.is_live(i) {
                return Some(s.cq_pool.handle(i));
            }
        }
        None
    }

    /// Takes an asynchronous event.
    pub fn take_async_event(&mut self) -> Option<AsyncEvent> {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        while let Some(qi) = t.event_qps.next_from(0) {
            let qp = &mut t.qps[qi];
            if qp.events == 0 || !qp.live {
                t.event_qps.clear(qi);
                continue;
            }
            let event = qp.events.trailing_zeros();
            qp.events &= qp.events - 1;
            return Some(AsyncEvent { event, reserved: 0, handle: s.qp_pool.handle(qi) });
        }
        for i in 0..t.srqs.len() {
            if t.srqs[i].live && t.srqs[i].events != 0 {
                let event = t.srqs[i].events.trailing_zeros();
                t.srqs[i].events &= t.srqs[i].events - 1;
                return Some(AsyncEvent { event, reserved: 0, handle: s.srq_pool.handle(i) });
            }
        }
        None
    }

    /// What is still allocated.
    pub fn leaks(&self) -> Leaks {
        let (t, s) = (&self.transport, self.shared());
        Leaks {
            pd: t.pd_pool.live() as u32,
            mr: t.regions.mr_live(),
            mw: t.regions.mw_live(),
            cq: s.cq_pool.live() as u32,
            qp: s.qp_pool.live() as u32,
            srq: s.srq_pool.live() as u32,
            ah: t.ah_pool.live() as u32,
        }
    }

    /// The free bytes of the ring heap.
    pub fn free_bytes(&self) -> usize {
        self.heap.free_bytes()
    }
}
