//! Finds the drop-in's libraries.

use crate::elf::find;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The drop-in.
pub const VERBS: &str = "libibverbs.so.1";
/// The library that passes librdmacm's calls to the drop-in.
pub const PRELOAD: &str = "libgdrcore_preload.so";
/// The places that are searched, in words.
pub const WHERE: &str = "it is looked for in $GDRC_LIBRARIES, in gdrcore/ beside this \
     program, and in lib/gdrcore/ and dropin/ beside its folder";

/// The folder that holds the drop-in.
pub fn folder() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("GDRC_LIBRARIES").filter(|v| !v.is_empty()) {
        return Some(PathBuf::from(named)).filter(|f| holds(f));
    }
    let program = std::env::current_exe().ok().or_else(|| called(&std::env::args_os().next()?))?;
    candidates(program.parent()?).into_iter().find(|f| holds(f))
}

/// The program by the name with which it was called: where there is no /proc, nothing else says
/// where it lies.
fn called(name: &OsStr) -> Option<PathBuf> {
    std::fs::canonicalize(find(name)?).ok()
}

fn holds(folder: &Path) -> bool {
    folder.join(VERBS).exists()
}

/// Candidate folders for a launcher in `bin`: as installed (`bin/` beside `lib/`, with or without
/// the name of the architecture), and as built.
fn candidates(bin: &Path) -> Vec<PathBuf> {
    let mut all = vec![bin.join("gdrcore")];
    if let Some(prefix) = bin.parent() {
        all.push(prefix.join("dropin"));
        all.push(prefix.join("lib/gdrcore"));
        all.push(prefix.join(format!("lib/{}-linux-gnu/gdrcore", std::env::consts::ARCH)));
        all.push(prefix.join("lib64/gdrcore"));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_the_program_as_a_shell_finds_it() {
        let sh = std::fs::canonicalize("/bin/sh").expect("a shell");
        assert_eq!(called("sh".as_ref()), Some(sh.clone()));
        assert_eq!(called("/bin/../bin/sh".as_ref()), Some(sh));
        assert_eq!(called("/nowhere/sh".as_ref()), None);
    }

    #[test]
    fn a_program_that_is_installed_finds_its_libraries() {
        let all = candidates(Path::new("/usr/local/bin"));
        assert!(all.contains(&PathBuf::from("/usr/local/lib/gdrcore")));
        assert!(all.contains(&PathBuf::from("/usr/local/bin/gdrcore")));
    }
}
