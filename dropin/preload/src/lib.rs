//! `libgdrcore_preload.so`: leads what librdmacm does with `/dev/infiniband/rdma_cm` to the libibverbs drop-in.
//!
//! librdmacm reaches the kernel by four calls of the C library: it opens the device file, looks whether it is a character
//! device, writes commands into it and closes it. Only a library that stands before the C library in the order of symbol lookup
//! can take these calls over; a NEEDED libibverbs stands behind it, hence this one, for `LD_PRELOAD`, as `gdrcore-run` sets it.
//! The names of devices in the file system, which programs look at, lead there too (`names`).
//!
//! It has no state but which descriptors are such files, and does nothing for all others but call on: one load and a jump.
//!
//! The drop-in is found when the file is opened: it is in the process then, since librdmacm needs it. Where the process has another
//! libibverbs, or none, the call goes on to the kernel.
//!
//! Calls of other interposers (librspreload's, a sanitizer's) work in either order: each calls the next.

mod files;
mod names;
mod real;

use core::ffi::{c_char, c_int, c_uint, c_void, CStr};
use core::sync::atomic::{AtomicPtr, Ordering};

use files::FILES;
use real::{next, REAL};

/// What librdmacm opens.
const PATH: &CStr = c"/dev/infiniband/rdma_cm";

/// What the drop-in offers, under the name `gdrc_ucma_1`. Errors are negative errno.
#[repr(C)]
struct Table {
    /// Opens the device file; the flags are those of open(2).
    open: unsafe extern "C" fn(c_int) -> c_int,
    /// One command.
    write: unsafe extern "C" fn(c_int, *const c_void, usize) -> isize,
    /// The descriptor is about to be closed by its owner.
    close: unsafe extern "C" fn(c_int),
}

static TABLE: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());

/// What the drop-in has under a name, if the process has the drop-in; null if it has another libibverbs, or none.
fn of_the_drop_in(name: &CStr) -> *mut c_void {
    // SAFETY: constant names; NOLOAD loads nothing, and the handle is kept, so the library stays.
    unsafe {
        let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
        if library.is_null() {
            return core::ptr::null_mut();
        }
        libc::dlsym(library, name.as_ptr())
    }
}

/// The drop-in's table, if the process has the drop-in.
fn table() -> Option<&'static Table> {
    let mut at = TABLE.load(Ordering::Acquire);
    if at.is_null() {
        at = of_the_drop_in(c"gdrc_ucma_1").cast();
        TABLE.store(at, Ordering::Release);
    }
    // SAFETY: null, or a table of this layout, which its name stands for and which never changes.
    unsafe { at.as_ref() }
}

fn fail(errno: c_int) -> c_int {
    // SAFETY: the thread's own errno.
    unsafe { *libc::__errno_location() = errno };
    -1
}

/// Whether a program asks for the device file.
///
/// # Safety
/// A C string, or null.
unsafe fn is_ours(path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    !path.is_null() && unsafe { libc::strcmp(path, PATH.as_ptr()) } == 0
}

/// Opens the device file; `None`: the drop-in is not here.
fn open_ours(flags: c_int) -> Option<c_int> {
    let t = table()?;
    // SAFETY: the table's function.
    let fd = unsafe { (t.open)(flags) };
    if fd < 0 {
        return Some(fail(-fd));
    }
    if !FILES.add(fd) {
        // SAFETY: the file that was just opened.
        unsafe {
            (t.close)(fd);
            (REAL.close())(fd);
        }
        return Some(fail(libc::EMFILE));
    }
    Some(fd)
}

/// Opens what is the drop-in's; `None`: the name goes on to the kernel.
///
/// # Safety
/// A C string, or null.
unsafe fn open_known(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        if is_ours(path) {
            open_ours(flags)
        } else {
            names::open(path, flags)
        }
    }
}

/// A descriptor is about to be closed: the drop-in forgets the file, if it is one.
fn forget(fd: c_int) {
    if FILES.has(fd) {
        // It stays known until then: another thread may come back to it meanwhile.
        if let Some(t) = table() {
            // SAFETY: the table's function; it ignores what is closed already.
            unsafe { (t.close)(fd) };
        }
        FILES.remove(fd);
    }
}

macro_rules! opens {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As open(2). (Variable arguments are passed as fixed ones are, on the targets that this builds for.)
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
            // SAFETY: the program's string.
            if let Some(fd) = unsafe { open_known(path, flags) } {
                return fd;
            }
            // SAFETY: the program's own arguments.
            unsafe { (REAL.$name())(path, flags, mode) }
        }
    )* };
}

opens! {
    /// open(2).
    open;
    /// open(2) for large files.
    open64;
}

macro_rules! checked_opens {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As open(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(path: *const c_char, flags: c_int) -> c_int {
            // SAFETY: the program's string.
            if let Some(fd) = unsafe { open_known(path, flags) } {
                return fd;
            }
            // SAFETY: the program's own arguments.
            unsafe { (REAL.$name())(path, flags) }
        }
    )* };
}

checked_opens! {
    /// open(2) as `_FORTIFY_SOURCE` writes it.
    __open_2;
    /// open(2) for large files as `_FORTIFY_SOURCE` writes it.
    __open64_2;
}

macro_rules! openats {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As openat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(dir: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
            // SAFETY: the program's string.
            if let Some(fd) = unsafe { open_known(path, flags) } {
                return fd;
            }
            // SAFETY: the program's own arguments.
            unsafe { (REAL.$name())(dir, path, flags, mode) }
        }
    )* };
}

openats! {
    /// openat(2); the path is an absolute one.
    openat;
    /// openat(2) for large files.
    openat64;
}

/// What is said of a file that the kernel does not have: a mode and, for a character device, the number that the connection
/// manager's has where the kernel has one.
///
/// # Safety
/// `st` is the program's, to be written.
unsafe fn stat_as(mode: libc::mode_t, st: *mut libc::stat) -> c_int {
    if st.is_null() {
        return fail(libc::EFAULT);
    }
    // SAFETY: integers only.
    let mut s: libc::stat = unsafe { core::mem::zeroed() };
    s.st_mode = mode;
    s.st_nlink = 1;
    if mode & libc::S_IFMT == libc::S_IFCHR {
        s.st_rdev = files::device_number();
    }
    // SAFETY: the caller's promise.
    unsafe { st.write(s) };
    0
}

/// What fstat(2) says of the device file.
///
/// # Safety
/// As for [`stat_as`].
unsafe fn stat_ours(st: *mut libc::stat) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { stat_as(libc::S_IFCHR | 0o666, st) }
}

macro_rules! fstats {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As fstat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(fd: c_int, st: *mut libc::stat) -> c_int {
            if FILES.has(fd) {
                // SAFETY: the program's struct.
                return unsafe { stat_ours(st) };
            }
            // SAFETY: the program's own arguments.
            unsafe { (REAL.$name())(fd, st) }
        }
    )* };
}

fstats! {
    /// fstat(2).
    fstat;
    /// fstat(2) for large files; the same struct on 64-bit systems.
    fstat64;
}

macro_rules! old_fstats {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As fstat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name(version: c_int, fd: c_int, st: *mut libc::stat) -> c_int {
            if FILES.has(fd) {
                // SAFETY: the program's struct.
                return unsafe { stat_ours(st) };
            }
            // SAFETY: the program's own arguments.
            unsafe { (REAL.$name())(version, fd, st) }
        }
    )* };
}

old_fstats! {
    /// fstat(2) of programs that were linked before glibc 2.33.
    __fxstat;
    /// fstat(2) for large files of programs that were linked before glibc 2.33.
    __fxstat64;
}

/// write(2): into the device file it is a command.
///
/// # Safety
/// As write(2).
#[no_mangle]
pub unsafe extern "C" fn write(fd: c_int, buf: *const c_void, len: usize) -> isize {
    if FILES.has(fd) {
        if let Some(t) = table() {
            // SAFETY: the program's own arguments.
            let n = unsafe { (t.write)(fd, buf, len) };
            return if n < 0 { fail(-n as c_int) as isize } else { n };
        }
    }
    // SAFETY: the program's own arguments.
    unsafe { (REAL.write())(fd, buf, len) }
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

/// dup2(2), which closes `to`.
///
/// # Safety
/// As dup2(2).
#[no_mangle]
pub unsafe extern "C" fn dup2(from: c_int, to: c_int) -> c_int {
    if from != to {
        forget(to);
    }
    // SAFETY: the program's own arguments.
    unsafe { (REAL.dup2())(from, to) }
}

/// dup3(2), which closes `to`.
///
/// # Safety
/// As dup3(2).
#[no_mangle]
pub unsafe extern "C" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if from != to {
        forget(to);
    }
    // SAFETY: the program's own arguments.
    unsafe { (REAL.dup3())(from, to, flags) }
}

/// close_range(2).
///
/// # Safety
/// As close_range(2).
#[no_mangle]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags & libc::CLOSE_RANGE_CLOEXEC as c_int == 0 {
        FILES.each(first, last, forget);
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
    FILES.each(first.max(0) as c_uint, c_uint::MAX, forget);
    // SAFETY: the program's own argument.
    unsafe { (REAL.closefrom())(first) }
}

/// The real calls are looked up when the library is loaded: later, one may come from a signal handler.
extern "C" fn at_load() {
    REAL.load();
}

#[used]
#[link_section = ".init_array"]
static AT_LOAD: extern "C" fn() = at_load;

const _: () = assert!(core::mem::size_of::<next::Open>() == core::mem::size_of::<usize>());
