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

/// Types of the calls.
pub mod next {
    use super::*;
    pub type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
    pub type CheckedOpen = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    pub type OpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
    pub type CheckedOpenAt = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;
    pub type Fopen = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut libc::FILE;
    pub type Fstat = unsafe extern "C" fn(c_int, *mut libc::stat) -> c_int;
    pub type OldFstat = unsafe extern "C" fn(c_int, c_int, *mut libc::stat) -> c_int;
    pub type Stat = unsafe extern "C" fn(*const c_char, *mut libc::stat) -> c_int;
    pub type OldStat = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat) -> c_int;
    pub type StatAt = unsafe extern "C" fn(c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    pub type OldStatAt =
        unsafe extern "C" fn(c_int, c_int, *const c_char, *mut libc::stat, c_int) -> c_int;
    pub type Statx =
        unsafe extern "C" fn(c_int, *const c_char, c_int, c_uint, *mut libc::statx) -> c_int;
    pub type Access = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    pub type AccessAt = unsafe extern "C" fn(c_int, *const c_char, c_int, c_int) -> c_int;
    pub type ReadLink = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
    pub type ReadLinkAt = unsafe extern "C" fn(c_int, *const c_char, *mut c_char, usize) -> isize;
    pub type CheckedReadLink =
        unsafe extern "C" fn(*const c_char, *mut c_char, usize, usize) -> isize;
    pub type CheckedReadLinkAt =
        unsafe extern "C" fn(c_int, *const c_char, *mut c_char, usize, usize) -> isize;
    pub type RealPath = unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char;
    pub type CheckedRealPath =
        unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> *mut c_char;
    pub type GetAttribute =
        unsafe extern "C" fn(*const c_char, *const c_char, *mut c_void, usize) -> isize;
    pub type ListAttributes = unsafe extern "C" fn(*const c_char, *mut c_char, usize) -> isize;
    pub type OpenDir = unsafe extern "C" fn(*const c_char) -> *mut libc::DIR;
    pub type FdOpenDir = unsafe extern "C" fn(c_int) -> *mut libc::DIR;
    pub type ReadDir = unsafe extern "C" fn(*mut libc::DIR) -> *mut libc::dirent64;
    pub type ReadDirInto = unsafe extern "C" fn(
        *mut libc::DIR,
        *mut libc::dirent64,
        *mut *mut libc::dirent64,
    ) -> c_int;
    pub type OfDir = unsafe extern "C" fn(*mut libc::DIR) -> c_int;
    pub type RewindDir = unsafe extern "C" fn(*mut libc::DIR);
    pub type TellDir = unsafe extern "C" fn(*mut libc::DIR) -> c_long;
    pub type SeekDir = unsafe extern "C" fn(*mut libc::DIR, c_long);
    pub type ScanDir = unsafe extern "C" fn(*const c_char, *mut Entries, Filter, Compare) -> c_int;
    pub type ScanDirAt =
        unsafe extern "C" fn(c_int, *const c_char, *mut Entries, Filter, Compare) -> c_int;
    pub type Glob = unsafe extern "C" fn(*const c_char, c_int, OnError, *mut Matches) -> c_int;
    pub type Ftw = unsafe extern "C" fn(*const c_char, OnName, c_int) -> c_int;
    pub type Nftw = unsafe extern "C" fn(*const c_char, OnNewName, c_int, c_int) -> c_int;
    pub type Write = unsafe extern "C" fn(c_int, *const c_void, usize) -> isize;
    pub type Close = unsafe extern "C" fn(c_int) -> c_int;
    pub type Dup = unsafe extern "C" fn(c_int) -> c_int;
    pub type Dup2 = unsafe extern "C" fn(c_int, c_int) -> c_int;
    pub type Dup3 = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    pub type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
    pub type Ioctl = unsafe extern "C" fn(c_int, c_ulong, ...) -> c_int;
    pub type CloseRange = unsafe extern "C" fn(c_uint, c_uint, c_int) -> c_int;
    pub type CloseFrom = unsafe extern "C" fn(c_int);
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

macro_rules! calls {
    ($($name:ident: $ty:ty;)*) => {
        /// Addresses of the calls, 0 until they are looked up.
        pub struct Real { $($name: AtomicUsize,)* }

        /// The calls of this process.
        pub static REAL: Real = Real { $($name: AtomicUsize::new(0),)* };

        impl Real {
            /// Looks all of them up.
            pub fn load(&self) {
                $(let _ = find(&self.$name, name(concat!(stringify!($name), "\0")));)*
            }

            $(
                #[inline]
                pub fn $name(&self) -> $ty {
                    let at = match self.$name.load(Ordering::Relaxed) {
                        0 => must(find(&self.$name, name(concat!(stringify!($name), "\0")))),
                        at => at,
                    };
                    // SAFETY: not 0, and the address of the C library's function of this name, or
                    // of another interposer's, which has the same type.
                    unsafe { core::mem::transmute::<usize, $ty>(at) }
                }
            )*
        }
    };
}

calls! {
    open: next::Open;
    open64: next::Open;
    __open_2: next::CheckedOpen;
    __open64_2: next::CheckedOpen;
    openat: next::OpenAt;
    openat64: next::OpenAt;
    __openat_2: next::CheckedOpenAt;
    __openat64_2: next::CheckedOpenAt;
    fopen: next::Fopen;
    fopen64: next::Fopen;
    fstat: next::Fstat;
    fstat64: next::Fstat;
    __fxstat: next::OldFstat;
    __fxstat64: next::OldFstat;
    stat: next::Stat;
    stat64: next::Stat;
    __xstat: next::OldStat;
    __xstat64: next::OldStat;
    lstat: next::Stat;
    lstat64: next::Stat;
    __lxstat: next::OldStat;
    __lxstat64: next::OldStat;
    fstatat: next::StatAt;
    fstatat64: next::StatAt;
    __fxstatat: next::OldStatAt;
    __fxstatat64: next::OldStatAt;
    statx: next::Statx;
    access: next::Access;
    euidaccess: next::Access;
    eaccess: next::Access;
    faccessat: next::AccessAt;
    readlink: next::ReadLink;
    readlinkat: next::ReadLinkAt;
    __readlink_chk: next::CheckedReadLink;
    __readlinkat_chk: next::CheckedReadLinkAt;
    realpath: next::RealPath;
    __realpath_chk: next::CheckedRealPath;
    getxattr: next::GetAttribute;
    lgetxattr: next::GetAttribute;
    listxattr: next::ListAttributes;
    llistxattr: next::ListAttributes;
    opendir: next::OpenDir;
    fdopendir: next::FdOpenDir;
    readdir: next::ReadDir;
    readdir64: next::ReadDir;
    readdir_r: next::ReadDirInto;
    readdir64_r: next::ReadDirInto;
    closedir: next::OfDir;
    dirfd: next::OfDir;
    rewinddir: next::RewindDir;
    telldir: next::TellDir;
    seekdir: next::SeekDir;
    scandir: next::ScanDir;
    scandir64: next::ScanDir;
    scandirat: next::ScanDirAt;
    scandirat64: next::ScanDirAt;
    glob: next::Glob;
    glob64: next::Glob;
    ftw: next::Ftw;
    ftw64: next::Ftw;
    nftw: next::Nftw;
    nftw64: next::Nftw;
    write: next::Write;
    close: next::Close;
    dup: next::Dup;
    dup2: next::Dup2;
    dup3: next::Dup3;
    fcntl: next::Fcntl;
    fcntl64: next::Fcntl;
    ioctl: next::Ioctl;
    close_range: next::CloseRange;
    closefrom: next::CloseFrom;
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
