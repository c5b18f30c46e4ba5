//! Every interleaving of two threads on a ring and on an atomic bitmap, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p gdrcore-core --release --test loom_ring`
#![cfg(loom)]

use gdrcore_core::arena::{RawBytes, Walk};
use gdrcore_core::bitmap::AtomicBitmap;
use gdrcore_core::ring::{EngineConsumer, SlotRing};
use loom::sync::Arc;
use loom::thread;

/// Zeroed memory of one model run.
struct Memory(Vec<u128>);

impl Memory {
    fn new(bytes: usize) -> Self {
        Memory(vec![0; bytes.div_ceil(16)])
    }

    fn region(&mut self) -> RawBytes {
        RawBytes::from_raw(self.0.as_mut_ptr().cast(), self.0.len() * 16)
    }
}

const STRIDE: u32 = 16;

/// A ring of `capacity` slots and the memory under it, which must outlive it.
fn ring(capacity: u32) -> (Arc<SlotRing<u64>>, Memory) {
    let ring = SlotRing::new();
    let mut memory = Memory::new((capacity * STRIDE) as usize);
    // SAFETY: fresh memory, kept by the caller until the model run ends; u64 may be zero.
    unsafe { ring.install(memory.region(), capacity, STRIDE) };
    (Arc::new(ring), memory)
}

/// Takes all elements that are there, the first of which is the `seen`-th; returns how many.
type Take = fn(&mut EngineConsumer<'_, u64>, seen: u32) -> u32;

fn slot_by_slot(end: &mut EngineConsumer<'_, u64>, seen: u32) -> u32 {
    let n = end.len();
    for k in 0..n {
        let slot = end.peek(k);
        assert_eq!(*slot.header(), u64::from(seen + k));
        assert_eq!(slot.tail(), [(seen + k) as u8 + 1; 8]);
    }
    end.release(n);
    n
}

fn headers(end: &mut EngineConsumer<'_, u64>, seen: u32) -> u32 {
    let mut out = [u64::MAX; 3];
    end.len();
    let n = end.take_headers(&mut out);
    for (k, header) in out[..n].iter().enumerate() {
        assert_eq!(*header, u64::from(seen) + k as u64);
    }
    n as u32
}

/// `count` elements through a ring of `capacity` slots, one thread at each end.
fn stream(capacity: u32, count: u32, take: Take) {
    let mut model = loom::model::Builder::new();
    // Waiting ends multiply the interleavings; more than three preemptions add none that matter.
    model.preemption_bound = Some(3);
    model.check(move || {
        let (ring, _memory) = ring(capacity);
        let tx = ring.clone();
        let producer = thread::spawn(move || {
            // SAFETY: only this thread produces.
            let mut end = unsafe { tx.engine_producer() };
            let mut sent = 0;
            while sent < count {
                let n = end.free().min(count - sent);
                for k in 0..n {
                    let mut slot = end.slot(k);
                    *slot.header_mut() = u64::from(sent + k);
                    slot.tail_mut().fill((sent + k) as u8 + 1);
                }
                end.publish(n);
                sent += n;
                if n == 0 {
                    thread::yield_now();
                }
            }
        });
        // SAFETY: only this thread consumes.
        let mut end = unsafe { ring.engine_consumer() };
        let mut seen = 0;
        while seen < count {
            let n = take(&mut end, seen);
            seen += n;
            if n == 0 {
                thread::yield_now();
            }
        }
        producer.join().unwrap();
        assert!(ring.is_empty());
    });
}

#[test]
fn slots_are_complete_when_seen() {
    stream(2, 2, slot_by_slot);
    stream(2, 2, headers);
}

#[test]
fn slots_are_free_when_reused() {
    for take in [slot_by_slot as Take, headers] {
        stream(1, 2, take);
        stream(2, 3, take);
    }
}

#[test]
fn the_busy_flag_hands_the_end_from_thread_to_thread() {
    loom::model(|| {
        let (ring, _memory) = ring(2);
        let push = |ring: &SlotRing<u64>, v| match ring.producer() {
            Some(mut end) => end.push(v).is_ok(),
            None => false,
        };
        let other = {
            let ring = ring.clone();
            thread::spawn(move || push(&ring, 1))
        };
        let mine = push(&ring, 2);
        let others = other.join().unwrap();
        assert!(mine || others, "one of two is let in");
        let mut end = ring.consumer().expect("nobody consumes");
        let mut got = 0;
        while let Some(v) = end.pop() {
            assert!(if v == 1 { others } else { mine });
            got += 1;
        }
        assert_eq!(got, u32::from(mine) + u32::from(others));
    });
}

#[test]
fn a_resize_under_both_guards_loses_nothing() {
    loom::model(|| {
        let (ring, _memory) = ring(1);
        let mut larger = Memory::new(2 * STRIDE as usize);
        let region = larger.region();
        let other = {
            let ring = ring.clone();
            thread::spawn(move || ring.producer().is_some_and(|mut end| end.push(7).is_ok()))
        };
        if let (Some(producer), Some(mut consumer)) = (ring.producer(), ring.consumer()) {
            let kept = consumer.pop();
            // SAFETY: both guards are held and not used again; the memory outlives the run.
            unsafe { ring.install(region, 2, STRIDE) };
            drop((producer, consumer));
            if let Some(v) = kept {
                while !ring.producer().is_some_and(|mut end| end.push(v).is_ok()) {
                    thread::yield_now();
                }
            }
        }
        let pushed = other.join().unwrap();
        let mut end = ring.consumer().expect("nobody consumes");
        assert_eq!(end.pop(), pushed.then_some(7));
        assert_eq!(end.pop(), None);
    });
}

/// Two threads that set a bit each, after a store, and one that drains until both stores were seen.
fn set_and_drain(size: usize, set: [usize; 2]) {
    use loom::sync::atomic::{AtomicUsize, Ordering};
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let layout = |walk: &mut Walk| AtomicBitmap::carve(walk, size).unwrap();
        let mut query = Walk::size_query();
        layout(&mut query);
        let mut memory = Memory::new(query.offset());
        let r = memory.region();
        // SAFETY: fresh memory, kept until the model run ends.
        let mut walk = unsafe { Walk::carve(r.as_ptr(), r.len()) }.unwrap();
        let map = Arc::new(layout(&mut walk));
        let work = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
        let setters: Vec<_> = (0..2)
            .map(|who| {
                let (map, work) = (map.clone(), work.clone());
                thread::spawn(move || {
                    work[who].store(1, Ordering::Relaxed);
                    map.set(set[who]);
                })
            })
            .collect();
        // A request that is lost leaves this loop waiting for ever, which loom reports as too many
        // branches.
        let mut sum = 0;
        while sum < 2 {
            map.drain(|i| {
                assert!(set.contains(&i));
                sum = work[0].load(Ordering::Relaxed) + work[1].load(Ordering::Relaxed);
            });
            if sum < 2 {
                thread::yield_now();
            }
        }
        for s in setters {
            s.join().unwrap();
        }
        // The second setter may have found its bit drained already with its work, and set it again.
        map.drain(|i| assert!(set.contains(&i)));
        assert!(!map.any());
    });
}

#[test]
fn a_set_bit_brings_what_was_written_before_it() {
    // Both threads ask for one bit: who finds it set must not be forgotten either.
    set_and_drain(2, [0, 0]);
}

#[test]
fn bits_in_leaves_of_one_group_are_both_found() {
    set_and_drain(4097, [0, 4096]);
    set_and_drain(4097, [4096, 4096]);
}
