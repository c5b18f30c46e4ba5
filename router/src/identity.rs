//! The kernel's facts about a process, and the tenant that follows from them.
//!
//! A process's own statements do not count, with one exception: if several tenants fit, `FFR_ID`
//! selects one of them.

use crate::policy::{Policy, Rules, Tenant, Unmatched};
use std::fmt;
use std::path::{Path, PathBuf};

/// A namespace: device and inode of its file.
pub type Namespace = (u64, u64);

/// The kernel's facts about the peer of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerFacts {
    /// The socket that was connected to.
    pub socket: PathBuf,
    /// Its pid in the router's pid namespace; 0: it has none there.
    pub pid: i32,
    /// Its uid in the router's user namespace; `None`: it has none there.
    pub uid: Option<u32>,
    /// The paths of `/proc/<pid>/cgroup`; empty: the router can't read them.
    pub cgroups: Vec<String>,
    /// The name of its program (proc_pid_comm(5)), which it may choose; empty: the router can't
    /// read it.
    pub program: String,
    /// Its network namespace; `None`: the router may not read it.
    pub netns: Option<Namespace>,
}

/// Finds the network namespace of a file.
pub type FindNetns = fn(&Path) -> Option<Namespace>;

impl fmt::Display for PeerFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.uid {
            Some(uid) => write!(f, "pid {}, uid {uid}", self.pid)?,
            None => write!(f, "pid {}, a user without a number here", self.pid)?,
        }
        match self.cgroups.first() {
            Some(path) => write!(f, ", cgroup {path}")?,
            None => f.write_str(", no cgroup that the router may read")?,
        }
        match self.netns {
            Some((_, inode)) => write!(f, ", network namespace {inode}")?,
            None => f.write_str(", a network namespace that the router may not read")?,
        }
        write!(f, ", socket {}", self.socket.display())
    }
}

fn fits(rules: &Rules, seen: &PeerFacts, netns: FindNetns) -> bool {
    let uid = rules.uid.is_none_or(|uid| Some(uid) == seen.uid);
    let cgroup =
        rules.cgroup.as_ref().is_none_or(|p| seen.cgroups.iter().any(|path| p.matches(path)));
    let has_netns = |path: &PathBuf| seen.netns.is_some() && netns(path) == seen.netns;
    uid && cgroup && rules.netns.as_ref().is_none_or(has_netns)
}

/// The tenant of a process. At a tenant's own socket it is that tenant, if its rules fit too. At
/// the common socket it is one whose rules fit: the one that `FFR_ID` names, or the first.
pub fn tenant_of(
    policy: &Policy,
    seen: &PeerFacts,
    ffr_id: i32,
    netns: FindNetns,
) -> Option<Tenant> {
    let is_own = |t: &&Tenant| t.listen.as_ref() == Some(&seen.socket);
    if let Some(own) = policy.tenants.iter().find(is_own) {
        return Some(own).filter(|t| fits(&t.rules, seen, netns)).cloned();
    }
    if policy.listen.as_ref() != Some(&seen.socket) {
        // The new policy no longer has the socket.
        return None;
    }
    let fitting =
        || policy.tenants.iter().filter(|t| !t.rules.is_empty() && fits(&t.rules, seen, netns));
    let wished = fitting().find(|t| ffr_id >= 0 && t.ffr_id == Some(ffr_id));
    let by_uid = || {
        seen.uid.filter(|_| policy.unmatched == Unmatched::Uid).map(|uid| policy.tenant_of_uid(uid))
    };
    wished.or_else(|| fitting().next()).cloned().or_else(by_uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netns(path: &Path) -> Option<Namespace> {
        (path == Path::new("/run/netns/a")).then_some((4, 77))
    }

    fn seen() -> PeerFacts {
        PeerFacts {
            socket: "/s".into(),
            pid: 9,
            uid: Some(1000),
            cgroups: vec!["/x".into(), "/m/a1".into()],
            netns: Some((4, 77)),
            program: "x".into(),
        }
    }

    fn name(policy: &str, seen: &PeerFacts, ffr_id: i32) -> Option<String> {
        let policy = Policy::parse(&format!("[router]\nlisten = \"/s\"\n{policy}")).unwrap();
        tenant_of(&policy, seen, ffr_id, netns).map(|t| t.name)
    }

    #[test]
    fn the_first_that_fits_is_it_and_all_that_is_named_must_fit() {
        let a = "[tenant.a]\nmatch = { uid = 1000, cgroup = \"/m/*\", netns = \"/run/netns/a\" }\n";
        let b = "[tenant.b]\nmatch = { uid = 1000 }\nffr_id = 5\n";
        assert_eq!(name(&format!("{a}{b}"), &seen(), -1).as_deref(), Some("a"));
        assert_eq!(name(&format!("{b}{a}"), &seen(), -1).as_deref(), Some("b"));
        assert_eq!(
            name(&format!("{a}{b}"), &seen(), 5).as_deref(),
            Some("b"),
            "a wish among those that fit"
        );
        assert_eq!(
            name(&format!("{a}{b}"), &PeerFacts { uid: Some(7), ..seen() }, 5),
            None,
            "and among no others"
        );
        for other in [
            PeerFacts { uid: Some(1001), ..seen() },
            PeerFacts { uid: None, ..seen() },
            PeerFacts { cgroups: vec!["/n/a1".into()], ..seen() },
            PeerFacts { cgroups: vec![], ..seen() },
            PeerFacts { netns: Some((4, 78)), ..seen() },
            PeerFacts { netns: None, ..seen() },
        ] {
            assert_eq!(name(a, &other, -1), None, "{other}");
        }
        assert_eq!(
            name(
                "[tenant.c]\nmatch = { netns = \"/nowhere\" }",
                &PeerFacts { netns: None, ..seen() },
                -1
            ),
            None
        );
    }

    #[test]
    fn a_socket_of_its_own_is_who_one_is() {
        let policy = "[tenant.own]\nlisten = \"/own\"\n[tenant.any]\nmatch = { uid = 1000 }\n";
        let at = |socket: &str| PeerFacts { socket: socket.into(), ..seen() };
        assert_eq!(name(policy, &at("/own"), -1).as_deref(), Some("own"));
        assert_eq!(name(policy, &at("/s"), -1).as_deref(), Some("any"));
        assert_eq!(name(policy, &at("/removed"), -1), None);
        let both = "[tenant.own]\nlisten = \"/own\"\nmatch = { uid = 5 }\n\
                    [tenant.any]\nmatch = { uid = 1000 }";
        assert_eq!(
            name(both, &at("/own"), -1),
            None,
            "nor does the next tenant get who does not fit"
        );
    }

    #[test]
    fn others_are_refused_or_are_their_users() {
        assert_eq!(name("", &seen(), -1), None);
        assert_eq!(name("unmatched = \"uid\"\n", &seen(), -1).as_deref(), Some("uid-1000"));
        assert_eq!(name("unmatched = \"uid\"\n", &PeerFacts { uid: None, ..seen() }, -1), None);
    }

    #[test]
    fn what_was_seen_can_be_said() {
        let text = seen().to_string();
        for word in ["pid 9", "uid 1000", "cgroup /x", "network namespace 77", "socket /s"] {
            assert!(text.contains(word), "{text}");
        }
        assert!(PeerFacts::default().to_string().contains("may not read"));
    }
}
