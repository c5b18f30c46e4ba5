//! Huge pages that are set aside while a test runs. The number of the system is changed, so what
//! was added is taken away again, also if the test is killed: a shell holds on to a pipe from the
//! test and does so when the pipe ends. Tests beside it may do the same: each adds and takes away
//! its own number, under a lock.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// How many huge pages of the default size the kernel keeps.
pub const SYSTEM: &str = "/proc/sys/vm/nr_hugepages";

/// The arguments are the file and the number of pages. Prints one line, then waits for the end of
/// its input. No signal but SIGKILL ends it before, and no test that ends before it reads the line.
const GUARD: &str = r#"
trap '' HUP INT TERM PIPE
exec 9<"$1" || { echo "cannot be read"; exit 1; }
flock 9
before=$(cat "$1")
echo $((before + $2)) 2>/dev/null >"$1" || { echo "may not be written"; exit 1; }
added=$(($(cat "$1") - before))
flock -u 9
if [ "$added" -ge "$2" ]; then
    echo ready
    cat >/dev/null
else
    echo "the kernel found memory for $added of $2"
fi
exec 1>&-
flock 9
echo $(($(cat "$1") - added)) >"$1"
"#;

/// Pages that are set aside until this is dropped.
pub struct HugePages {
    guard: Child,
}

impl HugePages {
    /// Sets some pages aside.
    ///
    /// # Errors
    /// Why they cannot be: this user may not, or the machine has no memory in such pieces.
    pub fn set_aside(pages: u32) -> Result<HugePages, String> {
        HugePages::by_file(Path::new(SYSTEM), pages)
    }

    /// The same with another file than the kernel's.
    pub fn by_file(file: &Path, pages: u32) -> Result<HugePages, String> {
        let mut guard = Command::new("bash");
        guard.args(["-c", GUARD, "huge-pages"]).arg(file).arg(pages.to_string());
        // A group of its own: it has to outlive a test whose group is killed.
        guard.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut guard = guard.spawn().map_err(|e| format!("bash: {e}"))?;
        let mut said = String::new();
        let output = guard.stdout.take().expect("a pipe");
        let heard = BufReader::new(output).read_line(&mut said);
        let made = HugePages { guard };
        match (heard, said.trim()) {
            (Ok(_), "ready") => Ok(made),
            (_, said) => Err(format!("{}: {said}", file.display())),
        }
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        // The guard's signal to take the pages away.
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::scratch;
    use gdrcore_testkit::patience;

    fn number(file: &Path) -> String {
        std::fs::read_to_string(file).expect("the file").trim().into()
    }

    #[test]
    fn each_takes_away_what_it_added() {
        let dir = scratch("huge-pages");
        let file = dir.join("nr");
        std::fs::write(&file, "3\n").expect("a file");
        let first = HugePages::by_file(&file, 4).expect("a file that may be written");
        assert_eq!(number(&file), "7");
        let second = HugePages::by_file(&file, 2).expect("a file that may be written");
        assert_eq!(number(&file), "9");
        drop(first);
        assert_eq!(number(&file), "5");
        drop(second);
        assert_eq!(number(&file), "3");
    }

    #[test]
    fn what_may_not_be_changed_is_an_error() {
        let dir = scratch("huge-pages-missing");
        assert!(HugePages::by_file(&dir.join("nr"), 4).is_err());
        // A file of the kernel that takes writes and keeps its value: fewer pages than asked for.
        let said = HugePages::by_file(Path::new("/dev/null"), 4).err().unwrap_or_default();
        assert!(said.contains("0 of 4"), "{said}");
    }

    /// The name of the file, in the process that is to be killed.
    const DOOMED: &str = "GDRC_TEST_HUGE_PAGES";

    #[test]
    fn a_killed_process_leaves_nothing() {
        if let Some(file) = std::env::var_os(DOOMED) {
            let _held = HugePages::by_file(Path::new(&file), 4);
            loop {
                std::thread::park();
            }
        }
        let dir = scratch("huge-pages-killed");
        let file = dir.join("nr");
        std::fs::write(&file, "3\n").expect("a file");
        let mut doomed = Command::new(std::env::current_exe().expect("this program"));
        doomed.args(["--exact", "huge_pages::tests::a_killed_process_leaves_nothing"]);
        doomed.env(DOOMED, &file).stdout(Stdio::null()).stderr(Stdio::null());
        let mut doomed = doomed.spawn().expect("this program");
        patience::wait_for(30, "pages are added", || number(&file) == "7");
        doomed.kill().expect("a child");
        let _ = doomed.wait();
        patience::wait_for(30, "pages are taken away", || number(&file) == "3");
    }
}
