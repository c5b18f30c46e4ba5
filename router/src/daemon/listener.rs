//! Sockets that the router listens at: they appear at their paths whole, and go with the router.

use super::sys::{self, Kind};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A socket that listens at a path.
pub(super) struct Listener {
    fd: OwnedFd,
    path: PathBuf,
    /// Of the file, so that another's is not removed.
    inode: (u64, u64),
}

impl Listener {
    /// Listens at a path. Folders that are missing are made, with mode 755; a socket that a dead router left there is replaced.
    ///
    /// # Errors
    /// In words: somebody listens there; the system's reasons.
    pub(super) fn open(path: &Path, kind: Kind, mode: u32) -> Result<Listener, String> {
        let said = |what: &str, e: io::Error| format!("{}: {what}: {e}", path.display());
        if let Some(folder) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(folder)
                .map_err(|e| said("cannot make its folder", e))?;
        }
        match fs::symlink_metadata(path) {
            Ok(m) if m.mode() & libc::S_IFMT != libc::S_IFSOCK => {
                return Err(format!("{}: there is a file, and no socket", path.display()));
            }
            Ok(_) if sys::connect(path, kind).is_ok() => {
                return Err(format!("{}: another router serves this socket", path.display()));
            }
            _ => {}
        }
        // Under a name of its own first, so that nobody finds one that does not listen yet, or may not be connected to.
        let mut own = path.as_os_str().to_owned();
        own.push(format!(".{}", std::process::id()));
        let own = PathBuf::from(own);
        let _ = fs::remove_file(&own);
        let fd = sys::listen(&own, kind, mode).map_err(|e| said("cannot listen", e))?;
        let inode = fs::symlink_metadata(&own).map(|m| (m.dev(), m.ino())).map_err(|e| said("it is gone again", e))?;
        if let Err(e) = fs::rename(&own, path) {
            let _ = fs::remove_file(&own);
            return Err(said("cannot be put there", e));
        }
        Ok(Listener { fd, path: path.into(), inode })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_router_has_a_path_and_what_a_dead_one_left_is_replaced() {
        let folder = std::env::temp_dir().join(format!("gdrc-listener-{}", std::process::id()));
        let path = folder.join("t/blue/tenant.gdrc");
        let first = Listener::open(&path, Kind::Packets, 0o666).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o666);
        assert!(sys::connect(&path, Kind::Packets).is_ok());
        let second = Listener::open(&path, Kind::Packets, 0o666).err().unwrap();
        assert!(second.contains("another router"), "{second}");
        drop(first);
        assert!(!path.exists());
        // A socket that nobody listens at any more.
        drop(sys::listen(&path, Kind::Packets, 0o600).unwrap());
        let third = Listener::open(&path, Kind::Packets, 0o666).unwrap();
        // The file of another is left alone.
        fs::remove_file(&path).unwrap();
        fs::write(&path, "x").unwrap();
        drop(third);
        assert!(path.exists());
        assert!(Listener::open(&path, Kind::Packets, 0o666).err().unwrap().contains("no socket"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
