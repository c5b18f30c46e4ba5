//! Only the calls that create and destroy allocate or free.

use mempool::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// The system's allocator, which counts the allocations of an armed thread. The test's other
/// threads may allocate at any time.
struct Trap;

thread_local!(static ARMED: Cell<bool> = const { Cell::new(false) });
static CALLS: AtomicU64 = AtomicU64::new(0);

fn count() {
    if ARMED.get() {
        CALLS.fetch_add(1, SeqCst);
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Trap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count();
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Trap = Trap;

#[test]
fn what_is_created_is_all_that_is_allocated() {
    let (pool, queue) = (mempool_create(), memqueue_create());
    ARMED.set(true);
    let mut held = 0u64;
    for round in 0..3u32 {
        for n in 0..2 * ENTRIES {
            let block = mempool_insert(pool, n.wrapping_mul(77) + round);
            assert_eq!(block, mempool_get(pool, n.wrapping_mul(77) + round));
            held += u64::from(!block.is_null());
            memqueue_get_new_head(queue);
        }
        for n in 0..2 * ENTRIES {
            mempool_del(pool, n.wrapping_mul(77) + round);
            memqueue_get_tail(queue);
            memqueue_del_tail(queue);
        }
    }
    ARMED.set(false);
    assert_eq!((held, CALLS.load(SeqCst)), (3 * u64::from(ENTRIES), 0));
    ARMED.set(true);
    mempool_destroy(pool);
    memqueue_destroy(queue);
    ARMED.set(false);
    assert!(CALLS.load(SeqCst) > 0, "the trap does not catch");
}
