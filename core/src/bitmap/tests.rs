use super::*;
use crate::testing::carve;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::sync::atomic::AtomicUsize;
use std::vec::Vec;

proptest! {
    #[test]
    fn plain_bitmap_is_a_sorted_set(
        size in 1usize..10_000,
        ops in prop::collection::vec((0u8..4, any::<prop::sample::Index>()), 1..200),
    ) {
        let mut map = carve(|w| Bitmap::carve(w, size));
        let mut model = BTreeSet::new();
        for (what, i) in ops {
            let i = i.index(size);
            match what {
                0 | 1 => {
                    map.set(i);
                    model.insert(i);
                }
                2 => {
                    map.clear(i);
                    model.remove(&i);
                }
                _ => {}
            }
            prop_assert_eq!(map.get(i), model.contains(&i));
            let next = model.range(i..).next().or_else(|| model.iter().next()).copied();
            prop_assert_eq!(map.next_from(i), next);
            prop_assert_eq!(map.is_empty(), model.is_empty());
        }
        // Past the end it wraps as well.
        prop_assert_eq!(map.next_from(size + 1_000_000), model.iter().next().copied());
    }

    #[test]
    fn drain_gives_each_bit_once(
        size in 1usize..10_000,
        set in prop::collection::vec(any::<prop::sample::Index>(), 0..100),
    ) {
        let map = carve(|w| AtomicBitmap::carve(w, size));
        let model: BTreeSet<usize> = set.iter().map(|i| i.index(size)).collect();
        for &i in model.iter().chain(&model) {
            map.set(i);
        }
        prop_assert_eq!(map.any(), !model.is_empty());
        let mut got = Vec::new();
        map.drain(|i| got.push(i));
        if size > 4096 {
            got.sort_unstable();
        }
        prop_assert_eq!(&got, &model.iter().copied().collect::<Vec<_>>());
        prop_assert!(!map.any());
        // One by one as well, while others are set.
        for &i in &model {
            map.set(i);
        }
        let mut got = BTreeSet::new();
        let mut again = !model.is_empty();
        while let Some(i) = map.take_one() {
            prop_assert!(got.insert(i) || i == 0, "{} twice", i);
            if core::mem::take(&mut again) {
                map.set(0);
            }
        }
        let mut want = model.clone();
        want.extend((!model.is_empty()).then_some(0));
        prop_assert_eq!(got, want);
        prop_assert!(!map.any());
    }
}

#[test]
fn bits_set_while_draining_wait_for_the_next_drain() {
    let map = carve(|w| AtomicBitmap::carve(w, 300));
    map.set(7);
    let mut calls = 0;
    map.drain(|i| {
        calls += 1;
        map.set(i);
    });
    assert_eq!(calls, 1);
    assert!(map.any());
}

#[test]
fn no_bit_is_lost_between_threads() {
    const ROUNDS: usize = 20_000;
    let map = carve(|w| AtomicBitmap::carve(w, 8192));
    let asked: Vec<AtomicUsize> = (0..8).map(|_| AtomicUsize::new(0)).collect();
    let done: Vec<AtomicUsize> = (0..8).map(|_| AtomicUsize::new(0)).collect();
    // Bits that share a leaf, a summary word, and nothing.
    let bit = [0, 1, 63, 64, 4095, 4096, 8190, 8191];
    std::thread::scope(|s| {
        for half in 0..2 {
            let (map, asked, done) = (&map, &asked, &done);
            s.spawn(move || {
                for n in 1..=ROUNDS {
                    let k = half * 4 + n % 4;
                    asked[k].store(n, Ordering::Relaxed);
                    map.set(bit[k]);
                    // The drain that takes this bit, or a later one, sees n.
                    if n % 64 == 0 {
                        while done[k].load(Ordering::Acquire) < n {
                            std::thread::yield_now();
                        }
                    }
                }
            });
        }
        loop {
            map.drain(|i| {
                let k = bit.iter().position(|&b| b == i).unwrap();
                done[k].store(asked[k].load(Ordering::Relaxed), Ordering::Release);
            });
            let last = |k: usize| done[k].load(Ordering::Relaxed);
            // Bits 0 and 4 are the last that their threads ask for.
            if last(0) == ROUNDS && last(4) == ROUNDS {
                break;
            }
            std::thread::yield_now();
        }
    });
}

#[test]
fn few_bits_are_a_set() {
    let mut few = Few::new(carve(|w| Bitmap::carve(w, 300)));
    let mut set = BTreeSet::new();
    let mut x = 1u32;
    for _ in 0..20_000 {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let i = [3, 3, 3, 77, 299][(x >> 8) as usize % 5];
        match x >> 28 {
            0..8 => {
                few.set(i);
                set.insert(i);
            }
            _ => {
                few.clear(i);
                set.remove(&i);
            }
        }
        assert_eq!(few.is_empty(), set.is_empty());
        assert!(few.any().map_or(set.is_empty(), |i| set.contains(&i)));
        assert!([3, 77, 299, 5].iter().all(|i| few.get(*i) == set.contains(i)));
    }
}
