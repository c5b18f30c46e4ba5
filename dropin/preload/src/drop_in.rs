//! Finds the drop-in in the process, and declares the tables of functions that it exports.

use core::ffi::{c_char, c_int, c_ulong, c_void, CStr};
use core::marker::PhantomData;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The drop-in's name in the process.
const LIBRARY: &CStr = c"libibverbs.so.1";
/// Longest path with its NUL.
pub const PATH_MAX: usize = 4096;

/// The table `gdrc_ucma_1`: calls on librdmacm's device file. Errors are negative errno.
#[repr(C)]
pub struct Ucma {
    /// Opens the device file; the flags are those of open(2).
    pub open: unsafe extern "C" fn(c_int) -> c_int,
    /// Writes one command.
    pub write: unsafe extern "C" fn(c_int, *const c_void, usize) -> isize,
    /// Called before the file's owner closes the descriptor.
    pub close: unsafe extern "C" fn(c_int),
}

/// The table `gdrc_names_2`: calls on the files of the drop-in's devices. Errors are negative
/// errno.
#[repr(C)]
pub struct Names {
    /// The kind of an absolute path: 0 (no name of the drop-in) or one of [`kind`]. With the flag,
    /// follows a link at the end.
    pub look: unsafe extern "C" fn(*const c_char, c_int, *mut PathInfo) -> c_int,
    /// The names in a folder, by its canonical path. Each has eight bytes of its inode, one of its
    /// [`kind`], the name, and a zero. Returns the size of all, and writes them if there is room
    /// for all.
    pub list: unsafe extern "C" fn(*const c_char, *mut u8, usize) -> isize,
    /// Opens a file or folder by its canonical path; the flags are those of open(2).
    pub open: unsafe extern "C" fn(*const c_char, c_int) -> c_int,
}

/// The table `gdrc_umad_1`: calls on libibumad's files. Errors are negative errno.
#[repr(C)]
pub struct Umad {
    /// ioctl(2) that the kernel has refused.
    pub ioctl: unsafe extern "C" fn(c_int, c_ulong, u64) -> c_int,
}

/// Kinds of paths.
pub mod kind {
    use core::ffi::c_int;
    /// A name of the kernel that the kernel has under another path.
    pub const MOVED: c_int = 1;
    pub const DEVICE: c_int = 2;
    pub const FILE: c_int = 3;
    pub const FOLDER: c_int = 4;
    pub const LINK: c_int = 5;
}

/// Further attributes of a path.
#[repr(C)]
pub struct PathInfo {
    /// For a folder: whether it also contains the kernel's names.
    pub merged: u32,
    /// For a device; 0 and 0 is the connection manager's.
    pub major: u32,
    pub minor: u32,
    pub inode: u64,
    /// The canonical path; for a name of the kernel, the path under which the kernel has it.
    pub path: [c_char; PATH_MAX],
    /// The target of a link.
    pub target: [c_char; PATH_MAX],
}

impl PathInfo {
    /// Room for an answer.
    pub const fn new() -> Self {
        PathInfo {
            merged: 0,
            major: 0,
            minor: 0,
            inode: 0,
            path: [0; PATH_MAX],
            target: [0; PATH_MAX],
        }
    }
}

/// A table of the drop-in, looked up at its first use.
pub struct Table<T: 'static> {
    at: AtomicPtr<c_void>,
    name: &'static CStr,
    /// Whether to load the drop-in if the process has no libibverbs yet.
    load: bool,
    what: PhantomData<&'static T>,
}

/// The tables of this process.
pub static UCMA: Table<Ucma> = Table::new(c"gdrc_ucma_1", false);
pub static NAMES: Table<Names> = Table::new(c"gdrc_names_2", true);
pub static UMAD: Table<Umad> = Table::new(c"gdrc_umad_1", false);

impl<T> Table<T> {
    const fn new(name: &'static CStr, load: bool) -> Self {
        Table { at: AtomicPtr::new(core::ptr::null_mut()), name, load, what: PhantomData }
    }

    /// The table, if the process has the drop-in and not another libibverbs.
    pub fn get(&self) -> Option<&'static T> {
        let mut at = self.at.load(Ordering::Acquire);
        if at.is_null() {
            at = self.find();
            self.at.store(at, Ordering::Release);
        }
        // SAFETY: null, or a table of this layout, which its name stands for and which never
        // changes.
        unsafe { at.cast::<T>().as_ref() }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: constant names; NOLOAD loads nothing, and the handle is kept, so the library
        // stays.
        unsafe {
            let mut library = libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            if library.is_null() && self.load {
                library = beside_this_library();
            }
            if library.is_null() {
                return core::ptr::null_mut();
            }
            libc::dlsym(library, self.name.as_ptr())
        }
    }
}

/// Loads the drop-in from the folder of this library, so that programs without verbs, such as `ls`,
/// see the devices' files as well.
fn beside_this_library() -> *mut c_void {
    // SAFETY: zeroes are a valid Dl_info, which lives through the call; the name in it lives as
    // long as this library.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr((&raw const NAMES).cast(), &mut info) == 0 || info.dli_fname.is_null() {
            return core::ptr::null_mut();
        }
        let own = CStr::from_ptr(info.dli_fname).to_bytes();
        let folder = own.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
        let mut path = [0u8; PATH_MAX];
        let library = LIBRARY.to_bytes_with_nul();
        let Some(to) = path.get_mut(..folder + library.len()) else { return core::ptr::null_mut() };
        to[..folder].copy_from_slice(&own[..folder]);
        to[folder..].copy_from_slice(library);
        libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL)
    }
}
