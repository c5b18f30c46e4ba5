//! The calls behind the intercepted ones: the next in the order of symbol lookup.

use core::ffi::{c_char, c_int, c_long, c_uint, c_ulong, c_void, CStr};
use core::sync::atomic::{AtomicUsize, Ordering};

/// `glob_t`.
#[repr(C)]
pub struct Matches {
    pub(crate) count: usize,
    pub(crate) paths: *mut *mut c_char,
    pub(crate) offset: usize,
    pub(crate) flags: c_int,
    pub(crate) closedir: Option<unsafe extern "C" fn(*mut c_void)>,
    pub(crate) readdir: Option<unsafe extern "C" fn(*mut c_void) -> *mut libc::dirent64>,
    pub(crate) opendir: Option<unsafe extern "C" fn(*const c_char) -> *mut c_void>,
    pub(crate) lstat: Option<unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int>,
    pub(crate) stat: Option<unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int>,
}

/// `struct FTW`.
#[repr(C)]
pub struct WalkPosition {
    pub(crate) base: c_int,
    pub(crate) level: c_int,
}

/// The result of scandir(3), and the functions of the program that it takes.
pub type Entries = *mut *mut libc::dirent64;
pub type Filter = Option<unsafe extern "C" fn(*const libc::dirent64) -> c_int>;
pub type Compare =
    Option<unsafe extern "C" fn(*mut *const libc::dirent64, *mut *const libc::dirent64) -> c_int>;
/// The program's functions for glob(3), ftw(3) and nftw(3).
pub type OnError = Option<unsafe extern "C" fn(*const c_char, c_int) -> c_int>;
pub type OnName = Option<unsafe extern "C" fn(*const c_char, *const libc::stat, c_int) -> c_int>;
pub type OnNewName = Option<
    unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut WalkPosition) -> c_int,
>;

/// Rows of names that have one type.
macro_rules! calls {
    ($($($name:ident),+: $args:tt -> $result:ty;)*) => {
        /// Addresses of the calls, 0 until they are looked up.
        pub struct Real { $($($name: AtomicUsize,)+)* }

        /// The calls of this process.
        pub static REAL: Real = Real { $($($name: AtomicUsize::new(0),)+)* };

        impl Real {
            /// Looks all of them up.
            pub fn load(&self) {
                $($(let _ = find(&self.$name, name(concat!(stringify!($name), "\0")));)+)*
            }

            $($(
                #[inline]
                pub fn $name(&self) -> unsafe extern "C" fn $args -> $result {
                    let at = match self.$name.load(Ordering::Relaxed) {
                        0 => must(find(&self.$name, name(concat!(stringify!($name), "\0")))),
                        at => at,
                    };
                    // SAFETY: not 0, and the address of the C library's function of this name, or
                    // of another interposer's, which has the same type.
                    unsafe { core::mem::transmute(at) }
                }
            )+)*
        }
    };
}

calls! {
    open, open64: (*const c_char, c_int, ...) -> c_int;
    __open_2, __open64_2: (*const c_char, c_int) -> c_int;
    openat, openat64: (c_int, *const c_char, c_int, ...) -> c_int;
    __openat_2, __openat64_2: (c_int, *const c_char, c_int) -> c_int;
    fopen, fopen64: (*const c_char, *const c_char) -> *mut libc::FILE;
    fstat, fstat64: (c_int, *mut libc::stat) -> c_int;
    __fxstat, __fxstat64: (c_int, c_int, *mut libc::stat) -> c_int;
    stat, stat64, lstat, lstat64: (*const c_char, *mut libc::stat) -> c_int;
    __xstat, __xstat64, __lxstat, __lxstat64: (c_int, *const c_char, *mut libc::stat) -> c_int;
    fstatat, fstatat64: (c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    __fxstatat, __fxstatat64: (c_int, c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    statx: (c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
    access, euidaccess, eaccess: (*const c_char, c_int) -> c_int;
    faccessat: (c_int, *const c_char, c_int, c_int) -> c_int;
    readlink: (*const c_char, *mut c_char, usize) -> isize;
    readlinkat: (c_int, *const c_char, *mut c_char, usize) -> isize;
    __readlink_chk: (*const c_char, *mut c_char, usize, usize) -> isize;
    __readlinkat_chk: (c_int, *const c_char, *mut c_char, usize, usize) -> isize;
    realpath: (*const c_char, *mut c_char) -> *mut c_char;
    __realpath_chk: (*const c_char, *mut c_char, usize) -> *mut c_char;
    getxattr, lgetxattr: (*const c_char, *const c_char, *mut c_void, usize) -> isize;
    listxattr, llistxattr: (*const c_char, *mut c_char, usize) -> isize;
    opendir: (*const c_char) -> *mut libc::DIR;
    fdopendir: (c_int) -> *mut libc::DIR;
    readdir, readdir64: (*mut libc::DIR) -> *mut libc::dirent64;
    readdir_r, readdir64_r:
        (*mut libc::DIR, *mut libc::dirent64, *mut *mut libc::dirent64) -> c_int;
    closedir, dirfd: (*mut libc::DIR) -> c_int;
    rewinddir: (*mut libc::DIR) -> ();
    telldir: (*mut libc::DIR) -> c_long;
    seekdir: (*mut libc::DIR, c_long) -> ();
    scandir, scandir64: (*const c_char, *mut Entries, Filter, Compare) -> c_int;
    scandirat, scandirat64: (c_int, *const c_char, *mut Entries, Filter, Compare) -> c_int;
    glob, glob64: (*const c_char, c_int, OnError, *mut Matches) -> c_int;
    ftw, ftw64: (*const c_char, OnName, c_int) -> c_int;
    nftw, nftw64: (*const c_char, OnNewName, c_int, c_int) -> c_int;
    write: (c_int, *const c_void, usize) -> isize;
    close: (c_int) -> c_int;
    dup: (c_int) -> c_int;
    dup2: (c_int, c_int) -> c_int;
    dup3: (c_int, c_int, c_int) -> c_int;
    fcntl, fcntl64: (c_int, c_int, ...) -> c_int;
    ioctl: (c_int, c_ulong, ...) -> c_int;
    close_range: (c_uint, c_uint, c_int) -> c_int;
    closefrom: (c_int) -> ();
}

fn name(text: &'static str) -> &'static CStr {
    CStr::from_bytes_with_nul(text.as_bytes()).unwrap_or_default()
}

#[cold]
fn find(slot: &AtomicUsize, name: &CStr) -> usize {
    // SAFETY: a C string; the name is looked up behind this library.
    let at = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) } as usize;
    slot.store(at, Ordering::Relaxed);
    at
}

/// Ends a program that calls a function which its C library lacks. Without this library it would
/// not even start.
#[cold]
fn must(at: usize) -> usize {
    if at == 0 {
        // SAFETY: ends the process.
        unsafe { libc::abort() }
    }
    at
}
