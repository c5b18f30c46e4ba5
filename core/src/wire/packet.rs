//! A packet as a value. It holds only what is legal to send, so every parsed packet can be emitted
//! again.

use super::headers::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use super::opcode::{Kind, Opcode};
use super::view::{Malformed, View};

/// The longest payload of any packet: the largest path MTU.
pub const MAX_PAYLOAD: usize = 4096;

/// The longest operation: 2^31 bytes.
pub const MAX_MESSAGE: u32 = 1 << 31;

/// The headers after the BTH, and the XRCETH of XRC, as the opcodes combine them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ext {
    /// BTH alone: SEND, middle and last packets, CNP.
    None,
    /// With immediate.
    Imm(ImmDt),
    /// With invalidate.
    Inv(Ieth),
    /// First packet of a WRITE, READ request, ATOMIC WRITE.
    Reth(Reth),
    /// WRITE ONLY with immediate.
    RethImm(Reth, ImmDt),
    /// UD.
    Deth(Deth),
    /// UD with immediate.
    DethImm(Deth, ImmDt),
    /// ACK, READ response.
    Aeth(Aeth),
    /// Answer to an atomic.
    AtomicAck(Aeth, AtomicAckEth),
    /// CMP_SWAP, FETCH_ADD.
    Atomic(AtomicEth),
    /// FLUSH.
    Flush(Feth, Reth),
}

impl Ext {
    /// Whether these are the headers that `opcode` brings.
    fn fits(&self, op: Opcode) -> bool {
        let [mut imm, mut ieth, mut reth, mut deth, mut aeth, mut ack, mut atomic, mut feth] =
            [false; 8];
        match self {
            Ext::None => {}
            Ext::Imm(_) => imm = true,
            Ext::Inv(_) => ieth = true,
            Ext::Reth(_) => reth = true,
            Ext::RethImm(..) => (reth, imm) = (true, true),
            Ext::Deth(_) => deth = true,
            Ext::DethImm(..) => (deth, imm) = (true, true),
            Ext::Aeth(_) => aeth = true,
            Ext::AtomicAck(..) => (aeth, ack) = (true, true),
            Ext::Atomic(_) => atomic = true,
            Ext::Flush(..) => (feth, reth) = (true, true),
        }
        let has = [imm, ieth, reth, deth, aeth, ack, atomic, feth];
        has == [
            op.has_imm(),
            op.has_ieth(),
            op.has_reth(),
            op.has_deth(),
            op.has_aeth(),
            op.has_atomic_ack(),
            op.has_atomic_eth(),
            op.has_feth(),
        ]
    }

    fn reth(&self) -> Option<&Reth> {
        match self {
            Ext::Reth(reth) | Ext::RethImm(reth, _) | Ext::Flush(_, reth) => Some(reth),
            _ => None,
        }
    }
}

/// A legal packet without its ICRC. Payload bytes are borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    bth: Bth,
    xrceth: Option<XrcEth>,
    ext: Ext,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Puts a packet together that has no XRCETH; `bth.pad` follows from the payload.
    ///
    /// Errors: [`Malformed::UnknownOpcode`], [`Malformed::Version`], [`Malformed::NotLegal`] where
    /// headers, their lengths and the payload do not belong together.
    pub fn new(bth: Bth, ext: Ext, payload: &'a [u8]) -> Result<Packet<'a>, Malformed> {
        Packet::with_xrceth(bth, None, ext, payload)
    }

    /// [`Packet::new`], with an XRCETH where the opcode brings one.
    pub fn with_xrceth(
        bth: Bth,
        xrceth: Option<XrcEth>,
        ext: Ext,
        payload: &'a [u8],
    ) -> Result<Packet<'a>, Malformed> {
        let op = bth.opcode;
        if !op.is_known() {
            return Err(Malformed::UnknownOpcode(op));
        }
        if bth.tver != 0 {
            return Err(Malformed::Version);
        }
        let len = payload.len();
        let len_legal = match op.kind() {
            Kind::Send | Kind::Write | Kind::ReadResponse => {
                len <= MAX_PAYLOAD && (len > 0 || (op.is_first() && op.is_last()))
            }
            Kind::AtomicWrite => len == 8,
            Kind::Cnp => len == 16 && payload.iter().all(|&b| b == 0),
            _ => len == 0,
        };
        let reth_legal = ext.reth().is_none_or(|reth| {
            reth.len <= MAX_MESSAGE
                && match (op.kind(), op.is_last()) {
                    (Kind::Write | Kind::AtomicWrite, true) => reth.len as usize == len,
                    (Kind::Write, false) => reth.len as usize > len,
                    _ => true,
                }
        });
        let fits = ext.fits(op) && xrceth.is_some() == op.has_xrceth();
        if !(fits && len_legal && reth_legal) {
            return Err(Malformed::NotLegal);
        }
        let pad = (len.wrapping_neg() & 3) as u8;
        Ok(Packet { bth: Bth { pad, ..bth }, xrceth, ext, payload })
    }

    /// The base transport header; its pad fits the payload.
    pub fn bth(&self) -> &Bth {
        &self.bth
    }

    /// The XRCETH of a request of XRC.
    pub fn xrceth(&self) -> Option<XrcEth> {
        self.xrceth
    }

    /// The other headers.
    pub fn ext(&self) -> &Ext {
        &self.ext
    }

    /// The payload without pad.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }

    /// Bytes that [`Packet::emit`] writes.
    pub fn emitted_len(&self) -> usize {
        self.bth.opcode.header_len() + self.payload.len() + self.bth.pad as usize
    }

    /// Writes headers, payload and pad, but no ICRC, and returns how many bytes these are.
    ///
    /// Error: [`Malformed::NoRoom`]; nothing is written then.
    pub fn emit(&self, buf: &mut [u8]) -> Result<usize, Malformed> {
        let len = self.emitted_len();
        let buf = buf.get_mut(..len).ok_or(Malformed::NoRoom)?;
        let mut out = Cursor { rest: buf };
        out.put(|b| self.bth.emit(b))?;
        if let Some(xrceth) = &self.xrceth {
            out.put(|b| xrceth.emit(b))?;
        }
        match &self.ext {
            Ext::None => {}
            Ext::Imm(imm) => out.put(|b| imm.emit(b))?,
            Ext::Inv(ieth) => out.put(|b| ieth.emit(b))?,
            Ext::Reth(reth) => out.put(|b| reth.emit(b))?,
            Ext::RethImm(reth, imm) => {
                out.put(|b| reth.emit(b))?;
                out.put(|b| imm.emit(b))?;
            }
            Ext::Deth(deth) => out.put(|b| deth.emit(b))?,
            Ext::DethImm(deth, imm) => {
                out.put(|b| deth.emit(b))?;
                out.put(|b| imm.emit(b))?;
            }
            Ext::Aeth(aeth) => out.put(|b| aeth.emit(b))?,
            Ext::AtomicAck(aeth, ack) => {
                out.put(|b| aeth.emit(b))?;
                out.put(|b| ack.emit(b))?;
            }
            Ext::Atomic(atomic) => out.put(|b| atomic.emit(b))?,
            Ext::Flush(feth, reth) => {
                out.put(|b| feth.emit(b))?;
                out.put(|b| reth.emit(b))?;
            }
        }
        let (body, pad) =
            out.rest.split_at_mut_checked(self.payload.len()).ok_or(Malformed::NoRoom)?;
        body.copy_from_slice(self.payload);
        pad.fill(0);
        Ok(len)
    }
}

struct Cursor<'b> {
    rest: &'b mut [u8],
}

impl Cursor<'_> {
    /// Lets `emit` write the next `N` bytes.
    fn put<const N: usize>(&mut self, emit: impl FnOnce(&mut [u8; N])) -> Result<(), Malformed> {
        let rest = core::mem::take(&mut self.rest);
        let (head, rest) = rest.split_first_chunk_mut().ok_or(Malformed::NoRoom)?;
        emit(head);
        self.rest = rest;
        Ok(())
    }
}

impl<'a> TryFrom<View<'a>> for Packet<'a> {
    type Error = Malformed;

    fn try_from(view: View<'a>) -> Result<Packet<'a>, Malformed> {
        let ext = match (view.reth(), view.deth(), view.aeth(), view.imm()) {
            (Some(reth), _, _, Some(imm)) => Ext::RethImm(reth, imm),
            (Some(reth), _, _, None) => {
                view.feth().map_or(Ext::Reth(reth), |feth| Ext::Flush(feth, reth))
            }
            (_, Some(deth), _, Some(imm)) => Ext::DethImm(deth, imm),
            (_, Some(deth), _, None) => Ext::Deth(deth),
            (_, _, Some(aeth), _) => {
                view.atomic_ack().map_or(Ext::Aeth(aeth), |ack| Ext::AtomicAck(aeth, ack))
            }
            (_, _, _, Some(imm)) => Ext::Imm(imm),
            _ => view
                .ieth()
                .map(Ext::Inv)
                .or_else(|| view.atomic_eth().map(Ext::Atomic))
                .unwrap_or(Ext::None),
        };
        let packet = Packet::with_xrceth(view.bth(), view.xrceth(), ext, view.payload())?;
        if packet.bth.pad != view.bth().pad {
            return Err(Malformed::Length);
        }
        if reserved_bits(view.bytes(), view.opcode()) || view.pad().iter().any(|&b| b != 0) {
            return Err(Malformed::Reserved);
        }
        Ok(packet)
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
