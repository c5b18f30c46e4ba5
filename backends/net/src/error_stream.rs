//! Lines for standard error, which never wait long.
//!
//! Each line is one system call, so whatever ends the process leaves whole lines. Standard error
//! may be a pipe that nobody reads: a line waits 100 ms, the next ones not at all, and the lines
//! that were lost are counted.

use crate::signals::without_signals;
use crate::sys::{last_error, wait_ready};
use crate::thread_lock::ForkLock;
use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gdrcore_core::Error;

/// Time for which a line waits until standard error can be written, in milliseconds.
const PATIENCE_MS: c_int = 100;

/// Standard error.
pub struct ErrorStream {
    /// Held from the look at the pipe until the line is written, because two threads would count on
    /// the same room.
    writing: ForkLock<()>,
    /// Standard error did not take the last line.
    is_stuck: AtomicBool,
    lost: AtomicU64,
}

/// Whether standard error, as far as it can be asked, takes a line within `ms` milliseconds. A pipe
/// that can be written has room for PIPE_BUF bytes.
fn takes_line(ms: c_int) -> bool {
    wait_ready(libc::STDERR_FILENO, libc::POLLOUT, ms)
}

impl Default for ErrorStream {
    fn default() -> ErrorStream {
        ErrorStream::new()
    }
}

impl ErrorStream {
    /// No line was lost yet.
    pub const fn new() -> ErrorStream {
        ErrorStream {
            writing: ForkLock::new(()),
            is_stuck: AtomicBool::new(false),
            lost: AtomicU64::new(0),
        }
    }

    /// Called before fork.
    pub fn hold(&self) {
        self.writing.hold();
    }

    /// Called after fork, in parent and child.
    pub fn release(&self) {
        self.writing.release();
    }

    /// Writes a line, of at most PIPE_BUF bytes. Any thread. Cost: five system calls.
    pub fn write(&self, line: &str) {
        let _held = self.writing.lock();
        let ms = if self.is_stuck.load(Ordering::Relaxed) { 0 } else { PATIENCE_MS };
        let is_stuck = !takes_line(ms);
        self.is_stuck.store(is_stuck, Ordering::Relaxed);
        if is_stuck {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        without_signals(|| {
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                let words = format!("... {lost} lines were not taken here\n");
                let _ = write(libc::STDERR_FILENO, &words, None);
            }
            // The first write may have taken the room.
            if (lost > 0 && !takes_line(0)) || write(libc::STDERR_FILENO, line, None).is_err() {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}

/// Writes all bytes, by one system call. On a full disk a second call returns the error. An error
/// comes with the number of bytes that were written. `at`: the place in the file; `None`: its end.
///
/// # Errors
/// The system's.
pub fn write(fd: c_int, text: &str, at: Option<u64>) -> core::result::Result<(), (Error, usize)> {
    let mut done = 0;
    while done < text.len() {
        let rest = &text.as_bytes()[done..];
        // SAFETY: bytes of the text.
        let n = unsafe {
            match at {
                None => libc::write(fd, rest.as_ptr().cast(), rest.len()),
                Some(at) => {
                    let at = (at + done as u64) as libc::off_t;
                    libc::pwrite(fd, rest.as_ptr().cast(), rest.len(), at)
                }
            }
        };
        match usize::try_from(n) {
            Ok(n) if n > 0 => done += n,
            _ if last_error() == Error::Os(libc::EINTR) => {}
            _ => return Err((last_error(), done)),
        }
    }
    Ok(())
}
