//! Runs unmodified librdmacm programs under `gdrcore-run`: two sides of a tool, each on its own
//! address.

use crate::dropin::without_settings;
use crate::library;
use crate::patience;
use crate::source::root;
use crate::tools::{installed, loopback, Done, Running};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time limit of a tool on an idle machine.
const LIMIT: Duration = Duration::from_secs(60);

/// The path of the launcher, `gdrcore-run`.
pub fn launcher() -> std::path::PathBuf {
    library::dropin();
    root().join("build/bin/gdrcore-run")
}

/// Whether the server of a tool ended as expected. rping's server ends by the event of its client's
/// disconnection, with any exit code, by a race of its own.
pub fn has_served(tool: &str, done: &Done) -> bool {
    done.ok() || tool == "rping" && done.output.contains("DISCONNECT EVENT")
}

/// A program under the launcher, on an address (none: on all).
pub fn command(
    address: Option<&str>,
    options: &[&str],
    program: impl AsRef<std::ffi::OsStr>,
) -> Command {
    let mut c = Command::new(launcher());
    without_settings(&mut c);
    if let Some(a) = address {
        c.args(["--address", a]);
    }
    c.args(options).arg(program);
    c
}

/// The value of a counter in the output of `--stats`, summed over all processes of that output.
pub fn counted(output: &str, name: &str) -> u64 {
    let values = output.lines().filter_map(|l| {
        l.strip_prefix("gdrcore: ")?.strip_prefix(name)?.trim().parse::<u64>().ok()
    });
    values.sum()
}

/// Waits until a program listens on an address. Each service that a process offers is the name of a
/// socket, which the processes of an address look up.
pub fn wait_until_it_listens(server: &mut Running, address: &str) {
    wait_for_name("/proc/net/unix", server, address);
}

/// The same for a port, where the address has others: a NIC's connection manager keeps one.
pub fn wait_until_it_listens_at(server: &mut Running, address: &str, port: u16) {
    let (of, at) = (format!("/{address}-"), format!("-{port}/"));
    let is = |l: &str| l.contains(&of) && l.split("/c").nth(1).is_some_and(|c| c.contains(&at));
    wait_for("/proc/net/unix", is, server);
}

/// The same in the network namespace of a process.
pub fn wait_until_it_listens_in(process: u32, server: &mut Running, address: &str) {
    wait_for_name(&format!("/proc/{process}/net/unix"), server, address);
}

fn wait_for_name(file: &str, server: &mut Running, address: &str) {
    let is = |l: &str| {
        l.rsplit(' ')
            .next()
            .is_some_and(|n| n.contains(&format!("/{address}-")) && n.contains("/c"))
    };
    wait_for(file, is, server);
}

/// Waits until a program listens and all of its threads sleep, or two seconds of an idle machine.
/// riostream sets the options of its connections on a socket that listens already: a client that
/// comes before gets a connection without them. The main thread alone tells nothing: it sleeps,
/// too, while another of its threads, from which it waits for an answer, waits for a CPU.
pub fn wait_until_it_accepts(server: &mut Running, address: &str) {
    wait_until_it_listens(server, address);
    let threads = format!("/proc/{}/task", server.pid());
    // Each thread's number, state, and how often it has slept and was preempted; None: one runs.
    let look = || {
        let mut all = Vec::new();
        for thread in std::fs::read_dir(&threads).ok()?.flatten() {
            let status = std::fs::read_to_string(thread.path().join("status")).ok()?;
            let wanted = |l: &&str| {
                ["Pid:", "State:"].iter().any(|s| l.starts_with(s)) || l.contains("ctxt_switches:")
            };
            all.push(status.lines().filter(wanted).collect::<Vec<_>>().join(" "));
        }
        all.iter().all(|t| t.contains("sleeping")).then_some(all)
    };
    // Each thread slept from the first look at it to the second, so all of them slept at once.
    while_it_runs(server, Duration::from_secs(2), || {
        let before = look();
        std::thread::sleep(Duration::from_millis(5));
        before.is_some() && before == look()
    });
}

/// Waits until a program is a member of a multicast group.
fn wait_until_it_joins(server: &mut Running, group: Ipv4Addr) {
    let word = format!("{:08X}", u32::from_ne_bytes(group.octets()));
    wait_for("/proc/net/igmp", |l| l.split_whitespace().next() == Some(&word), server);
}

fn wait_for(file: &str, line: impl Fn(&str) -> bool, server: &mut Running) {
    let there = || std::fs::read_to_string(file).is_ok_and(|t| t.lines().any(&line));
    while_it_runs(server, LIMIT, there);
}

/// Waits until `done`, while a program runs, for so long on an idle machine.
fn while_it_runs(program: &mut Running, limit: Duration, done: impl Fn() -> bool) {
    let end = Instant::now() + limit * patience::factor();
    while !done() && program.still_runs() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether a program ends within two seconds of an idle machine.
fn ends_soon(program: &mut Running) -> bool {
    while_it_runs(program, Duration::from_secs(2), || false);
    !program.still_runs()
}

/// The two sides of a tool. In their arguments `{S}` stands for the server's address, `{C}` for the
/// client's, `{D}` for the folder of the test.
pub struct Pair<'a> {
    /// The server's program and arguments.
    pub server: &'a str,
    /// The client's.
    pub client: &'a str,
    /// Further options of the launcher.
    pub options: &'a [&'a str],
    /// Whether the server runs without end; it is killed when the client has ended.
    pub endless: bool,
    /// A library to preload into both.
    pub preload: Option<&'a Path>,
    /// Whether both sides use one address.
    pub together: bool,
    /// The server is ready when it has joined this group, not when it listens.
    pub group: Option<Ipv4Addr>,
}

impl Pair<'_> {
    /// A tool without further options.
    pub fn new<'a>(server: &'a str, client: &'a str) -> Pair<'a> {
        Pair {
            server,
            client,
            options: &[],
            endless: false,
            preload: None,
            together: false,
            group: None,
        }
    }

    fn side(
        &self,
        line: &str,
        own: &str,
        addresses: &[String; 2],
        dir: &Path,
    ) -> Result<Command, String> {
        let line = line.replace("{S}", &addresses[0]).replace("{C}", &addresses[1]);
        let line = line.replace("{D}", &dir.display().to_string());
        let mut words = line.split_whitespace();
        let tool = installed(words.next().expect("a tool"))?;
        let mut c = command(Some(own), self.options, tool);
        // Why a call was refused is in the output, if the test then fails.
        c.args(words).current_dir(dir).env("GDRC_VERBOSE", "1");
        if let Some(p) = self.preload {
            c.env("LD_PRELOAD", p);
        }
        Ok(c)
    }

    fn run_client(&self, addresses: &[String; 2], dir: &Path) -> Result<Done, String> {
        let mut client = self.side(self.client, &addresses[1], addresses, dir)?;
        Ok(Running::start(&mut client).finish(LIMIT))
    }

    /// Runs both sides until they have ended; an error: the tool is not installed. `n` numbers the
    /// test.
    pub fn run(&self, n: u32, dir: &Path) -> Result<[Done; 2], String> {
        let first = loopback(n, 1);
        let addresses = [first.clone(), if self.together { first } else { loopback(n, 2) }];
        let mut server =
            Running::start(&mut self.side(self.server, &addresses[0], &addresses, dir)?);
        match self.group {
            Some(group) => wait_until_it_joins(&mut server, group),
            None => wait_until_it_accepts(&mut server, &addresses[0]),
        }
        let mut client = self.run_client(&addresses, dir)?;
        // Of a group the server may have the address and not yet the queue pair, and datagrams that
        // come between are lost: they are sent again until it has got them.
        for _ in 0..5 {
            if self.group.is_none() || !client.ok() || ends_soon(&mut server) {
                break;
            }
            client = self.run_client(&addresses, dir)?;
        }
        if self.endless {
            server.kill();
        }
        Ok([server.finish(if client.ok() { LIMIT } else { Duration::from_secs(5) }), client])
    }
}
