//! Completion channels: each lets threads sleep on CQs of their own.
//!
//! A channel is an eventfd. The thread that runs the engine writes it when an armed CQ of the
//! channel gets a completion. It does so under the engine's lock, under which events are also
//! taken, so no event is lost, however many threads sleep.
//! `driver_role` says how the threads sleep.

use super::driver_role::DriverRole;
use crate::soft::SoftEngine;
use crate::sys::{eventfd, lower, raise, Fd};
use core::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::Result;
use gdrcore_core::pool::{first_generation, generation_of, handle_of, index_of, stale, tag};
use gdrcore_core::refuse;
use gdrcore_core::verbs::shared::{Branches, CHANNELS};
use gdrcore_core::verbs::types::Handle;
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};

/// One channel.
struct Slot {
    /// Odd while the channel lives.
    generation: AtomicU32,
    /// The channel's eventfd, for the holder of the engine's lock; -1: none.
    fd: AtomicI32,
    /// Number of its CQs and of the threads that sleep on it.
    users: AtomicU32,
    /// Channels of other engines that raise the same eventfd, of a device of several engines.
    branches: Branches,
}

pub(in crate::soft) struct Channels {
    slots: [Slot; CHANNELS],
    owned: Mutex<[Option<Fd>; CHANNELS]>,
    pub(in crate::soft) driver: DriverRole,
}

impl Channels {
    /// The state before [`Channels::begin`].
    pub(in crate::soft) const fn none() -> Channels {
        Channels {
            slots: [const {
                Slot {
                    generation: AtomicU32::new(0),
                    fd: AtomicI32::new(-1),
                    users: AtomicU32::new(0),
                    branches: Branches::none(),
                }
            }; CHANNELS],
            owned: Mutex::new([const { None }; CHANNELS]),
            driver: DriverRole::free(),
        }
    }

    /// Gives the slots handles of a context, in place: a new array would take much of a small
    /// stack.
    pub(in crate::soft) fn begin(&self, context: u32) {
        for slot in &self.slots {
            slot.generation.store(first_generation(context), Ordering::Relaxed);
        }
    }

    fn index(&self, channel: Handle) -> Result<usize> {
        let i = index_of(channel);
        let lives = i < self.slots.len()
            && self.handle(i) == channel
            && !generation_of(channel).is_multiple_of(2);
        lives.then_some(i).ok_or_else(|| stale(tag::CHANNEL, channel))
    }

    fn handle(&self, i: usize) -> Handle {
        handle_of(self.slots[i].generation.load(Ordering::Acquire), tag::CHANNEL, i)
    }
}

/// A thread that uses a channel.
pub(in crate::soft) struct ChannelUse<'d>(&'d Slot);

impl ChannelUse<'_> {
    /// The channel's descriptor.
    pub(super) fn fd(&self) -> RawFd {
        self.0.fd.load(Ordering::Relaxed)
    }

    /// Whether other channels raise the descriptor, too.
    pub(super) fn has_branches(&self) -> bool {
        self.0.branches.is_one_of_several()
    }
}

impl Drop for ChannelUse<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Control: completion channels.
impl SoftEngine {
    /// Makes a channel.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::NoMemory`]: [`CHANNELS`] exist; [`gdrcore_core::Error::Os`]: no
    /// descriptor.
    pub(in crate::soft) fn channel_create(&self) -> Result<Handle> {
        self.channels.driver.prepare()?;
        self.make_channel(eventfd(0)?, 0)
    }

    /// Makes a branch of the channel `home` of another engine of the device, which raises its
    /// descriptor `fd`.
    ///
    /// # Errors
    /// As [`SoftEngine::channel_create`].
    pub(in crate::soft) fn channel_branch(&self, home: Handle, fd: RawFd) -> Result<Handle> {
        self.make_channel(Fd::copy_of(fd)?, home)
    }

    fn make_channel(&self, fd: Fd, home: Handle) -> Result<Handle> {
        let mut owned = self.channels.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let i = owned.iter().position(Option::is_none).ok_or_else(|| {
            refuse!(NoMemory, "channel: {} are open, the most of a device", owned.len())
        })?;
        let slot = &self.channels.slots[i];
        slot.fd.store(fd.raw(), Ordering::Relaxed);
        slot.branches.begin(home);
        slot.generation.fetch_add(1, Ordering::Release);
        owned[i] = Some(fd);
        Ok(self.channels.handle(i))
    }

    /// Destroys a channel.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`]; [`gdrcore_core::Error::Busy`].
    pub(in crate::soft) fn channel_destroy(&self, channel: Handle) -> Result<()> {
        let mut owned = self.channels.owned.lock().unwrap_or_else(PoisonError::into_inner);
        let i = self.channels.index(channel)?;
        // Under the engine's lock no thread writes the descriptor or creates a CQ on it.
        let _held = self.lock_control();
        self.channel_may_end(channel)?;
        let slot = &self.channels.slots[i];
        slot.generation.fetch_add(1, Ordering::Release);
        slot.fd.store(-1, Ordering::Relaxed);
        owned[i] = None;
        Ok(())
    }

    /// Whether a channel may be destroyed.
    ///
    /// # Errors
    /// As [`SoftEngine::channel_destroy`].
    pub(in crate::soft) fn channel_may_end(&self, channel: Handle) -> Result<()> {
        match self.channels.slots[self.channels.index(channel)?].users.load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(refuse!(Busy, "channel: a CQ has it, or a thread sleeps on it")),
        }
    }

    /// The channel's descriptor.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn channel_fd(&self, channel: Handle) -> Result<RawFd> {
        self.channels.index(channel).map(|i| self.channels.slots[i].fd.load(Ordering::Relaxed))
    }

    /// The branches of a channel.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn channel_branches(&self, channel: Handle) -> Result<&Branches> {
        self.channels.index(channel).map(|i| &self.channels.slots[i].branches)
    }

    /// Wakes the threads that sleep on the channel.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn raise_channel(&self, channel: Handle) -> Result<()> {
        self.channel_fd(channel).map(raise)
    }

    /// Makes the channel's descriptor unreadable again.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn lower_channel(&self, channel: Handle) -> Result<()> {
        self.channel_fd(channel).map(lower)
    }

    /// Whether a CQ of the channel has an event.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn channel_has_event(&self, channel: Handle) -> Result<bool> {
        let g = self.lock()?;
        self.channels.index(channel).map(|i| g.has_channel_event(i))
    }

    /// Counts a user of the channel: meanwhile nobody can destroy it.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn hold_channel(&self, channel: Handle) -> Result<ChannelUse<'_>> {
        let _held = self.lock()?;
        let slot = &self.channels.slots[self.channels.index(channel)?];
        slot.users.fetch_add(1, Ordering::SeqCst);
        Ok(ChannelUse(slot))
    }

    /// The channel of a CQ.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn channel_of(&self, cq: Handle) -> Result<Option<Handle>> {
        Ok(self.lock()?.cq_channel(cq)?.map(|i| self.channels.handle(i)))
    }

    /// Creates a CQ whose events go to a channel.
    ///
    /// # Errors
    /// As [`EngineGuard::cq_create`]; [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn cq_create_on(&self, cqe: u32, channel: Handle) -> Result<(Handle, u32)> {
        self.make_on_channel(channel, |g| g.cq_create(cqe), |(cq, _)| *cq)
    }

    /// Creates a branch of a CQ of another engine, whose events go to a branch of its channel.
    ///
    /// # Errors
    /// As [`EngineGuard::cq_branch`]; [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn cq_branch_on(
        &self,
        of: Handle,
        cqe: u32,
        channel: Handle,
    ) -> Result<Handle> {
        self.make_on_channel(channel, |g| g.cq_branch(of, cqe), |cq| *cq)
    }

    /// Makes a CQ and sends its events to a channel.
    fn make_on_channel<T>(
        &self,
        channel: Handle,
        make: impl FnOnce(&mut EngineGuard<'_>) -> Result<T>,
        cq: impl FnOnce(&T) -> Handle,
    ) -> Result<T> {
        let mut g = self.lock()?;
        let i = self.channels.index(channel)?;
        let made = make(&mut g)?;
        g.cq_set_channel(cq(&made), i)?;
        self.channels.slots[i].users.fetch_add(1, Ordering::SeqCst);
        Ok(made)
    }

    /// Destroys a CQ, on a channel or not.
    ///
    /// # Errors
    /// As [`EngineGuard::cq_destroy`].
    pub(in crate::soft) fn cq_destroy(&self, cq: Handle) -> Result<()> {
        let mut g = self.lock()?;
        let channel = g.cq_channel(cq)?;
        g.cq_destroy(cq)?;
        if let Some(i) = channel {
            self.channels.slots[i].users.fetch_sub(1, Ordering::SeqCst);
            self.settle(&g, i);
        }
        Ok(())
    }

    /// Takes an event of a channel.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    pub(in crate::soft) fn channel_event(&self, channel: Handle) -> Result<Option<Handle>> {
        let mut g = self.lock()?;
        let i = self.channels.index(channel)?;
        let cq = g.take_channel_event(i);
        self.settle(&g, i);
        Ok(cq)
    }

    /// Makes the descriptor unreadable once the channel has no events. A descriptor that channels
    /// of several engines raise is lowered by the device.
    fn settle(&self, g: &EngineGuard<'_>, i: usize) {
        let slot = &self.channels.slots[i];
        if !slot.branches.is_one_of_several() && !g.has_channel_event(i) {
            lower(slot.fd.load(Ordering::Relaxed));
        }
    }

    /// Writes the descriptors of the channels that have events.
    #[cold]
    pub(in crate::soft) fn notify_channels(&self, g: &mut EngineGuard<'_>) {
        let mut due = g.take_channels_due();
        while due != 0 {
            let i = due.trailing_zeros() as usize;
            due &= due - 1;
            raise(self.channels.slots[i].fd.load(Ordering::Relaxed));
        }
    }
}
