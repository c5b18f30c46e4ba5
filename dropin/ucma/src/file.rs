//! The open file: the calls `open`, `write` and `close` on `/dev/infiniband/rdma_cm`.
//!
//! Its descriptor is an eventfd in semaphore mode that counts queued events. So a program may poll
//! it and make it non-blocking, and GET_EVENT waits like a `read`, which signals interrupt. Copies
//! from and to the program's memory survive a bad address.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gdrcore_core::{Error, Result};

use crate::memory::{place, read};
use crate::proto::Command;
use crate::session::{Answer, CmSession, Devices};

/// Longest command that is read; all commands are shorter.
const COMMAND_MAX: usize = 512;

/// Delay of closing a file on which a thread has waited for events. The kernel's close takes as
/// long, and programs rely on that: while one thread of rping closes the file, another returns to
/// wait for the next event, and reports an error if it comes too late.
const CLOSE_TIME: Duration = Duration::from_millis(2);

/// `EBADF`: not one of these files.
const BAD_FILE: Error = Error::Os(libc::EBADF);

/// All files of a process, and the ids in them.
pub struct Files<D> {
    state: Mutex<State<D>>,
}

struct State<D> {
    session: CmSession<D>,
    open: BTreeMap<RawFd, File>,
}

struct File {
    channel: u32,
    /// The descriptor's count, without the tokens that threads have read and not used yet.
    counted: usize,
    /// Whether a thread has waited for events.
    asked: bool,
}

impl<D: Devices> Files<D> {
    /// No file is open yet.
    pub fn new(devices: D) -> Self {
        Files {
            state: Mutex::new(State { session: CmSession::new(devices), open: BTreeMap::new() }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the device file. Of the flags of open(2), `O_NONBLOCK` and `O_CLOEXEC` count.
    ///
    /// # Errors
    /// `Os(EMFILE)` and its like.
    pub fn open(&self, flags: i32) -> Result<RawFd> {
        let cloexec = if flags & libc::O_CLOEXEC != 0 { libc::EFD_CLOEXEC } else { 0 };
        let nonblock = if flags & libc::O_NONBLOCK != 0 { libc::EFD_NONBLOCK } else { 0 };
        // SAFETY: no pointers.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | cloexec | nonblock) };
        if fd < 0 {
            return Err(last_error());
        }
        let mut s = self.state();
        let channel = s.session.open();
        // The former file of this number was closed by a call that is not intercepted: end it.
        if let Some(old) = s.open.insert(fd, File { channel, counted: 0, asked: false }) {
            s.session.close(old.channel);
        }
        Ok(fd)
    }

    /// Closes a file: its connections and requests end, and their peers get a DREQ or a REJ. The
    /// caller closes the descriptor.
    pub fn close(&self, fd: RawFd) {
        if self.state().open.get(&fd).is_some_and(|f| f.asked) {
            std::thread::sleep(CLOSE_TIME);
        }
        let mut s = self.state();
        if let Some(file) = s.open.remove(&fd) {
            s.session.close(file.channel);
            s.update_counts();
        }
    }

    /// Executes the command of `len` bytes at `buf`, an address in this process.
    ///
    /// # Errors
    /// Those of [`CmSession::execute`]; `EBADF`: not a file of ours; [`Error::Fault`]: an address
    /// that cannot be read or written; for GET_EVENT [`Error::Again`] if the descriptor is
    /// non-blocking, `EINTR` if a signal came.
    pub fn write(&self, fd: RawFd, buf: u64, len: usize) -> Result<usize> {
        let mut bytes = [0; COMMAND_MAX];
        // Ignore bytes after the longest command, as the kernel does.
        let bytes = bytes.get_mut(..len.min(COMMAND_MAX)).unwrap_or_default();
        read(buf, bytes)?;
        let answer = if matches!(Command::parse(bytes)?.0, Command::GetEvent { .. }) {
            self.next_event(fd, bytes)?
        } else {
            let mut s = self.state();
            let done = s.execute(fd, bytes);
            s.update_counts();
            done?
        };
        if let Some(a) = answer {
            place(a.at, &a.bytes)?;
        }
        Ok(len)
    }

    fn next_event(&self, fd: RawFd, bytes: &[u8]) -> Result<Option<Answer>> {
        self.state().open.get_mut(&fd).ok_or(BAD_FILE)?.asked = true;
        loop {
            let mut n = 0u64;
            // SAFETY: room for eight bytes.
            if unsafe { libc::read(fd, (&raw mut n).cast(), 8) } < 0 {
                return Err(last_error());
            }
            let mut s = self.state();
            match s.execute(fd, bytes) {
                // Another thread has removed the event since the read.
                Err(Error::Again) => {}
                done => {
                    if let Some(f) = s.open.get_mut(&fd) {
                        f.counted = f.counted.saturating_sub(1);
                    }
                    return done;
                }
            }
        }
    }

    /// Takes the events of the devices and makes the files concerned readable. Returns the number
    /// of events.
    pub fn pump(&self) -> usize {
        let mut s = self.state();
        let n = s.session.pump();
        if n > 0 {
            s.update_counts();
        }
        n
    }

    /// Closes every file, as the end of a process does; the descriptors stay open. Does nothing if
    /// a thread holds the lock for ever.
    pub fn close_all(&self) {
        let Ok(mut s) = self.state.try_lock() else { return };
        for file in std::mem::take(&mut s.open).into_values() {
            s.session.close(file.channel);
        }
    }
}

impl<D: Devices> State<D> {
    fn execute(&mut self, fd: RawFd, bytes: &[u8]) -> Result<Option<Answer>> {
        let State { session, open } = self;
        let channel = open.get(&fd).ok_or(BAD_FILE)?.channel;
        session.execute(channel, bytes, &read, &|fd| open.get(&fd).map(|f| f.channel))
    }

    /// Makes the descriptors count the queued events.
    fn update_counts(&mut self) {
        for (&fd, file) in &mut self.open {
            let queued = self.session.queued(file.channel);
            if queued > file.counted {
                let more = (queued - file.counted) as u64;
                // Not `write`: the preloaded library would treat that as a command of the program.
                // SAFETY: no pointers. It fails only for a counter of 2^64 − 2.
                unsafe { libc::eventfd_write(fd, more) };
            }
            for _ in queued..file.counted {
                // A reading thread may have been faster: it finds nothing in the queue.
                uncount(fd);
            }
            file.counted = queued;
        }
    }
}

/// Decrements an eventfd in semaphore mode without waiting, even if the descriptor is blocking.
/// Kernels before 5.8 refuse that; the program is then woken once without an event.
pub fn uncount(fd: RawFd) {
    let mut n = 0u64;
    let room = libc::iovec { iov_base: (&raw mut n).cast(), iov_len: 8 };
    // By its number, because musl has the function only since 1.2.5. The offset -1 (none) takes two
    // words.
    // SAFETY: one live iovec with room for eight bytes.
    unsafe {
        let (one, none): (libc::c_long, libc::c_long) = (1, -1);
        libc::syscall(libc::SYS_preadv2, fd, &raw const room, one, none, none, libc::RWF_NOWAIT)
    };
}

fn last_error() -> Error {
    Error::from_errno(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests;
