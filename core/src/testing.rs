//! Memory for unit tests. Leaked, so that it outlives whatever a test carves from it.
#![allow(unsafe_code)]

use crate::arena::{Heap, Walk};
use crate::Result;

/// `len` bytes of junk, deliberately misaligned, never freed.
pub(crate) fn memory(len: usize) -> &'static mut [u8] {
    let whole: &'static mut [u8] = std::vec![0xa5u8; len + 1].leak();
    let odd = whole.as_ptr() as usize & 1;
    &mut whole[1 - odd..][..len]
}

/// Runs the walk twice: for the size, then over exactly as much memory.
pub(crate) fn carve<T>(mut layout: impl FnMut(&mut Walk) -> Result<T>) -> T {
    let mut walk = Walk::size_query();
    layout(&mut walk).expect("size query");
    let memory = memory(walk.offset());
    // SAFETY: leaked and used nowhere else.
    let mut walk = unsafe { Walk::carve(memory.as_mut_ptr(), memory.len()) }.expect("carve");
    let t = layout(&mut walk).expect("carving what the query measured");
    assert!(walk.offset() <= memory.len());
    t
}

/// A heap with one region, certain to hold `payload` bytes of blocks.
pub(crate) fn heap(payload: usize) -> Heap {
    let memory = memory(Heap::bytes_for(payload));
    let mut heap = Heap::new();
    // SAFETY: leaked and used nowhere else.
    unsafe { heap.add(memory.as_mut_ptr(), memory.len()) }.expect("heap region");
    heap
}
