//! Threads that sleep on completion channels (`channels`), and which of them runs the
//! engine meanwhile.
//!
//! While all threads of a program sleep, one of them has the driver role ([`DriverRole`]): it runs
//! the engine in the helper's place and sleeps on the sockets and on its channel. The others sleep
//! on their channels alone. When its own event comes, it passes the role to one of them.

use crate::clock::{end_of, ms_until, now_ns};
use crate::soft::SoftEngine;
use crate::sys::{errno, eventfd, lower, raise, Fd};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::verbs::types::Handle;
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// No thread runs the engine while the program sleeps.
pub(in crate::soft) const FREE: u32 = 0;
/// The helper thread runs the engine.
pub(in crate::soft) const HELPER: u32 = 1;
/// A thread of the program runs the engine, and waits for an event of its channel.
const PROGRAM: u32 = 2;

/// Which thread runs the engine while the program sleeps.
pub(in crate::soft) struct DriverRole {
    holder: AtomicU32,
    /// The helper thread wants the role.
    wanted: AtomicBool,
    /// Threads that sleep on a channel without the role.
    others: AtomicU32,
    /// A token in this eventfd wakes one of them, which then takes the role.
    offer: OnceLock<Fd>,
}

impl DriverRole {
    pub(super) const fn free() -> DriverRole {
        DriverRole {
            holder: AtomicU32::new(FREE),
            wanted: AtomicBool::new(false),
            others: AtomicU32::new(0),
            offer: OnceLock::new(),
        }
    }

    /// Makes the eventfd of offers, before the first thread sleeps on a channel.
    ///
    /// # Errors
    /// [`Error::Os`]: no descriptor.
    pub(super) fn prepare(&self) -> Result<()> {
        if self.offer.get().is_none() {
            // A second thread may have made it meanwhile: one is enough.
            let _ = self.offer.set(eventfd(libc::EFD_SEMAPHORE)?);
        }
        Ok(())
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
    pub(in crate::soft) fn take_for_helper(&self, wake: impl Fn()) {
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
    pub(in crate::soft) fn release(&self) {
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

/// Waiting: threads that sleep on a channel.
impl SoftEngine {
    /// Sleeps until a channel has an event, and takes it. Returns early, with none, if the channel
    /// has got branches.
    ///
    /// # Errors
    /// [`Error::StaleHandle`]; `Os(EINTR)`: a signal came.
    pub(in crate::soft) fn channel_wait(
        &self,
        channel: Handle,
        timeout_ms: i32,
    ) -> Result<Option<Handle>> {
        let end = end_of(timeout_ms);
        let held = self.hold_channel(channel)?;
        let fd = held.fd();
        let outcome = loop {
            match self.channel_event(channel) {
                Ok(None) if now_ns() < end && !held.has_branches() => {}
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

/// Waits until one of two descriptors is readable, or the time is over. Returns true if the second
/// one is.
///
/// # Errors
/// `Os(EINTR)`: a signal came.
pub(in crate::soft) fn wait_for_either(fds: [RawFd; 2], end_ns: u64) -> Result<bool> {
    let mut asked = fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    // SAFETY: two entries, which live through the call.
    if unsafe { libc::poll(asked.as_mut_ptr(), 2, ms_until(end_ns, now_ns())) } < 0 {
        return Err(Error::Os(errno()));
    }
    Ok(asked[1].revents != 0)
}

fn is_readable(fd: RawFd) -> bool {
    crate::sys::any_ready([(fd, libc::POLLIN)])
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
