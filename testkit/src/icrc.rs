//! The ICRC of a packet whose IP header is known, as a capture or a raw socket shows it: computed
//! from the whole packet, by a way of its own.

use gdrcore_core::wire::icrc::crc32;
use gdrcore_core::wire::ip::{Udp, PROTO_UDP, V4, V6};
use gdrcore_core::wire::{Bth, ICRC_LEN};

/// The ICRC at the packet's end is wrong, or there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrong;

/// Checks a packet with all 32 bits. It begins with the IP header and may end with padding of the
/// link.
///
/// # Errors
/// [`Wrong`]; also if it is no whole UDP datagram of IPv4 or IPv6 (without extension headers), or
/// too short for a BTH and an ICRC.
pub fn check_exact(ip_packet: &[u8]) -> Result<(), Wrong> {
    match exact(ip_packet) {
        Some((computed, received)) if computed == received => Ok(()),
        _ => Err(Wrong),
    }
}

/// The ICRC that an IP packet should have, and the one it has.
fn exact(ip_packet: &[u8]) -> Option<(u32, u32)> {
    let word =
        |at: usize| Some(usize::from(u16::from_be_bytes(*ip_packet.get(at..)?.first_chunk()?)));
    let v4 = ip_packet.first()? >> 4 == 4;
    let (ip_len, total_len) = match ip_packet[0] >> 4 {
        4 => (usize::from(ip_packet[0] & 0xF) * 4, word(2)?),
        6 => (V6::LEN, word(4)? + V6::LEN),
        _ => return None,
    };
    if ip_len < V4::LEN {
        return None;
    }
    let (body, icrc) = ip_packet.get(..total_len)?.split_last_chunk::<ICRC_LEN>()?;
    let bth = ip_len + Udp::LEN;
    let (head, rest) = body.split_at_checked(bth + Bth::LEN)?;
    let protocol = head[if v4 { 9 } else { 6 }];
    if protocol != PROTO_UDP || word(ip_len + 4)? != total_len - ip_len {
        return None;
    }
    // The fields that may change on the way count as ones, as does the LRH that RoCE has not got.
    let mut head = head.to_vec();
    let varying: &[usize] = if v4 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
    varying.iter().chain(&[bth - 2, bth - 1, bth + 4]).for_each(|at| head[*at] = 0xFF);
    if !v4 {
        head[0] |= 0x0F;
    }
    let state = crc32(crc32(!0, &[0xFF; 8]), &head);
    Some((!crc32(state, rest), u32::from_le_bytes(*icrc)))
}
