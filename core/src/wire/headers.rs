//! The headers, one value struct each: `parse` reads the wire's bytes, `emit` writes them.
//!
//! Numbers are big-endian on the wire and plain integers here. Reserved bits are ignored when read
//! and zero when written.

use super::opcode::Opcode;
use super::psn::{Psn, Qpn};

/// The bytes `AT..AT + N` of a header, whose size is known to the compiler.
#[inline(always)]
fn get<const AT: usize, const N: usize, const LEN: usize>(bytes: &[u8; LEN]) -> [u8; N] {
    const { assert!(AT + N <= LEN) };
    let mut field = [0; N];
    field.copy_from_slice(&bytes[AT..AT + N]);
    field
}

#[inline(always)]
fn put<const AT: usize, const N: usize, const LEN: usize>(bytes: &mut [u8; LEN], field: [u8; N]) {
    const { assert!(AT + N <= LEN) };
    bytes[AT..AT + N].copy_from_slice(&field);
}

/// Base transport header, in every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// The opcode.
    pub opcode: Opcode,
    /// Solicited event: the receiver's completion raises an event.
    pub solicited: bool,
    /// Migration state. rxe and NICs send different values, and receivers ignore it.
    pub mig_req: bool,
    /// Zero bytes after the payload, 0 to 3.
    pub pad: u8,
    /// Transport version, 0 to 15; only 0 is legal.
    pub tver: u8,
    /// Partition.
    pub pkey: u16,
    /// Congestion was met on the way.
    pub fecn: bool,
    /// The peer met congestion.
    pub becn: bool,
    /// Where the packet goes.
    pub dest_qp: Qpn,
    /// The sender wants an ACK.
    pub ack_req: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header with everything else at its default: P_Key 0xFFFF, no flags, no pad.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            mig_req: false,
            pad: 0,
            tver: 0,
            pkey: super::DEFAULT_PKEY,
            fecn: false,
            becn: false,
            dest_qp,
            ack_req: false,
            psn,
        }
    }

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> Bth {
        // rxe rxe_hdr.h bth_init: The BTH has opcode, flags, P_Key, destination, ACK request and
        // PSN, each in its place.
        let qp = u32::from_be_bytes(get::<4, 4, 12>(b));
        let psn = u32::from_be_bytes(get::<8, 4, 12>(b));
        Bth {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            tver: b[1] & 0xF,
            pkey: u16::from_be_bytes([b[2], b[3]]),
            fecn: qp >> 31 != 0,
            becn: qp >> 30 & 1 != 0,
            dest_qp: Qpn::new(qp),
            ack_req: psn >> 31 != 0,
            psn: Psn::new(psn),
        }
    }

    /// Writes the header; of `pad` the low two bits count, of `tver` the low four.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        let flags = (self.solicited as u8) << 7
            | (self.mig_req as u8) << 6
            | (self.pad & 3) << 4
            | self.tver & 0xF;
        let qp = (self.fecn as u32) << 31 | (self.becn as u32) << 30 | self.dest_qp.get();
        let psn = (self.ack_req as u32) << 31 | self.psn.get();
        b[0] = self.opcode.0;
        b[1] = flags;
        put::<2, 2, 12>(b, self.pkey.to_be_bytes());
        put::<4, 4, 12>(b, qp.to_be_bytes());
        put::<8, 4, 12>(b, psn.to_be_bytes());
    }
}

/// Datagram extended header: UD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// The receiver's Q_Key.
    pub qkey: u32,
    /// The sender's QP.
    pub src_qp: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> Deth {
        Deth {
            qkey: u32::from_be_bytes(get::<0, 4, 8>(b)),
            src_qp: Qpn::new(u32::from_be_bytes(get::<4, 4, 8>(b))),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        put::<0, 4, 8>(b, self.qkey.to_be_bytes());
        put::<4, 4, 8>(b, self.src_qp.get().to_be_bytes());
    }
}

/// XRC extended header: requests of XRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcEth {
    /// Number of the SRQ that the request is for, 24 bits.
    pub srqn: Qpn,
}

impl XrcEth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> XrcEth {
        XrcEth { srqn: Qpn::new(u32::from_be_bytes(*b)) }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.srqn.get().to_be_bytes();
    }
}

/// RDMA extended header: WRITE, READ, FLUSH, ATOMIC WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address in the peer's MR.
    pub va: u64,
    /// Key of the peer's MR.
    pub rkey: u32,
    /// Length of the whole operation in bytes; the standard ends at 2^31.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> Reth {
        Reth {
            va: u64::from_be_bytes(get::<0, 8, 16>(b)),
            rkey: u32::from_be_bytes(get::<8, 4, 16>(b)),
            len: u32::from_be_bytes(get::<12, 4, 16>(b)),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        put::<0, 8, 16>(b, self.va.to_be_bytes());
        put::<8, 4, 16>(b, self.rkey.to_be_bytes());
        put::<12, 4, 16>(b, self.len.to_be_bytes());
    }
}

/// Atomic extended header: CMP_SWAP and FETCH_ADD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address in the peer's MR, a multiple of 8.
    pub va: u64,
    /// Key of the peer's MR.
    pub rkey: u32,
    /// Value to store (CMP_SWAP) or to add (FETCH_ADD).
    pub swap_add: u64,
    /// Value to compare with (CMP_SWAP).
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> AtomicEth {
        AtomicEth {
            va: u64::from_be_bytes(get::<0, 8, 28>(b)),
            rkey: u32::from_be_bytes(get::<8, 4, 28>(b)),
            swap_add: u64::from_be_bytes(get::<12, 8, 28>(b)),
            compare: u64::from_be_bytes(get::<20, 8, 28>(b)),
        }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        put::<0, 8, 28>(b, self.va.to_be_bytes());
        put::<8, 4, 28>(b, self.rkey.to_be_bytes());
        put::<12, 8, 28>(b, self.swap_add.to_be_bytes());
        put::<20, 8, 28>(b, self.compare.to_be_bytes());
    }
}

/// ACK extended header: answers of RC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aeth {
    /// ACK, RNR NAK or NAK, see [`Syndrome`].
    pub syndrome: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> Aeth {
        Aeth { syndrome: b[0], msn: u32::from_be_bytes([0, b[1], b[2], b[3]]) }
    }

    /// Writes the header; of `msn` the low 24 bits count.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = ((self.syndrome as u32) << 24 | self.msn & 0xFF_FFFF).to_be_bytes();
    }

    /// The syndrome, parsed.
    #[inline]
    pub const fn meaning(&self) -> Syndrome {
        Syndrome::parse(self.syndrome)
    }
}

/// Reason of a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NakCode {
    /// PSN sequence error: send again from the PSN that the NAK carries.
    Psn,
    /// Invalid request.
    InvalidRequest,
    /// Remote access error.
    RemoteAccess,
    /// Remote operational error.
    RemoteOperation,
    /// Invalid RD request.
    InvalidRd,
    /// A code that the standard reserves, 5 to 31.
    Reserved(u8),
}

/// The meaning of an AETH's syndrome byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syndrome {
    /// Acknowledged; the credit code is 0x1F for "unlimited".
    Ack {
        /// End-to-end credit code, 5 bits.
        credits: u8,
    },
    /// No receive was posted; the index into [`super::RNR_TIMER_NS`] says when to try again.
    Rnr {
        /// Timer code, 5 bits.
        timer: u8,
    },
    /// Refused.
    Nak(NakCode),
    /// The standard reserves this syndrome.
    Unknown(u8),
}

impl Syndrome {
    /// The acknowledgement that this library sends: no end-to-end credits.
    pub const ACK: Syndrome = Syndrome::Ack { credits: 0x1F };

    /// Reads a syndrome byte.
    #[inline]
    pub const fn parse(byte: u8) -> Syndrome {
        // rxe rxe_hdr.h aeth_syn: The upper three bits of an AETH syndrome tell ACK, RNR NAK and
        // NAK; the lower five are credits, a timer code or the reason.
        let code = byte & 0x1F;
        match byte >> 5 {
            0 => Syndrome::Ack { credits: code },
            1 => Syndrome::Rnr { timer: code },
            3 => Syndrome::Nak(match code {
                0 => NakCode::Psn,
                1 => NakCode::InvalidRequest,
                2 => NakCode::RemoteAccess,
                3 => NakCode::RemoteOperation,
                4 => NakCode::InvalidRd,
                other => NakCode::Reserved(other),
            }),
            _ => Syndrome::Unknown(byte),
        }
    }

    /// The syndrome byte; of codes the low five bits count.
    #[inline]
    pub const fn byte(self) -> u8 {
        match self {
            Syndrome::Ack { credits } => credits & 0x1F,
            Syndrome::Rnr { timer } => 0x20 | timer & 0x1F,
            Syndrome::Nak(code) => {
                0x60 | match code {
                    NakCode::Psn => 0,
                    NakCode::InvalidRequest => 1,
                    NakCode::RemoteAccess => 2,
                    NakCode::RemoteOperation => 3,
                    NakCode::InvalidRd => 4,
                    NakCode::Reserved(other) => other & 0x1F,
                }
            }
            Syndrome::Unknown(byte) => byte,
        }
    }
}

/// Atomic ACK extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub orig: u64,
}

impl AtomicAckEth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> AtomicAckEth {
        AtomicAckEth { orig: u64::from_be_bytes(*b) }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.orig.to_be_bytes();
    }
}

/// Immediate data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmDt {
    /// The four bytes as they lie on the wire: network order, like `ibv_wc.imm_data`.
    pub imm: u32,
}

impl ImmDt {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> ImmDt {
        ImmDt { imm: u32::from_ne_bytes(*b) }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.imm.to_ne_bytes();
    }
}

/// Invalidate extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ieth {
    /// The key that the receiver invalidates.
    pub rkey: u32,
}

impl Ieth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> Ieth {
        Ieth { rkey: u32::from_be_bytes(*b) }
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.rkey.to_be_bytes();
    }
}

/// FLUSH extended header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feth {
    /// Placement types, 4 bits: 1 = global visibility, 2 = persistence; both may be set.
    pub placement: u8,
    /// Selectivity level, 2 bits: 0 = range, 1 = whole MR.
    pub selectivity: u8,
    /// The other 26 bits, which the standard reserves, in their places.
    pub reserved: u32,
}

impl Feth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;
    /// Placement type: the bytes are visible to all who may access the memory.
    pub const GLOBAL: u8 = 1;
    /// Placement type: the bytes survive a loss of power.
    pub const PERSISTENT: u8 = 2;
    /// Selectivity level: the range that the RETH names.
    pub const RANGE: u8 = 0;
    /// Selectivity level: the whole region of the key.
    pub const MR: u8 = 1;

    /// The fields of a header as one number.
    #[inline]
    pub const fn of_word(word: u32) -> Feth {
        // rxe rxe_hdr.h feth_init: A FETH has the placement types in its low four bits, and the
        // selectivity level in the two above them.
        Feth {
            placement: word as u8 & 0xF,
            selectivity: word as u8 >> 4 & 3,
            reserved: word & !0x3F,
        }
    }

    /// The header as one number.
    #[inline]
    pub const fn word(self) -> u32 {
        self.reserved & !0x3F | (self.selectivity as u32 & 3) << 4 | self.placement as u32 & 0xF
    }

    /// Whether it asks for something that there is: one placement type at least and none that is
    /// reserved, and one of the two levels.
    #[inline]
    pub const fn is_legal(self) -> bool {
        self.reserved == 0 && matches!(self.placement, 1..=3) && self.selectivity <= Self::MR
    }

    /// Reads the header.
    #[inline]
    pub fn parse(b: &[u8; Self::LEN]) -> Feth {
        Feth::of_word(u32::from_be_bytes(*b))
    }

    /// Writes the header.
    #[inline]
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = self.word().to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // rxe rxe_hdr.h feth_init
    #[test]
    fn a_feth_asks_for_types_and_a_level_that_there_are() {
        let legal = |b: [u8; 4]| Feth::parse(&b).is_legal();
        assert_eq!(
            Feth::parse(&[0, 0, 0, 0x13]),
            Feth { placement: Feth::GLOBAL | Feth::PERSISTENT, selectivity: Feth::MR, reserved: 0 }
        );
        let all = (0..=255).filter(|&b| legal([0, 0, 0, b]));
        assert!(all.eq([1, 2, 3, 0x11, 0x12, 0x13]));
        for bit in 6..32 {
            assert!(!legal((1u32 | 1 << bit).to_be_bytes()), "bit {bit} is reserved");
        }
    }
}
