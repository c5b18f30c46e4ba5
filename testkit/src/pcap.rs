//! Reads capture files: those that devices write, and tcpdump's of a machine with this byte order.

use gdrcore_core::wire::ip::{gid_of_v4, Udp, ETHERNET_LEN, PROTO_UDP, V4, V6};
use gdrcore_core::wire::IcrcFlow;

/// Bytes before the first record, and before the frame of each.
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;

/// A frame of a capture, whole.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// When it was captured, in nanoseconds since the epoch.
    pub time_ns: u64,
    /// Its bytes, from the Ethernet header on.
    pub frame: &'a [u8],
}

/// The records of a capture.
///
/// # Panics
/// If it is none of Ethernet frames, or one of them is not whole.
pub fn records(file: &[u8]) -> Vec<Record<'_>> {
    let word = |at: usize| {
        let bytes = file.get(at..).and_then(<[u8]>::first_chunk).expect("a whole record");
        u32::from_ne_bytes(*bytes)
    };
    let unit_ns = match word(0) {
        0xA1B2_C3D4 => 1000,
        0xA1B2_3C4D => 1,
        magic => panic!("{magic:#x}: no capture of this byte order"),
    };
    assert_eq!(word(20), 1, "the link type of Ethernet");
    let (mut all, mut at) = (Vec::new(), FILE_HEADER);
    while at < file.len() {
        let time_ns = u64::from(word(at)) * 1_000_000_000 + u64::from(word(at + 4)) * unit_ns;
        let captured = word(at + 8);
        assert_eq!(word(at + 12), captured, "a frame is cut off");
        at += RECORD_HEADER + captured as usize;
        let frame = file.get(at - captured as usize..at).expect("a whole frame");
        all.push(Record { time_ns, frame });
    }
    all
}

/// A UDP datagram with the headers around it.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// Addresses and ports.
    pub flow: IcrcFlow,
    /// IPv4's identification, 0 on IPv6.
    pub ident: u16,
    /// IPv4's "don't fragment", true on IPv6.
    pub dont_fragment: bool,
    /// From the IP header to the end of the payload, without padding of the link.
    pub ip_packet: Vec<u8>,
    /// Where the UDP header begins in it.
    pub udp_at: usize,
}

impl Datagram {
    /// Takes an Ethernet frame apart. `None` if it carries no UDP over IPv4 or IPv6.
    pub fn parse(frame: &[u8]) -> Option<Datagram> {
        let (_, ip) = frame.split_at_checked(ETHERNET_LEN)?;
        let v4 = ip.first_chunk().and_then(V4::parse).filter(|v4| v4.protocol == PROTO_UDP);
        let v6 = ip.first_chunk().and_then(V6::parse).filter(|v6| v6.next_header == PROTO_UDP);
        let (src, dst, ident, dont_fragment, udp_at, end) = match (v4, v6) {
            (Some(h), _) => {
                let (src, dst) = (gid_of_v4(h.src), gid_of_v4(h.dst));
                (src, dst, h.ident, h.dont_fragment, V4::LEN, usize::from(h.total_len))
            }
            (_, Some(h)) => (h.src, h.dst, 0, true, V6::LEN, V6::LEN + usize::from(h.payload_len)),
            _ => return None,
        };
        let ip_packet = ip.get(..end)?.to_vec();
        let udp = Udp::parse(ip_packet.get(udp_at..)?.first_chunk()?);
        let flow = IcrcFlow::from_gids(&src, &dst, udp.sport, udp.dport);
        Some(Datagram { flow, ident, dont_fragment, ip_packet, udp_at })
    }

    /// The port that it is for.
    pub fn to_port(&self) -> u16 {
        u16::from_be_bytes([self.ip_packet[self.udp_at + 2], self.ip_packet[self.udp_at + 3]])
    }

    /// What a UDP socket delivers; of RoCEv2, BTH to ICRC.
    pub fn payload(&self) -> &[u8] {
        &self.ip_packet[self.udp_at + Udp::LEN..]
    }
}
