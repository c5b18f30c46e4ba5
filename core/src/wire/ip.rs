//! IP, UDP and Ethernet headers: for the GRH that UD delivers, for captures, and for frames with
//! known headers.

/// IP protocol number of UDP.
pub const PROTO_UDP: u8 = 17;

/// The UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Udp {
    /// Source port.
    pub sport: u16,
    /// Destination port.
    pub dport: u16,
    /// Bytes of header and payload.
    pub len: u16,
    /// Checksum, 0 = none.
    pub checksum: u16,
}

impl Udp {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header.
    pub fn parse(b: &[u8; Self::LEN]) -> Udp {
        let field = |at: usize| u16::from_be_bytes([b[at], b[at + 1]]);
        Udp { sport: field(0), dport: field(2), len: field(4), checksum: field(6) }
    }

    /// Writes the header.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        b[0..2].copy_from_slice(&self.sport.to_be_bytes());
        b[2..4].copy_from_slice(&self.dport.to_be_bytes());
        b[4..6].copy_from_slice(&self.len.to_be_bytes());
        b[6..8].copy_from_slice(&self.checksum.to_be_bytes());
    }
}

/// The IPv4 header, without options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V4 {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: u16,
    /// Identification.
    pub ident: u16,
    /// "Don't fragment".
    pub dont_fragment: bool,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Source address.
    pub src: [u8; 4],
    /// Destination address.
    pub dst: [u8; 4],
}

impl V4 {
    /// Bytes on the wire.
    pub const LEN: usize = 20;

    /// A header for `payload_len` bytes of UDP header and payload: DF set, TTL 64, identification
    /// 0.
    pub fn udp(src: [u8; 4], dst: [u8; 4], payload_len: u16) -> V4 {
        V4 {
            tos: 0,
            total_len: payload_len.saturating_add(Self::LEN as u16),
            ident: 0,
            // IBTA CA17-7: Packets over IPv4 forbid fragmentation.
            dont_fragment: true,
            ttl: 64,
            protocol: PROTO_UDP,
            src,
            dst,
        }
    }

    /// Reads the header; `None` where it is not IPv4, has options, or belongs to a fragment.
    pub fn parse(b: &[u8; Self::LEN]) -> Option<V4> {
        // IBTA CA17-8: Fragments are not read.
        let flags = u16::from_be_bytes([b[6], b[7]]);
        if b[0] != 0x45 || flags & 0xBFFF != 0 {
            return None;
        }
        Some(V4 {
            tos: b[1],
            total_len: u16::from_be_bytes([b[2], b[3]]),
            ident: u16::from_be_bytes([b[4], b[5]]),
            dont_fragment: flags & 0x4000 != 0,
            ttl: b[8],
            protocol: b[9],
            src: [b[12], b[13], b[14], b[15]],
            dst: [b[16], b[17], b[18], b[19]],
        })
    }

    /// Writes the header with its checksum.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        *b = [0; Self::LEN];
        // IBTA CA17-3: The IPv4 header has no options.
        b[0] = 0x45;
        b[1] = self.tos;
        b[2..4].copy_from_slice(&self.total_len.to_be_bytes());
        b[4..6].copy_from_slice(&self.ident.to_be_bytes());
        b[6] = if self.dont_fragment { 0x40 } else { 0 };
        b[8] = self.ttl;
        b[9] = self.protocol;
        b[12..16].copy_from_slice(&self.src);
        b[16..20].copy_from_slice(&self.dst);
        let sum = checksum(b);
        b[10..12].copy_from_slice(&sum.to_be_bytes());
    }

    /// Writes the 40 bytes that UD delivers before the payload: 20 zero bytes and the header.
    pub fn emit_grh(&self, b: &mut [u8; GRH_LEN]) {
        let mut header = [0; Self::LEN];
        self.emit(&mut header);
        b[..20].fill(0);
        b[20..].copy_from_slice(&header);
    }
}

/// The IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct V6 {
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// Protocol of the payload.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Source address.
    pub src: [u8; 16],
    /// Destination address.
    pub dst: [u8; 16],
}

impl V6 {
    /// Bytes on the wire.
    pub const LEN: usize = 40;

    /// A header for `payload_len` bytes of UDP header and payload: hop limit 64.
    pub fn udp(src: [u8; 16], dst: [u8; 16], payload_len: u16) -> V6 {
        V6 {
            traffic_class: 0,
            flow_label: 0,
            payload_len,
            next_header: PROTO_UDP,
            hop_limit: 64,
            src,
            dst,
        }
    }

    /// Reads the header; `None` where it is not IPv6.
    pub fn parse(b: &[u8; Self::LEN]) -> Option<V6> {
        let word = u32::from_be_bytes([b[0], b[1], b[2], b[3]]);
        if word >> 28 != 6 {
            return None;
        }
        let (mut src, mut dst) = ([0; 16], [0; 16]);
        src.copy_from_slice(&b[8..24]);
        dst.copy_from_slice(&b[24..40]);
        Some(V6 {
            traffic_class: (word >> 20) as u8,
            flow_label: word & 0xF_FFFF,
            payload_len: u16::from_be_bytes([b[4], b[5]]),
            next_header: b[6],
            hop_limit: b[7],
            src,
            dst,
        })
    }

    /// Writes the header; it is also what UD delivers before the payload.
    pub fn emit(&self, b: &mut [u8; Self::LEN]) {
        let word = 6 << 28 | (self.traffic_class as u32) << 20 | self.flow_label & 0xF_FFFF;
        b[0..4].copy_from_slice(&word.to_be_bytes());
        b[4..6].copy_from_slice(&self.payload_len.to_be_bytes());
        b[6] = self.next_header;
        b[7] = self.hop_limit;
        b[8..24].copy_from_slice(&self.src);
        b[24..40].copy_from_slice(&self.dst);
    }
}

/// Bytes that UD delivers before the payload.
pub const GRH_LEN: usize = 40;

/// The IPv4 address of a v4-mapped GID, `None` for others.
pub fn v4_of_gid(gid: &[u8; 16]) -> Option<[u8; 4]> {
    match gid {
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, a, b, c, d] => Some([*a, *b, *c, *d]),
        _ => None,
    }
}

/// The v4-mapped GID of an IPv4 address.
pub fn gid_of_v4(v4: [u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    // IBTA A17.4.1.1: The GID of an IPv4 address is the v4-mapped IPv6 address.
    gid[10..12].fill(0xFF);
    gid[12..].copy_from_slice(&v4);
    gid
}

/// The Internet checksum of `data`, as it goes into a header whose checksum field is zero.
pub fn checksum(data: &[u8]) -> u16 {
    let mut sum: u64 = 0;
    for pair in data.chunks(2) {
        let [hi, lo] = [pair[0], pair.get(1).copied().unwrap_or(0)];
        sum += u16::from_be_bytes([hi, lo]) as u64;
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    !(sum as u16)
}

/// Bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;

/// Writes the Ethernet, IP and UDP headers before `udp_payload_len` bytes from one GID to another,
/// as a capture has them, and returns their bytes: 42 for IPv4, 62 for IPv6.
///
/// MAC addresses are made from the ends of the GIDs (locally administered). `None` where the buffer
/// is too short or the payload longer than a datagram.
pub fn emit_frame_headers(
    src: &[u8; 16],
    dst: &[u8; 16],
    sport: u16,
    dport: u16,
    ident: u16,
    udp_payload_len: usize,
    buf: &mut [u8],
) -> Option<usize> {
    let udp_len = u16::try_from(udp_payload_len.checked_add(Udp::LEN)?).ok()?;
    let ips = v4_of_gid(src).zip(v4_of_gid(dst));
    let ip_len = if ips.is_some() { V4::LEN } else { V6::LEN };
    udp_len.checked_add(V4::LEN as u16)?;
    let buf = buf.get_mut(..ETHERNET_LEN + ip_len + Udp::LEN)?;

    let (ethernet, rest) = buf.split_at_mut(ETHERNET_LEN);
    ethernet[0] = 0x02;
    ethernet[1..6].copy_from_slice(&dst[11..16]);
    ethernet[6] = 0x02;
    ethernet[7..12].copy_from_slice(&src[11..16]);
    ethernet[12..14].copy_from_slice(&if ips.is_some() { 0x0800u16 } else { 0x86DD }.to_be_bytes());

    let (ip, udp) = rest.split_at_mut(ip_len);
    if let Some((src, dst)) = ips {
        V4 { ident, ..V4::udp(src, dst, udp_len) }.emit(ip.first_chunk_mut()?);
    } else {
        V6::udp(*src, *dst, udp_len).emit(ip.first_chunk_mut()?);
    }
    Udp { sport, dport, len: udp_len, checksum: 0 }.emit(udp.first_chunk_mut()?);
    Some(buf.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: [u8; 4] = [10, 77, 0, 1];
    const B: [u8; 4] = [10, 77, 0, 2];

    // IBTA A17.4.5.2
    #[test]
    fn grh_of_v4_has_a_right_checksum() {
        let mut grh = [0xEE; GRH_LEN];
        V4 { tos: 2, ident: 0x7CB2, ttl: 3, ..V4::udp(A, B, 999) }.emit_grh(&mut grh);
        assert_eq!(grh[..20], [0; 20]);
        // The sum over a header with its checksum is all ones.
        assert_eq!(checksum(&grh[20..]), 0);
        let v4 = V4::parse(grh[20..].first_chunk().unwrap()).unwrap();
        assert_eq!((v4.total_len, v4.ident, v4.src, v4.dst), (1019, 0x7CB2, A, B));
    }

    // IBTA CA17-3
    // IBTA CA17-8
    #[test]
    fn options_and_fragments_are_not_parsed() {
        let mut header = [0; V4::LEN];
        V4::udp(A, B, 8).emit(&mut header);
        assert!(V4::parse(&header).is_some());
        for (at, value) in [(0, 0x46), (0, 0x65), (6, 0x20), (6, 0x80), (7, 1)] {
            let mut other = header;
            other[at] = value;
            assert_eq!(V4::parse(&other), None);
        }
        assert_eq!(V6::parse(&[0x45; V6::LEN]), None);
    }

    #[test]
    fn checksums() {
        assert_eq!(checksum(&[]), 0xFFFF);
        assert_eq!(checksum(&[0xFF; 4]), 0);
        // An odd byte is the upper half of a word.
        assert_eq!(checksum(&[0x12]), !0x1200);
        assert_eq!(checksum(&[0xFF, 0xFF, 0x00, 0x01]), 0xFFFE);
    }

    // IBTA A17.4.1.1
    #[test]
    fn gids() {
        assert_eq!(v4_of_gid(&gid_of_v4(A)), Some(A));
        assert_eq!(v4_of_gid(&[0; 16]), None);
    }

    // IBTA CA17-7
    #[test]
    fn frame_headers() {
        let mut buf = [0xEE; 64];
        let v4 = emit_frame_headers(&gid_of_v4(A), &gid_of_v4(B), 0xC001, 4791, 5, 20, &mut buf);
        assert_eq!(v4, Some(42));
        let ip = V4::parse(buf[14..].first_chunk().unwrap()).unwrap();
        let udp = Udp::parse(buf[34..].first_chunk().unwrap());
        assert_eq!((ip.total_len, ip.ident, ip.dst), (48, 5, B));
        assert!(ip.dont_fragment);
        assert_eq!(udp, Udp { sport: 0xC001, dport: 4791, len: 28, checksum: 0 });

        assert_eq!(emit_frame_headers(&[1; 16], &[2; 16], 0xC001, 4791, 5, 20, &mut buf), Some(62));
        let ip = V6::parse(buf[14..].first_chunk().unwrap()).unwrap();
        assert_eq!((ip.payload_len, ip.next_header, ip.dst), (28, PROTO_UDP, [2; 16]));

        assert_eq!(emit_frame_headers(&[1; 16], &[2; 16], 1, 2, 0, 20, &mut buf[..61]), None);
        assert_eq!(
            emit_frame_headers(&gid_of_v4(A), &gid_of_v4(B), 1, 2, 0, 65_507, &mut buf),
            Some(42)
        );
        assert_eq!(
            emit_frame_headers(&gid_of_v4(A), &gid_of_v4(B), 1, 2, 0, 65_508, &mut buf),
            None
        );
        assert_eq!(
            emit_frame_headers(&gid_of_v4(A), &gid_of_v4(B), 1, 2, 0, usize::MAX, &mut buf),
            None
        );
    }
}
