//! The C library's calls that open, write, copy and close descriptors.

use crate::cmd_fd_writes;
use crate::drop_in::{NAMES, UCMA};
use crate::fail;
use crate::files::{FILES, FOLDERS};
use crate::names::look_at_descriptor;
use crate::path_route::lead;
use crate::real::REAL;
use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use gdrcore_calls::preload::{kind, PathInfo};

/// The file that librdmacm opens.
const MANAGER: &CStr = c"/dev/infiniband/rdma_cm";

/// Opens the connection manager's device file.
fn open_manager(flags: c_int) -> c_int {
    let Some(t) = UCMA.get() else { return fail(libc::ENOENT) };
    // SAFETY: the table's function.
    let fd = unsafe { (t.open)(flags) };
    if fd < 0 {
        return fail(-fd);
    }
    if !FILES.add(fd) {
        // SAFETY: the file that was just opened.
        unsafe {
            (t.close)(fd);
            (REAL.close())(fd);
        }
        return fail(libc::EMFILE);
    }
    fd
}

/// Opens a name of the drop-in.
pub fn open_ours(kind: c_int, seen: &PathInfo, flags: c_int) -> c_int {
    // SAFETY: the drop-in has terminated it.
    let path = unsafe { CStr::from_ptr(seen.path.as_ptr()) };
    if kind == kind::DEVICE && path == MANAGER {
        return open_manager(flags);
    }
    let Some(t) = NAMES.get() else { return fail(libc::ENOENT) };
    // SAFETY: the table's function, and a path that it gave.
    let fd = unsafe { (t.open)(path.as_ptr(), flags) };
    if fd < 0 {
        return fail(-fd);
    }
    // A descriptor with too high a number counts as a file: names relative to it are not found.
    FOLDERS.add(fd);
    fd
}

macro_rules! opens {
    ($($(#[$doc:meta])* $name:ident($($dir:ident)?; $($mode:ident)?);)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As open(2). (Variable arguments are passed as fixed ones are, on the targets that this
        /// builds for.)
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            $($dir: c_int,)?
            path: *const c_char,
            flags: c_int
            $(, $mode: c_uint)?
        ) -> c_int {
            let from = [$($dir,)? libc::AT_FDCWD][0];
            // SAFETY: the program's own arguments.
            unsafe {
                let kernel = |path| (REAL.$name())($($dir,)? path, flags $(, $mode)?);
                let follow = flags & libc::O_NOFOLLOW == 0;
                lead(from, path, follow, kernel, |kind, seen| open_ours(kind, seen, flags))
            }
        }
    )* };
}

opens! {
    /// open(2).
    open(; mode);
    /// open(2) for large files.
    open64(; mode);
    /// open(2) as `_FORTIFY_SOURCE` writes it.
    __open_2(;);
    /// open(2) for large files as `_FORTIFY_SOURCE` writes it.
    __open64_2(;);
    /// openat(2).
    openat(dir; mode);
    /// openat(2) for large files.
    openat64(dir; mode);
    /// openat(2) as `_FORTIFY_SOURCE` writes it.
    __openat_2(dir;);
    /// openat(2) for large files as `_FORTIFY_SOURCE` writes it.
    __openat64_2(dir;);
}

macro_rules! fopens {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As fopen(3).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            path: *const c_char,
            mode: *const c_char,
        ) -> *mut libc::FILE {
            // SAFETY: the program's own arguments.
            unsafe {
                let kernel = |path| (REAL.$name())(path, mode);
                lead(libc::AT_FDCWD, path, true, kernel, |kind, seen| stream(kind, seen, mode))
            }
        }
    )* };
}

fopens! {
    /// fopen(3).
    fopen;
    /// fopen(3) for large files.
    fopen64;
}

/// fopen(3) of a name of the drop-in.
///
/// # Safety
/// A C string, or null.
unsafe fn stream(kind: c_int, seen: &PathInfo, mode: *const c_char) -> *mut libc::FILE {
    let none = core::ptr::null_mut();
    if mode.is_null() {
        fail(libc::EINVAL);
        return none;
    }
    // SAFETY: the caller's promise.
    let words = unsafe { CStr::from_ptr(mode) }.to_bytes();
    // The part behind a comma selects a character set.
    let words = words.split(|b| *b == b',').next().unwrap_or_default();
    let access = if words.starts_with(b"r") && !words.contains(&b'+') {
        libc::O_RDONLY
    } else {
        libc::O_RDWR
    };
    let cloexec = if words.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    let fd = open_ours(kind, seen, access | cloexec);
    if fd < 0 {
        return none;
    }
    // SAFETY: a descriptor that was just opened, and the program's string.
    unsafe {
        let stream = libc::fdopen(fd, mode);
        if stream.is_null() {
            let errno = *libc::__errno_location();
            close(fd);
            fail(errno);
        }
        stream
    }
}

/// Removes a descriptor that is about to be closed from the sets. If it is the device file,
/// notifies the drop-in.
fn forget(fd: c_int) {
    FOLDERS.remove(fd);
    if FILES.has(fd) {
        // The descriptor stays in the set until the drop-in has closed it, because another thread
        // may use it meanwhile.
        if let Some(t) = UCMA.get() {
            // SAFETY: the table's function; it ignores what is closed already.
            unsafe { (t.close)(fd) };
        }
        FILES.remove(fd);
    }
}

/// Records a copied descriptor: the copy of a drop-in's folder is one too. A copy of the connection
/// manager's file is not intercepted.
fn copied(from: c_int, to: c_int) -> c_int {
    if to >= 0 && FOLDERS.has(from) {
        FOLDERS.add(to);
    }
    to
}

macro_rules! fstats {
    ($($(#[$doc:meta])* $name:ident($($version:ident)?);)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As fstat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            $($version: c_int,)?
            fd: c_int,
            st: *mut libc::stat,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                look_at_descriptor(fd, st).unwrap_or_else(|| (REAL.$name())($($version,)? fd, st))
            }
        }
    )* };
}

fstats! {
    /// fstat(2).
    fstat();
    /// fstat(2) for large files; the same struct on 64-bit systems.
    fstat64();
    /// fstat(2) of programs that were linked before glibc 2.33.
    __fxstat(version);
    /// fstat(2) for large files of programs that were linked before glibc 2.33.
    __fxstat64(version);
}

/// write(2): a command, if the descriptor is the connection manager's file or a context's `cmd_fd`.
///
/// # Safety
/// As write(2).
#[no_mangle]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: usize) -> isize {
    if FILES.has(fd) {
        if let Some(t) = UCMA.get() {
            // SAFETY: the program's own arguments.
            let n = unsafe { (t.write)(fd, buf, len) };
            return if n < 0 { fail(-n as c_int) as isize } else { n };
        }
    }
    // SAFETY: the program's own arguments.
    let n = unsafe { (REAL.write())(fd, buf, len) };
    if n >= 0 {
        return n;
    }
    // SAFETY: as above.
    unsafe { cmd_fd_writes::finish_failed_write(n, fd, buf, len) }
}

/// close(2).
///
/// # Safety
/// As close(2).
#[no_mangle]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    forget(fd);
    // SAFETY: the program's own argument.
    unsafe { (REAL.close())(fd) }
}

/// dup(2).
///
/// # Safety
/// As dup(2).
#[no_mangle]
pub unsafe extern "C" fn dup(from: c_int) -> c_int {
    // SAFETY: the program's own argument.
    copied(from, unsafe { (REAL.dup())(from) })
}

/// Whether a descriptor is open; if not, a copy of it fails and closes nothing.
fn is_open(fd: c_int) -> bool {
    // SAFETY: reads a flag of a descriptor, of any number.
    unsafe { (REAL.fcntl())(fd, libc::F_GETFD, 0) >= 0 }
}

/// dup2(2), which closes `to`.
///
/// # Safety
/// As dup2(2).
#[no_mangle]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if from != to && is_open(from) {
        forget(to);
    }
    // SAFETY: the program's own arguments.
    copied(from, unsafe { (REAL.dup2())(from, to) })
}

/// dup3(2), which closes `to`.
///
/// # Safety
/// As dup3(2).
#[no_mangle]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if from != to && is_open(from) && flags & !libc::O_CLOEXEC == 0 {
        forget(to);
    }
    // SAFETY: the program's own arguments.
    copied(from, unsafe { (REAL.dup3())(from, to, flags) })
}

macro_rules! fcntls {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As fcntl(2). (Its third argument is a number or a pointer, and both are passed alike.)
        #[no_mangle]
        pub unsafe extern "C" fn $name(fd: c_int, command: c_int, argument: usize) -> c_int {
            // SAFETY: the program's own arguments.
            let done = unsafe { (REAL.$name())(fd, command, argument) };
            match command {
                libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => copied(fd, done),
                _ => done,
            }
        }
    )* };
}

fcntls! {
    /// fcntl(2).
    fcntl;
    /// fcntl(2) for large files.
    fcntl64;
}

/// close_range(2).
///
/// # Safety
/// As close_range(2).
#[no_mangle]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        FILES.each(first, last, forget);
        FOLDERS.each(first, last, forget);
    }
    // SAFETY: the program's own arguments.
    unsafe { (REAL.close_range())(first, last, flags) }
}

/// closefrom(3).
///
/// # Safety
/// As closefrom(3).
#[no_mangle]
pub unsafe extern "C" fn closefrom(first: c_int) {
    for files in [&FILES, &FOLDERS] {
        files.each(first.max(0) as c_uint, c_uint::MAX, forget);
    }
    // SAFETY: the program's own argument.
    unsafe { (REAL.closefrom())(first) }
}
