//! Pools and queues against maps and deques of the standard library.

use super::*;
use crate::blocks::BLOCK;
use std::collections::{BTreeMap, VecDeque};

/// Pseudo-random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as u32
    }
}

fn addresses(all: &BTreeMap<u32, usize>) -> usize {
    all.values().collect::<std::collections::BTreeSet<_>>().len()
}

#[test]
fn a_pool_does_what_a_map_does() {
    // Consecutive keys, keys that differ in high bits only, and any keys.
    for (mask, shift) in [(255, 0), (255, 24), (u32::MAX, 0)] {
        let mut pool = Pool::new(100).expect("memory");
        let mut map: BTreeMap<u32, usize> = BTreeMap::new();
        let mut random = Random(0x1234_5678_9abc_def1);
        let mut keys = Vec::new();
        for _ in 0..20_000 {
            let key = match random.next() % 3 {
                0 if !keys.is_empty() => keys[random.next() as usize % keys.len()],
                _ => (random.next() & mask) << shift,
            };
            let before = map.get(&key).copied();
            match random.next() % 5 {
                0 | 1 => {
                    let block = pool.insert(key).addr();
                    match before {
                        Some(own) => assert_eq!(block, own, "a key keeps its block"),
                        None if map.len() == 100 => assert_eq!(block, 0, "the pool is full"),
                        None => {
                            assert!(block != 0 && block % BLOCK == 0);
                            map.insert(key, block);
                            keys.push(key);
                        }
                    }
                }
                2 | 3 => {
                    pool.delete(key);
                    map.remove(&key);
                }
                _ => assert_eq!(pool.get(key).addr(), before.unwrap_or(0)),
            }
            assert_eq!(addresses(&map), map.len(), "two keys have one block");
        }
        assert!(map.iter().all(|(&key, &block)| pool.get(key).addr() == block));
        assert!((0..200).any(|n| pool.insert(n * 7919).is_null()), "it holds a hundred");
    }
}

/// Runs of cells that wrap at the end of the table, and keys that all belong to one run.
#[test]
fn keys_that_collide_are_found_after_others_went() {
    let pool = Pool::new(64).expect("memory");
    let last: Vec<u32> = (0..).filter(|&k| pool.home(k) >= 126).take(64).collect();
    let mut pool = pool;
    for order in [0, 1, 7, 63] {
        let blocks: Vec<usize> = last.iter().map(|&k| pool.insert(k).addr()).collect();
        assert!(blocks.iter().all(|&b| b != 0));
        for step in 0..64 {
            let gone = (step * 29 + order) % 64;
            pool.delete(last[gone]);
            assert!(pool.get(last[gone]).is_null());
            let left = (step + 1..64).map(|s| (s * 29 + order) % 64);
            left.for_each(|k| assert_eq!(pool.get(last[k]).addr(), blocks[k]));
        }
    }
}

#[test]
fn a_queue_does_what_a_deque_does() {
    let mut queue = Queue::new(7).expect("memory");
    let mut deque: VecDeque<usize> = VecDeque::new();
    let mut random = Random(99);
    for _ in 0..5000 {
        match random.next() % 2 {
            0 => match queue.push().addr() {
                0 => assert_eq!(deque.len(), 7),
                block => {
                    assert!(!deque.contains(&block));
                    deque.push_back(block);
                }
            },
            _ => {
                queue.pop();
                deque.pop_front();
            }
        }
        assert_eq!(queue.first().addr(), deque.front().copied().unwrap_or(0));
    }
}

#[test]
fn handles_that_mean_nothing_do_nothing() {
    let pool = mempool_create();
    let queue = memqueue_create();
    assert!(!pool.is_null() && !queue.is_null());
    let near = |p: *mut c_void, by: usize| p.wrapping_byte_add(by);
    let none = [core::ptr::null_mut(), near(pool, 1 << 10), near(pool, 4), queue, near(pool, 1)];
    for bad in none {
        assert!(mempool_insert(bad, 1).is_null() && mempool_get(bad, 1).is_null());
        mempool_del(bad, 1);
        mempool_destroy(bad);
    }
    for bad in [core::ptr::null_mut(), near(queue, 1 << 10), near(queue, 4), pool] {
        assert!(memqueue_get_new_head(bad).is_null() && memqueue_get_tail(bad).is_null());
        memqueue_del_tail(bad);
        memqueue_destroy(bad);
    }
    assert!(!mempool_insert(pool, 1).is_null() && !memqueue_get_new_head(queue).is_null());
    mempool_destroy(pool);
    mempool_destroy(pool);
    memqueue_destroy(queue);
    let next = mempool_create();
    assert!(next != pool && mempool_get(pool, 1).is_null() && mempool_get(next, 1).is_null());
    mempool_destroy(next);
}

#[test]
fn there_are_so_many_handles_and_no_more() {
    let all: Vec<_> = std::iter::from_fn(|| Some(memqueue_create()))
        .take_while(|q| !q.is_null())
        .take(2 * HANDLES)
        .collect();
    // Other tests hold one or two handles.
    assert!((HANDLES - 2..=HANDLES).contains(&all.len()), "{}", all.len());
    all.into_iter().for_each(|q| memqueue_destroy(q));
    let again = memqueue_create();
    assert!(!again.is_null());
    memqueue_destroy(again);
}
