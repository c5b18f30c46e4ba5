//! The control header of DC: what makes, keeps and ends the association of a DC initiator with a
//! DC target. `docs/internals/DC.md` has the protocol.
//!
//! DC has no public wire format; this one is ours. A control packet is a BTH with the opcode
//! [`Opcode::DC_CONTROL`](super::Opcode::DC_CONTROL), this header as its payload of 44 bytes, and
//! the ICRC. Every answer is as long as its question, so nothing is amplified.
//!
//! ```text
//!  0  type        OPEN 1, ACCEPT 2, REFUSE 3, CLOSE 4, RECLAIM 5, GONE 6
//!  1  version     1
//!  2  flags       OPEN: bit 0, resume; REFUSE: the reason; GONE: bit 0, the target is a new one
//!  3  path MTU    its code: OPEN wanted, ACCEPT granted
//!  4  zero, QPN   OPEN, CLOSE, REFUSE, GONE: of the DCI; ACCEPT, RECLAIM: of the context
//!  8  association id
//! 16  access key (OPEN), incarnation of the target (ACCEPT, GONE)
//! 24  lease in ms (OPEN, ACCEPT), time to wait in us (REFUSE, busy)
//! 28  READs and atomics outstanding (OPEN wanted, ACCEPT granted), 3 bytes zero
//! 32  OPEN, resume: incarnation of the target
//! 40  zero
//! ```
//!
//! Numbers are big-endian.

use super::psn::Qpn;

/// What a control packet says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum DcMessage {
    /// Initiator: make an association, or (resume) say whether it is there.
    Open = 1,
    /// Target: it is there.
    Accept = 2,
    /// Target: there is none, and why.
    Refuse = 3,
    /// Initiator: it ends; all of its requests are acknowledged.
    Close = 4,
    /// Target: end it soon, another wants the context.
    Reclaim = 5,
    /// Target: it is not there any more.
    Gone = 6,
}

impl DcMessage {
    const fn from_byte(byte: u8) -> Option<DcMessage> {
        match byte {
            1 => Some(DcMessage::Open),
            2 => Some(DcMessage::Accept),
            3 => Some(DcMessage::Refuse),
            4 => Some(DcMessage::Close),
            5 => Some(DcMessage::Reclaim),
            6 => Some(DcMessage::Gone),
            _ => None,
        }
    }
}

/// Reasons of [`DcMessage::Refuse`], in [`DcEth::flags`].
pub mod refusal {
    /// The access key is not the DCT's.
    pub const KEY: u8 = 1;
    /// No responder context is free.
    pub const BUSY: u8 = 2;
    /// The version is unknown.
    pub const VERSION: u8 = 3;
}

/// The header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DcEth {
    /// What it says.
    pub message: DcMessage,
    /// Version of the protocol.
    pub version: u8,
    /// By message.
    pub flags: u8,
    /// Code of the path MTU.
    pub mtu: u8,
    /// QPN, by message.
    pub qpn: u32,
    /// The association: drawn by the initiator, repeated by all answers.
    pub id: u64,
    /// Access key, or the target's incarnation.
    pub word: u64,
    /// Lease in milliseconds, or a time in microseconds.
    pub time: u32,
    /// READs and atomics outstanding.
    pub depth: u8,
    /// Incarnation that the initiator knows.
    pub incarnation: u64,
}

impl DcEth {
    /// Bytes on the wire.
    pub const LEN: usize = 44;
    /// The version that this library speaks.
    pub const VERSION: u8 = 1;
    /// Flag of OPEN: the association exists, and must not be made anew.
    pub const RESUME: u8 = 1;
    /// Flag of GONE: the target is another one than the initiator knew.
    pub const RESTARTED: u8 = 1;

    /// A header with all else zero.
    pub const fn new(message: DcMessage, qpn: u32, id: u64) -> DcEth {
        DcEth {
            message,
            version: DcEth::VERSION,
            flags: 0,
            mtu: 0,
            qpn,
            id,
            word: 0,
            time: 0,
            depth: 0,
            incarnation: 0,
        }
    }

    /// Reads the payload of a control packet; `None`: it is none. Bytes that must be zero are not
    /// looked at.
    pub fn parse(payload: &[u8]) -> Option<DcEth> {
        let b: &[u8; DcEth::LEN] = payload.try_into().ok()?;
        let u32_at = |at: usize| u32::from_be_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) << 32 | u64::from(u32_at(at + 4));
        Some(DcEth {
            message: DcMessage::from_byte(b[0])?,
            version: b[1],
            flags: b[2],
            mtu: b[3],
            qpn: Qpn::new(u32_at(4)).get(),
            id: u64_at(8),
            word: u64_at(16),
            time: u32_at(24),
            depth: b[28],
            incarnation: u64_at(32),
        })
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; DcEth::LEN] {
        let mut b = [0; DcEth::LEN];
        b[..4].copy_from_slice(&[self.message as u8, self.version, self.flags, self.mtu]);
        b[4..8].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        b[8..16].copy_from_slice(&self.id.to_be_bytes());
        b[16..24].copy_from_slice(&self.word.to_be_bytes());
        b[24..28].copy_from_slice(&self.time.to_be_bytes());
        b[28] = self.depth;
        b[32..40].copy_from_slice(&self.incarnation.to_be_bytes());
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_is_as_documented() {
        let open = DcEth {
            flags: DcEth::RESUME,
            mtu: 5,
            word: 0x0102_0304_0506_0708,
            time: 0x1122_3344,
            depth: 9,
            incarnation: 0xa1a2_a3a4_a5a6_a7a8,
            ..DcEth::new(DcMessage::Open, 0x12_3456, 0xb1b2_b3b4_b5b6_b7b8)
        };
        let bytes = open.bytes();
        assert_eq!(bytes[..8], [1, 1, 1, 5, 0, 0x12, 0x34, 0x56]);
        assert_eq!(bytes[8..16], [0xb1, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8]);
        assert_eq!(bytes[16..24], [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(bytes[24..32], [0x11, 0x22, 0x33, 0x44, 9, 0, 0, 0]);
        assert_eq!(bytes[32..], [0xa1, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0, 0, 0, 0]);
        assert_eq!(DcEth::parse(&bytes), Some(open));
    }

    #[test]
    fn other_lengths_and_types_are_none() {
        let bytes = DcEth::new(DcMessage::Gone, 1, 2).bytes();
        for n in 0..bytes.len() {
            assert_eq!(DcEth::parse(&bytes[..n]), None, "{n} bytes");
        }
        assert_eq!(DcEth::parse(&[&bytes[..], &[0]].concat()), None);
        for kind in 0..=255 {
            let mut other = bytes;
            other[0] = kind;
            let read = DcEth::parse(&other).map(|h| h.message as u8);
            assert_eq!(read, (1..=6).contains(&kind).then_some(kind));
        }
        // A version that is unknown is read, so that it can be refused.
        let mut newer = bytes;
        newer[1] = 2;
        assert_eq!(DcEth::parse(&newer).map(|h| h.version), Some(2));
    }
}
