//! Frames that Linux's rxe put on the wire, read and written again, and found out when they are
//! damaged.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{golden, packet};
use gdrcore_core::wire::icrc::Impl;
use gdrcore_core::wire::ip::{Udp, V4, V6};
use gdrcore_core::wire::{Accepted, Bth, Class, Opcode, ICRC_LEN};
use gdrcore_testkit::icrc::check_exact;
use gdrcore_testkit::packet::{Packet, View};

// IBTA CA17-20
#[test]
fn nothing_is_missing() {
    let all = golden();
    let opcodes: BTreeSet<u8> = all.iter().map(|(.., roce)| packet(roce)[0]).collect();
    assert_eq!((all.len(), opcodes.len()), (431, 36));
    assert!(opcodes.iter().all(|&op| Opcode(op).is_known()));
    // What no capture has: CNP, which rxe does not send, XRC, which it has not got, DC, which is
    // this library's own, and what kernel 6.1's rxe does not know yet.
    let absent: Vec<Opcode> =
        Opcode::ALL.iter().copied().filter(|op| !opcodes.contains(&op.0)).collect();
    let ours = |op: &Opcode| !matches!(op.class(), Class::Xrc | Class::Dc);
    let absent: Vec<Opcode> = absent.into_iter().filter(ours).collect();
    assert_eq!(absent, ABSENT);
}

const ABSENT: [Opcode; 4] =
    [Opcode::RC_SEND_LAST_INV, Opcode::RC_FLUSH, Opcode::RC_ATOMIC_WRITE, Opcode::CNP];

// rxe rxe_hdr.h bth_init
#[test]
fn frames_parse_and_emit_the_same_bytes() {
    for (name, number, roce) in golden() {
        let packet = View::parse(packet(&roce)).and_then(Packet::try_from);
        let packet = packet.unwrap_or_else(|error| panic!("{name} {number}: {error}"));
        for which in Impl::ALL.iter().filter(|which| which.is_available()) {
            let mut again = vec![0xEE; packet.emitted_len()];
            assert_eq!(packet.emit(&mut again), Ok(again.len()), "{name} {number}");
            let icrc = roce.flow.icrc_with(*which, roce.ident, &again);
            again.extend(icrc.to_le_bytes());
            assert_eq!(again, roce.payload(), "{name} {number} {which:?}");
        }
        let mut again = vec![0xEE; packet.emitted_len() + ICRC_LEN];
        packet.emit(&mut again).unwrap();
        roce.flow.append_icrc(roce.ident, &mut again);
        assert_eq!(again, roce.payload(), "{name} {number}");
    }
}

// IBTA CA17-3
#[test]
fn ip_and_udp_headers_emit_the_same_bytes() {
    for (name, number, roce) in golden() {
        let mut again = roce.ip_packet.clone();
        if roce.flow.is_v6() {
            let v6 = V6::parse(again.first_chunk().unwrap()).unwrap();
            v6.emit(again.first_chunk_mut().unwrap());
        } else {
            let v4 = V4::parse(again.first_chunk().unwrap()).unwrap();
            v4.emit(again.first_chunk_mut().unwrap());
        }
        let udp: &mut [u8; Udp::LEN] = again[roce.udp_at..].first_chunk_mut().unwrap();
        Udp::parse(udp).emit(udp);
        assert_eq!(again, roce.ip_packet, "{name} {number}");
    }
}

// IBTA CA17-22
// IBTA CA17-21
#[test]
fn icrcs_are_accepted_with_and_without_the_identification() {
    let mut solved = 0;
    for (name, number, roce) in golden() {
        let exact = Accepted { ident: roce.ident, dont_fragment: roce.dont_fragment, exact: true };
        assert_eq!(check_exact(&roce.ip_packet), Ok(()), "{name} {number}");
        assert_eq!(roce.flow.check(roce.ident, roce.payload()), Ok(exact), "{name} {number}");
        for hint in [0, 1, 0xFFFF, !roce.ident] {
            let expected = Accepted { exact: roce.flow.is_v6() || hint == roce.ident, ..exact };
            assert_eq!(
                roce.flow.check(hint, roce.payload()),
                Ok(expected),
                "{name} {number} {hint}"
            );
            solved += !expected.exact as u32;
        }
    }
    assert!(solved > 1000);
}

#[test]
fn fragmentable_packets_are_accepted_too() {
    let mut seen = 0;
    for (name, number, mut roce) in golden().into_iter().filter(|(.., roce)| !roce.flow.is_v6()) {
        // The ICRC's share of the DF bit, by way of a header without it.
        let v4 = V4::parse(roce.ip_packet.first_chunk().unwrap()).unwrap();
        V4 { dont_fragment: false, ..v4 }.emit(roce.ip_packet.first_chunk_mut().unwrap());
        let correct = icrc_by_definition(&roce.ip_packet);
        *roce.ip_packet.last_chunk_mut().unwrap() = correct.to_le_bytes();
        assert_eq!(check_exact(&roce.ip_packet), Ok(()), "{name} {number}");
        let expected = Accepted { ident: roce.ident, dont_fragment: false, exact: false };
        assert_eq!(roce.flow.check(7, roce.payload()), Ok(expected), "{name} {number}");
        seen += 1;
    }
    assert!(seen > 400);
}

/// The ICRC of an IPv4 packet straight from its definition, bit by bit.
fn icrc_by_definition(ip_packet: &[u8]) -> u32 {
    let mut bytes = [&[0xFF; 8], &ip_packet[..ip_packet.len() - ICRC_LEN]].concat();
    for masked in [1, 8, 10, 11, 26, 27, 32] {
        bytes[8 + masked] = 0xFF;
    }
    !bytes.iter().fold(!0, |state: u32, &byte| {
        (0..8).fold(state ^ byte as u32, |state, _| {
            state >> 1 ^ (0xEDB8_8320 & (state & 1).wrapping_neg())
        })
    })
}

// IBTA CA17-22
#[test]
fn every_damaged_byte_is_found_but_the_masked_ones() {
    let mut lucky = BTreeMap::new();
    let mut tried = 0;
    for (name, number, roce) in golden() {
        let masked: &[usize] =
            if roce.flow.is_v6() { &[1, 2, 3, 7, 46, 47, 52] } else { &[1, 8, 10, 11, 26, 27, 32] };
        let mut damaged = roce.ip_packet.clone();
        for at in 0..damaged.len() {
            for flip in [0x01, 0x80, 0xFF] {
                damaged[at] ^= flip;
                // IPv6's version shares its byte with the traffic class.
                let invisible =
                    masked.contains(&at) || (roce.flow.is_v6() && at == 0 && flip & 0xF0 == 0);
                assert_eq!(
                    check_exact(&damaged).is_ok(),
                    invisible,
                    "{name} {number} byte {at} flip {flip:#x}"
                );
                if at >= roce.udp_at + Udp::LEN && !invisible {
                    // A socket does not show the identification, so one error in 2^15 looks like
                    // another one.
                    tried += 1;
                    let datagram = &damaged[roce.udp_at + Udp::LEN..];
                    if roce.flow.check(roce.ident, datagram).is_ok_and(|accepted| !accepted.exact) {
                        *lucky.entry(datagram.len() + roce.udp_at - at).or_insert(0) += 1;
                    }
                }
                damaged[at] ^= flip;
            }
        }
    }
    assert!(tried > 300_000);
    assert!(lucky.values().sum::<u32>() < tried / 10_000, "{lucky:?} of {tried}");
}

#[test]
fn cut_frames_do_not_panic() {
    for (.., roce) in golden() {
        for len in 0..packet(&roce).len() {
            let cut = &packet(&roce)[..len];
            if let Ok(view) = View::parse(cut) {
                assert!(view.opcode().header_len() <= len);
                let _ = Packet::try_from(view);
            }
            assert!(roce.flow.check(roce.ident, cut).is_err_or_lucky());
        }
        for len in 0..roce.ip_packet.len() {
            assert!(check_exact(&roce.ip_packet[..len]).is_err());
        }
    }
}

trait ErrOrLucky {
    fn is_err_or_lucky(&self) -> bool;
}

impl<E> ErrOrLucky for Result<Accepted, E> {
    /// A cut packet is never accepted with all 32 bits.
    fn is_err_or_lucky(&self) -> bool {
        self.as_ref().map_or(true, |accepted| !accepted.exact)
    }
}

// rxe rxe_opcode.c rxe_opcode
#[test]
fn opcodes_agree_with_the_captures_names() {
    for (name, number, roce) in golden() {
        let bth = Bth::parse(packet(&roce).first_chunk().unwrap());
        let class = match &name[..3] {
            "uc_" => Class::Uc,
            "ud_" => Class::Ud,
            "rc_" => Class::Rc,
            _ => continue,
        };
        assert_eq!(bth.opcode.class(), class, "{name} {number}");
        assert_eq!(bth.pkey, 0xFFFF, "{name} {number}");
    }
}
