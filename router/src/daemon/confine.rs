//! The router confines itself: what breaks into it by a packet, a ring or a message gets no shell,
//! no other process and few files.
//!
//! Two walls, both for all threads and for the rest of the process's life:
//!
//! * seccomp(2): the system calls of [`calls`], and of some only those arguments that the router
//!   uses: it knows no paths, so it lets files be read, and new ones be made, wherever the user
//!   may. Any other call ends the process by SIGSYS. The kernel keeps a bit for each call without
//!   conditions, so that it runs no filter for those of the data path (Linux 5.11).
//! * Landlock(7), where the kernel has it: files may be read in the folders of policy and map, in
//!   /proc and, with a NIC, in /sys, and made in the folders of sockets and key; no TCP port is
//!   bound or connected to.
//!   It also keeps a process from looking at others as a debugger may, which `/proc/<pid>/ns/net`
//!   takes, and all of `/proc/<pid>` under `hidepid`. So a router whose policy tells tenants apart
//!   by `netns`, or whose /proc hides processes, has no Landlock.
//!
//! The driver of a GPU makes threads of its own before the first wall, and calls that nobody has
//! listed. So a router with `gpus` has no Landlock, and its other calls are refused, not fatal.

mod calls;

use super::options::Options;
use super::{listener, sys};
use crate::policy::{Host, Policy, Source};
use calls::{Call, CALLS, CALLS_OF_NICS, OF_GPUS, TGKILL};
use gdrcore_net::soft::socket_dirs;
use landlock::{
    Access, AccessFs, AccessNet, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, ABI,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What confines the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fence {
    /// Nothing (`--no-confine`).
    Off,
    /// seccomp alone: this kernel has no Landlock.
    NoLandlock,
    /// seccomp alone: the router has to look at other processes as Landlock forbids.
    Looks,
    /// seccomp alone, which refuses a call and does not end the router: what the driver of a GPU
    /// does is not known.
    Gpu,
    /// Both.
    Whole,
}

impl Fence {
    /// For the log and for `gdrcore-routerctl`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Fence::Off => "no",
            Fence::NoLandlock => "seccomp; this kernel has no Landlock",
            Fence::Looks => "seccomp; no Landlock, for a `netns` of the policy, or a hidden /proc",
            Fence::Gpu => {
                "seccomp, which refuses other calls; no Landlock, for the driver of `gpus`"
            }
            Fence::Whole => "seccomp, Landlock",
        }
    }

    /// Whether a policy can be put in force behind this fence.
    ///
    /// # Errors
    /// In words.
    pub(super) fn admits(self, policy: &Policy) -> Result<(), String> {
        match self == Fence::Whole && tells_by_netns(policy) {
            true => {
                Err("`netns`: the router has confined itself by Landlock, which keeps it from \
                         looking at namespaces: restart it"
                    .into())
            }
            false => Ok(()),
        }
    }

    /// Adds to the reason of a failure that Landlock may be its cause.
    pub(super) fn explain(self, what: String) -> String {
        match self == Fence::Whole && what.contains("(os error 13)") {
            true => format!(
                "{what}; the router has confined itself to the folders that its policy named at \
                 its start: if this is another one, restart it"
            ),
            false => what,
        }
    }
}

/// Whether tenants have a NIC of the router.
fn has_nic(policy: &Policy) -> bool {
    policy.devices().any(|name| name.starts_with(gdrcore_verbs::name::PREFIX))
}

fn tells_by_netns(policy: &Policy) -> bool {
    policy.tenants.iter().any(|t| t.rules.netns.is_some())
}

/// Whether /proc shows a process only to who may trace it (`hidepid`, proc(5)). `mounts`:
/// proc_pid_mountinfo(5).
fn is_hidden(mounts: &str) -> bool {
    let hides = |option: &str| {
        option.strip_prefix("hidepid=").is_some_and(|how| !matches!(how, "0" | "off"))
    };
    let of_proc = mounts.lines().filter(|line| line.split(' ').nth(4) == Some("/proc"));
    of_proc.flat_map(|line| line.split([' ', ','])).any(hides)
}

/// Raises the first wall, before any thread is made: threads have what their maker had. Folders
/// of the sockets are made if they are missing.
///
/// # Errors
/// In words: the kernel refuses.
pub(super) fn landlock(policy: &Policy, options: &Options) -> Result<Fence, String> {
    if !options.confine {
        return Ok(Fence::Off);
    }
    // Where that fails, the listener fails, and says why.
    let _ = sockets(policy).try_for_each(|path| listener::make_folders(path, false));
    let mut of_tenants = policy.tenants.iter().filter_map(|t| t.listen.as_ref());
    let _ = of_tenants.try_for_each(|path| listener::make_folders(path, true));
    if !policy.gpus.is_empty() {
        return Ok(Fence::Gpu);
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if tells_by_netns(policy) || is_hidden(&mounts) {
        return Ok(Fence::Looks);
    }
    let said = |e: landlock::RulesetError| unconfined("Landlock", &e);
    let abi = ABI::V5;
    let mut ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(abi))
        .and_then(|set| set.handle_access(AccessNet::from_all(abi)))
        .and_then(Ruleset::create)
        .map_err(said)?;
    for (path, may) in rules(policy, options) {
        let Ok(fd) = PathFd::new(&path) else { continue };
        ruleset = ruleset.add_rule(PathBeneath::new(fd, may)).map_err(said)?;
    }
    let status = ruleset.restrict_self().map_err(said)?;
    Ok(match status.ruleset {
        RulesetStatus::NotEnforced => Fence::NoLandlock,
        _ => Fence::Whole,
    })
}

/// Raises the second wall, for all threads.
///
/// # Errors
/// In words: the kernel refuses, or this is no architecture whose calls are known.
pub(super) fn seccomp(policy: &Policy, fence: Fence) -> Result<(), String> {
    if fence == Fence::Off {
        return Ok(());
    }
    for program in programs(fence, has_nic(policy))? {
        sys::filter_calls(&program).map_err(|e| unconfined("seccomp", &e))?;
    }
    Ok(())
}

fn unconfined(what: &str, e: &dyn std::fmt::Display) -> String {
    format!("the router cannot confine itself: {what}: {e}; --no-confine starts it without")
}

/// Sockets that are of no single tenant.
fn sockets(policy: &Policy) -> impl Iterator<Item = &Path> {
    let own = policy.listen.as_deref().into_iter().chain(policy.admin.as_deref());
    own.chain(policy.host.as_ref().and_then(Host::feed))
}

/// The folders in which something may be done, and what.
fn rules(policy: &Policy, options: &Options) -> Vec<(PathBuf, BitFlags<AccessFs>)> {
    let folder = |path: &Path| match path.parent() {
        Some(above) if above.as_os_str().is_empty() => PathBuf::from("."),
        Some(above) => above.to_path_buf(),
        None => path.to_path_buf(),
    };
    let reads = AccessFs::ReadFile.into();
    let listens = AccessFs::MakeSock | AccessFs::RemoveFile;
    let mut all: Vec<(PathBuf, BitFlags<AccessFs>)> =
        vec![("/proc".into(), reads), ("/dev/null".into(), reads)];
    all.extend(sockets(policy).map(|path| (folder(path), listens)));
    for path in policy.tenants.iter().filter_map(|t| t.listen.as_ref()) {
        let own = folder(path);
        // A new tenant has its folder beside this one.
        let beside = folder(&own);
        let is_root = beside.parent().is_none();
        all.push((if is_root { own } else { beside }, listens | AccessFs::MakeDir));
    }
    // Where a device makes the names of its services, its status and the file of its receipts, and
    // reads those of its peers.
    let has_device = policy.devices().next().is_some();
    let names = AccessFs::MakeDir | AccessFs::RemoveDir | AccessFs::ReadDir | listens;
    let files = AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::ReadFile;
    all.extend(socket_dirs().into_iter().filter(|_| has_device).map(|dir| (dir, names | files)));
    if has_nic(policy) {
        // Where libibverbs finds NICs, and their device files.
        let looks = AccessFs::ReadFile | AccessFs::ReadDir;
        all.push(("/sys".into(), looks));
        all.push(("/dev/infiniband".into(), looks | AccessFs::WriteFile | AccessFs::IoctlDev));
    }
    if let Some(key) = super::key_path(policy, options) {
        let writes = AccessFs::MakeReg | AccessFs::WriteFile | AccessFs::RemoveFile;
        all.push((folder(&key), writes | AccessFs::ReadFile));
    }
    let map = match policy.host.as_ref().map(|Host { map, .. }| map) {
        Some(Source::File(map)) => Some(map),
        _ => None,
    };
    for path in options.file.iter().chain(map) {
        all.push((folder(path), reads));
        // Where links lead to, too.
        all.extend(path.canonicalize().map(|real| (folder(&real), reads)));
    }
    all
}

/// The filters, in the order in which they are installed. The kernel runs all of them, and the
/// strictest verdict counts. `nic`: the router drives one.
fn programs(fence: Fence, nic: bool) -> Result<[BpfProgram; 2], String> {
    let arch = std::env::consts::ARCH.try_into().map_err(|_| {
        unconfined("seccomp", &format_args!("{}: its calls are not known", std::env::consts::ARCH))
    })?;
    // The arguments of clone3 are behind a pointer, which no filter can follow. Without it libc
    // uses clone.
    let absent = SeccompAction::Errno(libc::ENOSYS as u32);
    let clone3 = rules_of(&[Call(libc::SYS_clone3, &[])])?;
    let clone3 = compile(clone3, SeccompAction::Allow, absent, arch)?;
    let own = [[(0, u32::MAX, std::process::id())]];
    let own: Vec<&[_]> = own.iter().map(|test| &test[..]).collect();
    let mut rules = rules_of(CALLS)?;
    for (number, conditions) in rules_of(if nic { CALLS_OF_NICS } else { &[] })? {
        rules.entry(number).or_default().extend(conditions);
    }
    rules.insert(TGKILL, tests(&own)?);
    let mut others = SeccompAction::KillProcess;
    if fence == Fence::Gpu {
        rules.entry(libc::SYS_ioctl).or_default().extend(tests(OF_GPUS)?);
        others = SeccompAction::Errno(libc::EPERM as u32);
    }
    let listed = compile(rules, others, SeccompAction::Allow, arch)?;
    Ok([clone3, listed])
}

fn compile(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    others: SeccompAction,
    these: SeccompAction,
    arch: TargetArch,
) -> Result<BpfProgram, String> {
    let filter = SeccompFilter::new(rules, others, these, arch);
    filter.and_then(TryInto::try_into).map_err(|e| unconfined("seccomp", &e))
}

fn rules_of(calls: &[Call]) -> Result<BTreeMap<i64, Vec<SeccompRule>>, String> {
    calls.iter().map(|Call(number, any_of)| Ok((*number, tests(any_of)?))).collect()
}

fn tests(any_of: &[&[calls::Test]]) -> Result<Vec<SeccompRule>, String> {
    let condition = |&(argument, mask, value): &calls::Test| {
        let op = SeccompCmpOp::MaskedEq(mask.into());
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, op, value.into())
    };
    let rule = |all_of: &&[calls::Test]| {
        let conditions = all_of.iter().map(condition).collect::<Result<Vec<_>, _>>();
        conditions.and_then(SeccompRule::new).map_err(|e| unconfined("seccomp", &e))
    };
    any_of.iter().map(rule).collect()
}

#[cfg(test)]
mod tests;
