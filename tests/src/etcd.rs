//! etcd for tests: a cluster of members, each on a loopback address of its own, and adapters of it.

use crate::router::Router;
use crate::tools::{find, loopback, run, scratch, Done, Running, Scratch};
use crate::{library, patience};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Seconds after which others are told that a host is gone.
pub const TTL: u64 = 3;

/// A cluster.
pub struct Cluster {
    dir: Scratch,
    program: PathBuf,
    addresses: Vec<String>,
    quota: u64,
    members: Vec<Option<Running>>,
}

impl Cluster {
    /// Starts so many members; each stores so many bytes at most. `n`: a number that no other test
    /// of the process has. `None`: etcd is not installed.
    pub fn start(n: u32, members: u32, quota: u64) -> Option<Cluster> {
        let program = find("etcd")?;
        find("etcdctl")?;
        let addresses = (1..=members).map(|k| loopback(91, 10 * n + k)).collect();
        let mut cluster = Cluster {
            dir: scratch(&format!("etcd-{n}")),
            program,
            addresses,
            quota,
            members: (0..members).map(|_| None).collect(),
        };
        (0..members as usize).for_each(|k| cluster.start_member(k));
        cluster.wait();
        Some(cluster)
    }

    /// Starts a member, for the first time or with what it has stored.
    pub fn start_member(&mut self, k: usize) {
        let at = |k: usize, port: u32| format!("http://{}:{port}", self.addresses[k]);
        let names: Vec<_> =
            (0..self.addresses.len()).map(|k| format!("m{k}={}", at(k, 2380))).collect();
        let (client, peer) = (at(k, 2379), at(k, 2380));
        let mut c = Command::new(&self.program);
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
        let mut c = Command::new("etcdctl");
        c.env("ETCDCTL_API", "3").args(["--command-timeout", "5s", "--endpoints"]);
        run(c.arg(self.endpoints()).args(words), 60)
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
        assert!(done.ok(), "{}", done.output);
    }

    /// The member that leads.
    pub fn leader(&self) -> usize {
        let is = |address: &String| {
            let mut c = Command::new("etcdctl");
            c.env("ETCDCTL_API", "3").args(["--endpoints", &format!("http://{address}:2379")]);
            let said = run(c.args(["endpoint", "status"]), 60).output;
            said.split(", ").nth(4) == Some("true")
        };
        let mut leader = None;
        patience::wait_for(60, "nobody leads", || {
            leader = self.addresses.iter().position(is);
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
    let mut c = Command::new(library::router_etcd());
    c.arg("--feed").arg(router.socket("feed"));
    c.args(["--endpoints", &cluster.endpoints(), "--ttl", &TTL.to_string()]);
    Running::start(&mut c)
}
