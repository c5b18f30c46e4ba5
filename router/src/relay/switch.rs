//! Which packet goes where.
//!
//! The address of the sender is its ring's, so no session can name another's. What else a packet
//! says is looked at here: that it is one, that a datagram's source is the sender's own, that the
//! queue pair it names belongs to the address it names, and that policy lets the two talk.

use super::refused::Refused;
use super::slots::{Slots, SLOTS};
use crate::rate::Rate;
use gdrcore_core::cm::Addressee;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::engine::cm::GSI_QPN;
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::{Class, Kind, ICRC_LEN};
use gdrcore_net::via::proto::Service;
use std::ops::Range;
use std::sync::Arc;

/// Blocks of queue pair numbers: 24 bits of number, 14 of them within a block.
const BLOCKS: usize = (1 << 24) / QPN_UNIT as usize;
/// No slot.
const NOBODY: u16 = u16::MAX;
/// Messages of the connection manager that a session may send in a second.
const MADS_PER_SECOND: u32 = 1000;

/// What the relay knows of a session.
#[derive(Debug)]
pub struct Place {
    /// Its network's number.
    pub network: u32,
    /// Its address.
    pub gid: [u8; 16],
    /// Its blocks.
    pub blocks: Range<u32>,
}

struct Member {
    place: Place,
    mads: Rate,
}

/// A port that a session listens at; by network, address, port space and port.
type Listen = ((u32, [u8; 16], u16, u16), u16);

/// Who is where. All its memory is taken when it is made.
pub struct Switch {
    members: Vec<Option<Member>>,
    /// Slots by block.
    blocks: Vec<u16>,
    /// In order.
    listens: Vec<Listen>,
    slots: Arc<Slots>,
}

impl Switch {
    /// Nobody is there. `listens`: how many ports may be listened at.
    pub fn new(slots: Arc<Slots>, listens: usize) -> Switch {
        Switch {
            members: (0..SLOTS).map(|_| None).collect(),
            blocks: vec![NOBODY; BLOCKS],
            listens: Vec::with_capacity(listens),
            slots,
        }
    }

    /// A session has come. Who had the slot has left.
    pub fn join(&mut self, now: u64, slot: u16, place: Place) {
        for block in place.blocks.clone() {
            if let Some(entry) = self.blocks.get_mut(block as usize) {
                *entry = slot;
            }
        }
        if let Some(member) = self.members.get_mut(usize::from(slot)) {
            *member = Some(Member { place, mads: Rate::new(now, MADS_PER_SECOND) });
        }
    }

    /// It is gone.
    pub fn leave(&mut self, slot: u16) {
        if self.members.get_mut(usize::from(slot)).is_some_and(|m| m.take().is_some()) {
            self.blocks.iter_mut().filter(|b| **b == slot).for_each(|b| *b = NOBODY);
            self.listens.retain(|(_, of)| *of != slot);
        }
    }

    /// It listens at a port, or no more. One listener a port and address.
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

    fn place(&self, slot: u16) -> Option<&Place> {
        self.members.get(usize::from(slot))?.as_ref().map(|m| &m.place)
    }

    /// The address of a session.
    pub fn gid(&self, slot: u16) -> Option<[u8; 16]> {
        self.place(slot).map(|p| p.gid)
    }

    /// The slot that a packet of the session in `from` goes to, to whoever has the address `to`.
    ///
    /// # Errors
    /// [`Refused`]: to nobody.
    pub fn judge(
        &mut self,
        now: u64,
        from: u16,
        to: &[u8; 16],
        packet: &[u8],
    ) -> Result<u16, Refused> {
        let (body, _) = packet.split_last_chunk::<ICRC_LEN>().ok_or(Refused::Frame)?;
        let (run, payload) = Run::parse_packet(body).map_err(|_| Refused::Frame)?;
        let sender = self.place(from).ok_or(Refused::Source)?;
        let network = sender.network;
        if run.dest_qpn == GSI_QPN {
            if run.class != Class::Ud || run.kind != Kind::Send {
                return Err(Refused::Frame);
            }
            if run.src_qpn != GSI_QPN {
                return Err(Refused::Source);
            }
            return self.manager(now, from, network, to, payload);
        }
        let own = |qpn: u32| sender.blocks.contains(&(qpn / QPN_UNIT));
        match run.class {
            Class::Ud if !own(run.src_qpn) => return Err(Refused::Source),
            Class::Rc | Class::Uc | Class::Ud => {}
            Class::Cnp if payload.len() <= CNP_PAYLOAD => {}
            _ => return Err(Refused::Frame),
        }
        let slot = self.owner(network, to, run.dest_qpn / QPN_UNIT).ok_or(Refused::Qpn)?;
        self.allowed(from, slot)
    }

    fn allowed(&self, from: u16, to: u16) -> Result<u16, Refused> {
        if self.slots.may(from, to) {
            Ok(to)
        } else {
            Err(Refused::Policy)
        }
    }

    /// Who has a block, if the address is theirs.
    fn owner(&self, network: u32, gid: &[u8; 16], block: u32) -> Option<u16> {
        let slot = *self.blocks.get(block as usize)?;
        let place = self.place(slot)?;
        (place.network == network && place.gid == *gid).then_some(slot)
    }

    /// Whoever a message of the connection manager is for. All sessions of an address share QP1:
    /// the message says whose connection or which port it means, and where it does not, or nobody
    /// listens there, one of them answers as a device that is alone would.
    fn manager(
        &mut self,
        now: u64,
        from: u16,
        network: u32,
        to: &[u8; 16],
        mad: &[u8],
    ) -> Result<u16, Refused> {
        let sender = self.members.get_mut(usize::from(from)).and_then(Option::as_mut);
        if !sender.is_some_and(|m| m.mads.take(now)) {
            return Err(Refused::Rate);
        }
        let slot = match Addressee::of(mad) {
            Addressee::Block(block) => {
                return self
                    .owner(network, to, block.into())
                    .ok_or(Refused::Qpn)
                    .and_then(|slot| self.allowed(from, slot));
            }
            Addressee::Service { port_space, port } => {
                let key = (network, *to, port_space, port);
                let at = self.listens.binary_search_by_key(&key, |(key, _)| *key);
                at.ok().map(|at| self.listens[at].1)
            }
            Addressee::Anyone => None,
        };
        let there = |m: &Option<Member>| {
            m.as_ref().is_some_and(|m| m.place.network == network && m.place.gid == *to)
        };
        let slot = match slot {
            Some(slot) => slot,
            None => self.members.iter().position(there).ok_or(Refused::Address)? as u16,
        };
        self.allowed(from, slot)
    }
}

/// Bytes behind the BTH of a CNP: zeroes (IBTA annex A17).
const CNP_PAYLOAD: usize = 16;

#[cfg(test)]
mod tests;
