//! etcd for tests: a cluster of members, each on a loopback address of its own, and adapters of it.

use crate::lab::Lab;
use crate::router::Router;
use crate::tools::{find, loopback, run, scratch, Done, Running, Scratch};
use crate::{library, patience};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// A cluster.
pub struct Cluster {
    dir: Scratch,
    program: PathBuf,
    addresses: Vec<String>,
    /// What runs each elsewhere than here.
    by: Vec<Vec<OsString>>,
    quota: u64,
    members: Vec<Option<Running>>,
    /// Seconds after which others are told that a host is gone: for the adapters that are started
    /// from then on. On a busy machine a lease of so few may end although its adapter lives.
    pub ttl: u64,
}

impl Cluster {
    /// Starts so many members; each stores so many bytes at most. `n`: a number that no other test
    /// of the process has. `None`: etcd is not installed.
    pub fn start(n: u32, members: u32, quota: u64) -> Option<Cluster> {
        let here = |k| (loopback(91, 10 * n + k), Vec::new());
        Cluster::of(&format!("etcd-{n}"), (1..=members).map(here).collect(), quota)
    }

    /// Starts a member on each of these hosts of a lab, at its address.
    pub fn start_on(lab: &Lab, name: &str, hosts: &[(usize, &str)]) -> Option<Cluster> {
        let on = |&(host, address): &(usize, &str)| {
            let by = lab.in_network(host);
            let words = std::iter::once(by.get_program()).chain(by.get_args());
            (address.to_string(), words.map(Into::into).collect())
        };
        Cluster::of(name, hosts.iter().map(on).collect(), 1 << 30)
    }

    fn of(name: &str, members: Vec<(String, Vec<OsString>)>, quota: u64) -> Option<Cluster> {
        let program = find("etcd")?;
        find("etcdctl")?;
        let count = members.len();
        let (addresses, by) = members.into_iter().unzip();
        let members = (0..count).map(|_| None).collect();
        let mut cluster =
            Cluster { dir: scratch(name), program, addresses, by, quota, members, ttl: 3 };
        (0..count).for_each(|k| cluster.start_member(k));
        cluster.wait();
        Some(cluster)
    }

    /// A command where a member is.
    fn command(&self, k: usize, program: impl Into<OsString>) -> Command {
        let mut words = self.by[k].clone();
        words.push(program.into());
        let mut c = Command::new(&words[0]);
        c.args(&words[1..]);
        c
    }

    fn etcdctl(&self, k: usize) -> Command {
        let mut c = self.command(k, "etcdctl");
        c.env("ETCDCTL_API", "3").args(["--command-timeout", "5s", "--endpoints"]);
        c
    }

    /// Starts a member, for the first time or with what it has stored.
    pub fn start_member(&mut self, k: usize) {
        let at = |k: usize, port: u32| format!("http://{}:{port}", self.addresses[k]);
        let names: Vec<_> =
            (0..self.addresses.len()).map(|k| format!("m{k}={}", at(k, 2380))).collect();
        let (client, peer) = (at(k, 2379), at(k, 2380));
        let mut c = self.command(k, &self.program);
        c.args(["--name", &format!("m{k}"), "--data-dir"])
            .arg(self.dir.join(format!("m{k}")))
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &names.join(","), "--quota-backend-bytes"])
            .args([&self.quota.to_string(), "--logger", "zap", "--log-outputs", "/dev/null"]);
        self.members[k] = Some(Running::start(&mut c));
    }

    /// Waits until the cluster serves.
    pub fn wait(&self) {
        patience::wait_for(60, "etcd serves nobody", || self.ctl(&["put", "/ready", "yes"]).ok());
    }

    /// The members, for an adapter.
    pub fn endpoints(&self) -> String {
        let each = self.addresses.iter().map(|a| format!("http://{a}:2379"));
        each.collect::<Vec<_>>().join(",")
    }

    /// Runs etcdctl.
    pub fn ctl(&self, words: &[&str]) -> Done {
        run(self.etcdctl(0).arg(self.endpoints()).args(words), 60)
    }

    /// The values of keys that begin with a text.
    pub fn values(&self, prefix: &str) -> Vec<String> {
        let done = self.ctl(&["get", "--prefix", "--print-value-only", prefix]);
        done.output.lines().filter(|l| !l.is_empty()).map(str::to_string).collect()
    }

    /// Forgets the history up to now.
    pub fn compact(&self) {
        let said = self.ctl(&["get", "/ready", "-w", "fields"]).output;
        let revision = said.lines().find_map(|l| l.strip_prefix("\"Revision\" : "));
        let done = self.ctl(&["compact", revision.expect("a revision")]);
        assert!(done.ok(), "{done}");
    }

    /// The member that leads.
    pub fn leader(&self) -> usize {
        let is = |&k: &usize| {
            let mut c = self.etcdctl(k);
            c.arg(format!("http://{}:2379", self.addresses[k])).args(["endpoint", "status"]);
            run(&mut c, 60).output.split(", ").nth(4) == Some("true")
        };
        let mut leader = None;
        patience::wait_for(60, "nobody leads", || {
            leader = (0..self.addresses.len()).find(is);
            leader.is_some()
        });
        leader.unwrap_or(0)
    }

    /// Kills a member at once.
    pub fn kill(&mut self, k: usize) {
        if let Some(mut member) = self.members[k].take() {
            member.kill();
            member.finish(Duration::from_secs(60));
        }
    }

    /// Sends a member a signal.
    pub fn signal(&self, k: usize, signal: i32) {
        self.members[k].as_ref().expect("a member that runs").signal(signal);
    }
}

/// Starts the adapter of a router.
pub fn adapter(cluster: &Cluster, router: &Router) -> Running {
    adapter_by(Command::new(library::router_etcd()), cluster, router)
}

/// The same on a host of a lab.
pub fn adapter_on(lab: &Lab, host: usize, cluster: &Cluster, router: &Router) -> Running {
    let mut on = lab.in_network(host);
    on.arg(library::router_etcd());
    adapter_by(on, cluster, router)
}

fn adapter_by(mut c: Command, cluster: &Cluster, router: &Router) -> Running {
    c.arg("--feed").arg(router.socket("feed"));
    c.args(["--endpoints", &cluster.endpoints(), "--ttl", &cluster.ttl.to_string()]);
    Running::start(&mut c)
}
