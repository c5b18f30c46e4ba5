use super::*;
use crate::testing::{heap, memory};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct Head {
    id: u64,
    sges: u32,
    more: u32,
}

fn ring(capacity: u32, stride: u32) -> SlotRing<Head> {
    let ring = SlotRing::new();
    let mut heap = heap(SlotRing::<Head>::bytes(capacity, stride).unwrap().next_power_of_two());
    let r = heap.alloc(SlotRing::<Head>::bytes(capacity, stride).unwrap()).unwrap();
    // SAFETY: fresh memory of a leaked heap, Head is integers, and nobody knows the ring yet.
    unsafe { ring.install(r, capacity, stride) };
    ring
}

/// Moves an empty ring's cursors, to meet the wrap-around of the indexes.
fn start_at(ring: &SlotRing<Head>, index: u32) {
    ring.producing.cursor.store(index, Ordering::Relaxed);
    ring.consuming.cursor.store(index, Ordering::Relaxed);
}

fn head(id: u64) -> Head {
    Head { id, sges: 0, more: !0 }
}

#[derive(Clone, Debug)]
enum Op {
    Fill(u32),
    Push,
    Take(u32),
    TakeHeaders(u32),
    Pop,
    Look(u32),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        (1u32..5).prop_map(Op::Fill),
        Just(Op::Push),
        (1u32..5).prop_map(Op::Take),
        (0u32..5).prop_map(Op::TakeHeaders),
        Just(Op::Pop),
        any::<u32>().prop_map(Op::Look)
    ]
}

proptest! {
    #[test]
    fn a_ring_is_a_bounded_queue(
        shift in 0u32..5,
        tail in 0u32..6,
        start in any::<u32>(),
        near in any::<bool>(),
        engine in any::<bool>(),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let (capacity, stride) = (1 << shift, 16 + 8 * tail);
        let ring = ring(capacity, stride);
        start_at(&ring, if near { (start % 32).wrapping_sub(16) } else { start });
        // Each element with whether its tail was written.
        let mut model: VecDeque<(u64, bool)> = VecDeque::new();
        let mut next = 0u64;
        let byte = |id: u64| (id as u8) ^ 0x5a;
        for op in ops {
            let (mut tx, mut rx) = if engine {
                // SAFETY: one thread, and what one step makes is dropped before the next.
                unsafe { (ring.engine_producer(), ring.engine_consumer()) }
            } else {
                (ring.producer().unwrap(), ring.consumer().unwrap())
            };
            match op {
                Op::Fill(n) => {
                    let n = n.min(tx.free());
                    for k in 0..n {
                        let mut slot = tx.slot(k);
                        *slot.header_mut() = head(next);
                        slot.tail_mut().fill(byte(next));
                        model.push_back((next, true));
                        next += 1;
                    }
                    tx.publish(n);
                }
                Op::Push => {
                    let full = model.len() == capacity as usize;
                    prop_assert_eq!(
                        tx.push(head(next)),
                        if full { Err(Error::Again) } else { Ok(()) }
                    );
                    if !full {
                        model.push_back((next, false));
                        next += 1;
                    }
                }
                Op::Take(n) => {
                    let n = n.min(rx.len());
                    for k in 0..n {
                        let (id, written) = model.pop_front().unwrap();
                        let slot = rx.peek(k);
                        prop_assert_eq!(slot.header(), &head(id));
                        prop_assert!(!written || slot.tail().iter().all(|&b| b == byte(id)));
                    }
                    rx.release(n);
                }
                Op::TakeHeaders(n) => {
                    let mut out = vec![head(u64::MAX); n as usize];
                    let taken = rx.take_headers(&mut out);
                    prop_assert_eq!(taken, model.len().min(n as usize));
                    for (h, (id, _)) in out.iter().zip(model.drain(..taken)) {
                        prop_assert_eq!(h, &head(id));
                    }
                    prop_assert!(out[taken..].iter().all(|h| *h == head(u64::MAX)));
                }
                Op::Pop => prop_assert_eq!(rx.pop().map(|h| h.id), model.pop_front().map(|m| m.0)),
                Op::Look(k) => {
                    if !model.is_empty() {
                        let k = k % model.len() as u32;
                        let slot = rx.at(rx.head().wrapping_add(k));
                        prop_assert_eq!(slot.header(), &head(model[k as usize].0));
                        prop_assert_eq!(slot.tail().len(), 8 * tail as usize);
                    }
                }
            }
            prop_assert_eq!(rx.len() as usize, model.len());
            prop_assert_eq!(ring.len() as usize, model.len());
            prop_assert_eq!(tx.free() + rx.len(), capacity);
            prop_assert_eq!(tx.tail(), rx.head().wrapping_add(rx.len()));
        }
    }
}

#[test]
fn an_uninstalled_ring_is_full_and_empty() {
    static RING: SlotRing<u64> = SlotRing::new();
    assert_eq!(RING.capacity(), 0);
    assert_eq!(RING.producer().unwrap().push(1), Err(Error::Again));
    assert_eq!(RING.consumer().unwrap().pop(), None);
}

#[test]
fn a_second_thread_on_one_end_is_told() {
    let ring = ring(4, 16);
    let tx = ring.producer().unwrap();
    let rx = ring.consumer().unwrap();
    assert!(ring.producer().is_none() && ring.consumer().is_none());
    drop(tx);
    assert!(ring.producer().is_some() && ring.consumer().is_none());
    drop(rx);
    assert!(ring.consumer().is_some());
}

#[test]
fn geometry_that_does_not_fit_is_refused() {
    type R = SlotRing<Head>;
    assert_eq!(R::bytes(8, 64), Some(512));
    assert_eq!(R::bytes(1 << 31, u32::MAX - 7), Some((1usize << 31) * (u32::MAX as usize - 7)));
    for (capacity, stride) in [(0, 64), (3, 64), (8, 8), (8, 20), (8, 0)] {
        assert_eq!(R::bytes(capacity, stride), None);
    }
    assert_eq!(SlotRing::<()>::bytes(8, 0), None);
}

#[test]
fn scatter_gather_lists_live_in_the_tail() {
    let ring = ring(2, 16 + 3 * 16);
    let sge = |i| Sge { addr: i, length: 7, lkey: 9 };
    let mut tx = ring.producer().unwrap();
    let mut slot = tx.slot(0);
    assert!(slot.tail_mut().iter().all(|&b| b == 0), "no bytes of an earlier owner");
    *slot.header_mut() = Head { id: 1, sges: 3, more: 0 };
    for (i, s) in slot.sges_mut(3).iter_mut().enumerate() {
        *s = sge(i as u64);
    }
    tx.publish(1);
    let rx = ring.consumer().unwrap();
    let slot = rx.peek(0);
    assert_eq!(slot.sges(slot.header().sges as usize), [sge(0), sge(1), sge(2)]);
    assert_eq!(slot.sges(usize::MAX).len(), 3, "a length beyond the tail is cut");
    assert_eq!(slot.sges(0).len(), 0);
}

#[test]
fn two_elements_are_exchanged_whole() {
    let ring = ring(4, 16 + 16);
    start_at(&ring, u32::MAX - 1);
    let mut tx = ring.producer().unwrap();
    for id in 1..4 {
        let mut slot = tx.slot(0);
        *slot.header_mut() = Head { id, sges: 1, more: 0 };
        slot.sges_mut(1)[0] = Sge { addr: id, length: 7, lkey: 9 };
        tx.publish(1);
    }
    let mut rx = ring.consumer().unwrap();
    rx.swap(0);
    rx.swap(2);
    let seen = |k| (rx.peek(k).header().id, rx.peek(k).sges(1)[0].addr);
    assert_eq!([seen(0), seen(1), seen(2)], [(3, 3), (2, 2), (1, 1)]);
}

#[test]
#[should_panic(expected = "beyond the published slots")]
fn what_is_not_published_is_not_exchanged() {
    let ring = ring(4, 16);
    ring.producer().unwrap().push(head(1)).unwrap();
    ring.consumer().unwrap().swap(1);
}

#[test]
fn a_resize_copies_into_new_memory_and_swaps() {
    let ring = ring(2, 16);
    let mut tx = ring.producer().unwrap();
    tx.push(head(1)).unwrap();
    tx.push(head(2)).unwrap();
    assert_eq!(tx.push(head(3)), Err(Error::Again));
    drop(tx);
    let mut rx = ring.consumer().unwrap();
    let kept: Vec<Head> = core::iter::from_fn(|| rx.pop()).collect();
    let m = memory(8 * 16 + 64);
    let skip = m.as_ptr().align_offset(64);
    // SAFETY: leaked memory; the consumer is held and not used again, nobody produces.
    unsafe { ring.install(RawBytes::from_raw(m[skip..].as_mut_ptr(), 8 * 16), 8, 16) };
    drop(rx);
    let mut tx = ring.producer().unwrap();
    for h in kept {
        tx.push(h).unwrap();
    }
    assert_eq!((ring.capacity(), tx.free(), ring.len()), (8, 6, 2));
    assert_eq!(ring.consumer().unwrap().pop(), Some(head(1)));
}

#[test]
#[should_panic(expected = "beyond")]
fn the_producer_cannot_touch_published_slots() {
    let ring = ring(2, 16);
    let mut tx = ring.producer().unwrap();
    tx.publish(1);
    tx.slot(1);
}

#[test]
#[should_panic(expected = "beyond")]
fn the_consumer_cannot_see_unpublished_slots() {
    let ring = ring(2, 16);
    ring.producer().unwrap().publish(1);
    let rx = ring.consumer().unwrap();
    rx.at(rx.head().wrapping_sub(1));
}

#[test]
fn two_threads_see_every_byte_in_order() {
    const N: u64 = if cfg!(miri) { 300 } else { 200_000 };
    let ring = ring(16, 64);
    start_at(&ring, u32::MAX - 1000);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut tx = ring.producer().unwrap();
            let mut id = 0;
            while id < N {
                let n = tx.free().min(5).min((N - id) as u32);
                for k in 0..n {
                    let mut slot = tx.slot(k);
                    *slot.header_mut() = head(id);
                    slot.tail_mut().fill(id as u8);
                    id += 1;
                }
                tx.publish(n);
                if n == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut rx = ring.consumer().unwrap();
        let mut id = 0;
        while id < N {
            let n = rx.len();
            for k in 0..n {
                let slot = rx.peek(k);
                assert_eq!(slot.header().id, id);
                assert!(slot.tail().iter().all(|&b| b == id as u8));
                id += 1;
            }
            rx.release(n);
            if n == 0 {
                std::thread::yield_now();
            }
        }
    });
}
