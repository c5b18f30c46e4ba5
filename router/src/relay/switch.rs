//! The destination of each packet.
//!
//! The sender's address is that of its ring, so a session cannot forge it. This checks the rest:
//! the packet is well formed, a datagram's source is one of the sender's queue pairs, the
//! destination queue pair belongs to the address, and policy lets the two talk.

use super::far::Far;
use super::refused::Refused;
use super::slots::{Slots, SLOTS};
use crate::policy::{Outside, Published};
use crate::rate::Rate;
use gdrcore_core::cm::{asked_address, Addressee};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::engine::cm::GSI_QPN;
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::{Class, PacketKind, ICRC_LEN};
use gdrcore_net::via::proto::Service;
use std::ops::Range;
use std::sync::Arc;

/// Blocks of queue pair numbers: 24 bits of number, 14 of them within a block.
const BLOCKS: usize = (1 << 24) / QPN_UNIT as usize;
/// No slot.
const NOBODY: u16 = u16::MAX;
/// Limit of a session's messages of the connection manager a second.
const MADS_PER_SECOND: u32 = 1000;

/// The network, address and blocks of a session.
#[derive(Debug)]
pub struct SessionAddress {
    /// Its network's number.
    pub network: u32,
    /// Its address.
    pub gid: [u8; 16],
    /// Its blocks.
    pub blocks: Range<u32>,
}

struct Session {
    place: SessionAddress,
    mads: Rate,
    /// The plain endpoints that it may talk to.
    outside: Option<Arc<Outside>>,
}

/// A port at which a session listens: the key is network, address, port space and port.
type Listen = ((u32, [u8; 16], u16, u16), u16);

/// The destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// To the session of a slot.
    Slot(u16),
    /// To a tenant of another host.
    Far(u32),
    /// To the plain endpoint of the address.
    Outside,
}

/// The destination of a plain endpoint's packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutsidePacket {
    /// The slot that it is for.
    pub slot: u16,
    /// It is a message of the connection manager, which may contain the host's address.
    pub is_mad: bool,
}

/// The table of sessions. It allocates only when it is made.
pub struct Switch {
    sessions: Vec<Option<Session>>,
    /// Slots by block.
    blocks: Vec<u16>,
    /// In order.
    listens: Vec<Listen>,
    slots: Arc<Slots>,
    far: Arc<Far>,
    published: Arc<Published>,
}

impl Switch {
    /// A table without sessions. `listens`: limit of the ports at which they listen.
    pub fn new(slots: Arc<Slots>, listens: usize) -> Switch {
        Switch {
            sessions: (0..SLOTS).map(|_| None).collect(),
            blocks: vec![NOBODY; BLOCKS],
            listens: Vec::with_capacity(listens),
            slots,
            far: Arc::default(),
            published: Arc::default(),
        }
    }

    /// Replaces the table of other hosts' tenants, and returns the old one.
    #[must_use]
    pub fn set_far(&mut self, far: Arc<Far>) -> Arc<Far> {
        std::mem::replace(&mut self.far, far)
    }

    /// Other hosts' tenants.
    pub fn far(&self) -> &Far {
        &self.far
    }

    /// Replaces the plain endpoints to which a slot may talk, and returns the old ones.
    pub fn set_outside(
        &mut self,
        slot: u16,
        outside: Option<Arc<Outside>>,
    ) -> Option<Arc<Outside>> {
        let session = self.sessions.get_mut(usize::from(slot)).and_then(Option::as_mut);
        match session {
            Some(session) => std::mem::replace(&mut session.outside, outside),
            None => outside,
        }
    }

    /// Replaces the tenants that answer at the host's address, and returns the old ones.
    #[must_use]
    pub fn set_published(&mut self, published: Arc<Published>) -> Arc<Published> {
        std::mem::replace(&mut self.published, published)
    }

    /// Adds a session. The slot must be free.
    pub fn join(&mut self, now: u64, slot: u16, place: SessionAddress) {
        for block in place.blocks.clone() {
            if let Some(entry) = self.blocks.get_mut(block as usize) {
                *entry = slot;
            }
        }
        if let Some(session) = self.sessions.get_mut(usize::from(slot)) {
            *session =
                Some(Session { place, mads: Rate::new(now, MADS_PER_SECOND), outside: None });
        }
    }

    /// Removes a session.
    pub fn leave(&mut self, slot: u16) {
        if self.sessions.get_mut(usize::from(slot)).and_then(Option::take).is_some() {
            self.blocks.iter_mut().filter(|b| **b == slot).for_each(|b| *b = NOBODY);
            self.listens.retain(|(_, of)| *of != slot);
        }
    }

    /// A session begins or ends to listen at a port. Each port of an address has one listener.
    pub fn listen(&mut self, slot: u16, service: Service, on: bool) {
        let Some(key) = self.place(slot).map(|p| (p.network, p.gid, service.space, service.port))
        else {
            return;
        };
        match self.listens.binary_search_by_key(&key, |(key, _)| *key) {
            Ok(at) if !on && self.listens[at].1 == slot => drop(self.listens.remove(at)),
            Err(at) if on && self.listens.len() < self.listens.capacity() => {
                self.listens.insert(at, (key, slot));
            }
            _ => {}
        }
    }

    fn place(&self, slot: u16) -> Option<&SessionAddress> {
        self.sessions.get(usize::from(slot))?.as_ref().map(|session| &session.place)
    }

    /// The address of a session.
    pub fn gid(&self, slot: u16) -> Option<[u8; 16]> {
        self.place(slot).map(|p| p.gid)
    }

    /// The destination of a packet from the session in `from` to the address `to`.
    ///
    /// # Errors
    /// [`Refused`]: it has none.
    pub fn route(
        &mut self,
        now: u64,
        from: u16,
        to: &[u8; 16],
        packet: &[u8],
    ) -> Result<Destination, Refused> {
        let sender = self.place(from).ok_or(Refused::Source)?;
        let network = sender.network;
        let (qpn, mad) = check_packet(packet, &sender.blocks)?;
        match mad {
            Some(mad) => self.route_mad(now, from, network, to, mad),
            None => match self.slot_of_block_and_gid(network, to, qpn / QPN_UNIT) {
                Some(slot) => self.allowed(from, slot),
                None if self.is_outside(from, to) && qpn > GSI_QPN => Ok(Destination::Outside),
                None => self.far_destination(from, network, to, Some(qpn / QPN_UNIT)),
            },
        }
    }

    /// The slot that is the destination of a packet of another host's tenant. `peer`: the tenant's
    /// number.
    ///
    /// # Errors
    /// [`Refused`]: it has none.
    pub fn route_far(&self, peer: u32, packet: &[u8]) -> Result<u16, Refused> {
        let sender = self.far.peer(peer).ok_or(Refused::Source)?;
        let (qpn, mad) = check_packet(packet, &sender.blocks)?;
        let slot = match mad {
            Some(mad) => self.slot_of_far_mad(sender.network, mad)?,
            None => self.of_network(sender.network, qpn / QPN_UNIT).ok_or(Refused::Qpn)?,
        };
        self.far.is_allowed(slot, peer).then_some(slot).ok_or(Refused::Policy)
    }

    /// The destination of a packet of a plain endpoint.
    ///
    /// # Errors
    /// [`Refused`]: it has none. [`Refused::Policy`]: the tenant does not talk to the endpoint.
    pub fn judge_outside(&self, from: &[u8; 16], packet: &[u8]) -> Result<OutsidePacket, Refused> {
        // An endpoint may use any queue pair number as its source.
        let (qpn, mad) = check_packet(packet, &(0..BLOCKS as u32))?;
        let slot = match mad.map(Addressee::from_mad) {
            None => self.of_block(qpn / QPN_UNIT).ok_or(Refused::Qpn)?,
            Some(Addressee::Block(block)) => self.of_block(block.into()).ok_or(Refused::Qpn)?,
            Some(Addressee::Service { port_space, port }) => {
                let (network, gid) =
                    self.published.find(port_space, port).ok_or(Refused::Address)?;
                self.listener_or_any(network, &gid, port_space, port).ok_or(Refused::Address)?
            }
            Some(Addressee::Anyone) => return Err(Refused::Address),
        };
        let packet = OutsidePacket { slot, is_mad: mad.is_some() };
        self.is_outside(slot, from).then_some(packet).ok_or(Refused::Policy)
    }

    /// Whether any session may talk to plain endpoints.
    pub fn talks_outside(&self) -> bool {
        self.sessions.iter().flatten().any(|session| session.outside.is_some())
    }

    /// Whether an address is a plain endpoint's, and the slot may talk to it.
    fn is_outside(&self, slot: u16, gid: &[u8; 16]) -> bool {
        let session = self.sessions.get(usize::from(slot)).and_then(Option::as_ref);
        let outside = session.and_then(|session| session.outside.as_ref());
        outside.is_some_and(|outside| outside.is_allowed(gid)) && !self.slots.is_expelled(slot)
    }

    /// The slot that has a block, in any network.
    fn of_block(&self, block: u32) -> Option<u16> {
        self.blocks.get(block as usize).copied().filter(|slot| *slot != NOBODY)
    }

    /// The slot that is the destination of a message from another host's connection manager. The
    /// packet goes between hosts' addresses, so the message itself names the destination: by the
    /// number of a connection, or by the address in a request.
    fn slot_of_far_mad(&self, network: u32, mad: &[u8]) -> Result<u16, Refused> {
        match Addressee::from_mad(mad) {
            Addressee::Block(block) => self.of_network(network, block.into()).ok_or(Refused::Qpn),
            Addressee::Service { port_space, port } => {
                let gid = asked_address(mad).ok_or(Refused::Address)?;
                self.listener_or_any(network, &gid, port_space, port).ok_or(Refused::Address)
            }
            Addressee::Anyone => Err(Refused::Address),
        }
    }

    /// The tenant of another host that has the address, and the block, if the caller names one.
    fn far_destination(
        &self,
        from: u16,
        network: u32,
        to: &[u8; 16],
        block: Option<u32>,
    ) -> Result<Destination, Refused> {
        let peer = self.far.find(network, to);
        let of = |peer: &u32| {
            self.far.peer(*peer).is_some_and(|p| block.is_none_or(|b| p.blocks.contains(&b)))
        };
        let peer = peer.filter(of).ok_or(Refused::Qpn)?;
        self.far.is_allowed(from, peer).then_some(Destination::Far(peer)).ok_or(Refused::Policy)
    }

    fn allowed(&self, from: u16, to: u16) -> Result<Destination, Refused> {
        self.slots.is_allowed(from, to).then_some(Destination::Slot(to)).ok_or(Refused::Policy)
    }

    /// The slot that has a block, if the address is its own too.
    fn slot_of_block_and_gid(&self, network: u32, gid: &[u8; 16], block: u32) -> Option<u16> {
        let slot = self.of_network(network, block)?;
        (self.place(slot)?.gid == *gid).then_some(slot)
    }

    /// The slot of a network that has a block.
    fn of_network(&self, network: u32, block: u32) -> Option<u16> {
        let slot = *self.blocks.get(block as usize)?;
        (self.place(slot)?.network == network).then_some(slot)
    }

    /// The slot that listens at a port of an address; without a listener, any slot of the address.
    fn listener_or_any(&self, network: u32, gid: &[u8; 16], space: u16, port: u16) -> Option<u16> {
        let key = (network, *gid, space, port);
        let listens = self.listens.binary_search_by_key(&key, |(key, _)| *key).ok();
        listens.map(|at| self.listens[at].1).or_else(|| self.any_slot(network, gid))
    }

    /// Any slot of an address.
    fn any_slot(&self, network: u32, gid: &[u8; 16]) -> Option<u16> {
        let is_there = |s: &Session| s.place.network == network && s.place.gid == *gid;
        let slot = self.sessions.iter().position(|s| s.as_ref().is_some_and(is_there));
        slot.map(|slot| slot as u16)
    }

    /// The destination of a message of the connection manager. All sessions of an address share
    /// QP1, so the message decides: it names a connection or a port. Without either, or without a
    /// listener there, any of them answers, as a single device would.
    fn route_mad(
        &mut self,
        now: u64,
        from: u16,
        network: u32,
        to: &[u8; 16],
        mad: &[u8],
    ) -> Result<Destination, Refused> {
        let sender = self.sessions.get_mut(usize::from(from)).and_then(Option::as_mut);
        if !sender.is_some_and(|session| session.mads.take(now)) {
            return Err(Refused::Rate);
        }
        let addressee = Addressee::from_mad(mad);
        if self.is_outside(from, to) {
            return Ok(Destination::Outside);
        }
        if self.far.find(network, to).is_some() {
            let block = match addressee {
                Addressee::Block(block) => Some(block.into()),
                _ => None,
            };
            return self.far_destination(from, network, to, block);
        }
        let slot = match addressee {
            Addressee::Block(block) => {
                self.slot_of_block_and_gid(network, to, block.into()).ok_or(Refused::Qpn)?
            }
            Addressee::Service { port_space, port } => {
                self.listener_or_any(network, to, port_space, port).ok_or(Refused::Address)?
            }
            Addressee::Anyone => self.any_slot(network, to).ok_or(Refused::Address)?,
        };
        self.allowed(from, slot)
    }
}

/// Checks a packet of a sender with the blocks `own`. Returns the destination queue pair, and the
/// message if that is QP1.
fn check_packet<'p>(
    packet: &'p [u8],
    own: &Range<u32>,
) -> Result<(u32, Option<&'p [u8]>), Refused> {
    let (body, _) = packet.split_last_chunk::<ICRC_LEN>().ok_or(Refused::Frame)?;
    let (run, payload) = Run::parse_packet(body).map_err(|_| Refused::Frame)?;
    if run.dest_qpn == GSI_QPN {
        if run.class != Class::Ud || run.kind != PacketKind::Send {
            return Err(Refused::Frame);
        }
        if run.src_qpn != GSI_QPN {
            return Err(Refused::Source);
        }
        return Ok((run.dest_qpn, Some(payload)));
    }
    match run.class {
        Class::Ud if !own.contains(&(run.src_qpn / QPN_UNIT)) => Err(Refused::Source),
        Class::Rc | Class::Uc | Class::Ud | Class::Xrc => Ok((run.dest_qpn, None)),
        Class::Cnp if payload.len() <= CNP_PAYLOAD => Ok((run.dest_qpn, None)),
        _ => Err(Refused::Frame),
    }
}

/// Bytes behind the BTH of a CNP: zeroes (IBTA annex A17).
const CNP_PAYLOAD: usize = 16;

#[cfg(test)]
mod tests;
