use super::heap::{RAW, REGIONS, TYPED};
use super::*;
use crate::testing::{carve, heap, memory};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

#[repr(align(512))]
#[derive(Clone, Copy)]
struct Wide(#[allow(dead_code)] u8);

/// One step of a layout, of many alignments.
fn lay(walk: &mut Walk, what: u8, n: usize) -> Result<(usize, usize, usize)> {
    fn ends<T>(s: &[T]) -> (usize, usize, usize) {
        (s.as_ptr() as usize, core::mem::size_of_val(s), align_of::<T>())
    }
    Ok(match what {
        0 => ends(&walk.slice(n, 1u8)?),
        1 => ends(&walk.slice(n, 2u64)?),
        2 => ends(&walk.slice(n, Wide(3))?),
        3 => ends(&walk.slice(n, ())?),
        _ => {
            let r = walk.bytes(n, 1 << (what % 13))?;
            (r.as_ptr() as usize, r.len(), if r.is_empty() { 1 } else { 1 << (what % 13) })
        }
    })
}

/// Small and large slices of zeroes are zeroes, whatever the memory had.
#[test]
fn zeroes_are_zeroes_in_memory_of_any_bits() {
    for n in [1, 100, LARGE / 8 - 1, LARGE / 8, LARGE / 8 + 3] {
        let whole = memory(8 * n + 2 * ARENA_ALIGN);
        whole.iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 3 * 85) as u8);
        // SAFETY: leaked and used nowhere else.
        let mut walk = unsafe { Walk::carve(whole.as_mut_ptr(), whole.len()) }.unwrap();
        let zeroes: RawSlice<u64> = walk.zeroes(n).unwrap();
        assert!(zeroes.len() == n && zeroes.iter().all(|word| *word == 0));
        let mut query = Walk::size_query();
        assert!(query.zeroes::<u64>(n).unwrap().is_empty() && query.offset() >= 8 * n);
    }
}

proptest! {
    #[test]
    fn what_the_query_measures_is_what_carving_needs(
        skew in 0usize..300,
        steps in prop::collection::vec((0u8..30, 0usize..200), 1..40),
    ) {
        let mut query = Walk::size_query();
        for &(what, n) in &steps {
            lay(&mut query, what, n).unwrap();
        }
        let need = query.offset();
        let whole = memory(need + skew);
        let (start, end) = (whole.as_ptr() as usize + skew, whole.as_ptr() as usize + whole.len());
        // SAFETY: leaked and used nowhere else.
        let mut walk = unsafe { Walk::carve(whole[skew..].as_mut_ptr(), need) }.unwrap();
        let mut last = start;
        for &(what, n) in &steps {
            let (at, len, align) = lay(&mut walk, what, n).unwrap();
            prop_assert_eq!(at % align, 0);
            if len > 0 {
                prop_assert!(at >= last && at + len <= end);
                last = at + len;
            }
        }
        prop_assert!(walk.offset() <= need);
    }

    #[test]
    fn heap_blocks_never_overlap_and_all_come_back(
        size in 64usize..40_000,
        second in 5_000usize..20_000,
        ops in prop::collection::vec((0u8..4, 0usize..5000, any::<prop::sample::Index>()), 1..300),
    ) {
        let mut heap = heap(size);
        let more = memory(second);
        // SAFETY: leaked and used nowhere else.
        unsafe { heap.add(more.as_mut_ptr(), more.len()) }.unwrap();
        let whole = heap.free_bytes();
        let mut regions: BTreeMap<usize, RawBytes> = BTreeMap::new();
        let mut slices: Vec<RawSlice<u64>> = Vec::new();
        let mut taken = 0;
        for (what, n, which) in ops {
            match what {
                0 | 1 => {
                    if let Ok(r) = heap.alloc(n) {
                        let at = r.as_ptr() as usize;
                        prop_assert!(
                            r.len() >= n
                                && r.len().is_power_of_two()
                                && at % r.len().min(4096) == 0
                        );
                        prop_assert!(regions
                            .range(..at + r.len())
                            .next_back()
                            .is_none_or(|(a, o)| a + o.len() <= at));
                        // SAFETY: just allocated.
                        unsafe { r.as_ptr().write_bytes(0xff, r.len()) };
                        taken += r.len();
                        regions.insert(at, r);
                    }
                }
                2 if !regions.is_empty() => {
                    let at = *regions.keys().nth(which.index(regions.len())).unwrap();
                    let r = regions.remove(&at).unwrap();
                    taken -= r.len();
                    heap.free(r);
                }
                _ if n % 2 == 0 || slices.is_empty() => {
                    if let Ok(s) = heap.slice(n / 8, n as u64) {
                        taken += if s.is_empty() {
                            0
                        } else {
                            (s.len() * 8).max(64).next_power_of_two()
                        };
                        slices.push(s);
                    }
                }
                _ => {
                    let s = slices.swap_remove(which.index(slices.len()));
                    taken -=
                        if s.is_empty() { 0 } else { (s.len() * 8).max(64).next_power_of_two() };
                    heap.free_slice(s);
                }
            }
            prop_assert_eq!(heap.free_bytes(), whole - taken);
            for s in &slices {
                prop_assert!(s.windows(2).all(|w| w[0] == w[1]));
                prop_assert!(s.first().is_none_or(|&x| x as usize / 8 == s.len()));
            }
        }
        for r in regions.into_values() {
            heap.free(r);
        }
        for s in slices {
            heap.free_slice(s);
        }
        prop_assert_eq!(heap.free_bytes(), whole);
        // All buddies have joined again: the largest block there can be is there.
        let mut count = 0;
        for arena in &heap.arenas[..heap.used] {
            prop_assert_eq!(arena.nonempty, arena.count);
            count += arena.count as usize;
        }
        prop_assert_eq!(count * 64, whole);
    }

    #[test]
    fn bytes_for_holds_every_order_of_allocations(
        sizes in prop::collection::vec(1usize..20_000, 1..60),
    ) {
        let total = sizes.iter().map(|s| s.next_power_of_two().max(64)).sum();
        let mut heap = heap(total);
        for s in sizes {
            prop_assert!(heap.alloc(s).is_ok());
        }
    }
}

#[test]
fn sizes_that_overflow_are_no_memory() {
    let mut q = Walk::size_query();
    assert_eq!(q.slice(usize::MAX, 0u64).err(), Some(Error::NoMemory));
    assert_eq!(q.bytes(usize::MAX, 4096).err(), Some(Error::NoMemory));
    q.bytes(usize::MAX - 1, 1).unwrap();
    assert_eq!(q.slice(1, 0u64).err(), Some(Error::NoMemory));
    assert_eq!(q.offset(), usize::MAX);
    assert_eq!(Walk::size_query().bytes(1, 3).err(), Some(Error::Invalid));
    let mut heap = heap(4096);
    assert_eq!(heap.alloc(usize::MAX).err(), Some(Error::NoMemory));
    assert_eq!(heap.slice(usize::MAX / 4, 0u64).err(), Some(Error::NoMemory));
    assert_eq!(Heap::bytes_for(usize::MAX), usize::MAX);
}

#[test]
fn memory_that_is_too_small_is_refused() {
    let small = memory(64);
    let mut heap = Heap::new();
    // SAFETY: leaked and used nowhere else; the walk gives out nothing.
    unsafe {
        assert!(matches!(Walk::carve(core::ptr::null_mut(), 10), Err(Error::Invalid)));
        assert!(matches!(Walk::carve(small.as_mut_ptr(), 0), Err(Error::NoMemory)));
        assert_eq!(heap.add(core::ptr::null_mut(), 1 << 20), Err(Error::Invalid));
        assert_eq!(heap.add(small.as_mut_ptr(), 64), Err(Error::Invalid));
    }
    assert_eq!(heap.alloc(1).err(), Some(Error::NoMemory));
    for i in 0..=REGIONS {
        let m = memory(Heap::bytes_for(64));
        // SAFETY: leaked and used nowhere else.
        let r = unsafe { heap.add(m.as_mut_ptr(), m.len()) };
        assert_eq!(r.is_ok(), i < REGIONS);
    }
    assert_eq!(heap.free_bytes(), REGIONS * 64);
}

#[test]
fn what_is_not_ours_is_not_freed() {
    let mut heap = heap(4096);
    let r = heap.alloc(64).unwrap();
    heap.free(r);
    assert!(!heap.give(r.as_ptr(), RAW), "second free");
    let s = heap.slice(8, 1u64).unwrap();
    assert_eq!(s.as_ptr().cast(), r.as_ptr().cast_const());
    assert!(!heap.give(r.as_ptr(), RAW), "a region freed late is a slice's memory now");
    assert!(!heap.give(r.as_ptr().wrapping_add(1), TYPED), "inside a block");
    assert!(!heap.give(core::ptr::dangling_mut(), TYPED), "elsewhere");
    heap.free(RawBytes::EMPTY);
    let foreign = carve(|w| w.slice(8, 1u64));
    heap.free_slice(foreign);
    heap.free_slice(RawSlice::<u64>::empty());
    assert_eq!(heap.free_bytes(), 4096 - 64);
}

#[test]
fn tables_grow_without_moving_while_others_read() {
    const FIRST: usize = 2 * CHUNK;
    const LIMIT: usize = 20 * CHUNK;
    let mut table = carve(|w| Table::carve(w, CHUNK + 1, LIMIT, |i| std::format!("{i}")));
    assert_eq!((table.len(), table.limit()), (FIRST, LIMIT));
    table[FIRST - 1].push('!');
    let first = &raw const table[0];
    let mut heap = heap(64 * 32 * 20);
    let done = core::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let (table, done) = (&table, &done);
        s.spawn(move || loop {
            let end = done.load(core::sync::atomic::Ordering::Acquire);
            for (i, t) in table.iter().enumerate() {
                assert!(t.starts_with(&std::format!("{i}")));
            }
            if end {
                break;
            }
        });
        for _ in 0..18 {
            table.grow(&mut heap, |i| std::format!("{i}")).unwrap();
        }
        assert_eq!(table.grow(&mut heap, |_| unreachable!()), Err(Error::NoMemory));
        done.store(true, core::sync::atomic::Ordering::Release);
    });
    assert_eq!(table.iter().len(), LIMIT);
    assert_eq!(table[FIRST - 1], std::format!("{}!", FIRST - 1));
    assert_eq!(first, &raw const table[0]);
    assert!(table.get(LIMIT).is_none() && table.get_mut(usize::MAX).is_none());
}

#[test]
fn a_table_refuses_what_it_cannot_index() {
    let mut q = Walk::size_query();
    assert!(matches!(Table::carve(&mut q, 2, 1, |_| ()), Err(Error::Invalid)));
    assert!(matches!(Table::carve(&mut q, 0, usize::MAX, |_| ()), Err(Error::Invalid)));
    let none = Table::carve(&mut q, 100, 100, |_| 0u8).unwrap();
    assert!(none.is_empty() && none.get(0).is_none());
}
