//! The directory of the sockets by which processes of one user find each other.
//!
//! ```text
//! /dev/shm/gdrcore-1000/                 mode 0700: the kernel keeps other users out
//!   1a/                                  the network namespace (SO_NETNS_COOKIE)
//!     192.0.2.1-4791/                    the address and UDP port
//!       7/door 7/mail 7/life             the owner of QPN block 7
//! ```
//!
//! Abstract socket names would need no directory, but any user of the network namespace can bind,
//! connect and send to them. A hostile user could pass descriptors whose close(2) blocks, take the
//! name of a process that has ended and get its messages, or take all names. Credentials reveal
//! such a user only afterwards. A directory of mode 0700 keeps other users out before that, on
//! every kernel.
//!
//! Another user may have made a directory of the expected name before, so there are [`NAMES`]
//! names. All processes of a user take the first whose owner is that user. Each name is looked up;
//! a place is never listed, because any user may fill it with directories.
//!
//! If other users have taken all names in the first two places, the third is `/run/user/<uid>`,
//! which a login manager makes, and which its user alone may write.

use super::{has_unique_uid, own_uid};
use crate::sys::{check, errno, get_option, last_error, stat, stat_at, Fd};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use std::ffi::{CStr, OsStr};
use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Where the directory may be, in the order of preference; the user's number follows the last.
/// Containers that share the network of their host or pod share `/dev/shm` too if they share its
/// IPC namespace.
const BASES: [&CStr; 3] = [c"/dev/shm", c"/tmp", c"/run/user/"];
/// Names that the directory may have in each place.
const NAMES: usize = 32;
/// Longest path: `/run/user/4294967295/gdrcore-4294967295.31/` and 16 hexadecimal digits.
pub(super) const SOCKET_DIR_MAX: usize = 64;
/// Longest name, with a zero at its end.
const NAME_MAX: usize = 24;
/// getsockopt(2), asm-generic/socket.h, since Linux 5.14.
const SO_NETNS_COOKIE: i32 = 71;
/// Attempts to find or make a directory, while others come and go.
const TRIES: usize = 16;

/// The directory of this user and network namespace. Cheap to copy; holds no descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SocketDir {
    path: [u8; SOCKET_DIR_MAX],
    len: usize,
}

impl core::fmt::Debug for SocketDir {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.path()))
    }
}

impl SocketDir {
    /// Opens or makes the directory of this process.
    ///
    /// # Errors
    /// [`Error::Access`]: users cannot be compared here (the process runs as the overflow uid), or
    /// no directory may be written. [`Error::Unsupported`]: the network namespace has no number.
    /// [`Error::Os`].
    pub(crate) fn open() -> Result<SocketDir> {
        SocketDir::nth(0)
    }

    /// As [`SocketDir::open`], but returns the `n`th of this user's directories, modulo their
    /// number. Two processes may each have made one while another user's came or went.
    pub(crate) fn nth(n: usize) -> Result<SocketDir> {
        if !has_unique_uid() {
            return Err(Error::Access);
        }
        let net = network()?;
        let mut outcome = Error::Access;
        for base in BASES {
            match SocketDir::below(&place(base)?, n, net) {
                Ok(socket_dir) => return Ok(socket_dir),
                Err(e) => outcome = e,
            }
        }
        Err(outcome)
    }

    fn below(base: &CStr, n: usize, net: u64) -> Result<SocketDir> {
        let dir = open_dir(libc::AT_FDCWD, base)?;
        let mode = stat(dir.raw())?.st_mode;
        // In a directory that every user may write and that has no sticky bit, other users could
        // replace it.
        if mode & 0o1002 == 0o0002 {
            return Err(Error::Access);
        }
        let name = own_directory(&dir, n)?;
        let mut path = [0; SOCKET_DIR_MAX];
        let mut left = &mut path[..];
        let written = (|| {
            left.write_all(base.to_bytes())?;
            left.write_all(b"/")?;
            left.write_all(name.as_c_str().to_bytes())?;
            write!(left, "/{net:x}")
        })();
        let left = left.len();
        written.map_err(|_| too_long())?;
        let socket_dir = SocketDir { path, len: SOCKET_DIR_MAX - left };
        let own = socket_dir.c_path(&[])?;
        make_dir(&own)?;
        // Another container may have made it, on a file system that is read-only here.
        // SAFETY: a C string; no other pointers.
        check(unsafe { libc::access(own.as_c_str().as_ptr(), libc::W_OK) })?;
        Ok(socket_dir)
    }

    /// The path, without a slash at its end.
    pub(super) fn path(&self) -> &[u8] {
        &self.path[..self.len]
    }

    /// The path of the user's directory, which holds the directories of all network namespaces.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is none above this one.
    pub(super) fn above(&self) -> Result<Path> {
        let end = self.path().iter().rposition(|&b| b == b'/');
        let end = end.ok_or_else(|| {
            refuse!(Invalid, "the directory of this address's sockets has no parent")
        })?;
        let mut p = Path::new();
        p.extend_from_bytes(&self.path()[..end]).map(|()| p).map_err(|_| too_long())
    }

    /// The path of a name below the directory.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: the path is too long for a socket.
    pub(super) fn c_path(&self, parts: &[&[u8]]) -> Result<Path> {
        let mut p = Path::new();
        let parts = parts.iter().flat_map(|part| [&b"/"[..], part]);
        let mut parts = core::iter::once(self.path()).chain(parts);
        let fits = parts.all(|part| p.extend_from_bytes(part).is_ok());
        fits.then_some(p).ok_or_else(too_long)
    }
}

/// Bytes of `sun_path`, the zero at the end included.
pub(super) const PATH_MAX: usize = 108;

/// A path with a zero at its end.
pub(super) type Path = heapless::CString<PATH_MAX>;

/// The path of one of [`BASES`].
fn place(base: &CStr) -> Result<Path> {
    let mut path = Path::new();
    let is_users = base.to_bytes().ends_with(b"/");
    let mut user = heapless::String::<10>::new();
    // A number of 32 bits fits.
    let _ = core::fmt::Write::write_fmt(&mut user, format_args!("{}", own_uid()));
    path.extend_from_bytes(base.to_bytes()).map_err(|_| too_long())?;
    path.extend_from_bytes(if is_users { user.as_bytes() } else { b"" }).map_err(|_| too_long())?;
    Ok(path)
}

/// The file name of a directory.
type FileName = heapless::CString<NAME_MAX>;

/// The names that this user's directory may have, in order: `gdrcore-<uid>`, `gdrcore-<uid>.1`...
fn names() -> impl Iterator<Item = FileName> {
    (0..NAMES).filter_map(|k| {
        let mut text = heapless::String::<NAME_MAX>::new();
        let user = own_uid();
        let written = match k {
            0 => core::fmt::Write::write_fmt(&mut text, format_args!("gdrcore-{user}")),
            k => core::fmt::Write::write_fmt(&mut text, format_args!("gdrcore-{user}.{k}")),
        };
        let mut name = FileName::new();
        (written.is_ok() && name.extend_from_bytes(text.as_bytes()).is_ok()).then_some(name)
    })
}

/// The `n`th of this user's directories in the order of their names, modulo their number; made if
/// there is none. Cost: [`NAMES`] look-ups of a name, and two system calls more.
fn own_directory(base: &Fd, n: usize) -> Result<FileName> {
    for _ in 0..TRIES {
        if let Some(name) = nth_own(base.raw(), n) {
            return Ok(name);
        }
        let made = names().map(|name| {
            // SAFETY: a C string; no other pointers.
            check(unsafe { libc::mkdirat(base.raw(), name.as_c_str().as_ptr(), 0o700) })
        });
        // Another user, or another process of this user, may have taken a name by now.
        let mut made = made.skip_while(|made| *made == Err(Error::Os(libc::EEXIST)));
        match made.next() {
            Some(Ok(_)) => {}
            Some(Err(e)) => return Err(e),
            None => break,
        }
    }
    Err(Error::Access)
}

/// The `n`th directory here that belongs to this user alone, in order and modulo their number.
fn nth_own(base: RawFd, n: usize) -> Option<FileName> {
    let own: heapless::Vec<FileName, NAMES> = names().filter(|name| is_own(base, name)).collect();
    own.get(n.checked_rem(own.len())?).cloned()
}

/// Whether a name here is a directory that belongs to this user alone.
fn is_own(base: RawFd, name: &FileName) -> bool {
    stat_at(base, name.as_c_str()).is_ok_and(|s| {
        s.st_mode & libc::S_IFMT == libc::S_IFDIR
            && s.st_mode & 0o777 == 0o700
            && s.st_uid == own_uid()
    })
}

/// The paths of this user's directories. Allocates.
pub(crate) fn own_paths() -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for base in BASES.iter().filter_map(|base| place(base).ok()) {
        let Ok(dir) = open_dir(libc::AT_FDCWD, base.as_c_str()) else { continue };
        let folder = std::path::Path::new(OsStr::from_bytes(base.as_bytes()));
        paths.extend(
            names()
                .filter(|name| is_own(dir.raw(), name))
                .map(|name| folder.join(OsStr::from_bytes(name.as_bytes()))),
        );
    }
    paths
}

/// A number that identifies this network namespace.
pub(super) fn network() -> Result<u64> {
    let socket = super::socket(libc::SOCK_DGRAM)?;
    if let Ok(cookie) = get_option(socket.raw(), libc::SOL_SOCKET, SO_NETNS_COOKIE) {
        return Ok(cookie);
    }
    // Older kernels. The high bit keeps the two kinds of number apart.
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: a C string; no other pointers.
    let net = Fd::from_call(unsafe { libc::open(c"/proc/thread-self/ns/net".as_ptr(), flags) });
    let inode = net.and_then(|fd| stat(fd.raw()));
    let inode = inode
        .map_err(|_| refuse!(Unsupported, "/proc/thread-self/ns/net: it cannot be opened"))?
        .st_ino;
    Ok(inode | 1 << 63)
}

/// Makes a directory for this user alone, unless it is there.
pub(super) fn make_dir(path: &Path) -> Result<()> {
    // SAFETY: a C string; no other pointers.
    if unsafe { libc::mkdir(path.as_c_str().as_ptr(), 0o700) } == 0 || errno() == libc::EEXIST {
        return Ok(());
    }
    Err(last_error())
}

/// Opens a directory, no link to one.
pub(super) fn open_dir(at: RawFd, path: &CStr) -> Result<Fd> {
    let flags =
        libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: a C string; no other pointers.
    Fd::from_call(unsafe { libc::openat(at, path.as_ptr(), flags) })
}

/// Passes the names in a directory to `each`, except `.` and `..`. Changes the descriptor's
/// position.
pub(super) fn entries(dir: RawFd, mut each: impl FnMut(&CStr)) {
    // SAFETY: no pointers.
    unsafe { libc::lseek(dir, 0, libc::SEEK_SET) };
    #[repr(align(8))]
    struct Buffer([u8; 1024]);
    let mut buffer = Buffer([0; 1024]);
    /// Bytes of a `linux_dirent64` before its name: inode 8, offset 8, length 2, type 1.
    const NAME_AT: usize = 19;
    loop {
        // SAFETY: pointer and length are those of the buffer.
        let n = unsafe {
            libc::syscall(libc::SYS_getdents64, dir, buffer.0.as_mut_ptr(), buffer.0.len())
        };
        let Some(mut rest) =
            usize::try_from(n).ok().filter(|&n| n > 0).and_then(|n| buffer.0.get(..n))
        else {
            return;
        };
        while let Some(len) =
            rest.get(16..18).map(|l| usize::from(u16::from_ne_bytes([l[0], l[1]])))
        {
            let (entry, next) = rest.split_at(len.clamp(NAME_AT, rest.len()));
            if let Ok(name) = CStr::from_bytes_until_nul(&entry[NAME_AT.min(entry.len())..]) {
                if ![&b"."[..], b".."].contains(&name.to_bytes()) {
                    each(name);
                }
            }
            rest = next;
        }
    }
}

fn too_long() -> Error {
    refuse!(Unsupported, "a path under which processes of this host find each other is too long")
}

#[cfg(test)]
mod tests;
