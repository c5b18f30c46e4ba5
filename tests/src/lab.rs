//! Hosts made of Linux namespaces. Each has its own user, network, mount and pid namespace, and its
//! programs have no capability. Hosts of one user need no root where the kernel allows user
//! namespaces. Hosts of several users need root, and also have an ipc namespace each.

use crate::patience::deadline;
use crate::tools::{all_installed, closed_to_others, find, is_root, run, Running};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// A set of hosts; dropping it ends them and every process in them.
pub struct Lab {
    hosts: Vec<Host>,
    /// The process that holds the namespaces in which links are made; `None`: root makes them.
    /// Declared after `hosts`, so dropped last.
    outer: Option<Running>,
}

/// Options of setpriv that leave no capability.
const WITHOUT_RIGHTS: [&str; 4] =
    ["--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"];

struct Host {
    /// `unshare`, whose child is the host's first process; it kills that child when it ends.
    holder: Running,
    /// Process id of the host's first process in the test's own pid namespace.
    init: u32,
    /// The user that the host belongs to, if not this process's user.
    user: Option<u32>,
}

impl Lab {
    /// Makes `n` hosts without links. The error names what this machine lacks.
    pub fn new(n: usize) -> Result<Lab, String> {
        all_installed(&["unshare", "nsenter", "setpriv", "ip", "sleep"])?;
        let may = run(Command::new("unshare").args(["-Urnmpf", "--mount-proc", "true"]), 10);
        if !may.ok() {
            return Err(format!("user namespaces are not allowed here: {}", may.output.trim()));
        }
        let mut outer = Running::start(Command::new("unshare").args(["-Urnm", "sleep", "3600"]));
        let pid = outer.pid();
        wait_for(|| owns_namespace(pid, "net"), &mut outer)?;
        let mut lab = Lab { hosts: Vec::new(), outer: Some(outer) };
        for _ in 0..n {
            let mut enter = enter(pid, &["-U", "-n", "-m"], None);
            enter.args(["unshare", "-Urnmpf", "--mount-proc", "--kill-child", "sleep", "3600"]);
            lab.add(&mut enter, None)?;
        }
        Ok(lab)
    }

    /// Makes one host for each of these users, without links. Needs root. The error names what this
    /// machine lacks.
    pub fn of_users(users: &[u32]) -> Result<Lab, String> {
        if !is_root() {
            return Err("only root can be several users".to_string());
        }
        if let Some(closed) = closed_to_others() {
            return Err(format!(
                "other users may not enter {}, so they cannot run what was built below it",
                closed.display()
            ));
        }
        all_installed(&["unshare", "nsenter", "setpriv", "ip", "sleep"])?;
        let mut lab = Lab { hosts: Vec::new(), outer: None };
        for &user in users {
            let may = run(of(Some(user), "unshare").args(["-Urnmpif", "--mount-proc", "true"]), 10);
            if !may.ok() {
                return Err(format!(
                    "user namespaces are not allowed to user {user} here: {}",
                    may.output.trim()
                ));
            }
            let mut holder = of(Some(user), "unshare");
            holder.args(["-Urnmpif", "--mount-proc", "--kill-child", "sleep", "3600"]);
            lab.add(&mut holder, Some(user))?;
        }
        Ok(lab)
    }

    /// Adds a host; `unshare` is a command that executes `unshare`.
    fn add(&mut self, unshare: &mut Command, user: Option<u32>) -> Result<(), String> {
        let mut holder = Running::start(unshare);
        let pid = holder.pid();
        wait_for(|| first_child(pid).is_some_and(|c| runs(c, "sleep")), &mut holder)?;
        let init = first_child(pid).ok_or("the host ended at once")?;
        self.hosts.push(Host { holder, init, user });
        self.admin(self.hosts.len() - 1, &["link", "set", "lo", "up"])
    }

    /// The file of a host's network namespace, as a path of this process.
    pub fn netns(&self, host: usize) -> String {
        format!("/proc/{}/ns/net", self.hosts[host].init)
    }

    /// A host's first process, as seen from here.
    pub fn first_process(&self, host: usize) -> u32 {
        self.hosts[host].init
    }

    /// Links two hosts. `a` and `b`: host, name of its interface, its addresses with prefix length.
    pub fn link(&self, a: (usize, &str, &[&str]), b: (usize, &str, &[&str])) -> Result<(), String> {
        let init = |host: usize| self.hosts[host].init.to_string();
        let mut ip = match &self.outer {
            Some(outer) => enter(outer.pid(), &["-U", "-n"], None),
            None => of(None, "env"),
        };
        ip.args([
            "ip",
            "link",
            "add",
            a.1,
            "netns",
            &init(a.0),
            "type",
            "veth",
            "peer",
            "name",
            b.1,
            "netns",
            &init(b.0),
        ]);
        succeed(ip)?;
        for (host, name, addresses) in [a, b] {
            for address in addresses {
                let mut add = vec!["addr", "add", address, "dev", name];
                if address.contains(':') {
                    add.push("nodad"); // no duplicate address detection
                }
                self.admin(host, &add)?;
            }
            self.admin(host, &["link", "set", name, "up"])?;
        }
        Ok(())
    }

    /// Runs `ip` in a host with all capabilities there.
    pub fn admin(&self, host: usize, arguments: &[&str]) -> Result<(), String> {
        let mut ip = self.enter(host, &["-U", "-n"]);
        ip.arg("ip").args(arguments);
        succeed(ip)
    }

    /// A command that runs a program on a host, without any capability.
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let ipc: &[&str] = if self.hosts[host].user.is_some() { &["-i"] } else { &[] };
        let mut command = self.enter(host, &[&["-U", "-n", "-m", "-p"], ipc].concat());
        command.arg("setpriv").args(WITHOUT_RIGHTS).arg(program);
        command
    }

    /// A command prefix: its further arguments run in a host's network namespace only, without
    /// capabilities there, and see all processes.
    pub fn in_network(&self, host: usize) -> Command {
        let mut command = self.enter(host, &["-U", "-n"]);
        command.arg("setpriv").args(WITHOUT_RIGHTS);
        command
    }

    /// A command that runs a program on a host, with all capabilities over that host's network.
    pub fn privileged(&self, host: usize, program: &Path) -> Command {
        let mut command = self.enter(host, &["-U", "-n"]);
        command.arg(program);
        command
    }

    /// Makes this the only rule of a host's firewall. The error names what this machine lacks.
    pub fn firewall(&self, host: usize, hook: &str, rule: &str) -> Result<(), String> {
        let nft = find("nft").ok_or("no nft (nftables)")?;
        let command = |line: &str| run(self.privileged(host, &nft).arg(line), 10);
        let table = command("add table inet t");
        if !table.ok() {
            return Err(table.output);
        }
        let chain = format!("add chain inet t c {{ type filter hook {hook} priority 0; }}");
        let rule = format!("add rule inet t c {rule}");
        for line in ["delete table inet t", "add table inet t", &chain, &rule] {
            let done = command(line);
            assert!(done.ok(), "{line}: {done}");
        }
        Ok(())
    }

    /// Runs a shell command with all capabilities over a host's mounts.
    pub fn arrange(&self, host: usize, command: &str) -> Result<(), String> {
        let mut sh = self.enter(host, &["-U", "-m"]);
        sh.args(["sh", "-ec", command]);
        succeed(sh)
    }

    /// Whether every host still runs.
    pub fn all_run(&mut self) -> bool {
        self.hosts.iter_mut().all(|h| h.holder.still_runs())
    }

    fn enter(&self, host: usize, kinds: &[&str]) -> Command {
        enter(self.hosts[host].init, kinds, self.hosts[host].user)
    }
}

/// A command that runs `program` as a user; `None`: as this process's user.
fn of(user: Option<u32>, program: &str) -> Command {
    let Some(user) = user else { return Command::new(program) };
    let mut command = Command::new("setpriv");
    command
        .args([format!("--reuid={user}"), format!("--regid={user}"), "--clear-groups".to_string()])
        .arg(program);
    command
}

/// A command prefix that enters namespaces of a process as the user who made them.
fn enter(pid: u32, kinds: &[&str], user: Option<u32>) -> Command {
    let mut command = of(user, "nsenter");
    command.args(["-t", &pid.to_string(), "--preserve-credentials"]).args(kinds).arg("--");
    command
}

fn succeed(mut command: Command) -> Result<(), String> {
    let done = run(&mut command, 20);
    if done.ok() {
        Ok(())
    } else {
        Err(format!("{command:?}: {}", done.output.trim()))
    }
}

/// Polls a condition until it holds; an error if the process, which was just started, ends.
fn wait_for(condition: impl Fn() -> bool, process: &mut Running) -> Result<(), String> {
    let end = deadline(60);
    while !condition() {
        if !process.still_runs() || Instant::now() > end {
            return Err("a namespace did not come up".to_string());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn owns_namespace(pid: u32, kind: &str) -> bool {
    let of = |p: String| std::fs::read_link(format!("/proc/{p}/ns/{kind}")).ok();
    let (theirs, ours) = (of(pid.to_string()), of("self".to_string()));
    theirs.is_some() && theirs != ours && runs(pid, "sleep")
}

fn first_child(pid: u32) -> Option<u32> {
    std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}

fn runs(pid: u32, program: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|c| c.trim() == program)
}
