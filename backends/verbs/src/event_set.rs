//! The descriptor on which a program sleeps, and the events from the kernel that wait for the
//! program.

use std::sync::Mutex;

use crate::objects::lock;
use crate::sys::Fd;
use gdrcore_core::device::AsyncEvent;
use gdrcore_core::error::Result;
use heapless::Deque;

/// Most events that wait for the program; a further one replaces the oldest.
const KEPT: usize = 64;

/// The descriptor on which a program sleeps, and its waiting events.
pub struct Events {
    set: Fd,
    taken: Fd,
    kept: Mutex<Deque<AsyncEvent, KEPT>>,
}

impl Events {
    /// A set that watches no descriptor of a device yet.
    pub fn new() -> Result<Events> {
        let set = Fd::epoll()?;
        let taken = Fd::event()?;
        set.watch(taken.raw())?;
        Ok(Events { set, taken, kept: Mutex::new(Deque::new()) })
    }

    pub(crate) fn keep(&self, event: AsyncEvent) {
        let mut kept = lock(&self.kept);
        if kept.is_full() {
            kept.pop_front();
        }
        let _ = kept.push_back(event);
        drop(kept);
        self.taken.raise();
    }

    /// Takes the oldest kept event.
    pub(crate) fn take(&self) -> Option<AsyncEvent> {
        let mut kept = lock(&self.kept);
        let event = kept.pop_front();
        if kept.is_empty() {
            self.taken.lower();
        }
        event
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
