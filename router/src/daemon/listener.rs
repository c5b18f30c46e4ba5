//! Sockets that the router listens at: they appear at their paths ready for connections, and the
//! router removes them.
//!
//! A process that can reach a tenant's own socket is that tenant. A container sees only the
//! socket's folder. The folder above it keeps out other users of the host.

use super::sys::{self, SocketKind};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// A socket that listens at a path.
pub(super) struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, so that the router does not remove a later file at the path.
    /// `None`: a supervisor has made the file.
    inode: Option<(u64, u64)>,
}

impl Listener {
    /// Listens at a path. Missing folders are made with access for all. If the socket `identifies`
    /// a tenant, the folder above the socket's folder is for this user only. A socket that a dead
    /// router left there is replaced.
    ///
    /// # Errors
    /// In words: another socket listens there, or the system's reason.
    pub(super) fn open(
        path: &Path,
        kind: SocketKind,
        mode: u32,
        identifies: bool,
    ) -> Result<Listener, String> {
        let said = |what: &str, e: io::Error| format!("{}: {what}: {e}", path.display());
        make_folders(path, identifies).map_err(|e| said("cannot make its folder", e))?;
        match fs::symlink_metadata(path) {
            Ok(m) if m.mode() & libc::S_IFMT != libc::S_IFSOCK => {
                return Err(format!("{}: there is a file, and no socket", path.display()));
            }
            Ok(_) if sys::connect(path, kind).is_ok() => {
                return Err(format!("{}: another router serves this socket", path.display()));
            }
            _ => {}
        }
        // The socket is made under a temporary name, so that at its path it already listens and has
        // its mode.
        let mut own = path.as_os_str().to_owned();
        own.push(format!(".{}", std::process::id()));
        let own = PathBuf::from(own);
        let _ = fs::remove_file(&own);
        let fd = sys::listen(&own, kind, mode).map_err(|e| said("cannot listen", e))?;
        let inode = fs::symlink_metadata(&own)
            .map(|m| (m.dev(), m.ino()))
            .map_err(|e| said("it is gone again", e))?;
        if let Err(e) = fs::rename(&own, path) {
            let _ = fs::remove_file(&own);
            return Err(said("cannot be put there", e));
        }
        Ok(Listener { fd, path: path.into(), inode: Some(inode) })
    }

    /// Takes a listener that a supervisor holds, whose file is left alone.
    ///
    /// # Errors
    /// In words.
    pub(super) fn adopt(path: &Path, fd: OwnedFd) -> Result<Listener, String> {
        let fd = sys::adopt(fd).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(Listener { fd, path: path.into(), inode: None })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Makes the folders of a socket, as far as they are missing. See [`Listener::open`].
pub(super) fn make_folders(path: &Path, identifies: bool) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    if let Some(above) = folder.parent().filter(|_| identifies) {
        make_folder(above, 0o700)?;
    }
    make_folder(folder, 0o755)
}

/// Makes a folder, if there is none, with this mode whatever the process's mask. The folders above
/// it get search permission for all.
fn make_folder(folder: &Path, mode: u32) -> io::Result<()> {
    if folder.exists() {
        return Ok(());
    }
    if let Some(above) = folder.parent() {
        make_folder(above, 0o755)?;
    }
    fs::create_dir(folder)?;
    fs::set_permissions(folder, fs::Permissions::from_mode(mode))
}

impl Drop for Listener {
    fn drop(&mut self) {
        let is_own = |m: fs::Metadata| Some((m.dev(), m.ino())) == self.inode;
        if fs::symlink_metadata(&self.path).is_ok_and(is_own) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_testkit::patience::wait_for;

    #[test]
    fn one_router_has_a_path_and_what_a_dead_one_left_is_replaced() {
        let folder = std::env::temp_dir().join(format!("gdrc-listener-{}", std::process::id()));
        let path = folder.join("t/blue/tenant.gdrc");
        let first = Listener::open(&path, SocketKind::Packets, 0o666, true).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o666);
        let modes =
            ["", "t", "t/blue"].map(|p| fs::metadata(folder.join(p)).unwrap().mode() & 0o777);
        assert_eq!(
            modes,
            [0o755, 0o700, 0o755],
            "a tenant's folder can be entered by who has it, and found by nobody else"
        );
        assert!(sys::connect(&path, SocketKind::Packets).is_ok());
        let second = Listener::open(&path, SocketKind::Packets, 0o666, true).err().unwrap();
        assert!(second.contains("another router"), "{second}");
        drop(first);
        assert!(!path.exists());
        // The socket of a dead process.
        drop(sys::listen(&path, SocketKind::Packets, 0o600).unwrap());
        // A child of another test has the socket too until it executes its program.
        let is_dead = || sys::connect(&path, SocketKind::Packets).is_err();
        wait_for(60, "somebody listens", is_dead);
        let third = Listener::open(&path, SocketKind::Packets, 0o666, true).unwrap();
        // A file that is not its own is left alone.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "x").unwrap();
        drop(third);
        assert!(path.exists());
        assert!(Listener::open(&path, SocketKind::Packets, 0o666, true)
            .err()
            .unwrap()
            .contains("no socket"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
