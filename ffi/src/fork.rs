//! Which process this is, by one load: a page that the kernel zeroes in the child of a fork.

use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use gdrcore_core::{Error, Result};

/// Before the first open, and where the kernel has no MADV_WIPEONFORK.
static NO_PAGE: AtomicU64 = AtomicU64::new(0);
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new((&raw const NO_PAGE).cast_mut());
/// The last generation given. Ordinary memory: a child inherits it, and counts on.
static LAST: AtomicU64 = AtomicU64::new(0);

const PAGE_BYTES: usize = 4096;

fn page() -> &'static AtomicU64 {
    // SAFETY: PAGE holds the address of NO_PAGE or of a page that is never unmapped; both are valid atomics for ever.
    unsafe { &*PAGE.load(Ordering::Acquire) }
}

/// The generation of this process: what [`init`] set, 0 in the child of a fork until it opens something itself.
#[inline(always)]
pub(crate) fn generation() -> u64 {
    page().load(Ordering::Relaxed)
}

/// Gives this process a generation, if it has none.
pub(crate) fn init() -> Result<()> {
    if core::ptr::eq(page(), &NO_PAGE) {
        let fresh = map_page()?;
        let none = (&raw const NO_PAGE).cast_mut();
        if PAGE.compare_exchange(none, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
            // SAFETY: another thread was first; this page was never published.
            unsafe { libc::munmap(fresh.cast(), PAGE_BYTES) };
        }
    }
    if generation() == 0 {
        let next = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        // Only the first of several threads sets it; the others use that one.
        let _ = page().compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    }
    Ok(())
}

fn map_page() -> Result<*mut AtomicU64> {
    let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new anonymous mapping at an address that the kernel chooses.
    let p = unsafe { libc::mmap(null_mut(), PAGE_BYTES, prot, flags, -1, 0) };
    if p == libc::MAP_FAILED {
        return Err(Error::NoMemory);
    }
    // SAFETY: the page is ours. Without WIPEONFORK (before Linux 4.14) forks are not noticed, and nothing else changes.
    unsafe { libc::madvise(p, PAGE_BYTES, libc::MADV_WIPEONFORK) };
    Ok(p.cast())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fork_child_has_no_generation_until_it_asks_for_a_new_one() {
        init().unwrap();
        let parent = generation();
        assert_ne!(parent, 0);
        // SAFETY: the child only loads atomics, maps nothing new, and leaves by _exit.
        match unsafe { libc::fork() } {
            0 => {
                let wiped = generation() == 0;
                let fresh = init().is_ok() && generation() != parent && generation() != 0;
                // SAFETY: _exit ends the child without running the test harness in it.
                unsafe { libc::_exit(if wiped && fresh { 0 } else { 1 }) }
            }
            pid => {
                let mut status = -1;
                // SAFETY: the child is ours; status is a local.
                unsafe { libc::waitpid(pid, &mut status, 0) };
                assert_eq!(status, 0);
            }
        }
        assert_eq!(generation(), parent);
    }
}
