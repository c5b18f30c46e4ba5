//! rdma_copy_file transfers whole files or none, also when the other side, the disk or the link
//! fails.

use gdrcore_tests::ends::pattern;
use gdrcore_tests::lab::Lab;
use gdrcore_tests::patience::deadline;
use gdrcore_tests::tools::{compile, loopback, run, scratch, Done, Running, Scratch};
use gdrcore_tests::{library, skip};
use std::fs;
use std::os::unix::fs::{symlink, FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

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
        let end = deadline(60);
        let begun = || {
            gdrcore_tests::source::files(&self.to, &[])
                .iter()
                .any(|f| f.metadata().is_ok_and(|m| m.len() > 0))
        };
        while !begun() {
            assert!(Instant::now() < end, "nothing arrives");
            std::thread::sleep(Duration::from_millis(2));
        }
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
    assert!(server.ok(), "{}\n{}", server.output, client.output);
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
fn a_killed_client_leaves_no_half_file_and_the_server_goes_on() {
    let copy = Copy::new("killed-client", 62);
    let bytes = copy.file(400 << 20);
    let server = Running::start(&mut copy.server(&[]));
    let mut client = Running::start(&mut copy.client(&[]));
    copy.wait_for_part();
    client.kill();
    client.finish(LIMIT);
    // The next client is served at once, and the temporary file of the first one is removed.
    let again = run(&mut copy.client(&[]), 120);
    assert!(again.ok(), "{}", again.output);
    assert!(fs::read(copy.to.join("data")).expect("the second copy") == bytes);
    assert_eq!(copy.leftovers(), 1);
    server.interrupt();
    server.finish(LIMIT);
}

#[test]
fn a_killed_server_leaves_no_half_file_and_the_client_reports_it() {
    let copy = Copy::new("killed-server", 63);
    copy.file(400 << 20);
    let mut server = Running::start(&mut copy.server(&[]));
    let client = Running::start(&mut copy.client(&["-t", "10"]));
    copy.wait_for_part();
    server.kill();
    let client = client.finish(Duration::from_secs(60));
    assert!(
        client.code().is_some_and(|c| c > 0) && !client.output.trim().is_empty(),
        "{:?} {}",
        client.status,
        client.output
    );
    assert!(copy.arrived().is_empty(), "{:?}", copy.arrived());
}

#[test]
fn a_server_that_is_stopped_and_continued_loses_nothing() {
    let copy = Copy::new("stopped", 64);
    let bytes = copy.file(400 << 20);
    let server = Running::start(&mut copy.server(&["-1"]));
    let client = Running::start(&mut copy.client(&[]));
    copy.wait_for_part();
    let signal = |name: &str| run(Command::new("kill").args([name, &server.pid().to_string()]), 5);
    assert!(signal("-STOP").ok());
    std::thread::sleep(Duration::from_secs(5));
    assert!(signal("-CONT").ok());
    let (client, server) = (client.finish(LIMIT), server.finish(LIMIT));
    assert!(client.ok() && server.ok(), "{}\n{}", client.output, server.output);
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
}

/// Starts the server with a target folder on a file system of `size`. The last lines of its output
/// list the files left there. `None`: this machine cannot mount it.
fn server_on_small_disk(copy: &Copy, size: &str) -> Option<Running> {
    let may = run(
        Command::new("unshare").args(["-Urm", "mount", "-t", "tmpfs", "tmpfs"]).arg(&copy.to),
        10,
    );
    if !may.ok() {
        println!("skipped: no small file system can be mounted here: {}", may.output.trim());
        return None;
    }
    let script = "mount -t tmpfs -o size=$1 tmpfs \"$2\"; shift 2; \
                  \"$@\"; code=$?; ls -A \"$TARGET\"; exit $code";
    let server = copy.server(&["-1"]);
    let mut command = Command::new("unshare");
    command
        .args(["-Urm", "sh", "-c", script, "sh", size])
        .arg(&copy.to)
        .arg(server.get_program())
        .args(server.get_args());
    Some(Running::start(command.env("TARGET", &copy.to)))
}

/// Checks that both sides failed, named the disk, and left no part of the file.
fn check_full_disk(client: &Done, server: &Done) {
    for (who, done) in [("server", server), ("client", client)] {
        assert!(done.code().is_some_and(|c| c > 0), "{who}: {:?} {}", done.status, done.output);
        assert!(
            done.output.contains("space") || done.output.contains("room"),
            "{who}: {}",
            done.output
        );
    }
    assert!(
        !server.output.lines().any(|l| l == "data" || l.starts_with(".data")),
        "left behind: {}",
        server.output
    );
}

#[test]
fn a_disk_that_is_too_small_is_named_before_the_first_byte() {
    let copy = Copy::new("small-disk", 65);
    copy.file(32 << 20);
    let Some(server) = server_on_small_disk(&copy, "4m") else { return };
    let client = run(&mut copy.client(&[]), 60);
    check_full_disk(&client, &server.finish(Duration::from_secs(30)));
}

#[test]
fn a_disk_that_fills_up_meanwhile_leaves_no_half_file() {
    let copy = Copy::new("full-disk", 69);
    copy.file(400 << 20);
    let Some(server) = server_on_small_disk(&copy, "410m") else { return };
    let client = Running::start(&mut copy.client(&[]));
    // The server's target folder, seen from outside of its mount namespace.
    let seen = PathBuf::from(format!("/proc/{}/root{}", server.pid(), copy.to.display()));
    let end = deadline(60);
    let begun = || {
        gdrcore_tests::source::files(&seen, &[])
            .iter()
            .any(|f| f.metadata().is_ok_and(|m| m.len() > 0))
    };
    while !begun() {
        assert!(Instant::now() < end, "nothing arrives");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut filler = fs::File::create(seen.join("filler")).expect("a file beside it");
    let block = vec![1u8; 1 << 20];
    while std::io::Write::write_all(&mut filler, &block).is_ok() {}
    let client = client.finish(Duration::from_secs(60));
    check_full_disk(&client, &server.finish(Duration::from_secs(30)));
}

#[test]
fn a_lost_link_ends_both_sides_with_an_error() {
    let lab = match Lab::new(2) {
        Ok(lab) => lab,
        Err(why) => skip!("no namespaces: {why}"),
    };
    lab.link((0, "s0", &["10.8.0.1/24"]), (1, "c0", &["10.8.0.2/24"])).expect("a link");
    let copy = Copy::new("lost-link", 66);
    copy.file(400 << 20);
    let text = |p: &Path| p.to_str().expect("a plain path").to_string();
    let server = Running::start(lab.command(0, &copy.program).args([
        "-q",
        "-d",
        "soft:10.8.0.1",
        "-1",
        "-t",
        "4",
        "-o",
        &text(&copy.to),
    ]));
    let client = Running::start(lab.command(1, &copy.program).args([
        "-q",
        "-d",
        "soft:10.8.0.2",
        "-t",
        "4",
        "10.8.0.1",
        &text(&copy.from.join("data")),
    ]));
    copy.wait_for_part();
    lab.admin(1, &["link", "set", "c0", "down"]).expect("the link goes down");
    let (client, server) =
        (client.finish(Duration::from_secs(60)), server.finish(Duration::from_secs(60)));
    for (who, done) in [("server", &server), ("client", &client)] {
        assert!(done.code().is_some_and(|c| c > 0), "{who}: {:?} {}", done.status, done.output);
        assert!(!done.output.trim().is_empty(), "{who} printed nothing");
    }
    assert_eq!(copy.leftovers(), 0, "server: {}", server.output);
}

#[test]
fn an_existing_file_is_replaced_only_by_a_whole_one() {
    let copy = Copy::new("replace", 67);
    let bytes = copy.file(3_000_001);
    fs::write(copy.to.join("data"), b"old").expect("the old file");
    let server = Running::start(&mut copy.server(&["-1"]));
    let client = run(&mut copy.client(&[]), 60);
    assert!(client.ok() && server.finish(LIMIT).ok(), "{}", client.output);
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
}

#[test]
fn garbage_on_the_control_port_is_refused() {
    let copy = Copy::new("garbage", 68);
    let bytes = copy.file(100_000);
    let server = Running::start(&mut copy.server(&[]));
    let address = format!("{}:{}", loopback(copy.n, 1), copy.port());
    for n in 0..20u64 {
        let end = deadline(60);
        let mut liar = loop {
            match std::net::TcpStream::connect(&address) {
                Ok(stream) => break stream,
                Err(e) => assert!(Instant::now() < end, "{address}: {e}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        use std::io::Write;
        let _ = liar.write_all(&pattern(n, (n * 97) as usize));
    }
    let client = run(&mut copy.client(&[]), 60);
    assert!(client.ok(), "{}", client.output);
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
    server.interrupt();
    server.finish(LIMIT);
}

/// Bytes that a file occupies on its disk.
fn stored(path: &Path) -> u64 {
    path.metadata().expect("a file").blocks() * 512
}

#[test]
fn holes_stay_holes() {
    let copy = Copy::new("holes", 70);
    let top = copy.from.join("data");
    fs::create_dir(&top).expect("a folder");
    let file = |name: &str, len: u64, pieces: &[(u64, usize)]| {
        let file = fs::File::create(top.join(name)).expect(name);
        file.set_len(len).expect("a size");
        for (at, n) in pieces {
            file.write_all_at(&pattern(*at, *n), *at).expect(name);
        }
    };
    // Data at the beginning, in between, at the end; a file that is one hole larger than any disk
    // here; a file without holes.
    file("mixed", 100 << 20, &[(0, 100_000), (33 << 20, 3_000_001), ((100 << 20) - 5000, 5000)]);
    file("ends-in-a-hole", 50_000_003, &[(10_000_000, 70_000)]);
    file("empty-tebibyte", 1 << 40, &[]);
    file("dense", 200_000, &[(0, 200_000)]);
    let server = Running::start(&mut copy.server(&["-1"]));
    let client = run(&mut copy.client(&["-s", "64k"]), 120);
    let server = server.finish(LIMIT);
    assert!(client.ok() && server.ok(), "{}\n{}", client.output, server.output);
    for name in ["mixed", "ends-in-a-hole", "dense"] {
        let (sent, got) = (top.join(name), copy.to.join("data").join(name));
        assert!(fs::read(&sent).expect(name) == fs::read(&got).expect(name), "{name}");
        assert!(
            stored(&got) <= stored(&sent) + 65_536,
            "{name}: {} of {}",
            stored(&got),
            stored(&sent)
        );
    }
    let whole = copy.to.join("data/empty-tebibyte");
    assert_eq!((whole.metadata().expect("the hole").len(), stored(&whole)), (1 << 40, 0));
    // Again, by checksum: a hole costs nothing there either, and no bytes are sent.
    let server = Running::start(&mut copy.server(&["-1"]));
    let again = run(&mut copy.loud_client(&["--checksum"]), 120);
    assert!(again.ok() && again.output.contains("copied 0 files, 0 bytes"), "{}", again.output);
    assert!(again.output.contains("4 unchanged"), "{}", again.output);
    assert!(server.finish(LIMIT).ok());
}

#[test]
fn files_that_cannot_be_copied_are_named_and_the_rest_arrives() {
    let copy = Copy::new("some", 71);
    let top = copy.from.join("data");
    // Deeper than folders may be nested: root is refused as well.
    let deep: PathBuf = (0..70).map(|_| "d").collect();
    fs::create_dir_all(top.join(&deep)).expect("folders");
    fs::write(top.join("first"), b"1").expect("a file");
    fs::write(top.join("zlast"), b"2").expect("a file");
    let secret = top.join("secret");
    fs::write(&secret, b"3").expect("a file");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).expect("a mode");
    run(Command::new("mkfifo").arg(top.join("pipe")), 10);
    let _socket = std::os::unix::net::UnixListener::bind(top.join("socket")).expect("a socket");
    symlink("first", top.join("link")).expect("a link");
    let server = Running::start(&mut copy.server(&["-1"]));
    // Files of /proc and /sys have no size, or a wrong one; reading /proc/self/mem fails.
    let huge = "/sys/kernel/mm/transparent_hugepage/enabled";
    let mut args = vec!["/proc/version", "/proc/self/mem", "/dev/null", "/nonexistent/x", "/"];
    args.extend(Path::new(huge).exists().then_some(huge));
    let pipe = top.join("pipe");
    let mut client = copy.client(&["-s", "4k"]);
    let client = run(client.args(&args).arg(&pipe), 60);
    let server = server.finish(LIMIT);
    assert!(server.ok(), "{}\n{}", server.output, client.output);
    assert_eq!(client.code(), Some(1), "{}", client.output);
    for said in [
        "data/pipe is a pipe",
        "data/socket is a socket",
        "data/link is a symbolic link",
        "cannot copy /dev/null: a character device",
        "cannot copy /nonexistent/x: No such file",
        "cannot copy /: it has no name",
        "pipe: a pipe",
        "reading mem: Input/output error",
        "opening folder data/d/d/d",
    ] {
        assert!(client.output.contains(said), "no '{said}' in {}", client.output);
    }
    let arrived = |name: &str| fs::read(copy.to.join(name));
    assert_eq!(arrived("data/first").expect("before"), b"1");
    assert_eq!(arrived("data/zlast").expect("behind"), b"2");
    assert_eq!(arrived("version").expect("of /proc"), fs::read("/proc/version").expect("/proc"));
    if Path::new(huge).exists() {
        assert_eq!(arrived("enabled").expect("of /sys"), fs::read(huge).expect("/sys"));
    }
    assert!(arrived("mem").is_err() && arrived("null").is_err());
    assert!(
        copy.to.join("data").join((0..60).map(|_| "d").collect::<PathBuf>()).is_dir(),
        "folders up to the limit"
    );
    // SAFETY: takes nothing.
    if unsafe { libc::geteuid() } == 0 {
        assert_eq!(arrived("data/secret").expect("root reads it"), b"3");
    } else {
        assert!(
            arrived("data/secret").is_err() && client.output.contains("secret"),
            "{}",
            client.output
        );
    }
    assert_eq!(
        gdrcore_tests::source::files(&copy.to, &[]).iter().filter(|p| is_partial(p)).count(),
        0
    );
}

fn is_partial(path: &Path) -> bool {
    path.file_name().is_some_and(|n| n.to_string_lossy().contains(".partial-"))
}

#[test]
fn a_folder_is_not_copied_into_itself() {
    let copy = Copy::new("itself", 72);
    // The target lies inside the source.
    let top = copy.to.parent().expect("the test's folder");
    fs::write(copy.from.join("data"), b"bytes").expect("a file");
    let server = Running::start(&mut copy.server(&[]));
    let mut client = Command::new(&copy.program);
    client.args(["-q", "-d", &copy.device(2), "-p", &copy.port(), &loopback(copy.n, 1)]);
    let done = run(client.arg(top), 60);
    assert_eq!(done.code(), Some(1), "{}", done.output);
    assert!(done.output.contains("not copied into itself"), "{}", done.output);
    let copied = copy.to.join(top.file_name().expect("a name"));
    assert_eq!(fs::read(copied.join("from/data")).expect("the rest"), b"bytes");
    assert!(!copied.join("to").exists(), "the target was copied into itself");
    // A file of the target would be copied onto itself.
    let mut client = Command::new(&copy.program);
    client.args(["-q", "-d", &copy.device(2), "-p", &copy.port(), &loopback(copy.n, 1)]);
    let done = run(client.arg(&copied), 60);
    assert_eq!(done.code(), Some(1), "{}", done.output);
    assert!(done.output.contains("copied onto itself"), "{}", done.output);
    server.interrupt();
    server.finish(LIMIT);
}

#[test]
fn unchanged_files_are_not_sent() {
    let copy = Copy::new("update", 73);
    let top = copy.from.join("data");
    fs::create_dir_all(top.join("below")).expect("folders");
    let server = Running::start(&mut copy.server(&[]));
    for (name, len) in [("a", 100_000), ("b", 5), ("empty", 0), ("below/c", 3_000_000)] {
        fs::write(top.join(name), pattern(len as u64, len)).expect(name);
    }
    let again = |how: &str, said: &str| {
        let done = run(&mut copy.loud_client(&[how]), 60);
        assert!(done.ok() && done.output.contains(said), "{how}: no '{said}': {}", done.output);
    };
    let there = |name: &str| copy.to.join("data").join(name);
    let inode = |name: &str| there(name).metadata().expect(name).ino();
    // The target is empty, so all files are copied.
    again("--update", "copied 4 files, 3100005 bytes");
    let before = inode("a");
    again("--update", "copied 0 files, 0 bytes");
    again("--checksum", "4 unchanged");
    assert_eq!(inode("a"), before, "the file was replaced");
    // The same bytes with another time: by time alone the file is sent again; by checksum only its
    // time and mode are corrected.
    let touch = |name: &str, seconds: u64| {
        let time = std::time::UNIX_EPOCH + Duration::from_secs(seconds);
        fs::File::options()
            .write(true)
            .open(top.join(name))
            .and_then(|f| f.set_modified(time))
            .expect(name);
    };
    touch("a", 1_000_000);
    fs::set_permissions(top.join("b"), fs::Permissions::from_mode(0o600)).expect("a mode");
    again("--checksum", "copied 0 files, 0 bytes");
    let meta = |path: PathBuf| {
        path.metadata()
            .map(|m| (m.permissions().mode(), m.modified().expect("a time")))
            .expect("it")
    };
    for name in ["a", "b"] {
        assert_eq!(meta(there(name)), meta(top.join(name)), "{name}");
    }
    touch("a", 2_000_000);
    again("--update", "copied 1 file, 100000 bytes");
    // Other bytes of the same size and time: only the checksum finds them.
    let time = meta(top.join("b")).1;
    fs::write(top.join("b"), b"other").expect("b");
    fs::File::options()
        .write(true)
        .open(top.join("b"))
        .and_then(|f| f.set_modified(time))
        .expect("its time");
    again("--update", "copied 0 files");
    assert_ne!(fs::read(there("b")).expect("b"), b"other");
    again("--checksum", "copied 1 file, 5 bytes");
    assert_eq!(fs::read(there("b")).expect("b"), b"other");
    // A folder or a link in place of the file is not the file.
    fs::remove_file(there("b")).expect("b");
    symlink(top.join("b"), there("b")).expect("a link");
    again("--update", "copied 1 file, 5 bytes");
    assert!(there("b").symlink_metadata().expect("b").is_file());
    server.interrupt();
    assert!(server.finish(LIMIT).ok());
}

/// Interrupts a client in the middle of a file; returns its output.
fn interrupted(copy: &Copy, more: &[&str]) -> String {
    let client = Running::start(&mut copy.client(more));
    copy.wait_for_part();
    client.interrupt();
    let done = client.finish(LIMIT);
    assert_eq!(done.code(), Some(130), "{}", done.output);
    assert!(
        done.output.contains("interrupted: 0 files, 0 bytes in place; stopped inside data at "),
        "{}",
        done.output
    );
    assert!(copy.arrived().is_empty(), "{:?}", copy.arrived());
    done.output
}

#[test]
fn an_interrupted_copy_reports_its_place_and_can_be_resumed() {
    let copy = Copy::new("resume", 74);
    let bytes = copy.file(400 << 20);
    let server = Running::start(&mut copy.server(&[]));
    let said = interrupted(&copy, &[]);
    assert!(said.contains("nothing is left there"), "{said}");
    assert_eq!(copy.leftovers(), 0);
    // With --resume the part stays, and the next copy continues behind it.
    let said = interrupted(&copy, &["--resume"]);
    let part =
        fs::read_dir(&copy.to).expect("the target").next().expect("a part").expect("a part").path();
    let len = part.metadata().expect("the part").len();
    assert!(len > 0 && said.contains(&format!("at {len} bytes\n")), "{len}: {said}");
    let done = run(&mut copy.loud_client(&["--resume"]), 120);
    assert!(
        done.ok() && done.output.contains(&format!("; {len} bytes were there")),
        "{}",
        done.output
    );
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
    assert_eq!(copy.leftovers(), 1);
    let done = run(&mut copy.loud_client(&["--resume"]), 120);
    assert!(done.ok() && done.output.contains("1 unchanged"), "{}", done.output);
    // A part whose bytes differ from the client's is not used, however long it is.
    fs::remove_file(copy.to.join("data")).expect("the copy");
    interrupted(&copy, &["--resume"]);
    let damaged = fs::File::options().write(true).open(&part).expect("the part");
    damaged.write_all_at(&[bytes[777] ^ 1], 777).expect("a damaged byte");
    let done = run(&mut copy.loud_client(&["--resume"]), 120);
    assert!(done.ok() && !done.output.contains("were there"), "{}", done.output);
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
    assert_eq!(copy.leftovers(), 1);
    server.interrupt();
    assert!(server.finish(LIMIT).ok());
}

#[test]
fn a_killed_server_leaves_a_part_that_the_next_copy_resumes() {
    let copy = Copy::new("resume-killed", 75);
    let bytes = copy.file(400 << 20);
    let mut server = Running::start(&mut copy.server(&[]));
    let client = Running::start(&mut copy.client(&["--resume", "-t", "10"]));
    copy.wait_for_part();
    server.kill();
    assert_eq!(client.finish(Duration::from_secs(60)).code(), Some(1));
    assert!(copy.arrived().is_empty() && copy.leftovers() == 1);
    let server = Running::start(&mut copy.server(&["-1"]));
    let done = run(&mut copy.loud_client(&["--resume"]), 120);
    assert!(done.ok() && done.output.contains("bytes were there"), "{}", done.output);
    assert!(server.finish(LIMIT).ok());
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
    assert_eq!(copy.leftovers(), 1);
}

/// Two clients send one file, both with --resume: one continues the part, the other begins its own;
/// the copy that ends last stays.
#[test]
fn two_copies_of_one_file_do_not_write_into_each_others_part() {
    let copy = Copy::new("resume-two", 76);
    let bytes = copy.file(200 << 20);
    let server = Running::start(&mut copy.server(&[]));
    let clients: Vec<Running> = (2..5)
        .map(|last| {
            let mut client = Command::new(&copy.program);
            client.args([
                "-q",
                "-d",
                &copy.device(last),
                "-p",
                &copy.port(),
                "-r",
                &loopback(copy.n, 1),
            ]);
            Running::start(client.arg(copy.from.join("data")))
        })
        .collect();
    for client in clients {
        let done = client.finish(LIMIT);
        assert!(done.ok(), "{}", done.output);
    }
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
    assert_eq!(copy.leftovers(), 1);
    server.interrupt();
    server.finish(LIMIT);
}

#[test]
fn a_client_that_lies_is_refused_and_changes_nothing() {
    let copy = Copy::new("liar", 77);
    let root = gdrcore_tests::source::root();
    let (build, examples) = (root.join("build/lib"), root.join("c-examples"));
    let text = |p: PathBuf| p.display().to_string();
    let mut flags =
        vec![format!("-I{}", text(examples)), format!("-I{}", text(root.join("include")))];
    for object in [
        "common/say",
        "common/sleep",
        "common/conn",
        "common/dev",
        "common/mem",
        "common/crc32c",
        "rdma_copy/ring",
    ] {
        flags.push(text(root.join(format!("build/obj/{object}.o"))));
    }
    flags.extend([
        format!("-L{}", text(build.clone())),
        format!("-Wl,-rpath,{}", text(build)),
        "-lgdrcore".into(),
    ]);
    let flags: Vec<&str> = flags.iter().map(String::as_str).chain(["-lpthread", "-lm"]).collect();
    let liar = compile("cc", "copy_liar", &copy._dir, &flags);
    let bytes = copy.file(3);
    fs::write(copy.to.join("there"), b"abc").expect("a file");
    symlink("there", copy.to.join("link")).expect("a link");
    let before = copy.to.join("there").metadata().expect("it").modified().expect("a time");
    let server = Running::start(&mut copy.server(&[]));
    for (lie, said) in [
        ("hole-too-long", "protocol"),
        ("hole-without-size", "protocol"),
        ("end-too-early", "protocol"),
        ("end-with-another-size", "protocol"),
        ("wrong-checksum", "damaged on the way"),
        ("resume-unasked", "protocol"),
        ("resume-beyond-the-end", "protocol"),
        ("keep-unasked", "protocol"),
        ("keep-what-is-not-there", "changed it meanwhile"),
        ("keep-outside", "path refused"),
        ("keep-a-link", "changed it meanwhile"),
        ("offer-outside", "path refused"),
        ("offer-without-path", "protocol"),
        ("offer-unasked", "protocol"),
        ("drop-nothing", "protocol"),
        ("done-with-other-counts", "counts are wrong"),
        ("done-cut", "counts are wrong"),
        ("unknown-option", "options"),
        ("stop-at-once", "says 21"),
    ] {
        let mut client = Command::new(&liar);
        let done = run(client.args([&copy.port(), &copy.device(3), &loopback(copy.n, 1), lie]), 60);
        assert!(done.output.contains(said), "{lie}: no '{said}' in {}", done.output);
        assert_eq!(copy.arrived(), [copy.to.join("there")], "{lie}");
    }
    assert_eq!(fs::read(copy.to.join("there")).expect("it"), b"abc");
    assert_eq!(copy.to.join("there").metadata().expect("it").modified().expect("a time"), before);
    let honest = run(&mut copy.client(&[]), 60);
    assert!(
        honest.ok() && fs::read(copy.to.join("data")).expect("the copy") == bytes,
        "{}",
        honest.output
    );
    server.interrupt();
    server.finish(LIMIT);
}
