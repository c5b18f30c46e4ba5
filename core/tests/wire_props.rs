//! Properties of the wire codec: what is written is read again, what is read is written again,
//! nothing panics.

use gdrcore_core::wire::icrc::{crc32, crc32_with, Impl};
use gdrcore_core::wire::{
    Accepted, Aeth, AtomicAckEth, AtomicEth, BadIcrc, Bth, Deth, Feth, IcrcFlow, Ieth, ImmDt,
    Opcode, Psn, Qpn, Reth, Syndrome, XrcEth,
};
use gdrcore_testkit::packet::{Packet, View};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;

fn bth() -> impl Strategy<Value = Bth> {
    let flags = (any::<[bool; 5]>(), 0..4u8, 0..16u8, any::<u16>());
    (any::<u8>(), flags, any::<u32>(), any::<u32>()).prop_map(
        |(opcode, (flags, pad, tver, pkey), qp, psn)| {
            let [solicited, mig_req, fecn, becn, ack_req] = flags;
            let bth = Bth::new(Opcode(opcode), Qpn::new(qp), Psn::new(psn));
            Bth { solicited, mig_req, pad, tver, pkey, fecn, becn, ack_req, ..bth }
        },
    )
}

/// Bytes that have a good chance of being a packet: a known opcode, version 0, a pad that fits, few
/// reserved bits.
fn likely_packet() -> impl Strategy<Value = Vec<u8>> {
    let opcode = proptest::sample::select(Opcode::ALL);
    let payload =
        prop_oneof![Just(0), Just(8), Just(16), 1..80usize, Just(1024), Just(4096), Just(4097)];
    (opcode, payload, any::<u64>(), any::<[bool; 4]>()).prop_flat_map(
        |(opcode, len, noise, [dirty, odd, huge, zero])| {
            let body = if opcode.has_payload() || odd { len } else { 0 };
            let pad = body.next_multiple_of(4) - body;
            vec(any::<u8>(), opcode.header_len() + body + pad).prop_map(move |mut bytes| {
                let body_at = opcode.header_len();
                bytes[0] = opcode.0;
                bytes[1] = bytes[1] & 0xC0 | (pad as u8) << 4;
                if zero {
                    bytes[body_at..].fill(0);
                }
                if dirty && noise % 4 == 0 {
                    let at = noise as usize % bytes.len();
                    bytes[at] ^= 1 << (noise >> 61);
                    return bytes;
                }
                bytes[4] &= 0xC0;
                bytes[8] &= 0x80;
                bytes[body_at + body..].fill(0);
                if opcode.has_deth() {
                    bytes[16] = 0;
                }
                let xrc = if opcode.has_xrceth() { 4 } else { 0 };
                if xrc > 0 {
                    bytes[12] = 0;
                }
                if opcode.has_feth() {
                    bytes[12 + xrc..15 + xrc].fill(0);
                    bytes[15 + xrc] &= 0x3F;
                }
                if opcode.has_reth() && !huge {
                    let at = xrc + if opcode.has_feth() { 28 } else { 24 };
                    let more = if opcode.is_last() { 0 } else { 1 + noise as u32 % 100_000 };
                    bytes[at..at + 4].copy_from_slice(&(body as u32 + more).to_be_bytes());
                }
                bytes
            })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        cases: 512,
        ..ProptestConfig::default()
    })]


    // rxe rxe_hdr.h bth_init
    #[test]
    fn headers_come_back(
        bth in bth(),
        a in any::<u64>(),
        b in any::<u64>(),
        c in any::<u64>(),
        d in any::<u32>(),
    ) {
        macro_rules! comes_back {
            ($type:ident, $value:expr) => {{
                let mut bytes = [0xEE; $type::LEN];
                $value.emit(&mut bytes);
                prop_assert_eq!($type::parse(&bytes), $value);
            }};
        }
        comes_back!(Bth, bth);
        comes_back!(Deth, Deth { qkey: d, src_qp: Qpn::new(a as u32) });
        comes_back!(XrcEth, XrcEth { srqn: Qpn::new(d) });
        comes_back!(Reth, Reth { va: a, rkey: d, len: b as u32 });
        comes_back!(AtomicEth, AtomicEth { va: a, rkey: d, swap_add: b, compare: c });
        comes_back!(Aeth, Aeth { syndrome: a as u8, msn: d & 0xFF_FFFF });
        comes_back!(AtomicAckEth, AtomicAckEth { orig: a });
        comes_back!(ImmDt, ImmDt { imm: d });
        comes_back!(Ieth, Ieth { rkey: d });
        comes_back!(Feth, Feth::of_word(d));
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(view) = View::parse(&bytes) {
            let _ = (
                view.bth(),
                view.deth(),
                view.reth(),
                view.atomic_eth(),
                view.aeth(),
                view.atomic_ack(),
                view.xrceth(),
            );
            let _ = (view.imm(), view.ieth(), view.feth());
            prop_assert_eq!(
                view.opcode().header_len() + view.payload().len() + view.pad().len(),
                bytes.len()
            );
        }
    }

    #[test]
    fn what_is_legal_is_written_again(bytes in likely_packet()) {
        let Ok(packet) = View::parse(&bytes).and_then(Packet::try_from) else { return Ok(()) };
        let mut again = vec![0xEE; bytes.len() + 1];
        prop_assert_eq!(packet.emit(&mut again), Ok(bytes.len()));
        prop_assert_eq!(&again[..bytes.len()], &bytes[..]);
        prop_assert_eq!(again[bytes.len()], 0xEE);
        prop_assert!(packet.emit(&mut again[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn implementations_agree(
        data in vec(any::<u8>(), 0..5000),
        from in 0..100usize,
        state in any::<u32>(),
    ) {
        let data = &data[from.min(data.len())..];
        let expected = crc32_with(Impl::Table, state, data);
        for which in Impl::ALL {
            prop_assert_eq!(crc32_with(*which, state, data), expected, "{:?}", which);
        }
    }

    #[test]
    fn a_crc_can_be_taken_in_pieces(data in vec(any::<u8>(), 0..600), at in 0..600usize) {
        let (a, b) = data.split_at(at.min(data.len()));
        prop_assert_eq!(crc32(crc32(!0, a), b), crc32(!0, &data));
    }

    #[test]
    fn flows_agree_and_accept_their_own(
        gids in any::<[[u8; 16]; 2]>(),
        v4 in any::<bool>(),
        ports in any::<[u16; 2]>(),
        ident in any::<u16>(),
        hint in any::<u16>(),
        mut packet in vec(any::<u8>(), 16..4500),
    ) {
        let [mut src, mut dst] = gids;
        if v4 {
            for gid in [&mut src, &mut dst] {
                gid[..10].fill(0);
                gid[10..12].fill(0xFF);
            }
        }
        let flow = IcrcFlow::from_gids(&src, &dst, ports[0], ports[1]);
        flow.append_icrc(ident, &mut packet);
        let body = &packet[..packet.len() - 4];
        for which in Impl::ALL {
            prop_assert_eq!(
                flow.icrc_with(*which, ident, body),
                flow.icrc(ident, body),
                "{:?}",
                which
            );
        }
        let ident = if flow.is_v6() { 0 } else { ident };
        let exact = flow.is_v6() || hint == ident;
        prop_assert_eq!(
            flow.check(hint, &packet),
            Ok(Accepted { ident, dont_fragment: true, exact })
        );
        // The masked byte is free, any other is not.
        packet[4] ^= 0x55;
        prop_assert!(flow.check(ident, &packet).is_ok_and(|accepted| accepted.exact));
        packet[5] ^= 0x55;
        prop_assert!(!flow.check(ident, &packet).is_ok_and(|accepted| accepted.exact));
        if flow.is_v6() {
            prop_assert_eq!(flow.check(ident, &packet), Err(BadIcrc));
        }
    }
}

// rxe rxe_hdr.h aeth_syn
#[test]
fn every_syndrome_comes_back() {
    for byte in 0..=255 {
        assert_eq!(Syndrome::parse(byte).byte(), byte);
    }
}

/// The chance of the test above to be about something: most bytes that it makes are legal packets.
#[test]
fn likely_packets_are_likely() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let mut legal = std::collections::BTreeSet::new();
    let mut count = 0;
    for _ in 0..8000 {
        let bytes = likely_packet().new_tree(&mut runner).unwrap().current();
        if View::parse(&bytes).and_then(Packet::try_from).is_ok() {
            legal.insert(bytes[0]);
            count += 1;
        }
    }
    assert!(count > 1000, "{count}");
    assert_eq!(legal.len(), Opcode::ALL.len(), "{legal:?}");
}

#[test]
fn garbage_is_accepted_no_oftener_than_the_unknown_identification_allows() {
    let flow = IcrcFlow::v4([10, 0, 0, 1], [10, 0, 0, 2], 0xC000, 4791);
    let mut state = 1;
    let accepted = (0..200_000u32)
        .filter(|n| {
            let mut packet = [0; 40];
            for chunk in packet.chunks_mut(4) {
                state = crc32(state, &n.to_le_bytes());
                chunk.copy_from_slice(&state.to_le_bytes());
            }
            flow.check(0, &packet).is_ok()
        })
        .count();
    // 200,000 · 2^-15 is 6.
    assert!((1..20).contains(&accepted), "{accepted}");
}
