//! Processes, disks and links that fail in the middle of a copy: no half file is left.

use super::*;
use gdrcore_tests::or_skip;

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
    assert!(again.ok(), "{again}");
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
    assert!(client.code().is_some_and(|c| c > 0) && !client.output.trim().is_empty(), "{client}");
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
    assert!(client.ok() && server.ok(), "{client}\n{server}");
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
        gdrcore_tests::skip::skipped(format_args!(
            "no small file system can be mounted here: {}",
            may.output.trim()
        ));
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
        assert!(done.code().is_some_and(|c| c > 0), "{who}: {done}");
        assert!(done.output.contains("space") || done.output.contains("room"), "{who}: {done}");
    }
    assert!(
        !server.output.lines().any(|l| l == "data" || l.starts_with(".data")),
        "left behind: {server}"
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
    let begun = || {
        gdrcore_tests::source::files(&seen, &[])
            .iter()
            .any(|f| f.metadata().is_ok_and(|m| m.len() > 0))
    };
    wait_for(60, "nothing arrives", begun);
    let mut filler = fs::File::create(seen.join("filler")).expect("a file beside it");
    let block = vec![1u8; 1 << 20];
    while std::io::Write::write_all(&mut filler, &block).is_ok() {}
    let client = client.finish(Duration::from_secs(60));
    check_full_disk(&client, &server.finish(Duration::from_secs(30)));
}

#[test]
fn a_lost_link_ends_both_sides_with_an_error() {
    let lab = or_skip!(Lab::new(2));
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
        assert!(done.code().is_some_and(|c| c > 0), "{who}: {done}");
        assert!(!done.output.trim().is_empty(), "{who} printed nothing");
    }
    assert_eq!(copy.leftovers(), 0, "server: {server}");
}
