//! The invariant CRC that ends every packet, and the CRC-32 beneath it.
//!
//! The ICRC is a zlib CRC-32 over eight bytes of ones, the IP and UDP headers and the packet, with
//! every field that a router may change set to ones. An [`IcrcFlow`] keeps what is the same in all
//! packets of one direction.

#[cfg(all(target_arch = "aarch64", target_os = "linux", not(miri)))]
#[allow(unsafe_code)] // asks which instructions there are
mod armv8;
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[allow(unsafe_code)] // SIMD loads
mod clmul;
#[allow(unsafe_code)] // calls what the machine was found to have
mod cpu;
mod field;
mod hop;
mod table;

// For copies that sum in the same pass.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) use clmul::{
    end_rounds, features, over_round, wide_256::end_rounds_256, wide_512::end_rounds_512,
};
pub use cpu::Impl;
pub use hop::Hop;

use super::headers::Bth;
use super::{ip, ICRC_LEN};
use cpu::Runnable;
use field::{shift, unshift};

/// The state after `data`: reflected CRC-32 of zlib, without its inversions at both ends. Any
/// thread.
#[inline]
pub fn crc32(state: u32, data: &[u8]) -> u32 {
    Runnable::best().update(state, data)
}

/// [`crc32`] by the implementation named, or the best that the machine has if it lacks that one.
pub fn crc32_with(which: Impl, state: u32, data: &[u8]) -> u32 {
    Runnable::at_most(which).update(state, data)
}

/// The state after the eight masked bytes that stand for the link's header.
const AFTER_LRH: u32 = 0xDEBB_20E3;

/// The packet was changed on its way, or it does not belong to this flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIcrc;

impl core::fmt::Display for BadIcrc {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("ICRC does not match the packet")
    }
}

/// Result of checking the ICRC of a received packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The IPv4 identification; 0 on IPv6.
    pub ident: u16,
    /// Whether IPv4's "don't fragment" was set; true on IPv6.
    pub dont_fragment: bool,
    /// All 32 bits matched as hinted. Otherwise the identification was solved for, and a wrong
    /// packet is accepted with a chance of 2^-15.
    pub exact: bool,
}

/// One direction of a conversation: addresses and ports, ready to compute ICRCs. Eight bytes.
///
/// All bytes that come before the UDP length are constant but two fields of the IP header: the
/// length and, on IPv4, the identification. Their share of the CRC is added to that of the constant
/// bytes, because the CRC is linear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcrcFlow {
    /// The state before the UDP length, with zero in the fields that vary.
    state: u32,
    v6: bool,
}

/// A packet's bytes up to the end of its BTH, as the implementations take them.
#[derive(Clone, Copy)]
struct MaskedHeaders {
    /// Eight bytes of the IP header, zero but for the fields that vary; as a little-endian number.
    varying: u64,
    /// Whether they come from an IPv6 header, and so lie farther from `last`.
    v6: bool,
    /// UDP's length and checksum, and the BTH, masked, with [`IcrcFlow::state`] added; as two
    /// little-endian numbers.
    last: [u64; 2],
}

/// From IPv4's first byte to `MaskedHeaders::last`, less the eight bytes that vary.
const V4_BETWEEN: usize = ip::V4::LEN + 4 - 8;
/// From IPv6's fifth byte to `MaskedHeaders::last`, less the eight bytes that vary.
const V6_BETWEEN: usize = ip::V6::LEN - 4 + 4 - 8;
#[cfg(all(target_arch = "x86_64", not(miri)))]
const V4_FOLD: u64 = clmul::fold_high(8 * (V4_BETWEEN as u32 + 16));
#[cfg(all(target_arch = "x86_64", not(miri)))]
const V6_FOLD: u64 = clmul::fold_high(8 * (V6_BETWEEN as u32 + 16));

impl IcrcFlow {
    /// A flow over IPv4.
    pub fn v4(src: [u8; 4], dst: [u8; 4], sport: u16, dport: u16) -> IcrcFlow {
        // IBTA CA17-22: The ICRC covers eight bytes of ones, the IP and UDP headers and the packet;
        // fields that routers may change count as ones.
        const MASKED: [u8; 12] = [0x45, 0xFF, 0, 0, 0, 0, 0x40, 0, 0xFF, ip::PROTO_UDP, 0xFF, 0xFF];
        let mut head = [0; ip::V4::LEN + 4];
        head[..12].copy_from_slice(&MASKED);
        head[12..16].copy_from_slice(&src);
        head[16..20].copy_from_slice(&dst);
        head[20..22].copy_from_slice(&sport.to_be_bytes());
        head[22..24].copy_from_slice(&dport.to_be_bytes());
        IcrcFlow { state: crc32(AFTER_LRH, &head), v6: false }
    }

    /// A flow over IPv6.
    pub fn v6(src: [u8; 16], dst: [u8; 16], sport: u16, dport: u16) -> IcrcFlow {
        let mut head = [0; ip::V6::LEN + 4];
        head[..8].copy_from_slice(&[0x6F, 0xFF, 0xFF, 0xFF, 0, 0, ip::PROTO_UDP, 0xFF]);
        head[8..24].copy_from_slice(&src);
        head[24..40].copy_from_slice(&dst);
        head[40..42].copy_from_slice(&sport.to_be_bytes());
        head[42..44].copy_from_slice(&dport.to_be_bytes());
        IcrcFlow { state: crc32(AFTER_LRH, &head), v6: true }
    }

    /// A flow between two GIDs: IPv4 where both are v4-mapped, else IPv6.
    pub fn from_gids(src: &[u8; 16], dst: &[u8; 16], sport: u16, dport: u16) -> IcrcFlow {
        match ip::v4_of_gid(src).zip(ip::v4_of_gid(dst)) {
            Some((src, dst)) => IcrcFlow::v4(src, dst, sport, dport),
            None => IcrcFlow::v6(*src, *dst, sport, dport),
        }
    }

    /// Whether the flow runs over IPv6.
    #[inline]
    pub fn is_v6(&self) -> bool {
        self.v6
    }

    #[inline]
    fn head(&self, ident: u16, bth: &[u8; Bth::LEN], packet_len: usize) -> MaskedHeaders {
        // Lengths wrap for packets that no datagram can carry; there is nothing to protect.
        // IBTA CA17-21: The UDP length counts from the UDP header to the end of the ICRC.
        let udp_len = (packet_len + ICRC_LEN + ip::Udp::LEN) as u16;
        // Shifts instead of copies: the bytes stay in registers, where the next step wants them.
        let [a, b, c, d, rest @ ..] = *bth;
        let begin = u32::from_le_bytes([a, b, c, d]) as u64;
        let begin = begin << 32 | 0xFFFF_0000 | udp_len.swap_bytes() as u64;
        let last = [begin ^ self.state as u64, u64::from_le_bytes(rest) | 0xFF];
        let varying = if self.v6 {
            udp_len.swap_bytes() as u64
        } else {
            let total_len = udp_len.wrapping_add(ip::V4::LEN as u16);
            (total_len.swap_bytes() as u64) << 16 | (ident.swap_bytes() as u64) << 32
        };
        MaskedHeaders { varying, v6: self.v6, last }
    }

    /// The ICRC of a packet (BTH to pad, without ICRC), to be stored least significant byte first.
    ///
    /// `ident` is the IPv4 identification that the packet leaves with, DF set; IPv6 has none and
    /// ignores it. 0 for packets shorter than a BTH.
    #[inline]
    pub fn icrc(&self, ident: u16, packet: &[u8]) -> u32 {
        let Some((bth, rest)) = packet.split_first_chunk() else { return 0 };
        !Runnable::best().icrc(self.head(ident, bth, packet.len()), rest)
    }

    /// [`IcrcFlow::icrc`] by the implementation named, or the best that the machine has if it lacks
    /// that one.
    pub fn icrc_with(&self, which: Impl, ident: u16, packet: &[u8]) -> u32 {
        let Some((bth, rest)) = packet.split_first_chunk() else { return 0 };
        !Runnable::at_most(which).icrc(self.head(ident, bth, packet.len()), rest)
    }

    /// The CRC state behind the headers of a packet (BTH and what follows it) that has `packet_len`
    /// bytes up to its pad. When [`crc32`] has gone on over payload and pad, the inverted state is
    /// what [`IcrcFlow::icrc`] gives. 0 for headers shorter than a BTH.
    #[inline]
    pub fn icrc_of_headers(&self, ident: u16, headers: &[u8], packet_len: usize) -> u32 {
        let Some((bth, rest)) = headers.split_first_chunk() else { return 0 };
        Runnable::best().icrc(self.head(ident, bth, packet_len), rest)
    }

    /// Computes the ICRC of all but the last four bytes of `buf` and stores it there.
    ///
    /// Buffers shorter than a BTH and an ICRC are left alone.
    #[inline]
    pub fn append_icrc(&self, ident: u16, buf: &mut [u8]) {
        if buf.len() < Bth::LEN + ICRC_LEN {
            return;
        }
        if let Some((packet, icrc)) = buf.split_last_chunk_mut::<ICRC_LEN>() {
            *icrc = self.icrc(ident, packet).to_le_bytes();
        }
    }

    /// The ICRC of a packet that comes from the flow `was` and goes on in this one, each with its
    /// identification. It is computed from the ICRC at the packet's end: if that is wrong, the new
    /// one is as wrong, so the receiver finds whatever happened to the packet on its way. The
    /// payload is not read: about 100 ns. 0 for packets shorter than a BTH and an ICRC.
    pub fn icrc_after(&self, ident: u16, was: (&IcrcFlow, u16), packet: &[u8]) -> u32 {
        let Some((body, icrc)) = packet.split_last_chunk::<ICRC_LEN>() else { return 0 };
        let Some((bth, rest)) = body.split_first_chunk() else { return 0 };
        // The CRC is linear, so only the headers make a difference: all behind them is the same.
        let behind =
            |flow: &IcrcFlow, id| Runnable::best().icrc(flow.head(id, bth, body.len()), &[]);
        let change = behind(self, ident) ^ behind(was.0, was.1);
        u32::from_le_bytes(*icrc) ^ shift(change, rest.len() as u16)
    }

    /// Checks the ICRC at the end of a received packet.
    ///
    /// IPv6: exact. IPv4: the identification is not known to the receiver of a datagram.
    /// `ident_hint` is tried first (our own senders' is the number of the segment in its burst);
    /// else the one identification is sought that makes the ICRC right, with DF set and with DF
    /// clear. Cost beyond the CRC: nothing with a right hint, else about 100 ns.
    #[inline]
    pub fn check(&self, ident_hint: u16, packet: &[u8]) -> Result<Accepted, BadIcrc> {
        let Some((body, icrc)) = packet.split_last_chunk::<ICRC_LEN>() else { return Err(BadIcrc) };
        if body.len() < Bth::LEN || packet.len() > MAX_UDP_PAYLOAD {
            return Err(BadIcrc);
        }
        let difference = self.icrc(ident_hint, body) ^ u32::from_le_bytes(*icrc);
        if difference == 0 {
            let ident = if self.v6 { 0 } else { ident_hint };
            return Ok(Accepted { ident, dont_fragment: true, exact: true });
        }
        self.solve(ident_hint, difference, body.len())
    }

    /// Finds the identification that explains the difference of two ICRCs.
    ///
    /// The CRC is linear, so the difference taken back to where the identification enters is the
    /// difference of the four header bytes there: identification, flags and fragment offset. Only
    /// DF may differ among the latter.
    #[cold]
    fn solve(&self, hint: u16, difference: u32, body_len: usize) -> Result<Accepted, BadIcrc> {
        if self.v6 {
            return Err(BadIcrc);
        }
        // From the identification to the end of the UDP header, and all after it.
        let after = ip::V4::LEN - 4 + ip::Udp::LEN + body_len;
        let [i0, i1, flags, offset] = unshift(difference, after as u16).to_le_bytes();
        if flags & !0x40 != 0 || offset != 0 {
            return Err(BadIcrc);
        }
        let ident = u16::from_be_bytes([i0, i1]) ^ hint;
        Ok(Accepted { ident, dont_fragment: flags == 0, exact: false })
    }
}

/// The longest payload of an IPv4 datagram.
const MAX_UDP_PAYLOAD: usize = 65_535 - ip::V4::LEN - ip::Udp::LEN;

#[cfg(test)]
mod tests;
