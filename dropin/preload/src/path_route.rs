//! Decides whether a program's path is the kernel's, as nearly all are, or a name of the drop-in.

use crate::drop_in::NAMES;
use crate::fail;
use crate::files::FOLDERS;
use core::ffi::{c_char, c_int, CStr};
use gdrcore_calls::preload::{kind, PathInfo, PATH_MAX};

/// The target of a call on a path.
enum Route {
    /// To the kernel, as it is.
    Kernel,
    /// To the kernel, under the path in [`PathInfo`].
    Moved,
    /// To a name of the drop-in, of this kind.
    Ours(c_int),
    /// Nowhere, with this errno.
    Nowhere(c_int),
}

/// The result of a call that has failed and set errno.
pub trait Failed {
    const VALUE: Self;
}

impl Failed for c_int {
    const VALUE: Self = -1;
}

impl Failed for isize {
    const VALUE: Self = -1;
}

impl<T> Failed for *mut T {
    const VALUE: Self = core::ptr::null_mut();
}

/// Passes a call on a path relative to `dir` to its target. `kernel` gets the path under which the
/// kernel has the file, `ours` the kind and the attributes of a name of the drop-in. `follow`: a
/// link at the end is followed.
///
/// # Safety
/// A C string, or null.
#[inline]
pub unsafe fn lead<R: Failed>(
    dir: c_int,
    path: *const c_char,
    follow: bool,
    kernel: impl FnOnce(*const c_char) -> R,
    ours: impl FnOnce(c_int, &PathInfo) -> R,
) -> R {
    // SAFETY: the caller's promise.
    if path.is_null() || !is_candidate(dir, unsafe { CStr::from_ptr(path) }.to_bytes()) {
        return kernel(path);
    }
    // SAFETY: not null, the caller's promise.
    lead_far(dir, unsafe { CStr::from_ptr(path) }, follow, kernel, ours)
}

/// A separate function: an answer has room for two paths, which other calls need not put on the
/// stack.
#[cold]
#[inline(never)]
fn lead_far<R: Failed>(
    dir: c_int,
    path: &CStr,
    follow: bool,
    kernel: impl FnOnce(*const c_char) -> R,
    ours: impl FnOnce(c_int, &PathInfo) -> R,
) -> R {
    let mut seen = PathInfo::EMPTY;
    match route(dir, path, follow, &mut seen) {
        Route::Kernel => kernel(path.as_ptr()),
        Route::Moved => kernel(seen.path.as_ptr()),
        Route::Ours(kind) => ours(kind, &seen),
        Route::Nowhere(errno) => {
            fail(errno);
            R::VALUE
        }
    }
}

/// Parts of paths that lead to names of the drop-in: the folders of RDMA devices, network
/// interfaces with their `device`, and the drop-in's own PCI devices.
const MARKS: [&[u8]; 3] = [b"infiniband", b"/net/", b"/pci9d"];

fn is_marked(path: &[u8]) -> bool {
    MARKS.iter().any(|m| path.windows(m.len()).any(|w| w == *m))
}

/// Whether an absolute path may be a name of the drop-in. A comparison of a few bytes excludes
/// nearly all paths.
#[inline]
pub fn is_near(path: &[u8]) -> bool {
    (path.starts_with(b"/sys/") || path.starts_with(b"/dev/infiniband")) && is_marked(path)
}

/// The path of an open folder of the drop-in or of the kernel; empty: it has none.
pub fn of_descriptor(fd: c_int, to: &mut [u8; PATH_MAX]) -> &[u8] {
    let mut name = [0u8; 40];
    let digits = format_into(&mut name, fd);
    // SAFETY: a terminated name, and room of the given length. By a system call, since readlink
    // itself calls this.
    let n = unsafe {
        libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, digits, to.as_mut_ptr(), to.len())
    };
    let path = &to[..usize::try_from(n).unwrap_or(0).min(PATH_MAX)];
    // The form in which a memfd shows its name.
    let ours = path.strip_prefix(b"/memfd:").and_then(|p| p.strip_suffix(b" (deleted)"));
    ours.unwrap_or(path)
}

/// `/proc/self/fd/<fd>`, terminated.
fn format_into(to: &mut [u8; 40], fd: c_int) -> *const c_char {
    use std::io::Write;
    let _ = write!(&mut to[..39], "/proc/self/fd/{fd}");
    to.as_ptr().cast()
}

/// Whether a path may be a name of the drop-in.
#[inline]
fn is_candidate(dir: c_int, path: &[u8]) -> bool {
    match path {
        [] => false,
        [b'/', ..] => is_near(path),
        relative => FOLDERS.has(dir) || is_marked(relative),
    }
}

fn route(dir: c_int, path: &CStr, follow: bool, seen: &mut PathInfo) -> Route {
    match path.to_bytes() {
        [b'/', ..] => ask(path, follow, seen),
        relative => from_folder(dir, relative, follow, seen),
    }
}

fn from_folder(dir: c_int, relative: &[u8], follow: bool, seen: &mut PathInfo) -> Route {
    let mut room = [0u8; PATH_MAX];
    let base: &[u8] = if dir == libc::AT_FDCWD {
        // SAFETY: room of the length that is given.
        match unsafe { libc::getcwd(room.as_mut_ptr().cast(), room.len()) }.is_null() {
            true => return Route::Kernel,
            false => CStr::from_bytes_until_nul(&room).map_or(&[], CStr::to_bytes),
        }
    } else {
        of_descriptor(dir, &mut room)
    };
    let mut whole = [0u8; PATH_MAX];
    let length = base.len() + 1 + relative.len();
    if !base.starts_with(b"/") || length >= PATH_MAX {
        return Route::Kernel;
    }
    whole[..base.len()].copy_from_slice(base);
    whole[base.len()] = b'/';
    whole[base.len() + 1..length].copy_from_slice(relative);
    // So that a path from the root does not begin with two slashes.
    let from = usize::from(base == b"/");
    match CStr::from_bytes_until_nul(&whole[from..]) {
        Ok(path) if is_near(path.to_bytes()) => ask(path, follow, seen),
        _ => Route::Kernel,
    }
}

fn ask(path: &CStr, follow: bool, seen: &mut PathInfo) -> Route {
    let Some(names) = NAMES.get() else { return Route::Kernel };
    // SAFETY: the table's function; a C string, and room for the answer.
    match unsafe { (names.look)(path.as_ptr(), follow.into(), seen) } {
        0 => Route::Kernel,
        kind::MOVED => Route::Moved,
        n if n < 0 => Route::Nowhere(-n),
        kind => Route::Ours(kind),
    }
}

/// The kind of an open folder or file of the drop-in; `None`: the descriptor is the kernel's.
#[inline]
pub fn descriptor<R>(fd: c_int, ours: impl FnOnce(c_int, &PathInfo) -> R) -> Option<R> {
    if FOLDERS.has(fd) {
        descriptor_far(fd, ours)
    } else {
        None
    }
}

#[cold]
#[inline(never)]
fn descriptor_far<R>(fd: c_int, ours: impl FnOnce(c_int, &PathInfo) -> R) -> Option<R> {
    let mut room = [0u8; PATH_MAX + 1];
    let mut link = [0u8; PATH_MAX];
    let path = of_descriptor(fd, &mut link);
    if !is_near(path) {
        // A call that this library does not see (fclose) has closed it, and the number was reused.
        FOLDERS.remove(fd);
        return None;
    }
    room[..path.len()].copy_from_slice(path);
    let mut seen = PathInfo::EMPTY;
    match ask(CStr::from_bytes_until_nul(&room).ok()?, false, &mut seen) {
        Route::Ours(kind) => Some(ours(kind, &seen)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_paths_are_the_kernels() {
        for near in [
            "/sys/class/infiniband",
            "/sys/class/infiniband_verbs/uverbs0",
            "/dev/infiniband/rdma_cm",
            "/sys/class/net/eth0/device",
            "/sys/devices/pci9d00:00/9d00:00:00.0/numa_node",
        ] {
            assert!(is_near(near.as_bytes()), "{near}");
        }
        for far in [
            "",
            "/",
            "/sys",
            "/sys/class",
            "/sys/devices/system/cpu/online",
            "/dev/null",
            "/tmp/infiniband",
        ] {
            assert!(!is_near(far.as_bytes()), "{far}");
        }
    }

    #[test]
    fn a_descriptor_leads_to_a_path() {
        let mut room = [0u8; PATH_MAX];
        // SAFETY: constant names; the descriptors are closed.
        unsafe {
            let fd = libc::open(c"/proc".as_ptr(), libc::O_RDONLY);
            assert_eq!(of_descriptor(fd, &mut room), b"/proc");
            libc::close(fd);
            let fd = libc::memfd_create(c"/sys/class/infiniband".as_ptr(), 0);
            assert_eq!(of_descriptor(fd, &mut room), b"/sys/class/infiniband");
            libc::close(fd);
        }
        assert_eq!(of_descriptor(-1, &mut room), b"");
        assert_eq!(of_descriptor(c_int::MAX, &mut room), b"");
    }
}
