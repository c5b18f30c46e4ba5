//! The kernel's facts about the process at the other end of a socket.

use super::sys;
use crate::identity::{Namespace, PeerFacts};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The namespace of a file.
pub(super) fn namespace(path: &Path) -> Option<Namespace> {
    fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// The peer of a connection at `socket`, and a pidfd, which reports the end of the process. If the
/// process is of a pid namespace that the router does not see, there is no pidfd, and the session
/// ends with the connection.
///
/// The pid may be reused while its files are read, so afterwards the pidfd says whether the process
/// still runs. `None`: it has ended.
pub(super) fn identify(socket: &Path, fd: BorrowedFd<'_>) -> Option<(PeerFacts, Option<OwnedFd>)> {
    let cred = sys::credentials(fd).ok()?;
    let uid = is_told_apart(cred.uid).then_some(cred.uid);
    let mut seen = PeerFacts { socket: socket.into(), pid: cred.pid, uid, ..PeerFacts::default() };
    let process = sys::process(fd, cred.pid).ok();
    let Some(process) = process.filter(|_| cred.pid > 0) else { return Some((seen, None)) };
    let text = fs::read_to_string(format!("/proc/{}/cgroup", cred.pid)).unwrap_or_default();
    seen.cgroups = cgroups(&text);
    seen.program = program(cred.pid);
    seen.netns = namespace(Path::new(&format!("/proc/{}/ns/net", cred.pid)));
    let has_ended = sys::is_ready(process.as_fd(), libc::POLLIN);
    (!has_ended).then_some((seen, Some(process)))
}

/// The name of a process's first thread, as it is; it may have any characters.
fn program(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name = name.strip_suffix(b"\n").unwrap_or(&name);
    String::from_utf8_lossy(name).into_owned()
}

/// The paths of a cgroup file: `<number>:<controllers>:<path>`, one a line.
fn cgroups(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(str::to_string).collect()
}

/// Whether a uid identifies one user. In a user namespace all users without a mapping have the
/// overflow uid.
fn is_told_apart(uid: u32) -> bool {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let overflow = read("/proc/sys/kernel/overflowuid").trim().parse().unwrap_or(65534);
    uid != overflow || read("/proc/self/uid_map").split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_of_ours_is_seen_as_what_it_is() {
        let [a, _b] = sys::pair().unwrap();
        let (seen, process) = identify(Path::new("/s"), a.as_fd()).unwrap();
        assert_eq!(seen.pid as u32, std::process::id());
        assert_eq!(seen.uid, Some(sys::own_uid()));
        assert_eq!(seen.netns, namespace(Path::new("/proc/self/ns/net")));
        assert!(seen.netns.is_some() && process.is_some());
        // Of the process, not of this thread.
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        assert_eq!(seen.program, name.trim_end());
        assert_eq!(namespace(Path::new("/nowhere")), None);
    }

    #[test]
    fn cgroups_are_what_stands_behind_two_colons() {
        assert_eq!(cgroups("0::/user.slice/a:b\n4:memory,cpu:/m\nx\n"), ["/user.slice/a:b", "/m"]);
        assert_eq!(cgroups(""), [""; 0]);
    }
}
