//! The descriptors that a program sleeps on, and the events that were taken already.

use std::sync::Mutex;

use crate::sys::Fd;
use gdrcore_core::device::AsyncEvent;
use gdrcore_core::error::Result;

/// Most events that wait for the program; a further one replaces the oldest.
const KEPT: usize = 64;

/// A ring of events.
pub(crate) struct Ring {
    events: [AsyncEvent; KEPT],
    first: usize,
    pub(crate) used: usize,
}

impl Ring {
    pub(crate) fn push(&mut self, e: AsyncEvent) {
        if self.used == KEPT {
            self.first = (self.first + 1) % KEPT;
            self.used -= 1;
        }
        self.events[(self.first + self.used) % KEPT] = e;
        self.used += 1;
    }

    pub(crate) fn pop(&mut self) -> Option<AsyncEvent> {
        if self.used == 0 {
            return None;
        }
        let e = self.events[self.first];
        self.first = (self.first + 1) % KEPT;
        self.used -= 1;
        Some(e)
    }
}

/// The descriptor that a program sleeps on, and its waiting events.
pub struct Events {
    set: Fd,
    pub(crate) taken: Fd,
    pub(crate) ring: Mutex<Ring>,
}

impl Events {
    /// A set that watches no descriptor of a device yet.
    pub fn new() -> Result<Events> {
        let set = Fd::epoll()?;
        let taken = Fd::event()?;
        set.watch(taken.raw())?;
        let events = [AsyncEvent { event: 0, reserved: 0, handle: 0 }; KEPT];
        Ok(Events { set, taken, ring: Mutex::new(Ring { events, first: 0, used: 0 }) })
    }

    /// Watches a descriptor of the device.
    pub fn watch(&self, fd: i32) -> Result<()> {
        self.set.watch(fd)
    }

    /// The descriptor.
    pub fn fd(&self) -> i32 {
        self.set.raw()
    }

    /// Sleeps until there is an event, at most `timeout_ms`. Returns true if there is one.
    pub fn sleep(&self, timeout_ms: i32) -> Result<bool> {
        self.set.sleep(timeout_ms)
    }
}
