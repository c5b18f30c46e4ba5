//! The 40 bytes in front of a UD message: an IPv6 header, or 20 unused bytes and an IPv4 header.

/// Length of the GRH.
pub const BYTES: usize = 40;

/// Fields of a GRH that an answer needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// GID of the sender.
    pub source: [u8; 16],
    /// DSCP of its packet; ECN bits are the network's and cleared.
    pub traffic_class: u8,
}

/// The sender, or None where the bytes are neither header.
pub fn parse(b: &[u8; BYTES]) -> Option<Source> {
    let v4 = b.last_chunk::<20>()?;
    // Either half could look like the other by chance; the IPv4 checksum decides.
    if v4[0] == 0x45 && v4_checksum_holds(v4) {
        let mut source = [0; 16];
        source[10] = 0xff;
        source[11] = 0xff;
        source.get_mut(12..)?.copy_from_slice(v4.get(12..16)?);
        return Some(Source { source, traffic_class: v4[1] & !3 });
    }
    if b[0] >> 4 == 6 {
        let source = b.get(8..24)?.try_into().ok()?;
        let class = (b[0] << 4) | (b[1] >> 4);
        return Some(Source { source, traffic_class: class & !3 });
    }
    None
}

/// fe80::/10.
pub fn is_link_local(gid: &[u8; 16]) -> bool {
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
        assert_eq!(parse(&b), None);
    }

    #[test]
    fn grh_of_ipv6_names_the_source_and_the_class() {
        let mut b = [0; 40];
        b[0] = 0x6b;
        b[1] = 0x90;
        b[8] = 0xfe;
        b[9] = 0x80;
        b[23] = 7;
        let s = parse(&b).unwrap();
        assert_eq!(s.traffic_class, 0xb8);
        assert_eq!((s.source[0], s.source[1], s.source[15]), (0xfe, 0x80, 7));
        assert!(is_link_local(&s.source));
    }
}
