//! Prepares the files of `--strict-json` and `--strict-suppressions`.

use crate::arguments::Arguments;
use gdrcore_calls::options::{STRICT_JSON, STRICT_SUPPRESSIONS};
use std::io::{Error, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Makes their paths absolute, as the program may change its folder, and empties the file of
/// reports.
///
/// # Errors
/// In words: the file of suppressions cannot be read, or that of reports not be written.
pub fn begin(a: &mut Arguments) -> Result<(), String> {
    a.begin_file(&STRICT_JSON, empty)?;
    a.begin_file(&STRICT_SUPPRESSIONS, |path| std::fs::read(path).map(drop))
}

/// The program follows no link, and waits for no reader.
fn empty(path: &Path) -> std::io::Result<()> {
    let kind = path.symlink_metadata().map(|m| m.file_type());
    if kind.is_ok_and(|k| k.is_symlink() || k.is_fifo()) {
        return Err(Error::new(ErrorKind::InvalidInput, "a link or FIFO"));
    }
    std::fs::write(path, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_suppressions_must_be_there_and_that_of_reports_is_emptied() {
        let name = format!("gdrcore-run-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        let with = |variable, path: &std::path::Path| Arguments {
            environment: vec![(variable, path.into())],
            ..Arguments::default()
        };
        let why = begin(&mut with(STRICT_SUPPRESSIONS.variable, &path)).unwrap_err();
        assert!(why.starts_with("--strict-suppressions "), "{why}");
        std::fs::write(&path, "old").unwrap();
        begin(&mut with(STRICT_SUPPRESSIONS.variable, &path)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        begin(&mut with(STRICT_JSON.variable, &path)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        let link = path.with_extension("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        std::fs::write(&path, "old").unwrap();
        let why = begin(&mut with(STRICT_JSON.variable, &link)).unwrap_err();
        assert!(why.ends_with(": a link or FIFO"), "{why}");
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        std::fs::remove_file(&link).unwrap();
        std::fs::remove_file(&path).unwrap();
        let lost = path.join("x");
        assert!(begin(&mut with(STRICT_JSON.variable, &lost))
            .unwrap_err()
            .contains("--strict-json"));
    }
}
