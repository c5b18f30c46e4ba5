//! The trap allocator: an allocation of a thread that runs an engine ends the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static ARMED: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, unless the thread is armed.
pub struct Trap;

#[cold]
fn caught(what: &str) -> ! {
    // The report itself may allocate.
    ARMED.with(|a| a.set(false));
    panic!("the engine called {what}: the data plane must not allocate");
}

fn check(what: &str) {
    // A panic of the engine must be able to print its message.
    if ARMED.with(Cell::get) && !std::thread::panicking() {
        caught(what);
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Trap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        check("alloc");
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        check("dealloc");
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        check("realloc");
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Runs `f`, in which allocations are trapped.
#[inline]
pub fn armed<T>(f: impl FnOnce() -> T) -> T {
    ARMED.with(|a| a.set(true));
    let out = f();
    ARMED.with(|a| a.set(false));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "must not allocate")]
    fn an_allocation_inside_is_caught() {
        armed(|| std::hint::black_box(vec![1u8; 100]));
    }

    #[test]
    fn allocations_outside_are_not() {
        armed(|| std::hint::black_box(1));
        std::hint::black_box(vec![1u8; 100]);
    }
}
