//! The engine's lock, and the state that it protects besides the engine.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use super::budget::Round;
use super::grant_checks::check_grants_if_changed;
use super::{PortState, SoftDevice};
use gdrcore_core::engine::Guard;
use gdrcore_core::error::Result;

/// The engine's lock, with the state of the ports.
pub(super) struct EngineLock<'d> {
    pub(super) guard: Guard<'d>,
    device: &'d SoftDevice,
}

impl EngineLock<'_> {
    /// The engine and the ports at once.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut Guard<'_>, &mut PortState) {
        // SAFETY: the port belongs to the holder of the engine's lock, and `&mut self` is the only
        // access to it. The guard's own lifetime is only shortened.
        let (guard, port) = unsafe {
            let g: *mut Guard<'_> = (&raw mut self.guard).cast();
            (&mut *g, &mut *self.device.port.get())
        };
        (guard, port)
    }

    pub(super) fn port(&mut self) -> &mut PortState {
        self.parts().1
    }

    /// The time of the next round; `None`: only after an event.
    pub(super) fn next_timeout(&mut self, now: u64) -> Option<u64> {
        let (g, port) = self.parts();
        match (g.next_timeout(now), port.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// The engine during a control call. A post that finds the lock taken meanwhile leaves a mark. The
/// end of the call runs a round for it, because the program may never poll.
pub(super) struct ControlGuard<'d> {
    guard: ManuallyDrop<Guard<'d>>,
    device: &'d SoftDevice,
}

impl<'d> ControlGuard<'d> {
    /// Makes a control call of a lock that is held.
    pub(super) fn of(held: EngineLock<'d>) -> ControlGuard<'d> {
        ControlGuard { guard: ManuallyDrop::new(held.guard), device: held.device }
    }
}

impl<'d> Deref for ControlGuard<'d> {
    type Target = Guard<'d>;
    fn deref(&self) -> &Guard<'d> {
        &self.guard
    }
}

impl<'d> DerefMut for ControlGuard<'d> {
    fn deref_mut(&mut self) -> &mut Guard<'d> {
        &mut self.guard
    }
}

impl Drop for ControlGuard<'_> {
    fn drop(&mut self) {
        let g = &mut *self.guard;
        // SAFETY: the port belongs to the holder of the engine's lock, which is `guard`, and no
        // other borrow of it exists.
        check_grants_if_changed(g, unsafe { &mut *self.device.port.get() });
        // Events of the call itself (flushed completions, a QP in error) wait for no round.
        self.device.notify(&mut self.guard);
        // SAFETY: dropped here and nowhere else, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        self.device.wake_helper_if_due();
        if self.device.engine.shared().active.any() {
            self.device.run(Round::Send);
        }
    }
}
impl SoftDevice {
    /// Takes the lock if it is free.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<EngineLock<'_>> {
        self.engine.try_lock().map(|guard| self.engine_lock(guard))
    }

    /// The state of the ports beside the engine's lock.
    #[inline]
    pub(super) fn engine_lock<'d>(&'d self, guard: Guard<'d>) -> EngineLock<'d> {
        EngineLock { guard, device: self }
    }

    /// Takes the lock for a control call. Its holder does bounded work. On a machine with few cores
    /// the holder may not be running, so the wait yields.
    pub(super) fn lock_engine(&self) -> EngineLock<'_> {
        let mut tries = 0u32;
        loop {
            if let Some(h) = self.try_lock() {
                return h;
            }
            tries += 1;
            if tries.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                core::hint::spin_loop();
            }
        }
    }

    /// Takes the lock if it is free at one of so many attempts, of some tens of nanoseconds each.
    /// `None`: its holder does not run, or does more.
    pub(super) fn lock_within(&self, tries: u32) -> Option<EngineLock<'_>> {
        for _ in 0..tries {
            if let Some(h) = self.try_lock() {
                return Some(h);
            }
            core::hint::spin_loop();
        }
        None
    }

    /// Takes the lock for a control call of the program.
    ///
    /// # Errors
    /// [`gdrcore_core::error::Error::OwnerDead`]: a parent of this process opened the device. The
    /// lock is not touched.
    pub(super) fn lock_owned(&self) -> Result<EngineLock<'_>> {
        self.fork.check()?;
        Ok(self.lock_engine())
    }

    /// The engine alone, for a control call of the program.
    ///
    /// # Errors
    /// As for [`SoftDevice::lock_owned`].
    pub(super) fn lock(&self) -> Result<ControlGuard<'_>> {
        self.fork.check()?;
        Ok(self.lock_control())
    }

    /// As [`SoftDevice::lock`], for a call that has checked its process already.
    pub(super) fn lock_control(&self) -> ControlGuard<'_> {
        ControlGuard::of(self.lock_engine())
    }
}
