//! The status of the devices of this user's processes: who asks for it, and its text.
//!
//! A process that asks sends a message to each device ([`crate::addr_group`]), which replaces a
//! file in the directory of its first QPN block (`local`). A device that polls, or whose threads
//! sleep in it, answers at once. One whose program does neither keeps the file that it had. The
//! text has a line for each object, with words in any order:
//!
//! ```text
//! gdrcore-status 1
//! process pid=PID pid_ns=INODE program=NAME        NAME: to the line's end
//! device address=ADDRESS:PORT qp=N cq=N srq=N mr=N mw=N COUNTER=N...
//! qp qpn=N type=TYPE state=STATE [peer=ADDRESS peer_qpn=N path=PATH] sq=OPEN/SIZE rq=OPEN/SIZE
//!    COUNTER=N... [cause=WORDS]                    WORDS: to the line's end
//! cq entries=N/SIZE
//! end
//! ```
//!
//! Counters that are 0 are left out. A device that was just opened has only the first two lines.
//! A device over a router has such a directory below the address that the router gave it, with the
//! port 0, for this alone. Other users cannot read the files. A device without one, of loopback
//! alone or of a router, has no status.

use crate::addr::Endpoint;
use crate::addr_group::status_request;
use crate::local::{address_folder, own_paths, read_file};
use core::fmt;
use gdrcore_core::counters::Counters;
use std::fs::{self, File, TryLockError};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

/// The first line of a file.
const HEAD: &str = "gdrcore-status 1\n";
/// Longest file that is read.
const LONGEST: u64 = 8 << 20;
/// How often an asker looks for answers.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Writes the lines of the process.
pub(crate) fn write_process(text: &mut impl fmt::Write) -> fmt::Result {
    let mut name = [0; 64];
    let name = read_file(c"/proc/self/comm", &mut name);
    let name = core::str::from_utf8(name).unwrap_or_default().lines().next().unwrap_or_default();
    let (pid, pid_ns) = (std::process::id(), pid_namespace());
    writeln!(text, "{HEAD}process pid={pid} pid_ns={pid_ns} program={name}")
}

/// The PID namespace of this process, by the number of its inode; 0: unknown.
pub fn pid_namespace() -> u64 {
    fs::metadata("/proc/self/ns/pid").map_or(0, |ns| ns.ino())
}

/// The status of a device.
#[derive(Clone, Debug)]
pub struct Status {
    /// The directory of the device's first block, which tells devices apart.
    pub place: PathBuf,
    /// Its text, without the first line.
    pub text: String,
    /// When it was written.
    pub written: SystemTime,
    /// Whether the device wrote it for this request.
    pub is_answer: bool,
}

/// A device that was asked, and the file that it had before.
struct Asked {
    place: PathBuf,
    before: Option<(u64, i64)>,
}

/// The identity of a file: its inode, and the nanoseconds of its time, because inodes are used
/// again.
fn identity(place: &Path) -> Option<(u64, i64)> {
    let file = fs::symlink_metadata(place.join("status")).ok()?;
    Some((file.ino(), file.ctime().wrapping_mul(1_000_000_000) + file.ctime_nsec()))
}

/// Asks all devices of this user for their status, and waits for the answers as long as `wait`.
/// Allocates.
pub fn ask(wait: Duration) -> Vec<Status> {
    ask_those(wait, |_| true)
}

/// The counters of an address in this user's other processes, added up. Asks as [`ask`] does: a
/// device that does not answer counts with what it said last. Allocates.
pub fn counters_of_others(at: &Endpoint, wait: Duration) -> Counters {
    let Some(folder) = address_folder(at) else { return Counters::ZERO };
    let own = format!("process pid={} pid_ns={} ", std::process::id(), pid_namespace());
    let is_other = |place: &Path| {
        place.parent().is_some_and(|p| p.ends_with(&folder))
            && text(place).is_some_and(|(text, _)| !text.starts_with(&own))
    };
    let mut sum = Counters::ZERO;
    for status in ask_those(wait, is_other) {
        sum.add(&counters(&status.text));
    }
    sum
}

/// The counters in the line of the device.
fn counters(text: &str) -> Counters {
    let mut counters = Counters::ZERO;
    let line = text.lines().find_map(|line| line.strip_prefix("device "));
    for (name, value) in line.unwrap_or_default().split(' ').filter_map(|w| w.split_once('=')) {
        if let (Some(field), Ok(value)) = (counters.field(name), value.parse()) {
            *field = value;
        }
    }
    counters
}

/// Asks the devices at the places that `wanted` accepts.
fn ask_those(wait: Duration, wanted: impl Fn(&Path) -> bool) -> Vec<Status> {
    let Ok(socket) = UnixDatagram::unbound() else { return Vec::new() };
    // The device of a full queue does not read, so a send must not wait for it.
    let _ = socket.set_nonblocking(true);
    let asked: Vec<Asked> = devices()
        .into_iter()
        .filter(|place| wanted(place))
        .map(|place| {
            let before = identity(&place);
            let _ = socket.send_to(&status_request(), place.join("mail"));
            Asked { place, before }
        })
        .collect();
    let end = Instant::now() + wait;
    while asked.iter().any(|a| identity(&a.place) == a.before) && Instant::now() < end {
        std::thread::sleep(LOOK_EVERY);
    }
    asked.iter().filter_map(read).collect()
}

/// Opens what a path names for reading, with further flags of open(2). No link, and no FIFO that
/// waits for a writer, keeps an asker from its other devices.
fn open(path: &Path, flags: i32) -> std::io::Result<File> {
    let flags = flags | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    File::options().read(true).custom_flags(flags).open(path)
}

fn read(asked: &Asked) -> Option<Status> {
    let now = identity(&asked.place)?;
    let (text, written) = text(&asked.place)?;
    let is_answer = Some(now) != asked.before;
    Some(Status { place: asked.place.clone(), text, written, is_answer })
}

/// The text of a device without the first line, and when it was written.
fn text(place: &Path) -> Option<(String, SystemTime)> {
    let mut file = open(&place.join("status"), 0).ok()?;
    let about = file.metadata().ok()?;
    if !about.is_file() || about.len() > LONGEST {
        return None;
    }
    let mut text = String::new();
    file.by_ref().take(LONGEST).read_to_string(&mut text).ok()?;
    Some((text.strip_prefix(HEAD)?.into(), about.modified().ok()?))
}

/// The directories of the first blocks of all devices of this user that live.
fn devices() -> Vec<PathBuf> {
    let below = |dir: &PathBuf| -> Vec<PathBuf> {
        fs::read_dir(dir).map(|all| all.flatten().map(|e| e.path()).collect()).unwrap_or_default()
    };
    let blocks = own_paths().iter().flat_map(below).collect::<Vec<_>>();
    let blocks = blocks.iter().flat_map(below).collect::<Vec<_>>();
    let mut blocks: Vec<PathBuf> = blocks.iter().flat_map(below).filter(|p| is_device(p)).collect();
    blocks.sort();
    blocks
}

/// Whether a directory is that of a device's first block, and the device lives.
fn is_device(place: &Path) -> bool {
    let name = place.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    // A device that takes no links has no door.
    let is_first = || !fs::symlink_metadata(place.join("door")).is_ok_and(|d| d.is_symlink());
    // The lock is released with the descriptor.
    let is_locked = || {
        let dir = open(place, libc::O_DIRECTORY);
        dir.is_ok_and(|d| matches!(d.try_lock(), Err(TryLockError::WouldBlock)))
    };
    name.parse::<u16>().is_ok() && is_first() && is_locked()
}

#[cfg(test)]
mod tests;
