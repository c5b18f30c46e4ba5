//! A context belongs to the process that opened it: a forked child finds out by one load.
//!
//! One page per process carries a word, at an address that is fixed when the program is linked. The
//! kernel wipes the page in every child (MADV_WIPEONFORK), so the word of a guard made before the
//! fork differs from it. A child that opens contexts of its own writes a new word, later than any
//! of its ancestors'. A child that shares its parent's memory (vfork, threads) shares the page too
//! and stays an owner.

use gdrcore_core::error::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The page, of the size at which the kernel can wipe it. Its first word is 0 until the first guard
/// of a process is made.
#[repr(C, align(4096))]
struct Page(AtomicU64, [AtomicU64; 511]);

static PAGE: Page = Page(AtomicU64::new(0), [const { AtomicU64::new(0) }; 511]);
/// Whether fork() runs [`wipe`].
static HANDLER: AtomicBool = AtomicBool::new(false);

/// A word of no process: [`process_word`] never returns it.
pub const NOWHERE: u64 = 0;

/// Every word of [`process_word`] has this bit, so a word without it is no process's. A caller that
/// keeps such words may clear the bit to give a word another meaning.
pub const MARK: u64 = 1;
/// A second bit like [`MARK`], for one more meaning.
pub const SECOND_MARK: u64 = 2;

/// A word that differs between this process, its parent and its children: [`ForkGuard::word`] of
/// the guards made here. Never [`NOWHERE`]. Any thread. Cost: one load.
#[inline(always)]
pub fn process_word() -> u64 {
    // Complemented, so that a child's wiped page differs from a static before its first write.
    !PAGE.0.load(Ordering::Relaxed)
}

/// Identifies the process that made the guard.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    word: u64,
}

#[allow(clippy::new_without_default)] // a guard is made for a process, not by default
impl ForkGuard {
    /// A guard for contexts that this process opens from now on. Any thread.
    pub fn new() -> ForkGuard {
        wipe_in_forks();
        // Time since boot is later than that of every guard made before the fork, and neither 0 nor
        // its complement.
        let fresh = crate::clock::now_ns().max(4) & !(MARK | SECOND_MARK);
        let word = match PAGE.0.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(current) => current,
        };
        ForkGuard { word: !word }
    }

    /// The word that [`process_word`] returns in the process that made the guard, and in no other.
    pub fn word(&self) -> u64 {
        self.word
    }

    /// False in a forked child of the process that made the guard. Any thread. Cost: one load.
    #[inline]
    pub fn is_owner(&self) -> bool {
        process_word() == self.word
    }

    /// [`Error::OwnerDead`] in a forked child.
    ///
    /// # Errors
    /// `OwnerDead`.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_owner() {
            Ok(())
        } else {
            Err(Error::OwnerDead)
        }
    }
}

/// Makes the page of each later child be wiped.
fn wipe_in_forks() {
    // SAFETY: a page of our own, which holds an atomic that may be 0; the handler only stores to
    // it.
    unsafe { wipe_in_children((&raw const PAGE).cast(), size_of::<Page>(), wipe, &HANDLER) };
}

/// Bytes that memory must be aligned to, and a multiple of, to be wiped by [`wipe_in_children`].
pub const PAGE_BYTES: usize = 4096;

/// Has memory wiped in each child of a fork: by the kernel, or, where it cannot, by `by_hand`,
/// which libc calls in the child. `handler` records that libc knows `by_hand`, so that the call may
/// be repeated. There is no once-lock: the child of a fork could wait for it for ever.
///
/// # Safety
/// `bytes` at `at`, both multiples of [`PAGE_BYTES`], are private memory of no file, used by the
/// caller alone, and stay mapped for as long as the process lives; all of it may be 0. `by_hand`
/// may be called in a child of a process with threads, at any time.
pub unsafe fn wipe_in_children(
    at: *const u8,
    bytes: usize,
    by_hand: extern "C" fn(),
    handler: &'static AtomicBool,
) {
    let advise = || {
        // SAFETY: advice on whole pages that are the caller's alone.
        unsafe { libc::madvise(at.cast_mut().cast(), bytes, libc::MADV_WIPEONFORK) }
    };
    let wiped = crate::map::page_size() <= PAGE_BYTES && advise() == 0;
    if !wiped {
        // For kernels before 4.14, some sandboxes, and larger pages.
        // SAFETY: our contract.
        unsafe { call_in_children(by_hand, handler) };
    }
}

/// Has libc's fork() run a function in each child from now on; `handler` becomes true. Harmless
/// when repeated. A child of the system calls clone(2) and vfork(2) runs none.
///
/// # Safety
/// `what` may be called in a child of a process with threads, at any time.
pub unsafe fn call_in_children(what: extern "C" fn(), handler: &'static AtomicBool) {
    if !handler.swap(true, Ordering::Relaxed) {
        // SAFETY: by our contract; the handler stays loaded as long as its code does.
        unsafe { libc::pthread_atfork(None, None, Some(what)) };
    }
}

/// Calls `hold` before every later fork of this process, and `release` afterwards in parent and
/// child. A lock is held in between, so the child finds the protected data consistent. The pair
/// registered last holds first.
pub fn around_forks(hold: extern "C" fn(), release: extern "C" fn()) {
    around_forks_and_in_child(hold, release, release);
}

/// As [`around_forks`], with another function in place of `release` in the child.
pub fn around_forks_and_in_child(
    hold: extern "C" fn(),
    release: extern "C" fn(),
    in_child: extern "C" fn(),
) {
    let [before, after, child]: [unsafe extern "C" fn(); 3] = [hold, release, in_child];
    // SAFETY: the handlers take and give back a lock and stay loaded as long as their code does.
    unsafe { libc::pthread_atfork(Some(before), Some(after), Some(child)) };
}

extern "C" fn wipe() {
    PAGE.0.store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_no_owner_but_may_make_guards() {
        let _fork = gdrcore_testkit::descriptors::fork();
        let guard = ForkGuard::new();
        assert!(guard.is_owner());
        assert_eq!(guard.check(), Ok(()));
        // SAFETY: the child makes only async-signal-safe calls and ends by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let old_refused = guard.check() == Err(Error::OwnerDead);
            let fresh = ForkGuard::new();
            let fresh_works = fresh.is_owner();
            let still_refused = !guard.is_owner();
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!(old_refused && fresh_works && still_refused))) };
        }
        let mut status = 0;
        // SAFETY: our own child and a valid place for its status.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "the child disagrees");
        assert!(guard.is_owner(), "the parent keeps its contexts");
    }
}
