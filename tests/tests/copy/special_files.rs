//! Files that are more than bytes: holes, files that cannot be copied, a folder inside itself.

use super::*;
use gdrcore_tests::tools::is_root;

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
    assert!(client.ok() && server.ok(), "{client}\n{server}");
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
    assert!(again.ok() && again.output.contains("copied 0 files, 0 bytes"), "{again}");
    assert!(again.output.contains("4 unchanged"), "{again}");
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
    assert!(server.ok(), "{server}\n{client}");
    assert_eq!(client.code(), Some(1), "{client}");
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
        assert!(client.output.contains(said), "no '{said}' in {client}");
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
    if is_root() {
        assert_eq!(arrived("data/secret").expect("root reads it"), b"3");
    } else {
        assert!(arrived("data/secret").is_err() && client.output.contains("secret"), "{client}");
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
    assert_eq!(done.code(), Some(1), "{done}");
    assert!(done.output.contains("not copied into itself"), "{done}");
    let copied = copy.to.join(top.file_name().expect("a name"));
    assert_eq!(fs::read(copied.join("from/data")).expect("the rest"), b"bytes");
    assert!(!copied.join("to").exists(), "the target was copied into itself");
    // A file of the target would be copied onto itself.
    let mut client = Command::new(&copy.program);
    client.args(["-q", "-d", &copy.device(2), "-p", &copy.port(), &loopback(copy.n, 1)]);
    let done = run(client.arg(&copied), 60);
    assert_eq!(done.code(), Some(1), "{done}");
    assert!(done.output.contains("copied onto itself"), "{done}");
    server.interrupt();
    server.finish(LIMIT);
}
