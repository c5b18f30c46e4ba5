//! What the tests of captured frames share: the RoCEv2 frames of all captures.
#![allow(dead_code)] // each test uses its part

use gdrcore_core::wire::pcap::{Datagram, Records, LINKTYPE_ETHERNET};
use gdrcore_core::wire::{Flow, ICRC_LEN, ROCE_PORT};

/// Every RoCEv2 frame of every capture under `tests/golden`, with the capture's name and its number
/// therein.
pub fn golden() -> Vec<(String, usize, Roce)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "pcap"));
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let pcap = std::fs::read(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let records = Records::of(&pcap).expect("a classic pcap file");
        assert_eq!(records.header().linktype, LINKTYPE_ETHERNET);
        for (number, record) in records.enumerate() {
            let record = record.expect("a whole record");
            assert_eq!(record.wire_len as usize, record.frame.len(), "frame cut off");
            if let Some(d) = Datagram::parse(record.frame).filter(|d| d.udp.dport == ROCE_PORT) {
                all.push((name.clone(), number + 1, Roce::of(&d)));
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
    fn of(d: &Datagram) -> Roce {
        Roce {
            ip_packet: d.ip_packet.to_vec(),
            udp_at: d.udp_at,
            flow: d.flow(),
            ident: d.ident,
            dont_fragment: d.dont_fragment,
        }
    }

    /// What a UDP socket delivers: BTH to ICRC.
    pub fn datagram(&self) -> &[u8] {
        &self.ip_packet[self.udp_at + gdrcore_core::wire::ip::Udp::LEN..]
    }

    /// BTH to pad.
    pub fn packet(&self) -> &[u8] {
        let datagram = self.datagram();
        &datagram[..datagram.len() - ICRC_LEN]
    }
}
