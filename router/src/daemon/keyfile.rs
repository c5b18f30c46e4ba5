//! The file by which one life of the router recognises the sessions of the former one: the key of
//! their tokens, the number of this life, and the oldest life whose tokens are valid
//! (`broker::Keys`).
//!
//! ```text
//! 0  "gdrckey1"  8  key (16 bytes)  24  u64 life  32  u64 floor
//! ```
//!
//! The key is secret: with it a process could take other tenants' numbers. So the file's mode
//! is 0600, and a file that others can read or own is replaced.

use super::{mention, note};
use crate::broker::{Keys, KEY, LEARN_NS};
use gdrcore_net::clock::random_seed;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"gdrckey1";
const BYTES: usize = 40;

/// The file of a router.
pub(super) struct KeyFile {
    path: PathBuf,
    key: [u8; KEY],
    life: u64,
    floor: u64,
}

/// Key, life and floor of a file. `None`: it is no such file, or not private to this user.
fn read(path: &Path) -> io::Result<Option<([u8; KEY], u64, u64)>> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
    let mut file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        // A symbolic link.
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => return Ok(None),
        Err(e) => return Err(e),
    };
    let meta = file.metadata()?;
    let own = meta.is_file() && meta.uid() == super::sys::own_uid() && meta.mode() & 0o077 == 0;
    let mut bytes = [0; BYTES];
    if !own || meta.len() != BYTES as u64 || file.read_exact(&mut bytes).is_err() {
        return Ok(None);
    }
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| bytes[at + k]));
    let key = std::array::from_fn(|k| bytes[8 + k]);
    Ok((bytes[..8] == MAGIC).then(|| (key, word(24), word(32))))
}

impl KeyFile {
    /// Reads the file, or makes one, and begins a new life. The keys are for the broker.
    ///
    /// # Errors
    /// In words: it cannot be read or written.
    pub(super) fn open(path: &Path, now: u64) -> Result<(KeyFile, Keys), String> {
        let said = |e: io::Error| format!("{}: {e}", path.display());
        let known = read(path).map_err(said)?;
        let (key, last, floor) = match known {
            Some(known) => known,
            None => {
                if fs::symlink_metadata(path).is_ok() {
                    let path = path.display();
                    note(format_args!(
                        "{path}: no key, or others may read it: a new one is made, and sessions of \
                         a former router are not resumed"
                    ));
                }
                let random = || random_seed().map_err(|e| format!("random numbers: {e}"));
                let mut key = [0; KEY];
                key[..8].copy_from_slice(&random()?.to_le_bytes());
                key[8..].copy_from_slice(&random()?.to_le_bytes());
                (key, 0, 1)
            }
        };
        let life = last.checked_add(1).ok_or_else(|| format!("{}: no life", path.display()))?;
        // Sessions of a former life may exist if the last life gave numbers, or could have resumed
        // sessions of a life that did.
        let learns = floor <= last;
        let mut file = KeyFile { path: path.into(), key, life, floor };
        if !learns {
            file.floor = life;
        }
        file.write().map_err(said)?;
        let learn_until = learns.then(|| now + LEARN_NS);
        Ok((file, Keys { key, floor, learn_until }))
    }

    /// The number of this life.
    pub(super) fn life(&self) -> u64 {
        self.life
    }

    /// New numbers are given from now on. If the file cannot be written it is removed, and no later
    /// life resumes sessions.
    pub(super) fn settle(&mut self) {
        self.set_floor(self.life);
    }

    /// Notes that the router ends without a session: the next life need not wait.
    pub(super) fn retire(&mut self) {
        self.set_floor(self.life.saturating_add(1));
    }

    fn set_floor(&mut self, floor: u64) {
        self.floor = floor;
        if let Err(e) = self.write() {
            mention(format_args!("{}: {e}: sessions will not be resumed", self.path.display()));
            let _ = fs::remove_file(&self.path);
        }
    }

    /// Writes under another name and renames, so that a killed router leaves either the old file or
    /// the new one.
    fn write(&self) -> io::Result<()> {
        let mut own = self.path.as_os_str().to_owned();
        own.push(format!(".{}", std::process::id()));
        let own = PathBuf::from(own);
        let _ = fs::remove_file(&own);
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..24].copy_from_slice(&self.key);
        bytes[24..32].copy_from_slice(&self.life.to_le_bytes());
        bytes[32..].copy_from_slice(&self.floor.to_le_bytes());
        let done = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&own)
            .and_then(|mut file: File| file.write_all(&bytes))
            .and_then(|()| fs::rename(&own, &self.path));
        if done.is_err() {
            let _ = fs::remove_file(&own);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn place(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("gdrc-key-{name}-{}", std::process::id()));
        let _ = fs::remove_file(&path);
        path
    }

    #[test]
    fn each_life_knows_the_key_of_the_former_and_whether_to_wait_for_its_sessions() {
        let path = place("lives");
        let (mut file, first) = KeyFile::open(&path, 5).unwrap();
        assert_eq!((file.life(), first.floor, first.learn_until), (1, 1, None));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        // After a kill the next life waits for sessions. A short life moves no floor.
        for life in 2..5 {
            let (file, keys) = KeyFile::open(&path, 5).unwrap();
            assert_eq!((file.life(), keys.key, keys.floor), (life, first.key, 1));
            assert_eq!(keys.learn_until, Some(5 + LEARN_NS));
        }
        let (mut fifth, _) = KeyFile::open(&path, 5).unwrap();
        fifth.settle();
        let (mut sixth, keys) = KeyFile::open(&path, 5).unwrap();
        assert_eq!((keys.floor, keys.learn_until), (5, Some(5 + LEARN_NS)));
        sixth.retire();
        let (seventh, keys) = KeyFile::open(&path, 5).unwrap();
        assert_eq!((seventh.life(), keys.floor, keys.learn_until), (7, 7, None));
        file.retire();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_others_can_read_or_is_none_of_ours_is_replaced() {
        let path = place("bad");
        let key = |path: &Path| KeyFile::open(path, 0).unwrap().1.key;
        let first = key(&path);
        assert_eq!(key(&path), first);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let second = key(&path);
        assert_ne!(second, first);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        for bytes in [&b""[..], b"gdrckey1", &[7; BYTES], &[0; 41]] {
            let before = key(&path);
            fs::write(&path, bytes).unwrap();
            assert_ne!(key(&path), before);
        }
        let (other, before) = (place("other"), key(&path));
        fs::rename(&path, &other).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        assert_ne!(key(&path), before, "a link is not followed");
        assert_eq!(key(&other), before, "and what it leads to is left alone");
        fs::remove_file(&path).unwrap();
        fs::remove_file(&other).unwrap();
        assert!(KeyFile::open(Path::new("/nowhere/at/all"), 0).is_err());
    }
}
