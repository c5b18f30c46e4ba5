//! Requests that come before their listener does.
//!
//! A server may tell its port to a client over another channel before it listens: qperf sends the
//! port between rdma_bind_addr and rdma_listen. perftest ends one listener and begins the next,
//! while its client connects already. Over a NIC the request takes longer than the server needs;
//! here it may be faster. So a request is kept for a while, not refused, if its port was announced
//! ([`Cm::announce`]), or has just lost its listener. The next listener gets it.
//!
//! Strangers can fill the few places. A request that is pushed out is dropped, and its sender
//! repeats it.

use super::mad::{Message, MAD_LEN};
use super::{input, Cm, State, LISTENER_GRACE_NS};
use crate::error::Result;
use crate::roce::peer::PeerAddr;
use crate::verbs::types::Handle;

/// Requests that are kept.
pub(super) const EARLY: usize = 8;
/// A request is kept for this long, about as long as its sender waits before it repeats it.
const KEPT_NS: u64 = 1_000_000_000;

/// A request, as it came.
#[derive(Clone, Copy)]
pub(super) struct Early {
    /// 0: the place is free.
    until: u64,
    ps: u16,
    port: u16,
    from: PeerAddr,
    mad: [u8; MAD_LEN],
}

impl Early {
    pub(super) fn none() -> Early {
        Early { until: 0, ps: 0, port: 0, from: PeerAddr::default(), mad: [0; MAD_LEN] }
    }
}

impl Cm {
    /// Announces that the program will listen at the id's port soon (`soon`), or will not after
    /// all. Requests for the port are kept until it listens, at most 4 s from the first one on.
    ///
    /// # Errors
    /// [`crate::Error::StaleHandle`]; [`crate::Error::Invalid`]: no port, or not an idle id.
    pub fn announce(&mut self, id: Handle, soon: bool) -> Result<()> {
        self.bound(id)?;
        let i = self.check(id)?;
        let id = &mut self.ids[i];
        id.announced = soon;
        id.since = 0;
        Ok(())
    }

    /// The id that is about to listen at a port.
    fn announced(&self, ps: u16, port: u16) -> Option<usize> {
        let is = |&i: &usize| {
            let id = &self.ids[i];
            id.announced && id.state == State::Idle && id.ps == ps && id.port == port
        };
        self.pool.iter_live().find(is)
    }

    /// Whether an id listens at a port, or is about to.
    pub fn serves(&self, ps: u16, port: u16) -> bool {
        self.listener(ps, port).is_some() || self.announced(ps, port).is_some()
    }

    /// Keeps a request whose listener is about to come. False: the message is no such request.
    pub(super) fn keep_early(
        &mut self,
        now: u64,
        from: &PeerAddr,
        message: &Message<'_>,
        bytes: &[u8],
    ) -> bool {
        let (service_id, remote_id, datagram) = match message {
            Message::Req(m) => (m.service_id, m.local_comm_id, false),
            Message::SidrReq(m) => (m.service_id, m.request_id, true),
            _ => return false,
        };
        let Some((ps, port)) = input::asked(service_id, datagram) else { return false };
        // A repeated request is answered by the id of the first one.
        if self.listener(ps, port).is_some()
            || self.by_remote_id(remote_id, from, datagram).is_some()
        {
            return false;
        }
        let awaited = match self.announced(ps, port) {
            Some(i) => {
                let id = &mut self.ids[i];
                if id.since == 0 {
                    id.since = now.max(1);
                }
                now < id.since.saturating_add(LISTENER_GRACE_NS)
            }
            None => self.is_former(now, port),
        };
        let Some(mad) = bytes.first_chunk().filter(|_| awaited) else { return false };
        let same = |e: &Early| e.from == *from && e.mad == *mad;
        let place = self.early.iter().position(same).unwrap_or_else(|| {
            let first = self.early.iter().enumerate().min_by_key(|(_, e)| e.until);
            first.map_or(0, |(k, _)| k)
        });
        self.early[place] =
            Early { until: now.saturating_add(KEPT_NS), ps, port, from: *from, mad: *mad };
        true
    }

    /// Passes the requests that were kept for a port to its new listener.
    pub(super) fn take_early(&mut self, now: u64, ps: u16, port: u16) {
        for k in 0..self.early.len() {
            let e = self.early[k];
            if e.until != 0 && e.ps == ps && e.port == port {
                self.early[k].until = 0;
                if now < e.until {
                    self.dispatch(now, &e.from, &e.mad);
                }
            }
        }
    }
}
