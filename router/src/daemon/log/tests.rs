use super::*;
use gdrcore_net::via::proto::{Text, Welcome};
use gdrcore_testkit::patience::limit;
use std::io::{PipeReader, Read};
use std::sync::mpsc;

/// A log to a journal of our own, which tells its entries' fields.
struct Bench {
    log: Log,
    journal: UnixDatagram,
    path: PathBuf,
    policy: Policy,
}

/// A policy with some tenants.
fn policy() -> Policy {
    let table = |name| format!("[tenant.{name}]\nlisten = \"/{name}\"\n");
    Policy::parse(&["blue", "red", "flood", "calm"].map(table).concat()).unwrap()
}

impl Bench {
    fn new(name: &str) -> Bench {
        let path = std::env::temp_dir().join(format!("gdrc-log-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let journal = UnixDatagram::bind(&path).unwrap();
        journal.set_nonblocking(true).unwrap();
        Bench { log: Log::new(Some(&path), None), journal, path, policy: policy() }
    }

    /// The fields of each entry so far, as a journal reads them.
    fn entries(&self) -> Vec<Vec<(String, String)>> {
        let mut all = Vec::new();
        let mut buffer = [0; 8192];
        while let Ok(n) = self.journal.recv(&mut buffer) {
            all.push(fields(&buffer[..n]));
        }
        all
    }

    fn messages(&self) -> Vec<String> {
        self.entries().iter().map(|fields| value(fields, "MESSAGE").unwrap()).collect()
    }

    fn join(&mut self, now: u64, id: SessionId, tenant: &str, program: &str) {
        self.log.connected(id, &seen(program));
        self.log.answered(now, id, &welcome(0, tenant), false, &self.policy);
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn fields(mut bytes: &[u8]) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let mut all = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|&b| b == b'\n').unwrap();
        let line = &bytes[..end];
        bytes = &bytes[end + 1..];
        match line.iter().position(|&b| b == b'=') {
            Some(at) => all.push((text(&line[..at]), text(&line[at + 1..]))),
            None => {
                let (len, rest) = bytes.split_first_chunk().unwrap();
                let (value, rest) = rest.split_at(u64::from_le_bytes(*len) as usize);
                all.push((text(line), text(value)));
                bytes = rest.strip_prefix(b"\n").unwrap();
            }
        }
    }
    all
}

fn value(fields: &[(String, String)], name: &str) -> Option<String> {
    fields.iter().find(|(n, _)| n == name).map(|(_, v)| v.clone())
}

fn seen(program: &str) -> PeerFacts {
    PeerFacts { pid: 77, uid: Some(1000), program: program.into(), ..PeerFacts::default() }
}

fn welcome(status: i32, tenant: &str) -> Envelope {
    let w = Welcome { tenant: Text::new(tenant), ..Welcome::refused(Text::EMPTY) };
    Envelope::answer(1, status, Message::Welcome(w))
}

#[test]
fn who_joins_leaves_or_is_refused_is_named_with_its_facts() {
    let mut b = Bench::new("facts");
    b.join(0, 1, "blue", "ib_write_bw");
    b.log.note_end(0, 1, "");
    b.join(0, 2, "blue", "ib_write_bw");
    b.log.note_end(0, 2, "its rings are broken");
    b.log.connected(3, &seen("ucmatose"));
    b.log.answered(0, 3, &welcome(-libc::EDQUOT, "red"), false, &b.policy);
    b.log.note_end(0, 3, "tenant red has 1 sessions, its most");
    b.log.connected(4, &seen("resumed"));
    b.log.answered(0, 4, &welcome(0, "blue"), true, &b.policy);
    b.log.turned_away(0, "no descriptor is left");
    // Who says nothing and hangs up is no session.
    b.log.connected(5, &seen("scanner"));
    b.log.note_end(0, 5, "");
    assert_eq!(b.log.here.len(), 1);
    let all = b.entries();
    let of = |name: &str| all.iter().map(|f| value(f, name)).collect::<Vec<_>>();
    let some = |s: &str| Some(s.to_string());
    assert_eq!(
        of("MESSAGE")[..3],
        [
            some("session 1 joined: tenant blue, program \"ib_write_bw\", pid 77"),
            some("session 1 left: tenant blue, program \"ib_write_bw\", pid 77"),
            some("session 2 joined: tenant blue, program \"ib_write_bw\", pid 77"),
        ]
    );
    let events = ["joined", "left", "joined", "ended", "refused", "resumed", "refused"];
    assert_eq!(of("GDRC_EVENT"), events.map(some));
    assert_eq!(of("PRIORITY"), ["6", "6", "6", "6", "5", "6", "5"].map(some));
    let refused = &all[4];
    for (name, expected) in [
        ("GDRC_TENANT", "red"),
        ("GDRC_PROGRAM", "ucmatose"),
        ("GDRC_PID", "77"),
        ("GDRC_REASON", "tenant red has 1 sessions, its most"),
        ("SYSLOG_IDENTIFIER", "gdrcore-routerd"),
    ] {
        assert_eq!(value(refused, name).as_deref(), Some(expected), "{refused:?}");
    }
    assert_eq!(value(&all[0], "GDRC_REASON"), None, "nothing to say");
}

#[test]
fn a_process_that_is_told_of_remote_mode_is_named_when_it_has_a_session_of_it() {
    let mut b = Bench::new("remote");
    b.log.connected(1, &seen("ping"));
    b.log.answered(0, 1, &welcome(-libc::EREMOTE, "red"), false, &b.policy);
    b.log.note_end(0, 1, "the device is the router's");
    assert_eq!(b.messages(), [""; 0]);
    b.join(0, 2, "red", "ping");
    assert_eq!(b.messages().len(), 1);
}

#[test]
fn a_program_can_forge_neither_a_line_nor_a_field() {
    let mut b = Bench::new("forged");
    let name = "x\nGDRC_TENANT=me\n\u{1b}[2J\"\\\u{202e}";
    b.join(0, 1, "blue", name);
    b.log.note_end(0, 1, "no tenant is cgroup /a\nsession 9 joined: \u{7}it's");
    let [joined, ended] = &b.entries()[..] else { panic!("two entries") };
    let tenants = joined.iter().filter(|(n, _)| n == "GDRC_TENANT").map(|(_, v)| v.as_str());
    assert_eq!(tenants.collect::<Vec<_>>(), ["blue"]);
    assert_eq!(value(joined, "GDRC_PROGRAM").as_deref(), Some(name), "whole, as a field");
    for entry in [joined, ended] {
        let message = value(entry, "MESSAGE").unwrap();
        assert!(!message.chars().any(|c| c.is_control() || c == '\u{202e}'), "{message}");
    }
    let message = value(joined, "MESSAGE").unwrap();
    let quoted = "program \"x\\nGDRC_TENANT=me\\n\\u{1b}[2J\\\"\\\\\\u{202e}\", pid 77";
    assert!(message.ends_with(quoted), "{message}");
    assert!(value(ended, "MESSAGE").unwrap().ends_with("/a\\nsession 9 joined: \\u{7}it's"));
}

#[test]
fn a_flood_is_counted_and_hides_nobody_else() {
    let mut b = Bench::new("flood");
    // The socket of a journal takes a few entries at a time.
    let mut written = Vec::new();
    for id in 0..1000 {
        b.join(5, id, "flood", "x");
        written.extend(b.messages());
    }
    assert_eq!(written.len() as u64, LINES);
    b.join(6, 2000, "calm", "y");
    assert_eq!(b.messages().len(), 1, "another tenant's line is there");
    assert_eq!(b.log.deadline(), Some(5 + SECOND));
    b.log.tick(4 + SECOND);
    assert_eq!(b.messages(), [""; 0]);
    b.log.tick(5 + SECOND);
    assert_eq!(b.messages(), ["980 lines of tenant flood are left out"]);
    assert_eq!(b.log.deadline(), None);
    // A second later it may write again.
    b.join(5 + SECOND, 3000, "flood", "x");
    assert_eq!(b.messages().len(), 1);
    // However many users there are that the policy does not name, the count of lines has a bound,
    // and a tenant of the policy has its own.
    b.join(9 * SECOND, 3999, "blue", "x");
    written.extend(b.messages());
    for id in 4000..4200 {
        b.join(9 * SECOND, id, &format!("uid-{id}"), "x");
        written.extend(b.messages());
    }
    assert_eq!(written.len() as u64, LINES + 1 + SOURCES as u64 + LINES);
    assert_eq!(b.log.counts.len(), 1 + SOURCES + 1);
    b.join(9 * SECOND, 5000, "calm", "y");
    assert_eq!(b.messages().len(), 1, "a tenant of the policy has a count of its own");
}

#[test]
fn a_journal_that_is_gone_or_full_delays_nobody() {
    let b = Bench::new("gone");
    let path = b.path.clone();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut log = Log::new(Some(&path), Some(writer.into()));
    for id in 0..LINES as u32 {
        log.connected(id, &seen("x"));
        // Its queue is full before all of them are written; these go to standard error.
        log.answered(0, id, &welcome(0, "blue"), false, &b.policy);
    }
    let in_journal = b.messages().len() as u64;
    drop(b);
    log.note_end(2 * SECOND, 1, "");
    assert_eq!(log.here.len() as u64, LINES - 1);
    drop(log);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(in_journal + text.lines().count() as u64, LINES + 1);
}

/// Writes lines of a tenant, `LINES` each second, far more than a pipe has room for; the log and
/// the time at the end.
fn fill(lines: OwnedFd, count: u32) -> (Log, u64) {
    let (policy, mut log) = (policy(), Log::new(None, Some(lines)));
    let now = |id: u32| u64::from(id) / LINES * SECOND;
    for id in 0..count {
        log.connected(id, &seen("x"));
        log.answered(now(id), id, &welcome(0, "blue"), false, &policy);
    }
    (log, now(count))
}

fn read_line(reader: &mut PipeReader, words: &str) -> String {
    let mut said = String::new();
    let mut bytes = [0; 4096];
    while !(said.contains(words) && said.ends_with('\n')) {
        let n = reader.read(&mut bytes).unwrap();
        said.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
    }
    said
}

#[test]
fn a_standard_error_that_nobody_reads_delays_nobody_and_what_it_lacks_is_counted() {
    const COUNT: u32 = 4000;
    let (mut reader, writer) = std::io::pipe().unwrap();
    let (tell, told) = mpsc::channel();
    // In a thread of its own, which ends with the reader.
    std::thread::spawn(move || tell.send(fill(writer.into(), COUNT)));
    let (mut log, now) = told.recv_timeout(limit(30)).expect("the log waits for a reader");
    let mut said = vec![0; 1 << 15];
    reader.read_exact(&mut said).unwrap();
    assert!(log.deadline().is_some_and(|at| at <= now + SECOND), "{:?}", log.deadline());
    log.tick(now + SECOND);
    let mut said = String::from_utf8(said).unwrap();
    said += &read_line(&mut reader, " are left out");
    let written = said.lines().filter(|line| line.contains(" joined: ")).count();
    let last = said.lines().last().unwrap();
    let left_out = COUNT as usize - written;
    assert_eq!(last, format!("gdrcore-routerd: {left_out} lines of tenant blue are left out"));
    assert_eq!(log.deadline(), None);
}

#[test]
fn a_long_line_is_cut_to_what_a_pipe_takes() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    assert!(offer(writer.as_fd(), format_args!("{}", "\u{e9}".repeat(libc::PIPE_BUF))));
    drop(writer);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    let most = libc::PIPE_BUF;
    assert!(
        text.ends_with("\u{e9}\n") && (most - 1..=most).contains(&text.len()),
        "{}",
        text.len()
    );
    // Nobody has the other end any more.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert!(offer(writer.as_fd(), format_args!("x")), "who closed it wants no more");
}

#[test]
fn the_journal_is_known_by_device_and_inode() {
    let file = File::open("/dev/null").unwrap();
    let meta = file.metadata().unwrap();
    let (dev, ino) = (meta.dev(), meta.ino());
    assert!(leads_to(&format!("{dev}:{ino}"), &file));
    for other in [format!("{dev}:{}", ino + 1), format!("{ino}:{dev}"), String::new()] {
        assert!(!leads_to(&other, &file), "{other}");
    }
}
