//! The libibverbs that a program would load.

use super::{broken, fine, warning, Finding};
use gdrcore_run::{drop_in_library, elf};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

const CHECK: &str = "program";

/// Asks this system's loader, which executes nothing of the program (ld.so(8), --list). The loader
/// that the program names may be any file, so it is not run.
pub fn diagnose(program: &OsStr) -> Finding {
    if !elf::find(program).is_some_and(|p| p.is_file()) {
        let seen = format!("{}: there is no such program", program.to_string_lossy());
        return broken(CHECK, seen, "name it with its path, or correct PATH");
    }
    if let Some(why) = elf::obstacle(program) {
        let remedy = "link it dynamically against this system's libc, and run it without setuid";
        return broken(CHECK, why, remedy);
    }
    let Some(folder) = drop_in_library::folder() else {
        let seen = format!("{} was not found; {}", drop_in_library::VERBS, drop_in_library::WHERE);
        return broken(CHECK, seen, "install it (Debian's package gdrcore-ibverbs)");
    };
    let Some((loader, file)) = elf::loader(program) else {
        return fine(CHECK, "it is no ELF program: the libraries depend on what it starts");
    };
    let own = elf::loader(OsStr::new("/proc/self/exe")).and_then(|(l, _)| l.canonicalize().ok());
    if loader.canonicalize().ok().filter(|l| Some(l) == own.as_ref()).is_none() {
        let seen = format!("its loader is {}, not this program's", loader.display());
        return warning(CHECK, seen, "run it by gdrcore-run with --verbose, and see");
    }
    let list = |with: bool| -> Result<(String, String), String> {
        let mut c = Command::new(&loader);
        c.arg("--list").arg(&file);
        if with {
            c.envs(drop_in_library::variables(&folder));
        }
        let done = c.output().map_err(|e| format!("{}: {e}", loader.display()))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok((text(&done.stdout), text(&done.stderr)))
    };
    match list(true).and_then(|on| Ok((on, list(false)?))) {
        Ok(((on, errors), (off, _))) => judge(&folder, &on, &errors, &off),
        Err(why) => warning(CHECK, why, "run it by gdrcore-run with --verbose, and see"),
    }
}

/// What the loader lists with the drop-in's variables and without.
fn judge(folder: &Path, on: &str, errors: &str, off: &str) -> Finding {
    let lacks = |l: &&str| l.contains("not found") || l.contains("cannot open shared object");
    // The loader warns that it ignores a preloaded library.
    let is_fatal = |l: &&str| lacks(l) && !l.contains("ignored");
    if let Some(line) = on.lines().chain(errors.lines()).find(is_fatal) {
        let remedy = "install that library, or a newer one";
        return broken(CHECK, format!("the loader says: {}", line.trim()), remedy);
    }
    let (ours, others): (Vec<PathBuf>, Vec<PathBuf>) =
        libraries(on).into_iter().partition(|p| p.starts_with(folder));
    let Some(ours) = ours.first() else {
        let seen = match others.first() {
            Some(other) => format!("by gdrcore-run it loads {}", other.display()),
            None => "by gdrcore-run it loads no libibverbs".to_string(),
        };
        let why = errors.lines().next().unwrap_or_default();
        return broken(CHECK, format!("{seen}; {why}"), "see LD_PRELOAD and LD_LIBRARY_PATH");
    };
    if let Some(copy) = others.first() {
        let seen = format!(
            "it has a libibverbs of its own, {}: gdrcore's comes first, unless it is loaded with \
             RTLD_DEEPBIND",
            copy.display()
        );
        return warning(CHECK, seen, "if its devices are not gdrcore's, remove that copy");
    }
    let without = match libraries(off).first() {
        Some(other) => format!("without, {}", other.display()),
        None => "it is not linked to one, and may load one later".into(),
    };
    fine(CHECK, format!("by gdrcore-run it loads {}; {without}", ours.display()))
}

/// The paths of libibverbs in a list.
fn libraries(list: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let path = PathBuf::from(line.split_whitespace().find(|w| w.starts_with('/'))?);
        let name = path.file_name()?.to_str()?;
        name.starts_with("libibverbs").then_some(path)
    };
    list.lines().filter_map(path).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    const OURS: &str = "\t/d/libgdrcore_preload.so (0x1)\n\t/d/libibverbs.so.1 (0x2)\n";

    fn judged(more: &str, errors: &str, off: &str) -> Finding {
        judge(Path::new("/d"), &format!("{OURS}{more}"), errors, off)
    }

    #[test]
    fn the_list_of_the_loader_is_judged() {
        let plain = judged("\tlibc.so.6 => /lib/libc.so.6 (0x1)\n", "", "");
        assert!(plain.level == Level::Fine && plain.seen.contains("not linked"), "{plain:?}");
        let linked = judged("", "", "\tlibibverbs.so.1 => /usr/lib/libibverbs.so.1 (0x1)\n");
        assert!(linked.seen.ends_with("without, /usr/lib/libibverbs.so.1"), "{linked:?}");
        let wheel = "\tlibibverbs-5a1b.so.1 => /w/x.libs/libibverbs-5a1b.so.1 (0x1)\n";
        let own = judged(wheel, "", "");
        assert!(own.level == Level::Warning && own.seen.contains("/w/x.libs/"), "{own:?}");
        let missing = judged("\tlibnl-3.so.200 => not found\n", "", "");
        assert!(missing.level == Level::Broken && missing.seen.contains("libnl-3"), "{missing:?}");
        let gone = judged(
            "",
            "p: error while loading shared libraries: x.so: cannot open shared object",
            "",
        );
        assert!(gone.level == Level::Broken && gone.seen.contains("x.so"), "{gone:?}");
        let old = judged("", "p: version `IBVERBS_9' not found (required by p)", "");
        assert!(old.level == Level::Broken && old.seen.contains("IBVERBS_9"), "{old:?}");
        let wrong = judge(Path::new("/else"), OURS, "cannot be preloaded", "");
        assert!(wrong.level == Level::Broken && wrong.seen.contains("/d/"), "{wrong:?}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let f = diagnose(OsStr::new("/nowhere/prog"));
        assert!(f.level == Level::Broken && f.seen.contains("/nowhere/prog"), "{f:?}");
    }
}
