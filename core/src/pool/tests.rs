use super::*;
use crate::arena::CHUNK;
use crate::testing::{carve, heap};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

fn pool(n: usize, limit: usize) -> Pool {
    carve(|w| Pool::carve(w, (5, 0), n, limit, None))
}

#[test]
fn tags_have_the_names_of_their_objects() {
    let all = [
        (tag::PD, "pd"),
        (tag::MR, "mr"),
        (tag::MW, "mw"),
        (tag::CQ, "cq"),
        (tag::QP, "qp"),
        (tag::SRQ, "srq"),
        (tag::AH, "ah"),
        (tag::CM_ID, "id"),
        (tag::XRCD, "xrcd"),
        (tag::CHANNEL, "channel"),
    ];
    for (tag, name) in all {
        assert_eq!(names_of(tag).0, name);
    }
    assert_eq!(names_of(all.len() as u8 + 1).0, "handle", "a tag that is new has a name");
}

#[test]
fn exhausted_then_grown_then_at_the_limit() {
    let pool = pool(64, 64 + CHUNK);
    let mut heap = heap(4096);
    let all: Vec<_> = (0..64).map(|_| pool.alloc().unwrap()).collect();
    assert_eq!(pool.alloc(), Err(Error::NoMemory));
    pool.grow(&mut heap).unwrap();
    assert_eq!(pool.alloc().unwrap().1, 64);
    assert_eq!(pool.grow(&mut heap), Err(Error::NoMemory));
    assert_eq!((pool.live(), pool.capacity()), (65, 64 + CHUNK));
    assert!(all.iter().all(|&(h, i)| pool.check(h) == Ok(i)));
}

#[test]
fn growth_that_fails_half_way_can_be_repeated() {
    let pool = pool(64, 128);
    // The least block of the heap has room for one of the two tables only.
    let mut small = heap(64);
    assert_eq!(pool.grow(&mut small), Err(Error::NoMemory));
    assert_eq!(pool.capacity(), 64);
    let mut more = heap(64);
    pool.grow(&mut more).unwrap();
    let fresh: Vec<_> = (0..64 + CHUNK).map(|_| pool.alloc().unwrap().1).collect();
    assert_eq!(fresh, (0..64 + CHUNK).collect::<Vec<_>>());
}

#[test]
fn handles_of_other_types_and_generations_are_stale() {
    let pool = pool(64, 64);
    assert_eq!(pool.check(0), Err(Error::StaleHandle));
    let never = pool.handle(0);
    assert_eq!(pool.check(never), Err(Error::StaleHandle));
    let (h, i) = pool.alloc().unwrap();
    assert_ne!(h, 0);
    assert_eq!(pool.check(h), Ok(i));
    assert_eq!(pool.check(h ^ 1 << 24), Err(Error::StaleHandle));
    assert_eq!(pool.check(h | 0xff_ffff), Err(Error::StaleHandle));
    pool.free(i);
    assert_eq!(pool.check(h), Err(Error::StaleHandle));
    assert_eq!(pool.check(pool.handle(i)), Err(Error::StaleHandle));
    // Nor is what a free index has in the table, or has next.
    let free = pool.handles[i].load(Ordering::Relaxed);
    for forged in [free, free ^ 1, free ^ 2, h + (1 << 32), h + (2 << 32)] {
        assert_eq!(pool.check(forged), Err(Error::StaleHandle), "{forged:#x}");
    }
}

#[test]
fn a_handle_of_another_context_is_stale() {
    let pools: Vec<_> = (0..50)
        .map(|context| carve(|w| Pool::carve(w, (5, context), 64, 64 + CHUNK, None)))
        .collect();
    let mut heaps: Vec<_> = pools.iter().map(|_| heap(4096)).collect();
    // Indexes of the beginning, used several times, and of a chunk that came later.
    for (pool, heap) in pools.iter().zip(&mut heaps) {
        for _ in 0..200 {
            let i = pool.alloc().unwrap().1;
            pool.free(i);
        }
        pool.grow(heap).unwrap();
        assert!((0..64 + CHUNK).all(|_| pool.alloc().is_ok()));
    }
    for (k, pool) in pools.iter().enumerate() {
        let all: Vec<_> = (0..64 + CHUNK).map(|i| pool.handle(i)).collect();
        for (other, theirs) in pools.iter().enumerate() {
            let known = all.iter().filter(|h| theirs.check(**h).is_ok()).count();
            assert_eq!(known, if other == k { all.len() } else { 0 });
        }
    }
    let mut first: Vec<_> = (0..1000).map(first_generation).collect();
    first.sort_unstable();
    assert!(first.windows(2).all(|pair| pair[1] - pair[0] > 1_000_000));
}

#[test]
fn generations_wrap_past_zero() {
    let pool = pool(64, 64);
    pool.handles[0].store(word(u32::MAX - 1, 5, 0), Ordering::Relaxed);
    let (h, i) = pool.alloc().unwrap();
    assert_eq!((h >> 32, i), (u64::from(u32::MAX), 0));
    pool.free(0);
    assert_eq!(pool.handle(0) >> 32, 0);
    for _ in 0..64 {
        let (_, i) = pool.alloc().unwrap();
        pool.free(i);
    }
    assert_eq!(pool.handle(0) >> 32, 2);
}

proptest! {
    #[test]
    fn any_order_of_alloc_and_free(
        ops in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..400),
        hostile in any::<u64>(),
    ) {
        let pool = pool(100, 128);
        let mut live = BTreeMap::new();
        let mut dead = Vec::new();
        for (alloc, which) in ops {
            if alloc {
                match pool.alloc() {
                    Ok((h, i)) => prop_assert!(live.insert(i, h).is_none()),
                    Err(e) => prop_assert!(e == Error::NoMemory && live.len() == 128),
                }
            } else if !live.is_empty() {
                let i = *live.keys().nth(which.index(live.len())).unwrap();
                dead.push(live.remove(&i).unwrap());
                pool.free(i);
            }
            prop_assert_eq!(pool.live(), live.len());
        }
        prop_assert!(live.iter().all(|(&i, &h)| pool.check(h) == Ok(i) && pool.is_live(i)));
        prop_assert!(dead.iter().all(|&h| pool.check(h) == Err(Error::StaleHandle)));
        prop_assert!(pool.iter_live().eq(live.keys().copied()));
        if let Ok(i) = pool.check(hostile) {
            prop_assert_eq!(live.get(&i), Some(&hostile));
        }
    }
}

#[test]
fn a_handle_of_another_pool_is_live_until_it_is_freed_here() {
    let (first, other) = (pool(64, 128), pool(64, 128));
    let handles: Vec<_> = (0..3).map(|_| first.alloc().unwrap()).collect();
    // In another order than that of the free list: its middle, its end, its begin.
    let last = Handle::from(63u32) | 5 << INDEX_BITS | 7 << 32;
    for (h, i) in [handles[1], (last, 63), handles[0], handles[2]] {
        assert_eq!(other.adopt(h), Ok((h, i)));
        assert_eq!((other.check(h), other.handle(i)), (Ok(i), h));
        assert_eq!(other.adopt(h), Err(Error::Busy), "it is live");
    }
    assert_eq!(other.live(), 4);
    other.free(1);
    assert_eq!((other.live(), other.check(handles[1].0)), (3, Err(Error::StaleHandle)));
    assert_eq!(other.adopt(handles[1].0), Ok(handles[1]), "as it was");
    // The indexes that are left are all given, once each, and then it grows.
    let mut left: Vec<_> = (0..60).map(|_| other.alloc().unwrap().1).collect();
    left.sort_unstable();
    assert_eq!(left, (3..63).collect::<Vec<_>>());
    assert_eq!(other.alloc(), Err(Error::NoMemory));
    let far = Handle::from(66u32) | 5 << INDEX_BITS | 1 << 32;
    assert_eq!(other.adopt(far), Err(Error::NoMemory));
    other.grow(&mut heap(4096)).unwrap();
    assert_eq!(other.adopt(far), Ok((far, 66)));
    other.free(63);
    let mut fresh: Vec<_> = (0..CHUNK).map(|_| other.alloc().unwrap().1).collect();
    fresh.sort_unstable();
    assert_eq!(fresh, [63, 64, 65].into_iter().chain(67..64 + CHUNK).collect::<Vec<_>>());
}

#[test]
fn a_limit_holds_exactly_and_memory_does_not_help() {
    let pool = carve(|w| Pool::carve(w, (5, 0), 64, 64 + CHUNK, Some(2)));
    let (_, first) = pool.alloc().unwrap();
    pool.alloc().unwrap();
    assert_eq!(pool.alloc(), Err(Error::Limit));
    pool.free(first);
    pool.alloc().unwrap();
    assert_eq!(pool.alloc(), Err(Error::Limit));
    let none = carve(|w| Pool::carve(w, (5, 0), 64, 64, Some(0)));
    assert_eq!(none.alloc(), Err(Error::Limit));
}
