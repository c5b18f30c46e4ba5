//! A worker's thread, which the first thread sends commands.

use super::sys;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{sync_channel, Receiver, SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Capacity of the queue of commands.
const COMMANDS: usize = 256;
/// Bytes of stack of the thread.
const STACK: usize = 2 << 20;
/// The pause before another try at a full queue of commands.
const FULL: Duration = Duration::from_micros(100);

/// The worker works until this is dropped, which waits for its end.
pub(super) struct WorkerThread<C> {
    /// `None`: it is being dropped.
    commands: Option<SyncSender<C>>,
    /// The worker's end is readable when there are commands.
    bell: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl<C: Send + 'static> WorkerThread<C> {
    /// `make` makes the worker, of the queue of commands and the bell's other end.
    pub(super) fn start<W: FnOnce() + Send + 'static>(
        name: &str,
        make: impl FnOnce(Receiver<C>, OwnedFd) -> io::Result<W>,
    ) -> io::Result<Self> {
        let [bell, rung] = sys::pair()?;
        let (commands, queue) = sync_channel(COMMANDS);
        let thread = gdrcore_net::threads::thread(name, STACK).spawn(make(queue, rung)?)?;
        Ok(WorkerThread { commands: Some(commands), bell, thread: Some(thread) })
    }

    /// Whether the worker lives. It ends only by a fault of its own.
    pub(super) fn is_alive(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| !thread.is_finished())
    }

    /// Sends a command. Waits while the queue is full: the worker never blocks, so it soon makes
    /// room.
    pub(super) fn send(&self, mut command: C) {
        let Some(commands) = &self.commands else { return };
        loop {
            match commands.try_send(command) {
                Ok(()) => break,
                Err(TrySendError::Full(back)) => command = back,
                // The worker has ended, and the router ends when it sees that.
                Err(TrySendError::Disconnected(_)) => return,
            }
            self.ring();
            std::thread::sleep(FULL);
        }
        self.ring();
    }
}

impl<C> WorkerThread<C> {
    fn ring(&self) {
        // If the bell is full, the worker has not read it and will wake anyway.
        let _ = sys::write(&self.bell, &[1]);
    }
}

impl<C> Drop for WorkerThread<C> {
    fn drop(&mut self) {
        self.commands = None;
        self.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
