//! What the drop-in and its preloaded library share: tables of functions, which the drop-in exports
//! and the library looks up by name and version.

use core::ffi::{c_char, c_int, c_ulong, c_void};

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
    /// A device file.
    pub const DEVICE: c_int = 2;
    /// A regular file.
    pub const FILE: c_int = 3;
    /// A folder.
    pub const FOLDER: c_int = 4;
    /// A symbolic link.
    pub const LINK: c_int = 5;
}

/// Further attributes of a path.
#[repr(C)]
pub struct PathInfo {
    /// For a folder: whether it also contains the kernel's names.
    pub merged: u32,
    /// For a device, as `minor`; 0 and 0 is the connection manager's.
    pub major: u32,
    /// See `major`.
    pub minor: u32,
    /// Unique among the drop-in's names.
    pub inode: u64,
    /// The canonical path; for a name of the kernel, the path under which the kernel has it.
    pub path: [c_char; PATH_MAX],
    /// The target of a link.
    pub target: [c_char; PATH_MAX],
}

impl PathInfo {
    /// Room for an answer.
    pub const EMPTY: PathInfo = PathInfo {
        merged: 0,
        major: 0,
        minor: 0,
        inode: 0,
        path: [0; PATH_MAX],
        target: [0; PATH_MAX],
    };
}
