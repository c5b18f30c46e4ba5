//! Packets of a peer that says what it likes, signed as its host would sign them, and what is
//! answered to them.

use std::cell::RefCell;
use std::rc::Rc;

use gdrcore_core::wire::{Aeth, Bth, Opcode, Psn, Qpn, Reth};

use crate::util::*;

/// A packet under construction.
pub struct Raw {
    pub bth: Bth,
    rest: Vec<u8>,
}

impl Raw {
    /// One for the QP of `to`, `ahead` PSNs beyond the first that every QP of these tests expects.
    pub fn new(opcode: Opcode, to: &End, ahead: u32) -> Raw {
        let psn = Psn::new(PSN).add(ahead);
        Raw { bth: Bth::new(opcode, Qpn::new(to.qpn), psn), rest: Vec::new() }
    }

    /// Its last packet of a message asks for an ACK, as a requester's does.
    pub fn asks(mut self) -> Raw {
        self.bth.ack_req = true;
        self
    }

    pub fn reth(self, va: u64, rkey: u32, len: u32) -> Raw {
        let mut b = [0; Reth::LEN];
        Reth { va, rkey, len }.emit(&mut b);
        self.bytes(&b)
    }

    pub fn aeth(self, syndrome: u8) -> Raw {
        let mut b = [0; Aeth::LEN];
        Aeth { syndrome, msn: 0 }.emit(&mut b);
        self.bytes(&b)
    }

    pub fn bytes(mut self, b: &[u8]) -> Raw {
        self.rest.extend_from_slice(b);
        self
    }

    /// A payload of so many bytes, and its padding.
    pub fn payload(mut self, len: usize) -> Raw {
        self.bth.pad = (len.wrapping_neg() & 3) as u8;
        self.rest.resize(self.rest.len() + len.next_multiple_of(4), 0x5a);
        self
    }

    /// Its bytes, signed as by the host `from`, with an IPv4 identification.
    pub fn signed(&self, net: &Net, from: usize, to: usize, ident: u16) -> Vec<u8> {
        let mut p = vec![0; Bth::LEN];
        self.bth.emit(p.first_chunk_mut().unwrap());
        p.extend_from_slice(&self.rest);
        p.extend_from_slice(&[0; 4]);
        flow(net, from, to).append_icrc(ident, &mut p);
        p
    }

    /// Puts it on the wire as if `from` had sent it.
    pub fn inject(&self, net: &mut Net, from: usize, to: usize) {
        let p = self.signed(net, from, to, 0);
        net.inject(from, to, &p);
    }
}

/// A packet that host 1 has sent: its opcode, its PSN counted from [`PSN`], and the syndrome of its
/// AETH, where it has one.
pub type Said = (Opcode, u32, Option<u8>);

/// Loses whatever host 1 sends, and writes it down.
pub fn overhear(net: &mut Net) -> Notes<Said> {
    let log = Rc::<RefCell<Vec<Said>>>::default();
    let tee = log.clone();
    net.tap = Some(Box::new(move |from, p| {
        if from == 0 {
            return Fate::Deliver;
        }
        let bth = Bth::parse(p.first_chunk().unwrap());
        let ahead = bth.psn.diff(Psn::new(PSN)) as u32;
        let said = bth.opcode.has_aeth().then(|| p[Bth::LEN]);
        tee.borrow_mut().push((bth.opcode, ahead, said));
        Fate::Drop
    }));
    log
}

/// What host 1 answers to packets that host 0 sends it.
pub fn answers(net: &mut Net, packets: &[Raw]) -> Vec<Said> {
    let log = overhear(net);
    packets.iter().for_each(|p| p.inject(net, 0, 1));
    net.settle();
    net.tap = None;
    log.take()
}
