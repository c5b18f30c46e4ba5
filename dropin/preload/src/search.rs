//! The C library's calls that walk folders internally: scandir, glob, ftw and nftw.

use crate::fail;
use crate::folders::{closedir, names_in, opendir, readdir64};
use crate::names::{lstat, stat};
use crate::path_route::lead;
use crate::real::{
    Compare, Entries, Filter, Matches, OnError, OnName, OnNewName, WalkPosition, REAL,
};
use core::ffi::{c_char, c_int, c_void, CStr};
use core::mem::offset_of;
use gdrcore_calls::preload::{kind, PathInfo};
use std::ffi::CString;

/// scandir(3) of a folder of the drop-in.
///
/// # Safety
/// The program's functions and its pointer.
unsafe fn scan(
    kind: c_int,
    seen: &PathInfo,
    to: *mut Entries,
    filter: Filter,
    compare: Compare,
) -> c_int {
    let names = match kind {
        kind::FOLDER => names_in(seen),
        _ => return fail(libc::ENOTDIR),
    };
    let Some(names) = names else { return fail(libc::ENOENT) };
    let mut all: Vec<*mut libc::dirent64> = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let mut entry = name.entry(at + 1);
        let size = offset_of!(libc::dirent64, d_name) + name.name.as_bytes_with_nul().len();
        entry.d_reclen = size as u16;
        // SAFETY: the program's function, and an entry that lives through the call.
        if filter.is_some_and(|f| unsafe { f(&entry) } == 0) {
            continue;
        }
        // SAFETY: malloc takes any size; what is copied is within both. The program frees it.
        unsafe {
            let copy = libc::malloc(size);
            if !copy.is_null() {
                core::ptr::copy_nonoverlapping((&raw const entry).cast::<u8>(), copy.cast(), size);
            }
            all.push(copy.cast());
        }
    }
    // SAFETY: as above.
    unsafe {
        let array = libc::malloc((all.len().max(1)) * size_of::<*mut libc::dirent64>())
            .cast::<*mut libc::dirent64>();
        if array.is_null() || all.iter().any(|e| e.is_null()) {
            all.iter().for_each(|e| libc::free(e.cast()));
            libc::free(array.cast());
            return fail(libc::ENOMEM);
        }
        if let Some(compare) = compare {
            all.sort_by(|a, b| {
                let (mut a, mut b) = (a.cast_const(), b.cast_const());
                compare(&mut a, &mut b).cmp(&0)
            });
        }
        core::ptr::copy_nonoverlapping(all.as_ptr(), array, all.len());
        *to = array;
    }
    all.len() as c_int
}

macro_rules! scandirs {
    ($($(#[$doc:meta])* $name:ident($($dir:ident)?);)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As scandir(3).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            $($dir: c_int,)?
            path: *const c_char,
            to: *mut Entries,
            filter: Filter,
            compare: Compare,
        ) -> c_int {
            let from = [$($dir,)? libc::AT_FDCWD][0];
            // SAFETY: the program's own arguments.
            unsafe {
                let kernel = |path| (REAL.$name())($($dir,)? path, to, filter, compare);
                lead(from, path, true, kernel, |kind, seen| scan(kind, seen, to, filter, compare))
            }
        }
    )* };
}

scandirs! {
    /// scandir(3).
    scandir();
    /// scandir(3) for large files; the same struct on 64-bit systems.
    scandir64();
    /// scandirat(3).
    scandirat(dir);
    /// scandirat(3) for large files.
    scandirat64(dir);
}

/// `GLOB_ALTDIRFUNC`: glob reads folders by functions in its struct.
const BY_FUNCTIONS: c_int = 1 << 9;

unsafe extern "C" fn glob_close(dir: *mut c_void) {
    // SAFETY: what `glob_open` gave.
    unsafe { closedir(dir.cast()) };
}

unsafe extern "C" fn glob_read(dir: *mut c_void) -> *mut libc::dirent64 {
    // SAFETY: what `glob_open` gave.
    unsafe { readdir64(dir.cast()) }
}

unsafe extern "C" fn glob_open(path: *const c_char) -> *mut c_void {
    // SAFETY: the C library's string.
    unsafe { opendir(path) }.cast()
}

unsafe extern "C" fn glob_lstat(path: *const c_char, st: *mut c_void) -> c_int {
    // SAFETY: the C library's string and struct.
    unsafe { lstat(path, st.cast()) }
}

unsafe extern "C" fn glob_stat(path: *const c_char, st: *mut c_void) -> c_int {
    // SAFETY: the C library's string and struct.
    unsafe { stat(path, st.cast()) }
}

/// Makes the C library's glob use the functions of this library.
///
/// # Safety
/// As glob(3); `real` is the C library's.
unsafe fn glob_with(
    real: unsafe extern "C" fn(*const c_char, c_int, OnError, *mut Matches) -> c_int,
    pattern: *const c_char,
    flags: c_int,
    on_error: OnError,
    to: *mut Matches,
) -> c_int {
    // SAFETY: the program's own arguments; its struct is written where it would otherwise be
    // ignored.
    unsafe {
        let near = |p: &[u8]| p.starts_with(b"/sys/") || p.starts_with(b"/dev/infiniband");
        let ours = !pattern.is_null() && !to.is_null() && near(CStr::from_ptr(pattern).to_bytes());
        if !ours || flags & BY_FUNCTIONS != 0 {
            return real(pattern, flags, on_error, to);
        }
        (*to).closedir = Some(glob_close);
        (*to).readdir = Some(glob_read);
        (*to).opendir = Some(glob_open);
        (*to).lstat = Some(glob_lstat);
        (*to).stat = Some(glob_stat);
        let done = real(pattern, flags | BY_FUNCTIONS, on_error, to);
        (*to).flags &= !BY_FUNCTIONS;
        done
    }
}

macro_rules! globs {
    ($($(#[$doc:meta])* $name:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As glob(3).
        #[no_mangle]
        pub unsafe extern "C" fn $name(
            pattern: *const c_char,
            flags: c_int,
            on_error: OnError,
            to: *mut Matches,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe { glob_with(REAL.$name(), pattern, flags, on_error, to) }
        }
    )* };
}

globs! {
    /// glob(3).
    glob;
    /// glob(3) for large files; the same struct on 64-bit systems.
    glob64;
}

/// `FTW_F` and its like.
mod entry_type {
    use core::ffi::c_int;
    pub const FILE: c_int = 0;
    pub const FOLDER: c_int = 1;
    pub const NO_STAT: c_int = 3;
    pub const LINK: c_int = 4;
    pub const FOLDER_DONE: c_int = 5;
    pub const BROKEN_LINK: c_int = 6;
}

/// `FTW_PHYS`: links are not followed. `FTW_DEPTH`: a folder comes after its contents.
/// `FTW_ACTIONRETVAL`, and the results of the function that it allows.
const PHYSICAL: c_int = 1;
const DEPTH: c_int = 8;
const ACTIONS: c_int = 16;
const SKIP_SUBTREE: c_int = 2;
const SKIP_SIBLINGS: c_int = 3;

/// A walk through folders of the drop-in.
struct Walk<'a> {
    flags: c_int,
    call: &'a dyn Fn(&CStr, &libc::stat, c_int, WalkPosition) -> c_int,
    /// Folders that were visited, if links are followed, which may lead back.
    seen: Vec<u64>,
}

impl Walk<'_> {
    /// The last result of the program's function. The walk ends when it is not 0.
    fn visit(&mut self, path: &CStr, level: c_int) -> c_int {
        // SAFETY: integers only, and a struct that lives through the calls.
        let (st, there) = unsafe {
            let mut st: libc::stat = core::mem::zeroed();
            let physical = self.flags & PHYSICAL != 0;
            let mut done =
                if physical { lstat(path.as_ptr(), &mut st) } else { stat(path.as_ptr(), &mut st) };
            let broken = done != 0 && !physical && lstat(path.as_ptr(), &mut st) == 0;
            done = if broken { 1 } else { done };
            (st, done)
        };
        let bytes = path.to_bytes();
        let base = bytes.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1) as c_int;
        let what = match (there, st.st_mode & libc::S_IFMT) {
            (0, libc::S_IFDIR) => return self.folder(path, &st, WalkPosition { base, level }),
            (0, libc::S_IFLNK) => entry_type::LINK,
            (0, _) => entry_type::FILE,
            (1, _) => entry_type::BROKEN_LINK,
            _ => entry_type::NO_STAT,
        };
        (self.call)(path, &st, what, WalkPosition { base, level })
    }

    fn folder(&mut self, path: &CStr, st: &libc::stat, place: WalkPosition) -> c_int {
        if self.flags & PHYSICAL == 0 {
            if self.seen.contains(&st.st_ino) {
                return 0;
            }
            self.seen.push(st.st_ino);
        }
        let WalkPosition { base, level } = place;
        let deep = self.flags & DEPTH != 0;
        if !deep {
            match (self.call)(path, st, entry_type::FOLDER, WalkPosition { base, level }) {
                0 => {}
                SKIP_SUBTREE if self.flags & ACTIONS != 0 => return 0,
                other => return other,
            }
        }
        for name in names_below(path) {
            match self.visit(&name, level + 1) {
                0 => {}
                SKIP_SUBTREE if self.flags & ACTIONS != 0 => {}
                SKIP_SIBLINGS if self.flags & ACTIONS != 0 => break,
                other => return other,
            }
        }
        match deep {
            true => (self.call)(path, st, entry_type::FOLDER_DONE, WalkPosition { base, level }),
            false => 0,
        }
    }
}

/// The paths of a folder's contents.
fn names_below(folder: &CStr) -> Vec<CString> {
    let mut all = Vec::new();
    // SAFETY: terminated strings; entries are read before the next call.
    unsafe {
        let dir = opendir(folder.as_ptr());
        while let Some(e) = (!dir.is_null()).then(|| readdir64(dir).as_ref()).flatten() {
            let name = CStr::from_ptr(e.d_name.as_ptr()).to_bytes();
            if name != b"." && name != b".." {
                let path = [folder.to_bytes(), b"/", name].concat();
                all.extend(CString::new(path));
            }
        }
        if !dir.is_null() {
            closedir(dir);
        }
    }
    all
}

/// Walks from a path of the drop-in.
///
/// # Safety
/// A C string.
unsafe fn walk(
    path: *const c_char,
    flags: c_int,
    call: &dyn Fn(&CStr, &libc::stat, c_int, WalkPosition) -> c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    let done = Walk { flags, call, seen: Vec::new() }.visit(path, 0);
    match done {
        SKIP_SUBTREE | SKIP_SIBLINGS if flags & ACTIONS != 0 => 0,
        done => done,
    }
}

macro_rules! walks {
    ($($(#[$doc:meta])* $old:ident, $new:ident;)*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// As ftw(3).
        #[no_mangle]
        pub unsafe extern "C" fn $old(path: *const c_char, call: OnName, open: c_int) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let kernel = |path| (REAL.$old())(path, call, open);
                lead(libc::AT_FDCWD, path, true, kernel, |_, _| {
                    let Some(call) = call else { return fail(libc::EINVAL) };
                    walk(path, 0, &|path, st, what, _| {
                        // The old call has no type for links.
                        let what = what.min(entry_type::NO_STAT);
                        call(path.as_ptr(), st, what)
                    })
                })
            }
        }

        $(#[$doc])*
        ///
        /// # Safety
        /// As nftw(3).
        #[no_mangle]
        pub unsafe extern "C" fn $new(
            path: *const c_char,
            call: OnNewName,
            open: c_int,
            flags: c_int,
        ) -> c_int {
            // SAFETY: the program's own arguments.
            unsafe {
                let kernel = |path| (REAL.$new())(path, call, open, flags);
                lead(libc::AT_FDCWD, path, flags & PHYSICAL == 0, kernel, |_, _| {
                    let Some(call) = call else { return fail(libc::EINVAL) };
                    walk(path, flags, &|path, st, what, mut place| {
                        call(path.as_ptr(), st, what, &mut place)
                    })
                })
            }
        }
    )* };
}

walks! {
    /// ftw(3), nftw(3).
    ftw, nftw;
    /// ftw(3), nftw(3) for large files; the same struct on 64-bit systems.
    ftw64, nftw64;
}
