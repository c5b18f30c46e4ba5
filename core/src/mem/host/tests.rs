use super::*;
use crate::wire::icrc::crc32_with;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicU8, Ordering};
use std::vec::Vec;
use std::{thread, vec};

fn pattern(n: usize, seed: usize) -> Vec<u8> {
    (0..n).map(|i| ((i + seed) * 131 + i / 7) as u8 | 1).collect()
}

/// Memory with a start aligned to 64, and its address as a program would register it.
struct Mem(Vec<AtomicU64>, usize);

impl Mem {
    fn new(bytes: usize) -> Self {
        let words: Vec<AtomicU64> = (0..bytes / 8 + 16).map(|_| AtomicU64::new(0)).collect();
        let skip = (words.as_ptr() as usize).wrapping_neg() % 64 / 8;
        Mem(words, skip)
    }
    fn addr(&self) -> u64 {
        self.0[self.1..].as_ptr().expose_provenance() as u64
    }
    fn bytes(&self, n: usize) -> Vec<u8> {
        self.0[self.1..]
            .iter()
            .flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes())
            .take(n)
            .collect()
    }
}

/// Lengths worth trying: all small ones, and around the units of the loops.
fn lengths() -> impl Iterator<Item = usize> {
    let small = if cfg!(miri) { 0..40 } else { 0..301 };
    let big: &[usize] = if cfg!(miri) {
        &[]
    } else {
        &[511, 512, 513, 1024, 4095, 4096, 4097, 32_775, 32_776, 32_839, 49_231, 70_000, 100_003]
    };
    small.chain(big.iter().copied())
}

fn alignments() -> core::ops::Range<usize> {
    0..if cfg!(miri) { 9 } else { 65 }
}

#[test]
fn a_hint_never_faults() {
    let mut bytes = [7u8; 64];
    for addr in [bytes.as_mut_ptr() as u64, 0, 8, u64::MAX, 1 << 63] {
        expect_write(addr);
    }
    assert_eq!(bytes, [7; 64]);
}

#[test]
fn place_writes_every_byte_and_no_other() {
    for n in lengths() {
        for at in alignments() {
            let mem = Mem::new(n + 96);
            let src = pattern(n, at);
            assert_eq!(place(mem.addr() + at as u64, &src), Ok(()));
            let got = mem.bytes(n + 96);
            assert!(got[..at].iter().all(|b| *b == 0), "before, n {n} at {at}");
            assert_eq!(got[at..at + n], src, "n {n} at {at}");
            assert!(got[at + n..].iter().all(|b| *b == 0), "behind, n {n} at {at}");
        }
    }
}

#[test]
fn fetch_reads_every_byte_and_writes_no_other() {
    for n in lengths() {
        let mem = Mem::new(n + 96);
        let all = pattern(n + 64, 3);
        place(mem.addr(), &all).unwrap();
        for at in alignments() {
            for skew in [0, 1, 4, 12] {
                let mut dst = vec![0u8; n + 96];
                assert_eq!(fetch(mem.addr() + at as u64, &mut dst[skew..skew + n]), Ok(()));
                assert_eq!(dst[skew..skew + n], all[at..at + n], "n {n} at {at}");
                assert!(
                    dst[..skew].iter().chain(&dst[skew + n..]).all(|b| *b == 0),
                    "n {n} at {at}"
                );
            }
        }
    }
}

#[test]
fn atomics_return_the_old_value_and_refuse_misaligned() {
    let word = AtomicU64::new(5);
    let addr = word.as_ptr().expose_provenance() as u64;
    assert_eq!(fetch_add(addr, u64::MAX), Ok(5));
    assert_eq!(cmp_swap(addr, 5, 9), Ok(4));
    assert_eq!(word.load(Ordering::Relaxed), 4);
    assert_eq!(cmp_swap(addr, 4, 9), Ok(4));
    assert_eq!(word.load(Ordering::Relaxed), 9);
    for off in 1..8 {
        assert_eq!(fetch_add(addr + off, 1), Err(Fault));
        assert_eq!(cmp_swap(addr + off, 1, 1), Err(Fault));
        assert_eq!(store(addr + off, 1), Err(Fault));
    }
    assert_eq!(word.load(Ordering::Relaxed), 9);
    assert_eq!(store(addr, 0x0102_0304_0506_0708), Ok(()));
    assert_eq!(word.load(Ordering::Relaxed), 0x0102_0304_0506_0708);
}

#[test]
fn atomics_of_threads_add_up() {
    let word = AtomicU64::new(0);
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                (0..rounds).for_each(|_| {
                    assert!(fetch_add(word.as_ptr().expose_provenance() as u64, 3).is_ok())
                })
            });
        }
    });
    assert_eq!(word.load(Ordering::Relaxed), 6 * rounds);
}

/// Ends the other thread's loop, also when this one panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a polling program relies on: the last byte is new only when all the others are.
#[test]
#[cfg(not(miri))] // races by intent
fn thorough_last_byte_is_never_seen_before_the_others() {
    let sizes = [
        1, 2, 3, 7, 8, 9, 12, 15, 16, 17, 24, 31, 33, 63, 64, 65, 100, 128, 250, 256, 1000, 1024,
        4096,
    ];
    for n in sizes {
        for at in [0, 1, 5, 8, 12] {
            let room: Vec<AtomicU8> = (0..n + 16).map(|_| AtomicU8::new(0)).collect();
            let room = &room[at..at + n];
            let (addr, taken, stop) =
                (room.as_ptr() as u64, AtomicU8::new(0), AtomicBool::new(false));
            thread::scope(|s| {
                let _stop = StopOnDrop(&stop);
                s.spawn(|| {
                    let mut seen = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let last = room[n - 1].load(Ordering::Acquire);
                        if last == seen {
                            core::hint::spin_loop();
                            continue;
                        }
                        // Check only the bytes before: the writer waits for `taken` before the next
                        // round.
                        for (i, b) in room.iter().enumerate() {
                            let _stop = StopOnDrop(&stop);
                            assert_eq!(b.load(Ordering::Relaxed), last, "byte {i} of {n} at {at}");
                            core::mem::forget(_stop);
                        }
                        seen = last;
                        taken.store(seen, Ordering::Release);
                    }
                });
                let mut src = vec![0u8; n];
                for round in 0..if cfg!(debug_assertions) { 30u32 } else { 1000 } {
                    let value = (round % 255) as u8 + 1;
                    src.fill(value);
                    place(addr, &src).unwrap();
                    let mut spins = 0u32;
                    while taken.load(Ordering::Acquire) != value && !stop.load(Ordering::Relaxed) {
                        spins += 1;
                        if spins % 1000 == 0 {
                            thread::yield_now();
                        }
                        core::hint::spin_loop();
                    }
                }
            });
        }
    }
}

/// A word that a thread keeps storing in one piece is read in one piece, also within a longer copy.
/// A copy that ends within a word may read that part in pieces.
#[test]
#[cfg(not(miri))] // races by intent
fn aligned_words_are_never_torn() {
    let mem = Mem::new(4096 + 64);
    let words = &mem.0[mem.1..mem.1 + 520];
    let stop = AtomicBool::new(false);
    thread::scope(|s| {
        s.spawn(|| {
            let mut v = 0u8;
            while !stop.load(Ordering::Relaxed) {
                v = v.wrapping_add(1);
                words.iter().for_each(|w| w.store(u64::from_ne_bytes([v; 8]), Ordering::Relaxed));
            }
        });
        let _stop = StopOnDrop(&stop);
        let mut room = vec![0u8; 4096 + 64];
        let start = room.as_ptr().align_offset(8);
        for round in 0..8000 {
            // Short copies to any address of ours, long ones to an aligned one.
            let (n, askew) = if round % 2 == 0 {
                (9 + round / 2 % 503, round % 61)
            } else {
                (4096 - round % 512, 0)
            };
            let dst = &mut room[start + askew..][..n];
            fetch(mem.addr() + (round % 8 * 8) as u64, dst).unwrap();
            for word in dst.chunks_exact(8) {
                assert!(
                    word.iter().all(|b| *b == word[0]),
                    "torn: {word:x?}, {n} bytes to {askew}"
                );
            }
        }
    });
}

#[test]
fn fixup_knows_no_other_code() {
    assert_eq!(fixup(0), None);
    assert_eq!(fixup(usize::MAX), None);
    assert_eq!(fixup(fixup_knows_no_other_code as *const () as usize), None);
}

/// The implementations of the CRC that this machine has.
fn implementations() -> impl Iterator<Item = Impl> {
    Impl::ALL.iter().copied().filter(|which| {
        if !which.is_available() {
            gdrcore_testkit::skip::skipped(format_args!(
                "{which:?}: its instructions are not here"
            ));
        }
        which.is_available()
    })
}

/// Lengths at which the copies that sum change their way, for rounds of 64 to 256 bytes.
fn crc_lengths() -> impl Iterator<Item = usize> {
    let seams = (1..=20).flat_map(|k| [64 * k - 1, 64 * k, 64 * k + 1]);
    let far = [1500, 2048, 4095, 4096, 4097, 9000];
    (0..70).chain(seams).chain(far).filter(|n| !cfg!(miri) || *n < 70)
}

#[test]
fn a_fetch_that_sums_copies_and_sums() {
    let all = pattern(9000 + 64, 3);
    let mem = Mem::new(all.len());
    place(mem.addr(), &all).unwrap();
    for which in implementations() {
        for n in crc_lengths() {
            for (at, skew) in [(0, 0), (0, 12), (8, 28), (1, 5), (33, 63), (40, 1), (63, 44)] {
                let mut dst = vec![0u8; n + 128];
                let skew = dst.as_ptr().align_offset(64) + skew;
                let room = &mut dst[skew..];
                let Some((copied, behind)) = room.split_at_mut_checked(n) else { continue };
                let sum = fetch_crc_with(which, mem.addr() + at as u64, copied, 0x1234_5678);
                assert_eq!(copied, &all[at..at + n], "{which:?} n {n} at {at}");
                let right = crc32_with(Impl::Table, 0x1234_5678, copied);
                assert_eq!(sum, Ok(right), "{which:?} n {n} at {at} to {skew}");
                assert!(behind.iter().all(|b| *b == 0), "{which:?} n {n} at {at}: behind");
                assert!(dst[..skew].iter().all(|b| *b == 0), "{which:?} n {n} at {at}: before");
            }
        }
    }
}

#[test]
fn a_placement_that_sums_copies_and_sums() {
    let all = pattern(9000 + 64, 9);
    for which in implementations() {
        for n in crc_lengths() {
            for (at, skew) in [(0, 0), (12, 0), (28, 8), (5, 1), (63, 33), (1, 40), (44, 63)] {
                let Some(src) = all.get(at..at + n) else { continue };
                let mem = Mem::new(n + 128);
                let to = mem.addr() + skew as u64;
                let sum = place_crc_with(which, to, src, 0x1234_5678);
                let right = crc32_with(Impl::Table, 0x1234_5678, src);
                assert_eq!(sum, Ok(right), "{which:?} n {n} at {at} to {skew}");
                let mut seen = mem.bytes(n + 128);
                assert_eq!(&seen[skew..skew + n], src, "{which:?} n {n} at {at} to {skew}");
                seen[skew..skew + n].fill(0);
                assert!(seen.iter().all(|b| *b == 0), "{which:?} n {n} at {at}: around it");
            }
        }
    }
}
