use super::super::segment::Segment;
use super::*;
use gdrcore_testkit::rng::Rng;
use std::collections::VecDeque;

/// Two mappings of one ring, as two processes have them.
fn pair(size: usize) -> (Segment, Segment) {
    let (a, fd) = Segment::create(size).unwrap();
    let b = Segment::open(fd.raw(), size).unwrap();
    (a, b)
}

fn put(w: &mut Writer, bytes: &[u8]) -> bool {
    let Some((p, room)) = w.room(bytes.len(), bytes.len()).unwrap() else { return false };
    assert!(room >= bytes.len());
    // SAFETY: `room` bytes at `p` are the writer's until it publishes.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), p.as_ptr(), bytes.len()) };
    let next = w.publish(bytes.len());
    if let Some((p, _)) = w.room(1, 1).unwrap() {
        assert_eq!(next, (p.as_ptr().expose_provenance() - FRAME_HEAD) as u64);
    }
    true
}

fn get(r: &mut Reader) -> Option<Vec<u8>> {
    let (p, len) = r.peek().unwrap()?;
    // SAFETY: `len` bytes at `p` are mapped, and nobody of this test changes them meanwhile.
    let bytes = unsafe { core::slice::from_raw_parts(p.as_ptr(), len) }.to_vec();
    r.release(len);
    Some(bytes)
}

#[test]
fn a_ring_is_a_queue_of_frames() {
    let (a, b) = pair(4096);
    let (mut w, mut r) = (Writer::new(a.place()), Reader::new(b.place()));
    let mut model = VecDeque::new();
    let mut rng = Rng::new(1);
    let (mut refused, mut passed) = (0, 0);
    for i in 0..200_000u32 {
        if rng.below(2) == 0 {
            let top = if rng.below(8) == 0 { 4096 - FRAME_HEAD - FRAME_ALIGN } else { 200 };
            let len = 1 + rng.below(top as u64) as usize;
            // Bytes that look like lengths, at every position of the ring.
            let bytes = vec![(i % 5) as u8; len];
            if rng.below(8) == 0 {
                // A frame that is begun and abandoned.
                if let Some((p, room)) = w.room(1, 300).unwrap() {
                    // SAFETY: as in `put`.
                    unsafe { p.as_ptr().write_bytes(7, room) };
                }
            }
            if put(&mut w, &bytes) {
                if rng.below(4) != 0 {
                    w.prepare();
                }
                model.push_back(bytes);
            } else {
                refused += 1;
                r.settle();
            }
        } else {
            assert_eq!(get(&mut r), model.pop_front(), "step {i}");
            passed += 1;
        }
    }
    assert!(refused > 1000 && passed > 1000);
    while let Some(bytes) = model.pop_front() {
        assert_eq!(get(&mut r), Some(bytes));
    }
    assert!(r.is_empty() && get(&mut r).is_none());
    r.settle();
    assert!(w.is_drained());
}

#[test]
fn the_largest_frame_fits_an_empty_ring_and_no_larger_one() {
    let (a, b) = pair(4096);
    let (mut w, mut r) = (Writer::new(a.place()), Reader::new(b.place()));
    let most = 4096 - FRAME_HEAD - FRAME_ALIGN;
    for _ in 0..5 {
        assert!(w.room(most + 1, most + 1).unwrap().is_none());
        assert_eq!(w.room(1, usize::MAX).unwrap().unwrap().1, most);
        assert!(put(&mut w, &vec![3; most]));
        assert!(w.room(1, 1).unwrap().is_none());
        assert_eq!(get(&mut r).unwrap().len(), most);
        r.settle();
        // Moves both ends on in the ring.
        assert!(put(&mut w, &[1]) && get(&mut r).is_some());
        r.settle();
    }
}

#[test]
fn two_threads_pass_numbers_in_order() {
    let (a, b) = pair(8192);
    const N: u64 = 300_000;
    let writer = std::thread::spawn(move || {
        let mut w = Writer::new(a.place());
        for i in 0..N {
            let mut bytes = vec![0xa5; 8 + (i % 300) as usize];
            bytes[..8].copy_from_slice(&i.to_le_bytes());
            while !put(&mut w, &bytes) {
                std::thread::yield_now();
            }
        }
        // The writer's mapping outlives the reader.
        a
    });
    let mut r = Reader::new(b.place());
    for i in 0..N {
        let bytes = loop {
            match get(&mut r) {
                Some(bytes) => break bytes,
                None => {
                    r.settle();
                    std::thread::yield_now();
                }
            }
        };
        assert_eq!(bytes.len(), 8 + (i % 300) as usize);
        assert_eq!(bytes[..8], i.to_le_bytes());
        assert!(bytes[8..].iter().all(|&b| b == 0xa5));
    }
    writer.join().unwrap();
}

#[test]
fn a_tail_that_cannot_be_breaks_the_link_and_nothing_else() {
    for lie in [64u64, u64::MAX, 1 << 40, 63] {
        let (a, b) = pair(4096);
        let mut w = Writer::new(a.place());
        // SAFETY: the tail's line of the other mapping; an atomic of ours lies there.
        let tail = unsafe { &*b.place().base.as_ptr().add(64).cast::<AtomicU64>() };
        tail.store(lie, Ordering::Relaxed);
        assert_eq!(w.room(1, 4096), Err(BrokenRing), "{lie}");
    }
    // The tail goes back.
    let (a, b) = pair(4096);
    let (mut w, mut r) = (Writer::new(a.place()), Reader::new(b.place()));
    assert!(put(&mut w, &[1; 1000]) && get(&mut r).is_some());
    r.settle();
    assert!(w.room(1, 4096).unwrap().is_some());
    // SAFETY: as above.
    unsafe { &*b.place().base.as_ptr().add(64).cast::<AtomicU64>() }.store(0, Ordering::Relaxed);
    assert_eq!(w.room(1, 4096), Err(BrokenRing));
}

#[test]
fn a_length_that_cannot_be_breaks_the_link_and_nothing_else() {
    for lie in [u32::MAX, 4096, 4096 - (FRAME_HEAD + FRAME_ALIGN) as u32 + 1] {
        let (a, b) = pair(4096);
        let r = Reader::new(b.place());
        a.place().length(0).scribble(lie);
        assert_eq!(r.peek(), Err(BrokenRing), "{lie}");
    }
}

#[test]
fn any_image_of_a_ring_is_read_without_leaving_it() {
    // Random words over the whole segment, read until the ring is empty or broken.
    let mut rng = Rng::new(42);
    let (mut broken, mut empty) = (0, 0);
    for _ in 0..2_000 {
        let (a, b) = pair(4096);
        for i in 0..4096 / 64 {
            let len = if rng.below(8) == 0 { rng.below(1 << 32) } else { rng.below(500) };
            a.place().length(i * 64).scribble(len as u32);
        }
        let mut r = Reader::new(b.place());
        for _ in 0..1_000 {
            match r.peek() {
                Ok(Some((p, len))) => {
                    // SAFETY: `len` bytes at `p` are mapped.
                    let sum: u64 = unsafe { core::slice::from_raw_parts(p.as_ptr(), len) }
                        .iter()
                        .map(|&b| u64::from(b))
                        .sum();
                    assert!(sum <= 255 * len as u64);
                    r.release(len);
                }
                Ok(None) => {
                    empty += 1;
                    break;
                }
                Err(BrokenRing) => {
                    broken += 1;
                    break;
                }
            }
        }
    }
    assert!(broken > 100 && empty > 10, "{broken} {empty}");
}
