//! Copies that skip unchanged files, or continue an interrupted one.

use super::*;

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
        assert!(done.ok() && done.output.contains(said), "{how}: no '{said}': {done}");
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
    assert_eq!(done.code(), Some(130), "{done}");
    assert!(
        done.output.contains("interrupted: 0 files, 0 bytes in place; stopped inside data at "),
        "{done}"
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
    assert!(done.ok() && done.output.contains(&format!("; {len} bytes were there")), "{done}");
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
    assert_eq!(copy.leftovers(), 1);
    let done = run(&mut copy.loud_client(&["--resume"]), 120);
    assert!(done.ok() && done.output.contains("1 unchanged"), "{done}");
    // A part whose bytes differ from the client's is not used, however long it is.
    fs::remove_file(copy.to.join("data")).expect("the copy");
    interrupted(&copy, &["--resume"]);
    let damaged = fs::File::options().write(true).open(&part).expect("the part");
    damaged.write_all_at(&[bytes[777] ^ 1], 777).expect("a damaged byte");
    let done = run(&mut copy.loud_client(&["--resume"]), 120);
    assert!(done.ok() && !done.output.contains("were there"), "{done}");
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
    assert!(done.ok() && done.output.contains("bytes were there"), "{done}");
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
        assert!(done.ok(), "{done}");
    }
    assert!(fs::read(copy.to.join("data")).expect("the copy") == bytes);
    assert_eq!(copy.leftovers(), 1);
    server.interrupt();
    server.finish(LIMIT);
}
