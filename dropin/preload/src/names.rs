//! Calls on a path: stat, access, readlink, realpath and their variants.

use crate::fail;
use crate::files::{self, FILES};
use crate::path_route::{descriptor, lead};
use crate::real::REAL;
use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use gdrcore_calls::preload::{kind, PathInfo, PATH_MAX};

/// A device number that no file system of the kernel has.
const FILE_SYSTEM: (u32, u32) = (0, 0xffff);
/// The size that sysfs shows for a file.
const SIZE: i64 = 4096;

/// The status of a name of the drop-in.
pub fn status(kind: c_int, seen: &PathInfo) -> libc::stat {
    // SAFETY: integers only.
    let mut s: libc::stat = unsafe { core::mem::zeroed() };
    s.st_dev = libc::makedev(FILE_SYSTEM.0, FILE_SYSTEM.1);
    s.st_ino = seen.inode;
    s.st_nlink = 1;
    s.st_blksize = SIZE as _;
    match kind {
        kind::DEVICE => {
            s.st_mode = libc::S_IFCHR | 0o666;
            s.st_rdev = match (seen.major, seen.minor) {
                (0, 0) => files::device_number(),
                (major, minor) => libc::makedev(major, minor),
            };
        }
        kind::FOLDER => (s.st_mode, s.st_nlink) = (libc::S_IFDIR | 0o755, 2),
        kind::LINK => s.st_mode = libc::S_IFLNK | 0o777,
        _ => (s.st_mode, s.st_size) = (libc::S_IFREG | 0o444, SIZE),
    }
    s
}

/// The status of an open descriptor; `None`: it is the kernel's.
#[inline]
fn descriptor_status(fd: c_int) -> Option<libc::stat> {
    if FILES.has(fd) {
        return Some(manager_status());
    }
    descriptor(fd, status)
}

#[cold]
#[inline(never)]
fn manager_status() -> libc::stat {
    status(kind::DEVICE, &PathInfo::EMPTY)
}

/// Stores a status for the program.
///
/// # Safety
/// `st` is the program's, writable, or null.
unsafe fn store_status<T>(value: T, st: *mut T) -> c_int {
    if st.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe { st.write(value) };
    0
}

/// fstat(2) of a descriptor of the drop-in; `None`: it is the kernel's.
///
/// # Safety
/// `st` is the program's, writable, or null.
#[inline]
pub unsafe fn look_at_descriptor(fd: c_int, st: *mut libc::stat) -> Option<c_int> {
    let said = descriptor_status(fd)?;
    // SAFETY: the caller's promise.
    Some(unsafe { store_status(said, st) })
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident($($version:ident)?) $follow:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As stat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            $($version: c_int,)?
            path: *const c_char,
            st: *mut libc::stat,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let kernel = |path| (REAL.$name())($($version,)? path, st);
                lead(libc::AT_FDCWD, path, $follow, kernel, |kind, seen| {
                    store_status(status(kind, seen), st)
                })
            }
        }
    )* };
}

stats! {
    /// stat(2).
    stat() true;
    /// stat(2) for large files; the same struct on 64-bit systems.
    stat64() true;
    /// stat(2) of programs that were linked before glibc 2.33.
    __xstat(version) true;
    /// stat(2) for large files of programs that were linked before glibc 2.33.
    __xstat64(version) true;
    /// lstat(2).
    lstat() false;
    /// lstat(2) for large files.
    lstat64() false;
    /// lstat(2) of programs that were linked before glibc 2.33.
    __lxstat(version) false;
    /// lstat(2) for large files of programs that were linked before glibc 2.33.
    __lxstat64(version) false;
}

/// Whether a call is on its descriptor, not on a path.
///
/// # Safety
/// A C string, or null.
#[inline]
unsafe fn is_of_descriptor(path: *const c_char, flags: c_int) -> bool {
    // SAFETY: the caller's promise; a string has at least its end.
    flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || unsafe { *path } == 0)
}

macro_rules! stats_at {
    ($($(#[$doc:meta])* $name:ident($($version:ident)?);)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As fstatat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            $($version: c_int,)?
            dir: c_int,
            path: *const c_char,
            st: *mut libc::stat,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                if is_of_descriptor(path, flags) {
                    if let Some(code) = look_at_descriptor(dir, st) {
                        return code;
                    }
                }
                let kernel = |path| (REAL.$name())($($version,)? dir, path, st, flags);
                let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
                lead(dir, path, follow, kernel, |kind, seen| store_status(status(kind, seen), st))
            }
        }
    )* };
}

stats_at! {
    /// fstatat(2).
    fstatat();
    /// fstatat(2) for large files.
    fstatat64();
    /// fstatat(2) of programs that were linked before glibc 2.33.
    __fxstatat(version);
    /// fstatat(2) for large files of programs that were linked before glibc 2.33.
    __fxstatat64(version);
}

/// The same for statx(2).
fn extended(s: &libc::stat) -> libc::statx {
    // SAFETY: integers only.
    let mut x: libc::statx = unsafe { core::mem::zeroed() };
    x.stx_mask = libc::STATX_BASIC_STATS;
    x.stx_blksize = s.st_blksize as u32;
    x.stx_nlink = s.st_nlink as u32;
    x.stx_mode = s.st_mode as u16;
    x.stx_ino = s.st_ino;
    x.stx_size = s.st_size as u64;
    (x.stx_rdev_major, x.stx_rdev_minor) = (libc::major(s.st_rdev), libc::minor(s.st_rdev));
    (x.stx_dev_major, x.stx_dev_minor) = FILE_SYSTEM;
    x
}

/// statx(2).
///
/// # Safety
/// As statx(2).
#[no_mangle]
pub unsafe extern "C" fn statx(
    dir: c_int,
    path: *const c_char,
    flags: c_int,
    mask: c_uint,
    st: *mut libc::statx,
) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        if is_of_descriptor(path, flags) {
            if let Some(said) = descriptor_status(dir) {
                return store_status(extended(&said), st);
            }
        }
        let kernel = |path| (REAL.statx())(dir, path, flags, mask, st);
        let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
        lead(dir, path, follow, kernel, |kind, seen| {
            store_status(extended(&status(kind, seen)), st)
        })
    }
}

/// access(2) for names of the drop-in: every user may read and write a device, read a file, and
/// read and search a folder.
fn may(kind: c_int, mode: c_int) -> c_int {
    let refused = match kind {
        kind::DEVICE => libc::X_OK,
        kind::FOLDER => libc::W_OK,
        kind::LINK => 0,
        _ => libc::X_OK | libc::W_OK,
    };
    if mode & refused == 0 {
        0
    } else {
        fail(libc::EACCES)
    }
}

macro_rules! accesses {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As access(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, mode: c_int) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let kernel = |path| (REAL.$name())(path, mode);
                lead(libc::AT_FDCWD, path, true, kernel, |kind, _| may(kind, mode))
            }
        }
    )* };
}

accesses! {
    /// access(2).
    access;
    /// euidaccess(3).
    euidaccess;
    /// eaccess(3).
    eaccess;
}

/// faccessat(2).
///
/// # Safety
/// As faccessat(2).
#[no_mangle]
pub unsafe extern "C" fn faccessat(
    dir: c_int,
    path: *const c_char,
    mode: c_int,
    flags: c_int,
) -> c_int {
    let follow = flags & libc::AT_SYMLINK_NOFOLLOW == 0;
    // SAFETY: the program's own arguments.
    unsafe {
        lead(
            dir,
            path,
            follow,
            |path| (REAL.faccessat())(dir, path, mode, flags),
            |kind, _| may(kind, mode),
        )
    }
}

/// readlink(2) of a name of the drop-in.
///
/// # Safety
/// `len` bytes are writable.
unsafe fn target(kind: c_int, seen: &PathInfo, to: *mut c_char, len: usize) -> isize {
    if kind != kind::LINK || len == 0 {
        return fail(libc::EINVAL) as isize;
    }
    // SAFETY: the drop-in has terminated it, and what is copied is within both.
    unsafe {
        let n = CStr::from_ptr(seen.target.as_ptr()).count_bytes().min(len);
        core::ptr::copy_nonoverlapping(seen.target.as_ptr(), to, n);
        n as isize
    }
}

macro_rules! readlinks {
    ($($(#[$doc:meta])* $name:ident($($dir:ident)?; $($room:ident)?);)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As readlink(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            $($dir: c_int,)?
            path: *const c_char,
            to: *mut c_char,
            len: usize
            $(, $room: usize)?
        ) -> isize {
            let from = [$($dir,)? libc::AT_FDCWD][0];
            let most = len$(.min($room))?;
            // SAFETY: the program's own arguments.
            unsafe {
                let kernel = |path| (REAL.$name())($($dir,)? path, to, len $(, $room)?);
                lead(from, path, false, kernel, |kind, seen| target(kind, seen, to, most))
            }
        }
    )* };
}

readlinks! {
    /// readlink(2).
    readlink(;);
    /// readlinkat(2).
    readlinkat(dir;);
    /// readlink(2) as `_FORTIFY_SOURCE` calls it. If `len` exceeds the buffer, the C library's own
    /// function ends the program.
    __readlink_chk(; room);
    /// readlinkat(2) as `_FORTIFY_SOURCE` writes it.
    __readlinkat_chk(dir; room);
}

/// realpath(3) of a name of the drop-in.
///
/// # Safety
/// `to` is null or has `room` bytes.
unsafe fn canonical(seen: &PathInfo, to: *mut c_char, room: usize) -> *mut c_char {
    // SAFETY: the drop-in has terminated the path, which fits.
    unsafe {
        if to.is_null() {
            return libc::strdup(seen.path.as_ptr());
        }
        if CStr::from_ptr(seen.path.as_ptr()).count_bytes() >= room {
            fail(libc::ENAMETOOLONG);
            return core::ptr::null_mut();
        }
        libc::strcpy(to, seen.path.as_ptr())
    }
}

/// realpath(3).
///
/// # Safety
/// As realpath(3).
#[no_mangle]
pub unsafe extern "C" fn realpath(path: *const c_char, to: *mut c_char) -> *mut c_char {
    // SAFETY: the program's own arguments; the C library's room is that of the longest path.
    unsafe {
        let kernel = |path| (REAL.realpath())(path, to);
        lead(libc::AT_FDCWD, path, true, kernel, |_, seen| canonical(seen, to, PATH_MAX))
    }
}

/// realpath(3) as `_FORTIFY_SOURCE` writes it.
///
/// # Safety
/// As realpath(3); `to` has `room` bytes.
#[no_mangle]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    to: *mut c_char,
    room: usize,
) -> *mut c_char {
    // SAFETY: the program's own arguments.
    unsafe {
        let kernel = |path| (REAL.__realpath_chk())(path, to, room);
        lead(libc::AT_FDCWD, path, true, kernel, |_, seen| canonical(seen, to, room))
    }
}

/// canonicalize_file_name(3).
///
/// # Safety
/// As canonicalize_file_name(3).
#[no_mangle]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the program's own argument.
    unsafe { realpath(path, core::ptr::null_mut()) }
}

macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $t:ty),*) $follow:literal;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As getxattr(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, $($arg: $t),*) -> isize {
            let kernel = |path| {
                // SAFETY: the program's own arguments.
                unsafe { (REAL.$name())(path, $($arg),*) }
            };
            // SAFETY: as above. `ls -l` asks.
            unsafe {
                lead(libc::AT_FDCWD, path, $follow, kernel, |_, _| fail(libc::ENOTSUP) as isize)
            }
        }
    )* };
}

attributes! {
    /// getxattr(2).
    getxattr(name: *const c_char, value: *mut c_void, size: usize) true;
    /// lgetxattr(2).
    lgetxattr(name: *const c_char, value: *mut c_void, size: usize) false;
    /// listxattr(2).
    listxattr(list: *mut c_char, size: usize) true;
    /// llistxattr(2).
    llistxattr(list: *mut c_char, size: usize) false;
}
