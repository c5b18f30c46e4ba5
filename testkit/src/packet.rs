//! Packets as a test reads and writes them, with code of their own: the product's is
//! [`gdrcore_core::roce::run::Run`].
//!
//! [`View`] borrows a received packet and promises only not to panic; [`Packet`] holds only what is
//! legal, so that `emit(parse(x)) == x`.

use core::fmt;

use gdrcore_core::verbs::post::MAX_MESSAGE;
use gdrcore_core::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Opcode, PacketKind, Reth, XrcEth,
};

/// The longest payload of any packet: the largest path MTU.
const MAX_PAYLOAD: usize = 4096;

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Illegal(pub &'static str);

const LENGTH: Illegal = Illegal("a length that does not fit the opcode");
const NO_ROOM: Illegal = Illegal("a buffer that is too short");

impl fmt::Display for Illegal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// A packet from the BTH to the end of the pad, without ICRC.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    bytes: &'a [u8],
    bth: Bth,
}

impl<'a> View<'a> {
    /// Checks that the opcode is known and that headers and pad fit.
    pub fn parse(packet: &'a [u8]) -> Result<View<'a>, Illegal> {
        let Some(head) = packet.first_chunk() else { return Err(LENGTH) };
        let bth = Bth::parse(head);
        let opcode = bth.opcode;
        if bth.tver != 0 {
            return Err(Illegal("a transport version other than 0"));
        }
        if !opcode.is_known() {
            return Err(Illegal("an unknown opcode"));
        }
        let Some(body) = packet.len().checked_sub(opcode.header_len()) else {
            return Err(LENGTH);
        };
        if !packet.len().is_multiple_of(4)
            || body < bth.pad as usize
            || (body != 0 && !opcode.has_payload())
        {
            return Err(LENGTH);
        }
        Ok(View { bytes: packet, bth })
    }

    /// The base transport header.
    pub fn bth(&self) -> Bth {
        self.bth
    }

    /// The opcode.
    pub fn opcode(&self) -> Opcode {
        self.bth.opcode
    }

    /// All bytes that the view was made of.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The header of `N` bytes at `at`; `parse` made sure that it is there.
    fn header<const N: usize>(&self, at: usize) -> Option<&'a [u8; N]> {
        self.bytes.get(at..)?.first_chunk()
    }

    /// Where the headers behind BTH and XRCETH begin.
    fn behind(&self) -> usize {
        Bth::LEN + if self.opcode().has_xrceth() { XrcEth::LEN } else { 0 }
    }

    /// The XRCETH of requests of XRC.
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.opcode().has_xrceth().then(|| self.header(Bth::LEN).map(XrcEth::parse))?
    }

    /// The DETH of UD packets.
    pub fn deth(&self) -> Option<Deth> {
        self.opcode().has_deth().then(|| self.header(Bth::LEN).map(Deth::parse))?
    }

    /// The RETH of requests that name memory, but for atomics.
    pub fn reth(&self) -> Option<Reth> {
        let at = self.behind() + if self.opcode().has_feth() { Feth::LEN } else { 0 };
        self.opcode().has_reth().then(|| self.header(at).map(Reth::parse))?
    }

    /// The AtomicETH of CMP_SWAP and FETCH_ADD.
    pub fn atomic_eth(&self) -> Option<AtomicEth> {
        self.opcode().has_atomic_eth().then(|| self.header(self.behind()).map(AtomicEth::parse))?
    }

    /// The AETH of answers.
    pub fn aeth(&self) -> Option<Aeth> {
        self.opcode().has_aeth().then(|| self.header(Bth::LEN).map(Aeth::parse))?
    }

    /// The AtomicAckETH of answers to atomics.
    pub fn atomic_ack(&self) -> Option<AtomicAckEth> {
        self.opcode()
            .has_atomic_ack()
            .then(|| self.header(Bth::LEN + Aeth::LEN).map(AtomicAckEth::parse))?
    }

    /// Immediate data: always the last header.
    pub fn imm(&self) -> Option<ImmDt> {
        let at = self.opcode().header_len() - ImmDt::LEN;
        self.opcode().has_imm().then(|| self.header(at).map(ImmDt::parse))?
    }

    /// The key that the receiver shall invalidate.
    pub fn ieth(&self) -> Option<Ieth> {
        self.opcode().has_ieth().then(|| self.header(self.behind()).map(Ieth::parse))?
    }

    /// The FETH of FLUSH.
    pub fn feth(&self) -> Option<Feth> {
        self.opcode().has_feth().then(|| self.header(self.behind()).map(Feth::parse))?
    }

    /// The payload, without the pad.
    pub fn payload(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(self.bth.pad as usize);
        self.bytes.get(self.opcode().header_len()..end).unwrap_or(&[])
    }

    /// The pad bytes after the payload.
    pub fn pad(&self) -> &'a [u8] {
        let end = self.bytes.len().saturating_sub(self.bth.pad as usize);
        self.bytes.get(end..).unwrap_or(&[])
    }
}

/// A legal packet without its ICRC. Payload bytes are borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    bth: Bth,
    xrceth: Option<XrcEth>,
    deth: Option<Deth>,
    feth: Option<Feth>,
    reth: Option<Reth>,
    atomic: Option<AtomicEth>,
    aeth: Option<Aeth>,
    atomic_ack: Option<AtomicAckEth>,
    imm: Option<ImmDt>,
    ieth: Option<Ieth>,
    payload: &'a [u8],
}

impl Packet<'_> {
    /// Bytes that [`Packet::emit`] writes.
    pub fn emitted_len(&self) -> usize {
        self.bth.opcode.header_len() + self.payload.len() + self.bth.pad as usize
    }

    /// Writes headers, payload and pad, but no ICRC, and returns how many bytes these are. Nothing
    /// is written if there is no room for all.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, Illegal> {
        let len = self.emitted_len();
        let mut rest = buf.get_mut(..len).ok_or(NO_ROOM)?;
        macro_rules! put {
            ($($header:expr),*) => {
                $(if let Some(header) = $header {
                    let (head, behind) = rest.split_first_chunk_mut().ok_or(NO_ROOM)?;
                    header.emit(head);
                    rest = behind;
                })*
            };
        }
        put!(Some(self.bth), self.xrceth, self.deth, self.feth, self.reth, self.atomic);
        put!(self.aeth, self.atomic_ack, self.imm, self.ieth);
        let (body, pad) = rest.split_at_mut_checked(self.payload.len()).ok_or(NO_ROOM)?;
        body.copy_from_slice(self.payload);
        pad.fill(0);
        Ok(len)
    }
}

impl<'a> TryFrom<View<'a>> for Packet<'a> {
    type Error = Illegal;

    fn try_from(view: View<'a>) -> Result<Packet<'a>, Illegal> {
        let (op, reth, payload) = (view.opcode(), view.reth(), view.payload());
        let len = payload.len();
        let len_legal = match op.kind() {
            PacketKind::Send | PacketKind::Write | PacketKind::ReadResponse => {
                len <= MAX_PAYLOAD && (len > 0 || (op.is_first() && op.is_last()))
            }
            PacketKind::AtomicWrite => len == 8,
            PacketKind::Cnp => len == 16 && payload.iter().all(|&b| b == 0),
            _ => len == 0,
        };
        let reth_legal = reth.is_none_or(|reth| {
            u64::from(reth.len) <= MAX_MESSAGE
                && match (op.kind(), op.is_last()) {
                    (PacketKind::Write | PacketKind::AtomicWrite, true) => reth.len as usize == len,
                    (PacketKind::Write, false) => reth.len as usize > len,
                    _ => true,
                }
        });
        if !(len_legal && reth_legal && view.pad().len() == len.wrapping_neg() & 3) {
            return Err(LENGTH);
        }
        if reserved_bits(view.bytes(), op) || view.pad().iter().any(|&b| b != 0) {
            return Err(Illegal("reserved bits that are set"));
        }
        Ok(Packet {
            bth: view.bth(),
            xrceth: view.xrceth(),
            deth: view.deth(),
            feth: view.feth(),
            reth,
            atomic: view.atomic_eth(),
            aeth: view.aeth(),
            atomic_ack: view.atomic_ack(),
            imm: view.imm(),
            ieth: view.ieth(),
            payload,
        })
    }
}

/// Whether a bit is set that the standard reserves, in the headers that have some.
fn reserved_bits(bytes: &[u8], op: Opcode) -> bool {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    let in_bth = byte(4) & 0x3F | byte(8) & 0x7F;
    let in_deth = if op.has_deth() { byte(Bth::LEN + 4) } else { 0 };
    let (in_xrceth, feth) = match op.has_xrceth() {
        true => (byte(Bth::LEN), Bth::LEN + XrcEth::LEN),
        false => (0, Bth::LEN),
    };
    let in_feth = if op.has_feth() {
        byte(feth) | byte(feth + 1) | byte(feth + 2) | byte(feth + 3) & 0xC0
    } else {
        0
    };
    in_bth | in_deth | in_xrceth | in_feth != 0
}
