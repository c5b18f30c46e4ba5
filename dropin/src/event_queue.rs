//! A queue of events for completion channels and asynchronous events. Its descriptor, which the
//! program may poll and make non-blocking, is an eventfd in semaphore mode that counts the queued
//! events.

use crate::verb_result::last_error;
use core::ffi::c_int;
use gdrcore_core::Result;
use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

/// A list of events and its descriptor.
pub struct EventQueue<T> {
    fd: c_int,
    list: Mutex<VecDeque<T>>,
}

impl<T> EventQueue<T> {
    /// An empty one.
    ///
    /// # Errors
    /// `Os(EMFILE)`.
    pub fn new() -> Result<Self> {
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 {
            return Err(last_error());
        }
        Ok(EventQueue { fd, list: Mutex::new(VecDeque::new()) })
    }

    /// The program's descriptor.
    pub fn fd(&self) -> c_int {
        self.fd
    }

    /// Adds an event. Any thread may call it.
    pub fn push(&self, event: T) {
        self.list.lock().unwrap_or_else(PoisonError::into_inner).push_back(event);
        let one = 1u64;
        // SAFETY: eight bytes of a live integer. It fails only for a counter of 2^64 − 2.
        unsafe { libc::write(self.fd, (&raw const one).cast(), 8) };
    }

    /// Takes the oldest event. Waits for one, unless the program made the descriptor non-blocking.
    /// Calls `taken` under the list's lock, so that a later [`EventQueue::remove`] knows which
    /// events programs have.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::Again`]: non-blocking and empty. `Os(EINTR)`: a signal came.
    pub fn take<R>(&self, mut taken: impl FnMut(T) -> R) -> Result<R> {
        loop {
            let mut n = 0u64;
            // SAFETY: room for eight bytes.
            if unsafe { libc::read(self.fd, (&raw mut n).cast(), 8) } < 0 {
                return Err(last_error());
            }
            let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
            // Another thread has removed the event since the read.
            if let Some(event) = list.pop_front() {
                return Ok(taken(event));
            }
        }
    }

    /// Removes events that the program has not taken.
    pub fn remove(&self, gone: impl Fn(&T) -> bool) {
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let before = list.len();
        list.retain(|e| !gone(e));
        for _ in list.len()..before {
            // A thread in `take` may have been faster: it finds the list empty.
            gdrcore_ucma::file::uncount(self.fd);
        }
    }
}

impl<T> Drop for EventQueue<T> {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        unsafe { libc::close(self.fd) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::Error;

    fn is_readable(fd: c_int) -> bool {
        let mut p = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one live pollfd.
        unsafe { libc::poll(&mut p, 1, 0) == 1 }
    }

    #[test]
    fn events_come_in_order_and_the_descriptor_counts_them() {
        let q = EventQueue::new().unwrap();
        assert!(!is_readable(q.fd()));
        q.push(1);
        q.push(2);
        assert!(is_readable(q.fd()));
        assert_eq!(q.take(|e| e), Ok(1));
        assert!(is_readable(q.fd()));
        assert_eq!(q.take(|e| e), Ok(2));
        assert!(!is_readable(q.fd()));
        // SAFETY: our own descriptor.
        unsafe { libc::fcntl(q.fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(q.take(|e| e), Err(Error::Again));
    }

    #[test]
    fn removed_events_wake_no_thread() {
        let q = EventQueue::new().unwrap();
        for e in [1, 2, 1] {
            q.push(e);
        }
        q.remove(|&e| e == 1);
        assert_eq!(q.take(|e| e), Ok(2));
        assert!(!is_readable(q.fd()));
    }
}
