//! Sizes of packets on the wire.
//!
//! All byte counters and all limits by rate count what these functions return: the bytes from BTH
//! to ICRC.

use super::{Opcode, ICRC_LEN};

/// Bytes of padding behind a payload of `len` bytes: packets are whole words (IBTA 9.2.3, PadCnt).
#[inline(always)]
pub const fn pad_len(len: usize) -> usize {
    // rxe rxe_hdr.h bth_pad: A payload is padded to whole words, and the BTH says by how many
    // bytes.
    len.wrapping_neg() & 3
}

/// Bytes of one packet from BTH to ICRC: headers of `opcode`, `payload` bytes, padding, ICRC.
#[inline(always)]
pub const fn packet_bytes(opcode: Opcode, payload: usize) -> usize {
    opcode.header_len() + payload + pad_len(payload) + ICRC_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    // rxe rxe_hdr.h bth_pad
    #[test]
    fn a_packet_is_as_long_as_its_headers_and_whole_words_of_payload() {
        assert_eq!(packet_bytes(Opcode::RC_ACK, 0), 12 + 4 + 4);
        assert_eq!(packet_bytes(Opcode::RC_SEND_ONLY, 0), 16);
        assert_eq!(packet_bytes(Opcode::RC_SEND_ONLY_IMM, 5), 12 + 4 + 8 + 4);
        assert_eq!(packet_bytes(Opcode::RC_WRITE_ONLY, 1023), 12 + 16 + 1024 + 4);
        assert_eq!(packet_bytes(Opcode::RC_READ_REQUEST, 0), 12 + 16 + 4);
        assert_eq!(packet_bytes(Opcode::RC_ATOMIC_ACK, 0), 12 + 4 + 8 + 4);
        assert_eq!(packet_bytes(Opcode::UD_SEND_ONLY, 256), 12 + 8 + 256 + 4);
    }
}
