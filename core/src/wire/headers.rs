//! The headers, one value struct each: `parse` reads the wire's bytes, `emit` writes them.
//!
//! Numbers are big-endian on the wire and plain integers here. Reserved bits are ignored when read
//! and zero when written.

use super::opcode::Opcode;
use super::psn::{Psn, Qpn};

/// A field of a header.
trait Field<const N: usize> {
    fn of_wire(bytes: [u8; N]) -> Self;
    fn to_wire(self) -> [u8; N];
}

macro_rules! fields {
    ($($ty:ty, $n:literal: $of:expr, $to:expr;)*) => {$(
        impl Field<$n> for $ty {
            #[inline(always)]
            fn of_wire(bytes: [u8; $n]) -> $ty {
                $of(bytes)
            }
            #[inline(always)]
            fn to_wire(self) -> [u8; $n] {
                $to(self)
            }
        }
    )*};
}

fields! {
    u16, 2: u16::from_be_bytes, u16::to_be_bytes;
    u32, 4: u32::from_be_bytes, u32::to_be_bytes;
    u64, 8: u64::from_be_bytes, u64::to_be_bytes;
    Qpn, 4: |bytes| Qpn::new(u32::from_be_bytes(bytes)), |qpn: Qpn| qpn.get().to_be_bytes();
}

/// The field at `at` of a header. The compiler knows both sizes and `at`, and drops the bound
/// check.
#[inline(always)]
fn get<F: Field<N>, const N: usize, const LEN: usize>(bytes: &[u8; LEN], at: usize) -> F {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    F::of_wire(field)
}

#[inline(always)]
fn put<F: Field<N>, const N: usize, const LEN: usize>(bytes: &mut [u8; LEN], at: usize, field: F) {
    bytes[at..at + N].copy_from_slice(&field.to_wire());
}

/// A header of plain fields, each with the offset at which it lies.
macro_rules! header {
    ($(#[$m:meta])* $name:ident, $len:literal {
        $($(#[$f:meta])* $field:ident: $ty:ty = $at:literal,)*
    }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name { $($(#[$f])* pub $field: $ty,)* }

        impl $name {
            /// Bytes on the wire.
            pub const LEN: usize = $len;

            /// Reads the header.
            #[inline]
            pub fn parse(b: &[u8; Self::LEN]) -> $name {
                $(const { assert!($at + size_of::<$ty>() <= $len) };)*
                $name { $($field: get(b, $at),)* }
            }

            /// Writes the header.
            #[inline]
            pub fn emit(&self, b: &mut [u8; Self::LEN]) {
                $(put(b, $at, self.$field);)*
            }
        }
    };
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
        let (qp, psn): (u32, u32) = (get(b, 4), get(b, 8));
        Bth {
            opcode: Opcode(b[0]),
            solicited: b[1] & 0x80 != 0,
            mig_req: b[1] & 0x40 != 0,
            pad: b[1] >> 4 & 3,
            tver: b[1] & 0xF,
            pkey: get(b, 2),
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
        put(b, 2, self.pkey);
        put(b, 4, qp);
        put(b, 8, psn);
    }
}

header! {
    /// Datagram extended header: UD.
    Deth, 8 {
        /// The receiver's Q_Key.
        qkey: u32 = 0,
        /// The sender's QP.
        src_qp: Qpn = 4,
    }
}

header! {
    /// XRC extended header: requests of XRC.
    XrcEth, 4 {
        /// Number of the SRQ that the request is for, 24 bits.
        srqn: Qpn = 0,
    }
}

header! {
    /// RDMA extended header: requests that name memory, but for atomics.
    Reth, 16 {
        /// Address in the peer's MR.
        va: u64 = 0,
        /// Key of the peer's MR.
        rkey: u32 = 8,
        /// Length of the whole operation in bytes; the standard ends at 2^31.
        len: u32 = 12,
    }
}

header! {
    /// Atomic extended header: CMP_SWAP and FETCH_ADD.
    AtomicEth, 28 {
        /// Address in the peer's MR, a multiple of 8.
        va: u64 = 0,
        /// Key of the peer's MR.
        rkey: u32 = 8,
        /// Value to store (CMP_SWAP) or to add (FETCH_ADD).
        swap_add: u64 = 12,
        /// Value to compare with (CMP_SWAP).
        compare: u64 = 20,
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

header! {
    /// Atomic ACK extended header.
    AtomicAckEth, 8 {
        /// The value before the operation.
        orig: u64 = 0,
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

header! {
    /// Invalidate extended header.
    Ieth, 4 {
        /// The key that the receiver invalidates.
        rkey: u32 = 0,
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

    /// Whether it is valid: at least one placement type and none that is reserved, and one of the
    /// two levels.
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
