//! The engine's lock, and what else belongs to its holder.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use super::budget::Round;
use super::mappable::look_after_loans;
use super::{Port, SoftDevice};
use gdrcore_core::engine::Guard;
use gdrcore_core::error::Result;

/// Looks at a taken lock: some microseconds.
const LOCK_TRIES: u32 = 256;

/// The lock, and what it protects besides the engine.
pub(super) struct Held<'d> {
    pub(super) guard: Guard<'d>,
    device: &'d SoftDevice,
}

impl Held<'_> {
    /// The engine and the port at once.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut Guard<'_>, &mut Port) {
        // SAFETY: the port belongs to the holder of the engine's lock, and `&mut self` is the only
        // way to it. The guard's own lifetime is only shortened.
        let (guard, port) = unsafe {
            let g: *mut Guard<'_> = (&raw mut self.guard).cast();
            (&mut *g, &mut *self.device.port.get())
        };
        (guard, port)
    }

    pub(super) fn port(&mut self) -> &mut Port {
        self.parts().1
    }

    /// When a round is wanted next; `None`: only after something else has happened.
    pub(super) fn next_timeout(&mut self, now: u64) -> Option<u64> {
        let (g, port) = self.parts();
        match (g.next_timeout(now), port.deadline()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// The engine during a control call. Who posted meanwhile found the lock taken and left a mark: at
/// its end the doorbell is rung for them, as they may never poll.
pub(super) struct Control<'d> {
    guard: ManuallyDrop<Guard<'d>>,
    device: &'d SoftDevice,
}

impl<'d> Control<'d> {
    /// What holds the lock already.
    pub(super) fn of(held: Held<'d>) -> Control<'d> {
        Control { guard: ManuallyDrop::new(held.guard), device: held.device }
    }
}

impl<'d> Deref for Control<'d> {
    type Target = Guard<'d>;
    fn deref(&self) -> &Guard<'d> {
        &self.guard
    }
}

impl<'d> DerefMut for Control<'d> {
    fn deref_mut(&mut self) -> &mut Guard<'d> {
        &mut self.guard
    }
}

impl Drop for Control<'_> {
    fn drop(&mut self) {
        let g = &mut *self.guard;
        // SAFETY: the port belongs to the holder of the engine's lock, which is `guard`, and nobody
        // else has borrowed it.
        look_after_loans(g, unsafe { &mut *self.device.port.get() });
        // What the call itself raised (flushed completions, a QP in error) waits for no round.
        self.device.tell(&mut self.guard);
        // SAFETY: dropped here and nowhere else, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.guard) };
        self.device.wake_owed();
        if self.device.engine.shared().active.any() {
            self.device.run(Round::Send);
        }
    }
}
impl SoftDevice {
    /// Takes the lock if it is free.
    #[inline]
    pub(super) fn try_lock(&self) -> Option<Held<'_>> {
        self.engine.try_lock().map(|guard| self.held(guard))
    }

    /// What belongs to the holder of the engine's lock.
    #[inline]
    pub(super) fn held<'d>(&'d self, guard: Guard<'d>) -> Held<'d> {
        Held { guard, device: self }
    }

    /// Takes the lock for a control call. Its holder does bounded work; on a machine with few cores
    /// the holder may not be running, so the wait gives way.
    pub(super) fn lock_held(&self) -> Held<'_> {
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

    /// Takes the lock if it is free, or soon is. `None`: its holder does not run, or has more to do
    /// than to post.
    pub(super) fn lock_soon(&self) -> Option<Held<'_>> {
        for _ in 0..LOCK_TRIES {
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
    /// [`gdrcore_core::error::Error::OwnerDead`]: a parent of this process opened the device. Its
    /// lock is not touched.
    pub(super) fn lock_owned(&self) -> Result<Held<'_>> {
        self.fork.check()?;
        Ok(self.lock_held())
    }

    /// The engine alone, for a control call of the program.
    ///
    /// # Errors
    /// As for [`SoftDevice::lock_owned`].
    pub(super) fn lock(&self) -> Result<Control<'_>> {
        Ok(Control::of(self.lock_owned()?))
    }
}
