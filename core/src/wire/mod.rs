//! Bytes of RoCEv2: headers, opcodes, the ICRC, and files of captured frames. This module knows no
//! QPs and allocates nothing.

pub mod dceth;
pub mod grh;
pub mod headers;
pub mod icrc;
pub mod ip;
pub mod opcode;
pub mod psn;
pub mod size;
pub mod timing;

pub use headers::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Ieth, ImmDt, NakCode, Reth, Syndrome, XrcEth,
};
pub use icrc::{Accepted, BadIcrc, Hop, IcrcFlow};
pub use opcode::{Class, Opcode, PacketKind};
pub use psn::{Psn, Qpn};
pub use size::{packet_bytes, pad_len};
pub use timing::{ack_timeout_ns, mtu_bytes, mtu_code, RNR_TIMER_NS};

/// Why bytes are no packet, or no record of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Too short for what its head says, or a number of packets that no run has.
    Length,
    /// A transport version other than 0.
    Version,
    /// An opcode that this library does not know.
    UnknownOpcode(Opcode),
}

/// UDP destination port of RoCEv2.
// IBTA CA17-20: RoCEv2 has UDP destination port 4791.
pub const ROCE_PORT: u16 = 4791;

/// Bytes of the ICRC that ends every packet.
pub const ICRC_LEN: usize = 4;

/// The Q_Key of QP1, where connection managers talk.
pub const QP1_QKEY: u32 = 0x8001_0000;

/// The P_Key of the default partition, with full membership.
pub const DEFAULT_PKEY: u16 = 0xFFFF;

/// Whether a P_Key is of the default partition, the only one here. Bit 15 tells full members from
/// limited ones.
#[inline(always)]
pub const fn is_default_partition(pkey: u16) -> bool {
    pkey & 0x7fff == DEFAULT_PKEY & 0x7fff
}
