//! The file of `--pcap`.

use crate::arguments::Arguments;
use std::fs::File;
use std::path::Path;

/// Gives the program an absolute path of the capture file, and empties the file unless a process
/// writes it: a process that captures keeps a shared lock on its file.
///
/// # Errors
/// In words: the file cannot be written.
pub fn begin(a: &mut Arguments) -> Result<(), String> {
    let Some((_, value)) = a.environment.iter_mut().rfind(|(name, _)| *name == "GDRC_PCAP") else {
        return Ok(());
    };
    let path =
        std::path::absolute(&*value).map_err(|e| format!("--pcap {}: {e}", value.display()))?;
    empty(&path).map_err(|e| format!("--pcap {}: {e}", path.display()))?;
    *value = path.into();
    Ok(())
}

fn empty(path: &Path) -> std::io::Result<()> {
    // What is no file, such as /dev/null, holds nothing; a pipe would block, and the drop-in
    // refuses it.
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
    fn a_file_that_somebody_writes_stays() {
        let path = std::env::temp_dir().join(format!("gdrcore-run-{}.pcap", std::process::id()));
        let mut a = Arguments {
            environment: vec![("GDRC_PCAP", path.clone().into())],
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
        assert!(path.exists(), "a file that cannot be made is told of before the program runs");
        std::fs::remove_file(&path).unwrap();
        a.environment[0].1 = "/nonexistent/x".into();
        assert!(begin(&mut a).unwrap_err().contains("/nonexistent/x"));
        a.environment[0].1 = "/dev/null".into();
        begin(&mut a).unwrap();
    }
}
