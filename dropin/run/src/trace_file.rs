//! Prepares the file of `--trace`.
//!
//! A process that writes a trace keeps a shared lock on its file.

use crate::arguments::Arguments;
use gdrcore_calls::options::TRACE;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The prefix of a file for Chrome's format.
const CHROME: &str = "chrome:";

/// Makes the path of the trace absolute, and removes an older trace: the drop-in writes only to
/// files that it has made. One that is being written stays, and the process gets another name.
///
/// # Errors
/// In words: no file can be made there, or what is there is no file.
pub fn begin(a: &mut Arguments) -> Result<(), String> {
    let Some(value) = a.value(&TRACE) else { return Ok(()) };
    if value == "1" {
        return Ok(());
    }
    let chrome = value.as_bytes().strip_prefix(CHROME.as_bytes());
    let (prefix, file) = match chrome {
        Some(file) => (CHROME, OsStr::from_bytes(file)),
        None => ("", &**value),
    };
    let path = std::path::absolute(file).map_err(|e| format!("--trace {}: {e}", file.display()))?;
    make_room(&path).map_err(|why| format!("--trace {}: {why}", path.display()))?;
    let mut target = OsString::from(prefix);
    target.push(path);
    *value = target;
    Ok(())
}

/// Removes a file that no process is writing, and tries whether one can be made in its place.
fn make_room(path: &Path) -> Result<(), String> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_file() => match File::open(path) {
            Ok(file) => remove_idle(path, &file).map_err(|e| e.to_string())?,
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(e.to_string()),
        },
        Ok(_) => return Err("it is there, and is no regular file".into()),
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(e.to_string()),
    }
    match File::options().write(true).create_new(true).mode(0o600).open(path) {
        Ok(made) => remove_idle(path, &made).map_err(|e| e.to_string()),
        // It is being written, perhaps by a program of another gdrcore-run: so one can be made.
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

/// Removes a file that no process is writing, if it is still the one at the path: another
/// gdrcore-run may have removed it, and a process made a new one. Who has the lock on a file alone
/// removes it.
fn remove_idle(path: &Path, file: &File) -> std::io::Result<()> {
    if file.try_lock().is_err() {
        return Ok(());
    }
    let of = |m: fs::Metadata| (m.dev(), m.ino());
    let ours = file.metadata().map(of)?;
    match fs::symlink_metadata(path).map(of) {
        Ok(there) if there == ours => fs::remove_file(path),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(value: &str) -> Arguments {
        Arguments { environment: vec![(TRACE.variable, value.into())], ..Arguments::default() }
    }

    #[test]
    fn an_older_trace_is_removed_and_nothing_else() {
        let dir = std::env::temp_dir().join(format!("gdrcore-run-trace-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let (file, link) = (dir.join("file"), dir.join("link"));
        let name = file.to_str().unwrap();
        fs::write(&file, b"old").unwrap();
        let mut a = of(&format!("chrome:{name}"));
        begin(&mut a).unwrap();
        assert!(!file.exists());
        assert_eq!(a.environment[0].1, format!("chrome:{name}").as_str());
        fs::write(&file, b"a process writes it").unwrap();
        let writer = File::open(&file).unwrap();
        writer.lock_shared().unwrap();
        begin(&mut a).unwrap();
        assert!(file.exists());
        fs::write(dir.join("other"), b"kept").unwrap();
        std::os::unix::fs::symlink("other", &link).unwrap();
        let why = begin(&mut of(link.to_str().unwrap())).unwrap_err();
        assert!(why.contains("no regular file"), "{why}");
        assert_eq!(fs::read(dir.join("other")).unwrap(), b"kept");
        assert!(begin(&mut of("/dev/null")).unwrap_err().contains("/dev/null"));
        assert!(begin(&mut of("/nonexistent/x")).unwrap_err().contains("/nonexistent/x"));
        let mut relative = of("here");
        begin(&mut relative).unwrap();
        assert!(Path::new(&relative.environment[0].1).is_absolute());
        begin(&mut of("1")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_file_that_was_made_since_is_kept() {
        let dir = std::env::temp_dir().join(format!("gdrcore-run-since-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("file");
        let old = File::create(&path).unwrap();
        fs::remove_file(&path).unwrap();
        remove_idle(&path, &old).unwrap();
        let new = File::create(&path).unwrap();
        remove_idle(&path, &old).unwrap();
        assert!(path.exists());
        remove_idle(&path, &new).unwrap();
        assert!(!path.exists());
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn runs_that_share_a_file_do_not_refuse_each_other() {
        let dir = std::env::temp_dir().join(format!("gdrcore-run-share-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let path = dir.join("file");
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..500 {
                        make_room(&path).unwrap();
                    }
                });
            }
        });
        fs::remove_dir_all(&dir).unwrap();
    }
}
