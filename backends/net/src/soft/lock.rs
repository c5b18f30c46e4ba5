//! The engine's lock, and the state that it protects besides the engine. Who takes it, and how:
//!
//! * Data: a post, a poll or a round tries once (`try_lock`) or a few times (`lock_within`), holds
//!   an [`EngineLock`], drops it and calls [`SoftEngine::after_release`].
//! * Control, and a sleep that begins: a call waits (`lock`; `lock_control` once the process is
//!   checked) and holds a [`ControlGuard`], whose drop does the rest.
//!
//! Methods that get an `EngineGuard` and a `PortState`, or a lock, run under it. All others of
//! [`SoftEngine`] are called without it. The lock's holder waits for no other lock except those of
//! later engines of the device.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use super::peers::grant_checks::check_grants_if_changed;
use super::rounds::limits::Round;
use super::{PortState, SoftEngine};
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::Result;

/// The engine's lock, with the state of the ports.
pub(super) struct EngineLock<'d> {
    guard: EngineGuard<'d>,
    device: &'d SoftEngine,
}

impl EngineLock<'_> {
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut EngineGuard<'_>, &mut PortState) {
        // SAFETY: the port belongs to the holder of the engine's lock, and `&mut self` is the only
        // access to it. The guard's own lifetime is only shortened.
        let (guard, port) = unsafe {
            let g: *mut EngineGuard<'_> = (&raw mut self.guard).cast();
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
        [g.next_timeout(now), port.deadline()].into_iter().flatten().min()
    }
}

impl<'d> Deref for EngineLock<'d> {
    type Target = EngineGuard<'d>;
    #[inline(always)]
    fn deref(&self) -> &EngineGuard<'d> {
        &self.guard
    }
}

impl DerefMut for EngineLock<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.guard
    }
}

/// The engine's lock during a control call. A post that finds it taken meanwhile leaves a mark. The
/// end of the call runs a round for it, because the program may never poll.
pub(super) struct ControlGuard<'d>(ManuallyDrop<EngineLock<'d>>);

impl<'d> ControlGuard<'d> {
    /// Makes a held lock that of a control call.
    pub(super) fn new(held: EngineLock<'d>) -> ControlGuard<'d> {
        ControlGuard(ManuallyDrop::new(held))
    }
}

impl<'d> Deref for ControlGuard<'d> {
    type Target = EngineLock<'d>;
    fn deref(&self) -> &EngineLock<'d> {
        &self.0
    }
}

impl<'d> DerefMut for ControlGuard<'d> {
    fn deref_mut(&mut self) -> &mut EngineLock<'d> {
        &mut self.0
    }
}

impl Drop for ControlGuard<'_> {
    fn drop(&mut self) {
        let device = self.0.device;
        let (g, port) = self.0.parts();
        check_grants_if_changed(g, port);
        // Events of the call itself (flushed completions, a QP in error) are told at once, without
        // a round.
        device.notify(g);
        // SAFETY: dropped here and nowhere else, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
        device.after_release(Round::Send);
    }
}

/// All roles: the ways to the lock.
impl SoftEngine {
    /// Takes the lock if it is free.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<EngineLock<'_>> {
        self.engine.try_lock().map(|guard| self.engine_lock(guard))
    }

    /// Adds the state of the ports to the engine's lock.
    #[inline]
    pub(super) fn engine_lock<'d>(&'d self, guard: EngineGuard<'d>) -> EngineLock<'d> {
        EngineLock { guard, device: self }
    }

    /// Takes the lock if it is free at one of `tries` attempts, of some tens of nanoseconds each.
    /// `None`: the lock's holder does not run, or does longer work.
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
    pub(super) fn lock(&self) -> Result<ControlGuard<'_>> {
        self.fork.check()?;
        Ok(self.lock_control())
    }

    /// As [`SoftEngine::lock`], for a call that has checked its process already. The lock's holder
    /// does bounded work. On a machine with few cores the holder may not be running, so the wait
    /// yields.
    pub(super) fn lock_control(&self) -> ControlGuard<'_> {
        let mut tries = 0u32;
        loop {
            if let Some(held) = self.try_lock() {
                return ControlGuard::new(held);
            }
            tries += 1;
            if tries.is_multiple_of(64) {
                std::thread::yield_now();
            } else {
                core::hint::spin_loop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::DeviceName;
    use crate::soft::test_engine::TestEngine;

    #[test]
    fn a_call_that_only_reads_runs_the_posts_that_found_the_lock_taken() {
        let dev = TestEngine::open(&DeviceName::Loopback);
        let active = &dev.engine.shared().active;
        let calls: [fn(&SoftEngine); 2] = [|dev| _ = dev.counters(), |dev| _ = dev.facts()];
        for call in calls {
            // As after a post of another thread during the call.
            active.set(0);
            call(&dev);
            assert!(!active.any());
        }
    }
}
