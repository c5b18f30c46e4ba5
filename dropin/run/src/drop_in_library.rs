//! Finds the drop-in's libraries.

use crate::elf;
use std::ffi::OsString;
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
    candidates(&own_folder()?).into_iter().find(|f| holds(f))
}

/// The folder of this program. Without /proc it is what the caller has called.
pub fn own_folder() -> Option<PathBuf> {
    let called = || elf::find(&std::env::args_os().next()?)?.canonicalize().ok();
    let program = std::env::current_exe().ok().or_else(called)?;
    program.parent().map(Path::to_path_buf)
}

/// The variables by which a program loads the drop-in of a folder.
pub fn variables(folder: &Path) -> [(&'static str, OsString); 2] {
    // Behind the caller's LD_PRELOAD: libraries such as librspreload call the next one.
    // LD_LIBRARY_PATH alone is not enough: some programs, such as Python wheels, contain a
    // libibverbs of another name.
    let mut preload = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    for library in [PRELOAD, VERBS].map(|l| folder.join(l)).into_iter().filter(|l| l.exists()) {
        preload = join(preload, library.into());
    }
    let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    [("LD_LIBRARY_PATH", join(folder.into(), before)), ("LD_PRELOAD", preload)]
}

/// Two lists as one.
fn join(a: OsString, b: OsString) -> OsString {
    let mut all = OsString::new();
    for part in [a, b].into_iter().filter(|p| !p.is_empty()) {
        if !all.is_empty() {
            all.push(":");
        }
        all.push(part);
    }
    all
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
    fn a_program_that_is_installed_finds_its_libraries() {
        let all = candidates(Path::new("/usr/local/bin"));
        assert!(all.contains(&PathBuf::from("/usr/local/lib/gdrcore")));
        assert!(all.contains(&PathBuf::from("/usr/local/bin/gdrcore")));
    }
}
