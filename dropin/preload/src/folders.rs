//! Listing folders: opendir, readdir and their like.
//!
//! An open folder of the drop-in has one of a fixed number of slots in this library. So the address
//! of its `DIR` distinguishes it from the C library's.

use crate::descriptor_calls::{close, open_ours};
use crate::drop_in::NAMES;
use crate::fail;
use crate::path_route::{descriptor, lead};
use crate::real::REAL;
use core::cell::UnsafeCell;
use core::ffi::{c_char, c_int, c_long, CStr};
use core::sync::atomic::{AtomicBool, Ordering};
use gdrcore_calls::preload::{kind, PathInfo};
use std::ffi::CString;

/// Folders that may be open at a time.
const SLOTS: usize = 256;

/// A slot for an open folder.
pub struct FolderSlot {
    taken: AtomicBool,
    folder: UnsafeCell<Option<Folder>>,
}

// SAFETY: only the thread that has taken the slot, or that uses the `DIR`, accesses the folder;
// readdir(3) allows one thread.
unsafe impl Sync for FolderSlot {}

static FOLDERS: [FolderSlot; SLOTS] =
    [const { FolderSlot { taken: AtomicBool::new(false), folder: UnsafeCell::new(None) } }; SLOTS];

/// An open folder, with the names that were in it when it was opened.
pub struct Folder {
    fd: c_int,
    names: Vec<FolderEntry>,
    at: usize,
    /// The entry that readdir(3) returned last.
    entry: libc::dirent64,
}

/// A name in a folder.
pub struct FolderEntry {
    pub name: CString,
    pub inode: u64,
    /// `DT_REG` and its like.
    pub kind: u8,
}

impl FolderEntry {
    /// As readdir(3) writes it.
    pub fn entry(&self, next: usize) -> libc::dirent64 {
        // SAFETY: integers only.
        let mut e: libc::dirent64 = unsafe { core::mem::zeroed() };
        e.d_ino = self.inode;
        e.d_off = next as i64;
        e.d_type = self.kind;
        e.d_reclen = size_of::<libc::dirent64>() as u16;
        for (to, from) in e.d_name.iter_mut().zip(self.name.to_bytes_with_nul()) {
            *to = *from as c_char;
        }
        e
    }
}

fn type_of(kind: c_int) -> u8 {
    match kind {
        kind::DEVICE => libc::DT_CHR,
        kind::FOLDER => libc::DT_DIR,
        kind::LINK => libc::DT_LNK,
        kind::FILE => libc::DT_REG,
        _ => libc::DT_UNKNOWN,
    }
}

/// The names in a folder of the drop-in, with `.` and `..`, and the kernel's names there.
pub fn names_in(seen: &PathInfo) -> Option<Vec<FolderEntry>> {
    let table = NAMES.get()?;
    let path = seen.path.as_ptr();
    let mut bytes: Vec<u8> = vec![0; 4096];
    loop {
        // SAFETY: the table's function, a path that it gave, and room of the length that is given.
        let n =
            usize::try_from(unsafe { (table.list)(path, bytes.as_mut_ptr(), bytes.len()) }).ok()?;
        let fits = n <= bytes.len();
        bytes.resize(n, 0);
        if fits {
            break;
        }
    }
    let folder =
        |name: &CStr| FolderEntry { name: name.into(), inode: seen.inode, kind: libc::DT_DIR };
    let mut names = vec![folder(c"."), folder(c"..")];
    let mut rest = bytes.as_slice();
    while let Some((inode, behind)) = rest.split_first_chunk() {
        let (kind, behind) = behind.split_first()?;
        let name = CStr::from_bytes_until_nul(behind).ok()?;
        rest = behind.get(name.to_bytes_with_nul().len()..)?;
        names.push(FolderEntry {
            name: name.into(),
            inode: u64::from_ne_bytes(*inode),
            kind: type_of((*kind).into()),
        });
    }
    if seen.merged != 0 {
        // SAFETY: a path of the drop-in's, terminated; the entries are read before the next call.
        unsafe {
            let dir = (REAL.opendir())(path);
            while let Some(e) = (!dir.is_null()).then(|| (REAL.readdir64())(dir).as_ref()).flatten()
            {
                let name = CStr::from_ptr(e.d_name.as_ptr());
                if names.iter().all(|n| n.name.as_c_str() != name) {
                    names.push(FolderEntry { name: name.into(), inode: e.d_ino, kind: e.d_type });
                }
            }
            if !dir.is_null() {
                (REAL.closedir())(dir);
            }
        }
    }
    Some(names)
}

/// The folder behind a `DIR`; `None`: it is the C library's.
///
/// # Safety
/// The program's `DIR`, which no other thread uses.
#[inline]
unsafe fn folder_of<'a>(dir: *mut libc::DIR) -> Option<&'a mut Folder> {
    let from = FOLDERS.as_ptr() as usize;
    let at = (dir as usize).checked_sub(from)?;
    let place = FOLDERS.get(at / size_of::<FolderSlot>())?;
    // SAFETY: the caller's promise.
    unsafe { (*place.folder.get()).as_mut() }
}

/// Puts an open folder into a free slot.
fn place(folder: Folder) -> *mut libc::DIR {
    for p in &FOLDERS {
        if !p.taken.swap(true, Ordering::Acquire) {
            // SAFETY: the place is this thread's.
            unsafe { *p.folder.get() = Some(folder) };
            return (&raw const *p).cast_mut().cast();
        }
    }
    // SAFETY: the folder's own descriptor, which nobody else knows.
    unsafe { close(folder.fd) };
    fail(libc::EMFILE);
    core::ptr::null_mut()
}

/// Makes a `DIR` of a folder of the drop-in, and takes over its descriptor.
fn open_over(fd: c_int, seen: &PathInfo) -> *mut libc::DIR {
    let Some(names) = names_in(seen) else {
        // SAFETY: the descriptor is ours by now.
        unsafe { close(fd) };
        fail(libc::ENOENT);
        return core::ptr::null_mut();
    };
    // SAFETY: integers only.
    let entry = unsafe { core::mem::zeroed() };
    place(Folder { fd, names, at: 0, entry })
}

/// opendir(3).
///
/// # Safety
/// As opendir(3).
#[no_mangle]
pub unsafe extern "C" fn opendir(path: *const c_char) -> *mut libc::DIR {
    // SAFETY: the program's own argument.
    unsafe {
        lead(
            libc::AT_FDCWD,
            path,
            true,
            |path| (REAL.opendir())(path),
            |kind, seen| {
                let none = core::ptr::null_mut();
                if kind != kind::FOLDER {
                    fail(libc::ENOTDIR);
                    return none;
                }
                let fd =
                    open_ours(kind, seen, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
                if fd < 0 {
                    none
                } else {
                    open_over(fd, seen)
                }
            },
        )
    }
}

/// fdopendir(3).
///
/// # Safety
/// As fdopendir(3).
#[no_mangle]
pub unsafe extern "C" fn fdopendir(fd: c_int) -> *mut libc::DIR {
    let opened = descriptor(fd, |kind, seen| {
        if kind == kind::FOLDER {
            open_over(fd, seen)
        } else {
            fail(libc::ENOTDIR);
            core::ptr::null_mut()
        }
    });
    // SAFETY: the program's own argument.
    opened.unwrap_or_else(|| unsafe { (REAL.fdopendir())(fd) })
}

macro_rules! readdirs {
    ($($(#[$doc:meta])* $name:ident, $into:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As readdir(3).
        #[no_mangle]
        pub unsafe extern "C" fn $name(dir: *mut libc::DIR) -> *mut libc::dirent64 {
            // SAFETY: the program's own argument.
            unsafe {
                match folder_of(dir) {
                    Some(f) => f.next().map_or(core::ptr::null_mut(), |e| e),
                    None => (REAL.$name())(dir),
                }
            }
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// As readdir_r(3).
        #[no_mangle]
        pub unsafe extern "C" fn $into(
            dir: *mut libc::DIR,
            entry: *mut libc::dirent64,
            result: *mut *mut libc::dirent64,
        ) -> c_int {
            // SAFETY: the program's own arguments; its entry has room for the longest name.
            unsafe {
                let Some(f) = folder_of(dir) else { return (REAL.$into())(dir, entry, result) };
                match f.next() {
                    Some(e) => {
                        *entry = *e;
                        *result = entry;
                    }
                    None => *result = core::ptr::null_mut(),
                }
                0
            }
        }
    )* };
}

readdirs! {
    /// readdir(3), and into the program's own entry.
    readdir, readdir_r;
    /// readdir(3) for large files, and into the program's own entry; the same struct on 64-bit
    /// systems.
    readdir64, readdir64_r;
}

impl Folder {
    fn next(&mut self) -> Option<&mut libc::dirent64> {
        self.entry = self.names.get(self.at)?.entry(self.at + 1);
        self.at += 1;
        Some(&mut self.entry)
    }
}

/// closedir(3).
///
/// # Safety
/// As closedir(3).
#[no_mangle]
pub unsafe extern "C" fn closedir(dir: *mut libc::DIR) -> c_int {
    // SAFETY: the program's own argument, which it may not use any more.
    unsafe {
        let Some(f) = folder_of(dir) else { return (REAL.closedir())(dir) };
        let fd = f.fd;
        let place = &*dir.cast::<FolderSlot>();
        drop((*place.folder.get()).take());
        place.taken.store(false, Ordering::Release);
        close(fd)
    }
}

/// dirfd(3).
///
/// # Safety
/// As dirfd(3).
#[no_mangle]
pub unsafe extern "C" fn dirfd(dir: *mut libc::DIR) -> c_int {
    // SAFETY: the program's own argument.
    unsafe { folder_of(dir).map_or_else(|| (REAL.dirfd())(dir), |f| f.fd) }
}

/// rewinddir(3).
///
/// # Safety
/// As rewinddir(3).
#[no_mangle]
pub unsafe extern "C" fn rewinddir(dir: *mut libc::DIR) {
    // SAFETY: the program's own argument.
    unsafe {
        match folder_of(dir) {
            Some(f) => f.at = 0,
            None => (REAL.rewinddir())(dir),
        }
    }
}

/// telldir(3).
///
/// # Safety
/// As telldir(3).
#[no_mangle]
pub unsafe extern "C" fn telldir(dir: *mut libc::DIR) -> c_long {
    // SAFETY: the program's own argument.
    unsafe { folder_of(dir).map_or_else(|| (REAL.telldir())(dir), |f| f.at as c_long) }
}

/// seekdir(3).
///
/// # Safety
/// As seekdir(3).
#[no_mangle]
pub unsafe extern "C" fn seekdir(dir: *mut libc::DIR, at: c_long) {
    // SAFETY: the program's own arguments.
    unsafe {
        match folder_of(dir) {
            Some(f) => f.at = usize::try_from(at).unwrap_or(usize::MAX),
            None => (REAL.seekdir())(dir, at),
        }
    }
}
