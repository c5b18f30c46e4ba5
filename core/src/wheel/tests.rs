use super::*;
use crate::arena::CHUNK;
use crate::testing::{carve, heap};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

fn wheel(n: usize) -> Wheel {
    carve(|walk| Wheel::carve(walk, n, n))
}

fn ticks(ns: u64) -> u64 {
    ns.div_ceil(4096)
}

#[derive(Clone, Debug)]
enum Op {
    Arm(usize, u64),
    Cancel(usize),
    Advance(u64),
    Back(u64),
}

fn span() -> impl Strategy<Value = u64> {
    // Every level, its edges, and jumps far beyond the reach.
    (0u32..52, any::<u64>()).prop_map(|(bits, r)| r & ((1 << bits) - 1))
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..100, span()).prop_map(|(i, d)| Op::Arm(i, d)),
        1 => (0usize..100).prop_map(Op::Cancel),
        3 => span().prop_map(Op::Advance),
        1 => span().prop_map(Op::Back),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn fires_what_a_sorted_map_would(
        start in prop_oneof![Just(0u64), span(), Just(1_700_000_000_000_000_000)],
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut wheel = wheel(128);
        let mut model: BTreeMap<usize, u64> = BTreeMap::new();
        let mut now = start;
        for op in ops {
            match op {
                Op::Arm(id, d) => {
                    wheel.arm(id, now.saturating_add(d));
                    model.insert(id, now.saturating_add(d));
                }
                Op::Cancel(id) => {
                    wheel.cancel(id);
                    model.remove(&id);
                }
                Op::Back(d) => {
                    let past = now.saturating_sub(d);
                    if past >> 12 < now >> 12 && wheel.tick == now >> 12 {
                        prop_assert_eq!(wheel.pop_expired(past), None);
                    }
                }
                Op::Advance(d) => {
                    now = now.saturating_add(d);
                    let mut due: Vec<usize> = model
                        .iter()
                        .filter(|(_, &t)| ticks(t) <= now >> 12)
                        .map(|(&i, _)| i)
                        .collect();
                    let mut fired = Vec::new();
                    while let Some(id) = wheel.pop_expired(now) {
                        prop_assert!(model.remove(&id).unwrap() <= now);
                        fired.push(id);
                    }
                    fired.sort_unstable();
                    due.sort_unstable();
                    prop_assert_eq!(fired, due);
                }
            }
            for id in 0..100 {
                prop_assert_eq!(wheel.is_armed(id), model.contains_key(&id));
                prop_assert_eq!(wheel.deadline(id), model.get(&id).copied());
            }
            match model.values().min() {
                None => prop_assert_eq!(wheel.next_deadline(), None),
                Some(&d) => {
                    prop_assert!(wheel.next_deadline().unwrap() <= ticks(d).max(now >> 12) * 4096)
                }
            }
        }
    }

    #[test]
    fn sleeping_until_next_deadline_fires_in_the_tick(
        deadlines in prop::collection::vec(0u64..200_000_000_000, 1..100),
    ) {
        let mut wheel = wheel(128);
        for (id, &d) in deadlines.iter().enumerate() {
            wheel.arm(id, d);
        }
        let (mut wakes, mut fired, mut last) = (0, 0, 0);
        while let Some(now) = wheel.next_deadline() {
            wakes += 1;
            while let Some(id) = wheel.pop_expired(now) {
                prop_assert_eq!(ticks(deadlines[id]) * 4096, now);
                prop_assert!(now >= last);
                last = now;
                fired += 1;
            }
        }
        prop_assert_eq!(fired, deadlines.len());
        // Four levels and two extra rounds beyond the reach of 68 s: few wake-ups in vain.
        prop_assert!(wakes <= deadlines.len() * 8);
    }
}

#[test]
fn rearming_in_the_past_while_popping_does_not_starve_others() {
    let mut wheel = wheel(64);
    wheel.arm(0, 0);
    wheel.arm(1, 0);
    assert_eq!(wheel.pop_expired(10_000), Some(0));
    wheel.arm(0, 0);
    assert_eq!(wheel.pop_expired(10_000), Some(1));
    assert_eq!(wheel.pop_expired(10_000), Some(0));
    assert_eq!(wheel.pop_expired(10_000), None);
}

#[test]
fn a_jump_to_the_end_of_time_is_bounded_work() {
    let mut wheel = wheel(64);
    wheel.arm(3, 5);
    wheel.arm(4, u64::MAX);
    assert_eq!(wheel.pop_expired(u64::MAX), Some(3));
    assert_eq!(wheel.pop_expired(u64::MAX), None);
    assert!(wheel.next_deadline().is_some());
    wheel.cancel(4);
    assert_eq!(wheel.next_deadline(), None);
}

#[test]
fn grows_by_chunks_up_to_the_limit() {
    let mut wheel = carve(|walk| Wheel::carve(walk, 1, CHUNK + 1));
    let mut heap = heap(8192);
    assert_eq!(wheel.capacity(), CHUNK);
    wheel.grow_past(wheel.capacity(), &mut heap).unwrap();
    assert_eq!(wheel.capacity(), 2 * CHUNK);
    assert_eq!(wheel.grow_past(wheel.capacity(), &mut heap), Err(Error::NoMemory));
    wheel.arm(CHUNK + 1, 0);
    assert_eq!(wheel.pop_expired(0), Some(CHUNK + 1));
}
