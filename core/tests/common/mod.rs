//! What the tests of captured frames share: the RoCEv2 frames of all captures.
#![allow(dead_code)] // each test uses its part

use gdrcore_core::wire::{ICRC_LEN, ROCE_PORT};
use gdrcore_testkit::pcap::{records, Datagram};

/// Every RoCEv2 frame of every capture under `tests/golden`, with the capture's name and its number
/// therein.
pub fn golden() -> Vec<(String, usize, Datagram)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");
    let mut files: Vec<_> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "pcap"));
    files.sort();
    let mut all = Vec::new();
    for path in files {
        let pcap = std::fs::read(&path).unwrap();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        for (number, record) in records(&pcap).into_iter().enumerate() {
            let datagram = Datagram::parse(record.frame);
            if let Some(d) = datagram.filter(|d| d.to_port() == ROCE_PORT) {
                all.push((name.clone(), number + 1, d));
            }
        }
    }
    all
}

/// BTH to pad.
pub fn packet(d: &Datagram) -> &[u8] {
    let payload = d.payload();
    &payload[..payload.len() - ICRC_LEN]
}
