//! The kernel, what a sandbox refuses, limits, folders.

use super::{broken, calls, fine, warning, FactSource, Finding, Level};

/// getsockopt(2), asm-generic/socket.h: since Linux 5.14, and since 6.17.
const SO_NETNS_COOKIE: i32 = 71;
const SO_PASSRIGHTS: i32 = 83;
/// udp(7): since Linux 4.18, and since 5.0.
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

pub fn all(facts: &FactSource) -> Vec<Finding> {
    let mut all = vec![kernel(facts)];
    all.extend(refused(
        facts,
        &CALLS.map(|(name, try_it, without, level)| (name, try_it(), without, level)),
    ));
    all.push(proc(facts));
    all.push(folders(facts, calls::uid(), &calls::may_write));
    all.push(descriptors(calls::limit(libc::RLIMIT_NOFILE)));
    all.extend(older_copies(facts));
    all
}

/// The kernel, with features that some lack.
fn kernel(facts: &FactSource) -> Finding {
    let release = facts.text("proc/sys/kernel/osrelease");
    let seen = if release.is_empty() { "Linux".into() } else { format!("Linux {release}") };
    let (Ok(udp), Ok(unix)) = (
        calls::socket(libc::AF_INET, libc::SOCK_DGRAM, 0),
        calls::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0),
    ) else {
        // What is refused follows.
        return fine("kernel", seen);
    };
    let features = [
        ("UDP segmentation", calls::set_option(&udp, libc::SOL_UDP, UDP_SEGMENT, 0)),
        ("UDP receive offload", calls::set_option(&udp, libc::SOL_UDP, UDP_GRO, 1)),
        (
            "numbers of network namespaces",
            calls::has_option(&udp, libc::SOL_SOCKET, SO_NETNS_COOKIE),
        ),
        ("SO_PASSRIGHTS", calls::has_option(&unix, libc::SOL_SOCKET, SO_PASSRIGHTS)),
    ];
    of_features(seen, &features.map(|(name, outcome)| (name, outcome.is_ok())))
}

/// What each missing feature means. SO_PASSRIGHTS is new, and nothing is slower without it.
fn of_features(seen: String, features: &[(&str, bool); 4]) -> Finding {
    let named = |there: bool| -> String {
        let names: Vec<&str> = features.iter().filter(|f| f.1 == there).map(|f| f.0).collect();
        names.join(", ")
    };
    if !features[2].1 {
        let remedy = "take Linux 5.14 or newer: until then, processes of one address do not share \
                      it, nor memory";
        return warning("kernel", format!("{seen} lacks {}", named(false)), remedy);
    }
    if !(features[0].1 && features[1].1) {
        let remedy = "take Linux 5.0 or newer, or another sandbox: packets leave one by one";
        return warning("kernel", format!("{seen} lacks {}", named(false)), remedy);
    }
    fine("kernel", format!("{seen}: {}", named(true)))
}

/// A call that sandboxes refuse, a try at it, and what does not work without it.
type Call = (&'static str, fn() -> Result<(), i32>, &'static str, Level);

const CALLS: [Call; 7] = [
    ("socket(AF_INET, SOCK_DGRAM)", calls::udp, "no packet can leave", Level::Broken),
    (
        "socket(AF_UNIX)",
        calls::unix,
        "processes of this machine do not find each other",
        Level::Warning,
    ),
    (
        "socket(AF_NETLINK)",
        calls::netlink,
        "interfaces are not watched, and peers' UDP ports not checked",
        Level::Warning,
    ),
    ("memfd_create", calls::memfd, "processes share no memory", Level::Warning),
    ("eventfd", calls::eventfd, "no device can be opened", Level::Broken),
    (
        "pidfd_open",
        calls::pidfd,
        "the end of a peer's process is seen later, and nothing is copied by the kernel",
        Level::Warning,
    ),
    (
        "process_vm_readv",
        calls::vm_read,
        "--path auto,cma copies nothing by the kernel",
        Level::Warning,
    ),
];

/// The calls that are refused, each with what it means.
fn refused(facts: &FactSource, outcomes: &[(&str, Result<(), i32>, &str, Level)]) -> Vec<Finding> {
    let filtered = facts
        .text("proc/self/status")
        .lines()
        .any(|l| l.strip_prefix("Seccomp:").is_some_and(|mode| mode.trim() == "2"));
    let mut all = Vec::new();
    for (name, outcome, without, level) in outcomes {
        let Err(errno) = outcome else { continue };
        let by = match *errno {
            libc::EPERM | libc::EACCES => "a filter (seccomp) or a security module",
            libc::ENOSYS if filtered => "a filter (seccomp), or the kernel lacks it",
            libc::ENOSYS => "the kernel, which lacks it",
            libc::EAFNOSUPPORT => "the kernel or a filter, which has no such sockets",
            libc::EMFILE | libc::ENFILE => "the limit of open files",
            _ => "the system",
        };
        let words = std::io::Error::from_raw_os_error(*errno);
        let seen = format!("{name} is refused by {by} ({words}): {without}");
        let remedy = format!("let the sandbox's profile allow {name}");
        all.push(Finding { level: *level, ..broken("sandbox", seen, remedy) });
    }
    if all.is_empty() {
        let seen = if filtered { "a filter (seccomp) that allows what is needed" } else { "none" };
        all.push(fine("sandbox", seen));
    }
    all
}

fn proc(facts: &FactSource) -> Finding {
    if facts.text("proc/self/status").is_empty() {
        let seen = "/proc is not mounted: whose a UDP port is cannot be seen, nor which processes \
                    are peers";
        return warning("proc", seen, "mount -t proc proc /proc");
    }
    fine("proc", "/proc is mounted")
}

/// The folder by which processes of a user find each other.
fn folders(facts: &FactSource, uid: u32, may_write: &dyn Fn(&std::path::Path) -> bool) -> Finding {
    const CHECK: &str = "sockets";
    if uid == 65_534 {
        let seen = "the user is 65534, which stands for all that a namespace does not know";
        let remedy = "run as a user that the user namespace maps: processes share no memory";
        return warning(CHECK, seen, remedy);
    }
    let user = format!("run/user/{uid}");
    let usable = |folder: &&str| may_write(&facts.path(folder));
    match ["dev/shm", "tmp", &user].iter().find(|f| usable(f)) {
        Some(&"dev/shm") => fine(CHECK, "/dev/shm can be written"),
        Some(folder) => {
            let seen = format!(
                "/dev/shm cannot be written; /{folder} can, so peers are found if theirs is the \
                 same"
            );
            // Whoever mixes both does not meet.
            warning(CHECK, seen, "give all containers of a user the same /dev/shm (--ipc)")
        }
        None => {
            let seen = format!(
                "neither /dev/shm nor /tmp nor /{user} can be written: processes of one user do \
                 not find each other, an address has one process, and memory is not shared"
            );
            warning(CHECK, seen, "mount a tmpfs at /dev/shm with mode 1777")
        }
    }
}

/// Descriptors: a device takes some twenty, and each link to another process three.
fn descriptors(limit: u64) -> Finding {
    const CHECK: &str = "files";
    let remedy = "raise it: ulimit -n 1024, or LimitNOFILE of the unit";
    match limit {
        0..64 => {
            broken(CHECK, format!("{limit} open files are allowed: too few for a device"), remedy)
        }
        64..256 => warning(
            CHECK,
            format!("{limit} open files are allowed: enough for few peers of this machine"),
            remedy,
        ),
        u64::MAX => fine(CHECK, "open files are not limited"),
        _ => fine(CHECK, format!("{limit} open files are allowed")),
    }
}

/// Processes that run a copy of the library that has been replaced since.
fn older_copies(facts: &FactSource) -> Option<Finding> {
    let old = |pid: &String| {
        facts.text(&format!("proc/{pid}/maps")).lines().any(|line| {
            let ours = line.contains("/libgdrcore") || line.contains("/gdrcore/lib");
            ours && line.ends_with("(deleted)")
        })
    };
    let numbers = |name: &String| name.bytes().all(|b| b.is_ascii_digit());
    let all: Vec<String> = facts.names("proc").into_iter().filter(numbers).filter(old).collect();
    let seen = format!("these processes run a library that has been replaced: {}", all.join(" "));
    let remedy = "start them anew: ends of different versions may not understand each other";
    (!all.is_empty()).then(|| warning("versions", seen, remedy))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Root;
    use super::*;
    use std::path::Path;

    #[test]
    fn a_kernel_is_judged_by_its_features() {
        let with = |has: [bool; 4]| {
            let names = ["gso", "gro", "cookie", "rights"];
            let features = [0, 1, 2, 3].map(|i| (names[i], has[i]));
            of_features("Linux 1".into(), &features)
        };
        assert_eq!(with([true, true, true, false]).level, Level::Fine);
        assert_eq!(with([true, false, true, true]).seen, "Linux 1 lacks gro");
        assert_eq!(with([true, true, false, true]).level, Level::Warning);
    }

    #[test]
    fn a_refused_call_is_named_with_who_refuses() {
        let root = Root::new("seccomp", &[("proc/self/status", "Name:\tx\nSeccomp:\t2\n")]);
        let facts = FactSource { root: &root.0 };
        let told = |errno| {
            let outcomes = [
                ("a", Ok(()), "", Level::Broken),
                ("memfd_create", Err(errno), "no memory", Level::Warning),
            ];
            refused(&facts, &outcomes)
        };
        for (errno, by) in
            [(libc::EPERM, "seccomp"), (libc::ENOSYS, "seccomp"), (libc::EMFILE, "limit")]
        {
            let [f] = &told(errno)[..] else { panic!("one finding") };
            assert!(f.level == Level::Warning && f.seen.contains("memfd_create"), "{f:?}");
            assert!(f.seen.contains(by), "{f:?}");
        }
        let outside = FactSource { root: Path::new("/nowhere") };
        let f = &refused(&outside, &[("a", Err(libc::ENOSYS), "", Level::Broken)])[0];
        assert!(f.seen.contains("lacks it"), "{f:?}");
        assert_eq!(refused(&facts, &[])[0].level, Level::Fine);
    }

    #[test]
    fn folders_proc_and_limits_have_bounds() {
        let facts = FactSource { root: Path::new("/r") };
        let with = |may: &[&str], uid| {
            folders(&facts, uid, &|p| may.iter().any(|m| p == Path::new("/r").join(m)))
        };
        assert_eq!(with(&["dev/shm", "tmp"], 5).level, Level::Fine);
        assert!(with(&["tmp"], 5).seen.contains("/tmp can"));
        assert!(with(&["run/user/5"], 5).seen.contains("/run/user/5 can"));
        assert!(with(&["run/user/5"], 6).seen.contains("neither"));
        assert!(with(&["dev/shm"], 65_534).seen.contains("65534"));
        assert_eq!(proc(&facts).level, Level::Warning);
        let levels = [20, 64, 255, 256, u64::MAX].map(|n| descriptors(n).level as u8);
        assert_eq!(levels, [2, 1, 1, 0, 0]);
    }

    #[test]
    fn a_process_with_a_replaced_library_is_named() {
        let line =
            |end: &str| format!("7f00-7f01 r-xp 0 0:1 5 /usr/lib/libgdrcore.so.0.1.0{end}\n");
        let (old, new) = (line(" (deleted)"), line(""));
        let files = [("proc/7/maps", old.as_str()), ("proc/8/maps", &new), ("proc/x/maps", &old)];
        let root = Root::new("versions", &files);
        let f = older_copies(&FactSource { root: &root.0 }).expect("a finding");
        assert!(f.seen.ends_with(": 7"), "{f:?}");
        std::fs::remove_file(root.0.join("proc/7/maps")).unwrap();
        assert_eq!(older_copies(&FactSource { root: &root.0 }), None);
    }
}
