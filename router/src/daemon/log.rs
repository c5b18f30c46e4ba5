//! The log of who comes and goes: a line on standard error for each session that joins, leaves or
//! is refused. Where standard error is systemd's journal, an entry with a field for each fact
//! instead, by the journal's native protocol.
//!
//! A tenant can write neither a line nor a field of its own: the name of its program is quoted, and
//! what does not print is escaped; in the journal a value that has newlines is sent with its
//! length. Nor can it fill the log: it has [`LINES`] a second, and what is left out is counted.
//!
//! The log never waits: what neither the journal nor standard error takes at once is left out, too.

use super::offer;
use crate::broker::SessionId;
use crate::identity::PeerFacts;
use crate::policy::Policy;
use gdrcore_net::via::proto::{Envelope, Message};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// Lines of one tenant, or of one user that the policy does not name, in a second.
const LINES: u64 = 20;
/// Users that the policy does not name with a count of their own in one second. All further ones
/// share one. The tenants of the policy, of which there is a bound, have one each.
const SOURCES: usize = 16;
/// The name of these.
const OTHERS: &str = "others";
const SECOND: u64 = 1_000_000_000;

/// The socket of systemd's journal, and the variable that says which file leads there
/// (systemd.exec(5)).
const JOURNAL: &str = "/run/systemd/journal/socket";
const JOURNAL_STREAM: &str = "JOURNAL_STREAM";

/// syslog(3): something to look at, and all else.
const NOTICE: u8 = 5;
const INFO: u8 = 6;

/// The process of a session.
#[derive(Clone, Debug, Default)]
struct SessionProcess {
    /// Empty: it is no tenant so far.
    tenant: String,
    program: String,
    pid: i32,
    uid: Option<u32>,
    /// The policy has the tenant by name.
    is_named: bool,
    has_joined: bool,
}

impl SessionProcess {
    /// Whose lines are counted together.
    fn source(&self) -> String {
        match (self.tenant.as_str(), self.uid) {
            ("", Some(uid)) => format!("uid {uid}"),
            ("", None) => OTHERS.into(),
            (tenant, _) => format!("tenant {tenant}"),
        }
    }
}

/// What one source has written since a time.
struct Count {
    is_named: bool,
    since: u64,
    lines: u64,
    left_out: u64,
}

/// A message, and its facts as fields.
#[derive(Debug, Default)]
struct LogEntry {
    priority: u8,
    message: String,
    fields: Vec<(&'static str, String)>,
}

/// The log, and the sessions that it has named.
pub(super) struct Log {
    /// The journal's socket, and its path.
    journal: Option<(UnixDatagram, PathBuf)>,
    /// Standard error.
    lines: Option<OwnedFd>,
    here: BTreeMap<SessionId, SessionProcess>,
    counts: BTreeMap<String, Count>,
}

impl Log {
    /// A log to standard error, or to the journal that reads it.
    pub(super) fn from_environment() -> Log {
        let stream = std::env::var(JOURNAL_STREAM).ok();
        let is_journal = stream.is_some_and(|stream| leads_to(&stream, std::io::stderr()));
        let lines = std::io::stderr().as_fd().try_clone_to_owned().ok();
        Log::new(is_journal.then(|| Path::new(JOURNAL)), lines)
    }

    /// `journal`: its socket. `lines`: standard error.
    fn new(journal: Option<&Path>, lines: Option<OwnedFd>) -> Log {
        let journal = journal.and_then(|path| {
            let socket = UnixDatagram::unbound().ok()?;
            // So that the router does not wait for the journal.
            socket.set_nonblocking(true).ok()?;
            Some((socket, path.into()))
        });
        Log { journal, lines, here: BTreeMap::new(), counts: BTreeMap::new() }
    }

    /// A process has connected.
    pub(super) fn connected(&mut self, id: SessionId, seen: &PeerFacts) {
        let (program, pid, uid) = (seen.program.clone(), seen.pid, seen.uid);
        self.here.insert(id, SessionProcess { program, pid, uid, ..SessionProcess::default() });
    }

    /// The router answers its HELLO. `resumes`: it was a session of a former life of the router.
    /// `policy`: the one in force.
    pub(super) fn answered(
        &mut self,
        now: u64,
        id: SessionId,
        e: &Envelope,
        resumes: bool,
        policy: &Policy,
    ) {
        let Message::Welcome(w) = &e.message else { return };
        if e.status == -libc::EREMOTE {
            // It asks for a session of the other mode next.
            self.here.remove(&id);
        }
        let Some(who) = self.here.get_mut(&id) else { return };
        who.tenant = w.tenant.as_str().into();
        who.is_named = policy.tenants.iter().any(|t| t.name == who.tenant);
        who.has_joined = e.status == 0;
        if who.has_joined {
            let who = who.clone();
            self.write_event(now, Some(id), &who, if resumes { "resumed" } else { "joined" }, "");
        }
    }

    /// Its session has ended, or was refused. `why`: empty if it or its process wished so.
    pub(super) fn note_end(&mut self, now: u64, id: SessionId, why: &str) {
        let Some(who) = self.here.remove(&id) else { return };
        let what = match (who.has_joined, why) {
            (true, "") => "left",
            (true, _) => "ended",
            // It has connected, and said nothing.
            (false, "") => return,
            (false, _) => "refused",
        };
        self.write_event(now, Some(id), &who, what, why);
    }

    /// A connection was closed at once.
    pub(super) fn turned_away(&mut self, now: u64, why: &str) {
        self.write_event(now, None, &SessionProcess::default(), "refused", why);
    }

    /// Tells how many lines were left out, where the second is over.
    pub(super) fn tick(&mut self, now: u64) {
        let is_over = |count: &Count| now.saturating_sub(count.since) >= SECOND;
        let over: Vec<String> =
            self.counts.iter().filter(|(_, c)| is_over(c)).map(|(name, _)| name.clone()).collect();
        for source in over {
            let Some(Count { is_named, left_out: left @ 1.., .. }) = self.counts.remove(&source)
            else {
                continue;
            };
            let message = format!("{left} lines of {source} are left out");
            let mut fields = vec![("GDRC_LEFT_OUT", left.to_string())];
            fields.extend(source.strip_prefix("tenant ").map(|t| ("GDRC_TENANT", t.into())));
            if !self.write(&LogEntry { priority: NOTICE, message, fields }) {
                // It is told a second later.
                let count = Count { is_named, since: now, lines: 0, left_out: left };
                self.counts.insert(source, count);
            }
        }
    }

    /// The time of the next [`Log::tick`] that has something to tell.
    pub(super) fn deadline(&self) -> Option<u64> {
        let owed = self.counts.values().filter(|count| count.left_out > 0);
        owed.map(|count| count.since.saturating_add(SECOND)).min()
    }

    /// The source under which a process's lines are counted.
    fn counted_as(&self, who: &SessionProcess) -> String {
        let source = who.source();
        let strangers = || self.counts.values().filter(|count| !count.is_named).count();
        let has_own = who.is_named || self.counts.contains_key(&source) || strangers() < SOURCES;
        if has_own {
            source
        } else {
            OTHERS.into()
        }
    }

    fn write_event(
        &mut self,
        now: u64,
        id: Option<SessionId>,
        who: &SessionProcess,
        what: &str,
        why: &str,
    ) {
        self.tick(now);
        let source = self.counted_as(who);
        let lines = self.counts.get(&source).map_or(0, |count| count.lines);
        let written = lines < LINES && self.write(&entry(id, who, what, why));
        let fresh = Count { is_named: who.is_named, since: now, lines: 0, left_out: 0 };
        let count = self.counts.entry(source).or_insert(fresh);
        *(if written { &mut count.lines } else { &mut count.left_out }) += 1;
    }

    /// False: neither the journal nor standard error takes it now.
    fn write(&self, entry: &LogEntry) -> bool {
        if let Some((socket, path)) = &self.journal {
            if socket.send_to(&datagram(entry), path).is_ok() {
                return true;
            }
        }
        let lines = self.lines.as_ref();
        lines.is_some_and(|to| offer(to.as_fd(), format_args!("{}", entry.message)))
    }
}

fn entry(id: Option<SessionId>, who: &SessionProcess, what: &str, why: &str) -> LogEntry {
    let id = id.map(|id| id.to_string()).unwrap_or_default();
    let of = |fact: &str| if fact.is_empty() { "-".to_string() } else { fact.to_string() };
    let (tenant, pid) = (of(&who.tenant), who.pid);
    let because = if why.is_empty() { String::new() } else { format!(": {}", printed(why)) };
    let message = format!(
        "session {} {what}: tenant {tenant}, program {:?}, pid {pid}{because}",
        of(&id),
        who.program
    );
    let fields = [
        ("GDRC_EVENT", what.to_string()),
        ("GDRC_SESSION", id),
        ("GDRC_TENANT", who.tenant.clone()),
        ("GDRC_PROGRAM", who.program.clone()),
        ("GDRC_PID", pid.to_string()),
        ("GDRC_REASON", why.to_string()),
    ];
    let fields = fields.into_iter().filter(|(_, value)| !value.is_empty()).collect();
    LogEntry { priority: if what == "refused" { NOTICE } else { INFO }, message, fields }
}

/// Escapes what does not print: the text contains names from outside, such as a cgroup's.
fn printed(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '"' | '\'' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

/// An entry of the journal's native protocol: `NAME=value` lines, or `NAME`, the length in 64 bits
/// and the value, where that has newlines.
fn datagram(entry: &LogEntry) -> Vec<u8> {
    let mut out = Vec::new();
    let priority = entry.priority.to_string();
    let own = [
        ("MESSAGE", entry.message.as_str()),
        ("PRIORITY", priority.as_str()),
        ("SYSLOG_IDENTIFIER", "gdrcore-routerd"),
    ];
    let facts = entry.fields.iter().map(|(name, value)| (*name, value.as_str()));
    for (name, value) in own.into_iter().chain(facts) {
        out.extend_from_slice(name.as_bytes());
        if value.contains('\n') {
            out.push(b'\n');
            out.extend_from_slice(&(value.len() as u64).to_le_bytes());
        } else {
            out.push(b'=');
        }
        out.extend_from_slice(value.as_bytes());
        out.push(b'\n');
    }
    out
}

/// Whether a descriptor is the file that `JOURNAL_STREAM` names by device and inode.
fn leads_to(stream: &str, fd: impl AsFd) -> bool {
    let Ok(meta) = fd.as_fd().try_clone_to_owned().map(File::from).and_then(|f| f.metadata())
    else {
        return false;
    };
    stream == format!("{}:{}", meta.dev(), meta.ino())
}

#[cfg(test)]
mod tests;
