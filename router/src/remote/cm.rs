//! The connection manager of a session: its ids, and the events that wait for the tenant.
//!
//! The device has one connection manager for all sessions. An id belongs to the session that made
//! it, and that of a request to the session whose listener was asked. What a tenant says of a queue
//! pair has to be true of one of its own.
//!
//! A session's bell holds a message while events wait: one is sent where the first event comes, and
//! one where the tenant takes an event that is not the last.

use super::session::{Owners, Session, Sessions};
use gdrcore_core::cm::types::{cm_event, CmEvent, ConnParam};
use gdrcore_core::device::Device;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{AhAttr, Handle};
use gdrcore_net::remote::call::CmParam;
use gdrcore_net::remote::limits;
use gdrcore_net::rights::{self, Foreign};
use gdrcore_net::via::wire;
use std::os::fd::{AsFd, OwnedFd};

/// Events that wait for a tenant, at most.
const EVENTS_MAX: usize = 4 * limits::ID as usize;
/// Of them, requests for connections: others of every id find room beside them.
const REQUESTS_MAX: usize = EVENTS_MAX / 2;
/// Events of the device in a round.
pub(super) const EVENTS_PER_ROUND: usize = 256;

impl Session {
    /// Opens the connection manager.
    pub(super) fn open_cm(&mut self, d: &dyn Device) -> Result<((), OwnedFd)> {
        d.cm()?;
        if self.cm_bell.is_some() {
            return Err(refuse!(Busy, "the session has opened its connection manager"));
        }
        let [ours, theirs] = rights::pair()?;
        self.cm_bell = Some(Foreign::fresh(ours));
        Ok(((), theirs))
    }

    pub(super) fn make_id(
        &mut self,
        d: &dyn Device,
        owners: &mut Owners,
        space: u16,
        context: u64,
    ) -> Result<Handle> {
        if self.cm_bell.is_none() {
            return Err(refuse!(Invalid, "the session has not opened its connection manager"));
        }
        let handle = self.ids.make(|| d.cm()?.create(space, context))?;
        owners.insert(*self.ids.get(handle)?, (self.number, handle));
        Ok(handle)
    }

    pub(super) fn destroy_id(
        &mut self,
        d: &dyn Device,
        owners: &mut Owners,
        id: Handle,
    ) -> Result<()> {
        let cm = d.cm()?;
        owners.remove(&self.ids.end(id, |id| cm.destroy(*id))?);
        // Requests that the tenant has not seen end with their listener.
        let unseen = |e: &CmEvent| e.event == cm_event::CONNECT_REQUEST && e.listener == id;
        let requests: Vec<Handle> =
            self.cm_events.iter().filter(|e| unseen(e)).map(|e| e.id).collect();
        self.cm_events.retain(|e| e.id != id);
        requests.into_iter().try_for_each(|request| self.destroy_id(d, owners, request))
    }

    /// The device's queue pair of a call. The number that a peer is to connect to is one of the
    /// session's.
    fn own_qp(&self, qp: Handle, p: &ConnParam<'_>) -> Result<Handle> {
        if qp != 0 {
            return self.qps.get(qp).map(|q| q.device);
        }
        if p.qpn != 0 && !self.qps.iter().any(|q| q.number == p.qpn) {
            return Err(refuse!(Invalid, "qpn {:#x}: not of a queue pair of the session", p.qpn));
        }
        Ok(0)
    }

    pub(super) fn connect(
        &self,
        d: &dyn Device,
        ((id, to, port), qp, (p, data)): ((Handle, AhAttr, u16), Handle, CmParam),
    ) -> Result<()> {
        let (id, qp) = (*self.ids.get(id)?, self.own_qp(qp, &p)?);
        // Another tenant's listener looks at a request itself: whose it is, its port does not say.
        if !self.guard.is_here(&to) {
            self.guard.check(self.tenant, &to, 0)?;
        }
        d.cm()?.connect(id, &to, port, qp, &p.with_data(&data))
    }

    pub(super) fn accept(
        &self,
        d: &dyn Device,
        (id, qp, (p, data)): (Handle, Handle, CmParam),
    ) -> Result<()> {
        let (id, qp) = (*self.ids.get(id)?, self.own_qp(qp, &p)?);
        d.cm()?.accept(id, qp, &p.with_data(&data))
    }

    fn ring_cm(&self) {
        if let Some(bell) = &self.cm_bell {
            // One without room is full of such messages.
            let _ = wire::send_bytes(bell.as_fd(), &1u64.to_le_bytes(), None);
        }
    }

    /// The next event, if one waits.
    pub(super) fn take_cm_event(&mut self) -> Option<CmEvent> {
        let event = self.cm_events.pop_front();
        if !self.cm_events.is_empty() {
            self.ring_cm();
        }
        event
    }

    /// Whether policy lets the peer of a request reach the tenant. That of a datagram service names
    /// no queue pair yet.
    fn admits(&self, e: &CmEvent) -> bool {
        let is_unnamed = e.remote_qpn == 0 && self.guard.is_here(&e.peer);
        is_unnamed || self.guard.check(self.tenant, &e.peer, e.remote_qpn).is_ok()
    }

    /// Keeps an event of the device for the tenant. False: there is no room, or policy forbids it,
    /// and a request is to be refused.
    fn keep_cm_event(&mut self, owners: &mut Owners, e: &CmEvent) -> bool {
        let is_request = e.event == cm_event::CONNECT_REQUEST;
        if is_request && !self.admits(e) {
            return false;
        }
        if self.cm_events.len() >= if is_request { REQUESTS_MAX } else { EVENTS_MAX } {
            return false;
        }
        if is_request {
            let Ok(id) = self.ids.add(e.id) else { return false };
            owners.insert(e.id, (self.number, id));
        }
        let of = |h: Handle| owners.get(&h).map_or(0, |&(_, own)| own);
        let event = CmEvent { id: of(e.id), listener: of(e.listener), qp: of(e.qp), ..*e };
        self.cm_events.push_back(event);
        if self.cm_events.len() == 1 {
            self.ring_cm();
        }
        true
    }
}

/// Passes events of the device's connection manager on to their sessions. A request that a session
/// has no room for is refused. True: there was an event.
pub(super) fn pass_on(d: &dyn Device, sessions: &mut Sessions, owners: &mut Owners) -> bool {
    let Ok(cm) = d.cm() else { return false };
    for n in 0..EVENTS_PER_ROUND {
        let Ok(Some(e)) = cm.event() else { return n > 0 };
        let of = if e.listener != 0 { e.listener } else { e.id };
        let session = owners.get(&of).and_then(|(number, _)| sessions.get(*number));
        let kept = session.is_some_and(|s| s.keep_cm_event(owners, &e));
        if !kept && e.event == cm_event::CONNECT_REQUEST {
            let _ = cm.destroy(e.id);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::remote::shared_device::SharedDevice;
    use gdrcore_net::remote::call::MESSAGE_MAX;
    use gdrcore_net::via::wire::{receive, ReadOutcome};

    fn of(event: u32, id: Handle) -> CmEvent {
        CmEvent { event, id, ..CmEvent::default() }
    }

    #[test]
    fn events_are_kept_up_to_a_bound_however_full_the_bell_is() {
        let shared = SharedDevice::open("loopback").unwrap();
        let (mut owners, (mut session, _ends)) = (Owners::new(), Session::new(1).unwrap());
        let ((), theirs) = session.open_cm(shared.device()).unwrap();
        while wire::send_bytes(session.cm_bell.as_ref().unwrap().as_fd(), &[0; 8], None).is_ok() {}
        let mut kept = 0;
        for n in 0..EVENTS_MAX as u64 {
            let e = of(cm_event::CONNECT_REQUEST, n + 1);
            kept += usize::from(session.keep_cm_event(&mut owners, &e));
        }
        assert_eq!(kept, (limits::ID as usize).min(REQUESTS_MAX), "as many as there are ids");
        for _ in 0..2 * EVENTS_MAX {
            session.keep_cm_event(&mut owners, &of(cm_event::ADDR_CHANGE, 1));
        }
        let mut buffer = [0; MESSAGE_MAX + 1];
        let mut hear = || matches!(receive(theirs.as_fd(), &mut buffer), ReadOutcome::Message(_));
        // A tenant that takes an event by each message takes all of them.
        let mut taken = 0;
        while hear() {
            taken += usize::from(session.take_cm_event().is_some());
        }
        assert_eq!((taken, session.take_cm_event()), (EVENTS_MAX, None));
    }
}
