//! Completion channels: each lets threads sleep on CQs of their own.
//!
//! A channel is an eventfd. The thread that runs the engine writes it when an armed CQ of the
//! channel gets a completion. It does so under the engine's lock, under which events are also
//! taken, so no event is lost, however many threads sleep.
//!
//! While all threads of a program sleep, one of them has the driver role ([`DriverRole`]): it runs
//! the engine in the helper's place and sleeps on the sockets and on its channel. The others sleep
//! on their channels alone. When its own event comes, it passes the role to one of them.

use super::SoftEngine;
use crate::clock::{end_of, ms_until, now_ns};
use crate::sys::{errno, Fd};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use gdrcore_core::engine::Guard;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::pool::first_generation;
use gdrcore_core::refuse;
use gdrcore_core::verbs::shared::{Branches, CHANNELS};
use gdrcore_core::verbs::types::Handle;
use std::os::fd::RawFd;
use std::sync::{Mutex, OnceLock, PoisonError};

/// No thread runs the engine while the program sleeps.
pub(super) const FREE: u32 = 0;
/// The helper thread runs the engine.
pub(super) const HELPER: u32 = 1;
/// A thread of the program runs the engine, and waits for an event of its channel.
const PROGRAM: u32 = 2;

/// Marks the handle of a channel, beside generation and index.
const TAG: u64 = 0xC4;

/// Which thread runs the engine while the program sleeps.
pub(super) struct DriverRole {
    holder: AtomicU32,
    /// The helper thread wants the role.
    wanted: AtomicBool,
    /// Threads that sleep on a channel without the role.
    others: AtomicU32,
    /// A token in this eventfd wakes one of them, which then takes the role.
    offer: OnceLock<Fd>,
}

impl DriverRole {
    const fn free() -> DriverRole {
        DriverRole {
            holder: AtomicU32::new(FREE),
            wanted: AtomicBool::new(false),
            others: AtomicU32::new(0),
            offer: OnceLock::new(),
        }
    }

    /// Takes the role, but not while the helper thread wants it: otherwise the helper would seldom
    /// find it free.
    fn try_take(&self) -> bool {
        !self.wanted.load(Ordering::SeqCst)
            && self
                .holder
                .compare_exchange(FREE, PROGRAM, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// Takes the role for the helper thread; `wake` interrupts the thread of the program that holds
    /// it.
    pub(super) fn take_for_helper(&self, wake: impl Fn()) {
        self.wanted.store(true, Ordering::SeqCst);
        while self
            .holder
            .compare_exchange(FREE, HELPER, Ordering::SeqCst, Ordering::Relaxed)
            .is_err()
        {
            wake();
            std::thread::yield_now();
        }
        self.wanted.store(false, Ordering::SeqCst);
    }

    /// Releases the role, and wakes a thread that sleeps without a driver.
    pub(super) fn release(&self) {
        self.holder.store(FREE, Ordering::SeqCst);
        self.offer();
    }

    /// Offers the role to a sleeping thread. Pairs with the announcement in
    /// [`SoftEngine::sleep_beside`]: either that thread sees that the role is free, or this one
    /// sees that thread.
    fn offer(&self) {
        if self.holder.load(Ordering::SeqCst) == FREE && self.others.load(Ordering::SeqCst) > 0 {
            if let Some(offer) = self.offer.get() {
                raise(offer.raw());
            }
        }
    }
}

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

pub(super) struct Channels {
    slots: [Slot; CHANNELS],
    owned: Mutex<[Option<Fd>; CHANNELS]>,
    pub(super) driver: DriverRole,
}

impl Channels {
    /// The state before [`Channels::begin`].
    pub(super) const fn none() -> Channels {
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
    pub(super) fn begin(&self, context: u32) {
        for slot in &self.slots {
            slot.generation.store(first_generation(context), Ordering::Relaxed);
        }
    }

    fn index(&self, channel: Handle) -> Result<usize> {
        let (i, tag, generation) = (channel as u8, channel >> 8 & 0xff, (channel >> 32) as u32);
        let slot = self.slots.get(usize::from(i)).ok_or_else(|| stale(channel))?;
        let live = tag == TAG
            && generation % 2 == 1
            && slot.generation.load(Ordering::Acquire) == generation;
        live.then_some(i.into()).ok_or_else(|| stale(channel))
    }

    fn handle(&self, i: usize) -> Handle {
        u64::from(self.slots[i].generation.load(Ordering::Relaxed)) << 32 | TAG << 8 | i as u64
    }
}

/// Makes an eventfd readable, or adds a token to one that counts. A full one is readable already.
fn raise(fd: RawFd) {
    let one = 1u64;
    // SAFETY: eight bytes of a live integer.
    unsafe { libc::write(fd, (&raw const one).cast(), 8) };
}

/// Takes back the value that [`raise`] has written, or one token.
fn lower(fd: RawFd) {
    let mut n = 0u64;
    // SAFETY: room for eight bytes; the descriptor is non-blocking.
    unsafe { libc::read(fd, (&raw mut n).cast(), 8) };
}

fn eventfd(flags: i32) -> Result<Fd> {
    // SAFETY: no pointers.
    Fd::from_call(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK | flags) })
}

/// A thread that uses a channel.
pub(super) struct ChannelUse<'d>(&'d Slot);

impl Drop for ChannelUse<'_> {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Waits until one of two descriptors is readable, or the time is over. Returns true if the second
/// one is.
///
/// # Errors
/// `Os(EINTR)`: a signal came.
pub(super) fn wait_for_either(fds: [RawFd; 2], end_ns: u64) -> Result<bool> {
    let mut asked = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: two entries, which live through the call.
    if unsafe { libc::poll(asked.as_mut_ptr(), 2, ms_until(end_ns, now_ns())) } < 0 {
        return Err(Error::Os(errno()));
    }
    Ok(asked[1].revents != 0)
}

/// Control and waiting: completion channels.
impl SoftEngine {
    /// Makes a channel.
    ///
    /// # Errors
    /// [`Error::NoMemory`]: [`CHANNELS`] exist; [`Error::Os`]: no descriptor.
    pub(super) fn channel_create(&self) -> Result<Handle> {
        if self.channels.driver.offer.get().is_none() {
            // A second thread may have made it meanwhile: one is enough.
            let _ = self.channels.driver.offer.set(eventfd(libc::EFD_SEMAPHORE)?);
        }
        self.channel_over(eventfd(0)?, 0)
    }

    /// Makes a branch of the channel `home` of another engine of the device, which raises its
    /// descriptor `fd`.
    ///
    /// # Errors
    /// As [`SoftEngine::channel_create`].
    pub(super) fn channel_branch(&self, home: Handle, fd: RawFd) -> Result<Handle> {
        self.channel_over(Fd::copy_of(fd)?, home)
    }

    fn channel_over(&self, fd: Fd, home: Handle) -> Result<Handle> {
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
    /// [`Error::StaleHandle`]; [`Error::Busy`].
    pub(super) fn channel_destroy(&self, channel: Handle) -> Result<()> {
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
    pub(super) fn channel_may_end(&self, channel: Handle) -> Result<()> {
        match self.channels.slots[self.channels.index(channel)?].users.load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(refuse!(Busy, "channel: a CQ has it, or a thread sleeps on it")),
        }
    }

    /// The channel's descriptor.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub(super) fn channel_fd(&self, channel: Handle) -> Result<RawFd> {
        self.channels.index(channel).map(|i| self.channels.slots[i].fd.load(Ordering::Relaxed))
    }

    /// The branches of a channel.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub(super) fn channel_branches(&self, channel: Handle) -> Result<&Branches> {
        self.channels.index(channel).map(|i| &self.channels.slots[i].branches)
    }

    /// Wakes the threads that sleep on the channel.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub(super) fn raise_channel(&self, channel: Handle) -> Result<()> {
        self.channel_fd(channel).map(raise)
    }

    /// Makes the channel's descriptor unreadable again.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub(super) fn lower_channel(&self, channel: Handle) -> Result<()> {
        self.channel_fd(channel).map(lower)
    }

    /// Whether a CQ of the channel has an event.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub(super) fn channel_has_event(&self, channel: Handle) -> Result<bool> {
        let g = self.lock()?;
        self.channels.index(channel).map(|i| g.has_channel_event(i))
    }

    /// Counts a user of the channel: meanwhile nobody can destroy it.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub(super) fn hold_channel(&self, channel: Handle) -> Result<ChannelUse<'_>> {
        let _held = self.lock()?;
        let slot = &self.channels.slots[self.channels.index(channel)?];
        slot.users.fetch_add(1, Ordering::SeqCst);
        Ok(ChannelUse(slot))
    }

    /// The channel of a CQ.
    ///
    /// # Errors
    /// [`Error::StaleHandle`].
    pub(super) fn channel_of(&self, cq: Handle) -> Result<Option<Handle>> {
        Ok(self.lock()?.cq_channel(cq)?.map(|i| self.channels.handle(i)))
    }

    /// Creates a CQ whose events go to a channel.
    ///
    /// # Errors
    /// As [`Guard::cq_create`]; [`Error::StaleHandle`].
    pub(super) fn cq_create_on(&self, cqe: u32, channel: Handle) -> Result<(Handle, u32)> {
        self.on_channel(channel, |g| g.cq_create(cqe), |(cq, _)| *cq)
    }

    /// Creates a branch of a CQ of another engine, whose events go to a branch of its channel.
    ///
    /// # Errors
    /// As [`Guard::cq_branch`]; [`Error::StaleHandle`].
    pub(super) fn cq_branch_on(&self, of: Handle, cqe: u32, channel: Handle) -> Result<Handle> {
        self.on_channel(channel, |g| g.cq_branch(of, cqe), |cq| *cq)
    }

    /// Makes a CQ and sends its events to a channel.
    fn on_channel<T>(
        &self,
        channel: Handle,
        make: impl FnOnce(&mut Guard<'_>) -> Result<T>,
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
    /// As [`Guard::cq_destroy`].
    pub(super) fn cq_destroy(&self, cq: Handle) -> Result<()> {
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
    /// [`Error::StaleHandle`].
    pub(super) fn channel_event(&self, channel: Handle) -> Result<Option<Handle>> {
        let mut g = self.lock()?;
        let i = self.channels.index(channel)?;
        let cq = g.take_channel_event(i);
        self.settle(&g, i);
        Ok(cq)
    }

    /// Makes the descriptor unreadable once the channel has no events. A descriptor that channels
    /// of several engines raise is lowered by the device.
    fn settle(&self, g: &Guard<'_>, i: usize) {
        let slot = &self.channels.slots[i];
        if !slot.branches.is_one_of_several() && !g.has_channel_event(i) {
            lower(slot.fd.load(Ordering::Relaxed));
        }
    }

    /// Writes the descriptors of the channels that have events.
    #[cold]
    pub(super) fn notify_channels(&self, g: &mut Guard<'_>) {
        let mut due = g.take_channels_due();
        while due != 0 {
            let i = due.trailing_zeros() as usize;
            due &= due - 1;
            raise(self.channels.slots[i].fd.load(Ordering::Relaxed));
        }
    }

    /// Sleeps until a channel has an event, and takes it. Returns early, with none, if the channel
    /// has got branches.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; `Os(EINTR)`: a signal came.
    pub(super) fn channel_wait(&self, channel: Handle, timeout_ms: i32) -> Result<Option<Handle>> {
        let end = end_of(timeout_ms);
        let held = self.hold_channel(channel)?;
        let slot = held.0;
        let fd = slot.fd.load(Ordering::Relaxed);
        let outcome = loop {
            match self.channel_event(channel) {
                Ok(None) if now_ns() < end && !slot.branches.is_one_of_several() => {}
                other => break other,
            }
            let slept = if self.channels.driver.try_take() {
                self.drive_for_channel(fd, end)
            } else {
                self.sleep_beside(fd, end)
            };
            if let Err(e) = slept {
                break Err(e);
            }
        };
        drop(held);
        // This thread may have consumed a token without taking the role.
        self.channels.driver.offer();
        outcome
    }

    /// Runs the engine in the helper's place until the channel's descriptor is readable, the time
    /// is over, or the helper wants the role.
    fn drive_for_channel(&self, fd: RawFd, end: u64) -> Result<()> {
        let driver = &self.channels.driver;
        self.start_driving(fd)?;
        let done =
            self.drive(false, end, &|| driver.wanted.load(Ordering::SeqCst) || is_readable(fd));
        self.stop_driving(fd);
        driver.release();
        done
    }

    /// Sleeps on the channel alone: another thread has the role.
    fn sleep_beside(&self, fd: RawFd, end: u64) -> Result<()> {
        let driver = &self.channels.driver;
        let Some(offer) = driver.offer.get() else { return Ok(()) };
        // The driver sends requests that were posted and could not leave.
        if self.engine.shared().active.any() {
            self.try_send();
        }
        self.hand_to_helper();
        driver.others.fetch_add(1, Ordering::SeqCst);
        let offered = if driver.holder.load(Ordering::SeqCst) == FREE {
            // The helper thread is about to take the role, or has just ended.
            std::thread::yield_now();
            Ok(false)
        } else {
            wait_for_either([fd, offer.raw()], end)
        };
        driver.others.fetch_sub(1, Ordering::SeqCst);
        if offered? {
            lower(offer.raw());
        }
        Ok(())
    }
}

fn is_readable(fd: RawFd) -> bool {
    crate::sys::any_ready([(fd, libc::POLLIN)])
}

#[cold]
fn stale(channel: Handle) -> Error {
    refuse!(StaleHandle, "channel {channel:#x}: stale, it was destroyed; or no channel")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_role_is_offered_to_a_thread_that_sleeps_without_it() {
        let role = DriverRole::free();
        role.offer.set(eventfd(libc::EFD_SEMAPHORE).unwrap()).unwrap();
        let offered = || is_readable(role.offer.get().unwrap().raw());
        assert!(role.try_take() && !role.try_take());
        role.release();
        assert!(!offered(), "nobody sleeps without it");
        assert!(role.try_take());
        role.others.store(1, Ordering::SeqCst);
        role.release();
        assert!(offered());
        // The helper's turn is offered back as well.
        lower(role.offer.get().unwrap().raw());
        role.take_for_helper(|| panic!("it is free"));
        assert!(!role.try_take() && !offered());
        role.release();
        assert!(offered() && role.try_take());
    }
}
