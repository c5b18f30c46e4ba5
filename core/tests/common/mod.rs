//! What the tests of captured frames share: a reader of classic pcap files and of the headers before the BTH.
#![allow(dead_code)] // each test uses its part

use gdrcore_core::wire::ip::{Udp, ETHERNET_LEN, PROTO_UDP, V4, V6};
use gdrcore_core::wire::{Flow, ICRC_LEN, ROCE_PORT};

/// The frames of a classic little-endian pcap file with Ethernet frames; panics where it is something else.
pub fn frames(pcap: &[u8]) -> Vec<&[u8]> {
    let word = |at: usize| u32::from_le_bytes(pcap[at..at + 4].try_into().unwrap()) as usize;
    assert!(matches!(word(0), 0xA1B2_C3D4 | 0xA1B2_3C4D), "not a classic pcap file");
    assert_eq!(word(20), 1, "not Ethernet");
    let mut frames = Vec::new();
    let mut at = 24;
    while at < pcap.len() {
        let (captured, on_wire) = (word(at + 8), word(at + 12));
        assert_eq!(captured, on_wire, "frame cut off");
        at += 16;
        frames.push(&pcap[at..at + captured]);
        at += captured;
    }
    frames
}

/// Every RoCEv2 frame of every capture under `tests/golden`, with the capture's name and its number therein.
pub fn golden() -> Vec<(String, usize, Roce)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "pcap"));
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let pcap = std::fs::read(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        for (number, frame) in frames(&pcap).into_iter().enumerate() {
            if let Some(roce) = Roce::parse(frame) {
                all.push((name.clone(), number + 1, roce));
            }
        }
    }
    all
}

/// A RoCEv2 packet with the headers around it.
#[derive(Clone, Debug)]
pub struct Roce {
    /// From the IP header to the ICRC, without padding of the link.
    pub ip_packet: Vec<u8>,
    /// Where the UDP header begins.
    pub udp_at: usize,
    /// Addresses and ports.
    pub flow: Flow,
    /// IPv4's identification, 0 on IPv6.
    pub ident: u16,
    /// IPv4's "don't fragment", true on IPv6.
    pub dont_fragment: bool,
}

impl Roce {
    /// Takes an Ethernet frame apart; `None` where it carries no RoCEv2.
    pub fn parse(frame: &[u8]) -> Option<Roce> {
        let ethertype = u16::from_be_bytes([frame[12], frame[13]]);
        let ip = &frame[ETHERNET_LEN..];
        let ports = |at: usize| {
            let udp = Udp::parse(ip[at..].first_chunk().unwrap());
            (udp.dport == ROCE_PORT).then_some((udp.sport, udp.dport))
        };
        match ethertype {
            0x0800 => {
                let v4 = V4::parse(ip.first_chunk()?).filter(|v4| v4.protocol == PROTO_UDP)?;
                let (sport, dport) = ports(V4::LEN)?;
                Some(Roce {
                    ip_packet: ip[..v4.total_len as usize].to_vec(),
                    udp_at: V4::LEN,
                    flow: Flow::v4(v4.src, v4.dst, sport, dport),
                    ident: v4.ident,
                    dont_fragment: v4.dont_fragment,
                })
            }
            0x86DD => {
                let v6 = V6::parse(ip.first_chunk()?).filter(|v6| v6.next_header == PROTO_UDP)?;
                let (sport, dport) = ports(V6::LEN)?;
                Some(Roce {
                    ip_packet: ip[..V6::LEN + v6.payload_len as usize].to_vec(),
                    udp_at: V6::LEN,
                    flow: Flow::v6(v6.src, v6.dst, sport, dport),
                    ident: 0,
                    dont_fragment: true,
                })
            }
            _ => None,
        }
    }

    /// What a UDP socket delivers: BTH to ICRC.
    pub fn datagram(&self) -> &[u8] {
        &self.ip_packet[self.udp_at + Udp::LEN..]
    }

    /// BTH to pad.
    pub fn packet(&self) -> &[u8] {
        let datagram = self.datagram();
        &datagram[..datagram.len() - ICRC_LEN]
    }
}
