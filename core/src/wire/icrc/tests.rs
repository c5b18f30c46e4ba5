//! Known answers, and every implementation against the plain definition.

extern crate std;
use std::vec::Vec;

use super::*;
use gdrcore_testkit::icrc::check_exact;
use gdrcore_testkit::rng::Rng;

/// The definition, bit by bit.
fn by_definition(mut state: u32, data: &[u8]) -> u32 {
    for &byte in data {
        state ^= byte as u32;
        for _ in 0..8 {
            state = table::times_x(state);
        }
    }
    state
}

fn noise(len: usize) -> Vec<u8> {
    let mut x = 0x9E37_79B9u32;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            x as u8
        })
        .collect()
}

fn available() -> impl Iterator<Item = Impl> {
    Impl::ALL.iter().copied().filter(|which| {
        if !which.is_available() {
            gdrcore_testkit::skip::skipped(format_args!(
                "{which:?}: its instructions are not here"
            ));
        }
        which.is_available()
    })
}

#[test]
fn zlib_vectors() {
    let vectors: [(&[u8], u32); 5] = [
        (b"", 0),
        (b"a", 0xE8B7_BE43),
        (b"123456789", 0xCBF4_3926),
        (b"The quick brown fox jumps over the lazy dog", 0x414F_A339),
        (&[0; 32], 0x190A_55AD),
    ];
    for which in available() {
        for (data, crc) in vectors {
            assert_eq!(!crc32_with(which, !0, data), crc, "{which:?} {data:?}");
        }
    }
    assert_eq!(crc32(!0, &[0xFF; 8]), AFTER_LRH);
}

#[test]
fn every_length_and_alignment() {
    let data = noise(1400);
    for which in available() {
        for len in (0..300).chain([511, 512, 513, 767, 768, 1023, 1024, 1025, 1279, 1300]) {
            for start in [0, 1, 3, 8, 15, 63] {
                let piece = &data[start..start + len];
                for state in [0, !0, 0x1234_5678] {
                    assert_eq!(
                        crc32_with(which, state, piece),
                        by_definition(state, piece),
                        "{which:?} {len}"
                    );
                }
            }
        }
    }
}

/// Long enough for every loop of every implementation to begin, go on and end with any rest.
const LONG: usize = 1100;

#[test]
fn every_implementation_is_the_table() {
    let data = noise(LONG + 64);
    for which in available() {
        for len in 0..if cfg!(miri) { 80 } else { LONG } {
            for start in [0, 1, 2, 4, 7, 8, 12, 15, 16, 17, 31, 32, 33, 48, 60, 63] {
                let piece = &data[start..start + len];
                let right = table::update(0x89AB_CDEF, piece);
                assert_eq!(
                    crc32_with(which, 0x89AB_CDEF, piece),
                    right,
                    "{which:?} {len} at {start}"
                );
            }
        }
    }
}

#[test]
fn icrcs_of_every_implementation_are_the_tables() {
    let v4 = IcrcFlow::v4([10, 1, 2, 3], [10, 3, 2, 1], 0xC0DE, 4791);
    let v6 = IcrcFlow::v6([0xA5; 16], [0x5A; 16], 0xC0DE, 4791);
    let data = noise(Bth::LEN + LONG + 16);
    for which in available() {
        for len in Bth::LEN..Bth::LEN + if cfg!(miri) { 80 } else { LONG } {
            for (start, flow) in [(0, v4), (4, v6), (9, v4), (15, v6)] {
                let packet = &data[start..start + len];
                let right = flow.icrc_with(Impl::Table, 0x1234, packet);
                let icrc = flow.icrc_with(which, 0x1234, packet);
                assert_eq!(icrc, right, "{which:?} {len} at {start}");
            }
        }
    }
}

#[test]
fn an_icrc_goes_on_behind_the_headers() {
    let v4 = IcrcFlow::v4([10, 1, 2, 3], [10, 3, 2, 1], 0xC0DE, 4791);
    let v6 = IcrcFlow::v6([0xA5; 16], [0x5A; 16], 0xC0DE, 4791);
    let packet = noise(1000);
    for flow in [v4, v6] {
        for headers in [12, 16, 28, 40, 999, 1000] {
            let (head, rest) = packet.split_at(headers);
            let state = flow.icrc_of_headers(77, head, packet.len());
            assert_eq!(!crc32(state, rest), flow.icrc(77, &packet), "{headers}");
        }
    }
}

fn flows() -> [IcrcFlow; 4] {
    [
        IcrcFlow::v4([10, 1, 2, 3], [10, 3, 2, 1], 0xC0DE, 4791),
        IcrcFlow::v4([10, 1, 2, 3], [10, 99, 0, 1], 4791, 4791),
        IcrcFlow::v6([0xA5; 16], [0x5A; 16], 0xC0DE, 4791),
        IcrcFlow::v6([0xA5; 16], [0x5B; 16], 0xC0DE, 4791),
    ]
}

#[test]
fn an_icrc_goes_from_flow_to_flow_as_right_as_it_was() {
    let flows = flows();
    for len in [12, 16, 17, 60, 300, 1036, 4140, 9000] {
        let mut packet = noise(len + ICRC_LEN);
        for (was, flow) in flows.iter().flat_map(|was| flows.iter().map(move |flow| (was, flow))) {
            for (from, to) in [(0, 0), (0, 14), (7, 0xFFFF)] {
                was.append_icrc(from, &mut packet);
                let after = flow.icrc_after(to, (was, from), &packet);
                assert_eq!(after, flow.icrc(to, &packet[..len]), "{len} {was:?} {flow:?}");
                // What was damaged before stays so.
                packet[len - 1] ^= 4;
                let after = flow.icrc_after(to, (was, from), &packet);
                assert_ne!(after, flow.icrc(to, &packet[..len]), "{len} {was:?} {flow:?}");
                packet[len - 1] ^= 4;
            }
        }
    }
    assert_eq!(flows[0].icrc_after(0, (&flows[1], 0), &[0; 15]), 0);
}

#[test]
fn a_hop_changes_icrcs_as_their_flows_do() {
    let flows = flows();
    let mut hop = Hop::default();
    let mut rng = Rng::new(7);
    let mut pick = |n: usize| rng.below(n as u64) as usize;
    let (mut was, mut flow, mut len) = (0, 0, 16);
    for _ in 0..20_000 {
        // Now and then something changes, so that most packets are alike.
        match pick(20) {
            0 => was = pick(flows.len()),
            1 => flow = pick(flows.len()),
            2 => len = [12, 14, 15, 16, 17, 60, 300, 1036, 4140][pick(9)],
            _ => {}
        }
        let idents = [pick(20) as u16, pick(20) as u16];
        let packet: Vec<u8> = (0..len).map(|_| pick(256) as u8).collect();
        let (was, flow) = ((&flows[was], idents[0]), &flows[flow]);
        let after = hop.icrc_after(flow, idents[1], was, &packet);
        assert_eq!(after, flow.icrc_after(idents[1], was, &packet), "{len} {idents:?} {was:?}");
    }
}

/// A CNP that a ConnectX-4 Lx sent, from the IP header on (scapy's tests have it).
const CNP: &[u8] = &[
    0x45, 0xC2, 0x00, 0x3C, 0x71, 0x8C, 0x40, 0x00, 0x40, 0x11, 0x91, 0x61, // IP
    10, 0, 17, 1, 10, 0, 18, 1, // from, to
    0x00, 0x00, 0x12, 0xB7, 0x00, 0x28, 0x00, 0x00, // UDP
    0x81, 0x00, 0xFF, 0xFF, 0x40, 0x00, 0x01, 0x18, 0, 0, 0, 0, // BTH
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // payload
    0x82, 0xFD, 0x00, 0x2A, // ICRC
];

/// A UC SEND ONLY between two ports of one NIC (scapy's tests have it), from the IP header on.
const UC_SEND: &[u8] = &[
    0x45, 0x01, 0x00, 0x40, 0x04, 0x78, 0x40, 0x00, 0x40, 0x11, 0xB4, 0xD5, // IP
    192, 168, 0, 7, 192, 168, 0, 7, // from, to
    0xC0, 0x00, 0x12, 0xB7, 0x00, 0x2C, 0xAC, 0xA2, // UDP
    0x24, 0x60, 0xFF, 0xFF, 0x00, 0x00, 0x00, 0xD3, 0x00, 0xCF, 0x17, 0x10, // BTH
    b'F', b'0', 0x81, 0x8B, 0xE2, 0x89, b'5', 0xD9, 0x0E, 0x9A, // payload
    0x95, b'P', b'T', 0x01, 0xBE, 0x88, b'^', b'P', 0, 0, // payload
    0x78, 0xF3, 0x53, 0xF3, // ICRC
];

// IBTA CA17-22
#[test]
fn frames_of_other_stacks() {
    check_exact(CNP).unwrap();
    check_exact(UC_SEND).unwrap();
    let cnp = IcrcFlow::v4([10, 0, 17, 1], [10, 0, 18, 1], 0, 4791);
    let uc = IcrcFlow::v4([192, 168, 0, 7], [192, 168, 0, 7], 0xC000, 4791);
    for (flow, frame, ident) in [(cnp, CNP, 0x718C), (uc, UC_SEND, 1144)] {
        let packet = &frame[28..];
        for which in available() {
            let icrc = flow.icrc_with(which, ident, &packet[..packet.len() - 4]);
            assert_eq!(icrc.to_le_bytes(), packet[packet.len() - 4..]);
        }
        let exact = Accepted { ident, dont_fragment: true, exact: true };
        assert_eq!(flow.check(ident, packet), Ok(exact));
        assert_eq!(flow.check(0, packet), Ok(Accepted { exact: false, ..exact }));
    }
}

#[test]
fn short_and_cut_packets_are_refused() {
    let flow = IcrcFlow::v4([10, 0, 17, 1], [10, 0, 18, 1], 0, 4791);
    for len in 0..CNP.len() {
        assert!(check_exact(&CNP[..len]).is_err(), "{len}");
    }
    for len in 0..16 {
        assert_eq!(flow.check(0, &CNP[28..28 + len]), Err(BadIcrc), "{len}");
        let mut short = [0xAA; 16];
        flow.append_icrc(0, &mut short[..len]);
        assert_eq!(short, [0xAA; 16]);
    }
    for len in 0..12 {
        flow.icrc(0, &CNP[28..28 + len]);
    }
    assert_eq!(flow.check(0, &noise(65_508)), Err(BadIcrc));
}
