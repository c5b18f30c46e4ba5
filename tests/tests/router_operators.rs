//! What operators see of a router, and how it confines itself: the log, names of programs, metrics
//! and probes over HTTP, users by name, `--check`, and the walls around the process.

use gdrcore_net::via::proto::{Hello, Message};
use gdrcore_tests::patience::{limit, wait_for};
use gdrcore_tests::router::{hello, Raw, Router, TWO};
use gdrcore_tests::supervisor::folder;
use gdrcore_tests::tools::{as_root, closed_to_others, find, is_root, run, scratch, Running};
use gdrcore_tests::{library, or_skip, skip};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// Waits until the router has written a line with some words, and returns the line.
fn line_with(router: &mut Router, words: &str) -> String {
    router.running().wait_for_output(words);
    let said = router.running().output();
    said.lines().find(|line| line.contains(words)).expect("it is there").to_string()
}

#[test]
fn who_comes_and_goes_is_logged_and_no_name_forges_a_line() {
    // The name of this process, which is also that of the other tests' sessions.
    let name = "a\nsession 9 \u{7}";
    std::fs::write("/proc/self/comm", name).expect("a name");
    let mut router = Router::start(TWO);
    let mut raw = Raw::connect(&router.socket("a")).expect("a connection");
    raw.greet();
    let sessions = router.sessions();
    let shown = "\"program\":\"a\\nsession 9 \\u0007\"";
    assert!(sessions.len() == 1 && sessions[0].contains(shown), "{sessions:?}");
    let facts = format!("tenant a, program \"a\\nsession 9 \\u{{7}}\", pid {}", std::process::id());
    let joined = line_with(&mut router, " joined: ");
    assert!(joined.ends_with(&facts), "{joined}");
    drop(raw);
    let left = line_with(&mut router, " left: ");
    assert!(left.ends_with(&facts), "{left}");
    let mut raw = Raw::connect(&router.socket("b")).expect("a connection");
    raw.say(1, Message::Hello(Hello { versions: (77, 77), ..hello() }));
    assert!(raw.hear().is_some());
    let refused = line_with(&mut router, " refused: ");
    assert!(refused.contains("the program 77 to 77") && refused.contains("pid "), "{refused}");
    let said = router.running().output();
    assert!(said.lines().all(|line| line.starts_with("gdrcore-routerd: ")), "{said}");
    assert!(!said.contains('\u{7}'), "{said}");
}

#[test]
fn a_flood_of_sessions_is_counted_in_the_log() {
    let mut router = Router::start(&TWO.replace("[tenant.a]", "[tenant.a]\nsessions = 1"));
    let _first = {
        let mut raw = Raw::connect(&router.socket("a")).expect("a connection");
        raw.greet();
        raw
    };
    let count = |router: &mut Router| {
        let said = router.running().output();
        let written = said.lines().filter(|line| line.contains(" refused: ")).count();
        let left_out = said.lines().filter_map(|line| {
            let (_, rest) = line.split_once("gdrcore-routerd: ")?;
            rest.split_once(" lines of tenant a are left out")?.0.parse::<usize>().ok()
        });
        (written, left_out.sum::<usize>())
    };
    // However long it takes to have more in a second than the log has lines.
    let mut flood = 0;
    wait_for(60, "lines that are left out", || {
        for _ in 0..50 {
            let mut raw = Raw::connect(&router.socket("a")).expect("a connection");
            raw.say(1, Message::Hello(hello()));
            assert!(raw.hear().is_some());
            flood += 1;
        }
        count(&mut router).1 > 0
    });
    // Its quota and its lines are the tenant's: the other's line is there.
    Raw::connect(&router.socket("b")).expect("a connection").greet();
    line_with(&mut router, "joined: tenant b");
    wait_for(60, "the count of the others", || {
        let (written, left_out) = count(&mut router);
        written + left_out == flood
    });
}

/// In a mount namespace of its own, where the journal's socket is the test's.
#[test]
fn systemds_journal_gets_the_facts_as_fields() {
    let (Some(unshare), true) = (find("unshare"), is_root()) else {
        skip!("unshare is not installed, or this user may not use it")
    };
    let dir = folder("journal");
    let journal = UnixDatagram::bind(dir.join("socket")).expect("a socket");
    journal.set_read_timeout(Some(limit(60))).expect("a limit");
    let policy = dir.join("policy.toml");
    let tenant = format!("[tenant.a]\nlisten = \"{}/a\"\n", dir.display());
    std::fs::write(&policy, tenant).expect("the policy");
    let script = format!(
        "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
         mount --bind {} /run/systemd/journal && \
         export JOURNAL_STREAM=$(stat -Lc %d:%i /proc/self/fd/2) && exec \"$@\"",
        dir.display()
    );
    let mut command = Command::new(unshare);
    command.args(["--mount", "sh", "-c", &script, "sh"]);
    command.arg(library::router().join("gdrcore-routerd")).arg("-v").arg(&policy);
    let mut router = Running::start(&mut command);
    router.wait_for_output("ready");
    Raw::connect(&dir.join("a")).expect("a connection").greet();
    for event in ["joined", "left"] {
        let mut entry = [0; 4096];
        let n = journal.recv(&mut entry).expect("an entry");
        let entry = String::from_utf8_lossy(&entry[..n]).into_owned();
        let pid = format!("GDRC_PID={}", std::process::id());
        let event = format!("GDRC_EVENT={event}");
        for field in ["GDRC_TENANT=a", "PRIORITY=6", &event, &pid] {
            assert!(entry.lines().any(|line| line == field), "no {field} in {entry}");
        }
    }
    assert!(!router.output().contains("joined"), "{}", router.output());
    drop(router);
    std::fs::remove_dir_all(&dir).expect("the folder");
}

/// The answer to a request at a port of loopback; `None`: the connection was closed without one.
fn ask(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the router listens");
    stream.set_read_timeout(Some(limit(60))).expect("a limit");
    // It may have been closed by then.
    let _ = stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    let mut text = String::new();
    match stream.read_to_string(&mut text) {
        Ok(0) => None,
        Ok(_) => Some(text),
        Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => None,
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn whom_the_policy_names_may_ask_whether_the_router_lives_and_is_ready() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    drop(listener);
    let policy = |from: &str| {
        let metrics = format!("metrics = \"[::]:{port}\"\nmetrics_from = [\"{from}\"]\n");
        format!("[router]\n{metrics}{TWO}")
    };
    let mut router = Router::start(&policy("127.0.0.0/8"));
    let mut raw = Raw::connect(&router.socket("a")).expect("a connection");
    raw.greet();
    let status = |path: &str| {
        let text = ask(port, path).expect("an answer");
        let (head, body) = text.split_once("\r\n\r\n").expect("head and body");
        (head[9..12].to_string(), body.trim_end().to_string())
    };
    let of = |status: &str, body: &str| (status.to_string(), body.to_string());
    assert_eq!(status("/healthz"), of("200", "ok"));
    assert_eq!(status("/readyz"), of("200", "ready"));
    assert!(status("/metrics").1.contains("gdrcore_router_sessions{tenant=\"a\""));
    assert_eq!(status("/health").0, "404");
    // A supervisor that asks often is answered every time; counters have a rate.
    assert!((0..80).all(|_| status("/healthz").0 == "200"));
    // Others get nothing, by a list that a reload changes.
    router.write(&policy("192.0.2.0/24"));
    assert_eq!(router.reload(), Ok(()));
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(ask(port, path), None);
    }
    router.write(&policy("127.0.0.1"));
    assert_eq!(router.reload(), Ok(()));
    // It drains for as long as there is a session.
    router.running().signal(libc::SIGTERM);
    wait_for(60, "it stays ready", || status("/readyz") == of("503", "drains"));
    assert_eq!(status("/healthz"), of("200", "ok"));
}

#[test]
fn a_user_is_named_in_the_policy() {
    or_skip!(as_root());
    let policy = |uid: &str| {
        format!("[router]\nlisten = \"DIR/any\"\n[tenant.me]\nmatch = {{ uid = \"{uid}\" }}\n")
    };
    let router = Router::start(&policy("root"));
    Raw::connect(&router.socket("any")).expect("a connection").greet();
    router.write(&policy("nobody"));
    let why = router.reload().unwrap_err();
    assert!(why.contains("line 4, column 17: uid 'nobody'") && why.contains("restart"), "{why}");
    router.write(&policy("0"));
    assert_eq!(router.reload(), Ok(()));
}

#[test]
fn a_policy_is_checked_with_all_that_it_names() {
    let dir = scratch("router-check");
    let file = dir.join("policy.toml");
    let shown = dir.display();
    let check = |text: &str| {
        std::fs::write(&file, text).expect("the policy");
        run(Command::new(library::router().join("gdrcore-routerd")).arg("--check").arg(&file), 60)
    };
    let listen = format!("[router]\nlisten = \"{shown}/router.gdrc\"\n");
    let done = check(&format!("{listen}[tenant.a]\nmatch = {{ netns = \"/proc/self/ns/net\" }}\n"));
    assert!(done.ok() && done.output.is_empty(), "{done}");
    let done = check(&format!(
        "{listen}metrics = \"192.0.2.9:9100\"\nmetrics_from = [\"192.0.2.0/24\"]\n[tenant.a]\n\
         match = {{ netns = \"{shown}/blue\" }}\n[tenant.b]\nmatch = {{ uid = \"no-such-user\" }}\n"
    ));
    assert_eq!(done.code(), Some(1), "{done}");
    for said in [
        format!("{}: line 3, column 11: address 192.0.2.9: ", file.display()),
        format!("line 6, column 19: netns '{shown}/blue': No such file"),
        "line 8, column 17: uid 'no-such-user': there is no user of this name".into(),
        format!("{}: 3 faults", file.display()),
    ] {
        assert!(done.output.contains(&said), "no {said} in {done}");
    }
}

#[test]
fn a_folder_is_checked_with_the_rights_of_the_user() {
    or_skip!(as_root());
    if let Some(dir) = closed_to_others() {
        skip!("another user may not enter {}", dir.display());
    }
    let routerd = library::router().join("gdrcore-routerd");
    let dir = std::env::temp_dir().join(format!("gdrc-check-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let (file, shown) = (dir.join("policy.toml"), dir.display());
    for (path, why) in [
        ("a", "this user may make nothing in its folder".to_string()),
        ("b/a", format!("its folder is missing, and this user may not make it in '{shown}'")),
    ] {
        std::fs::write(&file, format!("[tenant.a]\nlisten = \"{shown}/{path}\"\n"))
            .expect("a file");
        let check = |uid: u32| run(Command::new(&routerd).arg("--check").arg(&file).uid(uid), 60);
        assert!(check(0).ok());
        let done = check(30_001);
        let said = format!("line 2, column 10: '{shown}/{path}': {why}");
        assert!(!done.ok() && done.output.contains(&said), "{done}");
    }
    std::fs::remove_dir_all(&dir).expect("the folder");
}

/// A fact of each thread of a process, as the kernel tells it.
fn facts(pid: u32, name: &str) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads");
    let of = |task: PathBuf| {
        let text = std::fs::read_to_string(task.join("status")).unwrap_or_default();
        let line =
            text.lines().find_map(|l| l.strip_prefix(name)).map(str::trim).map(str::to_string);
        line.unwrap_or_default()
    };
    threads.map(|task| of(task.expect("a thread").path())).collect()
}

#[test]
fn a_router_confines_all_its_threads_unless_it_is_told_not_to() {
    // What confines this process, as a container's runtime may, confines its children.
    let own = |name| facts(std::process::id(), name).swap_remove(0);
    let filters = own("Seccomp_filters:");
    // Empty before Linux 5.9.
    let more = filters.parse::<u32>().map(|n| (n + 2).to_string()).unwrap_or_default();
    let cases = [
        (&[][..], more, "2".to_string(), "1".to_string()),
        (&["--no-confine"], filters, own("Seccomp:"), own("NoNewPrivs:")),
    ];
    for (options, filters, mode, privileges) in cases {
        let mut router = Router::start_with(TWO, options);
        let mut raw = Raw::connect(&router.socket("a")).expect("a connection");
        raw.greet_with_rings();
        let pid = router.running().pid();
        for (name, expected) in
            [("Seccomp:", mode), ("Seccomp_filters:", filters), ("NoNewPrivs:", privileges)]
        {
            let all = facts(pid, name);
            assert!(all.len() >= 2 && all.iter().all(|v| *v == expected), "{name} {all:?}");
        }
        let status = router.ask("status").output;
        let is_confined = status.contains("\"confined\":\"seccomp");
        assert_eq!(is_confined, options.is_empty(), "{status}");
    }
}

#[test]
fn a_confined_router_makes_sockets_beside_its_own_only() {
    let router = Router::start(TWO);
    if !router.ask("status").output.contains("\"confined\":\"seccomp, Landlock\"") {
        skip!("this kernel has no Landlock");
    }
    // A new tenant, with a folder of its own.
    let more = format!("{TWO}[tenant.c]\nlisten = \"DIR/new/tenant.gdrc\"\n");
    router.write(&more);
    assert_eq!(router.reload(), Ok(()));
    Raw::connect(&router.socket("new/tenant.gdrc")).expect("a connection").greet();
    // What is outside of the folders of its policy is out of reach, root's router included.
    let outside = format!("/var/tmp/gdrc-outside-{}", std::process::id());
    std::fs::create_dir_all(&outside).expect("a folder");
    router.write(&format!("{TWO}[tenant.c]\nlisten = \"{outside}/c\"\n"));
    let why = router.reload().unwrap_err();
    assert!(why.contains("os error 13") && why.contains("restart it"), "{why}");
    let map =
        format!("[host]\nid = \"h\"\naddress = \"127.0.0.1\"\nmap = \"{outside}/map.toml\"\n{TWO}");
    std::fs::write(format!("{outside}/map.toml"), "").expect("a map");
    router.write(&map);
    let why = router.reload().unwrap_err();
    assert!(why.contains("os error 13"), "{why}");
    let netns =
        "[router]\nlisten = \"DIR/any\"\n[tenant.n]\nmatch = { netns = \"/proc/1/ns/net\" }";
    router.write(&format!("{netns}\n{TWO}"));
    let why = router.reload().unwrap_err();
    assert!(why.contains("Landlock"), "{why}");
    std::fs::remove_dir_all(&outside).expect("the folder");
    // What it had is served still, and a restart takes the new policy.
    Raw::connect(&router.socket("new/tenant.gdrc")).expect("a connection").greet();
    let mut router = router;
    router.kill();
    router.restart();
    assert!(router.ask("status").output.contains("no Landlock, for a `netns`"));
}
