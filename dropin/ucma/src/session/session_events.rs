//! Puts events from the connection manager and from commands into the queue of a channel, and
//! passes them from there to the program.

use gdrcore_core::cm::arrival;
use gdrcore_core::cm::types::{cm_event, CmEvent, DATA_MAX};
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{qp_type, AhAttr};
use gdrcore_core::{Error, Result};

use super::{CmSession, Devices, Manager, ManagerId, ProgramId, Stage};
use crate::proto::{event_answer, events_reported, Addr, EventParam};

/// Events that only this layer raises (numbers of `rdma_cm_event_type`).
pub(super) mod number {
    pub const ADDR_RESOLVED: u32 = 0;
    pub const ADDR_ERROR: u32 = 1;
    pub const ROUTE_RESOLVED: u32 = 2;
    pub const MULTICAST_JOIN: u32 = 12;
    /// A program's own, and librdmacm's own: `RDMA_CM_EVENT_USER` and `_INTERNAL`.
    pub const USER: u32 = 18;
    pub const INTERNAL: u32 = 19;
}

/// An event that the program has not taken yet.
pub(super) struct Event {
    /// The time at which it came ([`arrival`]).
    arrival: u64,
    /// The id that counts the event; for a connection request the listener.
    id: u32,
    /// The group concerned, which counts the event too.
    group: Option<u32>,
    /// The id in the answer: the same, or the new id of a connection request.
    about: u32,
    number: u32,
    status: i32,
    payload: EventPayload,
}

enum EventPayload {
    Nothing,
    Argument(u64),
    Connection(Box<CmEvent>),
    Group { ah: AhAttr, gid_index: u8, qkey: u32 },
}

impl<D: Devices> CmSession<D> {
    /// Takes the events of the connection managers. Returns their number.
    pub fn pump(&mut self) -> usize {
        let mut managers: Vec<(usize, Manager)> = Vec::new();
        for id in self.ids.values() {
            for end in &id.ends {
                if managers.iter().all(|(d, _)| *d != end.device) {
                    managers.push((end.device, end.manager.clone()));
                }
            }
        }
        let mut taken = 0;
        loop {
            let before = taken;
            for (device, manager) in &managers {
                // The only error is that this is the child of a fork, which has no events.
                while let Ok(Some(e)) = manager.event() {
                    taken += 1;
                    self.on_event(*device, manager, e);
                }
            }
            // A device that was asked before may have an earlier event by now: ask again.
            if taken == before || managers.len() < 2 {
                return taken;
            }
        }
    }

    fn on_event(&mut self, device: usize, manager: &Manager, e: CmEvent) {
        if e.event == cm_event::CONNECT_REQUEST {
            return self.on_request(device, manager, e);
        }
        let Some(&id) = self.by_handle.get(&(device, e.id)) else { return };
        let (number, arrival) = (e.event, e.arrival);
        let of_interface = matches!(number, cm_event::ADDR_CHANGE | cm_event::DEVICE_REMOVAL);
        // An id that the program does not know yet has no receiver for the event; its accept will
        // fail. An id on all devices survives the loss of one.
        let has_receiver = |i: &ProgramId| i.uid != 0 && !(of_interface && i.device.is_none());
        if self.ids.get(&id).is_some_and(has_receiver) {
            self.raise(
                id,
                Event {
                    arrival,
                    id,
                    group: None,
                    about: id,
                    number,
                    status: e.status,
                    payload: EventPayload::Connection(Box::new(e)),
                },
            );
        }
    }

    /// A peer's request to a listener: makes an id in the listener's channel.
    fn on_request(&mut self, device: usize, manager: &Manager, e: CmEvent) {
        let listener = self.by_handle.get(&(device, e.listener)).copied();
        let Some((listener, l)) = listener.and_then(|l| Some((l, self.ids.get(&l)?))) else {
            // The listener has ended, so the request ends, too.
            let _ = manager.destroy(e.id);
            return;
        };
        let like = l.src.unwrap_or(Addr::from_gid(&[0; 16], 0, 0));
        let peer = Addr::from_gid(&e.peer.dgid, e.peer.scope_id, e.remote_port);
        let (channel, ps, ack_timeout) = (l.channel, l.ps, l.ack_timeout);
        // The request of a connection names a traffic class; that of a datagram service does not.
        let asked = (e.qp_type != qp_type::UD).then_some(e.peer.traffic_class);
        let traffic_class = asked.unwrap_or(l.traffic_class);
        // The library moves the QP before the program passes the RNR retry count to accept. Most
        // programs pass the request's count.
        let rnr_endless = e.rnr_retry == super::RNR_ENDLESS;
        let src = self.own_address(device, e.local_port, if like.is_any() { &peer } else { &like });
        let id = self.fresh();
        self.by_handle.insert((device, e.id), id);
        self.ids.insert(
            id,
            ProgramId {
                stage: Stage::Requested,
                ends: vec![ManagerId { device, handle: e.id, manager: manager.clone() }],
                device: Some(device),
                src: Some(src),
                dst: Some(peer),
                traffic_class,
                ack_timeout,
                rnr_endless,
                ..ProgramId::new(channel, ps, e.qp_type, 0)
            },
        );
        let (number, arrival) = (e.event, e.arrival);
        let payload = EventPayload::Connection(Box::new(e));
        self.raise(
            listener,
            Event { arrival, id: listener, group: None, about: id, number, status: 0, payload },
        );
    }

    /// Queues an event in its id's channel, in the order of arrival.
    fn raise(&mut self, id: u32, event: Event) {
        let channel = self.ids.get(&id).map(|i| i.channel);
        if let Some(c) = channel.and_then(|c| self.channels.get_mut(&c)) {
            let later = c.events.iter().rev().take_while(|e| e.arrival > event.arrival).count();
            c.events.insert(c.events.len() - later, event);
        }
    }

    /// Queues an event of this layer behind those that the devices have already.
    fn raise_now(
        &mut self,
        id: u32,
        group: Option<u32>,
        (number, status): (u32, i32),
        payload: EventPayload,
    ) {
        self.pump();
        let arrival = arrival();
        self.raise(id, Event { arrival, id, group, about: id, number, status, payload });
    }

    /// Raises an event for a command.
    pub(super) fn raise_plain(&mut self, id: u32, number: u32, status: i32) {
        self.raise_now(id, None, (number, status), EventPayload::Nothing);
    }

    /// WRITE_CM_EVENT: a program's own event, or the library's when it has resolved a name.
    pub(super) fn write_event(
        &mut self,
        id: u32,
        event: u32,
        status: u32,
        argument: u64,
    ) -> Result<()> {
        // An id that is not accepted yet has no object in the library.
        if !matches!(event, number::USER | number::INTERNAL) || self.id(id)?.uid == 0 {
            return Err(refuse!(
                Invalid,
                "event {event}: RDMA_CM_EVENT_USER or _INTERNAL, of an id that is the program's"
            ));
        }
        self.raise_now(id, None, (event, status as i32), EventPayload::Argument(argument));
        Ok(())
    }

    pub(super) fn raise_joined(
        &mut self,
        id: u32,
        group: u32,
        ah: AhAttr,
        gid_index: u8,
        qkey: u32,
    ) {
        let payload = EventPayload::Group { ah, gid_index, qkey };
        self.raise_now(id, Some(group), (number::MULTICAST_JOIN, 0), payload);
    }

    pub(super) fn get_event(&mut self, channel: u32) -> Result<Vec<u8>> {
        let c = self.channels.get_mut(&channel).ok_or(Error::Os(9))?;
        let e = c.events.pop_front().ok_or(Error::Again)?;
        let (mut uid, mut status) = (0, e.status);
        if let Some(id) = self.ids.get_mut(&e.id) {
            id.reported = id.reported.wrapping_add(1);
            uid = id.uid;
            // When a process dies, its kernel sends the peer a DREQ, and rsockets does not take a
            // DISCONNECTED with a status for the end. So the status remains only if the program
            // itself has asked for the end.
            if e.number == cm_event::DISCONNECTED && !id.disconnects {
                status = 0;
            }
        }
        if let Some(g) = e.group.and_then(|g| self.groups.get_mut(&g)) {
            g.reported = g.reported.wrapping_add(1);
            uid = g.uid;
        }
        let param = match &e.payload {
            EventPayload::Nothing => EventParam::None,
            EventPayload::Argument(argument) => EventParam::Argument(*argument),
            EventPayload::Group { ah, gid_index, qkey } => EventParam::Ud {
                qp_num: super::BITS_24,
                qkey: *qkey,
                ah: *ah,
                gid_index: *gid_index,
                private_data: &[],
            },
            EventPayload::Connection(c) => self.connection_param(e.about, c),
        };
        Ok(event_answer(uid, e.about, e.number, status, &param))
    }

    fn connection_param<'c>(&self, about: u32, c: &'c CmEvent) -> EventParam<'c> {
        let id = self.ids.get(&about);
        if id.is_some_and(ProgramId::is_datagram) {
            let device = id.and_then(|i| i.device).and_then(|d| self.devices.list().get(d));
            return EventParam::Ud {
                qp_num: c.remote_qpn,
                qkey: c.qkey,
                ah: AhAttr { traffic_class: id.map_or(0, |i| i.traffic_class), ..c.peer },
                gid_index: device.map_or(0, |d| d.gid_index),
                private_data: c.private_data(),
            };
        }
        EventParam::Conn {
            qp_num: c.remote_qpn,
            private_data: c.private_data(),
            srq: c.srq,
            responder_resources: c.responder_resources,
            initiator_depth: c.initiator_depth,
            retry_count: c.retry_count,
            rnr_retry_count: c.rnr_retry,
        }
    }

    /// Drops the events of an id that is removed. Connection requests among them end with their
    /// listener.
    pub(super) fn drop_events(&mut self, channel: u32, id: u32) {
        let Some(c) = self.channels.get_mut(&channel) else { return };
        let mut untaken = Vec::new();
        c.events.retain(|e| {
            if e.id == id && e.about != id {
                untaken.push(e.about);
            }
            e.id != id
        });
        for request in untaken {
            self.remove(request);
        }
    }

    /// Drops the events of a group that the program has left.
    pub(super) fn drop_group_events(&mut self, id: u32, group: u32) {
        let channel = self.ids.get(&id).map(|i| i.channel);
        if let Some(c) = channel.and_then(|c| self.channels.get_mut(&c)) {
            c.events.retain(|e| e.group != Some(group));
        }
    }

    /// MIGRATE_ID: moves an id and its events to another channel, where they are also in the order
    /// of arrival.
    pub(super) fn migrate(&mut self, id: u32, to: u32) -> Result<Vec<u8>> {
        let i = self.id_mut(id)?;
        let from = core::mem::replace(&mut i.channel, to);
        let reported = i.reported;
        let mut moved = Vec::new();
        if let Some(c) = self.channels.get_mut(&from) {
            let (go, stay): (Vec<_>, Vec<_>) = c.events.drain(..).partition(|e| e.id == id);
            c.events = stay.into();
            moved = go;
        }
        for e in moved {
            // A connection request that the program has not taken moves with its listener.
            if e.about != id {
                if let Some(request) = self.ids.get_mut(&e.about) {
                    request.channel = to;
                }
            }
            self.raise(id, e);
        }
        Ok(events_reported(reported))
    }
}

const _: () = assert!(DATA_MAX < crate::proto::DATA_MAX);
