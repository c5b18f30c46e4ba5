//! Who owns a context after fork: the parent. The child sees it in one load.
//!
//! One page per process carries a word. The kernel wipes the page in every child (MADV_WIPEONFORK), so a guard
//! that was made before the fork no longer agrees with it; a child that opens contexts of its own writes a new
//! word, later than any of its ancestors'. A child that shares its parent's memory (vfork, threads) shares the
//! page too and stays an owner, rightly.

use crate::map::{page_size, Map};
use gdrcore_core::error::{Error, Result};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Tells whether this process is the one that made the guard.
#[derive(Clone, Copy, Debug)]
pub struct ForkGuard {
    page: &'static AtomicU64,
    word: u64,
}

impl ForkGuard {
    /// A guard for contexts that this process opens from now on. Any thread.
    ///
    /// # Errors
    /// `NoMemory`.
    pub fn new() -> Result<ForkGuard> {
        let page = page()?;
        // Time since boot is later than that of every guard made before the fork, and never 0.
        let fresh = crate::clock::now_ns().max(1);
        let word = match page.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(current) => current,
        };
        Ok(ForkGuard { page, word })
    }

    /// False in a forked child of the process that made the guard. Any thread. Cost: one load.
    #[inline]
    pub fn is_owner(&self) -> bool {
        self.page.load(Ordering::Relaxed) == self.word
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

/// The process's page, mapped by the first caller and kept for ever.
fn page() -> Result<&'static AtomicU64> {
    let mut p = PAGE.load(Ordering::Acquire);
    if p.is_null() {
        let (mine, len) = Map::new(page_size())?.into_raw();
        // SAFETY: advice on a mapping that is ours.
        let wiped = unsafe { libc::madvise(mine.cast(), len, libc::MADV_WIPEONFORK) } == 0;
        let mine: *mut AtomicU64 = mine.cast();
        match PAGE.compare_exchange(core::ptr::null_mut(), mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {
                p = mine;
                if !wiped {
                    // Kernels before 4.14 and some sandboxes: fork() of libc still runs handlers.
                    // SAFETY: the handler only stores to an atomic and stays loaded as long as its code does.
                    unsafe { libc::pthread_atfork(None, None, Some(wipe)) };
                }
            }
            Err(theirs) => {
                // SAFETY: our map lost the race; nobody else has seen it.
                drop(unsafe { Map::from_raw(mine.cast(), len) });
                p = theirs;
            }
        }
    }
    // SAFETY: PAGE holds null or a page-aligned map that is never unmapped; any bit pattern is a valid word.
    Ok(unsafe { &*p })
}

extern "C" fn wipe() {
    let p = PAGE.load(Ordering::Acquire);
    if !p.is_null() {
        // SAFETY: as in `page`.
        unsafe { &*p }.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_is_no_owner_but_may_make_guards() {
        let guard = ForkGuard::new().unwrap();
        assert!(guard.is_owner());
        assert_eq!(guard.check(), Ok(()));
        // SAFETY: the child makes only async-signal-safe calls and ends by _exit.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            let old_refused = guard.check() == Err(Error::OwnerDead);
            let fresh = ForkGuard::new();
            let fresh_works = fresh.is_ok_and(|g| g.is_owner());
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
