use super::*;
use core::sync::atomic::{AtomicU64, Ordering};
use std::boxed::Box;
use std::vec::Vec as List;

/// Memory in words, and what an engine has of it.
struct World {
    words: List<AtomicU64>,
    weak: Box<Weak>,
}

impl World {
    fn new() -> World {
        World { words: (0..1024).map(|_| AtomicU64::new(0)).collect(), weak: Box::default() }
    }

    fn addr(&self, at: usize) -> u64 {
        self.words.as_ptr().expose_provenance() as u64 + at as u64
    }

    fn bytes(&self, at: usize, len: usize) -> List<u8> {
        let bytes = self.words.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes());
        bytes.skip(at).take(len).collect()
    }

    fn place(&mut self, now: u64, at: usize, src: &[u8]) -> Access {
        let addr = self.addr(at);
        self.weak.place(now, false, addr, src)
    }

    fn clear(&mut self) {
        self.weak.finish();
        self.words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

#[test]
fn pieces_are_of_whole_words_and_come_in_every_order() {
    let mut w = World::new();
    let src: List<u8> = (0..500).map(|i| i as u8 | 1).collect();
    let (mut last_before_first, mut first_before_last, mut at_once) = (0, 0, 0);
    for draw in 0..2000 {
        w.clear();
        w.weak.begin(1, Opcode::RC_WRITE_ONLY, Some(draw));
        let access = w.place(0, 3, &src);
        at_once += u32::from(access == Access::Ready);
        for now in (0..2_000_000).step_by(50_000) {
            let ready = match access {
                Access::Pending(token) => w.weak.poll(now, token) == Access::Ready,
                access => access == Access::Ready,
            };
            let seen = w.bytes(3, 500);
            assert!(!ready || seen == src, "{draw}: it has ended before its bytes");
            let is_there = |i: usize| seen[i] != 0;
            last_before_first += u32::from(is_there(499) && !is_there(0));
            first_before_last += u32::from(is_there(0) && !is_there(499));
            for word in 0..63 {
                let bytes = w.bytes(8 * word, 8);
                let there = bytes.iter().filter(|b| **b != 0).count();
                let own = (3..503).filter(|at| at / 8 == word).count();
                assert!(there == 0 || there == own, "{draw}: word {word} is torn: {bytes:?}");
            }
            if ready {
                break;
            }
            assert!(now < 1_900_000, "{draw}: never placed");
        }
    }
    assert!(last_before_first > 200 && first_before_last > 50 && at_once > 0);
    // Without a draw nothing waits.
    w.weak.begin(1, Opcode::RC_WRITE_ONLY, None);
    assert_eq!(w.place(0, 0, &src), Access::Ready);
}

/// Places 64 bytes of `value` so that some wait; returns the token.
fn place_waiting(w: &mut World, qp: u32, at: usize, value: u8) -> Token {
    for draw in 0.. {
        w.weak.begin(qp, Opcode::RC_WRITE_ONLY, Some(draw));
        if let Access::Pending(token) = w.place(0, at, &[value; 64]) {
            return token;
        }
        w.clear();
    }
    unreachable!()
}

#[test]
fn the_next_message_of_a_queue_pair_is_behind_and_others_are_not() {
    let mut w = World::new();
    let first = place_waiting(&mut w, 1, 0, 7);
    // Another queue pair, the same message, a region with relaxed ordering: nothing is forced.
    w.weak.begin(2, Opcode::RC_WRITE_ONLY, None);
    assert_eq!(w.place(0, 1000, &[1; 8]), Access::Ready);
    w.weak.begin(1, Opcode::RC_WRITE_LAST, None);
    assert_eq!(w.place(0, 1008, &[1; 8]), Access::Ready);
    w.weak.begin(1, Opcode::RC_WRITE_ONLY, None);
    let addr = w.addr(1016);
    assert_eq!(w.weak.place(0, true, addr, &[1; 8]), Access::Ready);
    assert_eq!(w.weak.poll(0, first), Access::Pending(first));
    w.weak.begin(1, Opcode::RC_WRITE_ONLY, None);
    assert_eq!(w.place(0, 1024, &[1; 8]), Access::Ready);
    assert_eq!((w.weak.poll(0, first), w.bytes(0, 64)), (Access::Ready, [7; 64].to_vec()));
}

/// What waits is poisoned: of a receive buffer, and of what a READ or an atomic brings. The bytes
/// beside the message stay, and so does what a WRITE will replace.
#[test]
fn only_what_a_completion_will_tell_of_is_poisoned_until_it_is_placed() {
    use Opcode as Op;
    let poisoned = |opcode, draw| {
        let mut w = World::new();
        w.place(0, 0, &[5; 1000]);
        w.weak.begin(1, opcode, Some(draw));
        w.place(0, 3, &[9; 41]);
        let seen = w.bytes(0, 48);
        assert!(seen[..3] == [5; 3] && seen[44..] == [5; 4], "{opcode:?}, {draw}: {seen:?}");
        w.weak.finish();
        assert_eq!(w.bytes(3, 41), [9; 41], "{opcode:?}, {draw}");
        // A random byte may be one of the two.
        let is_poison = |word: &[u8]| word.iter().filter(|b| [5, 9].contains(*b)).count() < 5;
        let words = [3..8, 8..16, 16..24, 24..32, 32..40].map(|word| is_poison(&seen[word]));
        (words.contains(&true), seen)
    };
    let kinds = [Op::RC_SEND_ONLY, Op::UD_SEND_ONLY, Op::RC_READ_RESPONSE_ONLY, Op::RC_ATOMIC_ACK];
    for opcode in kinds {
        let times = (0..200).filter(|draw| poisoned(opcode, *draw).0).count();
        assert!((30..150).contains(&times), "{opcode:?}: {times}");
        assert_eq!(poisoned(opcode, 7), poisoned(opcode, 7), "the seed repeats it");
    }
    assert!((0..100).all(|draw| !poisoned(Op::RC_WRITE_ONLY, draw).0));
    assert!((0..100).all(|draw| !poisoned(Op::RC_WRITE_ONLY_IMM, draw).0));
}

#[test]
fn a_queue_pair_does_not_wait_for_the_bytes_of_another() {
    let mut w = World::new();
    let mut waiting = |qp: u32, at: usize| {
        let found = (0..).find_map(|draw| {
            w.weak.begin(qp, Opcode::RC_WRITE_ONLY, Some(draw));
            match w.place(0, at, &[7; 64]) {
                Access::Pending(token) => Some(token),
                _ => None,
            }
        });
        found.expect("one that waits")
    };
    let (first, second) = (waiting(1, 0), waiting(2, 1000));
    w.weak.begin(2, Opcode::RC_WRITE_ONLY, None);
    assert_eq!(w.place(0, 2000, &[1; 8]), Access::Ready);
    assert_eq!(w.weak.poll(0, second), Access::Ready);
    assert_eq!(w.weak.poll(0, first), Access::Pending(first));
}

#[test]
fn later_bytes_of_the_same_place_remain_and_atomics_are_behind() {
    let mut w = World::new();
    place_waiting(&mut w, 1, 0, 7);
    w.weak.begin(2, Opcode::RC_WRITE_ONLY, None);
    assert_eq!(w.place(0, 60, &[9; 100]), Access::Ready);
    w.weak.finish();
    assert_eq!(w.bytes(56, 8), [7, 7, 7, 7, 9, 9, 9, 9]);
    w.clear();
    let token = place_waiting(&mut w, 1, 0, 7);
    let (addr, word) = (w.addr(0), u64::from_ne_bytes([7; 8]));
    assert_eq!(w.weak.atomic(addr, AtomicOp::FetchAdd(1)), Ok(word));
    assert_eq!(w.weak.poll(0, token), Access::Ready);
    assert_eq!(w.words[0].load(Ordering::Relaxed), word + 1);
}

#[test]
fn without_room_the_piece_that_is_due_first_makes_some() {
    let mut w = World::new();
    let mut tokens = List::new();
    for k in 0..3 * HELD_MAX as u64 {
        w.weak.begin(k as u32, Opcode::RC_WRITE_ONLY, Some(k));
        let at = 8 * (k as usize % 1000);
        if let Access::Pending(token) = w.place(0, at, &[1; 8]) {
            tokens.push(token);
        }
    }
    let waiting = tokens.iter().filter(|t| w.weak.poll(0, **t) != Access::Ready).count();
    assert!(tokens.len() < 2 * HELD_MAX && waiting <= HELD_MAX, "{waiting} of {}", tokens.len());
    // Only those of more than one draw in four wait: a run beyond the room.
    for k in 0..16 * HELD_MAX as u64 {
        w.weak.begin(1000 + k as u32, Opcode::RC_WRITE_ONLY, Some(k));
        let at = 8 * (k as usize % 1000);
        w.place(0, at, &[1; 8]);
    }
    assert!(w.weak.held.is_full());
    w.weak.finish();
    assert!(w.weak.held.is_empty() && w.bytes(0, 8000) == [1; 8000]);
}

#[test]
fn a_read_waits_for_its_time_and_others_do_not() {
    let mut w = World::new();
    let addr = w.addr(0);
    let of = TransferId::answer(5, 77, 8);
    w.weak.delay_read(of.id, 500);
    let mut got = [1; 8];
    assert_eq!(w.weak.fetch(499, addr, &mut got, of), Access::Pending(READING));
    assert_eq!(w.weak.poll(499, READING), Access::Ready);
    assert_eq!((w.weak.fetch(500, addr, &mut got, of), got), (Access::Ready, [0; 8]));
    w.weak.delay_read(of.id, 900);
    let other = TransferId::answer(5, 78, 8);
    assert_eq!(w.weak.fetch(600, addr, &mut got, other), Access::Ready);
    // Too many: the oldest no longer waits.
    (0..READS_MAX as u64).for_each(|id| w.weak.delay_read(id, 900));
    assert_eq!(w.weak.fetch(600, addr, &mut got, of), Access::Ready);
}
