//! The 40 bytes in front of a UD message: an IPv6 header, or 20 unused bytes and an IPv4 header.

use super::ip;

/// Length of the GRH.
pub const BYTES: usize = 40;

/// Fields of a GRH that programs set: those of the IP header by which a packet travels.
///
/// The ECN bits of a class that a program sets are the network's and the device's (congestion
/// control) and are not sent. A hop limit of 0 or 1 is the system's default: InfiniBand programs
/// say by it that the peer is in their subnet, and RoCE's kernels replace it by the route's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// 20 bits.
    pub flow_label: u32,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// Hop limit; of a packet that came 0: unknown.
    pub hop_limit: u8,
}

/// The hop limit where neither a program nor a packet names one.
pub const HOP_LIMIT: u8 = 64;
/// The bits of a flow label.
pub const FLOW_LABEL: u32 = 0xf_ffff;
/// The bits of a traffic class that are a program's: DSCP.
pub const DSCP: u8 = !3;

impl Fields {
    /// The fields of a packet that a program sends by these.
    #[must_use]
    pub fn sent(self) -> Fields {
        let hop_limit = if self.hop_limit <= 1 { HOP_LIMIT } else { self.hop_limit };
        Fields {
            flow_label: self.flow_label & FLOW_LABEL,
            traffic_class: self.traffic_class & DSCP,
            hop_limit,
        }
    }

    /// Writes the header of a datagram: `udp_len` is the length in its UDP header.
    pub fn emit(&self, from: &[u8; 16], to: &[u8; 16], udp_len: u16, grh: &mut [u8; BYTES]) {
        let Fields { flow_label, traffic_class, hop_limit } = *self;
        let hop_limit = if hop_limit == 0 { HOP_LIMIT } else { hop_limit };
        match (ip::v4_of_gid(from), ip::v4_of_gid(to)) {
            (Some(src), Some(dst)) => {
                let v4 = ip::V4::udp(src, dst, udp_len);
                ip::V4 { tos: traffic_class, ttl: hop_limit, ..v4 }.emit_grh(grh);
            }
            _ => {
                let v6 = ip::V6::udp(*from, *to, udp_len);
                ip::V6 { traffic_class, flow_label, hop_limit, ..v6 }.emit(grh);
            }
        }
    }
}

/// Fields of a GRH that an answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// GID of the sender.
    pub source: [u8; 16],
    /// DSCP of its packet; ECN bits are the network's and cleared.
    pub traffic_class: u8,
    /// Flow label of its packet.
    pub flow_label: u32,
}

/// The sender, or None where the bytes are neither header.
pub fn parse(b: &[u8; BYTES]) -> Option<Source> {
    let v4 = b.last_chunk::<20>()?;
    // Either half could look like the other by chance. Where the first one seems to be IPv6's, the
    // IPv4 checksum decides; elsewhere it may be missing, as in what rxe sends to its own address.
    if v4[0] == 0x45 && (b[0] >> 4 != 6 || v4_checksum_holds(v4)) {
        let mut source = [0; 16];
        source[10] = 0xff;
        source[11] = 0xff;
        source.get_mut(12..)?.copy_from_slice(v4.get(12..16)?);
        return Some(Source { source, traffic_class: v4[1] & DSCP, flow_label: 0 });
    }
    let v6 = ip::V6::parse(b)?;
    let (traffic_class, flow_label) = (v6.traffic_class & DSCP, v6.flow_label);
    Some(Source { source: v6.src, traffic_class, flow_label })
}

/// fe80::/10.
pub const fn is_link_local(gid: &[u8; 16]) -> bool {
    gid[0] == 0xfe && gid[1] & 0xc0 == 0x80
}

fn v4_checksum_holds(h: &[u8; 20]) -> bool {
    let mut sum: u32 = h.chunks_exact(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum == 0xffff
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header from RFC 1071 style examples: 192.168.0.1 to 192.168.0.199, UDP, checksum 0xb861.
    const V4: [u8; 20] = [
        0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xb8, 0x61, 0xc0, 0xa8, 0x00,
        0x01, 0xc0, 0xa8, 0x00, 0xc7,
    ];

    #[test]
    fn grh_of_ipv4_names_the_mapped_source() {
        let mut b = [0xee; 40];
        b[20..].copy_from_slice(&V4);
        let s = parse(&b).unwrap();
        assert_eq!(s.source, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 168, 0, 1]);
        b[30] ^= 1;
        assert_eq!(parse(&b), Some(s), "without a checksum");
        b[0] = 0x6e;
        assert_eq!(parse(&b).unwrap().source[..12], [0xee; 12], "of IPv6");
        b[20] = 0x46;
        b[0] = 0xee;
        assert_eq!(parse(&b), None);
    }

    #[test]
    fn grh_of_ipv6_names_the_source_and_the_class() {
        let mut b = [0; 40];
        b[0] = 0x6b;
        (b[1], b[2], b[3]) = (0x9a, 0xbc, 0xde);
        b[8] = 0xfe;
        b[9] = 0x80;
        b[23] = 7;
        let s = parse(&b).unwrap();
        assert_eq!((s.traffic_class, s.flow_label), (0xb8, 0xa_bcde));
        assert_eq!((s.source[0], s.source[1], s.source[15]), (0xfe, 0x80, 7));
        assert!(is_link_local(&s.source));
    }
}
