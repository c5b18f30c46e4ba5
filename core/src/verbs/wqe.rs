//! Send and receive work queue elements: the slots of the rings.

use crate::verbs::opcode;
use crate::verbs::types::{send_flags, wr_opcode, Sge};

/// A send request in its ring: 64 bytes, then the SGEs or the inline data.
///
/// Written by the posting thread, immutable once published, read by the engine until the slot is
/// released.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SendWqe {
    /// Of the work request.
    pub wr_id: u64,
    /// Of a request that names memory of the peer: its address. BIND_MW: first byte of the window.
    pub remote_addr: u64,
    /// Atomics: compare or add. Of a request with an empty answer: the length in its RETH. UD: the
    /// address handle. BIND_MW: the window.
    pub a: u64,
    /// Atomics: swap. UD: remote QPN (high half) and Q_Key. BIND_MW: the MR.
    pub b: u64,
    /// Bytes of the message (or of the window); of a request with an empty answer: 0.
    pub length: u64,
    /// Of a request that names memory of the peer: its key. BIND_MW: the new key.
    pub rkey: u32,
    /// Immediate data as it stands on the wire (network order), the key to invalidate, or the word
    /// of a FETH.
    pub imm: u32,
    /// Opcode: one of [`wr_opcode`].
    pub opcode: u16,
    /// [`send_flags`]; SIGNALED is set when the QP signals everything.
    pub flags: u16,
    /// SGEs that follow; 0 for inline data.
    pub num_sge: u16,
    /// 1: inline data follows.
    pub inline: u8,
    /// Whose slot it is, in a queue that a router shares with its tenant; 0 in any other.
    pub owner: u8,
    /// BIND_MW: access flags.
    pub access: u32,
    /// XRC: number of the peer's SRQ.
    pub srqn: u32,
}

impl SendWqe {
    /// Whether its completion is to be reported even on success.
    #[inline]
    pub fn is_signaled(&self) -> bool {
        u32::from(self.flags) & send_flags::SIGNALED != 0
    }
    /// Whether it waits for all READs and atomics before it.
    #[inline]
    pub fn is_fenced(&self) -> bool {
        u32::from(self.flags) & send_flags::FENCE != 0
    }
    /// Whether the peer is asked to raise a solicited event.
    #[inline]
    pub fn is_solicited(&self) -> bool {
        u32::from(self.flags) & send_flags::SOLICITED != 0
    }
    /// READ.
    #[inline]
    pub fn is_read(&self) -> bool {
        u32::from(self.opcode) == wr_opcode::RDMA_READ
    }
    /// Whether an answer of its own ends it, not an ACK.
    #[inline]
    pub fn is_answered(&self) -> bool {
        opcode::is_answered(self.opcode)
    }
    /// SEND, or WRITE with immediate data: something that uses up a receive request of the peer.
    #[inline]
    pub fn takes_receive(&self) -> bool {
        matches!(
            u32::from(self.opcode),
            wr_opcode::SEND
                | wr_opcode::SEND_WITH_IMM
                | wr_opcode::SEND_WITH_INV
                | wr_opcode::RDMA_WRITE_WITH_IMM
        )
    }
    /// Executed by the engine itself; nothing goes to the wire.
    #[inline]
    pub fn is_local(&self) -> bool {
        matches!(u32::from(self.opcode), wr_opcode::LOCAL_INV | wr_opcode::BIND_MW)
    }
}

/// A receive request in its ring: 16 bytes, then the SGEs.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RecvWqe {
    /// Of the work request.
    pub wr_id: u64,
    /// SGEs that follow.
    pub num_sge: u16,
    /// Nothing.
    pub reserved: u8,
    /// As [`SendWqe::owner`].
    pub owner: u8,
    /// Room in bytes, at most 2^32 − 1.
    pub length: u32,
}

/// Target of a request of a DCI: the last bytes of its slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DcAddr {
    /// Address handle.
    pub ah: u64,
    /// Access key.
    pub key: u64,
    /// Number of the DCT.
    pub dctn: u32,
}

impl DcAddr {
    /// Bytes at the end of a slot.
    pub const LEN: usize = 24;

    /// Writes it behind the pieces or the inline data, to the end of a slot's `tail`.
    #[inline]
    pub fn write(&self, tail: &mut [u8]) {
        if let Some(end) = tail.last_chunk_mut::<{ DcAddr::LEN }>() {
            end[..8].copy_from_slice(&self.ah.to_ne_bytes());
            end[8..16].copy_from_slice(&self.key.to_ne_bytes());
            end[16..20].copy_from_slice(&self.dctn.to_ne_bytes());
        }
    }

    /// Reads it from a slot's `tail`.
    #[inline]
    pub fn read(tail: &[u8]) -> DcAddr {
        let Some(end) = tail.last_chunk::<{ DcAddr::LEN }>() else { return DcAddr::default() };
        let word = |at: usize| end.get(at..at + 8).and_then(|b| b.try_into().ok());
        let half = end.get(16..20).and_then(|b| b.try_into().ok());
        DcAddr {
            ah: word(0).map_or(0, u64::from_ne_bytes),
            key: word(8).map_or(0, u64::from_ne_bytes),
            dctn: half.map_or(0, u32::from_ne_bytes),
        }
    }
}

const _: () = {
    assert!(core::mem::size_of::<SendWqe>() == 64);
    assert!(core::mem::size_of::<RecvWqe>() == 16);
};

/// Bytes of one slot of a send ring.
pub const fn send_stride(max_sge: u32, max_inline: u32) -> u32 {
    let tail = if max_sge * 16 > max_inline { max_sge * 16 } else { max_inline };
    (64 + tail + 63) & !63
}

/// Bytes of one slot of a receive ring.
pub const fn recv_stride(max_sge: u32) -> u32 {
    (16 + max_sge * 16 + 31) & !31
}

/// The pieces of a list from byte `offset` on; none is empty. An address that wraps is outside of
/// every region, which the check of its key finds.
#[inline(always)]
pub(crate) fn from_byte(sges: &[Sge], mut offset: u64) -> impl Iterator<Item = Sge> + '_ {
    sges.iter().filter_map(move |sge| {
        let skipped = offset.min(sge.length.into());
        offset -= skipped;
        let length = sge.length - skipped as u32;
        (length > 0).then(|| Sge { addr: sge.addr.wrapping_add(skipped), length, lkey: sge.lkey })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_target_of_a_dci_s_request_is_the_end_of_its_slot() {
        let to = DcAddr { ah: 0x0102_0304_0506_0708, key: u64::MAX - 1, dctn: 0x12_3456 };
        let mut tail = [0xee; 64];
        to.write(&mut tail);
        assert_eq!(DcAddr::read(&tail), to);
        assert!(tail[..64 - DcAddr::LEN].iter().all(|b| *b == 0xee));
        assert_eq!(DcAddr::read(&[1; DcAddr::LEN - 1]), DcAddr::default());
    }

    #[test]
    fn a_list_is_read_from_any_byte() {
        let sge = |addr, length| Sge { addr, length, lkey: 7 };
        let list = [sge(0, 0), sge(100, 3), sge(200, 0), sge(u64::MAX, 2)];
        let from = |offset| from_byte(&list, offset).collect::<std::vec::Vec<_>>();
        assert_eq!(from(0), [sge(100, 3), sge(u64::MAX, 2)]);
        assert_eq!(from(1), [sge(101, 2), sge(u64::MAX, 2)]);
        assert_eq!(from(3), [sge(u64::MAX, 2)]);
        assert_eq!(from(4), [sge(0, 1)]);
        assert_eq!(from(5), []);
        assert_eq!(from(u64::MAX), []);
    }
}
