//! rdma_copy_file: whole files or none, whatever happens to the other side, the disk or the link.

use gdrcore_tests::ends::pattern;
use gdrcore_tests::lab::Lab;
use gdrcore_tests::tools::{loopback, run, scratch, Done, Running, Scratch};
use gdrcore_tests::{library, skip};
use std::fs;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);

/// One server and one client, on loopback addresses of their own.
struct Copy {
    program: PathBuf,
    /// Third byte of both addresses, and the port's last digits.
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
        Copy { program: library::examples().join("rdma_copy/rdma_copy_file"), n, from, to, _dir: dir }
    }

    fn device(&self, last: u32) -> String {
        format!("soft:{}", loopback(self.n, last))
    }

    fn port(&self) -> String {
        (19_800 + self.n).to_string()
    }

    fn server(&self, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-q", "-d", &self.device(1), "-p", &self.port(), "-o"]).arg(&self.to).args(more);
        command
    }

    fn client(&self, more: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["-q", "-d", &self.device(2), "-p", &self.port()]).args(more);
        command.arg(loopback(self.n, 1)).arg(self.from.join("data"));
        command
    }

    /// Writes the file that is to be sent.
    fn file(&self, len: usize) -> Vec<u8> {
        let bytes = pattern(len as u64, len);
        fs::write(self.from.join("data"), &bytes).expect("the source file");
        bytes
    }

    /// Files below the target, without the names that begin with a dot.
    fn arrived(&self) -> Vec<PathBuf> {
        gdrcore_tests::source::files(&self.to, &[])
            .into_iter()
            .filter(|p| !p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.')))
            .collect()
    }

    /// Every file of the target, temporary ones too.
    fn leftovers(&self) -> usize {
        fs::read_dir(&self.to).expect("the target").count()
    }

    /// Waits until part of a file has arrived under its temporary name.
    fn wait_for_part(&self) {
        let end = Instant::now() + Duration::from_secs(30);
        let begun =
            || gdrcore_tests::source::files(&self.to, &[]).iter().any(|f| f.metadata().is_ok_and(|m| m.len() > 0));
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
    for (name, len) in [("empty", 0), ("one", 1), ("page", 4096), ("deep/odd", 1_048_583), ("deep/er/big", 20_000_003)]
    {
        fs::write(top.join(name), pattern(len as u64 + 7, len)).expect(name);
    }
    fs::set_permissions(top.join("one"), fs::Permissions::from_mode(0o640)).expect("mode");
    symlink("/etc/passwd", top.join("link")).expect("a link");
    let server = Running::start(&mut copy.server(&["-1"]));
    let client = run(&mut copy.client(&["-s", "256k", "-n", "4"]), 120);
    let server = server.finish(LIMIT);
    // A link is left out; whether that alone fails the client is its own affair, but what is a file arrives.
    assert!(server.ok(), "{}\n{}", server.output, client.output);
    for name in ["empty", "one", "page", "deep/odd", "deep/er/big"] {
        let (sent, got) = (top.join(name), copy.to.join("data").join(name));
        assert!(fs::read(&sent).expect(name) == fs::read(&got).unwrap_or_else(|e| panic!("{name}: {e}")), "{name}");
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
    // The next client is served at once, and what the first one left is gone.
    let again = run(&mut copy.client(&[]), 120);
    assert!(again.ok(), "{}", again.output);
    assert!(fs::read(copy.to.join("data")).expect("the second copy") == bytes);
    assert_eq!(copy.leftovers(), 1);
    server.interrupt();
    server.finish(LIMIT);
}

#[test]
fn a_killed_server_leaves_no_half_file_and_the_client_says_so() {
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
fn a_stopped_server_that_goes_on_loses_nothing() {
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

/// Starts the server where its target folder is a file system of `size`; the last lines of its output name what is
/// left in that folder. None: it cannot be mounted here, and the test is over.
fn server_on_small_disk(copy: &Copy, size: &str) -> Option<Running> {
    let may = run(Command::new("unshare").args(["-Urm", "mount", "-t", "tmpfs", "tmpfs"]).arg(&copy.to), 10);
    if !may.ok() {
        println!("skipped: no small file system can be mounted here: {}", may.output.trim());
        return None;
    }
    let script = "mount -t tmpfs -o size=$1 tmpfs \"$2\"; shift 2; \"$@\"; code=$?; ls -A \"$TARGET\"; exit $code";
    let server = copy.server(&["-1"]);
    let mut command = Command::new("unshare");
    command
        .args(["-Urm", "sh", "-c", script, "sh", size])
        .arg(&copy.to)
        .arg(server.get_program())
        .args(server.get_args());
    Some(Running::start(command.env("TARGET", &copy.to)))
}

/// Both sides must have failed, named the disk, and left nothing of the file.
fn check_full_disk(client: &Done, server: &Done) {
    for (who, done) in [("server", server), ("client", client)] {
        assert!(done.code().is_some_and(|c| c > 0), "{who}: {:?} {}", done.status, done.output);
        assert!(done.output.contains("space") || done.output.contains("room"), "{who}: {}", done.output);
    }
    assert!(!server.output.lines().any(|l| l == "data" || l.starts_with(".data")), "left behind: {}", server.output);
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
    // The server's view of its folder, from outside of its mount namespace.
    let seen = PathBuf::from(format!("/proc/{}/root{}", server.pid(), copy.to.display()));
    let end = Instant::now() + Duration::from_secs(30);
    let begun = || gdrcore_tests::source::files(&seen, &[]).iter().any(|f| f.metadata().is_ok_and(|m| m.len() > 0));
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
    let (client, server) = (client.finish(Duration::from_secs(60)), server.finish(Duration::from_secs(60)));
    for (who, done) in [("server", &server), ("client", &client)] {
        assert!(done.code().is_some_and(|c| c > 0), "{who}: {:?} {}", done.status, done.output);
        assert!(!done.output.trim().is_empty(), "{who} says nothing");
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
fn garbage_on_the_control_port_is_told_to_leave() {
    let copy = Copy::new("garbage", 68);
    let bytes = copy.file(100_000);
    let server = Running::start(&mut copy.server(&[]));
    let address = format!("{}:{}", loopback(copy.n, 1), copy.port());
    for n in 0..20u64 {
        let end = Instant::now() + Duration::from_secs(10);
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
