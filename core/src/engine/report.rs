//! Reports of an engine: counters, causes, events, and objects that are still allocated.

use super::EngineGuard;
use crate::counters::Counters;
use crate::device::{async_event, AsyncEvent, Leaks};
use crate::error::Result;
use crate::reason::refuse;
use crate::roce::peer::Path;
use crate::verbs::cause::Cause;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::CqError;
use crate::verbs::shared::CHANNELS;
use crate::verbs::types::Handle;
use core::sync::atomic::Ordering;

/// A queue pair in the report of its device.
#[derive(Clone, Copy, Debug)]
pub struct QpReport {
    /// Its QPN.
    pub qpn: u32,
    /// Its transport service.
    pub kind: QpKind,
    /// Its state (`qp_state`).
    pub state: u32,
    /// GID and QPN of its peer, and the path there; `None`: it has no peer.
    pub peer: Option<([u8; 16], u32, Path)>,
    /// Requests in the send queue that have no completion yet, and its capacity.
    pub sends: (u32, u32),
    /// As `sends`, of its own receive queue; (0, 0) without one.
    pub recvs: (u32, u32),
    /// Its counters.
    pub counters: Counters,
    /// The last cause of an error.
    pub cause: Cause,
}

/// Control: counters, causes and events.
impl EngineGuard<'_> {
    /// Counts of the device. Each queue pair counts its own events, and this call adds them up, so
    /// that no packet writes a word for the device.
    ///
    /// # Cost
    /// Reads about half a KiB of each queue pair.
    pub fn counters(&self) -> Counters {
        let (t, cm) = (&self.transport, self.cm.counters());
        let mut sum = Counters {
            cm_rcvd: cm.rcvd,
            cm_sent: cm.sent,
            cm_retries: cm.retries,
            cm_rejected: cm.rejected,
            cm_dropped: cm.dropped,
            cm_evicted: cm.evicted,
            cm_rejects_rcvd: cm.rejects_rcvd,
            ..t.common.counters
        };
        for qp in t.qps.iter().filter(|qp| qp.live) {
            sum.add(&qp.counters);
        }
        sum
    }

    /// Counts of a QP.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`].
    pub fn qp_counters(&self, qp: Handle) -> Result<Counters> {
        let qi = self.shared().qp_pool.check(qp)?;
        Ok(self.transport.qps[qi].counters)
    }

    /// A report of each queue pair, the contexts of DC targets included.
    ///
    /// # Cost
    /// As [`EngineGuard::counters`].
    pub fn qp_reports(&self) -> impl Iterator<Item = QpReport> + '_ {
        let (t, s) = (&self.transport, self.shared());
        let qps = t.qps.iter().zip(s.qps.iter()).filter(|(qp, _)| qp.live);
        qps.map(|(qp, q)| QpReport {
            qpn: qp.qpn,
            kind: qp.kind,
            state: qp.state,
            peer: t
                .peers
                .get(qp.conn.peer as usize)
                .map(|p| (p.addr.gid, qp.attr.dest_qp_num, p.path)),
            sends: (q.sq.len(), q.sq.capacity()),
            recvs: (q.rq.len(), q.rq.capacity()),
            counters: qp.counters,
            cause: qp.cause,
        })
    }

    /// Completions that wait in each CQ, and its capacity. Branches of CQs are listed as well.
    pub fn cq_reports(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let s = self.shared();
        let live = (0..s.cq_pool.capacity()).filter(|&i| s.cq_pool.is_live(i));
        live.map(|i| (s.cqs[i].ring.len(), s.cqs[i].ring.capacity()))
    }

    /// The last cause on any QP.
    pub fn last_cause(&self) -> Cause {
        self.transport.common.cause
    }

    /// The last cause on a QP.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`].
    pub fn qp_cause(&self, qp: Handle) -> Result<Cause> {
        let qi = self.shared().qp_pool.check(qp)?;
        Ok(self.transport.qps[qi].cause)
    }

    /// Takes an armed CQ that has an event.
    pub fn take_cq_event(&mut self) -> Option<Handle> {
        let (_, s) = self.split();
        while let Some(i) = s.cq_events.take_one() {
            if s.cq_pool.is_live(i) {
                return Some(s.cq_pool.handle(i));
            }
        }
        None
    }

    /// Channels that have got events since the last call, a bit each.
    pub fn take_channels_due(&mut self) -> u64 {
        self.shared().channels_due.swap(0, Ordering::Relaxed)
    }

    /// Whether a channel has an event.
    pub fn has_channel_event(&self, channel: usize) -> bool {
        self.shared().channel_events.get(channel).is_some_and(|c| c.load(Ordering::Relaxed) != 0)
    }

    /// Takes an armed CQ of a channel that has an event, the latest first.
    pub fn take_channel_event(&mut self, channel: usize) -> Option<Handle> {
        let (inner, s) = self.split();
        let first = s.channel_events.get(channel)?;
        let i = first.load(Ordering::Relaxed).checked_sub(1)? as usize;
        let cq = &mut inner.transport.common.cqs[i];
        cq.has_event = false;
        first.store(cq.next, Ordering::Relaxed);
        Some(s.cq_pool.handle(i))
    }

    /// Sends the events of a new CQ to a channel, below [`CHANNELS`].
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`]; [`crate::Error::Invalid`].
    pub fn cq_set_channel(&mut self, cq: Handle, channel: usize) -> Result<()> {
        let (inner, s) = self.split();
        let i = s.cq_pool.check(cq)?;
        let channel = u8::try_from(channel).ok().filter(|&c| usize::from(c) < CHANNELS);
        let channel =
            channel.ok_or_else(|| refuse!(Invalid, "channel: no channel of this context"))?;
        inner.transport.common.cqs[i].channel = Some(channel);
        Ok(())
    }

    /// The channel that a CQ's events go to.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`].
    pub fn cq_channel(&self, cq: Handle) -> Result<Option<usize>> {
        let i = self.shared().cq_pool.check(cq)?;
        Ok(self.transport.common.cqs[i].channel.map(usize::from))
    }

    /// Takes an asynchronous event.
    pub fn take_async_event(&mut self) -> Option<AsyncEvent> {
        let (inner, s) = self.split();
        let t = &mut inner.transport;
        if let Some(event) = t.common.port_events.take() {
            return Some(AsyncEvent { event, reserved: 0, handle: 0 });
        }
        while let Some(qi) = t.common.event_qps.next_from(0) {
            let qp = &mut t.qps[qi];
            if qp.events == 0 || !qp.live {
                t.common.event_qps.clear(qi);
                continue;
            }
            let event = qp.events.trailing_zeros();
            qp.events &= qp.events - 1;
            return Some(AsyncEvent { event, reserved: 0, handle: s.qp_pool.handle(qi) });
        }
        if t.common.cq_errors > 0 {
            let raised = |i: &usize| t.common.cqs[*i].error == CqError::Raised;
            if let Some(i) = (0..t.common.cqs.len()).find(raised) {
                t.common.cqs[i].error = CqError::Told;
                t.common.cq_errors -= 1;
                let (event, handle) = (async_event::CQ_ERR, s.cq_pool.handle(i));
                return Some(AsyncEvent { event, reserved: 0, handle });
            }
        }
        for i in 0..t.common.srqs.len() {
            if t.common.srqs[i].live && t.common.srqs[i].events != 0 {
                let event = t.common.srqs[i].events.trailing_zeros();
                t.common.srqs[i].events &= t.common.srqs[i].events - 1;
                return Some(AsyncEvent { event, reserved: 0, handle: s.srq_pool.handle(i) });
            }
        }
        None
    }

    /// Raises an asynchronous event of the port, or of the device.
    pub fn raise_port(&mut self, event: u32) {
        let (inner, s) = self.split();
        inner.transport.common.port_events.raise(event);
        s.notify.store(true, Ordering::Release);
    }

    /// Objects that are still allocated.
    pub fn leaks(&self) -> Leaks {
        let (t, s) = (&self.transport, self.shared());
        Leaks {
            pd: t.common.pd_pool.live() as u32,
            mr: t.common.memory.regions.mr_live(),
            mw: t.common.memory.regions.mw_live(),
            // Branches are rings that no program made.
            cq: (0..s.cq_pool.capacity())
                .filter(|&i| s.cq_pool.is_live(i) && s.cqs[i].beside.branches.home() == 0)
                .count() as u32,
            // The contexts of DC targets are queue pairs that no program made.
            qp: (s.qp_pool.live() - t.dc.list.len()) as u32,
            srq: s.srq_pool.live() as u32,
            ah: t.common.ah_pool.live() as u32,
        }
    }

    /// The free bytes of the ring heap.
    pub fn free_bytes(&self) -> usize {
        self.heap.free_bytes()
    }
}
