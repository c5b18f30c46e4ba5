//! The locks on objects that libibverbs promises, and a lock that is held during fork.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};
use gdrcore_core::{Error, Result};

/// Waits for another thread, the longer the more `tries` there were: spins first, then yields, then
/// sleeps, because a thread of lower priority must run, too.
pub fn back_off(tries: u32) {
    match tries {
        0..64 => core::hint::spin_loop(),
        64..1024 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

/// Repeats a call while the device refuses it with [`Error::Busy`] because another thread uses the
/// same queue. This is the lock that libibverbs promises for each queue; without a second thread it
/// costs nothing.
///
/// # Errors
/// Those of `f` except `Busy`.
#[inline]
pub fn retry_while_busy<T>(mut f: impl FnMut() -> Result<T>) -> Result<T> {
    match f() {
        Err(Error::Busy) => retry_until_free(f),
        done => done,
    }
}

#[cold]
fn retry_until_free<T>(mut f: impl FnMut() -> Result<T>) -> Result<T> {
    let mut tries = 0;
    loop {
        back_off(tries);
        tries = tries.saturating_add(1);
        match f() {
            Err(Error::Busy) => {}
            done => return done,
        }
    }
}

/// A lock that a thread takes in one call and releases in another, as `ibv_start_poll` and
/// `ibv_end_poll` do.
#[derive(Default)]
pub struct ThreadLock(AtomicBool);

impl ThreadLock {
    /// Waits until it is free, and takes it.
    #[inline]
    pub fn lock(&self) {
        let mut tries = 0;
        while self.0.swap(true, Ordering::Acquire) {
            back_off(tries);
            tries = tries.saturating_add(1);
        }
    }

    /// Releases it.
    #[inline]
    pub fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

/// A lock that is held during fork, so that the child finds it free and its value consistent.
pub struct ForkLock<T> {
    lock: ThreadLock,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only by the holder of the lock.
unsafe impl<T: Send> Sync for ForkLock<T> {}

impl<T> ForkLock<T> {
    /// A free lock.
    pub const fn new(value: T) -> Self {
        ForkLock { lock: ThreadLock(AtomicBool::new(false)), value: UnsafeCell::new(value) }
    }

    /// Waits until it is free, and takes it.
    pub fn lock(&self) -> ForkLockGuard<'_, T> {
        self.lock.lock();
        ForkLockGuard(self)
    }

    /// Before fork: waits for the lock, and takes it.
    pub fn hold(&self) {
        self.lock.lock();
    }

    #[cfg(test)]
    pub(crate) fn is_free(&self) -> bool {
        !self.lock.0.load(Ordering::Acquire)
    }

    /// After fork, in parent and child: releases it.
    pub fn release(&self) {
        self.lock.unlock();
    }
}

/// The lock, held.
pub struct ForkLockGuard<'a, T>(&'a ForkLock<T>);

impl<T> Deref for ForkLockGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the lock is held.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for ForkLockGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is held, and `&mut self` is the only way to the value.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for ForkLockGuard<'_, T> {
    fn drop(&mut self) {
        self.0.lock.unlock();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU32;

    #[test]
    fn a_call_is_repeated_while_the_queue_is_busy() {
        let calls = AtomicU32::new(0);
        let done = retry_while_busy(|| {
            if calls.fetch_add(1, Ordering::Relaxed) < 3 {
                Err(Error::Busy)
            } else {
                Ok(7)
            }
        });
        assert_eq!(done, Ok(7));
        assert_eq!(calls.load(Ordering::Relaxed), 4);
        assert_eq!(retry_while_busy(|| Err::<(), _>(Error::Again)), Err(Error::Again));
    }

    #[test]
    fn one_thread_at_a_time_is_inside() {
        let lock = ForkLock::new(0u32);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..1000 {
                        *lock.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(), 4000);
    }
}
