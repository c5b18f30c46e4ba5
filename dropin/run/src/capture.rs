//! Prepares the capture file of `--pcap`.

use crate::arguments::Arguments;
use gdrcore_calls::options::PCAP;
use std::fs::File;
use std::path::Path;

/// Makes the path of the capture file absolute, and empties the file unless a process is writing
/// it: a process that captures keeps a shared lock on its file.
///
/// # Errors
/// In words: the file cannot be written.
pub fn begin(a: &mut Arguments) -> Result<(), String> {
    a.begin_file(&PCAP, empty)
}

fn empty(path: &Path) -> std::io::Result<()> {
    // Other than regular files, such as /dev/null, hold nothing; a pipe would block, and the
    // drop-in refuses it.
    if path.metadata().is_ok_and(|m| !m.is_file()) {
        return Ok(());
    }
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    if file.try_lock().is_ok() {
        file.set_len(0)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_being_written_is_not_emptied() {
        let path = std::env::temp_dir().join(format!("gdrcore-run-{}.pcap", std::process::id()));
        let mut a = Arguments {
            environment: vec![(PCAP.variable, path.clone().into())],
            ..Arguments::default()
        };
        std::fs::write(&path, b"old").unwrap();
        let writer = File::open(&path).unwrap();
        writer.lock_shared().unwrap();
        begin(&mut a).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        drop(writer);
        begin(&mut a).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        std::fs::remove_file(&path).unwrap();
        begin(&mut a).unwrap();
        assert!(path.exists(), "a file that cannot be made is an error before the program runs");
        std::fs::remove_file(&path).unwrap();
        a.environment[0].1 = "/nonexistent/x".into();
        assert!(begin(&mut a).unwrap_err().contains("/nonexistent/x"));
        a.environment[0].1 = "/dev/null".into();
        begin(&mut a).unwrap();
    }
}
