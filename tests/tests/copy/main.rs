//! rdma_copy_file transfers whole files or none, also when the other side, the disk or the link
//! fails.

mod changing;
mod hostile;
mod interrupted;
mod resume;
mod special_files;

use gdrcore_tests::ends::pattern;
use gdrcore_tests::lab::Lab;
use gdrcore_tests::patience::{until, wait_for};
use gdrcore_tests::tools::{compile, loopback, run, scratch, Done, Running, Scratch};
use gdrcore_tests::{library, skip};
use std::fs;
use std::os::unix::fs::{symlink, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// One server and one client, on loopback addresses of their own.
struct Copy {
    program: PathBuf,
    /// Number of the test: third byte of both addresses, and the port's last digits.
    n: u32,
    from: PathBuf,
    to: PathBuf,
    _dir: Scratch,
}

impl Copy {
    fn new(test: &str, n: u32) -> Copy {
        let dir = scratch(test);
        let (from, to) = (dir.join("from"), dir.join("to"));
        fs::create_dir(&from).expect("from");
        fs::create_dir(&to).expect("to");
        Copy {
            program: library::examples().join("rdma_copy/rdma_copy_file"),
            n,
            from,
            to,
            _dir: dir,
        }
    }

    fn device(&self, last: u32) -> String {
        format!("soft:{}", loopback(self.n, last))
    }

    fn port(&self) -> String {
        (19_800 + self.n).to_string()
    }

    fn server(&self, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(["-q", "-d", &self.device(1), "-p", &self.port(), "-o"])
            .arg(&self.to)
            .args(more);
        command
    }

    fn client(&self, more: &[&str]) -> Command {
        let mut command = self.loud_client(more);
        command.arg("-q");
        command
    }

    /// A client that prints what it has copied.
    fn loud_client(&self, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-d", &self.device(2), "-p", &self.port()]).args(more);
        command.arg(loopback(self.n, 1)).arg(self.from.join("data"));
        command
    }

    /// Writes the source file.
    fn file(&self, len: usize) -> Vec<u8> {
        let bytes = pattern(len as u64, len);
        fs::write(self.from.join("data"), &bytes).expect("the source file");
        bytes
    }

    /// The files of the target folder whose names do not begin with a dot.
    fn arrived(&self) -> Vec<PathBuf> {
        gdrcore_tests::source::files(&self.to, &[])
            .into_iter()
            .filter(|p| !p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.')))
            .collect()
    }

    /// Number of all files of the target folder, temporary ones too.
    fn leftovers(&self) -> usize {
        fs::read_dir(&self.to).expect("the target").count()
    }

    /// Waits until part of a file has arrived under its temporary name.
    fn wait_for_part(&self) {
        let begun = || {
            gdrcore_tests::source::files(&self.to, &[])
                .iter()
                .any(|f| f.metadata().is_ok_and(|m| m.len() > 0))
        };
        wait_for(60, "nothing arrives", begun);
    }
}

#[test]
fn a_tree_arrives_as_it_was() {
    let copy = Copy::new("tree", 61);
    let top = copy.from.join("data");
    fs::create_dir_all(top.join("deep/er")).expect("folders");
    for (name, len) in [
        ("empty", 0),
        ("one", 1),
        ("page", 4096),
        ("deep/odd", 1_048_583),
        ("deep/er/big", 20_000_003),
    ] {
        fs::write(top.join(name), pattern(len as u64 + 7, len)).expect(name);
    }
    fs::set_permissions(top.join("one"), fs::Permissions::from_mode(0o640)).expect("mode");
    symlink("/etc/passwd", top.join("link")).expect("a link");
    let server = Running::start(&mut copy.server(&["-1"]));
    let client = run(&mut copy.client(&["-s", "256k", "-n", "4"]), 120);
    let server = server.finish(LIMIT);
    // A symbolic link is left out. Its client may fail for that, but all regular files must arrive.
    assert!(server.ok(), "{server}\n{client}");
    for name in ["empty", "one", "page", "deep/odd", "deep/er/big"] {
        let (sent, got) = (top.join(name), copy.to.join("data").join(name));
        assert!(
            fs::read(&sent).expect(name)
                == fs::read(&got).unwrap_or_else(|e| panic!("{name}: {e}")),
            "{name}"
        );
        let (sent, got) = (sent.metadata().expect(name), got.metadata().expect(name));
        assert_eq!(sent.permissions().mode(), got.permissions().mode(), "{name}");
        assert_eq!(sent.modified().expect("mtime"), got.modified().expect("mtime"), "{name}");
    }
    assert!(!copy.to.join("data/link").exists(), "links are not followed");
}

#[test]
fn an_existing_file_is_replaced_only_by_a_whole_one() {
    let copy = Copy::new("replace", 67);
    let bytes = copy.file(3_000_001);
    fs::write(copy.to.join("data"), b"old").expect("the old file");
    let server = Running::start(&mut copy.server(&["-1"]));
    let client = run(&mut copy.client(&[]), 60);
    assert!(client.ok() && server.finish(LIMIT).ok(), "{client}");
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
}
