//! `libmempool.so`: blocks of 32 bytes, found by a key or in a queue, under the names that
//! FreeFlow's client libraries call. Those keep their notes on memory regions (by lkey) and on
//! outstanding work requests there.
//!
//! This library differs from FreeFlow's own. A pool or a queue has a fixed number of blocks
//! ([`ENTRIES`], or the variable `GDRC_MEMPOOL_ENTRIES`), which only the creating call allocates. A
//! handle is a number, not an address, so a call with a bad or destroyed handle does nothing. Any
//! thread may call any function; calls on one pool wait for each other.
//!
//! A block stays where it is until it is deleted. Afterwards the caller must not use its bytes,
//! because another block may have them; after `_destroy` the memory is gone.

mod blocks;
mod handles;
mod pool;
mod queue;

use core::ffi::c_void;
use handles::Handles;
use pool::Pool;
use queue::Queue;

/// Blocks of a pool or queue if the environment does not say.
pub const ENTRIES: u32 = 10_240;
/// The most that the environment may ask for.
pub const ENTRIES_MAX: u32 = 1 << 20;
/// Pools at a time, and as many queues.
pub const HANDLES: usize = 256;

static POOLS: Handles<Pool> = Handles::new(1);
static QUEUES: Handles<Queue> = Handles::new(2);

/// How many blocks a new pool or queue has.
fn entries() -> u32 {
    let wanted = std::env::var("GDRC_MEMPOOL_ENTRIES").ok().and_then(|n| n.parse().ok());
    wanted.filter(|n| (1..=ENTRIES_MAX).contains(n)).unwrap_or(ENTRIES)
}

/// Makes a pool: blocks that are found by a key of 32 bits. NULL: no memory, or [`HANDLES`] pools
/// exist. Allocates 32 bytes for each block and 16 to 32 for its key.
#[no_mangle]
pub extern "C" fn mempool_create() -> *mut c_void {
    POOLS.insert(|| Pool::new(entries()))
}

/// Returns the block of a key. An existing block keeps its bytes, a new one is zeroed. NULL: the
/// pool is full, or there is no such pool. Takes constant time as a rule, at worst a step for each
/// key.
#[no_mangle]
pub extern "C" fn mempool_insert(pool: *mut c_void, key: u32) -> *mut c_void {
    POOLS.with_object(pool, |p| p.insert(key))
}

/// The block of a key. NULL: it has none, or there is no such pool. Costs as [`mempool_insert`].
#[no_mangle]
pub extern "C" fn mempool_get(pool: *mut c_void, key: u32) -> *mut c_void {
    POOLS.with_object(pool, |p| p.get(key))
}

/// Takes the block of a key away. Without such a key or pool it does nothing.
#[no_mangle]
pub extern "C" fn mempool_del(pool: *mut c_void, key: u32) {
    POOLS.with_object(pool, |p| {
        p.delete(key);
        core::ptr::null_mut()
    });
}

/// Frees a pool with all its blocks. Without such a pool it does nothing.
#[no_mangle]
pub extern "C" fn mempool_destroy(pool: *mut c_void) {
    POOLS.remove(pool);
}

/// Makes a queue: blocks that leave in the order in which they came. NULL as [`mempool_create`].
#[no_mangle]
pub extern "C" fn memqueue_create() -> *mut c_void {
    QUEUES.insert(|| Queue::new(entries()))
}

/// A new block of zeroes behind all others. NULL: the queue is full, or there is no such queue.
/// Constant time, as all calls on queues.
#[no_mangle]
pub extern "C" fn memqueue_get_new_head(queue: *mut c_void) -> *mut c_void {
    QUEUES.with_object(queue, Queue::push)
}

/// The oldest block. NULL: the queue is empty, or there is no such queue.
#[no_mangle]
pub extern "C" fn memqueue_get_tail(queue: *mut c_void) -> *mut c_void {
    QUEUES.with_object(queue, |q| q.first())
}

/// Takes the oldest block away. Where there is none it does nothing.
#[no_mangle]
pub extern "C" fn memqueue_del_tail(queue: *mut c_void) {
    QUEUES.with_object(queue, |q| {
        q.pop();
        core::ptr::null_mut()
    });
}

/// Frees a queue with all its blocks. Without such a queue it does nothing.
#[no_mangle]
pub extern "C" fn memqueue_destroy(queue: *mut c_void) {
    QUEUES.remove(queue);
}

#[cfg(test)]
mod tests;
