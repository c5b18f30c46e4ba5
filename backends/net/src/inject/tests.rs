use super::*;
use crate::reason;
use gdrcore_core::error::Error;
use gdrcore_core::wire::ip::gid_of_v4;

fn waiting(due: u64, flow: u32, bytes: &[u8]) -> Waiting<'_> {
    let direction = Direction::Out;
    let other = PeerAddr::default();
    Waiting { due, latest: due, direction, other, flow, overtakers_left: 0, bytes }
}

fn next(held: &mut Held, now: u64) -> Option<(u32, Vec<u8>)> {
    held.take_due(now, [true; 2]).map(|w| (w.flow, w.bytes.to_vec()))
}

#[test]
fn packets_wait_for_their_time_and_keep_their_order() {
    let mut held = Held::new();
    assert_eq!((held.due(), next(&mut held, u64::MAX)), (None, None));
    held.keep(&waiting(50, 1, b"late"));
    held.keep(&waiting(20, 2, b"first"));
    held.keep(&waiting(20, 3, b"second"));
    assert_eq!((held.due(), next(&mut held, 19)), (Some(20), None));
    assert_eq!(next(&mut held, 20), Some((2, b"first".to_vec())));
    assert_eq!(next(&mut held, 20), Some((3, b"second".to_vec())));
    assert_eq!(
        (held.last_due(Direction::Out, 1), held.last_due(Direction::In, 1)),
        (Some(50), None)
    );
    held.keep(&waiting(90, 2, b"other"));
    held.release_held(Some(1));
    assert_eq!(next(&mut held, 30), Some((1, b"late".to_vec())));
    assert_eq!(next(&mut held, 30), None);
    held.release_held(None);
    assert_eq!(next(&mut held, 30), Some((2, b"other".to_vec())));
    // What may not go now stays.
    held.keep(&waiting(1, 1, b"out"));
    held.keep(&Waiting { direction: Direction::In, ..waiting(2, 1, b"in") });
    assert_eq!(held.take_due(5, [false, true]).map(|w| w.direction), Some(Direction::In));
    assert!(held.take_due(5, [false, true]).is_none());
    assert_eq!(next(&mut held, 5), Some((1, b"out".to_vec())));
}

#[test]
fn packets_are_overtaken_by_those_of_their_queue_pair() {
    let mut held = Held::new();
    held.keep(&Waiting { overtakers_left: 2, due: 0, ..waiting(99, 1, b"slow") });
    assert_eq!(held.last_due(Direction::Out, 1), None, "others may pass it");
    for (direction, flow) in [(Direction::Out, 2), (Direction::In, 1), (Direction::Out, 1)] {
        held.count_overtaker(direction, flow, 0);
        assert_eq!(next(&mut held, 98), None);
    }
    held.count_overtaker(Direction::Out, 1, 0);
    assert_eq!(next(&mut held, 98), Some((1, b"slow".to_vec())));
    held.keep(&Waiting { overtakers_left: 2, ..waiting(99, 1, b"last") });
    assert_eq!(next(&mut held, 99), Some((1, b"last".to_vec())), "no other comes");
    // One that is late, too, waits for both.
    held.keep(&Waiting { overtakers_left: 1, latest: 200, ..waiting(150, 1, b"late") });
    assert_eq!(next(&mut held, 199), None);
    held.count_overtaker(Direction::Out, 1, 0);
    assert_eq!((next(&mut held, 149), next(&mut held, 150)), (None, Some((1, b"late".to_vec()))));
}

#[test]
fn no_room_is_a_loss() {
    let mut held = Held::new();
    held.keep(&waiting(0, 1, &[0; held::MAX_LEN + 1]));
    assert_eq!(held.due(), None);
    let mut kept = 0;
    let into = Waiting { direction: Direction::In, ..waiting(0, 1, &[7; 100]) };
    while held.keep(&into) {}
    assert!(!held.is_full_outbound(), "what arrives takes no room of what leaves");
    for k in 0..5000 {
        held.keep(&waiting(k, 1, &[7; 100]));
        kept += u32::from(!held.is_full_outbound());
    }
    assert!(held.is_full_outbound() && kept > 500);
    let mut out = 0;
    while let Some((_, bytes)) = next(&mut held, u64::MAX) {
        assert_eq!(bytes, [7; 100]);
        out += 1;
    }
    assert!(out > kept && !held.is_full_outbound() && held.due().is_none());
}

#[test]
fn a_damage_is_seen_whatever_the_identification_is() {
    let v4 = [1, 2].map(|n| gid_of_v4([10, 0, 0, n]));
    let v6 = [[0xfd; 16], [0xfc; 16]];
    for [src, dst] in [v4, v6] {
        let sign = wire::IcrcFlow::from_gids(&src, &dst, 4791, 4791);
        let mut explained = 0;
        for len in [Bth::LEN + ICRC_LEN, 100, 4156] {
            let mut good = vec![0x5a; len];
            sign.append_icrc(0, &mut good);
            for draw in 0..8 * (len - Bth::LEN) as u64 {
                let mut bad = good.clone();
                corrupt(&sign, draw, &mut bad);
                assert!(sign.check(0, &bad).is_err(), "{len} bytes, {draw}");
                assert_eq!(bad[..Bth::LEN], good[..Bth::LEN], "it finds its queue pair");
                let at = Bth::LEN + draw as usize / 8;
                explained += u32::from((bad[at] ^ good[at]) >> (draw % 8) & 1 == 0);
            }
        }
        // Some single bits look like another identification to the receiver, over IPv4.
        assert_eq!(explained > 0, !sign.is_v6(), "{explained}");
        let mut short = [1, 2, 3];
        corrupt(&sign, 5, &mut short);
        assert_eq!(short, [1, 2, 3]);
    }
}

#[test]
fn wrong_rules_are_refused_in_words() {
    reason::install();
    let words = |rules| {
        let launched = None;
        let e = FaultSpec { rules, seed: 1, launched }.read().unwrap_err();
        reason::note_returned(e);
        (e, reason::with_text(|words| words.to_string()))
    };
    let (e, said) = words("loss; delay 5");
    assert_eq!((e, said.contains("line 1, column 13: '5'")), (Error::Invalid, true), "{said}");
    let (e, said) = words("call ibv_reg_mr errno EIO");
    assert!(e == Error::Invalid && said.contains("column 6: 'ibv_reg_mr': no call"), "{said}");
}
