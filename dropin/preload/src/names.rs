//! Names of the drop-in's devices in the file system: `/dev/infiniband/uverbs<n>`, which UCX looks at although only libibverbs
//! would open it, and `/sys/class/infiniband/gdrc<n>/…`, where programs learn what a GID is. Which names there are, and what
//! the files hold, the drop-in knows.

use crate::real::REAL;
use crate::{fail, of_the_drop_in, stat_as};
use core::ffi::{c_char, c_int, CStr};
use core::sync::atomic::{AtomicPtr, Ordering};

/// What the drop-in offers, under the name `gdrc_names_1`.
#[repr(C)]
struct Table {
    /// What a name is: nothing, a device, a file.
    kind: unsafe extern "C" fn(*const c_char) -> c_int,
    /// Opens a file; the flags are those of open(2), an error is a negative errno.
    open: unsafe extern "C" fn(*const c_char, c_int) -> c_int,
}

const NODE: c_int = 1;
const FILE: c_int = 2;

static TABLE: AtomicPtr<Table> = AtomicPtr::new(core::ptr::null_mut());

/// The drop-in's table, where a name is one that it may know.
///
/// # Safety
/// A C string, or null.
unsafe fn table_for(path: *const c_char) -> Option<&'static Table> {
    const BEGINNINGS: [&CStr; 2] = [c"/dev/infiniband/", c"/sys/class/infiniband/"];
    // All but a few names end here.
    // SAFETY: the caller's promise; the comparison ends where either string does.
    let known = |b: &CStr| unsafe { libc::strncmp(path, b.as_ptr(), b.count_bytes()) } == 0;
    if path.is_null() || !BEGINNINGS.into_iter().any(known) {
        return None;
    }
    let mut at = TABLE.load(Ordering::Acquire);
    if at.is_null() {
        at = of_the_drop_in(c"gdrc_names_1").cast();
        TABLE.store(at, Ordering::Release);
    }
    // SAFETY: null, or a table of this layout, which its name stands for and which never changes.
    unsafe { at.as_ref() }
}

/// What a name is; neither `NODE` nor `FILE`: nothing of the drop-in's.
///
/// # Safety
/// A C string, or null.
unsafe fn kind(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise; not null where there is a table.
    unsafe { table_for(path).map_or(0, |t| (t.kind)(path)) }
}

/// Opens a name of the drop-in's; `None`: it is not one that can be opened there.
///
/// # Safety
/// A C string, or null.
pub unsafe fn open(path: *const c_char, flags: c_int) -> Option<c_int> {
    // SAFETY: the caller's promise; not null where there is a table.
    unsafe {
        let t = table_for(path).filter(|t| (t.kind)(path) == FILE)?;
        let fd = (t.open)(path, flags);
        Some(if fd < 0 { fail(-fd) } else { fd })
    }
}

/// stat(2) of a name of the drop-in's; `None`: it is not one.
///
/// # Safety
/// As stat(2).
unsafe fn look(path: *const c_char, st: *mut libc::stat) -> Option<c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        match kind(path) {
            NODE => Some(stat_as(libc::S_IFCHR | 0o666, st)),
            FILE => Some(stat_as(libc::S_IFREG | 0o444, st)),
            _ => None,
        }
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident($($version:ident)?);)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As stat(2).
        #[no_mangle]
        pub unsafe extern "C" fn $name($($version: c_int,)? path: *const c_char, st: *mut libc::stat) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { look(path, st).unwrap_or_else(|| (REAL.$name())($($version,)? path, st)) }
        }
    )* };
}

stats! {
    /// stat(2).
    stat();
    /// stat(2) for large files; the same struct on 64-bit systems.
    stat64();
    /// stat(2) of programs that were linked before glibc 2.33.
    __xstat(version);
    /// stat(2) for large files of programs that were linked before glibc 2.33.
    __xstat64(version);
}

/// access(2): anybody may read and write a device, and read a file.
///
/// # Safety
/// As access(2).
#[no_mangle]
pub unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    // SAFETY: the program's own arguments.
    unsafe {
        let refused = match kind(path) {
            NODE => libc::X_OK,
            FILE => libc::X_OK | libc::W_OK,
            _ => return (REAL.access())(path, mode),
        };
        if mode & refused == 0 {
            0
        } else {
            fail(libc::EACCES)
        }
    }
}
