//! Where the lines go: standard error, or a file of this process alone.
//!
//! The file is made by the first line, and is always a new one: it is opened with `O_EXCL`, so no
//! link of another user is followed and no file is overwritten. If the name is taken, by another
//! process of the program or by an older trace, it is followed by a dot and the process's id. A
//! child of fork has a file of its own likewise.
//!
//! Each line is one system call, so whatever ends the process leaves whole lines. The program may
//! have closed our descriptor and got its number for a file of its own; so the file is compared
//! before each line. [`ErrorStream`] has the lines of standard error.
//!
//! gdrcore-run removes older traces that no process has locked. It may do so to our file in the
//! moment before we lock it: then the file has no name any more, and the next name is tried.

use crate::env::say;
use crate::verb_result::{last_error, stat};
use core::ffi::c_int;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use gdrcore_core::{Error, Result};
use gdrcore_net::error_stream::{write, ErrorStream};
use gdrcore_net::signals::without_signals;
use gdrcore_net::thread_lock::ForkLock;
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// No file is open.
const NONE: c_int = -1;
/// A file could not be opened or written: nothing is written any more.
const FAILED: c_int = -2;
/// Most names that are tried for a file.
const NAMES_MAX: u32 = 100;

/// Standard error or a file.
pub struct Sink {
    /// `None`: standard error.
    path: Option<PathBuf>,
    /// Further flags of open(2).
    flags: c_int,
    fd: AtomicI32,
    /// Device and inode of the open file.
    file: (AtomicU64, AtomicU64),
    /// [`forks`](super::forks) when the file was opened.
    forks: AtomicU32,
    /// Held while the file is opened.
    opening: ForkLock<()>,
    error: ErrorStream,
}

impl Sink {
    /// Nothing is opened yet. `flags`: further flags of open(2).
    pub fn new(path: Option<PathBuf>, flags: c_int) -> Sink {
        Sink {
            path,
            flags,
            fd: AtomicI32::new(NONE),
            file: (AtomicU64::new(0), AtomicU64::new(0)),
            forks: AtomicU32::new(0),
            opening: ForkLock::new(()),
            error: ErrorStream::new(),
        }
    }

    /// Before fork.
    pub fn hold(&self) {
        self.opening.hold();
        self.error.hold();
    }

    /// After it. A child begins a file of its own.
    pub fn release(&self, is_child: bool) {
        if is_child {
            let fd = self.fd.swap(NONE, Ordering::Relaxed);
            if self.is_file(fd) {
                // SAFETY: the copy of our own descriptor.
                unsafe { libc::close(fd) };
            }
        }
        self.error.release();
        self.opening.release();
    }

    /// For a child that a signal handler has forked while its thread was in the trace, perhaps with
    /// locks held: makes the descriptor lead nowhere, because the thread may be about to write to
    /// it. `descriptor` opens the child's own file.
    pub fn leave(&self) {
        let fd = self.fd.load(Ordering::Relaxed);
        if !self.is_file(fd) {
            return;
        }
        // SAFETY: a string of C; descriptors of our own. Without the copy, the thread's write finds
        // a closed descriptor and ends the trace.
        unsafe {
            let null = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
            if null < 0 || libc::dup3(null, fd, libc::O_CLOEXEC) < 0 {
                libc::close(fd);
            }
            if null >= 0 {
                libc::close(null);
            }
        }
    }

    /// Whether a descriptor is that of this process's file.
    fn is_ours(&self, fd: c_int) -> bool {
        self.forks.load(Ordering::Relaxed) == super::forks() && self.is_file(fd)
    }

    /// Whether a descriptor is that of the file that was opened.
    fn is_file(&self, fd: c_int) -> bool {
        let (device, inode) = &self.file;
        let known = (device.load(Ordering::Relaxed), inode.load(Ordering::Relaxed));
        fd >= 0 && stat(fd).is_ok_and(|st| (st.st_dev, st.st_ino) == known)
    }

    /// The descriptor of the file, which is opened if needed. The second value: it is new.
    pub fn descriptor(&self) -> Option<(c_int, bool)> {
        let fd = self.fd.load(Ordering::Acquire);
        if fd == FAILED {
            return None;
        }
        if self.is_ours(fd) {
            return Some((fd, false));
        }
        let _held = self.opening.lock();
        let now = self.fd.load(Ordering::Acquire);
        if now != fd && self.is_ours(now) {
            return Some((now, false));
        }
        let path = self.path.as_deref()?;
        match self.open(path) {
            Ok(fd) => Some((fd, true)),
            Err(e) => {
                self.end(path, e);
                None
            }
        }
    }

    /// Opens a new file, and makes it the one that is written.
    fn open(&self, path: &Path) -> Result<c_int> {
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC | self.flags;
        let (pid, forks) = (std::process::id(), super::forks());
        for n in 0..NAMES_MAX {
            let mut name = path.as_os_str().as_bytes().to_vec();
            match n {
                0 => {}
                1 => name.extend_from_slice(format!(".{pid}").as_bytes()),
                n => name.extend_from_slice(format!(".{pid}.{n}").as_bytes()),
            }
            let name = CString::new(name).map_err(|_| Error::Os(libc::ENOENT))?;
            // SAFETY: a string that lives through the call.
            let fd = unsafe { libc::open(name.as_ptr(), flags, 0o600) };
            if fd >= 0 {
                let fd = above_standard(fd)?;
                // Tells gdrcore-run that the file is being written. SAFETY: no pointers.
                let rc = unsafe { libc::flock(fd, libc::LOCK_SH | libc::LOCK_NB) };
                let is_held = rc != 0 && last_error() == Error::Again;
                let st = stat(fd)?;
                if is_held || st.st_nlink == 0 {
                    // gdrcore-run removes it. SAFETY: our own descriptor.
                    unsafe { libc::close(fd) };
                    continue;
                }
                self.forks.store(forks, Ordering::Relaxed);
                self.file.0.store(st.st_dev, Ordering::Relaxed);
                self.file.1.store(st.st_ino, Ordering::Relaxed);
                self.fd.store(fd, Ordering::Release);
                return Ok(fd);
            }
            let e = last_error();
            if e.errno() != libc::EEXIST {
                return Err(e);
            }
        }
        Err(Error::Os(libc::EEXIST))
    }

    /// Ends the trace, and says so.
    pub fn end(&self, path: &Path, e: Error) {
        if self.fd.swap(FAILED, Ordering::AcqRel) != FAILED {
            let why = std::io::Error::from_raw_os_error(e.errno());
            say(&format!("GDRC_TRACE: {} ends here: {why}", path.display()));
        }
    }

    /// Writes a line.
    pub fn write(&self, line: &str) {
        match &self.path {
            None => self.error.write(line),
            Some(path) => {
                let Some((fd, _)) = self.descriptor() else { return };
                if let Err((e, done)) = unlimited(|| write(fd, line, None)) {
                    self.end(path, e);
                    // Whole lines stay.
                    if let Ok(st) = stat(fd) {
                        // SAFETY: no pointers.
                        unsafe { libc::ftruncate(fd, st.st_size - done as libc::off_t) };
                    }
                }
            }
        }
    }

    /// Writes at a place of the file; if that fails, `end` in its place, as the file's end.
    pub fn write_at(&self, fd: c_int, text: &str, at: u64, end: &str) {
        if let (Some(path), Err((e, _))) = (&self.path, unlimited(|| write(fd, text, Some(at)))) {
            self.end(path, e);
            // The bytes of `end` are there already, except in a new file.
            if unlimited(|| write(fd, end, Some(at))).is_ok() {
                // SAFETY: no pointers.
                unsafe { libc::ftruncate(fd, (at + end.len() as u64) as libc::off_t) };
            }
        }
    }
}

/// The descriptor itself, or a copy of it if a program without its standard descriptors would take
/// it for one of them.
fn above_standard(fd: c_int) -> Result<c_int> {
    if fd > libc::STDERR_FILENO {
        return Ok(fd);
    }
    // SAFETY: no pointers; the first is ours.
    let copy = unsafe {
        let copy = libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, libc::STDERR_FILENO + 1);
        libc::close(fd);
        copy
    };
    if copy < 0 {
        return Err(last_error());
    }
    Ok(copy)
}

/// Writes to a file. If the size of files is limited, reaching it must not end the program by a
/// signal.
fn unlimited<T>(write: impl FnOnce() -> T) -> T {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct lives through the call.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    match known && limit.rlim_cur == libc::RLIM_INFINITY {
        true => write(),
        false => without_signals(write),
    }
}
