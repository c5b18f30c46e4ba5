//! A received packet, borrowed. A view promises that its accessors do not panic, and nothing about
//! what is legal.

use core::fmt;

use super::headers::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use super::opcode::Opcode;

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Too short for the headers and the pad, not a multiple of 4, or bytes after a packet that
    /// carries none.
    Length,
    /// A transport version other than 0.
    Version,
    /// An opcode that this library does not know.
    UnknownOpcode(Opcode),
    /// Reserved bits or pad bytes are not zero. Only [`super::Packet`] looks at them.
    Reserved,
    /// The headers do not belong to the opcode, or the payload's length is not legal for it.
    NotLegal,
    /// The buffer to write to is too short.
    NoRoom,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Length => f.write_str("packet length does not fit its opcode"),
            Malformed::Version => f.write_str("transport version is not 0"),
            Malformed::UnknownOpcode(op) => write!(f, "opcode {:#04x} is not known", op.0),
            Malformed::Reserved => f.write_str("reserved bits are set"),
            Malformed::NotLegal => f.write_str("headers or payload are not legal for the opcode"),
            Malformed::NoRoom => f.write_str("buffer too short for the packet"),
        }
    }
}

/// A packet from the BTH to the end of the pad, without ICRC.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    bth: Bth,
}

impl<'a> View<'a> {
    /// Checks that the opcode is known and that headers and pad fit. Cost: a few nanoseconds.
    #[inline]
    pub fn parse(packet: &'a [u8]) -> Result<View<'a>, Malformed> {
        let Some(head) = packet.first_chunk() else { return Err(Malformed::Length) };
        let bth = Bth::parse(head);
        let opcode = bth.opcode;
        if bth.tver != 0 {
            return Err(Malformed::Version);
        }
        if !opcode.is_known() {
            return Err(Malformed::UnknownOpcode(opcode));
        }
        let Some(body) = packet.len().checked_sub(opcode.header_len()) else {
            return Err(Malformed::Length);
        };
        if !packet.len().is_multiple_of(4)
            || body < bth.pad as usize
            || (body != 0 && !opcode.has_payload())
        {
            return Err(Malformed::Length);
        }
        Ok(View { bytes: packet, bth })
    }

    /// The base transport header.
    #[inline]
    pub fn bth(&self) -> Bth {
        self.bth
    }

    /// The opcode.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.bth.opcode
    }

    /// All bytes that the view was made of.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The header of `N` bytes at `at`; `parse` made sure that it is there.
    #[inline]
    fn header<const N: usize>(&self, at: usize) -> Option<&'a [u8; N]> {
        self.bytes.get(at..)?.first_chunk()
    }

    /// Where the headers behind BTH and XRCETH begin.
    #[inline]
    fn behind(&self) -> usize {
        Bth::LEN + if self.opcode().has_xrceth() { XrcEth::LEN } else { 0 }
    }

    /// The XRCETH of requests of XRC.
    #[inline]
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.opcode().has_xrceth().then(|| self.header(Bth::LEN).map(XrcEth::parse))?
    }

    /// The DETH of UD packets.
    #[inline]
    pub fn deth(&self) -> Option<Deth> {
        self.opcode().has_deth().then(|| self.header(Bth::LEN).map(Deth::parse))?
    }

    /// The RETH of WRITE, READ, FLUSH and ATOMIC WRITE requests.
    #[inline]
    pub fn reth(&self) -> Option<Reth> {
        let at = self.behind() + if self.opcode().has_feth() { Feth::LEN } else { 0 };
        self.opcode().has_reth().then(|| self.header(at).map(Reth::parse))?
    }

    /// The AtomicETH of CMP_SWAP and FETCH_ADD.
    #[inline]
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.opcode().has_atomic_eth().then(|| self.header(self.behind()).map(AtomicEth::parse))?
    }

    /// The AETH of answers.
    #[inline]
    pub fn aeth(&self) -> Option<Aeth> {
        self.opcode().has_aeth().then(|| self.header(Bth::LEN).map(Aeth::parse))?
    }

    /// The AtomicAckETH of answers to atomics.
    #[inline]
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.opcode()
            .has_atomic_ack()
            .then(|| self.header(Bth::LEN + Aeth::LEN).map(AtomicAckEth::parse))?
    }

    /// Immediate data: always the last header.
    #[inline]
    pub fn imm(&self) -> Option<ImmDt> {
        let at = self.opcode().header_len() - ImmDt::LEN;
        self.opcode().has_imm().then(|| self.header(at).map(ImmDt::parse))?
    }

    /// The key that the receiver shall invalidate.
    #[inline]
    pub fn ieth(&self) -> Option<Ieth> {
        self.opcode().has_ieth().then(|| self.header(self.behind()).map(Ieth::parse))?
    }

    /// The FETH of FLUSH.
    #[inline]
    pub fn feth(&self) -> Option<Feth> {
        self.opcode().has_feth().then(|| self.header(self.behind()).map(Feth::parse))?
    }

    /// The payload, without the pad.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(self.bth.pad as usize);
        self.bytes.get(self.opcode().header_len()..end).unwrap_or(&[])
    }

    /// The pad bytes after the payload.
    #[inline]
    pub fn pad(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(self.bth.pad as usize);
        self.bytes.get(end..).unwrap_or(&[])
    }
}
